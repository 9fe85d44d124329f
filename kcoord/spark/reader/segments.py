"""Whether a segment is still the file that was listed: brokers exchange files while they are read.

The cleaner of a Kafka broker writes a new file and gives it the name and even the modification time of the old one;
retention and DeleteRecords remove files; recovery truncates the last one. A name is therefore not enough. Nor is an
inode, since a new file may get that of a removed one. A segment is the same file if size, time and inode are the same.

- The last segment of a log may have grown under the same inode: its listed part is unchanged.
- An open file on a local disk stays readable, even if another file gets its name. Elsewhere it may change while it is
  read, so a reader that finds unexpected bytes checks again (`has_changed`) before it reports damage.
- A reader that finds another file reads the same offsets from the current files. Offsets survive a replacement,
  positions do not. A compacted segment has fewer records, as a late consumer would see it, too.
"""

from __future__ import annotations

import errno
from typing import Any

from kcoord.spark.reader.filesystem import FileBytes, FileState, state_of
from kcoord.spark.reader.slices import SegmentFile

GONE = "it is gone"
# Stores round times to seconds, and not all in the same way.
TIME_STEP_NS = 1_000_000_000
# Errors of reading from a removed file, besides FileNotFoundError.
GONE_ERRORS = (errno.ENOENT, errno.ESTALE)


class SegmentChanged(Exception):
    """The file is not the one that was listed."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class UnsettledFiles(OSError):
    """A partition's files are replaced faster than they can be listed and opened."""


def open_segment(filesystem: Any, segment: SegmentFile) -> FileBytes:
    """The file, with its size in the listing. Raises SegmentChanged, and OSError for other reasons."""
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
    """Why the file is not the listed one; empty if it is."""
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
