"""A whole server on a loop: how it ends, and that a client that reads slowly gets everything in the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersionsRequest
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kcoord.protocol.heartbeat import HeartbeatRequest
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.server.failures import EXIT_CONFIG, EXIT_STORAGE, ServerError
from kcoord.server.logs import ServerLog
from kcoord.server.server import Server
from kcoord.server.settings.load import load
from kcoord.wire.record_batch import BatchBuilder
from tests.harness.engine import decode_answer, request_frame

SIZE = 900_000
# What has to happen happens long before: a machine may be busy with other things for seconds.
WAIT_S = 60.0
# What nobody may wait for, so that whoever does is noticed.
FOR_EVER_MS = 3_600_000


class Peer:
    """A client by hand: frames out, answers in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.correlation_id = 0

    def send(self, api_key: int, version: int, message: Any) -> int:
        self.correlation_id += 1
        self.writer.write(request_frame(api_key, version, message, self.correlation_id))
        return self.correlation_id

    async def answer(self) -> tuple[int, bytes]:
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        frame = await self.reader.readexactly(size)
        return int.from_bytes(frame[:4], "big"), frame[4:]

    async def ask(self, api_key: int, version: int, message: Any) -> Any:
        correlation_id = self.send(api_key, version, message)
        got, rest = await asyncio.wait_for(self.answer(), WAIT_S)
        assert got == correlation_id
        return decode_answer(api_key, version, rest)


class Rig:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.ended = asyncio.get_running_loop().create_task(server.wait())

    async def connect(self) -> Peer:
        port = self.server.addresses[0][1]
        return Peer(*await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), WAIT_S))


@asynccontextmanager
async def serving(data: Path, *assignments: str) -> AsyncIterator[Rig]:
    config = load(assignments=assignments, listen=["127.0.0.1:0"], data=str(data))
    server = Server(config, ServerLog(None))
    await server.start()
    rig = Rig(server)
    try:
        yield rig
    finally:
        server.request_stop()
        with suppress(ServerError):
            await asyncio.wait_for(rig.ended, WAIT_S)


async def until(is_true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < end, f"waited {WAIT_S} s for {what}"
        await asyncio.sleep(0.02)


def event(rig: Rig, name: str) -> list[dict[str, object]]:
    return [line for line in rig.server.log.recent if line["event"] == name]


def topic(name: str = "t") -> CreateTopicsRequest:
    return CreateTopicsRequest([CreatableTopic(name, 1, 1)])


def records(size: int) -> ProduceRequest:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, bytes(size))
    return ProduceRequest(
        None,
        -1,
        1000,
        [TopicProduceData("t", partition_data=[PartitionProduceData(0, builder.build(0, -1))])],
    )


def fetch(offset: int = 0, max_wait_ms: int = 0) -> FetchRequest:
    partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 30)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 30,
        session_epoch=-1,
        topics=[FetchTopic("t", partitions=[partition])],
    )


def commit(offset: int) -> OffsetCommitRequest:
    topics = [OffsetCommitRequestTopic("t", bytes(16), [OffsetCommitRequestPartition(0, offset, -1, "")])]
    return OffsetCommitRequest("g", -1, "", None, -1, topics)


async def test_a_client_that_reads_late_gets_every_answer_in_order(tmp_path: Path) -> None:
    async with serving(tmp_path, "log.reserve.bytes=0") as rig:
        peer = await rig.connect()
        await peer.ask(apis.CREATE_TOPICS, 5, topic())
        for _ in range(4):
            await peer.ask(apis.PRODUCE, 9, records(SIZE))
        sent = [peer.send(apis.FETCH, 11, fetch()) for _ in range(40)]
        sent.append(peer.send(apis.OFFSET_COMMIT, 8, commit(1)))
        sent.append(peer.send(apis.HEARTBEAT, 4, HeartbeatRequest("g", 1, "m")))
        (connection,) = rig.server.pump.connections.values()
        await until(lambda: connection.is_output_full, "the answers to fill the buffers")
        held = connection.session.owed_bytes + connection.transport.get_write_buffer_size()
        assert held < 60_000_000
        assert [(await asyncio.wait_for(peer.answer(), WAIT_S))[0] for _ in sent] == sent
        assert rig.server.pump.held_bytes == 0
        # And it is listened to again.
        await peer.ask(apis.API_VERSIONS, 3, ApiVersionsRequest("x", "1"))


async def test_a_fault_in_the_sweep_ends_the_server(tmp_path: Path) -> None:
    """Without it nobody would watch the disk or write the durable marks, and nobody would know."""

    async with serving(tmp_path) as rig:
        assert rig.server.assembly is not None

        def broken() -> int:
            raise OSError(5, "the disk is gone")

        rig.server.assembly.directory.storage.free_bytes = broken  # type: ignore[method-assign]
        with pytest.raises(ServerError) as caught:
            await asyncio.wait_for(rig.ended, WAIT_S)
        assert caught.value.code == EXIT_STORAGE


