"""The metadata hash of a consumer group: XXH3-64 over its subscribed topics, as Kafka computes it.

A group stores the hash with its epoch. When a subscribed topic is created, deleted or extended, or when its racks
change, the hash differs and the epoch is bumped. The hashed bytes are Kafka's, so that a log may move between the two
servers without a rebalance: integers little-endian, text as UTF-16 (little-endian).

    topic    a zero byte, the topic id's high and low half, the name and its length, the number of partitions, and of
             each partition its number and, in order, of each of its racks the length, the text and the length again
    group    the topics' hashes in order of their names

Lengths count UTF-16 units, and Java's order of text is the order of those.
"""

from __future__ import annotations

import struct
from typing import Final

from kcoord.wire.java_strings import java_order

# The version of the hash function.
MAGIC: Final = b"\x00"
_SIGN: Final = 1 << 63


def topic_hash(topic_id: bytes, name: str, partitions: list[tuple[int, list[str]]]) -> int:
    """The hash of an existing topic, signed as in records. `partitions` are (number, racks of its replicas)."""
    high, low = struct.unpack(">QQ", topic_id)
    utf16 = _utf16(name)
    parts = [
        MAGIC,
        struct.pack("<QQ", high, low),
        utf16,
        struct.pack("<ii", len(utf16) // 2, len(partitions)),
    ]
    for partition, racks in partitions:
        parts.append(struct.pack("<i", partition))
        for rack in sorted(racks, key=java_order):
            utf16 = _utf16(rack)
            size = struct.pack("<i", len(utf16) // 2)
            parts += [size, utf16, size]
    return _hash(b"".join(parts))


def group_hash(hashes_by_name: dict[str, int]) -> int:
    """The hash of a group from the hashes of its subscribed topics. Topics that do not exist are left out."""
    if not hashes_by_name:
        return 0
    names = sorted(hashes_by_name, key=java_order)
    return _hash(struct.pack(f"<{len(names)}q", *[hashes_by_name[name] for name in names]))


def _hash(data: bytes) -> int:
    # Imported here, so that a server starts sooner.
    import xxhash

    value = xxhash.xxh3_64_intdigest(data)
    return value - (value & _SIGN) * 2


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass")
