"""The lag of groups in records and in seconds, at each commit or at regular times.

It comes from two histories of each partition: its messages and the commits of groups. There is no range join. Messages
and samples of a partition are one sequence, sorted once by time and once by offset, and each sample uses the last
message before it. Sorting spills to disk.

**The time of a message** is the newest timestamp in its partition up to it: a message with an old timestamp (a
backfill) was not in the log before the messages with lower offsets. Timestamps later than now are ignored.
**The end** at a time is the offset after the last message of that time. Messages are those of the table, so with
`read_committed` those of open or aborted transactions and markers do not count: a consumer that has read everything has
no lag. **The log start** is the first message that still exists. Lag counts from there.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kcoord.spark.jobs.completeness import COMPLETE_FROM, with_history
from kcoord.spark.jobs.counting import COUNTS_AT, COUNTS_OFFSET, counting
from kcoord.spark.jobs.key_hash import KEY_HASH, with_key_hash

PARTITION = ("log", "topic", "partition")
KEYS = ("log", "group_id", "topic", "partition")
# The columns needed of the tables, including those that identify replicas.
COMMIT_COLUMNS = (
    *KEYS, "log_topic", "log_partition", "log_offset", "log_timestamp", "committed_offset", "commit_timestamp",
    "is_tombstone", "producer_id", "topic_id",
)  # fmt: skip
MESSAGE_COLUMNS = (*PARTITION, "offset", "timestamp")
ASSIGNMENT_COLUMNS = (
    "log", "log_offset", "group_id", "kind", "member_id", "role", "topic_id", "topic", "partitions", "is_tombstone",
)  # fmt: skip
# The most samples of one group and partition at regular times; more is probably a mistake.
TICKS_MAX = 1_000_000


def lag(
    commits: DataFrame,
    messages: DataFrame,
    assignments: DataFrame | None = None,
    every_s: float = 0,
    until: datetime | None = None,
    now: datetime | None = None,
    history: DataFrame | None = None,
    markers: DataFrame | None = None,
) -> DataFrame:
    """`commits`, `messages` and `assignments` are the tables `offset_commits`, `messages` and `assignments`.

    Without `every_s` there is a row for each commit; with it one at each multiple of that many seconds from a group's
    first commit on. In either case there is one for the end: `until`, or the newest time in `commits` and `messages`.
    So a group that stopped has a row at the end, too. Everything later than `until` is ignored. `now` is by default the
    machine's time: a message in a log cannot be from later.

    `history` is the table `_history`: with it, rows have the time from which on all commits of their group are
    available. Before that time, offsets of a group may be too old or missing. With `markers`, commits of transactions
    count from their markers on (`kcoord.spark.jobs.counting`), else from their records on.

    While a group has no offset (it was deleted, expired, or is -1) it has no rows. Lag is null if it cannot be known,
    because messages were removed or not given, or because the commit was for a topic that was deleted and created
    again: the group's newest commit with a topic id has another id. The messages are those of the new topic.
    """
    found = _messages(messages, now)
    commits = with_history(counting(commits, markers), history)
    states = _states(commits)
    if until is not None:
        found = found.where(F.col("at").isNull() | (F.col("at") <= F.lit(until)))
        states = states.where(F.col("at") <= F.lit(until))
    samples = _samples(states, _begins(commits), _end(commits, messages, until, now), every_s)
    rows = _measured(samples, found)
    if assignments is None:
        return rows.withColumn("is_left", F.lit(None).cast("boolean"))
    return rows.join(_held_topics(assignments), ["log", "group_id"], "left").select(
        *rows.columns, _is_left().alias("is_left")
    )


def log_starts(messages: DataFrame) -> DataFrame:
    """(log, topic, partition, log_start) of partitions that have messages."""
    return messages.groupBy(*PARTITION).agg(F.min("offset").alias("log_start"))


# --- the two histories


def _messages(messages: DataFrame, now: datetime | None) -> DataFrame:
    """A partition's messages: offset, and the time at which they were there; null is before all that is known."""
    up_to = Window.partitionBy(KEY_HASH, *PARTITION).orderBy("offset")
    up_to = up_to.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    hashed = with_key_hash(messages, *PARTITION)
    return hashed.select(*PARTITION, "offset", F.max(_believed(now)).over(up_to).alias("at"))


def _believed(now: datetime | None) -> Column:
    """A message's timestamp, null if it is from later."""
    limit = F.current_timestamp() if now is None else F.lit(now)
    return F.when(F.col("timestamp") <= limit, F.col("timestamp"))


