"""A client inside the server: its requests take the engine's own path, without a socket.

So a test prepares state exactly as a client would, and its list of requests shows only what its clients have sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeVar, cast, final

from kcoord.client.errors import ConnectionLost, RequestTimedOut
from kcoord.engine.engine import Engine
from kcoord.protocol import apis
from kcoord.server.server import Server
from kcoord.testing.waiting import TIMEOUT_S
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, Reader, write_int16, write_int32, write_nullable_string

M = TypeVar("M", bound=Message)

CLIENT_HOST: Final = "127.0.0.1"
CLIENT_ID: Final = "kcoord-testing"
SIZE_BYTES: Final = 4
CORRELATION_BYTES: Final = 4


@final
class InnerClient:
    """One session of the engine, with one request at a time. Used on the server's loop only."""

    def __init__(self, server: Server, engine: Engine, timeout_s: float) -> None:
        self.server = server
        self.engine = engine
        self._pump = server.pump
        host, port = server.addresses[0]
        self._session = engine.open_session(CLIENT_HOST, host, port)
        self._timeout_s = timeout_s
        self._correlation_id = 0

    async def ask(self, api_key: int, version: int, body: Message, _: type[M]) -> M:
        """Send a request and return its answer. Raises RequestTimedOut; ConnectionLost if there will be no answer."""
        name = apis.APIS[api_key].name
        self._correlation_id += 1
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        frame = self._encode(api_key, version, body)

        def look() -> None:
            is_over = self._session.has_output() or self._session.close_reason or self._pump.engine is not self.engine
            if is_over and not answered.done():
                answered.set_result(None)

        self._pump.after_turn.append(look)
        try:
            self._receive(frame)
            self._pump.schedule_turn()
            await asyncio.wait_for(answered, self._timeout_s)
        except TimeoutError:
            raise RequestTimedOut(f"the server has not answered {name} within {self._timeout_s:g} s") from None
        finally:
            self._pump.after_turn.remove(look)
        answer = self._session.take_bytes()
        if not answer:
            raise ConnectionLost(f"{name} was not answered: {self._session.close_reason or 'the server was reset'}")
        return cast(M, self._decode(api_key, version, answer))

    def _receive(self, frame: bytes) -> None:
        try:
            self.engine.receive(self._session, frame, self._pump.now())
        except Exception as error:
            if self.engine.has_failed():
                self._pump.fail(error)
            raise

    def _encode(self, api_key: int, version: int, body: Message) -> bytes:
        w = BytesWriter()
        write_int16(w, api_key)
        write_int16(w, version)
        write_int32(w, self._correlation_id)
        write_nullable_string(w, CLIENT_ID)
        if version >= apis.APIS[api_key].flexible_version:
            w.append(0)
        apis.encode_request(w, api_key, body, version)
        frame = w.getvalue()
        return len(frame).to_bytes(SIZE_BYTES, "big") + frame

    def _decode(self, api_key: int, version: int, answer: bytes) -> Message:
        reader = Reader(answer, SIZE_BYTES + CORRELATION_BYTES)
        if apis.APIS[api_key].response_header_version(version) == 1:
            reader.skip_tags()
        return apis.decode_response(api_key, reader, version)

    def now_ms(self) -> int:
        """The time of the day."""
        return self._pump.now().wall_ms

    def close(self) -> None:
        self.engine.close_session(self._session, self._pump.now())
        self._pump.schedule_turn()


@contextmanager
def inner_client(server: Server, timeout_s: float = TIMEOUT_S) -> Iterator[InnerClient]:
    """A client for one block. `timeout_s` is the limit for each request."""
    if server.assembly is None:
        raise RuntimeError("the server is still starting")
    client = InnerClient(server, server.assembly.engine, timeout_s)
    try:
        yield client
    finally:
        client.close()
