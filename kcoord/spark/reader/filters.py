"""Filters: those of the option `where`, and those that Spark pushes down, which it applies again to the result.

They narrow what is read. Tables declare which of their columns do so (`Column.narrows`), and apply filters before they
decode a record as far as that is possible.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from kcoord.spark.reader.options import BadOption, ReadOptions
from kcoord.spark.reader.row_filter import EVERYTHING, RowFilter, Values
from kcoord.spark.tables.table import BY_OFFSET, BY_PRODUCER, BY_TIME, INT, Column, Table

# Filters by these are bounds, or a test for null; all other columns that narrow do so by their values.
NOT_BY_VALUE = ("", BY_OFFSET, BY_PRODUCER, BY_TIME)


def asked_for(options: ReadOptions) -> RowFilter:
    """The option `where`. Raises BadOption."""
    table = options.table
    known = {column.name: column for column in table.COLUMNS if column.narrows not in NOT_BY_VALUE}
    result = EVERYTHING
    for name, values in options.where:
        column = known.get(name)
        if column is None:
            raise BadOption(f"where: not by {name}; in the table {table.NAME} by {', '.join(known)}")
        kind = int if column.type == INT else str
        if not all(type(value) is kind for value in values):
            raise BadOption(f"where: {name} is {'a number' if kind is int else 'text'}")
        result = _one_of(result, column, frozenset(values))
    return result


def row_filter(table: type[Table], filters: Iterable[Any], asked: RowFilter = EVERYTHING) -> RowFilter:
    """As much of Spark's filters as narrows what is read. Spark alone applies the others."""
    result = asked
    for one in filters:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        column = table.column(attribute[0]) if len(attribute) == 1 else None
        if column is not None and column.narrows:
            result = _narrowed(result, column, type(one).__name__, getattr(one, "value", None))
    return result


def _narrowed(result: RowFilter, column: Column, kind: str, value: Any) -> RowFilter:
    """With one filter of Spark's, whose class is `kind`, on a column that narrows."""
    if column.narrows == BY_PRODUCER:
        is_null_test = kind in ("IsNull", "IsNotNull")
        return replace(result, has_producer=kind == "IsNotNull") if is_null_test else result
    if column.narrows == BY_OFFSET:
        return _bounded(result, kind, value, "from_offset", "to_offset") if isinstance(value, int) else result
    if column.narrows == BY_TIME:
        return _in_time(result, kind, value) if isinstance(value, datetime) else result
    if kind not in ("EqualTo", "EqualNullSafe", "In") or value is None:
        return result
    return _one_of(result, column, frozenset(value) if kind == "In" else frozenset([value]))


def _one_of(result: RowFilter, column: Column, values: Values) -> RowFilter:
    result = _intersected(result, column.narrows, values)
    # Records of other topics are null in such a column, so their logs need not be opened.
    return _intersected(result, "log_topics", frozenset([column.topic])) if column.topic else result


def _intersected(result: RowFilter, name: str, values: Values) -> RowFilter:
    before = getattr(result, name)
    both: Any = {name: values if before is None else before & values}
    return replace(result, **both)


def _in_time(result: RowFilter, kind: str, value: datetime) -> RowFilter:
    """Records have whole milliseconds, Spark filters in microseconds: the bounds are one wider."""
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    ms = round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
    if kind in ("EqualTo", "EqualNullSafe"):
        result = _bounded(result, "GreaterThan", ms - 1, "from_ms", "to_ms")
        return _bounded(result, "LessThanOrEqual", ms + 1, "from_ms", "to_ms")
    slack = 1 if kind.startswith("Less") else -1
    return _bounded(result, kind, ms + slack, "from_ms", "to_ms")


def _bounded(result: RowFilter, kind: str, value: int, lower: str, upper: str) -> RowFilter:
    low, high = getattr(result, lower), getattr(result, upper)
    if kind in ("EqualTo", "EqualNullSafe", "GreaterThanOrEqual"):
        low = max(low, value)
    if kind == "GreaterThan":
        low = max(low, value + 1)
    if kind in ("EqualTo", "EqualNullSafe", "LessThanOrEqual"):
        high = min(high, value + 1)
    if kind == "LessThan":
        high = min(high, value)
    return replace(result, **{lower: low, upper: high})
