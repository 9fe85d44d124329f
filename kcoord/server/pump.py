"""Drives the engine: one turn of it per turn of the event loop.

The requests that arrive during a turn of the event loop are handled and written together, synced by the kernel or by
threads, and answered with one write per connection. After a sync, a moment may pass before the next write, so that the
clients that were answered can share it (see Gathering).

Timers fire only after the sockets were drained. After a stall of the server (a slow disk, a stopped process) heartbeats
wait in the kernel, and they must be handled before a member's session expires.

The engine bounds the work of a turn, and the pump bounds the input that it passes on. While the engine's budget is
spent or sessions queue for it, larger input waits here as bytes, and each of these connections passes one piece to the
engine in turn. They are not read meanwhile, so at most about one read of each is buffered. Small reads do not wait:
heartbeats and new clients are served even if a thousand connections send at full speed. The bytes that a turn reads are
bounded, too (see ReadShares).

If the log or anything else that stores records fails, the pump stops: nothing more is answered, because nothing more is
durable, and the owner of the pump is notified once. A failure caused by one connection, in its transport or in the
engine, closes only this connection.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, final

from kcoord.core.outcome import BUG, LIMIT, PEER, Fact, Job, Now, StepJob
from kcoord.log.journal import CommitTicket, sync_one
from kcoord.protocol import apis
from kcoord.server.gathering import Gathering
from kcoord.server.jobs import JobThreads
from kcoord.server.listen.connection import SMALL_READ_BYTES, Connection
from kcoord.server.listen.limits import ConnectionCounts
from kcoord.server.listen.reading import ReadShares
from kcoord.server.logs import ServerLog
from kcoord.server.settings.config import ServerConfig
from kcoord.server.sync_threads import SyncThreads

if TYPE_CHECKING:
    from kcoord.engine.budget import TurnBudget
    from kcoord.engine.session import OutputPool, Session
    from kcoord.log.storage import Syncable

# The maximum number of loop turns that timers wait while sockets are still readable.
DRAIN_TURNS_MAX: Final = 20
# Two turns include at least one poll of the sockets, in whichever order the loop runs timers and polling.
DRAIN_TURNS_MIN: Final = 2
SWEEP_MS: Final = 500
# How long records that nobody waits for may stay unwritten until others come. Longer than clients take from the end of
# a transaction to the next one.
HOLD_S: Final = 0.02
# Answering so many connections takes longer than to wait until a thread has begun a sync.
MANY_ANSWERS: Final = 8


class EngineLike(Protocol):
    """The interface that the pump needs of an engine; kcoord.engine implements it."""

    @property
    def pool(self) -> OutputPool: ...
    @property
    def budget(self) -> TurnBudget: ...
    def open_session(self, client_host: str, host: str, port: int) -> Session: ...
    def close_session(self, session: Session, now: Now) -> None: ...
    def receive(self, session: Session, data: bytes, now: Now, start: int = 0, end: int = -1) -> None: ...
    def output_taken(self, session: Session) -> None: ...
    def end_turn(self, now: Now, may_hold: bool = False, may_write: bool = True) -> CommitTicket | None: ...
    def commit_done(self, ticket: CommitTicket, now: Now) -> bool: ...
    def take_ahead(self) -> Syncable | None: ...
    def fire_timers(self, now: Now) -> None: ...
    def fire_prompt_timers(self, now: Now) -> bool: ...
    def next_deadline_ms(self) -> int: ...
    def take_ready(self) -> list[Session]: ...
    def take_facts(self) -> list[Fact]: ...
    def take_jobs(self) -> list[Job]: ...
    def job_done(self, job: Job, result: object | None, error: str | None, now: Now) -> None: ...
    def has_unwritten(self) -> bool: ...
    def has_room(self) -> bool: ...
    def has_more(self) -> bool: ...
    def is_checking(self) -> bool: ...
    def has_failed(self) -> bool: ...


@final
class Clocks:
    """See `read_clocks`. All calls of a millisecond return the same object: there is one for each small request."""

    def __init__(self) -> None:
        self._last = Now(-1, 0)

    def read(self) -> Now:
        mono_ms = time.monotonic_ns() // 1_000_000
        last = self._last
        if mono_ms != last.mono_ms:
            last = self._last = Now(mono_ms, time.time_ns() // 1_000_000)
        return last


_CLOCKS: Final = Clocks()


def read_clocks() -> Now:
    return _CLOCKS.read()


@final
class Pump:
    """Connects the event loop and the engine. Not thread-safe: everything runs on the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        engine: EngineLike,
        config: ServerConfig,
        log: ServerLog,
        on_failure: Callable[[BaseException], None],
        clocks: Callable[[], Now] = read_clocks,
    ) -> None:
        self.loop = loop
        self.engine = engine
        self.config = config
        self.log = log
        self.on_failure = on_failure
        self.now = clocks
        self.threads = SyncThreads(loop)
        # For what nobody waits for.
        self.ahead_threads = SyncThreads(loop)
        self._is_syncing_ahead = False
        self.jobs = JobThreads(loop, self._job_done)
        # Separate threads check the records of producers, so that a large produce does not delay the core's jobs.
        self.checks = JobThreads(loop, self._job_done)
        self.counts = ConnectionCounts(config)
        # What connections did in this turn, if the server logs at level debug. Always the same list: they append to it.
        self.debug_facts: list[Fact] = []
        self.connections: dict[int, Connection] = {}
        self.held_bytes = 0
        self.is_draining = False
        self.has_failed = False
        self.in_flight: CommitTicket | None = None
        self.gathering = Gathering()
        self._turn_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = -1
        # Ends the wait of records that may wait for the next commit.
        self._hold_timer: asyncio.TimerHandle | None = None
        self._heard = False
        # The CPU time of this thread at the end of the last turn or sweep.
        self._used_ns = time.thread_time_ns()
        # Connections with waiting input, the next one first.
        self._unread: deque[Connection] = deque()
        # Open connections whose clients have closed their sending side.
        self._ending: list[Connection] = []
        self.shares = ReadShares()
        # Called after each turn: tests wait for a state, and clients inside the process for their answers.
        self.after_turn: list[Callable[[], None]] = []

    # ---- connections

    def connected(self, connection: Connection, host: str, port: int) -> None:
        """Open a session for a new connection. If this raises, the connection is closed."""
        connection.last_heard_ms = self.now().mono_ms
        connection.is_draining = self.is_draining
        self._own(connection, self.engine.open_session(connection.client_host, host, port))
        self.shares.begin(connection)
        if self.has_failed:
            connection.abort()

    def _own(self, connection: Connection, session: Session) -> None:
        connection.session = session
        session.owner = connection
        # What an earlier session of the connection left to the transport is sent before the answers of this one.
        session.note_buffered(connection.unsent_bytes())
        self.connections[session.id] = connection

    def received(self, connection: Connection, data: bytes) -> None:
        if self.has_failed:
            return
        self._heard = True
        self.gathering.note_read(connection.gathering)
        connection.gathering = 0
        now = self.now()
        if len(data) <= SMALL_READ_BYTES and not connection.unread:
            self._handle(connection, data, now)
        else:
            is_waiting = bool(connection.unread)
            connection.keep(data)
            if not is_waiting:
                self._unread.append(connection)
            self._note_held(connection.note_held())
            if self.engine.has_room():
                self._handle_unread(now)
        self.shares.note(connection, len(data), connection.lacks_bytes())
        connection.update_reading()
        self.schedule_turn()

    def _handle(self, connection: Connection, data: bytes, now: Now) -> None:
        """Let the engine handle new input."""
        try:
            self.engine.receive(connection.session, data, now)
            self._note_held(connection.note_input(len(data), now.mono_ms))
        except Exception as error:
            self._fault(connection, error)

    def _handle_piece(self, connection: Connection, now: Now) -> None:
        """Let the engine handle the next piece of the waiting input."""
        try:
            data = connection.unread
            start = connection.unread_at
            end = connection.take_piece()
            self.engine.receive(connection.session, data, now, start, end)
            self._note_held(connection.note_input(end - start, now.mono_ms))
        except Exception as error:
            self._fault(connection, error)

    def _handle_unread(self, now: Now) -> None:
        """Handle one piece of each connection with waiting input, in turn, as far as the budget goes; at least one."""
        unread = self._unread
        while unread and not self.has_failed:
            connection = unread.popleft()
            if connection.is_dropped:
                continue
            self._handle_piece(connection, now)
            if connection.unread:
                unread.append(connection)
            connection.update_reading()
            if not self.engine.has_room():
                return

    def _note_held(self, change: int) -> None:
        if not change:
            return
        self.held_bytes += change
        if self.held_bytes > self.config.queued_bytes_max:
            self._shed()

    def at_end(self, connection: Connection) -> None:
        """The client has closed its sending side: close the connection once its requests are answered."""
        self._ending.append(connection)
        self.schedule_turn()

    def disconnected(self, connection: Connection) -> None:
        self.held_bytes -= connection.held_bytes
        connection.held_bytes = 0
        connection.forget_unread()
        self.shares.forget(connection)
        session = connection.session
        session.owner = None
        # After `replace_engine` another connection may have the same session id.
        if self.connections.get(session.id) is not connection:
            return
        del self.connections[session.id]
        if self.has_failed:
            return
        try:
            self.engine.close_session(session, self.now())
        except Exception as error:
            self._fault(connection, error)
        # Those that came up in this turn as well.
        self._start_jobs()
        self.checks.forget(session.id)
        self.schedule_turn()

    def _fault(self, connection: Connection, error: Exception) -> None:
        """Handle an exception of the engine caused by a connection. Unless the log failed, only that one is closed."""
        if self.engine.has_failed():
            self.fail(error)
            return
        connection.drop(f"internal error: {error!r}", BUG)
        trace = "".join(traceback.format_exception(error))
        self.log.error_limited("internal_error", kind=BUG, client=connection.client_host, traceback=trace)

    def _shed_output(self) -> None:
        """Unread responses exceed their limit: close the connections with the most."""
        pool = self.engine.pool
        waiting = [connection for connection in self.connections.values() if connection.unread_bytes()]
        waiting.sort(key=lambda connection: connection.unread_bytes())
        while pool.is_overdrawn and waiting:
            worst = waiting.pop()
            worst.drop(f"{worst.unread_bytes()} bytes of unread responses (queued.max.response.bytes)", LIMIT)
            worst.session.drop_output()

    def _shed(self) -> None:
        """Waiting input exceeds its limit: close the connection with the most."""
        worst = max(self.connections.values(), key=lambda connection: connection.held_bytes, default=None)
        if worst is None:
            return
        worst.drop(f"{worst.held_bytes} bytes of unanswered requests (queued.max.request.bytes)", LIMIT)
        worst.forget_unread()
        self.held_bytes -= worst.held_bytes
        worst.held_bytes = 0

    # ---- turns

    def schedule_turn(self) -> None:
        if not self._turn_scheduled and not self.has_failed:
            self._turn_scheduled = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_scheduled = False
        if self.has_failed:
            return
        try:
            if self.gathering.is_open:
                self._gather()
            self._end_turn(self.now())
        except Exception as error:
            self.fail(error)
            return
        if self.shares.begin_turn():
            self.schedule_turn()
        if self._unread:
            self.schedule_turn()
            self._handle_unread(self.now())

    def _gather(self) -> None:
        """Let this turn write the open commit, if it is not to wait any longer."""
        is_busy = len(self._unread) > 0 or self.is_draining or self.engine.has_more()
        if is_busy or self.gathering.is_over(time.monotonic_ns()):
            self.gathering.close()

    def _end_turn(self, now: Now, may_hold: bool = True, answered: list[Session] | None = None) -> None:
        """`answered` are the sessions that a sync has released: those that `take_ready` returned before."""
        is_gathering = self.gathering.is_open
        ticket = self.engine.end_turn(now, may_hold and not self.is_draining, not is_gathering)
        ready = self.engine.take_ready()
        if answered:
            ready = answered + ready
        if ticket is not None:
            self.in_flight = ticket
            self.gathering.sync_begins(time.monotonic_ns())
            descriptor = ticket.only_descriptor()
            if descriptor < 0 or not self.threads.sync_in_kernel(descriptor, self._synced):
                work = [partial(sync_one, item) for item in ticket.syncs]
                self.threads.run(work, self._synced, len(ready) >= MANY_ANSWERS)
        elif self.in_flight is None and self.engine.has_unwritten():
            if is_gathering:
                self.schedule_turn()
            elif self._hold_timer is None:
                self._hold_timer = self.loop.call_later(HOLD_S, self._write_held)
        if not self._is_syncing_ahead:
            ahead = self.engine.take_ahead()
            if ahead is not None:
                self._is_syncing_ahead = True
                self.ahead_threads.run([partial(sync_one, ahead)], self._synced_ahead)
        self._flush(ready)
        self._start_jobs()
        self._arm_timer(now)
        if self.engine.has_more():
            self.schedule_turn()
        if self.config.turn_log_ms:
            self._note_turn()
        if self.after_turn:
            for look in list(self.after_turn):
                look()

    def _start_jobs(self) -> None:
        for job in self.engine.take_jobs():
            if isinstance(job, StepJob):
                self.checks.start(job)
            else:
                self.jobs.start(job)

    def _write_held(self) -> None:
        """Nothing came that the held records could be written with."""
        self._hold_timer = None
        if self.has_failed:
            return
        try:
            self._end_turn(self.now(), may_hold=False)
        except Exception as error:
            self.fail(error)

    def _note_turn(self) -> None:
        """Log a turn that took too long, including the loop's work since the last turn or sweep."""
        used_ns = time.thread_time_ns()
        turn_ms = (used_ns - self._used_ns) // 1_000_000
        self._used_ns = used_ns
        if turn_ms < self.config.turn_log_ms:
            return
        budget = self.engine.budget
        api = apis.APIS.get(budget.top_api_key)
        self.log.warning_limited(
            "long_turn", cpu_ms=turn_ms, api="none" if api is None else api.name, request_bytes=budget.top_bytes,
            client=budget.top_client,
        )  # fmt: skip

    def _synced(self, error: BaseException | None) -> None:
        ticket, self.in_flight = self.in_flight, None
        if self.has_failed or ticket is None:
            return
        if error is not None:
            self.fail(error)
            return
        try:
            now = self.now()
            is_continued = self.engine.commit_done(ticket, now)
            answered = self.engine.take_ready()
            if not is_continued:
                self._begin_gathering(answered)
            self._end_turn(now, answered=answered)
        except Exception as failure:
            self.fail(failure)

    def _begin_gathering(self, answered: list[Session]) -> None:
        """Let the next commit wait for those whom the last sync answers, if that may help."""
        expected = 0
        number = self.gathering.number
        for session in answered:
            connection = session.owner
            if not session.chunks and isinstance(connection, Connection):
                connection.gathering = number
                expected += 1
        self.gathering.begin(expected, time.monotonic_ns())

    def _synced_ahead(self, error: BaseException | None) -> None:
        self._is_syncing_ahead = False
        if error is not None and not self.has_failed:
            self.fail(error)

    def _flush(self, ready: list[Session]) -> None:
        for session in ready:
            connection = session.owner
            if isinstance(connection, Connection):
                connection.flush()
                if session.backlog:
                    self.resume(connection)
                if connection.held_bytes and not connection.is_dropped:
                    self.held_bytes += connection.note_held()
        if self.engine.pool.is_overdrawn:
            self._shed_output()
        if self._ending:
            self._close_ended()
        facts = self.engine.take_facts()
        if facts:
            self.log.facts(facts)
        if self.debug_facts:
            self.log.facts(self.debug_facts)
            self.debug_facts.clear()

    def _close_ended(self) -> None:
        """Close connections whose clients have closed their sending side and have no unanswered requests."""
        ending, self._ending = self._ending, []
        for connection in ending:
            session = connection.session
            if connection.is_dropped:
                continue
            if (connection.unread or session.backlog or session.chunks) and not session.parked_request_id:
                self._ending.append(connection)
            else:
                connection.close()

    def resume(self, connection: Connection) -> None:
        """Let the next turn handle the requests that a session holds back, if its client reads its responses."""
        session = connection.session
        if self.has_failed or connection.is_dropped or connection.is_output_full:
            return
        if session.parked_request_id or session.close_reason:
            return
        try:
            self.engine.output_taken(session)
        except Exception as error:
            self._fault(connection, error)
            return
        self.held_bytes += connection.note_held()
        self.schedule_turn()

    def _job_done(self, job: Job, result: object | None, error: str | None) -> None:
        if self.has_failed:
            return
        try:
            self.engine.job_done(job, result, error, self.now())
        except Exception as failure:
            self.fail(failure)
            return
        self.schedule_turn()

    def has_jobs(self) -> bool:
        """Whether a job is under way that the engine waits for."""
        return self.jobs.is_busy or self.checks.is_busy

    # ---- timers

    def _arm_timer(self, now: Now) -> None:
        """Schedule a call at the engine's next deadline, or slightly before; keep an earlier one."""
        deadline_ms = self.engine.next_deadline_ms()
        if deadline_ms < 0 or (self._timer is not None and self._timer_ms <= deadline_ms):
            return  # a call that comes too early schedules the next one
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self.loop.call_later(max(deadline_ms - now.mono_ms, 0) / 1000, self._drain, 0)

    def _drain(self, turns: int) -> None:
        """Let the loop read its sockets until no input is left and the engine has handled it; then fire the timers.

        The first rebalance of a group does not wait for that: others may keep the sockets busy for long.
        """
        if self.has_failed:
            return
        is_silent = not self._heard and not self._unread and not self.engine.has_more()
        if turns < DRAIN_TURNS_MIN or (not is_silent and turns < DRAIN_TURNS_MAX):
            if turns >= DRAIN_TURNS_MIN and not self._fire_prompt_timers():
                return
            self._heard = False
            self.loop.call_soon(self._drain, turns + 1)
            return
        self.fire_timers()

    def _fire_prompt_timers(self) -> bool:
        """Returns False after a failure."""
        now = self.now()
        try:
            if self.engine.fire_prompt_timers(now):
                self._end_turn(now)
        except Exception as error:
            self.fail(error)
            return False
        return True

    def fire_timers(self) -> None:
        """Handle the timers that are due, and schedule the next call anew: the clock may have been moved."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self.now()
        try:
            self.engine.fire_timers(now)
            self._end_turn(now)
        except Exception as error:
            self.fail(error)

    def sweep(self) -> None:
        """Close overdue connections. Called every SWEEP_MS."""
        if self.config.turn_log_ms:
            # Otherwise the first request after an idle hour would answer for the work of that hour.
            self._used_ns = time.thread_time_ns()
        self.log.note_left_out()
        now_ms = self.now().mono_ms
        for connection in list(self.connections.values()):
            reason = connection.overdue(now_ms)
            if reason:
                self.log.warning_limited("connection_closed", kind=PEER, client=connection.client_host, reason=reason)
                connection.abort(reason)

    def replace_engine(self, engine: EngineLike) -> None:
        """Continue with another engine, as a test does to reset all state.

        Idle connections stay open; those that wait for a response of the old engine are closed.
        """
        connections = list(self.connections.values())
        self.connections.clear()
        self.engine = engine
        self.in_flight = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in connections:
            old = connection.session
            # The new engine numbers its sessions anew, and has no jobs yet.
            self.checks.forget(old.id)
            if old.parked_request_id or old.backlog or old.chunks or connection.held_bytes:
                connection.abort()
                continue
            self._own(connection, engine.open_session(connection.client_host, old.host, old.port))
        self.schedule_turn()

    # ---- the end

    def is_quiet(self) -> bool:
        """Whether nothing is in flight to the disk or to a client."""
        return (
            self.in_flight is None
            and not self._turn_scheduled
            and not self._unread
            and not self.engine.has_unwritten()
            and not self.engine.has_more()
            and not self.engine.is_checking()
            and not any(
                connection.session.chunks or connection.unsent_bytes() for connection in self.connections.values()
            )
        )

    def fail(self, error: BaseException) -> None:
        """Stop at once: no more responses are sent."""
        if self.has_failed:
            return
        self.has_failed = True
        self.jobs.stop()
        self.checks.stop()
        for connection in list(self.connections.values()):
            connection.abort()
        self.on_failure(error)
