"""Reads partition directories of kcoord or of Kafka without opening them, for tools that inspect, copy or import.

Nothing is opened for writing, nothing is created, no lock is taken, and no index is trusted. So the directory of a
Kafka broker, a copy on a read-only mount or the log of a running server can be read; for a running server, the contents
of the files at the time they were opened.

Unreadable bytes are reported as data (`DamagedBytes`): reading continues after them, at the next batch with a correct
checksum.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, final

from kcoord.log.errors import ImpossibleFiles
from kcoord.log.record_format import is_own_format, record_in_format_2
from kcoord.log.recovery import (
    SEGMENT_LOG,
    SWAP_SUFFIX,
    RecoveredFiles,
    UnknownEnd,
    is_temporary,
    recover_files,
)
from kcoord.log.segment import INDEX_BYTES_MAX, INDEX_ENTRY_BYTES
from kcoord.wire.crc import crc32c
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import (
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    BatchHeader,
    Record,
    check_crc,
    decode_records,
    parse_header,
)

# The offsets of a segment are stored relative to its base offset in 31 bits.
RELATIVE_OFFSET_MAX: Final = 0x7FFFFFFF
PARTITION_DIRECTORY: Final = re.compile(r"(.+)-(\d{1,10})")
READ_BYTES: Final = 1 << 20
MAGIC_AT: Final = 16
MAGIC: Final = b"\x02"
# The position of the last offset delta in a batch of format 2, and the size of the smallest batch of any format.
LAST_DELTA_AT: Final = 23
HEADER_BYTES_MIN: Final = 26
BASE_DIGITS: Final = 20
# How often a directory is listed again if its files are renamed in the meantime.
LIST_ATTEMPTS: Final = 5
# Bounds the search for the next batch: how many bytes it may checksum for each byte that it skips, and how many in any
# case. Without a bound, a sequence of bytes that look like headers of large batches would take years.
SEARCH_RATIO: Final = 64
SEARCH_BYTES_MIN: Final = 1 << 30
# The cost of checking one header, in checksummed bytes.
SEARCH_BYTES: Final = 4096


@final
class StoredBatch:
    """A batch with a correct checksum: `data` are its bytes, `header` is parsed from them (`pos` is 0)."""

    def __init__(self, file: str, position: int, header: BatchHeader, data: bytes) -> None:
        self.file = file
        self.position = position
        self.header = header
        self.data = data
        # Below this offset records have format 1 (record_format.py); `records` converts them to format 2.
        self.format_1_end = 0

    def records(self, decompressed_bytes_max: int) -> list[Record]:
        """The records of the batch. Raises DecodeError, and DecompressionError if they cannot be decompressed."""
        records = decode_records(self.data, 0, self.header, decompressed_bytes_max)
        if self.header.base_offset >= self.format_1_end:
            return records
        return [record_in_format_2(one) if one.offset < self.format_1_end else one for one in records]

    def __repr__(self) -> str:
        offsets = f"{self.header.base_offset}..{self.header.last_offset}"
        return f"StoredBatch({self.file}@{self.position}: {offsets})"


@final
class DamagedBytes:
    """Bytes of a segment that are not a valid batch, or a batch with impossible offsets.

    `next_offset` is the expected offset. `zeros` means that all bytes are zero: a crash leaves such bytes if the length
    of the file reached the disk before its contents, and a broker preallocates them.
    """

    def __init__(self, file: str, position: int, size_bytes: int, next_offset: int, reason: str, zeros: bool) -> None:
        self.file = file
        self.position = position
        self.size_bytes = size_bytes
        self.next_offset = next_offset
        self.reason = reason
        self.zeros = zeros

    def __repr__(self) -> str:
        return f"DamagedBytes({self.file}@{self.position}: {self.size_bytes} bytes: {self.reason})"


@final
class PartitionDirectory:
    """A partition's directory inside a data directory."""

    def __init__(self, path: str, topic: str, partition: int) -> None:
        self.path = path
        self.topic = topic
        self.partition = partition


