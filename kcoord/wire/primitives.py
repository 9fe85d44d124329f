"""The primitive types of the Kafka protocol, read from and written to plain bytes.

This is the only module that uses librt (mypyc's runtime library), so its minimum version and its quirks are handled in
one place. The module runs both interpreted and compiled. Compiled fixed-width integers wrap where Python's integers
grow. So every length is compared with the remaining bytes before it is added to a position.

Source: the "Protocol Primitive Types" section of Kafka's protocol guide; KIP-482 for compact forms and tags.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import (
    BytesWriter,
    read_f64_be,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_f64_be,
    write_i16_be,
    write_i32_be,
    write_i32_le,
    write_i64_be,
    write_i64_le,
)

from kcoord.wire.file_range import TOKEN_BYTES, FileRange, FileRanges
from kcoord.wire.native_ints import i32, i64, u8

__all__ = [
    "ZERO_UUID",
    "BytesWriter",
    "DecodeError",
    "EncodeError",
    "Reader",
    "i32",
    "i64",
    "read_f64_be",
    "read_i16_be",
    "read_i32_be",
    "read_i64_be",
    "u8",
    "write_f64_be",
    "write_i16_be",
    "write_i32_be",
    "write_i32_le",
    "write_i64_be",
    "write_i64_le",
]

ZERO_UUID: Final = b"\x00" * 16

# Kafka encodes at most a handful of tagged fields per structure. The limit bounds the memory and time of a hostile one.
TAGGED_FIELDS_MAX: Final = 64
# The elements of all arrays of one message together. The limit for client requests is lower (request.elements.max).
ARRAY_ELEMENTS_MAX: Final = 1_000_000
STRING_BYTES_MAX: Final = 32767


class DecodeError(Exception):
    """The bytes do not match the schema of the message. The text names the first mismatch."""


class TooManyElements(DecodeError):
    """The arrays of a message have more elements than the reader accepts."""


class EncodeError(Exception):
    """The message cannot be encoded in this version: a field is out of range or not part of the version."""


@final
class Reader:
    """Reads protocol primitives from `buf`, starting at `pos` and never past the end of `buf`.

    Raises DecodeError on truncated or malformed input. Every length is compared with the remaining bytes before use,
    and an array that the remaining bytes cannot fill is rejected before anything is allocated.
    """

    def __init__(self, buf: bytes, pos: int = 0, elements_max: int = ARRAY_ELEMENTS_MAX) -> None:
        self.buf = buf
        self.pos: i64 = pos
        self.end: i64 = len(buf)
        # How many more elements all arrays together may have.
        self.elements_left: i64 = elements_max

    def begin(self, buf: bytes, elements_max: int) -> None:
        """Read another message, from its beginning."""
        self.buf = buf
        self.pos = 0
        self.end = len(buf)
        self.elements_left = elements_max

    def take(self, size: i64) -> i64:
        """Skip `size` bytes and return the position where they start."""
        pos = self.pos
        if size < 0 or size > self.end - pos:
            raise DecodeError(f"{size} bytes expected, {self.end - pos} left")
        self.pos = pos + size
        return pos

    def expect_end(self) -> None:
        """Raise DecodeError unless everything was read: trailing bytes mean that the schema does not fit."""
        if self.pos != self.end:
            raise DecodeError(f"{self.end - self.pos} trailing bytes")

    def int8(self) -> int:
        x: i64 = i64(self.buf[self.take(1)])
        return x - 256 if x > 127 else x

    def int16(self) -> int:
        return read_i16_be(self.buf, self.take(2))

    def uint16(self) -> int:
        x: i64 = i64(read_i16_be(self.buf, self.take(2)))
        return x & 0xFFFF

    def int32(self) -> int:
        return read_i32_be(self.buf, self.take(4))

    def uint32(self) -> int:
        x: i64 = i64(read_i32_be(self.buf, self.take(4)))
        return x & 0xFFFFFFFF

    def int64(self) -> int:
        return read_i64_be(self.buf, self.take(8))

    def float64(self) -> float:
        return read_f64_be(self.buf, self.take(8))

    def boolean(self) -> bool:
        return self.buf[self.take(1)] != 0

    def uuid(self) -> bytes:
        pos = self.take(16)
        return self.buf[pos : pos + 16]

    def uvarint(self) -> i64:
        """Unsigned varint of at most 5 bytes, as used by compact lengths and tags."""
        buf = self.buf
        pos = self.pos
        end = self.end
        if pos >= end:
            raise DecodeError("varint expected, 0 bytes left")
        x: i64 = i64(buf[pos])
        if x < 128:
            self.pos = pos + 1
            return x
        result: i64 = 0
        shift: i64 = 0
        while True:
            if pos >= end:
                raise DecodeError("truncated varint")
            x = i64(buf[pos])
            pos += 1
            if shift == 28 and x > 15:
                raise DecodeError("varint longer than 32 bits")
            result |= (x & 127) << shift
            if x < 128:
                break
            shift += 7
        self.pos = pos
        return result

    def varint(self) -> i64:
        """Signed (zigzag) varint of at most 32 bits, as used inside records."""
        x = self.uvarint()
        return (x >> 1) ^ -(x & 1)

    def varlong(self) -> int:
        """Signed (zigzag) varint of at most 64 bits, as used inside records."""
        buf = self.buf
        pos = self.pos
        end = self.end
        result: i64 = 0
        shift: i64 = 0
        while True:
            if pos >= end:
                raise DecodeError("truncated varlong")
            x: i64 = i64(buf[pos])
            pos += 1
            if shift == 63:
                if x > 1:
                    raise DecodeError("varlong longer than 64 bits")
                self.pos = pos
                # The top bit does not fit into a compiled i64, so this step uses Python's unbounded integers.
                full = int(result) | (int(x) << 63)
                return (full >> 1) ^ -(full & 1)
            result |= (x & 127) << shift
            if x < 128:
                break
            shift += 7
        self.pos = pos
        return (result >> 1) ^ -(result & 1)

    def _text(self, size: i64) -> str:
        if size > STRING_BYTES_MAX:
            raise DecodeError(f"string of {size} bytes")
        pos = self.take(size)
        try:
            return self.buf[pos : pos + size].decode("utf-8")
        except UnicodeDecodeError:
            raise DecodeError("string is not UTF-8") from None

    def string(self) -> str:
        size: i64 = i64(read_i16_be(self.buf, self.take(2)))
        if size < 0:
            raise DecodeError("null where a string is required")
        return self._text(size)

    def nullable_string(self) -> str | None:
        size: i64 = i64(read_i16_be(self.buf, self.take(2)))
        if size < 0:
            return None
        return self._text(size)

    def compact_string(self) -> str:
        size = self.uvarint() - 1
        if size < 0:
            raise DecodeError("null where a string is required")
        return self._text(size)

    def compact_nullable_string(self) -> str | None:
        size = self.uvarint() - 1
        if size < 0:
            return None
        return self._text(size)

    def _slice(self, size: i64) -> bytes:
        pos = self.take(size)
        return self.buf[pos : pos + size]

    def bytes_(self) -> bytes:
        size: i64 = i64(read_i32_be(self.buf, self.take(4)))
        if size < 0:
            raise DecodeError("null where bytes are required")
        return self._slice(size)

    def nullable_bytes(self) -> bytes | None:
        size: i64 = i64(read_i32_be(self.buf, self.take(4)))
        if size < 0:
            return None
        return self._slice(size)

    def compact_bytes(self) -> bytes:
        size = self.uvarint() - 1
        if size < 0:
            raise DecodeError("null where bytes are required")
        return self._slice(size)

    def compact_nullable_bytes(self) -> bytes | None:
        size = self.uvarint() - 1
        if size < 0:
            return None
        return self._slice(size)

    def _count(self, count: i64, min_size: i64) -> i64:
        # No element of the protocol has zero size, so the remaining bytes bound every array.
        if min_size < 1:
            min_size = 1
        if count > (self.end - self.pos) // min_size:
            raise DecodeError(f"array of {count} elements in {self.end - self.pos} bytes")
        self.elements_left -= count
        if self.elements_left < 0:
            left = self.elements_left + count
            raise TooManyElements(f"array of {count} elements, this message may have {left} more")
        return count

    def array_len(self, min_size: i64) -> i64:
        """Element count of a non-null array whose elements take at least `min_size` bytes."""
        count: i64 = i64(read_i32_be(self.buf, self.take(4)))
        if count < 0:
            raise DecodeError("null where an array is required")
        return self._count(count, min_size)

    def nullable_array_len(self, min_size: i64) -> i64:
        """Like array_len; -1 means null."""
        count: i64 = i64(read_i32_be(self.buf, self.take(4)))
        if count < 0:
            return -1
        return self._count(count, min_size)

    def compact_array_len(self, min_size: i64) -> i64:
        count = self.uvarint() - 1
        if count < 0:
            raise DecodeError("null where an array is required")
        return self._count(count, min_size)

    def compact_nullable_array_len(self, min_size: i64) -> i64:
        """Like compact_array_len; -1 means null."""
        count = self.uvarint() - 1
        if count < 0:
            return -1
        return self._count(count, min_size)

    def tag_count(self) -> i64:
        """How many tagged fields follow (KIP-482)."""
        count = self.uvarint()
        if count > TAGGED_FIELDS_MAX:
            raise DecodeError(f"{count} tagged fields in one structure")
        return count

    def next_tag(self, last: i64) -> i64:
        """The next tag, which must be greater than `last` (-1 before the first)."""
        tag = self.uvarint()
        if tag <= last:
            raise DecodeError("tags are not in ascending order")
        return tag

    def tag_end(self) -> i64:
        """Read a tagged field's size and return the position where the field ends."""
        size = self.uvarint()
        if size > self.end - self.pos:
            raise DecodeError(f"tagged field of {size} bytes, {self.end - self.pos} left")
        return self.pos + size

    def expect_pos(self, pos: i64) -> None:
        """Raise DecodeError unless a known tagged field was exactly as long as its size said."""
        if self.pos != pos:
            raise DecodeError("tagged field does not match its size")

    def skip_tags(self) -> None:
        """Skip and discard unknown tagged fields."""
        if self.pos < self.end and self.buf[self.pos] == 0:
            self.pos += 1
            return
        count = self.tag_count()
        last: i64 = -1
        while count > 0:
            last = self.next_tag(last)
            self.pos = self.tag_end()
            count -= 1


