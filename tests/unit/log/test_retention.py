"""Which segments retention lets go, and that a log without its old segments opens again."""

from __future__ import annotations

import pytest

from kcoord.log.directory import LogDirectory
from kcoord.log.journal import Journal
from kcoord.log.log_config import LogConfig
from kcoord.log.partition_log import PartitionLog
from kcoord.log.retention import RetentionPlan, RetentionPolicy, plan_retention
from kcoord.log.segment import segment_name
from kcoord.testing.state.disk import ForgetfulStorage
from tests.harness.log_start import advance_log_start
from tests.unit.log.batches import TOPIC_ID, add, reopen

CONFIG = LogConfig(segment_bytes=500, index_interval_bytes=200, tail_bytes_max=0)
KEEP = RetentionPolicy(True, -1, -1)


class Rig:
    def __init__(self, batches: int = 10) -> None:
        self.storage = ForgetfulStorage()
        self.directory: LogDirectory = reopen(self.storage, CONFIG)
        self.journal = Journal(self.directory, "always")
        self.log: PartitionLog = self.directory.create_log("t", 0, TOPIC_ID)
        for i in range(batches):
            # Two batches to a segment, a second between two batches.
            add(self.journal, self.log, 1, timestamp=i * 1000, size=150)
        self.journal.commit()

    def plan(self, policy: RetentionPolicy, now_ms: int = 10_000) -> RetentionPlan | None:
        return plan_retention(self.log, policy, now_ms)

    def apply(self, plan: RetentionPlan | None) -> None:
        assert plan is not None
        if plan.must_roll:
            self.journal.roll(self.log)
            self.journal.commit()
        advance_log_start(self.directory, self.log, plan.start)

    def crash(self) -> None:
        self.storage = self.storage.crash()
        self.directory = reopen(self.storage, CONFIG)
        self.journal = Journal(self.directory, "always")
        found = self.directory.get("t", 0)
        assert found is not None
        self.log = found


def test_nothing_goes_without_bounds() -> None:
    rig = Rig()
    assert [s.base_offset for s in rig.log.segments] == [0, 2, 4, 6, 8]
    assert rig.plan(KEEP, 1 << 50) is None
    assert rig.plan(RetentionPolicy(False, 0, 0), 1 << 50) is None


@pytest.mark.parametrize(("now_ms", "start"), [(6000, None), (6001, 2), (8001, 4), (10_001, 6), (12_001, 8)])
def test_a_segment_goes_when_its_newest_record_is_too_old(now_ms: int, start: int | None) -> None:
    rig = Rig()
    plan = rig.plan(RetentionPolicy(True, 5000, -1), now_ms)
    if start is None:
        assert plan is None
        return
    assert plan is not None and (plan.start, plan.must_roll) == (start, False)
    rig.apply(plan)
    assert (rig.log.log_start_offset, rig.log.segments[0].base_offset) == (start, start)
    assert rig.plan(RetentionPolicy(True, 5000, -1), now_ms) is None
    rig.crash()
    assert (rig.log.log_start_offset, rig.log.end_offset) == (start, 10)


def test_size_leaves_at_least_what_is_asked_for() -> None:
    rig = Rig()
    one = rig.log.segments[0].size
    for keep, start in ((5 * one, 0), (5 * one - 1, 0), (4 * one, 2), (4 * one - 1, 2), (one, 8)):
        plan = rig.plan(RetentionPolicy(True, -1, keep))
        assert (plan.start if plan else 0) == start, keep


def test_time_first_then_size() -> None:
    rig = Rig()
    one = rig.log.segments[0].size
    plan = rig.plan(RetentionPolicy(True, 5000, 3 * one), 6001)
    assert plan is not None and plan.start == 4
    plan = rig.plan(RetentionPolicy(True, 5000, 3 * one), 8001)
    assert plan is not None and plan.start == 4


@pytest.mark.parametrize("policy", [RetentionPolicy(True, 5000, -1), RetentionPolicy(True, -1, 0)])
def test_the_active_segment_is_closed_when_all_may_go(policy: RetentionPolicy) -> None:
    rig = Rig()
    plan = rig.plan(policy, 100_000)
    assert plan is not None and (plan.start, plan.must_roll) == (10, True)
    rig.apply(plan)
    assert (rig.log.log_start_offset, rig.log.end_offset, rig.log.size_bytes) == (10, 10, 0)
    assert [name for name in rig.storage.list_dir("t-0") if name.endswith(".log")] == [segment_name(10) + ".log"]
    assert rig.plan(policy, 1 << 50) is None
    rig.crash()
    assert (rig.log.log_start_offset, rig.log.end_offset) == (10, 10)
    add(rig.journal, rig.log, 3)
    rig.journal.commit()
    rig.crash()
    assert (rig.log.log_start_offset, rig.log.end_offset) == (10, 13)


def test_what_is_not_durable_stays() -> None:
    rig = Rig()
    add(rig.journal, rig.log, 1, timestamp=0, size=150)
    plan = rig.plan(RetentionPolicy(True, 0, 0), 1 << 40)
    assert plan is not None and (plan.start, plan.must_roll) == (10, False)


def test_a_roll_without_records_changes_nothing() -> None:
    rig = Rig(0)
    rig.journal.roll(rig.log)
    assert not rig.journal.has_pending and len(rig.log.segments) == 1


def test_what_a_crash_left_below_the_start_goes() -> None:
    rig = Rig()
    rig.log.log_start_offset = 5
    rig.directory.write_start_offsets(rig.directory.take_starts())
    rig.crash()
    assert len(rig.log.segments) == 5 and rig.log.log_start_offset == 5
    for policy in (KEEP, RetentionPolicy(False, -1, -1)):
        plan = rig.plan(policy)
        assert plan is not None and (plan.start, plan.must_roll) == (5, False)


def test_records_without_timestamps_do_not_grow_old() -> None:
    rig = Rig(0)
    for _ in range(4):
        add(rig.journal, rig.log, 1, timestamp=-1, size=150)
    rig.journal.commit()
    assert rig.plan(RetentionPolicy(True, 0, -1), 1 << 50) is None


def test_older_starts_do_not_overwrite_newer_ones() -> None:
    rig = Rig()
    rig.log.log_start_offset = 2
    old = rig.directory.take_starts()
    rig.log.log_start_offset = 4
    rig.directory.write_start_offsets(rig.directory.take_starts())
    rig.directory.write_start_offsets(old)
    rig.crash()
    assert rig.log.log_start_offset == 4
