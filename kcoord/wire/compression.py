"""The compression codecs of Kafka record batches, with bounded output.

A client chooses both the bytes and the size they claim to decompress to. `survey` reads the headers without
decompressing anything: it returns the largest possible content size and the number of blocks. `decompress` then runs
the decoder once, into a buffer no larger than the limit. The work therefore depends only on the output size, up to the
limit, and on the number of blocks. A caller that charges for both (`charged_bytes`) bounds it: a block costs the
decoder one or two microseconds (tables, state) even if it is empty.

The operating system provides a large buffer as untouched zero pages, and the buffer becomes the returned bytes without
a copy. The decoders release the GIL and only they touch these pages, so a thread that decompresses does not block the
others. Work that must hold the GIL is done in slices.

`cramjam` is imported where it is used, so that a server starts sooner (`kcoord/server/late_imports.py`).

Formats: gzip (RFC 1952); snappy in the framing of the snappy-java streams, which every Kafka client speaks,
and plain raw snappy on read; LZ4 frames with independent blocks, the only kind Java clients read; zstd
frames (RFC 8878, KIP-110).
"""

from __future__ import annotations

import zlib
from io import BytesIO
from typing import Final, final

from kcoord.wire.primitives import i64, read_i32_be

__all__ = [
    "CODEC_GZIP",
    "CODEC_LZ4",
    "CODEC_NAMES",
    "CODEC_NONE",
    "CODEC_SNAPPY",
    "CODEC_ZSTD",
    "DecompressedTooLarge",
    "DecompressionError",
    "Survey",
    "charged_bytes",
    "compress",
    "decompress",
    "survey",
]

CODEC_NONE: Final = 0
CODEC_GZIP: Final = 1
CODEC_SNAPPY: Final = 2
CODEC_LZ4: Final = 3
CODEC_ZSTD: Final = 4
CODEC_NAMES: Final[dict[int, str]] = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}

# The charge for one block, in bytes of content. Writers fill blocks with 16 KiB and more. The setup of a block (code
# tables, a call) takes a decoder one or two microseconds, the time in which it would produce this much content.
BLOCK_CHARGE_BYTES: Final = 4096
# gzip does not declare where its blocks begin, and a block may take as little as 20 bytes. The charge per input byte.
GZIP_INPUT_CHARGE: Final = 8

# gzip content is produced, and copied with the GIL held, in slices of this size. The input is passed in slices as well,
# because the decoder copies its unused input on every call.
GZIP_SLICE_BYTES: Final = 256 * 1024
GZIP_INPUT_SLICE_BYTES: Final = 64 * 1024
# Producers write one gzip member. Each further member costs a copy of the remaining input, so the number is bounded.
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
# The highest compression ratio that the LZ4 format allows.
LZ4_RATIO_MAX: Final = 255
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
ZSTD_BLOCK_BYTES_MAX: Final = 128 * 1024
# Skippable frames, in both formats: a magic number whose last four bits are free, a size, and that many bytes.
SKIPPABLE_MAGIC: Final = 0x184D2A50
SKIPPABLE_MASK: Final = 0xFFFFFFF0
INT32_MAX: Final = 0x7FFFFFFF
INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF


class DecompressionError(Exception):
    """The bytes cannot be decompressed."""


class DecompressedTooLarge(DecompressionError):
    """The decompressed content exceeds the limit."""


@final
class Survey:
    """What the headers of compressed data declare: at most `bytes_max` bytes of content, in `blocks` blocks.

    `bytes_max` is -1 if the format declares no bound. The decoder enforces a declared bound.
    """

    def __init__(self, bytes_max: i64, blocks: i64) -> None:
        self.bytes_max = bytes_max
        self.blocks = blocks


def compress(codec: int, data: bytes) -> bytes:
    """Compress `data` as Kafka producers do with `codec`. Raises ValueError for an unknown codec."""
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
        import cramjam

        return bytes(cramjam.zstd.compress(data, ZSTD_LEVEL))
    raise ValueError(f"unknown compression codec {codec}")


