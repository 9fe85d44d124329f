"""A report about short logs, as `kcoord.spark.jobs.report.collect` defines it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord.spark.jobs.completeness import COMPLETE_FROM, LogHistory
from kcoord.spark.jobs.report.assembly import OWNER, REASONS_MAX, Collector, owner_of, series_of
from kcoord.spark.jobs.report.collect import NOT_NEEDED
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
from kcoord.spark.short.aggregates import Row, largest, mode, smallest, total
from kcoord.spark.short.bounds import NotShort
from kcoord.spark.short.counting import commit_offsets, commit_times
from kcoord.spark.short.lag import SAMPLES_MAX, Messages, States, believed
from kcoord.spark.short.offsets_history import (
    committed_offsets,
    completeness,
    offsets_history,
)
from kcoord.spark.short.rebalances import begun, name_of, over, ranking
from kcoord.spark.short.runs import MISSING, first_rows, integers, keys_of, largest_of
from kcoord.spark.tables.schemas import arrow_schema

# Lag is measured at so many places at a time, or for one group, which may have SAMPLES_MAX.
SAMPLES_PER_TURN: Final = 1_000_000
NO_LIMIT: Final = 1 << 62
UNKNOWN: Final = -np.inf


def collect(
    commits: pa.Table,
    messages: pa.Table,
    found: Sequence[Row],
    path: str,
    now_ms: int,
    since_ms: int | None = None,
    until_ms: int | None = None,
    histories: Sequence[LogHistory] = (),
) -> Report:
    """`commits` and `messages` have the columns that the job of Spark names, and `found` are the rebalances. All of
    them are only of the groups that are asked for. `commits` may be what `counting` makes of them, and `histories` are
    about the state at each time. Raises NotShort if one group has too many partitions."""
    limit = now_ms if until_ms is None else min(until_ms, now_ms)
    times = _millis(commit_times(commits))
    span = _span(times, messages, found, limit)
    if span is None or (since_ms is not None and since_ms > limit):
        return Report(path, now_ms)
    begin_ms = span[0] if since_ms is None else since_ms
    end_ms = limit if until_ms is not None else max(span[1], begin_ms)
    return ShortCollector(commits, messages, found, path, now_ms, begin_ms, end_ms, since_ms, histories).report()


def _span(times: Any, messages: pa.Table, found: Sequence[Row], limit: int) -> tuple[int, int] | None:
    """From the first commit or rebalance to the last one or the last message; None if there is none."""
    within = times[(times != MISSING) & (times <= limit)]
    known = [int(within.min()), int(within.max())] if len(within) else []
    known += [at for row in found for at in (begun(row), row["finished"]) if at is not None and at <= limit]
    if not known:
        return None
    stamps = _millis(integers(messages.column("timestamp")))
    stamps = stamps[(stamps != MISSING) & (stamps <= limit)]
    newest = int(stamps.max(initial=MISSING))
    return min(known), max(newest, *known)


@final
@dataclass
class Peaks:
    """Lag of one group, summed or the highest of its partitions: the highest at any time, and that at some times."""

    partitions: int
    records: int | None
    records_end: int | None
    records_before: int | None
    seconds: float | None
    seconds_end: float | None
    committed_ms: int | None


@final
class ShortCollector(Collector):
    """A report from tables in memory."""

    def __init__(
        self,
        commits: pa.Table,
        messages: pa.Table,
        found: Sequence[Row],
        path: str,
        now_ms: int,
        begin_ms: int,
        end_ms: int,
        since_ms: int | None,
        histories: Sequence[LogHistory],
    ) -> None:
        super().__init__(path, now_ms, begin_ms, end_ms, since_ms)
        self._histories = histories
        self.messages = messages
        self.all = Commits(commits, histories, begin_ms, end_ms)
        # Those without a time are nowhere on a plot, but offsets went on from them.
        self.own = Commits(commits.filter(self.all.at_ms <= end_ms).combine_chunks(), histories, begin_ms, end_ms)
        self.rebalances = [row for row in found if _is_between(row, begin_ms, end_ms)]
        self.of_owner: dict[Owner, list[Row]] = defaultdict(list)
        for row in self.rebalances:
            self.of_owner[_owner(row)].append(row)
        self.jumping: list[Jumps] = []

    def histories(self) -> Iterable[LogHistory]:
        return self._histories

    # --- commits

    def totals(self) -> Any:
        rows = self.all
        counted = {Owner(*key) for key in rows.owners_of(rows.is_within)} | set(self.of_owner)
        partitions, _ = keys_of(rows.table, [*OWNER, "topic", "partition"])
        return SimpleNamespace(
            logs=len({owner.log for owner in counted}),
            groups=len(counted),
            partitions=len(np.unique(partitions[rows.is_within])),
            commits=int(rows.is_commit.sum()),
            tombstones=int((rows.is_within & rows.is_gone).sum()),
            later=int((rows.at_ms > self.now_ms).sum()),
            left=int((rows.is_commit & ~rows.is_complete).sum()),
            rebalances=len(self.rebalances),
            complete_ms=_or_none(_millis(rows.complete_from).max(initial=MISSING)),
            rebalances_complete_ms=largest(row[COMPLETE_FROM] for row in self.rebalances),
        )

    def commits_in_time(self) -> tuple[tuple[int, int], ...]:
        # Of incomplete history the last commit of each key is left. These are late, and would be a peak that never was.
        at_ms = self.own.at_ms[self.own.is_commit & self.own.is_complete]
        buckets, counts = np.unique(at_ms // self.step * self.step, return_counts=True)
        return tuple(zip(buckets.tolist(), counts.tolist(), strict=True))

    def jumps(self) -> tuple[tuple[Jumps, ...], int, int]:
        history = offsets_history(with_nulls(self.own.table))
        times = _millis(integers(history.column("valid_from")))
        is_jump = pc.or_(history.column("is_rewind"), history.column("is_reset")).to_numpy()
        is_within = is_jump & (times >= self.begin_ms) & (times <= self.end_ms)
        columns = (*OWNER, "topic", "partition", "is_rewind", "is_reset", "reset_reason", "offset_gap")
        found = history.select(columns).filter(is_within)
        of_partition: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
        for row in zip(*(column.to_pylist() for column in found.columns), times[is_within].tolist(), strict=True):
            of_partition[row[:4]].append(row[4:])
        self.jumping = [_jumps(key, rows) for key, rows in of_partition.items()]
        self.jumping.sort(key=lambda one: (-one.rewinds - one.resets, *_name(one.owner), one.topic, one.partition))
        rewinds, resets = (sum(getattr(one, name) for one in self.jumping) for name in ("rewinds", "resets"))
        return tuple(self.jumping[:ROWS_MAX]), rewinds, resets

    # --- lag, and all groups

    def lag(self) -> tuple[tuple[LagSeries, ...], tuple[LagSeries, ...], list[GroupSummary], int]:
        measured = _OwnersLag(self)
        known = self._known(measured.peaks())
        series = []
        for name in ("records", "seconds"):
            # Lines of groups that stopped long ago only grow; they fill the places that are left.
            lines = [row for row in known if getattr(row, name) is not None]
            lines.sort(key=lambda row: (row.is_stopped, -getattr(row, name), row.log, row.group_id))
            series.append(series_of(measured.points([owner_of(row) for row in lines[:LINES_MAX]], name)))
        return series[0], series[1], self.listing(_ranked(known)), len(known)

    def _known(self, peaks: dict[Owner, Peaks]) -> list[Any]:
        """Each group that has an offset or a rebalance, with all numbers of it."""
        jumping: dict[Owner, list[Jumps]] = defaultdict(list)
        for one in self.jumping:
            jumping[one.owner].append(one)
        commits = self.own.by_owner()
        found = []
        for owner in {**commits, **dict.fromkeys(self.of_owner), **dict.fromkeys(peaks), **dict.fromkeys(jumping)}:
            count, last_commit_ms, complete_ms = commits.get(owner, (0, None, None))
            moves, peak, jumps = self.of_owner.get(owner, []), peaks.get(owner), jumping.get(owner, [])
            # One that only had offsets, all of them removed before the report's time, is not there.
            if peak is None and not moves and not count:
                continue
            last_ms = largest([last_commit_ms, *map(over, moves)])
            is_open = any(row["finished"] is None for row in moves)
            is_at_work = is_open or self.trend_ms is None or (last_ms is not None and last_ms >= self.trend_ms)
            none = Peaks(0, None, None, None, None, None, None)
            found.append(
                SimpleNamespace(
                    log=owner.log, group_id=owner.group_id, commits=count, complete_ms=complete_ms,
                    **vars(peak or none), rebalances=len(moves), is_open=is_open, cause=mode(moves, "cause"),
                    moved=total(row["partitions_moved"] for row in moves),
                    rebalances_complete_ms=largest(row[COMPLETE_FROM] for row in moves),
                    rewinds=sum(one.rewinds for one in jumps), resets=sum(one.resets for one in jumps),
                    last_ms=last_ms, is_stopped=not is_at_work,
                )
            )  # fmt: skip
        return found

    # --- rebalances

    def lanes(self) -> tuple[Lane, ...]:
        most = sorted(self.of_owner, key=lambda owner: (-len(self.of_owner[owner]), *_name(owner)))
        slot_ms = max((self.end_ms - self.begin_ms) / SLOTS_MAX, 1)
        lanes = []
        for owner in most[:LANES_MAX]:
            slots: dict[int, list[Row]] = defaultdict(list)
            for row in self.of_owner[owner]:
                began = max(begun(row) or 0, self.begin_ms)
                slots[int((began - self.begin_ms) / slot_ms)].append(row)
            last = slots[max(slots)]
            complete_ms = self.if_gone(largest(row[COMPLETE_FROM] for row in last))
            lanes.append(Lane(owner, tuple(_bar(slots[slot]) for slot in sorted(slots)), complete_ms))
        return tuple(lanes)

    def group_moves(self, first: str, second: str) -> tuple[GroupMoves, ...]:
        found = []
        for owner, rows in self.of_owner.items():
            durations = [row["duration_ms"] for row in rows]
            numbers = {"rebalances": len(rows), "moved": total(row["partitions_moved"] for row in rows)}
            moves = GroupMoves(
                owner, len(rows), numbers["moved"], total(durations), largest(durations), mode(rows, "cause")
            )
            if numbers[first]:
                found.append(((*_most_first(numbers[first], numbers[second]), *_name(owner)), moves))
        return tuple(moves for _, moves in sorted(found, key=lambda one: one[0])[:ROWS_MAX])

    def member_moves(self) -> tuple[MemberMoves, ...]:
        counts: Counter[tuple[Owner, str, str]] = Counter()
        places: dict[tuple[Owner, str], set[tuple[int, int]]] = defaultdict(set)
        for row in self.rebalances:
            for way in ("members_joined", "members_left"):
                for member in row[way] or ():
                    name = name_of(member)
                    counts[_owner(row), name, way] += 1
                    places[_owner(row), name].add((row["log_partition"], row["first_offset"]))
        found = [
            MemberMoves(
                owner, name, len(at), counts[owner, name, "members_joined"], counts[owner, name, "members_left"]
            )
            for (owner, name), at in places.items()
        ]
        found.sort(key=lambda one: (-one.rebalances, -one.left, *_name(one.owner), one.member))
        return tuple(found[:ROWS_MAX])

    def findings(self) -> tuple[Finding, ...]:
        rows = [row for row in ranking(self.rebalances) if row["rank"] <= ROWS_MAX]
        # Storms before members.
        rows.sort(key=lambda row: row["finding"], reverse=True)
        return tuple(
            Finding(
                row["finding"], _owner(row), row["member"], row["first"], row["last"], row["rebalances"],
                row["returns"], row["cause"],
            )
            for row in rows
        )  # fmt: skip


@final
class Commits:
    """The table of commits, with what a report asks of each of them."""

    def __init__(self, table: pa.Table, histories: Sequence[LogHistory], begin_ms: int, end_ms: int) -> None:
        self.table = table
        self.times = commit_times(table)
        self.at_ms = _millis(self.times)
        self.is_gone = committed_offsets(table) == MISSING
        complete_offset, self.complete_from = completeness(table, histories)
        # Whether all commits that count from then on are there.
        self.is_complete = commit_offsets(table) >= np.maximum(complete_offset, 0)
        self.is_within = (self.at_ms != MISSING) & (self.at_ms >= begin_ms) & (self.at_ms <= end_ms)
        self.is_commit = self.is_within & ~self.is_gone
        self.owners, self.owners_count = keys_of(table, OWNER)
        self.names = self._names(first_rows(self.owners, self.owners_count))

    def _names(self, rows: Any) -> list[tuple[str, str]]:
        first = self.table.select(OWNER).take(pa.array(rows))
        return list(zip(*(first.column(name).to_pylist() for name in OWNER), strict=True))

    def owners_of(self, rows: Any) -> Iterator[tuple[str, str]]:
        """The groups of these rows."""
        return (self.names[number] for number in np.unique(self.owners[rows]).tolist())

    def by_owner(self) -> dict[Owner, tuple[int, int | None, int | None]]:
        """Of each group how many commits are within the report's time, the last one's, and from when on all are there;
        these two are None if there is none."""
        counts = np.bincount(self.owners[self.is_commit], minlength=self.owners_count)
        last = largest_of(self.owners[self.is_within], self.at_ms[self.is_within], self.owners_count)
        complete = largest_of(self.owners, _millis(self.complete_from), self.owners_count)
        columns = (counts.tolist(), map(_or_none, last.tolist()), map(_or_none, complete.tolist()))
        return {Owner(*name): row for name, row in zip(self.names, zip(*columns, strict=True), strict=True)}


@final
class _OwnersLag:
    """The lag of whole groups at the report's times: each has a row, and each time a column, the end the last one."""

    def __init__(self, report: ShortCollector) -> None:
        commits = report.own
        self.begin_ms, self.end_ms, self.trend_ms = report.begin_ms, report.end_ms, report.trend_ms
        self.step_us, self.end_us = report.step * 1000, report.end_ms * 1000
        # Commits before the beginning are valid at the beginning, and are kept apart from those of the time.
        times = np.maximum(commits.times, (report.begin_ms - 1) * 1000)
        self.states = States(commits.table, times, commits.complete_from, self.end_us, True)
        came = believed(report.messages, report.now_ms * 1000)
        self.messages = Messages(commits.table, report.messages, came, self.end_us)
        self.first_tick = (report.begin_ms - 1) * 1000 // self.step_us
        self.columns = self.end_us // self.step_us - self.first_tick + 2
        self.names = commits.names
        # Samples have a commit of their part, always the same one.
        self.part_of = np.zeros(commits.table.num_rows, np.int64)
        self.part_of[self.states.first] = np.arange(len(self.states.first))
        self.row_of = np.zeros(len(self.states.first), np.int64)
        # A part is a group for one partition, which is what `States` calls a group. Parts of a group come together.
        wanted = self.states.that_began()
        of = commits.owners[self.states.first[wanted]]
        order = np.argsort(of, kind="stable")
        self.parts, self.owners = wanted[order], of[order]

    def peaks(self) -> dict[Owner, Peaks]:
        found = {}
        distinct, begins = np.unique(self.owners, return_index=True)
        ends = np.append(begins[1:], len(self.owners))
        at = 0
        while at < len(distinct):
            # As many groups as one turn may have, and one at least.
            fits = np.searchsorted(ends, begins[at] + SAMPLES_PER_TURN // self.columns, "right")
            to = max(int(fits), at + 1)
            samples = int(ends[to - 1] - begins[at]) * self.columns
            if samples > SAMPLES_MAX:
                raise NotShort(f"{samples} samples of one group")
            table = self._measure(self.parts[begins[at] : ends[to - 1]], self.owners[begins[at] : ends[to - 1]])
            for row, owner in enumerate(distinct[at:to].tolist()):
                if table.partitions[row].any():
                    found[Owner(*self.names[owner])] = self._peaks_of(table, row)
            at = to
        return found

    def _peaks_of(self, table: _Measured, row: int) -> Peaks:
        records, seconds, committed = table.records[row], table.seconds[row], table.committed[row]
        before = None
        if self.trend_ms is not None:
            before = _or_none(records[self.trend_ms * 1000 // self.step_us - self.first_tick])
        last = _or_none(committed[-1] // 1000 if committed[-1] != MISSING else MISSING)
        return Peaks(
            int(table.partitions[row].max()), _or_none(records.max()), _or_none(records[-1]), before,
            _known(seconds.max()), _known(seconds[-1]), last if last is not None and last >= self.begin_ms else None,
        )  # fmt: skip

    def points(self, owners: Sequence[Owner], name: str) -> Iterator[tuple[Owner, int, float | None]]:
        """Times and lag of these groups; None where it is not known."""
        number_of = {Owner(*one): number for number, one in enumerate(self.names)}
        for owner in owners:
            is_of = self.owners == number_of[owner]
            table = self._measure(self.parts[is_of], self.owners[is_of])
            values = getattr(table, name)[0]
            for column in np.flatnonzero(table.partitions[0]).tolist():
                is_end = column == self.columns - 1
                at_ms = self.end_ms if is_end else (self.first_tick + column) * self.step_us // 1000
                value = values[column]
                yield owner, at_ms, _known(value) if name == "seconds" else _float(_or_none(value))

    def _measure(self, parts: Any, owners: Any) -> _Measured:
        """The lag of the groups of these parts, which are in their order."""
        _, rows = np.unique(owners, return_inverse=True)
        self.row_of[parts] = rows
        ticked, ticks = self.states.ticks(parts, self.step_us / 1_000_000, NO_LIMIT)
        groups = np.concatenate([ticked, parts])
        when = np.concatenate([ticks, np.full(len(parts), self.end_us)])
        is_last = np.concatenate([np.zeros(len(ticks), bool), np.ones(len(parts), bool)])
        samples = self.states.at_times(groups, when, is_last)
        # What groups had committed before their history is complete is not known.
        is_known = (samples.at // 1000 >= self.begin_ms) & (samples.at >= samples.complete_from)
        samples = samples.only(is_known)
        lag = self.messages.lag(samples)
        column = np.where(samples.is_last, self.columns - 1, samples.at // self.step_us - self.first_tick)
        cell = self.row_of[self.part_of[samples.rows]] * self.columns + column
        return _Measured(cell, int(rows.max(initial=-1)) + 1, self.columns, lag, samples.committed_at)


@final
class _Measured:
    """Rows of groups and columns of times. MISSING, and in seconds UNKNOWN, where lag is not known."""

    def __init__(self, cell: Any, rows: int, columns: int, lag: Any, committed_at: Any) -> None:
        size, shape = rows * columns, (rows, columns)
        self.partitions = np.bincount(cell, minlength=size).reshape(shape)
        has_records = lag.records != MISSING
        sums = np.zeros(size, np.int64)
        np.add.at(sums, cell[has_records], lag.records[has_records])
        known = np.bincount(cell[has_records], minlength=size)
        self.records = np.where(known > 0, sums, MISSING).reshape(shape)
        seconds = np.full(size, UNKNOWN)
        has_seconds = lag.has_seconds | (lag.records == 0)
        np.maximum.at(seconds, cell[has_seconds], lag.seconds[has_seconds])
        self.seconds = seconds.reshape(shape)
        self.committed = largest_of(cell, committed_at, size).reshape(shape)


def _ranked(known: Sequence[Any]) -> list[Any]:
    """Those at work with the most lag first, in records and in time by turns. Then those that stopped: with lag before
    the others, and the last to stop first."""
    at_work = [row for row in known if not row.is_stopped]
    ranks: dict[int, int] = {}
    for names in (("records_end", "records"), ("seconds_end", "seconds")):
        at_work.sort(key=lambda row: (*_most_first(*(getattr(row, name) for name in names)), row.log, row.group_id))
        for rank, row in enumerate(at_work):
            ranks[id(row)] = min(ranks.get(id(row), rank), rank)
    at_work.sort(key=lambda row: (ranks[id(row)], *_most_first(row.records_end), row.log, row.group_id))
    at_work = [row for row in at_work if ranks[id(row)] < GROUPS_MAX]
    stopped = [row for row in known if row.is_stopped]
    stopped.sort(key=lambda row: (not row.records_end, *_most_first(row.last_ms), row.log, row.group_id))
    return [*at_work, *stopped[:GROUPS_MAX]]


def with_nulls(commits: pa.Table) -> pa.Table:
    """With the columns that a history of offsets has and a report does not read."""
    for field in arrow_schema("offset_commits", NOT_NEEDED):
        commits = commits.append_column(field, pa.nulls(commits.num_rows, field.type))
    return commits


# --- pieces


def _millis(times_us: Any) -> Any:
    return np.where(times_us == MISSING, MISSING, times_us // 1000)


def _or_none(value: Any) -> int | None:
    return None if value == MISSING else int(value)


def _known(seconds: Any) -> float | None:
    return float(seconds) if seconds > UNKNOWN else None


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)


def _owner(row: Row) -> Owner:
    return Owner(row["log"], row["group_id"])


def _name(owner: Owner) -> tuple[str, str]:
    return owner.log, owner.group_id


def _most_first(*values: float | None) -> list[tuple[bool, float]]:
    """For sorting: the largest first, and None last."""
    return [(value is None, -(value or 0)) for value in values]


def _is_between(row: Row, begin_ms: int, end_ms: int) -> bool:
    began, ended = begun(row), over(row)
    return began is not None and ended is not None and began <= end_ms and ended >= begin_ms


def _jumps(key: tuple[Any, ...], rows: Sequence[tuple[Any, ...]]) -> Jumps:
    log, group_id, topic, partition = key
    rewinds, resets, reasons, gaps, times = zip(*rows, strict=True)
    named = tuple(sorted({reason for reason in reasons if reason is not None})[:REASONS_MAX])
    return Jumps(Owner(log, group_id), topic, partition, sum(rewinds), sum(resets), smallest(gaps), max(times), named)


def _bar(rows: Sequence[Row]) -> Bar:
    """Rebalances that follow each other."""
    in_order = sorted(rows, key=lambda row: (row["log_partition"], row["first_offset"], row["to_epoch"]))
    first, last = in_order[0], in_order[-1]
    is_open = any(row["finished"] is None for row in rows)
    ended = None if is_open else largest(row["finished"] for row in rows)
    began = smallest(map(begun, rows))
    return Bar(
        began or 0, ended, len(rows), mode(rows, "cause"), first["cause_member"], first["from_epoch"],
        last["to_epoch"], first["members_before"], last["members_after"],
        total(row["partitions_moved"] for row in rows), all(row["started"] is not None for row in rows),
    )  # fmt: skip
