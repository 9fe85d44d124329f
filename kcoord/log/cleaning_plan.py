"""Decides when and how far to clean a compacted log: the rules of Kafka's cleaner, plus the history that is kept.

Only closed segments are cleaned. Segments with records younger than `min_lag_ms` wait. The newest segments stay
uncleaned for `history_ms`, as long as they and everything after them have at most `history_bytes`, so that users can
look up past states in them. If a log grows quickly, they have less, by what is written in `room_ms`: this is room for
what comes while the cleaner works, so the whole log has about `history_bytes`. A log is cleaned if more than
`dirty_ratio` of its cleanable bytes were never cleaned, or if a record that was never cleaned is older than
`max_lag_ms`. The active segment is closed for this once it is old enough, even without traffic.

A log with much to clean is cleaned in pieces of about `piece_bytes` of uncleaned segments (0: all at once), or of as
many bytes as there are cleaned ones: each piece rewrites these. If very much waits, pieces are larger, since each has
a fixed cost, too. What a piece has done lasts, whatever ends the server.
"""

from __future__ import annotations

from typing import Final

from kcoord.log.partition_log import PartitionLog
from kcoord.log.segment import Segment
from kcoord.wire.record_batch import NO_TIMESTAMP

# A piece has at least a quarter of what waits.
PIECES_WAITING: Final = 4
# At least this part of `history_bytes` is history, however quickly the log grows.
HISTORY_SHARE_MIN: Final = 0.5


class CleaningPolicy:
    """The settings described in the module docstring. Ages refer to record timestamps; `history_ms` 0 keeps none."""

    def __init__(
        self,
        dirty_ratio: float,
        min_lag_ms: int,
        max_lag_ms: int,
        segment_ms: int,
        history_ms: int = 0,
        history_bytes: int = 0,
        piece_bytes: int = 0,
        room_ms: int = 0,
    ) -> None:
        self.dirty_ratio = dirty_ratio
        self.min_lag_ms = min_lag_ms
        self.max_lag_ms = max_lag_ms
        self.segment_ms = segment_ms
        self.history_ms = history_ms
        self.history_bytes = history_bytes
        self.piece_bytes = piece_bytes
        self.room_ms = room_ms


class CleaningPlan:
    """The `bases` of the segments to clean, if any; `must_roll` requires closing the active segment first.

    `size_bytes` is the size of these segments, and `waiting_bytes` that of all segments that have to be cleaned.
    """

    def __init__(
        self, bases: list[int], first_dirty: int, size_bytes: int, must_roll: bool, waiting_bytes: int = 0
    ) -> None:
        self.waiting_bytes = waiting_bytes
        self.bases = bases
        self.first_dirty = first_dirty
        self.size_bytes = size_bytes
        self.must_roll = must_roll


def plan_cleaning(log: PartitionLog, policy: CleaningPolicy, first_dirty: int, now_ms: int) -> CleaningPlan:
    """Plan the cleaning of `log` at wall time `now_ms`. Raises LogDamaged."""
    active = log.segments[-1]
    age = min(policy.segment_ms, policy.max_lag_ms)
    must_roll = bool(active.end_position) and is_older(first_timestamp_of(active), age, now_ms)
    if first_dirty > log.end_offset:
        # The checkpoint belongs to an earlier log of the same name.
        first_dirty = 0
    closed = log.closed_segments
    closed = closed[: _cleanable_count(log, closed, policy, now_ms)]
    ends = [segment.base_offset for segment in log.segments[1:]]
    dirty = [segment for segment, end in zip(closed, ends, strict=False) if end > first_dirty]
    size = sum(segment.size for segment in closed)
    dirty_size = sum(segment.size for segment in dirty)
    is_due = dirty_size > policy.dirty_ratio * size
    if not is_due:
        is_due = any(is_older(first_timestamp_of(segment), policy.max_lag_ms, now_ms) for segment in dirty)
    if not is_due or not dirty:
        return CleaningPlan([], first_dirty, size, must_roll)
    piece = closed[: _piece_count(closed, dirty, dirty_size, policy.piece_bytes)]
    bases = [segment.base_offset for segment in piece]
    return CleaningPlan(bases, first_dirty, sum(segment.size for segment in piece), must_roll, dirty_size)


def _piece_count(closed: list[Segment], dirty: list[Segment], dirty_size: int, piece_bytes: int) -> int:
    """How many of the closed segments are cleaned at once."""
    count = len(closed) - len(dirty)
    if not piece_bytes:
        return len(closed)
    left = max(piece_bytes, dirty_size // PIECES_WAITING, sum(segment.size for segment in closed[:count]))
    for segment in dirty:
        count += 1
        left -= segment.size
        if left <= 0:
            break
    return count


def _cleanable_count(log: PartitionLog, closed: list[Segment], policy: CleaningPolicy, now_ms: int) -> int:
    count = 0
    while count < len(closed):
        newest = closed[count].max_timestamp
        if policy.min_lag_ms and newest != NO_TIMESTAMP and now_ms - newest < policy.min_lag_ms:
            break
        count += 1
    kept_bytes = log.size_bytes - sum(segment.size for segment in closed) + _room_bytes(log, policy, now_ms)
    for i in range(len(closed) - 1, -1, -1):
        newest = closed[i].max_timestamp
        kept_bytes += closed[i].size
        is_recent = newest != NO_TIMESTAMP and now_ms - newest <= policy.history_ms
        if not policy.history_ms or not is_recent or kept_bytes > policy.history_bytes:
            return min(count, i + 1)
    return 0


def _room_bytes(log: PartitionLog, policy: CleaningPolicy, now_ms: int) -> int:
    """How much was written in the last `room_ms`, by the timestamps, but not more than a part of the history."""
    if not policy.room_ms or not log.closed_segments:
        return 0
    begin = now_ms - policy.room_ms
    most = policy.history_bytes - int(policy.history_bytes * HISTORY_SHARE_MIN)
    written = 0
    for segment in reversed(log.segments):
        first, last = first_timestamp_of(segment), segment.max_timestamp
        if not segment.size and written == 0:
            continue  # just begun
        if first == NO_TIMESTAMP or first > now_ms or last <= begin:
            break
        if first < begin:
            return min(written + segment.size * (last - begin) // (last - first), most)
        written += segment.size
    return min(written, most)


def first_timestamp_of(segment: Segment) -> int:
    segment.load_indexes()
    return segment.first_timestamp


def is_older(timestamp: int, age_ms: int, now_ms: int) -> bool:
    return timestamp != NO_TIMESTAMP and now_ms - timestamp > age_ms
