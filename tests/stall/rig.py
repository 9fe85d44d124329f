"""What frames cost an engine: each is measured in a process of its own, which begins as a copy of a world.

A turn is what the server's event loop does without looking at its sockets: it takes a frame and ends the turn, or it
handles a finished commit, the result of a job or due timers and ends the turn; then it logs what is worth a line. Jobs
run in threads in a server; here they run between turns and count apart. How long a thread keeps the loop from running
shows in the pings of a real server. Times are CPU times of the thread: disks and other processes do not matter.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from kcoord.core.outcome import Job, Now, StepJob
from kcoord.engine.engine import Engine
from kcoord.engine.session import Session
from kcoord.log.journal import CommitTicket
from kcoord.server.logs import ServerLog
from kcoord.server.main import GC_THRESHOLDS
from tests.harness.engine import Client, finish_turn
from tests.stall.worlds import World

# A frame that takes more is not waited for.
CPU_SECONDS_MAX: Final = 10
MEMORY_BYTES_MAX: Final = 4 << 30
# How many turns a frame is followed for, and up to how many milliseconds from now timers fire meanwhile.
TURNS_MAX: Final = 20_000
TIMERS_MS: Final = 1_500
# A small frame is sent many times at once, too: a turn takes many of them, and its budget counts bytes.
SMALL_BYTES: Final = 4_096
BURST_BYTES: Final = 64 * 1024
BURST_COPIES_MAX: Final = 400
BURST_MS_MAX: Final = 1_000.0


class Cost:
    """What one frame cost."""

    def __init__(self) -> None:
        self.turns_ms: list[float] = []
        self.jobs_ms: list[float] = []
        # The longest step of a job that has steps.
        self.step_ms = 0.0
        self.answer_bytes = 0
        # By how much the process grew at most.
        self.memory_mb = 0.0
        # Why the server closed the connection, and why the measurement ended early.
        self.close_reason = ""
        self.error = ""

    @property
    def cpu_ms(self) -> float:
        return sum(self.turns_ms)

    @property
    def longest_ms(self) -> float:
        return max(self.turns_ms, default=0.0)

    @property
    def job_ms(self) -> float:
        return sum(self.jobs_ms)


class Peer:
    """A connection as a frame's preparation sees it, to an engine or to a server."""

    def ask(self, api_key: int, version: int, message: Any) -> Any:
        """Send a request and return its answer."""
        raise AssertionError(f"{type(self).__name__} cannot ask")

    def send_aside(self, frame: bytes) -> None:
        """Send a frame on a connection of its own, which stays open, and wait until it is dealt with."""
        raise AssertionError(f"{type(self).__name__} cannot send")


class EnginePeer(Peer):
    def __init__(self, world: World) -> None:
        self.world = world
        self.client = Client(world.engine)

    def ask(self, api_key: int, version: int, message: Any) -> Any:
        return self.world.ask_on(self.client, api_key, version, message)

    def send_aside(self, frame: bytes) -> None:
        world = self.world
        world.engine.receive(Client(world.engine).session, frame, world.now)
        finish_turn(world.engine, world.now)