def write_int8(w: BytesWriter, value: int) -> None:
    if value < -128 or value > 127:
        raise EncodeError(f"{value} is not an int8")
    w.append(u8(value & 0xFF))


def write_int16(w: BytesWriter, value: int) -> None:
    if value < -0x8000 or value > 0x7FFF:
        raise EncodeError(f"{value} is not an int16")
    write_i16_be(w, value)


def write_uint16(w: BytesWriter, value: int) -> None:
    if value < 0 or value > 0xFFFF:
        raise EncodeError(f"{value} is not a uint16")
    write_i16_be(w, value - 0x10000 if value > 0x7FFF else value)


def write_int32(w: BytesWriter, value: int) -> None:
    if value < -0x80000000 or value > 0x7FFFFFFF:
        raise EncodeError(f"{value} is not an int32")
    write_i32_be(w, i32(value))


def write_uint32(w: BytesWriter, value: int) -> None:
    if value < 0 or value > 0xFFFFFFFF:
        raise EncodeError(f"{value} is not a uint32")
    write_i32_be(w, i32(value - 0x100000000 if value > 0x7FFFFFFF else value))


def write_int64(w: BytesWriter, value: int) -> None:
    if value < -0x8000000000000000 or value > 0x7FFFFFFFFFFFFFFF:
        raise EncodeError(f"{value} is not an int64")
    write_i64_be(w, value)


