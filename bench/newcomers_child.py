"""Clients that connect while others work, for `bench.newcomers`.

    newcomers_child.py HOST PORT busy CONNECTIONS IN_FLIGHT SECONDS
    newcomers_child.py HOST PORT consumer MEMBERS
    newcomers_child.py HOST PORT classic MEMBERS

`busy` keeps IN_FLIGHT heartbeats in flight on each connection, prints a line when all connections have received their
first responses, and ends after SECONDS. `consumer` and `classic` start the members of one group. Each opens its own
connection during the measurement, CONNECTING at a time. They behave like clients: a member sends a heartbeat every
BEAT_S. A member of a consumer group also sends one as soon as its assignment changes, and a member of a classic group
rejoins during a rebalance. The time is measured from the first connection until all members agree (see
`members_child`). The child prints `ready` before that, when the topic exists, and a line of JSON at the end.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Protocol, TypeVar, cast

from bench.load import Lane, Traffic
from bench.members_child import DEADLINE_S, Member, find_coordinator, make_topic
from bench.workload import Client, decode, request_frame
from kcoord.protocol import apis, errors, heartbeat
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from kcoord.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from kcoord.wire.message import Message

GROUP = "newcomers"
TOPIC = "newcomers"
# Connections under way at once. Clients of one machine, or of many, do not wait for each other.
CONNECTING = 200
BEAT_S = 0.1
LOOK_S = 0.01
SESSION_TIMEOUT_MS = 60_000

T = TypeVar("T")


class Seat(Protocol):
    """A member: its requests, and how it handles responses."""

    def first(self) -> tuple[int, bytes]: ...

    def answered(self, api_key: int, answer: Message) -> tuple[int, bytes] | None:
        """Return the request to send at once; None: send a heartbeat after BEAT_S."""

    def beat(self) -> tuple[int, bytes]: ...


class ConsumerSeat:
    def __init__(self, number: int, topic_id: bytes) -> None:
        self.member = Member(GROUP, number, TOPIC)
        self.topic_id = topic_id

    def first(self) -> tuple[int, bytes]:
        return self.beat()

    def beat(self) -> tuple[int, bytes]:
        return apis.CONSUMER_GROUP_HEARTBEAT, self.member.request(self.topic_id)

    def answered(self, api_key: int, answer: Message) -> tuple[int, bytes] | None:
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        self.member.take(answer)
        # A member reports a new assignment in its next heartbeat, without waiting for BEAT_S.
        return self.beat() if self.member.reported != self.member.owned else None


class ClassicSeat:
    def __init__(self) -> None:
        self.member_id = ""
        self.generation_id = -1
        self.has_synced = False

    def join(self) -> tuple[int, bytes]:
        self.has_synced = False
        protocols = [JoinGroupRequestProtocol("range", b"")]
        body = JoinGroupRequest(
            GROUP, SESSION_TIMEOUT_MS, SESSION_TIMEOUT_MS, self.member_id, None, "consumer", protocols
        )
        return apis.JOIN_GROUP, request_frame(apis.JOIN_GROUP, 6, body)

    def first(self) -> tuple[int, bytes]:
        return self.join()

    def beat(self) -> tuple[int, bytes]:
        body = HeartbeatRequest(GROUP, self.generation_id, self.member_id, None)
        return apis.HEARTBEAT, request_frame(apis.HEARTBEAT, 4, body)

    def answered(self, api_key: int, answer: Message) -> tuple[int, bytes] | None:
        assert isinstance(answer, JoinGroupResponse | SyncGroupResponse | HeartbeatResponse)
        if answer.error_code == errors.MEMBER_ID_REQUIRED and isinstance(answer, JoinGroupResponse):
            self.member_id = answer.member_id
            return self.join()
        if answer.error_code in (errors.REBALANCE_IN_PROGRESS, errors.ILLEGAL_GENERATION):
            return self.join()
        if answer.error_code:
            raise RuntimeError(f"{type(answer).__name__}: error {answer.error_code}")
        if isinstance(answer, JoinGroupResponse):
            self.member_id, self.generation_id = answer.member_id, answer.generation_id
            given = [SyncGroupRequestAssignment(member.member_id, b"\0\1") for member in answer.members]
            body = SyncGroupRequest(GROUP, self.generation_id, self.member_id, None, "consumer", "range", given)
            return apis.SYNC_GROUP, request_frame(apis.SYNC_GROUP, 5, body)
        if isinstance(answer, SyncGroupResponse):
            self.has_synced = True
        return None


VERSIONS = {apis.CONSUMER_GROUP_HEARTBEAT: 1, apis.JOIN_GROUP: 6, apis.SYNC_GROUP: 5, apis.HEARTBEAT: 4}


class Connection(asyncio.Protocol):
    """One member's connection, with one request in flight."""

    def __init__(self, seat: Seat, done: asyncio.Future[None]) -> None:
        self.seat = seat
        self.done = done
        self.api_key = 0
        self.received = b""
        self.transport: asyncio.Transport
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.send(self.seat.first())

    def send(self, request: tuple[int, bytes]) -> None:
        if not self.done.done():
            self.api_key, frame = request
            self.transport.write(frame)

    def beat(self) -> None:
        self.send(self.seat.beat())

    def data_received(self, data: bytes) -> None:
        self.received += data
        if len(self.received) < 4 or len(self.received) < 4 + int.from_bytes(self.received[:4], "big"):
            return
        frame, self.received = self.received, b""
        try:
            answer = decode(self.api_key, VERSIONS[self.api_key], frame)
            following = self.seat.answered(self.api_key, answer)
        except Exception as error:
            self.fail(error)
            return
        if following is None:
            self.loop.call_later(BEAT_S, self.beat)
        else:
            self.send(following)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(RuntimeError(f"the server closed a connection ({exc})"))

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


