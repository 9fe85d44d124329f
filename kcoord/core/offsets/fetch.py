"""OffsetFetch v1-10 (KIP-88: all offsets of a group; KIP-447: require stable; KIP-709: several groups at once).

A group without offsets, or one that nobody knows, is answered with offset -1 and no error. Group errors stand at the
top level from version 2 on (KIP-88) and at each partition before; classic groups know none, so they are for the
versions with a member epoch (9 and up). What is answered may not be durable yet: the reply waits for it.

An answer is bounded by what there is, not by how often it is asked for: in a large request a partition that is named
again is answered once, and groups beyond a number of offsets are said to be loading.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.offsets.fences import check_fetch
from kcoord.core.offsets.state import OffsetState, StoredOffset
from kcoord.core.outcome import Outcome, Reply, Request
from kcoord.protocol import errors
from kcoord.protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kcoord.wire.primitives import ZERO_UUID

INVALID_OFFSET: Final = -1
GROUPS_VERSION: Final = 8
MEMBER_EPOCH_VERSION: Final = 9
TOPIC_ID_VERSION: Final = 10
# Offsets that one answer holds, or those of one group where that has more: some 20 ms. Clients ask again for the other
# groups. So many characters of metadata count as one offset. Kafka has no limit.
FETCHED_OFFSETS_MAX: Final = 20_000
METADATA_CHARS_PER_OFFSET: Final = 256
# In requests for more partitions of a group, those that are named again are left out. Kafka answers them all.
REPEATED_PARTITIONS_MAX: Final = 1_000
# By name or id of the topic, the partitions that were named already.
Named = dict[str | bytes, dict[int, bool]]


@final
class OffsetFetches:
    def __init__(self, state: OffsetState) -> None:
        self.state = state
        self.offsets_max = FETCHED_OFFSETS_MAX

    def handle_offset_fetch(self, request: Request, body: OffsetFetchRequest) -> Outcome:
        outcome = Outcome()
        if request.version < GROUPS_VERSION:
            self._reply(outcome, request.request_id, self._fetch_single(body), body.group_id)
            return outcome
        answers: list[OffsetFetchResponseGroup] = []
        offsets = 0
        for group in body.groups:
            asked = self._count(group)
            if offsets and offsets + asked > self.offsets_max:
                answers.append(
                    OffsetFetchResponseGroup(group.group_id, [], errors.COORDINATOR_LOAD_IN_PROGRESS)
                )
                continue
            if group.topics is not None and asked > REPEATED_PARTITIONS_MAX:
                named: Named = {}
                for topic in group.topics:
                    key: str | bytes = topic.name
                    if request.version >= TOPIC_ID_VERSION:
                        key = topic.topic_id
                    topic.partition_indexes = _not_named(key, topic.partition_indexes, named)
            answer = self._fetch_group(group, request.version, body.require_stable)
            answers.append(answer)
            offsets += asked + _metadata_weight(answer)
        response = OffsetFetchResponse(0, None, errors.NONE, answers)
        if len(answers) == 1:
            self._reply(outcome, request.request_id, response, answers[0].group_id)
        else:
            outcome.replies.append(self.state.groups.reply_after_all(request.request_id, response))
        return outcome

    def _count(self, group: OffsetFetchRequestGroup) -> int:
        """How many offsets the group is asked for, at most."""
        count = 0
        if group.topics is not None:
            for asked in group.topics:
                count += len(asked.partition_indexes)
            return count
        of_group = self.state.by_group.get(group.group_id)
        if of_group is not None:
            for of_topic in of_group.values():
                count += len(of_topic)
        return count

    def _reply(self, outcome: Outcome, request_id: int, response: OffsetFetchResponse, group_id: str) -> None:
        """An answer about one group waits for that group's records; that there is no group may be news as well."""
        group = self.state.groups.get(group_id)
        consumer_group = self.state.groups.consumer_groups.get(group_id)
        if consumer_group is not None:
            outcome.replies.append(
                Reply(request_id, response, consumer_group.log, consumer_group.end_offset)
            )
        elif group is None:
            outcome.replies.append(self.state.groups.reply_after_all(request_id, response))
        else:
            outcome.replies.append(Reply(request_id, response, group.log, group.end_offset))

    def _fetch_single(self, body: OffsetFetchRequest) -> OffsetFetchResponse:
        """Versions 1-7: one group, topics by name; null topics mean all of them (from version 2)."""
        state = self.state
        group_id = body.group_id
        of_group = state.by_group.get(group_id)
        answers: list[OffsetFetchResponseTopic] = []
        if body.topics is None:
            if of_group is not None:
                for name, of_topic in of_group.items():
                    results = [
                        self._partition(group_id, name, partition, stored, body.require_stable)
                        for partition, stored in of_topic.items()
                    ]
                    answers.append(OffsetFetchResponseTopic(name, results))
            return OffsetFetchResponse(0, answers)
        asked = 0
        for topic in body.topics:
            asked += len(topic.partition_indexes)
        named: Named = {}
        for topic in body.topics:
            known = of_group.get(topic.name) if of_group is not None else None
            results = []
            indexes = topic.partition_indexes
            if asked > REPEATED_PARTITIONS_MAX:
                indexes = _not_named(topic.name, indexes, named)
            for partition in indexes:
                found = known.get(partition) if known is not None else None
                results.append(self._partition(group_id, topic.name, partition, found, body.require_stable))
            answers.append(OffsetFetchResponseTopic(topic.name, results))
        return OffsetFetchResponse(0, answers)

    def _partition(
        self, group_id: str, topic: str, partition: int, stored: StoredOffset | None, require_stable: bool
    ) -> OffsetFetchResponsePartition:
        if require_stable and self.state.has_pending(group_id, topic, partition):
            return OffsetFetchResponsePartition(
                partition, INVALID_OFFSET, -1, "", errors.UNSTABLE_OFFSET_COMMIT
            )
        if stored is None:
            return OffsetFetchResponsePartition(partition, INVALID_OFFSET)
        return OffsetFetchResponsePartition(
            partition, stored.committed_offset, stored.leader_epoch, stored.metadata
        )

    def _fetch_group(
        self, group: OffsetFetchRequestGroup, version: int, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        """Versions 8 and up. Member id and epoch (9) concern consumer groups; a classic group does not look."""
        consumer_group = self.state.groups.consumer_groups.get(group.group_id)
        if consumer_group is not None and version >= MEMBER_EPOCH_VERSION:
            error = check_fetch(consumer_group, group.member_id, group.member_epoch)
            if error != errors.NONE:
                return OffsetFetchResponseGroup(group.group_id, [], error)
        if group.topics is None:
            return self._fetch_all_of_group(group.group_id, version, require_stable)
        by_id = version >= TOPIC_ID_VERSION
        answers: list[OffsetFetchResponseTopics] = []
        unknown: list[OffsetFetchResponseTopics] = []
        of_group = self.state.by_group.get(group.group_id)
        for asked in group.topics:
            name = asked.name
            if by_id:
                topic = self.state.topics.by_id(asked.topic_id)
                if topic is None:
                    unknown.append(_refuse_topic(asked, errors.UNKNOWN_TOPIC_ID))
                    continue
                name = topic.name
            topic_id = asked.topic_id if by_id else ZERO_UUID
            results: list[OffsetFetchResponsePartitions] = []
            of_topic = of_group.get(name) if of_group is not None else None
            for partition in asked.partition_indexes:
                stored = of_topic.get(partition) if of_topic is not None else None
                if stored is not None and _is_other_topic(stored.topic_id, topic_id):
                    stored = None
                results.append(self._partitions(group.group_id, name, partition, stored, require_stable))
            answers.append(OffsetFetchResponseTopics(name, topic_id, results))
        answers.extend(unknown)
        return OffsetFetchResponseGroup(group.group_id, answers)

    def _fetch_all_of_group(
        self, group_id: str, version: int, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        """With topic ids (version 10), offsets of topics that no longer exist cannot be named and are left out."""
        answers: list[OffsetFetchResponseTopics] = []
        of_group = self.state.by_group.get(group_id)
        if of_group is not None:
            for name, of_topic in of_group.items():
                topic_id = ZERO_UUID
                if version >= TOPIC_ID_VERSION:
                    topic = self.state.topics.get(name)
                    if topic is None:
                        continue
                    topic_id = topic.topic_id
                results = [
                    self._partitions(group_id, name, partition, stored, require_stable)
                    for partition, stored in of_topic.items()
                ]
                answers.append(OffsetFetchResponseTopics(name, topic_id, results))
        return OffsetFetchResponseGroup(group_id, answers)

    def _partitions(
        self, group_id: str, topic: str, partition: int, stored: StoredOffset | None, require_stable: bool
    ) -> OffsetFetchResponsePartitions:
        if require_stable and self.state.has_pending(group_id, topic, partition):
            return OffsetFetchResponsePartitions(
                partition, INVALID_OFFSET, -1, "", errors.UNSTABLE_OFFSET_COMMIT
            )
        if stored is None:
            return OffsetFetchResponsePartitions(partition, INVALID_OFFSET)
        return OffsetFetchResponsePartitions(
            partition, stored.committed_offset, stored.leader_epoch, stored.metadata
        )


def _not_named(topic: str | bytes, partitions: list[int], named: Named) -> list[int]:
    """Those of a topic's partitions that the request did not name before, in its order."""
    before = named.get(topic)
    if before is None:
        before = {}
        named[topic] = before
    found: list[int] = []
    for partition in partitions:
        if partition not in before:
            before[partition] = True
            found.append(partition)
    return found


def _metadata_weight(answer: OffsetFetchResponseGroup) -> int:
    """What the metadata of an answer counts for, in offsets."""
    chars = 0
    for topic in answer.topics:
        for partition in topic.partitions:
            if partition.metadata is not None:
                chars += len(partition.metadata)
    return chars // METADATA_CHARS_PER_OFFSET


def _refuse_topic(asked: OffsetFetchRequestTopics, error_code: int) -> OffsetFetchResponseTopics:
    results = [
        OffsetFetchResponsePartitions(p, INVALID_OFFSET, -1, "", error_code) for p in asked.partition_indexes
    ]
    return OffsetFetchResponseTopics(asked.name, asked.topic_id, results)


def _is_other_topic(stored_id: bytes, asked_id: bytes) -> bool:
    """Whether the offset belongs to an earlier topic of the same name."""
    return stored_id != ZERO_UUID and asked_id != ZERO_UUID and stored_id != asked_id
