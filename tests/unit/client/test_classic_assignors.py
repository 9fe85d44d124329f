"""The assignors of the classic protocol: what holds for every group, and Kafka's own examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord.client.consumer.assignors.base import Assignments, MemberSubscription, PartitionAssignor, TopicInfo
from kcoord.client.consumer.assignors.choice import parse_strategy
from kcoord.client.consumer.assignors.range_assignor import RangeAssignor
from kcoord.client.consumer.assignors.round_robin import RoundRobinAssignor
from kcoord.client.consumer.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from kcoord.client.errors import InvalidConfiguration
from kcoord.client.metadata import GroupMetadata, TopicPartition

# Two are enough for loads; racks may need more, because a member has to give up what another one waits for.
ROUNDS = 8

Members = dict[str, MemberSubscription]
Topics = dict[str, TopicInfo]


def topics_of(**counts: int) -> Topics:
    return {name: TopicInfo(name, count) for name, count in counts.items()}


def members_of(**subscriptions: str) -> Members:
    """Each member with its topics, separated by blanks."""
    return {name: MemberSubscription(name, frozenset(topics.split())) for name, topics in subscriptions.items()}


def shown(assignments: Assignments) -> dict[str, str]:
    return {name: " ".join(str(one) for one in partitions) for name, partitions in assignments.items()}


@st.composite
def groups(draw: st.DrawFn) -> tuple[Topics, Members]:
    names = draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=5, unique=True))
    has_racks = draw(st.booleans())
    racks = st.sampled_from(["r1", "r2", "r3"])
    topics: Topics = {}
    for name in names:
        count = draw(st.integers(0, 7))
        replicas = draw(st.lists(st.frozensets(racks), min_size=count, max_size=count)) if has_racks else ()
        topics[name] = TopicInfo(name, count, tuple(replicas))
    subscribed = [*names, "missing"]
    uniform = draw(st.one_of(st.none(), st.sets(st.sampled_from(subscribed), min_size=1)))
    members: Members = {}
    for number in range(draw(st.integers(1, 6))):
        name = f"m{number}"
        chosen = uniform or draw(st.sets(st.sampled_from(subscribed), min_size=1))
        instance = draw(st.one_of(st.none(), st.just(f"i{9 - number}")))
        rack = draw(st.one_of(st.none(), racks)) if has_racks else None
        members[name] = MemberSubscription(name, frozenset(chosen), instance_id=instance, rack=rack)
    return topics, members


def check_valid(topics: Topics, members: Mapping[str, MemberSubscription], found: Assignments) -> None:
    """Every partition that somebody subscribes to has one owner, who subscribes to it."""
    assert set(found) == set(members)
    given = Counter(partition for partitions in found.values() for partition in partitions)
    wanted = {topic for member in members.values() for topic in member.topics} & set(topics)
    expected = {TopicPartition(name, n) for name in wanted for n in range(topics[name].partition_count)}
    assert set(given) == expected
    assert not given or max(given.values()) == 1
    for name, partitions in found.items():
        assert {partition.topic for partition in partitions} <= members[name].topics


def check_balanced(topics: Topics, members: Members, found: Assignments) -> None:
    """No member can hand load to one that has two partitions less, not even through others."""
    for start in members:
        reached = {start}
        row = [start]
        while row:
            giver = row.pop()
            for partition in found[giver]:
                for name, member in members.items():
                    if partition.topic in member.topics and name not in reached:
                        assert len(found[name]) > len(found[start]) - 2
                        reached.add(name)
                        row.append(name)


def owning(members: Members, found: Assignments, generation: int) -> Members:
    """The members when they join the next time."""
    return {
        name: replace(member, owned=tuple(found.get(name, [])), generation=generation)
        for name, member in members.items()
    }


@pytest.mark.parametrize("assignor", [RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor])
@given(group=groups())
def test_every_partition_has_one_owner(assignor: type[PartitionAssignor], group: tuple[Topics, Members]) -> None:
    topics, members = group
    check_valid(topics, members, assignor().assign(topics, members))


@given(group=groups())
def test_sticky_is_balanced_and_stays(group: tuple[Topics, Members]) -> None:
    topics, members = group
    first = CooperativeStickyAssignor().assign(topics, members)
    check_balanced(topics, members, first)
    again = CooperativeStickyAssignor().assign(topics, owning(members, first, 1))
    assert {name: set(some) for name, some in again.items()} == {name: set(some) for name, some in first.items()}


@given(group=groups(), change=groups(), seed=st.integers(0, 5))
def test_cooperative_groups_settle_without_two_owners(
    group: tuple[Topics, Members], change: tuple[Topics, Members], seed: int
) -> None:
    """Members come, leave and change topics: partitions are revoked before others get them, and soon all is settled."""
    topics = {**group[0], **change[0]}
    before = CooperativeStickyAssignor().assign(topics, group[1])
    members = {name: one for name, one in change[1].items() if name != f"m{seed}"} or change[1]
    found: Assignments = {name: before.get(name, []) for name in members}
    for generation in range(1, ROUNDS):
        joined = owning(members, found, generation)
        owners = {partition: name for name, partitions in found.items() for partition in partitions}
        found = CooperativeStickyAssignor().assign(topics, joined)
        for name, partitions in found.items():
            for partition in partitions:
                assert owners.get(partition, name) == name
        if found == {name: list(one.owned) for name, one in joined.items()}:
            break
    else:
        raise AssertionError("the group does not settle")
    check_valid(topics, members, found)
    check_balanced(topics, members, found)


@given(group=groups(), gone=st.integers(0, 5))
def test_uniform_groups_move_only_what_they_must(group: tuple[Topics, Members], gone: int) -> None:
    topics, members = group
    everything = frozenset(topics)
    members = {name: MemberSubscription(name, everything) for name in members}
    before = CooperativeStickyAssignor().assign(topics, members)
    name = f"m{gone % len(members)}"
    rest = {other: one for other, one in members.items() if other != name}
    if rest:
        after = CooperativeStickyAssignor().assign(topics, owning(rest, before, 1))
        for other in rest:
            assert set(before[other]) <= set(after[other])
    # With one more, only what the new one gets moves.
    more = {**members, "new": MemberSubscription("new", everything)}
    joined = owning(more, before, 1)
    balance = CooperativeStickyAssignor().assign(topics, joined)
    share = sum(info.partition_count for info in topics.values()) // len(more)
    moved = sum(len(set(before[other]) - set(balance[other])) for other in members)
    assert moved <= share + 1


def test_range_cuts_each_topic() -> None:
    found = RangeAssignor().assign(topics_of(a=3, b=3), members_of(x="a b", y="a b"))
    assert shown(found) == {"x": "a-0 a-1 b-0 b-1", "y": "a-2 b-2"}


def test_range_prefers_racks() -> None:
    racks = tuple(frozenset({rack}) for rack in ("r1", "r2", "r3"))
    topics = {"a": TopicInfo("a", 3, racks), "b": TopicInfo("b", 3, racks)}
    members = {
        name: MemberSubscription(name, frozenset({"a", "b"}), rack=rack)
        for name, rack in (("x", "r3"), ("y", "r2"), ("z", "r1"))
    }
    found = RangeAssignor().assign(topics, members)
    assert shown(found) == {"x": "a-2 b-2", "y": "a-1 b-1", "z": "a-0 b-0"}


@pytest.mark.parametrize("topics", ["t", "t u"])
def test_sticky_prefers_racks(topics: str) -> None:
    """Loads come first, then racks, then what a member had."""
    racks = tuple(frozenset({rack}) for rack in ("r1", "r2", "r3", "r1"))
    members = {
        name: MemberSubscription(name, frozenset(subscribed.split()), (TopicPartition("t", owned),), 1, rack=rack)
        for name, owned, rack, subscribed in (("x", 0, "r3", "t"), ("y", 1, "r2", "t"), ("z", 2, "r1", topics))
    }
    found = CooperativeStickyAssignor().assign({"t": TopicInfo("t", 4, racks)}, members)
    # x and z exchange what they have: nobody gets it before.
    assert shown(found) == {"x": "", "y": "t-1", "z": "t-3"}
    settled = CooperativeStickyAssignor().assign({"t": TopicInfo("t", 4, racks)}, owning(members, found, 2))
    assert {name: set(own.split()) for name, own in shown(settled).items()} == {
        "x": {"t-2"},
        "y": {"t-1"},
        "z": {"t-0", "t-3"},
    }


def test_roundrobin_passes_over_others() -> None:
    found = RoundRobinAssignor().assign(topics_of(a=1, b=2, c=3), members_of(x="a", y="a b", z="a b c"))
    assert shown(found) == {"x": "a-0", "y": "b-0", "z": "b-1 c-0 c-1 c-2"}


def test_static_members_come_first_by_instance_id() -> None:
    members = members_of(a="t", b="t")
    members["z"] = MemberSubscription("z", frozenset({"t"}), instance_id="one")
    assert shown(RangeAssignor().assign(topics_of(t=1), members)) == {"a": "", "b": "", "z": "t-0"}


def test_sticky_reads_what_it_writes() -> None:
    assignor = StickyAssignor()
    assert assignor.user_data({"t"}) is None
    owned = [TopicPartition("t", 0), TopicPartition("t", 2)]
    assignor.on_assignment(owned, GroupMetadata("g", 7, "m"))
    data = assignor.user_data({"t"})
    members = members_of(a="t", b="t")
    members["b"] = MemberSubscription("b", frozenset({"t"}), user_data=data)
    assert shown(StickyAssignor().assign(topics_of(t=4), members))["b"] == "t-0 t-2"
    assert data is not None
    for damaged in (data[:5], b"\xff" * 9, b""):
        members["b"] = MemberSubscription("b", frozenset({"t"}), user_data=damaged)
        check_valid(topics_of(t=4), members, StickyAssignor().assign(topics_of(t=4), members))


def test_nobody_keeps_what_two_claim() -> None:
    both = (TopicPartition("t", 0),)
    members = {name: MemberSubscription(name, frozenset({"t"}), both, 3) for name in ("a", "b")}
    assert shown(CooperativeStickyAssignor().assign(topics_of(t=2), members)) in (
        {"a": "t-1", "b": ""},
        {"a": "", "b": "t-1"},
    )
    # A newer generation wins.
    members["b"] = MemberSubscription("b", frozenset({"t"}), both, 4)
    assert shown(CooperativeStickyAssignor().assign(topics_of(t=2), members)) == {"a": "t-1", "b": "t-0"}


def test_names_classes_and_instances() -> None:
    own = CooperativeStickyAssignor()
    assert [one.name for one in parse_strategy(None)] == ["range", "cooperative-sticky"]
    assert [one.name for one in parse_strategy(["roundrobin", StickyAssignor, own])] == [
        "roundrobin",
        "sticky",
        "cooperative-sticky",
    ]
    for mistake in (["none"], [3], [dict]):
        with pytest.raises(InvalidConfiguration):
            parse_strategy(mistake)
