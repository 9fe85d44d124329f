"""Members of a consumer group and the network between them and a real core, as one small state that can be copied.

A member does what the clients of KIP-848 do: it sends one heartbeat at a time, carries what it owns when that changed
or when it cannot know whether the last answer came through, gives up what is not in its target before it says so, and
begins anew when it is fenced. The network delivers, loses, and may be so slow that a member gives a request up which
still arrives, though never behind a later one of that member: a connection keeps its order, and the protocol relies on
that. It relies on clients
not to take partitions either while a heartbeat of theirs that says "I own these" may still arrive, or has without
their knowing. Time does not pass: a session or a rebalance that runs out is a step like any other.

A member whose session ran out may work on without knowing. Nobody can take from it what it thinks it owns, so it does
not count until it hears of it: `incarnation` says which of its memberships a member, and an answer, knows of.
"""

from __future__ import annotations

import copy
from typing import Final

from kcoord.core.assignors.range_assignor import RangeAssignor
from kcoord.core.assignors.uniform import UniformAssignor
from kcoord.core.config import CoreConfig
from kcoord.core.coordinator import Core
from kcoord.core.dispatch import handle_request
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.members import UNREVOKED_PARTITIONS
from kcoord.core.groups.records import group_records
from kcoord.core.groups.replay import consumer_hard_state
from kcoord.core.groups.timers import NO_TOKEN, NOT_ARMED, MemberTimers
from kcoord.core.outcome import (
    TIMER_CONSUMER_REBALANCE,
    TIMER_SESSION,
    Now,
    Outcome,
    Request,
    Timer,
    TimerFired,
)
from kcoord.protocol import apis, errors
from kcoord.protocol.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OwnedTopicPartitions,
)
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from tests.harness.core_invariants import consumer_problems

GROUP: Final = "g"
TOPIC: Final = "t"
REBALANCE_TIMEOUT_MS: Final = 60_000
NOW: Final = Now(1_000_000, 1_700_000_000_000)
LATER: Final = Now(1_000_000_000, 1_700_000_000_000)

# What a member has under way.
IDLE: Final = 0
ASKED: Final = 1
ANSWERED: Final = 2

# Epoch, what it owns (None: not said), whether everything is said.
Body = tuple[int, tuple[int, ...] | None, bool]
# Error code, epoch, assignment (None: not said), incarnation.
Answer = tuple[int, int, tuple[int, ...] | None, int]


class Client:
    """One member. `owned` is what it works on; `target` what it was told to own."""

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.epoch = 0
        self.owned: tuple[int, ...] = ()
        self.target: tuple[int, ...] = ()
        self.is_gone = False
        # Whether the next heartbeat must say everything: after joining, an error, or an answer that did not come.
        self.says_all = True
        self.told: tuple[int, ...] | None = None
        self.phase = IDLE
        self.request: Body | None = None
        self.answer: Answer | None = None
        self.incarnation = 0

    def key(self, base: int) -> tuple[object, ...]:
        request = None if self.request is None else (_relative(self.request[0], base), *self.request[1:])
        answer = None
        if self.answer is not None:
            answer = (self.answer[0], _relative(self.answer[1], base), *self.answer[2:])
        return (
            _relative(self.epoch, base),
            self.owned,
            self.target,
            self.is_gone,
            self.says_all,
            self.told,
            self.phase,
            request,
            answer,
            self.incarnation,
        )

    def may_reconcile(self, world: World, index: int) -> bool:
        """Partitions may be given up at any time, and taken while no report of what is owned can be under way."""
        if self.owned == self.target:
            return False
        if set(self.target) <= set(self.owned):
            return True
        if self.says_all or (self.phase != IDLE and self.request is not None and self.request[1] is not None):
            return False
        return all(late != index or body[1] is None for late, body in world.stale)

    def clone(self) -> Client:
        return copy.copy(self)

    def send(self, epoch: int) -> None:
        full = self.says_all or epoch == 0
        owned: tuple[int, ...] | None = None
        if full or self.told != self.owned:
            owned = () if epoch == 0 else self.owned
        self.request = (epoch, owned, full)
        self.phase = ASKED

    def receive(self) -> None:
        assert self.answer is not None and self.request is not None
        code, epoch, assignment, incarnation = self.answer
        asked, owned, _ = self.request
        self.phase, self.request, self.answer = IDLE, None, None
        if asked < 0:
            return
        if code == errors.NONE:
            self.epoch = epoch
            self.incarnation = incarnation
            self.says_all = False
            if owned is not None:
                self.told = owned
            if assignment is not None and assignment != self.target:
                # It has to be acknowledged even if nothing comes of it: what the server wants given up may be
                # something that this member never got to take.
                self.target = assignment
                self.told = None
            return
        # Fenced or unknown: it gives everything up and joins anew.
        assert code in (errors.FENCED_MEMBER_EPOCH, errors.UNKNOWN_MEMBER_ID), code
        self.epoch = 0
        self.owned = self.target = ()
        self.told = None
        self.says_all = True

    def miss(self) -> None:
        """The request or its answer got lost: all it knows is that nothing came."""
        if self.request is not None and self.request[0] < 0:
            self.is_gone = True
        self.phase, self.request, self.answer = IDLE, None, None
        self.says_all = True


