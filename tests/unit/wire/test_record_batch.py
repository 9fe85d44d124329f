"""Record batches: round trips, hostile bytes, what a broker accepts from producers."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from kcoord.wire.compression import CODEC_LZ4, CODEC_ZSTD, DecompressionError
from kcoord.wire.primitives import DecodeError, EncodeError
from kcoord.wire.produced_batch import (
    ERROR_CORRUPT_MESSAGE,
    ERROR_INVALID_RECORD,
    ERROR_INVALID_TIMESTAMP,
    ERROR_MESSAGE_TOO_LARGE,
    ERROR_NONE,
    ERROR_UNSUPPORTED_COMPRESSION_TYPE,
    ProduceLimits,
)
from kcoord.wire.record_batch import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    BatchBuilder,
    check_crc,
    decode_records,
    empty_batch,
    encode_batch,
    parse_header,
    with_log_append_time,
    with_offsets,
)
from tests.harness.record_batches import parse_batches, validate_produced_batch

NOW = 1_700_000_000_000

# (timestamp, key, value, headers)
Fields = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

optional_bytes = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.text(max_size=10), optional_bytes), max_size=3)
timestamps = st.integers(0, 2**61)
record_lists = st.lists(st.tuples(timestamps, optional_bytes, optional_bytes, header_lists), min_size=1, max_size=20)


def build(count: int = 3, codec: int = 0, **fields: Any) -> bytes:
    b = BatchBuilder()
    for i in range(count):
        b.append(NOW + i, b"k%d" % i, b"v%d" % i)
    return b.build(0, 0, codec=codec, **fields)


@pytest.mark.slow
@given(records=record_lists, base=st.integers(0, 2**62), codec=st.integers(0, 4))
def test_round_trip(records: list[Fields], base: int, codec: int) -> None:
    b = BatchBuilder()
    for timestamp, key, value, headers in records:
        b.append(timestamp, key, value, headers)
    batch = b.build(base, 7, 5, 6, 9, codec=codec)
    if codec == 0:
        assert len(batch) == b.size_bytes()
    header = parse_header(batch)
    assert check_crc(batch, 0, header)
    assert (header.base_offset, header.last_offset) == (base, base + len(records) - 1)
    assert (header.leader_epoch, header.codec, header.size) == (7, codec, len(batch))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 6, 9)
    assert header.max_timestamp == max(r[0] for r in records)
    got = decode_records(batch, 0, header, 1 << 20)
    assert [(r.timestamp, r.key, r.value, r.headers) for r in got] == records
    assert [r.offset for r in got] == list(range(base, base + len(records)))


@given(records=record_lists, codec=st.sampled_from([0, 1]))
def test_kafka_python_reads_what_we_write(records: list[Fields], codec: int) -> None:
    b = BatchBuilder()
    for timestamp, key, value, headers in records:
        b.append(timestamp, key, value, headers)
    theirs = DefaultRecordBatch(b.build(11, 3, codec=codec))
    assert theirs.validate_crc()
    assert theirs.base_offset == 11
    got = [(r.timestamp, r.key, r.value, r.headers) for r in theirs]
    assert got == records


@given(records=st.lists(st.tuples(st.integers(0, 2**50), optional_bytes, optional_bytes), min_size=1, max_size=9))
def test_we_read_what_kafka_python_writes(records: list[tuple[int, bytes | None, bytes | None]]) -> None:
    theirs = DefaultRecordBatchBuilder(2, 0, 1, 77, 2, 13, 1 << 20)
    for i, (timestamp, key, value) in enumerate(records):
        theirs.append(i, timestamp, key, value, [])
    batch = bytes(theirs.build())
    header = parse_header(batch)
    assert check_crc(batch, 0, header)
    assert header.is_transactional and not header.is_control
    got = decode_records(batch, 0, header, 1 << 20)
    assert [(r.timestamp, r.key, r.value) for r in got] == records


def test_kafka_python_control_and_flags() -> None:
    batch = BatchBuilder()
    batch.append(NOW, b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x07")
    header = parse_header(batch.build(4, 0, 9, 1, transactional=True, control=True))
    assert header.is_control and header.is_transactional and header.last_sequence == -1


def test_header_keys_that_are_not_text_survive() -> None:
    b = BatchBuilder()
    b.append(NOW, None, None, [("a\udcff", b"x")])
    batch = b.build(0, 0)
    assert b"a\xff" in batch
    assert decode_records(batch, 0, parse_header(batch), 0)[0].headers == [("a\udcff", b"x")]


def test_rewriting_offsets_and_time() -> None:
    batch = build()
    moved = with_offsets(batch, 2**40, 5)
    header = parse_header(moved)
    assert check_crc(moved, 0, header)
    assert (header.base_offset, header.leader_epoch, header.last_offset) == (2**40, 5, 2**40 + 2)
    stamped = with_log_append_time(moved, NOW + 99)
    header = parse_header(stamped)
    assert check_crc(stamped, 0, header) and header.timestamp_type == LOG_APPEND_TIME
    assert [r.timestamp for r in decode_records(stamped, 0, header, 0)] == [NOW + 99] * 3
    with pytest.raises(EncodeError):
        with_offsets(batch, -1, 0)


def test_empty_batch_keeps_the_place() -> None:
    batch = build(base_sequence=2**31 - 2, producer_id=4, producer_epoch=0)
    empty = empty_batch(parse_header(batch))
    header = parse_header(empty)
    assert check_crc(empty, 0, header)
    assert (header.count, header.last_offset, header.last_sequence) == (0, 2, 0)
    assert decode_records(empty, 0, header, 0) == []


def test_parse_batches_leaves_the_cut_one() -> None:
    data = build(1) + with_offsets(build(2), 1, 0)
    assert [h.pos for h in parse_batches(data)] == [0, len(build(1))]
    assert len(parse_batches(data[:-1])) == 1
    with pytest.raises(DecodeError):
        parse_batches(build(1) + bytes(61))


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, b"\xff" * 8),  # negative base offset
        (8, struct.pack(">i", 48)),  # shorter than a header
        (8, struct.pack(">i", 2**31 - 1)),  # longer than what is there
        (8, struct.pack(">i", -5)),
        (16, b"\x01"),
        (16, b"\x03"),
        (23, struct.pack(">i", -1)),
        (57, struct.pack(">i", -1)),
        (57, struct.pack(">i", 4)),  # more records than offsets
    ],
)
def test_bad_headers(position: int, value: bytes) -> None:
    batch = build()
    bad = batch[:position] + value + batch[position + len(value) :]
    with pytest.raises(DecodeError):
        parse_header(bad)


def test_short_buffers() -> None:
    batch = build()
    for size in range(len(batch)):
        with pytest.raises(DecodeError):
            parse_header(batch[:size])
    assert parse_header(batch[:61], 0, True).size == len(batch)
    with pytest.raises(DecodeError):
        parse_header(batch, -1)


@given(data=st.data())
def test_any_flipped_byte_is_noticed_by_the_checksum(data: st.DataObject) -> None:
    batch = build()
    at = data.draw(st.integers(17, len(batch) - 1))
    bad = bytearray(batch)
    bad[at] ^= data.draw(st.integers(1, 255))
    try:
        header = parse_header(bytes(bad))
    except DecodeError:
        return
    assert not check_crc(bytes(bad), 0, header)


@given(records=st.binary(max_size=200), count=st.integers(0, 40), codec=st.integers(0, 7))
def test_hostile_records_under_a_right_checksum(records: bytes, count: int, codec: int) -> None:
    batch = encode_batch(0, 0, codec, max(count - 1, 0), NOW, NOW, -1, -1, -1, count, records)
    header = parse_header(batch)
    with contextlib.suppress(DecodeError, DecompressionError):
        assert len(decode_records(batch, 0, header, 1000)) == count
    assert validate_produced_batch(batch, 12, NOW, ProduceLimits()).error_code in (0, 2, 10, 32, 87)


def refuse(batch: bytes | None, limits: ProduceLimits | None = None, version: int = 12) -> int:
    result = validate_produced_batch(batch, version, NOW, limits or ProduceLimits())
    assert result.error_code != ERROR_NONE and result.message and result.header is None
    return result.error_code


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_good_batches_are_taken_as_they_are(codec: int) -> None:
    batch = build(50, codec)
    result = validate_produced_batch(batch, 12, NOW, ProduceLimits())
    assert result.error_code == ERROR_NONE and result.batch is batch
    assert result.header is not None and result.header.count == 50


def test_not_exactly_one_batch() -> None:
    assert refuse(None) == ERROR_INVALID_RECORD
    assert refuse(b"") == ERROR_INVALID_RECORD
    assert refuse(build()[:-1]) == ERROR_INVALID_RECORD
    assert refuse(build() + build()) == ERROR_INVALID_RECORD
    assert refuse(build() + b"x") == ERROR_INVALID_RECORD


def test_old_and_unknown_formats() -> None:
    batch = build()
    assert refuse(batch[:16] + b"\x01" + batch[17:]) == ERROR_INVALID_RECORD
    assert refuse(batch[:16] + b"\x03" + batch[17:]) == ERROR_CORRUPT_MESSAGE
    assert refuse(batch[:8] + b"\x00\x00\x00\x05" + batch[12:]) == ERROR_CORRUPT_MESSAGE


def test_checksum_offset_and_counts() -> None:
    batch = build()
    assert refuse(batch[:-1] + b"!") == ERROR_CORRUPT_MESSAGE
    assert refuse(with_offsets(batch, 1, 0)) == ERROR_INVALID_RECORD
    h = parse_header(batch)
    body = batch[61:]
    for last_delta, count in ((2, 2), (3, 3), (0, 0)):
        assert (
            refuse(encode_batch(0, 0, 0, last_delta, h.base_timestamp, h.max_timestamp, -1, -1, -1, count, body))
            == ERROR_INVALID_RECORD
        )
    gaps = encode_batch(0, 0, 0, 0, NOW, NOW, -1, -1, -1, 1, b"\x0e\x00\x00\x02\x01\x01\x00\x00"[:7] + b"\x00")
    assert refuse(gaps) == ERROR_INVALID_RECORD


def test_producers_and_control() -> None:
    assert refuse(build(producer_id=5, producer_epoch=0)) == ERROR_INVALID_RECORD
    assert refuse(build(control=True)) == ERROR_INVALID_RECORD
    assert refuse(build(transactional=True)) == ERROR_INVALID_RECORD
    good = build(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    assert validate_produced_batch(good, 12, NOW, ProduceLimits()).error_code == ERROR_NONE


def test_sizes_and_codecs() -> None:
    batch = build(100, CODEC_LZ4)
    assert refuse(batch, ProduceLimits(max_batch_bytes=len(batch) - 1)) == ERROR_MESSAGE_TOO_LARGE
    assert refuse(batch, ProduceLimits(max_decompressed_bytes=100)) == ERROR_MESSAGE_TOO_LARGE
    assert refuse(build(3, CODEC_ZSTD), version=6) == ERROR_UNSUPPORTED_COMPRESSION_TYPE
    # What the request may have in any topic is checked before the size.
    small = ProduceLimits(max_batch_bytes=10)
    assert refuse(build(), small) == ERROR_MESSAGE_TOO_LARGE
    assert refuse(build(3, CODEC_ZSTD), small, version=6) == ERROR_UNSUPPORTED_COMPRESSION_TYPE
    assert refuse(build() * 2, small) == ERROR_INVALID_RECORD
    assert refuse(with_offsets(build(), 1, 0), small) == ERROR_INVALID_RECORD
    h = parse_header(batch)
    broken = encode_batch(0, 0, 3, 99, h.base_timestamp, h.max_timestamp, -1, -1, -1, 100, b"nonsense" * 100)
    assert refuse(broken) == ERROR_CORRUPT_MESSAGE


def test_compacted_topics_need_keys() -> None:
    b = BatchBuilder()
    for key in (b"a", None, b"c", None):
        b.append(NOW, key, b"v")
    result = validate_produced_batch(b.build(0, 0), 12, NOW, ProduceLimits(compacted=True))
    assert result.error_code == ERROR_INVALID_RECORD
    assert [index for index, _ in result.record_errors] == [1, 3]


def test_timestamps() -> None:
    limits = ProduceLimits(timestamp_before_max_ms=1000, timestamp_after_max_ms=1000)
    b = BatchBuilder()
    for timestamp in (NOW, NOW - 1001, NOW + 1001, NOW - 1000, NOW + 1000):
        b.append(timestamp, None, None)
    result = validate_produced_batch(b.build(0, 0), 12, NOW, limits)
    assert result.error_code == ERROR_INVALID_TIMESTAMP
    assert [index for index, _ in result.record_errors] == [1, 2]
    none = BatchBuilder()
    none.append(-1, None, b"no timestamp")
    assert validate_produced_batch(none.build(0, 0), 12, NOW, limits).error_code == ERROR_NONE


@pytest.mark.parametrize("codec", [0, 1])
def test_batches_that_come_with_log_append_time(codec: int) -> None:
    """A broker keeps their one timestamp in a topic of create time, and refuses them in others."""
    stamped = with_log_append_time(build(3, codec), NOW + 500)
    limits = ProduceLimits(timestamp_type=CREATE_TIME, timestamp_after_max_ms=400)
    result = validate_produced_batch(stamped, 12, NOW + 100, limits)
    header = result.header
    assert header is not None and (header.timestamp_type, header.max_timestamp) == (CREATE_TIME, NOW + 500)
    assert check_crc(result.batch, 0, header)
    late = validate_produced_batch(stamped, 12, NOW + 99, limits)
    assert (late.error_code, [index for index, _ in late.record_errors]) == (ERROR_INVALID_TIMESTAMP, [0, 1, 2])
    assert refuse(stamped, ProduceLimits(timestamp_type=LOG_APPEND_TIME)) == ERROR_INVALID_TIMESTAMP
    assert refuse(with_log_append_time(build(3, codec), -1), limits) == ERROR_INVALID_TIMESTAMP


def test_log_append_time_topics_stamp_and_liars_are_corrected() -> None:
    result = validate_produced_batch(build(), 12, NOW + 5000, ProduceLimits(timestamp_type=LOG_APPEND_TIME))
    assert result.header is not None and result.header.max_timestamp == NOW + 5000
    assert check_crc(result.batch, 0, result.header)
    h = parse_header(build())
    liar = encode_batch(0, 0, 0, 2, h.base_timestamp, NOW + 10**9, -1, -1, -1, 3, build()[61:])
    result = validate_produced_batch(liar, 12, NOW, ProduceLimits())
    assert result.header is not None and result.header.max_timestamp == NOW + 2
    assert check_crc(result.batch, 0, result.header)


def test_builder_refuses_what_the_format_cannot_hold() -> None:
    b = BatchBuilder()
    with pytest.raises(EncodeError):
        b.build(0, 0)
    with pytest.raises(EncodeError):
        b.append(-2, None, None)
    b.append(0, None, None)
    with pytest.raises(EncodeError):
        b.append(2**63 - 1, None, None)
    too_large: list[dict[str, Any]] = [{"producer_epoch": 2**15}, {"base_sequence": 2**31}, {"base_sequence": -2}]
    for bad in too_large:
        with pytest.raises(EncodeError):
            b.build(0, 0, **bad)
