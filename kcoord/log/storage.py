"""The file system interface of the log, and two implementations.

`DiskStorage` uses the file system. `MemoryStorage` keeps everything in memory, for `log.sync = memory`.

Paths are relative to the storage's root, with "/" between names; "" is the root.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from kcoord.log.errors import DirectoryLocked, DirectoryNotWritable

LOCK_FILE: Final = ".lock"
# The errors for a lack of descriptors, in the process or in the system.
SHORTAGE: Final = (errno.EMFILE, errno.ENFILE)
# The errors for a lack of space: on the volume, in a quota, for a file.
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# How often opening a file is retried after other files were closed, or may be closed soon (see OpenFiles.relieve).
SHORTAGE_TRIES: Final = 100


class Syncable(Protocol):
    """Something that can be synced; any thread may call it."""

    def datasync(self) -> None: ...


class File(Protocol):
    """An open append-only file. Any failure is an OSError."""

    @property
    def size(self) -> int: ...

    def append(self, data: bytes) -> int:
        """Write all of `data` at the end and return the position where it starts."""
        ...

    def read_at(self, position: int, size: int) -> bytes:
        """At most `size` bytes from `position`; fewer only at the end of the file."""
        ...

    def truncate(self, size: int) -> None: ...

    def preallocate(self, size_bytes: int) -> None:
        """Write zeros behind the end. They do not count in `size`.

        Later appends overwrite them, and a sync of these has less to do, because the file keeps its size on disk.

        Does nothing if there is no room. Who opens the file takes the zeros for contents, so `trim` must come first.
        """
        ...

    def is_preallocated(self) -> bool:
        """Whether the next append will overwrite zeros."""
        ...

    def trim(self) -> None:
        """Remove what `preallocate` wrote and nobody overwrote."""
        ...

    def datasync(self) -> None: ...

    def close(self) -> None: ...


class Opener(Protocol):
    """Opens files by name: a storage or one of its directories."""

    def open(self, path: str) -> File: ...

    def exists(self, path: str) -> bool: ...


class Storage(Protocol):
    """A directory tree owned by one process. Any failure is an OSError unless documented otherwise."""

    def open(self, path: str) -> File:
        """Open for reading and appending; the file is created if it does not exist."""
        ...

    def exists(self, path: str) -> bool: ...

    def list_dir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def is_dir(self, path: str) -> bool: ...

    def make_dir(self, path: str) -> None:
        """Create a directory and its parents; no error if it exists."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None: ...

    def read_bytes(self, path: str) -> bytes: ...

    def size_of(self, path: str) -> int: ...

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace a file durably; a crash leaves either the old or the new contents."""
        ...

    def free_bytes(self) -> int: ...

    def total_bytes(self) -> int:
        """The size of the volume; -1 where there is none."""
        ...

    def lock(self) -> None:
        """Own the tree until unlock. Raises DirectoryLocked or DirectoryNotWritable."""
        ...

    def unlock(self) -> None: ...


def write_synced(opener: Opener, path: str, data: bytes) -> None:
    """Write a whole file in place and sync its contents; the caller syncs its name."""
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
    """A directory that a commit must sync. A directory that was deleted in the meantime needs no sync."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.storage = storage
        self.path = path

    def datasync(self) -> None:
        try:
            self.storage.sync_dir(self.path)
        except FileNotFoundError:
            return


class FileSync:
    """A small file, written and closed, that a commit must sync, unless it was deleted."""

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
    """The directory of one log, for threads: deleting the log renames it while a thread may use it.

    A plain path would then point nowhere, or into the directory of a new log of the same name. So files are opened, and
    the directory is renamed, under a lock, which is never held while waiting for the disk. As a Syncable it syncs the
    directory itself.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self.storage = storage
        self._path = path
        self._lock = threading.Lock()
        self.is_moved = False

    def open(self, path: str) -> File:
        """Open a file by its name in the directory; it is created if missing, unless the log was purged."""
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
                    return  # purged: the deletion is durable, so there is nothing to sync
            if path == self._path:
                return


def _sync_fd(fd: int) -> None:
    if sys.platform == "darwin":
        # On this system fsync only reaches the drive's cache.
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)


def open_descriptor(path: str, flags: int, on_shortage: Callable[[], bool] | None = None) -> int:
    """Like os.open. If no descriptor is free, `on_shortage` may close files; it returns whether to try again."""
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


class SharedDescriptor:
    """A descriptor that others may use after its file was closed. It is closed when the last of them is gone."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def read_at(self, position: int, size: int) -> bytes:
        return _read_at(self.fd, position, size)

    def datasync(self) -> None:
        _sync_fd(self.fd)

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self.fd)


def _read_at(fd: int, position: int, size: int) -> bytes:
    data = os.pread(fd, size, position)
    if len(data) == size or not data:
        return data
    parts = [data]
    got = len(data)
    while got < size:
        data = os.pread(fd, size - got, position + got)
        if not data:
            break
        parts.append(data)
        got += len(data)
    return b"".join(parts)


