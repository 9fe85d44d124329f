"""The load generator: prebuilt frames over many connections with a fixed number in flight.

The generator must cost less than the server, or it would measure itself. Requests are slices of a prebuilt ring of
frames (correlation ids repeat), so sending any number of them is one write of one slice. All responses of one
measurement have the same size, so the number of bytes gives the number of responses. If a read ends with a whole
response, it is compared with the first one, and its correlation id with the expected one. Latency is kept per write and
read, not per request.
"""

from __future__ import annotations

import asyncio
import gc
import struct
import time
from collections import deque
from functools import partial
from typing import cast

WARM_UP_SECONDS = 0.3
STUCK_SECONDS = 10.0


class Traffic:
    """What one connection sends and expects.

    `request` and `response` are whole frames, length prefix included; bytes 8 to 11 of a request and 4 to 7
    of a response are the correlation id, unless `echo`, where the response is the request. `varies` switches
    the comparison of the response's body off, for responses with offsets.
    """

    def __init__(self, request: bytes, response: bytes, echo: bool = False, varies: bool = False) -> None:
        self.request = request
        self.response = response
        self.id_at = 8 if echo else 4
        self.varies = varies

    def ring(self, size: int) -> memoryview:
        """`size` requests with the ids 0, 1, ..., twice in a row, so that any sequence of up to `size` is one slice."""
        frames = [self.request[:8] + struct.pack(">i", number) + self.request[12:] for number in range(size)]
        return memoryview(b"".join(frames * 2))


class Lane(asyncio.Protocol):
    """One connection. `samples` are (latency in seconds, requests)."""

    def __init__(self, traffic: Traffic, in_flight: int, done: asyncio.Future[None]) -> None:
        self.traffic = traffic
        self.in_flight = in_flight
        self.ring = traffic.ring(in_flight)
        self.request_bytes = len(traffic.request)
        self.response_bytes = len(traffic.response)
        self.expected = traffic.response[traffic.id_at + 4 :]
        self.next_id = 0
        self.received_bytes = 0
        self.answered = 0
        self.sent: deque[tuple[float, int]] = deque()
        self.samples: list[tuple[float, int]] = []
        self.stopping = False
        self.done = done
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport without being instances of it.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=1 << 30)

    def send(self, count: int) -> None:
        start = self.next_id
        self.next_id = (start + count) % self.in_flight
        self.sent.append((time.perf_counter(), count))
        if self.transport is not None:
            self.transport.write(self.ring[start * self.request_bytes : (start + count) * self.request_bytes])

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        answered, rest = divmod(self.received_bytes, self.response_bytes)
        count = answered - self.answered
        if not count:
            return
        self.answered = answered
        if not rest and len(data) >= self.response_bytes and not self.check(data):
            return
        now = time.perf_counter()
        left = count
        while left:
            started, size = self.sent[0]
            if size > left:
                self.sent[0] = (started, size - left)
                size = left
            else:
                self.sent.popleft()
            self.samples.append((now - started, size))
            left -= size
        if not self.stopping:
            self.send(count)

    def check(self, data: bytes) -> bool:
        """Compare the last response of a read with the expected one."""
        body = data[-len(self.expected) :] if self.expected else b""
        at = len(data) - self.response_bytes + self.traffic.id_at
        number = int.from_bytes(data[at : at + 4], "big")
        due = (self.answered - 1) % self.in_flight
        if number == due and (self.traffic.varies or body == self.expected):
            return True
        self.fail(f"response {number} instead of {due}: {body[:64]!r}, expected {self.expected[:64]!r}")
        return False

    def fail(self, text: str) -> None:
        self.stopping = True
        if not self.done.done():
            self.done.set_exception(RuntimeError(text))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.stopping:
            self.fail(f"the server closed a connection ({exc})")


class Result:
    """Requests per second and latency percentiles of one measurement or of several combined."""

    def __init__(self, samples: list[tuple[float, int]], seconds: float) -> None:
        self.requests = sum(count for _, count in samples)
        self.per_second = self.requests / seconds
        self.samples = ordered = sorted(samples)
        self.p50_ms = self.percentile(ordered, 0.50)
        self.p99_ms = self.percentile(ordered, 0.99)

    def percentile(self, ordered: list[tuple[float, int]], share: float) -> float:
        wanted, seen = self.requests * share, 0
        for latency, count in ordered:
            seen += count
            if seen >= wanted:
                return latency * 1000
        return float("nan")

    def as_dict(self) -> dict[str, float]:
        return {"per_second": self.per_second, "p50_ms": self.p50_ms, "p99_ms": self.p99_ms}


def _same(lane: Lane) -> Lane:
    return lane


async def drive(host: str, port: int, lanes: list[Traffic], in_flight: int, seconds: float) -> Result:
    """Keep `in_flight` requests on every lane for `seconds` after a warm-up.

    Raises RuntimeError if a response is wrong, a connection ends, or a connection never receives a response.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    open_lanes: list[Lane] = []
    for traffic in lanes:
        lane = Lane(traffic, in_flight, done)
        await loop.create_connection(partial(_same, lane), host, port)
        open_lanes.append(lane)
    gc.collect()
    gc.disable()
    try:
        for lane in open_lanes:
            lane.send(in_flight)
        await asyncio.wait([done], timeout=WARM_UP_SECONDS)
        for lane in open_lanes:
            lane.samples.clear()
        started = time.perf_counter()
        await asyncio.wait([done], timeout=seconds)
        elapsed = time.perf_counter() - started
        samples = [sample for lane in open_lanes for sample in lane.samples]
        stuck = time.perf_counter() + STUCK_SECONDS
        while not done.done() and not all(lane.answered for lane in open_lanes):
            if time.perf_counter() > stuck:
                raise RuntimeError(f"a connection received no response within {STUCK_SECONDS:.0f} s")
            await asyncio.sleep(0.05)
    finally:
        gc.enable()
        for lane in open_lanes:
            lane.stopping = True
            if lane.transport is not None:
                lane.transport.abort()
    if done.done():
        done.result()
    else:
        done.cancel()
    return Result(samples, elapsed)


def measure(host: str, port: int, lanes: list[Traffic], in_flight: int, seconds: float) -> Result:
    """Run `drive` on a new event loop, with uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(drive(host, port, lanes, in_flight, seconds))
    return uvloop.run(drive(host, port, lanes, in_flight, seconds))
