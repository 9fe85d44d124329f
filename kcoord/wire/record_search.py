"""Finds a record of a batch by its timestamp, for ListOffsets.

The cost depends on the batch, which a client chose: its decompressed size and its number of records. So `open` reports
whether the content exceeds what the caller is willing to process, and the search proceeds in steps.
"""

from __future__ import annotations

from typing import final

from kcoord.wire.compression import (
    BLOCK_CHARGE_BYTES,
    CODEC_NONE,
    DecompressedTooLarge,
    charged_bytes,
    decompress,
    survey,
)
from kcoord.wire.primitives import DecodeError, Reader, i64
from kcoord.wire.record_batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    check_count,
    parse_header,
    record_end,
)


@final
class RecordSearch:
    """Finds the first record of the batch `data` at or after both a timestamp and an offset.

    Of earlier records it reads only timestamps and offsets. Raises DecodeError and DecompressionError.
    """

    def __init__(self, data: bytes, timestamp: int, offset: int) -> None:
        self.data = data
        self.header = parse_header(data, 0)
        self.timestamp = timestamp
        self.offset = offset
        # (timestamp, offset); None if there is none, or none yet.
        self.found: tuple[int, int] | None = None
        # The cost of the search in bytes of content; set by `open`.
        self.content_bytes: i64 = 0
        self.reader: Reader | None = None
        self.left: i64 = self.header.count

    def open(self, content_bytes_max: int, content_bytes_here: int) -> bool:
        """Decompress the records, at most `content_bytes_max`; False if they exceed `content_bytes_here`."""
        data = self.data
        codec = self.header.codec
        if codec == CODEC_NONE:
            self.content_bytes = len(data)
            if self.content_bytes > content_bytes_here:
                return False
            reader = Reader(data, HEADER_BYTES)
            reader.end = self.header.size
        else:
            packed = data[HEADER_BYTES : self.header.size]
            blocks_here: i64 = content_bytes_here // BLOCK_CHARGE_BYTES
            surveyed = survey(codec, packed, blocks_here)
            if surveyed.blocks > blocks_here:
                return False
            try:
                content = decompress(codec, packed, min(content_bytes_max, content_bytes_here), surveyed)
            except DecompressedTooLarge:
                if content_bytes_max <= content_bytes_here:
                    raise
                return False
            self.content_bytes = charged_bytes(len(content), surveyed.blocks)
            reader = Reader(content)
        check_count(reader, self.header)
        self.reader = reader
        return True

    def step(self, records: i64) -> bool:
        """Check `records` more records. Returns whether the search is done."""
        r = self.reader
        if r is None:
            raise ValueError("the batch is not open")
        header = self.header
        append_time = (header.attributes & LOG_APPEND_TIME_FLAG) != 0
        base_offset: int = header.base_offset
        base_timestamp: int = header.base_timestamp
        timestamp = self.timestamp
        offset = self.offset
        left = self.left
        until: i64 = left - records if records < left else 0
        while left > until:
            end = record_end(r)
            found: int = header.max_timestamp if append_time else base_timestamp + r.varlong()
            if append_time:
                r.varlong()
            delta = r.varint()
            if delta < 0 or delta > header.last_offset_delta or r.pos > end:
                raise DecodeError(f"offset delta {delta} in a batch that ends at {header.last_offset_delta}")
            if found >= timestamp and base_offset + delta >= offset:
                self.found = (found, base_offset + delta)
                left = until = 0
                break
            r.pos = end
            left -= 1
        self.left = left
        if left > 0:
            return False
        self.reader = None
        return True
