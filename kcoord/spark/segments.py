"""Whether a segment is still the file that was listed: brokers exchange files while they are read.

The cleaner of a Kafka broker writes a new file, gives it the name of the old one and even the old one's time of
modification; retention and DeleteRecords remove files; recovery cuts the last one. A name is therefore not enough, and
an inode is not either, since a new file may get that of a removed one. A segment is the same file if its size, its time
and its inode are the same.

- The last segment of a log may have grown under its inode: what was listed of it lies where it lay.
- One that is open on a local disk stays readable, whoever takes its name. Elsewhere it may change while it is read, so
  whoever meets bytes that do not fit asks again (`has_changed`) before that counts as damage.
- Who finds another file reads the same offsets from what is there now. Offsets outlast an exchange, positions do not.
  A compacted segment has fewer of these records: a consumer that comes late sees no more of them either.
"""

from __future__ import annotations

import errno
from typing import Any

from kcoord.spark.filesystem import FileBytes, FileState, state_of
from kcoord.spark.plan import SegmentFile

GONE = "it is gone"
# Stores round times to seconds, and not everywhere alike.
TIME_STEP_NS = 1_000_000_000
# What reading from a file says whose storage was given away, instead of that it is gone.
GONE_ERRORS = (errno.ENOENT, errno.ESTALE)


class SegmentChanged(Exception):
    """The file is not the one that was listed. `next_offset`: up to here the slice was read; -1 if nobody knows."""

    def __init__(self, path: str, reason: str, next_offset: int = -1) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
        self.next_offset = next_offset


class UnsettledFiles(OSError):
    """A partition's files are exchanged faster than they can be listed and opened."""


def open_segment(filesystem: Any, segment: SegmentFile) -> FileBytes:
    """The file, as long as it was when it was listed. Raises SegmentChanged, and OSError for other reasons."""
    try:
        file = FileBytes(filesystem, segment.path, segment.size)
    except OSError as error:
        if is_gone(error):
            raise SegmentChanged(segment.path, GONE) from None
        raise
    try:
        reason = difference(segment, file.state(filesystem, segment.path))
    except BaseException:
        file.close()
        raise
    if reason:
        file.close()
        raise SegmentChanged(segment.path, reason)
    return file


def is_gone(error: OSError) -> bool:
    return isinstance(error, FileNotFoundError) or error.errno in GONE_ERRORS


def difference(segment: SegmentFile, now: FileState | None) -> str:
    """Why the file cannot be read as it was listed; empty if it can."""
    if now is None:
        return GONE
    has_inodes = segment.inode != 0 and now.inode != 0
    if has_inodes and segment.inode != now.inode:
        return "another file has its name"
    if segment.is_last and has_inodes and now.size >= segment.size:
        # A preallocated file is written to without becoming larger.
        return ""
    return _since(segment, now)


def _since(segment: SegmentFile, now: FileState) -> str:
    if now.size != segment.size:
        return f"it has {now.size} bytes instead of {segment.size}"
    step_ns = 0 if segment.inode and now.inode else TIME_STEP_NS
    if segment.modified_ns and now.modified_ns and abs(segment.modified_ns - now.modified_ns) > step_ns:
        return "it was written again"
    return ""


def has_changed(filesystem: Any, segment: SegmentFile) -> bool:
    """Whether anything happened to the file since it was listed, even if it was only written to. Raises OSError."""
    now = state_of(filesystem, segment.path)
    return now is None or difference(segment, now) != "" or _since(segment, now) != ""
