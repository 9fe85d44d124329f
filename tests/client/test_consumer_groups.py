"""The consumer in consumer groups (KIP-848), with kcoord; with Kafka: tests/interop/test_client_groups.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kcoord.testing.fixture import KcoordServer
from tests.client import rebalancing
from tests.client.test_group_members import QUICK

PROTOCOL = "consumer"


@pytest.fixture
def server() -> Iterator[str]:
    with KcoordServer({**QUICK, "group.consumer.session.timeout.ms": "10000"}) as server:
        yield server.bootstrap


async def test_topic_subscription(server: str) -> None:
    await rebalancing.check_topic_subscription(server, PROTOCOL)


async def test_pattern_subscription(server: str) -> None:
    await rebalancing.check_pattern_subscription(server, PROTOCOL)


async def test_unsubscribe(server: str) -> None:
    await rebalancing.check_unsubscribe(server, PROTOCOL)


@pytest.mark.parametrize("assignor", [None, "range"])
async def test_members_come_and_go(server: str, assignor: str | None) -> None:
    await rebalancing.check_members_come_and_go(server, PROTOCOL, group_remote_assignor=assignor)


async def test_eviction(server: str) -> None:
    await rebalancing.check_eviction(server, PROTOCOL)


async def test_static_member(server: str) -> None:
    await rebalancing.check_static_member(server, PROTOCOL)


async def test_partitions_are_added(server: str) -> None:
    await rebalancing.check_partitions_are_added(server, PROTOCOL)


async def test_listener_errors(server: str) -> None:
    await rebalancing.check_listener_errors(server, PROTOCOL)
