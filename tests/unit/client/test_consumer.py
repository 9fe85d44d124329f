"""The consumer and brokers that move partitions, fail, lie and stay silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kcoord.client import Consumer, ConsumerRecord, TopicPartition
from kcoord.client.consumer.fetcher import TURN_S
from kcoord.client.errors import (
    AuthorizationFailed,
    CorruptRecord,
    OffsetOutOfRange,
    RequestTimedOut,
)
from kcoord.protocol import apis, errors
from kcoord.protocol.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from kcoord.protocol.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kcoord.protocol.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kcoord.protocol.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from kcoord.wire.message import Message
from kcoord.wire.record_batch import BatchBuilder
from tests.unit.client.brokers import Brokers, Handler, two_brokers

DEADLINE_S = 10.0
T = TopicPartition("t", 0)


def batch(first: int, count: int, epoch: int = 0, size: int = 5) -> bytes:
    builder = BatchBuilder()
    for number in range(first, first + count):
        builder.append(1000 + number, None, (b"%d" % number).ljust(size))
    return builder.build(first, epoch)


class Log:
    """Partition t-0 on both brokers, batches of 10 records; a test may answer in its place."""

    def __init__(self, brokers: Brokers, count: int = 100, epoch: int = 0) -> None:
        self.brokers = brokers
        self.batches = [batch(first, 10, epoch) for first in range(0, count, 10)]
        self.count = count
        # (node id) of each Fetch, and what is answered instead of records: an error code, data, or None for silence.
        self.asked: list[tuple[int, int]] = []
        self.instead: dict[int, list[int | PartitionData | None]] = {1: [], 2: []}
        self.end_of_epoch = (0, count)
        brokers.topics["t"] = [1]
        brokers.handlers[apis.FETCH] = self.fetch
        brokers.handlers[apis.LIST_OFFSETS] = self.list_offsets
        brokers.handlers[apis.OFFSET_FOR_LEADER_EPOCH] = self.epoch_end

    def fetch(self, node: int, version: int, request: Message) -> Message | None:
        assert isinstance(request, FetchRequest)
        assert version < 13, "without topic ids, topics have names"
        (asked,) = request.topics[0].partitions
        self.asked.append((node, asked.fetch_offset))
        if self.instead[node]:
            instead = self.instead[node].pop(0)
            if instead is None:
                return None
            data = PartitionData(error_code=instead) if isinstance(instead, int) else instead
        elif self.brokers.topics["t"][0] != node:
            data = PartitionData(error_code=errors.NOT_LEADER_OR_FOLLOWER)
        else:
            data = self.data(asked.fetch_offset)
        return FetchResponse(responses=[FetchableTopicResponse("t", partitions=[data])])

    def data(self, offset: int) -> PartitionData:
        at = offset // 10
        records = b"".join(self.batches[at : at + 2])
        return PartitionData(0, 0, self.count, self.count, 0, records=records)

    def list_offsets(self, node: int, version: int, request: Message) -> Message | None:
        assert isinstance(request, ListOffsetsRequest)
        offset = 0 if request.topics[0].partitions[0].timestamp == -2 else self.count
        part = ListOffsetsPartitionResponse(0, 0, timestamp=-1, offset=offset, leader_epoch=0)
        return ListOffsetsResponse(0, [ListOffsetsTopicResponse("t", [part])])

    def epoch_end(self, node: int, version: int, request: Message) -> Message | None:
        assert isinstance(request, OffsetForLeaderEpochRequest)
        epoch, end = self.end_of_epoch
        return OffsetForLeaderEpochResponse(0, [OffsetForLeaderTopicResult("t", [EpochEndOffset(0, 0, epoch, end)])])


@asynccontextmanager
async def reading(count: int = 100, **options: Any) -> AsyncIterator[tuple[Consumer, Log]]:
    quick: dict[str, Any] = {
        "auto_offset_reset": "earliest",
        "retry_backoff_ms": 10,
        "retry_backoff_max_ms": 20,
        "fetch_max_wait_ms": 20,
    }
    async with two_brokers() as brokers:
        log = Log(brokers, count)
        bootstrap = f"127.0.0.1:{brokers.ports[1]}"
        async with Consumer(bootstrap_servers=bootstrap, **{**quick, **options}) as consumer:
            consumer.assign([T])
            yield consumer, log


async def take(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            found += await consumer.poll(0.5, count - len(found))
    return found


async def offsets(consumer: Consumer, count: int) -> list[int]:
    return [record.offset for record in await take(consumer, count)]


async def test_a_partition_moves() -> None:
    async with reading() as (consumer, log):
        assert await offsets(consumer, 5) == list(range(5))
        log.brokers.topics["t"] = [2]
        assert await offsets(consumer, 95) == list(range(5, 100))
        assert log.asked[-1][0] == 2


async def test_the_new_leader_that_an_error_names_is_asked_at_once() -> None:
    """KIP-951: no metadata are needed."""
    async with reading() as (consumer, log):
        assert await offsets(consumer, 20) == list(range(20))
        moved = PartitionData(error_code=errors.NOT_LEADER_OR_FOLLOWER, current_leader=LeaderIdAndEpoch(2, 5))
        log.instead[1] = [moved] * 3
        served = log.fetch

        def fetch(node: int, version: int, request: Message) -> Message | None:
            answer = served(node, version, request)
            if node == 2:
                # The other broker still believes that the first one leads.
                assert isinstance(request, FetchRequest)
                (asked,) = request.topics[0].partitions
                return FetchResponse(responses=[FetchableTopicResponse("t", partitions=[log.data(asked.fetch_offset)])])
            if isinstance(answer, FetchResponse) and version >= 16:
                answer.node_endpoints = [NodeEndpoint(2, "127.0.0.1", log.brokers.ports[2])]
            return answer

        log.brokers.handlers[apis.FETCH] = fetch
        assert await offsets(consumer, 80) == list(range(20, 100))


@pytest.mark.parametrize(
    "code",
    [
        errors.NOT_LEADER_OR_FOLLOWER,
        errors.FENCED_LEADER_EPOCH,
        errors.UNKNOWN_LEADER_EPOCH,
        errors.OFFSET_NOT_AVAILABLE,
        errors.KAFKA_STORAGE_ERROR,
        errors.REPLICA_NOT_AVAILABLE,
        errors.UNKNOWN_TOPIC_OR_PARTITION,
        errors.UNKNOWN_TOPIC_ID,
        errors.INCONSISTENT_TOPIC_ID,
        errors.UNKNOWN_SERVER_ERROR,
    ],
)
async def test_errors_that_pass(code: int) -> None:
    async with reading() as (consumer, log):
        log.instead[1] = [code, code]
        assert await offsets(consumer, 100) == list(range(100))


async def test_errors_that_the_user_must_know() -> None:
    async with reading() as (consumer, log):
        log.instead[1] = [errors.TOPIC_AUTHORIZATION_FAILED]
        with pytest.raises(AuthorizationFailed, match="t-0"):
            await take(consumer, 1)
        # It was raised once; the next poll tries again.
        assert await offsets(consumer, 10) == list(range(10))


async def test_a_damaged_batch_is_named_and_can_be_skipped() -> None:
    async with reading() as (consumer, log):
        damaged = bytearray(log.batches[3])
        damaged[-2] ^= 1
        log.batches[3] = bytes(damaged)
        # What comes before it is not lost.
        assert await offsets(consumer, 30) == list(range(30))
        for _ in range(2):
            with pytest.raises(CorruptRecord, match=r"t-0 at offset 30.*checksum"):
                await take(consumer, 1)
            assert await consumer.position(T) == 30
        consumer.seek(T, 40)
        assert await offsets(consumer, 60) == list(range(40, 100))


async def test_a_batch_that_is_cut_off_comes_again() -> None:
    async with reading() as (consumer, log):
        whole = log.batches[0] + log.batches[1]
        log.instead[1] = [PartitionData(0, 0, 100, 100, 0, records=whole[:-7])]
        assert await offsets(consumer, 100) == list(range(100))
        assert log.asked[1] == (1, 10)


async def test_nothing_but_half_a_batch_is_an_error() -> None:
    async with reading() as (consumer, log):
        log.instead[1] = [PartitionData(0, 0, 100, 100, 0, records=log.batches[0][:-7])]
        with pytest.raises(CorruptRecord):
            await take(consumer, 1)
        assert await offsets(consumer, 100) == list(range(100))


async def test_a_silent_broker_costs_one_request_timeout() -> None:
    async with reading(request_timeout_ms=300, fetch_max_wait_ms=20) as (consumer, log):
        log.instead[1] = [None]
        assert await offsets(consumer, 100) == list(range(100))


async def test_a_broker_that_never_answers_ends_every_call() -> None:
    async with reading(request_timeout_ms=200, default_api_timeout_ms=500) as (consumer, log):
        log.brokers.handlers[apis.LIST_OFFSETS] = lambda *_: None
        async with asyncio.timeout(DEADLINE_S):
            assert await consumer.poll(0.5) == []
            with pytest.raises(RequestTimedOut):
                await consumer.position(T)
            with pytest.raises(RequestTimedOut):
                await consumer.end_offsets([T])


async def test_stop_does_not_wait_for_a_fetch() -> None:
    async with asyncio.timeout(DEADLINE_S):
        async with reading(fetch_max_wait_ms=25_000) as (consumer, log):
            log.instead[1] = [None]
            assert await consumer.poll(0.1) == []


async def first_of_new_epoch(consumer: Consumer) -> int:
    """Read on, and return the offset of the first record after epoch 0."""
    async with asyncio.timeout(DEADLINE_S):
        while (found := await take(consumer, 1))[0].leader_epoch == 0:
            pass
    return found[0].offset


async def test_a_log_that_was_cut_off() -> None:
    """KIP-320: the new leader has lost records that were read."""
    async with reading() as (consumer, log):
        assert await offsets(consumer, 60) == list(range(60))
        log.brokers.epochs["t"] = 1
        log.end_of_epoch = (0, 40)
        log.batches[4:] = [batch(first, 10, epoch=1) for first in range(40, 100, 10)]
        log.instead[1] = [errors.FENCED_LEADER_EPOCH] * 3
        # What was fetched ahead is of no use: reading goes on where the old epoch ends.
        assert await first_of_new_epoch(consumer) == 40
        assert await offsets(consumer, 59) == list(range(41, 100))


async def test_a_log_that_was_cut_off_without_a_policy() -> None:
    async with reading(auto_offset_reset="none") as (consumer, log):
        consumer.seek(T, 0)
        assert await offsets(consumer, 60) == list(range(60))
        log.brokers.epochs["t"] = 1
        log.end_of_epoch = (0, 40)
        log.instead[1] = [errors.FENCED_LEADER_EPOCH] * 3
        # Nothing is left out in silence by those who go on.
        for _ in range(2):
            with pytest.raises(OffsetOutOfRange, match="truncated"):
                await take(consumer, 100)
        log.batches[4:] = [batch(first, 10, epoch=1) for first in range(40, 100, 10)]
        consumer.seek(T, 40)
        assert await offsets(consumer, 60) == list(range(40, 100))


def committed(offset: int, epoch: int) -> Handler:
    """The group has committed this offset of t-0."""

    def answer(_node: int, version: int, _request: Message) -> OffsetFetchResponse:
        assert version < 10
        partition = OffsetFetchResponsePartitions(0, offset, epoch, "", 0)
        topic = OffsetFetchResponseTopics("t", partitions=[partition])
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup("g", [topic])])

    return answer


@pytest.mark.parametrize("how", ["assigned", "sought"])
async def test_a_log_that_was_cut_off_after_a_commit(how: str) -> None:
    """A new consumer of the group finds out before it reads: there are other records at the committed offset."""
    async with reading(group_id="g", enable_auto_commit=False) as (consumer, log):
        log.brokers.version_max = {apis.OFFSET_FETCH: 9}
        log.brokers.handlers[apis.OFFSET_FETCH] = committed(60, 0)
        log.brokers.epochs["t"] = 1
        log.end_of_epoch = (0, 40)
        log.batches[4:] = [batch(first, 10, epoch=1) for first in range(40, 100, 10)]
        if how == "sought":
            consumer.seek(T, 90)
            assert await offsets(consumer, 1) == [90]
            await consumer.seek_to_committed()
        assert await offsets(consumer, 60) == list(range(40, 100))


async def test_an_error_of_an_earlier_position() -> None:
    """It came before the seek, and is of no interest after it."""
    async with reading(auto_offset_reset="none") as (consumer, log):
        consumer.seek(T, 500)
        log.instead[1] = [errors.OFFSET_OUT_OF_RANGE]
        assert consumer._parts is not None
        async with asyncio.timeout(DEADLINE_S):
            while not consumer._parts.fetcher._errors:
                await asyncio.sleep(0.01)
        consumer.seek(T, 7)
        assert await offsets(consumer, 1) == [7]


async def test_a_lost_partition_leaves_no_pause_behind() -> None:
    """The task of its broker would look for work a thousand times a second."""
    async with reading() as (consumer, log):
        log.brokers.topics["u"] = [1]
        log.instead[1] = [errors.OFFSET_NOT_AVAILABLE] * 1000
        await consumer.poll(0.01)
        assert consumer._parts is not None
        fetcher = consumer._parts.fetcher
        async with asyncio.timeout(DEADLINE_S):
            while not fetcher._not_before:
                await asyncio.sleep(0.001)
        consumer.assign([TopicPartition("u", 0)])
        assert fetcher._pause_s() == TURN_S


async def test_an_election_while_a_position_is_validated() -> None:
    """The answer of the leader before says nothing: the log was cut off by the second election only."""
    async with reading() as (consumer, log):
        assert await offsets(consumer, 60) == list(range(60))

        def epoch_end(node: int, version: int, request: Message) -> Message | None:
            answer = log.epoch_end(node, version, request)
            if log.brokers.epochs["t"] == 1:
                log.brokers.epochs["t"] = 2
                log.end_of_epoch = (0, 40)
                log.batches[4:] = [batch(first, 10, epoch=2) for first in range(40, 100, 10)]
                # The client receives the news before this answer.
                assert consumer._parts is not None
                consumer._parts.cluster.note_leader(T, 1, 2, [])
            return answer

        log.brokers.handlers[apis.OFFSET_FOR_LEADER_EPOCH] = epoch_end
        log.brokers.epochs["t"] = 1
        log.instead[1] = [errors.FENCED_LEADER_EPOCH] * 3
        assert await first_of_new_epoch(consumer) == 40
        assert log.brokers.count(apis.OFFSET_FOR_LEADER_EPOCH) == 2


async def test_a_log_that_was_cut_off_after_a_seek() -> None:
    """The position is the user's own, in a topic that the client knows already."""
    async with reading() as (consumer, log):
        await take(consumer, 1)
        consumer.assign([])
        consumer.assign([T])
        consumer.seek(T, 0)
        assert await offsets(consumer, 60) == list(range(60))
        log.brokers.epochs["t"] = 1
        log.end_of_epoch = (0, 40)
        log.batches[4:] = [batch(first, 10, epoch=1) for first in range(40, 100, 10)]
        log.instead[1] = [errors.FENCED_LEADER_EPOCH] * 3
        assert await first_of_new_epoch(consumer) == 40


async def test_a_follower_that_the_leader_names() -> None:
    """KIP-392: records come from the follower as long as it has them."""
    async with reading(client_rack="here") as (consumer, log):
        log.instead[1] = [PartitionData(0, 0, 100, 100, 0, preferred_read_replica=2)]
        log.instead[2] = [log.data(0), log.data(20)]
        assert await offsets(consumer, 40) == list(range(40))
        assert {node for node, _ in log.asked[1:3]} == {2}
        # The follower is behind: the leader decides.
        log.instead[2] = [errors.OFFSET_OUT_OF_RANGE]
        assert await offsets(consumer, 60) == list(range(40, 100))
        assert log.asked[-1][0] == 1


async def test_an_offset_that_the_log_does_not_have() -> None:
    async with reading() as (consumer, log):
        assert await offsets(consumer, 1) == [0]
        log.instead[1] = [errors.OFFSET_OUT_OF_RANGE] * 2
        consumer.seek(T, 500)
        assert (await offsets(consumer, 1))[0] == 0


async def test_a_seek_drops_what_was_fetched() -> None:
    async with reading() as (consumer, _):
        for target in (50, 3, 99, 50):
            consumer.seek(T, target)
            assert (await offsets(consumer, 1))[0] == target
