"""The producer's transactions with scripted coordinators: every error, lost answers, and coordinators that move."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from kcoord.client import GroupMetadata, Producer, TopicPartition
from kcoord.client.errors import BrokerError, IllegalState, RequestTimedOut, TransactionAborted
from kcoord.protocol import apis, errors
from kcoord.protocol.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kcoord.protocol.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from kcoord.protocol.end_txn import EndTxnRequest, EndTxnResponse
from kcoord.protocol.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kcoord.protocol.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse, TopicProduceResponse
from kcoord.protocol.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kcoord.wire.message import Message
from kcoord.wire.record_batch import parse_header
from tests.unit.client.brokers import Brokers, two_brokers

# The answer gets lost, before or after the request has done its work.
LOST_BEFORE: Final = -100
LOST_AFTER: Final = -101
OFFSETS: Final = {TopicPartition("source", 0): 5}
GROUP: Final = GroupMetadata("g", 3, "m")


class Coordinator:
    """Both brokers of a cluster. `script` holds what happens to the next requests of an API; 0 is the usual answer."""

    def __init__(self, brokers: Brokers, version: int) -> None:
        self.brokers = brokers
        self.script: dict[int, deque[int]] = defaultdict(deque)
        self.epoch = -1
        # Each end of a transaction that did its work, with the epoch of the request.
        self.ends: dict[int, bool] = {}
        # (epoch, sequence) of the batches.
        self.batches: list[tuple[int, int]] = []
        brokers.topics = {"t": [2]}
        brokers.ids = {"t": bytes(range(16))}
        brokers.features = {"transaction.version": version}
        for key in (
            apis.INIT_PRODUCER_ID,
            apis.ADD_PARTITIONS_TO_TXN,
            apis.ADD_OFFSETS_TO_TXN,
            apis.TXN_OFFSET_COMMIT,
            apis.PRODUCE,
            apis.END_TXN,
        ):
            brokers.handlers[key] = lambda node, version, request, key=key: self.take(key, node, version, request)  # type: ignore[misc]

    @property
    def calls(self) -> list[tuple[int, int]]:
        """API and version of the requests so far, without FindCoordinator."""
        return [(key, version) for _, key, version in self.brokers.seen if key != apis.FIND_COORDINATOR]

    def take(self, key: int, node: int, version: int, request: Message) -> Message:
        order = self.script[key].popleft() if self.script[key] else 0
        if order == LOST_BEFORE:
            raise ConnectionError
        name = "g" if key == apis.TXN_OFFSET_COMMIT else "tx"
        if key != apis.PRODUCE and node != self.brokers.coordinators.get(name, 1):
            order = errors.NOT_COORDINATOR
        answer = self.answer(version, request, max(order, 0))
        if order == LOST_AFTER:
            raise ConnectionError
        return answer

    def answer(self, version: int, request: Message, code: int) -> Message:
        match request:
            case InitProducerIdRequest():
                self.epoch += 0 if code else 1
                return InitProducerIdResponse(0, code, 7, self.epoch)
            case AddPartitionsToTxnRequest():
                results = [
                    AddPartitionsToTxnTopicResult(
                        topic.name, [AddPartitionsToTxnPartitionResult(number, code) for number in topic.partitions]
                    )
                    for topic in request.v3_and_below_topics
                ]
                return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
            case AddOffsetsToTxnRequest():
                return AddOffsetsToTxnResponse(0, code)
            case TxnOffsetCommitRequest():
                offsets = [
                    TxnOffsetCommitResponseTopic(
                        topic.name,
                        [TxnOffsetCommitResponsePartition(one.partition_index, code) for one in topic.partitions],
                    )
                    for topic in request.topics
                ]
                return TxnOffsetCommitResponse(0, offsets)
            case EndTxnRequest():
                return self.end(version, request, code)
            case ProduceRequest():
                (topic,) = request.topic_data
                (one,) = topic.partition_data
                assert one.records is not None
                header = parse_header(one.records)
                self.batches.append((header.producer_epoch, header.base_sequence))
                return ProduceResponse(
                    [TopicProduceResponse(topic.name, topic.topic_id, [PartitionProduceResponse(one.index, code, 0)])]
                )
        raise AssertionError(request)

    def end(self, version: int, request: EndTxnRequest, code: int) -> EndTxnResponse:
        if code:
            return EndTxnResponse(0, code)
        epoch = request.producer_epoch
        is_again = self.ends.get(epoch) is request.committed
        if version < 5:
            assert epoch == self.epoch
            self.ends[epoch] = request.committed
            return EndTxnResponse()
        if not is_again:
            assert epoch == self.epoch and epoch not in self.ends
            self.ends[epoch] = request.committed
            self.epoch += 1
        return EndTxnResponse(0, 0, 7, self.epoch)


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@asynccontextmanager
async def ready(version: int, **options: Any) -> AsyncIterator[tuple[Coordinator, Producer]]:
    async with two_brokers() as brokers:
        coordinator = Coordinator(brokers, version)
        settings = {"request_timeout_ms": 2000, "max_block_ms": 10_000, "retry_backoff_ms": 5, **options}
        bootstrap = f"127.0.0.1:{brokers.ports[1]}"
        async with Producer(bootstrap_servers=bootstrap, transactional_id="tx", linger_ms=0, **settings) as producer:
            await producer.init_transactions()
            yield coordinator, producer


async def whole(producer: Producer) -> None:
    async with producer.transaction():
        await producer.send("t", b"1")
        await producer.send_offsets_to_transaction(OFFSETS, GROUP)


def steps(version: int) -> list[int]:
    """The APIs of a whole transaction, in their order."""
    if version == 2:
        return [apis.PRODUCE, apis.TXN_OFFSET_COMMIT, apis.END_TXN]
    return [
        apis.ADD_PARTITIONS_TO_TXN,
        apis.PRODUCE,
        apis.ADD_OFFSETS_TO_TXN,
        apis.TXN_OFFSET_COMMIT,
        apis.END_TXN,
    ]


async def test_requests_of_both_versions(version: int) -> None:
    async with ready(version) as (coordinator, producer):
        await whole(producer)
        await whole(producer)
        calls = coordinator.calls
        assert [key for key, _ in calls] == [apis.INIT_PRODUCER_ID, *steps(version), *steps(version)]
        used = dict(calls)
        limits = {apis.PRODUCE: 12, apis.TXN_OFFSET_COMMIT: 5, apis.END_TXN: 5}
        for key, first in limits.items():
            assert (used[key] >= first) is (version == 2)
        assert used.get(apis.ADD_PARTITIONS_TO_TXN, 3) == 3
        # In version 2 each transaction has its epoch; in version 1 the sequence numbers go on.
        assert coordinator.batches == ([(0, 0), (1, 0)] if version == 2 else [(0, 0), (0, 1)])


async def test_nothing_to_end(version: int) -> None:
    async with ready(version) as (coordinator, producer):
        async with producer.transaction():
            pass
        await producer.begin_transaction()
        await producer.abort_transaction()
        assert [key for key, _ in coordinator.calls] == [apis.INIT_PRODUCER_ID]


@pytest.mark.parametrize("step", range(5))
async def test_errors_that_pass(version: int, step: int) -> None:
    """A request is repeated until it succeeds, also when its answer was lost."""
    step = min(step, len(steps(version)) - 1)
    key = steps(version)[step]
    orders = [
        errors.NOT_COORDINATOR,
        errors.COORDINATOR_NOT_AVAILABLE,
        errors.COORDINATOR_LOAD_IN_PROGRESS,
        errors.CONCURRENT_TRANSACTIONS,
        errors.REQUEST_TIMED_OUT,
        LOST_BEFORE,
        LOST_AFTER,
    ]
    if key == apis.PRODUCE:
        orders = [errors.NOT_LEADER_OR_FOLLOWER, errors.CONCURRENT_TRANSACTIONS, LOST_BEFORE, LOST_AFTER]
    async with ready(version) as (coordinator, producer):
        coordinator.script[key].extend(orders)
        await whole(producer)
        assert [one for one, _ in coordinator.calls].count(key) == len(orders) + 1
        assert list(coordinator.ends.values()) == [True]
        await whole(producer)


async def test_init_is_repeated(version: int) -> None:
    async with two_brokers() as brokers:
        coordinator = Coordinator(brokers, version)
        bootstrap = f"127.0.0.1:{brokers.ports[1]}"
        async with Producer(bootstrap_servers=bootstrap, transactional_id="tx", retry_backoff_ms=5) as producer:
            script = coordinator.script[apis.INIT_PRODUCER_ID]
            script.extend([LOST_AFTER, errors.NOT_COORDINATOR, errors.CONCURRENT_TRANSACTIONS])
            await producer.init_transactions()
            await whole(producer)
            # The epoch of the lost answer is not used.
            assert list(coordinator.ends) == [1]


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (apis.TXN_OFFSET_COMMIT, errors.ILLEGAL_GENERATION),
        (apis.TXN_OFFSET_COMMIT, errors.UNKNOWN_MEMBER_ID),
        (apis.TXN_OFFSET_COMMIT, errors.FENCED_INSTANCE_ID),
        (apis.TXN_OFFSET_COMMIT, errors.STALE_MEMBER_EPOCH),
        (apis.TXN_OFFSET_COMMIT, errors.GROUP_AUTHORIZATION_FAILED),
        (apis.TXN_OFFSET_COMMIT, errors.TRANSACTION_ABORTABLE),
        (apis.TXN_OFFSET_COMMIT, errors.INVALID_PRODUCER_ID_MAPPING),
        (apis.ADD_OFFSETS_TO_TXN, errors.GROUP_AUTHORIZATION_FAILED),
        (apis.ADD_OFFSETS_TO_TXN, errors.INVALID_PRODUCER_ID_MAPPING),
        (apis.ADD_OFFSETS_TO_TXN, errors.TRANSACTION_ABORTABLE),
        (apis.ADD_PARTITIONS_TO_TXN, errors.TOPIC_AUTHORIZATION_FAILED),
        (apis.ADD_PARTITIONS_TO_TXN, errors.INVALID_PRODUCER_ID_MAPPING),
        (apis.ADD_PARTITIONS_TO_TXN, errors.TRANSACTION_ABORTABLE),
        (apis.PRODUCE, errors.INVALID_PRODUCER_EPOCH),
        (apis.PRODUCE, errors.TRANSACTION_ABORTABLE),
        (apis.PRODUCE, errors.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (apis.END_TXN, errors.TRANSACTION_ABORTABLE),
        (apis.END_TXN, errors.INVALID_PRODUCER_ID_MAPPING),
    ],
)
async def test_errors_that_abort(version: int, key: int, code: int) -> None:
    """The transaction must be aborted, and the producer goes on."""
    if key not in steps(version):
        key = apis.TXN_OFFSET_COMMIT
    async with ready(version) as (coordinator, producer):
        await producer.begin_transaction()
        coordinator.script[key].append(code)
        with pytest.raises(BrokerError) as caught:
            await producer.send("t", b"1")
            await producer.send_offsets_to_transaction(OFFSETS, GROUP)
            await producer.commit_transaction()
        assert caught.value.code == code
        for call in (producer.commit_transaction, lambda: producer.send("t", b"2")):
            with pytest.raises(BrokerError) as caught:
                await call()
            assert caught.value.code == code
        await producer.abort_transaction()
        assert True not in coordinator.ends.values()
        await whole(producer)
        assert list(coordinator.ends.values())[-1] is True


@pytest.mark.parametrize(
    "code", [errors.PRODUCER_FENCED, errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, errors.INVALID_TXN_STATE]
)
@pytest.mark.parametrize("step", range(5))
async def test_fatal_errors(version: int, code: int, step: int) -> None:
    """Every later call raises the error, and nothing more is sent."""
    key = steps(version)[min(step, len(steps(version)) - 1)]
    if key == apis.PRODUCE:
        code = errors.PRODUCER_FENCED
    async with ready(version) as (coordinator, producer):
        await producer.begin_transaction()
        coordinator.script[key].append(code)
        with pytest.raises(BrokerError) as caught:
            await producer.send("t", b"1")
            await producer.send_offsets_to_transaction(OFFSETS, GROUP)
            await producer.commit_transaction()
        assert caught.value.code == code
        count = len(coordinator.calls)
        for call in (producer.abort_transaction, producer.commit_transaction, producer.begin_transaction):
            with pytest.raises(BrokerError) as caught:
                await call()
            assert caught.value.code == code
        assert len(coordinator.calls) == count and not coordinator.ends


async def test_the_coordinator_moves(version: int) -> None:
    async with ready(version) as (coordinator, producer):
        await producer.begin_transaction()
        await producer.send("t", b"1")
        coordinator.brokers.coordinators = {"tx": 2, "g": 2}
        await producer.send_offsets_to_transaction(OFFSETS, GROUP)
        await producer.commit_transaction()
        assert coordinator.brokers.seen[-1][:2] == (2, apis.END_TXN)
        await whole(producer)


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("order", [LOST_BEFORE, LOST_AFTER, errors.CONCURRENT_TRANSACTIONS])
async def test_an_unknown_end_is_repeated(version: int, is_commit: bool, order: int) -> None:
    """After RequestTimedOut only the same call may follow, and it ends the transaction once."""
    async with ready(version) as (coordinator, producer):
        await producer.begin_transaction()
        await producer.send("t", b"1")
        coordinator.script[apis.END_TXN].extend([order] * 10_000)
        same = producer.commit_transaction if is_commit else producer.abort_transaction
        other = producer.abort_transaction if is_commit else producer.commit_transaction
        with pytest.raises(RequestTimedOut):
            await same(timeout=0.2)
        for call in (other, producer.begin_transaction, lambda: producer.send("t", b"2")):
            with pytest.raises(IllegalState):
                await call()
        coordinator.script.clear()
        await same()
        assert coordinator.ends == {0: is_commit}
        await whole(producer)


async def test_adding_that_may_have_happened_needs_another_epoch() -> None:
    async with ready(1, max_block_ms=300) as (coordinator, producer):
        await producer.begin_transaction()
        coordinator.script[apis.ADD_PARTITIONS_TO_TXN].extend([LOST_AFTER] * 10_000)
        with pytest.raises(RequestTimedOut):
            await producer.send("t", b"1")
        coordinator.script.clear()
        await producer.abort_transaction()
        assert coordinator.epoch == 1
        await whole(producer)
        assert coordinator.batches == [(1, 0)]


async def test_an_abort_drops_what_waits_for_a_partition() -> None:
    async with ready(1) as (coordinator, producer):
        await producer.begin_transaction()
        coordinator.script[apis.ADD_PARTITIONS_TO_TXN].extend([errors.CONCURRENT_TRANSACTIONS] * 5)
        sent = await producer.send_nowait("t", b"1")
        await producer.abort_transaction()
        with pytest.raises(TransactionAborted):
            await sent
        await whole(producer)
        assert len(coordinator.batches) == 1