def _states(commits: DataFrame) -> DataFrame:
    """Every change of what a group has committed, in the order of the log; null is nothing. `_is_old` are commits for a
    topic that was deleted and created again since."""
    order = Window.partitionBy(KEY_HASH, *KEYS, "log_partition").orderBy(COUNTS_OFFSET)
    order = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    is_gone = F.coalesce("is_tombstone", F.lit(False)) | (F.col("committed_offset") < 0)
    time = F.max(COUNTS_AT).over(order)
    whole = Window.partitionBy(KEY_HASH, *KEYS, "log_partition")
    with_id = F.when(F.col("topic_id").isNotNull(), F.struct(COUNTS_OFFSET, "topic_id"))
    is_old = F.coalesce(F.col("topic_id") != F.max(with_id).over(whole)["topic_id"], F.lit(False))
    return with_key_hash(commits, *KEYS).select(
        KEY_HASH, *KEYS, COUNTS_OFFSET, time.alias("at"),
        F.when(~is_gone, F.col("committed_offset")).alias("committed_offset"), is_old.alias("_is_old"), COMPLETE_FROM,
    )  # fmt: skip


def _begins(commits: DataFrame) -> DataFrame:
    """`_begin`, when the first state of each group and partition is from, and COMPLETE_FROM. Nothing has to be sorted
    for that."""
    time = F.col(COUNTS_AT)
    first = F.min_by(time, F.when(time.isNotNull(), F.col(COUNTS_OFFSET))).alias("_begin")
    complete = F.max(COMPLETE_FROM).alias(COMPLETE_FROM)
    return (
        commits.groupBy(*KEYS, "log_partition")
        .agg(first, complete)
        .groupBy(*KEYS)
        .agg(F.min("_begin").alias("_begin"), complete)
    )


def _end(commits: DataFrame, messages: DataFrame, until: datetime | None, now: datetime | None) -> DataFrame:
    """One row, `_end`. The newest time of states is the newest of commits, whatever their order."""
    if until is not None:
        return commits.sparkSession.range(1).select(F.lit(until).cast("timestamp").alias("_end"))
    time = F.col(COUNTS_AT).alias("at")
    newest = commits.select(time).union(messages.select(_believed(now).alias("at")))
    return newest.agg(F.max("at").alias("_end"))


def _samples(states: DataFrame, begins: DataFrame, end: DataFrame, every_s: float) -> DataFrame:
    """When lag is measured, and what was committed then. `is_last` is the one at the end."""
    groups = begins.crossJoin(F.broadcast(end)).where(F.col("_begin").isNull() | (F.col("_begin") <= F.col("_end")))
    times = F.array(F.struct(F.col("_end").alias("at"), F.lit(True).alias("is_last")))
    if every_s > 0:
        times = F.concat(_ticks(every_s), times)
    ticks = (
        with_key_hash(groups, *KEYS)
        .withColumn("_tick", F.explode(times))
        .select(KEY_HASH, *KEYS, COMPLETE_FROM, F.lit(None).cast("bigint").alias(COUNTS_OFFSET), "_tick.*")
    )
    both = states.withColumn("is_last", F.lit(False)).withColumn("_is_state", F.lit(True)).unionByName(
        ticks.withColumn("committed_offset", F.lit(None).cast("bigint")).withColumn("_is_state", F.lit(False)),
        allowMissingColumns=True,
    )  # fmt: skip
    # A tick includes commits of exactly that time.
    order = Window.partitionBy(KEY_HASH, *KEYS).orderBy("at", F.desc("_is_state"), COUNTS_OFFSET)
    order = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    state = F.when(F.col("_is_state"), F.struct("committed_offset", F.col("at").alias("committed_at"), "_is_old"))
    rows = both.withColumn("_state", F.last(state, ignorenulls=True).over(order))
    wanted = ~F.col("_is_state") if every_s > 0 else F.lit(True)
    return rows.where(wanted & F.col("_state.committed_offset").isNotNull()).select(
        *KEYS, "at", "is_last", "_state.committed_offset", "_state.committed_at", "_state._is_old", COMPLETE_FROM
    )


