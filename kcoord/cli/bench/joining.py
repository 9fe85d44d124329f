"""Groups with one member each, for the steady workloads of groups."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import Final

from kcoord.cli.bench.target import Joined, Target
from kcoord.client.connection import Connection
from kcoord.client.consumer.classic.embedded import encode_assignment, encode_subscription
from kcoord.client.errors import error_for
from kcoord.client.load.members import PROTOCOL, PROTOCOL_TYPE, REBALANCE_TIMEOUT_MS
from kcoord.client.metadata import Node, TopicMetadata
from kcoord.client.partition import TopicPartition
from kcoord.protocol import apis, errors
from kcoord.protocol.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OwnedTopicPartitions,
)
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

# Long, since a member may send nothing while another cluster is measured; short where the broker has a lower maximum.
SESSION_TIMEOUTS_MS: Final = (300_000, 30_000, 10_000)
# Member ids of consumer groups are chosen by clients from this version on (KIP-1082).
OWN_ID_FROM: Final = 1
ID_BYTES: Final = 11
SETTLE_S: Final = 0.02


@dataclass(slots=True)
class GroupMember:
    """A member in a stable group, and the broker that coordinates it."""

    group_id: str
    member_id: str
    epoch: int
    node: Node


def new_member_id() -> str:
    return secrets.token_urlsafe(ID_BYTES)


async def join_classic(target: Target, name: str, topic: TopicMetadata) -> GroupMember:
    """A group of the classic protocol whose one member has all partitions of a topic."""
    group_id = target.group(name)
    node = await target.coordinator(group_id)
    connection = await target.connect(node)
    try:
        return await classic_member(target, connection, node, group_id, topic)
    finally:
        await connection.close()


async def classic_member(
    target: Target, connection: Connection, node: Node, group_id: str, topic: TopicMetadata
) -> GroupMember:
    """The only member of a classic group, which has joined over a connection to its coordinator."""
    answer = await _join(target, connection, group_id, topic.name)
    target.members.add(Joined(group_id, answer.member_id, True))
    owned = [TopicPartition(topic.name, number) for number in topic.partitions]
    sync = SyncGroupRequest(
        group_id, answer.generation_id, answer.member_id, None, PROTOCOL_TYPE, PROTOCOL,
        [SyncGroupRequestAssignment(answer.member_id, encode_assignment(owned))],
    )  # fmt: skip
    await target.ask(connection, apis.SYNC_GROUP, connection.version(apis.SYNC_GROUP), sync, SyncGroupResponse)
    return GroupMember(group_id, answer.member_id, answer.generation_id, node)


async def _join(target: Target, connection: Connection, group_id: str, topic: str) -> JoinGroupResponse:
    """The first JoinGroup answers with a member id from version 4 on (KIP-394). Raises BrokerError."""
    version = connection.version(apis.JOIN_GROUP)
    accepted = (errors.MEMBER_ID_REQUIRED, errors.INVALID_SESSION_TIMEOUT)
    metadata = encode_subscription([topic], [], -1, None, None)
    member_id = ""
    for timeout_ms in SESSION_TIMEOUTS_MS:
        while True:
            request = JoinGroupRequest(
                group_id, timeout_ms, REBALANCE_TIMEOUT_MS, member_id, None, PROTOCOL_TYPE,
                [JoinGroupRequestProtocol(PROTOCOL, metadata)],
            )  # fmt: skip
            answer = await target.ask(connection, apis.JOIN_GROUP, version, request, JoinGroupResponse, accepted)
            if answer.error_code != errors.MEMBER_ID_REQUIRED:
                break
            member_id = answer.member_id
        if not answer.error_code:
            return answer
    raise error_for(errors.INVALID_SESSION_TIMEOUT, f"group {group_id}")


async def join_consumer(target: Target, name: str, topic: TopicMetadata) -> GroupMember:
    """A group of the consumer protocol (KIP-848) whose one member has all partitions of a topic."""
    group_id = target.group(name)
    node = await target.coordinator(group_id)
    connection = await target.connect(node)
    try:
        return await consumer_member(target, connection, node, group_id, topic)
    finally:
        await connection.close()


async def consumer_member(
    target: Target, connection: Connection, node: Node, group_id: str, topic: TopicMetadata
) -> GroupMember:
    """The only member of a consumer group, which has joined over a connection to its coordinator."""
    version = connection.version(apis.CONSUMER_GROUP_HEARTBEAT)
    request = ConsumerGroupHeartbeatRequest(
        group_id, new_member_id() if version >= OWN_ID_FROM else "", 0,
        rebalance_timeout_ms=REBALANCE_TIMEOUT_MS, subscribed_topic_names=[topic.name], topic_partitions=[],
    )  # fmt: skip
    deadline = target.deadline(f"the assignment of group {group_id}")
    owned: list[int] = []
    while True:
        answer = await target.ask(
            connection, apis.CONSUMER_GROUP_HEARTBEAT, version, request, ConsumerGroupHeartbeatResponse
        )
        member_id = answer.member_id or request.member_id
        target.members.add(Joined(group_id, member_id, False))
        is_settled = answer.member_epoch == request.member_epoch and answer.assignment is None
        if is_settled and len(owned) == len(topic.partitions):
            return GroupMember(group_id, member_id, answer.member_epoch, node)
        if answer.assignment is not None:
            owned = [number for one in answer.assignment.topic_partitions for number in one.partitions]
        request = ConsumerGroupHeartbeatRequest(
            group_id, member_id, answer.member_epoch,
            topic_partitions=[OwnedTopicPartitions(topic.topic_id, owned)] if owned else [],
        )  # fmt: skip
        deadline.check()
        if is_settled:
            await asyncio.sleep(SETTLE_S)
