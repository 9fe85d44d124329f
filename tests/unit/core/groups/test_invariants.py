"""What must be true of groups: the cheap checks that are always made, and the whole ones of the tests."""

from __future__ import annotations

import pytest

from kcoord.core.groups.classic import ClassicGroup
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.invariants import InvariantBroken, check_counts
from kcoord.core.groups.members import ConsumerMember
from kcoord.core.outcome import Now, Outcome
from kcoord.protocol.records.consumer_group_member_metadata import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from tests.harness.core_invariants import classic_problems, consumer_problems, core_problems
from tests.harness.group_records import LOG, offsets_core

TOPIC = b"t" * 16


def consumer_group() -> ConsumerGroup:
    group = ConsumerGroup("g", LOG)
    member = ConsumerMember("m")
    member.instance_id = "i"
    member.topic_names = ["orders"]
    member.member_epoch = 1
    member.assigned = {TOPIC: {0: 1}}
    group.put_member(member)
    return group


def test_groups_that_agree_with_their_members_pass() -> None:
    group, classic = consumer_group(), ClassicGroup("h", LOG, 0)
    check_counts("g", group, None)
    check_counts("h", None, classic)
    check_counts("none", None, None)
    assert consumer_problems(group) == [] and classic_problems(classic) == []


def test_a_group_is_of_one_kind() -> None:
    with pytest.raises(InvariantBroken, match="group g: it is a classic group and a consumer group at once"):
        check_counts("g", consumer_group(), ClassicGroup("g", LOG, 0))


@pytest.mark.parametrize(
    ("name", "value"), [("classic_members", 2), ("classic_members", -1), ("client_assignor_members", 2)]
)
def test_counts_of_a_consumer_group_stay_within_its_size(name: str, value: int) -> None:
    group = consumer_group()
    setattr(group, name, value)
    with pytest.raises(InvariantBroken, match=f"group g: {value} members"):
        check_counts("g", group, None)


def test_counts_of_a_classic_group_stay_within_its_size() -> None:
    group = ClassicGroup("g", LOG, 0)
    group.awaiting_join = 1
    with pytest.raises(InvariantBroken, match="1 members wait for a join of 0"):
        check_counts("g", None, group)
    group.awaiting_join = 0
    group.static_members = {"i": "m"}
    with pytest.raises(InvariantBroken, match="1 static members of 0"):
        check_counts("g", None, group)


def test_a_broken_group_is_found_after_the_records_of_its_members() -> None:
    core = offsets_core()
    core.groups.timers.is_live = True
    core.replay(LOG, 0, ConsumerGroupMemberMetadataKey("g", "m"), ConsumerGroupMemberMetadataValue())
    core.groups.consumer_groups["g"].classic_members = 5
    with pytest.raises(InvariantBroken):
        core.settle(Outcome(), Now(0, 0))


def test_the_whole_check_compares_indexes_owners_and_epochs() -> None:
    group = consumer_group()
    group.name_counts["payments"] = 1
    group.partition_epochs[TOPIC][1] = 1
    group.assignment_epoch = 2
    problems = "; ".join(consumer_problems(group))
    assert "name_counts" in problems and "partition_epochs" in problems and "the assignment is of epoch 2" in problems


def test_the_whole_check_finds_a_partition_with_two_members() -> None:
    group = consumer_group()
    second = ConsumerMember("n")
    second.member_epoch = 1
    second.assigned = {TOPIC: {0: 1}}
    group.put_member(second)
    assert any("is with n and another one" in problem for problem in consumer_problems(group))


def test_the_whole_check_counts_offsets() -> None:
    core = offsets_core()
    core.offsets.count = 1
    assert core_problems(core) == ["offsets: count is 1, its members say 0"]
