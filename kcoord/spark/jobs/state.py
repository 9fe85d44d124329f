"""The state in coordinators' logs, as records: the newest of every key, without tombstones.

That is what full compaction leaves, and what a server has after it replayed the log. Records are rows of the table
`records`, and keep its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.window import Window

from kcoord.core.outcome import OFFSETS_TOPIC, TRANSACTION_TOPIC
from kcoord.log.serde import LEGACY_OFFSET_COMMIT, OFFSET_COMMIT
from kcoord.log.typed_records import CONTROL_TYPES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LOG_COLUMNS: Final = ("log", "log_topic", "log_partition")
# The columns of the table `records` for callers that need key, value and headers.
RECORD_COLUMNS: Final = (
    *LOG_COLUMNS, "log_offset", "log_timestamp", "record_type", "record_name", "group_id", "topic", "partition", "key",
    "value", "headers", "producer_id", "is_tombstone",
)  # fmt: skip
COMMIT_MARKER: Final = CONTROL_TYPES[1]
MARKERS: Final = (CONTROL_TYPES[0], CONTROL_TYPES[1])
# An offset, or one for each (log_topic, log_partition).
Offsets = int | Mapping[tuple[str, int], int]


def latest(records: DataFrame, cluster: Column | None = None, groups: Sequence[str] = ()) -> DataFrame:
    """The newest record of every key of `__consumer_offsets` and `__transaction_state`, unless it is a tombstone.

    `records` are committed ones: read with isolationLevel=read_committed, or from `committed_at`. Each log has its own
    state, unless `cluster` gives the cluster of rows: of several replicas of a partition in a cluster, the one with the
    highest end offset counts. With `groups` only their records.
    """
    if groups and cluster is None:
        records = records.where(F.col("group_id").isin(*groups))
    of_coordinators = records.where(
        F.col("log_topic").isin(OFFSETS_TOPIC, TRANSACTION_TOPIC) & F.col("key").isNotNull() & ~_is_control()
    )
    # The oldest commits have keys of another type for the same state.
    is_of_type = F.col("record_type").isin(LEGACY_OFFSET_COMMIT, OFFSET_COMMIT)
    is_commit = F.coalesce((F.col("log_topic") == OFFSETS_TOPIC) & is_of_type, F.lit(False))
    record = F.struct(*records.columns)
    newest = of_coordinators.groupBy(
        *LOG_COLUMNS,
        F.when(is_commit, F.col("group_id")).alias("of_group"),
        F.when(is_commit, F.col("topic")).alias("of_topic"),
        F.when(is_commit, F.col("partition")).alias("of_partition"),
        F.when(~is_commit, F.col("key")).alias("of_key"),
    ).agg(F.max_by(record, "log_offset").alias("newest"))
    state = newest.select("newest.*")
    if cluster is not None:
        # The last record of a log is the newest one of its key, so the state knows how far its log goes.
        copies = Window.partitionBy(cluster, "log_topic", "log_partition")
        furthest = F.max(F.struct("log_offset", "log")).over(copies)["log"]
        state = state.withColumn("furthest", furthest).where(F.col("log") == F.col("furthest")).drop("furthest")
        if groups:
            # Not before: a group may be gone from the log that counts.
            state = state.where(F.col("group_id").isin(*groups))
    return state.where(~F.col("is_tombstone"))


def committed_at(records: DataFrame, time: datetime | None = None, before_offset: Offsets | None = None) -> DataFrame:
    """The records that were committed at a point: those up to a time (inclusive), or below an offset.

    A transaction counts from its marker on, so `records` must have been read with isolationLevel=read_uncommitted.
    Records without a timestamp are left out if the point is a time. Records that compaction removed are missing; the
    state of a log that was compacted beyond the point is unknown (`kcoord log state` refuses that).
    """
    counted = records
    if time is not None:
        counted = counted.where(F.col("log_timestamp") <= F.lit(time))
    if before_offset is not None:
        counted = counted.where(_below(before_offset))
    outside = counted.where(F.col("producer_id").isNull() & ~_is_control())
    following = (
        Window.partitionBy(*LOG_COLUMNS, "producer_id").orderBy("log_offset").rowsBetween(1, Window.unboundedFollowing)
    )
    marker = F.first(F.when(F.col("record_name").isin(*MARKERS), F.col("record_name")), ignorenulls=True)
    inside = (
        counted.where(F.col("producer_id").isNotNull())
        .withColumn("marker", marker.over(following))
        .where(~_is_control() & (F.col("marker") == COMMIT_MARKER))
        .drop("marker")
    )
    return outside.unionByName(inside)


def newest_replicas(records: DataFrame, cluster: Column) -> DataFrame:
    """The records of one replica of each partition of a cluster: the one with the highest end offset.

    This reads all records twice; `latest` reads them once for their state.
    """
    copies = records.groupBy(*LOG_COLUMNS).agg(F.max("log_offset").alias("last"))
    furthest = F.max_by("log", F.struct("last", "log"))
    by_cluster = copies.withColumn("cluster", cluster).groupBy("cluster", "log_topic", "log_partition")
    chosen = by_cluster.agg(furthest.alias("log")).drop("cluster")
    return records.join(F.broadcast(chosen), list(LOG_COLUMNS), "left_semi")


def one_cluster() -> Column:
    """For `latest`: all logs belong to one cluster."""
    return F.lit(".")


def cluster_by(cluster_of: Callable[[str], str]) -> Column:
    """For `latest`: `cluster_of` returns the cluster of a `log`; executors call it."""
    # Spark would look at the hints of the function itself.
    return F.udf(lambda log: cluster_of(log), "string")("log")


def _below(offsets: Offsets) -> Column:
    if isinstance(offsets, int):
        return F.col("log_offset") < offsets
    # Of a partition that is not named nothing counts.
    below = F.lit(False)
    for (topic, partition), offset in offsets.items():
        same = (F.col("log_topic") == topic) & (F.col("log_partition") == partition)
        below = below | (same & (F.col("log_offset") < offset))
    return below


def _is_control() -> Column:
    return F.coalesce(F.col("record_name").isin(list(CONTROL_TYPES.values())), F.lit(False))
