"""What a broker checks about the record batches that producers send (Produce version 3 and later).

The rules are those of released brokers: one whole batch of format version 2 per partition, with a right
checksum, plain offset deltas, allowed timestamps and no control records. A refusal carries the protocol's
error code.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.wire.compression import CODEC_ZSTD, DecompressedTooLarge, DecompressionError
from kcoord.wire.crc import crc32c
from kcoord.wire.primitives import DecodeError, Reader, i64, read_i32_be, read_i64_be
from kcoord.wire.record_batch import (
    BATCH_LENGTH_MIN,
    CONTROL_FLAG,
    CRC_FROM,
    CREATE_TIME,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_FLAG,
    MAGIC_V2,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    parse_header,
    record_end,
    records_reader,
    with_max_timestamp,
)

# Error codes of the protocol that a broker's batch check can give.
ERROR_NONE: Final = 0
ERROR_CORRUPT_MESSAGE: Final = 2
ERROR_MESSAGE_TOO_LARGE: Final = 10
ERROR_INVALID_TIMESTAMP: Final = 32
ERROR_INVALID_PRODUCER_EPOCH: Final = 47
ERROR_UNSUPPORTED_COMPRESSION_TYPE: Final = 76
ERROR_INVALID_RECORD: Final = 87

# Kafka answers with every bad record of a batch; the first few tell as much and bound the answer.
RECORD_ERRORS_MAX: Final = 16


@final
class ProducedBatch:
    """What a broker found about the records of one partition of a Produce request.

    With error_code 0, `batch` is the batch to append (offset and epoch still to be set by with_offsets) and
    `header` its header. Otherwise `message` says why, and `record_errors` names bad records by their index.
    """

    def __init__(
        self, error_code: int, message: str | None, batch: bytes, header: BatchHeader | None
    ) -> None:
        self.error_code = error_code
        self.message = message
        self.batch = batch
        self.header = header
        self.record_errors: list[tuple[int, str]] = []


@final
class ProduceLimits:
    """What a topic allows: its timestamp type and window, key rule and batch size."""

    def __init__(
        self,
        max_batch_bytes: int = 1048588,
        max_decompressed_bytes: int = 16 * 1024 * 1024,
        compacted: bool = False,
        timestamp_type: int = CREATE_TIME,
        timestamp_before_max_ms: int = 0x7FFFFFFFFFFFFFFF,
        timestamp_after_max_ms: int = 3600000,
    ) -> None:
        self.max_batch_bytes = max_batch_bytes
        self.max_decompressed_bytes = max_decompressed_bytes
        self.compacted = compacted
        self.timestamp_type = timestamp_type
        self.timestamp_before_max_ms = timestamp_before_max_ms
        self.timestamp_after_max_ms = timestamp_after_max_ms


def _refused(code: int, message: str) -> ProducedBatch:
    return ProducedBatch(code, message, b"", None)


def _check_produced_header(records: bytes, api_version: int, limits: ProduceLimits) -> ProducedBatch:
    if len(records) < HEADER_BYTES:
        return _refused(ERROR_INVALID_RECORD, "no whole record batch")
    magic = records[16]
    if magic != MAGIC_V2:
        if magic < MAGIC_V2:
            return _refused(ERROR_INVALID_RECORD, f"message format version {magic}, 2 is required")
        return _refused(ERROR_CORRUPT_MESSAGE, f"message format version {magic} does not exist")
    length: i64 = i64(read_i32_be(records, 8))
    if length < BATCH_LENGTH_MIN:
        return _refused(ERROR_CORRUPT_MESSAGE, f"batch length {length}")
    left: i64 = len(records) - LENGTH_OVERHEAD
    if length > left:
        return _refused(ERROR_INVALID_RECORD, "no whole record batch")
    # The topic's size rule comes before the content is looked at, as in a broker.
    if length + LENGTH_OVERHEAD > limits.max_batch_bytes:
        return _refused(
            ERROR_MESSAGE_TOO_LARGE,
            f"batch of {length + LENGTH_OVERHEAD} bytes, {limits.max_batch_bytes} allowed",
        )
    if length < left:
        return _refused(ERROR_INVALID_RECORD, "more than one record batch")
    if read_i64_be(records, 0) != 0:
        return _refused(ERROR_INVALID_RECORD, "base offset is not 0")
    crc: i64 = i64(read_i32_be(records, 17))
    if crc32c(memoryview(records)[CRC_FROM:]) != crc & 0xFFFFFFFF:
        return _refused(ERROR_CORRUPT_MESSAGE, "wrong checksum")
    last_delta: i64 = i64(read_i32_be(records, 23))
    count: i64 = i64(read_i32_be(records, 57))
    if count <= 0 or count != last_delta + 1:
        return _refused(ERROR_INVALID_RECORD, f"{count} records with last offset delta {last_delta}")
    header = parse_header(records, 0)
    codec = header.codec
    if codec > CODEC_ZSTD:
        return _refused(ERROR_CORRUPT_MESSAGE, f"compression codec {codec}")
    if codec == CODEC_ZSTD and api_version < 7:
        return _refused(ERROR_UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7")
    if header.attributes & CONTROL_FLAG:
        return _refused(ERROR_INVALID_RECORD, "clients cannot write control records")
    if header.producer_id >= 0:
        if header.base_sequence < 0:
            return _refused(ERROR_INVALID_RECORD, "producer id without sequence")
        if header.producer_epoch < 0:
            return _refused(ERROR_INVALID_PRODUCER_EPOCH, f"producer epoch {header.producer_epoch}")
    elif header.attributes & TRANSACTIONAL_FLAG:
        return _refused(ERROR_INVALID_RECORD, "transactional batch without producer id")
    return ProducedBatch(ERROR_NONE, None, records, header)


@final
class _Scan:
    """Facts of one pass over the records of a produced batch."""

    def __init__(self) -> None:
        self.max_timestamp: i64 = NO_TIMESTAMP
        self.invalid_timestamp: bool = False
        self.errors: list[tuple[int, str]] = []


def _scan_records(r: Reader, header: BatchHeader, limits: ProduceLimits, now_ms: int) -> _Scan:
    scan = _Scan()
    create_time = limits.timestamp_type == CREATE_TIME
    low: i64 = max(0, now_ms - limits.timestamp_before_max_ms)
    high: i64 = min(0x7FFFFFFFFFFFFFFF, now_ms + limits.timestamp_after_max_ms)
    base: int = header.base_timestamp
    index: i64 = 0
    while index < header.count:
        end = record_end(r)
        exact = base + r.varlong()
        if exact < -0x8000000000000000 or exact > 0x7FFFFFFFFFFFFFFF:
            raise DecodeError("timestamp is not an int64")
        timestamp: i64 = exact
        if r.varint() != index:
            raise DecodeError(f"offset delta of record {index} is not {index}")
        key_size = r.varint()
        if key_size >= 0:
            r.take(key_size)
        value_size = r.varint()
        if value_size >= 0:
            r.take(value_size)
        _skip_headers(r)
        if r.pos != end:
            raise DecodeError(f"record {index} does not match its size")
        if key_size < 0 and limits.compacted:
            if len(scan.errors) < RECORD_ERRORS_MAX:
                scan.errors.append((index, "a compacted topic needs a key"))
        elif create_time and timestamp != NO_TIMESTAMP and (timestamp < low or timestamp > high):
            scan.invalid_timestamp = True
            if len(scan.errors) < RECORD_ERRORS_MAX:
                scan.errors.append((index, f"timestamp {timestamp} is not within [{low}, {high}]"))
        if timestamp > scan.max_timestamp:
            scan.max_timestamp = timestamp
        index += 1
    if r.pos != r.end:
        raise DecodeError(f"{r.end - r.pos} bytes after the last record")
    return scan


def _skip_headers(r: Reader) -> None:
    count = r.varint()
    if count == 0:
        return
    if count < 0 or count > (r.end - r.pos) // 2:
        raise DecodeError(f"{count} record headers in {r.end - r.pos} bytes")
    while count > 0:
        size = r.varint()
        if size < 0:
            raise DecodeError("null record header key")
        r.take(size)
        size = r.varint()
        if size >= 0:
            r.take(size)
        count -= 1


def validate_produced_batch(
    records: bytes | None, api_version: int, now_ms: int, limits: ProduceLimits
) -> ProducedBatch:
    """Check the records of one partition of a Produce request (version 3 and later) as a broker does.

    Exactly one whole batch of format version 2 with base offset 0, right checksum, offset deltas 0 … count-1,
    no control records, allowed timestamps and, on a compacted topic, keys. Compressed records are
    decompressed within the limit to be checked; what is stored stays compressed. A wrong max timestamp is
    corrected, and a topic with log append time stamps the batch.
    """
    if records is None:
        return _refused(ERROR_INVALID_RECORD, "no whole record batch")
    result = _check_produced_header(records, api_version, limits)
    header = result.header
    if header is None:
        return result
    if header.attributes & LOG_APPEND_TIME_FLAG and limits.timestamp_type == CREATE_TIME:
        return _refused(ERROR_INVALID_TIMESTAMP, "producers cannot set log append time")
    try:
        r = records_reader(records, 0, header, limits.max_decompressed_bytes)
        scan = _scan_records(r, header, limits, now_ms)
    # Each clause has a name of its own: compiled, one name would keep the type of the first.
    except DecompressedTooLarge as too_large:
        return _refused(ERROR_MESSAGE_TOO_LARGE, f"decompressed records: {too_large}")
    except DecompressionError as broken:
        return _refused(ERROR_CORRUPT_MESSAGE, str(broken))
    except DecodeError as malformed:
        return _refused(ERROR_INVALID_RECORD, str(malformed))
    if scan.errors:
        if scan.invalid_timestamp:
            result = _refused(ERROR_INVALID_TIMESTAMP, "timestamp out of range")
        else:
            result = _refused(ERROR_INVALID_RECORD, "bad records")
        result.record_errors = scan.errors
        return result
    attributes = header.attributes
    max_timestamp: i64 = scan.max_timestamp
    if limits.timestamp_type == LOG_APPEND_TIME:
        attributes |= LOG_APPEND_TIME_FLAG
        max_timestamp = now_ms
    if attributes != header.attributes or max_timestamp != header.max_timestamp:
        result.batch = with_max_timestamp(records, attributes, max_timestamp)
        result.header = parse_header(result.batch, 0)
    return result
