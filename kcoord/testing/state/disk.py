"""A disk in memory that loses at a power cut what was not synced: `crash` returns what survives.

It is as strict as POSIX: the contents of a file survive up to its last datasync, and a new, renamed or removed name
survives only after a sync of its directory. Among kcoord's own tests `faulty_storage.py` is a disk that also reorders
and fails.
"""

from __future__ import annotations

from kcoord.log.storage import File, MemoryDirectory, MemoryFile, MemoryStorage, parent_of

Names = dict[str, MemoryFile | MemoryDirectory]


class ForgetfulFile(MemoryFile):
    def __init__(self, data: bytes = b"") -> None:
        super().__init__()
        self.data += data
        self.synced = bytearray(data)
        # Up to this position `data` equals `synced`, so a sync copies only the rest.
        self.unchanged = len(data)

    def truncate(self, size: int) -> None:
        super().truncate(size)
        self.unchanged = min(self.unchanged, size)

    def datasync(self) -> None:
        end = len(self.data)
        del self.synced[self.unchanged :]
        self.synced += self.data[self.unchanged : end]
        self.unchanged = len(self.synced)

    def survivor(self, torn_bytes: int) -> ForgetfulFile:
        data = bytes(self.synced)
        if torn_bytes and self.unchanged == len(data):
            data = bytes(self.data[: len(data) + torn_bytes])
        return ForgetfulFile(data)


class ForgetfulStorage(MemoryStorage):
    def __init__(self) -> None:
        super().__init__()
        # The names of each directory that survive.
        self._durable: dict[MemoryDirectory, Names] = {}

    def open(self, path: str) -> File:
        names = self._directory(parent_of(path)).entries
        names.setdefault(path.rpartition("/")[2], ForgetfulFile())
        return super().open(path)

    def sync_dir(self, path: str) -> None:
        directory = self._directory(path)
        self._durable[directory] = dict(directory.entries)

    def crash(self, torn_bytes: int = 0) -> ForgetfulStorage:
        """The state after a power cut, as a new storage; this one must not be used any more.

        With `torn_bytes` each file keeps up to that many unsynced bytes, as if the system had begun to write them.
        """
        left = ForgetfulStorage()
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
