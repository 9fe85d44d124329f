"""Plans retention: determines which offset may become the start of a log.

As in Kafka, whole durable segments are removed, oldest first: segments whose newest record is older than
`retention_ms`, then as many as leave the log with at least `retention_bytes`, and those below the log's start. If even
the active segment may be removed, it must be rolled first.
"""

from __future__ import annotations

from typing import Final

from kcoord.log.partition_log import PartitionLog
from kcoord.log.segment import Segment
from kcoord.wire.record_batch import NO_TIMESTAMP

UNLIMITED: Final = -1


class RetentionPolicy:
    """A topic's configuration; UNLIMITED for no bound. `deletes` is false for a topic that is only compacted."""

    def __init__(self, deletes: bool, retention_ms: int, retention_bytes: int) -> None:
        self.deletes = deletes
        self.retention_ms = retention_ms
        self.retention_bytes = retention_bytes


class RetentionPlan:
    """`start` is the first offset to keep; `must_roll` if the active segment is removed, too."""

    def __init__(self, start: int, must_roll: bool) -> None:
        self.start = start
        self.must_roll = must_roll


def plan_retention(log: PartitionLog, policy: RetentionPolicy, now_ms: int) -> RetentionPlan | None:
    """Plan what to remove from `log` at wall time `now_ms`; None for nothing. Raises LogDamaged.

    Records without a timestamp never expire.
    """
    segments = log.segments
    ends = [segment.base_offset for segment in segments[1:]] + [log.end_offset]
    count = 0
    size = log.size_bytes
    for segment, end in zip(segments, ends, strict=True):
        if end > log.durable_end or not segment.end_position:
            break
        is_below_start = end <= log.log_start_offset and segment is not segments[-1]
        if not is_below_start and not _is_expired(segment, policy, now_ms):
            break
        count += 1
        size -= segment.end_position
    if policy.deletes and policy.retention_bytes != UNLIMITED:
        excess = size - policy.retention_bytes
        while count < len(segments) and ends[count] <= log.durable_end:
            excess -= segments[count].end_position
            if excess < 0 or not segments[count].end_position:
                break
            count += 1
    if not count:
        return None
    return RetentionPlan(max(ends[count - 1], log.log_start_offset), count == len(segments))


def _is_expired(segment: Segment, policy: RetentionPolicy, now_ms: int) -> bool:
    if not policy.deletes or policy.retention_ms == UNLIMITED:
        return False
    newest = segment.max_timestamp
    return newest != NO_TIMESTAMP and now_ms - newest > policy.retention_ms
