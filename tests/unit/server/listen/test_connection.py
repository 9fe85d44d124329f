"""No failure of one connection's transport reaches anybody else, whichever call fails and when."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from kcoord.core.outcome import Fact, Now
from kcoord.engine.session import Session
from kcoord.protocol import apis
from kcoord.server.draining import disconnect_all, drain
from kcoord.server.listen.accept import Acceptor
from kcoord.server.listen.connection import Connection
from kcoord.server.listen.limits import TokenBucket
from kcoord.server.listen.request_log import RequestLog
from kcoord.wire.frame import FrameLimits
from tests.unit.server.pump_rig import BIG, FRAME, WAIT_S, EchoEngine, Rig, exchange, running, until_left

pytestmark = pytest.mark.both_event_loops

CALLS = (
    "write", "abort", "close", "pause_reading", "resume_reading", "is_closing", "get_write_buffer_size",
    "set_write_buffer_limits", "get_extra_info",
)  # fmt: skip
COPIES = 400

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Faulty:
    """A transport that raises at some of its calls, from the `first` of them on, counted over all of them."""

    def __init__(self, transport: asyncio.BaseTransport, calls: tuple[str, ...], first: int) -> None:
        self.transport = transport
        self.calls = calls
        self.left = first

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(self.transport, name)
        if name not in self.calls:
            return call

        def fail(*arguments: object, **options: object) -> Any:
            self.left -= 1
            if self.left > 0:
                return call(*arguments, **options)
            raise RuntimeError(f"{name}: the handler is closed")

        return fail


def break_first(patch: pytest.MonkeyPatch, calls: tuple[str, ...], first: int) -> None:
    """The transport of the first connection raises at `calls`."""
    made = Connection.connection_made
    begun: list[Connection] = []

    def break_it(connection: Connection, transport: Any) -> None:
        if not begun:
            transport = Faulty(transport, calls, first)
        begun.append(connection)
        made(connection, transport)

    patch.setattr(Connection, "connection_made", break_it)


async def live_through(rig: Rig, raw: socket.socket, honest: Streams) -> None:
    """All that may happen to a connection: answers that it takes, some that it does not, and then does, its end."""
    loop = asyncio.get_running_loop()
    for data in (FRAME, FRAME * 3, BIG * 8, FRAME):
        with suppress(ConnectionError):
            await loop.sock_sendall(raw, data)
        assert await exchange(honest, FRAME, COPIES * len(FRAME)) == FRAME * COPIES
    rig.pump.sweep()
    with suppress(ConnectionError, TimeoutError):
        for _ in range(50):  # it reads now, so that writing and reading go on
            await asyncio.wait_for(loop.sock_recv(raw, 1 << 20), 0.005)
    for connection in list(rig.pump.connections.values()):
        connection.update_reading()
    assert await exchange(honest, FRAME, COPIES * len(FRAME)) == FRAME * COPIES
    raw.close()


@pytest.mark.parametrize("calls", [(name,) for name in CALLS] + [CALLS], ids=[*CALLS, "all"])
async def test_a_transport_that_raises_costs_its_own_connection_only(calls: tuple[str, ...]) -> None:
    for first in (1, 2, 3, 5, 8, 13):
        with pytest.MonkeyPatch.context() as patch:
            break_first(patch, calls, first)
            limits = ("output.buffer.high.bytes=100000", "connections.max.idle.ms=20000")
            async with running(EchoEngine(copies=COPIES), *limits) as rig:
                raw = socket.create_connection(("127.0.0.1", rig.port))
                raw.setblocking(False)
                while not rig.pump.counts.total:
                    await asyncio.sleep(0)
                honest = await rig.connect()
                await asyncio.wait_for(live_through(rig, raw, honest), WAIT_S)
                await until_left(rig, 1)
                assert (rig.failures, rig.pump.counts.total, rig.pump.held_bytes) == ([], 1, 0)
                assert rig.pump.counts.by_host == {"127.0.0.1": 1}
                assert await asyncio.wait_for(drain(rig.pump, lambda: False), WAIT_S)
            assert rig.pump.counts.total == 0


@pytest.mark.parametrize("calls", [(name,) for name in CALLS] + [CALLS], ids=[*CALLS, "all"])
async def test_a_stop_closes_all_connections_despite_a_broken_transport(calls: tuple[str, ...]) -> None:
    for has_failed in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            break_first(patch, calls, 2)
            async with running(EchoEngine()) as rig:
                streams = [await rig.connect() for _ in range(2)]
                streams[0][1].write(FRAME)
                await exchange(streams[1])
                if has_failed:
                    rig.pump.fail(ZeroDivisionError())
                    assert [type(error) for error in rig.failures] == [ZeroDivisionError]
                else:
                    assert await asyncio.wait_for(drain(rig.pump, lambda: False), WAIT_S)
                    await disconnect_all(rig.pump)
                with suppress(ConnectionError):
                    assert await asyncio.wait_for(streams[1][0].read(), WAIT_S) == b""
                await until_left(rig, 0)


async def test_a_connection_that_is_reset_before_it_is_made() -> None:
    """A transport without a socket has no address to advertise."""

    with pytest.MonkeyPatch.context() as patch:
        made = Connection.connection_made

        def without_socket(connection: Connection, transport: Any) -> None:
            if not rig.pump.connections and rig.pump.counts.total == 1:
                patch.setattr(Faulty, "get_extra_info", lambda *_: None, raising=False)
                transport = Faulty(transport, (), 0)
            made(connection, transport)

        patch.setattr(Connection, "connection_made", without_socket)
        async with running(EchoEngine()) as rig:
            gone = await rig.connect()
            with suppress(ConnectionError):
                assert await asyncio.wait_for(gone[0].read(), WAIT_S) == b""
            while rig.pump.counts.total:
                await asyncio.sleep(0.002)
            patch.undo()
            assert await exchange(await rig.connect()) == FRAME
            assert (rig.failures, rig.pump.counts.total) == ([], 1)


async def test_an_error_at_the_end_of_a_session_affects_no_other_connection() -> None:
    class Clumsy(EchoEngine):
        def close_session(self, session: Session, now: Now) -> None:
            super().close_session(session, now)
            raise ZeroDivisionError("a fault of ours")

    async with running(Clumsy()) as rig:
        honest, gone = await rig.connect(), await rig.connect()
        gone[1].close()
        await until_left(rig, 1)
        assert await exchange(honest) == FRAME
        assert (rig.failures, rig.pump.counts.total) == ([], 1)
    engine = Clumsy()
    engine.log_fails = True
    async with running(engine) as rig:
        (await rig.connect())[1].close()
        while not rig.failures:
            await asyncio.sleep(0.002)


async def test_a_session_that_cannot_begin_costs_its_connection() -> None:
    class Clumsy(EchoEngine):
        def open_session(self, client_host: str, host: str, port: int) -> Session:
            if not self.sessions:
                self.sessions[0] = super().open_session(client_host, host, port)
                raise MemoryError("a fault of ours")
            return super().open_session(client_host, host, port)

    async with running(Clumsy()) as rig:
        gone = await rig.connect()
        with suppress(ConnectionError):
            assert await asyncio.wait_for(gone[0].read(), WAIT_S) == b""
        while rig.pump.counts.total:
            await asyncio.sleep(0.002)
        assert await exchange(await rig.connect()) == FRAME
        assert rig.failures == []


@pytest.mark.parametrize("error", [OSError(9, "gone"), RuntimeError("closed Transport handle"), MemoryError()])
async def test_a_socket_that_the_loop_does_not_take_costs_one_place_once(error: Exception) -> None:
    """Also where the connection was made and lost before: it gave its place back then."""

    for is_made in (False, True):
        async with running(EchoEngine()) as rig:
            loop = asyncio.get_running_loop()
            connection = Connection(rig.pump, rig.listener, "127.0.0.1")
            assert rig.pump.counts.admit("127.0.0.1") == ""
            acceptor = Acceptor(loop, rig.pump, TokenBucket(10))
            ours, theirs = socket.socketpair()
            with pytest.MonkeyPatch.context() as patch:

                async def refuse(factory: Callable[[], Connection], _: socket.socket, is_made: bool = is_made) -> None:
                    if is_made:
                        factory().connection_made(Faulty(asyncio.Transport(), CALLS, 1))  # type: ignore[arg-type]
                        factory().connection_lost(None)
                    raise error

                class Loop:
                    connect_accepted_socket = staticmethod(refuse)

                patch.setattr(acceptor, "_loop", Loop())
                await acceptor._open(ours, connection)
            assert ours.fileno() == -1
            theirs.close()
            assert (rig.pump.counts.total, rig.failures) == (0, [])


async def test_answers_that_leave_count_as_progress_although_as_much_is_unsent() -> None:
    """Otherwise a client that reads as fast as it is answered could be closed as one that reads nothing."""

    class Constant(Faulty):
        def get_write_buffer_size(self) -> int:
            return 5000

    async with running(EchoEngine()) as rig:
        streams = await rig.connect()
        await exchange(streams)
        (connection,) = rig.pump.connections.values()
        connection.transport = Constant(connection.transport, (), 0)  # type: ignore[assignment]
        connection.fd = -1
        for now_ms in (1000, 2000, 3000):
            assert await exchange(streams) == FRAME
            assert connection.session.buffered_bytes == 5000
            assert connection._takes_nothing(now_ms) == 0
            connection.session.note_buffered(0)
        assert connection._takes_nothing(4000) == 1000


async def test_a_client_that_has_sent_everything_and_reads_nothing_is_closed() -> None:
    mono_ms = 1000
    limits = ("output.buffer.high.bytes=100000000", "connections.max.idle.ms=1000")
    async with running(EchoEngine(copies=COPIES), *limits, clocks=lambda: Now(mono_ms, mono_ms)) as rig:
        with socket.create_connection(("127.0.0.1", rig.port)) as raw:
            raw.sendall(BIG * 4)
            raw.shutdown(socket.SHUT_WR)
            while not any(one.is_at_end and one.session.buffered_bytes for one in rig.pump.connections.values()):
                await asyncio.sleep(0.002)
            rig.pump.sweep()
            mono_ms += 1000
            rig.pump.sweep()
            assert len(rig.pump.connections) == 1
            mono_ms += 1
            rig.pump.sweep()
            await until_left(rig, 0)
        assert "does not read its responses" in str(rig.log.recent[0])


@pytest.mark.parametrize("taken", ["all", "half", "nothing", "broken"])
async def test_what_the_socket_does_not_take_is_sent_by_the_transport(taken: str) -> None:
    """In order and once, whatever a direct write does."""
    write = os.write
    calls: list[int] = []

    def some(fd: int, data: bytes) -> int:
        if fd != own:
            return write(fd, data)
        calls.append(len(data))
        if taken == "nothing":
            raise BlockingIOError
        if taken == "broken":
            raise ConnectionResetError
        return write(fd, data if taken == "all" else data[: len(data) // 2])

    async with running(EchoEngine()) as rig:
        streams = await rig.connect()
        await exchange(streams)
        (connection,) = rig.pump.connections.values()
        own = connection.fd
        frames = [(12).to_bytes(4, "big") + bytes(8) + number.to_bytes(4, "big") for number in range(1, 50)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.write", some)
            for frame in frames:
                assert await exchange(streams, frame) == frame
        assert calls == [16] * len(frames)
        assert connection.session.owed_bytes == rig.pump.engine.pool.held_bytes == 0


async def test_answers_stay_in_order_while_the_client_does_not_read() -> None:
    """Some are written directly, and some by the transport after others that wait."""
    size, count = 5004, 3000
    head = (size - 4).to_bytes(4, "big") + bytes(8)
    frames = [head + number.to_bytes(4, "big") + bytes(size - 16) for number in range(count)]
    async with running(EchoEngine()) as rig:
        with socket.create_connection(("127.0.0.1", rig.port)) as raw:
            raw.setblocking(False)
            while not rig.pump.connections:
                await asyncio.sleep(0)
            (connection,) = rig.pump.connections.values()
            got = bytearray()
            for number, frame in enumerate(frames):
                connection.data_received(frame)
                await asyncio.sleep(0)
                if number == count // 2:
                    assert connection.unsent_bytes() > 0
                if number > count // 2:
                    with suppress(BlockingIOError):
                        got += raw.recv(3 * size)
            while len(got) < size * count:
                got += await asyncio.wait_for(asyncio.get_running_loop().sock_recv(raw, 1 << 20), WAIT_S)
            assert got == b"".join(frames)


async def test_answers_of_another_engine_come_after_those_that_wait() -> None:
    big = [(9000).to_bytes(4, "big") + bytes(8) + bytes([number]) * 8992 for number in range(3)]
    async with running(EchoEngine(copies=COPIES)) as rig:
        with socket.create_connection(("127.0.0.1", rig.port)) as raw:
            raw.setblocking(False)
            while not rig.pump.connections:
                await asyncio.sleep(0)
            (connection,) = rig.pump.connections.values()
            for frame in big[:2]:
                connection.data_received(frame)
                while rig.pump._turn_scheduled:
                    await asyncio.sleep(0)
            unsent = connection.unsent_bytes()
            assert unsent > 0
            engine = EchoEngine()
            rig.pump.replace_engine(engine)
            assert connection.session.buffered_bytes == engine.pool.held_bytes + unsent == unsent
            connection.data_received(big[2])
            got = bytearray()
            expected = big[0] * COPIES + big[1] * COPIES + big[2]
            while len(got) < len(expected):
                got += await asyncio.wait_for(asyncio.get_running_loop().sock_recv(raw, 1 << 20), WAIT_S)
            assert got == expected


async def test_nothing_is_written_to_the_socket_of_a_transport_that_closes() -> None:
    """Its number may belong to another connection already."""
    async with running(EchoEngine()) as rig:
        streams = await rig.connect()
        await exchange(streams)
        (connection,) = rig.pump.connections.values()
        connection.fd = os.open(os.devnull, os.O_RDONLY)
        try:
            connection.transport.close()
            connection.session.chunk_for(0).writer.write(b"late")
            connection.session.owe(4)
            connection.session.release(0)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("os.write", lambda *_: pytest.fail("written"))
                connection.flush()
        finally:
            os.close(connection.fd)


async def test_a_single_answer_is_in_the_log_of_requests() -> None:
    engine = EchoEngine()
    engine.limits = FrameLimits({apis.HEARTBEAT: 1000})
    # What comes back begins with the correlation id.
    frame = (12).to_bytes(4, "big") + (apis.HEARTBEAT.to_bytes(2, "big") + bytes(2)) * 2 + bytes(4)
    async with running(engine) as rig:
        streams = await rig.connect()
        await exchange(streams, frame)
        (connection,) = rig.pump.connections.values()
        facts: list[Fact] = []
        connection.requests = RequestLog(facts, connection.session.id, "127.0.0.1:1", 0)
        assert await exchange(streams, frame) == frame
        assert [fact.event for fact in facts] == ["connection_opened", "request"]
        assert connection.requests.sent_bytes == len(frame)
