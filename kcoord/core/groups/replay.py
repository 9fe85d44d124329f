"""Replay of the records of consumer groups (types 3 to 8 and 16): the only place where their hard state changes.

A compacted log holds the last record of each key, so any record of a group may come first, and a tombstone may be for
something that was never seen; it changes nothing then. Where records contradict each other (the tombstone of a group
that still has members), the later record wins: the log is the truth.
"""

from __future__ import annotations

from typing import Final, cast, final

from kcoord.core.assignors.spec import Assignment
from kcoord.core.cause import NO_TIME
from kcoord.core.groups.consumer import NO_ASSIGNMENT_EPOCH, ConsumerGroup, ResolvedRegex
from kcoord.core.groups.members import LEAVE_EPOCH, NO_ANSWER, ConsumerMember, PartitionEpochs
from kcoord.core.groups.store import EndedGroup, GroupStore
from kcoord.core.outcome import MadeGroup
from kcoord.protocol.records.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from kcoord.protocol.records.consumer_group_member_metadata import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from kcoord.protocol.records.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from kcoord.protocol.records.consumer_group_partition_metadata import (
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
)
from kcoord.protocol.records.consumer_group_regular_expression import (
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)
from kcoord.protocol.records.consumer_group_target_assignment_member import (
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
)
from kcoord.protocol.records.consumer_group_target_assignment_metadata import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from kcoord.wire.message import Message

_KNOWN_STATES: Final = (0, 1, 2)
_UNKNOWN_STATE: Final = 127


@final
class ConsumerReplay:
    def __init__(self, store: GroupStore) -> None:
        self.store = store
        # The group whose tombstones were replayed last. A classic group in the next record keeps its members, and the
        # two records together determine whether it has to rebalance after a restart.
        self.ended: EndedGroup | None = None

    def replay(
        self, offset: int, key: Message, value: Message | None, time_ms: int = NO_TIME, made: MadeGroup | None = None
    ) -> bool:
        """Apply one record; False if it is not a record of consumer groups. `made` is that of the record's outcome."""
        if isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
            group = self._group(key.group_id, offset, value is None, made)
            if group is not None:
                self._current(group, key, cast(ConsumerGroupCurrentMemberAssignmentValue | None, value))
        elif isinstance(key, ConsumerGroupTargetAssignmentMemberKey):
            group = self._group(key.group_id, offset, value is None, made)
            if group is not None:
                self._target(group, key, cast(ConsumerGroupTargetAssignmentMemberValue | None, value))
        elif isinstance(key, ConsumerGroupMemberMetadataKey):
            group = self._group(key.group_id, offset, value is None, made)
            if group is not None:
                self._member(group, key, cast(ConsumerGroupMemberMetadataValue | None, value))
        elif isinstance(key, ConsumerGroupMetadataKey):
            group = self._group(key.group_id, offset, value is None, made)
            if group is not None:
                self._epoch(group, offset, cast(ConsumerGroupMetadataValue | None, value), time_ms)
        elif isinstance(key, ConsumerGroupTargetAssignmentMetadataKey):
            group = self._group(key.group_id, offset, value is None, made)
            if group is not None:
                self._target_epoch(group, cast(ConsumerGroupTargetAssignmentMetadataValue | None, value))
        elif isinstance(key, ConsumerGroupRegularExpressionKey):
            group = self._group(key.group_id, offset, value is None, made)
            if group is not None:
                self._regex(group, key, cast(ConsumerGroupRegularExpressionValue | None, value))
        elif isinstance(key, ConsumerGroupPartitionMetadataKey):
            group = self._group(key.group_id, offset, value is None, made)
            if group is not None:
                partitions = cast(ConsumerGroupPartitionMetadataValue | None, value)
                group.has_partition_metadata_record = partitions is not None
        else:
            return False
        return True

    def _group(self, group_id: str, offset: int, is_tombstone: bool, made: MadeGroup | None) -> ConsumerGroup | None:
        """The group of a record. If it is unknown and the record is no tombstone, it is `made` or a new object."""
        store = self.store
        group = store.consumer_groups.get(group_id)
        if group is None:
            if is_tombstone:
                return None
            classic = store.groups.get(group_id)
            if isinstance(made, ConsumerGroup) and made.group_id == group_id:
                group = made
            else:
                group = ConsumerGroup(group_id, store.log_of(group_id))
            if classic is not None:
                # Either the classic group exists only because of its offsets, or its tombstone was lost.
                store.remove(group_id)
            store.consumer_groups[group_id] = group
        group.end_offset = offset + 1
        store.last_log = group.log
        store.last_end_offset = offset + 1
        return group

    def _epoch(self, group: ConsumerGroup, offset: int, value: ConsumerGroupMetadataValue | None, time_ms: int) -> None:
        if value is not None:
            group.epoch = value.epoch
            group.epoch_time_ms = time_ms
            group.metadata_hash = value.metadata_hash
        else:
            self.store.remove_consumer_group(group.group_id)
            self.ended = EndedGroup(group.group_id, offset + 1, group.last_size, group.last_was_behind)

    def _member(
        self,
        group: ConsumerGroup,
        key: ConsumerGroupMemberMetadataKey,
        value: ConsumerGroupMemberMetadataValue | None,
    ) -> None:
        self.store.timers.touch(key.group_id, key.member_id)
        if value is None:
            group.remove_member(key.member_id)
            return
        old = group.members.get(key.member_id)
        member = ConsumerMember(key.member_id) if old is None else old.copy()
        member.take_metadata(value)
        group.put_member(member)

    def _current(
        self,
        group: ConsumerGroup,
        key: ConsumerGroupCurrentMemberAssignmentKey,
        value: ConsumerGroupCurrentMemberAssignmentValue | None,
    ) -> None:
        self.store.timers.touch(key.group_id, key.member_id)
        old = group.members.get(key.member_id)
        if value is None:
            if old is None:
                return
            member = old.copy()
            member.member_epoch = LEAVE_EPOCH
            member.previous_epoch = LEAVE_EPOCH
            member.assigned = {}
            member.revoking = {}
            member.answer = NO_ANSWER
        else:
            member = ConsumerMember(key.member_id) if old is None else old.copy()
            member.member_epoch = value.member_epoch
            member.previous_epoch = value.previous_member_epoch
            member.state = value.state if value.state in _KNOWN_STATES else _UNKNOWN_STATE
            member.assigned = _partition_epochs(value.assigned_partitions, value.member_epoch)
            member.revoking = _partition_epochs(value.partitions_pending_revocation, value.member_epoch)
            member.answer = (value.error, value.metadata_version, value.metadata_bytes)
        group.put_member(member)

    def _target(
        self,
        group: ConsumerGroup,
        key: ConsumerGroupTargetAssignmentMemberKey,
        value: ConsumerGroupTargetAssignmentMemberValue | None,
    ) -> None:
        group.answers.pop(key.member_id, None)
        if value is None:
            if group.targets.pop(key.member_id, None) is not None:
                group.changed_members[key.member_id] = True
            return
        target: Assignment = {}
        for topic in value.topic_partitions:
            target[topic.topic_id] = topic.partitions
        group.targets[key.member_id] = target
        answer = (value.error, value.metadata_version, value.metadata_bytes)
        if answer != NO_ANSWER:
            group.answers[key.member_id] = answer

    def _target_epoch(self, group: ConsumerGroup, value: ConsumerGroupTargetAssignmentMetadataValue | None) -> None:
        if value is not None:
            group.assignment_epoch = value.assignment_epoch
            group.assignment_timestamp_ms = value.assignment_timestamp
        else:
            # Tombstones of current and target assignments come before this one, those of the members after it: now is
            # the last moment at which the size of the group is known.
            group.last_size = len(group.members)
            group.last_was_behind = group.epoch > group.assignment_epoch
            group.assignment_epoch = NO_ASSIGNMENT_EPOCH
            group.assignment_timestamp_ms = 0

    def _regex(
        self,
        group: ConsumerGroup,
        key: ConsumerGroupRegularExpressionKey,
        value: ConsumerGroupRegularExpressionValue | None,
    ) -> None:
        if value is None:
            group.remove_regex(key.regular_expression)
        else:
            resolved = ResolvedRegex(value.topics, value.version, value.timestamp)
            group.set_regex(key.regular_expression, resolved)


