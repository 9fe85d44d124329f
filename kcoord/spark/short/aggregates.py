"""What Spark's aggregate functions compute from values or rows: None is no value, and without values they are None."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]


def smallest(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def total(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def mode(rows: Iterable[Row], name: str) -> str | None:
    """The most frequent value; of several the least one."""
    counts = Counter(row[name] for row in rows if row[name] is not None)
    return min(counts, key=lambda value: (-counts[value], value), default=None)
