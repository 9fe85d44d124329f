"""The newest batches of a log in memory, so that consumers at its end do not need the disk."""

from __future__ import annotations

from bisect import bisect_right


class Tail:
    """The newest batches of a log, at most `bytes_max` of them."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bases: list[int] = []
        self.batches: list[bytes] = []
        self.start = 0
        self.bytes = 0

    def append(self, base_offset: int, batch: bytes) -> None:
        self.bases.append(base_offset)
        self.batches.append(batch)
        self.bytes += len(batch)
        while self.bytes > self.bytes_max:
            self.bytes -= len(self.batches[self.start])
            self.batches[self.start] = b""
            self.start += 1
        if self.start > 256 and self.start * 2 > len(self.bases):
            del self.bases[: self.start]
            del self.batches[: self.start]
            self.start = 0

    def forget(self, upto_offset: int) -> None:
        """Release the batches below an offset."""
        while self.start < len(self.bases) and self.bases[self.start] < upto_offset:
            self.bytes -= len(self.batches[self.start])
            self.batches[self.start] = b""
            self.start += 1

    def holds(self, offset: int) -> bool:
        return self.start < len(self.bases) and offset >= self.bases[self.start]

    def read(self, offset: int, max_bytes: int, upto_offset: int, min_one_batch: bool) -> bytes:
        i = first = bisect_right(self.bases, offset, self.start) - 1
        size = 0
        while i < len(self.bases) and self.bases[i] < upto_offset:
            size += len(self.batches[i])
            if size > max_bytes and (i > first or not min_one_batch):
                break
            i += 1
        if i == first + 1:
            return self.batches[first]
        return b"".join(self.batches[first:i])
