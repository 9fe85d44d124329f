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
loop does, in `PartitionLog.end_write`.

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

    def __init__(self, segment: Segment, data: bytes, file: File | None = None) -> None:
        self.segment = segment
        self.data = data
        self.file = file
        self.name = segment_name(segment.base_offset)
        self.snapshot = segment.producer_snapshot
        # The thread's own, which it leaves open.
        self.own: File | None = None


@final
class LogWrite:
    """See the module. A Syncable: `datasync` takes all the steps. `end` is the offset after the last byte.

    All of `writes` but the last are closed, and sealed before. `syncs_last` tells whether the last one is synced.
    """

    def __init__(
        self, folder: Folder, root: Syncable, writes: list[SegmentWrite], end: int, syncs_last: bool
    ) -> None:
        self.folder = folder
        self.root = root
        self.writes = writes
        self.end = end
        self.syncs_last = syncs_last

    def datasync(self) -> None:
        """Raises OSError; then nothing is known about the log until it is opened again."""
        try:
            for i in range(len(self.writes) - 1):
                self._close(self.writes[i], self.writes[i + 1])
            last = self.writes[-1]
            is_new = self._write(last, must_exist=len(self.writes) > 1)
            # Compaction relies on the name of a segment without bytes, too.
            if self.syncs_last or not last.data:
                self._sync(last)
                if is_new:
                    self.folder.datasync()
        except FileNotFoundError:
            # The log was deleted, durably, and its files are gone.
            if not self.folder.is_moved:
                raise
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Close what the thread opened."""
        for write in self.writes:
            if write.own is not None:
                write.own.close()
                write.own = None

    def _close(self, write: SegmentWrite, following: SegmentWrite) -> None:
        self._write(write, must_exist=True)
        self._sync(write)
        write.segment.write_indexes(self.folder, write.name)
        if following.snapshot is not None:
            write_synced(self.folder, f"{following.name}.snapshot", following.snapshot)
        FileSync(self.folder, PARTITION_METADATA).datasync()
        self.folder.datasync()
        self.root.datasync()

    def _write(self, write: SegmentWrite, must_exist: bool) -> bool:
        """Write the bytes that are left; whether the segment's files had to be created."""
        if write.file is not None or not (write.data or must_exist):
            return False
        is_new = not self.folder.exists(f"{write.name}.log")
        if is_new:
            for kind in FIRST_KINDS:
                self.folder.open(write.name + kind).close()
        if write.data:
            write.own = self.folder.open(f"{write.name}.log")
            write.own.append(write.data)
        return is_new

    def _sync(self, write: SegmentWrite) -> None:
        file = write.file or write.own
        if file is not None:
            file.datasync()
            return
        # Nothing was left to write, and what was written before is no longer open: it was synced then.
