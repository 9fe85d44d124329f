"""A blocking connection with one request at a time, for health checks and for the test fixtures."""

from __future__ import annotations

import socket
import time
from typing import Final, TypeVar, cast, final

from kcoord.protocol import api_versions, apis
from kcoord.server.settings.listeners import split_address
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, DecodeError, Reader, write_i16_be, write_i32_be, write_string

M = TypeVar("M", bound=Message)

ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
CLIENT_ID: Final = "kcoord-probe"
PING_VERSION: Final = 0


class ProbeError(Exception):
    """The server did not respond, or the response is invalid."""


@final
class Probe:
    """A connection to a server. Every failure is a ProbeError.

    `timeout_s` limits connecting, and each request with its response. After a ProbeError the connection is unusable.
    """

    def __init__(self, bootstrap: str, timeout_s: float = 10.0) -> None:
        _, host, port = split_address(bootstrap)
        self._correlation_id = 0
        self.timeout_s = timeout_s
        self._deadline_s = 0.0
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise ProbeError(f"cannot connect: {error.strerror or error}") from None

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def ping(self) -> int:
        """Send ApiVersions. Returns the number of APIs."""
        reader = self._exchange(api_versions.API_KEY, PING_VERSION, False, b"")
        try:
            answer = api_versions.decode_api_versions_response(reader, PING_VERSION)
        except DecodeError as error:
            raise ProbeError(f"the response is not a Kafka response: {error}") from None
        if answer.error_code:
            raise ProbeError(f"the response has error code {answer.error_code}")
        return len(answer.api_keys)

    def ask(self, api_key: int, version: int, request: Message, answer_type: type[M]) -> M:
        """Send a request and return its response."""
        writer = BytesWriter()
        apis.encode_request(writer, api_key, request, version)
        flexible = version >= apis.APIS[api_key].flexible_version
        reader = self._exchange(api_key, version, flexible, writer.getvalue())
        try:
            if apis.APIS[api_key].response_header_version(version) == 1:
                reader.skip_tags()
            answer = apis.decode_response(api_key, reader, version)
        except DecodeError as error:
            raise ProbeError(f"the response cannot be decoded: {error}") from None
        return cast(M, answer)

    def _exchange(self, api_key: int, version: int, flexible: bool, body: bytes) -> Reader:
        self._correlation_id += 1
        writer = BytesWriter()
        write_i16_be(writer, api_key)
        write_i16_be(writer, version)
        write_i32_be(writer, self._correlation_id)
        write_string(writer, CLIENT_ID)
        head = writer.getvalue() + (b"\0" if flexible else b"")
        size = len(head) + len(body)
        self._deadline_s = time.monotonic() + self.timeout_s
        try:
            self._limit_wait()
            self._socket.sendall(size.to_bytes(4, "big") + head + body)
            size = int.from_bytes(self._receive(4), "big")
            if not 4 <= size <= ANSWER_BYTES_MAX:
                raise ProbeError("the response is not a Kafka response")
            frame = self._receive(size)
        except OSError as error:
            raise ProbeError(str(error) or type(error).__name__) from None
        if int.from_bytes(frame[:4], "big") != self._correlation_id:
            raise ProbeError("the response is not a Kafka response")
        return Reader(frame, 4)

    def _receive(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            self._limit_wait()
            part = self._socket.recv(min(size, 1 << 20))
            if not part:
                raise ProbeError("the connection was closed without a response")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _limit_wait(self) -> None:
        """Let the next call wait until the deadline of the request: a slow peer may send a byte at a time."""
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left_s)
