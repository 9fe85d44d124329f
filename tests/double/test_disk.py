"""Disks that are slow, fail or are full, under real clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaProducer

from kcoord.server.failures import ServerError
from kcoord.testing.fixture import KcoordServer

WAIT_S = 60.0


@pytest.fixture
def server() -> Iterator[KcoordServer]:
    with KcoordServer(memory_disk=True) as server:
        yield server


async def test_a_write_waits_for_a_slow_disk(server: KcoordServer) -> None:
    async with AIOKafkaProducer(bootstrap_servers=server.bootstrap) as producer:
        await producer.send_and_wait("orders", b"1")
        with server.slow_disk(0.3):
            began = time.monotonic()
            await producer.send_and_wait("orders", b"2")
            assert time.monotonic() - began >= 0.3


async def test_nothing_acknowledged_is_lost_by_a_failing_disk(server: KcoordServer) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=server.bootstrap, enable_idempotence=True, request_timeout_ms=5000
    ) as producer:
        await producer.send_and_wait("orders", b"1")
        with server.failing_disk():
            sending = asyncio.create_task(producer.send_and_wait("orders", b"2"))
            end = time.monotonic() + WAIT_S
            while server.is_running:
                assert time.monotonic() < end
                await asyncio.sleep(0.01)
        with pytest.raises(ServerError, match="a test has made this disk fail"):
            server.check()
        server.start()
        await asyncio.wait_for(sending, WAIT_S)
    assert [one.value for one in server.records("orders")] == [b"1", b"2"]


@pytest.mark.parametrize("memory_disk", [False, True])
async def test_a_producer_waits_until_the_disk_has_space(memory_disk: bool) -> None:
    with KcoordServer(memory_disk=memory_disk) as server:
        async with AIOKafkaProducer(bootstrap_servers=server.bootstrap) as producer:
            await producer.send_and_wait("orders", b"1")
            with server.full_disk():
                sending = asyncio.create_task(producer.send_and_wait("orders", b"2"))
                refused = await asyncio.to_thread(server.wait_request, "Produce", count=2)
                assert refused.errors == ["KAFKA_STORAGE_ERROR"]
                assert not sending.done()
            await asyncio.wait_for(sending, WAIT_S)
        assert [one.value for one in server.records("orders")] == [b"1", b"2"]


def test_a_disk_that_cannot_be_disturbed(kcoord: KcoordServer) -> None:
    with pytest.raises(ValueError, match=r"KcoordServer\(memory_disk=True\)"), kcoord.slow_disk(1.0):
        pass
