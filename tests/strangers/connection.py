"""A connection of the search: one request at a time, from an address of its own."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, Final

from tests.harness.engine import decode_answer, request_frame

LOCALHOST: Final = "127.0.0.1"
RECEIVE_BYTES: Final = 1 << 16
# With this on, a close sends a reset instead of the usual end.
LINGER_NOTHING: Final = struct.pack("ii", 1, 0)


class Connection:
    """Not yet open. Close it, or reset it, in every case."""

    def __init__(self, port: int, source: str = LOCALHOST, receive_buffer_bytes: int = 0) -> None:
        self._port = port
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        if source != LOCALHOST:
            self.socket.bind((source, 0))
        self._loop = asyncio.get_running_loop()

    async def open(self) -> None:
        await self._loop.sock_connect(self.socket, (LOCALHOST, self._port))

    async def send(self, data: bytes | memoryview) -> None:
        await self._loop.sock_sendall(self.socket, data)

    async def receive_frame(self) -> bytes:
        """The next answer with its correlation id, without its size. Raises ConnectionError at the end."""
        return await self._receive(int.from_bytes(await self._receive(4), "big"))

    async def _receive(self, size: int) -> bytes:
        parts = []
        while size > 0:
            part = await self._loop.sock_recv(self.socket, min(size, RECEIVE_BYTES))
            if not part:
                raise ConnectionError("the server closed the connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    async def ask(self, api_key: int, version: int, message: Any) -> Any:
        await self.send(request_frame(api_key, version, message))
        return decode_answer(api_key, version, (await self.receive_frame())[4:])

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOTHING)
        self.socket.close()
