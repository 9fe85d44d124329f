"""Plots with two logarithmic axes as SVG files, which look the same on light and on dark pages.

The plots of `kcoord.spark.jobs.report.svg` are parts of a page: their horizontal axis is time, the vertical one begins
at 0, and the page has their colours. These stand alone. The same figures give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 760
LEFT: Final = 70
RIGHT: Final = 48
HEIGHT: Final = 300
BOTTOM: Final = 60
# The legend has two columns above the plot.
LEGEND_TOP: Final = 66
LEGEND_ROW: Final = 23
LEGEND_COLUMN: Final = 350

# Colours that differ in brightness, too, and a mark for each, so that a line is known without its colour.
COLORS: Final = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#57606a", "#bf3989")
MARKS: Final = (
    '<circle cx="0" cy="0" r="4.5"/>',
    '<rect x="-4" y="-4" width="8" height="8"/>',
    '<path d="M0 -5.5 L5 4 L-5 4 z"/>',
    '<path d="M0 -6 L6 0 L0 6 L-6 0 z"/>',
    '<path d="M-5 -5 L5 5 M-5 5 L5 -5" fill="none"/>',
    '<path d="M0 5.5 L5 -4 L-5 -4 z"/>',
)

STYLE: Final = """<style>
  text { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", Arial, sans-serif; fill: #1f2328; }
  .title { font-weight: 600; } .small { font-size: 12.5px; fill: #424a53; } .middle { text-anchor: middle; }
  .end { text-anchor: end; } .grid { stroke: #d0d7de; } .axis { stroke: #57606a; }
  .line { fill: none; stroke-width: 2; }
</style>
"""


@dataclass(frozen=True)
class Line:
    """`points` has a value for each place on the horizontal axis. All are above 0."""

    name: str
    points: Mapping[int, float]


@dataclass(frozen=True)
class Plot:
    """`about` is for those who do not see the picture."""

    title: str
    about: str
    x_title: str
    y_title: str
    lines: Sequence[Line]


class Scale:
    """A logarithmic axis over whole decades, from `first` to `last` in pixels."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        # Rounded, so that a value of a whole decade does not begin another.
        logs = [round(math.log10(value), 9) for value in values]
        self.low = math.floor(min(logs))
        # At least two decades, so that a flat line looks flat.
        self.high = max(math.ceil(max(logs)), self.low + 2)
        self.first = first
        self.last = last

    def at(self, value: float) -> float:
        return self.first + (math.log10(value) - self.low) / (self.high - self.low) * (self.last - self.first)

    def decades(self) -> list[float]:
        return [float(10**power) if power >= 0 else 1 / 10**-power for power in range(self.low, self.high + 1)]


def draw(plot: Plot) -> str:
    rows = -(-len(plot.lines) // 2)
    top = LEGEND_TOP + rows * LEGEND_ROW
    height = top + HEIGHT + BOTTOM
    x = Scale([at for line in plot.lines for at in line.points], LEFT, WIDTH - RIGHT)
    y = Scale([value for line in plot.lines for value in line.points.values()], top + HEIGHT, top)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-labelledby="t d">\n',
        f'<title id="t">{escape(plot.title)}</title>\n<desc id="d">{escape(plot.about)}</desc>\n',
        STYLE,
        "<!-- The light panel keeps the picture legible on a dark page. -->\n",
        f'<rect x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="8" fill="#ffffff" stroke="#d0d7de"/>\n',
        _text(16, 28, plot.title, "title"),
        _text(16, top - 12, plot.y_title, "small"),
    ]
    for value in x.decades():
        at = x.at(value)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{top + HEIGHT}"/>\n')
        parts.append(_text(at, top + HEIGHT + 20, _number(value), "small middle"))
    for value in y.decades():
        at = y.at(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>\n')
        parts.append(_text(LEFT - 8, at + 4, _number(value), "small end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, top + HEIGHT + 44, plot.x_title, "small middle"))
    parts.append(f'<path class="axis" fill="none" d="M{LEFT} {top} V{top + HEIGHT} H{WIDTH - RIGHT}"/>\n')
    for number, line in enumerate(plot.lines):
        parts += _legend(number, line.name) + _line(number, line, x, y)
    return "".join([*parts, "</svg>\n"])


def _legend(number: int, name: str) -> list[str]:
    left = 24 + number % 2 * LEGEND_COLUMN
    row = LEGEND_TOP - 14 + number // 2 * LEGEND_ROW
    return [_mark(number, left, row - 5), _text(left + 14, row, name)]


def _line(number: int, line: Line, x: Scale, y: Scale) -> list[str]:
    places = [(x.at(at), y.at(line.points[at])) for at in sorted(line.points)]
    points = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
    color = COLORS[number % len(COLORS)]
    drawn = [f'<polyline class="line" stroke="{color}" points="{points}"/>\n']
    for left, top in places:
        drawn.append(_mark(number, left, top))
    return drawn


def _mark(number: int, left: float, top: float) -> str:
    color = COLORS[number % len(COLORS)]
    shape = MARKS[number % len(MARKS)]
    style = f'fill="{color}" stroke="{color}" stroke-width="1.5"'
    return f'<g transform="translate({left:.1f} {top:.1f})" {style}>{shape}</g>\n'


def _text(left: float, top: float, text: str, style: str = "") -> str:
    named = f' class="{style}"' if style else ""
    return f'<text{named} x="{left:.1f}" y="{top:.1f}">{escape(text)}</text>\n'


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
