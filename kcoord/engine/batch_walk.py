"""Walks over the batches of a file, read in large pieces, for loading and for state checkpoints."""

from __future__ import annotations

from typing import Final, final

from kcoord.log.errors import LogDamaged
from kcoord.log.partition_log import Extent
from kcoord.log.storage import File, Storage
from kcoord.wire.primitives import DecodeError, i64
from kcoord.wire.record_batch import HEADER_BYTES, BatchHeader, check_crc, parse_header

READ_BYTES: Final = 4 << 20


@final
class BatchWalk:
    """The batches of an extent, with checked checksums. `header` and `buf` are the current one. Call `close` at the
    end.
    """

    def __init__(self, storage: Storage, extent: Extent) -> None:
        self.path = extent.path
        self.file: File = storage.open(extent.path)
        self.buf = b""
        # The file position of the first byte of `buf`, and the position of the next batch in it.
        self.start: i64 = extent.start
        self.next_pos: i64 = 0
        self.end: i64 = extent.end
        self.next_offset: i64 = 0

    def close(self) -> None:
        self.file.close()

    def advance(self) -> BatchHeader | None:
        """The next batch, which is in `buf` at the header's `pos`; None at the end. Raises LogDamaged."""
        pos = self.next_pos
        at = self.start + pos
        if at >= self.end:
            return None
        if len(self.buf) - pos < HEADER_BYTES:
            self._read(at, READ_BYTES)
            pos = 0
        try:
            header = parse_header(self.buf, pos, True)
            if header.size > self.end - at:
                raise DecodeError(f"batch of {header.size} bytes, {self.end - at} left")
            if header.size > len(self.buf) - pos:
                self._read(at, max(header.size, READ_BYTES))
                pos = 0
                header = parse_header(self.buf, pos)
        except DecodeError as error:
            raise self.damaged(at, str(error)) from None
        if header.base_offset < self.next_offset:
            raise self.damaged(at, f"offset {header.base_offset} where {self.next_offset} or later is expected")
        if not check_crc(self.buf, pos, header):
            raise self.damaged(at, "wrong checksum")
        self.next_offset = header.last_offset + 1
        self.next_pos = pos + header.size
        return header

    def damaged(self, position: i64, reason: str) -> LogDamaged:
        return LogDamaged(self.path, self.next_offset, position, reason)

    def damaged_here(self, header: BatchHeader, reason: str) -> LogDamaged:
        """The error for a current batch with unexpected content."""
        return LogDamaged(self.path, header.base_offset, self.start + header.pos, reason)

    def _read(self, position: i64, size: i64) -> None:
        left = self.end - position
        self.buf = self.file.read_at(position, size if size < left else left)
        self.start = position
        self.next_pos = 0
