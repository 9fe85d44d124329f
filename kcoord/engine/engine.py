"""The engine: everything between the bytes of a connection and the bytes of a log, one turn at a time.

This is the interface to the server. Three parts do the work, and the docstring of each module argues why its order of
steps is correct:

    intake.py   from the bytes of a connection to one decoded request at a time; waiting frames are in backlogs.py
    turn.py     one request or event at a time through the core; apply.py stores, replays and answers its outcome
    outbox.py   from an answer to the bytes that may leave; commits.py numbers the commits that they wait for

A turn, as the server drives it:

    receive(session, data, now)      any number of times: frames are decoded, handled, replayed, parked
    fire_timers(now)                 or fire_prompt_timers(now), while there is input that may change what others do
    job_done(job, result, error, now)
    ticket = end_turn(now)           open batches are closed and written; os and memory: durable at once
    ticket.sync()                    log.sync=always: the server syncs in a thread, while later turns run
    commit_done(ticket, now)         the answers that waited for that commit are released
    for session in take_ready(): write session.take_pieces()
    for job in take_jobs(): the server runs job.run() in a thread and then calls job_done

Each of these calls passes the event to one part, and then the intake handles backlogs (`Intake.resume`), because any
event may be the one that a session waits for. The parts depend on each other in one direction only: the intake calls
the turn, and the turn calls the outbox. In the other direction there is only data: the queue of backlogs, and the
number of the durable commit.

Failures: a request that cannot be decoded closes its connection. A failed append or sync is never acknowledged: the
exception leaves the engine, and the server ends the process. After such a failure the engine refuses every call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from kcoord.core.assignors.spec import Assignor
from kcoord.core.config import CoreConfig
from kcoord.core.coordinator import Core
from kcoord.core.outcome import METADATA_TOPIC, WARNING, Disconnected, Event, Fact, Job, JobDone, Marker, Now
from kcoord.core.producers import NO_COORDINATOR, PartitionProducers
from kcoord.engine.apply import Applier
from kcoord.engine.backlogs import Backlogs
from kcoord.engine.budget import TurnBudget
from kcoord.engine.commits import Commits
from kcoord.engine.core_gate import CoreGate
from kcoord.engine.data_plane import DataPlane
from kcoord.engine.group_events_topic import GroupEventsTopic
from kcoord.engine.intake import ENTROPY_BYTES, Intake
from kcoord.engine.loader import LogLoader, recovery_facts
from kcoord.engine.markers import open_transactions
from kcoord.engine.metadata_snapshot import MetadataState
from kcoord.engine.outbox import Outbox
from kcoord.engine.session import CLOSED, OutputPool, Session
from kcoord.engine.state_checkpoint import StateCheckpoints
from kcoord.engine.turn import Turn
from kcoord.log.directory import LogDirectory
from kcoord.log.journal import CommitTicket, Journal
from kcoord.log.storage import Syncable
from kcoord.wire.file_range import FileRanges
from kcoord.wire.frame import FrameLimits

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
        # The bytes of all unsent answers.
        self.pool = OutputPool(config.queued_response_bytes_max)
        # Session ids must not repeat after a restart, or an old client would use another client's fetch session.
        session_seed = int.from_bytes(entropy(4), "big")
        # Records in files, from the handler of a fetch to the encoder of its answer.
        ranges = FileRanges()
        self.data_plane = DataPlane(
            config, self.core.topics, directory, journal, session_seed, self.budget, self.pool, ranges
        )
        self.group_events = GroupEventsTopic(config, self.core.topics, self.data_plane, journal)
        self.states = StateCheckpoints()
        # The state of the metadata log; None until the log is loaded.
        self.metadata: MetadataState | None = None
        self.sessions: dict[int, Session] = {}
        self.next_session_id = 1
        self.commits = Commits(journal, self.data_plane.table, directory, config.coordinator_batch_bytes_max)
        self.outbox = Outbox(self.budget, self.commits, ranges)
        self.backlogs = Backlogs(self.budget)
        self.applier = Applier(
            self.core, self.commits, self.outbox, self.backlogs, self.data_plane, self.group_events, self.budget
        )
        self.data_plane.write_markers.log = self.applier
        self.gate = CoreGate(self.core, self.data_plane.table)
        self.data_plane.produce.gate = self.gate
        self.turn = Turn(
            self.core,
            self.applier,
            self.commits,
            self.outbox,
            self.backlogs,
            self.data_plane,
            self.group_events,
            self.budget,
            self.gate,
            entropy,
        )
        self.intake = Intake(
            config, self.backlogs, self.turn, self.outbox, self.commits, self.data_plane.produce, entropy
        )

    # --- loading ---------------------------------------------------------------------------------------------

    def load(self, now: Now) -> None:
        """Replay every log, create what is missing and arm the timers of what was found."""
        self.outbox.facts.extend(recovery_facts(self.directory))
        core = self.core
        metadata = self.directory.get(METADATA_TOPIC, 0)
        if metadata is None:
            metadata = self.directory.create_log(METADATA_TOPIC, 0, METADATA_TOPIC_ID)
        # It has no producers, and its snapshots state that, as on a broker.
        metadata.producer_state = PartitionProducers(0).snapshot
        self.metadata = MetadataState(metadata)
        self.outbox.facts.extend(self.metadata.load(core))
        self.commits.open_log(core.metadata_log)
        self.applier.apply(core.loaded_topics(self.entropy(ENTROPY_BYTES)), now)
        self.applier.follow_topics(now)
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
            self.commits.open_log(log_id)
        self._load_transactions()
        self.applier.apply(core.loaded(now), now)
        self._abort_unknown_transactions(now)
        if self.applier.jobs:
            raise RuntimeError(f"loading led to jobs: {self.applier.jobs}")
        # The replayed records are durable: opening a log syncs its end.
        self.turn.project(now)

    def _load_transactions(self) -> None:
        """Replay the logs of the transaction coordinator, where there are any."""
        transactions = self.core.transactions
        for log_id in transactions.logs():
            log = self.directory.get(log_id.topic, log_id.partition)
            if log is None:
                raise RuntimeError(f"{log_id} has no directory")
            loader = LogLoader(self.core, log_id)
            loader.load_log(log, log.log_start_offset)
            self.commits.open_log(log_id)
            transactions.is_open = True
        self.applier.is_loading = False

    def _abort_unknown_transactions(self, now: Now) -> None:
        """Abort what producers wrote in transactions that the coordinator does not know.

        A write and the record that adds its partition to the transaction may share a commit. They lie in two logs, and
        a crash may keep one without the other. Nobody was told that the write succeeded, so it may be aborted; without
        that, readers of committed records would wait for a decision that never comes. The producer may still repeat the
        write, so the marker also lets the partition forget its sequences (see PartitionProducers).
        """
        for served in self.data_plane.table.by_name.values():
            for tp in served.partitions:
                for producer_id, epoch, first_offset in open_transactions(tp):
                    if not self.core.transactions.covers(producer_id, tp.topic, tp.partition, epoch):
                        marker = Marker(tp.topic, tp.partition, producer_id, epoch, False, NO_COORDINATOR, 0)
                        self.applier.append_marker(marker, now)
                        fields: dict[str, object] = {
                            "log": tp.log.name,
                            "producer_id": producer_id,
                            "first_offset": first_offset,
                        }
                        self.outbox.facts.append(Fact(WARNING, "unknown_transaction_aborted", fields))

    # --- sessions --------------------------------------------------------------------------------------------

    def open_session(self, client_host: str, host: str, port: int) -> Session:
        session = Session(self.next_session_id, client_host, host, port, self.limits, self.pool)
        self.next_session_id += 1
        self.sessions[session.id] = session
        return session

    def close_session(self, session: Session, now: Now) -> None:
        """The connection is closed: drop the answers to its parked requests."""
        if session.state == CLOSED:
            return
        session.close()
        self.sessions.pop(session.id, None)
        if session.parked_request_id:
            self.applier.parked.pop(session.parked_request_id, None)
        self.data_plane.disconnected(session.id, now)
        self.turn.handle_event(Disconnected(session.id), now)
        self.intake.resume(now)

    # --- what comes in ---------------------------------------------------------------------------------------

    def receive(self, session: Session, data: bytes, now: Now, start: int = 0, end: int = -1) -> None:
        """Take bytes from a connection: those from `start` to `end`, or to the end of `data` if that is -1.

        What they lead to shows in take_ready() and end_turn().
        """
        self.commits.check_failure()
        self.intake.receive(session, data, now, start, end)

    def output_taken(self, session: Session) -> None:
        """The session's output was taken: the next turn handles the requests that waited for that."""
        if session.backlog and session.state != CLOSED:
            self.backlogs.enqueue(session)

    def fire_timers(self, now: Now) -> None:
        """Handle every timer that is due, as far as the turn's budget goes."""
        self.commits.check_failure()
        self.turn.fire_timers(self.applier.prompt_timers, now)
        self.turn.fire_timers(self.applier.timers, now)
        self.intake.resume(now)

    def fire_prompt_timers(self, now: Now) -> bool:
        """Handle the due timers that need not wait until the sockets are read. Returns whether there were any."""
        timers = self.applier.prompt_timers
        if not 0 <= timers.next_deadline_ms() <= now.mono_ms:
            return False
        self.commits.check_failure()
        self.turn.fire_timers(timers, now)
        self.intake.resume(now)
        return True

    def next_deadline_ms(self) -> int:
        """The earliest deadline on the monotonic clock, or -1 if no timer is armed."""
        deadline_ms = self.applier.timers.next_deadline_ms()
        prompt_ms = self.applier.prompt_timers.next_deadline_ms()
        return prompt_ms if deadline_ms < 0 or 0 <= prompt_ms < deadline_ms else deadline_ms

    def job_done(self, job: Job, result: object | None, error: str | None, now: Now) -> None:
        """A job that was taken ended, or will not in time; what ends a second time is dropped. Call end_turn next."""
        if self.turn.end_job(job, error, now):
            self.handle_event(JobDone(job, result, error), now)

    def handle_event(self, event: Event, now: Now) -> None:
        """Handle an event from outside the request path, such as a finished job or a test's control command."""
        self.commits.check_failure()
        self.turn.handle_event(event, now)
        self.intake.resume(now)

    def set_disk_full(self, full: bool) -> None:
        """Turn writes away with a retriable error, or take them again."""
        self.turn.set_disk_full(full)

    # --- turns and commits -----------------------------------------------------------------------------------

    def end_turn(self, now: Now, may_hold: bool = False, may_write: bool = True) -> CommitTicket | None:
        """Write what the turn appended and release what may go out. With `may_hold`, records that may wait for the next
        commit are not written alone; the caller ends another turn without it soon. Without `may_write` nothing is
        written yet; the caller ends another turn with it very soon.

        Returns a ticket when files must be synced; the caller syncs them and calls commit_done. None: nothing to
        sync, or a commit is in flight and this turn's appends go with the next.
        """
        self.commits.check_failure()
        self.data_plane.follower.begin_turn()
        self.turn.continue_work(now)
        self.intake.resume(now)
        ticket: CommitTicket | None = None
        if self.commits.in_flight is None and may_write:
            while ticket is None and self.has_unwritten() and not (may_hold and self.commits.may_hold()):
                ticket = self._write(now)
        self.outbox.release()
        self.backlogs.end_turn()
        self.data_plane.produce.begin_turn()
        return ticket

    def _write(self, now: Now) -> CommitTicket | None:
        if not self.commits.write():
            return None
        ticket = self.commits.in_flight
        if ticket is None:
            self._committed(now)
        if self.backlogs.stalled:
            self.backlogs.unstall()
            self.intake.resume(now)
        return ticket

    def commit_done(self, ticket: CommitTicket, now: Now) -> bool:
        """The ticket's files are synced: everything up to it is durable. Call end_turn next.

        Returns whether what waited for it has appended in turn, such as the next step of a transaction.
        """
        unwritten = self.commits.unwritten_bytes()
        self.commits.complete(ticket)
        self._committed(now)
        self.outbox.release()
        return self.commits.unwritten_bytes() > unwritten

    def _committed(self, now: Now) -> None:
        self.turn.committed(now)
        self.intake.resume(now)

    def has_room(self) -> bool:
        """Whether this turn may take more input than small requests of connections that wait for nothing."""
        return not self.backlogs.queue and not self.budget.is_spent

    def has_more(self) -> bool:
        """Whether the turn left something for the next one because its budget was spent."""
        return len(self.backlogs.queue) > 0 or self.turn.has_more()

    def is_checking(self) -> bool:
        """Whether Produce requests wait for a check of their records, or for their append after it."""
        return self.data_plane.produce.waiting > 0

    def has_unwritten(self) -> bool:
        """Whether another end_turn would have something to write."""
        return self.commits.has_unwritten()

    def take_ahead(self) -> Syncable | None:
        """A file that is to be synced in the background, while later turns run; None if there is none."""
        return self.journal.take_ahead()

    def has_failed(self) -> bool:
        """Whether an append or a sync failed. If so, the engine must stop; any other failure closes one session."""
        return self.commits.has_failed()

    @property
    def disk_full(self) -> bool:
        return self.turn.disk_full

    # --- what goes out ---------------------------------------------------------------------------------------

    def take_ready(self) -> list[Session]:
        """The sessions that have output to be written or are to be closed."""
        return self.outbox.take_ready()

    def take_facts(self) -> list[Fact]:
        return self.outbox.take_facts()

    def take_jobs(self) -> list[Job]:
        """The jobs to run that came up since this was last called."""
        return self.applier.take_jobs()

    def stop(self) -> None:
        """Close the logs cleanly. Everything must have been committed before."""
        self.journal.close(True)
