"""What sections are put together from. All that is not HTML yet is escaped here."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Final, final

from kcoord.spark.jobs.report import text
from kcoord.spark.jobs.report.data import Owner
from kcoord.spark.jobs.report.text import duration, escaped
from kcoord.spark.jobs.report.words import EXPLAINED

SECTIONS: Final = (
    ("missing", "What is missing"),
    ("glance", "At a glance"),
    ("lag", "Lag"),
    ("rebalances", "Rebalances"),
    ("storms", "Storms and flapping members"),
    ("movers", "Top movers"),
    ("jumps", "Rewinds and resets"),
    ("commits", "Commits"),
    ("groups", "All groups"),
    ("words", "What the words mean"),
)
TITLES: Final = dict(SECTIONS)
# Columns of tables: names of anybody's choosing may be cut into lines, the page's own words and times are not.
NAME: Final = "name"
WORD: Final = "word"
TIME: Final = "time"
NUMBER: Final = "n"
# Names that need no escaping in an id or a link; "~" is of those that do.
PLAIN: Final = re.compile(r"[A-Za-z0-9._-]{1,80}")
NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9._-]+")
SLUG_CHARS: Final = 30
SLUG_DIGITS: Final = 16


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
    lines = [
        "<tr>"
        + "".join(f'<td class="{kind}">{cell}</td>' for cell, kind in zip(row, classes, strict=True))
        + "</tr>"
        for row in rows
    ]
    return (
        f'<div class="wide"><table><caption>{escaped(caption)}</caption>'
        f"<thead><tr>{heads(titles, classes)}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def heads(titles: Sequence[str], kinds: Sequence[str]) -> str:
    """Titles of columns, with links to what they mean."""
    cells = []
    for title, kind in zip(titles, kinds, strict=True):
        word = EXPLAINED.get(title)
        shown = f'<a href="#word-{word}">{escaped(title)}</a>' if word else escaped(title)
        cells.append(f'<th scope="col" class="{kind}">{shown}</th>')
    return "".join(cells)


@final
class Names:
    """How groups are called on the page: with their log if there are several, and linked if they are in the list."""

    def __init__(self, has_logs: bool, listed: Iterable[Owner] = ()) -> None:
        self.has_logs = has_logs
        self.listed = {*listed}

    def text(self, owner: Owner) -> str:
        """Not escaped; a group whose name is empty is seen, too."""
        group = owner.group_id or '""'
        return f"{owner.log}: {group}" if self.has_logs else group

    def cell(self, owner: Owner) -> str:
        name = escaped(self.text(owner))
        return f'<a href="#{anchor(owner)}">{name}</a>' if owner in self.listed else name


def anchor(owner: Owner) -> str:
    """The id of a group's row, the same on every page that has the group, so that links to it can be shared."""
    name = _slug(owner.group_id)
    return f"group-{name}" if owner.log == "." else f"group-{_slug(owner.log)}/{name}"


def _slug(name: str) -> str:
    """The name itself if it may stand in a link as it is, else what identifies it. No name gives another one's."""
    if PLAIN.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:SLUG_DIGITS]
    return f"{NOT_PLAIN.sub('-', name[:SLUG_CHARS])}~{digest}"


def milliseconds(value: int | None) -> str:
    return duration(None if value is None else value / 1000)


def plural(number: int, one: str) -> str:
    return f"{text.count(number)} {one}" + ("" if number == 1 else "s")
