"""Which partition a record goes to, as Kafka's producer decides it.

A record with a key goes to the partition of the key's murmur2 hash. Records without a key go to one partition until it
has received about as many bytes as a batch holds, then to another one (KIP-480, KIP-794): so batches fill up, and all
partitions receive the same share over time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final, final

# (key, all partitions, partitions with a leader) -> partition
Partitioner = Callable[[bytes | None, list[int], list[int]], int]

SEED: Final = 0x9747B28C
M: Final = 0x5BD1E995
MASK: Final = 0xFFFFFFFF
POSITIVE: Final = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 hash of Kafka's clients, as an unsigned number."""
    size = len(data)
    h = SEED ^ size
    whole = size & ~3
    for pos in range(0, whole, 4):
        k = (int.from_bytes(data[pos : pos + 4], "little") * M) & MASK
        k = ((k ^ (k >> 24)) * M) & MASK
        h = ((h * M) & MASK) ^ k
    if size != whole:
        h = ((h ^ int.from_bytes(data[whole:], "little")) * M) & MASK
    h = ((h ^ (h >> 13)) * M) & MASK
    return h ^ (h >> 15)


def partition_of_key(key: bytes, partition_count: int) -> int:
    return (murmur2(key) & POSITIVE) % partition_count


@final
class Sticky:
    """The current partition of a topic for records without a key."""

    def __init__(self, switch_bytes: int) -> None:
        self.switch_bytes = switch_bytes
        self.partition = -1
        self.bytes_sent = 0

    def keeps(self, known: Mapping[int, object], record_bytes: int) -> bool:
        """Whether the current partition takes the next record, too."""
        if self.bytes_sent >= self.switch_bytes or self.partition not in known:
            return False
        self.bytes_sent += record_bytes
        return True

    def choose(self, everything: list[int], available: list[int], record_bytes: int) -> int:
        """The partition of the next record. Partitions without a leader are avoided while others have one."""
        choices = available or everything
        if self.bytes_sent >= self.switch_bytes or self.partition not in choices:
            others = [one for one in choices if one != self.partition]
            self.partition = random.choice(others or choices)
            self.bytes_sent = 0
        self.bytes_sent += record_bytes
        return self.partition
