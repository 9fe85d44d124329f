"""Offsets of transactions: the live state is what the model says, and what the log leads to, at every point."""

from __future__ import annotations

import random

import pytest

from kcoord.core.coordinator import Core
from kcoord.engine.loader import LogLoader
from kcoord.engine.state_checkpoint import LogState, StatePlan, write_state
from kcoord.log.errors import LogDamaged
from kcoord.log.partition_log import PartitionLog
from kcoord.log.serde import encode_record
from kcoord.log.state_file import FOOTER, TRANSACTIONS_VERSION, VERSION, state_path
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.wire.record_batch import BatchBuilder, parse_header
from tests.harness.log import batches_of
from tests.unit.engine.transaction_logs import LOG, NAME, RandomLog, commit, new_core


def loaded(random_log: RandomLog) -> Core:
    core = new_core()
    LogLoader(core, LOG).load_log(random_log.log, random_log.log.log_start_offset)
    return core


def same(core: Core, other: Core) -> bool:
    return core.digest() == other.digest() and core.offsets.digest_lines() == other.offsets.digest_lines()


@pytest.mark.parametrize("seed", range(25))
def test_live_state_is_the_model_and_the_log_at_every_point(seed: int) -> None:
    random_log = RandomLog(random.Random(seed))
    for _ in range(80):
        random_log.grow()
        random_log.model.check(random_log.core)
        assert same(loaded(random_log), random_log.core)


def test_both_ways_of_loading_make_the_same_pending_offsets() -> None:
    """A value of an old version takes the general way, and a short text in a value of version 4 the fast one."""
    for text in ("m", "m" * 200):
        random_log = RandomLog(random.Random(1))
        value = OffsetCommitValue(7, 3, text, 9)
        random_log.append(5, [(OffsetCommitKey("g", "t", 1), value)])
        core = loaded(random_log)
        assert core.offsets.has_pending("g", "t", 1) and not core.offsets.count
        assert same(core, random_log.core)
        random_log.marker(5, True)
        core = loaded(random_log)
        stored = core.offsets.get("g", "t", 1)
        assert stored is not None and (stored.committed_offset, stored.metadata) == (7, text)
        assert same(core, random_log.core)


def test_loading_from_an_offset_leaves_out_markers_before_it() -> None:
    random_log = RandomLog(random.Random(1))
    random_log.append(5, [commit(("g", "t", 0), 1)])
    random_log.marker(5, True)
    random_log.append(5, [commit(("g", "t", 1), 2), commit(("g", "t", 2), 2)])
    random_log.marker(5, False)
    core = new_core()
    assert LogLoader(core, LOG).load_log(random_log.log, 3) == 1
    assert not core.offsets.count and not core.offsets.pending.by_producer


def test_any_batch_with_a_producer_id_is_part_of_a_transaction() -> None:
    """A coordinator writes no other, and a broker does not look at the flag."""
    random_log = RandomLog(random.Random(1))
    random_log.append(-1, [commit(("g", "t", 0), 1)])
    builder = BatchBuilder()
    key, value = commit(("g", "t", 0), 2)
    builder.append(1, *encode_record(key, value))
    random_log.store(builder.build(1, 0, 5, 0, 0), 1)
    core = loaded(random_log)
    stored = core.offsets.get("g", "t", 0)
    assert stored is not None and stored.committed_offset == 1
    assert core.offsets.has_pending("g", "t", 0)


def test_a_control_record_without_a_type_is_damage() -> None:
    random_log = RandomLog(random.Random(1))
    builder = BatchBuilder()
    builder.append(1, b"\x00", b"")
    random_log.store(builder.build(0, 0, 5, 0, -1, transactional=True, control=True), 1)
    with pytest.raises(LogDamaged, match="control record"):
        loaded(random_log)


# --- state checkpoints -----------------------------------------------------------------------------------------


def batch_ends(log: PartitionLog) -> list[int]:
    return [parse_header(data, pos).last_offset + 1 for pos, data in batches_of(log, 0, log.end_offset)]


def checkpoint(log: PartitionLog, from_offset: int, end: int) -> int:
    extents = log.extents(from_offset, end)
    return write_state(log.storage, StatePlan(log.name, log.log_start_offset, from_offset, end, extents))


def from_checkpoint(random_log: RandomLog) -> Core:
    core = new_core()
    assert LogState(random_log.log).load(core, LOG) == ""
    return core


@pytest.mark.parametrize("seed", range(8))
def test_checkpoint_and_tail_are_the_whole_log_at_every_offset(seed: int) -> None:
    random_log = RandomLog(random.Random(seed))
    for _ in range(60):
        random_log.grow()
    for end in batch_ends(random_log.log):
        checkpoint(random_log.log, 0, end)
        core = from_checkpoint(random_log)
        assert same(core, random_log.core)
        random_log.model.check(core)


@pytest.mark.parametrize("seed", range(8))
def test_each_checkpoint_is_made_from_the_last_one(seed: int) -> None:
    random_log = RandomLog(random.Random(100 + seed))
    last = 0
    for _ in range(80):
        random_log.grow()
        if random_log.rng.random() < 0.4:
            end = random_log.log.end_offset
            checkpoint(random_log.log, last, end)
            last = end
        if last:
            assert same(from_checkpoint(random_log), random_log.core)


def version_of(random_log: RandomLog) -> int:
    data = random_log.log.storage.read_bytes(state_path(NAME))
    version = FOOTER.unpack(data[-FOOTER.size :])[1]
    assert isinstance(version, int)
    return version


def test_a_checkpoint_follows_live_state_and_not_history() -> None:
    random_log = RandomLog(random.Random(1))
    for number in range(50):
        for producer_id in (1, 2):
            random_log.append(producer_id, [commit(("g", "t", partition), number) for partition in range(3)])
            random_log.marker(producer_id, number % 3 > 0)
    assert checkpoint(random_log.log, 0, random_log.log.end_offset) == 3
    assert version_of(random_log) == VERSION
    random_log.append(1, [commit(("g", "t", 0), 60)])
    random_log.append(1, [commit(("g", "t", 0), 61)])
    assert checkpoint(random_log.log, 0, random_log.log.end_offset) == 4
    assert version_of(random_log) == TRANSACTIONS_VERSION
    header = parse_header(random_log.log.storage.read_bytes(state_path(NAME)))
    assert not header.is_transactional
    random_log.marker(1, False)
    assert checkpoint(random_log.log, random_log.log.end_offset - 1, random_log.log.end_offset) == 3
    assert version_of(random_log) == VERSION


def test_batches_of_a_checkpoint_keep_the_producer() -> None:
    random_log = RandomLog(random.Random(1))
    random_log.append(-1, [commit(("g", "t", 0), 1)])
    random_log.append(1, [commit(("g", "t", 1), 2)])
    random_log.append(2, [commit(("g", "t", 1), 3), commit(("g", "t", 2), 3)])
    checkpoint(random_log.log, 0, 4)
    data = random_log.log.storage.read_bytes(state_path(NAME))
    found = []
    pos = 0
    while pos < len(data) - FOOTER.size:
        header = parse_header(data, pos)
        found.append((header.base_offset, header.count, header.is_transactional, header.producer_id))
        assert header.producer_epoch == (header.producer_id + 10 if header.is_transactional else -1)
        pos += header.size
    assert found == [(0, 1, False, -1), (1, 1, True, 1), (2, 2, True, 2)]
