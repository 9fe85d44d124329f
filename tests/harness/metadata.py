"""Snapshots of an engine's metadata log, taken step by step as a server's rounds take them, without its threads."""

from __future__ import annotations

from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.engine.metadata_snapshot import UNLIMITED, remove_waste, save_start
from kcoord.engine.metadata_writer import SnapshotPlan, WrittenSnapshot, write_snapshot
from tests.harness.engine import finish_turn


def take_snapshot(engine: Engine, now: Now, roll: bool = True) -> tuple[SnapshotPlan, WrittenSnapshot]:
    """A snapshot of everything so far, at the beginning of a new segment."""
    state = engine.metadata
    assert state is not None
    finish_turn(engine, now)
    if roll:
        engine.journal.roll(state.log)
        finish_turn(engine, now)
    return write_at_end(engine, now)


def write_at_end(engine: Engine, now: Now) -> tuple[SnapshotPlan, WrittenSnapshot]:
    """A snapshot of what is durable."""
    state = engine.metadata
    assert state is not None
    plan = state.plan(state.log.durable_end, engine.config.node_id, [])
    result = write_snapshot(state.log.storage, plan, now.wall_ms)
    state.written(plan, result)
    return plan, result


def shorten(engine: Engine, now: Now, retention_ms: int = UNLIMITED, retention_bytes: int = 0) -> int:
    """Let the log begin as late as these allow; where that is."""
    state = engine.metadata
    assert state is not None
    log = state.log
    start = state.new_start(now.wall_ms, retention_ms, retention_bytes)
    if start > log.log_start_offset:
        before = log.log_start_offset
        log.log_start_offset = start
        try:
            save_start(engine.directory, engine.directory.take_starts(), log.name)
        except OSError:
            log.log_start_offset = before
            raise
    if state.has_waste():
        remove_waste(log.storage, log.name, *state.take_waste())
    return log.log_start_offset
