"""Answers with parts of files, over real sockets: every byte arrives, in order, whenever the client reads."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kcoord.log.storage import DiskFile
from kcoord.protocol import apis
from kcoord.protocol.delete_topics import DeleteTopicsRequest
from kcoord.server.listen import connection as connection_module
from kcoord.server.listen.connection import Connection
from kcoord.server.listen.sending import FileSender
from kcoord.wire.file_range import FileRange
from tests.harness.engine import decode_answer
from tests.unit.server.test_server import SIZE, WAIT_S, Peer, Rig, fetch, records, serving, topic, until

pytestmark = pytest.mark.both_event_loops

# Small buffers, so that sockets are full all the time.
SMALL_BUFFER = "socket.send.buffer.bytes=16384"
COUNT = 6


class Protocol(asyncio.Protocol):
    """Goes on sending when the transport has written everything, as a connection does."""

    def __init__(self) -> None:
        self.sender: FileSender
        self.is_done = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "get_write_buffer_size")
        self.transport = transport  # type: ignore[assignment]
        self.transport.set_write_buffer_limits(high=0)
        self.sender = FileSender(self.transport, self.transport.get_extra_info("socket").fileno())

    def send(self) -> None:
        self.is_done = self.sender.send()

    def resume_writing(self) -> None:
        self.send()


@asynccontextmanager
async def connected(buffer_bytes: int) -> AsyncIterator[tuple[Protocol, socket.socket]]:
    loop = asyncio.get_running_loop()
    here, there = socket.socketpair()
    for one in (here, there):
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    transport, protocol = await loop.connect_accepted_socket(Protocol, here)
    try:
        yield protocol, there
    finally:
        transport.abort()
        there.close()


def file_of(path: Path, content: bytes) -> DiskFile:
    path.write_bytes(content)
    return DiskFile(str(path))


async def receive(there: socket.socket, size: int, seed: int) -> bytes:
    """Read `size` bytes in parts of many sizes, with pauses."""
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()
    found = bytearray()
    while len(found) < size:
        data = await asyncio.wait_for(loop.sock_recv(there, rng.choice([1, 100, 5000, 100_000])), WAIT_S)
        assert data
        found += data
        if rng.random() < 0.05:
            await asyncio.sleep(0.001)
    return bytes(found)


@pytest.mark.parametrize("seed", range(6))
async def test_pieces_arrive_in_order(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    content = rng.randbytes(1 << 20)
    file = file_of(tmp_path / "f", content)
    async with connected(rng.choice([4096, 65536, 1 << 20])) as (protocol, there):
        expected = bytearray()
        reading: asyncio.Task[bytes] | None = None
        for _ in range(3):
            pieces: list[bytes | FileRange] = []
            for _ in range(rng.randrange(1, 6)):
                if rng.random() < 0.5:
                    data = rng.randbytes(rng.choice([1, 30, 70_000]))
                    pieces.append(data)
                else:
                    start = rng.randrange(900_000)
                    size = rng.randrange(1, len(content) - start)
                    data = content[start : start + size]
                    pieces.append(FileRange(file.share(), start, size))
                expected += data
            is_waiting = bool(protocol.sender.pieces)
            protocol.sender.add(pieces)
            if not is_waiting:
                protocol.send()
            await asyncio.sleep(0)
        assert protocol.sender.unsent_bytes <= len(expected)
        reading = asyncio.create_task(receive(there, len(expected), seed))
        assert await reading == bytes(expected)
        assert protocol.is_done and protocol.sender.unsent_bytes == 0 and not protocol.sender.pieces
    file.close()


async def test_the_file_stays_open_until_all_is_sent(tmp_path: Path) -> None:
    content = random.Random(1).randbytes(1 << 20)
    path = tmp_path / "f"
    file = file_of(path, content)
    async with connected(4096) as (protocol, there):
        shared = file.share()
        fd = shared.fd
        protocol.sender.add([FileRange(shared, 0, len(content))])
        del shared
        protocol.send()
        assert not protocol.is_done
        file.close()
        path.unlink()
        assert await receive(there, len(content), 1) == content
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(fd)


async def test_a_system_without_the_call_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = random.Random(1).randbytes(300_000)
    file = file_of(tmp_path / "f", content)

    def refuse(*_: Any) -> int:
        raise OSError(errno.EINVAL, "this file system has no sendfile")

    monkeypatch.setattr(os, "sendfile", refuse)
    async with connected(4096) as (protocol, there):
        protocol.sender.add([b"head", FileRange(file.share(), 100, 200_000), b"tail"])
        protocol.send()
        assert await receive(there, 200_008, 1) == b"head" + content[100:200_100] + b"tail"


@pytest.mark.parametrize("end", [0, 5000])
async def test_a_file_that_lacks_records_is_an_error(tmp_path: Path, end: int) -> None:
    file = file_of(tmp_path / "f", bytes(10_000))
    async with connected(1 << 20) as (protocol, _):
        protocol.sender.add([FileRange(file.share(), 0, 20_000)])
        file.truncate(end)
        with pytest.raises(OSError, match="a file ends before its records"):
            protocol.send()


# ---- whole servers


async def fill(peer: Peer) -> None:
    await peer.ask(apis.CREATE_TOPICS, 5, topic())
    for _ in range(COUNT):
        await peer.ask(apis.PRODUCE, 9, records(SIZE))


async def expected_of(rig: Rig) -> bytes:
    """All records, read as one client may that gets no parts of files."""
    peer = await rig.connect()
    await until(lambda: len(rig.server.pump.connections) == 2, "the second connection")
    newest = max(rig.server.pump.connections.values(), key=lambda one: one.session.id)
    newest.session.takes_files = False
    answer = await peer.ask(apis.FETCH, 11, fetch())
    peer.writer.close()
    found = answer.responses[0].partitions[0].records
    assert isinstance(found, bytes) and len(found) > COUNT * SIZE
    return found


def first_of(rig: Rig) -> Connection:
    return min(rig.server.pump.connections.values(), key=lambda one: one.session.id)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes that were sent from files."""
    sizes: list[int] = []
    real = os.sendfile

    def sendfile(*arguments: int) -> int:
        sizes.append(real(*arguments))
        return sizes[-1]

    monkeypatch.setattr(os, "sendfile", sendfile)
    return sizes


