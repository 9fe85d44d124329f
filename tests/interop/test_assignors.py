"""Our assignors against those of Kafka's jar: random groups, and what becomes of them change by change.

Both are asked about the same group with the same last targets, and the group goes on with our answer. `range`, and
`uniform` with different subscriptions, are determined by the order of members, so the answers must be the same. With
equal subscriptions Kafka leaves open who keeps and who gives; sizes must be the same, and no more may move than with
Kafka, nor than must.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from kcoord.core.assignors.range_assignor import RangeAssignor
from kcoord.core.assignors.spec import Assignment
from kcoord.core.assignors.uniform import UniformAssignor
from tests.interop.oracle import Oracle, OracleError
from tests.unit.core.assignors.groups import Group, Topics, moved, needed, owners, sizes

SEED = 20260317
GROUPS = 40
STEPS = 25


@pytest.fixture(scope="module")
def assignors() -> Iterator[Oracle]:
    with Oracle("Assignors") as oracle:
        yield oracle


class RandomGroup:
    """A group of the builder under random changes. Topic ids are random bytes, so that their order is checked too."""

    def __init__(self, name: str, homogeneous: float, seed: str) -> None:
        self.random = r = random.Random(seed)
        self.homogeneous = homogeneous
        self.ids = [r.randbytes(16) for _ in range(r.choice([1, 2, 5, 12]))]
        self.topics = Topics({})
        self.topics.counts = {topic_id: r.randint(1, r.choice([3, 20, 60])) for topic_id in self.ids}
        self.group = Group(UniformAssignor() if name == "uniform" else RangeAssignor(), self.topics)
        self.name = name
        self.instances: dict[str, str | None] = {}
        self.shared = sorted(r.sample(self.ids, r.randint(1, len(self.ids))))
        for _ in range(r.choice([1, 3, 10, 40])):
            self.join()

    def subscription(self) -> list[bytes]:
        if self.random.random() < self.homogeneous:
            return self.shared
        return sorted(self.random.sample(self.ids, self.random.randint(0, len(self.ids))))

    def subscribe(self, member_id: str) -> None:
        self.group.instances[member_id] = self.instances[member_id]
        self.group.set_member(member_id, self.subscription())

    def join(self) -> None:
        member_id = f"{self.random.getrandbits(32):08x}"
        self.instances[member_id] = f"i{self.random.getrandbits(20)}" if self.random.random() < 0.3 else None
        self.subscribe(member_id)

    def change(self) -> None:
        r, group = self.random, self.group
        names = list(group.members)
        kind = r.choice(["join", "join", "join", "leave", "leave", "replace", "subscribe", "grow"])
        if kind == "join" or len(names) < 2:
            self.join()
        elif kind == "leave":
            group.leave(r.choice(names))
        elif kind == "replace":
            old_id, new_id = r.choice(names), f"{r.getrandbits(32):08x}"
            self.instances[new_id] = self.instances[old_id]
            group.replace(old_id, new_id)
        elif kind == "subscribe":
            self.subscribe(r.choice(names))
        else:
            topic_id = r.choice(self.ids)
            self.topics.counts[topic_id] += r.randint(1, 5)
            group.topics_changed()

    def question(self) -> str:
        """The group as it is before it is computed, for the Java side."""
        members = [
            {
                "id": member_id,
                "instance": self.instances[member_id],
                "topics": [topic_id.hex() for topic_id in self.group.members[member_id]],
                "target": {t.hex(): p for t, p in self.group.targets.get(member_id, {}).items()},
            }
            for member_id in sorted(self.group.members)
        ]
        subscribed = {t for ids in self.group.members.values() for t in ids}
        topics = {t.hex(): count for t, count in self.topics.counts.items() if t in subscribed}
        homogeneous = self.group.builder.is_homogeneous
        return json.dumps({"assignor": self.name, "homogeneous": homogeneous, "topics": topics, "members": members})

    def compare(self, answer: str) -> None:
        """Computes, and holds the outcome against Kafka's."""
        group = self.group
        before = {
            m: {t: p for t, p in group.targets.get(m, {}).items() if t in ids} for m, ids in group.members.items()
        }
        targets = dict(group.targets)
        changed = group.compute()
        theirs: dict[str, Assignment] = {m: {} for m in group.members}
        for member_id, own in json.loads(answer).items():
            theirs[member_id] = {bytes.fromhex(t): p for t, p in sorted(own.items())}
        ours = group.targets
        if self.name == "range" or not group.builder.is_homogeneous:
            assert ours == theirs
            return
        assert sorted(sizes(ours).values()) == sorted(sizes(theirs).values())
        assert set(owners(ours)) == set(owners(theirs))
        least = needed(sizes(before).values(), len(owners(ours)))
        assert moved(before, ours) == least <= moved(before, theirs)
        # Nor do more members have to change; each of them is a record and a round of heartbeats.
        assert len(changed) <= sum(1 for m in theirs if targets.get(m) != theirs[m])


@pytest.mark.parametrize(
    ("name", "homogeneous"),
    [("uniform", 1.0), ("uniform", 0.9), ("uniform", 0.3), ("range", 1.0), ("range", 0.5)],
)
def test_same_as_kafka(name: str, homogeneous: float, assignors: Oracle) -> None:
    groups = [RandomGroup(name, homogeneous, f"{SEED} {name} {homogeneous} {i}") for i in range(GROUPS)]
    for step in range(STEPS):
        answers: list[Any] = assignors.raw([group.question() for group in groups])
        for number, (group, answer) in enumerate(zip(groups, answers, strict=True)):
            assert not isinstance(answer, OracleError), answer
            try:
                group.compare(answer)
            except AssertionError as e:
                raise AssertionError(f"group {number}, step {step}: {group.question()}") from e
            for _ in range(group.random.choice([1, 1, 2, 10])):
                group.change()
