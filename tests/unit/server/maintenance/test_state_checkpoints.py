"""The process that writes state checkpoints: what it does, and that nothing depends on it."""

from __future__ import annotations

import asyncio
import io
import random
from pathlib import Path
from typing import cast

import pytest

from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.engine.state_checkpoint import StateCheckpoints, StatePlan
from kcoord.log.errors import LogDamaged
from kcoord.log.state_file import read_state_file, state_path
from kcoord.log.storage import DiskStorage, MemoryStorage
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.server.logs import ServerLog
from kcoord.server.maintenance.state_checkpoints import PAUSE_MS_MAX, WAIT_MS, StateRounds
from kcoord.server.pump import read_clocks
from kcoord.server.server import Server
from kcoord.server.settings.load import load
from tests.harness.engine import Client, open_engine

# A server and its processes, at their own pace.
pytestmark = pytest.mark.slow

NAME = "__consumer_offsets-0"
PATH = state_path(NAME)
NOW = Now(0, 1_700_000_000_000)
WAIT_S = 60.0


def open_at(folder: Path) -> Engine:
    engine = open_engine(DiskStorage(str(folder)), NOW, random.Random(1), "os")
    engine.states.logs[NAME].records_min = engine.states.replay_records = 16
    return engine


def commit(engine: Engine, count: int) -> None:
    client = Client(engine)
    client.ask(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic("t", 4, 1)]), NOW)
    for number in range(count):
        partition = OffsetCommitRequestPartition(number % 4, number, -1, "m")
        topics = [OffsetCommitRequestTopic("t", bytes(16), [partition])]
        client.ask(apis.OFFSET_COMMIT, 8, OffsetCommitRequest("g", -1, "", None, -1, topics), NOW)


def rounds_of(engine: Engine, log: ServerLog, states: StateCheckpoints | None = None) -> StateRounds:
    storage = engine.directory.storage
    assert isinstance(storage, DiskStorage)
    return StateRounds(asyncio.get_running_loop(), states or engine.states, storage, log, WAIT_S)


async def until_done(rounds: StateRounds) -> None:
    async with asyncio.timeout(WAIT_S):
        while rounds.is_busy:
            await asyncio.sleep(0.01)


async def until_due(rounds: StateRounds) -> None:
    """Until the pause after a failure is over."""
    async with asyncio.timeout(WAIT_S):
        while not rounds._backoff.is_due(read_clocks().mono_ms):
            await asyncio.sleep(0.01)


def events(log: ServerLog) -> list[object]:
    return [line["event"] for line in log.recent]


async def test_a_round_writes_what_is_due_and_the_next_start_uses_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    engine = open_at(folder)
    log = ServerLog(io.StringIO())
    rounds = rounds_of(engine, log)
    commit(engine, 15)
    rounds.sweep()
    assert not rounds.is_busy
    commit(engine, 15)
    rounds.sweep()
    assert rounds.is_busy
    rounds.sweep()
    await until_done(rounds)
    assert events(log) == ["state_checkpoint_written"]
    found = read_state_file(engine.directory.storage, PATH)
    assert found is not None and (found.end_offset, found.records) == (30, 4)
    commit(engine, 3)
    await rounds.finish(lambda: False)
    assert events(log) == ["state_checkpoint_written"] * 2
    engine.stop()
    again = open_at(folder)
    assert again.states.logs[NAME].end_offset == 33
    assert again.core.digest() == engine.core.digest()
    again.stop()


