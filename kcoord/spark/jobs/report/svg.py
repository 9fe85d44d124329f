"""Plots as SVG in a page: classes name colours, so that the page's style has light ones and dark ones.

Every plot has a title, named axes with their units, and a text for those who do not see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from markupsafe import Markup

from kcoord.spark.jobs.report.data import STEPS_MS, step_ms
from kcoord.spark.jobs.report.render import render
from kcoord.spark.jobs.report.text import count, fitted, short_number, time_of, visible, when

WIDTH: Final = 960
LEFT: Final = 84
RIGHT: Final = 56
TOP: Final = 48
PLOT_HEIGHT: Final = 210
BOTTOM: Final = 50
LANE_HEIGHT: Final = 28
LANE_LEFT: Final = 200
# The width of a lane's name, in small letters.
LANE_LETTERS: Final = 27
BAR_WIDTH_MIN: Final = 3.0
TIME_TICKS_MAX: Final = 7
VALUE_TICKS_MAX: Final = 5
DAY_MS: Final = 86_400_000
# Characters of the hint of a bar.
HINT_MAX: Final = 600


@dataclass(frozen=True)
class Line:
    """`points` are (Unix time in ms, value); a None parts the line. `hint` is shown where the mouse is on it.

    `style` is the number of its colour.
    """

    points: Sequence[tuple[int, float | None]]
    hint: str
    style: int = 1


@dataclass(frozen=True)
class Span:
    """A bar of a lane. `style` is the number of its colour, `is_open` that it was not over."""

    begin_ms: int
    end_ms: int
    style: int
    is_open: bool
    hint: str


@dataclass(frozen=True)
class Element:
    """An SVG element, for templates/plot.html. `hint` is the text that a browser shows where the mouse is on it."""

    tag: str
    attributes: Mapping[str, object]
    text: str = ""
    hint: str = ""
    children: Sequence[Element] = field(default=())


@dataclass(frozen=True)
class Axis:
    """Times from `begin_ms` to `end_ms` between two edges of the picture."""

    begin_ms: int
    end_ms: int
    left: int = LEFT

    def x(self, at_ms: float) -> float:
        length = max(self.end_ms - self.begin_ms, 1)
        part = min(max((at_ms - self.begin_ms) / length, 0.0), 1.0)
        return self.left + part * (WIDTH - RIGHT - self.left)


def axis_of(begin_ms: int, end_ms: int, left: int = LEFT) -> Axis:
    """An axis is never without length."""
    if end_ms - begin_ms < STEPS_MS[0]:
        begin_ms, end_ms = begin_ms - STEPS_MS[0] // 2, end_ms + STEPS_MS[0] // 2
    return Axis(begin_ms, end_ms, left)


def value_ticks(top: float) -> list[float]:
    """From 0 on in steps of 1, 2 or 5 times a power of ten; the last is not below `top`."""
    if not top > 0:
        return [0.0, 1.0]
    power = 1.0
    while power * VALUE_TICKS_MAX < top:
        power *= 10
    while power * VALUE_TICKS_MAX / 10 >= top:
        power /= 10
    step = next(size * power / 10 for size in (1, 2, 5, 10) if size * power / 10 * VALUE_TICKS_MAX >= top)
    count = 1
    while step * count < top:
        count += 1
    return [step * number for number in range(count + 1)]


def time_ticks(axis: Axis) -> list[tuple[int, str]]:
    step = step_ms(axis.end_ms - axis.begin_ms, TIME_TICKS_MAX)
    is_one_day = axis.begin_ms // DAY_MS == axis.end_ms // DAY_MS
    if step >= DAY_MS:
        form = "%Y-%m-%d"
    else:
        form = ("" if is_one_day else "%m-%d ") + ("%H:%M" if step >= 60_000 else "%H:%M:%S")
    first = -(-axis.begin_ms // step) * step
    return [(at, f"{time_of(at):{form}}") for at in range(first, axis.end_ms + 1, step)]


def line_chart(title: str, unit: str, axis: Axis, lines: Sequence[Line], complete_ms: int | None = None) -> Markup:
    """One line each, the first above all others; `unit` is the title of the value axis. Grey before `complete_ms`."""
    top = max((value for line in lines for _, value in line.points if value is not None), default=0.0)
    ticks = value_ticks(top)
    parts = [*_gone(axis, TOP, PLOT_HEIGHT, complete_ms), *_frame(axis, unit, ticks)]
    for line in reversed(lines):
        runs: list[Element] = []
        for run in _runs(line.points):
            places = [(axis.x(at), _y(value, ticks[-1])) for at, value in run]
            if len(places) == 1:
                runs.append(_element("circle", cx=places[0][0], cy=places[0][1], r=4))
            else:
                points = Markup(" ".join(f"{x:.1f},{y:.1f}" for x, y in places))
                runs.append(_element("polyline", points=points))
        runs_of = {"class": f"line c{line.style}"}
        parts.append(Element("g", runs_of, hint=visible(line.hint), children=runs))
    return _picture(title, TOP + PLOT_HEIGHT + BOTTOM, parts, complete_ms)


def bar_chart(
    title: str,
    unit: str,
    axis: Axis,
    bars: Sequence[tuple[int, int]],
    width_ms: int,
    complete_ms: int | None = None,
) -> Markup:
    """Bars of one width in time, (begin, value). Grey before `complete_ms`."""
    ticks = value_ticks(max((value for _, value in bars), default=0))
    parts = [*_gone(axis, TOP, PLOT_HEIGHT, complete_ms), *_frame(axis, unit, ticks)]
    base = TOP + PLOT_HEIGHT
    for begin, value in bars:
        x, y = axis.x(begin), _y(value, ticks[-1])
        width = max(axis.x(begin + width_ms) - x - 0.5, 1.0)
        hint = f"{time_of(begin):%Y-%m-%d %H:%M:%S}: {value:,}"
        parts.append(_element("rect", "bar c1", hint=hint, x=x, y=y, width=width, height=base - y))
    return _picture(title, TOP + PLOT_HEIGHT + BOTTOM, parts, complete_ms)


@dataclass(frozen=True)
class LaneOf:
    """A lane: its name, its total number, its bars. Grey before `complete_ms`."""

    name: str
    total: int
    spans: Sequence[Span]
    complete_ms: int | None = None


def lane_chart(title: str, unit: str, axis: Axis, lanes: Sequence[LaneOf]) -> Markup:
    """`unit` is the title of the lanes' names."""
    base = TOP + LANE_HEIGHT * len(lanes)
    parts = _time_axis(axis, base)
    parts.append(_label(axis.left - 8, TOP - 8, unit, "end", "unit"))
    parts.append(_label(WIDTH - 2, TOP - 8, "In all", "end", "unit"))
    for number, lane in enumerate(lanes):
        y = TOP + LANE_HEIGHT * number
        middle = y + LANE_HEIGHT / 2 + 4
        parts += _gone(axis, y, LANE_HEIGHT, lane.complete_ms)
        parts.append(_level(axis, y + LANE_HEIGHT, "grid"))
        parts.append(_label(axis.left - 8, middle, fitted(lane.name, LANE_LETTERS), "end", hint=visible(lane.name)))
        parts.append(_label(WIDTH - 2, middle, count(lane.total), "end"))
        parts += [_span(axis, y, span) for span in lane.spans]
    complete_ms = max((lane.complete_ms for lane in lanes if lane.complete_ms is not None), default=None)
    return _picture(title, base + BOTTOM, parts, complete_ms)


