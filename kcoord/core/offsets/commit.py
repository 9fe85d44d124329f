"""OffsetCommit v2-10: the broker's checks (topics), the coordinator's checks (group, member, generation), records.

Answers are in Kafka's order: topics that the broker refuses come first, in the order of the request, then those that
reached the coordinator. If the group refuses the request, every partition that reached it has the error, in all
versions: this API has no top-level error.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.choices import EMPTY_GROUP_ALLOW, EMPTY_GROUP_ILLEGAL_OFFSET_COMMIT
from kcoord.core.config import CoreConfig
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.errors import GroupError
from kcoord.core.hashing import utf16_length
from kcoord.core.offsets.fences import check_commit, check_partition
from kcoord.core.offsets.state import NO_EXPIRE_TIMESTAMP, OffsetState
from kcoord.core.outcome import INFO, PEER, WARNING, Fact, Now, Outcome, Request
from kcoord.protocol import errors
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.wire.primitives import ZERO_UUID

# The code that KIP-289 chose. Released Kafka uses this number for another error.
ILLEGAL_OFFSET_COMMIT: Final = 73
NO_RETENTION_TIME: Final = -1
INT64_MAX: Final = 9223372036854775807
TOPIC_ID_VERSION: Final = 10
EMPTY_GROUP_REFUSED_VERSION: Final = 4
GROUP_ID_NOT_FOUND_VERSION: Final = 9
# Client ids that were warned about committing for group "". Beyond this many, warnings are useless.
WARNED_CLIENTS_MAX: Final = 1000


@final
class OffsetCommits:
    def __init__(self, state: OffsetState) -> None:
        self.state = state
        self.warned_clients: dict[str, bool] = {}

    def handle_offset_commit(self, request: Request, body: OffsetCommitRequest, now: Now) -> Outcome:
        """KIP-211 (retention), KIP-289 (empty group id), KIP-345 (static members), KIP-848 (error codes)."""
        outcome = Outcome()
        group_id = body.group_id
        if not group_id:
            error = self._check_empty_group_id(request, outcome)
            if error != errors.NONE:
                outcome.reply(request.request_id, refuse_all(body.topics, error))
                return outcome
        refused = Refusals(request.version >= TOPIC_ID_VERSION)
        accepted = self._check_topics(body.topics, refused)
        if not accepted:
            outcome.reply(request.request_id, OffsetCommitResponse(0, refused.topics))
            return outcome
        error = self._check_group(request, body, accepted, now)
        answers: list[OffsetCommitResponseTopic]
        if error != errors.NONE:
            answers = refuse_all(accepted, error).topics
        else:
            answers = self._append_records(body, accepted, now, outcome)
        outcome.reply(request.request_id, OffsetCommitResponse(0, refused.merge(answers)))
        return outcome

    def _check_empty_group_id(self, request: Request, outcome: Outcome) -> int:
        """KIP-289: deprecated for old versions, refused for new ones unless configured otherwise."""
        mode = self.state.config.empty_group_id_commit
        accepted = request.version < EMPTY_GROUP_REFUSED_VERSION or mode == EMPTY_GROUP_ALLOW
        client_id = request.client_id
        if client_id not in self.warned_clients and len(self.warned_clients) < WARNED_CLIENTS_MAX:
            self.warned_clients[client_id] = True
            outcome.facts.append(
                Fact(
                    WARNING,
                    "empty_group_id_commit",
                    {
                        "client_id": client_id,
                        "client_host": request.client_host,
                        "api_version": request.version,
                        "accepted": accepted,
                    },
                    PEER,
                )
            )
        if accepted:
            return errors.NONE
        if mode == EMPTY_GROUP_ILLEGAL_OFFSET_COMMIT:
            return ILLEGAL_OFFSET_COMMIT
        return errors.INVALID_GROUP_ID

    def _check_topics(
        self, topics: list[OffsetCommitRequestTopic], refused: Refusals
    ) -> list[OffsetCommitRequestTopic]:
        """The topics and partitions that exist, with name and id. Answers for all others go to `refused`."""
        accepted: list[OffsetCommitRequestTopic] = []
        registry = self.state.topics
        for asked in topics:
            topic = registry.by_id(asked.topic_id) if refused.by_topic_id else registry.get(asked.name)
            if topic is None:
                error = errors.UNKNOWN_TOPIC_ID if refused.by_topic_id else errors.UNKNOWN_TOPIC_OR_PARTITION
                answer = refused.topic(asked.name, asked.topic_id)
                for p in asked.partitions:
                    answer.partitions.append(OffsetCommitResponsePartition(p.partition_index, error))
                continue
            count = topic.partition_count
            valid = asked.partitions
            for p in asked.partitions:
                if not 0 <= p.partition_index < count:
                    valid = []
                    break
            if not valid:
                for p in asked.partitions:
                    if 0 <= p.partition_index < count:
                        valid.append(p)
                    else:
                        error = errors.UNKNOWN_TOPIC_OR_PARTITION
                        refused.refuse(topic.name, topic.topic_id, p.partition_index, error)
            if valid:
                # The request has no other user, so the results of look-ups are stored in it.
                asked.name = topic.name
                asked.topic_id = topic.topic_id
                asked.partitions = valid
                accepted.append(asked)
        return accepted

    def _check_group(
        self,
        request: Request,
        body: OffsetCommitRequest,
        topics: list[OffsetCommitRequestTopic],
        now: Now,
    ) -> int:
        """The error of the whole request, 0 for none. The commit of a classic member extends its session."""
        group = self.state.groups.get(body.group_id)
        if group is None:
            consumer_group = self.state.groups.consumer_groups.get(body.group_id)
            if consumer_group is not None:
                return self._check_consumer_group(consumer_group, request.version, body, topics)
        generation_id = body.generation_id_or_member_epoch
        if group is None:
            if generation_id < 0:
                # An admin client, or a consumer that assigns partitions itself. The record creates a simple group.
                return errors.NONE
            if request.version >= GROUP_ID_NOT_FOUND_VERSION:
                return errors.GROUP_ID_NOT_FOUND
            return errors.ILLEGAL_GENERATION
        error = group.validate_offset_commit(body.member_id, body.group_instance_id, generation_id)
        if error == errors.NONE:
            self.state.groups.touch_member(group, body.member_id, now.mono_ms)
        return error

    def _check_consumer_group(
        self,
        group: ConsumerGroup,
        version: int,
        body: OffsetCommitRequest,
        topics: list[OffsetCommitRequestTopic],
    ) -> int:
        """KIP-1251: one partition that the member may not commit for fails the whole request."""
        epoch = body.generation_id_or_member_epoch
        try:
            member = check_commit(group, body.member_id, epoch, version)
            if member is not None:
                for topic in topics:
                    for p in topic.partitions:
                        if not is_metadata_too_large(self.state.config, p.committed_metadata):
                            check_partition(member, epoch, topic.topic_id, p.partition_index)
        except GroupError as refused:
            return refused.code
        return errors.NONE

    def _append_records(
        self, body: OffsetCommitRequest, topics: list[OffsetCommitRequestTopic], now: Now, outcome: Outcome
    ) -> list[OffsetCommitResponseTopic]:
        group_id = body.group_id
        log_id = self.state.log_of(group_id)
        expire_timestamp = NO_EXPIRE_TIMESTAMP
        if body.retention_time_ms != NO_RETENTION_TIME:
            expire_timestamp = min(now.wall_ms + body.retention_time_ms, INT64_MAX)
        answers: list[OffsetCommitResponseTopic] = []
        for topic in topics:
            results: list[OffsetCommitResponsePartition] = []
            for p in topic.partitions:
                metadata = p.committed_metadata
                if metadata is None:
                    metadata = ""
                elif is_metadata_too_large(self.state.config, metadata):
                    results.append(OffsetCommitResponsePartition(p.partition_index, errors.OFFSET_METADATA_TOO_LARGE))
                    continue
                results.append(OffsetCommitResponsePartition(p.partition_index, errors.NONE))
                outcome.add(
                    log_id,
                    OffsetCommitKey(group_id, topic.name, p.partition_index),
                    self._value(p, metadata, now.wall_ms, expire_timestamp, topic.topic_id),
                )
            answers.append(OffsetCommitResponseTopic(topic.name, topic.topic_id, results))
        if outcome.records and not self.state.groups.is_known(group_id):
            outcome.facts.append(Fact(INFO, "simple_group_created", {"group_id": group_id}))
        return answers

    def _value(
        self,
        p: OffsetCommitRequestPartition,
        metadata: str,
        commit_timestamp: int,
        expire_timestamp: int,
        topic_id: bytes,
    ) -> OffsetCommitValue:
        leader_epoch = p.committed_leader_epoch
        if expire_timestamp != NO_EXPIRE_TIMESTAMP:
            # Only version 1 of the value has an expiry time, and it has no leader epoch and no topic id. Replay must
            # have the same result now as after a restart.
            leader_epoch = -1
            topic_id = ZERO_UUID
        elif leader_epoch < 0:
            leader_epoch = -1
        return OffsetCommitValue(
            p.committed_offset, leader_epoch, metadata, commit_timestamp, expire_timestamp, topic_id
        )


def is_metadata_too_large(config: CoreConfig, metadata: str | None) -> bool:
    """Kafka counts UTF-16 units."""
    size_max = config.offset_metadata_max_bytes
    return metadata is not None and len(metadata) * 2 > size_max and utf16_length(metadata) > size_max


def refuse_all(topics: list[OffsetCommitRequestTopic], error_code: int) -> OffsetCommitResponse:
    """The same error for every partition of the request."""
    answers: list[OffsetCommitResponseTopic] = []
    for topic in topics:
        results = [OffsetCommitResponsePartition(p.partition_index, error_code) for p in topic.partitions]
        answers.append(OffsetCommitResponseTopic(topic.name, topic.topic_id, results))
    return OffsetCommitResponse(0, answers)


@final
class Refusals:
    """Answers for topics that the broker refuses, one entry per topic, in order of appearance."""

    def __init__(self, by_topic_id: bool) -> None:
        self.by_topic_id = by_topic_id
        self.topics: list[OffsetCommitResponseTopic] = []
        self.names: dict[str, OffsetCommitResponseTopic] = {}
        self.ids: dict[bytes, OffsetCommitResponseTopic] = {}

    def topic(self, name: str, topic_id: bytes) -> OffsetCommitResponseTopic:
        existing = self.ids.get(topic_id) if self.by_topic_id else self.names.get(name)
        if existing is not None:
            return existing
        answer = OffsetCommitResponseTopic(name, topic_id)
        self.add(answer)
        return answer

    def add(self, answer: OffsetCommitResponseTopic) -> None:
        self.topics.append(answer)
        if self.by_topic_id:
            self.ids[answer.topic_id] = answer
        else:
            self.names[answer.name] = answer

    def refuse(self, name: str, topic_id: bytes, partition: int, error_code: int) -> None:
        self.topic(name, topic_id).partitions.append(OffsetCommitResponsePartition(partition, error_code))

    def merge(self, answers: list[OffsetCommitResponseTopic]) -> list[OffsetCommitResponseTopic]:
        """Refusals come first. Answers for a topic that is among them are added to its entry."""
        if not self.topics:
            return answers
        for answer in answers:
            existing = self.ids.get(answer.topic_id) if self.by_topic_id else self.names.get(answer.name)
            if existing is None:
                self.add(answer)
            else:
                existing.partitions.extend(answer.partitions)
        return self.topics