def _partition_epochs(topics: list[TopicPartitions], member_epoch: int) -> PartitionEpochs:
    """Records from before KIP-1251 do not have the epoch of each partition: they get the member's epoch.

    Like a broker, this uses the epochs of a topic only if there is one for each partition.
    """
    default = max(member_epoch, 0)
    partitions: PartitionEpochs = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [default] * len(topic.partitions)
        of_topic: dict[int, int] = {}
        for index, partition in enumerate(topic.partitions):
            of_topic[partition] = epochs[index]
        partitions[topic.topic_id] = of_topic
    return partitions


def consumer_hard_state(store: GroupStore) -> list[str]:
    """One line per group and member, sorted by id. Equal for equal logs, compacted or not."""
    lines: list[str] = []
    for group_id in sorted(store.consumer_groups):
        group = store.consumer_groups[group_id]
        lines.append(
            f"consumer group {group_id!r} {group.end_offset} {group.epoch} {group.metadata_hash} "
            f"{group.assignment_epoch} {group.assignment_timestamp_ms} {group.has_partition_metadata_record}"
        )
        for member_id in sorted(group.members):
            member = group.members[member_id]
            lines.append(
                f"  member {member_id!r} {member.instance_id!r} {member.rack_id!r} {member.client_id!r} "
                f"{member.client_host!r} {member.topic_names!r} {member.topic_regex!r} "
                f"{member.rebalance_timeout_ms} {member.server_assignor!r} {member.classic!r} "
                f"{member.member_epoch} {member.previous_epoch} {member.state} "
                f"{_sorted(member.assigned)} {_sorted(member.revoking)}"
            )
            if member.client_assignors or member.answer != NO_ANSWER:
                lines.append(f"  client assignors {member.client_assignors!r} {member.answer!r}")
        for member_id in sorted(group.answers):
            lines.append(f"  answer {member_id!r} {group.answers[member_id]!r}")
        for member_id in sorted(group.targets):
            target = group.targets[member_id]
            lines.append(f"  target {member_id!r} {sorted((t.hex(), ps) for t, ps in target.items())}")
        for regex in sorted(group.resolved_regexes):
            resolved = group.resolved_regexes[regex]
            lines.append(f"  regex {regex!r} {resolved.topics!r} {resolved.version} {resolved.timestamp_ms}")
    return lines


def _sorted(partitions: PartitionEpochs) -> str:
    return str(sorted((topic_id.hex(), sorted(of_topic.items())) for topic_id, of_topic in partitions.items()))
