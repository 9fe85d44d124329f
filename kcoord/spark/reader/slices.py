"""What is read, as plain data: the driver makes it, Spark pickles it, executors read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kcoord.log.segment import segment_name

# Beyond any offset and any timestamp in ms.
INT64_MAX = 0x7FFFFFFFFFFFFFFF
# Where a slice without a file begins and ends.
NO_FILE: Final = -1
# The end of the year 9999 in ms: where Spark's timestamps end, and Python's, which rows are collected into.
TIME_MS_MAX: Final = 253_402_300_799_999


@dataclass(frozen=True)
class SegmentFile:
    """A `.log` file as it was listed: its path in the filesystem, its size then, when it was written to and its inode.

    A time or an inode of 0 is unknown: object stores and HDFS have no inodes. The last segment of a log grows
    (`is_last`). segments.py checks whether the file is still the same.
    """

    path: str
    base_offset: int
    size: int
    modified_ns: int = 0
    inode: int = 0
    is_last: bool = False


@dataclass(frozen=True)
class LogPartition:
    """One partition's directory in one data directory.

    `log` names the data directory by its path below the one that is loaded, "." for that itself. `segments` are in
    the order of their offsets. `files` are the names of the other files in it. After a crash in the middle of
    compaction names are those that files have after recovery (kcoord/log/recovery.py); `renamed` has their current
    names, if those differ.
    """

    log: str
    topic: str
    partition: int
    path: str
    segments: tuple[SegmentFile, ...]
    files: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition} in {self.log}"

    def beside(self, segment: SegmentFile, suffix: str) -> str | None:
        """The path of a file that belongs to the segment; None if there is none."""
        name = segment_name(segment.base_offset) + suffix
        return f"{self.path}/{dict(self.renamed).get(name, name)}" if name in self.files else None


@dataclass(frozen=True)
class AbortedRange:
    """Batches of a producer's aborted transaction: those that begin at `first_offset` up to the marker at
    `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True)
class Slice:
    """A byte range of one segment: all batches that begin at or after `start`, and before `end`.

    Of these, records from `from_offset` and below `to_offset`, with timestamps from `from_ms` and below `to_ms`.
    `next_offset` is the lowest offset that the first batch may have, according to the files before. Unreadable bytes
    that reach the end of the file are not damage if `tail_from` or a later offset is expected there: they are a write
    that was never acknowledged.

    A slice with `synced_to` ends at the end of its log: if the log ends below that offset, the records between are
    lost. If nothing is left of the log, `start` is NO_FILE and the file is its directory. `tried_at` is the offset up
    to which the slice was planned again because of unreadable bytes: bytes that are still unreadable are damage.
    """

    log: str
    topic: str
    partition: int
    segment: SegmentFile
    start: int
    end: int
    next_offset: int
    from_offset: int = 0
    to_offset: int = INT64_MAX
    from_ms: int = -INT64_MAX
    to_ms: int = INT64_MAX
    aborted: tuple[AbortedRange, ...] = field(default=())
    tail_from: int = INT64_MAX
    # Below this offset records have format 1 (kcoord/log/record_format.py).
    format_1_end: int = 0
    synced_to: int = 0
    tried_at: int = -1

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition} in {self.log}"
