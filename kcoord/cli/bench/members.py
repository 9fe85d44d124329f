"""Members of groups in both protocols, each with a connection of its own, as real clients have."""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from typing import Final

from kcoord.cli.bench.joining import OWN_ID_FROM, PROTOCOL, PROTOCOL_TYPE, REBALANCE_TIMEOUT_MS, new_member_id
from kcoord.cli.bench.load import CONNECTION_LOST
from kcoord.cli.bench.target import LEAVE_EPOCH, Joined, Target, leave_request
from kcoord.client.connection import Connection
from kcoord.client.consumer.classic.embedded import decode_assignment, encode_assignment, encode_subscription
from kcoord.client.errors import BrokerError, KafkaError, error_for
from kcoord.client.load.histogram import Histogram
from kcoord.client.metadata import Node, TopicMetadata
from kcoord.client.partition import TopicPartition
from kcoord.protocol import apis, errors
from kcoord.protocol.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OwnedTopicPartitions,
)
from kcoord.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kcoord.protocol.leave_group import LeaveGroupResponse
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

SESSION_TIMEOUT_MS: Final = 30_000
# A JoinGroup waits until all members have joined.
JOIN_TIMEOUT_S: Final = 120.0
RETRY_S: Final = 0.1
NO_EPOCH: Final = -1


