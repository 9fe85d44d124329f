"""Reads a data directory without opening it, for tools: its identity, its checkpoints and its partitions' files.

Nothing is written and no lock is kept. So a tool can inspect the directory of a stopped broker or of a running server.
In the logs of a running server, only records below the durable mark count: the rest may still be in flight.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from typing import Final, final

from kcoord.log.directory import CLEAN_SHUTDOWN, LOG_START_OFFSETS, META_PROPERTIES, RECOVERY_POINTS
from kcoord.log.errors import ForeignDirectory, LogDamaged, StorageError, missing_directory
from kcoord.log.partition_files import decode_partition_metadata
from kcoord.log.partition_log import (
    EPOCH_CHECKPOINT,
    INT64_MAX,
    PARTITION_METADATA,
)
from kcoord.log.reader import (
    DamagedBytes,
    PartitionDirectory,
    StoredBatch,
    find_partitions,
    read_batches,
    recovered_files,
    segment_files,
)
from kcoord.log.record_format import FORMAT_KEY, format_1_end
from kcoord.log.recovery import SWAP_SUFFIX, RecoveredFiles
from kcoord.log.segment import TIME_ENTRY_BYTES, segment_name
from kcoord.log.storage import LOCK_FILE
from kcoord.wire.primitives import ZERO_UUID, DecodeError
from kcoord.wire.record_batch import HEADER_BYTES, BatchHeader, parse_header

CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"

Checkpoint = dict[tuple[str, int], int]


@final
class SegmentFile:
    """One `.log` file, or the `.log.swap` file that replaces it. `size_bytes` is its size when it was listed."""

    def __init__(self, path: str, base_offset: int, size_bytes: int, files: RecoveredFiles | None = None) -> None:
        self.path = path
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self._files = files or RecoveredFiles()

    @property
    def name(self) -> str:
        """The name of the file after recovery, without the directory."""
        return f"{segment_name(self.base_offset)}.log"

    def beside(self, suffix: str) -> str:
        """The path of a file that belongs to the segment, even if missing: `.index`, `.timeindex`, `.snapshot`, …"""
        name = segment_name(self.base_offset) + suffix
        if any(one.name == name for one in self._files.dropped):
            # The file that has this name now belongs to another segment.
            name += SWAP_SUFFIX
        name = self._files.names.get(segment_name(self.base_offset) + suffix, name)
        return os.path.join(os.path.dirname(self.path), name)

    def first_header(self) -> BatchHeader | None:
        """The header of the first batch; None if there is none or it is invalid. Raises OSError."""
        with open(self.path, "rb") as file:
            try:
                return parse_header(file.read(HEADER_BYTES), 0, True)
            except DecodeError:
                return None

    def indexed_timestamp(self) -> int:
        """The largest timestamp according to the time index; -1 without an index. Raises OSError."""
        try:
            with open(self.beside(".timeindex"), "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return -1
        newest = -1
        for at in range(0, len(data) - TIME_ENTRY_BYTES + 1, TIME_ENTRY_BYTES):
            # Brokers preallocate index files with zeros.
            newest = max(newest, int.from_bytes(data[at : at + 8], "big", signed=True) or -1)
        return newest


@final
class PartitionFiles:
    """The files of one partition's directory."""

    def __init__(self, directory: PartitionDirectory) -> None:
        self.path = directory.path
        self.topic = directory.topic
        self.partition = directory.partition
        self.name = f"{directory.topic}-{directory.partition}"
        # The durable mark: everything below it was synced.
        self.mark = 0
        sizes: dict[str, int] = {}
        # The files as recovery leaves them, in case a crash interrupted an exchange of segments.
        self.recovered = recovered_files(directory.path, sizes)
        self.segments = [
            SegmentFile(os.path.join(directory.path, name), base_offset, sizes[name], self.recovered)
            for base_offset, name in self.recovered.segments
        ]
        self.topic_id = decode_partition_metadata(self._read(PARTITION_METADATA))

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def start_offset(self) -> int:
        """The first segment's base offset; 0 without segments."""
        return self.segments[0].base_offset if self.segments else 0

    def _read(self, name: str) -> bytes:
        try:
            with open(os.path.join(self.path, name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""

    def epochs(self) -> list[tuple[int, int]]:
        """(leader epoch, first offset) as the partition's checkpoint lists them. Raises StorageError."""
        data = self._read(EPOCH_CHECKPOINT)
        if not data:
            return []
        entries: list[tuple[int, int]] = []
        for words in _checkpoint_lines(data, f"{self.name}/{EPOCH_CHECKPOINT}", 2):
            entries.append((int(words[0]), int(words[1])))
        return entries

    def batches(self, from_offset: int = 0, upto_offset: int = INT64_MAX) -> Iterator[StoredBatch | DamagedBytes]:
        """The batches and damaged bytes in the segments, in order, from `from_offset` up to `upto_offset`.

        Raises OSError.
        """
        # Checked before each item is read: bytes above the durable mark, which may be in flight, are not read.
        next_offset = self.start_offset
        if next_offset >= upto_offset:
            return
        for item in read_batches(self.path, from_offset, [segment.path for segment in self.segments]):
            if isinstance(item, DamagedBytes):
                if max(item.next_offset, next_offset) >= upto_offset:
                    return
            elif item.header.base_offset >= upto_offset:
                return
            else:
                next_offset = item.header.last_offset + 1
            yield item
            if next_offset >= upto_offset:
                return


def lost_end(files: PartitionFiles, end_offset: int, upto_offset: int = INT64_MAX) -> LogDamaged | None:
    """The damage if a log, read up to `upto_offset`, ends at `end_offset` and so before its durable mark.

    None if it reaches the mark. Compaction may have removed the last records below the last segment's base offset.
    """
    end_offset = max(end_offset, files.segments[-1].base_offset if files.segments else 0)
    if end_offset >= min(files.mark, upto_offset):
        return None
    file, size_bytes = files.path, 0
    if files.segments:
        file, size_bytes = files.segments[-1].path, files.segments[-1].size_bytes
    reason = f"the log ends at {end_offset}, but was synced up to {files.mark}: the records in between are lost"
    return LogDamaged(file, end_offset, size_bytes, reason)


@final
class DataDirectory:
    """A data directory, see the module docstring. `in_use`: a process held the lock when this object was created."""

    def __init__(
        self,
        root: str,
        properties: dict[str, str],
        partitions: list[PartitionFiles],
        marks: Checkpoint,
        starts: Checkpoint,
        cleaned: Checkpoint,
        in_use: bool,
        was_clean: bool,
    ) -> None:
        self.root = root
        self.properties = properties
        self.partitions = partitions
        self.marks = marks
        self.starts = starts
        self.cleaned = cleaned
        self.in_use = in_use
        self.was_clean = was_clean
        # Whether to read records of a running server that are not synced yet.
        self.unsynced = False
        # The properties with the record format: the directory's own, or those of a partition's parent directory.
        self.format_properties = properties
        for files in partitions:
            files.mark = marks.get((files.topic, files.partition), 0)

    @property
    def is_kcoord(self) -> bool:
        return FORMAT_KEY in self.properties

    @property
    def state(self) -> str:
        """`in use`, `clean` (the last process stopped cleanly) or `unclean` (it crashed or was killed)."""
        if self.in_use:
            return "in use"
        return "clean" if self.was_clean else "unclean"

    def find(self, topic: str, partition: int) -> PartitionFiles | None:
        for files in self.partitions:
            if files.topic == topic and files.partition == partition:
                return files
        return None

    def of_topic(self, topic: str) -> list[PartitionFiles]:
        return [files for files in self.partitions if files.topic == topic]

    def mark_of(self, files: PartitionFiles) -> int:
        """The durable mark: everything below it was synced."""
        return self.marks.get((files.topic, files.partition), 0)

    def start_of(self, files: PartitionFiles) -> int:
        """The first offset that exists."""
        return max(self.starts.get((files.topic, files.partition), 0), files.start_offset)

    def format_1_end(self, files: PartitionFiles) -> int:
        """Below this offset records have format 1 (record_format.py). Raises StorageError."""
        try:
            return format_1_end(self.format_properties, files.topic, files.partition)
        except ValueError:
            raise StorageError(f"{META_PROPERTIES} of {self.root} is damaged: its format cannot be read") from None

    def is_unwritten(self, files: PartitionFiles, item: DamagedBytes) -> bool:
        """Whether these are only zeros behind the end of a log that was not closed cleanly, above its durable mark.

        They were preallocated, or a crash kept the contents from the disk. Opening the log removes them.
        """
        if not item.zeros or self.was_clean or not files.segments or item.next_offset < self.mark_of(files):
            return False
        last = files.segments[-1]
        return item.file == last.path and item.position + item.size_bytes >= last.size_bytes

    def readable_end(self, files: PartitionFiles) -> int:
        """The end offset for readers: the durable mark of a running server's log, otherwise the end of the log."""
        return self.mark_of(files) if self.in_use and not self.unsynced else INT64_MAX

    def batches(
        self, files: PartitionFiles, from_offset: int = 0, upto_offset: int = INT64_MAX, has_unwritten: bool = False
    ) -> Iterator[StoredBatch | DamagedBytes]:
        """Like PartitionFiles.batches, up to the readable end. What is_unwritten is left out, unless `has_unwritten`.

        Raises OSError.
        """
        mark = self.mark_of(files)
        format_1_end = self.format_1_end(files)
        for item in files.batches(from_offset, min(upto_offset, self.readable_end(files))):
            if isinstance(item, StoredBatch):
                item.format_1_end = format_1_end
            elif self.in_use and item.next_offset >= mark:
                # The server is writing it.
                return
            elif not has_unwritten and self.is_unwritten(files, item):
                return
            yield item


def inspect_directory(root: str, damage: list[StorageError] | None = None) -> DataDirectory:
    """Inspect a data directory or the directory of one partition. Raises OSError and StorageError.

    Damaged checkpoint files are appended to `damage`, if that is given, and count as empty.
    """
    if not os.path.isdir(root):
        raise missing_directory(root)
    single = _as_partition(root)
    if single is not None:
        parent = os.path.dirname(single.path)
        key = (single.topic, single.partition)
        known = _read_or_note(parent, RECOVERY_POINTS, damage if damage is not None else [])
        marks = {key: known[key]} if key in known else {}
        is_alone = not os.path.exists(os.path.join(parent, META_PROPERTIES))
        was_clean = is_alone or os.path.exists(os.path.join(parent, CLEAN_SHUTDOWN))
        found = DataDirectory(root, {}, [PartitionFiles(single)], marks, {}, {}, is_locked(parent), was_clean)
        found.format_properties = read_properties(parent)
        return found
    properties = read_properties(root)
    # Check the lock first, so that everything read afterwards is at least as new.
    in_use = is_locked(root)
    was_clean = os.path.exists(os.path.join(root, CLEAN_SHUTDOWN))
    marks = _read_or_note(root, RECOVERY_POINTS, damage)
    partitions = [PartitionFiles(directory) for directory in find_partitions(root)]
    if not properties and not partitions:
        raise ForeignDirectory(f"{root} is not a data directory: it has no {META_PROPERTIES} and no partitions")
    starts = _read_or_note(root, LOG_START_OFFSETS, damage)
    cleaned = _read_or_note(root, CLEANER_OFFSETS, damage)
    return DataDirectory(root, properties, partitions, marks, starts, cleaned, in_use, was_clean)


def _read_or_note(root: str, name: str, damage: list[StorageError] | None) -> Checkpoint:
    try:
        return read_checkpoint(root, name)
    except StorageError as error:
        if damage is None:
            raise
        damage.append(error)
        return {}


def _as_partition(root: str) -> PartitionDirectory | None:
    path = os.path.abspath(root)
    topic, _, number = os.path.basename(path).rpartition("-")
    if not topic or not number.isdecimal() or not segment_files(path):
        return None
    return PartitionDirectory(path, topic, int(number))


def is_locked(root: str) -> bool:
    """Whether a process has the directory open. Checks by taking a shared lock for a moment."""
    try:
        fd = os.open(os.path.join(root, LOCK_FILE), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # A broker's lock: Java takes POSIX locks, which are independent of flock.
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(fd)
    return False


def read_properties(root: str) -> dict[str, str]:
    """The contents of meta.properties; empty if there is none. Raises OSError."""
    properties: dict[str, str] = {}
    try:
        with open(os.path.join(root, META_PROPERTIES), encoding="utf-8", errors="replace") as file:
            for line in file:
                name, equals, value = line.partition("=")
                if equals and not name.startswith("#"):
                    properties[name.strip()] = value.strip()
    except FileNotFoundError:
        return {}
    return properties


def read_checkpoint(root: str, name: str) -> Checkpoint:
    """A checkpoint file of a data directory; empty if there is none. Raises StorageError and OSError."""
    try:
        with open(os.path.join(root, name), "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return {}
    if not data:
        # A broker creates some checkpoint files empty.
        return {}
    return {(words[0], int(words[1])): int(words[2]) for words in _checkpoint_lines(data, name, 3)}


def _checkpoint_lines(data: bytes, name: str, fields: int) -> list[list[str]]:
    """The entries of a checkpoint file: `fields` words each, all numbers except a leading name."""
    lines = data.decode("utf-8", "replace").split("\n")
    try:
        if lines[0].strip() != "0":
            raise ValueError(f"version {lines[0][:20]!r}")
        entries = [line.split() for line in lines[2 : 2 + int(lines[1])]]
        if len(entries) != int(lines[1]):
            raise ValueError(f"{len(entries)} entries instead of {lines[1]}")
        for words in entries:
            if len(words) != fields or not all(word.isdecimal() for word in words[fields - 2 :]):
                raise ValueError(f"entry {' '.join(words)[:80]!r}")
    except (ValueError, IndexError) as error:
        raise StorageError(f"{name} is damaged: {error}") from None
    return entries


def has_topic_id(files: PartitionFiles) -> bool:
    return files.topic_id != ZERO_UUID
