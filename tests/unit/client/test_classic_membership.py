"""A member of a classic group and coordinators that refuse, move, forget, fence and stay silent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any, cast, final

import pytest

from kcoord.client import Consumer, KafkaError, RebalanceListener, TopicPartition
from kcoord.client.errors import (
    BrokerError,
    FencedInstanceId,
    IllegalGeneration,
    RebalanceInProgress,
    UnknownMember,
    UnsupportedVersion,
)
from kcoord.protocol import apis, errors
from kcoord.protocol.fetch import FetchResponse
from kcoord.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from kcoord.protocol.leave_group import LeaveGroupRequest, LeaveGroupResponse
from kcoord.protocol.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kcoord.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchResponse, OffsetFetchResponseGroup
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupResponse
from kcoord.wire.message import Message
from tests.unit.client.brokers import Brokers, two_brokers

DEADLINE_S = 10.0
PARTITIONS = {TopicPartition("t", 0), TopicPartition("t", 1)}
SILENT = -100


@final
class Coordinator:
    """One member, which leads. `script` has the codes of the next answers by API key; SILENT gives none."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.script: dict[int, deque[int]] = {}
        self.generation = 0
        self.ids = 0
        self.needs_id = False
        self.joins: list[JoinGroupRequest] = []
        self.leaves: list[tuple[int, str]] = []
        self.commits: list[OffsetCommitRequest] = []
        brokers.topics["t"] = [1, 1]
        brokers.handlers = {
            apis.JOIN_GROUP: self.join,
            apis.SYNC_GROUP: self.sync,
            apis.HEARTBEAT: self.heartbeat,
            apis.LEAVE_GROUP: self.leave,
            apis.OFFSET_COMMIT: self.commit,
            apis.OFFSET_FETCH: self.offsets,
            apis.LIST_OFFSETS: self.list_offsets,
            apis.FETCH: lambda *_: FetchResponse(),
        }

    def refuse(self, key: int, *codes: int) -> None:
        self.script.setdefault(key, deque()).extend(codes)

    def _code(self, key: int, node: int) -> int:
        row = self.script.get(key)
        if row:
            return row.popleft()
        return errors.NONE if self.brokers.coordinators.get("g", 1) == node else errors.NOT_COORDINATOR

    def join(self, node: int, version: int, request: Message) -> Message | None:
        asked = cast(JoinGroupRequest, request)
        self.joins.append(asked)
        code = self._code(apis.JOIN_GROUP, node)
        if self.needs_id and not asked.member_id and code == errors.NONE:
            self.ids += 1
            return JoinGroupResponse(error_code=errors.MEMBER_ID_REQUIRED, member_id=f"m{self.ids}")
        if code == SILENT:
            return None
        if code != errors.NONE:
            return JoinGroupResponse(error_code=code)
        self.generation += 1
        if not asked.member_id:
            self.ids += 1
        me = asked.member_id or f"m{self.ids}"
        member = JoinGroupResponseMember(
            me, asked.group_instance_id if version >= 5 else None, asked.protocols[0].metadata
        )
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type="consumer" if version >= 7 else None,
            protocol_name=asked.protocols[0].name,
            leader=me,
            member_id=me,
            members=[member],
        )

    def sync(self, node: int, version: int, request: Message) -> Message | None:
        asked = cast(SyncGroupRequest, request)
        code = self._code(apis.SYNC_GROUP, node)
        if code == SILENT:
            return None
        given = asked.assignments[0].assignment if asked.assignments and code == errors.NONE else b""
        return SyncGroupResponse(error_code=code, assignment=given)

    def heartbeat(self, node: int, version: int, request: Message) -> Message | None:
        asked = cast(HeartbeatRequest, request)
        code = self._code(apis.HEARTBEAT, node)
        if code == SILENT:
            return None
        if code == errors.NONE and asked.generation_id != self.generation:
            code = errors.ILLEGAL_GENERATION
        return HeartbeatResponse(error_code=code)

    def leave(self, node: int, version: int, request: Message) -> Message | None:
        asked = cast(LeaveGroupRequest, request)
        self.leaves.append((version, asked.members[0].member_id if asked.members else asked.member_id))
        return LeaveGroupResponse()

    def commit(self, node: int, version: int, request: Message) -> Message | None:
        asked = cast(OffsetCommitRequest, request)
        self.commits.append(asked)
        code = self._code(apis.OFFSET_COMMIT, node)
        if code == SILENT:
            return None
        return OffsetCommitResponse(
            0,
            [
                OffsetCommitResponseTopic(
                    topic.name,
                    partitions=[OffsetCommitResponsePartition(one.partition_index, code) for one in topic.partitions],
                )
                for topic in asked.topics
            ],
        )

    def offsets(self, node: int, version: int, request: Message) -> Message | None:
        asked = cast(OffsetFetchRequest, request)
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(one.group_id) for one in asked.groups])

    def list_offsets(self, node: int, version: int, request: Message) -> Message | None:
        parts = [ListOffsetsPartitionResponse(number, 0, timestamp=-1, offset=5, leader_epoch=0) for number in (0, 1)]
        return ListOffsetsResponse(0, [ListOffsetsTopicResponse("t", parts)])


