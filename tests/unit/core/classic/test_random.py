"""Members that do anything in any order, and what must hold whatever they do."""

from __future__ import annotations

import random

import pytest

from kcoord.core.groups.classic import EMPTY, PREPARING_REBALANCE, STABLE, ClassicGroup
from kcoord.protocol import errors
from kcoord.protocol.join_group import JoinGroupResponse
from tests.scenarios.timer_check import timer_problems
from tests.unit.core.classic.classic_rig import Rig

PROTOCOLS = ["a", "b", "c"]
INSTANCES = [None, None, "i-1", "i-2"]
STEPS = 300


class Crowd:
    """Clients without manners on one group."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rig = Rig(
            group_initial_rebalance_delay_ms=self.random.choice([0, 3_000]),
            group_max_size=self.random.choice([3, 100]),
        )
        self.known: list[tuple[str, str | None]] = [("stranger", None)]
        self.joins: list[tuple[int, str | None]] = []
        self.syncs: list[int] = []
        self.best_generation = 0

    def step(self) -> None:
        r = self.random
        member, instance = r.choice(self.known)
        group = self.rig.store.get("g")
        generation = group.generation_id if group is not None else 0
        if r.random() < 0.1:
            generation += r.choice([-1, 1])
        kind = r.choice(["new", "join", "join", "join", "sync", "sync", "beat", "leave", "sleep", "delete", "restart"])
        if kind == "new":
            instance = r.choice(INSTANCES)
            self.join("", instance)
        elif kind == "join":
            self.join(member, instance)
        elif kind == "sync":
            parts = {m: m.encode() for m, _ in self.known}
            request = self.rig.send_sync(
                member, generation, parts, version=4, instance=instance, protocol_type=None, protocol_name=None
            )
            self.syncs.append(request)
        elif kind == "beat":
            self.rig.heartbeat(member, generation, instance=instance)
        elif kind == "leave":
            if r.random() < 0.3:
                self.rig.leave((member, instance), version=5)
        elif kind == "sleep":
            self.rig.sleep(r.choice([0, 10, 1_000, 5_000, 20_000]))
        elif kind == "delete":
            self.rig.delete("g")
        elif r.random() < 0.1:
            self.rig = self.rig.restart()
            self.joins.clear()
            self.syncs.clear()
        self.learn()

    def join(self, member: str, instance: str | None) -> None:
        names = self.random.sample(PROTOCOLS, self.random.randint(1, 3))
        request = self.rig.send_join(
            member,
            version=self.random.choice([3, 4, 8, 9]) if instance is None else 9,
            instance=instance,
            protocols=[(n, n.encode()) for n in [*names, "common"]],
            session_ms=self.random.choice([6_000, 10_000]),
            rebalance_ms=self.random.choice([0, 10_000, 30_000]),
        )
        self.joins.append((request, instance))

    def learn(self) -> None:
        """Remember member ids from answers, and forget requests that were answered."""
        waiting: list[tuple[int, str | None]] = []
        for request, instance in self.joins:
            if self.rig.is_parked(request):
                waiting.append((request, instance))
                continue
            response = self.rig.replies[request].response
            assert isinstance(response, JoinGroupResponse)
            if response.member_id and response.error_code in (errors.NONE, errors.MEMBER_ID_REQUIRED):
                self.known.append((response.member_id, instance))
        self.joins = waiting
        self.syncs = [s for s in self.syncs if self.rig.is_parked(s)]
        self.known = self.known[-8:]


def check(group: ClassicGroup, crowd: Crowd) -> None:
    members = group.members
    assert (group.leader_id in members) if members else group.leader_id is None
    assert group.awaiting_join == sum(m.is_awaiting_join() for m in members.values())
    counts: dict[str, int] = {}
    for member in members.values():
        for protocol in member.protocols:
            counts[protocol.name] = counts.get(protocol.name, 0) + 1
    assert group.supported_protocols == counts
    instances = {m.group_instance_id: i for i, m in members.items() if m.group_instance_id is not None}
    assert group.static_members == instances
    assert not group.pending_members.keys() & members.keys()
    assert group.pending_sync.keys() <= members.keys()
    if group.state == EMPTY:
        assert not members
    parked = {m.join_request_id for m in members.values()} - {-1}
    assert {request for request, _ in crowd.joins} == parked
    waiting = {m.sync_request_id for m in members.values()} - {-1}
    assert set(crowd.syncs) == waiting
    if group.state == PREPARING_REBALANCE:
        assert not waiting
        assert group.join_token
    else:
        assert not parked
    armed = [entry[2] for entry in crowd.rig._timers]
    assert timer_problems(crowd.rig.store, armed) == []
    if group.state == STABLE:
        assert not waiting
        assert group.protocol_name in counts
        value = group.value
        assert value is not None
        assert {m.member_id for m in value.members} >= members.keys()
        assert value.generation == group.generation_id


@pytest.mark.parametrize("seed", range(12))
def test_a_crowd_without_manners(seed: int) -> None:
    crowd = Crowd(seed)
    for _ in range(STEPS):
        crowd.step()
        group = crowd.rig.store.get("g")
        if group is not None:
            check(group, crowd)
    # Left alone, everybody is answered or expires, and the group empties.
    crowd.rig.sleep(1_000_000)
    crowd.learn()
    assert crowd.joins == [] and crowd.syncs == []
    group = crowd.rig.store.get("g")
    assert group is None or (group.state == EMPTY and not group.pending_members)
    assert crowd.rig.restart().store.hard_state() == crowd.rig.store.hard_state()
