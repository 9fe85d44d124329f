"""Ticks and places of the report's plots."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from kcoord.spark.jobs.report.svg import (
    LEFT,
    PLOT_HEIGHT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    LaneOf,
    Line,
    Span,
    axis_of,
    bar_chart,
    lane_chart,
    line_chart,
    time_ticks,
    value_ticks,
)
from kcoord.spark.jobs.report.text import duration, short_number, unit_of, when

T0 = 1_760_000_400_000  # 2025-10-09 09:00:00


@pytest.mark.parametrize(
    ("top", "ticks"),
    [
        (0, [0, 1]),
        (1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (3, [0, 1, 2, 3]),
        (7, [0, 2, 4, 6, 8]),
        (23, [0, 5, 10, 15, 20, 25]),
        (100, [0, 20, 40, 60, 80, 100]),
        (1_234_567, [0, 500_000, 1_000_000, 1_500_000]),
    ],
)
def test_value_ticks(top: float, ticks: list[float]) -> None:
    assert value_ticks(top) == pytest.approx(ticks)


@pytest.mark.parametrize("top", [1e-9, 0.3, 5.0000001, 999, 2.0**63, 1e300])
def test_value_ticks_reach_the_top_and_are_few(top: float) -> None:
    ticks = value_ticks(top)
    assert ticks[0] == 0 and ticks[-1] >= top > ticks[-2] and len(ticks) <= 6


def test_time_ticks_are_round_and_have_the_day_if_there_are_two() -> None:
    assert time_ticks(Axis(T0, T0 + 30_000)) == [
        (T0 + second * 1000, f"09:00:{second:02d}") for second in (0, 5, 10, 15, 20, 25, 30)
    ]
    assert [label for _, label in time_ticks(Axis(T0 - 1, T0 + 3_600_000))] == [
        "09:00", "09:10", "09:20", "09:30", "09:40", "09:50", "10:00"
    ]  # fmt: skip
    assert [label for _, label in time_ticks(Axis(T0, T0 + 86_400_000))] == [
        "10-09 12:00", "10-09 18:00", "10-10 00:00", "10-10 06:00"
    ]  # fmt: skip
    assert [label for _, label in time_ticks(Axis(T0, T0 + 6 * 86_400_000))][-1] == "2025-10-15"


def test_a_line_is_where_its_values_are() -> None:
    axis = axis_of(T0, T0 + 10_000)
    text = line_chart("Title", "Lag (records)", axis, [Line([(T0, 0.0), (T0 + 5000, 10.0), (T0 + 10_000, 5.0)], "g")])
    [line] = ET.fromstring(text).findall("g/polyline")
    right, bottom = WIDTH - RIGHT, TOP + PLOT_HEIGHT
    places = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert places == [(LEFT, bottom), ((LEFT + right) / 2, TOP), (right, TOP + PLOT_HEIGHT / 2)]


def test_bars_are_as_high_as_their_values_and_end_with_the_axis() -> None:
    axis = axis_of(T0, T0 + 10_000)
    text = bar_chart("Title", "Commits", axis, [(T0, 10), (T0 + 9000, 5)], 3000)
    first, last = ET.fromstring(text).findall("rect")
    assert float(first.attrib["height"]) == PLOT_HEIGHT == 2 * float(last.attrib["height"])
    assert float(last.attrib["x"]) + float(last.attrib["width"]) <= WIDTH - RIGHT


def test_short_bars_of_lanes_can_still_be_seen() -> None:
    axis = axis_of(T0, T0 + 86_400_000, 200)
    spans = [Span(T0, T0, 1, False, "first"), Span(T0 + 86_400_000, T0 + 86_400_000, 2, True, "last")]
    text = lane_chart("Title", "Group", axis, [LaneOf("billing", 12_000, spans)])
    first, last = ET.fromstring(text).findall("rect")
    assert (first.attrib["x"], first.attrib["width"], first.attrib["class"]) == ("200.0", "3.0", "bar c1")
    assert ">12,000<" in text
    assert float(last.attrib["x"]) + 3 == WIDTH - RIGHT and last.attrib["class"] == "bar c2 open"


def test_numbers_for_people() -> None:
    assert [short_number(one) for one in (0, 0.2, 1500, 2_500_000, 1e12, 1e18)] == [
        "0", "0.2", "1,500", "2.5 M", "1 T", "1.0e+18"
    ]  # fmt: skip
    assert [duration(one) for one in (None, 0, 0.25, 1.5, 90, 7200, 172_800)] == [
        "–", "0 s", "250 ms", "1.5 s", "1.5 min", "2 h", "2 d"
    ]  # fmt: skip
    assert [unit_of(one)[1] for one in (0, 119, 120, 7200, 200_000)] == ["s", "s", "min", "h", "d"]
    assert when(T0) == "2025-10-09 09:00:00" and when(None) == "–"
