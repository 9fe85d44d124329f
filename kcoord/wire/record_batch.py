"""Kafka's record batch, format version 2: the unit that is produced, stored and fetched.

Layout of the 61 bytes before the records (all numbers big-endian):

    0 base offset int64        21 attributes int16          43 producer id int64
    8 batch length int32       23 last offset delta int32   51 producer epoch int16
    12 leader epoch int32      27 base timestamp int64      53 base sequence int32
    16 magic int8              35 max timestamp int64       57 record count int32
    17 CRC-32C uint32

The batch length counts from byte 12; the checksum covers everything from byte 21. So a broker can set the base offset
and the leader epoch without computing the checksum again. Attributes: bits 0-2 codec, bit 3 log append time, bit 4
transactional, bit 5 control, bit 6 the base timestamp is a delete horizon (KIP-534).

Source: KIP-98 and the "Record Batch" section of Kafka's message format page.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.wire.compression import (
    CODEC_NONE,
    compress,
    decompress,
)
from kcoord.wire.crc import crc32c
from kcoord.wire.primitives import (
    BytesWriter,
    DecodeError,
    EncodeError,
    Reader,
    i32,
    i64,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    u8,
    varint_size,
    write_i32_be,
    write_i64_be,
    write_int16,
    write_varint,
)

HEADER_BYTES: Final = 61
# The bytes that the batch length does not count: the base offset and the length field.
LENGTH_OVERHEAD: Final = 12
BATCH_LENGTH_MIN: Final = HEADER_BYTES - LENGTH_OVERHEAD
CRC_FROM: Final = 21
MAGIC_V2: Final = 2

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1

INT32_MAX: Final = 0x7FFFFFFF
# A record takes at least seven bytes: length, attributes, two deltas, key and value length, header count.
RECORD_BYTES_MIN: Final = 7
Headers = list[tuple[str, bytes | None]]


@final
class BatchHeader:
    """The fields before the records. `size` is the size of the whole batch in bytes, `pos` its position."""

    def __init__(
        self,
        pos: i64,
        base_offset: i64,
        batch_length: i64,
        leader_epoch: i64,
        crc: i64,
        attributes: i64,
        last_offset_delta: i64,
        base_timestamp: i64,
        max_timestamp: i64,
        producer_id: i64,
        producer_epoch: i64,
        base_sequence: i64,
        count: i64,
    ) -> None:
        self.pos = pos
        self.base_offset = base_offset
        self.leader_epoch = leader_epoch
        self.crc = crc
        self.attributes = attributes
        self.last_offset_delta = last_offset_delta
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.count = count
        self.size: i64 = batch_length + LENGTH_OVERHEAD
        self.last_offset: i64 = base_offset + last_offset_delta

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        return LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME_FLAG else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return (self.attributes & TRANSACTIONAL_FLAG) != 0

    @property
    def is_control(self) -> bool:
        return (self.attributes & CONTROL_FLAG) != 0

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, wrapped from 2^31 - 1 to 0; -1 without a producer id."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & INT32_MAX


@final
class Record:
    """One record of a batch; `timestamp` and `offset` are absolute."""

    def __init__(self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers

    def __repr__(self) -> str:
        return f"Record({self.offset}, {self.timestamp}, {self.key!r}, {self.value!r}, {self.headers!r})"


def parse_header(buf: bytes, pos: i64 = 0, partial: bool = False) -> BatchHeader:
    """Parse the header of the batch at `pos`. Every length is checked; the checksum is not (see check_crc).

    With `partial` the records may be missing from `buf`, for example if only headers are read from a file.
    Raises DecodeError.
    """
    left: i64 = len(buf) - pos
    if pos < 0 or left < HEADER_BYTES:
        raise DecodeError(f"batch header of {HEADER_BYTES} bytes expected, {left} left")
    magic: i64 = i64(buf[pos + 16])
    length: i64 = i64(read_i32_be(buf, pos + 8))
    if magic != MAGIC_V2:
        if magic == 0 and length == 0:
            # No format has such a batch. A crash may leave zeros instead of the first bytes.
            raise DecodeError("zeros instead of a length")
        raise DecodeError(f"batch of format version {magic}")
    if length < BATCH_LENGTH_MIN:
        raise DecodeError(f"batch length {length}")
    if not partial and length > left - LENGTH_OVERHEAD:
        raise DecodeError(f"batch of {length + LENGTH_OVERHEAD} bytes, {left} left")
    base_offset: i64 = read_i64_be(buf, pos)
    last_delta: i64 = i64(read_i32_be(buf, pos + 23))
    count: i64 = i64(read_i32_be(buf, pos + 57))
    if base_offset < 0 or last_delta < 0 or base_offset > 0x7FFFFFFFFFFFFFFF - last_delta:
        raise DecodeError(f"batch at offset {base_offset} with last offset delta {last_delta}")
    # Compaction may leave fewer records than offsets, even none, but never more.
    if count < 0 or count > last_delta + 1:
        raise DecodeError(f"batch of {count} records with last offset delta {last_delta}")
    crc: i64 = i64(read_i32_be(buf, pos + 17))
    return BatchHeader(
        pos,
        base_offset,
        length,
        i64(read_i32_be(buf, pos + 12)),
        crc & 0xFFFFFFFF,
        i64(read_i16_be(buf, pos + 21)),
        last_delta,
        read_i64_be(buf, pos + 27),
        read_i64_be(buf, pos + 35),
        read_i64_be(buf, pos + 43),
        i64(read_i16_be(buf, pos + 51)),
        i64(read_i32_be(buf, pos + 53)),
        count,
    )


def check_crc(buf: bytes, pos: i64, header: BatchHeader) -> bool:
    """Whether the checksum of the batch at `pos` is correct; parse_header must have found the batch whole."""
    return crc32c(memoryview(buf)[pos + CRC_FROM : pos + header.size]) == header.crc


def records_reader(buf: bytes, pos: i64, header: BatchHeader, max_decompressed: int) -> Reader:
    codec = header.attributes & CODEC_MASK
    end = pos + header.size
    if codec == CODEC_NONE:
        r = Reader(buf, pos + HEADER_BYTES)
        r.end = end
    else:
        r = Reader(decompress(codec, buf[pos + HEADER_BYTES : end], max_decompressed))
    check_count(r, header)
    return r


def check_count(r: Reader, header: BatchHeader) -> None:
    """Raise DecodeError if `r` cannot hold the number of records in the header."""
    if header.count > (r.end - r.pos) // RECORD_BYTES_MIN:
        raise DecodeError(f"{header.count} records in {r.end - r.pos} bytes")


def record_end(r: Reader) -> i64:
    size = r.varint()
    if size < 0 or size > r.end - r.pos:
        raise DecodeError(f"record of {size} bytes, {r.end - r.pos} left")
    end = r.pos + size
    r.take(1)  # attributes, unused
    return end


def read_field(r: Reader) -> bytes | None:
    """The key or value of a record, or the value of a header. Raises DecodeError."""
    size = r.varint()
    if size < 0:
        return None
    pos = r.take(size)
    return r.buf[pos : pos + size]


def read_headers(r: Reader) -> Headers:
    """The headers of a record. Raises DecodeError."""
    count = r.varint()
    # A header takes at least two bytes.
    if count < 0 or count > (r.end - r.pos) // 2:
        raise DecodeError(f"{count} record headers in {r.end - r.pos} bytes")
    headers: Headers = []
    while count > 0:
        key = read_field(r)
        if key is None:
            raise DecodeError("null record header key")
        # surrogateescape preserves keys that are not UTF-8 in a round trip.
        headers.append((key.decode("utf-8", "surrogateescape"), read_field(r)))
        count -= 1
    return headers


def skip_headers(r: Reader) -> None:
    """Skip a record's headers. Raises DecodeError."""
    if r.pos < r.end and r.buf[r.pos] == 0:
        r.pos += 1
    else:
        read_headers(r)


