"""What a file system is to the log, and three of them.

`DiskStorage` is the real one. `MemoryStorage` keeps everything in memory, for `log.sync = memory`.
`ForgetfulStorage` is memory that knows what was synced, so that a test can cut the power: `crash()` gives
what would be left. It is strict, as POSIX is: file contents survive up to the last datasync of that file, and
a new, renamed or removed name survives only after a sync of its directory.

Paths are relative to the storage's root, with "/" between names; "" is the root.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sys
import threading
from collections.abc import Callable
from typing import Final, Protocol

from kcoord.log.errors import DirectoryLocked, DirectoryNotWritable

LOCK_FILE: Final = ".lock"
# No descriptor is left, in the process or on the machine.
SHORTAGE: Final = (errno.EMFILE, errno.ENFILE)
# How often opening a file is tried again when something was closed for it, or may be soon (see OpenFiles.relieve).
SHORTAGE_TRIES: Final = 100


class Syncable(Protocol):
    """Something that can be made durable; may be called from any thread."""

    def datasync(self) -> None: ...


class File(Protocol):
    """An open file that grows at its end. Any failure is an OSError."""

    @property
    def size(self) -> int: ...

    def append(self, data: bytes) -> int:
        """Write all of `data` at the end and return the position where it starts."""
        ...

    def read_at(self, position: int, size: int) -> bytes:
        """At most `size` bytes from `position`; less only at the end of the file."""
        ...

    def truncate(self, size: int) -> None: ...

    def datasync(self) -> None: ...

    def close(self) -> None: ...


class Opener(Protocol):
    """What opens files by name: a storage, or one of its directories."""

    def open(self, path: str) -> File: ...


class Storage(Protocol):
    """A directory tree that one process owns. Any failure is an OSError unless said otherwise."""

    def open(self, path: str) -> File:
        """Open for reading and appending; the file is created if it does not exist."""
        ...

    def exists(self, path: str) -> bool: ...

    def list_dir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def is_dir(self, path: str) -> bool: ...

    def make_dir(self, path: str) -> None:
        """Create a directory, and those above it; fine if it is there already."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None: ...

    def read_bytes(self, path: str) -> bytes: ...

    def size_of(self, path: str) -> int: ...

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace a file so that a crash leaves the old or the new contents, and make that durable."""
        ...

    def free_bytes(self) -> int: ...

    def lock(self) -> None:
        """Own the tree until unlock. Raises DirectoryLocked or DirectoryNotWritable."""
        ...

    def unlock(self) -> None: ...


def write_synced(opener: Opener, path: str, data: bytes) -> None:
    """Write a whole file in place and make its contents durable; its name is the caller's."""
    file = opener.open(path)
    try:
        file.truncate(0)
        file.append(data)
        file.datasync()
    finally:
        file.close()


def parent_of(path: str) -> str:
    return path.rpartition("/")[0]


class DirectorySync:
    """A directory as one of the things a commit has to sync. One that was deleted meanwhile needs no sync."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.storage = storage
        self.path = path

    def datasync(self) -> None:
        try:
            self.storage.sync_dir(self.path)
        except FileNotFoundError:
            return


class FileSync:
    """A small file, written and closed, as one of the things a commit has to sync, unless it is gone."""

    def __init__(self, opener: Opener, path: str) -> None:
        self.opener = opener
        self.path = path

    def datasync(self) -> None:
        try:
            file = self.opener.open(self.path)
        except FileNotFoundError:
            return
        try:
            file.datasync()
        finally:
            file.close()


class Folder:
    """The directory of one log, for threads: deleting the log moves it while they may be at work in it.

    A path would then lead nowhere, or into the directory of a new log of that name. So files are opened, and the
    directory is moved, under a lock, which is never held while anything waits for the disk. As a Syncable it is the
    directory itself.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self.storage = storage
        self._path = path
        self._lock = threading.Lock()
        self.is_moved = False

    def open(self, path: str) -> File:
        """Open a file by its name in the directory; created if it does not exist, but for that of a purged log."""
        with self._lock:
            return self.storage.open(f"{self._path}/{path}")

    def exists(self, path: str) -> bool:
        with self._lock:
            return self.storage.exists(f"{self._path}/{path}")

    def move(self, path: str) -> None:
        with self._lock:
            self.storage.rename(self._path, path)
            self._path = path
            self.is_moved = True

    def datasync(self) -> None:
        while True:
            with self._lock:
                path = self._path
            try:
                self.storage.sync_dir(path)
            except FileNotFoundError:
                if path == self._path:
                    return  # purged: its deletion is durable
            if path == self._path:
                return


