"""Records of consumer groups that brokers wrote, replayed as a broker replays them."""

from __future__ import annotations

import pytest

from kcoord.core.groups.classic import ClassicGroup
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.protocol.records.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from kcoord.protocol.records.consumer_group_member_metadata import (
    ClassicMemberMetadata,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from kcoord.protocol.records.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from tests.harness.group_records import LOG, offsets_core

TOPIC = b"t" * 16


@pytest.mark.parametrize(
    ("member_epoch", "epochs", "expected"),
    [
        (7, [3, 4], [3, 4]),
        (7, None, [7, 7]),
        # Before KIP-1251 there was no such field.
        (7, [], [7, 7]),
        (7, [3], [7, 7]),
        (7, [3, 4, 5], [7, 7]),
        (-2, None, [0, 0]),
    ],
)
def test_epochs_count_where_each_partition_has_one(
    member_epoch: int, epochs: list[int] | None, expected: list[int]
) -> None:
    core = offsets_core()
    partitions = TopicPartitions(TOPIC, [0, 1], epochs)
    value = ConsumerGroupCurrentMemberAssignmentValue(member_epoch, 0, 0, [partitions])
    core.replay(LOG, 0, ConsumerGroupMemberMetadataKey("g", "m"), ConsumerGroupMemberMetadataValue())
    core.replay(LOG, 1, ConsumerGroupMetadataKey("g"), ConsumerGroupMetadataValue(7))
    core.replay(LOG, 2, ConsumerGroupCurrentMemberAssignmentKey("g", "m"), value)
    member = core.groups.consumer_groups["g"].members["m"]
    assert [member.assigned[TOPIC][number] for number in (0, 1)] == expected


@pytest.mark.parametrize("classic", [None, ClassicMemberMetadata(), ClassicMemberMetadata(9_000)])
def test_a_member_is_a_classic_one_unless_its_record_has_null(classic: ClassicMemberMetadata | None) -> None:
    core = offsets_core()
    value = ConsumerGroupMemberMetadataValue(classic_member_metadata=classic)
    core.replay(LOG, 0, ConsumerGroupMemberMetadataKey("g", "m"), value)
    assert (core.groups.consumer_groups["g"].members["m"].classic is None) == (classic is None)


def test_replay_puts_the_group_in_place_that_the_outcome_made() -> None:
    core = offsets_core()
    made = ConsumerGroup("g", LOG)
    core.replay(LOG, 0, ConsumerGroupMetadataKey("g"), ConsumerGroupMetadataValue(7), made=made)
    assert core.groups.consumer_groups["g"] is made and made.epoch == 7
    core.replay(LOG, 1, ConsumerGroupMetadataKey("h"), ConsumerGroupMetadataValue(3), made=made)
    assert core.groups.consumer_groups["h"] is not made, "it is for its own group only"
    core.replay(LOG, 2, ConsumerGroupMetadataKey("g"), None, made=made)
    assert "g" not in core.groups.consumer_groups, "a tombstone makes no group"


def test_replay_puts_a_classic_group_in_place_that_the_outcome_made() -> None:
    core = offsets_core()
    made = ClassicGroup("g", LOG, 0)
    core.replay(LOG, 0, GroupMetadataKey("g"), GroupMetadataValue(generation=4), made=made)
    assert core.groups.groups["g"] is made and made.value == GroupMetadataValue(generation=4)
    core.replay(LOG, 1, GroupMetadataKey("h"), GroupMetadataValue(), made=made)
    assert core.groups.groups["h"] is not made
