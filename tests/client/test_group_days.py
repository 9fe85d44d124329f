"""The life of a consumer group (KIP-848) under a clock that jumps: hours and days with all that happens to members.

No partition is ever with two members, nobody hears of a partition twice, and whenever there is quiet, the group shares
all partitions evenly.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import final

import pytest

from kcoord.client.admin.admin import Admin
from kcoord.client.errors import ConnectionLost
from kcoord.client.metadata import TopicPartition
from kcoord.server.logs import ServerLog
from kcoord.server.server import Server
from kcoord.server.settings.load import load
from tests.client.groups import make_topic
from tests.harness.group_member import GroupMember, group_member, options
from tests.harness.virtual_time import virtual_time

HOUR_S = 3600.0
MEMBERS_MAX = 5
MAX_POLL_S = 300.0
# Those of a broker, unlike those of the profile for tests.
DEFAULTS = {
    "group.consumer.heartbeat.interval.ms": "5000",
    "group.consumer.session.timeout.ms": "45000",
    "group.consumer.assignment.interval.ms": "1000",
}
# Session, rebalance timeout and a few heartbeats: then a group must have settled.
QUIET_S = 450.0


@final
class Life:
    """A group, and what happens to its members."""

    def __init__(self, bootstrap: str, admin: Admin, seed: int) -> None:
        self.bootstrap = bootstrap
        self.admin = admin
        self.random = random.Random(seed)
        self.partitions: set[TopicPartition] = set()
        self.members: list[GroupMember] = []
        self.paused: set[GroupMember] = set()
        self.stacks: dict[GroupMember, AsyncExitStack] = {}
        self.counts: dict[str, int] = {}
        self.joined = 0

    async def run(self, seconds: float) -> None:
        self.partitions = set(await make_topic(self.admin, "orders", 12))
        await self.join()
        end_s = time.monotonic() + seconds
        next_quiet_s = time.monotonic() + HOUR_S
        while time.monotonic() < end_s:
            await asyncio.sleep(self.random.choice((0.5, 5.0, 30.0, 200.0)) * self.random.random())
            self.check()
            await self.random.choice(self.actions())()
            if time.monotonic() >= next_quiet_s:
                await self.settle()
                next_quiet_s = time.monotonic() + HOUR_S
        await self.settle()
        for member in list(self.members):
            await self.leave(member)

    def actions(self) -> list[Callable[[], Awaitable[None]]]:
        found: list[Callable[[], Awaitable[None]]] = [self.nothing, self.cut, self.cut, self.silence, self.pause]
        found += [self.join] * (MEMBERS_MAX - len(self.members))
        if len(self.members) > 1:
            found += [self.leave, self.leave, self.kill]
        if self.paused:
            found += [self.resume, self.resume]
        if len(self.partitions) < 40:
            found.append(self.grow)
        return found

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    async def nothing(self) -> None:
        pass

    async def join(self) -> None:
        self.count("join")
        self.joined += 1
        stack = AsyncExitStack()
        name = f"member-{self.joined}"
        chosen = options(client_id=name, max_poll_interval_s=MAX_POLL_S, retry_backoff_s=0.1, retry_backoff_max_s=1.0)
        member = await stack.enter_async_context(group_member(self.bootstrap, chosen))
        member.turn_s = 60.0
        self.stacks[member] = stack
        self.members.append(member)
        member.subscribe("orders")
        member.start_polling()

    async def leave(self, member: GroupMember | None = None) -> None:
        self.count("leave")
        chosen = self.random.choice(self.members) if member is None else member
        self.members.remove(chosen)
        self.paused.discard(chosen)
        await self.stacks.pop(chosen).aclose()
        assert not chosen.books.held

    async def kill(self) -> None:
        """Without a word; its session has to end."""
        self.count("kill")
        chosen = self.random.choice(self.members)
        self.members.remove(chosen)
        self.paused.discard(chosen)
        await chosen.stop_polling()
        await chosen.cluster.close()
        await self.stacks.pop(chosen).aclose()

    async def cut(self) -> None:
        """All connections of a member end."""
        self.count("cut")
        for connection in list(self.random.choice(self.members).cluster._connections.values()):
            connection.abort(ConnectionLost("cut"))

    async def silence(self) -> None:
        """Connections of a member are half open: nothing arrives any more."""
        self.count("silence")
        for connection in list(self.random.choice(self.members).cluster._connections.values()):
            if connection._transport is not None and not connection.is_closed:
                connection._transport.pause_reading()

    async def pause(self) -> None:
        """The user processes records, perhaps for too long."""
        self.count("pause")
        chosen = self.random.choice(self.members)
        if chosen not in self.paused:
            self.paused.add(chosen)
            await chosen.stop_polling()

    async def resume(self) -> None:
        self.count("resume")
        chosen = self.random.choice([member for member in self.members if member in self.paused])
        self.paused.discard(chosen)
        chosen.start_polling()

    async def grow(self) -> None:
        """More partitions."""
        self.count("grow")
        number = len(self.partitions) + 2
        await self.admin.create_partitions({"orders": number})
        self.partitions = {TopicPartition("orders", one) for one in range(number)}

    def check(self) -> None:
        """No partition is with two members that may commit for it."""
        owners: dict[TopicPartition, str] = {}
        for member in self.members:
            held = member.held()
            assert not member.failures, member.failures
            if member.membership.is_member():
                for partition in held:
                    assert partition not in owners, (partition, owners[partition], member.options.client_id)
                    owners[partition] = member.options.client_id

    async def settle(self) -> None:
        while self.paused:
            await self.resume()
        end_s = time.monotonic() + QUIET_S
        while time.monotonic() < end_s:
            await asyncio.sleep(1.0)
            self.check()
        sizes = [len(member.held()) for member in self.members]
        assert sum(sizes) == len(self.partitions) and max(sizes) - min(sizes) <= 1, sizes
        assert set().union(*(member.held() for member in self.members)) == self.partitions


async def live(seconds: float, seed: int) -> Life:
    config = load(profile="test", assignments=[f"{name}={value}" for name, value in DEFAULTS.items()])
    server = Server(config, ServerLog(None), None)
    await server.start()
    waiting = asyncio.create_task(server.wait())
    host, port = server.addresses[0]
    bootstrap = f"{host}:{port}"
    try:
        async with Admin(bootstrap) as admin:
            life = Life(bootstrap, admin, seed)
            await life.run(seconds)
            return life
    finally:
        server.request_stop()
        await waiting


def check_life(seconds: float, seed: int) -> dict[str, int]:
    with virtual_time() as runner:
        begin_s = time.monotonic()
        life = runner.run(live(seconds, seed))
        assert time.monotonic() - begin_s >= seconds
    return life.counts


@pytest.mark.parametrize("seed", [1])
def test_hours(seed: int) -> None:
    counts = check_life(2 * HOUR_S, seed)
    assert counts["join"] > 5 and counts["kill"] and counts["silence"] and counts["pause"]


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 104))
def test_days(seed: int) -> None:
    check_life(24 * HOUR_S, seed)
