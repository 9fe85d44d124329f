"""Members of a consumer group (KIP-848) on a server in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kcoord.client.admin.admin import Admin
from kcoord.client.metadata import TopicPartition
from kcoord.testing.fixture import KcoordServer
from tests.client.groups import make_topic
from tests.harness.group_member import GroupMember, group_member, options, until

QUICK = {
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
}


@pytest.fixture
def server() -> Iterator[str]:
    """A server with short heartbeat intervals and sessions."""
    with KcoordServer(QUICK) as server:
        yield server.bootstrap


def is_spread(partitions: list[TopicPartition], *members: GroupMember) -> bool:
    """Whether the members have all partitions, each once, and as evenly as possible."""
    sizes = [len(one.held()) for one in members]
    whole = set().union(*(one.held() for one in members))
    return whole == set(partitions) and sum(sizes) == len(partitions) and max(sizes) - min(sizes) <= 1


async def test_members_join_and_leave(server: str) -> None:
    async with Admin(server) as admin:
        partitions = await make_topic(admin, "orders", 6)
    async with group_member(server) as one:
        one.subscribe("orders")
        one.start_polling()
        await until(lambda: is_spread(partitions, one))
        async with group_member(server) as two:
            two.subscribe("orders")
            two.start_polling()
            await until(lambda: is_spread(partitions, one, two))
            assert one.commits, "offsets are committed before partitions are revoked"
            async with group_member(server, options(client_id="third")) as three:
                three.subscribe("orders")
                three.start_polling()
                await until(lambda: is_spread(partitions, one, two, three))
            assert three.books.names() == ["assigned", "revoked"] and not three.books.held
            await until(lambda: is_spread(partitions, one, two))
        await until(lambda: is_spread(partitions, one))
        assert "lost" not in one.books.names()
    assert not one.books.held