def headers_at(buf: bytes, pos: i64, end: i64) -> Headers:
    """A record's headers, which lie between `pos` and `end`. Raises DecodeError."""
    r = Reader(buf, pos)
    r.end = end
    return read_headers(r)


def decode_records(buf: bytes, pos: i64, header: BatchHeader, max_decompressed: int) -> list[Record]:
    """The records of the batch at `pos`, whose header is `header`, in order.

    Raises DecodeError, and DecompressionError if they cannot be decompressed to at most `max_decompressed` bytes.
    """
    r = records_reader(buf, pos, header, max_decompressed)
    append_time = (header.attributes & LOG_APPEND_TIME_FLAG) != 0
    base_offset: int = header.base_offset
    base_timestamp: int = header.base_timestamp
    max_timestamp: int = header.max_timestamp
    records: list[Record] = []
    left = header.count
    while left > 0:
        end = record_end(r)
        timestamp = base_timestamp + r.varlong()
        if append_time:
            timestamp = max_timestamp
        delta = r.varint()
        if delta < 0 or delta > header.last_offset_delta:
            raise DecodeError(f"offset delta {delta} in a batch that ends at {header.last_offset_delta}")
        key = read_field(r)
        value = read_field(r)
        headers = read_headers(r)
        if r.pos != end:
            raise DecodeError("record does not match its size")
        records.append(Record(base_offset + delta, timestamp, key, value, headers))
        left -= 1
    if r.pos != r.end:
        raise DecodeError(f"{r.end - r.pos} bytes after the last record")
    return records