def find_partitions(root: str) -> list[PartitionDirectory]:
    """The partition directories in the data directory `root`, sorted by topic and partition. Raises OSError.

    Directories that a broker has marked (`-delete`, `-future`, `-stray`) are ignored.
    """
    found: list[PartitionDirectory] = []
    with os.scandir(root) as entries:
        for entry in entries:
            match = PARTITION_DIRECTORY.fullmatch(entry.name)
            if match is not None and entry.is_dir():
                found.append(PartitionDirectory(entry.path, match.group(1), int(match.group(2))))
    found.sort(key=_place)
    return found


def _place(directory: PartitionDirectory) -> tuple[str, int]:
    return (directory.topic, directory.partition)


def segment_files(path: str) -> list[str]:
    """The segment files of a partition's directory, in order of offsets. Raises ImpossibleFiles and OSError.

    If a crash interrupted compaction, some of them have the suffix `.log.swap` (recovery.py).
    """
    return [os.path.join(path, name) for _, name in recovered_files(path).segments]


def recovered_files(path: str, sizes: dict[str, int] | None = None) -> RecoveredFiles:
    """The files of a partition's directory as they are after recovery. Raises ImpossibleFiles and OSError.

    The sizes of all files are stored in `sizes`, by name.
    """
    attempt = 1
    while True:
        listed = _settled_listing(path)
        if sizes is not None:
            sizes.clear()
            sizes.update(listed)
        try:
            return recover_files(path, listed, partial(next_offset_of, path), _is_own(path, listed))
        except (ImpossibleFiles, FileNotFoundError):
            # A running broker may have renamed files in the meantime.
            if attempt == LIST_ATTEMPTS or _list(path).keys() == listed.keys():
                raise
            attempt += 1


def _settled_listing(path: str) -> dict[str, int]:
    """The names and sizes of a directory's files, listed until stable.

    During a rename a listing may contain both names of a file, or none.
    """
    found = _list(path)
    for _ in range(LIST_ATTEMPTS):
        if not any(map(is_temporary, found)):
            break
        before, found = found, _list(path)
        if before.keys() == found.keys():
            break
    return found


def _list(path: str) -> dict[str, int]:
    found: dict[str, int] = {}
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                if entry.is_file():
                    found[entry.name] = entry.stat().st_size
                elif entry.is_symlink() and SEGMENT_LOG.fullmatch(entry.name):
                    # Raises FileNotFoundError for a dangling link.
                    entry.stat()
            except FileNotFoundError:
                if entry.is_symlink():
                    raise
    return found


def _is_own(path: str, names: Iterable[str]) -> bool:
    """Whether kcoord wrote the log. Reads meta.properties only if the names make a difference."""
    if not any(map(is_temporary, names)):
        return False
    try:
        with open(os.path.join(os.path.dirname(os.path.abspath(path)), "meta.properties"), "rb") as file:
            return is_own_format(file.read())
    except FileNotFoundError:
        return False


def next_offset_of(path: str, name: str) -> int:
    """The offset after the last batch of a `.log` or `.log.swap` file of a directory. Raises UnknownEnd and OSError."""
    index = b""
    suffix = SWAP_SUFFIX if name.endswith(SWAP_SUFFIX) else ""
    try:
        with open(os.path.join(path, f"{name[:BASE_DIGITS]}.index{suffix}"), "rb") as file:
            index = file.read(INDEX_BYTES_MAX)
    except FileNotFoundError:
        pass
    fd = os.open(os.path.join(path, name), os.O_RDONLY | os.O_CLOEXEC)
    try:
        return next_offset_in(Window(partial(_pread, fd), os.fstat(fd).st_size), int(name[:BASE_DIGITS]), index)
    finally:
        os.close(fd)


def next_offset_in(window: Window, base_offset: int, index: bytes = b"") -> int:
    """The offset after the last batch of a segment, from batch headers alone. Raises UnknownEnd.

    With the segment's `index` only the batches after its last entry are read, if that entry is valid.
    """
    position = 0
    next_offset = base_offset
    start, last_offset = _last_entry(index, base_offset)
    if 0 < start < window.size and _header_end(window, start) == (last_offset, True):
        position = start
    while position < window.size:
        header = window.bytes_at(position, MAGIC_AT + 1)
        size = int.from_bytes(header[8:12], "big", signed=True) + LENGTH_OVERHEAD
        last_offset, is_batch = _header_end(window, position)
        if not is_batch or size < HEADER_BYTES_MIN or size > window.size - position:
            raise UnknownEnd(f"no whole batch at byte {position}")
        next_offset = last_offset + 1
        position += size
    return next_offset


