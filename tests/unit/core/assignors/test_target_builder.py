"""The target builder by hand: what it lists, what it inherits, and when it starts from nothing."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord.core.assignors.range_assignor import RangeAssignor
from kcoord.core.assignors.spec import Assignment, Assignor, AssignorError, GroupSpec, TopicDescriber
from kcoord.core.assignors.uniform import UniformAssignor
from tests.unit.core.assignors.groups import Group, Topics, assignment, moved, owners, sizes, topic


def uniform(counts: dict[int, int], targets: dict[str, Assignment] | None = None) -> Group:
    return Group(UniformAssignor(), Topics(counts), targets)


def test_a_group_without_members() -> None:
    group = uniform({1: 3})
    assert group.compute() == {}
    group.join("a", [1])
    group.leave("a")
    assert group.compute() == {}


def test_only_differences() -> None:
    group = uniform({1: 4})
    group.join("a", [1])
    assert group.compute() == {"a": assignment({1: [0, 1, 2, 3]})}
    assert group.compute() == {}
    group.join("b", [1])
    assert group.compute() == {"a": assignment({1: [0, 1]}), "b": assignment({1: [2, 3]})}


@pytest.mark.parametrize("assignor", [UniformAssignor(), RangeAssignor()])
def test_a_new_member_that_gets_nothing_is_listed_once(assignor: Assignor) -> None:
    group = Group(assignor, Topics({1: 1}))
    group.join("a", [1])
    group.compute()
    group.join("b", [1])
    assert group.compute() == {"b": {}}
    assert group.compute() == {}


@pytest.mark.parametrize("topics", [[1], [1, 2]])
def test_a_member_that_leaves_is_not_listed(topics: list[int]) -> None:
    group = uniform({1: 4, 2: 1})
    group.join("a", topics)
    group.join("b", [1])
    group.compute()
    group.leave("b")
    changed = group.compute()
    assert list(changed) == ["a"]
    assert len(owners(group.targets)) == 4 + len(topics) - 1


def test_a_static_member_inherits_the_target() -> None:
    group = uniform({1: 4})
    group.join("a", [1], "i")
    group.join("b", [1])
    group.compute()
    old = group.targets["a"]
    group.replace("a", "c")
    assert group.compute() == {}
    assert group.targets["c"] is old
    group.leave("c")
    assert group.compute() == {"b": assignment({1: [0, 1, 2, 3]})}


def test_a_static_member_that_comes_back_with_another_subscription() -> None:
    group = uniform({1: 4, 2: 2})
    group.join("a", [1], "i")
    group.join("b", [1])
    group.compute()
    group.replace("a", "c")
    group.join("c", [2], "i")
    assert group.compute() == {"b": assignment({1: [0, 1, 2, 3]}), "c": assignment({2: [0, 1]})}


def test_a_member_that_is_replaced_before_it_was_computed() -> None:
    group = uniform({1: 4})
    group.join("a", [1])
    group.compute()
    group.join("b", [1], "i")
    group.replace("b", "c")
    assert group.compute() == {"a": assignment({1: [0, 1]}), "c": assignment({1: [2, 3]})}


def test_a_member_that_leaves_and_comes_back_in_one_turn() -> None:
    group = uniform({1: 4})
    group.join("a", [1])
    group.join("b", [1])
    group.compute()
    group.leave("b")
    group.join("b", [1])
    changed = group.compute()
    assert sorted(sizes(group.targets).values()) == [2, 2]
    assert list(changed) == ["b"]


def test_targets_of_a_log_are_continued() -> None:
    before = {"a": assignment({1: [0, 3]}), "b": assignment({1: [1, 2]})}
    group = uniform({1: 4}, dict(before))
    group.join("b", [1])
    group.join("a", [1])
    assert group.compute() == {}
    group.join("c", [1])
    group.compute()
    assert moved(before, group.targets) == 1


@pytest.mark.parametrize("away", [1, 3])
def test_in_a_rolling_restart_the_others_keep_their_partitions(away: int) -> None:
    """While members are away, each of their partitions is with one who gives it back first."""
    names = [f"m{number:02}" for number in range(12)]
    group = uniform({1: 12})
    for name in names:
        group.join(name, [1])
    group.compute()
    for start in range(0, len(names), away):
        leaving = names[start : start + away]
        # There is nobody for whom the first of all partitions would be the last.
        if (topic(1), 0) in owners({name: group.targets[name] for name in leaving}):
            continue
        before = dict(group.targets)
        for name in leaving:
            group.leave(name)
            group.compute()
        for name in leaving:
            group.join(f"{name}-new", [1])
            group.compute()
        stayed = [name for name in group.targets if name in before]
        assert {name: group.targets[name] for name in stayed} == {name: before[name] for name in stayed}


def test_partitions_that_are_added() -> None:
    group = uniform({1: 2})
    group.join("a", [1])
    group.join("b", [1])
    group.compute()
    before = dict(group.targets)
    group.grow(1, 6)
    group.compute()
    assert sorted(sizes(group.targets).values()) == [3, 3]
    assert moved(before, group.targets) == 0


def test_a_topic_that_goes() -> None:
    """The coordinator tells the builder what every member subscribes to now."""
    group = uniform({1: 2, 2: 2})
    group.join("a", [1, 2])
    group.join("b", [1, 2])
    group.compute()
    del group.topics.counts[topic(2)]
    group.join("a", [1])
    group.join("b", [1])
    group.compute()
    assert set(owners(group.targets)) == {(topic(1), 0), (topic(1), 1)}
    assert sorted(sizes(group.targets).values()) == [1, 1]


def test_answers_that_were_not_stored_are_computed_again() -> None:
    group = uniform({1: 6})
    group.join("a", [1])
    group.join("b", [1])
    group.compute()
    group.join("c", [1])
    lost = group.compute(stored=False)
    assert group.compute(stored=False) == lost
    group.leave("c")
    assert group.compute() == {}
    group.join("d", [1])
    group.compute()
    assert sizes(group.targets) == {"a": 2, "b": 2, "d": 2}


def test_another_assignor() -> None:
    group = uniform({1: 2, 2: 2})
    group.join("a", [1, 2])
    group.join("b", [1, 2])
    group.compute()
    assert group.targets == {"a": assignment({1: [0, 1]}), "b": assignment({2: [0, 1]})}
    group.builder.set_assignor(RangeAssignor())
    assert group.builder.assignor.name == "range"
    group.compute()
    assert group.targets == {"a": assignment({1: [0], 2: [0]}), "b": assignment({1: [1], 2: [1]})}
    group.builder.set_assignor(UniformAssignor())
    assert group.compute() == {}


def test_subscriptions_part_and_meet_again() -> None:
    group = uniform({1: 4, 2: 4})
    for name in "ab":
        group.join(name, [1])
    assert group.builder.is_homogeneous
    group.compute()
    group.join("b", [1, 2])
    assert not group.builder.is_homogeneous
    group.compute()
    assert sizes(group.targets) == {"a": 4, "b": 4}
    group.join("a", [1, 2])
    assert group.builder.is_homogeneous
    before = dict(group.targets)
    group.compute()
    assert len(owners(group.targets)) == 8
    assert moved(before, group.targets) == 0


def test_a_topic_that_is_unknown_does_not_break_the_builder() -> None:
    group = uniform({1: 2})
    group.join("a", [1])
    group.compute()
    group.join("b", [1, 2])
    with pytest.raises(AssignorError):
        group.compute()
    group.leave("b")
    group.join("b", [1])
    group.compute()
    assert sizes(group.targets) == {"a": 1, "b": 1}


class CountingTopics(Topics):
    """Knows how often it was asked, which every computation in full does for every topic."""

    asked = 0

    def partition_count(self, topic_id: bytes) -> int:
        self.asked += 1
        return super().partition_count(topic_id)


def test_one_that_joins_or_leaves_is_not_a_reason_to_compute_in_full() -> None:
    topics = CountingTopics({1: 40, 2: 60})
    group = Group(UniformAssignor(), topics)
    for number in range(50):
        group.join(f"m{number:02}", [1, 2])
    group.compute()
    assert topics.asked == 2
    group.join("m20-a", [1, 2])
    assert len(group.compute()) == 2
    group.leave("m30")
    assert len(group.compute()) == 2
    group.replace("m31", "m60")
    group.leave("m32")
    group.join("m33-a", [1, 2])
    group.compute()
    assert topics.asked == 2
    assert sorted(set(sizes(group.targets).values())) == [2]
    group.topics_changed()
    group.compute()
    assert topics.asked == 4


def test_ids_that_change_hands_are_not_a_reason_to_compute_in_full() -> None:
    topics = CountingTopics({1: 8})
    group = Group(UniformAssignor(), topics)
    for member_id in ("a", "b", "c", "d"):
        group.join(member_id, [1])
    group.compute()
    inherited = group.targets["b"]
    group.leave("a")
    group.replace("b", "a")
    group.replace("c", "b")
    changed = group.compute()
    assert group.targets["a"] == inherited | changed.get("a", {})
    assert sorted(group.targets) == ["a", "b", "d"]
    assert sorted(sizes(group.targets).values()) == [2, 3, 3]
    assert topics.asked == 1
    # Results of members that were renamed must also be in the targets.
    group.replace("a", "e")
    group.targets["e"] = assignment({1: []})
    group.compute()
    assert topics.asked == 2
    assert sorted(sizes(group.targets).values()) == [2, 3, 3]


def test_different_subscriptions_are_not_computed_in_full_when_one_member_changes() -> None:
    topics = CountingTopics({1: 40, 2: 60, 3: 10})
    group = Group(UniformAssignor(), topics)
    for number in range(50):
        group.join(f"m{number:02}", [1, 2] if number % 2 else [2])
    group.compute()
    assert topics.asked == 2
    group.join("m20-a", [1, 2])
    group.leave("m30")
    group.compute()
    group.replace("m31", "m60")
    assert group.compute() == {}
    # A subscription that nobody had, and then nobody has any more.
    group.join("m70", [1])
    group.compute()
    group.leave("m70")
    group.compute()
    # A member that changes to a subscription that others have.
    group.join("m60", [2])
    group.compute()
    # A static member that changes its subscription and its id.
    group.replace("m60", "m61")
    group.join("m61", [1])
    group.compute()
    assert group.targets["m61"] and list(group.targets["m61"]) == [topic(1)]
    assert topics.asked == 2
    # A topic that nobody had, and that nobody has any more. Only this topic is looked up.
    group.join("m61", [1, 3])
    assert group.compute()["m61"] == assignment({3: range(10)})
    group.join("m61", [1])
    group.compute()
    group.join("m61", [3])
    assert group.compute()["m61"] == assignment({3: range(10)})
    assert topics.asked == 4
    assert len(owners(group.targets)) == 110


def test_a_member_that_changes_its_subscription_and_leaves() -> None:
    group = uniform({1: 4, 2: 4})
    group.join("a", [1])
    group.join("b", [2])
    group.join("c", [1, 2])
    group.compute()
    group.join("a", [2])
    group.leave("a")
    group.compute()
    assert len(owners(group.targets)) == 8


def test_a_new_member_that_changes_its_subscription_at_once() -> None:
    group = uniform({1: 4, 2: 4})
    group.join("a", [1])
    group.join("b", [1, 2])
    group.compute()
    group.join("c", [1])
    group.join("c", [2])
    group.compute()
    assert list(group.targets["c"]) == [topic(2)]
    assert len(owners(group.targets)) == 8


def test_subscriptions_that_become_equal_or_different() -> None:
    group = uniform({1: 4, 2: 4})
    group.join("a", [1])
    group.join("b", [1, 2])
    group.compute()
    group.join("a", [1, 2])
    group.compute()
    assert group.builder.is_homogeneous
    assert sizes(group.targets) == {"a": 4, "b": 4}
    group.join("b", [2])
    group.compute()
    assert list(group.targets["b"]) == [topic(2)]
    assert len(owners(group.targets)) == 8


def test_topics_whose_subscribers_are_equal_again_are_put_together_after_a_while() -> None:
    count = 100
    topics = CountingTopics(dict.fromkeys(range(count), 1))
    group = Group(UniformAssignor(), topics)
    group.join("a", range(count))
    group.join("b", range(count - 1))
    group.compute()
    for number in range(count):
        group.join("c", [number])
        group.compute()
        group.leave("c")
        group.compute()
    # Each full computation begins with two audiences. Without any, each topic would have one of its own in the end.
    assert count < topics.asked <= 10 * count


def test_many_members_that_join_at_once_are_a_reason_to_compute_in_full() -> None:
    topics = CountingTopics({1: 40, 2: 60})
    group = Group(UniformAssignor(), topics)
    group.join("a", [1])
    group.join("b", [2])
    group.compute()
    for number in range(2):
        group.join(f"m{number}", [1, 2])
    group.compute()
    assert topics.asked == 2
    for number in range(2, 7):
        group.join(f"m{number}", [1, 2])
    group.compute()
    assert topics.asked == 4
    assert len(owners(group.targets)) == 100


@pytest.mark.parametrize("subscriptions", [[[1, 2], [1, 2]], [[1], [2]]])
def test_topics_that_the_next_computation_continues_with(subscriptions: list[list[int]]) -> None:
    group = uniform({1: 4, 2: 4})
    for number, topics in enumerate(subscriptions):
        group.join(f"m{number}", topics)
    assert not group.builder.uses({topic(1): True}), "nothing was computed yet"
    group.compute()
    assert group.builder.uses({topic(2): True})
    assert not group.builder.uses({topic(3): True})
    assert not group.builder.uses({topic(number): True for number in range(3, 9)})
    assert group.builder.uses({topic(number): True for number in range(2, 9)})
    # The topic counts until the next computation, although nobody subscribes to it.
    group.leave("m1")
    group.join("m0", [1])
    assert group.builder.uses({topic(1): True})
    group.compute()
    assert not group.builder.uses({topic(2): True})


class PlugIn(Assignor):
    """Answers what it was told to, or raises it."""

    def __init__(self, answer: Any) -> None:
        super().__init__("mine")
        self.answer = answer

    def assign(self, group: GroupSpec, topics: TopicDescriber) -> dict[str, Assignment]:
        if isinstance(self.answer, Exception):
            raise self.answer
        answer: dict[str, Assignment] = self.answer
        return answer


def plugged(answer: Any) -> Group:
    group = Group(PlugIn(answer), Topics({1: 2, 2: 2}))
    group.join("a", [1])
    group.join("b", [1])
    return group


def test_what_is_an_assignor_stays_one() -> None:
    """Compiled subclasses of an abstract base class share a cache that forgets this after the second question."""
    for assignor in (UniformAssignor(), RangeAssignor()):
        assert isinstance(assignor, Assignor)
        assert isinstance(assignor, UniformAssignor) != isinstance(assignor, RangeAssignor)
        assert isinstance(assignor, Assignor)


def test_a_plug_in_without_a_method() -> None:
    group = Group(Assignor("empty"), Topics({1: 1}))
    group.join("a", [1])
    with pytest.raises(AssignorError, match="'empty' does not implement"):
        group.compute()


def test_a_plug_in_is_put_in_order_and_copied() -> None:
    answer = {"a": {topic(1): [1, 0]}}
    group = plugged(answer)
    assert group.compute() == {"a": assignment({1: [0, 1]}), "b": {}}
    assert answer == {"a": {topic(1): [1, 0]}}
    answer["a"][topic(1)] = []
    assert group.compute() == {"a": {}}


T1, T2 = topic(1), topic(2)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ({"c": {}}, "'c', which is not a member"),
        ({"a": {T1: [2]}}, "partition 2 of topic 0*1, which has 2 partitions"),
        ({"a": {T1: [-1]}}, "partition -1"),
        ({"a": {T1: [0, 0]}}, "assigned twice to 'a'"),
        (
            {"a": {T1: [0]}, "b": {T1: [1, 0]}},
            "partition 0 of topic 0*1 is assigned twice, to 'a' and to 'b'",
        ),
        ({"a": {T2: [0]}}, "does not subscribe"),
        ({"a": {T1: [0], "x": [0]}}, "'x', which it does not subscribe to"),
        ({"a": {T1: (0, 1)}}, "tuple instead of a list"),
        ({"a": {T1: [True]}}, "True is not a partition"),
        ({"a": {T1: ["0"]}}, "'0' is not a partition"),
        ({"a": [T1]}, "list instead of a dict by topic id"),
        (ValueError("no idea"), "assignor 'mine' failed with ValueError: no idea"),
        (AssignorError("not today"), "^not today$"),
    ],
)
def test_a_plug_in_that_answers_nonsense(answer: Any, complaint: str) -> None:
    group = plugged(answer)
    with pytest.raises(AssignorError, match=complaint):
        group.compute()
    assert group.targets == {}
    group.builder.set_assignor(UniformAssignor())
    group.compute()
    assert sizes(group.targets) == {"a": 1, "b": 1}


@pytest.mark.parametrize("answer", [None, []])
def test_a_plug_in_that_answers_no_dict(answer: Any) -> None:
    """Compiled code notices by itself, before the check does; either way the group is told."""
    with pytest.raises(AssignorError, match=r"instead of a dict|TypeError: dict object expected"):
        plugged(answer).compute()