def _check_field(value: i64, low: i64, high: i64, name: str) -> None:
    if value < low or value > high:
        raise EncodeError(f"{name} {value} is out of range")


@final
class BatchBuilder:
    """Builds one batch: `append` encodes a record, `build` adds the header and the checksum.

    Timestamps are stored relative to that of the first record. Raises EncodeError for values outside the format.
    """

    def __init__(self) -> None:
        self.count: i64 = 0
        self.base_timestamp: i64 = NO_TIMESTAMP
        self.max_timestamp: i64 = NO_TIMESTAMP
        self.records = BytesWriter()
        # How a record of this time begins.
        self.head = b""
        self.head_timestamp: i64 = NO_TIMESTAMP - 1
        # How a record of this time begins that has so many bytes after that, and how many bytes it then has in all. The
        # records of one commit differ little.
        self.start = b""
        self.start_size: i64 = -1
        self.start_span: i64 = 0
        # Where the record ends that `begin_record` has begun.
        self.record_end: i64 = 0

    def size_bytes(self) -> int:
        """The current size of the batch without compression."""
        return HEADER_BYTES + len(self.records)

    def append(self, timestamp: i64, key: bytes | None, value: bytes | None, headers: Headers | None = None) -> None:
        """Append a record. `timestamp` is in milliseconds since the epoch, -1 for none."""
        body = BytesWriter() if headers else None
        if body is not None and headers is not None:
            _write_headers(body, headers)
        key_size: i64 = -1 if key is None else len(key)
        value_size: i64 = -1 if value is None else len(value)
        self.begin_record(timestamp, key_size, value_size, 1 if body is None else len(body))
        w = self.records
        if key is not None:
            w.write(key)
        write_varint(w, value_size)
        if value is not None:
            w.write(value)
        if body is None:
            w.append(0)
        else:
            w.write(body.getvalue())
        self.end_record(timestamp)

    def begin_record(self, timestamp: i64, key_size: i64, value_size: i64, headers_size: i64) -> None:
        """Begin a record whose parts the caller then writes to `records`: the key, the size of the value as a varint,
        the value, and the headers. `end_record` is next. A size of -1 is that of a null key or value.
        """
        size: i64 = varint_size(key_size) + varint_size(value_size) + headers_size
        if key_size > 0:
            size += key_size
        if value_size > 0:
            size += value_size
        self.begin_encoded(timestamp, size)
        write_varint(self.records, key_size)

    def begin_encoded(self, timestamp: i64, size: i64) -> None:
        """Like begin_record, but the caller also writes the size of the key. `size` is that of all that it writes."""
        if timestamp != self.head_timestamp or self.count == 0:
            self._begin_head(timestamp)
        count = self.count
        if count > INT32_MAX - 1:
            raise EncodeError("batch is full")
        size += 1 if count < 64 else 2 if count < 8192 else varint_size(count)
        if size != self.start_size:
            self._begin_start(size)
        w = self.records
        if self.start_span > INT32_MAX - len(w) - 64:
            raise EncodeError("batch is full")
        self.record_end = len(w) + self.start_span
        w.write(self.start)
        # As write_varint, for the most frequent sizes without calls.
        if count < 64:
            w.append(u8(count << 1))
        elif count < 8192:
            w.append(u8(((count << 1) & 127) | 128))
            w.append(u8(count >> 6))
        else:
            write_varint(w, count)

    def _begin_start(self, size: i64) -> None:
        """Encode how a record of this time begins that has `size` bytes after that: its size, and its head."""
        total = size + len(self.head)
        w = BytesWriter()
        write_varint(w, total)
        self.start_span = total + len(w)
        w.write(self.head)
        self.start = w.getvalue()
        self.start_size = size

    def _begin_head(self, timestamp: i64) -> None:
        """Encode how a record of this time begins: attributes and the delta of its time. Most of a batch have one."""
        if timestamp < NO_TIMESTAMP:
            raise EncodeError(f"timestamp {timestamp}")
        if self.count == 0:
            self.base_timestamp = timestamp
        delta = timestamp - self.base_timestamp
        # The bounds are far below the values at which the compiled zigzag encoding wraps; no clock reaches them.
        _check_field(delta, -0x3FFFFFFFFFFFFFFF, 0x3FFFFFFFFFFFFFFF, "timestamp delta")
        w = BytesWriter()
        w.append(0)
        write_varint(w, delta)
        self.head = w.getvalue()
        self.head_timestamp = timestamp
        self.start_size = -1

    def end_record(self, timestamp: i64) -> None:
        """The parts of the record are written. Raises EncodeError if they have other sizes than announced."""
        if len(self.records) != self.record_end:
            raise EncodeError(f"a record ends at byte {len(self.records)} instead of {self.record_end}")
        self.count += 1
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp

    def build(
        self,
        base_offset: i64,
        leader_epoch: i64,
        producer_id: i64 = NO_PRODUCER_ID,
        producer_epoch: i64 = NO_PRODUCER_EPOCH,
        base_sequence: i64 = NO_SEQUENCE,
        transactional: bool = False,
        control: bool = False,
        codec: int = CODEC_NONE,
    ) -> bytes:
        """The batch as bytes. The builder keeps its records and accepts more."""
        if self.count == 0:
            raise EncodeError("batch without records")
        attributes: i64 = codec
        if transactional:
            attributes |= TRANSACTIONAL_FLAG
        if control:
            attributes |= CONTROL_FLAG
        records = self.records.getvalue()
        if codec != CODEC_NONE:
            records = compress(codec, records)
        return encode_batch(
            base_offset,
            leader_epoch,
            attributes,
            self.count - 1,
            self.base_timestamp,
            self.max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            self.count,
            records,
        )


