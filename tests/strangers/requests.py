"""What clients ask in the usual order when they open a connection, and short forms of other requests."""

from __future__ import annotations

from typing import Any, Final

from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersionsRequest
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kcoord.protocol.find_coordinator import FindCoordinatorRequest
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kcoord.protocol.leave_group import LeaveGroupRequest, MemberIdentity
from kcoord.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

# An API, its version, and the message.
Request = tuple[int, int, Any]

SESSION_MS: Final = 15_000
REBALANCE_MS: Final = 10_000
RANGE: Final = "range"
CONSUMER: Final = "consumer"


def api_versions() -> Request:
    return apis.API_VERSIONS, 3, ApiVersionsRequest("stranger", "1.0")


def metadata(topic: str) -> Request:
    return apis.METADATA, 9, MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)


def find_coordinator(group: str) -> Request:
    return apis.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=[group])


def subscription(topic: str) -> bytes:
    """Of a classic member, version 0: the topic and no user data."""
    name = topic.encode()
    return b"\0\0" + b"\0\0\0\1" + len(name).to_bytes(2, "big") + name + b"\xff\xff\xff\xff"


def assignment(topic: str, partition: int) -> bytes:
    """The same of an assignment with one partition."""
    name = topic.encode()
    head = b"\0\0" + b"\0\0\0\1" + len(name).to_bytes(2, "big") + name
    return head + b"\0\0\0\1" + partition.to_bytes(4, "big") + b"\xff\xff\xff\xff"


def join(group: str, topic: str, member_id: str = "") -> Request:
    protocols = [JoinGroupRequestProtocol(RANGE, subscription(topic))]
    return apis.JOIN_GROUP, 7, JoinGroupRequest(group, SESSION_MS, REBALANCE_MS, member_id, None, CONSUMER, protocols)


def sync(group: str, generation: int, member_id: str, topic: str, is_leader: bool = True) -> Request:
    parts = [SyncGroupRequestAssignment(member_id, assignment(topic, 0))] if is_leader else []
    return apis.SYNC_GROUP, 5, SyncGroupRequest(group, generation, member_id, None, CONSUMER, RANGE, parts)


def leave(group: str, member_id: str) -> Request:
    return apis.LEAVE_GROUP, 4, LeaveGroupRequest(group, members=[MemberIdentity(member_id)])


def heartbeat(group: str, member_id: str, epoch: int, topic: str) -> Request:
    """Of the consumer protocol: 0 joins, -1 leaves."""
    message = ConsumerGroupHeartbeatRequest(group, member_id, epoch)
    if epoch == 0:
        message.rebalance_timeout_ms = REBALANCE_MS
        message.subscribed_topic_names = [topic]
        message.topic_partitions = []
    return apis.CONSUMER_GROUP_HEARTBEAT, 0, message


def commit(group: str, topic: str, offset: int, member_id: str = "", epoch: int = -1) -> Request:
    topics = [OffsetCommitRequestTopic(topic, partitions=[OffsetCommitRequestPartition(0, offset)])]
    return apis.OFFSET_COMMIT, 9, OffsetCommitRequest(group, epoch, member_id, topics=topics)


def committed(group: str, topic: str, partitions: int = 1) -> Request:
    return apis.OFFSET_FETCH, 7, OffsetFetchRequest(group, [OffsetFetchRequestTopic(topic, list(range(partitions)))])