def run(work: Coroutine[None, None, T]) -> T:
    """Run on uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def _same(connection: Connection) -> Connection:
    return connection


async def come(host: str, port: int, seats: list[Seat], agree: Callable[[], bool]) -> float:
    """Seconds from the first connection until `agree`."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    gate = asyncio.Semaphore(CONNECTING)
    connections = [Connection(seat, done) for seat in seats]

    async def connect(connection: Connection) -> None:
        async with gate:
            await loop.create_connection(partial(_same, connection), host, port)

    print("ready", flush=True)
    began = time.perf_counter()
    coming = [loop.create_task(connect(connection)) for connection in connections]
    while not all(task.done() for task in coming) or not agree():
        if done.done():
            done.result()
        if time.perf_counter() - began > DEADLINE_S:
            raise RuntimeError(f"no agreement after {DEADLINE_S:.0f} s")
        await asyncio.sleep(LOOK_S)
    seconds = time.perf_counter() - began
    done.cancel()
    for connection in connections:
        connection.transport.abort()
    return seconds


def consumers(host: str, port: int, count: int) -> float:
    client = Client(host, port)
    topic_id = make_topic(client, TOPIC, count)
    find_coordinator(client, GROUP)
    seats = [ConsumerSeat(number, topic_id) for number in range(count)]
    members = [seat.member for seat in seats]

    def agree() -> bool:
        last = max(member.epoch for member in members)
        if min(member.epoch for member in members) != last:
            return False
        shares = [len(member.owned) for member in members]
        owned = sorted(partition for member in members for partition in member.owned)
        return owned == list(range(count)) and max(shares) - min(shares) <= 1

    return run(come(host, port, list(seats), agree))


def classics(host: str, port: int, count: int) -> float:
    find_coordinator(Client(host, port), GROUP)
    seats = [ClassicSeat() for _ in range(count)]

    def agree() -> bool:
        return all(seat.has_synced for seat in seats) and len({seat.generation_id for seat in seats}) == 1

    return run(come(host, port, list(seats), agree))


async def keep_busy(host: str, port: int, connections: int, in_flight: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    request = request_frame(apis.HEARTBEAT, 4, HeartbeatRequest("nobody", 1, "nobody"))
    traffic = Traffic(request, Client(host, port).exchange(request))
    done: asyncio.Future[None] = loop.create_future()
    lanes = [Lane(traffic, in_flight, done) for _ in range(connections)]
    for lane in lanes:
        await loop.create_connection(lambda lane=lane: lane, host, port)  # type: ignore[misc]
        lane.send(1)
    while not done.done() and not all(lane.answered for lane in lanes):
        await asyncio.sleep(LOOK_S)
    for lane in lanes:
        lane.send(in_flight - 1)
    print("busy", flush=True)
    await asyncio.wait([done], timeout=seconds)
    if done.done():
        done.result()
    for lane in lanes:
        lane.stopping = True
    done.cancel()
    print(json.dumps({"heartbeats": sum(lane.answered for lane in lanes)}))


def main() -> None:
    host, port, what, numbers = sys.argv[1], int(sys.argv[2]), sys.argv[3], [int(text) for text in sys.argv[4:]]
    if what == "busy":
        run(keep_busy(host, port, numbers[0], numbers[1], numbers[2]))
        return
    seconds = (consumers if what == "consumer" else classics)(host, port, numbers[0])
    cpu_s = time.process_time()
    compiled = not str(heartbeat.__file__).endswith(".py")
    print(json.dumps({"seconds": seconds, "client_cpu_s": cpu_s, "compiled": compiled}))


if __name__ == "__main__":
    main()
