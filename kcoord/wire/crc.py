"""CRC-32C (Castagnoli), the checksum of record batches."""

from __future__ import annotations

from crc32c import crc32c as _crc32c

__all__ = ["crc32c"]


def crc32c(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """Checksum of `data`, continuing from `value`, as an unsigned 32-bit number."""
    return _crc32c(data, value)
