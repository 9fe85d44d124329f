"""The consumer's assignors against those of Kafka's client: random groups, and what becomes of them change by change.

Both are asked about the same group. `range` and `roundrobin` leave nothing open, so the answers must be the same. For
the sticky ones Kafka promises balance before stickiness: ours must be at least as balanced, and in all no more
partitions may move than with Kafka's. The group goes on with our answer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from kcoord.client.consumer.assignors.base import Assignments, MemberSubscription, PartitionAssignor, TopicInfo
from kcoord.client.consumer.assignors.racks import Racks
from kcoord.client.consumer.assignors.range_assignor import RangeAssignor
from kcoord.client.consumer.assignors.round_robin import RoundRobinAssignor
from kcoord.client.consumer.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from kcoord.client.metadata import GroupMetadata, TopicPartition
from tests.interop.oracle import Oracle, OracleError

SEED = 20261123
GROUPS = 30
STEPS = 20
# A cooperative group assigns once, again when what moves is free, and then stays. Racks may take more rounds.
ROUNDS = 8
RACKS = ("r1", "r2", "r3")


@pytest.fixture(scope="module")
def kafka() -> Iterator[Oracle]:
    with Oracle("ClassicAssignors") as oracle:
        yield oracle


class RandomGroup:
    """A group under random changes, from the leader's side."""

    def __init__(self, assignor: type[PartitionAssignor], uniform: float, racks: bool, seed: str) -> None:
        self.random = r = random.Random(seed)
        self.assignor = assignor
        self.uniform = uniform
        self.has_racks = racks
        self.names = r.sample(["a", "B", "b", "b-1", "topic", "Topic_2", "z.z", "00", "orders"], r.choice([1, 2, 4, 9]))
        self.topics: dict[str, TopicInfo] = {}
        self.alike = r.random() < 0.5
        most = r.choice([2, 6, 20])
        for name in self.names:
            self.add_partitions(name, r.randint(1, most))
        self.shared = self.chosen()
        self.members: dict[str, MemberSubscription] = {}
        self.generation = 1
        for _ in range(r.choice([1, 2, 5, 15])):
            self.join()

    def chosen(self) -> frozenset[str]:
        wanted = [*self.names, "missing"]
        return frozenset(self.random.sample(wanted, self.random.randint(1, len(wanted))))

    def add_partitions(self, name: str, count: int) -> None:
        old = self.topics.get(name, TopicInfo(name, 0))
        new = () if not self.has_racks else tuple(self.replica_racks(old.partition_count + i) for i in range(count))
        self.topics[name] = TopicInfo(name, old.partition_count + count, old.racks + new)

    def replica_racks(self, partition: int) -> frozenset[str]:
        if self.alike:
            return frozenset({RACKS[partition % 3], RACKS[(partition + 1) % 3]})
        return frozenset(self.random.sample(RACKS, self.random.randint(0, 3)))

    def join(self) -> None:
        r = self.random
        name = f"{r.choice(['c', 'C', 'ä'])}-{r.getrandbits(32):08x}"
        instance = f"i{r.getrandbits(20)}" if r.random() < 0.3 else None
        rack = r.choice([*RACKS, *RACKS, "r4", None]) if self.has_racks else None
        topics = self.shared if r.random() < self.uniform else self.chosen()
        self.members[name] = MemberSubscription(name, topics, instance_id=instance, rack=rack)

    def change(self) -> None:
        r = self.random
        names = sorted(self.members)
        kind = r.choice(["join", "join", "leave", "subscribe", "grow", "late"])
        if kind == "join" or len(names) < 2:
            self.join()
        elif kind == "leave":
            del self.members[r.choice(names)]
        elif kind == "subscribe" and self.uniform < 1:
            name = r.choice(names)
            self.members[name] = self.with_owned(self.members[name], self.members[name].owned, self.chosen())
        elif kind == "grow":
            self.add_partitions(r.choice(self.names), r.randint(1, 4))
        elif kind == "late":
            # A member that has missed generations still has what others got meanwhile.
            one, other = self.members[r.choice(names)], self.members[r.choice(names)]
            if other.owned:
                owned = sorted({*one.owned, r.choice(other.owned)})
                self.members[one.member_id] = self.with_owned(one, owned, generation=max(one.generation - 1, 0))

    def with_owned(
        self,
        member: MemberSubscription,
        owned: list[TopicPartition] | tuple[TopicPartition, ...],
        topics: frozenset[str] | None = None,
        generation: int | None = None,
    ) -> MemberSubscription:
        generation = member.generation if generation is None else generation
        own = self.assignor()
        if generation >= 0:
            own.on_assignment(owned, GroupMetadata("group", generation, member.member_id))
        return MemberSubscription(
            member.member_id,
            topics or member.topics,
            tuple(owned),
            generation,
            own.user_data(topics or member.topics),
            member.instance_id,
            member.rack,
        )

    def adopt(self, found: Assignments) -> None:
        self.generation += 1
        for name, partitions in found.items():
            self.members[name] = self.with_owned(self.members[name], partitions, generation=self.generation)

    def settle(self, had: Assignments) -> None:
        """Assign; with cooperative rebalances until nothing moves any more."""
        for _ in range(ROUNDS):
            found = self.assign()
            if self.assignor.is_cooperative:
                check_taken(had, found)
            self.adopt(found)
            if not self.assignor.is_cooperative or as_sets(found) == as_sets(had):
                return
            had = found
        raise AssertionError("the group does not settle")

    def question(self) -> str:
        """The group as it is now, for the Java side."""
        members = [
            {
                "id": one.member_id,
                "instance": one.instance_id,
                "topics": sorted(one.topics),
                "owned": one.owned,
                "generation": one.generation,
                "rack": one.rack,
                "user_data": None if one.user_data is None else one.user_data.hex(),
            }
            for one in self.members.values()
        ]
        topics = {
            name: [sorted(racks) for racks in topic.racks] if topic.racks else [[None]] * topic.partition_count
            for name, topic in self.topics.items()
        }
        return json.dumps({"assignor": self.assignor.name, "topics": topics, "members": members})

    def assign(self) -> Assignments:
        wanted = frozenset().union(*(one.topics for one in self.members.values()))
        topics = {name: topic for name, topic in self.topics.items() if name in wanted}
        return self.assignor().assign(topics, self.members)


