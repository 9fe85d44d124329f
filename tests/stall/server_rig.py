"""What frames do to a server: a process of its own, with another client that pings while each frame is dealt with.

The longest ping is what everybody else waits for, whatever it is made of: turns, jobs that keep the interpreter's lock,
the collector, the disk.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from kcoord.log.storage import DiskStorage
from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersionsRequest
from kcoord.server.pump import read_clocks
from tests.harness.engine import decode_answer, request_frame
from tests.harness.kcoord_server import KcoordServer
from tests.stall.frames import Frame
from tests.stall.rig import Peer
from tests.stall.worlds import World, make_world

PING_EVERY_S: Final = 0.002
# After so long a frame's answer is not waited for.
ANSWER_DEADLINE_S: Final = 20.0
# A request that waits for an event gets no answer: the server has done what it can when it used less than half of a
# processor for so long. Pings take a part of the other half.
IDLE_S: Final = 0.2
IDLE_CPU_S: Final = IDLE_S / 2
ASIDE_S: Final = 1.0
RECEIVE_BYTES: Final = 1 << 20
PING: Final = request_frame(apis.API_VERSIONS, 0, ApiVersionsRequest("", ""))


class Pinger:
    """Pings on a connection of its own, one after the other, from a thread.

    The time that the server's loop or this thread was ready to run and got no processor is not counted: that is what
    other processes of the machine do.
    """

    def __init__(self, pid: int, port: int) -> None:
        self._loop = Path(f"/proc/{pid}/task/{pid}/schedstat")
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_DEADLINE_S * 2)
        self._is_stopped = False
        self.longest_ms = 0.0
        self.pings = 0
        self.error = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        self.longest_ms = 0.0
        self.pings = 0

    def stop(self) -> None:
        self._is_stopped = True
        self._thread.join(ANSWER_DEADLINE_S * 2)
        self._socket.close()

    def _run(self) -> None:
        try:
            while not self._is_stopped:
                start = time.monotonic() - self._delays()
                self._socket.sendall(PING)
                receive_frame(self._socket)
                self.longest_ms = max(self.longest_ms, (time.monotonic() - self._delays() - start) * 1000)
                self.pings += 1
                time.sleep(PING_EVERY_S)
        except (OSError, EOFError) as error:
            self.error = f"the ping's connection: {error or 'closed'}"

    def _delays(self) -> float:
        """Seconds that the two threads waited for a processor, so far."""
        return _seconds(self._loop, 1) + _seconds(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat"), 1)


def receive(sock: socket.socket, size: int) -> bytes:
    """Exactly so many bytes. Raises EOFError when the connection ends before."""
    chunks = []
    while size > 0:
        chunk = sock.recv(min(size, RECEIVE_BYTES))
        if not chunk:
            raise EOFError
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def receive_frame(sock: socket.socket) -> bytes:
    return receive(sock, struct.unpack(">i", receive(sock, 4))[0])


class ServerPeer(Peer):
    def __init__(self, port: int) -> None:
        self.port = port
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_DEADLINE_S)
        self.others: list[socket.socket] = []

    def ask(self, api_key: int, version: int, message: Any) -> Any:
        self.socket.sendall(request_frame(api_key, version, message))
        return decode_answer(api_key, version, receive_frame(self.socket)[4:])

    def send_aside(self, frame: bytes) -> None:
        other = socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_DEADLINE_S)
        self.others.append(other)
        other.sendall(frame)
        time.sleep(ASIDE_S)

    def close(self) -> None:
        for sock in (self.socket, *self.others):
            sock.close()


class Visit:
    """What one frame did to a server."""

    def __init__(self) -> None:
        self.ping_ms = 0.0
        self.pings = 0
        # CPU of the whole process, and of the thread of its event loop.
        self.cpu_ms = 0.0
        self.loop_cpu_ms = 0.0
        self.answer_bytes = 0
        # What came instead of an answer.
        self.outcome = ""


class WorldServer:
    """A server on a copy of a world, started anew whenever the copy was changed."""

    def __init__(self, world_name: str, scale: float = 1.0) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="kcoord-stall-"))
        self._scale = scale
        self._server: KcoordServer | None = None
        self._pinger: Pinger | None = None
        self._name = world_name
        self.world: World

    def __enter__(self) -> Self:
        storage = DiskStorage(str(self._home / "world"))
        self.world = make_world(self._name, storage, read_clocks(), "os", self._scale)
        self.world.stop()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def stop(self) -> None:
        if self._pinger is not None:
            self._pinger.stop()
            self._pinger = None
        if self._server is not None:
            self._server.stop(kill=True)
            self._server.close()
            self._server = None
            shutil.rmtree(self._home / "data", ignore_errors=True)

    def start(self) -> tuple[KcoordServer, Pinger]:
        if self._server is None or self._pinger is None:
            data = self._home / "data"
            shutil.copytree(self._home / "world", data)
            self._server = KcoordServer(data=data)
            self._server.start()
            self._pinger = Pinger(self._server.pid, self._server.port)
        return self._server, self._pinger

    def visit(self, frame: Frame, data: bytes) -> Visit:
        """Send the frame and see what happens until its answer is there."""
        server, pinger = self.start()
        found = Visit()
        peer = ServerPeer(server.port)
        is_over = frame.changes
        try:
            if frame.prepare is not None:
                frame.prepare(peer)
            pinger.reset()
            before = cpu_of(server.pid), cpu_of_loop(server.pid)
            is_over = not self._send(server, peer, data, found) or is_over
            # The ping that is under way is part of it.
            pings = pinger.pings
            until = time.monotonic() + ANSWER_DEADLINE_S
            while pinger.pings == pings and not pinger.error and time.monotonic() < until:
                time.sleep(PING_EVERY_S)
            found.cpu_ms = (cpu_of(server.pid) - before[0]) * 1000
            found.loop_cpu_ms = (cpu_of_loop(server.pid) - before[1]) * 1000
            found.ping_ms = pinger.longest_ms
            found.pings = pinger.pings
            if pinger.error or not server.is_alive:
                found.outcome = pinger.error or "the server ended"
                is_over = True
        finally:
            peer.close()
            if is_over:
                self.stop()
        return found

    def _send(self, server: KcoordServer, peer: ServerPeer, data: bytes, found: Visit) -> bool:
        """Whether the server dealt with the frame in time."""
        sock = peer.socket
        try:
            sock.sendall(data)
            sock.settimeout(IDLE_S)
            until = time.monotonic() + ANSWER_DEADLINE_S
            while True:
                busy_s = wanted_cpu_of(server.pid)
                try:
                    size = struct.unpack(">i", receive(sock, 4))[0]
                    break
                except TimeoutError:
                    if wanted_cpu_of(server.pid) - busy_s < IDLE_CPU_S:
                        found.outcome = "it waits for an event"
                        return True
                    if time.monotonic() > until:
                        found.outcome = f"no answer in {ANSWER_DEADLINE_S:.0f} s"
                        return False
            sock.settimeout(ANSWER_DEADLINE_S)
            while size > 0:
                chunk = sock.recv(min(size, RECEIVE_BYTES))
                if not chunk:
                    raise EOFError
                size -= len(chunk)
                found.answer_bytes += len(chunk)
            return True
        except TimeoutError:
            found.outcome = f"no answer in {ANSWER_DEADLINE_S:.0f} s"
            return False
        except (OSError, EOFError):
            found.outcome = "the server closed the connection"
            return True


def _seconds(path: Path, column: int) -> float:
    """Of a thread, seconds that it ran (column 0) or waited for a processor (1). 0 for a thread that is gone."""
    try:
        return int(path.read_text().split()[column]) / 1e9
    except OSError:
        return 0.0


def cpu_of_loop(pid: int) -> float:
    return _seconds(Path(f"/proc/{pid}/task/{pid}/schedstat"), 0)


def wanted_cpu_of(pid: int) -> float:
    """Seconds of CPU that a process used, and that its loop was ready to use while other processes had the machine."""
    return cpu_of(pid) + _seconds(Path(f"/proc/{pid}/task/{pid}/schedstat"), 1)


def cpu_of(pid: int) -> float:
    """CPU seconds of all threads that live."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0.0
    return sum(_seconds(Path(f"/proc/{pid}/task/{thread}/schedstat"), 0) for thread in threads)


def memory_mb(pid: int) -> float:
    """Resident memory."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024
