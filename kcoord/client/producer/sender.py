"""The task that sends batches: one request at a time for each broker takes a batch of each of its partitions.

`Sender.append` adds records to batches. The task wakes up when a batch is full or has waited long enough, when an
answer arrives, and when the metadata change. At each turn it sends all batches that may be sent: their partition has a
leader, no earlier batch of the partition waits to be sent again, and the broker has fewer than `max_in_flight`
requests. See batch.py for the order of batches and their sequence numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Final, cast, final

from kcoord.client.cluster import MOVED, Cluster
from kcoord.client.connection import Connection
from kcoord.client.deadline import Backoff, Deadline
from kcoord.client.errors import (
    ConnectionLost,
    IllegalState,
    KafkaError,
    RequestTimedOut,
    TransactionAborted,
    UnsupportedVersion,
    check,
    error_for,
)
from kcoord.client.metadata import NO_ID, NO_NODE, Node, TopicPartition
from kcoord.client.producer import answers
from kcoord.client.producer.batch import Batch, Buffer, Lane, RecordMetadata
from kcoord.client.producer.options import ProducerOptions
from kcoord.client.producer.transactions import PRODUCE_V2, Transactions
from kcoord.protocol import apis, errors
from kcoord.protocol.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kcoord.protocol.produce import PartitionProduceResponse, ProduceResponse
from kcoord.wire.compression import CODEC_ZSTD
from kcoord.wire.message import Message
from kcoord.wire.record_batch import HEADER_BYTES, NO_PRODUCER_ID, NO_SEQUENCE, Headers

EPOCH_MAX: Final = 32767
# What a partition takes in a Produce request beside its batch, at most, without the name of the topic.
PARTITION_BYTES: Final = 64
# A partition without a leader is looked at again after this time, if no metadata arrive before.
NO_LEADER_S: Final = 0.1
# While a transaction is aborted, what comes back is dropped at least so often.
DROP_S: Final = 0.05
# The task looks for batches whose delivery timeout is over this often at the least.
TURN_S: Final = 1.0


@final
class Sender:
    """Start it before use. Batches end with a result or a KafkaError, whatever happens."""

    def __init__(self, cluster: Cluster, options: ProducerOptions) -> None:
        self.cluster = cluster
        self.options = options
        self.buffer = Buffer(options.buffer_bytes_max)
        self.producer_id = NO_PRODUCER_ID
        self.epoch = -1
        self.is_flushing = 0
        # A batch is full and the task has not run since: whoever adds records should let it run.
        self.is_behind = False
        self.is_closed = False
        self._lanes: dict[tuple[str, int], Lane] = {}
        # Partitions with batches; a dict keeps their order.
        self._active: dict[TopicPartition, Lane] = {}
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._helpers: set[asyncio.Task[None]] = set()
        self._opening: set[int] = set()
        self._in_flight: dict[int, int] = {}
        self._is_renewing = False
        # Why the last attempt for something failed that all batches wait for.
        self._trouble: KafkaError | None = None
        self.transactions: Transactions | None = None
        if options.transactional_id is not None:
            self.transactions = Transactions(cluster, options, options.transactional_id, self._wake.set)

    # --- life

    async def start(self, deadline: Deadline) -> None:
        self.cluster.on_change.append(self._wake.set)
        if self.options.is_idempotent and self.transactions is None:
            await self._renew_identity(deadline)
        self._task = asyncio.create_task(self._run(), name="kcoord producer")

    async def close(self) -> None:
        """Stop. Batches that have no result yet fail."""
        if self.transactions is not None:
            await self.transactions.close()
        tasks = [*self._helpers, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, KafkaError):
                await task
        self._fail_all(IllegalState("the producer was closed before the broker confirmed the record"))

    def _fail_all(self, error: KafkaError) -> None:
        self.is_closed = True
        for lane in self._active.values():
            for batch in (*lane.in_flight, *lane.waiting):
                self._fail(batch, error)
            lane.waiting.clear()
            lane.in_flight.clear()
        self._active.clear()

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    # --- records

    def append(
        self,
        partition: tuple[str, int],
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        size: int,
    ) -> asyncio.Future[RecordMetadata]:
        """Add a record, for which `size` bytes of the buffer were taken."""
        if self.is_closed:
            raise IllegalState("the producer is closed")
        lane = self._lanes.get(partition)
        if lane is None:
            name = TopicPartition(*partition)
            lane = self._lanes[name] = Lane(name, self.options)
        batch = lane.waiting[-1] if lane.waiting else None
        if batch is None or batch.is_closed:
            batch = None
        elif batch.buffered_bytes + size + HEADER_BYTES > self.options.batch_bytes_max:
            batch.is_closed = True
            batch = None
            self.is_behind = True
            self._wake.set()
        if batch is None:
            batch = Batch(lane.partition, self._loop.time(), self._loop.create_future())
        batch.builder.append(timestamp_ms, key, value, headers)
        if not batch.futures:
            lane.waiting.append(batch)
            self._active[lane.partition] = lane
            self._wake.set()
        future: asyncio.Future[RecordMetadata] = self._loop.create_future()
        batch.futures.append(future)
        batch.timestamps.append(timestamp_ms)
        batch.buffered_bytes += size
        return future

    def unfinished(self) -> list[Batch]:
        """All batches without a result."""
        return [batch for lane in self._active.values() for batch in (*lane.in_flight, *lane.waiting)]

    def wake(self) -> None:
        self._wake.set()

    # --- turns

    async def _run(self) -> None:
        try:
            while True:
                self._wake.clear()
                pause_s = self._turn(self._loop.time())
                if not self._wake.is_set():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(pause_s):
                            await self._wake.wait()
                # Records that were added meanwhile join the batches.
                await asyncio.sleep(0)
        except Exception as error:
            # A bug must not leave anybody waiting.
            self._fail_all(IllegalState(f"the producer has failed: {error!r}"))
            raise

    def _turn(self, now_s: float) -> float:
        """Send what may be sent. Returns the time until something may change by itself."""
        pause_s = TURN_S
        transactions = self.transactions
        if transactions is not None and transactions.error is not None:
            self._drop_waiting(transactions.error)
        ready: dict[int, list[Lane]] = {}
        for lane in list(self._active.values()):
            self._expire(lane, now_s)
            if lane.is_empty:
                del self._active[lane.partition]
                continue
            wait_s = self._wait_s(lane, now_s)
            if wait_s > 0:
                pause_s = min(pause_s, wait_s)
                continue
            leader = self.cluster.metadata.leader(lane.partition)
            if lane.in_flight and leader != lane.node_id:
                # The old leader answers first: a broker remembers five batches only.
                continue
            if leader == NO_NODE or leader not in self.cluster.metadata.nodes:
                self.cluster.want_refresh()
                pause_s = min(pause_s, NO_LEADER_S)
            else:
                ready.setdefault(leader, []).append(lane)
        for node_id, lanes in ready.items():
            self._send_to(node_id, lanes, now_s)
        return pause_s

    def _wait_s(self, lane: Lane, now_s: float) -> float:
        """How long the first waiting batch of a partition must wait at least, 0 if it may be sent now."""
        if not lane.waiting or (lane.in_flight and (lane.retries or lane.needs_new_epoch)):
            return TURN_S
        if lane.in_flight and self.options.is_idempotent and not lane.is_known:
            return TURN_S
        if lane.paused_until_s > now_s:
            return lane.paused_until_s - now_s
        if self.options.is_idempotent and not self._has_numbers(lane):
            return TURN_S
        if not lane.waiting:
            return TURN_S
        batch = lane.waiting[0]
        if batch.is_closed or self.is_flushing or self.buffer.is_short:
            return 0
        return batch.created_s + self.options.linger_s - now_s

    def _has_numbers(self, lane: Lane) -> bool:
        """Give the partition its producer id and epoch, or the next epoch if it needs one."""
        if self.transactions is not None:
            return self._has_numbers_of_transaction(lane, self.transactions)
        if lane.producer_id != NO_PRODUCER_ID and not lane.needs_new_epoch:
            return True
        if lane.producer_id == self.producer_id and lane.epoch >= EPOCH_MAX:
            self.producer_id = NO_PRODUCER_ID
        if self.producer_id == NO_PRODUCER_ID:
            if not self._is_renewing:
                self._is_renewing = True
                self._help(self._renew())
            return False
        is_same = lane.producer_id == self.producer_id
        epoch = lane.epoch + 1 if is_same else self.epoch
        for batch in lane.start_epoch(self.producer_id, epoch):
            self._fail(batch, error_for(errors.OUT_OF_ORDER_SEQUENCE_NUMBER, str(lane.partition), "after a lost batch"))
        return True

    def _has_numbers_of_transaction(self, lane: Lane, transactions: Transactions) -> bool:
        """All partitions have the epoch of the transaction, which changes only while nothing waits."""
        if not transactions.may_send(lane.partition):
            return False
        if (lane.producer_id, lane.epoch) != (transactions.producer_id, transactions.epoch):
            for batch in lane.start_epoch(transactions.producer_id, transactions.epoch):
                self._fail(batch, error_for(errors.OUT_OF_ORDER_SEQUENCE_NUMBER, str(lane.partition)))
        return True

    def _drop_waiting(self, error: KafkaError) -> None:
        """Fail all records that are not on their way."""
        for lane in self._active.values():
            for batch in list(lane.waiting):
                lane.drop(batch)
                self._fail(batch, error)

    async def drop(self, deadline: Deadline) -> None:
        """The transaction is aborted: fail what waits, and wait for the answers to what is on its way."""
        while True:
            self._drop_waiting(TransactionAborted("the transaction was aborted before the record was sent"))
            sent = [batch.done for lane in self._active.values() for batch in lane.in_flight if not batch.done.done()]
            if not sent:
                return
            # What has to be sent again goes back to those that wait.
            self._wake.set()
            _, late = await asyncio.wait(sent, timeout=min(deadline.left_s(), DROP_S))
            if late:
                deadline.check()

    def _send_to(self, node_id: int, lanes: list[Lane], now_s: float) -> None:
        connection = self.cluster.open_connection(node_id)
        if connection is None:
            if node_id not in self._opening:
                self._opening.add(node_id)
                self._help(self._open(node_id))
            return
        while lanes and self._in_flight.get(node_id, 0) < self.options.max_in_flight:
            chosen: list[Lane] = []
            size = 0
            for lane in lanes:
                batch_bytes = lane.waiting[0].buffered_bytes + HEADER_BYTES
                batch_bytes += PARTITION_BYTES + len(lane.partition.topic) * 4
                if chosen and size + batch_bytes > self.options.max_request_size:
                    continue
                chosen.append(lane)
                size += batch_bytes
            self._send(connection, node_id, chosen)
            # The other lanes come first in the next request.
            rest = [lane for lane in lanes if lane not in chosen]
            lanes = [lane for lane in (*rest, *chosen) if lane.waiting and self._wait_s(lane, now_s) <= 0]

    def _send(self, connection: Connection, node_id: int, lanes: list[Lane]) -> None:
        options = self.options
        metadata = self.cluster.metadata
        names = {metadata.topics[lane.partition.topic].topic_id: lane.partition.topic for lane in lanes}
        for lane in lanes:
            lane.node_id = node_id
        batches = [(lane, lane.take(options.is_idempotent)) for lane in lanes]
        try:
            version_max = answers.TOPIC_IDS_FROM - (1 if NO_ID in names else 0)
            version_min = answers.ZSTD_FROM if options.codec == CODEC_ZSTD else answers.VERSION_MIN
            transactions = self.transactions
            if transactions is not None and transactions.is_v2:
                version_min = PRODUCE_V2
            elif transactions is not None:
                version_max = min(version_max, PRODUCE_V2 - 1)
            version = connection.version(apis.PRODUCE, version_min, version_max)
            is_transactional = transactions is not None
            data = [
                (b.partition, b.encode(options.codec, lane.producer_id, lane.epoch, is_transactional))
                for lane, b in batches
            ]
            timeout_ms = int(options.request_timeout_s * 1000)
            request = answers.produce_request(
                version, options.transactional_id, options.acks, timeout_ms, data, metadata
            )
            if options.acks == 0:
                connection.send(apis.PRODUCE, version, request)
            else:
                future = connection.begin(apis.PRODUCE, version, request)
        except KafkaError as error:
            self._lost(batches, error)
            return
        self._in_flight[node_id] = self._in_flight.get(node_id, 0) + 1
        if options.acks == 0:
            self._help(self._drain(connection, node_id, batches))
            return
        future.add_done_callback(lambda done: self._answered(node_id, batches, names, version, done))

    async def _drain(self, connection: Connection, node_id: int, batches: list[tuple[Lane, Batch]]) -> None:
        """Without answers, a batch is done when the socket has taken it."""
        try:
            async with asyncio.timeout(self.options.request_timeout_s):
                await connection.drain()
        except (KafkaError, TimeoutError):
            self._lost(batches, ConnectionLost(f"{connection.address}: the connection does not take more"))
        else:
            for lane, batch in batches:
                lane.in_flight.remove(batch)
                self._succeed(batch, -1, -1)
        finally:
            self._in_flight[node_id] -= 1
            self._wake.set()

    # --- answers

    def _answered(
        self,
        node_id: int,
        batches: list[tuple[Lane, Batch]],
        names: dict[bytes, str],
        version: int,
        done: asyncio.Future[Message],
    ) -> None:
        self._in_flight[node_id] -= 1
        self._wake.set()
        if done.cancelled():
            self._lost(batches, ConnectionLost("the request was cancelled"))
            return
        error = done.exception()
        if error is not None:
            failure = error if isinstance(error, KafkaError) else ConnectionLost(repr(error))
            self._lost(batches, failure)
            return
        answer = cast(ProduceResponse, done.result())
        parts = answers.by_partition(names, version, answer)
        nodes = answers.endpoints(answer)
        for lane, batch in batches:
            part = parts.get(lane.partition)
            if part is None:
                self._lost([(lane, batch)], ConnectionLost("the broker left out a partition of the answer"))
            else:
                self._judge(lane, batch, part, nodes)

    def _judge(self, lane: Lane, batch: Batch, part: PartitionProduceResponse, nodes: list[Node]) -> None:
        if batch not in lane.in_flight:
            return
        code = part.error_code
        is_first = lane.is_first(batch) and not lane.needs_new_epoch
        verdict = answers.classify(code, batch, self.options.is_idempotent, is_first)
        lane.in_flight.remove(batch)
        if verdict == answers.NEW_EPOCH and self.transactions is not None:
            # A transaction cannot go on in another epoch.
            verdict = answers.FAIL
        if verdict == answers.DONE:
            lane.is_known = True
            lane.backoff.reset()
            is_duplicate = code == errors.DUPLICATE_SEQUENCE_NUMBER
            self._succeed(batch, -1 if is_duplicate else part.base_offset, part.log_append_time_ms)
            return
        error = error_for(code, str(lane.partition), part.error_message)
        if verdict == answers.FAIL or batch.done.done():
            lane.needs_new_epoch = self.options.is_idempotent
            self._fail(batch, error)
            return
        if verdict == answers.NEW_EPOCH:
            # Written batches are among the last five, which the broker would have recognised: this one is not.
            batch.is_unknown = False
            lane.needs_new_epoch = True
        if verdict == answers.SPLIT:
            lane.put_back(self._split(batch))
            return
        self._trouble = error
        if code in answers.MAYBE_WRITTEN:
            batch.is_unknown = True
        if code in MOVED:
            leader = part.current_leader
            self.cluster.note_leader(lane.partition, leader.leader_id, leader.leader_epoch, nodes)
        self._retry(lane, batch)

    def _split(self, batch: Batch) -> list[Batch]:
        halves = batch.split(self._loop)
        # Whoever flushes waits for the batch.
        self._help(self._join(batch, halves))
        return halves

    async def _join(self, batch: Batch, halves: list[Batch]) -> None:
        await asyncio.wait([half.done for half in halves])
        if not batch.done.done():
            batch.done.set_result(None)

    def _lost(self, batches: list[tuple[Lane, Batch]], error: KafkaError) -> None:
        """There is no answer: nobody knows whether the batches were written."""
        self._trouble = error
        is_final = isinstance(error, UnsupportedVersion)
        if not is_final:
            self.cluster.want_refresh()
        for lane, batch in batches:
            if batch not in lane.in_flight:
                continue
            lane.in_flight.remove(batch)
            batch.is_unknown = not is_final
            if is_final or batch.done.done():
                lane.needs_new_epoch = self.options.is_idempotent
                self._fail(batch, error)
            else:
                self._retry(lane, batch)

    def _retry(self, lane: Lane, batch: Batch) -> None:
        lane.put_back([batch])
        if lane.waiting[0] is batch:
            lane.paused_until_s = self._loop.time() + lane.backoff.next_s()

    def _expire(self, lane: Lane, now_s: float) -> None:
        """Fail batches whose delivery timeout is over. Those in flight stay until they are answered."""
        limit_s = now_s - self.options.delivery_timeout_s
        # The oldest ones come first.
        while lane.waiting and lane.waiting[0].created_s <= limit_s:
            batch = lane.waiting[0]
            lane.drop(batch)
            self._fail(batch, self._too_late(batch))
        for batch in lane.in_flight:
            if batch.created_s <= limit_s and not batch.done.done():
                self._fail(batch, self._too_late(batch))

    def _too_late(self, batch: Batch) -> KafkaError:
        text = f"{batch.partition}: {batch.count} records not delivered in {self.options.delivery_timeout_s:g} s"
        error = RequestTimedOut(text if self._trouble is None else f"{text}; the last problem: {self._trouble}")
        error.__cause__ = self._trouble
        return error

    def _succeed(self, batch: Batch, base_offset: int, append_time_ms: int) -> None:
        if not batch.done.done():
            self.buffer.give_back(batch.buffered_bytes)
            batch.succeed(base_offset, append_time_ms)

    def _fail(self, batch: Batch, error: KafkaError) -> None:
        if not batch.done.done():
            self.buffer.give_back(batch.buffered_bytes)
            batch.fail(error)
            if self.transactions is not None:
                self.transactions.batch_failed(error, batch.sequence != NO_SEQUENCE)

    # --- helpers

    def _help(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)

    async def _open(self, node_id: int) -> None:
        try:
            await self.cluster.connection(node_id)
        except KafkaError as error:
            self._trouble = error
            self.cluster.want_refresh()
            await asyncio.sleep(self.options.retry_backoff_s)
        finally:
            self._opening.discard(node_id)
            self._wake.set()

    async def _renew(self) -> None:
        """Get a producer id in the background, until there is one."""
        backoff = Backoff(self.options.retry_backoff_s, self.options.retry_backoff_max_s)
        try:
            while True:
                try:
                    await self._renew_identity(Deadline(self.options.request_timeout_s, "a producer id"))
                    return
                except KafkaError as error:
                    self._trouble = error
                    await asyncio.sleep(backoff.next_s())
        finally:
            self._is_renewing = False
            self._wake.set()

    async def _renew_identity(self, deadline: Deadline) -> None:
        async def once() -> InitProducerIdResponse:
            request = InitProducerIdRequest(None, transaction_timeout_ms=2**31 - 1)
            answer = await self.cluster.ask_any(apis.INIT_PRODUCER_ID, request, InitProducerIdResponse)
            check(answer.error_code, "the producer id")
            return answer

        found = await self.cluster.retry(deadline, once)
        self.producer_id = found.producer_id
        self.epoch = found.producer_epoch
