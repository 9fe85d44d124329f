"""The uniform assignor by hand: small groups whose right answer is known."""

from __future__ import annotations

import pytest

from kcoord.core.assignors.spec import AssignorError, GroupSpec
from kcoord.core.assignors.uniform import UniformAssignor
from tests.unit.core.assignors.groups import (
    Topics,
    assignment,
    group,
    member,
    moved,
    needed,
    owners,
    sizes,
    topic,
)

UNIFORM = UniformAssignor()


def test_no_members() -> None:
    assert UNIFORM.assign(GroupSpec({}, True), Topics({1: 3})) == {}


def test_members_without_topics_get_nothing_and_lose_what_they_had() -> None:
    spec = group(member("a", [], {1: [0, 1]}), member("b", []))
    assert UNIFORM.assign(spec, Topics({1: 2})) == {"a": {}, "b": {}}


def test_from_nothing() -> None:
    result = UNIFORM.assign(group(member("a", [1, 2]), member("b", [1, 2])), Topics({1: 3, 2: 2}))
    assert result == {"a": assignment({1: [0, 1, 2]}), "b": assignment({2: [0, 1]})}


def test_more_members_than_partitions() -> None:
    result = UNIFORM.assign(group(*[member(m, [1]) for m in "abcd"]), Topics({1: 2}))
    assert sorted(sizes(result).values()) == [0, 0, 1, 1]
    assert len(owners(result)) == 2


def test_a_balanced_group_keeps_everything() -> None:
    spec = group(member("a", [1], {1: [0, 3]}), member("b", [1], {1: [1]}), member("c", [1], {1: [2, 4]}))
    result = UNIFORM.assign(spec, Topics({1: 5}))
    assert result == {"a": assignment({1: [0, 3]}), "b": assignment({1: [1]}), "c": assignment({1: [2, 4]})}
    assert result["a"] is spec.members["a"].target


def test_only_what_is_too_much_moves() -> None:
    spec = group(member("a", [1], {1: range(4)}), member("b", [1], {1: range(4, 8)}), member("c", [1]))
    before = {m: s.target for m, s in spec.members.items()}
    result = UNIFORM.assign(spec, Topics({1: 8}))
    assert sorted(sizes(result).values()) == [2, 3, 3]
    assert moved(before, result) == 2
    # The extra stays with those who have it already: nothing more than the newcomer's two moves.
    assert sizes(result)["c"] == 2


def test_the_extra_goes_to_who_changes_anyway() -> None:
    """Fewest targets written: a's and b's stand, the newcomer takes the quota and the extra."""
    spec = group(member("a", [1], {1: [0]}), member("b", [1], {1: [1]}), member("c", [1]))
    result = UNIFORM.assign(spec, Topics({1: 4}))
    assert result["a"] is spec.members["a"].target
    assert result["b"] is spec.members["b"].target
    assert result["c"] == assignment({1: [2, 3]})


def test_removed_targets_are_dropped() -> None:
    """Topics that are not subscribed to, and partitions that do not exist (of a log from elsewhere)."""
    spec = group(member("a", [1], {1: [0, 7], 2: [0]}), member("b", [1], {1: [1]}))
    result = UNIFORM.assign(spec, Topics({1: 2, 2: 1}))
    assert result == {"a": assignment({1: [0]}), "b": assignment({1: [1]})}


def test_a_partition_that_two_members_have_stays_with_one() -> None:
    spec = group(member("a", [1], {1: [0, 1]}), member("b", [1], {1: [1]}))
    assert UNIFORM.assign(spec, Topics({1: 2})) == {"a": assignment({1: [0]}), "b": assignment({1: [1]})}


def test_a_topic_that_does_not_exist() -> None:
    with pytest.raises(AssignorError, match="does not exist"):
        UNIFORM.assign(group(member("a", [1, 2])), Topics({1: 1}))
    with pytest.raises(AssignorError, match="does not exist"):
        UNIFORM.assign(group(member("a", [1]), member("b", [2])), Topics({1: 1}))


def test_different_subscriptions_from_nothing() -> None:
    """Topic 1 has one subscriber; all of topic 2 goes to the other one, who would have less otherwise."""
    spec = group(member("a", [1, 2]), member("b", [2]))
    result = UNIFORM.assign(spec, Topics({1: 2, 2: 2}))
    assert result == {"a": assignment({1: [0, 1]}), "b": assignment({2: [0, 1]})}


def test_different_subscriptions_even_out() -> None:
    spec = group(member("a", [1, 2], {1: [0, 1], 2: [0, 1, 2, 3]}), member("b", [2]))
    result = UNIFORM.assign(spec, Topics({1: 2, 2: 4}))
    assert result == {"a": assignment({1: [0, 1], 2: [0]}), "b": assignment({2: [1, 2, 3]})}


def test_a_member_that_cannot_give_is_passed_over() -> None:
    """c is by far the largest but has nothing of topic 1; a gives to b instead."""
    spec = group(
        member("a", [1], {1: [0, 1, 2, 3]}),
        member("b", [1]),
        member("c", [1, 2], {2: range(9)}),
        member("d", [3]),
    )
    result = UNIFORM.assign(spec, Topics({1: 4, 2: 9, 3: 1}))
    assert sizes(result) == {"a": 2, "b": 2, "c": 9, "d": 1}
    assert result["c"] is spec.members["c"].target


def test_overlapping_subscriptions_stop_where_single_moves_gain_nothing() -> None:
    """9, 10 and 11: each topic is even in itself. Kafka leaves it there too, and nothing moves."""
    spec = group(
        member("a", [1], {1: range(9)}),
        member("b", [1, 2], {1: [9], 2: range(9)}),
        member("c", [2], {2: range(9, 20)}),
    )
    result = UNIFORM.assign(spec, Topics({1: 10, 2: 20}))
    assert sizes(result) == {"a": 9, "b": 10, "c": 11}
    assert all(result[m] is spec.members[m].target for m in result)


def test_owner() -> None:
    spec = group(member("a", [1], {1: [0]}), member("b", [1], {1: [2]}))
    assert spec.owner(topic(1), 0) == "a"
    assert spec.owner(topic(1), 1) is None
    assert spec.owner(topic(1), 2) == "b"
    assert spec.owner(topic(2), 0) is None


def test_needed_knows_the_least() -> None:
    """The yardstick of the property tests, by hand."""
    assert needed([4, 4, 0], 8) == 2
    assert needed([2, 0, 0], 3) == 1
    assert needed([10] * 10 + [0], 100) == 9
