"""The consumer without a group's assignment, with kcoord. tests/interop/test_client_consumer.py has it with Kafka."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kcoord.client import Consumer, Producer, TopicPartition
from kcoord.client.errors import IllegalState, InvalidConfiguration
from kcoord.testing.fixture import KcoordServer
from tests.client import consuming
from tests.client.producing import PARTITIONS, create_topic
from tests.harness import kcoord_server


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_codecs(kcoord: KcoordServer, codec: str | None) -> None:
    await consuming.check_codec(kcoord.bootstrap, "t", codec)


async def test_positions(kcoord: KcoordServer) -> None:
    await consuming.check_positions(kcoord.bootstrap, "t")


async def test_iteration(kcoord: KcoordServer) -> None:
    await consuming.check_iteration(kcoord.bootstrap, "t")


async def test_commits(kcoord: KcoordServer) -> None:
    await consuming.check_commits(kcoord.bootstrap, "t")


async def test_resets(kcoord: KcoordServer) -> None:
    await consuming.check_resets(kcoord.bootstrap, "t")


async def test_isolation(kcoord: KcoordServer) -> None:
    await consuming.check_isolation(kcoord.bootstrap, "t")


async def test_deserializers(kcoord: KcoordServer) -> None:
    await consuming.check_deserializers(kcoord.bootstrap, "t")


async def test_memory(kcoord: KcoordServer) -> None:
    await consuming.check_memory(kcoord.bootstrap, "t")


async def test_group_ids(kcoord: KcoordServer, caplog: pytest.LogCaptureFixture) -> None:
    await consuming.check_group_ids(kcoord.bootstrap, "t", caplog)


async def test_a_topic_that_comes_later(kcoord: KcoordServer) -> None:
    async with Consumer(bootstrap_servers=kcoord.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("later", 0)])
        assert await consumer.poll(0.2) == []
        await consuming.write(kcoord.bootstrap, "later", 3)
        assert len(await consuming.read(consumer, 1)) == 1


async def test_one_task_at_a_time(kcoord: KcoordServer) -> None:
    await create_topic(kcoord.bootstrap, "t")
    async with Consumer(bootstrap_servers=kcoord.bootstrap) as consumer:
        with pytest.raises(IllegalState, match="not subscribed"):
            await consumer.poll()
        consumer.assign([TopicPartition("t", 0)])
        waiting = asyncio.create_task(consumer.poll(5.0))
        await asyncio.sleep(0.05)
        with pytest.raises(IllegalState, match="one task"):
            await consumer.poll()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(IllegalState, match="not assigned"):
            consumer.seek(TopicPartition("t", 1), 0)
        with pytest.raises(InvalidConfiguration):
            consumer.seek(TopicPartition("t", 0), -1)
    with pytest.raises(IllegalState, match="closed"):
        await consumer.poll()


async def test_modes_do_not_mix(kcoord: KcoordServer) -> None:
    consumer = Consumer(bootstrap_servers=kcoord.bootstrap, group_id="g", enable_auto_commit=False)
    consumer.assign([TopicPartition("t", 0)])
    with pytest.raises(IllegalState, match="unsubscribe before"):
        consumer.subscribe(["t"])
    consumer.assign([])
    consumer.subscribe(["t"])
    with pytest.raises(IllegalState, match="unsubscribe before"):
        consumer.assign([TopicPartition("t", 0)])
    mistakes: list[tuple[str | list[str], str | None]] = [("t", None), ([], None), (["t"], "t")]
    for topics, pattern in mistakes:
        with pytest.raises(InvalidConfiguration):
            consumer.subscribe(topics, pattern)
    await consumer.stop()


async def test_a_killed_server(tmp_path: Path) -> None:
    """Whatever happens to the server, each record is read once, in order."""
    count = 3000
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    with kcoord_server.KcoordServer({"log.sync": "os"}, tmp_path / "data") as server:
        await create_topic(server.bootstrap, "t")
        async with (
            Producer(bootstrap_servers=server.bootstrap, retry_backoff_ms=20) as producer,
            Consumer(bootstrap_servers=server.bootstrap, auto_offset_reset="earliest") as consumer,
        ):
            consumer.assign([TopicPartition("t", number) for number in range(PARTITIONS)])
            for number in range(count):
                await producer.send_nowait("t", b"%d" % number, partition=number % PARTITIONS)
                if number % 50 == 0:
                    for record in await consumer.poll(0.01):
                        found[record.partition].append(int(record.value))
                if number in (700, 1900):
                    await asyncio.to_thread(server.stop, True)
                    await asyncio.to_thread(server.start)
            await producer.flush()
            for record in await consuming.read(consumer, count - sum(len(one) for one in found)):
                found[record.partition].append(int(record.value))
    assert found == [list(range(number, count, PARTITIONS)) for number in range(PARTITIONS)]