def _sync_fd(fd: int) -> None:
    if sys.platform == "darwin":
        # fsync there reaches the drive's cache only.
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)


def open_descriptor(path: str, flags: int, on_shortage: Callable[[], bool] | None = None) -> int:
    """os.open. Where no descriptor is left, `on_shortage` may close something; it returns whether to try again."""
    tries = 0
    while True:
        try:
            return os.open(path, flags | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno not in SHORTAGE or on_shortage is None or tries >= SHORTAGE_TRIES:
                raise
            tries += 1
            if not on_shortage():
                raise


class DiskFile:
    """An open file on disk."""

    def __init__(self, path: str, create: bool = True, on_shortage: Callable[[], bool] | None = None) -> None:
        self._fd = open_descriptor(path, os.O_RDWR | os.O_CREAT if create else os.O_RDWR, on_shortage)
        self._size = os.fstat(self._fd).st_size

    @property
    def size(self) -> int:
        return self._size

    def append(self, data: bytes) -> int:
        start = self._size
        written = os.pwrite(self._fd, data, start)
        # A write may be short without being an error (a nearly full disk, a signal).
        while written < len(data):
            more = os.pwrite(self._fd, memoryview(data)[written:], start + written)
            if more <= 0:
                raise OSError(errno.EIO, "write made no progress")
            written += more
        self._size = start + written
        return start

    def read_at(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size:
            data = os.pread(self._fd, size - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._size = size

    def datasync(self) -> None:
        _sync_fd(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class DiskStorage:
    """A directory of the file system. The root is created by lock()."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._lock_fd = -1
        # Makes room when a file cannot be opened because too many are; returns whether it is worth another try.
        self.on_shortage: Callable[[], bool] | None = None

    def _path(self, path: str) -> str:
        return os.path.join(self.root, path) if path else self.root

    def open(self, path: str) -> DiskFile:
        return DiskFile(self._path(path), on_shortage=self.on_shortage)

    def exists(self, path: str) -> bool:
        return os.path.exists(self._path(path))

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.listdir(self._path(path)))

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(self._path(path))

    def make_dir(self, path: str) -> None:
        os.makedirs(self._path(path), exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.rename(self._path(old), self._path(new))

    def remove(self, path: str) -> None:
        os.unlink(self._path(path))

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(self._path(path))

    def sync_dir(self, path: str) -> None:
        fd = open_descriptor(self._path(path), os.O_RDONLY, self.on_shortage)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read_bytes(self, path: str) -> bytes:
        with os.fdopen(open_descriptor(self._path(path), os.O_RDONLY, self.on_shortage), "rb") as file:
            return file.read()

    def size_of(self, path: str) -> int:
        return os.stat(self._path(path)).st_size

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = self._path(path) + ".tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(open_descriptor(temporary, flags, self.on_shortage), "wb") as file:
            file.write(data)
            file.flush()
            _sync_fd(file.fileno())
        os.replace(temporary, self._path(path))
        self.sync_dir(parent_of(path))

    def free_bytes(self) -> int:
        stat = os.statvfs(self.root)
        return stat.f_bavail * stat.f_frsize

    def lock(self) -> None:
        try:
            os.makedirs(self.root, exist_ok=True)
            fd = os.open(self._path(LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DirectoryNotWritable(f"{self.root} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise DirectoryLocked(f"{self.root} is in use by another process") from None
            raise DirectoryNotWritable(f"{self.root} cannot be locked: {error.strerror}") from error
        self._lock_fd = fd

    def unlock(self) -> None:
        # The file stays: removing it could take the name from under a process that waits for the lock.
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


class _Inode:
    """Contents of a file in memory, and the contents that a power cut would leave."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.synced = bytearray(data)
        # Up to here `data` is what `synced` holds, so that a sync copies only what is new.
        self.unchanged = len(data)

    def sync(self) -> None:
        end = len(self.data)
        del self.synced[self.unchanged :]
        self.synced += self.data[self.unchanged : end]
        self.unchanged = len(self.synced)


class _Directory:
    def __init__(self) -> None:
        self.entries: dict[str, _Inode | _Directory] = {}
        self.durable: dict[str, _Inode | _Directory] = {}


class MemoryFile:
    """An open file of a MemoryStorage."""

    def __init__(self, inode: _Inode) -> None:
        self._inode = inode

    @property
    def size(self) -> int:
        return len(self._inode.data)

    def append(self, data: bytes) -> int:
        start = len(self._inode.data)
        self._inode.data += data
        return start

    def read_at(self, position: int, size: int) -> bytes:
        return bytes(self._inode.data[position : position + size])

    def truncate(self, size: int) -> None:
        inode = self._inode
        if size > len(inode.data):
            inode.data += bytes(size - len(inode.data))
        del inode.data[size:]
        inode.unchanged = min(inode.unchanged, size)

    def datasync(self) -> None:
        return

    def close(self) -> None:
        return


class ForgetfulFile(MemoryFile):
    """An open file of a ForgetfulStorage."""

    def datasync(self) -> None:
        self._inode.sync()


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "no such file or directory", path)


class MemoryStorage:
    """A directory tree in memory that lives as long as the object. Syncing does nothing."""

    def __init__(self) -> None:
        self._root = _Directory()
        self._locked = False

    def _node(self, path: str) -> _Inode | _Directory:
        node: _Inode | _Directory = self._root
        for name in path.split("/") if path else []:
            if not isinstance(node, _Directory) or name not in node.entries:
                raise _missing(path)
            node = node.entries[name]
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._node(path)
        if not isinstance(node, _Directory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return node

    def _file(self, path: str) -> _Inode:
        node = self._node(path)
        if not isinstance(node, _Inode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return node

    def _open_inode(self, path: str) -> _Inode:
        parent = self._directory(parent_of(path))
        name = path.rpartition("/")[2]
        if name not in parent.entries:
            parent.entries[name] = _Inode()
        return self._file(path)

    def open(self, path: str) -> File:
        return MemoryFile(self._open_inode(path))

    def exists(self, path: str) -> bool:
        try:
            self._node(path)
        except FileNotFoundError:
            return False
        return True

    def list_dir(self, path: str) -> list[str]:
        return sorted(self._directory(path).entries)

    def is_dir(self, path: str) -> bool:
        return self.exists(path) and isinstance(self._node(path), _Directory)

    def make_dir(self, path: str) -> None:
        directory = self._root
        for name in path.split("/") if path else []:
            node = directory.entries.setdefault(name, _Directory())
            if not isinstance(node, _Directory):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
            directory = node

    def rename(self, old: str, new: str) -> None:
        node = self._node(old)
        target = self._directory(parent_of(new))
        del self._directory(parent_of(old)).entries[old.rpartition("/")[2]]
        target.entries[new.rpartition("/")[2]] = node

    def remove(self, path: str) -> None:
        self._file(path)
        del self._directory(parent_of(path)).entries[path.rpartition("/")[2]]

    def remove_tree(self, path: str) -> None:
        self._directory(path)
        del self._directory(parent_of(path)).entries[path.rpartition("/")[2]]

    def sync_dir(self, path: str) -> None:
        self._directory(path)

    def read_bytes(self, path: str) -> bytes:
        return bytes(self._file(path).data)

    def size_of(self, path: str) -> int:
        return len(self._file(path).data)

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        file = self.open(temporary)
        file.truncate(0)
        file.append(data)
        file.datasync()
        file.close()
        self.rename(temporary, path)
        self.sync_dir(parent_of(path))

    def free_bytes(self) -> int:
        return 1 << 40

    def lock(self) -> None:
        if self._locked:
            raise DirectoryLocked("this storage is in use")
        self._locked = True

    def unlock(self) -> None:
        self._locked = False


class ForgetfulStorage(MemoryStorage):
    """Memory that loses, in crash(), everything that was not synced."""

    def open(self, path: str) -> File:
        return ForgetfulFile(self._open_inode(path))

    def sync_dir(self, path: str) -> None:
        directory = self._directory(path)
        directory.durable = dict(directory.entries)

    def crash(self, torn_bytes: int = 0) -> ForgetfulStorage:
        """What a power cut leaves, as a new storage; this one should not be used any more.

        With `torn_bytes` each file keeps up to that many bytes more than were synced, as when the system had
        begun to write them out by itself.
        """
        left = ForgetfulStorage()
        left._root = _survivors(self._root, torn_bytes)
        return left


def _survivors(directory: _Directory, torn_bytes: int) -> _Directory:
    left = _Directory()
    for name, node in directory.durable.items():
        if isinstance(node, _Directory):
            left.entries[name] = _survivors(node, torn_bytes)
            continue
        data = bytes(node.synced)
        if torn_bytes and node.unchanged == len(node.synced):
            data = bytes(node.data[: len(data) + torn_bytes])
        left.entries[name] = _Inode(data)
    left.durable = dict(left.entries)
    return left
