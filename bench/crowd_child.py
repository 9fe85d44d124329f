"""Connections for `bench.crowd`, each of which may become a member of one group.

    crowd_child.py HOST PORT PROTOCOL CONNECTIONS FIRST_NUMBER BEAT_S TOPIC_ID

It reads commands from its standard input, one in a line, and answers each with a line of JSON:

    connect         open all connections; each sends ApiVersions and receives the answer
    join PARTS      all become members; the answer comes when they are in one generation or epoch and have PARTS
                    partitions together, or any number if it is 0; members of a classic group count as having one each
    count SECONDS   the latencies of the heartbeats of that time, in ms
    rejoin COUNT    that many members leave with their next heartbeat and join again under a new id

A member sends a heartbeat BEAT_S after its last answer, and the next request at once when it has something to report.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from functools import partial
from typing import cast

from bench.newcomers_child import run
from bench.seats import KINDS, VERSIONS, Seat
from bench.workload import decode, request_frame
from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersionsRequest

TOPIC = "group"
CONNECTING = 100
LOOK_S = 0.1
DEADLINE_S = 300.0
API_VERSIONS_VERSION = 3
BEATS = (apis.HEARTBEAT, apis.CONSUMER_GROUP_HEARTBEAT)


class Link(asyncio.Protocol):
    """A connection with one request in flight."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd
        self.seat: Seat | None = None
        # Whether it leaves instead of its next heartbeat, and whether it waits for the answer to that.
        self.leaves = False
        self.is_leaving = False
        self.api_key = -1
        self.sent = 0.0
        # Whether the request in flight is a heartbeat that its time has come for.
        self.is_beat = False
        self.received = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        body = ApiVersionsRequest("bench", "1")
        self.transport.write(request_frame(apis.API_VERSIONS, API_VERSIONS_VERSION, body))

    def send(self) -> None:
        assert self.seat is not None
        self.api_key, version, body = self.seat.request()
        self.sent = time.perf_counter()
        self.transport.write(request_frame(self.api_key, version, body))

    def beat(self) -> None:
        assert self.seat is not None
        if self.leaves:
            self.leaves, self.is_leaving = False, True
            self.api_key, version, body = self.seat.leave()
            self.transport.write(request_frame(self.api_key, version, body))
            return
        self.is_beat = True
        self.send()

    def data_received(self, data: bytes) -> None:
        self.received += data
        if len(self.received) < 4 or len(self.received) < 4 + int.from_bytes(self.received[:4], "big"):
            return
        frame, self.received = self.received, b""
        if self.seat is None:
            self.crowd.connected += 1
            return
        if self.is_beat and self.api_key in BEATS:
            self.crowd.latencies.append(time.perf_counter() - self.sent)
        self.is_beat = False
        if self.is_leaving:
            self.is_leaving = False
            self.seat = self.crowd.new_seat()
            self.send()
            return
        try:
            self.seat.take(decode(self.api_key, VERSIONS[self.api_key], frame))
            if self.seat.has_news():
                self.send()
                return
        except Exception as error:
            self.crowd.fail(error)
        self.crowd.loop.call_later(self.crowd.beat_s, self.beat)

    def connection_lost(self, exc: Exception | None) -> None:
        self.crowd.fail(RuntimeError(f"the server closed a connection ({exc})"))


class Crowd:
    def __init__(self, arguments: list[str]) -> None:
        self.host, self.port, self.protocol = arguments[0], int(arguments[1]), arguments[2]
        self.count, self.number = int(arguments[3]), int(arguments[4])
        self.beat_s = float(arguments[5])
        self.topic_id = bytes.fromhex(arguments[6])
        self.links: list[Link] = []
        self.connected = 0
        self.latencies: list[float] = []
        self.error: Exception | None = None
        self.loop = asyncio.get_running_loop()

    def new_seat(self) -> Seat:
        self.number += 1
        return KINDS[self.protocol](TOPIC, TOPIC, self.number, self.topic_id)

    def fail(self, error: Exception) -> None:
        """The command that is carried out raises the first error."""
        self.error = self.error or error

    async def until(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self.error is not None:
            raise self.error

    async def connect(self) -> dict[str, float]:
        gate = asyncio.Semaphore(CONNECTING)
        self.links = [Link(self) for _ in range(self.count)]

        async def one(link: Link) -> None:
            async with gate:
                await self.loop.create_connection(partial(_same, link), self.host, self.port)

        await asyncio.gather(*[one(link) for link in self.links])
        while self.connected < self.count:
            await self.until(LOOK_S)
        return {"connections": self.connected}

    async def join(self, partitions: int) -> dict[str, float]:
        began, cpu_s = time.perf_counter(), time.process_time()
        for link in self.links:
            link.seat = self.new_seat()
            link.send()
        while not self.agrees(partitions):
            if time.perf_counter() - began > DEADLINE_S:
                raise RuntimeError(f"no agreement after {DEADLINE_S:.0f} s")
            await self.until(LOOK_S)
        return {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu_s}

    def agrees(self, partitions: int) -> bool:
        found = [link.seat.agreement() for link in self.links if link.seat is not None]
        epochs = {epoch for epoch, _ in found}
        if len(epochs) > 1 or -1 in epochs:
            return False
        return not partitions or sum(share for _, share in found) == partitions

    async def count_beats(self, seconds: float) -> dict[str, float]:
        self.latencies.clear()
        cpu_s = time.process_time()
        await self.until(seconds)
        found = sorted(self.latencies)
        if not found:
            raise RuntimeError("no heartbeat was answered")
        return {
            "beats": len(found),
            "p50_ms": found[len(found) // 2] * 1000,
            "p99_ms": found[len(found) * 99 // 100] * 1000,
            "max_ms": found[-1] * 1000,
            "cpu_s": time.process_time() - cpu_s,
        }

    def rejoin(self, count: int) -> dict[str, float]:
        for link in self.links[:: max(1, len(self.links) // count)][:count]:
            link.leaves = True
        return {}


def _same(link: Link) -> Link:
    return link


async def serve() -> None:
    crowd = Crowd(sys.argv[1:])
    while True:
        line = await crowd.loop.run_in_executor(None, sys.stdin.readline)
        command, _, argument = line.strip().partition(" ")
        if command == "connect":
            answer = await crowd.connect()
        elif command == "join":
            answer = await crowd.join(int(argument))
        elif command == "count":
            answer = await crowd.count_beats(float(argument))
        elif command == "rejoin":
            answer = crowd.rejoin(int(argument))
        else:
            return
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    run(serve())
