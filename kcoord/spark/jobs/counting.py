"""When commits count: those of a transaction count from its commit marker on.

The rules are those of `kcoord.log.committed_offsets`, as `kcoord log state` follows them. An offset from a transaction
becomes the group's offset at the marker, unless a record with a higher offset in the log committed or removed the
partition before that. Such a commit never was the group's offset, and is left out. Tombstones count at once, also in a
transaction.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kcoord.spark.jobs.state import COMMIT_MARKER

# The columns that `counting` adds: the offset in the log and the time from which on a commit counts.
COUNTS_OFFSET: Final = "_counts_offset"
COUNTS_AT: Final = "_counts_at"
# A producer has one transaction at a time in each log.
PRODUCER: Final = ("log", "log_partition", "producer_id")
# The columns of the table `records` for the markers.
MARKER_COLUMNS: Final = (*PRODUCER, "log_topic", "log_offset", "log_timestamp", "record_name")
# Commits of these replace each other.
KEYS: Final = ("log", "log_partition", "group_id", "topic", "partition")


def counting(commits: DataFrame, markers: DataFrame | None) -> DataFrame:
    """`commits`, rows of the table `offset_commits`, with COUNTS_OFFSET and COUNTS_AT, without those that never count.

    `markers` are MARKER_COLUMNS of the markers in `__consumer_offsets`, from the table `records` with
    isolationLevel=read_uncommitted. Without them, and without a commit marker, a commit counts from its record on.
    `commits` that have the two columns already are returned unchanged.
    """
    if COUNTS_OFFSET in commits.columns:
        return commits
    made = F.coalesce("commit_timestamp", "log_timestamp")
    if markers is None:
        return commits.withColumns({COUNTS_OFFSET: F.col("log_offset"), COUNTS_AT: made})
    both = commits.withColumn("_marker", F.lit(None).cast("string")).unionByName(
        markers.select(*PRODUCER, "log_offset", "log_timestamp", F.col("record_name").alias("_marker")),
        allowMissingColumns=True,
    )
    # Commits outside of transactions are apart from each other, so that no task gets all of them.
    apart = F.coalesce(F.col("producer_id"), -1 - F.col("log_offset"))
    following = (
        Window.partitionBy("log", "log_partition", apart)
        .orderBy(F.desc("log_offset"))
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    marker = F.struct(F.col("log_offset").alias("offset"), F.col("log_timestamp").alias("at"), F.col("_marker"))
    ended = F.last(F.when(F.col("_marker").isNotNull(), marker), ignorenulls=True).over(following)
    is_held = ~F.coalesce("is_tombstone", F.lit(False)) & F.coalesce(
        F.col("_ended._marker") == COMMIT_MARKER, F.lit(False)
    )
    rows = both.withColumn("_ended", ended).where(F.col("_marker").isNull())
    rows = rows.withColumns(
        {
            COUNTS_OFFSET: F.when(is_held, F.col("_ended.offset")).otherwise(F.col("log_offset")),
            COUNTS_AT: F.when(is_held, F.coalesce("_ended.at", made)).otherwise(made),
        }
    )
    return rows.withColumn("_last", _last_record()).where("log_offset = _last").select(
        *commits.columns, COUNTS_OFFSET, COUNTS_AT
    )  # fmt: skip


def _last_record() -> Column:
    """The newest record of the same key among those that count from here or before."""
    # By range: the commits of one transaction count from the same marker.
    so_far = Window.partitionBy(*KEYS).orderBy(COUNTS_OFFSET)
    return F.max("log_offset").over(so_far.rangeBetween(Window.unboundedPreceding, Window.currentRow))
