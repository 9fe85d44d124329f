"""The turn: one request or event at a time goes through the core or the data plane, and its outcome is applied.

What must hold:

1. *One event at a time.* A request, a timer, the result of a job, a step of a continuation: each is handled to its end,
   follow-ups included, before the next one begins. Nothing in here calls the intake, so no event begins inside another.
   Handlers need no locks, and each sees the state that the event before it left.
2. *An outcome is applied at once* (see apply.py for the order of its steps). The open commit collects what all events
   of a turn append, and one write at the end of the turn covers them all. So the cost of a write is shared, and an
   event still sees all that earlier events of the turn decided.
3. *The work of a turn is bounded*, because one loop serves all connections. The budget counts bytes (see budget.py).
   Timers, parked requests, continuations and appends of Produce stop when it is spent and continue in the next turn.
   There, the remaining work comes first, before new input is handled at the end of that turn.
4. *The end of a turn has an order*: append the waiting batches of Produce requests, advance each continuation by one
   step, answer parked requests, handle backlogs, write, release. Everything that can append comes before the write, so
   it belongs to this commit and not to the next. Answers are released after the write, because without a sync they may
   leave now.
5. *After a commit is durable*: project the events of groups (from durable records only), wake up fetches (they read up
   to the durable end), answer parked requests, update topics whose records are durable, handle the events
   that waited for this commit (`Outcome.once_durable`), then handle backlogs. This order does not matter for
   correctness, as each step looks at `durable_seq`; fetches come before backlogs so that a waiting consumer does not
   wait for new requests.

A bug in a handler closes the connection whose request reached it: a handler changes soft state only, and losing soft
state is harmless. A failure to store is different: an OSError of an API that appends, and any exception between the
append and the end of replay, mark the journal as failed, and the exception leaves the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast, final

from kcoord.core.coordinator import Core
from kcoord.core.dispatch import handle_request
from kcoord.core.outcome import (
    INFO,
    TIMER_FETCH,
    TIMER_TOPICS,
    WARNING,
    Event,
    Fact,
    Job,
    Now,
    Reply,
    Request,
    TimerFired,
)
from kcoord.core.refusals import error_response
from kcoord.engine.api_classes import APPENDING_APIS, DATA_PLANE_APIS, DURABLE_APIS, WRITING_APIS
from kcoord.engine.apply import NO_WAIT, Applier
from kcoord.engine.backlogs import Backlogs
from kcoord.engine.budget import TIMERS_MAX, TurnBudget
from kcoord.engine.commits import Commits
from kcoord.engine.core_gate import CoreGate
from kcoord.engine.data_plane import DataPlane
from kcoord.engine.direct_commit import DirectCommits
from kcoord.engine.direct_fetch import DirectFetches
from kcoord.engine.direct_heartbeat import DirectHeartbeats
from kcoord.engine.dispatch import handle_data
from kcoord.engine.group_events_topic import GroupEventsTopic
from kcoord.engine.outbox import Outbox
from kcoord.engine.produce_work import ProduceWork
from kcoord.engine.session import PendingRequest, Session
from kcoord.engine.timers import TimerQueue
from kcoord.engine.topic_follower import RemoveLog
from kcoord.protocol import apis
from kcoord.protocol.errors import KAFKA_STORAGE_ERROR
from kcoord.protocol.produce import ProduceRequest, ProduceResponse
from kcoord.wire.primitives import Reader

TOPIC_ENTROPY_BYTES: Final = 16


@final
class Turn:
    """Handles requests and events one at a time. `entropy(n)` returns n random bytes."""

    def __init__(
        self,
        core: Core,
        applier: Applier,
        commits: Commits,
        outbox: Outbox,
        backlogs: Backlogs,
        data_plane: DataPlane,
        group_events: GroupEventsTopic,
        budget: TurnBudget,
        gate: CoreGate,
        entropy: Callable[[int], bytes],
    ) -> None:
        self.core = core
        self.applier = applier
        self.commits = commits
        self.outbox = outbox
        self.backlogs = backlogs
        self.data_plane = data_plane
        self.group_events = group_events
        self.budget = budget
        self.gate = gate
        self.entropy = entropy
        self.disk_full = False
        self.direct_commits = DirectCommits(core, commits, outbox)
        self.direct_fetches = DirectFetches(core, commits, outbox)
        self.direct_heartbeats = DirectHeartbeats(core, commits, outbox)

    # --- requests --------------------------------------------------------------------------------------------

    def handle_request(
        self, session: Session, correlation_id: int, request: Request, frame_bytes: int, now: Now
    ) -> None:
        """Handle one request: answer it, park it, or close its connection if a bug stops it."""
        api_key = request.api_key
        spent = self.budget.spent
        try:
            self._dispatch(session, correlation_id, request, now)
        except Exception as fault:
            # Handlers change soft state only, so a bug in one closes only the connection whose request reached it.
            # A failure to store is different: it ends the process.
            if isinstance(fault, OSError) and api_key in APPENDING_APIS:
                self.commits.journal.fail(fault)
            if self.commits.has_failed():
                raise
            self.outbox.fault(session, f"{apis.APIS[api_key].name} version {request.version}", fault)
        self.budget.note_request(api_key, frame_bytes, session.client_host, spent, self.core.take_cost())

    def handle_directly(
        self, session: Session, correlation_id: int, api_key: int, version: int, reader: Reader, size: int, now: Now
    ) -> bool:
        """Handle a usual request of a member that is next in `reader`, without decoding it first. False: it has to be
        decoded. `size` is that of its frame.
        """
        spent = self.budget.spent
        is_done = False
        try:
            if api_key == apis.OFFSET_FETCH:
                is_done = self.direct_fetches.handle(session, reader, version, correlation_id)
            elif api_key != apis.OFFSET_COMMIT:
                is_done = self.direct_heartbeats.handle(session, reader, api_key, version, correlation_id, now)
            elif not self.disk_full:
                is_done = self.direct_commits.handle(session, reader, version, correlation_id, now)
        except Exception as fault:
            if self.commits.has_failed():
                raise
            self.outbox.fault(session, f"{apis.APIS[api_key].name} version {version}", fault)
            is_done = True
        if is_done:
            self.budget.note_request(api_key, size, session.client_host, spent)
        return is_done

    def _dispatch(self, session: Session, correlation_id: int, request: Request, now: Now) -> None:
        api_key = request.api_key
        version = request.version
        if self.disk_full and api_key in WRITING_APIS:
            refusal = error_response(api_key, version, request.body, KAFKA_STORAGE_ERROR)
            if api_key == apis.PRODUCE and cast(ProduceRequest, request.body).acks == 0:
                self.outbox.check_unacknowledged(session, cast(ProduceResponse, refusal))
                return
            self.outbox.answer(session, correlation_id, api_key, version, refusal, NO_WAIT)
            return
        if api_key in DATA_PLANE_APIS:
            self._handle_data(session, correlation_id, request, now)
            return
        # Most requests are answered at once; only one that is not goes into the table of parked ones.
        request_id = request.request_id
        pending = PendingRequest(request_id, session, correlation_id, api_key, version, request.body)
        session.parked_request_id = request_id
        self.applier.apply(handle_request(self.core, request, now), now, pending)
        if session.parked_request_id == request_id:
            self.applier.park(pending)

    def _handle_data(self, session: Session, correlation_id: int, request: Request, now: Now) -> None:
        """A request about record batches, which the data plane answers without the core."""
        if request.api_key == apis.PRODUCE:
            enlisted = self.gate.begin(request, now)
            if enlisted is not None:
                self.applier.apply(enlisted, now)
        response = handle_data(self.data_plane, request, now)
        self.gate.end()
        for timer in self.data_plane.take_timers():
            self.applier.arm(timer)
        if self.data_plane.table.facts:
            self.outbox.facts.extend(self.data_plane.table.take_facts())
        api_key = request.api_key
        version = request.version
        if response is None:
            self.applier.park(PendingRequest(request.request_id, session, correlation_id, api_key, version, None))
            self.applier.take_up(self.data_plane.take_jobs())
            return
        if api_key == apis.PRODUCE and cast(ProduceRequest, request.body).acks == 0:
            self.outbox.check_unacknowledged(session, cast(ProduceResponse, response))
            return
        wait_seq = self.commits.last_seq() if api_key in DURABLE_APIS else NO_WAIT
        self.outbox.answer(session, correlation_id, api_key, version, response, wait_seq)

    # --- events ----------------------------------------------------------------------------------------------

    def handle_event(self, event: Event, now: Now) -> None:
        self.applier.apply(self.core.handle(event, now), now)
        self.budget.spent += self.core.take_cost()

    def fire_timers(self, timers: TimerQueue, now: Now) -> None:
        """Handle those of the timers that are due, as far as the turn's budget and their share go."""
        # A handler may arm a timer for the present time, to continue later. It fires after the other requests.
        armed = timers.armed
        before = self.budget.spent
        for _ in range(TIMERS_MAX):
            timer = timers.pop_due(now.mono_ms, armed) if self.budget.has_share(before) else None
            if timer is None:
                break
            if timer.kind == TIMER_FETCH:
                for reply in self.data_plane.on_timer(timer, now):
                    self.applier.give(reply, NO_WAIT)
            elif timer.kind == TIMER_TOPICS:
                self.data_plane.follower.has_timer = False
                self.applier.work_off_topics(now)
            else:
                self.handle_event(TimerFired(timer), now)

    def end_job(self, job: Job, error: str | None, now: Now) -> bool:
        """A job ended; whether the core is to handle that. One that is not in flight any more is dropped."""
        if self.applier.jobs_in_flight.get(job.key) is not job:
            return False
        del self.applier.jobs_in_flight[job.key]
        if isinstance(job, RemoveLog):
            self.outbox.facts.extend(job.facts(error))
            return False
        return not self.data_plane.job_done(job, error, now)

    def set_disk_full(self, full: bool) -> None:
        """Turn writes away with a retriable error, or take them again."""
        if full != self.disk_full:
            self.disk_full = full
            self.outbox.facts.append(Fact(WARNING if full else INFO, "disk_full" if full else "disk_has_space", {}))

    # --- remaining work of earlier turns ---------------------------------------------------------------------

    def continue_work(self, now: Now) -> None:
        """Continue the work that waits only for a turn: answers, appends, continuations, parked requests."""
        if self.applier.late_replies:
            self.applier.give_late()
        if self.applier.once_durable:
            self._handle_durable(now)
        if self.data_plane.produce.ready:
            self._append_produced(now)
        if self.applier.continuations:
            self._continue(now)
        self._answer_parked(now)

    def has_more(self) -> bool:
        """Whether the turn left something of that for the next one."""
        applier = self.applier
        if len(applier.late_replies) > 0 or len(applier.continuations) > 0 or self.data_plane.has_due():
            return True
        if self._has_durable():
            return True
        return len(self.data_plane.produce.ready) > 0 and not self.commits.is_full()

    def _append_produced(self, now: Now) -> None:
        """Append for Produce requests that waited, as far as the turn and the open commit go."""
        produce = self.data_plane.produce
        work = None if self.commits.is_full() else produce.next_ready()
        while work is not None:
            try:
                if produce.append_more(work, self.disk_full, now):
                    # Sessions that wait for the room come before the one that gets its answer, and may fill it again.
                    self._unstall_producers()
                    self._give_produced(work)
            except Exception as error:
                produce.drop(work)
                if isinstance(error, OSError):
                    self.commits.journal.fail(error)
                if self.commits.has_failed():
                    raise
                self.applier.fault_parked(work.request_id, "Produce", error)
            work = None if self.commits.is_full() else produce.next_ready()
        self.applier.take_up(self.data_plane.take_jobs())
        self._unstall_producers()

    def _unstall_producers(self) -> None:
        if self.commits.is_full():
            return
        produce = self.data_plane.produce
        if produce.take_freed_room() or not produce.is_crowded:
            self.backlogs.unstall()

    def _give_produced(self, work: ProduceWork) -> None:
        parked = self.applier.parked.get(work.request_id)
        if parked is None:
            # Its connection is closed. A broker also stores the records that it has received.
            return
        if work.acks == 0:
            self.outbox.check_unacknowledged(parked.session, work.answer())
            self.applier.give(Reply(work.request_id, None), NO_WAIT)
        else:
            self.applier.give(Reply(work.request_id, work.answer()), self.commits.last_seq())

    def _continue(self, now: Now) -> None:
        """Take a step of each request that is handled in several turns, as far as the budget and their share go."""
        continuations = self.applier.continuations
        before = self.budget.spent
        for _ in range(len(continuations)):
            step = continuations.popleft()
            try:
                self.handle_event(step, now)
            except Exception as fault:
                if self.commits.has_failed():
                    raise
                self.applier.fault_parked(step.request_id, "a request of several turns", fault)
            if not self.budget.has_share(before):
                break

    def _answer_parked(self, now: Now) -> None:
        """Answer parked requests of the data plane that can be answered, as far as the budget and their share go."""
        before = self.budget.spent
        while self.data_plane.has_due() and self.budget.has_share(before):
            reply = self.data_plane.answer_next(now)
            if reply is not None:
                self.applier.give(reply, NO_WAIT)
        self.applier.take_up(self.data_plane.take_jobs())

    # --- after a commit --------------------------------------------------------------------------------------

    def committed(self, now: Now) -> None:
        """A commit is durable: continue the work that waited for it."""
        self.project(now)
        self.data_plane.fetch.note_durable()
        self._answer_parked(now)
        if self.data_plane.follower.removals:
            self.applier.work_off_topics(now)
        if self.applier.once_durable:
            self._handle_durable(now)

    def _has_durable(self) -> bool:
        waiting = self.applier.once_durable
        return len(waiting) > 0 and waiting[0][0] <= self.commits.durable_seq

    def _handle_durable(self, now: Now) -> None:
        """Handle the events that waited for a commit which is durable now, as far as the budget and their share go."""
        before = self.budget.spent
        while self._has_durable() and self.budget.has_share(before):
            self.handle_event(self.applier.once_durable.popleft()[1], now)

    def project(self, now: Now) -> None:
        """Append what happened to groups as far as it is durable; it goes with the next commit."""
        commits = self.commits
        if self.group_events.take(commits.durable_seq, commits.open_seq, self.disk_full):
            self.applier.apply(self.group_events.creation(self.entropy(TOPIC_ENTROPY_BYTES)), now)
            self.group_events.append()