@final
class Heard(RebalanceListener):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self.calls.append(f"assigned {len(assigned)}")

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self.calls.append(f"revoked {len(revoked)}")

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self.calls.append(f"lost {len(lost)}")


@asynccontextmanager
async def joining(**options: Any) -> AsyncIterator[tuple[Consumer, Coordinator, Heard]]:
    quick: dict[str, Any] = {
        "group_protocol": "classic",
        "enable_auto_commit": False,
        "heartbeat_interval_ms": 30,
        "session_timeout_ms": 5000,
        "retry_backoff_ms": 5,
        "retry_backoff_max_ms": 20,
        "fetch_max_wait_ms": 20,
    }
    async with two_brokers() as brokers:
        coordinator = Coordinator(brokers)
        heard = Heard()
        bootstrap = f"127.0.0.1:{brokers.ports[1]}"
        async with Consumer(bootstrap_servers=bootstrap, group_id="g", **{**quick, **options}) as consumer:
            consumer.subscribe(["t"], listener=heard)
            yield consumer, coordinator, heard


async def assigned(consumer: Consumer) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while consumer.assignment() != PARTITIONS:
            await consumer.poll(0.02)


async def after(consumer: Consumer, heard: Heard, count: int) -> None:
    """Poll until the listener was called so often."""
    async with asyncio.timeout(DEADLINE_S):
        while len(heard.calls) < count:
            await consumer.poll(0.02)


PASSING = [
    errors.COORDINATOR_LOAD_IN_PROGRESS,
    errors.NOT_COORDINATOR,
    errors.COORDINATOR_NOT_AVAILABLE,
    errors.REBALANCE_IN_PROGRESS,
    errors.UNKNOWN_MEMBER_ID,
]


@pytest.mark.parametrize("code", PASSING)
@pytest.mark.parametrize("key", [apis.JOIN_GROUP, apis.SYNC_GROUP])
async def test_errors_that_pass(key: int, code: int) -> None:
    async with joining() as (consumer, coordinator, heard):
        coordinator.refuse(key, code, code)
        await assigned(consumer)
        # Nobody was told of what did not come about.
        assert heard.calls == ["assigned 2"]


async def test_a_generation_that_has_gone_on_before_the_assignment() -> None:
    async with joining() as (consumer, coordinator, _):
        coordinator.refuse(apis.SYNC_GROUP, errors.ILLEGAL_GENERATION)
        await assigned(consumer)
        # The member keeps its id.
        assert coordinator.joins[-1].member_id == "m1"


@pytest.mark.parametrize(
    "code",
    [
        errors.INVALID_GROUP_ID,
        errors.INCONSISTENT_GROUP_PROTOCOL,
        errors.INVALID_SESSION_TIMEOUT,
        errors.GROUP_AUTHORIZATION_FAILED,
        errors.GROUP_MAX_SIZE_REACHED,
        errors.UNKNOWN_SERVER_ERROR,
    ],
)
async def test_errors_that_the_user_must_know(code: int) -> None:
    async with joining() as (consumer, coordinator, heard):
        coordinator.refuse(apis.JOIN_GROUP, code)
        with pytest.raises(BrokerError) as problem:
            await assigned(consumer)
        assert problem.value.code == code
        assert heard.calls == []
        # Somebody may have mended it: the next poll joins again.
        await assigned(consumer)