def survey(codec: int, data: bytes, blocks_max: int = INT64_MAX) -> Survey:
    """Read the headers of compressed data without decompressing it.

    The survey stops after more than `blocks_max` blocks; the caller must not decompress such data.
    Raises DecompressionError if `data` is not in the format of `codec`.
    """
    if codec == CODEC_NONE:
        return Survey(len(data), 0)
    if codec == CODEC_GZIP:
        return Survey(-1, len(data) * GZIP_INPUT_CHARGE // BLOCK_CHARGE_BYTES)
    if codec == CODEC_SNAPPY:
        return _survey_snappy(data, blocks_max)
    if codec == CODEC_LZ4:
        if not data.startswith(LZ4_MAGIC):
            raise DecompressionError("not an lz4 frame")
        return _Frames(data, codec, blocks_max).survey()
    if codec == CODEC_ZSTD:
        if not data.startswith(ZSTD_MAGIC):
            raise DecompressionError("not a zstd frame")
        return _Frames(data, codec, blocks_max).survey()
    raise DecompressionError(f"unknown compression codec {codec}")


def charged_bytes(content_bytes: i64, blocks: i64) -> i64:
    """The cost of decompressing, expressed as bytes of content in large blocks."""
    charge = blocks * BLOCK_CHARGE_BYTES
    return content_bytes if content_bytes > charge else charge


def decompress(codec: int, data: bytes, max_bytes: int, surveyed: Survey | None = None) -> bytes:
    """Decompress `data` to at most `max_bytes` bytes.

    `surveyed` is the result of `survey`, if the caller has it already. Raises DecompressedTooLarge if the content is
    longer, DecompressionError if `data` is not in the format of `codec`.
    """
    if codec == CODEC_NONE:
        if len(data) > max_bytes:
            raise DecompressedTooLarge(f"{len(data)} bytes, {max_bytes} allowed")
        return data
    if codec == CODEC_GZIP:
        return _decompress_gzip(data, max_bytes)
    if surveyed is None:
        surveyed = survey(codec, data)
    if codec == CODEC_SNAPPY:
        return _decompress_snappy(data, surveyed, max_bytes)
    return _decompress_frames(codec, data, surveyed, max_bytes)


def _compress_snappy(data: bytes) -> bytes:
    import cramjam

    parts: list[bytes] = [XERIAL_HEADER]
    pos = 0
    while pos < len(data):
        block = bytes(cramjam.snappy.compress_raw(data[pos : pos + XERIAL_BLOCK_BYTES]))
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(block)
        pos += XERIAL_BLOCK_BYTES
    return b"".join(parts)


def _compress_lz4(data: bytes) -> bytes:
    import cramjam

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


@final
class _Content:
    """A buffer for at most `size` bytes of content; `take` returns its beginning as bytes without a copy."""

    def __init__(self, size: int) -> None:
        # These bytes are zero pages. BytesIO adopts them, because this is their only reference, and returns them later.
        self.file = BytesIO(bytes(size))
        self.view = self.file.getbuffer()

    def take(self, size: int) -> bytes:
        self.view.release()
        self.file.truncate(size)
        return self.file.getvalue()


def _decompress_gzip(data: bytes, max_bytes: int) -> bytes:
    """Most batches are one member that fits into one slice. Larger content fills a buffer slice by slice."""
    first = _GzipSlices(data)
    # One byte more than allowed distinguishes "too large" from "exactly full".
    part = first.read(min(max_bytes + 1, GZIP_SLICE_BYTES))
    if first.at_end:
        if len(part) > max_bytes:
            raise DecompressedTooLarge(f"more than {max_bytes} bytes")
        return part
    content = _Content(max_bytes)
    size: i64 = 0
    while part:
        if len(part) > max_bytes - size:
            raise DecompressedTooLarge(f"more than {max_bytes} bytes")
        content.view[size : size + len(part)] = part
        size += len(part)
        part = first.read(int(min(max_bytes - size + 1, GZIP_SLICE_BYTES)))
    return content.take(size)


@final
class _GzipSlices:
    """The content of gzip members, in slices."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos: i64 = 0
        self.members = 1
        self.unpacker = zlib.decompressobj(31)
        self.at_end = False

    def read(self, size: int) -> bytes:
        """The next bytes of content, at most `size`, possibly fewer; empty at the end."""
        while not self.at_end:
            rest = self.unpacker.unconsumed_tail
            if not rest:
                rest = self.data[self.pos : self.pos + GZIP_INPUT_SLICE_BYTES]
                self.pos += len(rest)
            try:
                part = self.unpacker.decompress(rest, size)
            except zlib.error as error:
                raise DecompressionError(f"gzip: {error}") from None
            if self.unpacker.eof:
                self._end_member()
            elif not part and not rest:
                raise DecompressionError("gzip: truncated")
            if part:
                return part
        return b""

    def _end_member(self) -> None:
        self.pos -= len(self.unpacker.unused_data)
        if self.pos == len(self.data):
            self.at_end = True
            return
        self.members += 1
        if self.members > GZIP_MEMBERS_MAX:
            raise DecompressionError(f"more than {GZIP_MEMBERS_MAX} gzip members")
        self.unpacker = zlib.decompressobj(31)


def _snappy_content_bytes(data: bytes, pos: i64, end: i64) -> i64:
    """The size at the start of a raw block, a varint of at most 32 bits. The decoder verifies it."""
    size: i64 = 0
    shift: i64 = 0
    while pos < end and shift <= 28:
        x: i64 = i64(data[pos])
        size |= (x & 127) << shift
        if x < 128:
            return size
        shift += 7
        pos += 1
    raise DecompressionError("snappy: the content size is missing")


def _survey_snappy(data: bytes, blocks_max: i64) -> Survey:
    end: i64 = len(data)
    if not data.startswith(XERIAL_MAGIC):
        return Survey(_snappy_content_bytes(data, 0, end), 1)
    pos: i64 = len(XERIAL_HEADER)
    if pos > end:
        raise DecompressionError("snappy: truncated header")
    content: i64 = 0
    blocks: i64 = 0
    while pos < end and blocks <= blocks_max:
        blocks += 1
        if data.startswith(XERIAL_MAGIC, pos):
            # Two concatenated streams: the header appears again in the place of a block size.
            pos += len(XERIAL_HEADER)
            continue
        size = _block_bytes(data, pos, end)
        pos += 4
        content += _snappy_content_bytes(data, pos, pos + size)
        pos += size
    return Survey(content, blocks)


def _block_bytes(data: bytes, pos: i64, end: i64) -> i64:
    if end - pos < 4:
        raise DecompressionError("snappy: truncated block size")
    size: i64 = i64(read_i32_be(data, pos)) & 0xFFFFFFFF
    if size == 0 or size > end - pos - 4:
        raise DecompressionError(f"snappy: block of {size} bytes, {end - pos - 4} left")
    return size


def _decompress_snappy(data: bytes, surveyed: Survey, max_bytes: int) -> bytes:
    import cramjam

    if surveyed.bytes_max > max_bytes:
        raise DecompressedTooLarge(f"{surveyed.bytes_max} bytes, {max_bytes} allowed")
    content = _Content(surveyed.bytes_max)
    written: i64 = 0
    pos: i64 = 0
    end: i64 = len(data)
    try:
        if not data.startswith(XERIAL_MAGIC):
            return content.take(cramjam.snappy.decompress_raw_into(data, content.view))
        while pos < end:
            if data.startswith(XERIAL_MAGIC, pos):
                pos += len(XERIAL_HEADER)
                continue
            size = _block_bytes(data, pos, end)
            pos += 4
            written += cramjam.snappy.decompress_raw_into(data[pos : pos + size], content.view[written:])
            pos += size
    except cramjam.DecompressionError as error:
        raise DecompressionError(f"snappy: {error}") from None
    return content.take(written)


@final
class _Frames:
    """Walks over the frames and blocks of LZ4 or zstd data to bound their decompressed size."""

    def __init__(self, data: bytes, codec: int, blocks_max: i64) -> None:
        self.data = data
        self.codec = codec
        self.blocks_max = blocks_max
        self.pos: i64 = 0
        self.end: i64 = len(data)
        self.content: i64 = 0
        self.blocks: i64 = 0

    def survey(self) -> Survey:
        magic = int.from_bytes(LZ4_MAGIC if self.codec == CODEC_LZ4 else ZSTD_MAGIC, "little")
        while self.pos < self.end and self.blocks <= self.blocks_max:
            # The setup of a frame costs at least as much as a block.
            self.blocks += 1
            found = self._number(4)
            if found == magic:
                if self.codec == CODEC_LZ4:
                    self._lz4_frame()
                else:
                    self._zstd_frame()
            elif found & SKIPPABLE_MASK == SKIPPABLE_MAGIC:
                self._skip(self._number(4))
            else:
                raise DecompressionError(f"{CODEC_NAMES[self.codec]}: unknown frame")
        return Survey(self.content, self.blocks)

    def _skip(self, size: i64) -> None:
        if size > self.end - self.pos:
            raise DecompressionError(f"{CODEC_NAMES[self.codec]}: truncated")
        self.pos += size

    def _number(self, size: i64) -> i64:
        """A little-endian number of up to 4 bytes."""
        pos = self.pos
        self._skip(size)
        value: i64 = 0
        shift: i64 = 0
        while pos < self.pos:
            value |= i64(self.data[pos]) << shift
            shift += 8
            pos += 1
        return value

    def _lz4_frame(self) -> None:
        flags = self._number(1)
        block_max = i64(1) << (((self._number(1) >> 4) & 7) * 2 + 8)
        # Content size, dictionary, checksum of the header.
        self._skip((8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0) + 1)
        block_tail: i64 = 4 if flags & 0x10 else 0
        while self.blocks <= self.blocks_max:
            size = self._number(4)
            if size == 0:
                self._skip(4 if flags & 0x04 else 0)
                break
            self.blocks += 1
            stored = size & LZ4_STORED
            size &= INT32_MAX
            self._skip(size + block_tail)
            if stored:
                self.content += size
            else:
                content = size * LZ4_RATIO_MAX
                self.content += content if content < block_max else block_max

    def _zstd_frame(self) -> None:
        flags = self._number(1)
        is_single = (flags & 0x20) != 0
        block_max: i64 = ZSTD_BLOCK_BYTES_MAX
        if not is_single:
            window = self._number(1)
            exponent = (window >> 3) + 10
            if exponent < 17:
                block_max = (i64(1) << exponent) // 8 * (8 + (window & 7))
                if block_max > ZSTD_BLOCK_BYTES_MAX:
                    block_max = ZSTD_BLOCK_BYTES_MAX
        dictionary = flags & 3
        self._skip(4 if dictionary == 3 else dictionary)
        stated = self._zstd_content_bytes(flags >> 6, is_single)
        before = self.content
        is_last = False
        while not is_last:
            if self.blocks > self.blocks_max:
                return
            self.blocks += 1
            block = self._number(3)
            is_last = (block & 1) != 0
            kind = (block >> 1) & 3
            size = block >> 3
            # A run-length block stores only the byte that it repeats.
            self._skip(1 if kind == 1 else size)
            # Raw and run-length blocks declare their content size; the decoder rejects a size above the maximum.
            self.content += size if kind < 2 and size < block_max else block_max
        if stated >= 0 and stated < self.content - before:
            self.content = before + stated
        self._skip(4 if flags & 0x04 else 0)

    def _zstd_content_bytes(self, size_flag: i64, is_single: bool) -> i64:
        """The declared content size of the frame, -1 if none. The decoder rejects a frame whose size differs."""
        if size_flag == 0:
            return self._number(1) if is_single else -1
        if size_flag == 1:
            return self._number(2) + 256
        low = self._number(4)
        if size_flag == 3:
            high = self._number(4)
            if high > INT32_MAX:
                return -1
            return low | high << 32
        return low


def _decompress_frames(codec: int, data: bytes, surveyed: Survey, max_bytes: int) -> bytes:
    import cramjam

    size: int = surveyed.bytes_max
    if size > max_bytes:
        size = max_bytes
    content = _Content(size)
    try:
        if codec == CODEC_LZ4:
            written = cramjam.lz4.decompress_into(data, content.view)
        else:
            written = cramjam.zstd.decompress_into(data, content.view)
    except cramjam.DecompressionError as error:
        # The library reports "buffer full" and "bad data" with the same exception class. Content larger than the
        # surveyed bound is invalid at any limit.
        text = str(error)
        if "whole buffer" in text and surveyed.bytes_max > max_bytes:
            raise DecompressedTooLarge(f"more than {max_bytes} bytes") from None
        raise DecompressionError(f"{CODEC_NAMES[codec]}: {text}") from None
    return content.take(written)
