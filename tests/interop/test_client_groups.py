"""The consumer in groups with a broker of Kafka's, as tests/client has it with kcoord."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kcoord.client import BrokerError, Consumer, KafkaError, TopicPartition
from kcoord.client.consumer.consumer import SubscriptionPattern
from kcoord.client.errors import UnsupportedVersion
from tests.client import rebalancing
from tests.client.test_client_assignors import InTurn
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


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_listener_commits(broker: RealBroker, protocol: str) -> None:
    await rebalancing.check_listener_commits(broker.bootstrap, protocol)


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


async def first_error(consumer: Consumer) -> KafkaError:
    """What the first poll raises."""
    with pytest.raises(KafkaError) as caught:
        await rebalancing.poll_until(lambda: False, consumer)
    return caught.value


async def test_patterns_that_the_coordinator_matches(broker: RealBroker) -> None:
    await rebalancing.create(broker.bootstrap, **{"new-1": 1, "new-2": 1, "old-1": 1})
    async with rebalancing.consumer(broker.bootstrap, "re2", "consumer") as one:
        one.subscribe(pattern=SubscriptionPattern("new-.*"))
        await rebalancing.poll_until(
            lambda: one.assignment() == {TopicPartition("new-1", 0), TopicPartition("new-2", 0)}, one
        )
    async with rebalancing.consumer(broker.bootstrap, "re2", "consumer") as one:
        one.subscribe(pattern=SubscriptionPattern("new-["))
        error = await first_error(one)
        assert isinstance(error, BrokerError) and error.name == "INVALID_REGULAR_EXPRESSION"


async def test_assignors_that_the_broker_does_not_have(broker: RealBroker) -> None:
    await rebalancing.create(broker.bootstrap, t=1)
    async with rebalancing.consumer(broker.bootstrap, "unknown", "consumer", group_remote_assignor="mine") as one:
        one.subscribe(["t"])
        error = await first_error(one)
        assert isinstance(error, BrokerError) and error.name == "UNSUPPORTED_ASSIGNOR"
    async with rebalancing.consumer(broker.bootstrap, "local", "consumer", group_local_assignors=[InTurn()]) as one:
        one.subscribe(["t"])
        error = await first_error(one)
        assert isinstance(error, UnsupportedVersion) and "client-side assignors" in str(error)
