"""What many clients together can make a server hold: those that ask and never read, and those that send half a request.

The bound is what the settings allow: `queued.max.response.bytes` for answers, `queued.max.request.bytes` for requests,
and a fixed part for connections, the answers that are being made, and what the allocator keeps.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from kcoord.protocol import apis
from kcoord.protocol.describe_groups import DescribeGroupsRequest
from kcoord.protocol.metadata import MetadataRequest
from kcoord.protocol.offset_fetch import OffsetFetchRequest
from kcoord.server.settings.load import load as load_config
from tests.harness.engine import request_frame
from tests.stall.frames_data import everything
from tests.stall.server_rig import WorldServer, memory_mb
from tests.stall.shapes import frame_bytes_max
from tests.stall.worlds import CLASSIC_GROUP, OFFSETS_GROUP

CONNECTIONS: Final = 1_000
# How often each asks: a server that answers everybody in one turn has no time to notice that nobody reads.
ASKS: Final = 3
SAMPLE_S: Final = 0.1
# How long memory is watched after the last request was sent.
WATCH_S: Final = 10.0
# Beside both pools: 1,000 connections with their buffers, answers that are being made, arenas that are not full.
OVERHEAD_MB: Final = 256.0
SOCKET_BUFFER_BYTES: Final = 4_096
# Of half a request each connection sends this much at most: all together far more than the bound.
HALF_BYTES_MAX: Final = 2 << 20


class Crowd:
    """A scenario: what each of the connections sends, in which world."""

    def __init__(self, what: str, world: str, frame: Callable[[], bytes], is_half: bool = False) -> None:
        self.what = what
        self.world = world
        self.frame = frame
        # Half of the frame is sent, once.
        self.is_half = is_half


class Held:
    """What a server held meanwhile."""

    def __init__(self) -> None:
        self.before_mb = 0.0
        self.most_mb = 0.0
        self.bound_mb = 0.0
        # How often the memory was looked at once everything was sent.
        self.samples = 0
        self.ping_ms = 0.0
        self.outcome = ""

    @property
    def grown_mb(self) -> float:
        return self.most_mb - self.before_mb


def _ask(api_key: int, version: int, make: Callable[[], Any]) -> Callable[[], bytes]:
    return lambda: request_frame(api_key, version, make())


def crowds() -> list[Crowd]:
    unread = f"{CONNECTIONS:,} connections that never read: "
    half = f"{CONNECTIONS:,} connections with half a request: "
    return [
        Crowd(unread + "Fetch of 55 MB", "data", _ask(apis.FETCH, 12, everything)),
        Crowd(
            unread + "Metadata of all", "topics",
            _ask(apis.METADATA, 12, lambda: MetadataRequest(None, False, False)),
        ),
        Crowd(
            unread + "DescribeGroups of 10,000 members", "classic",
            _ask(apis.DESCRIBE_GROUPS, 5, lambda: DescribeGroupsRequest([CLASSIC_GROUP], False)),
        ),
        Crowd(
            unread + "OffsetFetch of 33 MB", "offsets",
            _ask(apis.OFFSET_FETCH, 7, lambda: OffsetFetchRequest(OFFSETS_GROUP, None)),
        ),
        Crowd(half + "JoinGroup", "empty", lambda: large_frame(apis.JOIN_GROUP), is_half=True),
        Crowd(half + "Produce", "empty", lambda: large_frame(apis.PRODUCE), is_half=True),
        Crowd(half + "Metadata", "empty", lambda: large_frame(apis.METADATA), is_half=True),
    ]  # fmt: skip


def large_frame(api_key: int) -> bytes:
    """As many bytes as a request of this API may have. They mean nothing: the frame is never complete."""
    size = frame_bytes_max(api_key)
    head = size.to_bytes(4, "big") + api_key.to_bytes(2, "big") + (3).to_bytes(2, "big")
    return head + bytes(size + 4 - len(head))


def bound_mb() -> float:
    config = load_config()
    return (config.core.queued_response_bytes_max + config.server.queued_bytes_max) / (1 << 20) + OVERHEAD_MB


@contextmanager
def connected(port: int, count: int) -> Iterator[list[socket.socket]]:
    """This many connections whose clients have tiny receive buffers."""
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            sock = socket.socket()
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
            sock.settimeout(10.0)
            sock.connect(("127.0.0.1", port))
            sock.setblocking(False)
        yield sockets
    finally:
        for sock in sockets:
            sock.close()


def hold(crowd: Crowd, server: WorldServer, connections: int = CONNECTIONS, watch_s: float = WATCH_S) -> Held:
    """Let the connections send what they have to, and watch the server's memory."""
    held = Held()
    process, pinger = server.start()
    frame = crowd.frame()
    data = frame[: min(len(frame) // 2, HALF_BYTES_MAX)] if crowd.is_half else frame * ASKS
    held.before_mb = held.most_mb = memory_mb(process.pid)
    held.bound_mb = bound_mb()
    pinger.reset()
    try:
        with connected(process.port, connections) as sockets:
            left = {sock: memoryview(data) for sock in sockets}
            until = time.monotonic() + watch_s
            last = time.monotonic() + watch_s * 6
            sampled = 0.0
            while time.monotonic() < until:
                for sock in list(left):
                    if _send_some(sock, left):
                        until = min(time.monotonic() + watch_s, last)
                    sampled = _sample(held, process.pid, sampled)
                sampled = _sample(held, process.pid, sampled)
                held.samples += not left
                if held.most_mb > 2 * held.bound_mb + held.before_mb:
                    held.outcome = "stopped at twice the bound"
                    break
                time.sleep(SAMPLE_S / 10)
        held.ping_ms = pinger.longest_ms
        if pinger.error or not process.is_alive:
            held.outcome = pinger.error or "the server ended"
    finally:
        server.stop()
    return held


def _sample(held: Held, pid: int, sampled: float) -> float:
    """Look at the memory if it is time to; when that was done last."""
    now = time.monotonic()
    if now - sampled < SAMPLE_S:
        return sampled
    held.most_mb = max(held.most_mb, memory_mb(pid))
    return now


def _send_some(sock: socket.socket, left: dict[socket.socket, memoryview]) -> bool:
    """Whether anything went out. A connection that is done or gone leaves the list."""
    data = left[sock]
    try:
        sent = sock.send(data)
    except BlockingIOError:
        return False
    except OSError:
        del left[sock]
        return False
    if sent == len(data):
        del left[sock]
    else:
        left[sock] = data[sent:]
    return True
