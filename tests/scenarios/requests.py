"""How scenario commands become requests. Each builder takes what it knows from the command and leaves the rest.

Those of consumer groups (`beat`, `describe-consumer`) are in `consumer_requests.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from kcoord.protocol import apis
from kcoord.protocol.delete_groups import DeleteGroupsRequest
from kcoord.protocol.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kcoord.protocol.describe_groups import DescribeGroupsRequest
from kcoord.protocol.heartbeat import HeartbeatRequest
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kcoord.protocol.leave_group import LeaveGroupRequest, MemberIdentity
from kcoord.protocol.list_groups import ListGroupsRequest
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kcoord.protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kcoord.wire.message import Message
from kcoord.wire.primitives import ZERO_UUID
from tests.scenarios.actor import Actor, Actors, instance_of, member_id_of
from tests.scenarios.consumer_requests import (
    build_beat,
    build_describe_consumer,
    build_install,
    build_prepare,
)
from tests.scenarios.embedded import VERSION_MAX, assignment, subscription
from tests.scenarios.printing import Printer, milliseconds
from tests.scenarios.script import Command

Builder = Callable[[Command, Actor, int, Printer, Actors], Message]


def build_join(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    """`topics=t,u` makes a consumer's subscription for each of `protocols=range,...`; else `range:<hex>`.

    `subscription=3` is its version, for which `owned=t/0+t/1`, `owned_generation=5` and `rack=r` are more to say.
    """
    topics = command.options.pop("topics", None)
    subscribed = b""
    if topics is not None:
        subscribed = subscription(
            topics.split(",") if topics else [],
            command.number("subscription", 0),
            command.text("owned"),
            command.number("owned_generation", -1),
            command.optional("rack"),
        )
    protocols = []
    for text in command.text("protocols", "range").split(","):
        name, _, data = text.partition(":")
        metadata = bytes.fromhex(data) if topics is None else subscribed
        protocols.append(JoinGroupRequestProtocol(name, metadata))
    if "instance" in command.options:
        actor.instance_id = command.text("instance") or None
    session_timeout_ms = milliseconds(command.text("session", "10s"))
    rebalance_timeout_ms = milliseconds(command.text("rebalance", "60s"))
    return JoinGroupRequest(
        command.text("group", "g"),
        session_timeout_ms,
        rebalance_timeout_ms,
        member_id_of(command, actor, printer),
        actor.instance_id if version >= 5 else None,
        command.text("type", "consumer"),
        protocols if "".join(p.name for p in protocols) else [],
        command.optional("reason"),
    )


def build_sync(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    """`assign=a:01,b:02` gives each client's member its assignment: bytes, or the partitions of a consumer.

    Those are written `assign=a:t/0+t/1,b:/` (`/` for none), in version `assignment=3`.
    """
    version_of_assignment = command.number("assignment", VERSION_MAX)
    assignments = []
    for pair in command.names("assign"):
        name, _, data = pair.partition(":")
        member_id = actors[name].member_id if name in actors else printer.lengthen(name)
        encoded = assignment(data, version_of_assignment) if "/" in data else bytes.fromhex(data)
        assignments.append(SyncGroupRequestAssignment(member_id, encoded))
    return SyncGroupRequest(
        command.text("group", "g"),
        command.number("generation", actor.generation_id),
        member_id_of(command, actor, printer),
        instance_of(command, actor) if version >= 3 else None,
        command.text("type", actor.protocol_type or "") or None if version >= 5 else None,
        command.text("protocol", actor.protocol_name or "") or None if version >= 5 else None,
        assignments,
    )


def build_heartbeat(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    return HeartbeatRequest(
        command.text("group", "g"),
        command.number("generation", actor.generation_id),
        member_id_of(command, actor, printer),
        instance_of(command, actor) if version >= 3 else None,
    )


def build_leave(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    """`members=a,b` or `instances=x,y` from version 3 on; else the client itself."""
    group_id = command.text("group", "g")
    reason = command.optional("reason")
    if version < 3:
        return LeaveGroupRequest(group_id, member_id_of(command, actor, printer))
    members = []
    for name in command.names("members"):
        member_id = actors[name].member_id if name in actors else printer.lengthen(name)
        members.append(MemberIdentity(member_id, None, reason))
    for name in command.names("instances"):
        members.append(MemberIdentity("", name, reason))
    if not members:
        identity = MemberIdentity(member_id_of(command, actor, printer), instance_of(command, actor), reason)
        members.append(identity)
    return LeaveGroupRequest(group_id, "", members)


def build_commit(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    """`t:0=5` commits offset 5; topics in order of appearance. Without a client it is a standalone commit."""
    metadata = command.text("metadata")
    if metadata.startswith("*"):
        metadata = "m" * int(metadata[1:])
    epoch = command.number("epoch", -1)
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for word in command.words:
        place, _, offset = word.partition("=")
        name, _, index = place.rpartition(":")
        if name not in topics:
            topics[name] = OffsetCommitRequestTopic(name if version < 10 else "", topic_id_of(name, version, printer))
        partition = OffsetCommitRequestPartition(int(index), int(offset), epoch, metadata)
        topics[name].partitions.append(partition)
    return OffsetCommitRequest(
        command.text("group", "g"),
        command.number("generation", actor.generation_id),
        member_id_of(command, actor, printer),
        instance_of(command, actor) if version >= 7 else None,
        milliseconds(command.text("retention")) if "retention" in command.options else -1,
        list(topics.values()),
    )


def topic_id_of(name: str, version: int, printer: Printer) -> bytes:
    """The topic's id where a version asks for ids; a topic that never was has one that nobody knows."""
    if version < 10:
        return ZERO_UUID
    return printer.topic_ids.get(name, b"\xee" * 16)


