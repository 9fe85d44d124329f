"""The part of a write to a log that waits for the disk more than once; a thread executes it step by step.

**Closing a segment.** The order in which bytes and names reach the disk determines what a crash can leave.
The rule is: *nothing of a new segment exists, not even its name, before the old segment is on disk.* One thread
executes these steps for each segment that is closed:

1. Write the remaining bytes of the segment and sync its file. (The loop has written those of the first segment.)
2. Write and sync both indexes, and the producer snapshot that belongs to the next segment.
3. Sync `partition.metadata`, the log's directory and the root. Under `log.sync=os` nothing was synced before.
4. Only now create the files of the next segment, and write its bytes.

Then the last segment's bytes and the directory with its new name are synced, and the commit is done.

So the name of a new segment can survive a crash only after step 3. By then every older segment is whole and its indexes
are valid. That is why recovery needs to check only the last segment. A crash before step 4 leaves the old segment as
the last one, which recovery checks and truncates. The next start removes a producer snapshot beyond its end.

Meanwhile the loop appends to the new segment in memory. These records are neither readable nor acknowledged:
`written_end` and the durable end stay at the new segment's base until the commit is complete, and the next commit is
written only after that. The thread opens its own files and changes no segment object; the loop does that later, in
`PartitionLog.end_write`. If the loop has a segment's file open with bytes that are not synced, the thread syncs it
through the same descriptor (see open_files).

**Many logs.** If no more files can be held open (see open_files), the same steps, without a segment to close, write,
sync and close one file.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.log.segment import FIRST_KINDS, Segment, segment_name
from kcoord.log.storage import File, FileSync, Folder, Syncable, write_synced

PARTITION_METADATA: Final = "partition.metadata"


@final
class SegmentWrite:
    """The work on one segment. `data` must still be written; `file` is set if the loop wrote unsynced bytes to it.

    A file that may end in zeros is always synced, so that a closed segment does not do so after a crash.
    """

    def __init__(self, segment: Segment, data: bytes, file: File | None) -> None:
        self.segment = segment
        self.data = data
        self.file = file
        self.name = segment_name(segment.base_offset)
        self.snapshot = segment.producer_snapshot
        self.may_end_in_zeros = segment.may_end_in_zeros


@final
class LogWrite:
    """The steps of the module docstring as a Syncable: `datasync` executes them. `end` is the end offset afterwards.

    All segments of `writes` but the last are closed; their index entries are complete (`Segment.seal`).
    """

    def __init__(self, folder: Folder, root: Syncable, writes: list[SegmentWrite], end: int) -> None:
        self.folder = folder
        self.root = root
        self.writes = writes
        self.end = end

    def datasync(self) -> None:
        """Execute all steps. After an OSError the contents of the log are unknown until it is opened again."""
        try:
            for i in range(len(self.writes) - 1):
                self._close(self.writes[i], self.writes[i + 1])
            if self._write(self.writes[-1]):
                self.folder.datasync()
        except FileNotFoundError:
            # The log was deleted, durably, and its files were removed.
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
        """Write and sync the remaining bytes. Returns whether the segment's files had to be created."""
        is_new = not self.folder.exists(f"{write.name}.log")
        if is_new:
            # Also for an empty segment: compaction relies on the files.
            for kind in FIRST_KINDS:
                self.folder.open(write.name + kind).close()
        if write.file is not None:
            write.file.datasync()
        if write.data or (write.may_end_in_zeros and write.file is None):
            # The file is closed again, because one commit may write many logs.
            file = self.folder.open(f"{write.name}.log")
            try:
                if write.data:
                    file.append(write.data)
                file.datasync()
            finally:
                file.close()
        return is_new
