"""Every commit, with its difference to the one before, and the time until which it was valid.

Commits of a group for a partition are in the order of their log. Clocks of brokers are sometimes set back: a commit is
valid from the newest time of all commits up to it, so that at every moment at most one commit is valid.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kcoord.spark.jobs.completeness import COMPLETE_FROM, COMPLETE_FROM_OFFSET, with_history
from kcoord.spark.jobs.counting import COUNTS_AT, COUNTS_OFFSET, KEYS, counting
from kcoord.spark.jobs.key_hash import KEY_HASH, with_key_hash

# Why a commit counts as a reset.
TOMBSTONE = "tombstone"
LOG_START = "log_start"
TOPIC_RECREATED = "topic_recreated"


def offsets_history(
    commits: DataFrame,
    log_starts: DataFrame | None = None,
    history: DataFrame | None = None,
    markers: DataFrame | None = None,
) -> DataFrame:
    """`commits` is the table `offset_commits`; a row for each of its rows that ever counted. With `markers` those of
    transactions count from their markers on (`counting`), else from their records on.

    Compaction leaves a history with gaps. `history` is the table `_history`: with it rows have the time from which
    nothing is missing. Rows before that have no time since the commit before, and no rate, since commits between may be
    gone.

    `log_starts` (log, topic, partition, log_start), if known: a commit that goes back to the log start is a reset. One
    that goes back to 0 always is.
    """
    in_order = Window.partitionBy(KEY_HASH, *KEYS).orderBy(COUNTS_OFFSET)
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    up_to_next = in_order.rowsBetween(Window.unboundedPreceding, 1)
    has_next = F.lead(F.lit(True)).over(in_order)
    # A commit of -1 means that there is no offset.
    is_gone = F.coalesce("is_tombstone", F.lit(False)) | (F.col("committed_offset") < 0)
    before = F.struct("committed_offset", F.col(COUNTS_AT).alias("time"), "is_tombstone", "topic_id")
    # All of them in one step: a second one would go through all rows again.
    rows = (
        with_key_hash(counting(commits, markers), *KEYS)
        .withColumn("is_tombstone", is_gone)
        .withColumn("committed_offset", F.when(~F.col("is_tombstone"), F.col("committed_offset")))
        .withColumns(
            {
                "valid_from": F.max(COUNTS_AT).over(so_far),
                # The `valid_from` of the next commit.
                "valid_to": F.when(has_next, F.max(COUNTS_AT).over(up_to_next)),
                "_before": F.lag(before).over(in_order),
            }
        )
        .withColumns(
            {
                "previous_offset": F.col("_before.committed_offset"),
                "_previous_time": F.col("_before.time"),
                "_was_gone": F.col("_before.is_tombstone"),
                "_previous_topic_id": F.col("_before.topic_id"),
            }
        )
    )
    if log_starts is None:
        rows = rows.withColumn("log_start", F.lit(None).cast("bigint"))
    else:
        rows = rows.join(F.broadcast(log_starts), ["log", "topic", "partition"], "left")
    rows = with_history(rows, history)
    gap = F.col("committed_offset") - F.col("previous_offset")
    is_known = F.col(COUNTS_OFFSET) >= F.coalesce(COMPLETE_FROM_OFFSET, F.lit(0))
    seconds = F.when(is_known, _seconds(F.col(COUNTS_AT)) - _seconds(F.col("_previous_time")))
    reason = _reset_reason(gap)
    return rows.select(
        *KEYS[:1], "group_id", "topic", "partition", "valid_from", "valid_to", "committed_offset",
        "previous_offset",
        gap.alias("offset_gap"),
        seconds.alias("seconds_since_previous"),
        F.when((gap >= 0) & (seconds > 0), gap / seconds).alias("rate"),
        F.coalesce(gap < 0, F.lit(False)).alias("is_rewind"),
        reason.isNotNull().alias("is_reset"),
        reason.alias("reset_reason"),
        "is_tombstone", "leader_epoch", "metadata", "commit_timestamp", "expire_timestamp", "topic_id", "producer_id",
        "log_topic", "log_partition", "log_offset", "log_timestamp", COMPLETE_FROM,
    )  # fmt: skip


def offset_of(history: DataFrame, at: datetime | Column) -> DataFrame:
    """The offsets of groups at a time: at most one row for each group, topic and partition.

    `history` is a slowly changing dimension: "the offset of G on T-P as of time X" is the row with
    `valid_from <= X < valid_to`, where a `valid_to` of null is open. A datetime without a zone has the session's.
    """
    when = at if isinstance(at, Column) else F.lit(at)
    is_open = F.col("valid_to").isNull() | (when < F.col("valid_to"))
    return history.where((F.col("valid_from") <= when) & is_open & ~F.col("is_tombstone"))


def _seconds(time: Column) -> Column:
    return F.unix_micros(time) / F.lit(1_000_000.0)


def _reset_reason(gap: Column) -> Column:
    begins = (F.col("committed_offset") == F.col("log_start")) | (F.col("committed_offset") == 0)
    return (
        F.when(F.col("is_tombstone"), F.lit(None))
        .when(F.col("_was_gone"), F.lit(TOMBSTONE))
        .when(F.col("topic_id") != F.col("_previous_topic_id"), F.lit(TOPIC_RECREATED))
        .when((gap < 0) & begins, F.lit(LOG_START))
    )