def build_fetch(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    """`t:0,1` names partitions, no words mean all offsets; `groups=g,h` asks for the same of several groups."""
    asked: dict[str, list[int]] | None = None
    for word in command.words:
        name, _, indexes = word.rpartition(":")
        asked = {} if asked is None else asked
        asked.setdefault(name, []).extend(int(index) for index in indexes.split(",") if index)
    require_stable = command.flag("stable")
    group_ids = command.names("groups") or [command.text("group", "g")]
    if version < 8:
        topics = None
        if asked is not None:
            topics = [OffsetFetchRequestTopic(name, indexes) for name, indexes in asked.items()]
        return OffsetFetchRequest(group_ids[0], topics, None, require_stable)
    groups = []
    member_id = command.optional("member")
    member_epoch = command.number("epoch", -1)
    for group_id in group_ids:
        of_group = None
        if asked is not None:
            of_group = [
                OffsetFetchRequestTopics(name if version < 10 else "", topic_id_of(name, version, printer), indexes)
                for name, indexes in asked.items()
            ]
        groups.append(OffsetFetchRequestGroup(group_id, member_id, member_epoch, of_group))
    return OffsetFetchRequest("", (), groups, require_stable)


def build_delete_offsets(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    topics = []
    for word in command.words:
        name, _, indexes = word.rpartition(":")
        partitions = [OffsetDeleteRequestPartition(int(index)) for index in indexes.split(",")]
        topics.append(OffsetDeleteRequestTopic(name, partitions))
    return OffsetDeleteRequest(command.text("group", "g"), topics)


def build_delete_groups(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    return DeleteGroupsRequest(command.words)


def build_delete_topics(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    if version < 6:
        return DeleteTopicsRequest([], command.words, 30000)
    return DeleteTopicsRequest([DeleteTopicState(name) for name in command.words], [], 30000)


def build_describe(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    return DescribeGroupsRequest(command.words or ["g"])


def build_list(command: Command, actor: Actor, version: int, printer: Printer, actors: Actors) -> Message:
    return ListGroupsRequest(command.names("states"), command.names("types"))


REQUESTS: dict[str, tuple[int, Builder]] = {
    "join": (apis.JOIN_GROUP, build_join),
    "sync": (apis.SYNC_GROUP, build_sync),
    "heartbeat": (apis.HEARTBEAT, build_heartbeat),
    "leave": (apis.LEAVE_GROUP, build_leave),
    "commit": (apis.OFFSET_COMMIT, build_commit),
    "fetch": (apis.OFFSET_FETCH, build_fetch),
    "delete-offsets": (apis.OFFSET_DELETE, build_delete_offsets),
    "delete-groups": (apis.DELETE_GROUPS, build_delete_groups),
    "delete-topics": (apis.DELETE_TOPICS, build_delete_topics),
    "beat": (apis.CONSUMER_GROUP_HEARTBEAT, build_beat),
    "prepare": (apis.CONSUMER_GROUP_PREPARE_ASSIGNMENT, build_prepare),
    "install": (apis.CONSUMER_GROUP_INSTALL_ASSIGNMENT, build_install),
    "describe-consumer": (apis.CONSUMER_GROUP_DESCRIBE, build_describe_consumer),
    "describe": (apis.DESCRIBE_GROUPS, build_describe),
    "list": (apis.LIST_GROUPS, build_list),
}
