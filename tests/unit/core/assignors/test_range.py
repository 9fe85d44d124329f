"""The range assignor by hand."""

from __future__ import annotations

import pytest

from kcoord.core.assignors.range_assignor import RangeAssignor
from kcoord.core.assignors.spec import AssignorError, GroupSpec
from tests.unit.core.assignors.groups import Topics, assignment, group, member

RANGE = RangeAssignor()


def test_no_members() -> None:
    assert RANGE.assign(GroupSpec({}, True), Topics({1: 3})) == {}


def test_equal_topics_are_cut_alike() -> None:
    result = RANGE.assign(group(member("a", [1, 2]), member("b", [1, 2])), Topics({1: 3, 2: 3}))
    assert result == {"a": assignment({1: [0, 1], 2: [0, 1]}), "b": assignment({1: [2], 2: [2]})}


def test_topics_of_different_sizes_with_the_same_subscribers() -> None:
    result = RANGE.assign(group(member("a", [1, 2]), member("b", [1, 2])), Topics({1: 3, 2: 4}))
    assert result == {"a": assignment({1: [0, 1], 2: [0, 1]}), "b": assignment({1: [2], 2: [2, 3]})}


@pytest.mark.parametrize("partitions", [0, 1, 6, 7, 8, 20, 21])
def test_topics_of_one_size_are_cut_as_if_they_were_not(partitions: int) -> None:
    """Topics of one size, to which everybody subscribes, have code of their own. It must not make a difference."""
    members = [member(f"m{n}", [1, 2, 3], instance_id=f"i{n}" if n in (2, 5) else None) for n in range(7)]
    together = group(*members)
    topics = Topics(dict.fromkeys((1, 2, 3), partitions))
    assert together.is_homogeneous
    result = RANGE.assign(together, topics)
    assert result == RANGE.assign(GroupSpec(together.members, False), topics)
    assert all(list(one) == sorted(one) for one in result.values())


def test_more_members_than_partitions() -> None:
    result = RANGE.assign(group(*[member(m, [1]) for m in "abc"]), Topics({1: 2}))
    assert result == {"a": assignment({1: [0]}), "b": assignment({1: [1]}), "c": {}}


def test_different_subscriptions() -> None:
    spec = group(member("a", [1, 2]), member("b", [2, 3]), member("c", [3]))
    result = RANGE.assign(spec, Topics({1: 3, 2: 3, 3: 4}))
    assert result == {
        "a": assignment({1: [0, 1, 2], 2: [0, 1]}),
        "b": assignment({2: [2], 3: [0, 1]}),
        "c": assignment({3: [2, 3]}),
    }


def test_static_members_stand_first_by_instance_id() -> None:
    spec = group(member("a", [1]), member("z", [1], instance_id="1"), member("b", [1], instance_id="2"))
    result = RANGE.assign(spec, Topics({1: 3}))
    assert result == {"z": assignment({1: [0]}), "b": assignment({1: [1]}), "a": assignment({1: [2]})}


def test_a_static_member_under_another_member_id_keeps_its_place() -> None:
    before = group(member("m0", [1], instance_id="i0"), member("m1", [1], instance_id="i1"))
    after = group(member("m3", [1], instance_id="i0"), member("m2", [1], instance_id="i1"))
    topics = Topics({1: 3})
    assert RANGE.assign(before, topics)["m0"] == RANGE.assign(after, topics)["m3"] == assignment({1: [0, 1]})


def test_ids_are_compared_as_java_compares_them() -> None:
    """By UTF-16 code unit: a character beyond the first 65536 sorts before U+FF5E, by code point after it."""
    high, wide = "\U0001f600", "\uff5e"
    assert wide < high
    result = RANGE.assign(group(member(high, [1]), member(wide, [1])), Topics({1: 1}))
    assert result == {high: assignment({1: [0]}), wide: {}}


def test_a_topic_that_does_not_exist() -> None:
    with pytest.raises(AssignorError, match="does not exist"):
        RANGE.assign(group(member("a", [1, 2])), Topics({1: 1}))
