"""Whatever a child process does, the server serves, tries again, and stops in time."""

from __future__ import annotations

import asyncio
import io
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kcoord.server.logs import ServerLog
from kcoord.server.maintenance import cleaning, metadata_rounds, state_checkpoints
from kcoord.server.maintenance.child import ChildRun, run_child
from kcoord.server.maintenance.upkeep import RETRY_FIRST_MS, RETRY_MS_MAX, Backoff
from tests.harness.steps import Unwatched
from tests.unit.server.maintenance.test_cleaning import FAST, put, read_all
from tests.unit.server.maintenance.test_metadata_rounds import SMALL, checkpoints, create_and_delete, written
from tests.unit.server.maintenance.test_rounds import create, produce
from tests.unit.server.maintenance.test_state_checkpoints import (
    commit,
    events,
    open_at,
    rounds_of,
    until_done,
    until_due,
)
from tests.unit.server.test_server import WAIT_S, Peer, Rig, event, serving, until

# A server and its processes, at their own pace.
pytestmark = pytest.mark.slow

COMPACTED = {"cleanup_policy": "compact", "segment_bytes": "1048576", "min_cleanable_dirty_ratio": "0.1"}
SOON = "background.silence.max.ms=2000"

Replace = Callable[..., None]


@pytest.fixture
def replace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replace:
    """Puts these lines before a child's own work, the first `times` times that it is started."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def make(user: object, lines: str, times: int) -> None:
        real = user.CHILD  # type: ignore[attr-defined]
        mark = tmp_path / "started"
        (tmp_path / "other_child.py").write_text(
            "import json, os, pathlib, signal, sys, time\n"
            f"mark = pathlib.Path({str(mark)!r})\n"
            "count = len(mark.read_text()) if mark.exists() else 0\n"
            "mark.write_text('x' * (count + 1))\n"
            f"if count < {times}:\n    {lines}\n"
            f"from {real} import main\n"
            "main()\n"
        )
        monkeypatch.setattr(user, "CHILD", "other_child")

    return make


STOP = "os.kill(os.getpid(), signal.SIGSTOP)"
WRONG = [
    STOP,
    "os.kill(os.getpid(), signal.SIGKILL)",
    "print('{\"answer\": {\"rec', end='', flush=True); os._exit(0)",
    "print('{\"answer\": {}}', flush=True); time.sleep(600)",
    'print(\'{"answer": {"error": [1]}}\', flush=True)',
    'print(\'{"answer": {"records": "x", "end": -7, "groups": [3]}}\', flush=True)',
    "print('junk\\n{}\\n[]\\n7', flush=True); os._exit(0)",
    "print('x' * 3000000, end='', flush=True); os._exit(1)",
]
# All of them end the same way in `run_child`; these differ in what its users make of the outcome.
SOME_WRONG = [WRONG[0], WRONG[2], WRONG[4], WRONG[5]]


async def fill(peer: Peer, topic: str) -> None:
    await create(peer, topic, **COMPACTED)
    for number in range(12):
        await put(peer, topic, {b"a": b"%d" % number + b"a" * 200_000})


def be_patient(rig: Rig) -> None:
    """From now on: on a busy machine a process takes long to begin."""
    rig.server.config.server.background_silence_ms = 60_000


def compacted(rig: Rig, topic: str) -> bool:
    return any(line["log"] == f"{topic}-0" for line in event(rig, "compacted"))


async def test_a_stopped_cleaner_is_logged_and_compaction_continues(tmp_path: Path, replace: Replace) -> None:
    replace(cleaning, STOP, 1)

    async with serving(tmp_path / "data", *FAST, SOON) as rig:
        peer = await rig.connect()
        await fill(peer, "c")
        await until(lambda: bool(event(rig, "compaction_failed")), "the cleaner to be ended")
        line = event(rig, "compaction_failed")[0]
        assert (line["log"], line["reason"]) == ("c-0", "the cleaner: no progress for 2 s")
        # The very same log is tried again.
        be_patient(rig)
        await until(lambda: compacted(rig, "c"), "the next try")
        assert dict(await read_all(peer, "c")) == {b"a": b"11" + b"a" * 200_000}


@pytest.mark.parametrize("lines", WRONG)
async def test_whatever_the_cleaner_does(tmp_path: Path, replace: Replace, lines: str) -> None:
    replace(cleaning, lines, 1)

    async with serving(tmp_path / "data", *FAST, SOON) as rig:
        peer = await rig.connect()
        await fill(peer, "c")
        await until(lambda: bool(event(rig, "compaction_failed")), "the failure")
        be_patient(rig)
        await until(lambda: compacted(rig, "c"), "a try that succeeds")
        assert dict(await read_all(peer, "c")) == {b"a": b"11" + b"a" * 200_000}


async def test_a_snapshot_does_not_wait_for_a_cleaner_that_hangs(tmp_path: Path, replace: Replace) -> None:
    replace(cleaning, STOP, 100)

    async with serving(tmp_path / "data", *FAST) as rig:
        peer = await rig.connect()
        await fill(peer, "c")
        await until(lambda: (tmp_path / "started").exists(), "the cleaner")
        assert rig.server._control is not None
        made = await asyncio.wait_for(rig.server._control.snapshot("beside", Unwatched()), 60.0)
        assert made["ends"]["c-0"] == 12
        assert rig.server.background().maintenance.cleaner.busy == "c-0"


@pytest.mark.parametrize("user", ["cleaning", "states", "metadata"])
async def test_a_stop_with_a_stopped_child_is_in_time(tmp_path: Path, replace: Replace, user: str) -> None:
    users = {"cleaning": cleaning, "states": state_checkpoints, "metadata": metadata_rounds}
    replace(users[user], STOP, 100)

    deadline_s = 8.0
    settings = ["log.sync=os", SMALL, f"shutdown.deadline.ms={deadline_s * 1000:.0f}"]
    data = tmp_path / "data"
    async with serving(data, *(FAST if user == "cleaning" else ()), *settings) as rig:
        peer = await rig.connect()
        if user == "cleaning":
            await fill(peer, "c")
        elif user == "states":
            assert rig.server.assembly is not None
            states = rig.server.assembly.engine.states
            states.logs["__consumer_offsets-0"].records_min = states.replay_records = 1
            await create(peer, "t")
            commit(rig.server.assembly.engine, 20)
        else:
            await create_and_delete(peer, 20)
        await until(lambda: (tmp_path / "started").exists(), "the child")
        began = time.monotonic()
    assert time.monotonic() - began < deadline_s
    assert (data / ".kafka_cleanshutdown").exists()
    assert rig.ended.exception() is None


@pytest.mark.parametrize("lines", SOME_WRONG)
async def test_whatever_the_writer_of_state_checkpoints_does(tmp_path: Path, replace: Replace, lines: str) -> None:
    replace(state_checkpoints, lines, 1)

    engine = open_at(tmp_path / "data")
    log = ServerLog(io.StringIO())
    rounds = rounds_of(engine, log)
    rounds._silence_s = 2.0
    commit(engine, 20)
    rounds.sweep()
    await until_done(rounds)
    assert events(log) == ["state_checkpoint_not_written"]
    rounds._silence_s = WAIT_S
    commit(engine, 20)
    rounds.sweep()
    assert not rounds.is_busy
    await until_due(rounds)
    rounds.sweep()
    await until_done(rounds)
    assert events(log)[-1] == "state_checkpoint_written"
    engine.stop()


@pytest.mark.parametrize("lines", SOME_WRONG)
async def test_whatever_the_writer_of_metadata_snapshots_does(
    tmp_path: Path, replace: Replace, lines: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_rounds, "CHECK_S", 0.02)
    replace(metadata_rounds, lines, 1)

    data = tmp_path / "data"
    async with serving(data, SMALL, SOON, "log.sync=os") as rig:
        peer = await rig.connect()
        await create_and_delete(peer, 20)
        await until(lambda: bool(event(rig, "metadata_snapshot_not_written")), "the failure")
        be_patient(rig)
        assert not checkpoints(data)
        await create_and_delete(peer, 20)
        await until(lambda: bool(written(rig)), "the next try")
        await create(peer, "after")
        await produce(peer, "after", 1)


async def test_an_answer_about_another_snapshot_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log would begin where no snapshot ends."""
    monkeypatch.setattr(metadata_rounds, "CHECK_S", 0.02)
    real = run_child

    def wrong(*arguments: object) -> ChildRun:
        found = real(*arguments)  # type: ignore[arg-type]
        found.answers[0]["end_offset"] -= 1
        return found

    monkeypatch.setattr(metadata_rounds, "run_child", wrong)

    async with serving(tmp_path, SMALL, "metadata.max.retention.bytes=0") as rig:
        await create_and_delete(await rig.connect(), 20)
        await until(lambda: bool(event(rig, "metadata_snapshot_not_written")), "the refusal")
        assert not event(rig, "metadata_log_shortened")


def test_pauses_between_tries_grow_and_end() -> None:
    backoff = Backoff()
    assert backoff.is_due(0)
    pauses = []
    now_ms = -1_000_000
    for _ in range(14):
        backoff.failed(now_ms)
        pause = next(ms for ms in range(1000, 700_000, 1000) if backoff.is_due(now_ms + ms))
        assert not backoff.is_due(now_ms + pause - 1)
        pauses.append(pause)
        now_ms += pause
    assert pauses[:3] == [RETRY_FIRST_MS, 2 * RETRY_FIRST_MS, 4 * RETRY_FIRST_MS] and pauses[-1] == RETRY_MS_MAX
    assert pauses == sorted(pauses)
    backoff.succeeded()
    assert backoff.is_due(now_ms)
