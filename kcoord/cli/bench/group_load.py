"""Members on sockets: the share of a group that one process has. `groups.py` tells it from the command what to do."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, cast

from kcoord.cli.bench.joining import OWN_ID_FROM, new_member_id
from kcoord.cli.bench.load import CONNECTION_LOST, NO_ANSWER, WRONG_ANSWER
from kcoord.cli.bench.steady import at_once
from kcoord.client.admin.results import CLASSIC
from kcoord.client.cluster import GROUP, Cluster, ClusterOptions, parse_bootstrap
from kcoord.client.connection import ConnectionOptions
from kcoord.client.deadline import Deadline
from kcoord.client.errors import KafkaError
from kcoord.client.load.crowd import NO_EPOCH, Crowd
from kcoord.client.load.frames import CLIENT_ID
from kcoord.client.load.lane import WrongAnswer
from kcoord.client.load.members import UNTIL_RETRY, ClassicMember, ConsumerMember, GroupPlan, Member
from kcoord.protocol import apis
from kcoord.wire.primitives import DecodeError

RETRY_S: Final = 0.1
# How long the answer to a JoinGroup or SyncGroup may take, which waits for other members.
PARKED_S: Final = 120.0
WATCH_S: Final = 1.0
SECOND_NS: Final = 1_000_000_000


def group_plan(
    bootstrap: str,
    host: str,
    port: int,
    protocol: str,
    plan: GroupPlan,
    members: int,
    heartbeat_s: float,
    timeout_s: float,
) -> dict[str, Any]:
    """The share of a process as JSON, for `GroupLoad`. `timeout_s` limits each connection, answer and goodbye."""
    return {
        "bootstrap": bootstrap, "host": host, "port": port, "protocol": protocol, "group_id": plan.group_id,
        "topic": plan.topic, "topic_id": plan.topic_id.hex(), "partitions": plan.partitions,
        "versions": {str(key): version for key, version in plan.versions.items()}, "members": members,
        "heartbeat_s": heartbeat_s, "timeout_s": timeout_s,
    }  # fmt: skip


@contextlib.asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """Raises TimeoutError, which says what took too long."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise TimeoutError(f"{what} took more than {seconds:g} s") from None


