"""Records of many batches into columns, without an object for each: what makes reading fast.

Columns are little-endian numbers in growing buffers, which NumPy and Arrow take as they are.
"""

from __future__ import annotations

from typing import Final, final

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

# Timestamps beyond are not believed: their sums would not fit into 64 bits.
TIME_MAX: Final = 1 << 62
# Bytes of keys and values that are kept; one batch more may be there.
BYTES_MAX: Final = 32 << 20
# Of a control record; they are a few bytes.
MARKER_BYTES_MAX: Final = 1 << 16
# A record's offset must lie in its batch.
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

    def is_aborted(self, header: BatchHeader) -> bool:
        for first, last in self.aborted.get(header.producer_id, ()):
            if first <= header.base_offset <= last:
                return True
        return False


class Scan:
    """Batches in, columns out. A subclass says what becomes of a record, and makes columns of its own."""

    def __init__(self, wanted: ScanRange) -> None:
        self.wanted = wanted
        # Why `feed` stopped, if it was for damage; where the offsets of the next batch may begin.
        self.reason = ""
        self.next_offset: i64 = 0

    def is_full(self, records_max: i64) -> bool:
        """Whether so many records or more are in the columns, or more bytes than should be kept."""
        raise NotImplementedError

    def begin_batch(self) -> None:
        """Remember how long the columns are: what comes now belongs to one batch."""
        raise NotImplementedError

    def undo_batch(self) -> None:
        """Forget what came since `begin_batch`."""
        raise NotImplementedError

    def end_batch(self, position: i64, producer_id: i64, timestamp_type: i64) -> None:
        """What came since `begin_batch` is a batch at `position` of the file; of no transaction if the id is -1."""
        raise NotImplementedError

    def record(
        self,
        data: bytes,
        offset: i64,
        timestamp: i64,
        key_at: i64,
        key_size: i64,
        value_at: i64,
        value_size: i64,
        headers_at: i64,
        end: i64,
    ) -> None:
        """A record that is wanted: where key, value and headers are in `data`. A size of -1 is a null."""
        raise NotImplementedError

    def feed(self, buf: bytes, pos: i64, end: i64, position: i64, highest: i64, records_max: i64) -> i64:
        """Scan whole batches of `buf` that begin at `pos` or behind it and before `end`; where it stopped.

        `position` is where `buf` begins in the file, `highest` the largest offset the segment may have. It stops at
        `end`, before a batch that is not whole in `buf`, with `records_max` or more records, and, with `reason`, at
        what is no batch. What its records say is not checked before: a batch that cannot be taken apart is left
        out as a whole: it stops there too, with `reason`.
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
                self.reason = f"{found} where {self.next_offset} or later is due"
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
        if header.attributes & CONTROL_FLAG or header.count == 0:
            return False
        if header.last_offset < wanted.from_offset or header.base_offset >= wanted.to_offset:
            return False
        # A batch's largest timestamp is of any use only where it has one.
        if wanted.from_ms > 0 and header.max_timestamp >= 0 and header.max_timestamp < wanted.from_ms:
            return False
        return not (header.attributes & TRANSACTIONAL_FLAG and wanted.aborted and wanted.is_aborted(header))

    def _batch(self, buf: bytes, pos: i64, header: BatchHeader, position: i64) -> str:
        """Take a batch apart; what is wrong with it, and then nothing of it is in the columns."""
        self.begin_batch()
        try:
            self._records(buf, pos, header)
        except (DecodeError, DecompressionError) as error:
            self.undo_batch()
            return str(error)
        attributes = header.attributes
        self.end_batch(
            position,
            header.producer_id if attributes & TRANSACTIONAL_FLAG else -1,
            1 if attributes & LOG_APPEND_TIME_FLAG else 0,
        )
        return ""

    def _records(self, buf: bytes, pos: i64, header: BatchHeader) -> None:
        wanted = self.wanted
        r = records_reader(buf, pos, header, wanted.decompressed_bytes_max)
        data = r.buf
        base: i64 = header.base_offset
        last: i64 = header.last_offset
        base_ms: i64 = header.base_timestamp
        if base_ms < -TIME_MAX or base_ms > TIME_MAX:
            raise DecodeError(f"base timestamp {header.base_timestamp}")
        is_append_time = (header.attributes & LOG_APPEND_TIME_FLAG) != 0
        left: i64 = header.count
        while left > 0:
            left -= 1
            end: i64 = record_end(r)
            delta = r.varlong()
            if delta < -TIME_MAX or delta > TIME_MAX:
                raise DecodeError(f"timestamp delta {delta}")
            timestamp: i64 = header.max_timestamp if is_append_time else base_ms + i64(delta)
            offset: i64 = base + r.varint()
            if offset < base or offset > last:
                raise DecodeError(OUT_OF_BATCH)
            key_size: i64 = r.varint()
            key_at: i64 = r.take(key_size) if key_size > 0 else r.pos
            value_size: i64 = r.varint()
            value_at: i64 = r.take(value_size) if value_size > 0 else r.pos
            headers_at: i64 = r.pos
            skip_headers(r)
            if r.pos != end:
                raise DecodeError("record does not match its size")
            if offset < wanted.from_offset or offset >= wanted.to_offset:
                continue
            if timestamp < wanted.from_ms or timestamp >= wanted.to_ms:
                continue
            self.record(data, offset, timestamp, key_at, key_size, value_at, value_size, headers_at, end)
        if r.pos != r.end:
            raise DecodeError(f"{r.end - r.pos} bytes behind the last record")


@final
class MessageColumns:
    """One column each, `count` records long; of batches `batches` long.

    Sizes are -1 for nulls. `batch_of` is each record's number among the batches.
    """

    def __init__(self) -> None:
        self.count: i64 = 0
        self.offsets = BytesWriter()
        self.timestamps = BytesWriter()
        self.batch_of = BytesWriter()
        self.key_sizes = BytesWriter()
        self.key_bytes = BytesWriter()
        self.value_sizes = BytesWriter()
        self.value_bytes = BytesWriter()
        self.header_sizes = BytesWriter()
        self.header_bytes = BytesWriter()
        self.batches: i64 = 0
        self.positions = BytesWriter()
        self.timestamp_types = BytesWriter()


@final
class MessageScan(Scan):
    """Records as they are; columns that are not asked for stay empty. `take` gives what came, and begins anew."""

    def __init__(self, wanted: ScanRange, with_keys: bool, with_values: bool, with_headers: bool) -> None:
        super().__init__(wanted)
        self.with_keys = with_keys
        self.with_values = with_values
        self.with_headers = with_headers
        self.columns = MessageColumns()
        self.count: i64 = 0
        self.keys: i64 = 0
        self.values: i64 = 0
        self.headers: i64 = 0

    def take(self) -> MessageColumns:
        columns = self.columns
        self.columns = MessageColumns()
        return columns

    def is_full(self, records_max: i64) -> bool:
        c = self.columns
        return c.count >= records_max or len(c.key_bytes) + len(c.value_bytes) >= BYTES_MAX

    def begin_batch(self) -> None:
        c = self.columns
        self.count = c.count
        self.keys = len(c.key_bytes)
        self.values = len(c.value_bytes)
        self.headers = len(c.header_bytes)

    def undo_batch(self) -> None:
        c = self.columns
        count = self.count
        c.count = count
        c.offsets.truncate(count * 8)
        c.timestamps.truncate(count * 8)
        c.batch_of.truncate(count * 4)
        if self.with_keys:
            c.key_sizes.truncate(count * 4)
            c.key_bytes.truncate(self.keys)
        if self.with_values:
            c.value_sizes.truncate(count * 4)
            c.value_bytes.truncate(self.values)
        if self.with_headers:
            c.header_sizes.truncate(count * 4)
            c.header_bytes.truncate(self.headers)

    def end_batch(self, position: i64, producer_id: i64, timestamp_type: i64) -> None:
        c = self.columns
        c.batches += 1
        write_i64_le(c.positions, position)
        c.timestamp_types.append(u8(timestamp_type))

    def record(
        self,
        data: bytes,
        offset: i64,
        timestamp: i64,
        key_at: i64,
        key_size: i64,
        value_at: i64,
        value_size: i64,
        headers_at: i64,
        end: i64,
    ) -> None:
        c = self.columns
        c.count += 1
        write_i64_le(c.offsets, offset)
        write_i64_le(c.timestamps, timestamp)
        write_i32_le(c.batch_of, i32(c.batches))
        if self.with_keys:
            write_i32_le(c.key_sizes, i32(key_size) if key_size >= 0 else i32(-1))
            if key_size > 0:
                c.key_bytes.write(data[key_at : key_at + key_size])
        if self.with_values:
            write_i32_le(c.value_sizes, i32(value_size) if value_size >= 0 else i32(-1))
            if value_size > 0:
                c.value_bytes.write(data[value_at : value_at + value_size])
        if self.with_headers:
            # One byte, a count of 0, is what most records have.
            write_i32_le(c.header_sizes, i32(end - headers_at))
            c.header_bytes.write(data[headers_at:end])


@final
class TransactionSurvey:
    """Follows the transactions of one partition, batch after batch, by headers and markers alone.

    `aborted` has (producer id, first offset, offset of the marker) of those that ended so; `open_since` tells where
    the transactions that have not ended began. `end_offset` is the one behind the last batch that is whole in the
    file; whether its bytes are right was not looked at.
    """

    def __init__(self) -> None:
        self.end_offset: i64 = 0
        self.aborted: list[tuple[int, int, int]] = []
        self.open_since: dict[int, int] = {}
        # After `feed`: how much to move on behind what it looked at, or how many bytes it needs.
        self.skip: i64 = 0
        self.needs: i64 = 0

    def feed(self, buf: bytes, beyond: i64) -> i64:
        """Look at the headers in `buf`; where it stopped. Records that are not markers need not be there whole.

        `beyond` is how much more the file has behind `buf`.
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
