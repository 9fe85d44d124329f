"""Maps a group or transactional id to its partition, with Java's string hash like every Kafka client and broker."""

from __future__ import annotations

from typing import Final

from kcoord.wire.primitives import i64

_INT32_MIN: Final = -2147483648


def java_string_hash(text: str) -> int:
    """`String.hashCode()` of Java: a signed 32-bit number over the UTF-16 code units of `text`."""
    h: i64 = 0
    for ch in text:
        c: i64 = ord(ch)
        if c > 0xFFFF:
            c -= 0x10000
            h = (h * 31 + 0xD800 + (c >> 10)) & 0xFFFFFFFF
            c = 0xDC00 + (c & 0x3FF)
        h = (h * 31 + c) & 0xFFFFFFFF
    return h - 0x100000000 if h > 0x7FFFFFFF else h


def coordinator_partition(group_id: str, partition_count: int) -> int:
    """The partition of `__consumer_offsets` (or `__transaction_state`) that holds this id.

    The absolute value of the hash modulo the count. The hash that has no absolute value (-2^31) counts as 0.
    """
    h = java_string_hash(group_id)
    if h == _INT32_MIN:
        return 0
    return (h if h >= 0 else -h) % partition_count


def utf16_length(text: str) -> int:
    """The length of `text` in UTF-16 code units, as Java counts it."""
    n = len(text)
    if text.isascii():
        return n
    for ch in text:
        if ord(ch) > 0xFFFF:
            n += 1
    return n
