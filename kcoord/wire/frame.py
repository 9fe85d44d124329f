"""Splits a byte stream into request frames.

A frame is a 4-byte size followed by that many bytes. The first six bytes hold the size and the API key. The size is
checked against the limit of this API before anything is buffered. A frame is copied once, out of the bytes that it came
with. The chunks of one that comes in several are kept without the size field, and joined when the last one is there.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.wire.primitives import i64, read_i16_be, read_i32_be

SIZE_BYTES: Final = 4
# The size field and the API key, which selects the limit.
HEAD_BYTES: Final = 6
# api key, api version, correlation id, length of the client id
REQUEST_BYTES_MIN: Final = 10
# The keys of Kafka's APIs are smaller.
COMMON_KEYS: Final = 128
_HTTP_METHODS: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"CONN", b"PATC", b"PRI ")


class FrameError(Exception):
    """The bytes are not a Kafka request, or the request is too large. The connection must be closed."""


@final
class FrameTooLarge(FrameError):
    """A Kafka request that is larger than the limit of its API."""


@final
class FrameLimits:
    """The largest frame of each API key, in bytes without the size field. Unlisted keys are rejected."""

    def __init__(self, bytes_max: dict[int, int]) -> None:
        self.bytes_max = bytes_max
        # The same as a list, which is faster, for the keys of Kafka's APIs; -1 for unlisted ones.
        self.by_key = [bytes_max.get(key, -1) for key in range(COMMON_KEYS)]

    def limit(self, api_key: i64) -> int:
        """The largest frame of this API; -1 if it is not listed."""
        if 0 <= api_key < COMMON_KEYS:
            return self.by_key[api_key]
        return self.bytes_max.get(int(api_key), -1)


@final
class FrameSplitter:
    """Turns the chunks of a stream into frames without their size field."""

    def __init__(self, limits: FrameLimits) -> None:
        self.limits = limits
        # Once the size of a frame is known, its chunks exclude the size field; `buffered` still counts it.
        self.chunks: list[bytes] = []
        self.buffered: i64 = 0
        # The number of buffered bytes at which the next parsing step is possible.
        self.wanted: i64 = 0

    def pending_bytes(self) -> int:
        """Buffered bytes of the incomplete frame."""
        return self.buffered

    def missing_bytes(self) -> int:
        """Bytes missing to the end of the incomplete frame, or to its size; 0 if no frame has begun."""
        return self.wanted - self.buffered if self.buffered > 0 else 0

    def frame_bytes(self, data: bytes, pos: i64) -> i64:
        """How many bytes from `pos` on belong to the frame that they continue or begin; 0 if that is unknown.

        Nothing is checked yet, and fewer bytes may be there.
        """
        if self.buffered > 0:
            return self.wanted - self.buffered
        if len(data) - pos < HEAD_BYTES:
            return 0
        size: i64 = i64(read_i32_be(data, pos))
        return size + SIZE_BYTES

    def feed(self, data: bytes, frames: list[bytes], pos: i64 = 0, end: i64 = -1) -> None:
        """Append every frame that the bytes from `pos` to `end` complete to `frames`; -1: to the end of `data`.

        After a FrameError the splitter must not be used.
        """
        if end < 0:
            end = len(data)
        buf = data
        if self.buffered > 0:
            missing: i64 = self.wanted - self.buffered
            if end - pos < missing:
                self._keep(data, pos, end)
                return
            if self.wanted > HEAD_BYTES:
                frames.append(b"".join([*self.chunks, memoryview(data)[pos : pos + missing]]))
                pos += missing
            else:
                buf = b"".join([*self.chunks, data[pos:end]])
                pos = 0
                end = len(buf)
            self.chunks.clear()
            self.buffered = 0
        wanted: i64 = HEAD_BYTES
        while end - pos >= HEAD_BYTES:
            size: i64 = i64(read_i32_be(buf, pos))
            if size < REQUEST_BYTES_MIN:
                raise FrameError(f"frame of {size} bytes")
            api_key = read_i16_be(buf, pos + 4)
            limit = self.limits.limit(i64(api_key))
            if limit < 0 or size > limit:
                self._refuse(buf[pos : pos + HEAD_BYTES], size, int(api_key), limit)
            wanted = size + SIZE_BYTES
            if end - pos < wanted:
                break
            frames.append(buf[pos + SIZE_BYTES : pos + wanted])
            pos += wanted
            wanted = HEAD_BYTES
        if pos < end:
            self.wanted = wanted
            if wanted > HEAD_BYTES:
                self.buffered = SIZE_BYTES
                pos += SIZE_BYTES
            self._keep(buf, pos, end)

    def _keep(self, data: bytes, pos: i64, end: i64) -> None:
        """Buffer the bytes from `pos` to `end`."""
        self.buffered += end - pos
        # Compiled, a slice of everything would be a copy.
        self.chunks.append(data if pos == 0 and end == len(data) else data[pos:end])

    def _refuse(self, head: bytes, size: int, api_key: int, limit: int) -> None:
        if head[:4] in _HTTP_METHODS:
            raise FrameError("an HTTP request; this port speaks the Kafka protocol")
        if head[0] == 0x16 and head[1] == 3:
            raise FrameError("a TLS handshake; this listener is plaintext")
        if limit < 0:
            raise FrameError(f"unknown api key {api_key}")
        raise FrameTooLarge(f"frame of {size} bytes for api key {api_key}, at most {limit} allowed")
