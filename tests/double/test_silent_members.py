"""Sessions of hours that end within a second, with the clients of this process; `-s` shows how long they took.

tests/interop/test_java_sessions.py has Java's client.
"""

from __future__ import annotations

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
        pytest.param(librdkafka, CLASSIC, 0.5, marks=pytest.mark.slow),
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
