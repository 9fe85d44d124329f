"""The producer with kcoord. tests/interop/test_client_producer.py has the same with Kafka."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer

from kcoord.client.producer import Producer, RecordMetadata
from kcoord.testing.fixture import KcoordServer
from kcoord.wire.record_batch import parse_header
from tests.client.producing import PARTITIONS, check_codec, check_killed_connections, check_order, create_topic
from tests.harness import kcoord_server

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("codec", CODECS)
async def test_records_arrive(kcoord: KcoordServer, codec: str | None) -> None:
    await check_codec(kcoord.bootstrap, "t", codec)


async def test_aiokafka_reads_what_was_written(kcoord: KcoordServer) -> None:
    async with Producer(bootstrap_servers=kcoord.bootstrap, compression_type="zstd", linger_ms=0) as producer:
        await asyncio.gather(*[await producer.send_nowait("t", b"%d" % number, partition=0) for number in range(100)])
    found: list[bytes | None] = []
    async with AIOKafkaConsumer("t", bootstrap_servers=kcoord.bootstrap, auto_offset_reset="earliest") as consumer:
        async with asyncio.timeout(30):
            while len(found) < 100:
                found.append((await consumer.getone()).value)
    assert found == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("seed", [1, 2])
async def test_killed_connections(kcoord: KcoordServer, seed: int) -> None:
    await check_killed_connections(kcoord.bootstrap, "t", 3000, seed)


@pytest.mark.slow
async def test_killed_servers(tmp_path: Path) -> None:
    """kill -9 between and during requests; the log has each record once, in order, in batches of one producer."""
    with kcoord_server.KcoordServer(data=tmp_path / "data") as server:
        await create_topic(server.bootstrap, "t")
        sent: list[asyncio.Future[RecordMetadata]] = []
        async with Producer(bootstrap_servers=server.bootstrap, batch_bytes_max=1000, linger_ms=1) as producer:
            killer = asyncio.create_task(_kill(server, 2))
            while not killer.done():
                number = len(sent)
                sent.append(await producer.send_nowait("t", b"%020d" % number, partition=number % PARTITIONS))
                if number % 20 == 0:
                    await asyncio.sleep(0.002)
            await killer
            await producer.flush(60)
        await check_order(server.bootstrap, "t", sent)
    logs = [path.read_bytes() for path in (tmp_path / "data").glob("t-*/*.log")]
    producers = {parse_header(log).producer_id for log in logs if log}
    assert len(producers) == 1


async def _kill(server: kcoord_server.KcoordServer, times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0.4)
        await asyncio.to_thread(server.stop, True)
        await asyncio.to_thread(server.start)
    await asyncio.sleep(0.2)


async def test_cancelled_calls_leave_the_producer_usable(kcoord: KcoordServer) -> None:
    async with Producer(bootstrap_servers=kcoord.bootstrap, linger_ms=20, buffer_bytes_max=2000) as producer:
        await producer.send("t", b"0")
        tasks = [asyncio.create_task(producer.send("t", bytes(900))) for _ in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        for task in tasks[::2]:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await asyncio.gather(*tasks[1::2])
        assert producer._sender is not None
        await producer.flush()
        assert producer._sender.buffer.used == 0
