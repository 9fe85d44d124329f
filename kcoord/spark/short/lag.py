"""The lag of groups, as `kcoord.spark.jobs.lag` defines it.

Each sample looks the messages of its partition up twice: how far the log went at that time, and when the first message
came that the group has not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord.spark.jobs.completeness import COMPLETE_FROM, LogHistory
from kcoord.spark.jobs.lag import KEYS, TICKS_MAX
from kcoord.spark.short.bounds import NotShort
from kcoord.spark.short.counting import commit_offsets, commit_times
from kcoord.spark.short.offsets_history import (
    committed_offsets,
    completeness,
    partitions_of,
)
from kcoord.spark.short.runs import (
    MISSING,
    Sorted,
    begins_of,
    ends_of,
    first_rows,
    in_order,
    integers,
    keys_of,
    largest_of,
    least_of,
    nullable,
    running_max,
)
from kcoord.spark.tables.arrow import BIGINT, TIMESTAMP

# More samples than that at regular times are left to Spark.
SAMPLES_MAX: Final = 4_000_000
CLASSIC: Final = "classic"
CURRENT: Final = "current"


class TooManySamples(ValueError):
    """Lag was asked for at more times than anybody can want."""


@final
@dataclass(frozen=True)
class Samples:
    """When lag is measured. `rows` are rows of the commits, whose keys the samples have. `is_old`: the commit was for a
    topic that was deleted and created again since."""

    rows: Any
    at: Any
    is_last: Any
    committed: Any
    committed_at: Any
    is_old: Any
    complete_from: Any

    def only(self, keep: Any) -> Samples:
        return Samples(*(getattr(self, name)[keep] for name in FIELDS))

    def and_these(self, other: Samples) -> Samples:
        return Samples(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in FIELDS))


FIELDS: Final = tuple(Samples.__dataclass_fields__)


@final
@dataclass(frozen=True)
class Lag:
    """Of each sample; MISSING where it is not known. Seconds only count where `has_seconds`."""

    log_start: Any
    end: Any
    records: Any
    seconds: Any
    has_seconds: Any


def lag(
    commits: pa.Table,
    messages: pa.Table,
    assignments: pa.Table | None,
    now_us: int,
    every_s: float = 0,
    until_us: int | None = None,
    histories: Sequence[LogHistory] = (),
) -> pa.Table:
    """`commits`, `messages` and `assignments` have the columns that `kcoord.spark.jobs.lag` names; `commits` may be
    what `counting` makes of them. Times are microseconds. Raises TooManySamples, and NotShort for more than
    SAMPLES_MAX.
    """
    _, complete_from = completeness(commits, histories)
    times = commit_times(commits)
    came = believed(messages, now_us)
    end = until_us
    if end is None:
        end = max((int(one.max()) for one in (times, came) if len(one)), default=MISSING)
    states = States(commits, times, complete_from, end, until_us is not None)
    wanted = states.that_began()
    ticked, ticks = states.ticks(wanted, every_s, SAMPLES_MAX)
    of_group = np.concatenate([ticked, wanted])
    when = np.concatenate([ticks, np.full(len(wanted), end)])
    is_last = np.concatenate([np.zeros(len(ticks), bool), np.ones(len(wanted), bool)])
    samples = states.at_times(of_group, when, is_last)
    if every_s <= 0:
        samples = states.own().and_these(samples)
    found = Messages(commits, messages, came, until_us).lag(samples)
    return _table(commits, samples, found, assignments)


def believed(messages: pa.Table, now_us: int) -> Any:
    """The timestamps of messages, MISSING if they are later than now."""
    stamps = integers(messages.column("timestamp"))
    return np.where(stamps <= now_us, stamps, MISSING)


def _table(commits: pa.Table, samples: Samples, found: Lag, assignments: pa.Table | None) -> pa.Table:
    rows = pa.array(samples.rows)
    has_none = found.records == 0
    columns = {name: commits.column(name).take(rows) for name in KEYS}
    columns |= {
        "at": nullable(samples.at, TIMESTAMP),
        "is_last": pa.array(samples.is_last),
        "committed_offset": nullable(samples.committed, BIGINT),
        "committed_at": nullable(samples.committed_at, TIMESTAMP),
        "log_start": nullable(found.log_start, BIGINT),
        "end_offset": nullable(found.end, BIGINT),
        "lag_records": nullable(found.records, BIGINT),
        "lag_seconds": pa.array(found.seconds, mask=~(found.has_seconds | has_none)),
        COMPLETE_FROM: nullable(samples.complete_from, TIMESTAMP),
        "is_left": _is_left(commits, samples.rows, assignments),
    }
    return pa.table(columns)


@final
class States:
    """Every change of what groups have committed. Groups are numbers here: each is one for a partition of a topic.

    `times` and `complete_from` are of the commits. `end` is the last time at which lag is measured, and with `is_until`
    later commits are ignored.
    """

    def __init__(self, commits: pa.Table, times: Any, complete_from: Any, end: int, is_until: bool) -> None:
        groups, count = keys_of(commits, KEYS)
        self.end = end
        # A commit of each group.
        self.first = first_rows(groups, count)
        # Changes in the order of their logs: a group's commits for a partition may be in several.
        places, _ = keys_of(commits, [*KEYS, "log_partition"])
        log_offsets = commit_offsets(commits)
        order = in_order(places, log_offsets)
        at = running_max(times[order], begins_of(places[order]))
        has_time = at != MISSING
        self.begin = least_of(groups[order][has_time], at[has_time], count)
        self.complete = largest_of(groups, complete_from, count)
        if is_until:
            is_within = has_time & (at <= end)
            order, at = order[is_within], at[is_within]
        # And now by time.
        by_time = in_order(groups[order], at, log_offsets[order])
        self.rows, self.at = order[by_time], at[by_time]
        self.committed = committed_offsets(commits)[self.rows]
        self.is_old = _of_older_topics(commits, log_offsets, places)[self.rows]
        self.complete_from = complete_from[self.rows]
        self.known = Sorted(groups[self.rows], self.at, count)

    def that_began(self) -> Any:
        """The groups that have committed something up to the end."""
        return np.flatnonzero(self.begin <= self.end)

    def ticks(self, groups: Any, every_s: float, most: int) -> tuple[Any, Any]:
        """Multiples of `every_s` since 1970 from a group's beginning on and before the end: groups, and times. Raises
        TooManySamples, and NotShort for more than `most`."""
        groups = groups[self.begin[groups] != MISSING]
        if every_s <= 0 or not len(groups):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        step = round(every_s * 1_000_000)
        first = np.ceil(self.begin[groups] / step).astype(np.int64) * step
        counts = np.maximum(np.floor((self.end - 1 - first) / step).astype(np.int64) + 1, 0)
        if counts.max() > TICKS_MAX:
            raise TooManySamples(
                f"more than {TICKS_MAX} samples of one partition; ask for them less often than every {every_s:g} s"
            )
        total = int(counts.sum())
        if total > most:
            raise NotShort(f"{total} samples")
        numbers = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(groups, counts), np.repeat(first, counts) + numbers * step

    def at_times(self, groups: Any, when: Any, is_last: Any) -> Samples:
        """What groups had committed at these times, as far as it was something."""
        last = self.known.after(groups, when) - 1
        keep = last >= self.known.bounds[groups]
        keep[keep] = self.committed[last[keep]] != MISSING
        groups, last = groups[keep], last[keep]
        return Samples(
            self.first[groups], when[keep], is_last[keep], self.committed[last], self.at[last], self.is_old[last],
            self.complete[groups],
        )  # fmt: skip

    def own(self) -> Samples:
        """At each change, as far as something was committed then."""
        none_is = np.zeros(len(self.rows), bool)
        every = Samples(self.rows, self.at, none_is, self.committed, self.at, self.is_old, self.complete_from)
        return every.only(self.committed != MISSING)


@final
class Messages:
    """When the messages came to the partitions of `commits`. `came` are their timestamps, as far as believed."""

    def __init__(self, commits: pa.Table, messages: pa.Table, came: Any, until_us: int | None) -> None:
        self.of_commits, of_messages, count = partitions_of(commits, messages)
        offsets = integers(messages.column("offset"))
        order = in_order(of_messages, offsets)
        partitions, offsets = of_messages[order], offsets[order]
        came = running_max(came[order], begins_of(partitions))
        if until_us is not None:
            # Times never go back in a partition, so these are its first messages.
            is_there = came <= until_us
            partitions, offsets, came = partitions[is_there], offsets[is_there], came[is_there]
        self.by_offset, self.by_time = Sorted(partitions, offsets, count), Sorted(partitions, came, count)
        self.firsts, self.ends = self.by_offset.bounds[:-1], self.by_offset.bounds[1:]
        # Nothing is known of when messages before these came.
        self.timed = self.by_time.after(np.arange(count), np.full(count, MISSING))
        # With a place that exists, for what has none.
        self.offsets, self.came = np.append(offsets, MISSING), np.append(came, MISSING)
        self.starts = np.where(self.firsts < self.ends, self.offsets[self.firsts], MISSING)

    def lag(self, samples: Samples) -> Lag:
        mine = self.of_commits[samples.rows]
        # Nothing is known of the messages of a topic that was deleted.
        log_start = np.where(samples.is_old, MISSING, self.starts[mine])
        begin = np.maximum(samples.committed, log_start)
        after = self.by_time.after(mine, samples.at)
        is_known = (after > self.firsts[mine]) & ~samples.is_old
        # A partition that begins with its first message ever was empty before it.
        end = np.where(is_known, self.offsets[after - 1] + 1, np.where(log_start == 0, 0, MISSING))
        records = np.where(end == MISSING, MISSING, np.maximum(end - begin, 0))
        waiting = np.maximum(self.by_offset.first(mine, begin), self.timed[mine])
        since = np.where(waiting < self.ends[mine], self.came[waiting], MISSING)
        # Where the first message with a time came later, those before it came at an unknown one.
        has_seconds = (records > 0) & (samples.at != MISSING) & (since != MISSING) & (since <= samples.at)
        seconds = np.where(has_seconds, (samples.at - np.where(has_seconds, since, 0)) / 1_000_000.0, 0.0)
        return Lag(log_start, end, records, seconds, has_seconds)


# --- topics that were deleted


def _of_older_topics(commits: pa.Table, log_offsets: Any, places: Any) -> Any:
    """Whether the newest commit of the same place that has a topic id has another one. Places are numbers."""
    has_id = commits.column("topic_id").is_valid().to_numpy()
    rows = np.flatnonzero(has_id)
    if not len(rows):
        return has_id
    ids, _ = keys_of(commits, ["topic_id"])
    order = rows[in_order(places[rows], log_offsets[rows])]
    last = order[ends_of(places[order])]
    newest = np.full(int(places.max()) + 1, MISSING)
    newest[places[last]] = ids[last]
    return has_id & (ids != newest[places])


# --- topics that a group has left


def _is_left(commits: pa.Table, rows: Any, assignments: pa.Table | None) -> pa.Array:
    """Whether the group of each of these rows has members, and none of them has the topic; null where names of topics
    are missing, and without `assignments`."""
    if assignments is None:
        return pa.nulls(len(rows), pa.bool_())
    held = held_topics(assignments)
    groups, count = keys_of(commits, ["log", "group_id", "topic"])
    answers: list[bool | None] = []
    for row in first_rows(groups, count).tolist():
        log, group_id, topic = (commits.column(name)[row].as_py() for name in ("log", "group_id", "topic"))
        answers.append(is_left(held.get((log, group_id)), topic))
    return pa.array(answers, pa.bool_()).take(pa.array(groups[rows]))


def is_left(topics: set[str | None] | None, topic: str) -> bool | None:
    """`topics` are those that members have, with None for one without a name; or None without members."""
    if topics is None or topic in topics:
        return False
    return None if None in topics else True


def held_topics(assignments: pa.Table) -> dict[tuple[str, str], set[str | None]]:
    """What members of each log and group have as of the end of the log."""
    columns = ("log", "group_id", "kind", "log_offset", "member_id", "topic", "topic_id", "partitions", "is_tombstone")
    found = assignments.filter(pc.equal(assignments.column("role"), CURRENT)).select(columns)
    rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
    # A classic group's record has all its members, so those of an older record have left.
    of_group: dict[tuple[str, str], int] = {}
    of_member: dict[tuple[str, str, str | None], int] = {}
    for log, group_id, kind, offset, member_id, *_ in rows:
        if kind == CLASSIC:
            of_group[log, group_id] = max(of_group.get((log, group_id), -1), offset)
        of_member[log, group_id, member_id] = max(of_member.get((log, group_id, member_id), -1), offset)
    held: dict[tuple[str, str], set[str | None]] = {}
    for log, group_id, kind, offset, member_id, topic, topic_id, partitions, is_tombstone in rows:
        newest = of_group[log, group_id] if kind == CLASSIC else of_member[log, group_id, member_id]
        if offset != newest or is_tombstone or member_id is None:
            continue
        topics = held.setdefault((log, group_id), set())
        if topic is not None or topic_id is not None or partitions is None:
            topics.add(topic)
    return held