class Link(asyncio.Protocol):
    """One connection of a member."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport without being instances of it.
        self.transport = cast(asyncio.Transport, transport)
        self.seat.connected(self.transport)

    def data_received(self, data: bytes) -> None:
        if self.transport is self.seat.transport:
            self.seat.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.transport is self.seat.transport:
            self.seat.lose(CONNECTION_LOST)


class Seat:
    """A member, and how it comes to a connection."""

    def __init__(self, load: GroupLoad, member: Member) -> None:
        self.load = load
        self.member = member
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.has_begun = False
        self.connecting: asyncio.Task[None] | None = None
        # What `connect` and `leave` wait for.
        self.news: asyncio.Future[None] | None = None

    async def connect(self) -> None:
        """Connect to the coordinator, and be greeted. Raises OSError, which TimeoutError is."""
        self._close()
        try:
            async with within(self.load.timeout_s, "a connection"):
                host, port = self.load.address
                await self.loop.create_connection(lambda: Link(self), host, port)
                while not self.member.is_greeted:
                    if self.transport is None:
                        raise ConnectionResetError("the broker closed a new connection")
                    await self._news()
        except BaseException:
            self._close()
            raise

    async def _news(self) -> None:
        """Wait for an answer, or the end of the connection."""
        news = self.news = self.loop.create_future()
        try:
            await news
        finally:
            if self.news is news:
                self.news = None

    def begin(self) -> None:
        """Join the group and stay in it."""
        self.has_begun = True
        if self.transport is None:
            self.lose(CONNECTION_LOST)
        else:
            self.transport.write(self.member.begin(time.perf_counter_ns()))

    async def leave(self) -> None:
        """Leave the group and close the connection. Errors are counted."""
        self.member.vanish()
        connecting = self._stop()
        if connecting is not None:
            await asyncio.wait([connecting])
        try:
            # Without an id there is nobody whom the group could know.
            if self.has_begun and self.member.member_id:
                async with within(self.load.timeout_s, "a goodbye"):
                    while not await self._say_goodbye():
                        await asyncio.sleep(RETRY_S)
        except TimeoutError:
            self.load.crowd.note(NO_ANSWER)
        finally:
            self._close()

    async def _say_goodbye(self) -> bool:
        """Whether the member has left."""
        member = self.member
        # A JoinGroup that is parked would hold back the goodbye.
        if self.transport is None or member.is_parked or not member.is_greeted or member.is_elsewhere:
            self._close()
            try:
                await self.load.find_coordinator()
                await self.connect()
            except (OSError, KafkaError):
                return False
        if self.transport is not None:
            self.transport.write(member.goodbye(time.perf_counter_ns()))
        while self.transport is not None and member.in_flight:
            await self._news()
        if self.transport is None and not member.is_gone:
            self.load.crowd.note(CONNECTION_LOST)
        return member.is_gone

    def abort(self) -> None:
        """Close the connection without a word."""
        self.member.vanish()
        self._stop()
        self._close()

    def lose(self, error: str) -> None:
        """Close the connection, and come back on another one."""
        self._close()
        self._wake()
        if self.has_begun and self.connecting is None and not self.member.is_leaving:
            self.member.lost(error)
            self._come_back()

    def check(self, now_ns: int) -> None:
        """Give up the connection if its answer is late."""
        member = self.member
        limit_s = max(PARKED_S, self.load.timeout_s) if member.is_parked else self.load.timeout_s
        if member.in_flight and self.transport is not None and now_ns - member.sent_ns > limit_s * SECOND_NS:
            self.lose(NO_ANSWER)

    # --- for its connection

    def connected(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        transport.write(self.member.greet(time.perf_counter_ns()))

    def received(self, data: bytes) -> None:
        try:
            request = self.member.received(data, time.perf_counter_ns())
        except (WrongAnswer, DecodeError):
            self.lose(WRONG_ANSWER)
            return
        if request:
            assert self.transport is not None
            self.transport.write(request)
        elif self.member.pause:
            self._pause()
        self._wake()
        self.load.note()

    # --- within

    def _wake(self) -> None:
        if self.news is not None and not self.news.done():
            self.news.set_result(None)

    def _pause(self) -> None:
        if self.member.pause == UNTIL_RETRY and self.member.is_elsewhere:
            self._close()
            self._come_back()
            return
        pause_s = RETRY_S if self.member.pause == UNTIL_RETRY else self.load.heartbeat_s
        self.timer = self.loop.call_later(pause_s, self._resume)

    def _resume(self) -> None:
        self.timer = None
        # The end of the connection, and of the member, would have cancelled the timer.
        assert self.transport is not None
        self.transport.write(self.member.resume(time.perf_counter_ns()))

    def _come_back(self) -> None:
        self.connecting = self.loop.create_task(self._connect_again())

    async def _connect_again(self) -> None:
        """Look for the coordinator until it can be reached, and go on there."""
        while self.transport is None:
            await asyncio.sleep(RETRY_S)
            with contextlib.suppress(OSError, KafkaError):
                await self.load.find_coordinator()
                await self.connect()
        self.connecting = None
        self.transport.write(self.member.again(time.perf_counter_ns()))

    def _stop(self) -> asyncio.Task[None] | None:
        """Do nothing more on its own. Returns a task that is about to end."""
        self._cancel_timer()
        connecting, self.connecting = self.connecting, None
        if connecting is not None:
            connecting.cancel()
        return connecting

    def _cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _close(self) -> None:
        self._cancel_timer()
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.abort()


class GroupLoad:
    """The members of a group in this process. `plans` has one plan."""

    def __init__(self, plans: list[dict[str, Any]]) -> None:
        (self.plan,) = plans
        versions = {int(key): version for key, version in self.plan["versions"].items()}
        topic_id = bytes.fromhex(self.plan["topic_id"])
        self.group = GroupPlan(
            self.plan["group_id"], self.plan["topic"], topic_id, self.plan["partitions"], versions
        )  # fmt: skip
        self.heartbeat_s: float = self.plan["heartbeat_s"]
        self.timeout_s: float = self.plan["timeout_s"]
        self.address: tuple[str, int] = (self.plan["host"], self.plan["port"])
        self.crowd = Crowd(self.group.partitions)
        self.seats: list[Seat] = []
        # A member that is connected and has not joined yet.
        self.spare: Seat | None = None
        # Which of the crowd's changes `look` has reported.
        self.reported = -1
        # What `look` waits for.
        self.news: asyncio.Future[None] | None = None
        self.watch: asyncio.Task[None] | None = None
        self.finding = asyncio.Lock()
        self.found_at = 0.0

    async def open(self) -> None:
        """Connect all members. Raises OSError."""
        async with within(self.timeout_s, "connecting all members"):
            await at_once(self.plan["members"], self._take_seat)
        self.watch = asyncio.create_task(self._watch(), name="kcoord bench watch")

    async def _take_seat(self, _: int) -> None:
        seat = await self._new_seat()
        seat.member.appear()
        self.seats.append(seat)

    async def _new_seat(self) -> Seat:
        """A member that is connected. It has not joined, and does not count."""
        if self.plan["protocol"] == CLASSIC:
            member: Member = ClassicMember(self.crowd, self.group, "")
        else:
            has_own_id = self.group.versions[apis.CONSUMER_GROUP_HEARTBEAT] >= OWN_ID_FROM
            member = ConsumerMember(self.crowd, self.group, new_member_id() if has_own_id else "")
        seat = Seat(self, member)
        try:
            await seat.connect()
        except BaseException:
            seat.abort()
            raise
        return seat

    async def do(self, step: str, arguments: list[Any]) -> dict[str, Any]:
        """Carry out a step."""
        steps: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            "join": self.join, "look": self.look, "restart": self.restart, "depart": self.depart,
            "return": self.come_back, "counts": self.counts,
        }  # fmt: skip
        return await steps[step](*arguments)

    # --- steps

    async def join(self) -> dict[str, Any]:
        """Let all members join at once."""
        began_ns = time.perf_counter_ns()
        for seat in self.seats:
            seat.begin()
        return {"began_ns": began_ns}

    async def restart(self, at: int) -> dict[str, Any]:
        """A member leaves, and a new one joins in its place."""
        fresh = await self._new_seat()
        old, self.seats[at] = self.seats[at], fresh
        fresh.member.appear()
        found = await self._leave(old)
        fresh.begin()
        return found

    async def depart(self) -> dict[str, Any]:
        """The last member leaves. A new one is connected already."""
        self.spare = await self._new_seat()
        return await self._leave(self.seats.pop())

    async def come_back(self) -> dict[str, Any]:
        """The new one joins."""
        assert self.spare is not None
        fresh, self.spare = self.spare, None
        self.seats.append(fresh)
        fresh.member.appear()
        began_ns = time.perf_counter_ns()
        fresh.begin()
        return {"began_ns": began_ns}

    async def _leave(self, old: Seat) -> dict[str, Any]:
        """When it began, and the epoch in which the group was."""
        epoch = old.member.epoch
        began_ns = time.perf_counter_ns()
        await old.leave()
        return {"began_ns": began_ns, "epoch": epoch}

    async def look(self, wait_s: float) -> dict[str, Any]:
        """What the members see of the group: as soon as it has settled and there is something new, or after a while."""
        crowd = self.crowd
        if not self._has_news():
            self.news = asyncio.get_running_loop().create_future()
            handle = asyncio.get_running_loop().call_later(wait_s, self._wake)
            await self.news
            handle.cancel()
            self.news = None
        if not crowd.has_settled():
            return {"settled": False}
        self.reported = crowd.changes
        return {
            "settled": True, "members": crowd.members, "epoch": max(crowd.epochs, default=NO_EPOCH),
            "least": min(crowd.shares, default=0), "most": max(crowd.shares, default=0),
            "owned": crowd.owned().hex(), "since_ns": crowd.since_ns,
        }  # fmt: skip

    async def counts(self) -> dict[str, Any]:
        """Latencies of heartbeats and errors since the last call, and the processor time until now."""
        crowd = self.crowd
        found = {"latencies": crowd.heartbeats.pairs(), "errors": crowd.errors, "cpu_s": time.process_time()}
        crowd.reset()
        return found

    # --- for the seats

    def note(self) -> None:
        """A member has received something."""
        if self.news is not None and self._has_news():
            self._wake()

    def _has_news(self) -> bool:
        return self.crowd.changes != self.reported and self.crowd.has_settled()

    def _wake(self) -> None:
        if self.news is not None and not self.news.done():
            self.news.set_result(None)

    async def find_coordinator(self) -> None:
        """Ask the cluster which broker coordinates the group, once for all members that want to know.

        Raises KafkaError.
        """
        asked_at = time.monotonic()
        async with self.finding:
            if self.found_at > asked_at:
                return
            connection = ConnectionOptions(CLIENT_ID, self.timeout_s)
            cluster = Cluster(ClusterOptions(parse_bootstrap(self.plan["bootstrap"]), connection))
            try:
                await cluster.start(self.timeout_s)
                deadline = Deadline(self.timeout_s, "the coordinator")
                node_id = await cluster.retry(deadline, lambda: cluster.coordinator(GROUP, self.group.group_id))
                node = cluster.metadata.nodes[node_id]
                self.address = (node.host, node.port)
            finally:
                await cluster.close()
            self.found_at = time.monotonic()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            now_ns = time.perf_counter_ns()
            for seat in self.seats:
                seat.check(now_ns)

    async def close(self) -> None:
        """All members leave and close their connections."""
        if self.watch is not None:
            self.watch.cancel()
        seats, self.seats = self.seats, []
        if self.spare is not None:
            self.spare.abort()
        await asyncio.gather(*(seat.leave() for seat in seats))
