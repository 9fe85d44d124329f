"""Records of many batches into columns, without an object for each record, so that reading is fast.

Columns are little-endian numbers in growing buffers, which NumPy and Arrow use without a copy.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.log.record_format import in_format_2
from kcoord.spark.reader.slices import TIME_MS_MAX
from kcoord.wire.compression import DecompressionError
from kcoord.wire.primitives import (
    BytesWriter,
    DecodeError,
    i32,
    i64,
    u8,
    write_i32_le,
    write_i64_le,
)
from kcoord.wire.record_batch import (
    CONTROL_FLAG,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    check_crc,
    decode_records,
    parse_header,
    record_end,
    records_reader,
    skip_headers,
)

# Larger timestamps are damage: their sums would not fit into 64 bits.
TIME_MAX: Final = 1 << 62
# Bytes of keys and values before the scan is full; one more batch may be added.
BYTES_MAX: Final = 32 << 20
# The largest control record; they have a few bytes.
MARKER_BYTES_MAX: Final = 1 << 16
# The first flag: a row has no time, or one that does not fit into a column. Subclasses have more flags.
NO_TIMESTAMP: Final = 1
BY_BROKERS_CLOCK: Final = 1
IN_TRANSACTION: Final = 2
# A record's offset must be within its batch.
OUT_OF_BATCH: Final = "a record with an offset outside of its batch"


@final
class ScanRange:
    """Which records are wanted: offsets from `from_offset` and below `to_offset`, timestamps in ms likewise.

    With `committed_only`, batches of transactions listed in `aborted` (producer id to ranges of offsets) are left
    out, and so are control batches.
    """

    def __init__(
        self,
        from_offset: int,
        to_offset: int,
        from_ms: int,
        to_ms: int,
        aborted: dict[int, list[tuple[int, int]]],
        decompressed_bytes_max: int,
    ) -> None:
        self.from_offset: i64 = from_offset
        self.to_offset: i64 = to_offset
        self.from_ms: i64 = from_ms
        self.to_ms: i64 = to_ms
        self.aborted = aborted
        self.decompressed_bytes_max = decompressed_bytes_max
        # Whether a producer with an id wrote the batch; None is no condition.
        self.has_producer: bool | None = None
        # Below this offset records have format 1 (kcoord/log/record_format.py) and are converted to format 2.
        self.format_1_end: i64 = 0

    def is_aborted(self, header: BatchHeader) -> bool:
        for first, last in self.aborted.get(header.producer_id, ()):
            if first <= header.base_offset <= last:
                return True
        return False


@final
class RecordSpan:
    """Offset and timestamp (ms) of a record, and where its parts are in the bytes it came in. Sizes: -1 for null.

    Headers begin with their count and reach to `end`.
    """

    def __init__(self) -> None:
        self.offset: i64 = 0
        self.timestamp: i64 = 0
        self.key_at: i64 = 0
        self.key_size: i64 = 0
        self.value_at: i64 = 0
        self.value_size: i64 = 0
        self.headers_at: i64 = 0
        self.end: i64 = 0

    def key(self, data: bytes) -> bytes | None:
        return None if self.key_size < 0 else data[self.key_at : self.key_at + self.key_size]

    def value(self, data: bytes) -> bytes | None:
        return None if self.value_size < 0 else data[self.value_at : self.value_at + self.value_size]


class Columns:
    """Columns with `count` rows, and columns about batches with `batches` rows.

    `flags` are the columns of a row that are null. Texts and bytes are concatenated; another column has their ends,
    after a leading 0. `batch_of` is the number of each row's batch. `bad` are records that cannot be read: offset,
    number of the batch, reason.
    """

    def __init__(self) -> None:
        self.count: i64 = 0
        self.bad: list[tuple[int, int, str]] = []
        self.eights: list[BytesWriter] = []
        self.fours: list[BytesWriter] = []
        self.texts: list[tuple[BytesWriter, BytesWriter]] = []
        self.offsets = self.eight()
        # In microseconds; 0 with NO_TIMESTAMP.
        self.timestamps = self.eight()
        self.batch_of = self.four()
        self.flags = self.four()
        self.batches: i64 = 0
        self.positions = BytesWriter()
        self.producer_ids = BytesWriter()
        self.producer_epochs = BytesWriter()
        self.leader_epochs = BytesWriter()
        # Of each batch, BY_BROKERS_CLOCK and IN_TRANSACTION.
        self.kinds = BytesWriter()
        self.is_transactional = False

    def eight(self) -> BytesWriter:
        """A new column of numbers of 8 bytes."""
        column = BytesWriter()
        self.eights.append(column)
        return column

    def four(self) -> BytesWriter:
        column = BytesWriter()
        self.fours.append(column)
        return column

    def text(self) -> tuple[BytesWriter, BytesWriter]:
        """A new column of texts or bytes: their ends, and they themselves."""
        ends = BytesWriter()
        write_i32_le(ends, 0)
        column = (ends, BytesWriter())
        self.texts.append(column)
        return column

    def size_bytes(self) -> i64:
        """Of texts and bytes."""
        size: i64 = 0
        for column in self.texts:
            size += len(column[1])
        return size

    def begin_row(self, span: RecordSpan, flags: i64) -> None:
        self.count += 1
        write_i64_le(self.offsets, span.offset)
        timestamp = span.timestamp
        if timestamp < 0 or timestamp > TIME_MS_MAX:
            flags |= NO_TIMESTAMP
            timestamp = 0
        write_i64_le(self.timestamps, timestamp * 1000)
        write_i32_le(self.batch_of, i32(self.batches))
        write_i32_le(self.flags, i32(flags))

    def end_batch(self, header: BatchHeader, position: i64) -> None:
        self.batches += 1
        kind: i64 = 0
        if header.attributes & LOG_APPEND_TIME_FLAG:
            kind |= BY_BROKERS_CLOCK
        if header.attributes & TRANSACTIONAL_FLAG:
            kind |= IN_TRANSACTION
            self.is_transactional = True
        self.kinds.append(u8(kind))
        write_i64_le(self.positions, position)
        write_i64_le(self.producer_ids, header.producer_id)
        write_i32_le(self.producer_epochs, i32(header.producer_epoch))
        write_i32_le(self.leader_epochs, i32(header.leader_epoch))

    def truncate(self, count: i64, bad: i64) -> None:
        self.count = count
        del self.bad[bad:]
        for column in self.eights:
            column.truncate(count * 8)
        for column in self.fours:
            column.truncate(count * 4)
        for ends, data in self.texts:
            at: i64 = count * 4
            # A column that is not needed has no ends.
            if len(ends) > at + 4:
                data.truncate(int.from_bytes(ends.getvalue()[at : at + 4], "little"))
                ends.truncate(at + 4)


class Scan:
    """From batches to columns. A subclass handles each record, and keeps its own columns in `base`."""

    def __init__(self, wanted: ScanRange, with_control: bool = False) -> None:
        self.wanted = wanted
        self.with_control = with_control
        self.base = Columns()
        self.span = RecordSpan()
        # Why `feed` stopped, if because of damage; the lowest offset that the next batch may have.
        self.reason = ""
        self.next_offset: i64 = 0

    def is_full(self, records_max: i64) -> bool:
        base = self.base
        return base.count >= records_max or len(base.bad) >= records_max or base.size_bytes() >= BYTES_MAX

    def undo(self, count: i64, bad: i64) -> None:
        """Go back to this many rows, and bad records."""
        self.base.truncate(count, bad)

    def record(self, data: bytes, header: BatchHeader, span: RecordSpan) -> None:
        """Handle a wanted record; `span` is reused for the next one. Subclasses override it."""

    def feed(self, buf: bytes, pos: i64, end: i64, position: i64, highest: i64, records_max: i64) -> i64:
        """Scan the complete batches of `buf` that begin at or after `pos` and before `end`; return where it stopped.

        `position` is where `buf` begins in the file, `highest` the largest offset the segment may have. It stops at
        `end`, before a batch that is not complete in `buf`, with `records_max` or more records, and, with `reason`, at
        damage. A batch whose records cannot be read is damage as a whole: none of its records is in the columns.
        """
        self.reason = ""
        size: i64 = len(buf)
        while pos < end and not self.is_full(records_max) and size - pos >= HEADER_BYTES:
            try:
                header = parse_header(buf, pos, True)
            except DecodeError as error:
                self.reason = str(error)
                return pos
            if header.size > size - pos:
                return pos
            if not check_crc(buf, pos, header):
                self.reason = "wrong checksum"
                return pos
            if header.base_offset < self.next_offset or header.last_offset > highest:
                found = f"offsets {header.base_offset}..{header.last_offset}"
                self.reason = f"{found}, {self.next_offset} or later expected"
                return pos
            if self._is_wanted(header):
                reason = self._batch(buf, pos, header, position + pos)
                if reason:
                    self.reason = reason
                    return pos
            self.next_offset = header.last_offset + 1
            pos += header.size
        return pos

    def _is_wanted(self, header: BatchHeader) -> bool:
        wanted = self.wanted
        if header.count == 0 or (header.attributes & CONTROL_FLAG and not self.with_control):
            return False
        if header.last_offset < wanted.from_offset or header.base_offset >= wanted.to_offset:
            return False
        if wanted.has_producer is not None and wanted.has_producer != (header.producer_id != -1):
            return False
        # A batch may have no largest timestamp.
        if wanted.from_ms > 0 and header.max_timestamp >= 0 and header.max_timestamp < wanted.from_ms:
            return False
        return not (header.attributes & TRANSACTIONAL_FLAG and wanted.aborted and wanted.is_aborted(header))

    def _batch(self, buf: bytes, pos: i64, header: BatchHeader, position: i64) -> str:
        """Read the records of a batch; the reason if that fails, and then the columns have none of them."""
        base = self.base
        count = base.count
        bad: i64 = len(base.bad)
        try:
            self._records(buf, pos, header)
        except (DecodeError, DecompressionError) as error:
            self.undo(count, bad)
            return str(error)
        base.end_batch(header, position)
        return ""

    def _records(self, buf: bytes, pos: i64, header: BatchHeader) -> None:
        wanted = self.wanted
        r = records_reader(buf, pos, header, wanted.decompressed_bytes_max)
        data = r.buf
        span = self.span
        base: i64 = header.base_offset
        last: i64 = header.last_offset
        base_ms: i64 = header.base_timestamp
        if base_ms <= -TIME_MAX or base_ms >= TIME_MAX:
            raise DecodeError(f"base timestamp {header.base_timestamp}")
        is_append_time = (header.attributes & LOG_APPEND_TIME_FLAG) != 0
        if is_append_time and (header.max_timestamp <= -TIME_MAX or header.max_timestamp >= TIME_MAX):
            raise DecodeError(f"log append time {header.max_timestamp}")
        left: i64 = header.count
        while left > 0:
            left -= 1
            end: i64 = record_end(r)
            delta = r.varlong()
            if delta <= -TIME_MAX or delta >= TIME_MAX:
                raise DecodeError(f"timestamp delta {delta}")
            timestamp: i64 = header.max_timestamp if is_append_time else base_ms + i64(delta)
            offset: i64 = base + r.varint()
            if offset < base or offset > last:
                raise DecodeError(OUT_OF_BATCH)
            key_size: i64 = r.varint()
            span.key_size = key_size
            span.key_at = r.take(key_size) if key_size > 0 else r.pos
            value_size: i64 = r.varint()
            span.value_size = value_size
            span.value_at = r.take(value_size) if value_size > 0 else r.pos
            span.headers_at = r.pos
            skip_headers(r)
            if r.pos != end:
                raise DecodeError("record does not match its size")
            if offset < wanted.from_offset or offset >= wanted.to_offset:
                continue
            if timestamp < wanted.from_ms or timestamp >= wanted.to_ms:
                continue
            span.offset = offset
            span.timestamp = timestamp
            span.end = end
            if offset < wanted.format_1_end:
                self._older_record(data, header, span)
            else:
                self.record(data, header, span)
        if r.pos != r.end:
            raise DecodeError(f"{r.end - r.pos} bytes after the last record")

    def _older_record(self, data: bytes, header: BatchHeader, span: RecordSpan) -> None:
        """A record of format 1: if its value differs in format 2, the record is copied with the new value."""
        key = span.key(data)
        value = span.value(data)
        newer = in_format_2(key, value)
        if key is None or newer is None or newer is value:
            self.record(data, header, span)
            return
        headers = data[span.headers_at : span.end]
        span.key_at = 0
        span.value_at = len(key)
        span.value_size = len(newer)
        span.headers_at = span.value_at + span.value_size
        span.end = span.headers_at + len(headers)
        self.record(key + newer + headers, header, span)


@final
class TransactionSurvey:
    """Follows the transactions of one partition, batch after batch, by headers and markers alone.

    `aborted` has (producer id, first offset, offset of the marker) of aborted ones; `open_since` has the first offsets
    of open ones by producer id. `end_offset` is the offset after the last complete batch in the file; the checksum of
    that batch is not checked.
    """

    def __init__(self) -> None:
        self.end_offset: i64 = 0
        self.aborted: list[tuple[int, int, int]] = []
        self.open_since: dict[int, int] = {}
        # After `feed`: how many bytes to skip after those it has read, or how many it needs.
        self.skip: i64 = 0
        self.needs: i64 = 0

    def feed(self, buf: bytes, beyond: i64) -> i64:
        """Read the headers in `buf`; return where it stopped. Only markers must be complete in `buf`.

        `beyond` is how many bytes the file has after `buf`.
        """
        pos: i64 = 0
        size: i64 = len(buf)
        self.skip = 0
        self.needs = HEADER_BYTES
        while size - pos >= HEADER_BYTES:
            try:
                header = parse_header(buf, pos, True)
            except DecodeError:
                return pos
            if header.size > size - pos + beyond:
                return pos
            if header.attributes & CONTROL_FLAG and header.producer_id >= 0:
                if header.size > size - pos:
                    self.needs = header.size
                    return pos
                self._marker(buf, pos, header)
            elif header.attributes & TRANSACTIONAL_FLAG and header.producer_id not in self.open_since:
                self.open_since[header.producer_id] = header.base_offset
            self.end_offset = header.last_offset + 1
            if header.size > size - pos:
                self.skip = header.size - (size - pos)
                return size
            pos += header.size
        return pos

    def _marker(self, buf: bytes, pos: i64, header: BatchHeader) -> None:
        first = self.open_since.pop(header.producer_id, None)
        try:
            records = decode_records(buf, pos, header, MARKER_BYTES_MAX)
        except (DecodeError, DecompressionError):
            return
        key = records[0].key if records else None
        # Version and type of the marker: 0 aborts, 1 commits.
        if first is not None and key is not None and len(key) >= 4 and key[2] == 0 and key[3] == 0:
            self.aborted.append((header.producer_id, first, header.base_offset))
