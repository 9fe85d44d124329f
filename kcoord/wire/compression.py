"""The compression codecs of Kafka record batches, with bounded output.

A peer chooses both the bytes and what they claim to become, so no claimed size is believed: sizes that are
stated up front are compared with the limit first, and everything else is written into a buffer that cannot
grow past the limit.

Formats: gzip (RFC 1952); snappy in the framing of the snappy-java streams, which every Kafka client speaks,
and plain raw snappy on read; LZ4 frames with independent blocks, the only kind Java clients read; zstd
frames (RFC 8878, KIP-110).
"""

from __future__ import annotations

import zlib
from typing import Final

import cramjam

__all__ = [
    "CODEC_GZIP",
    "CODEC_LZ4",
    "CODEC_NAMES",
    "CODEC_NONE",
    "CODEC_SNAPPY",
    "CODEC_ZSTD",
    "DecompressedTooLarge",
    "DecompressionError",
    "compress",
    "decompress",
]

CODEC_NONE: Final = 0
CODEC_GZIP: Final = 1
CODEC_SNAPPY: Final = 2
CODEC_LZ4: Final = 3
CODEC_ZSTD: Final = 4
CODEC_NAMES: Final[dict[int, str]] = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}

# First guess of the output's size, as a multiple of the input; the buffer grows from there to the limit.
EXPECTED_RATIO: Final = 8
BUFFER_BYTES_MIN: Final = 4096
BUFFER_GROWTH: Final = 8

# Producers write one gzip member. Each further one costs a copy of the rest, so there cannot be many.
GZIP_MEMBERS_MAX: Final = 16
GZIP_LEVEL: Final = 6
ZSTD_LEVEL: Final = 3

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
# Magic, then version 1 and compatible version 1.
XERIAL_HEADER: Final = XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
XERIAL_BLOCK_BYTES: Final = 32 * 1024

# Magic, version 1 with independent blocks and no checksums, blocks of at most 64 KiB, and the second byte of
# the XXH32 of those two descriptor bytes (they never change, so neither does it).
LZ4_HEADER: Final = b"\x04\x22\x4d\x18\x60\x40\x82"
LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
LZ4_BLOCK_BYTES: Final = 64 * 1024
LZ4_STORED: Final = 0x80000000
LZ4_END: Final = b"\x00\x00\x00\x00"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"


class DecompressionError(Exception):
    """The bytes cannot be decompressed."""


class DecompressedTooLarge(DecompressionError):
    """The bytes become larger than the limit."""


def compress(codec: int, data: bytes) -> bytes:
    """`data` as Kafka producers write it with `codec`. Raises ValueError for a codec that does not exist."""
    if codec == CODEC_NONE:
        return data
    if codec == CODEC_GZIP:
        packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 31)
        return packer.compress(data) + packer.flush()
    if codec == CODEC_SNAPPY:
        return _compress_snappy(data)
    if codec == CODEC_LZ4:
        return _compress_lz4(data)
    if codec == CODEC_ZSTD:
        return bytes(cramjam.zstd.compress(data, ZSTD_LEVEL))
    raise ValueError(f"no compression codec {codec}")


def decompress(codec: int, data: bytes, max_bytes: int) -> bytes:
    """What `data` was before compression with `codec`, if that is at most `max_bytes` long.

    Raises DecompressedTooLarge when it is longer, DecompressionError when `data` is not of that format.
    """
    if codec == CODEC_NONE:
        if len(data) > max_bytes:
            raise DecompressedTooLarge(f"{len(data)} bytes, {max_bytes} allowed")
        return data
    if codec == CODEC_GZIP:
        return _decompress_gzip(data, max_bytes)
    if codec == CODEC_SNAPPY:
        return _decompress_snappy(data, max_bytes)
    if codec == CODEC_LZ4:
        if not data.startswith(LZ4_MAGIC):
            raise DecompressionError("not an lz4 frame")
        return _decompress_into_buffer(codec, data, max_bytes)
    if codec == CODEC_ZSTD:
        if not data.startswith(ZSTD_MAGIC):
            raise DecompressionError("not a zstd frame")
        return _decompress_into_buffer(codec, data, max_bytes)
    raise DecompressionError(f"no compression codec {codec}")


