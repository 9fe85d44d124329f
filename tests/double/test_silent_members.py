"""Sessions of hours that end within a second, with the clients of this process; `-s` shows how long they took.

tests/interop/test_java_sessions.py has Java's client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from kcoord.testing.fixture import KcoordServer
from tests.harness.retries import CLASSIC, CONSUMER, ConsumerDriver
from tests.harness.retry_clients import AiokafkaConsumer, ConfluentConsumer, OwnConsumer
from tests.harness.silent_member import LIVE, SERVER, SESSION_HOURS, SILENT, check

HOUR_MS: Final = 3_600_000


def librdkafka(bootstrap: str, group: str, protocol: str, client_id: str, hours: float) -> ConsumerDriver:
    settings: dict[str, Any] = {"client.id": client_id}
    if protocol == CLASSIC:
        settings["session.timeout.ms"] = settings["max.poll.interval.ms"] = round(hours * HOUR_MS)
    return ConfluentConsumer(bootstrap, group, protocol, **settings)


def aiokafka(bootstrap: str, group: str, protocol: str, client_id: str, hours: float) -> ConsumerDriver:
    return AiokafkaConsumer(bootstrap, group, client_id=client_id, session_timeout_ms=round(hours * HOUR_MS))


def own(bootstrap: str, group: str, protocol: str, client_id: str, hours: float) -> ConsumerDriver:
    settings = {"session_timeout_ms": round(hours * HOUR_MS)} if protocol == CLASSIC else {}
    return OwnConsumer(bootstrap, group, protocol, client_id=client_id, **settings)


@pytest.fixture(scope="module")
def shared() -> Iterator[KcoordServer]:
    with KcoordServer(SERVER, clock="virtual") as server:
        yield server


@pytest.fixture
def server(shared: KcoordServer) -> KcoordServer:
    shared.reset()
    return shared


# librdkafka multiplies by 1000 in 32 bits: with more than 2147 seconds its own session is over at once.
@pytest.mark.parametrize(
    ("client", "protocol", "hours"),
    [
        pytest.param(librdkafka, CLASSIC, 0.5, marks=pytest.mark.nightly),
        (librdkafka, CONSUMER, SESSION_HOURS),
        (aiokafka, CLASSIC, SESSION_HOURS),
        (own, CONSUMER, SESSION_HOURS),
    ],
)
async def test_a_silent_member(
    server: KcoordServer, client: Callable[..., ConsumerDriver], protocol: str, hours: float
) -> None:
    members = [client(server.bootstrap, "orders", protocol, client_id, hours) for client_id in (LIVE, SILENT)]
    took_ms = await check(server, "orders", protocol, members[0], members[1], hours)
    print(f"{client.__name__}, {protocol}: a session of {hours:g} h ended in {took_ms:.0f} ms")
    assert took_ms < 10_000


@pytest.mark.nightly
@pytest.mark.parametrize(("session_ms", "is_good"), [(2_147_483, True), (2_147_484, False)])
async def test_the_longest_session_of_librdkafka(server: KcoordServer, session_ms: int, is_good: bool) -> None:
    """docs/testing.md warns of it. With a longer one it joins again at once, as a new member."""
    await asyncio.to_thread(server.create_topic, "orders")
    settings = {"session.timeout.ms": session_ms, "max.poll.interval.ms": HOUR_MS}
    consumer = ConfluentConsumer(server.bootstrap, "orders", CLASSIC, **settings)
    await consumer.start()
    end = time.monotonic() + 4
    while time.monotonic() < end:
        await consumer.poll(0.1)
    await consumer.close()
    first_joins = [one for one in server.requests("JoinGroup") if one.errors == ["MEMBER_ID_REQUIRED"]]
    assert (len(first_joins) == 1) == is_good
