"""A member of a consumer group (KIP-848) and brokers that refuse, forget, move and fall silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, final

import pytest

from kcoord.client.consumer.consumer_group.assignor import ClientAssignor, GroupSpec, MemberAssignment
from kcoord.client.consumer.consumer_group.state import MemberState
from kcoord.client.deadline import Deadline
from kcoord.client.errors import (
    AuthorizationFailed,
    BrokerError,
    FencedInstanceId,
    KafkaError,
    StaleMemberEpoch,
    UnknownMember,
    UnsupportedVersion,
    may_retry,
)
from kcoord.client.metadata import TopicPartition
from kcoord.protocol import apis, errors
from kcoord.protocol.consumer_group_heartbeat import (
    AssignedTopicPartitions,
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kcoord.wire.message import Message
from tests.harness.group_member import WAIT_S, GroupMember, group_member, options, until
from tests.unit.client.brokers import Brokers, two_brokers

TOPIC_ID = b"orders".ljust(16, b".")
OTHER_ID = b"bills".ljust(16, b".")
PARTITIONS = {TopicPartition("orders", number) for number in range(3)}

Respond = Callable[[ConsumerGroupHeartbeatRequest], ConsumerGroupHeartbeatResponse | None]


@final
class Coordinator:
    """Answers heartbeats; the first `script` entries one after the other, and then as a group of one member."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.script: list[int | Respond] = []
        self.requests: list[ConsumerGroupHeartbeatRequest] = []
        # (node id, version) of each.
        self.asked: list[tuple[int, int]] = []
        self.target: dict[bytes, list[int]] = {TOPIC_ID: [0, 1, 2]}
        self.epoch = 1
        self.interval_ms = 50
        brokers.handlers[apis.CONSUMER_GROUP_HEARTBEAT] = self.handle

    def handle(self, node_id: int, version: int, request: Message) -> Message | None:
        assert isinstance(request, ConsumerGroupHeartbeatRequest)
        self.requests.append(request)
        self.asked.append((node_id, version))
        step = self.script.pop(0) if self.script and request.member_epoch >= 0 else None
        if isinstance(step, int):
            return ConsumerGroupHeartbeatResponse(error_code=step, error_message="because")
        return self.accept(request) if step is None else step(request)

    def accept(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        if request.member_epoch < 0:
            return ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
        member_id = request.member_id or "from-the-coordinator"
        answer = ConsumerGroupHeartbeatResponse(0, 0, None, member_id, self.epoch, self.interval_ms)
        if request.member_epoch != self.epoch or request.rebalance_timeout_ms >= 0:
            answer.assignment = self.assignment()
        return answer

    def assignment(self) -> Assignment:
        return Assignment([AssignedTopicPartitions(topic_id, found) for topic_id, found in self.target.items()])

    def move(self, target: dict[bytes, list[int]]) -> None:
        self.target = target
        self.epoch += 1


@asynccontextmanager
async def coordinated(**changes: Any) -> AsyncIterator[tuple[Brokers, Coordinator, GroupMember]]:
    """Two brokers, the coordinator on one of them, and a member that does not poll yet."""
    async with two_brokers() as brokers:
        brokers.topics["orders"] = [1, 2, 1]
        brokers.ids["orders"] = TOPIC_ID
        coordinator = Coordinator(brokers)
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in brokers.ports.values())
        assignors = changes.pop("assignors", ())
        async with group_member(bootstrap, options(is_auto_commit=False, **changes), assignors) as member:
            yield brokers, coordinator, member


def start(member: GroupMember) -> None:
    member.subscribe("orders")
    member.start_polling()


async def refused(member: GroupMember) -> KafkaError:
    """The first error that the user gets."""
    start(member)
    await until(lambda: bool(member.failures))
    return member.failures[0]


# --- what is sent


