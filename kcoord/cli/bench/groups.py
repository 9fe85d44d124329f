"""The workloads of whole groups: many members join, restart one after the other, or one of them comes and goes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from kcoord.cli.bench.load import added
from kcoord.cli.bench.members import NO_EPOCH, ClassicMember, ConsumerMember, Member
from kcoord.cli.bench.options import Options
from kcoord.cli.bench.steady import at_once
from kcoord.cli.bench.target import Target
from kcoord.client.errors import KafkaError
from kcoord.client.load.histogram import Histogram
from kcoord.client.metadata import Node, TopicMetadata

# How often one member leaves and comes back in a round of `flap`.
FLAPS: Final = 5
# The pause between looks at the members. The times that are reported are those of the members.
LOOK_S: Final = 0.005
PROTOCOLS: Final[dict[str, type[Member]]] = {"classic": ClassicMember, "consumer": ConsumerMember}


class NotStable(KafkaError):
    """A group did not become stable in time."""


@dataclass(slots=True)
class GroupRound:
    """`seconds` for the whole round, and for each of its steps: a join of all, a restart, a leave or a return."""

    seconds: float
    steps: list[float]
    heartbeats: Histogram
    errors: dict[str, int]


class Group:
    """Members of one group."""

    def __init__(self, target: Target, options: Options, protocol: str, name: str, topic: TopicMetadata) -> None:
        self.target = target
        self.options = options
        self.kind = PROTOCOLS[protocol]
        self.group_id = target.group(name)
        self.topic = topic
        self.members: list[Member] = []
        self._gone: list[Member] = []
        self._node: Node | None = None

    async def new_member(self) -> Member:
        """A member that is connected and has not joined."""
        if self._node is None:
            self._node = await self.target.coordinator(self.group_id)
        member = self.kind(self.target, self.group_id, self.topic, self.options.heartbeat_s)
        try:
            await member.connect(self._node)
        except BaseException:
            await member.leave()
            raise
        return member

    async def connect(self, count: int) -> None:
        # Alone, so that a missing API is found before there are hundreds of connections.
        self.members = [await self.new_member()]
        self.members += await at_once(count - 1, lambda _: self.new_member())

    async def join(self) -> float:
        """Let all members join. Returns the seconds until the group is stable."""
        began = time.perf_counter()
        for member in self.members:
            member.start()
        return await self.stable(began)

    async def stable(self, began: float, after_epoch: int = NO_EPOCH) -> float:
        """Wait until the group is stable, in an epoch after the given one. Returns the seconds since `began`."""
        deadline = time.perf_counter() + self.options.timeout_s
        while not self.is_stable(after_epoch):
            if time.perf_counter() > deadline:
                raise NotStable(f"group {self.group_id} was not stable within {self.options.timeout_s:g} s")
            await asyncio.sleep(LOOK_S)
        return max(member.since for member in self.members) - began

    def is_stable(self, after_epoch: int) -> bool:
        """All members are in one epoch, every partition has one owner, and the shares differ by one at most."""
        epochs = {member.epoch for member in self.members}
        if len(epochs) != 1 or max(epochs) <= after_epoch:
            return False
        owned = sorted(number for member in self.members for number in member.owned)
        if owned != list(range(len(self.topic.partitions))):
            return False
        shares = [len(member.owned) for member in self.members]
        return max(shares) - min(shares) <= 1

    async def restart_one(self, at: int) -> float:
        """A member leaves, and a new one joins in its place. Returns the seconds until the group is stable."""
        fresh = await self.new_member()
        old, self.members[at] = self.members[at], fresh
        self._gone.append(old)
        epoch = old.epoch
        began = time.perf_counter()
        await old.leave()
        fresh.start()
        return await self.stable(began, epoch)

    async def flap_one(self) -> list[float]:
        """The last member leaves and comes back. Returns the seconds until the group is stable, for both."""
        fresh = await self.new_member()
        old = self.members.pop()
        self._gone.append(old)
        epoch = old.epoch
        began = time.perf_counter()
        await old.leave()
        without = await self.stable(began, epoch) if self.members else 0.0
        self.members.append(fresh)
        began = time.perf_counter()
        fresh.start()
        return [without, await self.stable(began)]

    def take_counts(self) -> tuple[Histogram, dict[str, int]]:
        """The heartbeats and errors of all members since the last call."""
        heartbeats = Histogram()
        everyone = [*self.members, *self._gone]
        self._gone = []
        found = added(member.errors for member in everyone)
        for member in everyone:
            heartbeats.add_all(member.heartbeats.pairs())
            member.heartbeats = Histogram()
            member.errors = {}
        return heartbeats, found

    async def leave(self) -> None:
        """All members leave and close their connections."""
        await asyncio.gather(*(member.leave() for member in self.members), return_exceptions=True)
        self.members = []


class GroupWorkload:
    """`action` is join, restart or flap. Raises KafkaError."""

    def __init__(self, target: Target, options: Options, action: str, protocol: str) -> None:
        self.target = target
        self.options = options
        self.action = action
        self.protocol = protocol
        self.name = f"{action}-{protocol}"
        self.count = 0
        self.group: Group | None = None
        self.topic: TopicMetadata | None = None

    async def open(self) -> None:
        """Create the topic, and for restart and flap a stable group."""
        # One partition for each member: with fewer, some members would have nothing to wait for.
        self.topic = await self.target.topic(f"members-{self.options.members}", self.options.members)
        self.group = await self._connected()
        if self.action != "join":
            await self.group.join()
            self.group.take_counts()

    async def _connected(self) -> Group:
        assert self.topic is not None
        self.count += 1
        group = Group(self.target, self.options, self.protocol, f"{self.name}-{self.count}", self.topic)
        self.group = group
        await group.connect(self.options.members)
        return group

    async def round(self) -> GroupRound:
        group = self.group or await self._connected()
        began = time.perf_counter()
        if self.action == "join":
            steps = [await group.join()]
            seconds = steps[0]
        elif self.action == "restart":
            count = min(self.options.restarts or len(group.members), len(group.members))
            steps = [await group.restart_one(at) for at in range(count)]
            seconds = time.perf_counter() - began
        else:
            steps = [seconds for _ in range(FLAPS) for seconds in await group.flap_one()]
            seconds = time.perf_counter() - began
        heartbeats, found = group.take_counts()
        if self.action == "join":
            await group.leave()
            self.group = None
        return GroupRound(seconds, steps, heartbeats, found)

    async def close(self) -> None:
        if self.group is not None:
            await self.group.leave()
            self.group = None
