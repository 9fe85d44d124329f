"""The part of a write to a log that waits for the disk more than once: a thread does all of it, step by step.

**Closing a segment.** The bytes of a segment and the order in which they reach the disk decide what a crash may leave.
The rule is: *nothing of a new segment exists, not even its name, before the old segment is on the disk.* One thread
takes these steps for each segment that is closed:

1. Write the rest of its bytes (those of the first one are written already, by the loop), and sync its file.
2. Write and sync both indexes, and the producer snapshot that belongs to the next segment.
3. Sync `partition.metadata`, the log's directory and the root. Under `log.sync=os` nothing of a log was synced before.
4. Only now create the files of the next segment, and write its bytes.

Then the last segment's bytes and the directory with its new name are synced, and the commit is done.

So a crash finds the name of a new segment only after step 3, and then every older segment is whole and its indexes can
be trusted. Recovery may go on checking the last segment alone. A crash before step 4 leaves the old segment as the
last one, which recovery checks and cuts; a producer snapshot beyond the log's end is removed at the next start.

Meanwhile the loop takes appends: to the new segment, in memory. Nobody reads or acknowledges them: `written_end` and
the durable ends stay at the new segment's base until the commit that the write belongs to is complete, and the next
commit is written only after that. The thread works with files of its own. It changes nothing of the segments; the
loop does, in `PartitionLog.end_write`. A segment's file that the loop has open, with bytes that are not synced, is
synced through that very descriptor (see open_files).

**Many logs.** Where no more files can be held open (see open_files), the same steps without a segment to close write,
sync and close one file.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.log.segment import FIRST_KINDS, Segment, segment_name
from kcoord.log.storage import File, FileSync, Folder, Syncable, write_synced

PARTITION_METADATA: Final = "partition.metadata"


@final
class SegmentWrite:
    """What is to be done to one segment. `data` is still to be written; `file` is open if the loop wrote before."""

    def __init__(self, segment: Segment, data: bytes, file: File | None) -> None:
        self.segment = segment
        self.data = data
        self.file = file
        self.name = segment_name(segment.base_offset)
        self.snapshot = segment.producer_snapshot


@final
class LogWrite:
    """See the module. A Syncable: `datasync` takes all the steps. `end` is the offset after the last byte.

    All of `writes` but the last are closed, and sealed before.
    """

    def __init__(self, folder: Folder, root: Syncable, writes: list[SegmentWrite], end: int) -> None:
        self.folder = folder
        self.root = root
        self.writes = writes
        self.end = end

    def datasync(self) -> None:
        """Raises OSError; then nothing is known about the log until it is opened again."""
        try:
            for i in range(len(self.writes) - 1):
                self._close(self.writes[i], self.writes[i + 1])
            if self._write(self.writes[-1]):
                self.folder.datasync()
        except FileNotFoundError:
            # The log was deleted, durably, and its files are gone.
            if not self.folder.is_moved:
                raise

    def _close(self, write: SegmentWrite, following: SegmentWrite) -> None:
        self._write(write)
        write.segment.write_indexes(self.folder, write.name)
        if following.snapshot is not None:
            write_synced(self.folder, f"{following.name}.snapshot", following.snapshot)
        FileSync(self.folder, PARTITION_METADATA).datasync()
        self.folder.datasync()
        self.root.datasync()

    def _write(self, write: SegmentWrite) -> bool:
        """Write and sync the bytes that are left; whether the segment's files had to be created."""
        is_new = not self.folder.exists(f"{write.name}.log")
        if is_new:
            # A segment without bytes has its files, too: compaction relies on them.
            for kind in FIRST_KINDS:
                self.folder.open(write.name + kind).close()
        if write.file is not None:
            write.file.datasync()
        if write.data:
            # Not kept open: many logs may be written at once.
            file = self.folder.open(f"{write.name}.log")
            try:
                file.append(write.data)
                file.datasync()
            finally:
                file.close()
        return is_new