async def test_only_changes_are_sent() -> None:
    async with coordinated(client_rack="r", group_remote_assignor="uniform", group_instance_id="i") as parts:
        _, coordinator, member = parts
        start(member)
        await until(lambda: member.held() == PARTITIONS and len(coordinator.requests) >= 4, member)
        join, owned, *others = coordinator.requests
        assert (join.member_epoch, join.instance_id, join.rack_id, join.rebalance_timeout_ms) == (0, "i", "r", 300_000)
        assert (join.subscribed_topic_names, join.server_assignor, join.topic_partitions) == (["orders"], "uniform", [])
        assert (join.subscribed_topic_regex, join.client_assignors) == (None, None)
        assert len(join.member_id) == 22 and {one.member_id for one in coordinator.requests} == {join.member_id}
        assert owned.topic_partitions is not None and owned.topic_partitions[0].partitions == [0, 1, 2]
        for one in (owned, *others):
            assert (one.member_epoch, one.instance_id, one.rack_id, one.rebalance_timeout_ms) == (1, "i", None, -1)
            assert (one.subscribed_topic_names, one.server_assignor) == (None, None)
        assert all(one.topic_partitions is None for one in others)
        coordinator.requests.clear()
        coordinator.script = [errors.COORDINATOR_LOAD_IN_PROGRESS, lambda _: None]
        # After an error, and after an answer that never comes, everything is sent.
        await until(lambda: len(coordinator.requests) >= 2, member)
        whole = coordinator.requests[1]
        assert (whole.member_epoch, whole.rack_id, whole.rebalance_timeout_ms) == (1, "r", 300_000)
        assert whole.subscribed_topic_names == ["orders"] and whole.topic_partitions == owned.topic_partitions
        assert "lost" not in member.books.names()


async def test_the_last_heartbeat() -> None:
    for instance_id, epoch in ((None, -1), ("i", -2)):
        async with coordinated(group_instance_id=instance_id) as (_, coordinator, member):
            start(member)
            await until(lambda member=member: member.held() == PARTITIONS, member)  # type: ignore[misc]
            await member.close()
            assert coordinator.requests[-1].member_epoch == epoch
            assert member.books.names() == ["assigned", "revoked"]


async def test_the_coordinator_makes_the_member_id() -> None:
    """Version 0, Kafka 3.7 to 3.9."""
    async with coordinated() as (brokers, coordinator, member):
        brokers.version_max[apis.CONSUMER_GROUP_HEARTBEAT] = 0
        start(member)
        await until(lambda: member.held() == PARTITIONS and len(coordinator.requests) > 2, member)
        assert [one.member_id for one in coordinator.requests[:2]] == ["", "from-the-coordinator"]
        assert {version for _, version in coordinator.asked} == {0}
        coordinator.script = [errors.FENCED_MEMBER_EPOCH]
        await until(lambda: member.books.names() == ["assigned", "lost", "assigned"], member)
        assert member.membership.group_metadata().member_id == "from-the-coordinator"


# --- errors


@pytest.mark.parametrize("code", [errors.FENCED_MEMBER_EPOCH, errors.UNKNOWN_MEMBER_ID, errors.GROUP_ID_NOT_FOUND])
async def test_fenced_members_lose_their_partitions_and_join_again(code: int) -> None:
    async with coordinated() as (_, coordinator, member):
        start(member)
        await until(lambda: member.held() == PARTITIONS, member)
        await member.stop_polling()
        coordinator.script = [code]
        await until(lambda: not member.membership.is_member())
        count = len(coordinator.requests)
        await asyncio.sleep(0.1)
        assert len(coordinator.requests) == count, "a fenced member is silent until the user has heard of it"
        assert member.membership.group_metadata().generation_id == -1
        member.start_polling()
        await until(lambda: member.books.names() == ["assigned", "lost", "assigned"], member)
        assert coordinator.requests[count].member_epoch == 0


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errors.INVALID_REQUEST, BrokerError),
        (errors.UNSUPPORTED_ASSIGNOR, BrokerError),
        (errors.INVALID_REGULAR_EXPRESSION, BrokerError),
        (errors.GROUP_MAX_SIZE_REACHED, BrokerError),
        (errors.GROUP_AUTHORIZATION_FAILED, AuthorizationFailed),
        (errors.FENCED_INSTANCE_ID, FencedInstanceId),
        (errors.UNSUPPORTED_VERSION, UnsupportedVersion),
        (errors.INVALID_GROUP_ID, BrokerError),
        (errors.UNKNOWN_SERVER_ERROR, BrokerError),
    ],
)
async def test_errors_that_end_the_membership(code: int, kind: type[KafkaError]) -> None:
    async with coordinated() as (_, coordinator, member):
        start(member)
        await until(lambda: member.held() == PARTITIONS, member)
        coordinator.script = [code]
        await until(lambda: bool(member.failures))
        assert isinstance(member.failures[0], kind)
        assert member.books.names() == ["assigned", "lost"]
        await member.stop_polling()
        count = len(coordinator.requests)
        with pytest.raises(kind):
            await member.poll()
        await member.membership.unsubscribe(Deadline(WAIT_S))
        assert len(coordinator.requests) == count
        member.failures.clear()
        member.subscription.unsubscribe()
        start(member)
        await until(lambda: member.held() == PARTITIONS, member)


