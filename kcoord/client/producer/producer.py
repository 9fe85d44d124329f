"""The producer that users see. Its work is done by `Sender`."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self, final

from kcoord.client.admin.results import CommittedOffset
from kcoord.client.cluster import Cluster, ClusterOptions, parse_bootstrap
from kcoord.client.connection import ConnectionOptions
from kcoord.client.deadline import BACKOFF_MAX_S, BACKOFF_S, Backoff, Deadline
from kcoord.client.errors import (
    IllegalState,
    InvalidConfiguration,
    KafkaError,
    RequestTimedOut,
    SerializationFailed,
    error_for,
)
from kcoord.client.metadata import NO_NODE, GroupMetadata, TopicPartition
from kcoord.client.producer.batch import RecordMetadata, record_bytes
from kcoord.client.producer.options import (
    ProducerOptions,
    check_options,
    parse_acks,
    parse_codec,
    parse_idempotence,
)
from kcoord.client.producer.partitioner import Partitioner, Sticky, partition_of_key
from kcoord.client.producer.sender import Sender
from kcoord.client.producer.transactions import State, Transactions
from kcoord.protocol import errors
from kcoord.wire.record_batch import HEADER_BYTES, Headers

Serializer = Callable[[Any], bytes | None]

# Far beyond every clock, and within what differences in a batch can hold.
TIMESTAMP_MS_MAX: Final = 2**61
# Errors of a topic that pass when it is created or its leader is elected.
PASSING: Final = frozenset({errors.NONE, errors.UNKNOWN_TOPIC_OR_PARTITION, errors.LEADER_NOT_AVAILABLE})


@final
class Producer:
    """Writes records to any Kafka cluster. Use it as an async context manager, or call `start` and `stop`.

    Sizes are in bytes. `enable_idempotence` is on by default unless `acks` or `max_in_flight` exclude it. A
    `partitioner` gets the key, all partitions, and those with a leader. Every failure is a KafkaError.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str | Iterable[str],
        client_id: str = "kcoord",
        transactional_id: str | None = None,
        transaction_timeout_ms: float = 60_000,
        acks: str | int = "all",
        enable_idempotence: bool | None = None,
        compression_type: str | None = None,
        linger_ms: float = 5,
        batch_bytes_max: int = 16_384,
        buffer_bytes_max: int = 33_554_432,
        max_request_size: int = 1_048_576,
        max_in_flight: int = 5,
        delivery_timeout_ms: float = 120_000,
        request_timeout_ms: float = 30_000,
        max_block_ms: float = 60_000,
        retry_backoff_ms: float = BACKOFF_S * 1000,
        retry_backoff_max_ms: float = BACKOFF_MAX_S * 1000,
        metadata_max_age_ms: float = 300_000,
        partitioner: Partitioner | None = None,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        acks_number = parse_acks(acks)
        self._options = ProducerOptions(
            acks_number,
            parse_idempotence(enable_idempotence, acks_number, max_in_flight),
            parse_codec(compression_type),
            linger_ms / 1000,
            batch_bytes_max,
            buffer_bytes_max,
            max_request_size,
            max_in_flight,
            delivery_timeout_ms / 1000,
            request_timeout_ms / 1000,
            max_block_ms / 1000,
            retry_backoff_ms / 1000,
            retry_backoff_max_ms / 1000,
            transactional_id,
            transaction_timeout_ms / 1000,
        )
        check_options(self._options)
        self._cluster_options = ClusterOptions(
            parse_bootstrap(bootstrap_servers),
            ConnectionOptions(client_id, request_timeout_ms / 1000, ssl_context),
            metadata_max_age_ms / 1000,
            retry_backoff_ms / 1000,
            retry_backoff_max_ms / 1000,
        )
        self._partitioner = partitioner
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._sticky: dict[str, Sticky] = {}
        self._cluster: Cluster | None = None
        self._sender: Sender | None = None
        self._is_closed = False

    # --- life

    async def start(self) -> None:
        """Connect, and get a producer id if the producer is idempotent. Raises RequestTimedOut after max_block_ms."""
        if self._is_closed or self._cluster is not None:
            raise IllegalState("a producer can be started once")
        deadline = Deadline(self._options.max_block_s, "starting the producer")
        cluster = self._cluster = Cluster(self._cluster_options)
        cluster.may_create_topics = True
        try:
            await cluster.start(deadline.left_s())
            sender = Sender(cluster, self._options)
            await sender.start(deadline)
        except BaseException:
            self._is_closed = True
            await cluster.close()
            raise
        self._sender = sender

    async def stop(self, timeout: float | None = None) -> None:
        """Deliver all records, then close. Records that are not delivered in `timeout` seconds fail (IllegalState).

        A transaction that has not ended is aborted, as in Kafka.
        """
        if self._is_closed:
            return
        self._is_closed = True
        sender, cluster = self._sender, self._cluster
        limit_s = self._options.delivery_timeout_s if timeout is None else timeout
        try:
            if sender is not None and sender.is_running:
                transactions = sender.transactions
                if transactions is not None and transactions.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
                    deadline = Deadline(limit_s, "aborting the transaction")
                    await transactions.abort(deadline, lambda: sender.drop(deadline))
                await self._flush(sender, limit_s)
        except KafkaError:
            # Records have their own errors.
            pass
        finally:
            if sender is not None:
                await sender.close()
            if cluster is not None:
                await cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    # --- records

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Write a record, and wait until the broker has confirmed it."""
        future = await self.send_nowait(
            topic, value, key, partition=partition, headers=headers, timestamp_ms=timestamp_ms
        )
        return await future

    async def send_nowait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Put a record into the buffer; the future gets the result.

        Waits for the metadata of the topic and while the buffer is full, max_block_ms at most (RequestTimedOut).
        Raises RecordTooLarge for a record above max_request_size or buffer_bytes_max.
        """
        sender = self._sender
        if sender is None or self._is_closed or sender.is_closed:
            sender = self._running()
        if sender.transactions is not None:
            sender.transactions.check_send()
        # Bytes without a serializer are the usual case.
        key_bytes: bytes | None = key
        if self._key_serializer is not None or (key is not None and type(key) is not bytes):
            key_bytes = _serialize(self._key_serializer, key, "key")
        value_bytes: bytes | None = value
        if self._value_serializer is not None or type(value) is not bytes:
            value_bytes = _serialize(self._value_serializer, value, "value")
        record_headers: Headers = _checked(headers) if headers else []
        size = record_bytes(key_bytes, value_bytes, record_headers)
        if size + HEADER_BYTES > self._options.max_request_size or size > self._options.buffer_bytes_max:
            limit = min(self._options.max_request_size, self._options.buffer_bytes_max)
            raise error_for(errors.MESSAGE_TOO_LARGE, f"a record of up to {size} bytes", f"the limit is {limit} bytes")
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        elif not 0 <= timestamp_ms <= TIMESTAMP_MS_MAX:
            raise InvalidConfiguration(f"timestamp_ms: {timestamp_ms}")
        if sender.is_behind:
            sender.is_behind = False
            await asyncio.sleep(0)
        deadline: Deadline | None = None
        metadata = sender.cluster.metadata
        if metadata.partition_count(topic) <= (partition or 0):
            deadline = Deadline(self._options.max_block_s, f"the metadata of topic {topic}")
            await self._topic(sender.cluster, topic, partition, deadline)
        if not sender.buffer.take(size):
            await self._wait_for_bytes(sender, size, deadline)
        try:
            if partition is None:
                partition = self._partition(sender, topic, key_bytes, size)
            return sender.append((topic, partition), timestamp_ms, key_bytes, value_bytes, record_headers, size)
        except BaseException:
            sender.buffer.give_back(size)
            raise

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all records that were sent before have their results. Raises RequestTimedOut."""
        await self._flush(self._running(), self._options.delivery_timeout_s if timeout is None else timeout)

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic. Raises RequestTimedOut if it does not exist within max_block_ms."""
        cluster = self._running().cluster
        await self._topic(cluster, topic, None, Deadline(self._options.max_block_s, f"the metadata of topic {topic}"))
        return sorted(cluster.metadata.topics[topic].partitions)

    # --- transactions

    async def init_transactions(
        self,
        timeout: float | None = None,
        *,
        group: GroupMetadata | None = None,
        partitions: Collection[TopicPartition] = (),
    ) -> None:
        """Get a producer id for the transactional id; producers that had it before are fenced.

        With `group`, kcoord also fences producers to which the group had assigned these `partitions` before (the draft
        of KIP-447); other brokers ignore it. Like the other calls of transactions it may be repeated after
        RequestTimedOut.
        """
        await self._transactions().init(self._transaction_deadline("init_transactions", timeout), group, partitions)

    async def begin_transaction(self, timeout: float | None = None) -> None:
        """What is sent from now on belongs to one transaction."""
        await self._transactions().begin(self._transaction_deadline("begin_transaction", timeout))

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Deliver all records, and commit them. Raises the error of a record that was not delivered.

        After an error but RequestTimedOut, call `abort_transaction`; after ProducerFenced, stop the producer.
        """
        sender = self._running()
        deadline = self._transaction_deadline("commit_transaction", timeout)
        await self._transactions().commit(deadline, lambda: self._flush(sender, deadline.left_s()))

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Have nobody read the records of the transaction; those that were not sent yet fail (TransactionAborted)."""
        sender = self._running()
        deadline = self._transaction_deadline("abort_transaction", timeout)
        await self._transactions().abort(deadline, lambda: sender.drop(deadline))

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | CommittedOffset],
        group: GroupMetadata | str,
        timeout: float | None = None,
    ) -> None:
        """Commit a group's offsets with the transaction.

        `group` is `consumer.group_metadata()`: a member that the group has replaced is refused (IllegalGeneration,
        UnknownMember, FencedInstanceId, KIP-447), and the transaction must be aborted.
        """
        found = {
            TopicPartition(*name): CommittedOffset(one) if isinstance(one, int) else one
            for name, one in offsets.items()
        }
        metadata = GroupMetadata(group) if isinstance(group, str) else group
        deadline = self._transaction_deadline("send_offsets_to_transaction", timeout)
        await self._transactions().send_offsets(found, metadata, deadline)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """A transaction for an `async with`: committed at the end, aborted after an exception."""
        await self.begin_transaction()
        try:
            yield self
            await self.commit_transaction()
        except BaseException as error:
            transactions = self._transactions()
            # A fatal error is the one to tell; so is one that leaves the end to a repeated call.
            if transactions.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
                try:
                    await self.abort_transaction()
                except KafkaError as later:
                    raise later from error
            raise

    def _transactions(self) -> Transactions:
        found = self._running().transactions
        if found is None:
            raise IllegalState("the producer has no transactional_id")
        return found

    def _transaction_deadline(self, what: str, timeout_s: float | None) -> Deadline:
        return Deadline(self._options.max_block_s if timeout_s is None else timeout_s, what)

    # --- parts

    def _running(self) -> Sender:
        if self._is_closed:
            raise IllegalState("the producer is closed")
        if self._sender is None:
            raise IllegalState("the producer is not started")
        if not self._sender.is_running:
            raise IllegalState("the producer has failed")
        return self._sender

    async def _flush(self, sender: Sender, timeout_s: float) -> None:
        waiting = [batch.done for batch in sender.unfinished()]
        if not waiting:
            return
        sender.is_flushing += 1
        sender.wake()
        try:
            _, late = await asyncio.wait(waiting, timeout=timeout_s)
        finally:
            sender.is_flushing -= 1
        if late:
            raise RequestTimedOut(f"{len(late)} batches were not delivered within {timeout_s:g} s")

    async def _topic(self, cluster: Cluster, topic: str, partition: int | None, deadline: Deadline) -> None:
        """Wait until the topic is known, and has the partition."""
        backoff = Backoff(self._options.retry_backoff_s, self._options.retry_backoff_max_s)
        if partition is not None and partition < 0:
            raise error_for(errors.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition}")
        cluster.watch([topic])
        while True:
            await cluster.refresh(deadline)
            found = cluster.metadata.topics.get(topic)
            code = errors.UNKNOWN_TOPIC_OR_PARTITION if found is None else found.error_code
            if code not in PASSING:
                raise error_for(code, f"topic {topic}")
            if cluster.metadata.partition_count(topic) > (partition or 0):
                return
            if code == errors.NONE:
                raise error_for(errors.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition}")
            await deadline.pause(backoff, error_for(code, f"topic {topic}"))

    async def _wait_for_bytes(self, sender: Sender, size: int, deadline: Deadline | None) -> None:
        limit_s = self._options.max_block_s if deadline is None else deadline.left_s()
        sender.wake()
        try:
            async with asyncio.timeout(limit_s):
                # Records that wait for the buffer count as being sent, so `stop` may end while they wait.
                turn = sender.buffer.queue(size)
                try:
                    await turn
                except BaseException:
                    sender.buffer.leave(size, turn)
                    raise
        except TimeoutError:
            raise RequestTimedOut(f"the buffer of the producer is full for {limit_s:g} s") from None
        if self._is_closed:
            sender.buffer.give_back(size)
            raise IllegalState("the producer is closed")

    def _partition(self, sender: Sender, topic: str, key: bytes | None, size: int) -> int:
        metadata = sender.cluster.metadata
        found = metadata.topics.get(topic)
        if found is None or not found.partitions:
            # It was deleted while the call waited for the buffer.
            raise error_for(errors.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic}")
        partitions = found.partitions
        if self._partitioner is None:
            if key is not None:
                return partition_of_key(key, len(partitions))
            sticky = self._sticky.get(topic)
            if sticky is None:
                sticky = self._sticky[topic] = Sticky(self._options.batch_bytes_max)
            if sticky.keeps(partitions, size):
                return sticky.partition
        everything = sorted(partitions)
        available = [number for number in everything if partitions[number].leader != NO_NODE]
        if self._partitioner is None:
            return self._sticky[topic].choose(everything, available, size)
        chosen = self._partitioner(key, everything, available)
        if chosen not in partitions:
            raise InvalidConfiguration(f"partitioner: {chosen!r} is no partition of topic {topic}")
        return chosen


def _serialize(serializer: Serializer | None, given: Any, what: str) -> bytes | None:
    if serializer is not None:
        try:
            given = serializer(given)
        except KafkaError:
            raise
        except Exception as error:
            raise SerializationFailed(f"the {what}: {error!r}") from error
    if given is None or type(given) is bytes:
        return given
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given)
    raise SerializationFailed(f"the {what} is {type(given).__name__}, not bytes; is a {what}_serializer missing?")


def _checked(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    found: Headers = []
    for name, value in headers:
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
            raise SerializationFailed(f"header {name!r}: a name is text, and a value is bytes or None")
        found.append((name, value))
    return found
