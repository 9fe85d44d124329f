"""The records of a consumer group (types 3 to 8 and 16) as keys and values, and the tombstones of a whole group.

The order is always Kafka's: a member's current assignment comes before its target, and its target before the member.
"""

from __future__ import annotations

from typing import Final

from kcoord.core.assignors.spec import Assignment
from kcoord.core.groups.consumer import ConsumerGroup, ResolvedRegex
from kcoord.core.groups.members import NO_ANSWER, AssignorAnswer, ConsumerMember, PartitionEpochs
from kcoord.core.outcome import CoordinatorRecord
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
from kcoord.protocol.records.consumer_group_partition_metadata import ConsumerGroupPartitionMetadataKey
from kcoord.protocol.records.consumer_group_regular_expression import (
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)
from kcoord.protocol.records.consumer_group_target_assignment_member import (
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    TopicPartition,
)
from kcoord.protocol.records.consumer_group_target_assignment_metadata import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

# The most bytes of a tombstone in a batch, besides its strings.
TOMBSTONE_OVERHEAD_BYTES: Final = 64


def tombstone_bytes(group_id: str, other: str) -> int:
    """An upper bound of the bytes of a tombstone in a batch: `other` is what its key has besides the group id."""
    group_bytes = len(group_id) if group_id.isascii() else 4 * len(group_id)
    return TOMBSTONE_OVERHEAD_BYTES + group_bytes + (len(other) if other.isascii() else 4 * len(other))


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """Record 3: the group's epoch, and the hash of its subscribed topics (signed 64 bit)."""
    return CoordinatorRecord(ConsumerGroupMetadataKey(group_id), ConsumerGroupMetadataValue(epoch, metadata_hash))


def partition_metadata_tombstone(group_id: str) -> CoordinatorRecord:
    """Remove record 4, which brokers before 4.1 wrote."""
    return CoordinatorRecord(ConsumerGroupPartitionMetadataKey(group_id), None)


def member_record(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    """Record 5: the member's metadata and subscription."""
    return CoordinatorRecord(
        ConsumerGroupMemberMetadataKey(group_id, member.member_id),
        ConsumerGroupMemberMetadataValue(
            member.instance_id,
            member.rack_id,
            member.client_id,
            member.client_host,
            member.topic_names,
            member.topic_regex,
            member.rebalance_timeout_ms,
            member.server_assignor,
            member.classic,
            member.client_assignors if member.client_assignors and member.classic is None else None,
        ),
    )


def member_tombstone(group_id: str, member_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(ConsumerGroupMemberMetadataKey(group_id, member_id), None)


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
    """Record 6: the epoch of the target assignment, and the time when it was computed."""
    return CoordinatorRecord(
        ConsumerGroupTargetAssignmentMetadataKey(group_id),
        ConsumerGroupTargetAssignmentMetadataValue(epoch, timestamp_ms),
    )


def target_record(
    group_id: str, member_id: str, target: Assignment, answer: AssignorAnswer = NO_ANSWER
) -> CoordinatorRecord:
    """Record 7: the member's target assignment, and the answer of a client-side assignor."""
    error, version, metadata = answer
    return CoordinatorRecord(
        ConsumerGroupTargetAssignmentMemberKey(group_id, member_id),
        ConsumerGroupTargetAssignmentMemberValue(
            [TopicPartition(topic_id, partitions) for topic_id, partitions in target.items()],
            error,
            version,
            metadata,
        ),
    )


def target_tombstone(group_id: str, member_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None)


def current_record(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    """Record 8: the partitions that a member owns and those it is revoking, and its epochs."""
    error, version, metadata = member.answer
    return CoordinatorRecord(
        ConsumerGroupCurrentMemberAssignmentKey(group_id, member.member_id),
        ConsumerGroupCurrentMemberAssignmentValue(
            member.member_epoch,
            member.previous_epoch,
            member.state,
            _topic_partitions(member.assigned),
            _topic_partitions(member.revoking),
            error,
            version,
            metadata,
        ),
    )


def current_tombstone(group_id: str, member_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None)


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex) -> CoordinatorRecord:
    """Record 16: the topics that a regular expression matched."""
    return CoordinatorRecord(
        ConsumerGroupRegularExpressionKey(group_id, regex),
        ConsumerGroupRegularExpressionValue(resolved.topics, resolved.version, resolved.timestamp_ms),
    )


def regex_tombstone(group_id: str, regex: str) -> CoordinatorRecord:
    return CoordinatorRecord(ConsumerGroupRegularExpressionKey(group_id, regex), None)


def removed_member(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """The tombstones of one member."""
    return [
        current_tombstone(group_id, member_id),
        target_tombstone(group_id, member_id),
        member_tombstone(group_id, member_id),
    ]


def replaced_member(group: ConsumerGroup, old_id: str, new: ConsumerMember) -> list[CoordinatorRecord]:
    """A static member continues under another id and keeps its target assignment."""
    records = removed_member(group.group_id, old_id)
    records.append(member_record(group.group_id, new))
    target = target_record(group.group_id, new.member_id, group.target(old_id), group.answer(old_id))
    records.append(target)
    records.append(current_record(group.group_id, new))
    return records


def group_records(group: ConsumerGroup) -> list[CoordinatorRecord]:
    """All records of a group that is not in the log yet (an upgrade from the classic protocol)."""
    group_id = group.group_id
    records = [member_record(group_id, member) for member in group.members.values()]
    records.append(epoch_record(group_id, group.epoch, group.metadata_hash))
    for member_id in group.members:
        records.append(target_record(group_id, member_id, group.target(member_id)))
    records.append(target_epoch_record(group_id, group.assignment_epoch, group.assignment_timestamp_ms))
    for member in group.members.values():
        records.append(current_record(group_id, member))
    return records


def group_tombstones(group: ConsumerGroup, replaced_id: str = "", by_id: str = "") -> list[CoordinatorRecord]:
    """The tombstones of the whole group. Where earlier records of the same batch replaced the member `replaced_id` by
    `by_id`, the tombstones name `by_id`.
    """
    group_id = group.group_id
    member_ids = [by_id if member_id == replaced_id else member_id for member_id in group.members]
    records = [current_tombstone(group_id, member_id) for member_id in member_ids]
    for member_id in member_ids:
        records.append(target_tombstone(group_id, member_id))
    records.append(CoordinatorRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id), None))
    for member_id in member_ids:
        records.append(member_tombstone(group_id, member_id))
    for regex in group.resolved_regexes:
        records.append(regex_tombstone(group_id, regex))
    records.append(partition_metadata_tombstone(group_id))
    records.append(CoordinatorRecord(ConsumerGroupMetadataKey(group_id), None))
    return records


def _topic_partitions(partitions: PartitionEpochs) -> list[TopicPartitions]:
    topics: list[TopicPartitions] = []
    for topic_id, of_topic in partitions.items():
        topics.append(TopicPartitions(topic_id, list(of_topic), list(of_topic.values())))
    return topics
