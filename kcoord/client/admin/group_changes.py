"""Deletes groups, removes their members, changes and deletes their offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kcoord.client.admin.group_offsets import OFFSET_COMMIT_MAX
from kcoord.client.admin.results import CommittedOffset
from kcoord.client.admin.spread import Spread, only
from kcoord.client.cluster import GROUP
from kcoord.client.connection import Connection
from kcoord.client.deadline import Deadline
from kcoord.client.errors import KafkaError, check, error_for
from kcoord.client.metadata import TopicPartition
from kcoord.client.partition import by_topic
from kcoord.protocol import apis, errors
from kcoord.protocol.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from kcoord.protocol.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kcoord.protocol.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)

# LeaveGroup removes several members from version 3 on (KIP-345), and takes a reason from version 5 on (KIP-800).
MEMBERS_FROM: Final = 3
# No generation, or no member epoch: the group must have no members.
NO_GENERATION: Final = -1
# Errors that are about the group, whatever partition they stand at.
COORDINATOR_ERRORS: Final = frozenset(
    {
        errors.NOT_COORDINATOR,
        errors.COORDINATOR_NOT_AVAILABLE,
        errors.COORDINATOR_LOAD_IN_PROGRESS,
        errors.GROUP_ID_NOT_FOUND,
        errors.UNKNOWN_MEMBER_ID,
        errors.INVALID_GROUP_ID,
        errors.GROUP_AUTHORIZATION_FAILED,
        errors.ILLEGAL_GENERATION,
        errors.STALE_MEMBER_EPOCH,
        errors.REBALANCE_IN_PROGRESS,
    }
)


async def delete_groups(spread: Spread, deadline: Deadline, group_ids: Iterable[str]) -> dict[str, KafkaError | None]:
    async def ask(connection: Connection, part: list[str]) -> dict[str, KafkaError | None]:
        version = connection.version(apis.DELETE_GROUPS)
        answer = await connection.ask(apis.DELETE_GROUPS, version, DeleteGroupsRequest(part), DeleteGroupsResponse)
        return {
            one.group_id: error_for(one.error_code, f"group {one.group_id}") if one.error_code else None
            for one in answer.results
        }

    return await spread.over_coordinators(deadline, GROUP, group_ids, ask)


async def remove_members(
    spread: Spread, deadline: Deadline, group_id: str, members: Iterable[str], instances: Iterable[str], reason: str
) -> dict[str, KafkaError | None]:
    leaving = [MemberIdentity(one, None, reason) for one in members]
    leaving += [MemberIdentity("", one, reason) for one in instances]

    async def ask(connection: Connection, part: list[str]) -> dict[str, dict[str, KafkaError | None] | KafkaError]:
        version = connection.version(apis.LEAVE_GROUP, MEMBERS_FROM)
        request = LeaveGroupRequest(group_id, "", leaving)
        answer = await connection.ask(apis.LEAVE_GROUP, version, request, LeaveGroupResponse)
        check(answer.error_code, f"group {group_id}")
        left: dict[str, KafkaError | None] = {}
        for one in answer.members:
            name = one.member_id or one.group_instance_id or ""
            left[name] = error_for(one.error_code, f"member {name}") if one.error_code else None
        return dict.fromkeys(part, left)

    return only(await spread.over_coordinators(deadline, GROUP, [group_id], ask), group_id)


async def alter_group_offsets(
    spread: Spread, deadline: Deadline, group: str, offsets: Mapping[TopicPartition, CommittedOffset | int]
) -> dict[TopicPartition, KafkaError | None]:
    given = {key: CommittedOffset(one) if isinstance(one, int) else one for key, one in offsets.items()}
    topics: list[OffsetCommitRequestTopic] = []
    for name, some in by_topic(given).items():
        partitions = []
        for number in some:
            one = given[TopicPartition(name, number)]
            partitions.append(OffsetCommitRequestPartition(number, one.offset, one.leader_epoch, one.metadata))
        topics.append(OffsetCommitRequestTopic(name=name, partitions=partitions))
    request = OffsetCommitRequest(group, NO_GENERATION, "", None, -1, topics)

    async def ask(
        connection: Connection, part: list[str]
    ) -> dict[str, dict[TopicPartition, KafkaError | None] | KafkaError]:
        version = connection.version(apis.OFFSET_COMMIT, 0, OFFSET_COMMIT_MAX)
        answer = await connection.ask(apis.OFFSET_COMMIT, version, request, OffsetCommitResponse)
        found: dict[TopicPartition, KafkaError | None] = {}
        for topic in answer.topics:
            for one in topic.partitions:
                partition = TopicPartition(topic.name, one.partition_index)
                if one.error_code in COORDINATOR_ERRORS:
                    # These are about the group, whatever partition they stand at.
                    raise error_for(one.error_code, f"group {group}")
                found[partition] = error_for(one.error_code, f"partition {partition}") if one.error_code else None
        return {key: dict(sorted(found.items())) for key in part}

    return only(await spread.over_coordinators(deadline, GROUP, [group], ask), group)


async def delete_group_offsets(
    spread: Spread, deadline: Deadline, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, KafkaError | None]:
    topics = [
        OffsetDeleteRequestTopic(name, [OffsetDeleteRequestPartition(one) for one in some])
        for name, some in by_topic(partitions).items()
    ]

    async def ask(
        connection: Connection, part: list[str]
    ) -> dict[str, dict[TopicPartition, KafkaError | None] | KafkaError]:
        version = connection.version(apis.OFFSET_DELETE)
        request = OffsetDeleteRequest(group, topics)
        answer = await connection.ask(apis.OFFSET_DELETE, version, request, OffsetDeleteResponse)
        check(answer.error_code, f"group {group}")
        found: dict[TopicPartition, KafkaError | None] = {}
        for topic in answer.topics:
            for one in topic.partitions:
                partition = TopicPartition(topic.name, one.partition_index)
                found[partition] = error_for(one.error_code, f"partition {partition}") if one.error_code else None
        return {key: dict(sorted(found.items())) for key in part}

    return only(await spread.over_coordinators(deadline, GROUP, [group], ask), group)