def asked(kafka: Oracle, groups: list[RandomGroup]) -> list[dict[str, Any]]:
    """What the Java side has for each group."""
    found: list[dict[str, Any]] = []
    for answer in kafka.raw([group.question() for group in groups]):
        assert not isinstance(answer, OracleError), answer
        found.append(json.loads(answer))
    return found


def answers_of(kafka: Oracle, groups: list[RandomGroup]) -> list[Assignments]:
    return [
        {name: [TopicPartition(*one) for one in own] for name, own in answer["assigned"].items()}
        for answer in asked(kafka, groups)
    ]


def as_sets(found: Assignments) -> dict[str, set[TopicPartition]]:
    return {name: set(own) for name, own in found.items()}


def check_same(ours: Assignments, theirs: Assignments) -> None:
    assert sizes(ours) == sizes(theirs)
    assert as_sets(ours) == as_sets(theirs)


@pytest.mark.parametrize(
    ("assignor", "uniform", "racks"),
    [
        (RangeAssignor, 1.0, False),
        (RangeAssignor, 1.0, True),
        (RangeAssignor, 0.5, False),
        (RangeAssignor, 0.5, True),
        (RoundRobinAssignor, 1.0, False),
        (RoundRobinAssignor, 0.5, True),
    ],
)
def test_same_as_kafka(assignor: type[PartitionAssignor], uniform: float, racks: bool, kafka: Oracle) -> None:
    groups = [
        RandomGroup(assignor, uniform, racks, f"{SEED} {assignor.name} {uniform} {racks} {i}") for i in range(GROUPS)
    ]
    for step in range(STEPS):
        for number, (group, theirs) in enumerate(zip(groups, answers_of(kafka, groups), strict=True)):
            ours = group.assign()
            try:
                check_same(ours, theirs)
            except AssertionError as e:
                raise AssertionError(f"group {number}, step {step}: {group.question()}") from e
            group.adopt(ours)
            group.change()


def sizes(found: Assignments) -> list[int]:
    return sorted(len(own) for own in found.values())


def spread(found: Assignments) -> int:
    """Kafka's measure of balance: the differences of all pairs of members."""
    return sum(abs(one - other) for one, other in combinations(sizes(found), 2))


def moved(before: Assignments, after: Assignments) -> int:
    """How many partitions members had to give up."""
    return sum(len(set(own) - set(after[name])) for name, own in before.items())


def owned(group: RandomGroup) -> Assignments:
    return {name: list(one.owned) for name, one in group.members.items()}


def check_taken(before: Assignments, after: Assignments) -> None:
    """KIP-429: nobody gets what another one still has."""
    for name, own in after.items():
        for other, had in before.items():
            assert other == name or not (set(own) & set(had)) - set(before[name])


