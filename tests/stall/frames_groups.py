"""Worst frames of the APIs of groups and offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kcoord.protocol import apis
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kcoord.protocol.consumer_group_install_assignment import (
    AssignedMember,
    AssignedTopicPartitions,
    ConsumerGroupInstallAssignmentRequest,
)
from kcoord.protocol.consumer_group_prepare_assignment import ConsumerGroupPrepareAssignmentRequest
from kcoord.protocol.heartbeat import HeartbeatRequest
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kcoord.protocol.leave_group import LeaveGroupRequest
from kcoord.protocol.list_groups import ListGroupsRequest
from kcoord.protocol.offset_fetch import OffsetFetchRequest
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.stall.frames import Frame, filled, message
from tests.stall.rig import Peer
from tests.stall.shapes import DIFFERENT_MAX, Shape, ShapeEncoder, frame_bytes_max, requests
from tests.stall.worlds import (
    CLASSIC_GROUP,
    CLIENT_GROUP,
    CONSUMER_GROUP,
    OFFSETS_GROUP,
    TOPICS,
    WIDE,
    WIDE_PARTITIONS,
    World,
    topic_name,
)

# One name in a request of almost nothing, for answers that are large by themselves.
ONE: Final = 3e-5
UNKNOWN: Final = [f"u{number}" for number in range(DIFFERENT_MAX)]
ALL_TOPICS: Final = [topic_name(number) for number in range(TOPICS)]
WIDE_INDEXES: Final = range(WIDE_PARTITIONS)
# Of the frame of a member that another one is compared with.
OTHER_SHARE: Final = 0.1
# RE2 turns each repeat into as many states.
REPEATS: Final = "((a{1,9}){1,9}){1,9}"


def members_of(group: str) -> Callable[[World], object]:
    return lambda world: world.member_ids[group]


def epoch_of(group: str) -> Callable[[World], object]:
    return lambda world: world.epochs[group]


def first_of(group: str) -> Callable[[World], object]:
    return lambda world: world.member_ids[group][0]


def wide_id(world: World) -> object:
    return world.topic_ids[WIDE]


def _join(world: World) -> JoinGroupRequest:
    """The leader of a large group with another protocol's metadata: a rebalance begins."""
    protocols = [JoinGroupRequestProtocol("range", bytes(16))]
    return JoinGroupRequest(CLASSIC_GROUP, 30_000, 1_000, world.leader_id, None, "consumer", protocols)


def _sync(world: World) -> SyncGroupRequest:
    """The leader's assignments, as much for each member as fits."""
    members = world.member_ids[CLASSIC_GROUP]
    size = min(frame_bytes_max(apis.SYNC_GROUP) // len(members) - 200, 4_096)
    assignments = [SyncGroupRequestAssignment(name, bytes(size)) for name in members]
    return SyncGroupRequest(CLASSIC_GROUP, world.epochs[CLASSIC_GROUP], world.leader_id, None, None, None, assignments)


def _install(world: World) -> ConsumerGroupInstallAssignmentRequest:
    """An assignment that every member's part of differs from what it had."""
    names = list(dict.fromkeys(world.member_ids[CLIENT_GROUP]))
    members: list[AssignedMember] = []
    for index, name in enumerate(names):
        partitions = [index] if index < world.size(WIDE_PARTITIONS) else []
        topics = [AssignedTopicPartitions(world.topic_ids[WIDE], partitions)]
        members.append(AssignedMember(name, topics, 0, b""))
    epoch = world.engine.core.groups.consumer_groups[CLIENT_GROUP].epoch
    asked = world.member_ids[CLIENT_GROUP][0]
    return ConsumerGroupInstallAssignmentRequest(CLIENT_GROUP, asked, world.epochs[CLIENT_GROUP], epoch, 0, members)


def _other_with_protocols(peer: Peer) -> None:
    """A member with very many protocols; the next one's are compared with them."""

    def choose(api: str, field: object, index: int) -> object:
        name = getattr(field, "name", "")
        values = {"GroupId": "p", "MemberId": "", "ProtocolType": "consumer", "SessionTimeoutMs": 30_000}
        return values.get(name)

    shape = Shape(("Protocols",), different=True)
    peer.send_aside(ShapeEncoder(requests()[apis.JOIN_GROUP], 3, shape, choose).frame(OTHER_SHARE))


def _beat(**changes: Any) -> Callable[[World], ConsumerGroupHeartbeatRequest]:
    """A newcomer of the large consumer group."""

    def make(world: World) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(
            CONSUMER_GROUP, "newcomer", 0, None, None, 300_000, [WIDE], None, None, []
        )
        for name, value in changes.items():
            setattr(request, name, value(world) if callable(value) else value)
        return request

    return make


def _pattern(what: str, pattern: str) -> Frame:
    make = _beat(subscribed_topic_names=[], subscribed_topic_regex=pattern)
    return message(apis.CONSUMER_GROUP_HEARTBEAT, 1, what, "consumer", make, changes=True)


def _many_patterns(peer: Peer) -> None:
    """Members with a different pattern each, which all are resolved once one more comes."""
    for number in range(500):
        request = ConsumerGroupHeartbeatRequest(
            "patterns", f"p{number}", 0, None, None, 300_000, [], f"t.*{number}|{REPEATS}", None, []
        )
        peer.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, request)


