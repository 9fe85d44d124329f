"""Aggregates in Spark: for logs of any size, a few thousand small rows come to the driver.

Times are ms, because Python's end with the year 9999. Times later than now are left out: a single commit from the
future would make every plot a line at its left edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kcoord.spark.jobs.completeness import (
    COMPLETE_FROM,
    COMPLETE_FROM_OFFSET,
    LogHistory,
    collected,
    with_history,
)
from kcoord.spark.jobs.counting import COUNTS_AT, COUNTS_OFFSET, counting
from kcoord.spark.jobs.lag import COMMIT_COLUMNS, MESSAGE_COLUMNS, lag
from kcoord.spark.jobs.offsets_history import offsets_history
from kcoord.spark.jobs.rebalances import begun, ranking
from kcoord.spark.jobs.report.assembly import OWNER, REASONS_MAX, Collector, owner_of, series_of
from kcoord.spark.jobs.report.data import (
    GROUPS_MAX,
    LANES_MAX,
    LINES_MAX,
    ROWS_MAX,
    SLOTS_MAX,
    Bar,
    Finding,
    GroupMoves,
    GroupSummary,
    Jumps,
    LagSeries,
    Lane,
    MemberMoves,
    Owner,
    Report,
)
from kcoord.spark.jobs.report.text import time_of

# What the history of offsets shows of commits, and a report does not need.
NOT_NEEDED: Final = ("leader_epoch", "metadata", "expire_timestamp")


def collect(
    commits: DataFrame,
    messages: DataFrame,
    found: DataFrame,
    path: str,
    now: datetime,
    since: datetime | None = None,
    until: datetime | None = None,
    groups: Sequence[str] = (),
    history: DataFrame | None = None,
    markers: DataFrame | None = None,
) -> Report:
    """`commits` and `messages` are the tables `offset_commits` and `messages`, and `found` is what `rebalances` found.
    All times have a zone. The report covers the time from `since` to `until`, and with `groups` only these. Lag is
    measured in all of that time, whenever it was that something was committed last.

    `history` is the table `_history` about the state at each time: without it all commits that are left count as all
    there were. With `markers`, commits of transactions count from their markers on
    (`kcoord.spark.jobs.counting`), else from their records on; those that never count are in no number.
    """
    limit = now if until is None else min(until, now)
    if groups:
        found = found.where(F.col("group_id").isin(*groups))
        commits = commits.where(F.col("group_id").isin(*groups))
    # Every plot reads all of them. They are decoded once and kept on disk: memory is for sorting.
    kept = [
        found.persist(),
        with_history(counting(commits.select(*COMMIT_COLUMNS), markers), history).persist(StorageLevel.DISK_ONLY),
        messages.select(*MESSAGE_COLUMNS).persist(StorageLevel.DISK_ONLY),
    ]
    _, commits, messages = kept
    try:
        span = _span(commits, messages, found, _ms(limit))
        if span is None or (since is not None and since > limit):
            return Report(path, _ms(now))
        begin_ms = span[0] if since is None else _ms(since)
        end_ms = _ms(limit) if until is not None else max(span[1], begin_ms)
        since_ms = None if since is None else begin_ms
        return _Collector(commits, messages, found, path, now, begin_ms, end_ms, history, since_ms).report()
    finally:
        for table in kept:
            table.unpersist()


def _span(commits: DataFrame, messages: DataFrame, found: DataFrame, limit_ms: int) -> tuple[int, int] | None:
    """From the first commit or rebalance to the last one or the last message; None if there is none."""
    at = F.col("at_ms")
    times = commits.select(_commit_ms().alias("at_ms")).union(found.select(_begun_ms()))
    times = times.union(found.select(F.unix_millis("finished")))
    first = times.where(at <= limit_ms).agg(F.min("at_ms"), F.max("at_ms")).first()
    if first is None or first[0] is None:
        return None
    newest = messages.select(F.unix_millis("timestamp").alias("at_ms")).where(at <= limit_ms)
    last = newest.agg(F.max("at_ms")).first()
    return first[0], first[1] if last is None or last[0] is None else max(first[1], last[0])


@final
class _Collector(Collector):
    """A report from Spark's tables."""

    def __init__(
        self,
        commits: DataFrame,
        messages: DataFrame,
        found: DataFrame,
        path: str,
        now: datetime,
        begin_ms: int,
        end_ms: int,
        history: DataFrame | None,
        since_ms: int | None,
    ) -> None:
        super().__init__(path, _ms(now), begin_ms, end_ms, since_ms)
        self.all_commits = commits
        # Those without a time are nowhere on a plot, but offsets went on from them.
        self.commits = commits.where(_commit_ms().isNull() | (_commit_ms() <= end_ms))
        self.messages = messages
        self.rebalances = found.where((_begun_ms() <= end_ms) & (_over_ms() >= begin_ms))
        self.history = history
        self.now = now
        self._places: DataFrame | None = None

    def report(self) -> Report:
        try:
            return super().report()
        finally:
            if self._places is not None:
                self._places.unpersist()

    def histories(self) -> list[LogHistory]:
        return [] if self.history is None else collected(self.history)

    # --- commits

    def totals(self) -> Any:
        # Partitions first, of which there are few: each count of different ones would make all rows once more.
        is_within = _commit_ms().between(self.begin_ms, self.end_ms)
        partitions = self.all_commits.groupBy(*OWNER, "topic", "partition").agg(
            F.count_if(is_within & ~_is_gone()).alias("commits"),
            F.count_if(is_within & _is_gone()).alias("tombstones"),
            F.count_if(_commit_ms() > self.now_ms).alias("later"),
            F.count_if(is_within & ~_is_gone() & ~_is_complete()).alias("left"),
            _complete_ms("complete_ms"),
        )
        groups = self.rebalances.groupBy(*OWNER).agg(
            F.count("*").alias("rebalances"), _complete_ms("rebalances_complete_ms")
        )
        both = partitions.unionByName(groups, allowMissingColumns=True)
        has_commits = F.col("commits") + F.col("tombstones") > 0
        is_counted = F.col("rebalances").isNotNull() | has_commits
        return both.agg(
            F.count_distinct(F.when(is_counted, F.col("log"))).alias("logs"),
            F.count_distinct(F.when(is_counted, F.struct(*OWNER))).alias("groups"),
            F.count_if(has_commits).alias("partitions"),
            *(F.sum(name).alias(name) for name in ("commits", "tombstones", "later", "left", "rebalances")),
            *(F.max(name).alias(name) for name in ("complete_ms", "rebalances_complete_ms")),
        ).first()

    def commits_in_time(self) -> tuple[tuple[int, int], ...]:
        bucket = (F.floor(_commit_ms() / self.step) * self.step).alias("at_ms")
        # Of incomplete history the last commit of each key is left. These are late, and would be a peak that never was.
        within = _commit_ms().between(self.begin_ms, self.end_ms) & ~_is_gone() & _is_complete()
        rows = self.commits.where(within).groupBy(bucket).count().orderBy("at_ms").collect()
        return tuple((row[0], row[1]) for row in rows)

    def _jumping(self) -> DataFrame:
        """Partitions of groups with rewinds or resets, and how many."""
        commits = self.commits.withColumns({name: F.lit(None) for name in NOT_NEEDED})
        history = offsets_history(commits).where("is_rewind or is_reset")
        within = F.unix_millis("valid_from").between(self.begin_ms, self.end_ms)
        return history.where(within).groupBy(*OWNER, "topic", "partition").agg(
            F.count_if("is_rewind").alias("rewinds"),
            F.count_if("is_reset").alias("resets"),
            F.min("offset_gap").alias("farthest"),
            F.unix_millis(F.max("valid_from")).alias("last_ms"),
            F.slice(F.array_sort(F.collect_set("reset_reason")), 1, REASONS_MAX).alias("reasons"),
        )  # fmt: skip

    def jumps(self) -> tuple[tuple[Jumps, ...], int, int]:
        places = self._places = self._jumping().persist()
        totals = places.agg(F.sum("rewinds"), F.sum("resets")).first()
        most = F.desc(F.col("rewinds") + F.col("resets"))
        rows = places.orderBy(most, *OWNER, "topic", "partition").limit(ROWS_MAX).collect()
        jumps = tuple(
            Jumps(
                owner_of(row), row.topic, row.partition, row.rewinds, row.resets, row.farthest, row.last_ms,
                tuple(row.reasons),
            )
            for row in rows
        )  # fmt: skip
        return jumps, (totals and totals[0]) or 0, (totals and totals[1]) or 0

    # --- lag, and all groups

    def lag(self) -> tuple[tuple[LagSeries, ...], tuple[LagSeries, ...], list[GroupSummary], int]:
        # Commits before the beginning are valid at the beginning, and are kept apart from those of the time.
        before = F.timestamp_millis(F.lit(self.begin_ms - 1))
        commits = self.commits.drop(COMPLETE_FROM, COMPLETE_FROM_OFFSET)
        commits = commits.withColumn(COUNTS_AT, F.greatest(COUNTS_AT, before))
        every_s, end = self.step / 1000, time_of(self.end_ms)
        rows = lag(commits, self.messages, None, every_s, end, self.now, self.history)
        # What groups had committed before their history is complete is not known.
        is_known = F.col(COMPLETE_FROM).isNull() | (F.col("at") >= F.col(COMPLETE_FROM))
        rows = rows.where((F.unix_millis("at") >= self.begin_ms) & is_known)
        groups = rows.groupBy(*OWNER, "at").agg(
            F.count("*").alias("partitions"),
            F.sum("lag_records").alias("records"),
            F.max("lag_seconds").alias("seconds"),
            F.unix_millis(F.max("committed_at")).alias("committed_ms"),
        ).persist()  # fmt: skip
        is_end = F.unix_millis("at") == self.end_ms
        is_before = F.unix_millis("at") == (-1 if self.trend_ms is None else self.trend_ms)
        committed = F.when(is_end & (F.col("committed_ms") >= self.begin_ms), F.col("committed_ms"))
        peaks = groups.groupBy(*OWNER).agg(
            F.max("partitions").alias("partitions"),
            F.max("records").alias("records"), F.max(F.when(is_end, F.col("records"))).alias("records_end"),
            F.max("seconds").alias("seconds"), F.max(F.when(is_end, F.col("seconds"))).alias("seconds_end"),
            F.max(F.when(is_before, F.col("records"))).alias("records_before"),
            F.max(committed).alias("committed_ms"),
        )  # fmt: skip
        known = self._known(peaks).persist()
        series = []
        for name in ("records", "seconds"):
            # Lines of groups that stopped long ago only grow; they fill the places that are left.
            lines = known.where(F.col(name).isNotNull()).orderBy("is_stopped", F.desc(name), *OWNER)
            points = (
                groups.join(F.broadcast(lines.limit(LINES_MAX).select(*OWNER)), [*OWNER])
                .select(*OWNER, F.unix_millis("at").alias("at_ms"), F.col(name).cast("double").alias("value"))
                .collect()
            )
            series.append(series_of((owner_of(row), row.at_ms, row.value) for row in points))
        listing = self.listing(self._ranked(known))
        listed = known.count()
        groups.unpersist()
        known.unpersist()
        return series[0], series[1], listing, listed

    def _known(self, peaks: DataFrame) -> DataFrame:
        """A row for each group that has an offset or a rebalance, with all numbers of it."""
        is_within = _commit_ms().between(self.begin_ms, self.end_ms)
        commits = self.commits.groupBy(*OWNER).agg(
            F.count_if(is_within & ~_is_gone()).alias("commits"),
            F.max(F.when(is_within, _commit_ms())).alias("last_commit_ms"),
            _complete_ms("complete_ms"),
        )
        moves = self.rebalances.groupBy(*OWNER).agg(
            F.count("*").alias("rebalances"),
            F.max(F.col("finished").isNull()).alias("is_open"),
            F.mode("cause", True).alias("cause"),
            F.sum("partitions_moved").alias("moved"),
            F.max(_over_ms()).alias("last_rebalance_ms"),
            _complete_ms("rebalances_complete_ms"),
        )
        places = self._jumping() if self._places is None else self._places
        jumps = places.groupBy(*OWNER).agg(F.sum("rewinds").alias("rewinds"), F.sum("resets").alias("resets"))
        rows = commits
        for other in (moves, peaks, jumps):
            rows = rows.join(other, [*OWNER], "full")
        last = F.greatest("last_commit_ms", "last_rebalance_ms")
        is_at_work = F.coalesce("is_open", F.lit(False))
        if self.trend_ms is None:
            is_at_work = F.lit(True)
        else:
            is_at_work |= F.coalesce(last >= self.trend_ms, F.lit(False))
        # One that only had offsets, all of them removed before the report's time, is not there.
        is_there = F.col("partitions").isNotNull() | F.col("rebalances").isNotNull() | (F.col("commits") > 0)
        return rows.where(is_there).withColumns({"last_ms": last, "is_stopped": ~is_at_work})

    def _ranked(self, known: DataFrame) -> list[Any]:
        """Those at work with the most lag first, in records and in time by turns. Then those that stopped: with lag
        before the others, and the last to stop first."""
        of_kind = Window.partitionBy("is_stopped")
        by_records, by_seconds = (
            F.row_number().over(of_kind.orderBy(*(F.desc_nulls_last(name) for name in names), *OWNER))
            for names in (("records_end", "records"), ("seconds_end", "seconds"))
        )
        has_lag = F.coalesce(F.col("records_end") > 0, F.lit(False))
        by_end = F.row_number().over(of_kind.orderBy(F.desc(has_lag), F.desc_nulls_last("last_ms"), *OWNER))
        rank = F.when(F.col("is_stopped"), by_end).otherwise(F.least(by_records, by_seconds))
        ranked = known.withColumn("rank", rank).where(F.col("rank") <= GROUPS_MAX)
        return ranked.orderBy("is_stopped", "rank", F.desc_nulls_last("records_end"), *OWNER).collect()

    # --- rebalances

    def lanes(self) -> tuple[Lane, ...]:
        started, finished = _begun_ms(), F.unix_millis("finished")
        most = self.rebalances.groupBy(*OWNER).count().orderBy(F.desc("count"), *OWNER).limit(LANES_MAX)
        slot_ms = max((self.end_ms - self.begin_ms) / SLOTS_MAX, 1)
        slot = F.floor((F.greatest(started, F.lit(self.begin_ms)) - self.begin_ms) / slot_ms).alias("slot")
        order = F.struct("log_partition", "first_offset", "to_epoch")
        rows = (
            self.rebalances.join(F.broadcast(most), [*OWNER])
            .groupBy(*OWNER, slot)
            .agg(
                F.max("count").alias("all"),
                F.min(started).alias("begin_ms"),
                F.max(finished).alias("end_ms"),
                F.max(F.col("finished").isNull()).alias("is_open"),
                F.max(F.col("started").isNull()).alias("is_untimed"),
                _complete_ms("complete_ms"),
                F.count("*").alias("count"),
                F.mode("cause", True).alias("cause"),
                F.min_by("cause_member", order).alias("cause_member"),
                F.min_by("from_epoch", order).alias("from_epoch"),
                F.max_by("to_epoch", order).alias("to_epoch"),
                F.min_by("members_before", order).alias("members_before"),
                F.max_by("members_after", order).alias("members_after"),
                F.sum("partitions_moved").alias("moved"),
            )
            .collect()
        )
        lanes: dict[Owner, list[Bar]] = {}
        complete: dict[Owner, int | None] = {}
        for row in sorted(rows, key=lambda row: (-row["all"], row.log, row.group_id, row.slot)):
            bar = Bar(
                row.begin_ms, None if row.is_open else row.end_ms, row["count"], row.cause, row.cause_member,
                row.from_epoch, row.to_epoch, row.members_before, row.members_after, row.moved, not row.is_untimed,
            )  # fmt: skip
            lanes.setdefault(owner_of(row), []).append(bar)
            complete[owner_of(row)] = self.if_gone(row.complete_ms)
        return tuple(Lane(owner, tuple(bars), complete[owner]) for owner, bars in lanes.items())

    def group_moves(self, first: str, second: str) -> tuple[GroupMoves, ...]:
        rows = self.rebalances.groupBy(*OWNER).agg(
            F.count("*").alias("rebalances"), F.sum("partitions_moved").alias("moved"),
            F.sum("duration_ms").alias("duration_ms"), F.max("duration_ms").alias("longest_ms"),
            F.mode("cause", True).alias("cause"),
        )  # fmt: skip
        top = (
            rows.where(F.col(first) > 0)
            .orderBy(F.desc(first), F.desc_nulls_last(second), *OWNER)
            .limit(ROWS_MAX)
            .collect()
        )
        return tuple(
            GroupMoves(owner_of(row), row.rebalances, row.moved, row.duration_ms, row.longest_ms, row.cause)
            for row in top
        )

    def member_moves(self) -> tuple[MemberMoves, ...]:
        went = [
            self.rebalances.select(
                *OWNER,
                "log_partition",
                "first_offset",
                F.lit(name).alias("way"),
                F.explode(name).alias("one"),
            )
            for name in ("members_joined", "members_left")
        ]
        client = F.concat_ws("@", "one.client_id", "one.client_host")
        moves = went[0].union(went[1]).withColumn("member", F.coalesce("one.instance_id", client))
        rows = moves.groupBy(*OWNER, "member").agg(
            F.count_distinct("log_partition", "first_offset").alias("rebalances"),
            F.count_if(F.col("way") == "members_joined").alias("joined"),
            F.count_if(F.col("way") == "members_left").alias("left"),
        )
        top = rows.orderBy(F.desc("rebalances"), F.desc("left"), *OWNER, "member").limit(ROWS_MAX).collect()
        return tuple(MemberMoves(owner_of(row), row.member, row.rebalances, row.joined, row.left) for row in top)

    def findings(self) -> tuple[Finding, ...]:
        rows = ranking(self.rebalances).where(F.col("rank") <= ROWS_MAX).orderBy(F.desc("finding"), "rank")
        first, last = F.unix_millis("first").alias("first_ms"), F.unix_millis("last").alias("last_ms")
        return tuple(
            Finding(
                row.finding,
                owner_of(row),
                row.member,
                row.first_ms,
                row.last_ms,
                row.rebalances,
                row.returns,
                row.cause,
            )
            for row in rows.select("*", first, last).collect()
        )


# --- pieces


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def _commit_ms() -> Column:
    return F.unix_millis(COUNTS_AT)


def _is_complete() -> Column:
    """Whether all commits that count from then on are there."""
    return F.col(COUNTS_OFFSET) >= F.coalesce(COMPLETE_FROM_OFFSET, F.lit(0))


def _complete_ms(name: str) -> Column:
    return F.unix_millis(F.max(COMPLETE_FROM)).alias(name)


def _begun_ms() -> Column:
    return F.unix_millis(begun())


def _over_ms() -> Column:
    return F.unix_millis(F.coalesce("finished", "started"))


def _is_gone() -> Column:
    return F.coalesce("is_tombstone", F.lit(False)) | (F.col("committed_offset") < 0)
