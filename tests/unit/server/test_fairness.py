"""What one connection sends in one turn is bounded: others are heard meanwhile, and nothing is lost or reordered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.engine.session import Session
from kcoord.protocol import apis
from kcoord.protocol.heartbeat import HeartbeatRequest
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kcoord.protocol.metadata import MetadataRequest
from kcoord.server.listen.connection import UNREAD_BYTES_MAX, Connection
from kcoord.server.listen.reading import RESUMED_PER_TURN
from kcoord.server.logs import ServerLog
from kcoord.server.server import Server
from kcoord.server.settings.load import load
from tests.harness.engine import request_frame
from tests.unit.server.pump_rig import WAIT_S

pytestmark = pytest.mark.both_event_loops

MANY = 30_000
# Of one read by either event loop, and of little reads before it.
HELD_BYTES_MAX = 256 * 1024 + UNREAD_BYTES_MAX
FRAME = request_frame(apis.HEARTBEAT, 4, HeartbeatRequest("g", 1, "m"), 7)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Rig:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.pump = server.pump
        assert isinstance(self.pump.engine, Engine)
        self.engine = self.pump.engine
        self.answer = b""

    async def connect(self) -> Streams:
        port = self.server.addresses[0][1]
        return await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port, limit=1 << 26), WAIT_S)


@asynccontextmanager
async def serving() -> AsyncIterator[Rig]:
    config = load(assignments=["log.sync=memory"], listen=["127.0.0.1:0"])
    server = Server(config, ServerLog(None))
    await server.start()
    ended = asyncio.get_running_loop().create_task(server.wait())
    rig = Rig(server)
    reader, writer = await rig.connect()
    writer.write(FRAME)
    size = await asyncio.wait_for(reader.readexactly(4), WAIT_S)
    rig.answer = size + await asyncio.wait_for(reader.readexactly(int.from_bytes(size, "big")), WAIT_S)
    writer.close()
    while rig.pump.connections:
        await asyncio.sleep(0.002)
    try:
        yield rig
    finally:
        server.request_stop()
        await asyncio.wait_for(ended, WAIT_S)


async def read(streams: Streams, rig: Rig, count: int) -> bytes:
    return await asyncio.wait_for(streams[0].readexactly(len(rig.answer) * count), WAIT_S)


def handled(rig: Rig) -> int:
    return rig.engine.intake.next_request_id


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with serving() as rig:
        yield rig


async def test_one_that_sends_much_does_not_hold_up_another(rig: Rig) -> None:
    greedy, modest = await rig.connect(), await rig.connect()
    before = handled(rig)
    greedy[1].write(FRAME * MANY * 3)
    while handled(rig) == before:
        await asyncio.sleep(0)
    modest[1].write(FRAME)
    assert await read(modest, rig, 1) == rig.answer
    assert handled(rig) - before < MANY
    assert await read(greedy, rig, MANY * 3) == rig.answer * MANY * 3
    assert rig.pump.held_bytes == 0 and handled(rig) - before == MANY * 3 + 1


async def test_little_more_than_one_read_waits(rig: Rig) -> None:
    """uvloop reads a connection up to 32 times in a turn; it stops when we do."""

    greedy = await rig.connect()
    greedy[1].write(FRAME * MANY)
    reading = asyncio.get_running_loop().create_task(read(greedy, rig, MANY))
    held, was_paused = 0, False
    while not reading.done():
        await asyncio.sleep(0)
        held = max(held, rig.pump.held_bytes)
        was_paused = was_paused or not all(one.is_reading for one in rig.pump.connections.values())
    assert reading.result() == rig.answer * MANY
    assert was_paused and 0 < held <= HELD_BYTES_MAX


async def test_what_was_sent_before_the_end_is_handled_and_answered(rig: Rig) -> None:
    before = handled(rig)
    for count in (1, 900, MANY):  # in one turn, with little that waits, and with much
        streams = await rig.connect()
        streams[1].write(FRAME * count)
        streams[1].write_eof()
        assert await read(streams, rig, count) == rig.answer * count
        assert await asyncio.wait_for(streams[0].read(), WAIT_S) == b""
        while rig.pump.connections:
            await asyncio.sleep(0.002)
        before += count
        assert handled(rig) == before and rig.pump.held_bytes == 0


def join_request(size_bytes: int) -> bytes:
    """A JoinGroup request that is refused: it names no group."""
    protocols = [JoinGroupRequestProtocol("x", bytes(size_bytes))]
    return request_frame(apis.JOIN_GROUP, 5, JoinGroupRequest(protocols=protocols), 7)


class Noting:
    """The engine of a server, with a note of each piece that it gets. Native classes cannot be patched."""

    def __init__(self, rig: Rig) -> None:
        self.engine = rig.engine
        self.pieces: list[int] = []
        rig.pump.engine = self

    def receive(self, session: Session, data: bytes, now: Now, start: int = 0, end: int = -1) -> None:
        self.pieces.append(len(data) if end < 0 else end - start)
        self.engine.receive(session, data, now, start, end)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


async def test_a_large_request_is_not_cut_to_pieces(rig: Rig) -> None:
    large = join_request(5 << 20)
    streams = await rig.connect()
    pieces = Noting(rig).pieces
    streams[1].write(large)
    assert await asyncio.wait_for(streams[0].readexactly(4), WAIT_S)
    assert sum(pieces) == len(large) and len(pieces) < len(large) / 8192


async def test_a_large_request_that_came_whole_is_passed_whole_and_alone(rig: Rig) -> None:
    large = join_request(20_000)
    streams = await rig.connect()
    while not rig.pump.connections:
        await asyncio.sleep(0.002)
    connection = next(iter(rig.pump.connections.values()))
    pieces = Noting(rig).pieces
    connection.data_received(large + large + FRAME + large[:10_000])
    connection.data_received(large[10_000:])
    for _ in range(4):
        size = await asyncio.wait_for(streams[0].readexactly(4), WAIT_S)
        await asyncio.wait_for(streams[0].readexactly(int.from_bytes(size, "big")), WAIT_S)
    assert pieces[:2] == [len(large)] * 2
    assert sum(pieces) == 3 * len(large) + len(FRAME) and rig.pump.held_bytes == 0


async def test_large_requests_take_turns_in_being_read(rig: Rig) -> None:
    count = 3 * RESUMED_PER_TURN
    shares = rig.pump.shares
    shares.turn_bytes_max = 100_000
    protocols = [JoinGroupRequestProtocol("x", bytes(600_000))]
    large = request_frame(apis.JOIN_GROUP, 5, JoinGroupRequest(protocols=protocols), 7)
    clients = [await rig.connect() for _ in range(count)]
    modest = await rig.connect()
    most_bytes = most_held = pings = 0
    for _, writer in clients:
        writer.write(large)
    asked = [asyncio.create_task(reader.readexactly(4)) for reader, _ in clients]
    while not all(task.done() for task in asked):
        await asyncio.sleep(0)
        most_bytes = max(most_bytes, shares.turn_bytes)
        most_held = max(most_held, len(shares.held_new) + len(shares.held_large))
        for held in (shares.held_new, shares.held_large):
            assert all(one.is_held and isinstance(one, Connection) and not one.is_reading for one in held)
        if most_held and pings < 5:
            pings += 1
            modest[1].write(FRAME)
            assert await read(modest, rig, 1) == rig.answer
    # One read goes beyond the bound, and requests that are almost complete are read as well.
    assert most_held > RESUMED_PER_TURN and pings and most_bytes < 100_000 + 2 * HELD_BYTES_MAX
    # All are answered, and nobody waits any more.
    assert all(int.from_bytes(task.result(), "big") > 0 for task in asked)
    while shares.held_new or shares.held_large:
        await asyncio.sleep(0)
    assert not shares.large and all(c.is_reading for c in rig.pump.connections.values())


async def test_a_connection_that_closes_while_it_is_not_read_leaves_no_state(rig: Rig) -> None:
    shares = rig.pump.shares
    shares.turn_bytes_max = 1000
    large, silent = await rig.connect(), await rig.connect()
    while len(rig.pump.connections) < 2:
        await asyncio.sleep(0)
    assert len(shares.new) == 2
    size = 5 << 20
    large[1].write(size.to_bytes(4, "big") + apis.JOIN_GROUP.to_bytes(2, "big") + bytes(100_000))
    while not shares.held_large:
        await asyncio.sleep(0)
    # Whoever has sent nothing waits, too: it may begin a large request.
    for connection in list(rig.pump.connections.values()):
        connection.drop("a test wants it")
    while rig.pump.connections:
        await asyncio.sleep(0.002)
    assert not (shares.new or shares.large or shares.held_new or shares.held_large)
    silent[1].close()


async def test_a_connection_that_closes_while_its_input_waits_leaves_no_state(rig: Rig) -> None:
    streams = await rig.connect()
    streams[1].write(FRAME * MANY)
    while not rig.pump.held_bytes:
        await asyncio.sleep(0)
    for connection in rig.pump.connections.values():
        connection.drop("a test wants it")
    with suppress(ConnectionError):
        await asyncio.wait_for(streams[0].read(), WAIT_S)
    while rig.pump.connections:
        await asyncio.sleep(0.002)
    assert rig.pump.held_bytes == 0 and handled(rig) < MANY


async def test_a_lack_of_memory_costs_the_session_whose_requests_waited(rig: Rig) -> None:
    """Not the one whose event went on with them."""

    greedy, modest = await rig.connect(), await rig.connect()
    while len(rig.pump.connections) < 2:
        await asyncio.sleep(0)
    session = next(iter(rig.pump.connections.values())).session
    asking = request_frame(apis.METADATA, 4, MetadataRequest([]), 7)
    rig.engine.receive(session, asking * MANY, rig.pump.now())
    assert session.is_queued
    failures = [MemoryError()]
    random_bytes = rig.engine.intake.entropy

    def fail_once(count: int) -> bytes:
        if failures:
            raise failures.pop()
        return random_bytes(count)

    # What a Metadata request asks for, and the other client's heartbeats do not.
    rig.engine.intake.entropy = fail_once
    modest[1].write(FRAME)
    with suppress(ConnectionError):
        await asyncio.wait_for(greedy[0].read(), WAIT_S)
    assert await read(modest, rig, 1) == rig.answer
    assert not failures and len(rig.pump.connections) == 1 and not rig.pump.has_failed
