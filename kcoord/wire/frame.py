"""Cuts a byte stream into request frames.

A frame is a 4-byte size and that many bytes. The size is checked against the limit of its API before anything is
buffered for it: the first six bytes hold size and API key, and every API has a limit. Chunks of a large frame are
gathered and joined once, without its size field, so that they need not be copied a second time.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.wire.primitives import i64, read_i16_be, read_i32_be

SIZE_BYTES: Final = 4
# The size and the API key, which has a limit of its own.
HEAD_BYTES: Final = 6
# api key, api version, correlation id, length of the client id
REQUEST_BYTES_MIN: Final = 10
_HTTP_METHODS: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"CONN", b"PATC", b"PRI ")


class FrameError(Exception):
    """The bytes are no Kafka request, or a larger one than allowed. The connection cannot go on."""


@final
class FrameLimits:
    """The largest frame by API key, in bytes without the size field. Keys that are not listed are refused."""

    def __init__(self, bytes_max: dict[int, int]) -> None:
        self.bytes_max = bytes_max


@final
class FrameSplitter:
    """Turns chunks of a stream into frames (without their size field)."""

    def __init__(self, limits: FrameLimits) -> None:
        self.limits = limits
        # Of a frame whose size is known they leave out the size field, which `buffered` counts all the same.
        self.chunks: list[bytes] = []
        self.buffered: i64 = 0
        # Bytes that must be there before another look at the buffer is worth it.
        self.wanted: i64 = 0

    def pending_bytes(self) -> int:
        """Bytes of a frame that has begun and is not complete yet."""
        return self.buffered

    def missing_bytes(self) -> int:
        """Bytes that lead to the end of a frame that has begun, or to its size; 0 when none has begun."""
        return self.wanted - self.buffered if self.buffered > 0 else 0

    def feed(self, data: bytes, frames: list[bytes]) -> None:
        """Append every frame that `data` completes to `frames`. Raises FrameError; the splitter is done then."""
        if self.buffered > 0:
            self.chunks.append(data)
            self.buffered += len(data)
            if self.buffered < self.wanted:
                return
            buf = self._end_frame(data, frames) if self.wanted > HEAD_BYTES else b"".join(self.chunks)
            self.chunks.clear()
            self.buffered = 0
        else:
            buf = data
        pos: i64 = 0
        end: i64 = len(buf)
        wanted: i64 = HEAD_BYTES
        while end - pos >= HEAD_BYTES:
            size: i64 = i64(read_i32_be(buf, pos))
            if size < REQUEST_BYTES_MIN:
                raise FrameError(f"frame of {size} bytes")
            api_key = read_i16_be(buf, pos + 4)
            limit = self.limits.bytes_max.get(int(api_key), -1)
            if limit < 0 or size > limit:
                self._refuse(buf[pos : pos + HEAD_BYTES], size, int(api_key), limit)
            wanted = size + SIZE_BYTES
            if end - pos < wanted:
                break
            frames.append(buf[pos + SIZE_BYTES : pos + wanted])
            pos += wanted
            wanted = HEAD_BYTES
        if pos < end:
            self.buffered = end - pos
            self.wanted = wanted
            if wanted > HEAD_BYTES:
                pos += SIZE_BYTES
            self.chunks.append(buf[pos:] if pos > 0 else buf)

    def _end_frame(self, last: bytes, frames: list[bytes]) -> bytes:
        """Add the frame that the gathered chunks complete; what comes after it. `last` is the last chunk."""
        extra: i64 = self.buffered - self.wanted
        if extra == 0:
            frames.append(b"".join(self.chunks))
            return b""
        size: i64 = len(last)
        self.chunks[-1] = last[: size - extra]
        frames.append(b"".join(self.chunks))
        return last[size - extra :]

    def _refuse(self, head: bytes, size: int, api_key: int, limit: int) -> None:
        if head[:4] in _HTTP_METHODS:
            raise FrameError("an HTTP request; this port speaks the Kafka protocol")
        if head[0] == 0x16 and head[1] == 3:
            raise FrameError("a TLS handshake; this listener is plaintext")
        if limit < 0:
            raise FrameError(f"unknown api key {api_key}")
        raise FrameError(f"frame of {size} bytes for api key {api_key}, at most {limit} allowed")
