"""Client-side assignors: which one is chosen, and crowds whose members compute, fail, come and go in any order."""

from __future__ import annotations

import random

import pytest

from kcoord.core.client_assignors.offers import choose
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.members import ConsumerMember
from kcoord.core.outcome import LogId
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from kcoord.protocol.consumer_group_prepare_assignment import ConsumerGroupPrepareAssignmentResponse
from kcoord.protocol.errors import FENCED_MEMBER_EPOCH, NONE, UNKNOWN_MEMBER_ID
from kcoord.protocol.records.consumer_group_member_metadata import ClassicMemberMetadata, ClientAssignor
from tests.scenarios.actor import Actor
from tests.scenarios.runner import Scenario

PARTITIONS = 5


def member(name: str, *assignors: tuple[str, int, int, int]) -> ConsumerMember:
    made = ConsumerMember(name)
    made.client_assignors = [ClientAssignor(n, low, high, 0, used) for n, low, high, used in assignors]
    return made


def group_of(members: list[ConsumerMember]) -> ConsumerGroup:
    group = ConsumerGroup("g", LogId("__consumer_offsets", 0))
    for one in members:
        group.put_member(one)
    return group


def expected_name(members: list[ConsumerMember]) -> str | None:
    """The rule once more, as the text says it."""
    usable = []
    for name in sorted({a.name for m in members for a in m.client_assignors}):
        own = [m.client_assignor(name) for m in members]
        known = [a for a in own if a is not None]
        if len(known) < len(members) or max(a.minimum_version for a in known) > min(a.maximum_version for a in known):
            continue
        used = [a.metadata_version for a in known]
        if any(a.minimum_version <= min(used) and max(used) <= a.maximum_version for a in known):
            usable.append(name)
    votes = dict.fromkeys(usable, 0)
    for one in members:
        for assignor in one.client_assignors:
            if assignor.name in votes:
                votes[assignor.name] += 1
                break
    return min(votes, key=lambda name: (-votes[name], name), default=None)


def test_the_choice_is_the_rule_and_hangs_on_no_order() -> None:
    rng = random.Random(1)
    seen: dict[str | None, int] = {}
    for _ in range(3000):
        members = []
        for index in range(rng.randint(1, 4)):
            names = rng.sample("pqr", rng.randint(1, 3))
            assignors = []
            for name in names:
                low = rng.randint(0, 2)
                high = low + rng.randint(0, 2)
                assignors.append((name, low, high, rng.randint(low, high)))
            members.append(member(f"m{index}", *assignors))
        expected = expected_name(members)
        seen[expected] = seen.get(expected, 0) + 1
        for _ in range(2):
            rng.shuffle(members)
            choice = choose(group_of(members), None, None)
            assert (None if choice is None else choice.name) == expected
            # The same with one of them still to come, in the place of another.
            old = ConsumerMember(members[0].member_id)
            choice = choose(group_of([old, *members[1:]]), old, members[0])
            assert (None if choice is None else choice.name) == expected
    assert len(seen) == 4 and min(seen.values()) > 100, seen


def test_one_without_is_enough_for_a_server_assignor() -> None:
    with_one = member("a", ("p", 1, 1, 1))
    assert choose(group_of([with_one]), None, None) is not None
    assert choose(group_of([with_one, member("b")]), None, None) is None
    assert choose(group_of([with_one]), None, member("b")) is None
    classic = member("c", ("p", 1, 1, 1))
    classic.classic = ClassicMemberMetadata()
    assert choose(group_of([with_one, classic]), None, None) is None
    assert choose(group_of([with_one]), None, classic) is None


def test_many_assignors_are_refused() -> None:
    scenario = Scenario()
    scenario.run("topic t")
    lists = ",".join(f"n{index}:1-1:1" for index in range(17))
    assert "more than 16" in scenario.run(f"beat client=a topics=t assignors={lists}")[0]
    assert scenario.run(f"beat client=a topics=t assignors={lists.rpartition(',')[0]}")[0].startswith("record")


