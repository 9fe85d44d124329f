"""Members of a consumer group that compute the assignment themselves (KIP-848's client-side assignors)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import final

import pytest

from kcoord.client import Consumer
from kcoord.client.admin.admin import Admin
from kcoord.client.consumer.consumer_group.assignor import (
    AssignorError,
    AssignorMetadata,
    ClientAssignor,
    GroupSpec,
    MemberAssignment,
)
from kcoord.client.errors import AssignorFailed, InvalidConfiguration
from kcoord.client.metadata import TopicPartition
from kcoord.testing.fixture import KcoordServer
from tests.client.groups import consumer_member, make_topic
from tests.client.test_group_members import QUICK, is_spread, start
from tests.harness.group_member import GroupMember, group_member, options, until


@pytest.fixture
def server() -> Iterator[KcoordServer]:
    with KcoordServer(QUICK) as server:
        yield server


@pytest.fixture
async def partitions(server: KcoordServer) -> list[TopicPartition]:
    async with Admin(server.bootstrap) as admin:
        return await make_topic(admin, "orders", 6)


@final
class InTurn(ClientAssignor):
    """Round robin by member id. Members that name an earlier letter in their metadata come first."""

    name = "in-turn"
    maximum_version = 2

    def __init__(self, letter: str = "m") -> None:
        self.letter = letter
        self.version = 1
        self.reason = 0
        self.groups: list[GroupSpec] = []
        self.heard: list[tuple[AssignorMetadata, int]] = []
        self.fails_with: Exception | None = None
        # Set while it computes; it goes on when `may_go_on` is set.
        self.is_computing = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    def metadata(self) -> AssignorMetadata:
        return AssignorMetadata(self.version, self.letter.encode(), self.reason)

    async def assign(self, group: GroupSpec) -> Mapping[str, MemberAssignment]:
        self.groups.append(group)
        self.is_computing.set()
        await self.may_go_on.wait()
        self.is_computing.clear()
        if self.fails_with is not None:
            raise self.fails_with
        order = sorted(group.members.values(), key=lambda member: (member.metadata.data, member.member_id))
        assigned: dict[str, list[TopicPartition]] = {member.member_id: [] for member in order}
        for topic, count in group.topics.items():
            for number in range(count):
                assigned[order[number % len(order)].member_id].append(TopicPartition(topic, number))
        metadata = AssignorMetadata(1, b"%d" % len(order))
        return {member_id: MemberAssignment(found, metadata) for member_id, found in assigned.items()}

    def on_assignment(self, metadata: AssignorMetadata, error: int) -> None:
        self.heard.append((metadata, error))

    @property
    def last(self) -> tuple[int, bytes]:
        """The error and the data that came with the last assignment."""
        return (self.heard[-1][1], self.heard[-1][0].data) if self.heard else (-1, b"")


@asynccontextmanager
async def assigning(server: KcoordServer, assignor: ClientAssignor, **changes: object) -> AsyncIterator[GroupMember]:
    async with group_member(server.bootstrap, options(**changes), (assignor,)) as member:
        yield member


def numbers(member: GroupMember) -> list[int]:
    return sorted(partition.partition for partition in member.held())


async def test_members_compute(server: KcoordServer, partitions: list[TopicPartition]) -> None:
    a, b, c = InTurn("a"), InTurn("b"), InTurn("c")
    async with (
        assigning(server, a, client_rack="r1") as one,
        assigning(server, b) as two,
        assigning(server, c) as three,
    ):
        start(one)
        await until(lambda: is_spread(partitions, one) and a.last == (0, b"1"), one)
        start(two, three)
        await until(lambda: (numbers(one), numbers(two), numbers(three)) == ([0, 3], [1, 4], [2, 5]), one, two, three)
        await until(lambda: a.last == b.last == c.last == (0, b"3"), one, two, three)
        specs = [spec for assignor in (a, b, c) for spec in assignor.groups if len(spec.members) == 3]
        assert specs[-1].topics == {"orders": 6}
        first = specs[-1].members[one.membership.group_metadata().member_id]
        assert first.topics == {"orders"} and first.rack_id == "r1" and first.metadata == AssignorMetadata(1, b"a", 0)
        assert first.target
        # Other metadata, another assignment.
        a.letter = "z"
        await until(lambda: (numbers(one), numbers(two), numbers(three)) == ([2, 5], [0, 3], [1, 4]), one, two, three)
        # The same metadata with another reason: computed again, and the members are told.
        count = len(a.groups) + len(b.groups) + len(c.groups)
        b.reason = 1
        await until(lambda: len(a.groups) + len(b.groups) + len(c.groups) > count, one, two, three)
        await three.close()
        await until(lambda: (numbers(one), numbers(two)) == ([1, 3, 5], [0, 2, 4]), one, two)
        await until(lambda: a.last == b.last == (0, b"2"), one, two)
    assert "lost" not in [name for member in (one, two, three) for name in member.books.names()]


async def test_the_member_that_computes_dies(server: KcoordServer, partitions: list[TopicPartition]) -> None:
    a, b = InTurn("a"), InTurn("b")
    async with assigning(server, a) as one:
        start(one)
        await until(lambda: is_spread(partitions, one), one)
        a.may_go_on.clear()
        b.may_go_on.clear()
        async with assigning(server, b) as two:
            start(two)
            await until(lambda: a.is_computing.is_set() or b.is_computing.is_set(), one, two)
            (dead, rest), assignor = ((one, two), b) if a.is_computing.is_set() else ((two, one), a)
            # Without a word: its connections end, and its heartbeats.
            await dead.stop_polling()
            await dead.cluster.close()
            assignor.may_go_on.set()
            # Its session ends first, and then the other one is asked.
            count, own_id = len(assignor.groups), rest.membership.group_metadata().member_id
            await until(lambda: [list(spec.members) for spec in assignor.groups[count:]] == [[own_id]], rest)
            await until(lambda: rest.held() == set(partitions) and assignor.last == (0, b"1"), rest)


async def test_a_member_that_takes_too_long(server: KcoordServer, partitions: list[TopicPartition]) -> None:
    """After its rebalance timeout another member is asked; what it comes with then is not taken."""
    a, b = InTurn("a"), InTurn("b")
    a.may_go_on.clear()
    b.may_go_on.clear()
    async with (
        assigning(server, a, max_poll_interval_s=1.0) as one,
        assigning(server, b, max_poll_interval_s=1.0) as two,
    ):
        start(one, two)
        await until(lambda: a.is_computing.is_set() or b.is_computing.is_set(), one, two)
        slow, quick = (a, b) if a.is_computing.is_set() else (b, a)
        quick.may_go_on.set()
        await until(lambda: is_spread(partitions, one, two), one, two)
        assert quick.groups
        slow.may_go_on.set()
        await until(lambda: a.last == b.last == (0, b"2"), one, two)


async def test_assignors_that_fail(server: KcoordServer, partitions: list[TopicPartition]) -> None:
    """The members keep what they have, all get the error, and the user of the assignor hears of a fault."""
    a, b = InTurn("a"), InTurn("b")
    async with assigning(server, a) as one, assigning(server, b) as two:
        start(one)
        await until(lambda: is_spread(partitions, one), one)
        a.fails_with = b.fails_with = AssignorError(7, "not now")
        start(two)
        await until(lambda: a.last[0] == b.last[0] == 7, one, two)
        assert one.held() == set(partitions) and not two.held()
        a.fails_with = b.fails_with = ValueError("broken")
        a.reason = 1
        await until(lambda: a.last[0] == b.last[0] == 1)
        await until(lambda: bool(one.failures or two.failures))
        failure = (one.failures or two.failures)[0]
        assert isinstance(failure, AssignorFailed) and isinstance(failure.__cause__, ValueError)
        one.failures.clear()
        two.failures.clear()
        a.fails_with = b.fails_with = None
        a.reason = 2
        await until(lambda: is_spread(partitions, one, two), one, two)


@final
class Wrong(ClientAssignor):
    """Assigns a partition twice, or a topic that nobody subscribes to, or what is no assignment."""

    name = "in-turn"

    def __init__(self, found: Mapping[str, object]) -> None:
        self.found = found

    def assign(self, group: GroupSpec) -> Mapping[str, MemberAssignment]:
        return dict.fromkeys(group.members, self.found["value"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [
        MemberAssignment([TopicPartition("orders", 99)]),
        MemberAssignment([TopicPartition("nowhere", 0)]),
        MemberAssignment([], AssignorMetadata(99)),
        MemberAssignment([], AssignorMetadata(99_999)),
        None,
    ],
)
async def test_assignments_that_cannot_be(
    server: KcoordServer, partitions: list[TopicPartition], value: MemberAssignment | None
) -> None:
    async with assigning(server, Wrong({"value": value})) as member:
        start(member)
        await until(lambda: bool(member.failures))
        assert isinstance(member.failures[0], AssignorFailed), member.failures
        assert not member.held()


async def test_one_member_without_the_assignor(server: KcoordServer, partitions: list[TopicPartition]) -> None:
    """Then the coordinator computes, until that member has left."""
    a = InTurn("a")
    async with assigning(server, a) as one:
        start(one)
        await until(lambda: is_spread(partitions, one) and a.last == (0, b"1"), one)
        async with consumer_member(server.bootstrap, "g", "orders", "confluent") as other:
            await until(lambda: len(one.held()) == 3, one)
            assert len(other.assignment()) == 3
            await until(lambda: a.last == (0, b""), one)
        await until(lambda: is_spread(partitions, one) and a.last == (0, b"1"), one)


async def test_metadata_that_fails(server: KcoordServer, partitions: list[TopicPartition]) -> None:
    class Broken(ClientAssignor):
        name = "broken"

        def metadata(self) -> AssignorMetadata:
            raise KeyError("state")

        def assign(self, group: GroupSpec) -> Mapping[str, MemberAssignment]:
            return {}

    async with assigning(server, Broken()) as member:
        start(member)
        await until(lambda: bool(member.failures))
        assert isinstance(member.failures[0], AssignorFailed)


async def test_the_consumer_has_them(server: KcoordServer, partitions: list[TopicPartition]) -> None:
    for wrong in ((object(),), (InTurn(), InTurn())):
        consumer = Consumer("orders", bootstrap_servers=server.bootstrap, group_id="g", group_local_assignors=wrong)
        with pytest.raises(InvalidConfiguration, match="group_local_assignors"):
            await consumer.start()
        await consumer.stop()
    assignor = InTurn()
    async with Consumer(
        "orders", bootstrap_servers=server.bootstrap, group_id="g", group_local_assignors=[assignor]
    ) as consumer:
        while consumer.assignment() != set(partitions):
            await consumer.poll(1.0)
    assert assignor.groups
