"""Servers that do what a broker should not: for tests of how the client takes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersion, ApiVersionsResponse
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, Reader

# (API key, version, correlation id, body) -> the whole answer with its size, or None for no answer.
Behave = Callable[[int, int, int, Reader], Awaitable[bytes | None]]


def answer_frame(api_key: int, version: int, correlation_id: int, message: Message) -> bytes:
    writer = BytesWriter()
    writer.write(correlation_id.to_bytes(4, "big"))
    if apis.APIS[api_key].response_header_version(version) == 1:
        writer.append(0)
    apis.encode_response(writer, api_key, message, version)
    data = writer.getvalue()
    return len(data).to_bytes(4, "big") + data


def versions_answer(version: int, correlation_id: int) -> bytes:
    """All APIs in all versions."""
    known = [ApiVersion(api.key, api.min_version, api.max_version) for api in apis.APIS.values()]
    return answer_frame(apis.API_VERSIONS, version, correlation_id, ApiVersionsResponse(0, known))


@asynccontextmanager
async def peer(behave: Behave) -> AsyncIterator[tuple[str, int]]:
    """A server on a free port of this host that answers ApiVersions, and everything else as `behave` says."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
                body = Reader(frame, 8)
                body.nullable_string()
                if apis.APIS[key].request_header_version(version) == 2:
                    body.skip_tags()
                answer = await behave(key, version, int.from_bytes(frame[4:8], "big"), body)
                if answer is not None:
                    writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield host, port
    finally:
        server.close()