async def test_a_stop_does_not_wait_for_parked_joins_and_polls(tmp_path: Path) -> None:
    patient = (f"group.initial.rebalance.delay.ms={FOR_EVER_MS}", f"shutdown.deadline.ms={FOR_EVER_MS}")
    async with serving(tmp_path, "log.reserve.bytes=0", *patient) as rig:
        admin, joiner, poller = [await rig.connect() for _ in range(3)]
        await admin.ask(apis.CREATE_TOPICS, 5, topic())
        protocols = [JoinGroupRequestProtocol("range", b"")]
        join = JoinGroupRequest("g", 10000, FOR_EVER_MS, "", None, "consumer", protocols)
        joiner.send(apis.JOIN_GROUP, 3, join)
        poller.send(apis.FETCH, 11, fetch(0, FOR_EVER_MS))
        parked = rig.server.pump.engine.applier.parked  # type: ignore[attr-defined]
        await until(lambda: len(parked) == 2, "both to wait")
        committed = admin.send(apis.OFFSET_COMMIT, 8, commit(7))
        while rig.server.pump.is_quiet():
            await asyncio.sleep(0)  # until it was read
        rig.server.request_stop()
        assert (await asyncio.wait_for(admin.answer(), WAIT_S))[0] == committed
        await asyncio.wait_for(rig.ended, WAIT_S)
        for peer in (joiner, poller):
            with suppress(ConnectionError):
                assert await asyncio.wait_for(peer.reader.read(), WAIT_S) == b""


def many_headers(count: int = 200_000) -> ProduceRequest:
    """A batch that takes more than a turn to look at."""
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, b"", [("", None)] * count)
    data = [PartitionProduceData(0, builder.build(0, -1, codec=4))]
    return ProduceRequest(None, -1, 1000, [TopicProduceData("t", partition_data=data)])


@pytest.mark.slow
async def test_others_are_answered_while_records_are_checked(tmp_path: Path) -> None:
    async with serving(tmp_path, "log.reserve.bytes=0") as rig:
        peer = await rig.connect()
        await peer.ask(apis.CREATE_TOPICS, 5, topic())
        body = many_headers()
        producers = [await rig.connect() for _ in range(6)]
        sent = [producer.send(apis.PRODUCE, 9, body) for producer in producers]
        engine: Any = rig.server.pump.engine
        while not engine.is_checking():
            await asyncio.sleep(0)
        beats = 0
        while engine.is_checking():
            await peer.ask(apis.HEARTBEAT, 4, HeartbeatRequest("g", 1, "m"))
            beats += 1
        assert beats > 0
        offsets = []
        for producer, number in zip(producers, sent, strict=True):
            got, rest = await asyncio.wait_for(producer.answer(), WAIT_S)
            answer = decode_answer(apis.PRODUCE, 9, rest).responses[0].partition_responses[0]
            assert (got, answer.error_code) == (number, 0)
            offsets.append(answer.base_offset)
        assert sorted(offsets) == list(range(6))


async def test_a_stop_answers_producers_whose_records_are_checked(tmp_path: Path) -> None:
    patient = ("log.reserve.bytes=0", f"shutdown.deadline.ms={FOR_EVER_MS}")
    async with serving(tmp_path, *patient) as rig:
        peer = await rig.connect()
        await peer.ask(apis.CREATE_TOPICS, 5, topic())
        number = peer.send(apis.PRODUCE, 9, many_headers())
        engine: Any = rig.server.pump.engine
        while not engine.is_checking():
            await asyncio.sleep(0)
        rig.server.request_stop()
        got, rest = await asyncio.wait_for(peer.answer(), WAIT_S)
        assert got == number
        assert decode_answer(apis.PRODUCE, 9, rest).responses[0].partition_responses[0].error_code == 0
        await asyncio.wait_for(rig.ended, WAIT_S)


async def test_a_failed_write_ends_the_server_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = ("log.reserve.bytes=0", f"shutdown.deadline.ms={FOR_EVER_MS}")
    async with serving(tmp_path, *patient) as rig:
        peer = await rig.connect()
        await peer.ask(apis.CREATE_TOPICS, 5, topic())
        await peer.ask(apis.PRODUCE, 9, records(10))

        def broken(_file: object, _data: bytes) -> int:
            raise OSError(5, "the disk is gone")

        monkeypatch.setattr("kcoord.log.storage.DiskFile.append", broken)
        peer.send(apis.PRODUCE, 9, records(10))
        with pytest.raises(ServerError) as caught:
            await asyncio.wait_for(rig.ended, WAIT_S)
        assert caught.value.code == EXIT_STORAGE
        # Nothing is drained and nobody is waited for.
        assert not event(rig, "stopping")
        with suppress(ConnectionError):
            assert await asyncio.wait_for(peer.reader.read(), WAIT_S) == b""


async def test_nobody_is_answered_before_the_state_is_prepared(tmp_path: Path) -> None:
    prepared: list[Peer] = []

    async def prepare(server: Server) -> None:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", server.addresses[0][1]))
        peer.send(apis.API_VERSIONS, 0, ApiVersionsRequest())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.answer(), 0.2)
        prepared.append(Peer(*await asyncio.open_connection("127.0.0.1", server.addresses[0][1])))

    config = load(listen=["127.0.0.1:0"], data=str(tmp_path))
    server = Server(config, ServerLog(None), prepare=prepare)
    await server.start()
    rig = Rig(server)
    await prepared[0].ask(apis.API_VERSIONS, 0, ApiVersionsRequest())
    server.request_stop()
    await asyncio.wait_for(rig.ended, WAIT_S)


async def test_a_state_that_cannot_be_prepared_ends_the_start(tmp_path: Path) -> None:
    async def prepare(_: Server) -> None:
        raise ServerError(EXIT_CONFIG, "no such topic")

    config = load(listen=["127.0.0.1:0"], data=str(tmp_path))
    server = Server(config, ServerLog(None), prepare=prepare)
    with pytest.raises(ServerError, match="no such topic"):
        await server.start()
    # Nothing is left open.
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.addresses[0][1])
    async with serving(tmp_path):
        pass
