"""What must hold for any group and any sequence of changes."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord.core.assignors.range_assignor import RangeAssignor
from kcoord.core.assignors.spec import Assignment, Assignor
from kcoord.core.assignors.uniform import UniformAssignor
from tests.unit.core.assignors.groups import Group, Topics, group, member, moved, needed, owners, sizes

TOPICS = 5


@st.composite
def groups(draw: st.DrawFn, homogeneous: bool) -> Group:
    """A group of the uniform assignor with targets of any shape: nobody's, everybody's, far from balanced."""
    counts = {number: draw(st.integers(1, 12)) for number in range(1, TOPICS + 1)}
    names = [f"m{i:02}" for i in range(draw(st.integers(1, 9)))]
    subscribed = st.sets(st.integers(1, TOPICS)).map(sorted)
    shared = draw(subscribed)
    built = Group(UniformAssignor(), Topics(counts))
    rng = random.Random(draw(st.integers(0, 2**32)))
    holders = draw(st.lists(st.sampled_from([*names, "gone"]), max_size=6))
    raw: dict[str, dict[int, list[int]]] = {}
    for number, count in counts.items():
        for partition in range(count):
            if holders and rng.random() < 0.8:
                raw.setdefault(rng.choice(holders), {}).setdefault(number, []).append(partition)
    for name in names:
        built.join(name, shared if homogeneous else draw(subscribed))
        if name in raw:
            built.targets[name] = member(name, [], raw[name]).target
    return built


def valid_part(built: Group) -> dict[str, Assignment]:
    """Of the targets what may stay: members that are there, topics that they subscribe to."""
    return {m: {t: p for t, p in built.targets.get(m, {}).items() if t in ids} for m, ids in built.members.items()}


def check_complete(built: Group) -> None:
    """Every partition of a subscribed topic has one owner, who subscribes to it, and nothing else is assigned."""
    found = owners(built.targets)
    wanted = {t: built.topics.counts[t] for ids in built.members.values() for t in ids}
    assert set(found) == {(t, p) for t, count in wanted.items() for p in range(count)}
    assert all(t in built.members[owner] for (t, _), owner in found.items())
    assert set(built.targets) == set(built.members)


@given(groups(homogeneous=True))
@settings(max_examples=150, deadline=None)
def test_equal_subscriptions(built: Group) -> None:
    before = valid_part(built)
    sizes_before = sizes(before).values()
    built.compute()
    check_complete(built)
    after = sizes(built.targets)
    assert max(after.values()) - min(after.values()) <= 1
    assert moved(before, built.targets) == needed(sizes_before, sum(after.values()))
    assert built.compute() == {}


def gain_left(built: Group) -> bool:
    """Whether one partition could move from a member to one with at least two fewer."""
    load = sizes(built.targets)
    return any(
        load[owner] - load[m] > 1
        for (t, _), owner in owners(built.targets).items()
        for m, ids in built.members.items()
        if t in ids
    )


@given(groups(homogeneous=False))
@settings(max_examples=150, deadline=None)
def test_different_subscriptions(built: Group) -> None:
    built.compute()
    check_complete(built)
    assert not gain_left(built)
    assert built.compute() == {}


@given(groups(homogeneous=False))
@settings(max_examples=100, deadline=None)
def test_balanced_groups_are_left_alone(built: Group) -> None:
    """Whatever is even within each topic stays as it is, however it came about."""
    built.compute()
    before = dict(built.targets)
    fresh = Group(UniformAssignor(), built.topics, before)
    for name, ids in built.members.items():
        fresh.builder.set_member(name, None, None, ids)
        fresh.members[name] = ids
    assert fresh.compute() == {}


@given(groups(homogeneous=False), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_order_of_members_does_not_matter(built: Group, rng: random.Random) -> None:
    """Specs in another order give the same answer, so no dict's order can reach the log."""
    specs = [member(name, [int.from_bytes(t, "big") for t in ids], {}, None) for name, ids in built.members.items()]
    for spec in specs:
        spec.target = built.targets.get(spec.member_id, {})
    shuffled = list(specs)
    rng.shuffle(shuffled)
    for assignor in (UniformAssignor(), RangeAssignor()):
        assert assignor.assign(group(*specs), built.topics) == assignor.assign(group(*shuffled), built.topics)


