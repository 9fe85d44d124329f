"""The formats of the records in a data directory, and how readers distinguish them.

`kcoord.format` in meta.properties is the format of new records. Format 2 is Kafka's. Format 1 differs in one field,
`ClassicMemberMetadata` (tag 0) of a member's metadata (record type 5 of `__consumer_offsets`):

    1   null is omitted
    2   null is written (tag 0, length 1, byte 0); if the tag is omitted, the value is empty

A directory of format 1 becomes one of format 2 when it is opened for writing. Its old records stay as they are, so
meta.properties keeps, per partition of `__consumer_offsets`, the offset below which they have format 1:

    kcoord.format.1.ends=0:1234 3:77

Every reader looks up this offset and converts the value of an older record to format 2 before decoding it. Offsets
never change in a log, nor in its compacted segments, state checkpoints and snapshots, so one number is enough.
A directory without `kcoord.format` is a broker's, and everything in it is read as Kafka reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kcoord.protocol.records.types import CONSUMER_GROUP_MEMBER_METADATA
from kcoord.wire.compression import CODEC_NONE, compress
from kcoord.wire.primitives import BytesWriter, DecodeError, Reader, write_uvarint, write_varint
from kcoord.wire.record_batch import BatchHeader, Record, encode_batch, record_end, records_reader

FORMAT: Final = 2
FORMAT_1: Final = 1
FORMAT_KEY: Final = "kcoord.format"
ENDS_KEY: Final = "kcoord.format.1.ends"
OFFSETS_TOPIC: Final = "__consumer_offsets"
INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF
# Record type and value version of a member's metadata, and the field that format 1 leaves out, as format 2 writes it.
MEMBER_KEY: Final = CONSUMER_GROUP_MEMBER_METADATA.to_bytes(2, "big")
MEMBER_VERSION: Final = b"\x00\x00"
CLASSIC_TAG: Final = 0
CLASSIC_NULL: Final = b"\x00\x01\x00"


def is_own_format(properties: bytes) -> bool:
    """Whether a meta.properties file belongs to a kcoord data directory."""
    return any(line.partition(b"=")[0].strip() == FORMAT_KEY.encode() for line in properties.splitlines())


def encode_ends(ends: Mapping[int, int]) -> str:
    return " ".join(f"{partition}:{end}" for partition, end in sorted(ends.items()))


def decode_ends(text: str) -> dict[int, int]:
    """Parse the offsets by partition of `__consumer_offsets`. Raises ValueError."""
    ends: dict[int, int] = {}
    for word in text.split():
        partition, _, end = word.partition(":")
        ends[int(partition)] = int(end)
    return ends


def format_1_end(properties: Mapping[str, str], topic: str, partition: int) -> int:
    """The offset below which the records of a log have format 1, from meta.properties. Raises ValueError."""
    if topic != OFFSETS_TOPIC or FORMAT_KEY not in properties:
        return 0
    if properties[FORMAT_KEY] == str(FORMAT_1):
        return INT64_MAX
    return decode_ends(properties.get(ENDS_KEY, "")).get(partition, 0)


def in_format_2(key: bytes | None, value: bytes | None) -> bytes | None:
    """Convert the value of a record of `__consumer_offsets` from format 1 to format 2.

    Other values, and values that are the same in both formats, are returned unchanged.
    """
    if key is None or value is None or key[:2] != MEMBER_KEY or value[:2] != MEMBER_VERSION:
        return value
    r = Reader(value)
    try:
        _skip_member_fields(r)
        tags_at = int(r.pos)
        count = int(r.uvarint())
        rest = int(r.pos)
        if count and int(r.uvarint()) == CLASSIC_TAG:
            return value
    except DecodeError:
        # The decoder reports the error.
        return value
    w = BytesWriter()
    w.write(value[:tags_at])
    write_uvarint(w, count + 1)
    w.write(CLASSIC_NULL)
    w.write(value[rest:])
    return w.getvalue()


def _skip_member_fields(r: Reader) -> None:
    """All fields of version 0 before the tagged ones. Raises DecodeError."""
    r.int16()
    r.compact_nullable_string()  # instance id
    r.compact_nullable_string()  # rack id
    r.compact_string()  # client id
    r.compact_string()  # client host
    for _ in range(r.compact_array_len(1)):  # subscribed topics
        r.compact_string()
    r.compact_nullable_string()  # subscribed regular expression
    r.int32()  # rebalance timeout
    r.compact_nullable_string()  # server assignor


def record_in_format_2(record: Record) -> Record:
    value = in_format_2(record.key, record.value)
    if value is record.value:
        return record
    return Record(record.offset, record.timestamp, record.key, value, record.headers)


def batch_in_format_2(data: bytes, header: BatchHeader, end: int, decompressed_bytes_max: int) -> tuple[bytes, int]:
    """Convert a batch whose records below `end` have format 1. Returns it with the number of changed records.

    Offsets, timestamps, headers and compression are kept. Raises DecodeError and DecompressionError.
    """
    if header.is_control or header.base_offset >= end:
        return data, 0
    r = records_reader(data, 0, header, decompressed_bytes_max)
    w = BytesWriter()
    changed = 0
    for _ in range(header.count):
        start = int(r.pos)
        stop = int(record_end(r))
        # The body of a record begins with one byte of attributes, after the size.
        body_at = int(r.pos) - 1
        r.varlong()
        offset = int(header.base_offset) + int(r.varint())
        key = _field(r)
        value_at = int(r.pos)
        value = _field(r)
        headers_at = int(r.pos)
        newer = in_format_2(key, value) if offset < end else value
        r.pos = stop
        if newer is value or newer is None:
            w.write(r.buf[start:stop])
            continue
        changed += 1
        size = BytesWriter()
        write_varint(size, len(newer))
        body = r.buf[body_at:value_at] + size.getvalue() + newer + r.buf[headers_at:stop]
        write_varint(w, len(body))
        w.write(body)
    if not changed:
        return data, 0
    records = w.getvalue() if header.codec == CODEC_NONE else compress(header.codec, w.getvalue())
    return _around(header, records), changed


def _field(r: Reader) -> bytes | None:
    size = int(r.varint())
    if size < 0:
        return None
    pos = int(r.take(size)) if size else int(r.pos)
    return r.buf[pos : pos + size]


def _around(header: BatchHeader, records: bytes) -> bytes:
    return encode_batch(
        header.base_offset,
        header.leader_epoch,
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.count,
        records,
    )
