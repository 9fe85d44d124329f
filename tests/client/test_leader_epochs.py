"""The consumer and elections that cut off nothing (KIP-320): each record is read once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from kcoord.client import Consumer, TopicPartition
from kcoord.client.admin.results import CommittedOffset
from kcoord.testing.fixture import KcoordServer
from tests.client.consuming import READ_DEADLINE_S, read

T = TopicPartition("t", 0)
EPOCH_END = "OffsetForLeaderEpoch"


@asynccontextmanager
async def reading(kcoord: KcoordServer, auto_offset_reset: str = "earliest") -> AsyncIterator[Consumer]:
    """A consumer of three batches with 5 records each: the first of leader epoch 0, the others of epoch 1."""
    await asyncio.to_thread(write_epochs, kcoord)
    async with Consumer(
        bootstrap_servers=kcoord.bootstrap,
        group_id="g",
        enable_auto_commit=False,
        auto_offset_reset=auto_offset_reset,
        fetch_max_wait_ms=50,
        retry_backoff_ms=20,
    ) as consumer:
        consumer.assign([T])
        consumer.seek(T, 0)
        yield consumer


def write_epochs(kcoord: KcoordServer) -> None:
    kcoord.create_topic("t", 1)
    kcoord.produce("t", ["a"] * 5)
    kcoord.bump_leader_epoch("t", 0)
    kcoord.produce("t", ["b"] * 5)
    kcoord.produce("t", ["c"] * 5)


async def elect(kcoord: KcoordServer) -> None:
    await asyncio.to_thread(kcoord.bump_leader_epoch, "t", 0)


async def poll_until(consumer: Consumer, is_met: Callable[[], bool]) -> None:
    """Let the consumer work, and take nothing."""
    consumer.pause(T)
    async with asyncio.timeout(READ_DEADLINE_S):
        while not is_met():
            assert await consumer.poll(0.02) == []
    consumer.resume(T)


def has_metadata(consumer: Consumer) -> bool:
    """Whether the client reads no metadata, and is not about to."""
    assert consumer._parts is not None
    cluster = consumer._parts.cluster
    return not cluster._wanted.is_set() and (cluster._refreshing is None or cluster._refreshing.done())


async def offsets(consumer: Consumer, count: int) -> list[int]:
    return [record.offset for record in await read(consumer, count)]


async def take(consumer: Consumer, how: str, count: int) -> list[int]:
    """Take records that have arrived, in one of the ways that may stop in the middle of a batch."""
    if how == "getone":
        return [(await consumer.getone()).offset for _ in range(count)]
    if how == "iteration":
        return [(await anext(consumer)).offset for _ in range(count)]
    return await offsets(consumer, count)


@pytest.mark.parametrize("auto_offset_reset", ["earliest", "none"])
@pytest.mark.parametrize("how", ["poll", "getone", "iteration"])
@pytest.mark.parametrize("position", [8, 10], ids=["in a batch", "between batches"])
async def test_an_election(kcoord: KcoordServer, how: str, position: int, auto_offset_reset: str) -> None:
    """The epoch of the last record counts, also while the rest of its batch, or the next one, waits."""
    async with reading(kcoord, auto_offset_reset) as consumer:
        assert await take(consumer, how, position) == list(range(position))
        await consumer.commit()
        assert await consumer.committed(T) == CommittedOffset(position, "", 1)
        await elect(kcoord)
        await poll_until(consumer, lambda: bool(kcoord.requests(EPOCH_END)))
        kcoord.produce("t", ["d"])
        assert await offsets(consumer, 16 - position) == list(range(position, 16))


async def test_records_that_are_taken_while_their_position_is_validated(kcoord: KcoordServer) -> None:
    """The answer is about the epoch that was asked for, which ends below the position by then."""
    async with reading(kcoord) as consumer:
        assert await offsets(consumer, 3) == [0, 1, 2]
        with kcoord.hold(EPOCH_END) as held:
            await elect(kcoord)
            await poll_until(consumer, lambda: held.hits > 0)
            # They were fetched before the election.
            assert await offsets(consumer, 12) == list(range(3, 15))
        kcoord.produce("t", ["d"])
        assert await offsets(consumer, 1) == [15]


async def test_another_election_before_the_position_is_validated(kcoord: KcoordServer) -> None:
    """The request has an old epoch then: the client reads its metadata, which are good for 5 minutes otherwise."""
    async with reading(kcoord) as consumer:
        assert await offsets(consumer, 15) == list(range(15))
        # What the client reads of its own accord must not come between.
        await poll_until(consumer, lambda: has_metadata(consumer))
        with kcoord.hold(EPOCH_END) as held:
            await elect(kcoord)
            await poll_until(consumer, lambda: held.hits > 0 and has_metadata(consumer))
            await elect(kcoord)
        kcoord.produce("t", ["d"])
        async with asyncio.timeout(READ_DEADLINE_S / 2):
            assert await offsets(consumer, 1) == [15]
    assert kcoord.requests(EPOCH_END)[0].errors == ["FENCED_LEADER_EPOCH"]
