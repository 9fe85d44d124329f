"""When a compacted log is due, and which of its segments."""

from __future__ import annotations

import pytest

from kcoord.log.cleaning_plan import CleaningPlan, CleaningPolicy, plan_cleaning
from kcoord.log.journal import Journal
from kcoord.log.log_config import LogConfig
from kcoord.log.storage import MemoryStorage
from tests.unit.log.batches import TOPIC_ID, add, reopen

NEVER = (1 << 63) - 1
NOW_MS = 1_000_000


class Rig:
    """Segments of one record each at offsets 0, 1, …; their records are `ages` old. The last one is active."""

    def __init__(self, *ages: int) -> None:
        config = LogConfig(segment_bytes=1, segment_ms=NEVER, index_interval_bytes=100, tail_bytes_max=0)
        self.directory = reopen(MemoryStorage(), config)
        self.journal = Journal(self.directory, "always")
        self.log = self.directory.create_log("t", 0, TOPIC_ID)
        for age in ages:
            add(self.journal, self.log, 1, timestamp=NOW_MS - age, size=100)
            self.journal.commit()
        assert len(self.log.segments) == len(ages)
        self.one = self.log.segments[0].size

    def plan(self, first_dirty: int = 0, **changes: float) -> CleaningPlan:
        values: dict[str, float] = {
            "dirty_ratio": 0.5, "min_lag_ms": 0, "max_lag_ms": NEVER, "segment_ms": NEVER,
            "history_ms": 0, "history_bytes": 0, **changes,
        }  # fmt: skip
        return plan_cleaning(self.log, CleaningPolicy(**values), first_dirty, NOW_MS)  # type: ignore[arg-type]


def test_only_closed_segments_are_cleaned() -> None:
    assert Rig(5, 5, 5).plan().bases == [0, 1]
    assert Rig(5).plan().bases == [] and not Rig(5).plan().must_roll


@pytest.mark.parametrize(("first_dirty", "is_due"), [(0, True), (1, True), (2, False), (3, False), (4, False)])
def test_more_than_the_ratio_must_be_dirty(first_dirty: int, is_due: bool) -> None:
    plan = Rig(5, 5, 5, 5, 5).plan(first_dirty)
    assert plan.bases == ([0, 1, 2, 3] if is_due else []) and plan.first_dirty == first_dirty


def test_young_records_wait() -> None:
    assert Rig(900, 500, 300, 100).plan(min_lag_ms=400).bases == [0, 1]
    assert Rig(300, 900, 500, 100).plan(min_lag_ms=400).bases == []


def test_old_records_do_not_wait_for_the_ratio() -> None:
    rig = Rig(900, 800, 700, 600, 500)
    assert rig.plan(3, max_lag_ms=500).bases == [0, 1, 2, 3]
    assert rig.plan(3, max_lag_ms=600).bases == []
    # Nothing is dirty, however old it is.
    assert rig.plan(4, max_lag_ms=1).bases == []


def test_the_active_segment_is_closed_when_it_is_old() -> None:
    rig = Rig(900, 800)
    assert rig.plan(max_lag_ms=799).must_roll and rig.plan(segment_ms=799).must_roll
    assert not rig.plan(max_lag_ms=800, segment_ms=800).must_roll
    rig.journal.roll(rig.log)
    rig.journal.commit()
    plan = rig.plan(max_lag_ms=1)
    assert plan.bases == [0, 1] and not plan.must_roll


def test_recent_history_stays_up_to_its_size() -> None:
    rig = Rig(900, 700, 500, 300, 100)
    enough = 100 * rig.one
    assert rig.plan(history_ms=600, history_bytes=enough).bases == [0, 1]
    assert rig.plan(history_ms=1000, history_bytes=enough).bases == []
    assert rig.plan(history_ms=1000, history_bytes=3 * rig.one).bases == [0, 1]
    assert rig.plan(history_ms=1000, history_bytes=0).bases == [0, 1, 2, 3]
    # What is in the history is no reason to clean, either.
    assert rig.plan(2, history_ms=600, history_bytes=enough).bases == []


def test_history_leaves_room_for_what_comes_while_the_cleaner_works() -> None:
    rig = Rig(900, 800, 700, 600, 500, 300, 200, 100)
    settings = {"history_ms": 1000, "history_bytes": 6 * rig.one}
    assert rig.plan(**settings).bases == [0, 1]
    # Nothing was written in this time, then one segment, then two.
    assert rig.plan(**settings, room_ms=50).bases == [0, 1]
    assert rig.plan(**settings, room_ms=150).bases == [0, 1, 2]
    assert rig.plan(**settings, room_ms=250).bases == [0, 1, 2, 3]
    # However quickly a log grows, half of the history stays.
    assert rig.plan(**settings, room_ms=1_000_000).bases == [0, 1, 2, 3, 4]


def test_room_of_a_slow_log_is_a_part_of_its_segment() -> None:
    """So a burst takes no more of the history than it has written."""
    rig = Rig(5000, 4000, 3000, 2000, 0)
    rig.log.segments[-1].first_timestamp = NOW_MS - 1000
    half = rig.one // 2
    settings = {"history_ms": 10_000, "history_bytes": 5 * rig.one + half}
    assert rig.plan(**settings, room_ms=400).bases == []
    assert rig.plan(**settings, room_ms=600).bases == [0]


@pytest.mark.parametrize("age", [-5_000, NOW_MS])
def test_times_that_tell_no_rate_need_no_room(age: int) -> None:
    """Records of the future (the clock was set back), and of long ago (an imported log)."""
    rig = Rig(900, 800, 700, 600, 500, age)
    settings = {"history_ms": NOW_MS, "history_bytes": 4 * rig.one}
    assert rig.plan(**settings, room_ms=100).bases == rig.plan(**settings).bases == [0, 1]


def test_a_log_without_closed_segments_needs_no_room() -> None:
    rig = Rig(5)
    assert rig.plan(history_ms=1000, history_bytes=rig.one // 2, room_ms=2000).bases == []


def test_what_another_log_of_that_name_left_is_not_believed() -> None:
    assert Rig(5, 5, 5).plan(100).first_dirty == 0


def test_much_is_cleaned_in_pieces() -> None:
    rig = Rig(9, 9, 9, 9, 9, 9, 9, 9)
    assert rig.plan(5, piece_bytes=1, dirty_ratio=0.1).bases == [0, 1, 2, 3, 4, 5, 6]
    plan = rig.plan(piece_bytes=2 * rig.one)
    assert plan.bases == [0, 1] and plan.size_bytes == 2 * rig.one and plan.waiting_bytes == 7 * rig.one
    # A piece has at least a quarter of what waits.
    assert rig.plan(piece_bytes=1).bases == [0, 1]
    # With what was cleaned already, of which each piece has at least as much again.
    assert rig.plan(1, piece_bytes=1).bases == [0, 1, 2]
    assert rig.plan(2, piece_bytes=1).bases == [0, 1, 2, 3]
    assert rig.plan(3, piece_bytes=1, dirty_ratio=0.1).bases == [0, 1, 2, 3, 4, 5]
    assert rig.plan(3, piece_bytes=0, dirty_ratio=0.1).bases == [0, 1, 2, 3, 4, 5, 6]
