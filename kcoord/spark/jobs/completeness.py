"""From when on histories are complete: adds the table `_history` to the rows of jobs.

Compaction keeps the newest record of each key, so the older part of a log is not the whole history. A row of a job has
the time from which its log is complete: `history_complete_from`, null if the whole history is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F

from kcoord.core.outcome import GROUP_EVENTS_TOPIC, OFFSETS_TOPIC
from kcoord.spark.tables.arrow import TIMESTAMP

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COMPLETE_FROM: Final = "history_complete_from"
COMPLETE_FROM_OFFSET: Final = "complete_from_offset"
# The columns of `_history` for all records, and for the state at each point.
OF_RECORDS: Final = (COMPLETE_FROM_OFFSET, COMPLETE_FROM)
OF_STATES: Final = ("state_complete_from_offset", "state_complete_from")
PLACE: Final = ("log", "log_partition")
SCHEMA: Final = pa.schema(
    [
        ("log", pa.string()),
        ("log_topic", pa.string()),
        ("log_partition", pa.int32()),
        ("end_offset", pa.int64()),
        (COMPLETE_FROM_OFFSET, pa.int64()),
        (COMPLETE_FROM, TIMESTAMP),
    ]
)


@dataclass(frozen=True)
class LogHistory:
    """A row of the table `_history`, with its columns OF_RECORDS or OF_STATES. `from_ms` is a Unix time, None for
    null."""

    log: str
    topic: str
    partition: int
    end_offset: int
    complete_from_offset: int
    from_ms: int | None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


def collected(history: DataFrame) -> list[LogHistory]:
    """The rows of a table as `history_table` makes it, in the order of logs. Spark runs here."""
    rows = history.select(
        "log", "log_topic", "log_partition", "end_offset", COMPLETE_FROM_OFFSET, F.unix_millis(COMPLETE_FROM)
    ).collect()
    return _in_order(rows)


def histories_of(table: pa.Table, columns: Sequence[str] = OF_RECORDS) -> list[LogHistory]:
    """The rows of the table `_history`, in the same order."""
    names = ("log", "log_topic", "log_partition", "end_offset", columns[0])
    values = [table.column(name).to_pylist() for name in names]
    times_us = table.column(columns[1]).cast(pa.int64()).to_pylist()
    times = [None if at_us is None else at_us // 1000 for at_us in times_us]
    return _in_order(zip(*values, times, strict=True))


def _in_order(rows: Iterable[tuple[Any, ...]]) -> list[LogHistory]:
    return sorted((LogHistory(*row) for row in rows), key=lambda one: (one.log, one.topic, one.partition))


def of_one_cluster(histories: Sequence[LogHistory]) -> list[LogHistory]:
    """One history for each partition of which several brokers hold replicas, in the log ".".

    Another replica may have what compaction removed from one: the history is complete as far back from the end of the
    longest replica as the replicas together have no gap.
    """
    replicas: dict[tuple[str, int], list[LogHistory]] = {}
    for one in histories:
        replicas.setdefault((one.topic, one.partition), []).append(one)
    found = []
    for (topic, partition), group in sorted(replicas.items()):
        group.sort(key=lambda one: -one.end_offset)
        first = group[0]
        for one in group[1:]:
            if one.end_offset >= first.complete_from_offset and one.complete_from_offset < first.complete_from_offset:
                first = one
        found.append(
            LogHistory(
                ".", topic, partition, group[0].end_offset, first.complete_from_offset, first.from_ms
            )
        )  # fmt: skip
    return found


def history_table(spark: SparkSession, histories: Sequence[LogHistory]) -> DataFrame:
    """These histories as the table `_history` has them."""
    rows = [
        {
            "log": one.log,
            "log_topic": one.topic,
            "log_partition": one.partition,
            "end_offset": one.end_offset,
            COMPLETE_FROM_OFFSET: one.complete_from_offset,
            COMPLETE_FROM: None if one.from_ms is None else one.from_ms * 1000,
        }
        for one in histories
    ]
    # As an Arrow table it is part of the plan; rows would be a job of Spark's wherever it is used.
    return spark.createDataFrame(pa.Table.from_pylist(rows, SCHEMA))


def with_history(rows: DataFrame, history: DataFrame | None, events: DataFrame | None = None) -> DataFrame:
    """`rows`, which have a log and log_partition of `__consumer_offsets`, with COMPLETE_FROM and COMPLETE_FROM_OFFSET.

    Both are null without `history`, the table `_history`. `events` is what the table `messages` has of
    `__group_events`: it has all rebalances from its first event on, whatever compaction removed.
    """
    if history is None:
        return rows.withColumns({COMPLETE_FROM: _null("timestamp"), COMPLETE_FROM_OFFSET: _null("bigint")})
    known = history.where(F.col("log_topic") == OFFSETS_TOPIC).select(*PLACE, COMPLETE_FROM_OFFSET, COMPLETE_FROM)
    if events is not None:
        of_groups = events.where(F.col("topic") == GROUP_EVENTS_TOPIC)
        first = of_groups.groupBy("log").agg(F.min("timestamp").alias("_first"))
        at = F.col(COMPLETE_FROM)
        # `least` alone would make the first event of what is null: the whole history.
        known = known.join(first, "log", "left").select(
            *PLACE, COMPLETE_FROM_OFFSET, F.when(at.isNotNull(), F.least(at, "_first")).alias(COMPLETE_FROM)
        )
    return rows.join(F.broadcast(known), [*PLACE], "left")


def _null(kind: str) -> Column:
    return F.lit(None).cast(kind)