def describe_frames() -> list[Frame]:
    classic, consumer = CLASSIC_GROUP, CONSUMER_GROUP
    key, key_848 = apis.DESCRIBE_GROUPS, apis.CONSUMER_GROUP_DESCRIBE
    ids, keys = "GroupIds", "CoordinatorKeys"
    return [
        filled(key, 5, "10,000 members, as often as fits", "classic", "Groups", Groups=classic),
        filled(key, 5, "10,000 members, once", "classic", "Groups", share=ONE, Groups=classic),
        filled(key, 6, "unknown groups", "groups", "Groups", "different", Groups=UNKNOWN),
        filled(key_848, 1, "10,000 members, as often as fits", "consumer", ids, GroupIds=consumer),
        filled(key_848, 1, "10,000 members, once", "consumer", ids, share=ONE, GroupIds=consumer),
        filled(key_848, 1, "unknown groups", "groups", ids, "different", GroupIds=UNKNOWN),
        message(apis.LIST_GROUPS, 5, "5,000 groups", "groups", lambda world: ListGroupsRequest([], [])),
        filled(apis.LIST_GROUPS, 5, "states", "groups", "StatesFilter", "different"),
        filled(apis.FIND_COORDINATOR, 6, "groups", "groups", keys, "different"),
        filled(apis.DELETE_GROUPS, 2, "5,000 groups", "groups", "GroupsNames", "different", changes=True),
        filled(
            apis.DELETE_GROUPS, 2, "a group of 8,000 offsets", "offsets", "GroupsNames", share=ONE, changes=True,
            GroupsNames=OFFSETS_GROUP,
        ),
    ]  # fmt: skip


def offset_frames() -> list[Frame]:
    consumer = CONSUMER_GROUP
    known: dict[str, Any] = {"GroupId": OFFSETS_GROUP, "Name": WIDE}
    commit, fetch = apis.OFFSET_COMMIT, apis.OFFSET_FETCH
    partitions, indexes = "Topics.Partitions", "Topics.PartitionIndexes"
    new: dict[str, Any] = {"GroupId": "n", "Name": WIDE, "changes": True}
    member: dict[str, Any] = {
        "GroupId": consumer,
        "MemberId": first_of(consumer),
        "GenerationIdOrMemberEpoch": epoch_of(consumer),
    }
    return [
        filled(fetch, 8, "8,000 offsets, as often as fits", "offsets", "Groups", "nulls", GroupId=OFFSETS_GROUP),
        filled(fetch, 10, "unknown groups", "groups", "Groups", "different", "deep", GroupId=UNKNOWN),
        message(
            fetch, 7, "8,000 offsets with metadata", "offsets", lambda world: OffsetFetchRequest(OFFSETS_GROUP, None)
        ),
        filled(fetch, 7, "an offset with metadata, as often as fits", "offsets", indexes, **known),
        filled(
            fetch, 7, "offsets with metadata, again and again", "offsets", indexes, "different", **known,
            PartitionIndexes=WIDE_INDEXES,
        ),
        filled(fetch, 7, "topics without offsets", "offsets", "Topics", "different", "deep", GroupId=OFFSETS_GROUP),
        filled(commit, 8, "a partition, as often as fits", "topics", partitions, **new),
        filled(
            commit, 8, "8,000 partitions, again and again", "topics", partitions, "different", **new,
            PartitionIndex=WIDE_INDEXES,
        ),
        filled(
            commit, 8, "8,000 partitions with metadata", "topics", partitions, "different", **new,
            PartitionIndex=WIDE_INDEXES, CommittedMetadata="m" * 100,
        ),
        filled(
            commit, 8, "unknown partitions", "topics", partitions, "different", **new,
            PartitionIndex=range(WIDE_PARTITIONS, 3 * DIFFERENT_MAX),
        ),
        filled(commit, 8, "unknown topics", "topics", "Topics", "different", "deep", GroupId="n", Name=UNKNOWN),
        filled(
            commit, 9, "a member of 10,000", "consumer", partitions, "different", changes=True, Name=WIDE, **member,
            PartitionIndex=WIDE_INDEXES,
        ),
        filled(
            apis.OFFSET_DELETE, 0, "8,000 offsets, again and again", "offsets", partitions, "different", **known,
            changes=True, PartitionIndex=WIDE_INDEXES,
        ),
        filled(
            apis.OFFSET_DELETE, 0, "unknown topics", "offsets", "Topics", "different", "deep", GroupId=OFFSETS_GROUP,
            Name=UNKNOWN,
        ),
    ]  # fmt: skip


