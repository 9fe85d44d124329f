"""Moving the start of a log in one call, which the server does in steps: the start, its durability, the files."""

from __future__ import annotations

from kcoord.log.directory import LogDirectory
from kcoord.log.partition_log import PartitionLog


def advance_log_start(directory: LogDirectory, log: PartitionLog, offset: int) -> int:
    """Make `offset` the durable start of the log and remove the segments below it. Returns their number."""
    if offset <= log.log_start_offset:
        return 0
    directory.move_log_start(log, offset)
    directory.write_start_offsets(directory.take_starts())
    directory.starts_moved = False
    segments = log.take_segments_below(offset)
    for segment in segments:
        segment.remove()
    return len(segments)