def _write_headers(w: BytesWriter, headers: Headers) -> None:
    count: i64 = len(headers)
    write_varint(w, count)
    for key, value in headers:
        data = key.encode("utf-8", "surrogateescape")
        size: i64 = len(data)
        write_varint(w, size)
        w.write(data)
        if value is None:
            write_varint(w, -1)
        else:
            size = len(value)
            write_varint(w, size)
            w.write(value)


def encode_batch(
    base_offset: i64,
    leader_epoch: i64,
    attributes: i64,
    last_offset_delta: i64,
    base_timestamp: i64,
    max_timestamp: i64,
    producer_id: i64,
    producer_epoch: i64,
    base_sequence: i64,
    count: i64,
    records: bytes,
) -> bytes:
    """A batch with these header fields around `records`, which are already encoded and compressed."""
    _check_field(base_offset, 0, 0x7FFFFFFFFFFFFFFF, "base offset")
    _check_field(leader_epoch, -1, INT32_MAX, "leader epoch")
    _check_field(producer_epoch, -1, 0x7FFF, "producer epoch")
    _check_field(base_sequence, -1, INT32_MAX, "base sequence")
    _check_field(last_offset_delta, 0, INT32_MAX, "last offset delta")
    size: i64 = len(records)
    _check_field(size, 0, INT32_MAX - BATCH_LENGTH_MIN, "size")
    tail = BytesWriter()
    write_int16(tail, attributes)
    write_i32_be(tail, i32(last_offset_delta))
    write_i64_be(tail, base_timestamp)
    write_i64_be(tail, max_timestamp)
    write_i64_be(tail, producer_id)
    write_int16(tail, producer_epoch)
    write_i32_be(tail, i32(base_sequence))
    write_i32_be(tail, i32(count))
    summed = tail.getvalue()
    crc: i64 = crc32c(records, crc32c(summed))
    head = BytesWriter()
    write_i64_be(head, base_offset)
    write_i32_be(head, i32(size + BATCH_LENGTH_MIN))
    write_i32_be(head, i32(leader_epoch))
    head.append(MAGIC_V2)
    _write_u32(head, crc)
    head.write(summed)
    return head.getvalue() + records


