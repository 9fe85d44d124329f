"""Latencies as counts in buckets: a fixed size however many there are, and easy to add up over processes and rounds.

Each power of two has 128 buckets, so a percentile is at most 0.8 % away from the exact one. Compiled where kcoord is.
"""

from __future__ import annotations

from typing import Final, final

SUB_BITS: Final = 7
# Everything from 2 ** 42 ns (73 minutes) on is in the last bucket.
BITS_MAX: Final = 42
BUCKETS: Final = (BITS_MAX - SUB_BITS + 1) << SUB_BITS


def bucket_of(nanoseconds: int) -> int:
    """The bucket of a latency."""
    if nanoseconds < 0:
        return 0
    extra = nanoseconds.bit_length() - SUB_BITS - 1
    if extra <= 0:
        return nanoseconds
    bucket = (extra << SUB_BITS) + (nanoseconds >> extra)
    return bucket if bucket < BUCKETS else BUCKETS - 1


def middle_of(bucket: int) -> int:
    """The latency in the middle of a bucket, in nanoseconds."""
    extra = (bucket >> SUB_BITS) - 1
    if extra <= 0:
        return bucket
    return ((bucket - (extra << SUB_BITS)) << extra) + (1 << extra >> 1)


@final
class Histogram:
    def __init__(self) -> None:
        self.counts: list[int] = [0] * BUCKETS
        self.total = 0

    def add(self, nanoseconds: int) -> None:
        self.counts[bucket_of(nanoseconds)] += 1
        self.total += 1

    def add_all(self, pairs: list[list[int]]) -> None:
        """Add `[bucket, count]` pairs of another histogram."""
        for bucket, count in pairs:
            self.counts[bucket] += count
            self.total += count

    def pairs(self) -> list[list[int]]:
        """`[bucket, count]` of all buckets that have any."""
        found: list[list[int]] = []
        for bucket in range(BUCKETS):
            count = self.counts[bucket]
            if count:
                found.append([bucket, count])
        return found

    def percentile(self, share: float) -> float:
        """The latency in milliseconds that `share` of all requests do not exceed; 0 for an empty histogram."""
        wanted = share * self.total
        seen = 0
        for bucket in range(BUCKETS):
            seen += self.counts[bucket]
            if seen and seen >= wanted:
                return middle_of(bucket) / 1e6
        return 0.0