class DiskFile:
    """An open file on disk."""

    _shared: SharedDescriptor | None = None
    # The end of the zeros that `preallocate` wrote; what lies before `_size` is overwritten.
    _zeros_end = 0

    def __init__(self, path: str, create: bool = True, on_shortage: Callable[[], bool] | None = None) -> None:
        self._fd = open_descriptor(path, os.O_RDWR | os.O_CREAT if create else os.O_RDWR, on_shortage)
        self._size = os.fstat(self._fd).st_size

    @property
    def size(self) -> int:
        return self._size

    @property
    def descriptor(self) -> int:
        """-1 if the file is closed."""
        return self._fd

    def append(self, data: bytes) -> int:
        start = self._size
        written = os.pwrite(self._fd, data, start)
        # A short write is not an error (a nearly full disk, a signal).
        while written < len(data):
            more = os.pwrite(self._fd, memoryview(data)[written:], start + written)
            if more <= 0:
                raise OSError(errno.EIO, "write made no progress")
            written += more
        self._size = start + written
        return start

    def read_at(self, position: int, size: int) -> bytes:
        return _read_at(self._fd, position, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._size = size
        self._zeros_end = 0

    def preallocate(self, size_bytes: int) -> None:
        start = self._size
        # Also if only a part is written: `trim` cuts at the end of the contents.
        self._zeros_end = start + size_bytes
        try:
            os.pwrite(self._fd, bytes(size_bytes), start)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise

    def is_preallocated(self) -> bool:
        return self._zeros_end > self._size

    def trim(self) -> None:
        if self._zeros_end > self._size:
            os.ftruncate(self._fd, self._size)
        self._zeros_end = 0

    def datasync(self) -> None:
        _sync_fd(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        shared, self._shared = self._shared, None
        if fd >= 0 and shared is None:
            # Also if this fails, the descriptor is gone, and may soon be another file's.
            os.close(fd)

    def share(self) -> SharedDescriptor:
        """The descriptor, for readers that may outlive this object."""
        if self._shared is None:
            self._shared = SharedDescriptor(self._fd)
        return self._shared


class DiskStorage:
    """A directory of the file system. The root is created by lock()."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._lock_fd = -1
        # Called if too many files are open to open another; closes some and returns whether to try again.
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
        # It imports compression libraries, and few servers remove a folder.
        import shutil

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

    def total_bytes(self) -> int:
        stat = os.statvfs(self.root)
        return stat.f_blocks * stat.f_frsize

    def lock(self) -> None:
        try:
            os.makedirs(self.root, exist_ok=True)
            fd = os.open(self._path(LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTDIR):
                raise DirectoryNotWritable(f"{self.root} is not a directory") from error
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
        # The file stays: another process may have it open and wait for the lock.
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


class MemoryFile:
    """A file of a MemoryStorage. It has no position, so everybody who opens it shares it."""

    def __init__(self) -> None:
        self.data = bytearray()

    def copy(self) -> MemoryFile:
        copied = MemoryFile()
        copied.data += self.data
        return copied

    @property
    def size(self) -> int:
        return len(self.data)

    def append(self, data: bytes) -> int:
        start = len(self.data)
        self.data += data
        return start

    def read_at(self, position: int, size: int) -> bytes:
        return bytes(self.data[position : position + size])

    def truncate(self, size: int) -> None:
        if size > len(self.data):
            self.data += bytes(size - len(self.data))
        del self.data[size:]

    def preallocate(self, size_bytes: int) -> None:
        return

    def is_preallocated(self) -> bool:
        return False

    def trim(self) -> None:
        return

    def datasync(self) -> None:
        return

    def close(self) -> None:
        return


class MemoryDirectory:
    """A directory of a MemoryStorage."""

    def __init__(self) -> None:
        self.entries: dict[str, MemoryFile | MemoryDirectory] = {}

    def copy(self) -> MemoryDirectory:
        copied = MemoryDirectory()
        copied.entries = {name: node.copy() for name, node in self.entries.items()}
        return copied


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "no such file or directory", path)


class MemoryStorage:
    """A directory tree in memory that lives as long as the object. Syncing does nothing."""

    def __init__(self) -> None:
        self._root = MemoryDirectory()
        self._locked = False

    def copy(self) -> MemoryStorage:
        """The same files as a storage of its own, which nobody has locked."""
        copied = MemoryStorage()
        copied._root = self._root.copy()
        return copied

    def _node(self, path: str) -> MemoryFile | MemoryDirectory:
        node: MemoryFile | MemoryDirectory = self._root
        for name in path.split("/") if path else []:
            if not isinstance(node, MemoryDirectory) or name not in node.entries:
                raise _missing(path)
            node = node.entries[name]
        return node

    def _directory(self, path: str) -> MemoryDirectory:
        node = self._node(path)
        if not isinstance(node, MemoryDirectory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return node

    def _file(self, path: str) -> MemoryFile:
        node = self._node(path)
        if not isinstance(node, MemoryFile):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return node

    def open(self, path: str) -> File:
        parent = self._directory(parent_of(path))
        name = path.rpartition("/")[2]
        if name not in parent.entries:
            parent.entries[name] = MemoryFile()
        return self._file(path)

    def exists(self, path: str) -> bool:
        try:
            self._node(path)
        except FileNotFoundError:
            return False
        return True

    def list_dir(self, path: str) -> list[str]:
        return sorted(self._directory(path).entries)

    def is_dir(self, path: str) -> bool:
        return self.exists(path) and isinstance(self._node(path), MemoryDirectory)

    def make_dir(self, path: str) -> None:
        directory = self._root
        for name in path.split("/") if path else []:
            node = directory.entries.setdefault(name, MemoryDirectory())
            if not isinstance(node, MemoryDirectory):
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

    def total_bytes(self) -> int:
        return -1

    def lock(self) -> None:
        if self._locked:
            raise DirectoryLocked("this storage is in use")
        self._locked = True

    def unlock(self) -> None:
        self._locked = False
