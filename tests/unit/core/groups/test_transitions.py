"""The state machines of groups: every change that their tables allow, and changes that they refuse."""

from __future__ import annotations

import pytest

from kcoord.core.groups import classic, members
from kcoord.core.groups.classic import ClassicGroup
from kcoord.core.groups.members import ConsumerMember, check_transition
from kcoord.core.transitions import IllegalTransition
from tests.harness.group_records import LOG

CLASSIC_STATES = tuple(classic.TRANSITIONS)
MEMBER_STATES = tuple(members.TRANSITIONS)

# What a broker allows: the states from which each state may be entered.
VALID_PREVIOUS_STATES = {
    "Empty": {"PreparingRebalance"},
    "PreparingRebalance": {"Stable", "CompletingRebalance", "Empty"},
    "CompletingRebalance": {"PreparingRebalance"},
    "Stable": {"CompletingRebalance"},
    "Dead": {"Stable", "PreparingRebalance", "CompletingRebalance", "Empty", "Dead"},
}


def test_the_table_of_classic_groups_is_that_of_a_broker() -> None:
    previous: dict[str, set[str]] = {state: set() for state in CLASSIC_STATES}
    for before, allowed in classic.TRANSITIONS.items():
        for after in allowed:
            previous[after].add(before)
    assert previous == VALID_PREVIOUS_STATES


@pytest.mark.parametrize("before", CLASSIC_STATES)
@pytest.mark.parametrize("after", CLASSIC_STATES)
def test_a_classic_group_follows_its_table_of_transitions(before: str, after: str) -> None:
    group = ClassicGroup("g", LOG, 1, before)
    if after in classic.TRANSITIONS[before]:
        group.transition_to(after, 2)
        assert (group.state, group.previous_state, group.current_state_timestamp_ms) == (after, before, 2)
        return
    with pytest.raises(IllegalTransition) as refused:
        group.transition_to(after, 2)
    assert str(refused.value) == f"classic group g cannot go from {before} to {after}"
    assert (group.state, group.previous_state, group.current_state_timestamp_ms) == (before, "Dead", 1)


@pytest.mark.parametrize("before", CLASSIC_STATES)
def test_each_state_of_a_classic_group_refuses_something(before: str) -> None:
    assert set(CLASSIC_STATES) - set(classic.TRANSITIONS[before])


def member(state: int, epoch: int) -> ConsumerMember:
    made = ConsumerMember("m")
    made.state = state
    made.member_epoch = epoch
    return made


@pytest.mark.parametrize("before", MEMBER_STATES)
@pytest.mark.parametrize("after", MEMBER_STATES)
def test_a_member_of_a_consumer_group_follows_its_table_of_transitions(before: int, after: int) -> None:
    if after in members.TRANSITIONS[before]:
        check_transition("g", member(before, 3), member(after, 3))
        return
    with pytest.raises(IllegalTransition, match="member m of consumer group g cannot go from .* in epoch 3 to Unknown"):
        check_transition("g", member(before, 3), member(after, 3))


@pytest.mark.parametrize("before", MEMBER_STATES)
def test_nothing_leads_to_an_unknown_state(before: int) -> None:
    assert members.UNKNOWN_STATE not in members.TRANSITIONS[before]


@pytest.mark.parametrize("before", MEMBER_STATES)
def test_a_member_that_has_partitions_to_give_up_stays_in_its_epoch(before: int) -> None:
    if before == members.UNKNOWN_STATE:
        check_transition("g", member(before, 3), member(members.UNREVOKED_PARTITIONS, 4))
        return
    with pytest.raises(IllegalTransition, match="in epoch 3 to UnrevokedPartitions in epoch 4"):
        check_transition("g", member(before, 3), member(members.UNREVOKED_PARTITIONS, 4))
    check_transition("g", member(before, 3), member(members.STABLE, 4))
    check_transition("g", member(before, 3), member(members.UNRELEASED_PARTITIONS, 4))