class Crowd:
    """Members that do anything in any order. Each gives up what it is not given any more with its next heartbeat."""

    NAMES = "abcde"
    LISTS = ("mine:1-1:1", "mine:1-2:2:ff", "other:1-1:1,mine:1-2:1", "other:1-1:1")

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.scenario = Scenario()
        self.scenario.run("config group_consumer_assignment_interval_ms=0")
        self.scenario.run(f"topic t partitions={PARTITIONS}")
        self.lists: dict[str, str | None] = {}
        self.told: dict[str, bool] = {}
        self.counts: dict[str, int] = {}

    def run(self, line: str) -> list[str]:
        lines = self.scenario.run(line)
        assert not [one for one in lines if one.startswith("DIGEST")], lines
        return lines

    def actor(self, name: str) -> Actor:
        return self.scenario._actor(name)

    def is_in(self, name: str) -> bool:
        return self.actor(name).generation_id > 0

    def beat(self, name: str) -> None:
        actor = self.actor(name)
        if self.is_in(name):
            options = "owned=all"
            if self.lists[name] and self.rng.random() < 0.05:
                self.lists[name] = self.rng.choice(self.LISTS[:3])
                options += f" assignors={self.lists[name]}"
        else:
            own = self.lists[name] = self.rng.choice((*self.LISTS[:3] * 8, self.LISTS[3], None))
            options = "topics=t epoch=0" + (f" assignors={own}" if own else "")
            if not own:
                actor.assignors = None
        self.run(f"beat client={name} {options}")
        response = self.scenario.replies[self.scenario.requests]
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        if response.error_code in (FENCED_MEMBER_EPOCH, UNKNOWN_MEMBER_ID):
            self.forget(name)
            return
        assert response.error_code == NONE, response
        self.told[name] = response.should_compute_assignment
        if self.lists[name] is None:
            # A released client: nothing that it does not know.
            assert not response.should_compute_assignment
            given = response.assignment
            assert given is None or (given.error, given.metadata_version, given.metadata_bytes) == (0, 0, b"")
        self.check_owners()

    def forget(self, name: str) -> None:
        actor = self.actor(name)
        actor.generation_id = -1
        actor.assignment = {}
        self.told[name] = False

    def check_owners(self) -> None:
        owners: dict[int, str] = {}
        for name in self.NAMES:
            for owned in self.actor(name).assignment.values():
                for partition in owned:
                    assert owners.setdefault(partition, name) == name, (partition, name, owners)

    def compute(self, name: str, wrongly: bool, is_slow: bool) -> None:
        self.run(f"prepare client={name}")
        state = self.scenario.replies[self.scenario.requests]
        assert isinstance(state, ConsumerGroupPrepareAssignmentResponse)
        if state.error_code:
            return
        self.told[name] = False
        ids = [one.member_id for one in state.members]
        parts: dict[str, list[str]] = {member_id: [] for member_id in ids}
        for partition in range(PARTITIONS):
            # Anything goes, so that much moves.
            parts[self.rng.choice(ids)].append(f"t/{partition}")
        if wrongly:
            parts[ids[0]].append("t/77")
        at = state.group_epoch
        others = [other for other in self.NAMES if other != name]
        while is_slow and self.rng.random() < 0.5:
            # The group goes on meanwhile.
            self.beat(self.rng.choice(others))
        to = ";".join(f"{member_id}:{'+'.join(owned)}:1:0f" for member_id, owned in parts.items())
        lines = self.run(f"install client={name} at={at} to={to}")
        outcome = "wrong" if wrongly else "stored" if lines[0].startswith("record") else "refused"
        self.counts[outcome] = self.counts.get(outcome, 0) + 1

    def step(self) -> None:
        rng = self.rng
        name = rng.choice(self.NAMES)
        what = rng.random()
        if self.told.get(name) and what < 0.7:
            self.compute(name, rng.random() < 0.2, True)
        elif what < 0.85 or not self.is_in(name):
            self.beat(name)
        elif what < 0.9:
            self.run(f"beat client={name} epoch=-1")
            self.forget(name)
        elif what < 0.93:
            self.run("restart")
        elif what < 0.97:
            # It comes back as if it had never been there.
            self.forget(name)
        else:
            self.run(f"advance {rng.choice((1, 5, 20, 61))}s")
            known = self.scenario.core.groups.consumer_groups.get("g")
            for other in self.NAMES:
                if known is None or other not in known.members:
                    # It hears of that with its next heartbeat; what it does till then is for the offsets' check.
                    self.forget(other)

    def settle(self) -> None:
        for name in self.NAMES:
            if self.is_in(name):
                self.run(f"beat client={name} epoch=-1")
            self.forget(name)
        # Whoever is there still has been forgotten by its client.
        self.run("advance 61s")
        self.lists = {}
        for round_number in range(12):
            for name in self.NAMES[:3]:
                if round_number == 0:
                    self.lists[name] = "mine:1-2:1"
                    self.run(f"beat client={name} topics=t epoch=0 assignors=mine:1-2:1")
                self.run(f"beat client={name} owned=all")
                response = self.scenario.replies[self.scenario.requests]
                assert isinstance(response, ConsumerGroupHeartbeatResponse)
                if response.should_compute_assignment:
                    self.compute(name, False, False)
                self.check_owners()
        group = self.scenario.core.groups.consumer_groups["g"]
        assert group.state() == "Stable", group.state()
        owned = sorted(p for name in self.NAMES[:3] for ps in self.actor(name).assignment.values() for p in ps)
        assert owned == list(range(PARTITIONS))
        assert all(m.answer == (0, 1, b"\x0f") for m in group.members.values())


@pytest.mark.parametrize("seed", range(8))
def test_no_partition_has_two_owners_whoever_computes(seed: int) -> None:
    crowd = Crowd(seed)
    for _ in range(300):
        crowd.step()
    crowd.settle()


def test_the_crowd_computes() -> None:
    """Otherwise the test above would say little."""
    counts: dict[str, int] = {}
    for seed in range(20, 23):
        crowd = Crowd(seed)
        for _ in range(300):
            crowd.step()
        for outcome, count in crowd.counts.items():
            counts[outcome] = counts.get(outcome, 0) + count
    assert min(counts.get(outcome, 0) for outcome in ("stored", "wrong", "refused")) >= 3, counts
