"""Lanes on sockets: the load of all steady workloads except transactions."""

from __future__ import annotations

import asyncio
import base64
import gc
import time
from typing import Any, Final, cast

from kcoord.cli.bench.load import CONNECTION_LOST, DRAIN_S, NO_ANSWER, WRONG_ANSWER, figures
from kcoord.client.load.frames import AnswerJudge
from kcoord.client.load.lane import Lane, WrongAnswer

CONNECT_S: Final = 30.0
DRAIN_PAUSE_S: Final = 0.005
# A request is written as a whole; the number in flight bounds what a transport keeps.
WRITE_BUFFER_BYTES: Final = 1 << 30


def lane_plan(
    host: str, port: int, api_key: int, version: int, parts: list[bytes], in_flight: int, number: int = 0
) -> dict[str, Any]:
    """A lane as JSON, for `LaneLoad`."""
    return {
        "host": host, "port": port, "api_key": api_key, "version": version, "in_flight": in_flight, "number": number,
        "parts": [base64.b64encode(part).decode() for part in parts],
    }  # fmt: skip


class LaneProtocol(asyncio.Protocol):
    """The connection of a lane."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.transport: asyncio.Transport | None = None
        self.is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport without being instances of it.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def begin(self) -> None:
        if not self.is_over and self.transport is not None:
            self.transport.write(self.lane.begin(time.perf_counter_ns()))

    def data_received(self, data: bytes) -> None:
        try:
            requests = self.lane.received(data, time.perf_counter_ns())
        except WrongAnswer:
            self.end(WRONG_ANSWER)
            return
        if requests and self.transport is not None:
            self.transport.write(requests)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_over:
            self.end(CONNECTION_LOST)

    def end(self, error: str = "") -> None:
        """Close the connection. The requests without an answer count as errors of this name."""
        self.is_over = True
        lane = self.lane
        lane.stopping = True
        if error:
            lane.errors[error] = lane.errors.get(error, 0) + max(lane.waiting, 1)
        lane.waiting = 0
        if self.transport is not None:
            self.transport.abort()


class LaneLoad:
    def __init__(self, plans: list[dict[str, Any]]) -> None:
        self.plans = plans
        self.lanes: list[LaneProtocol] = []

    async def open(self) -> None:
        for plan in self.plans:
            self.lanes.append(await self._connect(plan, plan["number"]))

    async def _connect(self, plan: dict[str, Any], number: int) -> LaneProtocol:
        parts = [base64.b64decode(part) for part in plan["parts"]]
        lane = Lane(parts, number, plan["in_flight"], AnswerJudge(plan["api_key"], plan["version"]))
        protocol = LaneProtocol(lane)
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().create_connection(lambda: protocol, plan["host"], plan["port"])
        return protocol

    async def round(self, warm_up_s: float, seconds: float) -> dict[str, Any]:
        await self._connect_again()
        lanes = [one.lane for one in self.lanes]
        gc.collect()
        gc.disable()
        try:
            for one in self.lanes:
                one.begin()
            await asyncio.sleep(warm_up_s)
            for lane in lanes:
                lane.reset()
            began, cpu_began = time.perf_counter(), time.process_time()
            await asyncio.sleep(seconds)
            elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu_began
            for lane in lanes:
                lane.stopping = True
            answered = sum(lane.histogram.total for lane in lanes)
            moved = sum(lane.received_bytes + lane.sent_bytes for lane in lanes)
            await self._drain()
        finally:
            gc.enable()
        return figures(
            answered, elapsed, (lane.histogram for lane in lanes), (lane.errors for lane in lanes), moved, cpu
        )

    async def _connect_again(self) -> None:
        """Replace connections that were lost. A broker that cannot be reached is one error in the next round."""
        for at, one in enumerate(self.lanes):
            if one.is_over:
                try:
                    self.lanes[at] = await self._connect(self.plans[at], one.lane.number)
                except OSError:
                    one.end(CONNECTION_LOST)

    async def _drain(self) -> None:
        """Wait for the answers that are still missing, so that slow ones count."""
        deadline = time.perf_counter() + DRAIN_S
        while any(one.lane.waiting for one in self.lanes):
            if time.perf_counter() > deadline:
                for one in self.lanes:
                    if one.lane.waiting:
                        one.end(NO_ANSWER)
                return
            await asyncio.sleep(DRAIN_PAUSE_S)

    async def close(self) -> None:
        for one in self.lanes:
            one.end()