@pytest.mark.parametrize(
    "code",
    [
        errors.COORDINATOR_LOAD_IN_PROGRESS,
        errors.NOT_COORDINATOR,
        errors.COORDINATOR_NOT_AVAILABLE,
        errors.UNRELEASED_INSTANCE_ID,
    ],
)
async def test_errors_that_pass(code: int) -> None:
    async with coordinated() as (_, coordinator, member):
        coordinator.script = [code, code]
        start(member)
        await until(lambda: member.held() == PARTITIONS, member)
        coordinator.script = [code]
        await until(lambda: not coordinator.script, member)
        await until(lambda: coordinator.requests[-1].topic_partitions is None, member)
        assert member.books.names() == ["assigned"]


async def test_topics_that_may_not_be_read() -> None:
    """The user hears of it, and heartbeats go on: somebody may allow it."""
    async with coordinated() as (_, coordinator, member):
        coordinator.script = [errors.TOPIC_AUTHORIZATION_FAILED]
        assert isinstance(await refused(member), AuthorizationFailed)
        member.failures.clear()
        await until(lambda: member.held() == PARTITIONS, member)


async def test_brokers_without_the_protocol() -> None:
    async with coordinated() as (brokers, coordinator, member):
        brokers.missing.add(apis.CONSUMER_GROUP_HEARTBEAT)
        error = await refused(member)
        assert isinstance(error, UnsupportedVersion) and "group_protocol='classic'" in str(error)
        assert not coordinator.requests


async def test_brokers_that_cannot_match_patterns() -> None:
    async with coordinated() as (brokers, coordinator, member):
        brokers.version_max[apis.CONSUMER_GROUP_HEARTBEAT] = 0
        member.subscribe_pattern("o.*")
        member.start_polling()
        await until(lambda: bool(member.failures))
        assert isinstance(member.failures[0], UnsupportedVersion) and "patterns" in str(member.failures[0])
        assert not coordinator.requests


@final
class Nobody(ClientAssignor):
    name = "nobody"

    def assign(self, group: GroupSpec) -> Mapping[str, MemberAssignment]:
        return {}


async def test_brokers_without_client_side_assignors() -> None:
    """Kafka closes the connection when it gets a request of an API that it does not know."""
    async with coordinated(assignors=(Nobody(),)) as (brokers, coordinator, member):
        brokers.hangs_up_at.add(apis.CONSUMER_GROUP_PREPARE_ASSIGNMENT)
        error = await refused(member)
        assert isinstance(error, UnsupportedVersion) and "client-side assignors" in str(error)
        assert not coordinator.requests, "the member does not join"


# --- connections


async def test_answers_that_are_lost() -> None:
    async with coordinated(request_timeout_s=0.2) as (_, coordinator, member):
        coordinator.script = [lambda _: None]
        start(member)
        await until(lambda: member.held() == PARTITIONS, member)
        assert [one.member_epoch for one in coordinator.requests[:3]] == [0, 0, 1]
        assert len({one.member_id for one in coordinator.requests}) == 1
        coordinator.script = [lambda _: None, lambda _: None]
        await until(lambda: not coordinator.script, member)
        await until(lambda: coordinator.requests[-1].topic_partitions is None, member)
        assert member.books.names() == ["assigned"]


async def test_the_coordinator_moves() -> None:
    async with coordinated() as (brokers, coordinator, member):
        start(member)
        await until(lambda: member.held() == PARTITIONS, member)
        assert {node for node, _ in coordinator.asked} == {1}
        coordinator.asked.clear()
        brokers.coordinators["g"] = 2
        coordinator.script = [errors.NOT_COORDINATOR]
        await until(lambda: len(coordinator.asked) > 3, member)
        assert [node for node, _ in coordinator.asked[:3]] == [1, 2, 2]
        assert member.books.names() == ["assigned"]


async def test_leaving_a_coordinator_that_moves_or_is_silent() -> None:
    async with coordinated(request_timeout_s=0.2) as (brokers, coordinator, member):
        start(member)
        await until(lambda: member.held() == PARTITIONS, member)
        await member.stop_polling()
        brokers.coordinators["g"] = 2
        brokers.handlers[apis.CONSUMER_GROUP_HEARTBEAT] = lambda node, version, request: (
            ConsumerGroupHeartbeatResponse(error_code=errors.NOT_COORDINATOR)
            if node == 1
            else coordinator.handle(node, version, request)
        )
        await member.membership.unsubscribe(Deadline(WAIT_S))
        assert coordinator.asked[-1][0] == 2 and coordinator.requests[-1].member_epoch == -1
        member.subscription.unsubscribe()
        start(member)
        await until(lambda: member.held() == PARTITIONS, member)
        brokers.handlers[apis.CONSUMER_GROUP_HEARTBEAT] = lambda *_: None
        async with asyncio.timeout(WAIT_S):
            await member.close()
        assert not member.held()


