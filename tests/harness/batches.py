"""Record batches written by hand, for scripts: independent of the codec under test."""

from __future__ import annotations

import base64
import gzip
import struct

import crc32c

BASE_TIME_MS = 1_600_000_000_000
GZIP = 1


def varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag & ~0x7F:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def record(index: int, time_delta: int, key: bytes | None, value: bytes | None) -> bytes:
    body = b"\x00" + varint(time_delta) + varint(index)
    for part in (key, value):
        body += varint(-1) if part is None else varint(len(part)) + part
    body += varint(0)
    return varint(len(body)) + body


def batch(
    values: list[bytes],
    key: bytes | None = None,
    base_time_ms: int = BASE_TIME_MS,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
    break_crc: bool = False,
    magic: int = 2,
) -> bytes:
    """One batch; record i has the timestamp base_time_ms + 1000 * i. The attributes may name gzip, and no other codec."""
    records = b"".join(record(i, 1000 * i, key, value) for i, value in enumerate(values))
    if attributes & 7 == GZIP:
        records = gzip.compress(records, mtime=0)
    last = len(values) - 1
    times = (base_time_ms, base_time_ms + 1000 * max(last, 0))
    tail = struct.pack(">hiqqqhii", attributes, last, *times, producer_id, producer_epoch, base_sequence, len(values))
    tail += records
    crc = crc32c.crc32c(tail) ^ (1 if break_crc else 0)
    return struct.pack(">qiibI", 0, len(tail) + 9, 0, magic, crc) + tail


def batch_text(values: list[bytes], **options: int) -> str:
    """The same in base64, as `records` fields stand in JSON."""
    return base64.b64encode(batch(values, **options)).decode()  # type: ignore[arg-type]