def _span(axis: Axis, y: int, span: Span) -> Element:
    x = min(axis.x(span.begin_ms), WIDTH - RIGHT - BAR_WIDTH_MIN)
    width = max(axis.x(span.end_ms) - x, BAR_WIDTH_MIN)
    style = f"bar c{span.style}" + (" open" if span.is_open else "")
    hint = visible(span.hint, HINT_MAX)
    return _element("rect", style, hint=hint, x=x, y=y + 5, width=width, height=LANE_HEIGHT - 10, rx=1)


# --- what all plots have


def _element(tag: str, style: str = "", text: str = "", hint: str = "", **attributes: Any) -> Element:
    """`style` is its class. Numbers are rounded to a tenth of a pixel."""
    given: dict[str, object] = {"class": style} if style else {}
    for name, value in attributes.items():
        given[name.replace("_", "-")] = f"{value:.1f}" if isinstance(value, float) else value
    return Element(tag, given, text, hint)


def _label(x: float, y: float, text: str, anchor: str, style: str = "", hint: str = "", **more: Any) -> Element:
    return _element("text", style, text, hint, x=x, y=y, text_anchor=anchor, **more)


def _level(axis: Axis, y: float, style: str) -> Element:
    """A line over the width of the plot."""
    return _element("line", style, x1=axis.left, x2=WIDTH - RIGHT, y1=y, y2=y)


def _picture(title: str, height: int, parts: Sequence[Element], complete_ms: int | None) -> Markup:
    name = visible(title)
    about: dict[str, object] = {
        "class": "plot",
        "viewBox": f"0 0 {WIDTH} {height}",
        "role": "img",
        "aria-label": name if complete_ms is None else f"{name}; history is not complete before {when(complete_ms)}",
    }
    heading = _element("text", "title", name, x=8, y=18)
    return render("plot.html", plot=Element("svg", about, children=[heading, *parts]))


def _gone(axis: Axis, y: int, height: int, complete_ms: int | None) -> list[Element]:
    """Grey over the time of which history is not complete."""
    if complete_ms is None or complete_ms <= axis.begin_ms:
        return []
    hint = f"History is not complete before {when(complete_ms)}"
    width = axis.x(complete_ms) - axis.left
    return [_element("rect", "gone", hint=hint, x=axis.left, y=y, width=width, height=height)]


def _frame(axis: Axis, unit: str, ticks: list[float]) -> list[Element]:
    parts = _time_axis(axis, TOP + PLOT_HEIGHT)
    for tick in ticks:
        y = _y(tick, ticks[-1])
        parts.append(_level(axis, y, "grid"))
        parts.append(_label(axis.left - 8, y + 4, short_number(tick), "end"))
    middle = TOP + PLOT_HEIGHT // 2
    parts.append(_label(14, middle, unit, "middle", "unit", transform=f"rotate(-90 14 {middle})"))
    return parts


def _time_axis(axis: Axis, base: int) -> list[Element]:
    parts = [_level(axis, base, "axis")]
    for at, label in time_ticks(axis):
        x = axis.x(at)
        parts.append(_element("line", "axis", x1=x, x2=x, y1=base, y2=base + 5))
        parts.append(_label(x, base + 20, label, "middle"))
    first, last = f"{time_of(axis.begin_ms):%Y-%m-%d}", f"{time_of(axis.end_ms):%Y-%m-%d}"
    days = first if first == last else f"{first} to {last}"
    parts.append(_label((axis.left + WIDTH - RIGHT) / 2, base + 42, f"Time (UTC), {days}", "middle", "unit"))
    return parts


def _y(value: float, top: float) -> float:
    return TOP + PLOT_HEIGHT * (1 - value / top)


def _runs(points: Sequence[tuple[int, float | None]]) -> list[list[tuple[int, float]]]:
    """Points that follow each other without a gap."""
    runs: list[list[tuple[int, float]]] = [[]]
    for at, value in points:
        if value is None:
            runs.append([])
        else:
            runs[-1].append((at, value))
    return [run for run in runs if run]
