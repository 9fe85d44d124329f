"""The transactions of a producer: their states, and the requests to the two coordinators.

**Two versions** (KIP-890). In version 1, partitions and groups are added to the transaction by requests of their own,
before anything is written to them. In version 2, which clusters have from Kafka 4.0 on, Produce and TxnOffsetCommit add
them, and each end of a transaction gives the producer the next epoch. The level of the feature `transaction.version`
decides at the begin of each transaction.

**Errors**, as in Kafka's TransactionManager. After an abortable error the transaction must be aborted, and the producer
goes on. After a fatal one, such as ProducerFenced, every call raises it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Final, final

from kcoord.client.admin.results import CommittedOffset
from kcoord.client.cluster import COORDINATOR_LANE, GROUP, TRANSACTION, Cluster
from kcoord.client.deadline import Backoff, Deadline
from kcoord.client.errors import (
    BrokerError,
    IllegalState,
    KafkaError,
    RequestTimedOut,
    UnsupportedVersion,
    check,
    may_retry,
)
from kcoord.client.metadata import GroupMetadata, TopicPartition
from kcoord.client.partition import by_topic
from kcoord.client.producer.options import ProducerOptions
from kcoord.protocol import apis, errors
from kcoord.protocol.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kcoord.protocol.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from kcoord.protocol.end_txn import EndTxnRequest, EndTxnResponse
from kcoord.protocol.init_producer_id import (
    AssignedTopic,
    GroupAssignment,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kcoord.protocol.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from kcoord.wire.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

FEATURE: Final = "transaction.version"
V2: Final = 2
# The first versions of version 2, and those that a client of its own may use for AddPartitionsToTxn.
PRODUCE_V2: Final = 12
END_V2: Final = 5
OFFSETS_V2: Final = 5
ADD_PARTITIONS_MAX: Final = 3
# InitProducerId raises the epoch of a producer that has one (KIP-360), and names a group's assignment, from these on.
BUMP_FROM: Final = 3
ASSIGNMENT_FROM: Final = 2
# TxnOffsetCommit names the member of the group from this version on (KIP-447).
MEMBER_FROM: Final = 3
# The coordinator may still be writing the markers of the last transaction: this is the first pause, in seconds.
CONCURRENT_S: Final = 0.02

Offsets = Mapping[TopicPartition, CommittedOffset]


class State(Enum):
    UNINITIALIZED = "init_transactions was not called"
    INITIALIZING = "init_transactions has not ended"
    READY = "no transaction has begun"
    IN_TRANSACTION = "a transaction has begun"
    COMMITTING = "the transaction is being committed"
    ABORTING = "the transaction is being aborted"
    ABORTABLE_ERROR = "the transaction must be aborted"
    FATAL_ERROR = "the producer can only be stopped"


# What the coordinators refuse for good in this transaction only.
ABORTABLE: Final = frozenset(
    {
        errors.TRANSACTION_ABORTABLE,
        errors.TOPIC_AUTHORIZATION_FAILED,
        errors.GROUP_AUTHORIZATION_FAILED,
        errors.FENCED_INSTANCE_ID,
        errors.UNKNOWN_MEMBER_ID,
        errors.ILLEGAL_GENERATION,
        errors.STALE_MEMBER_EPOCH,
        errors.OPERATION_NOT_ATTEMPTED,
    }
)
# The coordinator has forgotten the producer, so it takes no EndTxn either.
UNKNOWN_PRODUCER: Final = frozenset({errors.INVALID_PRODUCER_ID_MAPPING, errors.UNKNOWN_PRODUCER_ID})
# Errors of Produce after which the producer cannot go on.
FATAL_FOR_BATCHES: Final = frozenset(
    {
        errors.PRODUCER_FENCED,
        errors.CLUSTER_AUTHORIZATION_FAILED,
        errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        errors.INVALID_PRODUCER_ID_MAPPING,
    }
)


@final
class Transactions:
    """`changed` is called when records may be sent that could not be before."""

    def __init__(
        self, cluster: Cluster, options: ProducerOptions, transactional_id: str, changed: Callable[[], None]
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = NO_PRODUCER_ID
        self.epoch = NO_PRODUCER_EPOCH
        self.state = State.UNINITIALIZED
        self.error: KafkaError | None = None
        self.is_v2 = False
        self._cluster = cluster
        self._options = options
        self._changed = changed
        # Partitions that belong to the transaction, and those that have to be added (version 1).
        self._added: set[TopicPartition] = set()
        self._new: set[TopicPartition] = set()
        self._adding: asyncio.Task[None] | None = None
        # Whether the coordinator may know of the transaction.
        self._is_started = False
        # Sequence numbers are lost: the next transaction needs another epoch.
        self._needs_epoch = False
        # A commit or abort that was begun, until its result is known.
        self._is_busy = False

    # --- the sender

    @property
    def is_open(self) -> bool:
        """Whether records may be sent to brokers."""
        return self.state in (State.IN_TRANSACTION, State.COMMITTING)

    def may_send(self, partition: TopicPartition) -> bool:
        """Whether records of this partition may be sent now. Otherwise the partition is being added."""
        if not self.is_open:
            return False
        if partition in self._added:
            return True
        if self.is_v2:
            self._added.add(partition)
            self._is_started = True
            return True
        self._new.add(partition)
        if self._adding is None:
            self._adding = asyncio.create_task(self._add_partitions(), name="kcoord transaction")
        return False

    def batch_failed(self, error: KafkaError, has_sequence: bool) -> None:
        """Records of the transaction are not written."""
        self._needs_epoch |= has_sequence
        if error is self.error:
            # They were dropped because of it; what it means for the transaction is decided.
            return
        is_fatal = isinstance(error, UnsupportedVersion)
        if isinstance(error, BrokerError):
            is_fatal = error.code in FATAL_FOR_BATCHES
        self._fail(error, is_fatal=is_fatal)

    def check_send(self) -> None:
        """Raises the error of the transaction, or IllegalState if there is none."""
        self._check(State.IN_TRANSACTION)

    async def close(self) -> None:
        if self._adding is not None:
            self._adding.cancel()
            await asyncio.wait([self._adding])

    # --- calls

    async def init(
        self, deadline: Deadline, group: GroupMetadata | None, partitions: Collection[TopicPartition]
    ) -> None:
        """Get a producer id and fence all producers with the same transactional id."""
        with self._alone():
            self._check(State.UNINITIALIZED, State.INITIALIZING)
            self.state = State.INITIALIZING
            await self._init(deadline, _assignment(group, partitions))

    async def begin(self, deadline: Deadline) -> None:
        with self._alone():
            self._check(State.READY)
            if await self._knows_v2(deadline) != self.is_v2:
                # As in Kafka: the first transaction of another version has an epoch of its own.
                await self._init(deadline, None)
            self.state = State.IN_TRANSACTION

    async def send_offsets(self, offsets: Offsets, group: GroupMetadata, deadline: Deadline) -> None:
        self._check(State.IN_TRANSACTION)
        if not offsets:
            return
        try:
            if not self.is_v2:
                await self._ask(deadline, lambda: self._add_group(group.group_id))
            # In version 2 the end of a transaction that the coordinator does not know is no error.
            self._is_started = True
            await self._ask(deadline, lambda: self._commit_offsets(offsets, group), kind=GROUP, key=group.group_id)
        except RequestTimedOut as error:
            # Nobody knows whether the group belongs to the transaction: another epoch ends it in any case.
            self._needs_epoch = True
            self._fail(error)
            raise

    async def commit(self, deadline: Deadline, flush: Callable[[], Awaitable[None]]) -> None:
        """All records are delivered first. After RequestTimedOut the call may be repeated."""
        with self._alone():
            self._check(State.IN_TRANSACTION, State.COMMITTING)
            self.state = State.COMMITTING
            await flush()
            if self.error is not None:
                raise self.error
            await self._end(deadline, committed=True)

    async def abort(self, deadline: Deadline, drop: Callable[[], Awaitable[None]]) -> None:
        """Records that are not sent yet are dropped first. After RequestTimedOut the call may be repeated."""
        with self._alone():
            if self.state is State.FATAL_ERROR and self.error is not None:
                raise self.error
            if self.state not in (State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING):
                raise IllegalState(f"abort_transaction: {self.state.value}")
            self.state = State.ABORTING
            await drop()
            if self._adding is not None:
                self._new.clear()
                await asyncio.wait([self._adding], timeout=deadline.left_s())
            await self._end(deadline, committed=False)

    def _check(self, *allowed: State) -> None:
        if self.state in (State.FATAL_ERROR, State.ABORTABLE_ERROR) and self.error is not None:
            raise self.error
        if self.state not in allowed:
            raise IllegalState(self.state.value)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._is_busy:
            raise IllegalState("another task begins or ends a transaction of this producer")
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    def _fail(self, error: KafkaError, *, is_fatal: bool = False) -> None:
        if self.state is State.FATAL_ERROR or (self.state is State.ABORTABLE_ERROR and not is_fatal):
            return
        if not is_fatal and self.state is State.ABORTING:
            return
        self.error = error
        self.state = State.FATAL_ERROR if is_fatal else State.ABORTABLE_ERROR
        self._changed()

    # --- requests

    async def _ask(
        self,
        deadline: Deadline,
        attempt: Callable[[], Awaitable[None]],
        *,
        kind: int = TRANSACTION,
        key: str | None = None,
    ) -> None:
        """Try until it succeeds. Errors that do not pass change the state, and are raised."""
        backoff = Backoff(self._options.retry_backoff_s, self._options.retry_backoff_max_s)
        concurrent = Backoff(min(CONCURRENT_S, self._options.retry_backoff_s), self._options.retry_backoff_max_s)
        coordinator = self.transactional_id if key is None else key
        while True:
            try:
                async with asyncio.timeout(deadline.left_s()):
                    await attempt()
                return
            except TimeoutError:
                raise deadline.error() from None
            except KafkaError as error:
                code = error.code if isinstance(error, BrokerError) else None
                if code in (errors.NOT_COORDINATOR, errors.COORDINATOR_NOT_AVAILABLE, errors.REQUEST_TIMED_OUT):
                    self._cluster.forget_coordinator(kind, coordinator)
                if not may_retry(error):
                    self._refused(error, code)
                    raise
                await deadline.pause(concurrent if code == errors.CONCURRENT_TRANSACTIONS else backoff, error)

    def _refused(self, error: KafkaError, code: int | None) -> None:
        if code in UNKNOWN_PRODUCER:
            self._is_started = False
            self._needs_epoch = True
            if self.state is State.ABORTING:
                return
        is_abortable = code in ABORTABLE or code in UNKNOWN_PRODUCER
        is_beginning = self.state in (State.INITIALIZING, State.UNINITIALIZED)
        self._fail(error, is_fatal=not is_abortable or is_beginning or self.state is State.ABORTING)

    async def _init(self, deadline: Deadline, assignment: GroupAssignment | None) -> None:
        is_v2 = await self._knows_v2(deadline)
        request = InitProducerIdRequest(
            self.transactional_id,
            int(self._options.transaction_timeout_s * 1000),
            self.producer_id,
            self.epoch,
            assignment,
        )
        version_min = 0 if assignment is None else ASSIGNMENT_FROM
        if self.producer_id != NO_PRODUCER_ID:
            version_min = BUMP_FROM

        async def once() -> None:
            answer = await self._cluster.ask_coordinator(
                TRANSACTION,
                self.transactional_id,
                apis.INIT_PRODUCER_ID,
                request,
                InitProducerIdResponse,
                version_min=version_min,
            )
            check(answer.error_code, f"transactional id {self.transactional_id!r}")
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

        await self._ask(deadline, once)
        self.is_v2 = is_v2
        self._reset()

    def _reset(self) -> None:
        """There is no transaction now."""
        self._added.clear()
        self._new.clear()
        self._is_started = self._needs_epoch = False
        self.error = None
        self.state = State.READY
        self._changed()

    async def _knows_v2(self, deadline: Deadline) -> bool:
        """Whether transactions have version 2 in this cluster."""
        found = False

        async def once() -> None:
            nonlocal found
            node = await self._cluster.coordinator(TRANSACTION, self.transactional_id)
            connection = await self._cluster.connection(node, COORDINATOR_LANE)
            found = (
                connection.features.get(FEATURE, 0) >= V2
                and connection.has(apis.END_TXN, END_V2)
                and connection.has(apis.TXN_OFFSET_COMMIT, OFFSETS_V2)
                and connection.has(apis.PRODUCE, PRODUCE_V2)
            )

        await self._ask(deadline, once)
        return found

    async def _add_partitions(self) -> None:
        """Version 1: add partitions, as long as there are new ones. Errors end the transaction, not this task."""
        try:
            while self._new and self.is_open:
                part = set(self._new)
                deadline = Deadline(self._options.max_block_s, "adding partitions to the transaction")
                await self._ask(deadline, lambda part=part: self._add(part))  # type: ignore[misc]
                self._is_started = True
                self._new -= part
                self._added |= part
                self._changed()
        except KafkaError as error:
            # If nobody knows whether they were added, another epoch ends the transaction in any case.
            self._needs_epoch |= isinstance(error, RequestTimedOut)
            self._fail(error)
        except Exception as error:
            self._fail(IllegalState(f"the producer has failed: {error!r}"), is_fatal=True)
            raise
        finally:
            self._adding = None

    async def _add(self, partitions: set[TopicPartition]) -> None:
        topics = [AddPartitionsToTxnTopic(name, numbers) for name, numbers in by_topic(partitions).items()]
        request = AddPartitionsToTxnRequest([], self.transactional_id, self.producer_id, self.epoch, topics)
        answer = await self._cluster.ask_coordinator(
            TRANSACTION,
            self.transactional_id,
            apis.ADD_PARTITIONS_TO_TXN,
            request,
            AddPartitionsToTxnResponse,
            version_max=ADD_PARTITIONS_MAX,
        )
        codes = {
            TopicPartition(topic.name, one.partition_index): one.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        }
        # The partition with an error of its own says more than those that were not attempted for it.
        for partition, code in sorted(codes.items(), key=lambda one: one[1] == errors.OPERATION_NOT_ATTEMPTED):
            check(code, f"partition {partition}")

    async def _add_group(self, group_id: str) -> None:
        request = AddOffsetsToTxnRequest(self.transactional_id, self.producer_id, self.epoch, group_id)
        answer = await self._cluster.ask_coordinator(
            TRANSACTION, self.transactional_id, apis.ADD_OFFSETS_TO_TXN, request, AddOffsetsToTxnResponse
        )
        check(answer.error_code, f"group {group_id}")

    async def _commit_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        topics = [
            TxnOffsetCommitRequestTopic(
                name, [_offset(number, offsets[TopicPartition(name, number)]) for number in numbers]
            )
            for name, numbers in by_topic(offsets).items()
        ]
        has_member = group.generation_id >= 0 or bool(group.member_id) or group.group_instance_id is not None
        request = TxnOffsetCommitRequest(
            self.transactional_id,
            group.group_id,
            self.producer_id,
            self.epoch,
            group.generation_id,
            group.member_id,
            group.group_instance_id,
            topics,
        )
        answer = await self._cluster.ask_coordinator(
            GROUP,
            group.group_id,
            apis.TXN_OFFSET_COMMIT,
            request,
            TxnOffsetCommitResponse,
            version_min=OFFSETS_V2 if self.is_v2 else MEMBER_FROM if has_member else 0,
            version_max=OFFSETS_V2 if self.is_v2 else OFFSETS_V2 - 1,
        )
        for topic in answer.topics:
            for one in topic.partitions:
                check(one.error_code, f"group {group.group_id}, partition {topic.name}-{one.partition_index}")

    # --- the end

    async def _end(self, deadline: Deadline, *, committed: bool) -> None:
        needs_epoch = self._needs_epoch
        if self._is_started:
            try:
                await self._ask(deadline, lambda: self._end_once(committed=committed))
                # In version 2 each end of a transaction has brought another epoch.
                needs_epoch = needs_epoch and not self.is_v2
            except BrokerError as error:
                if committed or error.code not in UNKNOWN_PRODUCER:
                    raise
                needs_epoch = True
        if needs_epoch:
            # What follows may be repeated without another EndTxn.
            self._is_started = False
            await self._init(deadline, None)
        else:
            self._reset()

    async def _end_once(self, *, committed: bool) -> None:
        request = EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, committed)
        answer = await self._cluster.ask_coordinator(
            TRANSACTION,
            self.transactional_id,
            apis.END_TXN,
            request,
            EndTxnResponse,
            version_min=END_V2 if self.is_v2 else 0,
            version_max=END_V2 if self.is_v2 else END_V2 - 1,
        )
        check(answer.error_code, f"transactional id {self.transactional_id!r}")
        if self.is_v2 and answer.producer_id != NO_PRODUCER_ID:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch


def _offset(number: int, one: CommittedOffset) -> TxnOffsetCommitRequestPartition:
    return TxnOffsetCommitRequestPartition(number, one.offset, one.leader_epoch, one.metadata)


def _assignment(group: GroupMetadata | None, partitions: Collection[TopicPartition]) -> GroupAssignment | None:
    """What the draft of KIP-447 tells the transaction coordinator. Brokers other than kcoord ignore it."""
    if group is None:
        return None
    topics = [AssignedTopic(name, numbers) for name, numbers in by_topic(partitions).items()]
    return GroupAssignment(group.group_id, group.generation_id, group.member_id, group.group_instance_id, topics)
