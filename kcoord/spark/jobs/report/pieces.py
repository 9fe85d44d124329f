"""What sections are put together from, as plain data for the templates."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, final

from kcoord.spark.jobs.report import text
from kcoord.spark.jobs.report.data import Owner
from kcoord.spark.jobs.report.text import duration

# Kinds of columns: names that anybody may have chosen can break into lines, the page's own words and times do not.
NAME: Final = "name"
WORD: Final = "word"
TIME: Final = "time"
NUMBER: Final = "n"
# Names that need no escaping in an id or a link; "~" is of those that do.
PLAIN: Final = re.compile(r"[A-Za-z0-9._-]{1,80}")
NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9._-]+")
SLUG_CHARS: Final = 30
SLUG_DIGITS: Final = 16


@dataclass(frozen=True)
class Link:
    """A text, and the id of what it links to in the page; an empty id is no link."""

    text: str
    to: str = ""


Cell = str | Link


@dataclass(frozen=True)
class Table:
    """`columns` are titles, and the kind of each."""

    caption: str
    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[Cell]]


def table(caption: str, titles: Sequence[str], rows: Sequence[Sequence[Cell]], kinds: Sequence[str]) -> Table:
    """`kinds` are those of the first columns; the others are numbers."""
    return Table(caption, columns_of(titles, kinds), rows)


def columns_of(titles: Sequence[str], kinds: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(titles, [*kinds, *[NUMBER] * (len(titles) - len(kinds))], strict=True))


@final
class Names:
    """How groups are called on the page: with their log if there are several, and linked if they are in the list."""

    def __init__(self, has_logs: bool, listed: Iterable[Owner] = ()) -> None:
        self.has_logs = has_logs
        self.listed = {*listed}

    def text(self, owner: Owner) -> str:
        """A group whose name is empty is visible, too."""
        group = owner.group_id or '""'
        return f"{owner.log}: {group}" if self.has_logs else group

    def cell(self, owner: Owner) -> Link:
        return Link(self.text(owner), anchor(owner) if owner in self.listed else "")


def anchor(owner: Owner) -> str:
    """The id of a group's row, the same on every page that has the group, so that links to it can be shared."""
    name = _slug(owner.group_id)
    return f"group-{name}" if owner.log == "." else f"group-{_slug(owner.log)}/{name}"


def _slug(name: str) -> str:
    """The name itself if it may stand in a link as it is, else a digest of it. Two names never have the same one."""
    if PLAIN.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:SLUG_DIGITS]
    return f"{NOT_PLAIN.sub('-', name[:SLUG_CHARS])}~{digest}"


def milliseconds(value: int | None) -> str:
    return duration(None if value is None else value / 1000)


def plural(number: int, one: str) -> str:
    return f"{text.count(number)} {one}" + ("" if number == 1 else "s")
