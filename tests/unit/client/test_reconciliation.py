"""Random assignments at random times: members and a coordinator that knows what each of them may have (KIP-848).

The coordinator gives a partition to a member only when nobody else has it, and counts it as given up when a heartbeat
no longer reports it. So a member that reports something else than what its user has shows up at once. Requests and
answers are lost, users are busy, listeners take their time. Time jumps (tests/harness/virtual_time.py).
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack
from typing import final

import pytest

from kcoord.client.metadata import TopicPartition
from kcoord.protocol import apis, errors
from kcoord.protocol.consumer_group_heartbeat import (
    AssignedTopicPartitions,
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kcoord.wire.message import Message
from tests.harness.group_member import GroupMember, group_member, options
from tests.harness.virtual_time import virtual_time
from tests.unit.client.brokers import two_brokers

IDS = {"a": b"a" * 16, "b": b"b" * 16}
NAMES = {topic_id: name for name, topic_id in IDS.items()}
PARTITIONS = [TopicPartition(topic, number) for topic in IDS for number in range(4)]
MEMBERS = 3
INTERVAL_S = 5.0
STEPS = 150
QUIET_S = 120.0

Partitions = frozenset[TopicPartition]
NOTHING: Partitions = frozenset()


@final
class Known:
    """What the coordinator knows of a member."""

    def __init__(self) -> None:
        self.epoch = 0
        self.target = NOTHING
        # What it may have, and what it has to give up before it gets more.
        self.assigned = NOTHING
        self.revoking = NOTHING
        self.sent: Partitions | None = None


@final
class ModelCoordinator:
    def __init__(self, chance: random.Random) -> None:
        self.random = chance
        self.members: dict[str, Known] = {}
        self.epoch = 1
        self.loss = 0.0
        self.evictions = 0.0
        # Members that reported what nobody gave them.
        self.wrong: list[str] = []

    def handle(self, _node: int, _version: int, request: Message) -> Message | None:
        assert isinstance(request, ConsumerGroupHeartbeatRequest)
        if self.random.random() < self.loss:
            return None
        answer = self.accept(request)
        return None if self.random.random() < self.loss else answer

    def accept(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        name, known = request.member_id, self.members.get(request.member_id)
        if request.member_epoch < 0 or (known is not None and self.random.random() < self.evictions):
            self.members.pop(name, None)
            code = errors.NONE if request.member_epoch < 0 else errors.UNKNOWN_MEMBER_ID
            return ConsumerGroupHeartbeatResponse(error_code=code)
        if request.member_epoch == 0:
            target = NOTHING if known is None else known.target
            known = self.members[name] = Known()
            known.target = target
        if known is None:
            return ConsumerGroupHeartbeatResponse(error_code=errors.UNKNOWN_MEMBER_ID)
        owned: Partitions | None = None
        if request.topic_partitions is not None:
            owned = frozenset(
                TopicPartition(NAMES[one.topic_id], number)
                for one in request.topic_partitions
                for number in one.partitions
            )
            if not owned <= known.assigned | known.revoking:
                self.wrong.append(f"{name} has {sorted(owned)}, and may have {sorted(known.assigned | known.revoking)}")
        self._reconcile(known, owned)
        answer = ConsumerGroupHeartbeatResponse(0, 0, None, name, known.epoch, int(INTERVAL_S * 1000))
        if known.sent != known.assigned or request.rebalance_timeout_ms >= 0:
            known.sent = known.assigned
            answer.assignment = _assignment(known.assigned)
        return answer

    def _reconcile(self, known: Known, owned: Partitions | None) -> None:
        known.revoking |= known.assigned - known.target
        known.assigned &= known.target
        if owned is not None and not owned & known.revoking:
            known.revoking = NOTHING
        if not known.revoking:
            others = [one.assigned | one.revoking for one in self.members.values() if one is not known]
            known.assigned |= known.target.difference(*others)
            known.epoch = self.epoch

    def assign(self) -> None:
        """New targets for all members; a partition may have none."""
        self.epoch += 1
        found: dict[str, list[TopicPartition]] = {name: [] for name in self.members}
        for partition in PARTITIONS:
            name = self.random.choice([*self.members, ""])
            found.get(name, []).append(partition)
        for name, partitions in found.items():
            self.members[name].target = frozenset(partitions)


def _assignment(partitions: Partitions) -> Assignment:
    topics: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        topics.setdefault(partition.topic, []).append(partition.partition)
    return Assignment([AssignedTopicPartitions(IDS[name], numbers) for name, numbers in topics.items()])


@final
class World:
    def __init__(self, coordinator: ModelCoordinator, members: list[GroupMember], chance: random.Random) -> None:
        self.coordinator = coordinator
        self.members = members
        self.random = chance
        self.busy: set[GroupMember] = set()

    def check(self) -> None:
        assert not self.coordinator.wrong
        owners: dict[TopicPartition, GroupMember] = {}
        for member in self.members:
            held = member.held()
            assert not member.failures, member.failures
            membership = member.membership
            known = self.coordinator.members.get(membership.group_metadata().member_id)
            if not membership.is_member() or known is None:
                continue
            assert held <= known.assigned | known.revoking
            for partition in held:
                assert partition not in owners, partition
                owners[partition] = member

    async def step(self) -> None:
        coordinator, chance = self.coordinator, self.random
        coordinator.loss = chance.choice((0.0, 0.0, 0.1, 0.4))
        coordinator.evictions = chance.choice((0.0, 0.0, 0.0, 0.05))
        what = chance.random()
        member = chance.choice(self.members)
        if what < 0.4:
            coordinator.assign()
        elif what < 0.6 and member not in self.busy:
            self.busy.add(member)
            await member.stop_polling()
        elif what < 0.9 and member in self.busy:
            self.busy.discard(member)
            member.start_polling()
        elif what > 0.97:
            # The user's poll is cancelled, at whatever it does, and made again.
            await member.stop_polling()
            self.busy.discard(member)
            member.start_polling()
        end_s = time.monotonic() + chance.choice((0.0, 0.1, 3.0, 20.0)) * chance.random()
        while True:
            self.check()
            if time.monotonic() >= end_s:
                return
            await asyncio.sleep(0.5)

    async def settle(self) -> None:
        self.coordinator.loss = self.coordinator.evictions = 0.0
        for member in self.busy:
            member.start_polling()
        self.busy.clear()
        await asyncio.sleep(QUIET_S)
        self.check()
        for member in self.members:
            known = self.coordinator.members[member.membership.group_metadata().member_id]
            assert member.held() == known.assigned == known.target and not known.revoking


async def live(seed: int) -> int:
    chance = random.Random(seed)
    async with two_brokers() as brokers, AsyncExitStack() as stack:
        for name, topic_id in IDS.items():
            brokers.topics[name], brokers.ids[name] = [1] * 4, topic_id
        coordinator = ModelCoordinator(random.Random(seed + 1))
        brokers.handlers[apis.CONSUMER_GROUP_HEARTBEAT] = coordinator.handle
        bootstrap = f"127.0.0.1:{brokers.ports[1]}"
        chosen = options(is_auto_commit=False, max_poll_interval_s=60.0)
        members = [await stack.enter_async_context(group_member(bootstrap, chosen)) for _ in range(MEMBERS)]
        for member in members:
            member.turn_s = 20.0
            # One of the topics is known by its id only.
            member.subscribe("a")
            member.start_polling()
        world = World(coordinator, members, chance)
        for number in range(STEPS):
            await world.step()
            if number % 50 == 49:
                await world.settle()
        return sum(len(member.books.calls) for member in members)


def check_seed(seed: int) -> None:
    with virtual_time() as runner:
        assert runner.run(live(seed)) > 20


@pytest.mark.parametrize("seed", range(4))
def test_random_assignments(seed: int) -> None:
    check_seed(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_many_random_assignments(seed: int) -> None:
    check_seed(seed)
