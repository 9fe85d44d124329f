"""Determines where the replay of a coordinator log may begin: at its state checkpoint, if that lies before the point.

A state checkpoint at N holds the newest record of every key below N, as of the time it was written. Later compaction
does not change it. So it may give the state at N even if the log alone no longer can.

For a time, no record below N may be newer. The log alone cannot show this, because compaction may have removed such
records from it. So the checkpoint's own records count as well. But it has none of the keys that were deleted below N.
Therefore the last record below N must still exist, or the first one after N must not be newer than that time: records
of a coordinator have the server's time, so those before them are not newer either.
"""

from __future__ import annotations

import os
from typing import Final, final

from kcoord.cli.log.common import format_time
from kcoord.cli.log.points import Point
from kcoord.engine.batch_walk import BatchWalk
from kcoord.log.errors import LogDamaged
from kcoord.log.inspect import DataDirectory, PartitionFiles, SegmentFile
from kcoord.log.partition_log import INT64_MAX, Extent
from kcoord.log.reader import DamagedBytes
from kcoord.log.state_file import STATE_FILE, BadStateFile, StateFile, read_state_file
from kcoord.log.storage import DiskFile, DiskStorage

NONE_THERE: Final = "there is no state checkpoint"


@final
class LookedAtFile(DiskFile):
    """A file opened read-only."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = os.fstat(self._fd).st_size


@final
class LookedAtStorage(DiskStorage):
    """Read-only access to a directory of kcoord or Kafka. Paths may be absolute."""

    def open(self, path: str) -> DiskFile:
        return LookedAtFile(self._path(path))


@final
class Start:
    """Where to begin: at the end of the checkpoint `found`, or at the log's beginning if that is None.

    `reason` is why no checkpoint is used. `timestamp` is that of the last batch before the checkpoint's end.
    """

    def __init__(self, found: StateFile | None, reason: str, timestamp: int = -1) -> None:
        self.found = found
        self.reason = reason
        self.timestamp = timestamp


def start_for(directory: DataDirectory, files: PartitionFiles, point: Point) -> Start:
    """Whether a log's state checkpoint can be used for a point. Raises LogDamaged and OSError."""
    storage = LookedAtStorage(files.path)
    try:
        found = read_state_file(storage, os.path.join(files.path, STATE_FILE))
    except BadStateFile as error:
        return Start(None, f"its state checkpoint cannot be used: {error}")
    if found is None:
        return Start(None, NONE_THERE)
    end = found.end_offset
    place = f"its state checkpoint is at offset {end}"
    if 0 <= point.offset < end:
        return Start(None, f"{place}, after that point")
    if end > directory.readable_end(files):
        return Start(None, f"{place}, beyond the durable mark")
    survey = _Survey(storage, files, end, point.time_ms >= 0)
    if survey.end < end:
        return Start(None, f"{place}, and the log ends before it")
    if point.time_ms >= 0:
        survey.add_checkpoint(found)
        if point.time_ms < survey.newest:
            return Start(None, f"{place}, with records up to {format_time(survey.newest)}, after that point")
        if not survey.has_last and not _goes_on_before(directory, files, end, point.time_ms):
            return Start(None, f"{place}, and compaction removed the last record before it")
    return Start(found, "", survey.timestamp)


def _goes_on_before(directory: DataDirectory, files: PartitionFiles, offset: int, time_ms: int) -> bool:
    """Whether the first records from an offset on are known and not after a time. Raises OSError."""
    for item in directory.batches(files, offset):
        if isinstance(item, DamagedBytes):
            return False
        # A batch that compaction has emptied keeps its timestamps. -1 is none.
        if item.header.max_timestamp >= 0:
            return int(item.header.max_timestamp) <= time_ms
    return False


@final
class _Survey:
    """Surveys the log below an offset: its `end`, its `newest` timestamp if requested, and that of the last batch.

    For closed segments it uses the time indexes, if there are any. `has_last`: it has seen the last record there.
    """

    def __init__(self, storage: LookedAtStorage, files: PartitionFiles, upto: int, with_times: bool) -> None:
        self.storage = storage
        self.upto = upto
        self.end = 0
        self.newest = -1
        self.timestamp = -1
        self.has_last = False
        segments = files.segments
        for i, segment in enumerate(segments):
            if segment.base_offset >= upto:
                break
            following = segments[i + 1].base_offset if i + 1 < len(segments) else upto
            indexed = segment.indexed_timestamp() if with_times else 0
            if following < upto and indexed >= 0:
                self.newest = max(self.newest, indexed)
                continue
            self._walk(segment)
            if i + 1 < len(segments):
                # Compaction may have removed the last records before the next segment.
                self.end = max(self.end, following)

    def add_checkpoint(self, found: StateFile) -> None:
        """Survey the records of the checkpoint at that offset as well. Raises LogDamaged and OSError."""
        walk = BatchWalk(self.storage, found.extent)
        try:
            while (header := walk.advance()) is not None:
                self.newest = max(self.newest, header.max_timestamp)
                # Its batches end with a record, unlike those that compaction leaves in a log.
                self.has_last = self.has_last or header.last_offset + 1 == self.upto
        finally:
            walk.close()

    def _walk(self, segment: SegmentFile) -> None:
        walk = BatchWalk(self.storage, Extent(segment.path, 0, segment.size_bytes))
        try:
            while True:
                if self.end >= self.upto:
                    # What follows is not needed, and the newest segment may end in zeros.
                    return
                header = walk.advance()
                if header is None or header.base_offset >= self.upto:
                    return
                self.end = header.last_offset + 1
                self.timestamp = header.max_timestamp
                self.newest = max(self.newest, self.timestamp)
                if self.end == self.upto and header.count == header.last_offset_delta + 1:
                    self.has_last = True
        except LogDamaged:
            # The rest of the segment is unreadable; reading from the beginning will report the damage.
            self.newest = INT64_MAX
        finally:
            walk.close()