def _write_u32(w: BytesWriter, value: i64) -> None:
    w.append(u8((value >> 24) & 0xFF))
    w.append(u8((value >> 16) & 0xFF))
    w.append(u8((value >> 8) & 0xFF))
    w.append(u8(value & 0xFF))


def empty_batch(header: BatchHeader) -> bytes:
    """An empty batch in place of the one that `header` describes, as compaction leaves it."""
    return encode_batch(
        header.base_offset,
        header.leader_epoch,
        header.attributes & ~CODEC_MASK,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        0,
        b"",
    )


def with_offsets(batch: bytes, base_offset: i64, leader_epoch: i64) -> bytes:
    """The batch with another base offset and leader epoch; the checksum covers neither."""
    _check_field(base_offset, 0, 0x7FFFFFFFFFFFFFFF, "base offset")
    _check_field(leader_epoch, -1, INT32_MAX, "leader epoch")
    w = BytesWriter()
    write_i64_be(w, base_offset)
    w.write(batch[8:12])
    write_i32_be(w, i32(leader_epoch))
    # One copy of the records, where a slice would be another one.
    return b"".join((w.getvalue(), memoryview(batch)[16:]))


def with_max_timestamp(batch: bytes, attributes: i64, max_timestamp: i64) -> bytes:
    w = BytesWriter()
    write_int16(w, attributes)
    w.write(batch[23:35])
    write_i64_be(w, max_timestamp)
    summed = w.getvalue() + batch[43:]
    head = BytesWriter()
    head.write(batch[:17])
    _write_u32(head, crc32c(summed))
    return head.getvalue() + summed


def with_records(batch: bytes, attributes: i64, records: bytes) -> bytes:
    """The batch with these attributes and `records`: the same records, compressed with another codec."""
    size: i64 = len(records)
    _check_field(size, 0, INT32_MAX - BATCH_LENGTH_MIN, "size")
    w = BytesWriter()
    write_int16(w, attributes)
    w.write(batch[23:HEADER_BYTES])
    summed = w.getvalue()
    crc: i64 = crc32c(records, crc32c(summed))
    head = BytesWriter()
    head.write(batch[:8])
    write_i32_be(head, i32(size + BATCH_LENGTH_MIN))
    head.write(batch[12:17])
    _write_u32(head, crc)
    head.write(summed)
    head.write(records)
    return head.getvalue()


def with_log_append_time(batch: bytes, now_ms: i64) -> bytes:
    """The batch stamped by the broker: log append time `now_ms` and a new checksum."""
    attributes: i64 = i64(read_i16_be(batch, CRC_FROM))
    return with_max_timestamp(batch, attributes | LOG_APPEND_TIME_FLAG, now_ms)
