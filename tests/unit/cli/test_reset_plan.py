"""What a reset would do, by wish and offsets."""

from __future__ import annotations

import pytest

from kcoord.cli.groups.reset_plan import (
    CURRENT,
    EARLIEST,
    GIVEN,
    LATEST,
    NO_OFFSET,
    OFFSET,
    SHIFT,
    TIME,
    Change,
    Facts,
    PlanProblem,
    Wish,
    change_of,
    export_rows,
    parse_duration_ms,
    read_plan,
    undo_rows,
)
from kcoord.cli.output import csv_text
from kcoord.client.admin.lag import records_behind
from kcoord.client.partition import TopicPartition

A = TopicPartition("a", 0)
B = TopicPartition("b", 1)


@pytest.mark.parametrize(
    ("wish", "facts", "new", "has_note"),
    [
        (Wish(EARLIEST), Facts(7, 5, 10), 5, False),
        (Wish(LATEST), Facts(7, 5, 10), 10, False),
        (Wish(CURRENT), Facts(7, 5, 10), 7, False),
        (Wish(CURRENT), Facts(2, 5, 10), 2, False),
        (Wish(CURRENT), Facts(None, 5, 10), 10, False),
        (Wish(OFFSET, 8), Facts(None, 5, 10), 8, False),
        (Wish(OFFSET, 4), Facts(7, 5, 10), 5, True),
        (Wish(OFFSET, 11), Facts(7, 5, 10), 10, True),
        (Wish(SHIFT, 2), Facts(7, 5, 10), 9, False),
        (Wish(SHIFT, -3), Facts(7, 5, 10), 5, True),
        (Wish(SHIFT, -8), Facts(7, 5, 10), 5, True),
        (Wish(SHIFT, 9), Facts(7, 5, 10), 10, True),
        (Wish(TIME, 1000), Facts(7, 5, 10, 6), 6, False),
        (Wish(TIME, 1000), Facts(7, 5, 10), 10, False),
        (Wish(GIVEN, given={A: 6}), Facts(7, 5, 10), 6, False),
        (Wish(GIVEN, given={A: 60}), Facts(7, 5, 10), 10, True),
        (Wish(GIVEN, given={A: NO_OFFSET}), Facts(7, 5, 10), NO_OFFSET, False),
    ],
)
def test_new_offsets(wish: Wish, facts: Facts, new: int, has_note: bool) -> None:
    change = change_of("g", A, wish, facts)
    assert (change.new, change.old, bool(change.note)) == (new, facts.committed, has_note)


def test_nothing_to_shift() -> None:
    with pytest.raises(PlanProblem, match="a-0 has no committed offset"):
        change_of("g", A, Wish(SHIFT, 1), Facts(None, 5, 10))


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("P1D", 86_400_000), ("PT1H", 3_600_000), ("P1DT2H3M4.5S", 93_784_500), ("P2W", 1_209_600_000),
        ("PT0S", 0), ("90s", 90_000), ("15m", 900_000), ("7d", 604_800_000), ("250ms", 250),
    ],
)  # fmt: skip
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["9" * 20 + "d", "9" * 5000 + "s", "P" + "9" * 5000 + "D", "PT0." + "9" * 20 + "S"])
def test_durations_with_too_many_digits(text: str) -> None:
    with pytest.raises(PlanProblem, match="at most 19 digits"):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1H", "P1H", "-PT1H", "5", "soon"])
def test_texts_that_are_no_durations(text: str) -> None:
    with pytest.raises(PlanProblem):
        parse_duration_ms(text)


def test_an_undo_file_puts_the_old_offsets_back() -> None:
    changes = [Change("g", A, 7, 5), Change("g", B, None, 5), Change("h,x", A, 1, 2), Change(" g ", A, 3, 4)]
    text = csv_text(undo_rows(changes))
    assert read_plan(text.splitlines(), []) == {"g": {A: 7, B: NO_OFFSET}, "h,x": {A: 1}, " g ": {A: 3}}


def test_exports_are_as_kafka_writes_them() -> None:
    changes = [Change("g", A, 7, 5), Change("g", B, None, 6)]
    assert csv_text(export_rows(changes, False)) == "a,0,5\nb,1,6\n"
    assert csv_text(export_rows(changes, True)) == "g,a,0,5\ng,b,1,6\n"
    assert read_plan(["a,0,5", "b,1,6"], ["g"]) == {"g": {A: 5, B: 6}}


@pytest.mark.parametrize(
    ("lines", "groups", "part"),
    [
        (["a,0,5"], [], "names no group"),
        (["a,0,5"], ["g", "h"], "names no group"),
        (["h,a,0,5"], ["g"], "group 'h', which the command does not name"),
        (["a,0,x"], ["g"], "line 1: expected"),
        (["a,0,5", "a,zero,5"], ["g"], "line 2: expected"),
        (["a,0,-2"], ["g"], "line 1: expected"),
        (["a,0,--5"], ["g"], "line 1: expected"),
        (["a,0," + "9" * 5000], ["g"], "line 1: expected"),
        (["a," + "9" * 5000 + ",5"], ["g"], "line 1: expected"),
        (["a,0,5", "a,0,6"], ["g"], "line 2: partition a-0 is there twice"),
        (["topic,partition,offset"], ["g"], "no offsets"),
        ([], ["g"], "no offsets"),
        (['"a,0,5'], ["g"], "not a CSV file"),
    ],
)
def test_files_that_are_no_plans(lines: list[str], groups: list[str], part: str) -> None:
    with pytest.raises(PlanProblem, match=part):
        read_plan(lines, groups)


@pytest.mark.parametrize(
    ("committed", "start", "end", "lag"),
    [(5, 0, 9, 4), (5, 7, 9, 2), (0, 9, 9, 0), (12, 0, 9, 0)],
)
def test_lag_begins_at_the_start_of_the_log(committed: int, start: int, end: int, lag: int) -> None:
    assert records_behind(committed, start, end) == lag
