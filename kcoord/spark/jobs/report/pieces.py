"""What sections are put together from. All that is not HTML yet is escaped here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kcoord.spark.jobs.report import text
from kcoord.spark.jobs.report.data import Owner
from kcoord.spark.jobs.report.text import duration, escaped
from kcoord.spark.jobs.report.words import EXPLAINED

SECTIONS: Final = (
    ("glance", "At a glance"),
    ("lag", "Lag"),
    ("rebalances", "Rebalances"),
    ("storms", "Storms and flapping members"),
    ("movers", "Top movers"),
    ("jumps", "Rewinds and resets"),
    ("commits", "Commits"),
    ("words", "What the words mean"),
)
TITLES: Final = dict(SECTIONS)
# Columns of tables: names of anybody's choosing may be cut into lines, the page's own words and times are not.
NAME: Final = "name"
WORD: Final = "word"
TIME: Final = "time"
NUMBER: Final = "n"


def section(name: str, *parts: str) -> str:
    return f'<section><h2 id="{name}">{TITLES[name]}</h2>{"".join(parts)}</section>'


def note(said: str) -> str:
    return f'<p class="note">{escaped(said, 400)}</p>'


def figure(chart: str, caption: str, legend: str = "") -> str:
    names = f'<ul class="legend">{legend}</ul>' if legend else ""
    return f'<figure><div class="wide">{chart}</div>{names}<figcaption>{escaped(caption, 400)}</figcaption></figure>'


def table(caption: str, titles: Sequence[str], rows: Sequence[Sequence[str]], kinds: Sequence[str]) -> str:
    """`rows` are HTML; `kinds` are what the first columns are of, and the others are numbers. Without rows nothing."""
    if not rows:
        return ""
    classes = [*kinds, *[NUMBER] * (len(titles) - len(kinds))]
    heads = []
    for title, kind in zip(titles, classes, strict=True):
        word = EXPLAINED.get(title)
        shown = f'<a href="#word-{word}">{escaped(title)}</a>' if word else escaped(title)
        heads.append(f'<th scope="col" class="{kind}">{shown}</th>')
    lines = [
        "<tr>"
        + "".join(f'<td class="{kind}">{cell}</td>' for cell, kind in zip(row, classes, strict=True))
        + "</tr>"
        for row in rows
    ]
    return (
        f'<div class="wide"><table><caption>{escaped(caption)}</caption><thead><tr>{"".join(heads)}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def name_of(owner: Owner, has_logs: bool) -> str:
    """A group's name, not escaped; one without any is seen, too."""
    group = owner.group_id or '""'
    return f"{owner.log}: {group}" if has_logs else group


def owner_cell(owner: Owner, has_logs: bool) -> str:
    return escaped(name_of(owner, has_logs))


def milliseconds(value: int | None) -> str:
    return duration(None if value is None else value / 1000)


def plural(number: int, one: str) -> str:
    return f"{text.count(number)} {one}" + ("" if number == 1 else "s")
