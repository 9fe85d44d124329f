"""One segment: `<20-digit base offset>.log` with its `.index` and `.timeindex`, in Kafka's formats.

The offset index has 8-byte entries (offset relative to the base, position), the time index 12-byte ones
(largest timestamp so far, relative offset of its batch); both get an entry when a batch comes more than the
index interval after the last entry, and the time index a final one when the segment is closed to writes.
A segment with aborted transactions also has a `.txnindex` (transaction_index.py).

Index entries are kept in memory. They are written and synced when the segment is rolled or the log is closed. So the
indexes of every segment but the last are valid, and those of the last are valid after a clean stop. After a crash they
are rebuilt from the segment.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from kcoord.log.errors import InvalidIndex, LogDamaged
from kcoord.log.open_files import OpenFiles
from kcoord.log.storage import DiskFile, File, Opener, Storage, write_synced
from kcoord.log.transaction_index import TransactionIndex, TransactionSurvey, decode_index
from kcoord.wire.causes import caused_by
from kcoord.wire.file_range import FileRange
from kcoord.wire.primitives import DecodeError, read_i32_be, read_i64_be
from kcoord.wire.record_batch import (
    BATCH_LENGTH_MIN,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    NO_TIMESTAMP,
    BatchHeader,
    check_crc,
    parse_header,
)

INDEX_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12
# A broker's index files have 10 MiB by default (segment.index.bytes) until the segment is closed.
INDEX_BYTES_MAX: Final = 256 << 20
RELATIVE_OFFSET_MAX: Final = 0x7FFFFFFF
SCAN_CHUNK_BYTES: Final = 1 << 20
# The same for the lookup of one batch, which the index locates closely: four index intervals by default.
LOOKUP_CHUNK_BYTES: Final = 16 << 10
# From this size on, a read first looks where its last batch ends.
LARGE_READ_BYTES: Final = 1 << 16
INDEX_KINDS: Final = (".index", ".timeindex", ".txnindex")
# Shared by all segments without aborted transactions, which are nearly all. Nothing is added to it.
NO_TRANSACTIONS: Final = TransactionIndex()
# The files of every segment.
FIRST_KINDS: Final = (".log", ".index", ".timeindex")


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}"


class BadBatch(Exception):
    """There is no valid batch at `position`; everything before it is valid."""

    def __init__(self, position: int, next_offset: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.next_offset = next_offset
        self.reason = reason


class Segment:
    """Batches from `base_offset` on. `end_position` includes bytes that are not written yet, `size` does not."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        base_offset: int,
        index_interval_bytes: int,
        suffix: str = "",
        files: OpenFiles | None = None,
    ) -> None:
        self.storage = storage
        # Bounds the open files of many segments. If None, a file stays open until `close`.
        self.files = files
        self.base_offset = base_offset
        self.path = f"{directory}/{segment_name(base_offset)}"
        # The suffix of all file names: `.cleaned`, `.swap` or `.deleted` while segments are exchanged.
        self.suffix = suffix
        self.log_path = f"{self.path}.log{suffix}"
        self.index_interval_bytes = index_interval_bytes
        self.size = 0
        self.end_position = 0
        self.pending: list[bytes] = []
        # Zeros were written behind its end. Also if they were removed, that may not be durable.
        self.may_end_in_zeros = False
        self._file: File | None = None
        # The index entries. They grow with the batches; for a closed segment they are loaded on first use.
        self._indexed = True
        self._max_timestamp = NO_TIMESTAMP
        self._offset_of_max = -1
        self.first_timestamp = NO_TIMESTAMP
        # The producer snapshot at the base offset, until it is written.
        self.producer_snapshot: bytes | None = None
        self._bytes_since_entry = 0
        self.index_offsets: array[int] = array("q")
        self.index_positions: array[int] = array("q")
        self.time_stamps: array[int] = array("q")
        self.time_offsets: array[int] = array("q")
        # The aborted transactions; None until they are read from the file.
        self._transactions: TransactionIndex | None = NO_TRANSACTIONS

    # --- files

    def create_files(self) -> None:
        """Create the segment's files, including its indexes, empty."""
        for kind in FIRST_KINDS:
            self.storage.open(self.file_path(kind)).close()

    def existing(self) -> Segment:
        """Use the existing file without reading its indexes yet."""
        self.size = self.end_position = self.storage.size_of(self.log_path)
        self._indexed = False
        self._transactions = None
        return self

    def file(self) -> File:
        if self._file is None:
            self._file = self.storage.open(self.log_path) if self.files is None else self.files.open(self)
        elif self.files is not None:
            self.files.touch(self)
        return self._file

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def close(self, trims: bool = True) -> None:
        """Close the file, if it is open. Without `trims` it may end in zeros, which the next start removes."""
        if self._file is not None:
            if trims:
                # If this fails, the file stays open: whoever opened it again would append behind the zeros.
                self.trim()
            file, self._file = self._file, None
            if self.files is not None:
                self.files.forget(self)
            file.close()

    def may_hold(self) -> bool:
        """Whether the file may stay open until the next write to it is synced (see open_files)."""
        return self.files is None or self.files.may_hold(self)

    @property
    def held_file(self) -> File | None:
        """The file, if it has bytes that are not synced."""
        return self._file if self.files is None or self.files.is_held(self) else None

    def release(self) -> None:
        """Mark all written bytes as synced."""
        if self.files is not None:
            self.files.release(self)

    def grow(self, size_bytes: int) -> None:
        """Account for bytes from `take_pending` that were written and synced through another descriptor."""
        self.size += size_bytes
        # A file object that was opened before caches the old size.
        self.close()

    def remove(self, with_snapshot: bool = True) -> None:
        """Remove the segment's files, the log file last. Recovery ignores other files without one."""
        self.close()
        for kind in (*INDEX_KINDS, ".snapshot", ".log") if with_snapshot else (*INDEX_KINDS, ".log"):
            path = self.file_path(kind)
            if self.storage.exists(path):
                self.storage.remove(path)

    def file_path(self, kind: str) -> str:
        return f"{self.path}{kind}{self.suffix}"

    def rename(self, suffix: str, with_snapshot: bool = False) -> None:
        """Rename all files to another suffix, the log file last. Open files stay open."""
        for kind in (*INDEX_KINDS, ".snapshot", ".log") if with_snapshot else (*INDEX_KINDS, ".log"):
            path = self.file_path(kind)
            if self.storage.exists(path):
                self.storage.rename(path, f"{self.path}{kind}{suffix}")
        self.suffix = suffix
        self.log_path = self.file_path(".log")

    # --- appending

    def append(self, batch: bytes, last_offset: int, max_timestamp: int) -> None:
        """Append a batch in memory; write_pending writes it."""
        self.pending.append(batch)
        self._note(self.end_position, len(batch), last_offset, max_timestamp)
        self.end_position += len(batch)

    def _note(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        if position == 0:
            self.first_timestamp = max_timestamp
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
            self._offset_of_max = last_offset
        if self._bytes_since_entry > self.index_interval_bytes:
            self.index_offsets.append(last_offset)
            self.index_positions.append(position)
            self._note_time()
            self._bytes_since_entry = 0
        self._bytes_since_entry += size

    def _note_time(self) -> None:
        last = self.time_stamps[-1] if self.time_stamps else NO_TIMESTAMP
        if self._max_timestamp > last:
            self.time_stamps.append(self._max_timestamp)
            self.time_offsets.append(self._offset_of_max)

    def write_pending(self) -> bool:
        """Write all appended batches with one call. Returns True if the file had to be created."""
        created = self.size == 0 and not self.is_open and not self.storage.exists(self.log_path)
        if created:
            self.create_files()
        data = self.take_pending()
        self.file().append(data)
        if self.files is not None:
            self.files.hold(self)
        self.size += len(data)
        return created

    def preallocate(self, size_bytes: int) -> None:
        """After a write that will be synced: prepare the file for the next ones (see File.preallocate)."""
        self.may_end_in_zeros = True
        self.file().preallocate(size_bytes)

    def is_preallocated(self) -> bool:
        """Whether the next append will overwrite zeros."""
        return self.file().is_preallocated()

    def trim(self) -> None:
        """Remove what was preallocated, because others are to write to the file, or nobody will. Raises OSError.

        The caller sees to it that the file is synced: otherwise a crash may bring the zeros back.
        """
        if self._file is not None:
            self._file.trim()

    def take_pending(self) -> bytes:
        """Return the appended batches; the caller writes them."""
        data = self.pending[0] if len(self.pending) == 1 else b"".join(self.pending)
        self.pending.clear()
        return data

    # --- index files

    def save_indexes(self) -> None:
        """Rewrite both index files and sync them."""
        self.seal()
        self.write_indexes(self.storage, self.path)

    def seal(self) -> None:
        """Complete the index entries in memory before the segment is closed. Raises LogDamaged."""
        self.load_indexes()
        self._note_time()

    def transactions(self) -> TransactionIndex:
        """The aborted transactions whose markers are in the segment. Raises InvalidIndex if the file is not valid.

        Without a file there are none. But if the offset index is missing too, which every segment has from its first
        batch on, somebody has removed the indexes, or copied the log without them.
        """
        index = self._transactions
        if index is None:
            path = self.file_path(".txnindex")
            if self.storage.exists(path):
                index = self._read_transactions(path)
            elif self.size and not self.storage.exists(self.file_path(".index")):
                raise InvalidIndex(f"{path} and the offset index are missing")
            else:
                index = NO_TRANSACTIONS
            self._transactions = index
        return index

    def note_aborted(self, producer_id: int, first_offset: int, marker_offset: int, stable_offset: int) -> None:
        """Add a transaction that an abort marker in this segment ended. Raises InvalidIndex."""
        index = self.transactions()
        if index is NO_TRANSACTIONS:
            index = self._transactions = TransactionIndex()
        index.add(producer_id, first_offset, marker_offset, stable_offset)

    def _read_transactions(self, path: str) -> TransactionIndex:
        try:
            if self.storage.size_of(path) > INDEX_BYTES_MAX:
                raise InvalidIndex(f"{path} is larger than {INDEX_BYTES_MAX} bytes")
            return decode_index(self.storage.read_bytes(path), self.base_offset)
        except OSError as error:
            raise caused_by(InvalidIndex(f"{path}: {error}"), error) from error

    def set_transactions(self, index: TransactionIndex) -> None:
        """Replace the aborted transactions. The file is written with the other indexes."""
        self._transactions = index if len(index) else NO_TRANSACTIONS

    def write_indexes(self, opener: Opener, path: str) -> None:
        """Write and sync the index files of a sealed segment under the name `path`. May run in any thread."""
        base = self.base_offset
        index = bytearray()
        for offset, position in zip(self.index_offsets, self.index_positions, strict=True):
            index += (offset - base).to_bytes(4, "big") + position.to_bytes(4, "big")
        times = bytearray()
        for timestamp, offset in zip(self.time_stamps, self.time_offsets, strict=True):
            times += timestamp.to_bytes(8, "big") + (offset - base).to_bytes(4, "big")
        # Written in place: if a crash leaves an index half written, the next start scans this segment anyway.
        write_synced(opener, f"{path}.index{self.suffix}", bytes(index))
        write_synced(opener, f"{path}.timeindex{self.suffix}", bytes(times))
        transactions = self._transactions
        name = f"{path}.txnindex{self.suffix}"
        # If there are none, a file is left from before a crash: it must not be trusted later.
        if transactions is not None and (len(transactions) or opener.exists(name)):
            write_synced(opener, name, transactions.encode())

    def load_indexes(self) -> None:
        """Read the index files, unless that is done, and add missing entries from the segment.

        Raises LogDamaged if the segment itself cannot be read.
        """
        if self._indexed:
            return
        self._load_offset_index()
        self._load_time_index()
        start = 0
        next_offset = self.base_offset
        if self.index_positions:
            # The batch of the last entry is known; continue after it.
            start = self.index_positions[-1]
            header = self._header_at(start)
            if header is None or header.last_offset != self.index_offsets[-1] or not self.time_stamps:
                self._forget_indexes()
                start = 0
            else:
                start += header.size
                next_offset = header.last_offset + 1
                self._bytes_since_entry = header.size
                self._max_timestamp = self.time_stamps[-1]
                self._offset_of_max = self.time_offsets[-1]
                first = self._header_at(0)
                self.first_timestamp = first.max_timestamp if first is not None else NO_TIMESTAMP
        if start == 0:
            self._forget_indexes()
        try:
            for header, _data, at in self._walk(start, next_offset, False):
                self._note(at, header.size, header.last_offset, header.max_timestamp)
        except BadBatch as bad:
            raise LogDamaged(self.log_path, bad.next_offset, bad.position, bad.reason) from None
        self._indexed = True

    def _forget_indexes(self) -> None:
        for entries in (self.index_offsets, self.index_positions, self.time_stamps, self.time_offsets):
            del entries[:]
        self._bytes_since_entry = 0
        self._max_timestamp = NO_TIMESTAMP
        self._offset_of_max = -1

    def _read_index(self, kind: str) -> bytes:
        """Read an index file. An unreadable one counts as missing: it can be rebuilt from the segment."""
        path = self.file_path(kind)
        try:
            if not self.storage.exists(path) or self.storage.size_of(path) > INDEX_BYTES_MAX:
                return b""
            return self.storage.read_bytes(path)
        except OSError:
            return b""

    def _load_offset_index(self) -> None:
        data = self._read_index(".index")
        numbers = array("I")
        numbers.frombytes(data[: len(data) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES])
        if sys.byteorder == "little":
            numbers.byteswap()
        last_offset = last_position = -1
        for i in range(0, len(numbers), 2):
            offset = self.base_offset + numbers[i]
            position = numbers[i + 1]
            # Kafka preallocates index files with zeros. Valid entries grow strictly, so zeros end the valid part.
            if offset <= last_offset or position <= last_position or position >= self.size:
                break
            if position == 0:
                break
            self.index_offsets.append(offset)
            self.index_positions.append(position)
            last_offset, last_position = offset, position

    def _load_time_index(self) -> None:
        data = self._read_index(".timeindex")
        last_timestamp = NO_TIMESTAMP
        last_offset = -1
        for at in range(0, len(data) - TIME_ENTRY_BYTES + 1, TIME_ENTRY_BYTES):
            timestamp = int.from_bytes(data[at : at + 8], "big", signed=True)
            offset = self.base_offset + int.from_bytes(data[at + 8 : at + 12], "big")
            if timestamp <= last_timestamp or offset < last_offset:
                break
            self.time_stamps.append(timestamp)
            self.time_offsets.append(offset)
            last_timestamp, last_offset = timestamp, offset

    # --- scanning

    def rescan(
        self, contiguous: bool, epochs: Sequence[tuple[int, int]] = (), survey: TransactionSurvey | None = None
    ) -> int:
        """Check every batch and rebuild the indexes. Returns the next offset; raises BadBatch.

        The transactions of valid batches go to `survey`; the transaction index stays as it is.

        Only compaction leaves gaps between batches, and only in closed segments. With `contiguous` a gap is a damaged
        base offset, which the checksum does not cover. The checksum does not cover the leader epoch either, so it is
        compared with `epochs`: (epoch, first offset), ascending.
        """
        self._forget_indexes()
        self._indexed = True
        next_offset = self.base_offset
        epoch = -1
        for header, data, start in self._walk(0, next_offset, True):
            if contiguous and (header.base_offset != next_offset or header.leader_epoch < epoch):
                reason = f"offset {header.base_offset}, epoch {header.leader_epoch} after {next_offset - 1}, {epoch}"
                raise BadBatch(start, next_offset, reason)
            expected = _epoch_at(epochs, header.base_offset)
            if expected is not None and header.leader_epoch != expected:
                raise BadBatch(start, next_offset, f"leader epoch {header.leader_epoch}, {expected} expected")
            self._note(start, header.size, header.last_offset, header.max_timestamp)
            if survey is not None:
                survey.add(header, data)
            next_offset = header.last_offset + 1
            epoch = header.leader_epoch
        return next_offset

    def _walk(
        self, position: int, next_offset: int, checksums: bool, chunk_bytes: int = SCAN_CHUNK_BYTES
    ) -> Iterator[tuple[BatchHeader, bytes, int]]:
        """Header, the buffer that it points into and the position in the file, batch by batch."""
        buf = b""
        start = position
        pos = 0
        while start + pos < self.size:
            at = start + pos
            if len(buf) - pos < HEADER_BYTES:
                start, pos, buf = at, 0, self._read_at(at, chunk_bytes)
            try:
                header = parse_header(buf, pos, True)
                if header.size > self.size - at:
                    raise DecodeError(f"batch of {header.size} bytes, {self.size - at} left")
                if header.size > len(buf) - pos:
                    start, pos, buf = at, 0, self._read_at(at, max(header.size, chunk_bytes))
                    header = parse_header(buf, pos)
            except DecodeError as error:
                raise BadBatch(at, next_offset, str(error)) from None
            if header.base_offset < next_offset:
                reason = f"offset {header.base_offset}, {next_offset} or later expected"
                raise BadBatch(at, next_offset, reason)
            if checksums and not check_crc(buf, pos, header):
                raise BadBatch(at, next_offset, "wrong checksum")
            yield header, buf, at
            next_offset = header.last_offset + 1
            pos += header.size

    def _header_at(self, position: int) -> BatchHeader | None:
        try:
            header = parse_header(self.file().read_at(position, HEADER_BYTES), 0, True)
        except DecodeError:
            return None
        return header if position + header.size <= self.size else None

    # --- reading

    @property
    def max_timestamp(self) -> int:
        self.load_indexes()
        return self._max_timestamp

    @property
    def offset_of_max_timestamp(self) -> int:
        """Last offset of the batch with the largest timestamp; -1 if there is none."""
        self.load_indexes()
        return self._offset_of_max

    def position_before(self, offset: int) -> int:
        """Position of a batch at or shortly before the one with `offset`."""
        self.load_indexes()
        i = bisect_right(self.index_offsets, offset) - 1
        return self.index_positions[i] if i >= 0 else 0

    def offset_near(self, position: int) -> int:
        """An offset in a batch at or shortly before `position`."""
        self.load_indexes()
        i = bisect_right(self.index_positions, position) - 1
        return self.index_offsets[i] if i >= 0 else self.base_offset

    def offset_after(self, offset: int) -> int:
        """The offset of the first index entry after `offset`; -1 if there is none."""
        self.load_indexes()
        i = bisect_right(self.index_offsets, offset)
        return self.index_offsets[i] if i < len(self.index_offsets) else -1

    def position_before_timestamp(self, timestamp: int) -> int:
        """Position of a batch before which every timestamp is smaller than `timestamp`."""
        self.load_indexes()
        i = bisect_right(self.time_stamps, timestamp - 1) - 1
        return self.position_before(self.time_offsets[i]) if i >= 0 else 0

    def batches(
        self, position: int, checksums: bool, chunk_bytes: int = SCAN_CHUNK_BYTES
    ) -> Iterator[tuple[BatchHeader, bytes]]:
        """Headers from `position` on, each with the buffer that it points into. Raises LogDamaged.

        `chunk_bytes` are read at once; use a small value to look up a single batch.
        """
        try:
            for header, data, _start in self._walk(position, 0, checksums, chunk_bytes):
                yield header, data
        except BadBatch as bad:
            raise LogDamaged(self.log_path, bad.next_offset, bad.position, bad.reason) from None

    def read(self, offset: int, max_bytes: int, upto_offset: int, min_one_batch: bool) -> bytes:
        """Whole batches from the one that holds `offset` (or the next one) that begin below `upto_offset`."""
        if max_bytes >= LARGE_READ_BYTES:
            try:
                data = self._read_large(offset, max_bytes, upto_offset)
            except LogDamaged:
                data = b""
            if data:
                return data
        position = self.position_before(offset)
        buf = self._read_at(position, max_bytes + 2 * self.index_interval_bytes)
        start = 0
        while True:
            if len(buf) - start < HEADER_BYTES:
                position += start
                if self.size - position < HEADER_BYTES:
                    return b""
                start = 0
                buf = self._read_at(position, max_bytes + HEADER_BYTES)
            if int(read_i64_be(buf, start)) + int(read_i32_be(buf, start + 23)) >= offset:
                break
            start += self._batch_size(buf, start, position + start, offset)
        if len(buf) - start < max_bytes and position + len(buf) < self.size:
            # What came before took more than was read for it.
            position += start
            start = 0
            buf = self._read_at(position, max_bytes)
        end = start
        limit = start + max_bytes
        while len(buf) - end >= HEADER_BYTES:
            if read_i64_be(buf, end) >= upto_offset:
                break
            size = self._batch_size(buf, end, position + end, offset)
            if end + size > limit or end + size > len(buf):
                if end == start and (min_one_batch or size <= max_bytes):
                    return self._read_at(position + start, size)
                break
            end += size
        return buf[start:end]

    def _read_large(self, offset: int, max_bytes: int, upto_offset: int) -> bytes:
        """Like `read`, but without the copy that cuts a piece out of what was read: the index tells where a batch ends.

        Returns no bytes, or raises LogDamaged, if that is not so simple; then `read` must do it the other way.
        """
        start, end, _ = self._extent(offset, max_bytes)
        if end <= start:
            return b""
        data = self._read_at(start, end - start)
        at = 0
        while at < len(data):
            if len(data) - at < HEADER_BYTES:
                return b""
            if read_i64_be(data, at) >= upto_offset:
                return data[:at]
            at += self._batch_size(data, at, start + at, offset)
        return data if at == len(data) else b""

    def locate(self, offset: int, max_bytes: int, end_offset: int, upto_offset: int) -> FileRange | None:
        """What `read` would return, as a range of the file; None if that is not simple.

        `end_offset` is the offset after the last batch of the file.
        """
        file = self.file()
        if not isinstance(file, DiskFile) or (self.files is not None and self.files.is_scarce):
            return None
        try:
            start, end, next_base = self._extent(offset, max_bytes)
        except LogDamaged:
            return None
        if next_base < 0:
            next_base = end_offset
        # The last batch of the range must begin below the end.
        if end <= start or next_base > upto_offset:
            return None
        return FileRange(file.share(), start, end - start)

    def _extent(self, offset: int, max_bytes: int) -> tuple[int, int, int]:
        """The start and end of the batches that fit, and the base offset of the next one; -1 if the file ends there.

        The index tells where the last one ends. No batches: they are not found like this. Raises LogDamaged.
        """
        start = self._start_of(offset)
        if start < 0:
            return 0, 0, -1
        end = self.size
        limit = start + max_bytes
        if limit >= end:
            return start, end, -1
        i = bisect_right(self.index_positions, limit) - 1
        end = max(start, self.index_positions[i]) if i >= 0 else start
        while True:
            head = self._read_at(end, HEADER_BYTES)
            if len(head) < HEADER_BYTES:
                return 0, 0, -1
            size = self._batch_size(head, 0, end, offset)
            if end + size > limit:
                return start, end, int(read_i64_be(head, 0))
            end += size

    def _start_of(self, offset: int) -> int:
        """The position of the batch that holds `offset`, or of the next one; -1 if it is not near its index entry.

        Raises LogDamaged, also if this batch has no valid size: a reader that arrives there must be told.
        """
        position = self.position_before(offset)
        buf = self._read_at(position, self.index_interval_bytes + 2 * HEADER_BYTES)
        at = 0
        while len(buf) - at >= HEADER_BYTES:
            if int(read_i64_be(buf, at)) + int(read_i32_be(buf, at + 23)) >= offset:
                self._batch_size(buf, at, position + at, offset)
                return position + at
            at += self._batch_size(buf, at, position + at, offset)
        return -1

    def _read_at(self, position: int, size: int) -> bytes:
        return self.file().read_at(position, min(size, self.size - position))

    def _batch_size(self, buf: bytes, at: int, position: int, offset: int) -> int:
        length = read_i32_be(buf, at + 8)
        size = length + LENGTH_OVERHEAD
        if length < BATCH_LENGTH_MIN or size > self.size - position:
            raise LogDamaged(self.log_path, offset, position, f"batch length {length}")
        return size


def _epoch_at(epochs: Sequence[tuple[int, int]], offset: int) -> int | None:
    """The epoch in which `offset` was written; None if unknown."""
    for epoch, start in reversed(epochs):
        if start <= offset:
            return epoch
    return None