@pytest.mark.parametrize("key", [apis.JOIN_GROUP, apis.SYNC_GROUP, apis.HEARTBEAT])
async def test_a_fenced_static_member_stays_out(key: int) -> None:
    async with joining(group_instance_id="a") as (consumer, coordinator, heard):
        if key == apis.HEARTBEAT:
            await assigned(consumer)
        coordinator.refuse(key, errors.FENCED_INSTANCE_ID)
        with pytest.raises(FencedInstanceId):
            await after(consumer, heard, 99)
        joins = len(coordinator.joins)
        for _ in range(2):
            with pytest.raises(FencedInstanceId):
                await consumer.poll(0.05)
        assert len(coordinator.joins) == joins
        await consumer.unsubscribe()
        consumer.subscribe(["t"])
        await assigned(consumer)


async def test_a_rebalance_keeps_the_member() -> None:
    async with joining() as (consumer, coordinator, heard):
        await assigned(consumer)
        coordinator.refuse(apis.HEARTBEAT, errors.REBALANCE_IN_PROGRESS)
        await after(consumer, heard, 3)
        assert heard.calls == ["assigned 2", "revoked 2", "assigned 2"]
        assert coordinator.joins[-1].member_id == "m1"
        assert consumer.generation() == 2


async def test_a_cooperative_rebalance_keeps_the_partitions() -> None:
    async with joining(partition_assignment_strategy=["cooperative-sticky"]) as (consumer, coordinator, heard):
        await assigned(consumer)
        coordinator.refuse(apis.HEARTBEAT, errors.REBALANCE_IN_PROGRESS)
        await after(consumer, heard, 2)
        assert heard.calls == ["assigned 2", "assigned 0"]
        assert consumer.assignment() == PARTITIONS


@pytest.mark.parametrize(("code", "member_id"), [(errors.UNKNOWN_MEMBER_ID, ""), (errors.ILLEGAL_GENERATION, "m1")])
async def test_a_member_that_was_removed_has_lost_its_partitions(code: int, member_id: str) -> None:
    async with joining() as (consumer, coordinator, heard):
        await assigned(consumer)
        coordinator.refuse(apis.HEARTBEAT, code)
        await after(consumer, heard, 3)
        assert heard.calls == ["assigned 2", "lost 2", "assigned 2"]
        assert coordinator.joins[1].member_id == member_id


async def test_the_coordinator_moves_without_a_rebalance() -> None:
    async with joining() as (consumer, coordinator, heard):
        await assigned(consumer)
        coordinator.brokers.coordinators["g"] = 2
        async with asyncio.timeout(DEADLINE_S):
            while (2, apis.HEARTBEAT) not in [one[:2] for one in coordinator.brokers.seen]:
                await consumer.poll(0.02)
        assert heard.calls == ["assigned 2"]
        await consumer.commit({TopicPartition("t", 0): 3})
        assert len(coordinator.joins) == 1


@pytest.mark.parametrize("key", [apis.HEARTBEAT, apis.JOIN_GROUP, apis.SYNC_GROUP])
async def test_lost_answers(key: int) -> None:
    """A request without an answer costs its timeout, and the member comes back."""
    options = {"request_timeout_ms": 200, "max_poll_interval_ms": 300, "session_timeout_ms": 400}
    async with joining(**options) as (consumer, coordinator, heard):
        if key == apis.HEARTBEAT:
            await assigned(consumer)
            coordinator.refuse(key, SILENT, SILENT)
            async with asyncio.timeout(DEADLINE_S):
                while coordinator.script[key]:
                    await consumer.poll(0.02)
            assert heard.calls == ["assigned 2"]
        else:
            coordinator.refuse(key, SILENT)
            connections = asyncio.create_task(_cut(consumer, coordinator, key))
            await assigned(consumer)
            await connections


