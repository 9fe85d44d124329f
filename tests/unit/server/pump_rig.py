"""A pump, its acceptor and an engine that answers every frame with its own bytes, for tests on both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from kcoord.core.outcome import Fact, Job, Now
from kcoord.engine.budget import TurnBudget
from kcoord.engine.session import OutputPool, Session
from kcoord.log.journal import CommitTicket
from kcoord.log.storage import Syncable
from kcoord.server.draining import disconnect_all
from kcoord.server.listen.accept import Acceptor
from kcoord.server.listen.limits import TokenBucket
from kcoord.server.listen.sockets import open_sockets
from kcoord.server.logs import ServerLog
from kcoord.server.pump import Pump, read_clocks
from kcoord.server.settings.listeners import Listener
from kcoord.server.settings.load import load
from kcoord.wire.frame import FrameError, FrameLimits

# A frame of zeros, which the engine echoes.
FRAME = (12).to_bytes(4, "big") + bytes(12)
# The engine fails at it.
FAULTY = (12).to_bytes(4, "big") + b"\0\0\0\1" + bytes(8)
BIG = (5000).to_bytes(4, "big") + bytes(5000)
# What has to happen happens long before: a machine may be busy with other things for seconds.
WAIT_S = 60.0


class Disk:
    """Something to sync, as slow and as broken as a test wants it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.datasync = work


class EchoEngine:
    """Each frame is a write: it is answered once the commit that it belongs to is done."""

    def __init__(self, sync: Callable[[], None] | None = None, copies: int = 1) -> None:
        self.sync = sync
        self.copies = copies
        self.limits = FrameLimits({0: 10000})
        self.pool = OutputPool()
        self.budget = TurnBudget()
        # How often the engine says that it left something for the next turn.
        self.more = 0
        self.sessions: dict[int, Session] = {}
        self.waiting: list[tuple[Session, bytes]] = []
        self.committing: list[tuple[Session, bytes]] = []
        self.ready: list[Session] = []
        self.in_flight: CommitTicket | None = None
        # Whether its writes may wait for others.
        self.holds = False
        # Whether what waited for a commit appends in turn.
        self.is_continued = False
        self.commits = 0
        self.turns = 0
        self.deadline_ms = -1
        self.prompt_ms = -1
        self.calls: list[str] = []
        self.jobs: list[Job] = []
        self.checking = 0
        self.done: list[tuple[Job, object | None, str | None]] = []
        # What to sync in the background.
        self.ahead: list[Syncable] = []
        # Whether what fails is the log.
        self.log_fails = False

    def open_session(self, client_host: str, host: str, port: int) -> Session:
        session = Session(len(self.sessions) + 1, client_host, host, port, self.limits)
        self.sessions[session.id] = session
        return session

    def close_session(self, session: Session, now: Now) -> None:
        self.calls.append("close")
        session.close()

    def receive(self, session: Session, data: bytes, now: Now, start: int = 0, end: int = -1) -> None:
        self.calls.append("receive")
        frames: list[bytes] = []
        try:
            session.splitter.feed(data, frames, start, end)
        except FrameError as error:
            session.end(str(error))
            self.ready.append(session)
        for frame in frames:
            if frame.startswith(b"\0\0\0\1"):
                raise MemoryError("a fault of ours")
            self.waiting.append((session, len(frame).to_bytes(4, "big") + frame))

    def output_taken(self, session: Session) -> None:
        self.calls.append("output taken")

    def end_turn(self, now: Now, may_hold: bool = False, may_write: bool = True) -> CommitTicket | None:
        self.turns += 1
        if self.in_flight is not None or not may_write or not self.waiting or (may_hold and self.holds):
            return None
        self.committing, self.waiting = self.waiting, []
        self.commits += 1
        ticket = CommitTicket([Disk(self.sync)] if self.sync else [], [])
        if self.sync is None:
            self._answer()
            return None
        self.in_flight = ticket
        return ticket

    def _answer(self) -> None:
        for session, frame in self.committing:
            answer = frame * self.copies
            session.chunk_for(0).writer.write(answer)
            session.owe(len(answer))
            session.release(0)
            self.ready.append(session)
        self.committing = []

    def commit_done(self, ticket: CommitTicket, now: Now) -> bool:
        assert ticket is self.in_flight
        self.in_flight = None
        self._answer()
        return self.is_continued

    def fire_timers(self, now: Now) -> None:
        self.calls.append("timers")
        if 0 <= self.deadline_ms <= now.mono_ms:
            self.deadline_ms = -1

    def fire_prompt_timers(self, now: Now) -> bool:
        is_due = 0 <= self.prompt_ms <= now.mono_ms
        if is_due:
            self.prompt_ms = -1
            self.calls.append("prompt timers")
        return is_due

    def next_deadline_ms(self) -> int:
        return self.deadline_ms

    def take_ready(self) -> list[Session]:
        ready, self.ready = self.ready, []
        return ready

    def take_facts(self) -> list[Fact]:
        return []

    def take_jobs(self) -> list[Job]:
        jobs, self.jobs = self.jobs, []
        return jobs

    def job_done(self, job: Job, result: object | None, error: str | None, now: Now) -> None:
        if result == "a fault of ours":
            raise ZeroDivisionError(result)
        self.done.append((job, result, error))

    def has_unwritten(self) -> bool:
        return bool(self.waiting)

    def take_ahead(self) -> Syncable | None:
        return self.ahead.pop() if self.ahead else None

    def is_checking(self) -> bool:
        return self.checking > 0

    def has_room(self) -> bool:
        return True

    def has_more(self) -> bool:
        self.more -= 1
        return self.more >= 0

    def has_failed(self) -> bool:
        return self.log_fails


class Rig:
    def __init__(self, engine: EchoEngine, *assignments: str, clocks: Callable[[], Now] = read_clocks) -> None:
        self.engine = engine
        self.failures: list[BaseException] = []
        config = load(assignments=assignments).server
        self.log = ServerLog(None)
        loop = asyncio.get_running_loop()
        self.pump = Pump(loop, engine, config, self.log, self.failures.append, clocks)
        self.listener = Listener("", "127.0.0.1", 0)
        (self.socket,) = open_sockets(self.listener, 100)
        self.port = self.socket.getsockname()[1]
        self.rate = config.connection_rate

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.wait_for(asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26), WAIT_S)


@asynccontextmanager
async def running(engine: EchoEngine, *assignments: str, clocks: Callable[[], Now] = read_clocks) -> AsyncIterator[Rig]:
    rig = Rig(engine, *assignments, clocks=clocks)
    loop = asyncio.get_running_loop()
    acceptor = Acceptor(loop, rig.pump, TokenBucket(rig.rate))
    acceptor.add(rig.socket, rig.listener)
    acceptor.start()
    try:
        yield rig
    finally:
        await acceptor.stop()
        rig.socket.close()
        await disconnect_all(rig.pump)
        rig.pump.threads.stop()
        rig.pump.jobs.stop()
        rig.pump.checks.stop()


async def until_left(rig: Rig, count: int) -> None:
    """Until there are only so many connections; a client may see its end before we do."""
    while len(rig.pump.connections) > count:
        await asyncio.sleep(0.002)


async def exchange(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], data: bytes = FRAME, size: int = 0
) -> bytes:
    streams[1].write(data)
    return await asyncio.wait_for(streams[0].readexactly(size or len(data)), WAIT_S)