def is_valid(group: RandomGroup, found: Assignments) -> bool:
    """Whether every partition has a member, which subscribes to it."""
    wanted = frozenset().union(*(one.topics for one in group.members.values())) & group.topics.keys()
    count = sum(group.topics[name].partition_count for name in wanted)
    given = {one for own in found.values() for one in own}
    return len(given) == sum(sizes(found)) == count and all(
        one.topic in group.members[name].topics for name, own in found.items() for one in own
    )


def mismatched(group: RandomGroup) -> int:
    """How many partitions have no replica in the rack of their member."""
    racks = Racks(group.topics, group.members)
    return sum(not racks.match(name, partition) for name, own in owned(group).items() for partition in own)


@pytest.mark.parametrize("uniform", [1.0, 0.5])
@pytest.mark.parametrize("assignor", [StickyAssignor, CooperativeStickyAssignor])
def test_racks_as_kafka(assignor: type[PartitionAssignor], uniform: float, kafka: Oracle) -> None:
    """KIP-881: as balanced as Kafka's, about as many partitions read from the own rack, and fewer moved."""
    groups = [RandomGroup(assignor, uniform, True, f"{SEED} {assignor.name} {uniform} {i}") for i in range(GROUPS)]
    other_racks, other_racks_kafka, total, total_kafka = 0, 0, 0, 0
    for step in range(STEPS):
        twins = [deepcopy(group) for group in groups]
        before = [owned(group) for group in groups]
        for group, had in zip(groups, before, strict=True):
            group.settle(had)
        for _ in range(ROUNDS if assignor.is_cooperative else 1):
            for twin, found in zip(twins, answers_of(kafka, twins), strict=True):
                twin.adopt(found)
        for number, (group, twin, had) in enumerate(zip(groups, twins, before, strict=True)):
            ours, theirs = owned(group), owned(twin)
            assert is_valid(group, ours)
            # With racks and different subscriptions Kafka's sometimes assigns topics that a member has not subscribed
            # to, or does not settle.
            if is_valid(twin, theirs):
                assert spread(ours) <= spread(theirs), f"group {number}, step {step}: {twin.question()}"
                other_racks += mismatched(group)
                other_racks_kafka += mismatched(twin)
                total += moved(had, ours)
                total_kafka += moved(had, theirs)
            group.change()
    assert other_racks <= other_racks_kafka * 1.05
    assert 0 < total <= total_kafka


@pytest.mark.parametrize("uniform", [1.0, 0.9, 0.4])
@pytest.mark.parametrize("assignor", [StickyAssignor, CooperativeStickyAssignor])
def test_as_sticky_as_kafka(assignor: type[PartitionAssignor], uniform: float, kafka: Oracle) -> None:
    groups = [RandomGroup(assignor, uniform, False, f"{SEED} {assignor.name} {uniform} {i}") for i in range(GROUPS)]
    total, total_kafka = 0, 0
    for step in range(STEPS):
        before = [owned(group) for group in groups]
        twins = [deepcopy(group) for group in groups]
        for group, had in zip(groups, before, strict=True):
            group.settle(had)
        for _ in range(ROUNDS if assignor.is_cooperative else 1):
            for twin, found in zip(twins, answers_of(kafka, twins), strict=True):
                twin.adopt(found)
        for number, (group, twin, had) in enumerate(zip(groups, twins, before, strict=True)):
            ours, theirs = owned(group), owned(twin)
            # Never less balanced than Kafka's.
            assert spread(ours) <= spread(theirs), f"group {number}, step {step}: {twin.question()}"
            if uniform == 1.0:
                assert sizes(ours) == sizes(theirs)
            total += moved(had, ours)
            total_kafka += moved(had, theirs)
            group.change()
    assert 0 < total <= total_kafka


@pytest.mark.parametrize("assignor", [StickyAssignor, CooperativeStickyAssignor])
def test_user_data(assignor: type[PartitionAssignor], kafka: Oracle) -> None:
    """Kafka's assignor understands what our members had, and ours what Kafka's members had."""
    groups = [RandomGroup(assignor, 1.0, False, f"{SEED} {assignor.name} {i}") for i in range(GROUPS)]
    for group in groups:
        group.settle(owned(group))
    for group, answer in zip(groups, asked(kafka, groups), strict=True):
        had = owned(group)
        check_same({name: [TopicPartition(*one) for one in own] for name, own in answer["assigned"].items()}, had)
        for name, data in answer["user_data"].items():
            group.members[name] = replace(group.members[name], user_data=bytes.fromhex(data))
        assert set(answer["user_data"]) == set(group.members)
        check_same(group.assign(), had)