async def test_closing_at_the_deadline_still_says_so() -> None:
    async with coordinated() as (_, coordinator, member):
        start(member)
        await until(lambda: member.held() == PARTITIONS, member)
        await member.stop_polling()
        await member.membership.close(Deadline(0.0))
        await until(lambda: coordinator.requests[-1].member_epoch == -1)


# --- topic ids


async def test_topics_that_are_not_known_yet() -> None:
    """What is known by name is taken over; the rest follows when a broker knows it."""
    async with coordinated() as (brokers, coordinator, member):
        coordinator.target = {TOPIC_ID: [0, 1], OTHER_ID: [0]}
        start(member)
        await until(lambda: len(member.held()) == 2, member)
        await until(lambda: coordinator.requests[-1].topic_partitions is None and len(coordinator.requests) > 3, member)
        acknowledged = [one.topic_partitions for one in coordinator.requests if one.topic_partitions]
        assert [[(one.topic_id, one.partitions) for one in found] for found in acknowledged] == [[(TOPIC_ID, [0, 1])]]
        brokers.topics["bills"], brokers.ids["bills"] = [2], OTHER_ID
        await until(lambda: TopicPartition("bills", 0) in member.held(), member)
        assert member.books.names() == ["assigned", "assigned"]
        await until(lambda: len(coordinator.requests[-1].topic_partitions or ()) == 2, member)


async def test_topics_that_are_made_again() -> None:
    """Partitions of the new topic are other partitions: those of the old one are revoked first."""
    async with coordinated() as (brokers, coordinator, member):
        start(member)
        await until(lambda: member.held() == PARTITIONS, member)
        brokers.ids["orders"] = OTHER_ID
        coordinator.move({OTHER_ID: [0, 1]})
        await until(lambda: len(member.held()) == 2, member)
        assert member.books.names() == ["assigned", "revoked", "assigned"]
        await until(lambda: coordinator.requests[-1].topic_partitions is None, member)
        owned = [one.topic_partitions for one in coordinator.requests if one.topic_partitions]
        assert [(one.topic_id, one.partitions) for one in owned[-1]] == [(OTHER_ID, [0, 1])]


# --- reconciliation


async def test_what_is_given_up_is_reported_before_the_new_is_taken() -> None:
    async with coordinated() as (_, coordinator, member):
        start(member)
        await until(lambda: member.held() == PARTITIONS, member)
        await until(lambda: coordinator.requests[-1].topic_partitions is None, member)
        coordinator.requests.clear()
        gate = asyncio.Event()

        class Slow:
            async def on_partitions_assigned(self, _: object) -> None:
                await gate.wait()

            def on_partitions_revoked(self, _: object) -> None:
                pass

        coordinator.target = {TOPIC_ID: [2, 3]}
        member.subscription.listener = Slow()  # type: ignore[assignment]
        coordinator.epoch += 1
        await until(lambda: any(one.topic_partitions for one in coordinator.requests))
        first = next(one.topic_partitions for one in coordinator.requests if one.topic_partitions)
        assert [one.partitions for one in first] == [[2]]
        gate.set()
        await until(lambda: [one.partitions for one in coordinator.requests[-1].topic_partitions or ()] == [[2, 3]])
        member.subscription.listener = None
        await member.stop_polling()


async def test_nothing_is_taken_after_a_report_without_an_answer() -> None:
    """The coordinator has given the partition to somebody else by then, since the report did not name it."""
    zero, one = TopicPartition("orders", 0), TopicPartition("orders", 1)
    async with coordinated(request_timeout_s=0.3) as (_, coordinator, member):
        coordinator.target = {TOPIC_ID: [0]}
        start(member)
        await until(lambda: member.held() == {zero}, member)
        await member.stop_polling()
        coordinator.move({TOPIC_ID: [0, 1]})
        await until(lambda: member.membership._member.target == {TOPIC_ID: frozenset([0, 1])})

        def lose_the_answer(request: ConsumerGroupHeartbeatRequest) -> None:
            assert request.topic_partitions and request.topic_partitions[0].partitions == [0]
            coordinator.move({TOPIC_ID: [0]})
            member.start_polling()

        # After the error the next heartbeat says everything.
        coordinator.script = [errors.COORDINATOR_LOAD_IN_PROGRESS, lose_the_answer]
        await until(lambda: member.membership.group_metadata().generation_id == coordinator.epoch == 3, member)
        await until(lambda: member.membership._member.state is MemberState.STABLE, member)
        assert member.held() == {zero}
        assert all(one not in partitions for _, partitions in member.books.calls)
        coordinator.move({TOPIC_ID: [0, 1]})
        await until(lambda: member.held() == {zero, one}, member)