def _compress_snappy(data: bytes) -> bytes:
    parts: list[bytes] = [XERIAL_HEADER]
    pos = 0
    while pos < len(data):
        block = bytes(cramjam.snappy.compress_raw(data[pos : pos + XERIAL_BLOCK_BYTES]))
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(block)
        pos += XERIAL_BLOCK_BYTES
    return b"".join(parts)


def _compress_lz4(data: bytes) -> bytes:
    parts: list[bytes] = [LZ4_HEADER]
    pos = 0
    while pos < len(data):
        plain = data[pos : pos + LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts.append(len(block).to_bytes(4, "little"))
            parts.append(block)
        else:
            parts.append((len(plain) | LZ4_STORED).to_bytes(4, "little"))
            parts.append(plain)
        pos += LZ4_BLOCK_BYTES
    parts.append(LZ4_END)
    return b"".join(parts)


def _decompress_gzip(data: bytes, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    left = max_bytes
    rest = data
    members = 0
    while rest or members == 0:
        members += 1
        if members > GZIP_MEMBERS_MAX:
            raise DecompressionError(f"more than {GZIP_MEMBERS_MAX} gzip members")
        unpacker = zlib.decompressobj(31)
        try:
            # One byte more than allowed tells "full" from "exactly full".
            part = unpacker.decompress(rest, left + 1)
        except zlib.error as error:
            raise DecompressionError(f"gzip: {error}") from None
        if len(part) > left:
            raise DecompressedTooLarge(f"more than {max_bytes} bytes")
        if not unpacker.eof:
            raise DecompressionError("gzip: cut short")
        parts.append(part)
        left -= len(part)
        rest = unpacker.unused_data
    if len(parts) == 1:
        return parts[0]
    return b"".join(parts)


def _decompress_snappy_raw(data: bytes, max_bytes: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > max_bytes:
            raise DecompressedTooLarge(f"{size} bytes, {max_bytes} allowed")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise DecompressionError(f"snappy: {error}") from None


def _decompress_snappy(data: bytes, max_bytes: int) -> bytes:
    if not data.startswith(XERIAL_MAGIC):
        return _decompress_snappy_raw(data, max_bytes)
    parts: list[bytes] = []
    left = max_bytes
    pos = len(XERIAL_HEADER)
    end = len(data)
    if pos > end:
        raise DecompressionError("snappy: header cut short")
    while pos < end:
        if data.startswith(XERIAL_MAGIC, pos):
            # Two streams glued together: the header comes again where a block's size would be.
            pos += len(XERIAL_HEADER)
            continue
        if end - pos < 4:
            raise DecompressionError("snappy: block size cut short")
        size = int.from_bytes(data[pos : pos + 4], "big")
        pos += 4
        if size == 0 or size > end - pos:
            raise DecompressionError(f"snappy: block of {size} bytes, {end - pos} left")
        part = _decompress_snappy_raw(data[pos : pos + size], left)
        parts.append(part)
        left -= len(part)
        pos += size
    return b"".join(parts)


def _decompress_into_buffer(codec: int, data: bytes, max_bytes: int) -> bytes:
    size = len(data) * EXPECTED_RATIO
    if size < BUFFER_BYTES_MIN:
        size = BUFFER_BYTES_MIN
    while True:
        if size > max_bytes:
            size = max_bytes
        # A fresh buffer is zero pages: what is not written to costs address space only.
        buffer = bytearray(size)
        try:
            if codec == CODEC_LZ4:
                written = cramjam.lz4.decompress_into(data, buffer)
            else:
                written = cramjam.zstd.decompress_into(data, buffer)
        except cramjam.DecompressionError as error:
            # "Buffer full" and "bad data" arrive as the same class. Growing is harmless for bad data, which
            # fails again; the wording only decides which of our errors is raised at the limit.
            text = str(error)
            full = "whole buffer" in text
            if size < max_bytes:
                size *= BUFFER_GROWTH
                continue
            if full:
                raise DecompressedTooLarge(f"more than {max_bytes} bytes") from None
            raise DecompressionError(f"{CODEC_NAMES[codec]}: {text}") from None
        return bytes(memoryview(buffer)[:written])
