"""The lag of groups, as `kcoord.spark.jobs.lag` defines it.

Each sample looks up the messages of its partition twice: how far the log went at that time, and when the first message
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
from kcoord.spark.short.offsets_history import (
    commit_times,
    committed_offsets,
    completeness,
    first_rows,
    partitions_of,
)
from kcoord.spark.short.runs import MISSING, Sorted, begins_of, in_order, integers, keys_of, nullable, running_max
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
    """When lag is measured. `rows` are rows of the commits, whose keys the samples have."""

    rows: Any
    at: Any
    is_last: Any
    committed: Any
    committed_at: Any
    complete_from: Any


def lag(
    commits: pa.Table,
    messages: pa.Table,
    assignments: pa.Table | None,
    now_us: int,
    every_s: float = 0,
    until_us: int | None = None,
    histories: Sequence[LogHistory] = (),
) -> pa.Table:
    """`commits`, `messages` and `assignments` have the columns that `kcoord.spark.jobs.lag` names. Times are
    microseconds. Raises TooManySamples, and NotShort for more than SAMPLES_MAX.
    """
    _, complete_from = completeness(commits, histories)
    stamps = integers(messages.column("timestamp"))
    believed = np.where(stamps <= now_us, stamps, MISSING)
    end = until_us
    if end is None:
        times = (commit_times(commits), believed)
        end = max((int(one.max()) for one in times if len(one)), default=MISSING)
    samples = _samples(commits, complete_from, end, every_s, until_us is not None)
    return _measured(commits, samples, messages, believed, until_us, assignments)


# --- samples


def _samples(commits: pa.Table, complete_from: Any, end: int, every_s: float, is_until: bool) -> Samples:
    groups, count = keys_of(commits, KEYS)
    first = first_rows(groups, count)
    # States in the order of their logs: a group's commits for a partition may be in several.
    places, _ = keys_of(commits, [*KEYS, "log_partition"])
    order = in_order(places, integers(commits.column("log_offset")))
    at = running_max(commit_times(commits)[order], begins_of(places[order]))
    begin = np.full(count, np.iinfo(np.int64).max)
    has_time = at != MISSING
    np.minimum.at(begin, groups[order][has_time], at[has_time])
    begin[begin == np.iinfo(np.int64).max] = MISSING
    complete = np.full(count, MISSING)
    np.maximum.at(complete, groups, complete_from)
    if is_until:
        is_within = has_time & (at <= end)
        order, at = order[is_within], at[is_within]
    # And now by time.
    by_time = in_order(groups[order], at, integers(commits.column("log_offset"))[order])
    states, at = order[by_time], at[by_time]
    committed = committed_offsets(commits)[states]

    wanted = np.flatnonzero(begin <= end)
    ticked, ticks = _ticks(wanted, begin, end, every_s)
    of_group = np.concatenate([ticked, wanted])
    when = np.concatenate([ticks, np.full(len(wanted), end)])
    is_last = np.concatenate([np.zeros(len(ticks), bool), np.ones(len(wanted), bool)])
    known = Sorted(groups[states], at, count)
    last = known.after(of_group, when) - 1
    has_state = last >= known.bounds[of_group]
    of_group, when, is_last, last = of_group[has_state], when[has_state], is_last[has_state], last[has_state]
    found = Samples(first[of_group], when, is_last, committed[last], at[last], complete[of_group])
    if every_s <= 0:
        own = Samples(states, at, np.zeros(len(states), bool), committed, at, complete_from[states])
        fields = Samples.__dataclass_fields__
        found = Samples(*(np.concatenate([getattr(own, name), getattr(found, name)]) for name in fields))
    has_offset = found.committed != MISSING
    return Samples(*(getattr(found, name)[has_offset] for name in Samples.__dataclass_fields__))


def _ticks(groups: Any, begin: Any, end: int, every_s: float) -> tuple[Any, Any]:
    """Multiples of `every_s` since 1970 from a group's beginning on and before the end: groups, and times."""
    groups = groups[begin[groups] != MISSING]
    if every_s <= 0 or not len(groups):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    step = round(every_s * 1_000_000)
    first = np.ceil(begin[groups] / step).astype(np.int64) * step
    counts = np.maximum(np.floor((end - 1 - first) / step).astype(np.int64) + 1, 0)
    if counts.max() > TICKS_MAX:
        raise TooManySamples(
            f"more than {TICKS_MAX} samples of one partition; ask for them less often than every {every_s:g} s"
        )
    total = int(counts.sum())
    if total > SAMPLES_MAX:
        raise NotShort(f"{total} samples")
    numbers = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(groups, counts), np.repeat(first, counts) + numbers * step


# --- side by side


def _measured(
    commits: pa.Table, samples: Samples, messages: pa.Table, believed: Any, until_us: int | None,
    assignments: pa.Table | None,
) -> pa.Table:  # fmt: skip
    of_commits, of_messages, count = partitions_of(commits, messages)
    offsets = integers(messages.column("offset"))
    order = in_order(of_messages, offsets)
    partitions, offsets = of_messages[order], offsets[order]
    came = running_max(believed[order], begins_of(partitions))
    if until_us is not None:
        # Times never go back in a partition, so these are its first messages.
        is_there = came <= until_us
        partitions, offsets, came = partitions[is_there], offsets[is_there], came[is_there]
    by_offset, by_time = Sorted(partitions, offsets, count), Sorted(partitions, came, count)
    firsts, ends = by_offset.bounds[:-1], by_offset.bounds[1:]
    # Nothing is known of when messages before these came.
    timed = by_time.after(np.arange(count), np.full(count, MISSING))

    mine = of_commits[samples.rows]
    # A place that exists, for what has none.
    padded_offsets, padded_came = np.append(offsets, MISSING), np.append(came, MISSING)
    log_start = np.where(firsts < ends, padded_offsets[firsts], MISSING)[mine]
    begin = np.maximum(samples.committed, log_start)
    after = by_time.after(mine, samples.at)
    is_known = after > firsts[mine]
    end = np.where(is_known, padded_offsets[after - 1] + 1, np.where(log_start == 0, 0, MISSING))
    records = np.where(end == MISSING, MISSING, np.maximum(end - begin, 0))
    waiting = np.maximum(by_offset.first(mine, begin), timed[mine])
    since = np.where(waiting < ends[mine], padded_came[waiting], MISSING)
    has_seconds = (records > 0) & (samples.at != MISSING) & (since != MISSING)
    seconds = np.where(has_seconds, (samples.at - np.where(has_seconds, since, 0)) / 1_000_000.0, 0.0)

    rows = pa.array(samples.rows)
    columns = {name: commits.column(name).take(rows) for name in KEYS}
    columns |= {
        "at": nullable(samples.at, TIMESTAMP),
        "is_last": pa.array(samples.is_last),
        "committed_offset": nullable(samples.committed, BIGINT),
        "committed_at": nullable(samples.committed_at, TIMESTAMP),
        "log_start": nullable(log_start, BIGINT),
        "end_offset": nullable(end, BIGINT),
        "lag_records": nullable(records, BIGINT),
        "lag_seconds": pa.array(seconds, mask=~(has_seconds | (records == 0))),
        COMPLETE_FROM: nullable(samples.complete_from, TIMESTAMP),
        "is_left": _is_left(commits, samples.rows, assignments),
    }
    return pa.table(columns)


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
