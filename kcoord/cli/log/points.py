"""Parses times and points of a log from the command line."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final, final

import click

from kcoord.cli.output import TIME_MS_MAX

AGO: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Timestamps of records have 64 bits.
LATEST_MS: Final = (1 << 63) - 1
TIME_HELP: Final = "2026-01-31T12:00 (UTC, or with a zone), 15m (ago; ms, s, m, h, d), @1769860800000, now"


def parse_time(text: str | int) -> int:
    """Unix time in milliseconds, not before 1970. Raises BadParameter. A number (a default) is returned unchanged."""
    if isinstance(text, int):
        return text
    wall_ms = _parse_time(text)
    if wall_ms < 0:
        # Negative numbers are for what is not given.
        raise click.BadParameter(f"{text!r} is before 1970, where the times of records begin")
    if wall_ms > LATEST_MS:
        raise click.BadParameter(f"{text!r} is later than any time of a record")
    return wall_ms


def parse_table_time(text: str | int) -> int:
    """Like `parse_time`, for times in tables, which end with the year 9999. Raises BadParameter."""
    return _in_tables(text, parse_time(text))


def _in_tables(text: str | int, wall_ms: int) -> int:
    if wall_ms > TIME_MS_MAX:
        raise click.BadParameter(f"{text!r} is after the year 9999, where the times of tables end")
    return wall_ms


def _parse_time(text: str) -> int:
    if text == "now":
        return time.time_ns() // 1_000_000
    match = AGO.fullmatch(text)
    if match is not None:
        return time.time_ns() // 1_000_000 - int(match.group(1)) * UNITS_MS[match.group(2)]
    if text.startswith("@") and text[1:].isdecimal():
        return int(text[1:])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time; use one of: {TIME_HELP}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(milliseconds=1)


def parse_offsets(value: str | tuple[int, int]) -> tuple[int, int]:
    """`5`, `5..9`, `5..` or `..9`, both ends included, as (first, last) with -1 for an open end.

    Raises BadParameter. A tuple (a default) is returned unchanged.
    """
    if isinstance(value, tuple):
        return value
    match = re.fullmatch(r"(\d*)(\.\.)?(\d*)", value)
    if match is None or not (match.group(1) or match.group(3)):
        raise click.BadParameter(f"{value!r} is not a range of offsets, such as 5, 5..9, 5.. or ..9")
    first = int(match.group(1) or 0)
    if match.group(2) is None:
        return first, first
    last = int(match.group(3)) if match.group(3) else -1
    if 0 <= last < first:
        raise click.BadParameter(f"{value!r} ends before it begins")
    return first, last


@final
class Point:
    """A point of a log: `offset` (the first one that is not included) or else `time_ms` (the last included)."""

    def __init__(self, text: str, offset: int, time_ms: int) -> None:
        self.text = text
        self.offset = offset
        self.time_ms = time_ms

    @property
    def is_end(self) -> bool:
        return self.offset < 0 and self.time_ms < 0


def parse_point(text: str) -> Point:
    """`end`, an offset (a plain number: the state before that record) or a time. Raises BadParameter."""
    if text == "end":
        return Point(text, -1, -1)
    if text.isdecimal():
        return Point(text, int(text), -1)
    return Point(text, -1, parse_time(text))


def parse_table_point(text: str) -> Point:
    """Like `parse_point`, with the times of tables. Raises BadParameter."""
    point = parse_point(text)
    _in_tables(text, point.time_ms)
    return point


@final
class TimeRange:
    """Which rows to print: from `since_ms` to `until_ms`, and of these the last `limit`; -1 means no bound."""

    def __init__(self, since_ms: int, until_ms: int, limit: int) -> None:
        self.since_ms = since_ms
        self.until_ms = until_ms
        self.limit = limit

    def of(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows in the range; each has `time_ms`."""
        found = [
            row
            for row in rows
            if (self.since_ms < 0 or (row["time_ms"] or 0) >= self.since_ms)
            and (self.until_ms < 0 or (row["time_ms"] or 0) <= self.until_ms)
        ]
        return found[len(found) - self.limit :] if 0 <= self.limit < len(found) else found