async def test_large_records_come_from_the_file(tmp_path: Path, sent: list[int]) -> None:
    async with serving(tmp_path, SMALL_BUFFER) as rig:
        peer = await rig.connect()
        await fill(peer)
        expected = await expected_of(rig)
        assert not sent
        requests = [peer.send(apis.FETCH, 11, fetch()) for _ in range(4)]
        connection = first_of(rig)
        await until(lambda: connection.unsent_bytes() > 4 * COUNT * SIZE - (8 << 20), "the answers")
        assert connection.is_output_full and connection.sender is not None
        for correlation_id in requests:
            got, rest = await asyncio.wait_for(peer.answer(), WAIT_S)
            assert got == correlation_id
            answer = decode_answer(apis.FETCH, 11, rest)
            assert answer.responses[0].partitions[0].records == expected
        assert sum(sent) > 3 * COUNT * SIZE
        await until(lambda: not connection.is_output_full and connection.is_reading, "the end of the answers")
        # Small answers go the usual way again.
        assert not connection.sends_files()
        at_end = await peer.ask(apis.FETCH, 11, fetch(COUNT))
        assert at_end.responses[0].partitions[0].error_code == 0
        assert connection.unsent_bytes() == 0 and rig.server.pump.engine.pool.held_bytes == 0


async def test_what_was_removed_is_still_sent(tmp_path: Path, sent: list[int]) -> None:
    async with serving(tmp_path, SMALL_BUFFER) as rig:
        peer = await rig.connect()
        await fill(peer)
        expected = await expected_of(rig)
        request = peer.send(apis.FETCH, 11, fetch())
        connection = first_of(rig)
        await until(lambda: connection.unsent_bytes() > 0, "the answer")
        other = await rig.connect()
        deleted = await other.ask(apis.DELETE_TOPICS, 4, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000))
        assert deleted.responses[0].error_code == 0
        await until(lambda: not list(tmp_path.glob("t-0*")), "the files to be removed")
        got, rest = await asyncio.wait_for(peer.answer(), WAIT_S)
        assert got == request
        assert decode_answer(apis.FETCH, 11, rest).responses[0].partitions[0].records == expected
        assert sent


async def test_a_client_that_goes_leaves_nothing_open(tmp_path: Path) -> None:
    async with serving(tmp_path, SMALL_BUFFER) as rig:
        peer = await rig.connect()
        await fill(peer)
        peer.send(apis.FETCH, 11, fetch())
        connection = first_of(rig)
        await until(lambda: connection.unsent_bytes() > 0, "the answer")
        peer.writer.transport.abort()
        await until(lambda: not rig.server.pump.connections, "the end of the connection")
        assert connection.sender is not None and not connection.sender.pieces
        pool = rig.server.pump.engine.pool
        await until(lambda: pool.held_bytes == 0, "the answers to be forgotten")
        other = await rig.connect()
        answer = await other.ask(apis.FETCH, 11, fetch())
        assert len(answer.responses[0].partitions[0].records) > COUNT * SIZE


async def test_a_closed_side_gets_its_answers_first(tmp_path: Path, sent: list[int]) -> None:
    async with serving(tmp_path, SMALL_BUFFER) as rig:
        peer = await rig.connect()
        await fill(peer)
        request = peer.send(apis.FETCH, 11, fetch())
        peer.writer.write_eof()
        await asyncio.sleep(0.1)
        got, rest = await asyncio.wait_for(peer.answer(), WAIT_S)
        assert got == request and len(rest) > COUNT * SIZE
        assert await asyncio.wait_for(peer.reader.read(), WAIT_S) == b""
        assert sent


async def test_records_that_cannot_be_read_cost_one_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path, SMALL_BUFFER) as rig:
        peer, other = await rig.connect(), await rig.connect()
        await fill(peer)

        def fail(*_: int) -> int:
            raise OSError(errno.EIO, "the disk is broken")

        with monkeypatch.context() as patch:
            patch.setattr(os, "sendfile", fail)
            peer.send(apis.FETCH, 11, fetch())
            assert len(await asyncio.wait_for(peer.reader.read(), WAIT_S)) < 1000
        answer = await other.ask(apis.FETCH, 11, fetch())
        assert len(answer.responses[0].partitions[0].records) > COUNT * SIZE


async def test_without_the_call_everything_is_read(
    tmp_path: Path, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "IS_AVAILABLE", False)
    async with serving(tmp_path, SMALL_BUFFER) as rig:
        peer = await rig.connect()
        await fill(peer)
        answer = await peer.ask(apis.FETCH, 11, fetch())
        assert len(answer.responses[0].partitions[0].records) > COUNT * SIZE and not sent
