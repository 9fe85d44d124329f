"""A report from its parts, however they are computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Final

from kcoord.core.outcome import OFFSETS_TOPIC
from kcoord.spark.jobs.completeness import LogHistory
from kcoord.spark.jobs.report.data import (
    GROUPS_MAX,
    POINTS_MAX,
    ROWS_MAX,
    Finding,
    Gone,
    GroupMoves,
    GroupSummary,
    Jumps,
    LagPeak,
    LagSeries,
    Lane,
    MemberMoves,
    Owner,
    Report,
    step_ms,
    trend_of,
)

# Aggregates of rows by these.
OWNER: Final = ("log", "group_id")
# The most reasons for resets of one partition.
REASONS_MAX: Final = 3


class Collector(ABC):
    """One report on the way, from `begin_ms` to `end_ms`. `since_ms` is the beginning that was asked for."""

    def __init__(self, path: str, now_ms: int, begin_ms: int, end_ms: int, since_ms: int | None) -> None:
        self.path = path
        self.now_ms = now_ms
        self.begin_ms = begin_ms
        self.end_ms = end_ms
        self.since_ms = since_ms
        self.step = step_ms(end_ms - begin_ms, POINTS_MAX)
        self.trend_ms = trend_of(begin_ms, end_ms, self.step)

    def report(self) -> Report:
        totals = self.totals()
        jumps, rewinds, resets = self.jumps()
        by_records, by_seconds, listing, listed = self.lag()
        at_work = [one.lag for one in listing if not one.is_stopped and one.lag.partitions]
        stopped = [one.lag for one in listing if one.is_stopped and one.lag.records_end]
        return Report(
            self.path, self.now_ms, self.begin_ms, self.end_ms, self.step, self.trend_ms,
            logs=totals.logs, groups=totals.groups, partitions=totals.partitions,
            commits_total=totals.commits or 0, tombstones=totals.tombstones or 0, later=totals.later or 0,
            rebalances_total=totals.rebalances or 0, rewinds_total=rewinds, resets_total=resets,
            commits=self.commits_in_time(), lag_records=by_records, lag_seconds=by_seconds,
            lag_peaks=tuple(at_work[:ROWS_MAX]), stopped=tuple(stopped[:ROWS_MAX]), lanes=self.lanes(),
            by_rebalances=self.group_moves("rebalances", "moved"),
            by_partitions=self.group_moves("moved", "rebalances"),
            members=self.member_moves(), findings=self.findings(), jumps=jumps,
            complete_ms=self.if_gone(totals.complete_ms),
            rebalances_complete_ms=self.if_gone(totals.rebalances_complete_ms),
            commits_left=totals.left or 0, gone=self.gone(),
            listing=tuple(listing), listing_total=listed,
        )  # fmt: skip

    # --- the parts

    @abstractmethod
    def histories(self) -> Iterable[LogHistory]:
        """The rows of the table `_history`, in the order of logs."""

    @abstractmethod
    def totals(self) -> Any:
        """With the numbers logs, groups, partitions, commits, tombstones, later, left, rebalances, complete_ms and
        rebalances_complete_ms."""

    @abstractmethod
    def commits_in_time(self) -> tuple[tuple[int, int], ...]:
        """`Report.commits`."""

    @abstractmethod
    def jumps(self) -> tuple[tuple[Jumps, ...], int, int]:
        """Those of partitions with the most, and how many rewinds and resets there are in all."""

    @abstractmethod
    def lag(self) -> tuple[tuple[LagSeries, ...], tuple[LagSeries, ...], list[GroupSummary], int]:
        """Lag in records and in time, groups with all that is known of each, and how many groups there are. After
        `jumps`."""

    @abstractmethod
    def lanes(self) -> tuple[Lane, ...]:
        """Of the groups with the most rebalances."""

    @abstractmethod
    def group_moves(self, first: str, second: str) -> tuple[GroupMoves, ...]:
        """Those with the most of `first`: rebalances, or partitions moved."""

    @abstractmethod
    def member_moves(self) -> tuple[MemberMoves, ...]:
        """Of the members with the most rebalances."""

    @abstractmethod
    def findings(self) -> tuple[Finding, ...]:
        """The first ones of the ranking of rebalances."""

    # --- missing history

    def if_gone(self, complete_ms: int | None) -> int | None:
        """None where all of the time asked for is complete. Without `since` that is all there ever was.

        Of the very millisecond in which history begins something may be gone.
        """
        if complete_ms is not None and self.since_ms is not None and complete_ms < self.since_ms:
            return None
        return complete_ms

    def gone(self) -> tuple[Gone, ...]:
        """Logs that lack something of the report's time, those that begin last first."""
        gone = [
            Gone(one.log, one.name, one.complete_from_offset, one.from_ms)
            for one in self.histories()
            if one.topic == OFFSETS_TOPIC
            and one.complete_from_offset > 0
            and (one.from_ms is None or self.if_gone(one.from_ms) is not None)
        ]
        return tuple(sorted(gone, key=lambda one: -(one.from_ms or 0)))

    # --- groups

    def listing(self, ranked: Sequence[Any]) -> list[GroupSummary]:
        """Groups as they come, those at work before those that stopped, and of each kind at most GROUPS_MAX. Of each
        kind as many are taken as the other leaves, and half of all in any case."""
        at_work = [row for row in ranked if not row.is_stopped]
        stopped = [row for row in ranked if row.is_stopped]
        half = GROUPS_MAX // 2
        at_work = at_work[: max(half, GROUPS_MAX - len(stopped))]
        return [self._summary(row) for row in [*at_work, *stopped[: GROUPS_MAX - len(at_work)]]]

    def _summary(self, row: Any) -> GroupSummary:
        complete = [one for one in (row.complete_ms, row.rebalances_complete_ms) if one is not None]
        return GroupSummary(
            LagPeak(
                owner_of(row), row.partitions or 0, row.records, row.records_end, row.seconds, row.seconds_end,
                row.records_before, row.committed_ms, row.rebalances or 0, bool(row.is_open), row.cause,
            ),
            row.commits or 0, row.moved, row.rewinds or 0, row.resets or 0, row.is_stopped,
            self.if_gone(max(complete, default=None)),
        )  # fmt: skip


def owner_of(row: Any) -> Owner:
    return Owner(row.log, row.group_id)


def series_of(points: Iterable[tuple[Owner, int, float | None]]) -> tuple[LagSeries, ...]:
    """Lines from owners, times and values. The highest first, as colours are given."""
    lines: dict[Owner, list[tuple[int, float | None]]] = {}
    for owner, at_ms, value in sorted(points, key=lambda point: point[1]):
        lines.setdefault(owner, []).append((at_ms, value))

    def rank(owner: Owner) -> tuple[float, str, str]:
        highest = max((value for _, value in lines[owner] if value is not None), default=-1.0)
        return -highest, owner.log, owner.group_id

    return tuple(LagSeries(owner, tuple(lines[owner])) for owner in sorted(lines, key=rank))