def _last_entry(index: bytes, base_offset: int) -> tuple[int, int]:
    """Position and offset of the last entry of an index; a preallocated one ends in zeros."""
    position = last_offset = 0
    for at in range(0, len(index) - INDEX_ENTRY_BYTES + 1, INDEX_ENTRY_BYTES):
        found = int.from_bytes(index[at + 4 : at + 8], "big")
        if found <= position:
            break
        position, last_offset = found, base_offset + int.from_bytes(index[at : at + 4], "big")
    return position, last_offset


def _header_end(window: Window, position: int) -> tuple[int, bool]:
    """The last offset of the batch at `position`, and whether there may be one. Batches of all formats have these."""
    header = window.bytes_at(position, HEADER_BYTES)
    if len(header) <= MAGIC_AT or header[MAGIC_AT] > MAGIC[0]:
        return -1, False
    offset = int.from_bytes(header[:8], "big", signed=True)
    if header[MAGIC_AT] < MAGIC[0]:
        return offset, offset >= 0
    delta = int.from_bytes(header[LAST_DELTA_AT : LAST_DELTA_AT + 4], "big", signed=True)
    return offset + delta, len(header) == HEADER_BYTES and offset >= 0 and delta >= 0


def read_batches(
    path: str, from_offset: int = 0, files: list[str] | None = None
) -> Iterator[StoredBatch | DamagedBytes]:
    """Every batch of a partition's directory, or of one `.log` file, that ends at `from_offset` or later.

    Batches and damaged bytes come in order of files and positions. A file is open only while its batches are read.
    `files` are the directory's segments, if the caller knows them. Raises ImpossibleFiles and OSError.
    """
    if files is None:
        files = segment_files(path) if os.path.isdir(path) else [path]
    for i, file in enumerate(files):
        following = _base_offset_of(files[i + 1]) if i + 1 < len(files) else None
        if following is not None and following <= from_offset:
            continue
        for item in _read_segment(file):
            if isinstance(item, DamagedBytes) or item.header.last_offset >= from_offset:
                yield item


def _base_offset_of(file: str) -> int | None:
    match = SEGMENT_LOG.fullmatch(os.path.basename(file))
    return int(match.group(1)) if match is not None else None


def _read_segment(file: str) -> Iterator[StoredBatch | DamagedBytes]:
    base = _base_offset_of(file)
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        window = Window(partial(_pread, fd), os.fstat(fd).st_size)
        yield from batches_between(window, file, 0, window.size, base or 0, base)
    finally:
        os.close(fd)


def _pread(fd: int, size: int, position: int) -> bytes:
    return os.pread(fd, size, position)


def batches_between(
    window: Window, file: str, position: int, end: int, next_offset: int, base: int | None
) -> Iterator[StoredBatch | DamagedBytes]:
    """Every batch, and all damaged bytes, of a segment from `position` up to `end`.

    The first batch must have an offset of at least `next_offset`. `base` is the segment's base offset, None if it has
    none. Damage is reported to its end, which may lie after `end`.
    """
    lowest = base if base is not None else 0
    highest = lowest + RELATIVE_OFFSET_MAX if base is not None else None
    window.next_offset = next_offset
    while position < min(end, window.size):
        batch = window.batch_at(position)
        if isinstance(batch, str):
            upto = window.next_valid(position + 1)
            zeros = window.is_zero(position, upto)
            reason = "zeros" if zeros else batch
            yield DamagedBytes(file, position, upto - position, window.next_offset, reason, zeros)
            position = upto
            continue
        header = parse_header(batch)
        due = window.next_offset
        if header.base_offset < due or (highest is not None and header.last_offset > highest):
            # The checksum does not cover the base offset. The next batch is checked against the end of this one, if
            # that end is possible.
            reason = f"offsets {header.base_offset}..{header.last_offset}, {due} or later expected"
            if lowest <= header.base_offset < due:
                window.next_offset = header.last_offset + 1
            yield DamagedBytes(file, position, header.size, due, reason, False)
        else:
            window.next_offset = header.last_offset + 1
            yield StoredBatch(file, position, header, batch)
        position += header.size


