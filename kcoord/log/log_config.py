"""The settings of the log of one partition."""

from __future__ import annotations

from typing import Final, final

# How much is preallocated at a time, with the topic config `preallocate`.
PREALLOCATED_BYTES: Final = 256 << 10
# With less free space than this, nothing is preallocated: zeros must not take the room of contents.
PREALLOCATING_FREE_MIN: Final = 1 << 30


@final
class LogConfig:
    """Settings of one log; the defaults are Kafka's."""

    def __init__(
        self,
        segment_bytes: int = 1 << 30,
        segment_ms: int = 7 * 24 * 3600 * 1000,
        index_interval_bytes: int = 4096,
        tail_bytes_max: int = 256 * 1024,
        decompressed_bytes_max: int = 64 << 20,
        preallocated_bytes: int = 0,
    ) -> None:
        self.segment_bytes = segment_bytes
        self.segment_ms = segment_ms
        self.index_interval_bytes = index_interval_bytes
        # The newest batches stay in memory, so that consumers at the end of the log do not need the disk.
        self.tail_bytes_max = tail_bytes_max
        self.decompressed_bytes_max = decompressed_bytes_max
        # How many zeros to write behind the end at a time, so that a sync takes less time (see File.preallocate).
        self.preallocated_bytes = preallocated_bytes