class Snapshot:
    def __init__(
        self,
        group: ConsumerGroup | None,
        clients: list[Client],
        stale: tuple[tuple[int, Body], ...],
        incarnations: tuple[int, ...],
        ends: dict[tuple[str, int], int],
        timers: dict[str, dict[str, MemberTimers]],
    ) -> None:
        self.group = group
        self.timers = timers
        self.clients = clients
        self.stale = stale
        self.incarnations = incarnations
        self.ends = ends


def copy_timers(timers: dict[str, dict[str, MemberTimers]]) -> dict[str, dict[str, MemberTimers]]:
    return {
        group_id: {member_id: copy.copy(own) for member_id, own in of_group.items()}
        for group_id, of_group in timers.items()
    }


def copy_group(group: ConsumerGroup) -> ConsumerGroup:
    """A copy that shares what nobody changes (members, targets). It makes itself a new builder when it needs one."""
    copied = ConsumerGroup(group.group_id, group.log)
    for name, value in vars(group).items():
        setattr(copied, name, dict(value) if isinstance(value, dict) else value)
    copied.partition_epochs = {topic: dict(epochs) for topic, epochs in group.partition_epochs.items()}
    copied.forget_builder()
    return copied


class World:
    """The core with its group, the members, and requests that are still somewhere in the network."""

    def __init__(self, members: int, partitions: int, assignor: str = "uniform") -> None:
        config = CoreConfig()
        config.group_consumer_assignment_interval_ms = 0
        config.group_consumer_min_assignment_interval_ms = 0
        self._config = config
        self._assignor = assignor
        self.core = self._new_core()
        self.partitions = partitions
        self._core_request(
            apis.CREATE_TOPICS, 7, CreateTopicsRequest([CreatableTopic(TOPIC, partitions, 1)], 1000, False)
        )
        topic = self.core.topics.get(TOPIC)
        assert topic is not None
        self.topic_id = topic.topic_id
        self.clients = [Client(name) for name in "abcdefgh"[:members]]
        self.stale: tuple[tuple[int, Body], ...] = ()
        # By member: how often it was put out.
        self.incarnations: tuple[int, ...] = (0,) * members

    def _new_core(self) -> Core:
        assignors = {"uniform": UniformAssignor(), "range": RangeAssignor()}
        first = assignors.pop(self._assignor)
        core = Core(self._config, {first.name: first, **assignors})
        self._ends: dict[tuple[str, int], int] = {}
        self._apply(core, core.loaded_topics(b"k" * 16))
        self._apply(core, core.loaded(NOW))
        return core

    # ---- the core

    def _apply(self, core: Core, out: Outcome) -> Outcome:
        log = out.log
        if log is not None:
            at = (log.topic, log.partition)
            for record in out.records:
                end = self._ends.get(at, 0)
                core.replay(log, end, record.key, record.value, made=out.made)
                self._ends[at] = end + 1
            core.settle(out, NOW)
        for event in [*out.follow_ups, *out.continuations]:
            self._apply(core, core.handle(event, NOW))
        return out

    def _core_request(self, key: int, version: int, body: object) -> object:
        request = Request(1, 1, key, version, "client", "/127.0.0.1", body, b"e" * 16)  # type: ignore[arg-type]
        out = self._apply(self.core, handle_request(self.core, request, NOW))
        return out.replies[0].response

    @property
    def group(self) -> ConsumerGroup | None:
        return self.core.groups.consumer_groups.get(GROUP)

    def snapshot(self) -> Snapshot:
        """Everything that a step can change, to come back to."""
        group = self.group
        copied = None if group is None else copy_group(group)
        clients = [client.clone() for client in self.clients]
        timers = copy_timers(self.core.groups.timers.by_group)
        return Snapshot(copied, clients, self.stale, self.incarnations, dict(self._ends), timers)

    def restore(self, snapshot: Snapshot) -> None:
        groups = self.core.groups.consumer_groups
        groups.clear()
        if snapshot.group is not None:
            groups[GROUP] = copy_group(snapshot.group)
        self.clients = [client.clone() for client in snapshot.clients]
        self.stale = snapshot.stale
        self.incarnations = snapshot.incarnations
        self._ends = dict(snapshot.ends)
        self.core.groups.timers.by_group = copy_timers(snapshot.timers)

    def key(self) -> tuple[object, ...]:
        """Two states with the same key behave the same: epochs count from the group's."""
        group = self.group
        base = 0 if group is None else group.epoch
        parts: list[object] = [client.key(base) for client in self.clients]
        parts.append(tuple((index, _relative(body[0], base), *body[1:]) for index, body in self.stale))
        parts.append(self.incarnations)
        if group is not None:
            parts.append(_relative(group.assignment_epoch, base))
            for member_id in sorted(group.members):
                member = group.members[member_id]
                parts.append(
                    (
                        member_id,
                        _relative(member.member_epoch, base),
                        _relative(member.previous_epoch, base),
                        member.state,
                        tuple(sorted(member.assigned.get(self.topic_id, {}))),
                        tuple(sorted(member.revoking.get(self.topic_id, {}))),
                        tuple(group.target(member_id).get(self.topic_id, [])),
                    )
                )
        return tuple(parts)

    # ---- steps

    def deliver(self, index: int, body: Body) -> Answer:
        """The server handles a request of a member; what it answers."""
        epoch, owned, full = body
        request = ConsumerGroupHeartbeatRequest(GROUP, self.clients[index].member_id, epoch)
        if full and epoch >= 0:
            request.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
            request.subscribed_topic_names = [TOPIC]
        if owned is not None and epoch >= 0:
            request.topic_partitions = [OwnedTopicPartitions(self.topic_id, list(owned))] if owned else []
        response = self._core_request(apis.CONSUMER_GROUP_HEARTBEAT, 1, request)
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        assignment: tuple[int, ...] | None = None
        if response.assignment is not None:
            assignment = tuple(sorted(p for t in response.assignment.topic_partitions for p in t.partitions))
        return response.error_code, response.member_epoch, assignment, self.incarnations[index]

    def expire(self, index: int, kind: int) -> None:
        """The member's session or rebalance timer fires."""
        group = self.group
        assert group is not None
        member_id = self.clients[index].member_id
        live = self.core.groups.timers.of_member(GROUP, member_id)
        token = live.session_token if kind == TIMER_SESSION else live.rebalance_token
        timer = Timer(kind, GROUP, member_id, token, 0)
        self._apply(self.core, self.core.handle(TimerFired(timer), LATER))
        assert member_id not in group.members, "it was to be put out"
        counts = list(self.incarnations)
        counts[index] += 1
        self.incarnations = tuple(counts)

    def crash(self) -> None:
        """The server restarts: hard state comes back from its records, requests under way are lost."""
        before = consumer_hard_state(self.core.groups)
        group = self.group
        if group is not None:
            # What a compacted log would hold.
            fresh = ConsumerGroup(GROUP, group.log)
            self.core.groups.consumer_groups.clear()
            # In place: the handlers share this table.
            self.core.groups.timers.by_group.clear()
            self.core.groups.timers.touched.clear()
            for record in group_records(group):
                assert record.key is not None
                self.core.consumer_replay.replay(group.end_offset - 1, record.key, record.value, made=fresh)
            fresh.end_offset = group.end_offset
            out = Outcome()
            self.core.consumers.loaded(NOW, out)
        assert consumer_hard_state(self.core.groups) == before
        for client in self.clients:
            if client.phase == ASKED:
                client.miss()
        self.stale = ()

    # ---- what must hold

    def check(self) -> str | None:
        """What is wrong with this state, if anything."""
        group = self.group
        if group is None:
            return None
        problems = consumer_problems(group)
        if problems:
            return "; ".join(problems)
        targets: dict[int, str] = {}
        for member_id in group.members:
            for partition in group.target(member_id).get(self.topic_id, []):
                if partition in targets:
                    return f"partition {partition} is meant for {targets[partition]} and {member_id}"
                targets[partition] = member_id
        timers = self.core.groups.timers.by_group.get(GROUP, {})
        if timers.keys() != group.members.keys():
            return f"members are {sorted(group.members)}, and sessions those of {sorted(timers)}"
        for member_id, member in group.members.items():
            own = timers[member_id]
            if own.armed_ms == NOT_ARMED:
                return f"{member_id} has no session"
            if (member.state == UNREVOKED_PARTITIONS) != (own.rebalance_token != NO_TOKEN):
                return f"{member_id} is in state {member.state}, and its rebalance timer does not fit"
        working: dict[int, str] = {}
        for index, client in enumerate(self.clients):
            if client.is_gone or client.incarnation != self.incarnations[index]:
                continue
            for partition in client.owned:
                if partition in working:
                    return f"{working[partition]} and {client.member_id} both work on partition {partition}"
                working[partition] = client.member_id
        return None

    def settle(self, rounds: int = 40) -> str | None:
        """Left alone, with nothing lost: who is there must agree and own everything. What is wrong otherwise."""
        for index, body in self.stale:
            self.deliver(index, body)
        self.stale = ()
        for _ in range(rounds):
            for index, client in enumerate(self.clients):
                if client.is_gone:
                    if client.phase == ASKED and client.request is not None:
                        self.deliver(index, client.request)
                    client.phase = IDLE
                    continue
                if client.phase == IDLE:
                    client.send(client.epoch)
                if client.phase == ASKED:
                    assert client.request is not None
                    client.answer = self.deliver(index, client.request)
                client.receive()
                if client.may_reconcile(self, index):
                    client.owned = client.target
                problem = self.check()
                if problem is not None:
                    return problem
        group = self.group
        alive = [client for client in self.clients if not client.is_gone]
        if group is None or not alive:
            return None
        # Whoever went without a word is still there for the server until its session ends.
        for index, client in enumerate(self.clients):
            if client.is_gone and client.member_id in group.members:
                self.expire(index, TIMER_SESSION)
                return self.settle(rounds)
        if group.state() != "Stable":
            return f"the group is {group.state()} in epoch {group.epoch}"
        owned = sorted(partition for client in alive for partition in client.owned)
        if owned != list(range(self.partitions)):
            return f"partitions {owned} are owned of {self.partitions}"
        sizes = [len(client.owned) for client in alive]
        if max(sizes) - min(sizes) > 1:
            return f"members own {sizes}"
        for client in alive:
            if client.epoch != group.epoch:
                return f"{client.member_id} is in epoch {client.epoch}, the group in {group.epoch}"
        return None


def _relative(epoch: int, base: int) -> object:
    """Epochs with a meaning of their own stay; others count from the group's."""
    return epoch if epoch <= 0 else ("e", epoch - base)


__all__ = [
    "ANSWERED",
    "ASKED",
    "IDLE",
    "TIMER_CONSUMER_REBALANCE",
    "TIMER_SESSION",
    "Client",
    "World",
]