async def test_a_stop_does_not_wait_beyond_its_deadline(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    engine = open_at(folder)
    log = ServerLog(io.StringIO())
    rounds = rounds_of(engine, log)
    commit(engine, 20)
    rounds.sweep()
    await rounds.finish(lambda: True)
    await until_done(rounds)
    # Either the process had not come far, or it was quicker; the state is the same.
    engine.stop()
    again = open_at(folder)
    assert again.core.digest() == engine.core.digest()
    again.stop()


async def test_a_failed_write_is_reported_and_repeated_later(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    engine = open_at(folder)
    log = ServerLog(io.StringIO())
    rounds = rounds_of(engine, log)
    commit(engine, 20)
    (folder / NAME / "state-checkpoint.tmp").mkdir()
    rounds.sweep()
    await until_done(rounds)
    assert events(log) == ["state_checkpoint_not_written"]
    assert "IsADirectoryError" in str(log.recent[0]["reason"])
    # Not again at once, but when as much came again; and the server goes on.
    rounds.sweep()
    assert not rounds.is_busy
    (folder / NAME / "state-checkpoint.tmp").rmdir()
    commit(engine, 20)
    await until_due(rounds)
    rounds.sweep()
    await until_done(rounds)
    assert events(log)[-1] == "state_checkpoint_written"
    engine.stop()


async def test_a_pause_follows_a_successful_round(tmp_path: Path) -> None:
    engine = open_at(tmp_path / "data")
    log = ServerLog(io.StringIO())
    rounds = rounds_of(engine, log)
    commit(engine, 20)
    rounds.sweep()
    assert rounds.is_busy
    await until_done(rounds)
    ended_ms = read_clocks().mono_ms
    assert events(log) == ["state_checkpoint_written"]
    assert rounds._not_before_ms <= ended_ms + PAUSE_MS_MAX
    rounds._not_before_ms = ended_ms + 3_600_000
    commit(engine, 20)
    rounds.sweep()
    assert not rounds.is_busy
    # After the pause, a round still waits for some seconds, unless a start would replay much.
    rounds._not_before_ms = ended_ms
    assert ended_ms < rounds._may_wait_until_ms <= ended_ms + WAIT_MS
    engine.states.replay_records = 1000
    rounds.sweep()
    assert not rounds.is_busy
    rounds._may_wait_until_ms = ended_ms
    rounds.sweep()
    assert rounds.is_busy
    await until_done(rounds)
    engine.stop()


async def test_a_removed_segment_is_not_recreated(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    engine = open_at(folder)
    log = ServerLog(io.StringIO())
    rounds = rounds_of(engine, log)
    commit(engine, 20)
    segment = folder / NAME / f"{0:020d}.log"
    segment.rename(folder / "moved")
    rounds.sweep()
    await until_done(rounds)
    assert events(log) == ["state_checkpoint_not_written"]
    assert not segment.exists()
    (folder / "moved").rename(segment)
    engine.stop()


class Damaged:
    """State checkpoints of a log that cannot be looked through."""

    def plans(self, at_stop: bool, may_wait: bool) -> list[StatePlan]:
        raise LogDamaged("a file", 3, 7, "bad")


async def test_a_log_that_cannot_be_looked_through_costs_a_line_in_the_log(tmp_path: Path) -> None:
    engine = open_at(tmp_path / "data")
    log = ServerLog(io.StringIO())
    rounds = rounds_of(engine, log, cast(StateCheckpoints, Damaged()))
    rounds.sweep()
    rounds.sweep()
    assert not rounds.is_busy
    assert events(log) == ["state_checkpoint_not_written"]
    engine.stop()


async def test_they_are_written_where_the_storage_is(tmp_path: Path) -> None:
    folder = tmp_path
    assignments = [f"log.dirs={folder / 'unused'}", "listeners=127.0.0.1:0", "log.sync=os"]
    # The process that writes it is given the time that a busy machine takes.
    assignments.append("shutdown.deadline.ms=60000")
    elsewhere = folder / "elsewhere"
    server = Server(load(assignments=assignments), ServerLog(io.StringIO()), DiskStorage(str(elsewhere)))
    await server.start()
    assert server.assembly is not None
    engine = server.assembly.engine
    engine.states.logs[NAME].records_min = engine.states.replay_records = 16
    commit(engine, 20)
    server.request_stop()
    await asyncio.wait_for(server.wait(), WAIT_S)
    assert (elsewhere / PATH).exists()
    assert not (folder / "unused").exists()


async def test_no_process_looks_for_a_storage_without_files(tmp_path: Path) -> None:
    folder = tmp_path
    assignments = [f"log.dirs={folder / 'unused'}", "listeners=127.0.0.1:0", "log.sync=os"]
    log = ServerLog(io.StringIO())
    server = Server(load(assignments=assignments), log, MemoryStorage())
    await server.start()
    assert server.assembly is not None
    engine = server.assembly.engine
    engine.states.logs[NAME].records_min = engine.states.replay_records = 16
    commit(engine, 20)
    server.request_stop()
    await asyncio.wait_for(server.wait(), WAIT_S)
    assert [event for event in events(log) if str(event).startswith("state_")] == []
    assert not (folder / "unused").exists()
