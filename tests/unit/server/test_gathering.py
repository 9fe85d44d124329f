"""Clients that come back at once share a sync; nobody waits long for those who do not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kcoord.server.gathering import GATHER_NS_MAX, PAUSE_NS_MAX, SKIPS_MAX, Gathering
from tests.unit.server.pump_rig import FRAME, WAIT_S, EchoEngine, Rig, exchange, running

SYNC_NS = 400_000


def opened(expected: int = 4, sync_ns: int = SYNC_NS, waiting: int = 0) -> Gathering:
    """A gathering that began at `sync_ns`, after `waiting` reads during the sync."""
    gathering = Gathering()
    gathering.sync_begins(0)
    for _ in range(waiting):
        gathering.note_read(0)
    gathering.begin(expected, sync_ns)
    assert gathering.is_open
    return gathering


def end(gathering: Gathering) -> None:
    assert gathering.is_over(1 << 40)
    gathering.close()


def test_it_is_over_when_all_are_back() -> None:
    gathering = opened(3)
    for _ in range(2):
        gathering.note_read(gathering.number)
        assert not gathering.is_over(SYNC_NS + 1)
    gathering.note_read(gathering.number)
    assert gathering.is_over(SYNC_NS + 1)


def test_only_those_count_whom_it_waits_for() -> None:
    gathering = opened(2)
    for number in (0, gathering.number - 1, gathering.number):
        gathering.note_read(number)
    assert not gathering.is_over(SYNC_NS + 1)


@pytest.mark.parametrize(("sync_ns", "pause_ns"), [(SYNC_NS, SYNC_NS), (50_000_000, PAUSE_NS_MAX)])
def test_a_pause_is_as_long_as_a_sync_but_never_long(sync_ns: int, pause_ns: int) -> None:
    gathering = opened(expected=40, sync_ns=sync_ns)
    gathering.note_read(gathering.number)
    came_ns = sync_ns + 1000
    assert not gathering.is_over(came_ns)
    assert not gathering.is_over(came_ns + pause_ns - 1)
    assert gathering.is_over(came_ns + pause_ns)


def test_it_ends_when_half_of_the_possible_gain_is_lost() -> None:
    """Eight wait, and four could come: they would gain four times a sync."""
    gathering = opened(4, waiting=8)
    assert not gathering.is_over(SYNC_NS + SYNC_NS // 4 - 1)
    assert gathering.is_over(SYNC_NS + SYNC_NS // 4)


def test_the_time_in_which_they_come_is_not_lost() -> None:
    """The server would need it anyway."""
    gathering = opened(expected=20)
    now_ns = SYNC_NS
    for _ in range(19):
        gathering.note_read(gathering.number)
        now_ns += 50_000
        assert not gathering.is_over(now_ns)


def test_it_ends_although_they_keep_coming() -> None:
    gathering = opened(expected=1_000_000)
    now_ns = SYNC_NS
    while not gathering.is_over(now_ns):
        gathering.note_read(gathering.number)
        now_ns += 1000
    assert now_ns == SYNC_NS + GATHER_NS_MAX


def test_a_single_client_is_not_waited_for() -> None:
    gathering = Gathering()
    gathering.note_read(0)
    gathering.sync_begins(0)
    gathering.begin(0, SYNC_NS)
    assert not gathering.is_open
    gathering.begin(1, SYNC_NS)
    assert not gathering.is_open, "it came before the sync"
    gathering.note_read(0)
    gathering.begin(1, SYNC_NS)
    assert gathering.is_open, "another one came during the sync"


def test_clients_that_do_other_work_first_are_waited_for_ever_more_rarely() -> None:
    gathering = Gathering()
    skips: list[int] = []
    for _ in range(7):
        skipped = 0
        gathering.begin(4, SYNC_NS)
        while not gathering.is_open:
            skipped += 1
            gathering.begin(4, SYNC_NS)
        skips.append(skipped)
        end(gathering)
    assert skips == [0, 1, 2, 4, 8, SKIPS_MAX, SKIPS_MAX]


def test_it_waits_each_time_again_once_enough_of_them_come_back() -> None:
    gathering = opened()
    end(gathering)
    gathering.begin(4, SYNC_NS)
    assert not gathering.is_open, "they did not come"
    gathering.begin(4, SYNC_NS)
    gathering.note_read(gathering.number)
    end(gathering)
    for _ in range(2):
        gathering.begin(4, SYNC_NS)
        assert gathering.is_open
        gathering.note_read(gathering.number)
        end(gathering)


def test_a_moment_that_lost_more_than_it_gained_was_in_vain() -> None:
    """Eight wait for the time of a fourth of a sync, and one comes, who gains one."""
    gathering = opened(4, waiting=8)
    assert gathering.is_over(SYNC_NS + SYNC_NS // 4)
    gathering.note_read(gathering.number)
    gathering.close()
    gathering.begin(4, SYNC_NS)
    assert not gathering.is_open


class Gates:
    """Syncs that last until they are let through."""

    def __init__(self) -> None:
        self.begun = 0
        self.through = threading.Semaphore(0)

    def sync(self) -> None:
        self.begun += 1
        assert self.through.acquire(timeout=WAIT_S)

    async def until_begun(self, count: int) -> None:
        while self.begun < count:
            await asyncio.sleep(0.001)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def one_in_a_sync_and_one_waiting() -> AsyncIterator[tuple[Rig, EchoEngine, Gates, Streams, Streams]]:
    gates = Gates()
    engine = EchoEngine(gates.sync)
    async with running(engine) as rig:
        first, second = await rig.connect(), await rig.connect()
        first[1].write(FRAME)
        await gates.until_begun(1)
        second[1].write(FRAME)
        while not engine.waiting:
            await asyncio.sleep(0.001)
        yield rig, engine, gates, first, second


async def test_who_was_answered_shares_the_next_sync_with_those_who_wait() -> None:
    """A machine may be busy for longer than the pause, so this has to happen once in a minute."""
    deadline = time.monotonic() + WAIT_S
    commits = 3
    while commits == 3 and time.monotonic() < deadline:
        async with one_in_a_sync_and_one_waiting() as (_, engine, gates, first, second):
            gates.through.release(3)
            await asyncio.wait_for(first[0].readexactly(len(FRAME)), WAIT_S)
            await exchange(first)
            await asyncio.wait_for(second[0].readexactly(len(FRAME)), WAIT_S)
            commits = engine.commits
    assert commits == 2


async def test_who_waits_is_answered_if_nobody_comes_back() -> None:
    async with one_in_a_sync_and_one_waiting() as (_, engine, gates, first, second):
        gates.through.release(2)
        for streams in (first, second):
            await asyncio.wait_for(streams[0].readexactly(len(FRAME)), WAIT_S)
        assert engine.commits == 2


async def test_who_waits_is_answered_if_the_other_one_is_gone() -> None:
    async with one_in_a_sync_and_one_waiting() as (_, engine, gates, first, second):
        first[1].transport.abort()
        gates.through.release(2)
        await asyncio.wait_for(second[0].readexactly(len(FRAME)), WAIT_S)
        assert engine.commits == 2


async def test_what_a_commit_continues_is_written_at_once() -> None:
    async with one_in_a_sync_and_one_waiting() as (rig, engine, gates, _, _):
        engine.is_continued = True
        gates.through.release()
        await gates.until_begun(2)
        assert not rig.pump.gathering.is_open and engine.commits == 2
        gates.through.release()


async def test_many_clients_with_a_request_each_lose_nothing() -> None:
    engine = EchoEngine(lambda: time.sleep(0.0005))
    async with running(engine) as rig:

        async def work() -> int:
            streams = await rig.connect()
            for _ in range(50):
                assert await exchange(streams) == FRAME
            return 50

        assert sum(await asyncio.gather(*(work() for _ in range(20)))) == 1000
        assert not rig.failures and not engine.waiting
        assert engine.commits < 1000