class Turns:
    """Drives an engine as the server's pump does, with a clock on each turn."""

    def __init__(self, engine: Engine, session: Session, now: Now, cost: Cost) -> None:
        self.engine = engine
        self.session = session
        self.now = now
        self.until_ms = now.mono_ms + TIMERS_MS
        self.cost = cost
        self.log = ServerLog(open(os.devnull, "w"), "json")
        self.log.open()
        self.ticket: CommitTicket | None = None
        # Whether the session had waiting requests for another turn.
        self.has_waiting = False

    def run(self, frame: bytes) -> None:
        """Send a frame and run turns until all its work is done."""
        self._turn(lambda: self.engine.receive(self.session, frame, self.now))
        while len(self.cost.turns_ms) < TURNS_MAX and self._next_turn():
            pass
        self.cost.close_reason = self.session.close_reason

    def _next_turn(self) -> bool:
        """Run one more turn. Returns False if none is needed."""
        engine = self.engine
        ticket = self.ticket
        if ticket is not None:
            self.ticket = None
            ticket.sync()
            self._turn(lambda: engine.commit_done(ticket, self.now))
            return True
        jobs = engine.take_jobs()
        if jobs:
            for job in jobs:
                self._job(job)
            return True
        if engine.has_more() or self.has_waiting:
            self._turn(lambda: None)
            return True
        due_ms = engine.next_deadline_ms()
        if due_ms < 0 or due_ms > self.until_ms:
            return False
        ahead_ms = max(due_ms - self.now.mono_ms, 0)
        self.now = Now(self.now.mono_ms + ahead_ms, self.now.wall_ms + ahead_ms)
        self._turn(lambda: engine.fire_timers(self.now))
        return True

    def _turn(self, work: Callable[[], object]) -> None:
        start = time.thread_time()
        work()
        ticket = self.engine.end_turn(self.now)
        pieces = [session.take_pieces() for session in self.engine.take_ready()]
        session = self.session
        self.has_waiting = bool(session.backlog) and not session.parked_request_id and not session.close_reason
        if self.has_waiting:
            self.engine.output_taken(session)
        self.log.facts(self.engine.take_facts())
        self.cost.turns_ms.append((time.thread_time() - start) * 1000)
        self.cost.answer_bytes += sum(len(piece) for taken in pieces for piece in taken)
        if ticket is not None:
            self.ticket = ticket

    def _job(self, job: Job) -> None:
        result: object = None
        error: str | None = None
        start = time.thread_time()
        try:
            if isinstance(job, StepJob):
                self._steps(job)
            else:
                result = job.run()
        except Exception as failure:
            error = repr(failure)
        self.cost.jobs_ms.append((time.thread_time() - start) * 1000)
        self._turn(lambda: self.engine.job_done(job, result, error, self.now))

    def _steps(self, job: StepJob) -> None:
        is_done = False
        while not is_done:
            start = time.thread_time()
            is_done = job.step()
            self.cost.step_ms = max(self.cost.step_ms, (time.thread_time() - start) * 1000)


def measure(
    world: World,
    frames: list[bytes],
    prepare: Callable[[Peer], None] | None = None,
    begin: Callable[[], None] | None = None,
) -> Cost:
    """What frames cost that come one after the other on a connection to this very world.

    `begin` is called between the preparation and the first frame.
    """
    cost = Cost()
    peer = EnginePeer(world)
    if prepare is not None:
        prepare(peer)
    if begin is not None:
        begin()
    turns = Turns(world.engine, peer.client.session, world.now, cost)
    for frame in frames:
        turns.run(frame)
    return cost


def burst_of(frame: bytes, cost: Cost) -> bytes:
    """As many copies of a small frame as one read from a socket may bring, or fewer where one costs much; empty for a
    large frame."""
    if len(frame) > SMALL_BYTES:
        return b""
    copies = min(BURST_BYTES // len(frame), BURST_COPIES_MAX, int(BURST_MS_MAX / max(cost.cpu_ms, 0.1)))
    return frame * max(copies, 2)


def measure_apart(
    world: World,
    frames: list[bytes],
    prepare: Callable[[Peer], None] | None = None,
    cpu_seconds: int = CPU_SECONDS_MAX,
) -> Cost:
    """The same in a process of its own, which leaves the world as it is."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            _measure_in_child(world, frames, prepare, cpu_seconds, writing)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    cost = Cost()
    if text:
        cost.__dict__.update(json.loads(text))
        return cost
    cost.turns_ms = [cpu_seconds * 1000.0]
    cost.error = f"the process ended with status {status}"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        cost.error = f"not done after {cpu_seconds} s of CPU"
    return cost


def _measure_in_child(
    world: World,
    frames: list[bytes],
    prepare: Callable[[Peer], None] | None,
    cpu_seconds: int,
    writing: int,
) -> None:
    # This touches every object, so that the figures do not hold the copying of pages after a fork.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    cost = Cost()
    start = time.thread_time()
    try:
        begin = partial(_limit, cpu_seconds)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        cost = measure(world, frames, prepare, begin)
        cost.memory_mb = max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 0) / 1024
    except MemoryError:
        cost.turns_ms = [(time.thread_time() - start) * 1000]
        cost.error = f"more than {MEMORY_BYTES_MAX >> 30} GiB of memory"
    except BaseException:
        cost.error = traceback.format_exc(limit=-3)
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(json.dumps(cost.__dict__).encode())


def _limit(cpu_seconds: int) -> None:
    """From here on this process may use so much more CPU, and MEMORY_BYTES_MAX more of memory."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + cpu_seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES_MAX
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
