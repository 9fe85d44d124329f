"""OffsetFetch v1-10 (KIP-88: all offsets of a group; KIP-447: require stable; KIP-709: several groups at once).

A group without offsets, or an unknown one, is answered with offset -1 and no error. Errors of the group are at the top
level from version 2 on (KIP-88) and in each partition before. Classic groups have no such errors, so these only occur
in versions with a member epoch (9 and up). The offsets in an answer may not be durable yet: the reply waits for them.

The size of an answer is limited by the offsets that exist and not by the request: a large request gets one answer for a
repeated partition, and groups beyond a number of offsets are answered with COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.offsets.fences import check_fetch
from kcoord.core.offsets.state import OffsetState
from kcoord.core.offsets.stored_offset import StoredOffset
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
# Offsets of one answer, or of one group if that has more: some 20 ms. Clients retry the other groups. This many
# characters of metadata count as one offset. Kafka has no limit.
FETCHED_OFFSETS_MAX: Final = 20_000
METADATA_CHARS_PER_OFFSET: Final = 256
# For requests with more partitions of a group, repeated ones are left out. Kafka answers all of them.
REPEATED_PARTITIONS_MAX: Final = 1_000
# The partitions that occurred already, by name or id of the topic.
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
                answers.append(OffsetFetchResponseGroup(group.group_id, [], errors.COORDINATOR_LOAD_IN_PROGRESS))
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
        """An upper bound of the offsets in the answer for the group."""
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
        """An answer for one group waits for that group's records. If the group is missing, its deletion may not be
        durable.
        """
        group = self.state.groups.get(group_id)
        consumer_group = self.state.groups.consumer_groups.get(group_id)
        if consumer_group is not None:
            end = max(consumer_group.end_offset, consumer_group.transactions_end)
            outcome.replies.append(Reply(request_id, response, consumer_group.log, end))
        elif group is None:
            outcome.replies.append(self.state.groups.reply_after_all(request_id, response))
        else:
            end = max(group.end_offset, group.transactions_end)
            outcome.replies.append(Reply(request_id, response, group.log, end))

    def _fetch_single(self, body: OffsetFetchRequest) -> OffsetFetchResponse:
        """Versions 1-7: one group, topics by name. Null topics mean all of them (from version 2)."""
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
            return OffsetFetchResponsePartition(partition, INVALID_OFFSET, -1, "", errors.UNSTABLE_OFFSET_COMMIT)
        if stored is None:
            return OffsetFetchResponsePartition(partition, INVALID_OFFSET)
        return OffsetFetchResponsePartition(partition, stored.committed_offset, stored.leader_epoch, stored.metadata)

    def _fetch_group(
        self, group: OffsetFetchRequestGroup, version: int, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        """Versions 8 and up. Member id and epoch (9) only matter for consumer groups; classic groups ignore them."""
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

    def _fetch_all_of_group(self, group_id: str, version: int, require_stable: bool) -> OffsetFetchResponseGroup:
        """With topic ids (version 10), offsets of topics that no longer exist have no id and are left out."""
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
            return OffsetFetchResponsePartitions(partition, INVALID_OFFSET, -1, "", errors.UNSTABLE_OFFSET_COMMIT)
        if stored is None:
            return OffsetFetchResponsePartitions(partition, INVALID_OFFSET)
        return OffsetFetchResponsePartitions(partition, stored.committed_offset, stored.leader_epoch, stored.metadata)


def _not_named(topic: str | bytes, partitions: list[int], named: Named) -> list[int]:
    """The partitions of a topic that did not occur before in the request, in its order."""
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
    """The metadata of an answer, in offsets."""
    chars = 0
    for topic in answer.topics:
        for partition in topic.partitions:
            if partition.metadata is not None:
                chars += len(partition.metadata)
    return chars // METADATA_CHARS_PER_OFFSET


def _refuse_topic(asked: OffsetFetchRequestTopics, error_code: int) -> OffsetFetchResponseTopics:
    results = [OffsetFetchResponsePartitions(p, INVALID_OFFSET, -1, "", error_code) for p in asked.partition_indexes]
    return OffsetFetchResponseTopics(asked.name, asked.topic_id, results)


def _is_other_topic(stored_id: bytes, asked_id: bytes) -> bool:
    """Whether the offset belongs to an earlier topic of the same name."""
    return stored_id != ZERO_UUID and asked_id != ZERO_UUID and stored_id != asked_id
