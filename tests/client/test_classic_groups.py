"""The consumer in classic groups, with kcoord. tests/interop/test_client_groups.py has the same with Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest

from kcoord.client.consumer.assignors.base import Assignments, MemberSubscription, PartitionAssignor, TopicInfo
from kcoord.client.metadata import TopicPartition
from kcoord.testing.fixture import KcoordServer
from tests.client import rebalancing

PROTOCOL = "classic"


async def test_topic_subscription(kcoord: KcoordServer) -> None:
    await rebalancing.check_topic_subscription(kcoord.bootstrap, PROTOCOL)


async def test_pattern_subscription(kcoord: KcoordServer) -> None:
    await rebalancing.check_pattern_subscription(kcoord.bootstrap, PROTOCOL)


async def test_unsubscribe(kcoord: KcoordServer) -> None:
    await rebalancing.check_unsubscribe(kcoord.bootstrap, PROTOCOL)


async def test_listener_commits(kcoord: KcoordServer) -> None:
    await rebalancing.check_listener_commits(kcoord.bootstrap, PROTOCOL)


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
async def test_members_come_and_go(kcoord: KcoordServer, assignor: str) -> None:
    await rebalancing.check_members_come_and_go(kcoord.bootstrap, PROTOCOL, partition_assignment_strategy=[assignor])


async def test_eviction(kcoord: KcoordServer) -> None:
    await rebalancing.check_eviction(kcoord.bootstrap, PROTOCOL)


async def test_static_member(kcoord: KcoordServer) -> None:
    await rebalancing.check_static_member(kcoord.bootstrap, PROTOCOL)


async def test_partitions_are_added(kcoord: KcoordServer) -> None:
    await rebalancing.check_partitions_are_added(kcoord.bootstrap, PROTOCOL)


async def test_listener_errors(kcoord: KcoordServer) -> None:
    await rebalancing.check_listener_errors(kcoord.bootstrap, PROTOCOL)


class LastTakesAll(PartitionAssignor):
    """An assignor of one's own."""

    name: ClassVar[str] = "last-takes-all"

    def assign(self, topics: Mapping[str, TopicInfo], members: Mapping[str, MemberSubscription]) -> Assignments:
        last = max(members, key=lambda name: members[name].user_data or b"")
        everything = [
            TopicPartition(name, number) for name, info in topics.items() for number in range(info.partition_count)
        ]
        return {last: everything}

    def __init__(self, rank: bytes = b"") -> None:
        self.rank = rank

    def user_data(self, topics: object) -> bytes:
        return self.rank


async def test_an_assignor_of_ones_own(kcoord: KcoordServer) -> None:
    await rebalancing.create(kcoord.bootstrap, t=4)
    strategies = [[LastTakesAll(rank)] for rank in (b"a", b"b")]
    low, high = (
        rebalancing.consumer(kcoord.bootstrap, "g", PROTOCOL, partition_assignment_strategy=strategy)
        for strategy in strategies
    )
    async with low, high:
        low.subscribe(["t"])
        await rebalancing.poll_until(lambda: len(low.assignment()) == 4, low)
        high.subscribe(["t"])
        await rebalancing.poll_until(lambda: len(high.assignment()) == 4 and not low.assignment(), low, high)
