"""The engine: everything between the bytes of a connection and the bytes of a log, one turn at a time.

A turn, as the server drives it:

    receive(session, data, now)      any number of times: frames are decoded, handled, replayed, parked
    fire_timers(now)
    job_done(job, result, error, now)
    ticket = end_turn(now)           open batches are closed and written; os and memory: durable at once
    ticket.sync()                    log.sync=always: the server syncs in a thread, later turns go on meanwhile
    commit_done(ticket, now)         what waited for that commit is released
    for session in take_ready(): write session.take_pieces()
    for job in take_jobs(): the server runs job.run() in a thread and comes back with job_done

Commits have numbers. Everything appended between two writes belongs to one commit; an answer waits for a number. One
commit is in flight at a time, and what arrives meanwhile goes with the next.

Failures: a request that cannot be decoded closes its connection. A failed append or sync is never answered for: the
exception leaves the engine and the server ends the process. An engine that failed so refuses all that follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, cast, final

from kcoord.core.assignors.spec import Assignor
from kcoord.core.config import CoreConfig
from kcoord.core.coordinator import Core
from kcoord.core.outcome import (
    INFO,
    METADATA_TOPIC,
    TIMER_FETCH,
    TIMER_TOPICS,
    WARNING,
    Continuation,
    Disconnected,
    Event,
    Fact,
    Job,
    JobDone,
    LogId,
    Now,
    Outcome,
    Reply,
    Request,
    Timer,
    TimerFired,
)
from kcoord.core.producers import PartitionProducers
from kcoord.core.refusals import error_response
from kcoord.engine.api_classes import APPENDING_APIS, ENTROPY_APIS, WRITING_APIS
from kcoord.engine.api_versions import api_versions_response, unsupported_api_versions
from kcoord.engine.budget import TIMERS_MAX, TurnBudget
from kcoord.engine.coordinator_log import BatchTooLarge, CoordinatorLog, EncodedRecords
from kcoord.engine.data_plane import DATA_PLANE_APIS, DataPlane
from kcoord.engine.group_events_topic import GroupEventsTopic
from kcoord.engine.intake import (
    Intake,
    elements_max,
    hold_back,
    must_wait,
    read_header,
    take_backlog,
    why_unreadable,
)
from kcoord.engine.loader import recovery_facts
from kcoord.engine.metadata_snapshot import MetadataState
from kcoord.engine.outbox import Outbox
from kcoord.engine.produce_work import ProduceWork
from kcoord.engine.session import OutputPool, Parked, Session
from kcoord.engine.state_checkpoint import StateCheckpoints
from kcoord.engine.timers import TimerQueue
from kcoord.engine.topic_follower import RemoveLog
from kcoord.log.directory import LogDirectory
from kcoord.log.errors import JournalFailed
from kcoord.log.journal import CommitTicket, Journal
from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersionsRequest
from kcoord.protocol.errors import INVALID_COMMIT_OFFSET_SIZE, KAFKA_STORAGE_ERROR, UNKNOWN_SERVER_ERROR
from kcoord.protocol.produce import ProduceRequest, ProduceResponse
from kcoord.wire.frame import FrameError, FrameLimits
from kcoord.wire.primitives import (
    DecodeError,
    read_i16_be,
    read_i32_be,
)

# Bytes appended for the next commit beyond which such requests wait for it to be written. With one batch more, which
# may have 64 MiB, a commit stays below what recovery takes for the tail that a power cut may tear.
COMMIT_BYTES_TARGET: Final = 12 * 1024 * 1024
ENTROPY_BYTES: Final = 16
METADATA_TOPIC_ID: Final = b"\x00" * 15 + b"\x01"


@final
class Engine:
    """The whole coordinator without its sockets.

    `entropy(n)` returns n random bytes. `assignors` are those of the new group protocol by name, in order of
    preference; None for the built-in ones.
    """

    def __init__(
        self,
        config: CoreConfig,
        directory: LogDirectory,
        journal: Journal,
        entropy: Callable[[int], bytes],
        limits: FrameLimits,
        assignors: dict[str, Assignor] | None = None,
    ) -> None:
        self.config = config
        self.directory = directory
        self.journal = journal
        self.entropy = entropy
        self.limits = limits
        self.core = Core(config, assignors)
        self.budget = TurnBudget()
        self.intake = Intake(self.budget)
        self.outbox = Outbox(self.budget)
        # What all answers together hold.
        self.pool = OutputPool(config.queued_response_bytes_max)
        # Session ids must not repeat after a restart, or an old client would meet somebody else's fetch session.
        session_seed = int.from_bytes(entropy(4), "big")
        self.data_plane = DataPlane(
            config, self.core.topics, directory, journal, session_seed, self.budget, self.pool
        )
        self.timers = TimerQueue()
        self.coordinator_logs: dict[LogId, CoordinatorLog] = {}
        self.states = StateCheckpoints()
        self.group_events = GroupEventsTopic(config, self.core.topics, self.data_plane, journal)
        # Of the metadata log; there once it is loaded.
        self.metadata: MetadataState | None = None
        # Jobs that nobody has taken yet, and all that are not done, by key.
        self.jobs: list[Job] = []
        self.jobs_in_flight: dict[str, Job] = {}
        self.sessions: dict[int, Session] = {}
        self.next_session_id = 1
        self.next_request_id = 1
        self.parked: dict[int, Parked] = {}
        self.current: Parked | None = None
        self.current_id = 0
        self.current_request: Request | None = None
        self.resuming = False
        # How much was appended to our own logs since the last write.
        self.open_bytes = 0
        self.commit_bytes_target = COMMIT_BYTES_TARGET
        self.open_seq = 1
        self.in_flight: CommitTicket | None = None
        self.disk_full = False
        # The rest of requests that are handled in several turns.
        self.continuations: deque[Continuation] = deque()

    # --- loading ---------------------------------------------------------------------------------------------

    def load(self, now: Now) -> None:
        """Replay every log, create what is missing and arm the timers of what was found."""
        self.outbox.facts.extend(recovery_facts(self.directory))
        core = self.core
        metadata = self.directory.get(METADATA_TOPIC, 0)
        if metadata is None:
            metadata = self.directory.create_log(METADATA_TOPIC, 0, METADATA_TOPIC_ID)
        # It has no producers, and says so in its snapshots, as a broker's does.
        metadata.producer_state = PartitionProducers(0).snapshot
        self.metadata = MetadataState(metadata)
        self.outbox.facts.extend(self.metadata.load(core, core.metadata_log))
        self._open_coordinator_log(core.metadata_log)
        self._apply(core.loaded_topics(now, self.entropy(ENTROPY_BYTES)), now)
        self._follow_topics(now)
        self.data_plane.follower.work_all()
        self.data_plane.drop_leftovers()
        self.outbox.facts.extend(self.data_plane.table.take_facts())
        self.group_events.read_marks(now)
        for log_id in core.offsets_logs():
            log = self.directory.get(log_id.topic, log_id.partition)
            if log is None:
                raise RuntimeError(f"{log_id} has no directory")
            events = self.group_events.begin(log_id.partition, log.end_offset)
            self.outbox.facts.extend(self.states.load(core, log_id, log, events))
            self._open_coordinator_log(log_id)
        self._apply(core.loaded(now), now)
        if self.jobs:
            raise RuntimeError(f"loading led to jobs: {self.jobs}")
        # What was replayed is durable: opening a log syncs its end.
        self._project(now)

    def _open_coordinator_log(self, log_id: LogId) -> None:
        log = self.directory.get(log_id.topic, log_id.partition)
        if log is None:
            raise RuntimeError(f"{log_id} has no directory")
        partition = self.data_plane.table.find(log_id.topic, log_id.partition)
        self.coordinator_logs[log_id] = CoordinatorLog(
            log_id, log, partition, self.journal, self.config.coordinator_batch_bytes_max
        )

    # --- sessions --------------------------------------------------------------------------------------------

    def open_session(self, client_host: str, host: str, port: int) -> Session:
        session = Session(self.next_session_id, client_host, host, port, self.limits, self.pool)
        self.next_session_id += 1
        self.sessions[session.id] = session
        return session

    def close_session(self, session: Session, now: Now) -> None:
        """The connection is gone: what it still waited for is answered to nobody."""
        if session.closed:
            return
        session.closed = True
        self.sessions.pop(session.id, None)
        if session.parked_request_id:
            self.parked.pop(session.parked_request_id, None)
        session.backlog.clear()
        session.drop_output()
        self.data_plane.disconnected(session.id)
        self._apply(self.core.handle(Disconnected(session.id), now), now)
        self._resume(now)

    def receive(self, session: Session, data: bytes, now: Now) -> None:
        """Take bytes from a connection. What they lead to shows in take_ready() and end_turn()."""
        self._check_failure()
        if session.closed or session.close_reason:
            return
        frames: list[bytes] = []
        try:
            session.splitter.feed(data, frames)
        except FrameError as error:
            self._handle_frames(session, frames, now)
            self.outbox.close(session, str(error))
            return
        self._handle_frames(session, frames, now)
        if self.intake.queue:
            self._resume(now)

    def _handle_frames(self, session: Session, frames: list[bytes], now: Now) -> None:
        """Handle frames that have just arrived."""
        if session.backlog:
            hold_back(session, frames)
        else:
            self._handle_in_order(session, frames, now, True)

    def _handle_in_order(self, session: Session, frames: list[bytes], now: Now, is_fresh: bool) -> None:
        count = len(frames)
        index = 0
        while index < count:
            frame = frames[index]
            if (
                must_wait(session)
                or self._must_stall(session, frame)
                or not self.intake.has_room(session, frame, is_fresh)
            ):
                hold_back(session, frames[index:])
                break
            self._handle_frame(session, frame, now)
            self.intake.has_gone_on = self.intake.has_gone_on or not is_fresh
            index += 1
        if session.chunks:
            self.outbox.touch(session)

    def _must_stall(self, session: Session, frame: bytes) -> bool:
        """Whether the request has to wait until what was appended is written; the session is noted then."""
        is_full = self._is_commit_full()
        is_crowded = self.data_plane.produce.is_crowded
        if not is_full and not is_crowded:
            return False
        api_key = int(read_i16_be(frame, 0))
        if not (is_full and api_key in APPENDING_APIS) and not (is_crowded and api_key == apis.PRODUCE):
            return False
        self.intake.stall(session)
        return True

    def _is_commit_full(self) -> bool:
        return self.open_bytes + self.journal.pending_bytes > self.commit_bytes_target

    def go_on(self, session: Session) -> None:
        """The session's output was taken: the next turn goes on with requests that waited for that."""
        if session.backlog and not session.closed:
            self.intake.enqueue(session)

    def _check_failure(self) -> None:
        """Raises JournalFailed once storing anything has failed: nothing is handled or answered any more."""
        if self.journal.failure is not None:
            raise JournalFailed(self.journal.failure)

    def _resume(self, now: Now) -> None:
        """Go on with sessions whose requests wait for nothing any more, as far as the turn's budget goes."""
        if self.resuming:
            return
        self.resuming = True
        session = self.intake.next_session()
        while session is not None:
            try:
                self._handle_in_order(session, take_backlog(session), now, False)
            except Exception as fault:
                # The event that this is part of may be another session's.
                if self.journal.failure is not None:
                    raise
                self.outbox.fault(session, "requests that waited", fault)
            session = self.intake.next_session()
        self.resuming = False

    # --- one request -----------------------------------------------------------------------------------------

    def _handle_frame(self, session: Session, frame: bytes, now: Now) -> None:
        api_key = int(read_i16_be(frame, 0))
        version = int(read_i16_be(frame, 2))
        correlation_id = int(read_i32_be(frame, 4))
        api = apis.APIS.get(api_key)
        if api is None or not api.served:
            self.outbox.close(session, f"unknown api key {api_key}")
            return
        if version < api.min_version or version > api.max_version:
            if api_key == apis.API_VERSIONS:
                self.outbox.answer(session, correlation_id, api_key, 0, unsupported_api_versions(), 0)
            else:
                self.outbox.close(session, f"{api.name} version {version} is not supported")
            return
        try:
            most = elements_max(self.config, api_key)
            reader = read_header(session, frame, version >= api.flexible_version, most)
            body = apis.decode_request(api_key, reader, version)
            # What follows the body is ignored, as brokers do: librdkafka asks for all topics with a null array of
            # four bytes where flexible versions have one.
        except DecodeError as error:
            why = why_unreadable(error, api_key)
            self.outbox.close(session, f"{api.name} version {version} cannot be read: {why}")
            return
        except Exception as fault:
            # Not `error` again: compiled code gives a name one type per function.
            self.outbox.fault(session, f"reading {api.name} version {version}", fault)
            return
        request_id = self.next_request_id
        self.next_request_id = request_id + 1
        request = Request(
            request_id,
            session.id,
            api_key,
            version,
            session.client_id,
            session.member_host,
            body,
            self.entropy(ENTROPY_BYTES) if api_key in ENTROPY_APIS else b"",
            session.host,
            session.port,
        )
        spent = self.budget.spent
        try:
            self._handle_request(session, correlation_id, request, now)
        except Exception as fault:
            self.current_id = 0
            self.current_request = None
            # Handlers change soft state only, so a bug of ours in one costs the connection that met it and nobody
            # else. What concerns the log is different: there, nothing goes on.
            if isinstance(fault, OSError) and api_key in APPENDING_APIS:
                self.journal.fail(fault)
            if self.journal.failure is not None:
                raise
            self.outbox.fault(session, f"{api.name} version {version}", fault)
        self.budget.note_request(api_key, len(frame), session.client_host, spent, self.core.take_cost())

    def _handle_request(self, session: Session, correlation_id: int, request: Request, now: Now) -> None:
        api_key = request.api_key
        version = request.version
        if self.disk_full and api_key in WRITING_APIS:
            refusal = error_response(api_key, version, request.body, KAFKA_STORAGE_ERROR)
            if api_key == apis.PRODUCE and cast(ProduceRequest, request.body).acks == 0:
                self.outbox.check_unacknowledged(session, cast(ProduceResponse, refusal))
                return
            self.outbox.answer(session, correlation_id, api_key, version, refusal, 0)
            return
        if api_key in DATA_PLANE_APIS:
            self._handle_data(session, correlation_id, request, now)
            return
        if api_key == apis.API_VERSIONS:
            versions = api_versions_response(
                cast(ApiVersionsRequest, request.body), version, self.core.topics.features
            )
            self.outbox.answer(session, correlation_id, api_key, version, versions, 0)
            return
        # Most requests are answered at once; only one that is not goes into the table of parked ones.
        request_id = request.request_id
        parked = Parked(session, correlation_id, api_key, version)
        session.parked_request_id = request_id
        self.current = parked
        self.current_id = request_id
        self.current_request = request
        self._apply(self.core.handle_request(request, now), now)
        self.current_id = 0
        self.current_request = None
        if session.parked_request_id == request_id:
            self.parked[request_id] = parked

    def _handle_data(self, session: Session, correlation_id: int, request: Request, now: Now) -> None:
        response = self.data_plane.handle(request, now)
        for timer in self.data_plane.take_timers():
            self._arm(timer)
        if self.data_plane.table.facts:
            self.outbox.facts.extend(self.data_plane.table.take_facts())
        api_key = request.api_key
        if response is None:
            self.parked[request.request_id] = Parked(session, correlation_id, api_key, request.version)
            session.parked_request_id = request.request_id
            self._take_up(self.data_plane.take_jobs())
            return
        if api_key == apis.PRODUCE:
            if cast(ProduceRequest, request.body).acks == 0:
                self.outbox.check_unacknowledged(session, cast(ProduceResponse, response))
                return
            self.outbox.answer(session, correlation_id, api_key, request.version, response, self._last_seq())
            return
        wait_seq = self._last_seq() if api_key == apis.DELETE_RECORDS else 0
        self.outbox.answer(session, correlation_id, api_key, request.version, response, wait_seq)

    def _append_produced(self, now: Now) -> None:
        """Append for Produce requests that waited, as far as the turn and the open commit go."""
        produce = self.data_plane.produce
        work = None if self._is_commit_full() else produce.next_ready()
        while work is not None:
            try:
                if produce.append_more(work, self.disk_full, now):
                    self._give_produced(work)
            except Exception as error:
                produce.drop(work)
                if isinstance(error, OSError):
                    self.journal.fail(error)
                if self.journal.failure is not None:
                    raise
                parked = self.parked.pop(work.request_id, None)
                if parked is not None:
                    parked.session.parked_request_id = 0
                    self.outbox.fault(parked.session, "Produce", error)
            work = None if self._is_commit_full() else produce.next_ready()
        self._take_up(self.data_plane.take_jobs())
        if not produce.is_crowded and not self._is_commit_full():
            self.intake.unstall()

    def _give_produced(self, work: ProduceWork) -> None:
        parked = self.parked.get(work.request_id)
        if parked is None:
            # Its connection is gone. A broker, too, stores what it got.
            return
        if work.acks == 0:
            self.outbox.check_unacknowledged(parked.session, work.answer())
            self._give(Reply(work.request_id, None), 0)
        else:
            self._give(Reply(work.request_id, work.answer()), self._last_seq())

    # --- outcomes --------------------------------------------------------------------------------------------

    def _apply(self, outcome: Outcome, now: Now) -> None:
        """Store, replay and answer what an event led to, then handle the events that follow from it."""
        self._apply_one(outcome, now)
        if not outcome.follow_ups:
            return
        # A chain may have any number of steps, more than a stack has room for.
        events = outcome.follow_ups[::-1]
        while events:
            step = self.core.handle(events.pop(), now)
            self._apply_one(step, now)
            events.extend(step.follow_ups[::-1])

    def _apply_one(self, outcome: Outcome, now: Now) -> None:
        wait_seq = 0
        follower = self.data_plane.follower
        queued = follower.queued
        if outcome.records:
            try:
                wait_seq = self._append(outcome, now)
            except BatchTooLarge as error:
                self._refuse(outcome, str(error), now)
        if follower.queued > queued:
            follower.hold(outcome.replies, wait_seq)
        else:
            for reply in outcome.replies:
                self._give(reply, wait_seq)
        for timer in outcome.timers:
            self._arm(timer)
        self._take_up(outcome.jobs)
        if outcome.continuations:
            self.continuations.extend(outcome.continuations)
        if outcome.facts:
            self.outbox.facts.extend(outcome.facts)

    def _continue(self, now: Now) -> None:
        """Take one step more of each request that is handled in several turns, as far as this turn's budget goes."""
        for _ in range(len(self.continuations)):
            step = self.continuations.popleft()
            try:
                self._apply(self.core.handle(step, now), now)
            except Exception as fault:
                if self.journal.failure is not None:
                    raise
                parked = self.parked.pop(step.request_id, None)
                if parked is not None:
                    parked.session.parked_request_id = 0
                    self.outbox.fault(parked.session, "a request of several turns", fault)
            self.budget.spent += self.core.take_cost()
            if self.budget.is_spent:
                break

    def _refuse(self, outcome: Outcome, reason: str, now: Now) -> None:
        """Nothing of the outcome is stored: its request gets an error, others that it would answer are closed."""
        self.outbox.facts.append(Fact(WARNING, "records_refused", {"reason": reason}))
        unanswered = [reply.request_id for reply in outcome.replies]
        unanswered += [step.request_id for step in outcome.continuations]
        for request_id in unanswered:
            parked = self.parked.get(request_id)
            if parked is not None:
                self.outbox.close(parked.session, reason)
        left = self.core.refused(outcome, now)
        outcome.replies = [reply for reply in left.replies if reply.request_id != self.current_id]
        outcome.timers.extend(left.timers)
        outcome.follow_ups = []
        outcome.continuations = []
        outcome.jobs = []
        outcome.facts = left.facts
        request = self.current_request
        if request is not None:
            is_commit = request.api_key == apis.OFFSET_COMMIT
            error_code = INVALID_COMMIT_OFFSET_SIZE if is_commit else UNKNOWN_SERVER_ERROR
            response = error_response(request.api_key, request.version, request.body, error_code)
            outcome.reply(request.request_id, response)

    def _arm(self, timer: Timer) -> None:
        self.timers.arm(timer)
        if self.timers.wants_weeding():
            self.timers.weed(self._still_counts)

    def _still_counts(self, timer: Timer) -> bool:
        if timer.kind == TIMER_FETCH:
            return self.data_plane.is_waiting(timer)
        return timer.kind == TIMER_TOPICS or self.core.still_counts(timer)

    def _append(self, outcome: Outcome, now: Now) -> int:
        log_id = outcome.log
        if log_id is None:
            raise RuntimeError("records without a log")
        log = self.coordinator_logs[log_id]
        encoded = log.encode(outcome.records)
        try:
            self._store(log, encoded, outcome, now)
        except Exception as error:
            self.journal.fail(error)
            raise
        return self.open_seq

    def _store(self, log: CoordinatorLog, encoded: EncodedRecords, outcome: Outcome, now: Now) -> None:
        self.open_bytes += encoded.size_bytes
        offset = log.append(encoded, now.wall_ms)
        self.group_events.note(self.open_seq, log.log_id, offset, outcome.records, now)
        core = self.core
        for record in outcome.records:
            core.replay(log.log_id, offset, record.key, record.value, now.wall_ms)
            offset += 1
        core.settle(outcome, now)
        if log.is_metadata:
            # A small request may create many partitions.
            self.budget.spent += encoded.size_bytes
            self._follow_topics(now)
            changes = core.topics.take_changes()
            if changes is not None:
                outcome.follow_ups.insert(0, changes)

    def _project(self, now: Now) -> None:
        """Append what happened to groups as far as it is durable; it goes with the next commit."""
        if self.group_events.take(self.outbox.durable_seq, self.open_seq, self.disk_full):
            self._apply(self.group_events.creation(self.entropy(ENTROPY_BYTES)), now)
            self.group_events.append()

    def _follow_topics(self, now: Now) -> None:
        """Partitions follow the records that create and delete topics."""
        self.data_plane.follower.follow(self.open_seq)
        self._arm_topic_timer(now)

    def _work_off_topics(self, now: Now) -> None:
        """Go on with what the records of topics led to, and answer the requests that waited for it."""
        follower = self.data_plane.follower
        try:
            follower.work(self.outbox.durable_seq)
        except OSError as error:
            self.journal.fail(error)
            raise
        for held in follower.take_held():
            for reply in held.replies:
                self._give(reply, held.wait_seq)
        self._take_up(follower.take_jobs())
        self._arm_topic_timer(now)

    def _arm_topic_timer(self, now: Now) -> None:
        """Have the rest done in a later turn, after others had theirs."""
        timer = self.data_plane.follower.take_timer(self.outbox.durable_seq, now)
        if timer is not None:
            self._arm(timer)

    def _take_up(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job.key not in self.jobs_in_flight:
                self.jobs_in_flight[job.key] = job
                self.jobs.append(job)

    def _give(self, reply: Reply, wait_seq: int) -> None:
        parked: Parked | None = self.current
        if reply.request_id != self.current_id:
            parked = self.parked.pop(reply.request_id, None)
        if parked is None:
            return
        session = parked.session
        session.parked_request_id = 0
        if reply.wait_log is not None and wait_seq == 0:
            wait_seq = self._seq_of(reply.wait_log, reply.wait_offset)
        if reply.response is not None:
            self.outbox.answer(
                session, parked.correlation_id, parked.api_key, parked.version, reply.response, wait_seq
            )
        self.outbox.touch(session)
        if session.backlog:
            self.intake.enqueue(session)

    def _seq_of(self, log_id: LogId, offset: int) -> int:
        """The commit after which a log is durable up to `offset`; 0 when it is already."""
        log = self.coordinator_logs[log_id]
        if offset <= log.log.durable_end:
            return 0
        if offset <= log.written_end:
            return self.open_seq - 1
        return self.open_seq

    def _last_seq(self) -> int:
        """The commit after which everything appended so far is durable; 0 when it is already."""
        if self.journal.has_pending:
            return self.open_seq
        if self.in_flight is not None:
            return self.open_seq - 1
        return 0

    # --- turns -----------------------------------------------------------------------------------------------

    def fire_timers(self, now: Now) -> None:
        """Handle every timer that is due."""
        self._check_failure()
        # What a handler arms for at once, to go on with later, waits until others had their turn.
        armed = self.timers.armed
        for _ in range(TIMERS_MAX):
            timer = None if self.budget.is_spent else self.timers.pop_due(now.mono_ms, armed)
            if timer is None:
                break
            if timer.kind == TIMER_FETCH:
                for reply in self.data_plane.on_timer(timer, now):
                    self._give(reply, 0)
            elif timer.kind == TIMER_TOPICS:
                self.data_plane.follower.has_timer = False
                self._work_off_topics(now)
            else:
                self._apply(self.core.handle(TimerFired(timer), now), now)
        self._resume(now)

    def job_done(self, job: Job, result: object | None, error: str | None, now: Now) -> None:
        """A job that was taken ended, or will not in time; what ends a second time is dropped. Call end_turn next."""
        if self.jobs_in_flight.get(job.key) is job:
            del self.jobs_in_flight[job.key]
            if isinstance(job, RemoveLog):
                self.outbox.facts.extend(job.facts(error))
            elif not self.data_plane.job_done(job, error):
                self.handle_event(JobDone(job, result, error), now)

    def handle_event(self, event: Event, now: Now) -> None:
        """Handle an event from outside the request path, such as a finished job or a test's control command."""
        self._check_failure()
        self._apply(self.core.handle(event, now), now)
        self._resume(now)

    def next_deadline_ms(self) -> int:
        return self.timers.next_deadline_ms()

    def end_turn(self, now: Now) -> CommitTicket | None:
        """Write what the turn appended and release what may go out.

        Returns a ticket when files must be synced; the caller syncs them and calls commit_done. None: nothing to
        sync, or a commit is in flight and this turn's appends go with the next.
        """
        self._check_failure()
        self.data_plane.follower.begin_turn()
        if self.data_plane.produce.ready:
            self._append_produced(now)
        if self.continuations:
            self._continue(now)
        self._answer_parked(now)
        self._resume(now)
        ticket: CommitTicket | None = None
        if self.in_flight is None:
            ticket = self._write(now)
            while ticket is None and self.has_unwritten():
                ticket = self._write(now)
        self.outbox.release()
        self.intake.end_turn()
        self.data_plane.produce.begin_turn()
        return ticket

    def has_room(self) -> bool:
        """Whether this turn may take more input than small requests of connections that wait for nothing."""
        return not self.intake.queue and not self.budget.is_spent

    def has_more(self) -> bool:
        """Whether the turn left something for the next one because its budget was spent."""
        if len(self.intake.queue) > 0 or len(self.continuations) > 0 or self.data_plane.has_due():
            return True
        return len(self.data_plane.produce.ready) > 0 and not self._is_commit_full()

    def is_checking(self) -> bool:
        """Whether Produce requests wait for a check of their records, or for their append after it."""
        return self.data_plane.produce.waiting > 0

    def _answer_parked(self, now: Now) -> None:
        """Answer parked requests of the data plane that can be answered, as far as the turn's budget goes."""
        while self.data_plane.has_due() and not self.budget.is_spent:
            reply = self.data_plane.answer_next(now)
            if reply is not None:
                self._give(reply, 0)
        self._take_up(self.data_plane.take_jobs())

    def _write(self, now: Now) -> CommitTicket | None:
        for log in self.coordinator_logs.values():
            if log.close_batch() and log.partition is not None:
                self.data_plane.note_append(log.partition)
            log.written_end = log.next_offset
        if not self.journal.has_pending:
            return None
        ticket = self.journal.write()
        self.open_seq += 1
        self.open_bytes = 0
        if ticket is None:
            self._committed(now)
        else:
            self.in_flight = ticket
        if self.intake.stalled:
            self.intake.unstall()
            self._resume(now)
        return ticket

    def commit_done(self, ticket: CommitTicket, now: Now) -> None:
        """The ticket's files are synced: everything up to it is durable. Call end_turn next."""
        self.journal.complete(ticket)
        self.in_flight = None
        self._committed(now)
        self.outbox.release()

    def _committed(self, now: Now) -> None:
        self.outbox.durable_seq = self.open_seq - 1
        self._project(now)
        self.data_plane.fetch.note_durable()
        self._answer_parked(now)
        if self.data_plane.follower.removals:
            self._work_off_topics(now)
        self._resume(now)

    def take_ready(self) -> list[Session]:
        """The sessions that have output to be written or are to be closed."""
        return self.outbox.take_ready()

    def take_facts(self) -> list[Fact]:
        return self.outbox.take_facts()

    def take_jobs(self) -> list[Job]:
        """The jobs to run that came up since this was last asked."""
        jobs = self.jobs
        if jobs:
            self.jobs = []
        return jobs

    def has_unwritten(self) -> bool:
        """Whether another end_turn would have something to write."""
        if self.journal.has_pending:
            return True
        for log in self.coordinator_logs.values():
            if log.builder.count > 0:
                return True
        return False

    def has_failed(self) -> bool:
        """Whether storing anything failed. Then nothing goes on; other failures cost the session that met them."""
        return self.journal.failure is not None

    def set_disk_full(self, full: bool) -> None:
        """Turn writes away with a retriable error, or take them again."""
        if full != self.disk_full:
            self.disk_full = full
            self.outbox.facts.append(Fact(WARNING if full else INFO, "disk_full" if full else "disk_has_space", {}))

    def stop(self) -> None:
        """Close the logs cleanly. Everything must have been committed before."""
        self.journal.close(True)
