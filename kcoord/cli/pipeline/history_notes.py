"""A note on stderr about history that compaction removed before the logs were read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kcoord.cli.log.common import format_time, note
from kcoord.cli.pipeline.options import RunOptions
from kcoord.core.hashing import coordinator_partition
from kcoord.spark.jobs.completeness import LogHistory

# More logs than that are counted.
NAMED_MAX: Final = 3


def incomplete(histories: Sequence[LogHistory], options: RunOptions) -> list[LogHistory]:
    """Logs that lack history of the requested time and groups, the latest beginning first."""
    found = []
    for one in histories:
        if one.complete_from_offset == 0:
            continue
        # Records of the first millisecond may be missing.
        if one.from_ms is not None and one.from_ms < options.since_ms:
            continue
        if options.groups and not _may_hold(one, histories, options.groups):
            continue
        found.append(one)
    return sorted(found, key=lambda one: -1 if one.from_ms is None else one.from_ms, reverse=True)


def note_history(histories: Sequence[LogHistory], options: RunOptions) -> None:
    found = incomplete(histories, options)
    if not found:
        return
    has_logs = len({one.log for one in histories}) > 1
    named = []
    for one in found[:NAMED_MAX]:
        name = f"{one.log}: {one.name}" if has_logs else one.name
        time = "" if one.from_ms is None else f" ({format_time(one.from_ms)})"
        named.append(f"{name} from offset {one.complete_from_offset}{time} on")
    more = f", and {len(found) - NAMED_MAX} more logs later than their beginning" if len(found) > NAMED_MAX else ""
    note(
        f"compaction removed history, which is complete only in {'; '.join(named)}{more}. Of what was before, only the "
        "newest record of each key is left: see history_complete_from, and docs/pipeline.md on how to keep history"
    )


def _may_hold(one: LogHistory, histories: Sequence[LogHistory], groups: Sequence[str]) -> bool:
    """Whether a log is that of one of the groups; where partitions are missing, any may be."""
    partitions = sorted(other.partition for other in histories if other.log == one.log)
    if partitions != list(range(len(partitions))):
        return True
    return one.partition in {coordinator_partition(group, len(partitions)) for group in groups}
