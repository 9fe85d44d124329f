"""OffsetDelete v0 (KIP-496), and the deletion of offsets whose topic was deleted."""

from __future__ import annotations

from typing import Final, final

from kcoord.core.groups.records import tombstone_bytes
from kcoord.core.offsets.state import NO_EXPIRE_TIMESTAMP, OffsetState, tombstone, tombstone_weight
from kcoord.core.offsets.stored_offset import StoredOffset
from kcoord.core.outcome import TIMER_TOPIC_OFFSETS, LogId, Now, Outcome, Request, Timer, TopicsDeleted
from kcoord.protocol import errors
from kcoord.protocol.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kcoord.wire.primitives import ZERO_UUID

# One step of deleting the offsets of topics visits this many groups and offsets: some milliseconds of work.
STEP_ITEMS_MAX: Final = 1000


@final
class OffsetDeletes:
    def __init__(self, state: OffsetState) -> None:
        self.state = state
        # Soft state: a restart starts again from the metadata log.
        self.topics_left = state.topics_left
        # Those of them whose deletion a restart repeats.
        self.repeated: dict[bytes, bool] = {}
        # The remaining groups of the first one.
        self.groups_left: list[str] | None = None
        self.steps_left = 0
        # How many bytes of tombstones the batch of the step may still get.
        self.bytes_left = 0

    @property
    def is_busy(self) -> bool:
        """Whether offsets of deleted topics remain. Until the deletion is complete only the metadata log tells that."""
        return len(self.topics_left) > 0 or len(self.state.topics.removed) > 0

    def handle_offset_delete(self, request: Request, body: OffsetDeleteRequest) -> Outcome:
        """Errors of the group are at the top level, without topics. Topics that the group uses are refused by
        partition.
        """
        outcome = Outcome()
        error = self._check_group(body.group_id)
        if error != errors.NONE:
            outcome.reply(request.request_id, OffsetDeleteResponse(error))
            return outcome
        group_id = body.group_id
        log_id = self.state.log_of(group_id)
        # Topics that are refused come first, then those that reached the coordinator, one entry per topic.
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

    # --- topics that were deleted ----------------------------------------------------------------------------

    def handle_topics_deleted(self, event: TopicsDeleted, now: Now) -> Outcome:
        """Tombstones for all offsets of these topics, also pending ones: the first step now, further steps by timer.

        Offsets with another topic id belong to a later topic of the same name and stay. Offsets without an id come from
        imports, transactions and commits with a retention time. Those of transactions are all older than the deletion,
        since TxnOffsetCommit is refused until it is complete. The others stay if a later topic exists, and so do all if
        a restart repeats the deletion, which may have been complete.
        """
        if not event.topics:
            return self._step(now)
        is_running = len(self.topics_left) > 0
        removed = self.state.topics.removed
        for topic_id, name in event.topics.items():
            removed.pop(topic_id, None)
            self.topics_left[topic_id] = name
            if event.is_repeated:
                self.repeated[topic_id] = True
        if is_running:
            return Outcome()
        self.steps_left = STEP_ITEMS_MAX
        return self._step(now)

    def handle_timer(self, now: Now) -> Outcome:
        self.steps_left = STEP_ITEMS_MAX
        return self._step(now)

    def _step(self, now: Now) -> Outcome:
        """Add as many tombstones as the step allows, all in one log. The rest follows with an event or a timer."""
        outcome = Outcome()
        log_id: LogId | None = None
        self.bytes_left = self.state.step_bytes_max()
        while self.topics_left and self.steps_left > 0:
            topic_id = next(iter(self.topics_left))
            name = self.topics_left[topic_id]
            groups = self._groups_left_of(name)
            while groups and self.steps_left > 0:
                of_group = self.state.log_of(groups[-1])
                if log_id is not None and of_group.partition != log_id.partition:
                    outcome.follow_ups.append(TopicsDeleted({}))
                    return outcome
                if self._add_tombstones(groups[-1], name, topic_id, of_group, outcome):
                    groups.pop()
                if outcome.records:
                    log_id = of_group
            if not groups:
                del self.topics_left[topic_id]
                self.repeated.pop(topic_id, None)
                self.groups_left = None
        if self.topics_left:
            outcome.timers.append(Timer(TIMER_TOPIC_OFFSETS, "", "", 0, now.mono_ms))
        return outcome

    def _groups_left_of(self, name: str) -> list[str]:
        """Groups whose offsets of the topic are still to be checked; the next one is the last in the list."""
        groups = self.groups_left
        if groups is None:
            self.steps_left -= 1
            with_topic = dict(self.state.groups_by_topic.get(name, {}))
            for group_id in self.state.pending.groups_with(name):
                with_topic[group_id] = True
            groups = list(with_topic)
            if len(groups) > 1:
                # Sorted by log, since a step writes to one log.
                groups.sort(key=self._log_number)
                groups.reverse()
            self.groups_left = groups
        return groups

    def _log_number(self, group_id: str) -> int:
        return self.state.log_of(group_id).partition

    def _add_tombstones(self, group_id: str, name: str, topic_id: bytes, log_id: LogId, outcome: Outcome) -> bool:
        """Add tombstones of one group's offsets, as many as the step allows. Returns whether these are all."""
        self.steps_left -= 1
        of_group = self.state.by_group.get(group_id)
        of_topic = None if of_group is None else of_group.get(name)
        pending = self.state.pending.partitions_of(group_id).get(name)
        if of_topic is None and pending is None:
            return True
        current = self.state.topics.get(name)
        is_recreated = current is not None and current.topic_id != topic_id
        is_repeated = topic_id in self.repeated
        # Each tombstone repeats the group id, and all tombstones of a step are one batch.
        weight = tombstone_weight(group_id)
        size = tombstone_bytes(group_id, name)
        partitions: dict[int, bool] = {}
        if of_topic is not None:
            for partition, stored in of_topic.items():
                if _is_of_topic(stored, topic_id, is_recreated, is_repeated):
                    partitions[partition] = True
        if pending is not None:
            for partition, producers in pending.items():
                if of_topic is not None and partition in of_topic and partition not in partitions:
                    # A tombstone would also delete what was committed for the next topic. That is newer than the
                    # pending offset, so it stays when the transaction is committed.
                    continue
                for stored in producers.values():
                    if _is_of_topic(stored, topic_id, is_recreated, is_repeated):
                        partitions[partition] = True
        for partition in partitions:
            if self.bytes_left < size and outcome.records:
                self.steps_left = 0
            if self.steps_left <= 0:
                return False
            self.bytes_left -= size
            outcome.add(log_id, tombstone(group_id, name, partition).key, None)
            self.steps_left -= weight
        return True


def _is_of_topic(stored: StoredOffset, topic_id: bytes, is_recreated: bool, is_repeated: bool) -> bool:
    """Whether the offset was committed for the topic with this id, as far as one can tell."""
    if stored.topic_id == ZERO_UUID:
        # OffsetCommit with a retention time stores no id, and is not refused meanwhile.
        return not is_recreated or (not is_repeated and stored.expire_timestamp_ms == NO_EXPIRE_TIMESTAMP)
    return stored.topic_id == topic_id
