"""Waits on groups: they end when the server sees the state, and a failed one shows what it saw."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka.admin import AdminClient

from kcoord.testing.fixture import KcoordServer, WaitTimeout

WAIT_S = 30.0


async def read(consumer: AIOKafkaConsumer, count: int) -> None:
    for _ in range(count):
        await asyncio.wait_for(consumer.getone(), WAIT_S)


def member(kcoord: KcoordServer, **settings: object) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        "orders", bootstrap_servers=kcoord.bootstrap, group_id="billing", auto_offset_reset="earliest",
        enable_auto_commit=False, **settings,
    )  # fmt: skip


async def test_the_life_of_a_group(kcoord: KcoordServer) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kcoord.bootstrap) as producer:
        for number in range(10):
            await producer.send_and_wait("orders", str(number).encode())
    assert kcoord.lag("billing") == -1
    first = member(kcoord)
    await first.start()
    await kcoord.wait_members_async("billing", 1)
    second = member(kcoord)
    await second.start()
    await kcoord.wait_stable_async("billing", members=2)
    reader = first if first.assignment() else second
    await read(reader, 4)
    await reader.commit()
    assert kcoord.lag("billing") == 6
    await kcoord.wait_lag_async("billing", 6)
    with pytest.raises(WaitTimeout, match="to have a lag of at most 5 in orders"):
        await kcoord.wait_lag_async("billing", 5, topic="orders", timeout=0.05)
    await read(reader, 6)
    waiting = asyncio.create_task(kcoord.wait_lag_async("billing"))
    await reader.commit()
    await asyncio.wait_for(waiting, WAIT_S)
    await first.stop()
    await second.stop()
    await kcoord.wait_empty_async("billing")
    assert kcoord.state("billing") == "Empty"


async def test_a_member_that_goes_silent_leaves_when_its_session_ends(kcoord: KcoordServer) -> None:
    consumer = member(kcoord, session_timeout_ms=500, heartbeat_interval_ms=100)
    await consumer.start()
    await kcoord.wait_stable_async("billing", members=1)
    hold = kcoord.hold(group="billing")
    await kcoord.wait_empty_async("billing")
    hold.release()
    await consumer.stop()


def test_waiting_asks_nothing_of_the_server_s_port(kcoord: KcoordServer) -> None:
    with pytest.raises(WaitTimeout):
        kcoord.wait_stable("billing", timeout=0.3)
    assert kcoord.requests() == []


def test_a_wait_ends_with_the_server(kcoord_server: KcoordServer) -> None:
    """And not after its timeout."""
    with KcoordServer() as server:
        ended: list[BaseException] = []

        def wait() -> None:
            try:
                server.wait_stable("billing", timeout=WAIT_S)
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=wait)
        began = time.monotonic()
        thread.start()
        time.sleep(0.1)
        server.stop()
        thread.join(WAIT_S)
        assert time.monotonic() - began < WAIT_S / 2
        assert ended and not isinstance(ended[0], WaitTimeout)
        server.start()


def test_a_wait_says_that_old_requests_are_forgotten(kcoord: KcoordServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcoord.testing.double.exchanges.EXCHANGES_MAX", 2)
    admin = AdminClient({"bootstrap.servers": kcoord.bootstrap})
    for _ in range(3):
        admin.list_topics(timeout=WAIT_S)
    assert len(kcoord.requests()) == 2
    with pytest.raises(WaitTimeout, match="[0-9]+ older requests are not remembered"):
        kcoord.wait_request("Produce", timeout=0.05)
    kcoord.reset()
    assert kcoord.requests() == []
