"""Filters: those of the option `where`, and those that Spark hands down, which it applies again to what comes.

They narrow what is read, and are answered before records are decoded as far as that is possible.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from kcoord.core.outcome import METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTION_TOPIC
from kcoord.spark.options import (
    ASSIGNMENTS,
    GROUP_METADATA,
    MEMBERS,
    MESSAGES,
    OFFSET_COMMITS,
    RECORDS,
    TRANSACTIONS,
    BadOption,
    ReadOptions,
)
from kcoord.spark.plan import INT64_MAX, LogPartition, Slice

Values = frozenset[Any]
# What is answered exactly, beside the place of the log.
ANSWERED = {
    OFFSET_COMMITS: ("group_id", "topic", "partition"),
    RECORDS: ("record_type", "record_name", "group_id", "transactional_id"),
    GROUP_METADATA: ("kind", "record_name", "group_id"),
    MEMBERS: ("kind", "record_name", "group_id"),
    ASSIGNMENTS: ("kind", "record_name", "group_id", "role"),
    TRANSACTIONS: ("transactional_id",),
}
NUMBERS = ("partition", "log_partition", "record_type")


@dataclass(frozen=True)
class RowFilter:
    """What rows must be like; None is no matter. Offsets and times (ms) of records are from and below.

    `has_producer` is whether a producer with an id wrote the batch.
    """

    logs: Values | None = None
    log_topics: Values | None = None
    log_partitions: Values | None = None
    groups: Values | None = None
    topics: Values | None = None
    partitions: Values | None = None
    transactional_ids: Values | None = None
    kinds: Values | None = None
    roles: Values | None = None
    record_types: Values | None = None
    record_names: Values | None = None
    has_producer: bool | None = None
    from_offset: int = 0
    to_offset: int = INT64_MAX
    from_ms: int = -INT64_MAX
    to_ms: int = INT64_MAX

    @property
    def narrows_commits(self) -> bool:
        """Whether `wants_commit` may say no."""
        return self.groups is not None or self.topics is not None or self.partitions is not None

    def wants_commit(self, group: str, topic: str, partition: int) -> bool:
        return (
            (self.groups is None or group in self.groups)
            and (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
        )

    @property
    def narrows_records(self) -> bool:
        """Whether `records` has less of a log for it, within the bounds of offset and time."""
        said = (self.record_types, self.record_names, self.groups, self.transactional_ids)
        return said != (None, None, None, None)

    def wants_partition(self, partition: LogPartition | Slice) -> bool:
        return (
            (self.logs is None or partition.log in self.logs)
            and (self.log_topics is None or partition.topic in self.log_topics)
            and (self.log_partitions is None or partition.partition in self.log_partitions)
        )

    def narrow(self, part: Slice) -> Slice:
        if part.topic == METADATA_TOPIC:
            # Its first records name the topics that later ones are about.
            return part
        return replace(
            part,
            from_offset=max(part.from_offset, self.from_offset),
            to_offset=min(part.to_offset, self.to_offset),
            from_ms=max(part.from_ms, self.from_ms),
            to_ms=min(part.to_ms, self.to_ms),
        )


EVERYTHING = RowFilter()


def _places(table: str) -> dict[str, str]:
    """Columns to fields of a RowFilter."""
    if table == MESSAGES:
        return {"log": "logs", "topic": "log_topics", "partition": "log_partitions"}
    return {
        "log": "logs",
        "log_topic": "log_topics",
        "log_partition": "log_partitions",
        "group_id": "groups",
        "topic": "topics",
        "partition": "partitions",
        "transactional_id": "transactional_ids",
        "kind": "kinds",
        "role": "roles",
        "record_type": "record_types",
        "record_name": "record_names",
    }


def asked_for(options: ReadOptions) -> RowFilter:
    """The option `where`. Raises BadOption."""
    table = options.table
    places = _places(table)
    result = EVERYTHING
    known = [*places] if table == MESSAGES else ["log", "log_topic", "log_partition", *ANSWERED.get(table, ())]
    for column, values in options.where:
        if column not in known:
            raise BadOption(f"where: not by {column}; in the table {table} by {', '.join(known)}")
        kind = int if column in NUMBERS else str
        if not all(type(value) is kind for value in values):
            raise BadOption(f"where: {column} is {'a number' if kind is int else 'text'}")
        result = _one_of(result, places[column], frozenset(values))
    return _of_topics(table, result)


def row_filter(table: str, filters: Iterable[Any], asked: RowFilter = EVERYTHING) -> RowFilter:
    """As much of Spark's filters as helps reading. What it does not know stays Spark's alone."""
    result = asked
    places = _places(table)
    offset, time = ("offset", "timestamp") if table == MESSAGES else ("log_offset", "log_timestamp")
    for one in filters:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        if len(attribute) != 1:
            continue
        column, kind, value = attribute[0], type(one).__name__, getattr(one, "value", None)
        if table == RECORDS and column == "producer_id" and kind in ("IsNull", "IsNotNull"):
            result = replace(result, has_producer=kind == "IsNotNull")
        elif column in places and kind in ("EqualTo", "EqualNullSafe", "In") and value is not None:
            values = frozenset(value) if kind == "In" else frozenset([value])
            result = _one_of(result, places[column], values)
        elif column == offset and isinstance(value, int):
            result = _bounded(result, kind, value, "from_offset", "to_offset")
        elif column == time and isinstance(value, datetime):
            result = _in_time(result, kind, value)
    return _of_topics(table, result)


def _of_topics(table: str, result: RowFilter) -> RowFilter:
    """Groups and transactional ids are in one topic each."""
    if table == RECORDS and result.groups is not None:
        result = _one_of(result, "log_topics", frozenset([OFFSETS_TOPIC]))
    if table == RECORDS and result.transactional_ids is not None:
        result = _one_of(result, "log_topics", frozenset([TRANSACTION_TOPIC]))
    return result


def _one_of(result: RowFilter, name: str, values: Values) -> RowFilter:
    before = getattr(result, name)
    both: Any = {name: values if before is None else before & values}
    return replace(result, **both)


def _in_time(result: RowFilter, kind: str, value: datetime) -> RowFilter:
    """Records have whole milliseconds, Spark asks in microseconds: the bounds are wide by one."""
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