def write_float64(w: BytesWriter, value: float) -> None:
    write_f64_be(w, value)


def write_uuid(w: BytesWriter, value: bytes) -> None:
    if len(value) != 16:
        raise EncodeError("a uuid has 16 bytes")
    w.write(value)


def write_uvarint(w: BytesWriter, value: i64) -> None:
    """Unsigned varint of a value in 0 … 2^63 - 1."""
    if value < 0:
        raise EncodeError(f"{value} is negative")
    while value >= 128:
        w.append(u8((value & 127) | 128))
        value >>= 7
    w.append(u8(value))


def write_varint(w: BytesWriter, value: i64) -> None:
    """Signed (zigzag) varint of a value in -2^62 … 2^62 - 1."""
    write_uvarint(w, (value << 1) ^ (value >> 63))


def uvarint_size(value: i64) -> i64:
    size: i64 = 1
    while value >= 128:
        value >>= 7
        size += 1
    return size


def varint_size(value: i64) -> i64:
    return uvarint_size((value << 1) ^ (value >> 63))


def write_string(w: BytesWriter, value: str) -> None:
    data = value.encode("utf-8")
    size = len(data)
    if size > STRING_BYTES_MAX:
        raise EncodeError(f"string of {size} bytes")
    write_i16_be(w, size)
    w.write(data)


