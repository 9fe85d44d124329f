"""A connection to one broker: requests in versions that both sides know, answers in order, a deadline for each.

Requests are written as they come and may be answered while others wait. Kafka answers in order, so a request that is
answered out of order, a frame larger than the limit or bytes that cannot be decoded end the connection, and so does a
request without an answer at its deadline: nobody knows then which answer would come next.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections import deque
from dataclasses import dataclass
from typing import Final, TypeVar, cast, final

from kcoord import __version__
from kcoord.client.errors import (
    ConnectionLost,
    InvalidConfiguration,
    KafkaError,
    RequestTimedOut,
    UnsupportedVersion,
    check,
)
from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kcoord.protocol.errors import UNSUPPORTED_VERSION
from kcoord.wire.message import Message
from kcoord.wire.primitives import (
    BytesWriter,
    DecodeError,
    EncodeError,
    Reader,
    write_i16_be,
    write_i32_be,
    write_nullable_string,
)

M = TypeVar("M", bound=Message)

SOFTWARE_NAME: Final = "kcoord"
# Brokers refuse the plus sign of a version with local changes (KIP-511).
SOFTWARE_VERSION: Final = __version__.replace("+", ".")
# The newest version of ApiVersions that is asked for, and the one that every broker answers.
API_VERSIONS_VERSION: Final = 3
API_VERSIONS_FALLBACK: Final = 0
# Answers are larger than this only if a broker is told to send more: a Fetch has 50 MiB at most by default.
ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
# What a connection can receive before it knows the size of an answer, and the largest space that it keeps for others.
SPACE_BYTES: Final = 64 * 1024
KEPT_BYTES: Final = 8 * 1024 * 1024
CORRELATION_ID_MAX: Final = 2**31 - 1
VERSION_LIMIT: Final = 32767
# How much of a wrong text a message shows, in characters.
SHOWN_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """`request_timeout_s` limits connecting, and each request that names no limit of its own."""

    client_id: str = "kcoord"
    request_timeout_s: float = 30.0
    ssl_context: ssl.SSLContext | None = None
    answer_bytes_max: int = ANSWER_BYTES_MAX


def reason_of(error: OSError) -> str:
    """Why a connection could not be made. asyncio names the address instead of what the system has reported."""
    if isinstance(error, (ssl.SSLError, socket.gaierror)) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno)


@final
class _Waiting:
    """A request without its answer."""

    __slots__ = ("api_key", "correlation_id", "future", "version")

    def __init__(self, correlation_id: int, api_key: int, version: int, future: asyncio.Future[Message]) -> None:
        self.correlation_id = correlation_id
        self.api_key = api_key
        self.version = version
        self.future = future


@final
class Connection(asyncio.BufferedProtocol):
    """Use `Connection.open`. Every failure is a KafkaError."""

    def __init__(self, address: str, options: ConnectionOptions) -> None:
        self.address = address
        self.options = options
        # (least, newest) version of each API that the broker has.
        self.versions: dict[int, tuple[int, int]] = {}
        # The levels of the cluster's features (KIP-584), none from brokers before 2.7.
        self.features: dict[str, int] = {}
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._in_flight: deque[_Waiting] = deque()
        self._correlation_id = 0
        # What was received lies at the start of the space; an answer larger than that gets a space of its size.
        self._space = memoryview(bytearray(SPACE_BYTES))
        self._filled = 0
        self._can_write: asyncio.Future[None] | None = None
        self._closed = self._loop.create_future()
        self._error: KafkaError | None = None

    @classmethod
    async def open(cls, host: str, port: int, options: ConnectionOptions) -> Connection:
        """Connect, and ask for the versions of the broker.

        Raises ConnectionLost or RequestTimedOut, and InvalidConfiguration for a host that cannot be one.
        """
        connection = cls(f"{host}:{port}", options)
        try:
            async with asyncio.timeout(options.request_timeout_s):
                await connection._loop.create_connection(lambda: connection, host, port, ssl=options.ssl_context)
                await connection._negotiate()
        except TimeoutError:
            connection.abort(ConnectionLost(f"{connection.address}: not connected in {options.request_timeout_s:g} s"))
            raise ConnectionLost(str(connection._error)) from None
        except OSError as error:
            raise ConnectionLost(f"{connection.address}: {reason_of(error)}") from error
        except BaseException as error:
            connection.abort(ConnectionLost(f"{connection.address}: given up"))
            if isinstance(error, ValueError) and not isinstance(error, KafkaError):
                # Such as an empty label, which the encoding of host names refuses.
                raise InvalidConfiguration(f"{host!r} is not the name of a host: {error}") from None
            raise
        return connection

    async def _negotiate(self) -> None:
        """Learn the versions. An old broker refuses a new ApiVersions, and answers in version 0."""
        request = ApiVersionsRequest(SOFTWARE_NAME, SOFTWARE_VERSION)
        answer = await self._exchange(apis.API_VERSIONS, API_VERSIONS_VERSION, request, ApiVersionsResponse)
        if answer.error_code == UNSUPPORTED_VERSION:
            request = ApiVersionsRequest()
            answer = await self._exchange(apis.API_VERSIONS, API_VERSIONS_FALLBACK, request, ApiVersionsResponse)
        check(answer.error_code, self.address)
        self.versions = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
        self.features = {one.name: one.max_version_level for one in answer.finalized_features}

    # --- requests

    @property
    def is_closed(self) -> bool:
        return self._closed.done()

    @property
    def in_flight(self) -> int:
        """The number of requests that wait for their answers."""
        return len(self._in_flight)

    def has(self, api_key: int, version: int = 0) -> bool:
        """Whether both sides know this version of an API."""
        least, most = self.versions.get(api_key, (0, -1))
        own = apis.APIS[api_key]
        return max(least, own.min_version) <= version <= min(most, own.max_version)

    def version(self, api_key: int, version_min: int = 0, version_max: int = VERSION_LIMIT) -> int:
        """The newest version of an API within the limits that both sides know. Raises UnsupportedVersion."""
        own = apis.APIS[api_key]
        least, most = self.versions.get(api_key, (0, -1))
        version = min(own.max_version, most, version_max)
        if version < max(own.min_version, least, version_min):
            raise UnsupportedVersion(f"{self.address} does not have {own.name} in a version that this call can use")
        return version

    async def ask(
        self, api_key: int, version: int, request: Message, answer_type: type[M], timeout_s: float | None = None
    ) -> M:
        """Send a request and return its answer.

        Raises RequestTimedOut after `timeout_s` seconds, which closes the connection, or ConnectionLost.
        """
        return cast(M, await self.begin(api_key, version, request, timeout_s))

    def begin(
        self, api_key: int, version: int, request: Message, timeout_s: float | None = None
    ) -> asyncio.Future[Message]:
        """Write a request at once; the future gets its answer, or the errors of `ask`."""
        limit_s = self.options.request_timeout_s if timeout_s is None else timeout_s
        future = self.submit(api_key, version, request)
        handle = self._loop.call_later(limit_s, self._time_out, future, api_key, limit_s)
        future.add_done_callback(lambda _: handle.cancel())
        return future

    def submit(self, api_key: int, version: int, request: Message) -> asyncio.Future[Message]:
        """Write a request; the future gets its answer. The caller limits the wait."""
        future: asyncio.Future[Message] = self._loop.create_future()
        if self.is_closed:
            future.set_exception(self._lost())
            return future
        data = self._frame(api_key, version, request)
        self._in_flight.append(_Waiting(self._correlation_id, api_key, version, future))
        self._write(data)
        return future

    def send(self, api_key: int, version: int, request: Message) -> None:
        """Write a request that gets no answer: Produce with acks=0. Raises ConnectionLost."""
        if self.is_closed:
            raise self._lost()
        self._write(self._frame(api_key, version, request))

    async def drain(self) -> None:
        """Wait until the socket takes more. Raises ConnectionLost."""
        if self.is_closed:
            raise self._lost()
        if self._can_write is not None:
            await asyncio.wait((self._can_write, self._closed), return_when=asyncio.FIRST_COMPLETED)
            if self.is_closed:
                raise self._lost()

    def _frame(self, api_key: int, version: int, request: Message) -> bytes:
        """Raises InvalidConfiguration for a value that the version cannot carry, such as a name that is too long."""
        correlation_id = 0 if self._correlation_id >= CORRELATION_ID_MAX else self._correlation_id + 1
        writer = BytesWriter()
        write_i32_be(writer, 0)
        write_i16_be(writer, api_key)
        write_i16_be(writer, version)
        write_i32_be(writer, correlation_id)
        try:
            write_nullable_string(writer, self.options.client_id)
            if apis.APIS[api_key].request_header_version(version) == 2:
                writer.append(0)
            apis.encode_request(writer, api_key, request, version)
        except UnicodeEncodeError as error:
            raise InvalidConfiguration(f"{_shortened(error.object)} cannot be sent: it is not UTF-8") from None
        except (EncodeError, ValueError, OverflowError, struct.error) as error:
            raise InvalidConfiguration(f"{apis.APIS[api_key].name} cannot be sent: {error}") from None
        self._correlation_id = correlation_id
        data = writer.getvalue()
        return (len(data) - 4).to_bytes(4, "big") + data[4:]

    async def _exchange(self, api_key: int, version: int, request: Message, answer_type: type[M]) -> M:
        return cast(M, await self.submit(api_key, version, request))

    def _time_out(self, future: asyncio.Future[Message], api_key: int, limit_s: float) -> None:
        if not future.done():
            name = apis.APIS[api_key].name
            error = RequestTimedOut(f"{self.address}: no answer to {name} within {limit_s:g} s")
            future.set_exception(error)
            self.abort(ConnectionLost(str(error)))

    # --- the end

    async def close(self) -> None:
        """Close the connection. Requests without an answer fail with ConnectionLost."""
        self.abort(ConnectionLost(f"{self.address}: the client closed the connection"))
        await asyncio.sleep(0)

    def abort(self, error: KafkaError) -> None:
        """Close the connection at once, for a reason."""
        if self._error is None:
            self._error = error
        transport = self._transport
        if transport is not None:
            transport.abort()
        self._end()

    def _lost(self) -> KafkaError:
        return ConnectionLost(str(self._error)) if self._error is not None else ConnectionLost(self.address)

    def _end(self) -> None:
        if self._closed.done():
            return
        self._closed.set_result(None)
        waiting, self._in_flight = self._in_flight, deque()
        for one in waiting:
            if not one.future.done():
                one.future.set_exception(self._lost())
                # Whoever asked may be gone.
                one.future.exception()
        self._filled = 0

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._error is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._error is None:
            reason = f"{exc}" if exc is not None else "the broker closed the connection"
            self._error = ConnectionLost(f"{self.address}: {reason}")
        self.resume_writing()
        self._end()

    def pause_writing(self) -> None:
        if self._can_write is None:
            self._can_write = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._can_write is not None:
            self._can_write.set_result(None)
            self._can_write = None

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            raise self._lost()
        transport.write(data)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the transport writes what it receives next. It is never empty."""
        return self._space[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the answers that are complete now."""
        if self.is_closed:
            return
        space = self._space
        filled = self._filled + nbytes
        position = size = 0
        while filled - position >= 4:
            size = int.from_bytes(space[position : position + 4], "big", signed=True)
            if not 4 <= size <= self.options.answer_bytes_max:
                self.abort(ConnectionLost(f"{self.address}: an answer of {size} bytes"))
                return
            if filled - position - 4 < size:
                break
            self._answered(bytes(space[position + 4 : position + 4 + size]))
            if self.is_closed:
                return
            position += 4 + size
            size = 0
        self._make_room(position, filled - position, 4 + size)

    def _make_room(self, position: int, count: int, wanted: int) -> None:
        """Have the `count` bytes from `position` on at the start of a space that takes `wanted` bytes."""
        space = self._space
        self._filled = count
        if wanted > len(space) or (wanted <= SPACE_BYTES and len(space) > KEPT_BYTES):
            self._space = memoryview(bytearray(max(wanted, SPACE_BYTES)))
            self._space[:count] = space[position : position + count]
        elif position and count:
            # Through a copy, since the two parts may overlap.
            space[:count] = bytes(space[position : position + count])

    def _answered(self, frame: bytes) -> None:
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if not self._in_flight or self._in_flight[0].correlation_id != correlation_id:
            self.abort(ConnectionLost(f"{self.address}: an answer that belongs to no request"))
            return
        waiting = self._in_flight.popleft()
        version = waiting.version
        reader = Reader(frame, 4)
        try:
            if waiting.api_key == apis.API_VERSIONS and frame[4:6] == UNSUPPORTED_VERSION.to_bytes(2, "big"):
                # The broker does not know the version, and answers in the first one (KIP-511).
                version = API_VERSIONS_FALLBACK
            if apis.APIS[waiting.api_key].response_header_version(version) == 1:
                reader.skip_tags()
            answer = apis.decode_response(waiting.api_key, reader, version)
        except DecodeError as error:
            failure = ConnectionLost(f"{self.address}: {apis.APIS[waiting.api_key].name}: {error}")
            if not waiting.future.done():
                waiting.future.set_exception(failure)
            self.abort(failure)
            return
        if not waiting.future.done():
            waiting.future.set_result(answer)


def _shortened(text: str) -> str:
    """A text for a message."""
    return repr(text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "...")
