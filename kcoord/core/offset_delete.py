"""OffsetDelete v0 (KIP-496), and what becomes of offsets when their topic is deleted."""

from __future__ import annotations

from typing import Final, final

from kcoord.core.offset_state import OffsetState, tombstone
from kcoord.core.outcome import LogId, Outcome, Request, TopicDeleted
from kcoord.protocol import errors
from kcoord.protocol.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kcoord.wire.primitives import ZERO_UUID

# One step of deleting a topic's offsets writes at most this many tombstones, so that no batch grows too large.
TOPIC_DELETION_TOMBSTONES_MAX: Final = 10000
# Group ids longer than this make a tombstone count for more.
CHARS_PER_TOMBSTONE: Final = 256


@final
class OffsetDeletes:
    def __init__(self, state: OffsetState) -> None:
        self.state = state

    def handle_offset_delete(self, request: Request, body: OffsetDeleteRequest) -> Outcome:
        """Group errors stand at the top with no topics; topics in use by the group are refused by partition."""
        outcome = Outcome()
        error = self._check_group(body.group_id)
        if error != errors.NONE:
            outcome.reply(request.request_id, OffsetDeleteResponse(error))
            return outcome
        group_id = body.group_id
        log_id = self.state.log_of(group_id)
        # Refusals by topic come first, then what reached the coordinator, one entry per topic.
        refused: dict[str, OffsetDeleteResponseTopic] = {}
        accepted: dict[str, dict[int, bool]] = {}
        for asked in body.topics:
            self._sort_partitions(asked.name, asked.partitions, refused, accepted)
        answers = list(refused.values())
        group = self.state.groups.get(group_id)
        consumer_group = self.state.groups.consumer_groups.get(group_id)
        for name, partitions in accepted.items():
            answer = refused.get(name)
            if answer is None:
                answer = OffsetDeleteResponseTopic(name)
                answers.append(answer)
            code = errors.NONE
            if (group is not None and group.is_subscribed_to(name)) or (
                consumer_group is not None and consumer_group.is_subscribed_to(name)
            ):
                code = errors.GROUP_SUBSCRIBED_TO_TOPIC
            for partition in partitions:
                answer.partitions.append(OffsetDeleteResponsePartition(partition, code))
                if code != errors.NONE:
                    continue
                if self.state.get(group_id, name, partition) is not None or self.state.has_pending(
                    group_id, name, partition
                ):
                    record = tombstone(group_id, name, partition)
                    outcome.add(log_id, record.key, None)
        outcome.reply(request.request_id, OffsetDeleteResponse(errors.NONE, 0, answers))
        return outcome

    def _check_group(self, group_id: str) -> int:
        if not group_id:
            return errors.INVALID_GROUP_ID
        group = self.state.groups.get(group_id)
        if group is None:
            is_consumer_group = group_id in self.state.groups.consumer_groups
            return errors.NONE if is_consumer_group else errors.GROUP_ID_NOT_FOUND
        return group.validate_offset_delete()

    def _sort_partitions(
        self,
        name: str,
        partitions: list[OffsetDeleteRequestPartition],
        refused: dict[str, OffsetDeleteResponseTopic],
        accepted: dict[str, dict[int, bool]],
    ) -> None:
        count = self.state.topics.partition_count(name)
        for p in partitions:
            index = p.partition_index
            if 0 <= index < count:
                valid = accepted.get(name)
                if valid is None:
                    valid = {}
                    accepted[name] = valid
                valid[index] = True
                continue
            answer = refused.get(name)
            if answer is None:
                answer = OffsetDeleteResponseTopic(name)
                refused[name] = answer
            answer.partitions.append(OffsetDeleteResponsePartition(index, errors.UNKNOWN_TOPIC_OR_PARTITION))
        if not partitions and count < 0 and name not in refused:
            refused[name] = OffsetDeleteResponseTopic(name)

    def handle_topic_deleted(self, event: TopicDeleted) -> Outcome:
        """Tombstones for all offsets of that topic, one log at a time; the event comes again for what remains.

        Offsets that name another topic id belong to a later topic of the same name and stay. Those that name no
        id stay too if such a later topic exists: the event may be a repetition after a restart.
        """
        outcome = Outcome()
        state = self.state
        current = state.topics.get(event.topic)
        is_recreated = current is not None and current.topic_id != event.topic_id
        log_id: LogId | None = None
        weight = 0
        for group_id, of_group in state.by_group.items():
            of_topic = of_group.get(event.topic)
            if of_topic is None:
                continue
            for partition, stored in of_topic.items():
                if stored.topic_id == ZERO_UUID:
                    if is_recreated:
                        continue
                elif stored.topic_id != event.topic_id:
                    continue
                if log_id is None:
                    log_id = state.log_of(group_id)
                elif (
                    weight >= TOPIC_DELETION_TOMBSTONES_MAX
                    or state.log_of(group_id).partition != log_id.partition
                ):
                    if not outcome.follow_ups:
                        outcome.follow_ups.append(event)
                    break
                record = tombstone(group_id, event.topic, partition)
                outcome.add(log_id, record.key, None)
                # Each tombstone repeats the group id, and all of a step go into one batch.
                weight += 1 + len(group_id) // CHARS_PER_TOMBSTONE
        return outcome
