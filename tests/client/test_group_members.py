"""Members of a consumer group (KIP-848) on a server in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kcoord.client.admin.admin import Admin
from kcoord.client.deadline import Deadline
from kcoord.client.errors import BrokerError, KafkaError
from kcoord.client.metadata import TopicPartition
from kcoord.protocol import errors
from kcoord.testing.fixture import KcoordServer
from tests.client.groups import make_topic
from tests.harness.group_member import WAIT_S, GroupMember, group_member, options, until

QUICK = {
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "1500",
    "group.consumer.max.size": "3",
}


@pytest.fixture
def server() -> Iterator[KcoordServer]:
    """A server with short heartbeat intervals and sessions."""
    with KcoordServer(QUICK) as server:
        yield server


@pytest.fixture
async def partitions(server: KcoordServer) -> list[TopicPartition]:
    async with Admin(server.bootstrap) as admin:
        return await make_topic(admin, "orders", 6)


def is_spread(partitions: list[TopicPartition], *members: GroupMember) -> bool:
    """Whether the members have all partitions, each once, and as evenly as possible."""
    sizes = [len(one.held()) for one in members]
    whole: set[TopicPartition] = set().union(*(one.held() for one in members))
    return whole == set(partitions) and sum(sizes) == len(partitions) and max(sizes) - min(sizes) <= 1


def start(*members: GroupMember) -> None:
    for member in members:
        member.subscribe("orders")
        member.start_polling()


async def test_members_join_and_leave(server: KcoordServer, partitions: list[TopicPartition]) -> None:
    async with group_member(server.bootstrap) as one:
        start(one)
        await until(lambda: is_spread(partitions, one))
        async with group_member(server.bootstrap) as two:
            start(two)
            await until(lambda: is_spread(partitions, one, two))
            assert one.commits, "offsets are committed before partitions are revoked"
            async with group_member(server.bootstrap, options(client_id="third")) as three:
                start(three)
                await until(lambda: is_spread(partitions, one, two, three))
            assert three.books.names() == ["assigned", "revoked"] and not three.books.held
            await until(lambda: is_spread(partitions, one, two))
        await until(lambda: is_spread(partitions, one))
        assert "lost" not in one.books.names()
        await one.stop_polling()
        await one.membership.unsubscribe(Deadline(WAIT_S))
        assert not one.books.held and one.membership.group_metadata().generation_id == -1
        one.subscription.unsubscribe()
        start(one)
        await until(lambda: is_spread(partitions, one))
    assert not one.books.held


async def test_static_members_come_back(server: KcoordServer, partitions: list[TopicPartition]) -> None:
    async with group_member(server.bootstrap, options(group_instance_id="a")) as other:
        start(other)
        async with group_member(server.bootstrap, options(group_instance_id="b")) as first:
            start(first)
            await until(lambda: is_spread(partitions, first, other))
            before = first.held()
            async with group_member(server.bootstrap, options(group_instance_id="b")) as second:
                start(second)
                # The instance id is taken, until its member goes away for a while.
                await asyncio.sleep(0.3)
                assert not second.held() and not second.failures and first.held() == before
                await first.close()
                await until(lambda: second.held() == before, other, second)
                assert other.held() == set(partitions) - before
        # After its session the partitions of a static member go to others.
        await until(lambda: is_spread(partitions, other), other)


async def test_who_does_not_poll_loses_the_partitions(server: KcoordServer, partitions: list[TopicPartition]) -> None:
    async with group_member(server.bootstrap, options(max_poll_interval_s=0.5)) as busy:
        async with group_member(server.bootstrap) as other:
            start(busy, other)
            await until(lambda: is_spread(partitions, busy, other))
            await busy.stop_polling()
            await until(lambda: other.held() == set(partitions), other)
            # Nothing is taken from the user beside the calls.
            assert len(busy.subscription.assigned()) == 3
            assert not busy.membership.is_member()
            busy.start_polling()
            await until(lambda: is_spread(partitions, busy, other))
            assert busy.books.names()[-2:] == ["lost", "assigned"]


async def test_waiting_for_records_is_polling(server: KcoordServer, partitions: list[TopicPartition]) -> None:
    async with group_member(server.bootstrap, options(max_poll_interval_s=0.3)) as member:
        start(member)
        await until(lambda: is_spread(partitions, member))
        await asyncio.sleep(1.0)
        assert member.books.names() == ["assigned"]


async def test_evicted_members_join_again(server: KcoordServer, partitions: list[TopicPartition]) -> None:
    async with group_member(server.bootstrap) as one, group_member(server.bootstrap) as two:
        start(one, two)
        await until(lambda: is_spread(partitions, one, two))
        server.stop()
        await asyncio.sleep(0.2)
        # Groups and topics of this server are in memory, so that it knows nobody.
        server.start()
        async with Admin(server.bootstrap) as admin:
            await make_topic(admin, "orders", 6)
        await until(lambda: "lost" in one.books.names() and "lost" in two.books.names(), one, two)
        await until(lambda: is_spread(partitions, one, two))
        assert not one.failures and not two.failures


async def test_patterns_that_the_coordinator_matches(server: KcoordServer) -> None:
    async with Admin(server.bootstrap) as admin:
        first = await make_topic(admin, "new-1", 2)
        await make_topic(admin, "old-1", 2)
        async with group_member(server.bootstrap) as member:
            member.subscribe_pattern("new-[0-9]")
            member.start_polling()
            await until(lambda: member.held() == set(first), member)
            second = await make_topic(admin, "new-2", 1)
            await until(lambda: member.held() == {*first, *second}, member)
            assert member.subscription.topics == {"new-1", "new-2"}
            # The client asks for their leaders, too, and may still wait for the answer.
            await until(lambda: {"new-1", "new-2"} <= set(member.cluster.metadata.topics), member)
        async with group_member(server.bootstrap, options(group_id="h")) as member:
            member.subscribe_pattern("new-[")
            with pytest.raises(BrokerError, match="INVALID_REGULAR_EXPRESSION"):
                await poll_until_refused(member)


async def poll_until_refused(member: GroupMember) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            member.host.event.clear()
            await member.poll()
            await member.host.event.wait()


async def test_errors_that_the_user_has_to_know(server: KcoordServer, partitions: list[TopicPartition]) -> None:
    async with group_member(server.bootstrap, options(group_remote_assignor="mine")) as member:
        member.subscribe("orders")
        with pytest.raises(BrokerError) as caught:
            await poll_until_refused(member)
        assert caught.value.code == errors.UNSUPPORTED_ASSIGNOR
        # At each poll, until the user unsubscribes.
        with pytest.raises(BrokerError):
            await member.poll()
        await member.membership.unsubscribe(Deadline(WAIT_S))
        member.subscription.unsubscribe()
        await member.membership.poll(Deadline(1.0))
    async with (
        group_member(server.bootstrap) as one,
        group_member(server.bootstrap) as two,
        group_member(server.bootstrap) as three,
        group_member(server.bootstrap) as four,
    ):
        start(one, two, three)
        await until(lambda: is_spread(partitions, one, two, three))
        four.subscribe("orders")
        with pytest.raises(KafkaError, match="GROUP_MAX_SIZE_REACHED"):
            await poll_until_refused(four)


async def test_subscriptions_change(server: KcoordServer, partitions: list[TopicPartition]) -> None:
    async with Admin(server.bootstrap) as admin:
        others = await make_topic(admin, "bills", 2)
    async with group_member(server.bootstrap) as one, group_member(server.bootstrap) as two:
        start(one, two)
        await until(lambda: is_spread(partitions, one, two))
        two.subscribe("bills", "orders")
        await until(lambda: set(others) <= two.held() and len(one.held() | two.held()) == 8, one, two)
        two.subscribe("bills")
        await until(lambda: two.held() == set(others) and one.held() == set(partitions), one, two)
        assert "lost" not in one.books.names() + two.books.names()


async def test_listeners_that_fail(server: KcoordServer, partitions: list[TopicPartition]) -> None:
    """What a listener raises comes out of the poll once, and the rebalance goes on."""

    def fail(name: str) -> None:
        member.books.within = None
        raise RuntimeError(name)

    async with group_member(server.bootstrap) as member:
        member.subscribe("orders")
        member.books.within = fail
        with pytest.raises(RuntimeError, match="assigned"):
            await poll_until_refused(member)
        member.start_polling()
        await until(lambda: member.held() == set(partitions), member)
        await member.stop_polling()
        async with group_member(server.bootstrap) as other:
            start(other)
            member.books.within = fail
            with pytest.raises(RuntimeError, match="revoked"):
                await poll_until_refused(member)
            member.start_polling()
            await until(lambda: is_spread(partitions, member, other))
        member.books.within = fail
        await member.stop_polling()
        with pytest.raises(RuntimeError, match="revoked"):
            await member.membership.close(Deadline(WAIT_S))
        assert not member.subscription.assigned()


async def test_commits_with_the_epoch_of_before(server: KcoordServer, partitions: list[TopicPartition]) -> None:
    """The epoch goes up while a commit is under way: it is made again with the new one."""
    async with group_member(server.bootstrap) as one:
        start(one)
        await until(lambda: is_spread(partitions, one))
        commits = asyncio.create_task(commit_on(one))
        async with group_member(server.bootstrap) as two, group_member(server.bootstrap) as three:
            start(two)
            await until(lambda: is_spread(partitions, one, two))
            start(three)
            await until(lambda: is_spread(partitions, one, two, three))
        await until(lambda: is_spread(partitions, one))
        commits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commits
        assert len(one.commits) > 5


async def commit_on(member: GroupMember) -> None:
    while True:
        await member.commit(1, Deadline(WAIT_S))
        await asyncio.sleep(0)
