"""Partition directories read as they lie, whosever they are: for tools that look, copy or take over.

Nothing is opened for writing, nothing is created, no lock is taken, no index is believed. So a directory of a Kafka
broker, a copy on a read-only mount or the log of a running server can be read; of the last one what stood in the
files when they were opened.

What cannot be read is data, too: reading goes on behind it, at the next batch whose checksum is right.
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

# Of a segment: its offsets are stored relative to its base in 31 bits.
RELATIVE_OFFSET_MAX: Final = 0x7FFFFFFF
PARTITION_DIRECTORY: Final = re.compile(r"(.+)-(\d{1,10})")
READ_BYTES: Final = 1 << 20
MAGIC_AT: Final = 16
MAGIC: Final = b"\x02"
# The last offset delta of a batch of format 2, and the bytes of the smallest batch of any format.
LAST_DELTA_AT: Final = 23
HEADER_BYTES_MIN: Final = 26
BASE_DIGITS: Final = 20
# How often a directory is listed again whose files are renamed meanwhile.
LIST_ATTEMPTS: Final = 5
# How many bytes are checksummed for each that is passed while a batch is looked for, and how many in any case: bytes
# that look like headers of long batches, one behind the other, would otherwise take years.
SEARCH_RATIO: Final = 64
SEARCH_BYTES_MIN: Final = 1 << 30
# What looking at a header costs, as bytes that could have been checksummed.
SEARCH_BYTES: Final = 4096


@final
class StoredBatch:
    """One batch whose checksum is right: `data` is its very bytes, `header` is parsed from them (`pos` is 0)."""

    def __init__(self, file: str, position: int, header: BatchHeader, data: bytes) -> None:
        self.file = file
        self.position = position
        self.header = header
        self.data = data
        # Below this offset records have format 1 (record_format.py); `records` gives them in format 2.
        self.format_1_end = 0

    def records(self, decompressed_bytes_max: int) -> list[Record]:
        """The records in it. Raises DecodeError, and DecompressionError when they are compressed."""
        records = decode_records(self.data, 0, self.header, decompressed_bytes_max)
        if self.header.base_offset >= self.format_1_end:
            return records
        return [record_in_format_2(one) if one.offset < self.format_1_end else one for one in records]

    def __repr__(self) -> str:
        offsets = f"{self.header.base_offset}..{self.header.last_offset}"
        return f"StoredBatch({self.file}@{self.position}: {offsets})"


@final
class DamagedBytes:
    """Bytes of a segment that are no batch, or one with offsets that cannot be.

    `next_offset` is the offset that was due, `zeros` tells that there is nothing but zeros: what a crash leaves
    of a file whose length reached the disk before its contents, and what a broker preallocates.
    """

    def __init__(
        self, file: str, position: int, size_bytes: int, next_offset: int, reason: str, zeros: bool
    ) -> None:
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
    """The partition directories in the data directory `root`, by topic and partition. Raises OSError.

    Those that a broker has marked (`-delete`, `-future`, `-stray`) do not count.
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
    """Paths of the segments of a partition's directory, in order of their offsets. Raises ImpossibleFiles and OSError.

    After a crash in the middle of compaction some of them have the ending `.log.swap` (recovery.py).
    """
    return [os.path.join(path, name) for _, name in recovered_files(path).segments]


def recovered_files(path: str, sizes: dict[str, int] | None = None) -> RecoveredFiles:
    """The files of a partition's directory as they are after recovery. Raises ImpossibleFiles and OSError.

    `sizes` takes up the sizes of all files, by name.
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
            # A running broker may have renamed files meanwhile.
            if attempt == LIST_ATTEMPTS or _list(path).keys() == listed.keys():
                raise
            attempt += 1


def _settled_listing(path: str) -> dict[str, int]:
    """Names and sizes of a directory's files. While names change, a listing may hold both names of a file or none."""
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
                    # Raises FileNotFoundError where the link leads to nothing.
                    entry.stat()
            except FileNotFoundError:
                if entry.is_symlink():
                    raise
    return found


def _is_own(path: str, names: Iterable[str]) -> bool:
    """Whether kcoord wrote the log, which is only asked where it matters."""
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
    """The offset after the last batch of a segment, by the headers of its batches alone. Raises UnknownEnd.

    With the segment's `index` only the batches after its last entry are looked at, if that entry is right.
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
            raise UnknownEnd(f"there is no whole batch at byte {position}")
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

    In order of files and positions, with what cannot be read in between. Raises ImpossibleFiles and OSError. A file is
    open only while its batches are asked for. `files` are the directory's segments, if they are known already.
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
    """Every batch of a segment that begins at `position` or behind it and before `end`, and what is none.

    The first batch has `next_offset` or a later one. `base` is the segment's base offset, None if it has none.
    Damage is told as far as it reaches, which may be behind `end`.
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
            # The checksum covers no base offset. A later batch is judged by where this one would end, if
            # that is possible at all.
            reason = f"offsets {header.base_offset}..{header.last_offset} where {due} or later is due"
            if lowest <= header.base_offset < due:
                window.next_offset = header.last_offset + 1
            yield DamagedBytes(file, position, header.size, due, reason, False)
        else:
            window.next_offset = header.last_offset + 1
            yield StoredBatch(file, position, header, batch)
        position += header.size


@final
class Window:
    """The part of a file that is being looked at. `size` is what the file had when it was opened.

    `pread` gives at most so many bytes from a position on. `next_offset` is what `batches_between` expects next.
    """

    def __init__(self, pread: Callable[[int, int], bytes], size: int) -> None:
        self.pread = pread
        self.size = size
        self.next_offset = 0
        self.checked_bytes = 0
        # Whether next_valid ended because it would have taken too long.
        self.has_given_up = False
        self._start = 0
        self._buf = b""

    def bytes_at(self, position: int, size: int) -> bytes:
        """At most `size` bytes; less only at the end of the file."""
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
                # The file became shorter meanwhile.
                self.size = min(self.size, position)
                break
            parts.append(part)
            position += len(part)
            wanted -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def batch_at(self, position: int) -> bytes | str:
        """The bytes of the batch at `position`, or why there is none."""
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
        """The header of what may be a batch that ends in the file, or why it is none."""
        try:
            header = parse_header(self.bytes_at(position, HEADER_BYTES), 0, True)
        except DecodeError as error:
            return str(error)
        if header.size > self.size - position:
            return f"batch of {header.size} bytes, {self.size - position} left"
        return header

    def _is_batch(self, position: int, lowest_offset: int) -> bool:
        """Whether a valid batch begins at `position`, read in parts: a header that is none may name any size."""
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
        """Where the next valid batch begins at or after `position`, found by its magic byte; else the end.

        Its offset is `lowest_offset` or a later one. At most two windows of READ_BYTES are in memory. Bytes that were
        made to be searched for ever are given up: then, too, it is the end, and `has_given_up` is set.
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
            # The magic byte of a batch may stand in the next part.
            position += max(len(part) - MAGIC_AT, 1)
        return self.size

    def is_zero(self, position: int, end: int) -> bool:
        while position < end:
            part = self.bytes_at(position, min(READ_BYTES, end - position))
            if not part or part.count(0) != len(part):
                return False
            position += len(part)
        return True
