"""The workloads of whole groups: many members join, restart one after the other, or one of them comes and goes.

The members live in the processes of the load generator (`GroupLoad`): of two processes, one has the members 0, 2, 4 and
so on, and the other one the rest. Here is the order of the steps, and how one knows that a group is stable.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from kcoord.cli.bench.group_load import group_plan
from kcoord.cli.bench.load import added
from kcoord.cli.bench.options import Options
from kcoord.cli.bench.steady import Prepared
from kcoord.cli.bench.target import Target
from kcoord.cli.bench.workers import Workers
from kcoord.client.errors import KafkaError
from kcoord.client.load.crowd import NO_EPOCH
from kcoord.client.load.histogram import Histogram
from kcoord.client.load.members import GroupPlan
from kcoord.client.metadata import TopicMetadata
from kcoord.protocol import apis

# How often one member leaves and comes back in a round of `flap`.
FLAPS: Final = 5
# How long a process waits for news before it answers. No step lasts longer for it: its end is that of the last member.
LOOK_S: Final = 0.01
# How much longer the command waits for a process than the process for the cluster.
SPARE_S: Final = 30.0
SECOND_NS: Final = 1_000_000_000
APIS: Final = {
    "classic": (apis.JOIN_GROUP, apis.SYNC_GROUP, apis.HEARTBEAT, apis.LEAVE_GROUP),
    "consumer": (apis.CONSUMER_GROUP_HEARTBEAT,),
}


class NotStable(KafkaError):
    """A group did not become stable in time."""


@dataclass(slots=True)
class GroupRound:
    """Each step (a join of all, a restart, a leave or a return), and `seconds` for all of them together."""

    seconds: float
    steps: list[float]
    heartbeats: Histogram
    errors: dict[str, int]
    # The cores that the load generator used.
    generator_cores: float


def is_stable(looks: list[dict[str, Any]], members: int, partitions: int, after_epoch: int) -> bool:
    """Whether all members are in one epoch after the given one, every partition has one owner, and the shares differ
    by one at most. `looks` are what the processes see (`GroupLoad.look`).
    """
    if not all(one["settled"] for one in looks):
        return False
    looks = [one for one in looks if one["members"]]
    epochs = {one["epoch"] for one in looks}
    if sum(one["members"] for one in looks) != members or len(epochs) != 1 or max(epochs) <= after_epoch:
        return False
    # One byte for each partition, with the number of its owners.
    owners = sum(int(one["owned"], 16) for one in looks)
    if owners != int("01" * partitions, 16):
        return False
    most, least = max(one["most"] for one in looks), min(one["least"] for one in looks)
    return bool(most - least <= 1)


class Group:
    """Members of one group."""

    def __init__(
        self, target: Target, options: Options, workers: Workers, protocol: str, name: str, topic: TopicMetadata
    ) -> None:
        self.target = target
        self.options = options
        self.workers = workers
        self.protocol = protocol
        self.group_id = target.group(name)
        self.topic = topic
        self.members = options.members
        self.is_open = False
        # A restart is a new connection and a goodbye, one after the other.
        self.limit_s = 2 * options.timeout_s + SPARE_S

    async def connect(self) -> None:
        """Connect all members, which do not join yet. Raises KafkaError, such as UnsupportedVersion."""
        node = await self.target.coordinator(self.group_id)
        connection = await self.target.connect(node)
        try:
            versions = {key: connection.version(key) for key in (apis.API_VERSIONS, *APIS[self.protocol])}
        finally:
            await connection.close()
        plan = GroupPlan(self.group_id, self.topic.name, self.topic.topic_id, len(self.topic.partitions), versions)
        count = self.workers.count
        plans = [
            group_plan(
                self.target.bootstrap, node.host, node.port, self.protocol, plan,
                (self.members + count - 1 - number) // count, self.options.heartbeat_s, self.options.timeout_s,
            )
            for number in range(count)
        ]  # fmt: skip
        self.target.crowds.add(self.group_id)
        self.is_open = True
        await self.workers.open(self.group_id, Prepared("group", plans, {}, 1), self.limit_s)

    async def join(self) -> tuple[int, int]:
        """Let all members join. Returns when that began and when the group was stable."""
        answers = await self.workers.step(self.group_id, "join")
        return await self._stable(min(one["began_ns"] for one in answers), NO_EPOCH)

    async def _stable(self, began_ns: int, after_epoch: int) -> tuple[int, int]:
        """Wait until the group is stable. Returns when that began and when it was. Raises NotStable."""
        deadline = time.perf_counter() + self.options.timeout_s
        partitions = len(self.topic.partitions)
        while True:
            looks = await self.workers.step(self.group_id, "look", LOOK_S)
            if is_stable(looks, self.members, partitions, after_epoch):
                return began_ns, max(one["since_ns"] for one in looks)
            if time.perf_counter() > deadline:
                _, found, _ = await self.counts()
                errors = "".join(f", {name} {count}" for name, count in found.items())
                raise NotStable(f"group {self.group_id} was not stable within {self.options.timeout_s:g} s{errors}")

    async def restart_one(self, at: int) -> tuple[int, int]:
        """A member leaves, and a new one joins in its place."""
        count = self.workers.count
        left = await self.workers.step_of(at % count, self.group_id, "restart", at // count, limit_s=self.limit_s)
        return await self._stable(left["began_ns"], left["epoch"])

    async def flap_one(self) -> list[tuple[int, int]]:
        """The last member leaves and comes back."""
        process = (self.members - 1) % self.workers.count
        left = await self.workers.step_of(process, self.group_id, "depart", limit_s=self.limit_s)
        self.members -= 1
        began_ns: int = left["began_ns"]
        without = await self._stable(began_ns, left["epoch"]) if self.members else (began_ns, began_ns)
        self.members += 1
        came = await self.workers.step_of(process, self.group_id, "return")
        return [without, await self._stable(came["began_ns"], NO_EPOCH)]

    async def counts(self) -> tuple[Histogram, dict[str, int], float]:
        """Latencies of heartbeats and errors since the last call, and the processor time until now."""
        answers = await self.workers.step(self.group_id, "counts")
        heartbeats = Histogram()
        for one in answers:
            heartbeats.add_all(one["latencies"])
        return heartbeats, added(one["errors"] for one in answers), sum(one["cpu_s"] for one in answers)

    async def leave(self) -> None:
        """All members leave and close their connections."""
        if self.is_open:
            self.is_open = False
            await self.workers.close(self.group_id, self.limit_s)


class GroupWorkload:
    """`action` is join, restart or flap. Raises KafkaError or WorkerFailed."""

    def __init__(self, target: Target, options: Options, workers: Workers, action: str, protocol: str) -> None:
        self.target = target
        self.options = options
        self.workers = workers
        self.action = action
        self.protocol = protocol
        self.name = f"{action}-{protocol}"
        self.count = 0
        self.group: Group | None = None
        self.topic: TopicMetadata | None = None

    async def open(self) -> None:
        """Create the topic, and connect the members of the first round."""
        # One partition for each member: with fewer, some members would have nothing to wait for.
        self.topic = await self.target.topic(f"members-{self.options.members}", self.options.members)
        await self._connected()

    async def _connected(self) -> Group:
        assert self.topic is not None
        self.count += 1
        name = f"{self.name}-{self.count}"
        self.group = Group(self.target, self.options, self.workers, self.protocol, name, self.topic)
        await self.group.connect()
        return self.group

    async def round(self) -> GroupRound:
        # Each round has a group of its own: otherwise its heartbeats would go on beside the rounds of other clusters,
        # and each would be measured beside the others' work.
        group = self.group or await self._connected()
        if self.action != "join":
            await group.join()
        # Errors until here count. Heartbeats do not.
        _, before, cpu_s = await group.counts()
        began = time.perf_counter()
        if self.action == "join":
            steps = [await group.join()]
        elif self.action == "restart":
            count = min(self.options.restarts or self.options.members, self.options.members)
            steps = [await group.restart_one(at) for at in range(count)]
        else:
            steps = [one for _ in range(FLAPS) for one in await group.flap_one()]
        elapsed = time.perf_counter() - began
        heartbeats, found, cpu_until_s = await group.counts()
        await group.leave()
        self.group = None
        seconds = [(end_ns - began_ns) / SECOND_NS for began_ns, end_ns in steps]
        return GroupRound(
            sum(seconds), seconds, heartbeats, added([before, found]), (cpu_until_s - cpu_s) / elapsed
        )  # fmt: skip

    async def close(self) -> None:
        if self.group is not None:
            await self.group.leave()
            self.group = None
