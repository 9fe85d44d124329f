"""The data of a report: a few thousand values at most. Times are Unix times in ms, UTC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Limits of a page; the page names them.
POINTS_MAX: Final = 200
LINES_MAX: Final = 6
LANES_MAX: Final = 10
# Rebalances of a lane that begin in the same of this many parts of the time become one bar.
SLOTS_MAX: Final = 60
ROWS_MAX: Final = 10
# Groups in the list of all: of those at work, and of those that stopped, so many each are looked at.
GROUPS_MAX: Final = 500
# Logs whose history begins late, which are named.
HISTORIES_MAX: Final = 10
# Lag at the end is compared with the lag one of this many parts of the time before.
TREND_PARTS: Final = 10
# Round steps for axes and buckets.
STEPS_MS: Final = tuple(
    1000 * seconds
    for seconds in (
        *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
        *(hours * 3600 for hours in (1, 2, 3, 6, 12)),
        *(days * 86_400 for days in (1, 2, 7, 14, 30, 60, 90, 180, 365)),
    )
)


def step_ms(span_ms: int, most: int) -> int:
    """The shortest step of which at most `most` fit into `span_ms`."""
    for step in STEPS_MS:
        if span_ms <= step * most:
            return step
    step = STEPS_MS[-1]
    while span_ms > step * most:
        step *= 2
    return step


def trend_of(begin_ms: int, end_ms: int, step: int) -> int | None:
    """When lag was measured about one of TREND_PARTS before the end; None if that would be before `begin_ms`."""
    at = (end_ms - (end_ms - begin_ms) // TREND_PARTS) // step * step
    return at if begin_ms <= at < end_ms else None


@dataclass(frozen=True)
class Owner:
    """A group in one of the data directories."""

    log: str
    group_id: str


@dataclass(frozen=True)
class LagSeries:
    """`points` are (time, lag); None where it is not known."""

    owner: Owner
    points: tuple[tuple[int, float | None], ...]


@dataclass(frozen=True)
class LagPeak:
    """The highest lag, and the lag at the end; None if unknown.

    And what may have caused it: `records_before` is the lag at the report's `trend_ms`, `last_commit_ms` when the group
    committed last, None if not in the report's time. `cause` is the most frequent one of its rebalances.
    """

    owner: Owner
    partitions: int
    records_peak: int | None
    records_end: int | None
    seconds_peak: float | None
    seconds_end: float | None
    records_before: int | None = None
    last_commit_ms: int | None = None
    rebalances: int = 0
    is_rebalancing: bool = False
    cause: str | None = None


@dataclass(frozen=True)
class GroupSummary:
    """All numbers of one group. `is_stopped`: it neither committed nor rebalanced after the report's `trend_ms`.

    `complete_ms` is from when on all of its commits and rebalances are in the logs, None if they are in all of the
    time asked for. Numbers of a group with such a time are of what is left.
    """

    lag: LagPeak
    commits: int
    partitions_moved: int | None
    rewinds: int
    resets: int
    is_stopped: bool = False
    complete_ms: int | None = None

    @property
    def owner(self) -> Owner:
        return self.lag.owner


@dataclass(frozen=True)
class Gone:
    """A log of `__consumer_offsets` that lacks history: complete is what it has from `offset` and `from_ms` on."""

    log: str
    name: str
    offset: int
    from_ms: int | None


@dataclass(frozen=True)
class Bar:
    """`count` rebalances that follow each other. `end_ms` is None if the last of them was not over.

    `is_timed` is whether all of them have a beginning; one that has none begins and ends when it was over. Of causes
    and members: the most frequent cause, the first one's member, and how many members there were before the
    first and after the last.
    """

    begin_ms: int
    end_ms: int | None
    count: int
    cause: str | None
    cause_member: str | None
    from_epoch: int | None
    to_epoch: int | None
    members_before: int | None
    members_after: int | None
    partitions_moved: int | None
    is_timed: bool = True


@dataclass(frozen=True)
class Lane:
    """`complete_ms` as of a GroupSummary."""

    owner: Owner
    bars: tuple[Bar, ...]
    complete_ms: int | None = None


@dataclass(frozen=True)
class GroupMoves:
    owner: Owner
    rebalances: int
    partitions_moved: int | None
    duration_ms: int | None
    longest_ms: int | None
    cause: str | None


@dataclass(frozen=True)
class MemberMoves:
    owner: Owner
    member: str
    rebalances: int
    joined: int
    left: int


@dataclass(frozen=True)
class Finding:
    """A row of `rebalance_ranking`."""

    finding: str
    owner: Owner
    member: str | None
    first_ms: int
    last_ms: int
    rebalances: int
    returns: int | None
    cause: str | None


@dataclass(frozen=True)
class Jumps:
    """Rewinds and resets of a group's offset in one partition. `farthest` is the most negative gap."""

    owner: Owner
    topic: str
    partition: int
    rewinds: int
    resets: int
    farthest: int | None
    last_ms: int
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """`path` is where the logs are, `made_ms` when the report was made; begin and end are None if there is nothing.

    `bucket_ms` is the width of the buckets of `commits`, which are (begin, commits), and how often lag was measured.
    `trend_ms` is what lag at the end is compared with: a tenth of the time before it, None if that is too short.
    `later` counts commits with a time after `made_ms`: they are in no other number.

    Where compaction took history of the time asked for, `complete_ms` is from when on all commits are there, and the
    offset that each group had at each time; `rebalances_complete_ms` is the same of rebalances, of all groups; `gone`
    names the logs. Then `commits` are only those
    of complete history, since of the time before the last commit of each key is left: they would all be late.
    `commits_left` counts these, and all totals are of what is left.

    `lag_peaks` are of groups at work, `stopped` of those with lag that stopped, the last one first. `listing` has all,
    of which there are `listing_total`.
    """

    path: str
    made_ms: int
    begin_ms: int | None = None
    end_ms: int | None = None
    bucket_ms: int = 1000
    trend_ms: int | None = None
    logs: int = 0
    groups: int = 0
    partitions: int = 0
    commits_total: int = 0
    tombstones: int = 0
    later: int = 0
    rebalances_total: int = 0
    rewinds_total: int = 0
    resets_total: int = 0
    commits: tuple[tuple[int, int], ...] = ()
    lag_records: tuple[LagSeries, ...] = ()
    lag_seconds: tuple[LagSeries, ...] = ()
    lag_peaks: tuple[LagPeak, ...] = ()
    lanes: tuple[Lane, ...] = ()
    by_rebalances: tuple[GroupMoves, ...] = ()
    by_partitions: tuple[GroupMoves, ...] = ()
    members: tuple[MemberMoves, ...] = ()
    findings: tuple[Finding, ...] = ()
    jumps: tuple[Jumps, ...] = ()
    complete_ms: int | None = None
    rebalances_complete_ms: int | None = None
    gone: tuple[Gone, ...] = ()
    commits_left: int = 0
    stopped: tuple[LagPeak, ...] = ()
    listing: tuple[GroupSummary, ...] = ()
    listing_total: int = 0