@given(groups(homogeneous=False))
@settings(max_examples=100, deadline=None)
def test_range(built: Group) -> None:
    built.builder.set_assignor(RangeAssignor())
    built.compute()
    check_complete(built)
    for topic_id, count in built.topics.counts.items():
        subscribers = sorted(m for m, ids in built.members.items() if topic_id in ids)
        runs = [built.targets[m].get(topic_id, []) for m in subscribers]
        # One run after the other, in order of members, the longer ones first.
        assert list(itertools.chain.from_iterable(runs)) == (list(range(count)) if subscribers else [])
        lengths = [len(run) for run in runs]
        assert lengths == sorted(lengths, reverse=True)
        assert not lengths or lengths[0] - lengths[-1] <= 1
    assert built.compute() == {}


class Churn:
    """A group that changes at random, beside a second builder that is made anew for every computation."""

    def __init__(self, seed: int, assignor: Assignor, homogeneous: float, shared: list[list[int]]) -> None:
        self.random = random.Random(seed)
        self.assignor = assignor
        # How likely a joining member has one of the `shared` subscriptions.
        self.homogeneous = homogeneous
        self.topics = Topics({number: self.random.randint(1, 20) for number in range(1, TOPICS + 1)})
        self.group = Group(assignor, self.topics)
        self.shared = shared
        self.names = 0

    def subscription(self) -> list[int]:
        if self.random.random() < self.homogeneous:
            return self.random.choice(self.shared)
        return self.random.sample(range(1, TOPICS + 1), self.random.randint(0, TOPICS))

    def change(self) -> None:
        r, group = self.random, self.group
        names = list(group.members)
        kind = r.choice(["join", "join", "join", "leave", "leave", "replace", "grow", "again", "lose"])
        if kind == "join" or not names:
            self.names += 1
            group.join(f"m{r.randint(0, 999):03}-{self.names}", self.subscription())
        elif kind == "leave":
            group.leave(r.choice(names))
        elif kind == "replace":
            self.names += 1
            group.replace(r.choice(names), f"s{r.randint(0, 999):03}-{self.names}")
        elif kind == "grow":
            if r.random() < 0.3:
                number = r.randint(1, TOPICS)
                group.grow(number, self.topics.partition_count(number.to_bytes(16, "big")) + r.randint(1, 9))
        elif kind == "again":
            group.join(r.choice(names), self.subscription())
        else:
            group.compute(stored=False)

    def step(self) -> None:
        for _ in range(self.random.choice([1, 1, 1, 2, 5, 20])):
            self.change()
        group = self.group
        if not group.members:
            return
        before = valid_part(group)
        group.compute()
        check_complete(group)
        if group.builder.is_homogeneous and isinstance(self.assignor, UniformAssignor):
            after = sizes(group.targets)
            assert max(after.values()) - min(after.values()) <= 1
            # As little moved as any full computation could have moved.
            assert moved(before, group.targets) == needed(sizes(before).values(), sum(after.values()))
            return
        fresh = Group(self.assignor, self.topics, before)
        for name, ids in group.members.items():
            fresh.members[name] = ids
            fresh.builder.set_member(name, None, None, ids)
        fresh.compute()
        assert fresh.targets == group.targets


@pytest.mark.parametrize("homogeneous", [1.0, 0.95, 0.5])
@pytest.mark.parametrize("assignor", [UniformAssignor(), RangeAssignor()])
@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_of_changes(seed: int, assignor: Assignor, homogeneous: float) -> None:
    churn = Churn(seed, assignor, homogeneous, [[1, 2, 3]])
    for _ in range(60):
        churn.step()


@pytest.mark.parametrize("homogeneous", [1.0, 0.9])
@pytest.mark.parametrize("seed", range(6))
def test_any_sequence_of_changes_with_few_subscriptions(seed: int, homogeneous: float) -> None:
    """Members of known subscriptions join and leave, so that the builder keeps its balancer most of the time."""
    churn = Churn(seed, UniformAssignor(), homogeneous, [[1, 2, 3, 4, 5], [1, 2], [2, 3], []])
    for _ in range(60):
        churn.step()
