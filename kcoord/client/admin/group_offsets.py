"""The committed offsets of groups: read, change, delete.

KIP-88: a request that names no partitions gets all offsets of a group in one answer, and the answer has an error code
of its own. So an empty result always means that the group has no offsets; every error is raised or returned as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kcoord.client.admin.results import CommittedOffset
from kcoord.client.admin.spread import Spread
from kcoord.client.cluster import GROUP
from kcoord.client.connection import Connection
from kcoord.client.deadline import Deadline
from kcoord.client.errors import KafkaError, UnstableOffsetCommit, error_for
from kcoord.client.partition import TopicPartition, by_topic
from kcoord.protocol import apis, errors
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
NO_OFFSET: Final = -1

GroupOffsets = dict[TopicPartition, CommittedOffset | KafkaError]


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
