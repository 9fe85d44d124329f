"""Every commit, as `kcoord.spark.jobs.offsets_history` defines it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kcoord.core.outcome import OFFSETS_TOPIC
from kcoord.spark.jobs.completeness import COMPLETE_FROM, PLACE, LogHistory
from kcoord.spark.jobs.counting import KEYS
from kcoord.spark.jobs.lag import PARTITION
from kcoord.spark.jobs.offsets_history import LOG_START, TOMBSTONE, TOPIC_RECREATED
from kcoord.spark.short.counting import commit_offsets, commit_times
from kcoord.spark.short.runs import (
    MISSING,
    back_in_place,
    begins_of,
    ends_of,
    first_rows,
    flags,
    in_order,
    integers,
    keys_of,
    least_of,
    nullable,
    running_max,
)
from kcoord.spark.tables.arrow import BIGINT, STRING, TIMESTAMP

REASONS: Final = (LOG_START, TOPIC_RECREATED, TOMBSTONE)
NO_REASON: Final = -1
NO_TOPIC: Final = -1


def offsets_history(
    commits: pa.Table, messages: pa.Table | None = None, histories: Sequence[LogHistory] = ()
) -> pa.Table:
    """A row for each commit, in their order. `commits` is the table `offset_commits`, or what `counting` makes of it.
    `messages` has PARTITION and `offset` of the table `messages`: log starts come from it. `histories` are the rows of
    the table `_history`.
    """
    keys, _ = keys_of(commits, KEYS)
    offsets = commit_offsets(commits)
    order = in_order(keys, offsets)
    begins = begins_of(keys[order])
    ends = ends_of(keys[order])

    times = commit_times(commits)[order]
    committed = committed_offsets(commits)[order]
    is_gone = committed == MISSING

    valid_from = running_max(times, begins)
    valid_to = np.where(ends, MISSING, np.roll(valid_from, -1))
    previous = _before(committed, begins)
    previous_time = _before(times, begins)

    has_gap = ~is_gone & (previous != MISSING)
    gap = np.where(has_gap, committed - np.where(has_gap, previous, 0), MISSING)
    complete_offset, complete_from = completeness(commits, histories)
    is_known = offsets >= np.where(complete_offset == MISSING, 0, complete_offset)
    has_seconds = is_known[order] & (times != MISSING) & (previous_time != MISSING)
    seconds = np.where(has_seconds, times / 1_000_000.0 - previous_time / 1_000_000.0, 0.0)
    has_rate = has_seconds & (seconds > 0) & has_gap & (gap >= 0)
    rate = np.divide(gap, seconds, out=np.zeros(len(gap)), where=has_rate)
    is_rewind = has_gap & (gap < 0)

    starts = np.full(len(keys), MISSING) if messages is None else log_starts(commits, messages)
    begins_again = (committed == 0) | ((committed == starts[order]) & ~is_gone)
    reasons = np.full(len(keys), NO_REASON)
    # Later ones count more.
    reasons[is_rewind & begins_again] = REASONS.index(LOG_START)
    reasons[_has_other_topic(commits, order, begins)] = REASONS.index(TOPIC_RECREATED)
    reasons[~begins & np.roll(is_gone, 1)] = REASONS.index(TOMBSTONE)
    reasons[is_gone] = NO_REASON

    def placed(values: Any) -> Any:
        return back_in_place(order, values)

    def numbers(values: Any, is_there: Any) -> pa.Array:
        return pa.array(placed(values), mask=~placed(is_there))

    reason = pa.array(REASONS, STRING).take(pa.array(placed(reasons), mask=placed(reasons) == NO_REASON))
    columns = {
        **{name: commits.column(name) for name in ("log", "group_id", "topic", "partition")},
        "valid_from": nullable(placed(valid_from), TIMESTAMP),
        "valid_to": nullable(placed(valid_to), TIMESTAMP),
        "committed_offset": nullable(placed(committed), BIGINT),
        "previous_offset": nullable(placed(previous), BIGINT),
        "offset_gap": nullable(placed(gap), BIGINT),
        "seconds_since_previous": numbers(seconds, has_seconds),
        "rate": numbers(rate, has_rate),
        "is_rewind": pa.array(placed(is_rewind)),
        "is_reset": reason.is_valid(),
        "reset_reason": reason,
        "is_tombstone": pa.array(placed(is_gone)),
        **{
            name: commits.column(name)
            for name in (
                "leader_epoch", "metadata", "commit_timestamp", "expire_timestamp", "topic_id", "producer_id",
                "log_topic", "log_partition", "log_offset", "log_timestamp",
            )
        },
        COMPLETE_FROM: nullable(complete_from, TIMESTAMP),
    }  # fmt: skip
    return pa.table(columns)


def _has_other_topic(commits: pa.Table, order: Any, begins: Any) -> Any:
    """Whether a commit is for another topic of the same name than the one before."""
    topics, _ = keys_of(commits, ["topic_id"])
    topics = np.where(commits.column("topic_id").is_null().to_numpy(), NO_TOPIC, topics)[order]
    previous = np.where(begins, NO_TOPIC, np.roll(topics, 1))
    return (topics != NO_TOPIC) & (previous != NO_TOPIC) & (topics != previous)


def offset_of(history: pa.Table, at_us: int) -> pa.Table:
    """The offsets of groups at a time, as `kcoord.spark.jobs.offsets_history.offset_of` returns them."""
    valid_from, valid_to = integers(history.column("valid_from")), integers(history.column("valid_to"))
    is_valid = (valid_from != MISSING) & (valid_from <= at_us) & ((valid_to == MISSING) | (at_us < valid_to))
    return history.filter(is_valid & ~flags(history.column("is_tombstone"))).combine_chunks()


def committed_offsets(commits: pa.Table) -> Any:
    """MISSING where nothing is committed: tombstones, and offsets of -1."""
    committed = integers(commits.column("committed_offset"))
    return np.where(flags(commits.column("is_tombstone")) | (committed < 0), MISSING, committed)


def completeness(commits: pa.Table, histories: Sequence[LogHistory]) -> tuple[Any, Any]:
    """From which offset on the log of each commit is complete, and from which time on."""
    known = {(one.log, one.partition): one for one in histories if one.topic == OFFSETS_TOPIC}
    places, count = keys_of(commits, PLACE)
    first = first_rows(places, count)
    offsets = np.full(count, MISSING)
    times = np.full(count, MISSING)
    for place, row in enumerate(first.tolist()):
        one = known.get((commits.column("log")[row].as_py(), commits.column("log_partition")[row].as_py()))
        if one is not None:
            offsets[place] = one.complete_from_offset
            times[place] = MISSING if one.from_ms is None else one.from_ms * 1000
    return offsets[places], times[places]


def log_starts(commits: pa.Table, messages: pa.Table) -> Any:
    """For each commit the first offset of its partition."""
    of_commits, of_messages, count = partitions_of(commits, messages)
    return least_of(of_messages, integers(messages.column("offset")), count)[of_commits]


def partitions_of(commits: pa.Table, messages: pa.Table) -> tuple[Any, Any, int]:
    """The partitions of commits and of messages as numbers, and how many there are."""
    both = pa.concat_tables([commits.select(PARTITION), messages.select(PARTITION)])
    numbers, count = keys_of(both, PARTITION)
    return numbers[: commits.num_rows], numbers[commits.num_rows :], count


def _before(values: Any, begins: Any) -> Any:
    """The value of the row before of the same key."""
    return np.where(begins, MISSING, np.roll(values, 1))
