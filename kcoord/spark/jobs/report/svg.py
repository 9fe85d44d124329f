"""Plots as SVG in a page: classes name colours, so that the page's style has light ones and dark ones.

Every plot has a title, named axes with their units, and a text for those who do not see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kcoord.spark.jobs.report.data import STEPS_MS, step_ms
from kcoord.spark.jobs.report.text import count, escaped, fitted, short_number, time_of, when

WIDTH: Final = 960
LEFT: Final = 84
RIGHT: Final = 56
TOP: Final = 48
PLOT_HEIGHT: Final = 210
BOTTOM: Final = 50
LANE_HEIGHT: Final = 28
LANE_LEFT: Final = 200
# How much of a lane's name there is room for, in small letters.
LANE_LETTERS: Final = 27
BAR_WIDTH_MIN: Final = 3.0
TIME_TICKS_MAX: Final = 7
VALUE_TICKS_MAX: Final = 5
DAY_MS: Final = 86_400_000


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


def line_chart(
    title: str, unit: str, axis: Axis, lines: Sequence[Line], complete_ms: int | None = None
) -> str:
    """One line each, the first above all others; `unit` names what is up. It is grey before `complete_ms`."""
    top = max((value for line in lines for _, value in line.points if value is not None), default=0.0)
    ticks = value_ticks(top)
    parts = [*_gone(axis, TOP, PLOT_HEIGHT, complete_ms), *_frame(axis, unit, ticks)]
    for line in reversed(lines):
        parts.append(f'<g class="line c{line.style}"><title>{escaped(line.hint)}</title>')
        for run in _runs(line.points):
            places = [(axis.x(at), _y(value, ticks[-1])) for at, value in run]
            if len(places) == 1:
                parts.append(f'<circle cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="4"/>')
            else:
                parts.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>')
        parts.append("</g>")
    return _picture(title, TOP + PLOT_HEIGHT + BOTTOM, parts, complete_ms)


def bar_chart(
    title: str,
    unit: str,
    axis: Axis,
    bars: Sequence[tuple[int, int]],
    width_ms: int,
    complete_ms: int | None = None,
) -> str:
    """Bars of one width in time, (begin, value). It is grey before `complete_ms`."""
    ticks = value_ticks(max((value for _, value in bars), default=0))
    parts = [*_gone(axis, TOP, PLOT_HEIGHT, complete_ms), *_frame(axis, unit, ticks)]
    base = TOP + PLOT_HEIGHT
    for begin, value in bars:
        x, y = axis.x(begin), _y(value, ticks[-1])
        width = max(axis.x(begin + width_ms) - x - 0.5, 1.0)
        hint = f"{time_of(begin):%Y-%m-%d %H:%M:%S}: {value:,}"
        parts.append(
            f'<rect class="bar c1" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{base - y:.1f}">'
            f"<title>{escaped(hint)}</title></rect>"
        )
    return _picture(title, TOP + PLOT_HEIGHT + BOTTOM, parts, complete_ms)


@dataclass(frozen=True)
class LaneOf:
    """A lane: its name, how many in all, its bars. It is grey before `complete_ms`."""

    name: str
    total: int
    spans: Sequence[Span]
    complete_ms: int | None = None


def lane_chart(title: str, unit: str, axis: Axis, lanes: Sequence[LaneOf]) -> str:
    """`unit` names what lanes are of."""
    base = TOP + LANE_HEIGHT * len(lanes)
    parts = _time_axis(axis, base)
    parts.append(
        f'<text class="unit" x="{axis.left - 8}" y="{TOP - 8}" text-anchor="end">{escaped(unit)}</text>'
        f'<text class="unit" x="{WIDTH - 2}" y="{TOP - 8}" text-anchor="end">In all</text>'
    )
    for number, lane in enumerate(lanes):
        y = TOP + LANE_HEIGHT * number
        parts += _gone(axis, y, LANE_HEIGHT, lane.complete_ms)
        parts.append(
            f'<line class="grid" x1="{axis.left}" x2="{WIDTH - RIGHT}" y1="{y + LANE_HEIGHT}" y2="{y + LANE_HEIGHT}"/>'
            f'<text x="{axis.left - 8}" y="{y + LANE_HEIGHT / 2 + 4:.1f}" text-anchor="end">'
            f"<title>{escaped(lane.name)}</title>{escaped(fitted(lane.name, LANE_LETTERS))}</text>"
            f'<text x="{WIDTH - 2}" y="{y + LANE_HEIGHT / 2 + 4:.1f}" text-anchor="end">{count(lane.total)}</text>'
        )
        for span in lane.spans:
            x = min(axis.x(span.begin_ms), WIDTH - RIGHT - BAR_WIDTH_MIN)
            width = max(axis.x(span.end_ms) - x, BAR_WIDTH_MIN)
            style = f"bar c{span.style}" + (" open" if span.is_open else "")
            parts.append(
                f'<rect class="{style}" x="{x:.1f}" y="{y + 5}" width="{width:.1f}" height="{LANE_HEIGHT - 10}" rx="1">'
                f"<title>{escaped(span.hint, 600)}</title></rect>"
            )
    complete_ms = max((lane.complete_ms for lane in lanes if lane.complete_ms is not None), default=None)
    return _picture(title, base + BOTTOM, parts, complete_ms)


def gone_swatch() -> str:
    """The grey of incomplete history, for a legend."""
    shape = '<rect class="gone" width="30" height="12"/>'
    return f'<svg class="swatch" viewBox="0 0 30 12" aria-hidden="true">{shape}</svg>'


def swatch(style: int, is_line: bool, is_open: bool = False) -> str:
    """A colour, for a legend."""
    shape = '<line x1="0" x2="30" y1="6" y2="6"/>' if is_line else '<rect width="14" height="12" x="8"/>'
    kind = "line" if is_line else "bar open" if is_open else "bar"
    return f'<svg class="swatch" viewBox="0 0 30 12" aria-hidden="true"><g class="{kind} c{style}">{shape}</g></svg>'


# --- what all have


def _picture(title: str, height: int, parts: list[str], complete_ms: int | None) -> str:
    name = escaped(title)
    label = name if complete_ms is None else f"{name}; history is not complete before {when(complete_ms)}"
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">'
        f'<text class="title" x="8" y="18">{name}</text>{"".join(parts)}</svg>'
    )


def _gone(axis: Axis, y: int, height: int, complete_ms: int | None) -> list[str]:
    """Grey over the time of which history is not complete."""
    if complete_ms is None or complete_ms <= axis.begin_ms:
        return []
    width = axis.x(complete_ms) - axis.left
    return [
        f'<rect class="gone" x="{axis.left}" y="{y}" width="{width:.1f}" height="{height}">'
        f"<title>History is not complete before {when(complete_ms)}</title></rect>"
    ]


def _frame(axis: Axis, unit: str, ticks: list[float]) -> list[str]:
    parts = _time_axis(axis, TOP + PLOT_HEIGHT)
    for tick in ticks:
        y = _y(tick, ticks[-1])
        parts.append(
            f'<line class="grid" x1="{axis.left}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{axis.left - 8}" y="{y + 4:.1f}" text-anchor="end">{escaped(short_number(tick))}</text>'
        )
    middle = TOP + PLOT_HEIGHT // 2
    parts.append(
        f'<text class="unit" x="14" y="{middle}" transform="rotate(-90 14 {middle})" text-anchor="middle">'
        f"{escaped(unit)}</text>"
    )
    return parts


def _time_axis(axis: Axis, base: int) -> list[str]:
    parts = [f'<line class="axis" x1="{axis.left}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>']
    for at, label in time_ticks(axis):
        x = axis.x(at)
        parts.append(
            f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 5}"/>'
            f'<text x="{x:.1f}" y="{base + 20}" text-anchor="middle">{escaped(label)}</text>'
        )
    first, last = f"{time_of(axis.begin_ms):%Y-%m-%d}", f"{time_of(axis.end_ms):%Y-%m-%d}"
    days = first if first == last else f"{first} to {last}"
    parts.append(
        f'<text class="unit" x="{(axis.left + WIDTH - RIGHT) / 2:.1f}" y="{base + 42}" text-anchor="middle">'
        f"Time (UTC), {days}</text>"
    )
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