class Member(ABC):
    """One member. `start` lets it join and stay; `leave` ends it. What it saw of the group is in its attributes."""

    def __init__(self, target: Target, group_id: str, topic: TopicMetadata, heartbeat_s: float) -> None:
        self.target = target
        self.group_id = group_id
        self.topic = topic
        self.heartbeat_s = heartbeat_s
        self.member_id = ""
        # The generation or member epoch, NO_EPOCH while it joins; when it got it, or its last partitions.
        self.epoch = NO_EPOCH
        self.owned: list[int] = []
        self.since = 0.0
        self.heartbeats = Histogram()
        self.errors: dict[str, int] = {}
        # A JoinGroup or SyncGroup may wait for other members, and would hold back what follows it.
        self.is_waiting = False
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    async def connect(self, node: Node) -> None:
        """Connect to the coordinator, and check that it has the protocol. Raises KafkaError."""
        self._connection = await self.target.connect(node)
        self.check_versions(self._connection)

    def start(self) -> None:
        self._task = asyncio.create_task(self._live(), name="kcoord bench member")

    @property
    def connection(self) -> Connection:
        assert self._connection is not None
        return self._connection

    async def _live(self) -> None:
        """Join and send heartbeats until cancelled. Errors are counted, and the member joins again after a pause."""
        while True:
            try:
                await self.stay()
            except KafkaError as error:
                self.epoch = NO_EPOCH
                name = error.name if isinstance(error, BrokerError) else CONNECTION_LOST
                self.errors[name] = self.errors.get(name, 0) + 1
                await asyncio.sleep(RETRY_S)
                if self.connection.is_closed:
                    with contextlib.suppress(KafkaError):
                        await self.connect(await self.target.coordinator(self.group_id))

    async def leave(self) -> None:
        """Leave the group and close the connection. A group that does not know the member is fine."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        connection = self._connection
        if connection is None:
            return
        try:
            if self.is_waiting or connection.is_closed:
                await connection.close()
                connection = await self.target.connect(await self.target.coordinator(self.group_id))
            if self.member_id:
                await self.say_goodbye(connection)
                self.target.members.discard(self.joined)
        finally:
            await connection.close()

    @property
    def joined(self) -> Joined:
        return Joined(self.group_id, self.member_id, isinstance(self, ClassicMember))

    def note_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.since = time.perf_counter()

    @abstractmethod
    def check_versions(self, connection: Connection) -> None:
        """Raise UnsupportedVersion if the broker lacks the protocol."""

    @abstractmethod
    async def stay(self) -> None:
        """Join and send heartbeats. Returns when it has to join again, and raises KafkaError."""

    @abstractmethod
    async def say_goodbye(self, connection: Connection) -> None:
        """Leave the group."""


class ClassicMember(Member):
    """JoinGroup, SyncGroup and Heartbeat. The leader gives the partitions to the members in turn."""

    def check_versions(self, connection: Connection) -> None:
        for api_key in (apis.JOIN_GROUP, apis.SYNC_GROUP, apis.HEARTBEAT, apis.LEAVE_GROUP):
            connection.version(api_key)

    async def stay(self) -> None:
        self.is_waiting = True
        joined = await self._join()
        shares = self._assign([one.member_id for one in joined.members])
        sync = SyncGroupRequest(
            self.group_id, joined.generation_id, self.member_id, None, PROTOCOL_TYPE, PROTOCOL, shares
        )
        connection = self.connection
        version = connection.version(apis.SYNC_GROUP)
        answer = await connection.ask(apis.SYNC_GROUP, version, sync, SyncGroupResponse, JOIN_TIMEOUT_S)
        if self._must_join_again(answer.error_code):
            return
        self.is_waiting = False
        self.owned = [one.partition for one in decode_assignment(bytes(answer.assignment))]
        self.note_epoch(joined.generation_id)
        request = HeartbeatRequest(self.group_id, joined.generation_id, self.member_id)
        version = connection.version(apis.HEARTBEAT)
        while True:
            await asyncio.sleep(self.heartbeat_s)
            began = time.perf_counter_ns()
            beat = await connection.ask(apis.HEARTBEAT, version, request, HeartbeatResponse)
            self.heartbeats.add(time.perf_counter_ns() - began)
            if self._must_join_again(beat.error_code):
                return

    def _must_join_again(self, code: int) -> bool:
        """Whether the group rebalances. Raises BrokerError for any other error."""
        if code == errors.REBALANCE_IN_PROGRESS:
            return True
        if code == errors.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        if code:
            raise error_for(code, f"group {self.group_id}")
        return False

    async def _join(self) -> JoinGroupResponse:
        owned = [TopicPartition(self.topic.name, number) for number in self.owned]
        metadata = encode_subscription([self.topic.name], owned, self.epoch, None, None)
        version = self.connection.version(apis.JOIN_GROUP)
        while True:
            request = JoinGroupRequest(
                self.group_id, SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS, self.member_id, None, PROTOCOL_TYPE,
                [JoinGroupRequestProtocol(PROTOCOL, metadata)],
            )  # fmt: skip
            answer = await self.connection.ask(apis.JOIN_GROUP, version, request, JoinGroupResponse, JOIN_TIMEOUT_S)
            if answer.member_id and answer.error_code in (errors.NONE, errors.MEMBER_ID_REQUIRED):
                self.member_id = answer.member_id
                self.target.members.add(self.joined)
            if answer.error_code != errors.MEMBER_ID_REQUIRED and not self._must_join_again(answer.error_code):
                return answer

    def _assign(self, members: list[str]) -> list[SyncGroupRequestAssignment]:
        """The shares of all members; none unless this member is the leader."""
        if not members:
            return []
        partitions = [TopicPartition(self.topic.name, number) for number in self.topic.partitions]
        return [
            SyncGroupRequestAssignment(member_id, encode_assignment(partitions[number :: len(members)]))
            for number, member_id in enumerate(members)
        ]

    async def say_goodbye(self, connection: Connection) -> None:
        version = connection.version(apis.LEAVE_GROUP)
        request = leave_request(version, self.group_id, self.member_id)
        await connection.ask(apis.LEAVE_GROUP, version, request, LeaveGroupResponse)


class ConsumerMember(Member):
    """ConsumerGroupHeartbeat (KIP-848). It answers an assignment at once, and otherwise waits for its interval."""

    def check_versions(self, connection: Connection) -> None:
        connection.version(apis.CONSUMER_GROUP_HEARTBEAT)

    async def stay(self) -> None:
        connection = self.connection
        version = connection.version(apis.CONSUMER_GROUP_HEARTBEAT)
        if not self.member_id and version >= OWN_ID_FROM:
            self.member_id = new_member_id()
        self.owned = []
        self.target.members.add(self.joined)
        request = ConsumerGroupHeartbeatRequest(
            self.group_id, self.member_id, 0, rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            subscribed_topic_names=[self.topic.name], topic_partitions=[],
        )  # fmt: skip
        while True:
            began = time.perf_counter_ns()
            answer = await connection.ask(
                apis.CONSUMER_GROUP_HEARTBEAT, version, request, ConsumerGroupHeartbeatResponse
            )
            self.heartbeats.add(time.perf_counter_ns() - began)
            if answer.error_code:
                raise error_for(answer.error_code, f"group {self.group_id}")
            if answer.member_id and answer.member_id != self.member_id:
                self.member_id = answer.member_id
                self.target.members.add(self.joined)
            news = answer.assignment
            if news is not None:
                self.owned = [number for one in news.topic_partitions for number in one.partitions]
            if news is not None or answer.member_epoch != self.epoch:
                self.note_epoch(answer.member_epoch)
            request = ConsumerGroupHeartbeatRequest(self.group_id, self.member_id, self.epoch)
            if news is not None:
                owned = OwnedTopicPartitions(self.topic.topic_id, self.owned)
                request.topic_partitions = [owned] if self.owned else []
            else:
                await asyncio.sleep(self.heartbeat_s)

    async def say_goodbye(self, connection: Connection) -> None:
        version = connection.version(apis.CONSUMER_GROUP_HEARTBEAT)
        request = ConsumerGroupHeartbeatRequest(self.group_id, self.member_id, LEAVE_EPOCH)
        await connection.ask(apis.CONSUMER_GROUP_HEARTBEAT, version, request, ConsumerGroupHeartbeatResponse)
