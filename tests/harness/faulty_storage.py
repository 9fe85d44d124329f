"""A Storage in memory that behaves as badly as a disk may.

It keeps two pictures: what the process sees, and what is on the disk for certain. In between stand the operations
that nobody synced yet, each of which a crash may keep or lose by itself:

* a write to a file, cut at the disk's sectors of 512 bytes: any of them may get there, in any order; what lies before
  one that did and was never written itself reads as zeros;
* a truncation;
* a name that was made, moved or removed. A move is one operation: it happened or it did not.

`datasync` of a file settles the writes to it and nothing else, its name least of all; `sync_dir` settles the names of
one directory. A datasync that failed settles nothing, and a later one that succeeds does not make up for it: as on
Linux, where the pages count as clean after the error.

`FaultyStorage.faults` makes the n-th operation fail; `on_operation` is told of each before it happens, which is the
place to ask for `crash`. All methods may be called from any thread.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterable
from typing import Final, final

from kcoord.log.errors import DirectoryLocked
from kcoord.log.storage import NO_ROOM, parent_of

SECTOR_BYTES: Final = 512


@final
class Fault:
    """How an operation fails: with `code`, a write after half of its bytes if it is `short`.

    Code 0 is no error: a short write that the caller goes on with.
    """

    def __init__(self, code: int, short: bool = False) -> None:
        self.code = code
        self.short = short

    def __repr__(self) -> str:
        name = errno.errorcode.get(self.code, "no error")
        return f"{name} after a short write" if self.short else name


@final
class FileNode:
    def __init__(self, number: int, data: bytes = b"") -> None:
        self.number = number
        self.data = bytearray(data)
        self.synced = bytes(data)


@final
class DirNode:
    def __init__(self, number: int) -> None:
        self.number = number
        self.entries: dict[str, FileNode | DirNode] = {}
        self.synced: dict[str, FileNode | DirNode] = {}


Node = FileNode | DirNode


@final
class Write:
    """Bytes for a position of a file. `is_stuck`: a sync of them failed, so none will ever settle them."""

    def __init__(self, node: FileNode, position: int, data: bytes) -> None:
        self.node = node
        self.position = position
        self.data = data
        self.is_stuck = False

    def sectors(self) -> list[tuple[int, int]]:
        """Where the sectors begin and end, in bytes of the file."""
        cuts = []
        start = self.position
        end = self.position + len(self.data)
        while start < end:
            stop = min((start // SECTOR_BYTES + 1) * SECTOR_BYTES, end)
            cuts.append((start, stop))
            start = stop
        return cuts


@final
class Truncation:
    def __init__(self, node: FileNode, size: int) -> None:
        self.node = node
        self.size = size
        self.is_stuck = False


@final
class Naming:
    """Names that appear or, with None, go, all at once."""

    def __init__(self, changes: list[tuple[DirNode, str, Node | None]]) -> None:
        self.changes = changes


Pending = Write | Truncation | Naming


@final
class Piece:
    """What survives a crash or not: an operation, or one sector of a write."""

    def __init__(self, operation: int, start: int = 0, end: int = 0) -> None:
        self.operation = operation
        self.start = start
        self.end = end


@final
class Snapshot:
    """What is on the disk for certain at some moment, and what may be there."""

    def __init__(self, root: DirNode, pending: list[Pending]) -> None:
        self._root = root
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, Node]] = {}
        self._numbers = 0
        named: dict[int, list[Node]] = {}
        for item in pending:
            if isinstance(item, Naming):
                for directory, _name, node in item.changes:
                    if node is not None:
                        named.setdefault(directory.number, []).append(node)
        self._take(root, named)
        # What is done to files and directories that no name leads to any more makes no difference.
        self.pending = [item for item in pending if self._is_reachable(item)]

    def _take(self, node: Node, named: dict[int, list[Node]]) -> None:
        """Remember the node and all that any surviving name could lead to from it."""
        if isinstance(node, FileNode):
            self._contents[node.number] = node.synced
        elif node.number not in self._names:
            self._names[node.number] = dict(node.synced)
            for entry in [*node.synced.values(), *named.get(node.number, [])]:
                self._take(entry, named)

    def _is_reachable(self, item: Pending) -> bool:
        if isinstance(item, Naming):
            return any(directory.number in self._names for directory, _name, _node in item.changes)
        return item.node.number in self._contents

    def pieces(self) -> list[Piece]:
        """See FaultyStorage.pieces."""
        found: list[Piece] = []
        for number, item in enumerate(self.pending):
            if isinstance(item, Write):
                found += [Piece(number, start, end) for start, end in item.sectors()]
            else:
                found.append(Piece(number))
        return found

    def crash(self, kept: Iterable[Piece] = ()) -> FaultyStorage:
        """See FaultyStorage.crash."""
        by_operation: dict[int, list[Piece]] = {}
        for piece in kept:
            by_operation.setdefault(piece.operation, []).append(piece)
        contents: dict[int, bytearray] = {}
        names: dict[int, dict[str, Node]] = {}
        for number in sorted(by_operation):
            item = self.pending[number]
            if isinstance(item, Naming):
                for directory, name, node in item.changes:
                    before = self._names.get(directory.number, {})
                    _set(names.setdefault(directory.number, dict(before)), name, node)
                continue
            data = contents.setdefault(item.node.number, bytearray(self._contents[item.node.number]))
            if isinstance(item, Truncation):
                _apply(item, data)
                continue
            for piece in by_operation[number]:
                part = item.data[piece.start - item.position : piece.end - item.position]
                _put(data, piece.start, part)
        left = FaultyStorage()
        left.adopt(self._survivor(self._root, names, contents, {self._root.number}).entries)
        return left

    def _survivor(
        self,
        directory: DirNode,
        names: dict[int, dict[str, Node]],
        contents: dict[int, bytearray],
        above: set[int],
    ) -> DirNode:
        # The new storage numbers its own nodes upwards; these count downwards.
        self._numbers -= 1
        made = DirNode(self._numbers)
        for name, node in names.get(directory.number, self._names[directory.number]).items():
            if isinstance(node, FileNode):
                self._numbers -= 1
                data = contents.get(node.number)
                made.entries[name] = FileNode(
                    self._numbers, self._contents[node.number] if data is None else bytes(data)
                )
            elif node.number not in above:
                made.entries[name] = self._survivor(node, names, contents, above | {node.number})
        made.synced = dict(made.entries)
        return made


@final
class FaultyFile:
    def __init__(self, storage: FaultyStorage, path: str, node: FileNode) -> None:
        self._storage = storage
        self._path = path
        self._node = node
        # Where the contents end, if preallocated zeros follow.
        self._end = -1

    @property
    def size(self) -> int:
        return len(self._node.data) if self._end < 0 else self._end

    def append(self, data: bytes) -> int:
        start = self.size
        self._storage.write(self._path, self._node, data, start)
        if self._end >= 0:
            self._end = start + len(data)
        return start

    def preallocate(self, size_bytes: int) -> None:
        start = self._end = self.size
        try:
            self._storage.write(self._path, self._node, bytes(size_bytes), start)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise

    def is_preallocated(self) -> bool:
        return self.size < len(self._node.data)

    def trim(self) -> None:
        if self._end >= 0:
            self._storage.truncate(self._path, self._node, self._end)
            self._end = -1

    def read_at(self, position: int, size: int) -> bytes:
        return bytes(self._node.data[position : position + size])

    def truncate(self, size: int) -> None:
        self._storage.truncate(self._path, self._node, size)
        self._end = -1

    def datasync(self) -> None:
        self._storage.datasync(self._path, self._node)

    def close(self) -> None:
        return


@final
class FaultyStorage:
    """See the module. `operations` counts what was done so far; the first operation has number 1."""

    def __init__(self) -> None:
        self.operations = 0
        # Grows with everything that changes what a crash could leave.
        self.changes = 0
        self.faults: dict[int, Fault] = {}
        # Asked before each operation, if set: the fault that it meets.
        self.choose_fault: Callable[[str, str], Fault | None] | None = None
        self.on_operation: Callable[[str, str], None] | None = None
        # (kind, path) of every operation, if it is a list.
        self.trace: list[tuple[str, str]] | None = None
        self.free = 1 << 40
        self.pending: list[Pending] = []
        self._root = DirNode(0)
        self._nodes = 1
        self._locked = False
        self._mutex = threading.RLock()

    # --- what happens

    def _begin(self, kind: str, path: str) -> Fault | None:
        """Count an operation. The fault it meets, already raised unless it is a short write or a sync."""
        if self.on_operation is not None:
            self.on_operation(kind, path)
        self.operations += 1
        if self.trace is not None:
            self.trace.append((kind, path))
        fault = self.faults.get(self.operations)
        if fault is None and self.choose_fault is not None:
            fault = self.choose_fault(kind, path)
        if fault is None or (kind == "write" and fault.short) or kind == "sync":
            return fault
        if fault.code:
            raise OSError(fault.code, os.strerror(fault.code), path)
        return None

    def write(self, path: str, node: FileNode, data: bytes, position: int) -> None:
        with self._mutex:
            while data:
                fault = self._begin("write", path)
                part = data if fault is None else data[: len(data) // 2]
                if part:
                    self._note(Write(node, position, bytes(part)))
                    _put(node.data, position, part)
                    position += len(part)
                data = data[len(part) :]
                if fault is not None and fault.code:
                    raise OSError(fault.code, os.strerror(fault.code), path)

    def truncate(self, path: str, node: FileNode, size: int) -> None:
        with self._mutex:
            if size == len(node.data):
                return
            self._begin("truncate", path)
            self._note(Truncation(node, size))
            _truncate(node.data, size)

    def datasync(self, path: str, node: FileNode) -> None:
        with self._mutex:
            fault = self._begin("sync", path)
            left: list[Pending] = []
            data = bytearray(node.synced)
            for item in self.pending:
                if isinstance(item, Naming) or item.node is not node or item.is_stuck:
                    left.append(item)
                elif fault is not None and fault.code:
                    item.is_stuck = True
                    left.append(item)
                else:
                    _apply(item, data)
            self.changes += len(left) != len(self.pending)
            self.pending = left
            node.synced = bytes(data)
            if fault is not None and fault.code:
                raise OSError(fault.code, os.strerror(fault.code), path)

    def _note(self, item: Pending) -> None:
        self.changes += 1
        self.pending.append(item)

    def _name(self, changes: list[tuple[DirNode, str, Node | None]]) -> None:
        self._note(Naming(changes))
        for directory, name, node in changes:
            _set(directory.entries, name, node)

    # --- finding

    def _node(self, path: str) -> Node:
        node: Node = self._root
        for name in path.split("/") if path else []:
            if not isinstance(node, DirNode) or name not in node.entries:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = node.entries[name]
        return node

    def _directory(self, path: str) -> DirNode:
        node = self._node(path)
        if not isinstance(node, DirNode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def _file(self, path: str) -> FileNode:
        node = self._node(path)
        if not isinstance(node, FileNode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node

    def _number(self) -> int:
        self._nodes += 1
        return self._nodes

    # --- Storage

    def open(self, path: str) -> FaultyFile:
        with self._mutex:
            parent = self._directory(parent_of(path))
            name = path.rpartition("/")[2]
            if name in parent.entries:
                self._begin("open", path)
            else:
                self._begin("create", path)
                self._name([(parent, name, FileNode(self._number()))])
            return FaultyFile(self, path, self._file(path))

    def exists(self, path: str) -> bool:
        with self._mutex:
            try:
                self._node(path)
            except FileNotFoundError:
                return False
            return True

    def list_dir(self, path: str) -> list[str]:
        with self._mutex:
            return sorted(self._directory(path).entries)

    def is_dir(self, path: str) -> bool:
        with self._mutex:
            return self.exists(path) and isinstance(self._node(path), DirNode)

    def make_dir(self, path: str) -> None:
        with self._mutex:
            directory = self._root
            for name in path.split("/") if path else []:
                if name not in directory.entries:
                    self._begin("mkdir", path)
                    self._name([(directory, name, DirNode(self._number()))])
                node = directory.entries[name]
                if not isinstance(node, DirNode):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
                directory = node

    def rename(self, old: str, new: str) -> None:
        with self._mutex:
            node = self._node(old)
            source, target = self._directory(parent_of(old)), self._directory(parent_of(new))
            there = target.entries.get(new.rpartition("/")[2])
            if isinstance(there, DirNode) and there.entries:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), new)
            self._begin("rename", new)
            self._name([(source, old.rpartition("/")[2], None), (target, new.rpartition("/")[2], node)])

    def remove(self, path: str) -> None:
        with self._mutex:
            self._file(path)
            self._begin("unlink", path)
            self._name([(self._directory(parent_of(path)), path.rpartition("/")[2], None)])

    def remove_tree(self, path: str) -> None:
        with self._mutex:
            for name, node in list(self._directory(path).entries.items()):
                if isinstance(node, DirNode):
                    self.remove_tree(f"{path}/{name}")
                else:
                    self.remove(f"{path}/{name}")
            self._begin("rmdir", path)
            self._name([(self._directory(parent_of(path)), path.rpartition("/")[2], None)])

    def sync_dir(self, path: str) -> None:
        with self._mutex:
            directory = self._directory(path)
            fault = self._begin("sync", path)
            if fault is not None and fault.code:
                raise OSError(fault.code, os.strerror(fault.code), path)
            left: list[Pending] = []
            for item in self.pending:
                if isinstance(item, Naming) and any(change[0] is directory for change in item.changes):
                    for where, name, node in item.changes:
                        _set(where.synced, name, node)
                else:
                    left.append(item)
            self.changes += len(left) != len(self.pending)
            self.pending = left

    def read_bytes(self, path: str) -> bytes:
        with self._mutex:
            return bytes(self._file(path).data)

    def size_of(self, path: str) -> int:
        with self._mutex:
            return len(self._file(path).data)

    def write_atomic(self, path: str, data: bytes) -> None:
        file = self.open(path + ".tmp")
        file.truncate(0)
        file.append(data)
        file.datasync()
        self.rename(path + ".tmp", path)
        self.sync_dir(parent_of(path))

    def free_bytes(self) -> int:
        return self.free

    def total_bytes(self) -> int:
        return -1

    def lock(self) -> None:
        if self._locked:
            raise DirectoryLocked("this storage is in use")
        self._locked = True

    def unlock(self) -> None:
        self._locked = False

    # --- crashes

    def snapshot(self) -> Snapshot:
        """This moment, to be looked at later while the storage goes on."""
        with self._mutex:
            return Snapshot(self._root, list(self.pending))

    def pieces(self) -> list[Piece]:
        """Everything that a crash now may keep or lose, in the order in which it was done."""
        return self.snapshot().pieces()

    def crash(self, kept: Iterable[Piece] = ()) -> FaultyStorage:
        """What the disk holds if exactly these pieces got there: a new storage. This one can go on."""
        return self.snapshot().crash(kept)

    def crash_at_random(self, rng: random.Random, keep: float | None = None) -> FaultyStorage:
        """A crash that keeps each piece with probability `keep`, itself random if it is not given."""
        snapshot = self.snapshot()
        chance = rng.random() if keep is None else keep
        return snapshot.crash([piece for piece in snapshot.pieces() if rng.random() < chance])

    def adopt(self, names: dict[str, Node]) -> None:
        """Begin with these names at the root, all durable."""
        self._root.entries = dict(names)
        self._root.synced = dict(names)

    def image(self) -> dict[str, bytes | None]:
        """Path to contents of everything the process sees; None for directories."""
        found: dict[str, bytes | None] = {}
        self._add_to_image("", self._root, found)
        return found

    def _add_to_image(self, path: str, directory: DirNode, found: dict[str, bytes | None]) -> None:
        for name, node in sorted(directory.entries.items()):
            where = f"{path}/{name}" if path else name
            if isinstance(node, FileNode):
                found[where] = bytes(node.data)
            else:
                found[where] = None
                self._add_to_image(where, node, found)


def _set(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _truncate(data: bytearray, size: int) -> None:
    if size > len(data):
        data += bytes(size - len(data))
    del data[size:]


def _put(data: bytearray, position: int, part: bytes) -> None:
    if position > len(data):
        data += bytes(position - len(data))
    data[position : position + len(part)] = part


def _apply(item: Write | Truncation, data: bytearray) -> None:
    if isinstance(item, Write):
        _put(data, item.position, item.data)
    else:
        _truncate(data, item.size)