def write_nullable_string(w: BytesWriter, value: str | None) -> None:
    if value is None:
        write_i16_be(w, -1)
    else:
        write_string(w, value)


def write_compact_string(w: BytesWriter, value: str) -> None:
    data = value.encode("utf-8")
    size: i64 = len(data)
    if size > STRING_BYTES_MAX:
        raise EncodeError(f"string of {size} bytes")
    write_uvarint(w, size + 1)
    w.write(data)


def write_compact_nullable_string(w: BytesWriter, value: str | None) -> None:
    if value is None:
        w.append(0)
    else:
        write_compact_string(w, value)


def write_bytes(w: BytesWriter, value: bytes) -> None:
    write_int32(w, len(value))
    w.write(value)


def write_nullable_bytes(w: BytesWriter, value: bytes | None) -> None:
    if value is None:
        write_i32_be(w, -1)
    else:
        write_bytes(w, value)


def write_compact_bytes(w: BytesWriter, value: bytes) -> None:
    size: i64 = len(value)
    write_uvarint(w, size + 1)
    w.write(value)


def write_compact_nullable_bytes(w: BytesWriter, value: bytes | None) -> None:
    if value is None:
        w.append(0)
    else:
        write_compact_bytes(w, value)


# Records of at least this size are spliced in and not copied: the copy would cost more than one more piece.
SPLICE_BYTES_MIN: Final = 4096
# The same limit for strings, which are encoded into separate bytes anyway.
SPLICE_TEXT_BYTES_MIN: Final = 1024


