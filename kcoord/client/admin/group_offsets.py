"""The committed offsets of groups: read, change, delete.

KIP-88: a request that names no partitions gets all offsets of a group in one answer, and the answer has an error code
of its own. So an empty result always means that the group has no offsets; every error is raised or returned as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kcoord.client.admin.results import CommittedOffset
from kcoord.client.admin.spread import Spread, only
from kcoord.client.cluster import GROUP
from kcoord.client.connection import Connection
from kcoord.client.deadline import Deadline
from kcoord.client.errors import KafkaError, UnstableOffsetCommit, check, error_for
from kcoord.client.partition import TopicPartition
from kcoord.protocol import apis, errors
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
from kcoord.protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

# OffsetFetch: all offsets of a group (KIP-88), stable offsets (KIP-447), several groups (KIP-709).
ALL_FROM: Final = 2
STABLE_FROM: Final = 7
GROUPS_FROM: Final = 8
# The newest versions that name topics, not topic ids.
OFFSET_FETCH_MAX: Final = 9
OFFSET_COMMIT_MAX: Final = 9
# No generation, or no member epoch: the group must have no members.
NO_GENERATION: Final = -1
NO_OFFSET: Final = -1

GroupOffsets = dict[TopicPartition, CommittedOffset | KafkaError]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, sorted."""
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(set(partitions)):
        found.setdefault(topic, []).append(partition)
    return found


async def list_offsets_of_groups(
    spread: Spread,
    deadline: Deadline,
    groups: Mapping[str, Iterable[TopicPartition] | None],
    require_stable: bool,
) -> dict[str, GroupOffsets | KafkaError]:
    wanted = {group: None if some is None else by_topic(some) for group, some in groups.items()}
    version_min = STABLE_FROM if require_stable else ALL_FROM

    async def ask(connection: Connection, part: list[str]) -> dict[str, GroupOffsets | KafkaError]:
        version = connection.version(apis.OFFSET_FETCH, version_min, OFFSET_FETCH_MAX)
        if version >= GROUPS_FROM:
            return await _fetch_batch(connection, version, {group: wanted[group] for group in part}, require_stable)
        found: dict[str, GroupOffsets | KafkaError] = {}
        for group in part:
            found[group] = await _fetch_one(connection, version, group, wanted[group], require_stable)
        return found

    return await spread.over_coordinators(deadline, GROUP, wanted, ask)


async def _fetch_batch(
    connection: Connection, version: int, wanted: dict[str, dict[str, list[int]] | None], require_stable: bool
) -> dict[str, GroupOffsets | KafkaError]:
    groups = []
    for group, topics in wanted.items():
        one = OffsetFetchRequestGroup(group)
        one.topics = (
            None
            if topics is None
            else [OffsetFetchRequestTopics(name=name, partition_indexes=some) for name, some in topics.items()]
        )
        groups.append(one)
    request = OffsetFetchRequest(groups=groups, require_stable=require_stable)
    answer = await connection.ask(apis.OFFSET_FETCH, version, request, OffsetFetchResponse)
    return {one.group_id: _offsets(one.group_id, one.error_code, one.topics) for one in answer.groups}


async def _fetch_one(
    connection: Connection, version: int, group: str, topics: dict[str, list[int]] | None, require_stable: bool
) -> GroupOffsets | KafkaError:
    request = OffsetFetchRequest(group_id=group, require_stable=require_stable)
    request.topics = None
    if topics is not None:
        request.topics = [OffsetFetchRequestTopic(name, some) for name, some in topics.items()]
    answer = await connection.ask(apis.OFFSET_FETCH, version, request, OffsetFetchResponse)
    return _offsets(group, answer.error_code, answer.topics)


def _offsets(
    group: str, error_code: int, topics: Iterable[OffsetFetchResponseTopic | OffsetFetchResponseTopics]
) -> GroupOffsets | KafkaError:
    """Partitions without a committed offset are left out."""
    if error_code:
        return error_for(error_code, f"group {group}")
    found: GroupOffsets = {}
    for topic in topics:
        for one in topic.partitions:
            partition = TopicPartition(topic.name, one.partition_index)
            if one.error_code == errors.UNSTABLE_OFFSET_COMMIT:
                # The answer is complete only when no transaction hides an offset: ask again.
                return UnstableOffsetCommit(one.error_code, f"partition {partition} of group {group}")
            if one.error_code:
                found[partition] = error_for(one.error_code, f"partition {partition}")
            elif one.committed_offset != NO_OFFSET:
                found[partition] = CommittedOffset(one.committed_offset, one.metadata or "", one.committed_leader_epoch)
    return dict(sorted(found.items()))


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