def classic_frames() -> list[Frame]:
    group = CLASSIC_GROUP
    join, leave = apis.JOIN_GROUP, apis.LEAVE_GROUP
    new: dict[str, Any] = {"GroupId": "p", "MemberId": "", "ProtocolType": "consumer", "RebalanceTimeoutMs": 1_000}
    return [
        message(join, 5, "the leader of 10,000 members", "classic", _join, changes=True),
        filled(join, 3, "protocols", "empty", "Protocols", "different", changes=True, **new),
        filled(
            join, 3, "protocols that another member has", "empty", "Protocols", "different",
            prepare=_other_with_protocols, **new,
        ),
        filled(join, 3, "large metadata", "empty", "Protocols", changes=True, **new,
               Metadata=bytes(frame_bytes_max(join) - 1_000)),
        message(apis.SYNC_GROUP, 3, "10,000 assignments", "classic", _sync, changes=True),
        filled(
            apis.SYNC_GROUP, 3, "assignments of unknown members", "classic", "Assignments", "different", changes=True,
            GroupId=group, MemberId=lambda world: [world.leader_id, *UNKNOWN], GenerationId=epoch_of(group),
        ),
        filled(leave, 4, "10,000 members", "classic", "Members", "different", changes=True, GroupId=group,
               MemberId=members_of(group)),
        filled(leave, 4, "a member, as often as fits", "classic", "Members", changes=True, GroupId=group,
               MemberId=first_of(group)),
        filled(leave, 4, "unknown members", "classic", "Members", "different", GroupId=group, MemberId=UNKNOWN),
        message(leave, 2, "one of 10,000", "classic", lambda world: LeaveGroupRequest(
            group, world.member_ids[group][7]), changes=True),
        message(apis.HEARTBEAT, 3, "one of 10,000", "classic", lambda world: HeartbeatRequest(
            group, world.epochs[group], world.leader_id, None)),
    ]  # fmt: skip


def consumer_frames() -> list[Frame]:
    group, world, beat = CONSUMER_GROUP, "consumer", apis.CONSUMER_GROUP_HEARTBEAT
    member: dict[str, Any] = {"GroupId": group, "MemberId": first_of(group), "MemberEpoch": epoch_of(group)}
    client, install = CLIENT_GROUP, apis.CONSUMER_GROUP_INSTALL_ASSIGNMENT
    computing: dict[str, Any] = {
        "GroupId": client,
        "MemberId": members_of(client),
        "MemberEpoch": epoch_of(client),
        "GroupEpoch": lambda of: of.engine.core.groups.consumer_groups[client].epoch,
    }
    topics = [WIDE, *ALL_TOPICS]
    pattern: dict[str, Any] = {"subscribed_topic_names": [], "subscribed_topic_regex": f"t.*|{REPEATS}"}
    return [
        message(beat, 1, "joins 10,000 members", world, _beat(), changes=True),
        message(beat, 1, "joins with 1,000 topics", world, _beat(subscribed_topic_names=topics), changes=True),
        message(beat, 1, "joins and asks for range", world, _beat(server_assignor="range"), changes=True),
        message(beat, 1, "leaves 10,000 members", world, _beat(member_id=first_of(group), member_epoch=-1),
                changes=True),
        _pattern("every topic by pattern", ".*"),
        _pattern("a pattern of repeats", f"t.*|{REPEATS}"),
        _pattern("a pattern of 32,000 characters", ".*" * 16_000),
        _pattern("a pattern of 4,000 alternatives", "|".join(f".*{number}" for number in range(4_000))),
        _pattern("a pattern of classes", "|".join([r"\pL{1,1000}"] * 60)),
        message(beat, 1, "the 501st pattern of a group", "topics", _beat(group_id="patterns", **pattern),
                prepare=_many_patterns),
        filled(beat, 1, "partitions owned", world, "TopicPartitions.Partitions", "different", **member,
               TopicId=wide_id, Partitions=WIDE_INDEXES),
        filled(beat, 1, "a partition owned, as often as fits", world, "TopicPartitions.Partitions", **member,
               TopicId=wide_id),
        filled(beat, 1, "topics owned", world, "TopicPartitions", "different", "deep", **member,
               Partitions=WIDE_INDEXES),
        filled(beat, 1, "topics subscribed", world, "SubscribedTopicNames", "different", "nulls", changes=True,
               **member, SubscribedTopicNames=UNKNOWN),
        filled(beat, 1, "client assignors", world, "ClientAssignors", "different", changes=True, **member,
               Name=UNKNOWN),
        message(apis.CONSUMER_GROUP_PREPARE_ASSIGNMENT, 0, "10,000 members", "client", lambda of: (
            ConsumerGroupPrepareAssignmentRequest(client, of.member_ids[client][0], of.epochs[client]))),
        message(install, 0, "an assignment for 10,000 members", "client", _install, changes=True),
        filled(install, 0, "10,000 members", "client", "Members", "different", "deep", changes=True, **computing,
               TopicId=wide_id, Partitions=WIDE_INDEXES),
        filled(install, 0, "a member with partitions", "client", "Members.TopicPartitions.Partitions", "different",
               changes=True, **computing, TopicId=wide_id, Partitions=WIDE_INDEXES),
        filled(apis.LEAVE_GROUP, 4, "10,000 members of the new protocol", world, "Members", "different",
               changes=True, GroupId=group, MemberId=members_of(group)),
    ]  # fmt: skip


def group_frames() -> list[Frame]:
    return describe_frames() + offset_frames() + classic_frames() + consumer_frames()
