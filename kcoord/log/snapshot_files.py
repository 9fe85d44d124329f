"""The producer snapshots of one log: `<20-digit offset>.snapshot`, the state of idempotent producers at that offset.

Each segment but the first has one, written when the segment begins. A clean stop writes one for the end of the log. The
owner encodes and checks the contents; here they are only bytes.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final

from kcoord.log.storage import Storage, write_synced

SUFFIX: Final = ".snapshot"
# A snapshot of a million producers has 74 MB.
BYTES_MAX: Final = 256 << 20
OFFSET_DIGITS: Final = 20


def offsets_of_files(storage: Storage, directory: str, suffix: str) -> list[int]:
    """The offsets of the files in `directory` that are named by an offset and `suffix`, ascending."""
    offsets = []
    for name in storage.list_dir(directory):
        stem = name[:OFFSET_DIGITS]
        if len(stem) == OFFSET_DIGITS and stem.isdecimal() and name[OFFSET_DIGITS:] == suffix:
            offsets.append(int(stem))
    return offsets


class SnapshotFiles:
    """The snapshots in the directory `directory` of a log. Any failure is an OSError."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self.storage = storage
        self.directory = directory

    def _path(self, offset: int) -> str:
        return f"{self.directory}/{offset:020d}{SUFFIX}"

    def offsets(self) -> list[int]:
        """The offsets with a snapshot, the newest first."""
        return offsets_of_files(self.storage, self.directory, SUFFIX)[::-1]

    def read(self, offset: int) -> bytes:
        path = self._path(offset)
        size = self.storage.size_of(path)
        if size > BYTES_MAX:
            raise OSError(errno.EFBIG, f"{size} bytes", path)
        return self.storage.read_bytes(path)

    def remove(self, offset: int) -> None:
        """Remove a snapshot, but not a directory of that name."""
        path = self._path(offset)
        if not self.storage.is_dir(path):
            self.storage.remove(path)

    def write(self, offset: int, data: bytes) -> None:
        """Write a snapshot and sync its contents; its name is durable after the next sync of the directory."""
        # Written in place: the checksum detects a file that a crash leaves half written.
        write_synced(self.storage, self._path(offset), data)

    def remove_stale(self, bases: Sequence[int], end_offset: int) -> None:
        """Remove all but the snapshots at the segments' `bases` and the newest one up to `end_offset`."""
        newest = True
        for offset in self.offsets():
            if offset > end_offset or not (newest or offset in bases):
                self.remove(offset)
            else:
                newest = False