def _ticks(every_s: float) -> Column:
    """Multiples of `every_s` since 1970 from `_begin` on and before `_end`."""
    step = round(every_s * 1_000_000)
    begin, end = F.unix_micros("_begin"), F.unix_micros("_end")
    first = F.ceil(begin / F.lit(step)) * step
    count = F.floor((end - 1 - first) / F.lit(step)) + 1
    too_many = F.raise_error(
        F.lit(f"more than {TICKS_MAX} samples of one partition; ask for them less often than every {every_s:g} s")
    )
    numbers = (
        F.when(count > TICKS_MAX, too_many.cast("array<bigint>"))
        .when(count > 0, F.sequence(F.lit(0).cast("bigint"), count - 1))
        .otherwise(F.array().cast("array<bigint>"))
    )
    return F.transform(
        numbers,
        lambda n: F.struct(F.timestamp_micros(first + n * step).alias("at"), F.lit(False).alias("is_last")),
    )


# --- side by side


def _measured(samples: DataFrame, messages: DataFrame) -> DataFrame:
    message = messages.withColumn("_is_message", F.lit(True))
    sample = samples.withColumn("_is_message", F.lit(False)).withColumn("offset", F.lit(None).cast("bigint"))
    both = with_key_hash(message.unionByName(sample, allowMissingColumns=True), *PARTITION)
    whole = Window.partitionBy(KEY_HASH, *PARTITION)
    # By time, messages first: the end is after the last one before the sample.
    by_time = whole.orderBy("at", F.desc("_is_message"))
    by_time = by_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = both.withColumn("log_start", F.min("offset").over(whole)).withColumn(
        "_end", F.max(F.col("offset") + 1).over(by_time)
    )
    rows = rows.withColumn("_from", F.greatest("committed_offset", "log_start"))
    # By descending offset, messages first: the last one before the sample is the first unread one.
    # (Spark evaluates a window that looks ahead again for every row.)
    place = F.when(F.col("_is_message"), F.col("offset")).otherwise(F.col("_from"))
    by_offset = whole.orderBy(place.desc_nulls_last(), F.desc("_is_message"))
    by_offset = by_offset.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    waiting = F.last(F.when(F.col("_is_message"), F.col("at")), ignorenulls=True).over(by_offset)
    rows = rows.withColumn("_waiting_since", waiting).where(~F.col("_is_message"))
    # A partition that begins with its first message ever was empty before it. Otherwise that is unknown.
    end = F.coalesce("_end", F.when(F.col("log_start") == 0, F.lit(0).cast("bigint")))
    records = F.when(end.isNotNull(), F.greatest(end - F.col("_from"), F.lit(0).cast("bigint")))
    seconds = (F.unix_micros("at") - F.unix_micros("_waiting_since")) / F.lit(1_000_000.0)
    # Where the first message with a time came later, those before it came at an unknown one.
    seconds = F.when(records == 0, F.lit(0.0)).when((records > 0) & (seconds >= 0), seconds)
    found = {
        "log_start": F.col("log_start"), "end_offset": end, "lag_records": records, "lag_seconds": seconds,
    }  # fmt: skip
    # Nothing is known of the messages of a topic that was deleted.
    return rows.select(
        *KEYS, "at", "is_last", "committed_offset", "committed_at",
        *(F.when(~F.col("_is_old"), value).alias(name) for name, value in found.items()),
        COMPLETE_FROM,
    )  # fmt: skip


# --- topics that a group has left


def _held_topics(assignments: DataFrame) -> DataFrame:
    """What members of a group have as of the end of the log: `_topics`, and how many members it has."""
    group = Window.partitionBy("log", "group_id")
    is_classic = F.col("kind") == "classic"
    # A classic group's record has all its members, so those of an older record have left.
    of_group = F.max(F.when(is_classic, F.col("log_offset"))).over(group)
    of_member = F.max("log_offset").over(Window.partitionBy("log", "group_id", "member_id"))
    newest = (
        assignments.where("role = 'current'")
        .withColumn("_last", F.when(is_classic, of_group).otherwise(of_member))
        .where("log_offset = _last and not is_tombstone and member_id is not null")
    )
    is_unnamed = F.col("topic").isNull() & (F.col("topic_id").isNotNull() | F.col("partitions").isNull())
    return newest.groupBy("log", "group_id").agg(
        F.collect_set("topic").alias("_topics"), F.max(is_unnamed).alias("_has_unnamed")
    )


def _is_left() -> Column:
    """Whether the group has members, and none of them has the topic; null where names of topics are missing."""
    return (
        F.when(F.col("_topics").isNull() | F.array_contains("_topics", F.col("topic")), F.lit(False))
        .when(F.col("_has_unnamed"), F.lit(None))
        .otherwise(F.lit(True))
    )  # fmt: skip
