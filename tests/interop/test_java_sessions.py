"""Sessions of hours that end within a second, with Kafka's Java client; see tests/double/test_silent_members.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kcoord.testing.fixture import KcoordServer
from tests.harness.retries import CLASSIC, CONSUMER
from tests.harness.silent_member import LIVE, SERVER, SESSION_HOURS, SESSION_MS, SILENT, check
from tests.interop.java_steps import JavaConsumer, JavaSteps


@pytest.fixture
def server() -> Iterator[KcoordServer]:
    with KcoordServer(SERVER, clock="virtual") as server:
        yield server


@pytest.mark.parametrize("protocol", [CLASSIC, CONSUMER])
async def test_a_silent_member(steps: JavaSteps, server: KcoordServer, protocol: str) -> None:
    settings = {"session.timeout.ms": SESSION_MS} if protocol == CLASSIC else {}
    members = [
        JavaConsumer(steps, server.bootstrap, "orders", protocol, **{**settings, "client.id": client_id})
        for client_id in (LIVE, SILENT)
    ]
    took_ms = await check(server, "orders", protocol, members[0], members[1], SESSION_HOURS)
    print(f"Java, {protocol}: a session of {SESSION_HOURS} h ended in {took_ms:.0f} ms")
    assert took_ms < 10_000
