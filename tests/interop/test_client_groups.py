"""The consumer in groups with a broker of Kafka's, as tests/client has it with kcoord."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client import rebalancing
from tests.harness.real_broker import RealBroker

PROTOCOLS = ("classic", "consumer")


QUICK = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "0",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[RealBroker]:
    with RealBroker(QUICK) as running:
        yield running


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_topic_subscription(broker: RealBroker, protocol: str) -> None:
    await rebalancing.check_topic_subscription(broker.bootstrap, protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_pattern_subscription(broker: RealBroker, protocol: str) -> None:
    await rebalancing.check_pattern_subscription(broker.bootstrap, protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_unsubscribe(broker: RealBroker, protocol: str) -> None:
    await rebalancing.check_unsubscribe(broker.bootstrap, protocol)


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
async def test_members_come_and_go(broker: RealBroker, assignor: str) -> None:
    await rebalancing.check_members_come_and_go(broker.bootstrap, "classic", partition_assignment_strategy=[assignor])


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_eviction(broker: RealBroker, protocol: str) -> None:
    await rebalancing.check_eviction(broker.bootstrap, protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_static_member(broker: RealBroker, protocol: str) -> None:
    await rebalancing.check_static_member(broker.bootstrap, protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_partitions_are_added(broker: RealBroker, protocol: str) -> None:
    await rebalancing.check_partitions_are_added(broker.bootstrap, protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_listener_errors(broker: RealBroker, protocol: str) -> None:
    await rebalancing.check_listener_errors(broker.bootstrap, protocol)
