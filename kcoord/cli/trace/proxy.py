"""Listeners in front of the brokers of a cluster, which pass frames in both directions.

Each broker has a listener of its own, opened when an answer names the broker for the first time. Clients get the
address of that listener instead, so they come back through it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final, final

from kcoord.cli.online.run import complain, warn
from kcoord.cli.trace.frames import redirected
from kcoord.cli.trace.printer import Printer
from kcoord.client.errors import ConnectionLost
from kcoord.server.exchange import Answer, Request
from kcoord.server.settings.listeners import format_address

# Larger frames end the decoding of a connection: what follows is passed on as it comes.
FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
REQUEST_BYTES_MIN: Final = 10
ANSWER_BYTES_MIN: Final = 4
CHUNK_BYTES: Final = 64 * 1024
# Requests of one connection that wait for their answers. A client that sends more than that never reads.
WAITING_MAX: Final = 10_000
# How many ports after the first are tried for the listener of a broker.
PORTS_TRIED: Final = 100
CONNECT_TIMEOUT_S: Final = 10.0

Address = tuple[str, int]


@final
class Proxy:
    """`serve` runs until the printer has all its lines, or until it is cancelled."""

    def __init__(self, host: str, port: int, bootstrap: list[Address], printer: Printer) -> None:
        self.host = host
        self.port = port
        self.bootstrap = bootstrap
        self.printer = printer
        # The port of the listener in front of each broker.
        self.ports: dict[Address, int] = {}
        self.connections = 0
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Lock()
        # Gets the error that ends the trace, or None.
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Listen in front of the bootstrap address. Raises OSError."""
        self.port = await self._listen(self.bootstrap, self.port)
        for address in self.bootstrap:
            self.ports[address] = self.port

    async def serve(self) -> None:
        """Raises what printing raises."""
        try:
            await self._end
        finally:
            for server in self._servers:
                server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self, brokers: list[Address], port: int) -> int:
        """Open a listener in front of a broker, whichever of `brokers` answers. Raises OSError."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await self._pass(brokers, reader, writer)
            except asyncio.CancelledError:
                pass  # `serve` ends; until Python 3.12, asyncio logs a cancelled task of a connection
            finally:
                self._tasks.discard(task)

        server = await asyncio.start_server(accept, self.host, port)
        self._servers.append(server)
        found: int = server.sockets[0].getsockname()[1]
        return found

    async def redirect(self, local_host: str, host: str, port: int) -> Address:
        """The address that a client gets for a broker's; `local_host` is where it has reached us."""
        async with self._opening:
            address = (host, port)
            if address not in self.ports:
                self.ports[address] = await self._listen_beside(address)
            return local_host, self.ports[address]

    async def _listen_beside(self, broker: Address) -> int:
        """Listen at one of the next ports, so that they can be foreseen."""
        first = max(self.ports.values()) + 1
        for port in range(first, min(first + PORTS_TRIED, 65536)):
            try:
                found = await self._listen([broker], port)
            except OSError:
                continue
            address = format_address(self.host or "0.0.0.0", found)
            warn(f"{address} is in front of {format_address(*broker)}")
            return found
        return await self._listen([broker], 0)

    # --- connections

    async def _pass(self, brokers: list[Address], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            broker, to_broker, from_broker = await _connect(brokers)
        except ConnectionLost as error:
            complain(f"connection {number}: {error}")
            writer.close()
            return
        local_host: str = writer.get_extra_info("sockname")[0]
        tunnel = Tunnel(self, number, format_address(*broker), local_host)
        there = asyncio.create_task(tunnel.requests(reader, to_broker))
        back = asyncio.create_task(tunnel.answers(from_broker, writer))
        try:
            done, _ = await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                self._note_end(task)
        finally:
            for task in (there, back):
                task.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            for one in (writer, to_broker):
                one.close()

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """A connection may end at any time. Everything else ends the trace."""
        error = task.exception()
        if error is None or isinstance(error, (OSError, asyncio.IncompleteReadError)) or self._end.done():
            return
        self._end.set_exception(error.reason if isinstance(error, PrintingFailed) else error)

    def after_print(self) -> None:
        if self.printer.is_full and not self._end.done():
            self._end.set_result(None)


class PrintingFailed(Exception):
    """Our output is gone, which ends the trace; a connection that ends does not."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason))
        self.reason = reason


async def _connect(brokers: list[Address]) -> tuple[Address, asyncio.StreamWriter, asyncio.StreamReader]:
    """Raises ConnectionLost if none of them can be reached."""
    problem = ""
    for host, port in brokers:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            problem = f"{format_address(host, port)}: not connected in {CONNECT_TIMEOUT_S:g} s"
        except OSError as error:
            problem = f"{format_address(host, port)}: {error.strerror or error}"
        else:
            return (host, port), writer, reader
    raise ConnectionLost(problem)


@final
class Tunnel:
    """One connection of a client, and the one to the broker."""

    def __init__(self, proxy: Proxy, number: int, broker: str, local_host: str) -> None:
        self.proxy = proxy
        self.number = number
        self.broker = broker
        self.local_host = local_host
        self.waiting: deque[Request] = deque()
        # Bytes that are no frames were met: they are passed on as they come.
        self.is_opaque = False

    async def requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass requests until the client closes the connection."""
        while not self.is_opaque:
            head = await reader.readexactly(4)
            frame = await self._frame(head, reader, writer, REQUEST_BYTES_MIN)
            if frame is None:
                break
            request = Request(frame, time.monotonic(), time.time_ns() // 1_000_000)
            if request.has_answer:
                self.waiting.append(request)
            self._show(request)
            writer.write(head + frame)
            await writer.drain()
            if len(self.waiting) > WAITING_MAX:
                self._go_blind(f"{WAITING_MAX} requests have no answer")
        await _copy(reader, writer)

    async def answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass answers until the broker closes the connection."""
        while not self.is_opaque:
            head = await reader.readexactly(4)
            frame = await self._frame(head, reader, writer, ANSWER_BYTES_MIN)
            if frame is None:
                break
            correlation_id = int.from_bytes(frame[:4], "big", signed=True)
            if not self.waiting or self.waiting[0].correlation_id != correlation_id:
                self._go_blind("an answer that belongs to no request")
                writer.write(head + frame)
                break
            request = self.waiting.popleft()
            answer = Answer(request, frame, time.monotonic(), time.time_ns() // 1_000_000)
            data = await redirected(answer, self._redirect)
            self._show(answer)
            writer.write(len(data).to_bytes(4, "big") + data)
            await writer.drain()
        await _copy(reader, writer)

    async def _redirect(self, host: str, port: int) -> Address:
        return await self.proxy.redirect(self.local_host, host, port)

    async def _frame(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, least: int
    ) -> bytes | None:
        """The frame after its size. None if that cannot be its size: it is passed on, and so is what follows."""
        size = int.from_bytes(head, "big", signed=True)
        if self.is_opaque or not least <= size <= FRAME_BYTES_MAX:
            if not self.is_opaque:
                self._go_blind("these are no Kafka requests (TLS?)")
            writer.write(head)
            return None
        return await reader.readexactly(size)

    def _go_blind(self, reason: str) -> None:
        self.is_opaque = True
        complain(f"connection {self.number}: {reason}; the rest is passed on without decoding")

    def _show(self, one: Request | Answer) -> None:
        printer = self.proxy.printer
        try:
            if isinstance(one, Request):
                printer.request(self.number, self.broker, one)
            else:
                printer.answer(self.number, self.broker, one)
        except OSError as error:
            raise PrintingFailed(error) from error
        self.proxy.after_print()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
