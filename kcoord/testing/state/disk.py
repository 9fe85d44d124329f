"""A disk in memory that loses at a power cut what was not synced: `crash` returns what survives.

It is as strict as POSIX: the contents of a file survive up to its last datasync, and a new, renamed or removed name
survives only after a sync of its directory. Among kcoord's own tests `faulty_storage.py` is a disk that also reorders
and fails.
"""

from __future__ import annotations

import errno
import time
from typing import final

from kcoord.log.storage import File, MemoryDirectory, MemoryFile, MemoryStorage, parent_of

Names = dict[str, MemoryFile | MemoryDirectory]


@final
class DiskFaults:
    """What a test does to a disk. The threads that sync files read it."""

    def __init__(self) -> None:
        # Each sync of a file takes this time.
        self.sync_delay_s = 0.0
        # Syncs fail.
        self.fails = False
        # No byte is free.
        self.is_full = False

    def before_sync(self) -> None:
        if self.sync_delay_s:
            time.sleep(self.sync_delay_s)
        if self.fails:
            raise OSError(errno.EIO, "a test has made this disk fail")


class ForgetfulFile(MemoryFile):
    def __init__(self, data: bytes = b"", faults: DiskFaults | None = None) -> None:
        super().__init__()
        self.faults = DiskFaults() if faults is None else faults
        self.data += data
        self.synced = bytearray(data)
        # Up to this position `data` equals `synced`, so a sync copies only the rest.
        self.unchanged = len(data)

    def truncate(self, size: int) -> None:
        super().truncate(size)
        self.unchanged = min(self.unchanged, size)

    def datasync(self) -> None:
        self.faults.before_sync()
        end = len(self.data)
        del self.synced[self.unchanged :]
        self.synced += self.data[self.unchanged : end]
        self.unchanged = len(self.synced)

    def survivor(self, torn_bytes: int) -> ForgetfulFile:
        data = bytes(self.synced)
        if torn_bytes and self.unchanged == len(data):
            data = bytes(self.data[: len(data) + torn_bytes])
        return ForgetfulFile(data, self.faults)


class ForgetfulStorage(MemoryStorage):
    def __init__(self, faults: DiskFaults | None = None) -> None:
        super().__init__()
        self.faults = DiskFaults() if faults is None else faults
        # The names of each directory that survive.
        self._durable: dict[MemoryDirectory, Names] = {}

    def open(self, path: str) -> File:
        names = self._directory(parent_of(path)).entries
        names.setdefault(path.rpartition("/")[2], ForgetfulFile(faults=self.faults))
        return super().open(path)

    def free_bytes(self) -> int:
        return 0 if self.faults.is_full else super().free_bytes()

    def sync_dir(self, path: str) -> None:
        directory = self._directory(path)
        self._durable[directory] = dict(directory.entries)

    def crash(self, torn_bytes: int = 0) -> ForgetfulStorage:
        """The state after a power cut, as a new storage; this one must not be used any more.

        With `torn_bytes` each file keeps up to that many unsynced bytes, as if the system had begun to write them.
        """
        left = ForgetfulStorage(self.faults)
        self._add_survivors(self._root, left, left._root, torn_bytes)
        return left

    def _add_survivors(
        self, directory: MemoryDirectory, left: ForgetfulStorage, made: MemoryDirectory, torn_bytes: int
    ) -> None:
        for name, node in self._durable.get(directory, {}).items():
            if isinstance(node, ForgetfulFile):
                made.entries[name] = node.survivor(torn_bytes)
            elif isinstance(node, MemoryDirectory):
                made.entries[name] = child = MemoryDirectory()
                self._add_survivors(node, left, child, torn_bytes)
        left._durable[made] = dict(made.entries)