async def test_targets_that_change_before_the_user_polls() -> None:
    async with coordinated() as (_, coordinator, member):
        start(member)
        await until(lambda: member.held() == PARTITIONS, member)
        await member.stop_polling()
        coordinator.requests.clear()
        coordinator.move({TOPIC_ID: [0]})
        await until(lambda: any(one.member_epoch == 2 for one in coordinator.requests))
        coordinator.move({TOPIC_ID: [0, 1, 2]})
        await until(lambda: any(one.member_epoch == 3 for one in coordinator.requests))
        # Nothing is revoked that the group wants the member to have; and it is acknowledged.
        member.start_polling()
        await until(lambda: any(one.topic_partitions for one in coordinator.requests), member)
        assert member.books.names() == ["assigned"]


async def test_commits_that_are_refused() -> None:
    async with coordinated() as (_, coordinator, member):
        start(member)
        await until(lambda: member.held() == PARTITIONS, member)
        membership = member.membership
        await until(lambda: coordinator.requests[-1].topic_partitions is None, member)
        # The next heartbeat may have the new epoch.
        coordinator.interval_ms = 60_000
        count = len(coordinator.requests)
        await until(lambda: len(coordinator.requests) > count, member)
        count = len(coordinator.requests)
        assert may_retry(membership.commit_refused(errors.STALE_MEMBER_EPOCH))
        await until(lambda: len(coordinator.requests) > count, member)
        await asyncio.sleep(0.05)
        # It had not.
        assert isinstance(membership.commit_refused(errors.STALE_MEMBER_EPOCH), StaleMemberEpoch)
        coordinator.script = [errors.UNKNOWN_MEMBER_ID]
        assert isinstance(membership.commit_refused(errors.UNKNOWN_MEMBER_ID), UnknownMember)
        await until(lambda: member.books.names() == ["assigned", "lost", "assigned"], member)


async def test_fenced_while_it_leaves() -> None:
    """The partitions are lost then, not revoked, and nothing more is sent."""
    async with coordinated() as (_, coordinator, member):
        start(member)
        await until(lambda: member.held() == PARTITIONS, member)
        await member.stop_polling()
        hold = asyncio.Event()

        async def commit(_: Deadline) -> None:
            await hold.wait()

        member.host.commit_consumed = commit
        leaving = asyncio.create_task(member.membership.unsubscribe(Deadline(WAIT_S)))
        count = len(coordinator.requests)
        await until(lambda: len(coordinator.requests) > count)
        coordinator.script = [errors.UNKNOWN_MEMBER_ID]
        await until(lambda: not member.membership.is_member())
        count = len(coordinator.requests)
        hold.set()
        await leaving
        assert member.books.names() == ["assigned", "lost"] and len(coordinator.requests) == count


async def test_cancelled_polls_lose_nothing() -> None:
    """The user may cancel a poll at any time, also while a listener runs."""
    async with coordinated() as (_, coordinator, member):
        gate = asyncio.Event()
        told: list[tuple[str, int]] = []

        class Slow:
            async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
                told.append(("assigned", len(assigned)))
                await gate.wait()

            async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
                told.append(("revoked", len(revoked)))
                await gate.wait()

        member.subscribe("orders")
        member.subscription.listener = Slow()  # type: ignore[assignment]
        for target, calls in (({TOPIC_ID: [0, 1, 2]}, [("assigned", 3)]), ({TOPIC_ID: [0]}, [("revoked", 2)])):
            coordinator.move(target)
            told.clear()
            user = asyncio.create_task(poll_on(member))
            await until(lambda: bool(told))
            user.cancel()
            with pytest.raises(asyncio.CancelledError):
                await user
            assert told == calls
        assert member.subscription.assigned() == {TopicPartition("orders", 0)}
        gate.set()
        coordinator.requests.clear()
        member.start_polling()
        await until(lambda: any(one.topic_partitions for one in coordinator.requests))


async def poll_on(member: GroupMember) -> None:
    while True:
        member.host.event.clear()
        await member.poll()
        await member.host.event.wait()