@final
class Splices:
    """Records and strings that belong inside a message but were not copied into it.

    `values[i]` goes after the first `positions[i]` bytes of the writer; `bytes` is the total length of the values.
    `ranges` has the records that are in files, if any. They are read here unless `takes_files`.
    """

    def __init__(self, ranges: FileRanges | None = None, takes_files: bool = False) -> None:
        self.positions: list[int] = []
        self.values: list[bytes | FileRange] = []
        self.bytes = 0
        self.ranges = ranges
        self.takes_files = takes_files

    def add(self, position: int, value: bytes) -> None:
        self.positions.append(position)
        self.values.append(value)
        self.bytes += len(value)

    def range_of(self, value: bytes) -> FileRange | None:
        """The range whose token `value` is."""
        if len(value) != TOKEN_BYTES or self.ranges is None:
            return None
        return self.ranges.by_token.get(value)

    def add_range(self, position: int, value: FileRange) -> None:
        """Add the bytes of a file. Raises OSError."""
        if not self.takes_files:
            self.add(position, value.read())
            return
        self.positions.append(position)
        self.values.append(value)
        self.bytes += value.size

    def cut(self, position: int) -> None:
        """Discard the values that were added after the first `position` bytes of the writer."""
        while self.positions and self.positions[-1] > position:
            self.positions.pop()
            self.bytes -= len(self.values.pop())

    def pieces(self, data: bytes) -> list[bytes | FileRange]:
        """The whole message in pieces; `data` is the content of the writer."""
        found: list[bytes | FileRange] = []
        start = 0
        for i in range(len(self.positions)):
            end = self.positions[i]
            found.append(data[start:end])
            found.append(self.values[i])
            start = end
        if start < len(data):
            found.append(data[start:])
        return found


def write_nullable_records(w: BytesWriter, value: bytes | None, splices: Splices | None) -> None:
    """Like write_nullable_bytes; a large value goes into `splices` unless that is None."""
    if splices is None or value is None or len(value) < SPLICE_BYTES_MIN:
        in_file = None if splices is None or value is None else splices.range_of(value)
        if in_file is None or splices is None:
            write_nullable_bytes(w, value)
        else:
            write_int32(w, in_file.size)
            splices.add_range(len(w), in_file)
        return
    write_int32(w, len(value))
    splices.add(len(w), value)


def write_compact_nullable_records(w: BytesWriter, value: bytes | None, splices: Splices | None) -> None:
    """Like write_compact_nullable_bytes; a large value goes into `splices` unless that is None."""
    size: i64
    if splices is None or value is None or len(value) < SPLICE_BYTES_MIN:
        in_file = None if splices is None or value is None else splices.range_of(value)
        if in_file is None or splices is None:
            write_compact_nullable_bytes(w, value)
        else:
            size = in_file.size
            write_uvarint(w, size + 1)
            splices.add_range(len(w), in_file)
        return
    size = len(value)
    write_uvarint(w, size + 1)
    splices.add(len(w), value)


def write_nullable_text(w: BytesWriter, value: str | None, splices: Splices | None) -> None:
    """Like write_nullable_string; a large value goes into `splices` unless that is None."""
    if splices is None or value is None or len(value) < SPLICE_TEXT_BYTES_MIN:
        write_nullable_string(w, value)
        return
    data = value.encode("utf-8")
    size = len(data)
    if size > STRING_BYTES_MAX:
        raise EncodeError(f"string of {size} bytes")
    write_i16_be(w, size)
    splices.add(len(w), data)


def write_compact_nullable_text(w: BytesWriter, value: str | None, splices: Splices | None) -> None:
    """Like write_compact_nullable_string; a large value goes into `splices` unless that is None."""
    if splices is None or value is None or len(value) < SPLICE_TEXT_BYTES_MIN:
        write_compact_nullable_string(w, value)
        return
    data = value.encode("utf-8")
    size: i64 = len(data)
    if size > STRING_BYTES_MAX:
        raise EncodeError(f"string of {size} bytes")
    write_uvarint(w, size + 1)
    splices.add(len(w), data)


def write_compact_array_len(w: BytesWriter, count: i64) -> None:
    """Compact element count; -1 means null."""
    write_uvarint(w, count + 1)


def patch_int32(w: BytesWriter, pos: i64, value: i64) -> None:
    """Overwrite four bytes written earlier, for example a length that is known only at the end."""
    w[pos] = u8((value >> 24) & 0xFF)
    w[pos + 1] = u8((value >> 16) & 0xFF)
    w[pos + 2] = u8((value >> 8) & 0xFF)
    w[pos + 3] = u8(value & 0xFF)
