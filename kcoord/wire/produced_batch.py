"""Validates the record batches of producers (Produce version 3 and later).

The rules are those of released brokers: one whole batch of format version 2 per partition, with a correct checksum,
offset deltas 0, 1, 2 …, allowed timestamps and no control records. A rejected batch gets the protocol's error code.

The cost of a check depends on the batch, which the client chooses: its decompressed size and its number of records and
headers. So a check proceeds in steps, each within a `CheckBudget`. A turn of the server grants a small budget, a thread
a larger one, in slices between which other threads get the GIL. Both produce the same result.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.wire.compression import (
    BLOCK_CHARGE_BYTES,
    CODEC_NONE,
    CODEC_ZSTD,
    DecompressedTooLarge,
    DecompressionError,
    charged_bytes,
    compress,
    decompress,
    survey,
)
from kcoord.wire.crc import crc32c
from kcoord.wire.primitives import DecodeError, Reader, i64, read_i32_be, read_i64_be
from kcoord.wire.record_batch import (
    BATCH_LENGTH_MIN,
    CODEC_MASK,
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
    check_count,
    parse_header,
    record_end,
    with_max_timestamp,
    with_records,
)

# The protocol's error codes for rejected batches.
ERROR_NONE: Final = 0
ERROR_CORRUPT_MESSAGE: Final = 2
ERROR_MESSAGE_TOO_LARGE: Final = 10
ERROR_INVALID_TIMESTAMP: Final = 32
ERROR_INVALID_PRODUCER_EPOCH: Final = 47
ERROR_UNSUPPORTED_COMPRESSION_TYPE: Final = 76
ERROR_INVALID_RECORD: Final = 87

# Kafka's response lists every bad record of a batch. The first few suffice, and the limit bounds the response.
RECORD_ERRORS_MAX: Final = 16

# The position of a batch's attributes (low byte).
ATTRIBUTES_AT: Final = 22

# The outcome of one step of a check.
CHECKED: Final = 1  # done; `result` is set
UNFINISHED: Final = 2  # the next step continues
OVER_BUDGET: Final = 3  # the bytes left in this budget do not suffice

# The topic keeps the codec that the producer chose (compression.type=producer).
CODEC_OF_PRODUCER: Final = -1

# The fixed cost of a batch in elements: its header, its checksum, its result.
ELEMENTS_PER_BATCH: Final = 16
INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF
COMMON_TIME_MAX: Final = 1 << 60


@final
class ProducedBatch:
    """The result of validating the records of one partition of a Produce request.

    With error_code 0, `batch` is the batch to append (with_offsets sets its base offset and leader epoch later) and
    `header` its header. Otherwise `message` is the reason, and `record_errors` lists bad records by their index.
    """

    def __init__(self, error_code: int, message: str | None, batch: bytes, header: BatchHeader | None) -> None:
        self.error_code = error_code
        self.message = message
        self.batch = batch
        self.header = header
        self.record_errors: list[tuple[int, str]] = []


@final
class ProduceLimits:
    """The rules of a topic: timestamp type and window, whether records need keys, and the batch size."""

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


@final
class CheckBudget:
    """What checks may still cost: bytes to decompress, elements (records and headers) to walk over, and bytes to
    recompress for topics with a codec of their own."""

    def __init__(
        self, content_bytes: int = INT64_MAX, elements: int = INT64_MAX, recompressed_bytes: int = INT64_MAX
    ) -> None:
        self.content_bytes: i64 = content_bytes
        self.elements: i64 = elements
        self.recompressed_bytes: i64 = recompressed_bytes


def _refused(code: int, message: str) -> ProducedBatch:
    return ProducedBatch(code, message, b"", None)


def _check_produced_header(records: bytes, api_version: int, limits: ProduceLimits) -> ProducedBatch:
    if len(records) < HEADER_BYTES:
        return _refused(ERROR_INVALID_RECORD, "the record batch is missing or truncated")
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
        return _refused(ERROR_INVALID_RECORD, "the record batch is missing or truncated")
    # A broker checks what the version of the request permits before it looks at the topic.
    if records[ATTRIBUTES_AT] & CODEC_MASK == CODEC_ZSTD and api_version < 7:
        return _refused(ERROR_UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7")
    if length < left:
        return _refused(ERROR_INVALID_RECORD, "more than one record batch")
    if read_i64_be(records, 0) != 0:
        return _refused(ERROR_INVALID_RECORD, "base offset is not 0")
    # The size limit of the topic is checked before the content, as in a broker.
    if length + LENGTH_OVERHEAD > limits.max_batch_bytes:
        return _refused(
            ERROR_MESSAGE_TOO_LARGE,
            f"batch of {length + LENGTH_OVERHEAD} bytes, {limits.max_batch_bytes} allowed",
        )
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
    if header.attributes & CONTROL_FLAG:
        return _refused(ERROR_INVALID_RECORD, "clients cannot write control records")
    if header.producer_id >= 0:
        if header.base_sequence < 0:
            return _refused(ERROR_INVALID_RECORD, "producer id without a sequence number")
        if header.producer_epoch < 0:
            return _refused(ERROR_INVALID_PRODUCER_EPOCH, f"producer epoch {header.producer_epoch}")
    elif header.attributes & TRANSACTIONAL_FLAG:
        return _refused(ERROR_INVALID_RECORD, "transactional batch without producer id")
    return ProducedBatch(ERROR_NONE, None, records, header)


@final
class BatchCheck:
    """Validates the records of one partition of a Produce request (version 3 and later), as a broker does.

    The records must be exactly one whole batch of format version 2 with base offset 0, a correct checksum, offset
    deltas 0 … count-1, no control records, allowed timestamps and, on a compacted topic, keys. Compressed records are
    decompressed, within the limit, only to be checked: the stored batch stays compressed, unless `codec` requires
    another codec. A wrong max timestamp is corrected, and a topic with log append time stamps the batch with `now_ms`.

    The check uses only its own fields, so it may move to another thread between two steps.
    """

    def __init__(
        self,
        records: bytes | None,
        api_version: int,
        now_ms: int,
        limits: ProduceLimits,
        codec: int = CODEC_OF_PRODUCER,
    ) -> None:
        self.records = records
        self.api_version = api_version
        self.now_ms = now_ms
        self.limits = limits
        self.codec = codec
        self.result: ProducedBatch | None = None
        self.header: BatchHeader | None = None
        # The records, decompressed if necessary; set once their size is known to be within the budget.
        self.reader: Reader | None = None
        self.is_walked = False
        # The position of the walk: the record, its remaining headers, and where it ends.
        self.index: i64 = 0
        self.headers_left: i64 = 0
        self.record_end: i64 = 0
        self.content_start: i64 = 0
        # The results of the walk.
        self.max_timestamp: i64 = NO_TIMESTAMP
        self.has_invalid_timestamp = False
        self.errors: list[tuple[int, str]] = []

    def step(self, budget: CheckBudget) -> int:
        """Continue as far as `budget` allows; returns CHECKED, UNFINISHED or OVER_BUDGET."""
        if self.result is not None:
            return CHECKED
        try:
            return self._step(budget)
        # Each clause uses another name, because mypyc gives a reused name the type of its first clause.
        except DecompressedTooLarge as too_large:
            return self._refuse(ERROR_MESSAGE_TOO_LARGE, f"decompressed records: {too_large}")
        except DecompressionError as broken:
            return self._refuse(ERROR_CORRUPT_MESSAGE, str(broken))
        except DecodeError as malformed:
            return self._refuse(ERROR_INVALID_RECORD, str(malformed))

    def _refuse(self, code: int, message: str) -> int:
        self.result = _refused(code, message)
        self.reader = None
        return CHECKED

    def _step(self, budget: CheckBudget) -> int:
        header = self.header
        if header is None:
            if budget.elements <= 0:
                return UNFINISHED
            budget.elements -= ELEMENTS_PER_BATCH
            header = self._begin()
            if header is None:
                return CHECKED
        r = self.reader
        if r is None:
            r = self._open(header, budget)
            if r is None:
                return OVER_BUDGET
        if not self.is_walked:
            if not self._walk(r, header, budget):
                return UNFINISHED
            self.is_walked = True
        return self._finish(r, header, budget)

    def _begin(self) -> BatchHeader | None:
        records = self.records
        if records is None:
            self._refuse(ERROR_INVALID_RECORD, "the record batch is missing or truncated")
            return None
        checked = _check_produced_header(records, self.api_version, self.limits)
        header = checked.header
        if header is None:
            self.result = checked
            return None
        self.header = header
        return header

    def _open(self, header: BatchHeader, budget: CheckBudget) -> Reader | None:
        """The decompressed records; None if they exceed the budget that is left."""
        records = self.records
        if records is None:
            raise ValueError("no records")
        codec = header.codec
        if codec == CODEC_NONE:
            r = Reader(records, HEADER_BYTES)
        else:
            data = records[HEADER_BYTES:]
            left = budget.content_bytes
            surveyed = survey(codec, data, left // BLOCK_CHARGE_BYTES)
            if surveyed.blocks > left // BLOCK_CHARGE_BYTES:
                return None
            allowed: i64 = self.limits.max_decompressed_bytes
            try:
                content = decompress(codec, data, min(allowed, left), surveyed)
            except DecompressedTooLarge:
                if allowed <= left:
                    raise
                return None
            budget.content_bytes = left - charged_bytes(len(content), surveyed.blocks)
            r = Reader(content)
        check_count(r, header)
        self.content_start = r.pos
        self.reader = r
        return r

    def _walk(self, r: Reader, header: BatchHeader, budget: CheckBudget) -> bool:
        """Check every record and header. Returns whether the walk reached the end within the budget."""
        limits = self.limits
        create_time = limits.timestamp_type == CREATE_TIME
        compacted = limits.compacted
        # A batch that comes with log append time, as one that was read elsewhere, has one timestamp for all records.
        is_stamped = (header.attributes & LOG_APPEND_TIME_FLAG) != 0
        # Without a limit the window begins before 1970: times before the epoch are negative, and as good as any other.
        low: i64 = self.now_ms - limits.timestamp_before_max_ms
        high: i64 = min(INT64_MAX, self.now_ms + limits.timestamp_after_max_ms)
        base: int = header.base_timestamp
        count: i64 = header.count
        index = self.index
        left = budget.elements
        while index < count:
            if self.record_end == 0:
                if left <= 0:
                    break
                left -= 1
                end = record_end(r)
                exact = base + r.varlong()
                # Compiled, a comparison with a larger constant creates an integer object for each record.
                if not -COMMON_TIME_MAX < exact < COMMON_TIME_MAX and not -INT64_MAX - 1 <= exact <= INT64_MAX:
                    raise DecodeError("timestamp is not an int64")
                timestamp: i64 = header.max_timestamp if is_stamped else exact
                if r.varint() != index:
                    raise DecodeError(f"offset delta of record {index} is not {index}")
                key_size = r.varint()
                if key_size >= 0:
                    r.take(key_size)
                value_size = r.varint()
                if value_size >= 0:
                    r.take(value_size)
                if key_size < 0 and compacted:
                    self._note_error(index, "a compacted topic needs a key")
                elif create_time and timestamp != NO_TIMESTAMP and (timestamp < low or timestamp > high):
                    self.has_invalid_timestamp = True
                    self._note_error(index, f"timestamp {timestamp} is not within [{low}, {high}]")
                elif is_stamped and (not create_time or timestamp == NO_TIMESTAMP):
                    self.has_invalid_timestamp = True
                    self._note_error(index, "producers cannot set log append time")
                if timestamp > self.max_timestamp:
                    self.max_timestamp = timestamp
                headers = r.varint()
                if headers != 0:
                    if headers < 0 or headers > (r.end - r.pos) // 2:
                        raise DecodeError(f"{headers} record headers in {r.end - r.pos} bytes")
                    self.headers_left = headers
                    self.record_end = end
            if self.record_end != 0:
                left = self._skip_headers(r, left)
                if self.headers_left > 0:
                    break
                end = self.record_end
                self.record_end = 0
            if r.pos != end:
                raise DecodeError(f"record {index} does not match its size")
            index += 1
        self.index = index
        budget.elements = left
        if index < count:
            return False
        if r.pos != r.end:
            raise DecodeError(f"{r.end - r.pos} bytes after the last record")
        return True

    def _skip_headers(self, r: Reader, left: i64) -> i64:
        """Skip the record's headers, at most `left`. Returns how many more elements the budget allows."""
        headers = self.headers_left
        while headers > 0 and left > 0:
            left -= 1
            size = r.varint()
            if size < 0:
                raise DecodeError("null record header key")
            r.take(size)
            size = r.varint()
            if size >= 0:
                r.take(size)
            headers -= 1
        self.headers_left = headers
        return left

    def _note_error(self, index: int, message: str) -> None:
        if len(self.errors) < RECORD_ERRORS_MAX:
            self.errors.append((index, message))

    def _finish(self, r: Reader, header: BatchHeader, budget: CheckBudget) -> int:
        if self.errors:
            if self.has_invalid_timestamp:
                self._refuse(ERROR_INVALID_TIMESTAMP, "timestamp out of range")
            else:
                self._refuse(ERROR_INVALID_RECORD, "bad records")
            refusal = self.result
            if refusal is not None:
                refusal.record_errors = self.errors
            return CHECKED
        batch = self.records
        if batch is None:
            raise ValueError("no records")
        if self.codec != CODEC_OF_PRODUCER and self.codec != header.codec:
            size = r.end - self.content_start
            if size > budget.recompressed_bytes:
                return OVER_BUDGET
            budget.recompressed_bytes -= size
            # The encoded records are the same with every codec; only the compression around them changes. The batch is
            # another one, with no attributes that only the log may set.
            content = compress(self.codec, r.buf[self.content_start : r.end])
            batch = with_records(batch, (header.attributes & TRANSACTIONAL_FLAG) | self.codec, content)
            header = parse_header(batch, 0)
        attributes = header.attributes & ~LOG_APPEND_TIME_FLAG
        max_timestamp: i64 = self.max_timestamp
        if self.limits.timestamp_type == LOG_APPEND_TIME:
            attributes |= LOG_APPEND_TIME_FLAG
            max_timestamp = self.now_ms
        if attributes != header.attributes or max_timestamp != header.max_timestamp:
            batch = with_max_timestamp(batch, attributes, max_timestamp)
            header = parse_header(batch, 0)
        self.result = ProducedBatch(ERROR_NONE, None, batch, header)
        # Free the decompressed records now: other checks may wait for the memory.
        self.reader = None
        return CHECKED