async def _cut(consumer: Consumer, coordinator: Coordinator, key: int) -> None:
    """End the connection on which the answer does not come: JoinGroup may take minutes."""
    from kcoord.client.errors import ConnectionLost

    while coordinator.script[key]:
        await asyncio.sleep(0.01)
    assert consumer._parts is not None
    connection = consumer._parts.cluster.open_connection(1, "group")
    assert connection is not None
    connection.abort(ConnectionLost("cut by the test"))


async def test_commits_that_are_refused() -> None:
    async with joining() as (consumer, coordinator, heard):
        await assigned(consumer)
        offsets = {TopicPartition("t", 0): 3}
        coordinator.refuse(apis.OFFSET_COMMIT, errors.COORDINATOR_LOAD_IN_PROGRESS, errors.NOT_COORDINATOR)
        await consumer.commit(offsets)
        assert {one.generation_id_or_member_epoch for one in coordinator.commits} == {1}
        coordinator.refuse(apis.OFFSET_COMMIT, errors.REBALANCE_IN_PROGRESS)
        with pytest.raises(RebalanceInProgress):
            await consumer.commit(offsets)
        await after(consumer, heard, 3)
        assert heard.calls[1:] == ["revoked 2", "assigned 2"]
        kinds: list[tuple[int, type[KafkaError]]] = [
            (errors.UNKNOWN_MEMBER_ID, UnknownMember),
            (errors.ILLEGAL_GENERATION, IllegalGeneration),
        ]
        for code, kind in kinds:
            heard.calls.clear()
            coordinator.refuse(apis.OFFSET_COMMIT, code)
            with pytest.raises(kind):
                await consumer.commit(offsets)
            with pytest.raises(UnknownMember):
                await consumer.commit(offsets)
            await after(consumer, heard, 2)
            assert heard.calls == ["lost 2", "assigned 2"]


async def test_the_oldest_versions() -> None:
    async with joining() as (consumer, coordinator, heard):
        for key in (apis.JOIN_GROUP, apis.SYNC_GROUP, apis.HEARTBEAT, apis.LEAVE_GROUP):
            coordinator.brokers.version_max[key] = 0
        await assigned(consumer)
        await consumer.unsubscribe()
        assert coordinator.leaves == [(0, "m1")]
        assert heard.calls == ["assigned 2", "revoked 2"]


async def test_static_members_need_a_newer_broker() -> None:
    async with joining(group_instance_id="a") as (consumer, coordinator, _):
        coordinator.brokers.version_max[apis.JOIN_GROUP] = 4
        with pytest.raises(UnsupportedVersion):
            await assigned(consumer)


async def test_a_static_member_does_not_leave() -> None:
    async with joining(group_instance_id="a") as (consumer, coordinator, _):
        await assigned(consumer)
        await consumer.stop()
        assert coordinator.leaves == []


async def test_leaving_while_others_are_awaited() -> None:
    """The coordinator has given an id and waits for others: the member leaves with it, and can join again at once."""
    async with joining() as (consumer, coordinator, heard):
        coordinator.needs_id = True
        coordinator.refuse(apis.JOIN_GROUP, errors.NONE, SILENT)
        async with asyncio.timeout(DEADLINE_S):
            while len(coordinator.joins) < 2:
                await consumer.poll(0.02)
            await consumer.unsubscribe()
        assert [member_id for _, member_id in coordinator.leaves] == ["m1"]
        consumer.subscribe(["t"], listener=heard)
        await assigned(consumer)
        assert heard.calls == ["assigned 2"]


async def test_a_user_who_does_not_poll() -> None:
    async with joining(max_poll_interval_ms=200) as (consumer, coordinator, heard):
        await assigned(consumer)
        async with asyncio.timeout(DEADLINE_S):
            while not coordinator.leaves:
                await asyncio.sleep(0.02)
        assert coordinator.leaves[0][1] == "m1"
        assert heard.calls == ["assigned 2"], "listeners are called in polls only"
        await after(consumer, heard, 3)
        assert heard.calls[1:] == ["lost 2", "assigned 2"]