@final
class Window:
    """A buffered window of a file. `size` is the size of the file when it was opened.

    `pread` reads at most the given number of bytes from a position. `next_offset` is the next offset that
    `batches_between` expects.
    """

    def __init__(self, pread: Callable[[int, int], bytes], size: int) -> None:
        self.pread = pread
        self.size = size
        self.next_offset = 0
        self.checked_bytes = 0
        # Whether next_valid gave up because it reached the limit of its work.
        self.has_given_up = False
        self._start = 0
        self._buf = b""

    def bytes_at(self, position: int, size: int) -> bytes:
        """At most `size` bytes; fewer only at the end of the file."""
        at = position - self._start
        if at < 0 or at + size > len(self._buf):
            self._buf = self._read(position, max(size, READ_BYTES))
            self._start = position
            at = 0
        return self._buf[at : at + size]

    def _read(self, position: int, size: int) -> bytes:
        wanted = min(size, self.size - position)
        parts: list[bytes] = []
        while wanted > 0:
            part = self.pread(wanted, position)
            if not part:
                # The file was truncated in the meantime.
                self.size = min(self.size, position)
                break
            parts.append(part)
            position += len(part)
            wanted -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def batch_at(self, position: int) -> bytes | str:
        """The bytes of the batch at `position`, or the reason why there is none."""
        header = self._header_at(position)
        if isinstance(header, str):
            return header
        size: int = header.size
        self.checked_bytes += size
        data = self.bytes_at(position, size)
        if len(data) < size or not check_crc(data, 0, header):
            return "wrong checksum"
        return data

    def _header_at(self, position: int) -> BatchHeader | str:
        """The header at `position` if its batch would end within the file, or the reason why it is invalid."""
        try:
            header = parse_header(self.bytes_at(position, HEADER_BYTES), 0, True)
        except DecodeError as error:
            return str(error)
        if header.size > self.size - position:
            return f"batch of {header.size} bytes, {self.size - position} left"
        return header

    def _is_batch(self, position: int, lowest_offset: int) -> bool:
        """Whether a valid batch begins at `position`. Reads in parts, because a false header may state any size."""
        header = self._header_at(position)
        if isinstance(header, str) or header.base_offset < lowest_offset:
            return False
        crc = 0
        at = position + CRC_FROM
        end = position + header.size
        while at < end:
            part = self.bytes_at(at, min(READ_BYTES, end - at))
            if not part:
                return False
            crc = crc32c(part, crc)
            self.checked_bytes += len(part)
            at += len(part)
        return bool(crc == header.crc)

    def next_valid(self, position: int, lowest_offset: int = 0) -> int:
        """The position of the next valid batch at or after `position`, found by its magic byte; else the end.

        The batch must have an offset of at least `lowest_offset`. At most two windows of READ_BYTES are in memory. If
        the search exceeds its limit, it returns the end and sets `has_given_up`.
        """
        begin = position
        self.checked_bytes = 0
        self.has_given_up = False
        while position < self.size:
            part = self.bytes_at(position, READ_BYTES)
            at = part.find(MAGIC, MAGIC_AT)
            while at >= 0:
                candidate = position + at - MAGIC_AT
                if self._is_batch(candidate, lowest_offset):
                    return candidate
                self.checked_bytes += SEARCH_BYTES
                if self.checked_bytes > SEARCH_BYTES_MIN + SEARCH_RATIO * (candidate - begin):
                    self.has_given_up = True
                    return self.size
                at = part.find(MAGIC, at + 1)
            # The magic byte of a batch may be in the next part.
            position += max(len(part) - MAGIC_AT, 1)
        return self.size

    def is_zero(self, position: int, end: int) -> bool:
        while position < end:
            part = self.bytes_at(position, min(READ_BYTES, end - position))
            if not part or part.count(0) != len(part):
                return False
            position += len(part)
        return True
