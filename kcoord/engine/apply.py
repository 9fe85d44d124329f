"""Applying an outcome: what the core decided becomes records, state and answers, in this order.

A handler of the core looks at one event and returns an `Outcome`. Hard state is then as it was before. Applying the
outcome takes these steps:

1. *Encode the records and check their size.* This is the last step that can be refused. Nothing has changed yet, so a
   batch that is too large only fails its own request (`_refuse`), and soft state is rebuilt from hard state.
2. *Append the records to the open batch of their log*, in memory. They have offsets from here on, and they belong to
   the open commit.
3. *Replay each record into the core*, with its offset. Only this changes hard state. The same code replays the same
   bytes at start-up, so the state is always the one that a restart would build from the log. This step comes before
   the next event, because the next handler must see what this one decided, long before any of it is on the disk. A
   group that the handler has created (`Outcome.made`) is passed to replay here, as an argument, and nowhere else.
4. *Append the markers* of transactions that end (`Outcome.markers`), in memory as well, and replay those of the
   coordinator's own logs. They belong to the same commit as the records. What must not happen before they are durable
   is an event of its own (`Outcome.once_durable`), which the turn handles after that commit.
5. *Settle*: compare the timers of the members in the records with the members that exist now.
6. *Pass the replies to the outbox.* They are encoded now, while they agree with the state. Each has the number of the
   commit that it waits for: the open commit if the outcome has records, or the commit of the state that it shows
   (`Reply.wait_log`). Of an outcome with more than `REPLIES_MAX` replies, the others follow in the next turns; they
   must not share lists with the state, because they are encoded then.
7. *Arm timers; add jobs and continuations.* None of them can fire or run before this event is done.
8. *Handle the follow-ups*, each as a separate event, in order, before any other event. A change in another log is a
   follow-up, because an outcome writes to one log, as one atomic batch.

Why the state may be ahead of the disk: clients see it only through the outbox, and no response leaves before its commit
is durable. If the process dies first, no client has seen the newer state, and the restart builds the older one.

Why a failure in steps 2 to 5 ends the process: the log and the state may disagree, and only a new start, which reads
the log, can repair that. So the journal is marked as failed, and from then on no commit is written and no response
released. An exception before step 2 closes the connection of the request, because only soft state has changed.

*Parked requests*: a request without a reply in its own outcome waits in `parked` until a later outcome replies to it.
Any later event of any connection may do so. A reply to a request that is no longer in the table is dropped, because its
connection is closed. A request gets one response: the reply removes it from the table.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from kcoord.core.coordinator import Core
from kcoord.core.offsets.state import NO_PRODUCER_ID
from kcoord.core.outcome import (
    LIMIT,
    OFFSETS_TOPIC,
    TIMER_FETCH,
    TIMER_INITIAL_REBALANCE,
    TIMER_TOPICS,
    WARNING,
    Continuation,
    Event,
    Fact,
    Job,
    Marker,
    Now,
    Outcome,
    Reply,
    Timer,
)
from kcoord.core.refusals import error_response
from kcoord.engine.backlogs import Backlogs
from kcoord.engine.budget import TurnBudget
from kcoord.engine.commits import Commits
from kcoord.engine.coordinator_log import BatchTooLarge, CoordinatorLog, EncodedRecords
from kcoord.engine.data_plane import DataPlane
from kcoord.engine.group_events_topic import GroupEventsTopic
from kcoord.engine.outbox import Outbox
from kcoord.engine.session import PendingRequest
from kcoord.engine.timers import TimerQueue
from kcoord.engine.write_markers import MarkerLog
from kcoord.protocol import apis
from kcoord.protocol.errors import INVALID_COMMIT_OFFSET_SIZE, UNKNOWN_SERVER_ERROR

# The wait of an answer that shows nothing which may not be durable yet.
NO_WAIT: Final = 0
# How many answers of one event are given in a turn: about five milliseconds of native code, and as much again for the
# writes. When a group of 10,000 members has joined, all of them are answered by one event, and a heartbeat of another
# client must not wait for them.
REPLIES_MAX: Final = 500
# What a marker costs in a turn's budget: a batch of its own, and the end of a transaction in its partition.
MARKER_COST: Final = 256


@final
class Applier(MarkerLog):
    """Applies outcomes, and owns what outlives them: timers, jobs, continuations and parked requests."""

    def __init__(
        self,
        core: Core,
        commits: Commits,
        outbox: Outbox,
        backlogs: Backlogs,
        data_plane: DataPlane,
        group_events: GroupEventsTopic,
        budget: TurnBudget,
    ) -> None:
        self.core = core
        self.commits = commits
        self.outbox = outbox
        self.backlogs = backlogs
        self.data_plane = data_plane
        self.group_events = group_events
        self.budget = budget
        self.timers = TimerQueue()
        # Those that take nothing from anybody, so that they need not wait until the server has read its sockets.
        self.prompt_timers = TimerQueue()
        # Jobs that the server has not taken yet, and all jobs that are not done, by key.
        self.jobs: list[Job] = []
        self.jobs_in_flight: dict[str, Job] = {}
        # The rest of requests that are handled in several turns.
        self.continuations: deque[Continuation] = deque()
        self.parked: dict[int, PendingRequest] = {}
        # Set while the engine loads logs.
        self.is_loading = True
        # Answers of events that had more than `replies_max`, each with the commit that it waits for. Their requests are
        # in the table of parked ones until then.
        self.late_replies: deque[tuple[int, Reply]] = deque()
        self.replies_max = REPLIES_MAX
        # Events that wait for a commit, with its number, in the order of these numbers.
        self.once_durable: deque[tuple[int, Event]] = deque()

    def apply(self, outcome: Outcome, now: Now, pending: PendingRequest | None = None) -> None:
        """Store, replay and answer what an event led to, then handle the events that follow from it.

        `pending` is the request that the event is, if it is one. It is not in the table of parked requests.
        """
        self._apply_one(outcome, now, pending)
        if outcome.consequences is None or not outcome.follow_ups:
            return
        # A chain may have any number of steps, more than a stack can hold.
        events = outcome.follow_ups[::-1]
        while events:
            step = self.core.handle(events.pop(), now)
            self._apply_one(step, now, pending)
            if step.consequences is not None:
                events.extend(step.follow_ups[::-1])

    def _apply_one(self, outcome: Outcome, now: Now, pending: PendingRequest | None) -> None:
        wait_seq = NO_WAIT
        follower = self.data_plane.follower
        queued = follower.queued
        if outcome.records:
            try:
                wait_seq = self._append(outcome, now)
            except BatchTooLarge as error:
                self._refuse(outcome, str(error), now, pending)
        if outcome.markers is not None:
            wait_seq = self._append_markers(outcome.markers, now)
        if outcome.once_durable is not None:
            seq = self.commits.newest_seq() if wait_seq == NO_WAIT else wait_seq
            for event in outcome.once_durable:
                self.once_durable.append((seq, event))
        if follower.queued > queued:
            follower.hold(outcome.replies, wait_seq)
        else:
            replies = outcome.replies
            for i in range(min(len(replies), self.replies_max)):
                self.give(replies[i], wait_seq, pending)
            for i in range(self.replies_max, len(replies)):
                self.late_replies.append((wait_seq, replies[i]))
        more = outcome.consequences
        if more is None:
            return
        for timer in more.timers:
            self.arm(timer)
        self.take_up(more.jobs)
        if more.continuations:
            self.continuations.extend(more.continuations)
        if more.facts:
            self.outbox.facts.extend(more.facts)

    # --- records ---------------------------------------------------------------------------------------------

    def _append(self, outcome: Outcome, now: Now) -> int:
        """Store and replay the records; the number of their commit. Raises BatchTooLarge before any change."""
        log_id = outcome.log
        if log_id is None:
            raise RuntimeError("records without a log")
        log = self.commits.logs[log_id]
        encoded = log.encode(outcome.records)
        try:
            self._store(log, encoded, outcome, now)
        except Exception as error:
            self.commits.journal.fail(error)
            raise
        return self.commits.open_seq

    def _store(self, log: CoordinatorLog, encoded: EncodedRecords, outcome: Outcome, now: Now) -> None:
        producer = outcome.producer
        offset = self.commits.append(log, encoded, now.wall_ms, producer)
        if outcome.may_wait:
            log.may_wait += len(outcome.records)
        self.group_events.note(self.commits.open_seq, log.log_id, offset, outcome.records, now)
        core = self.core
        made = outcome.made
        producer_id = NO_PRODUCER_ID if producer is None else producer.producer_id
        for record in outcome.records:
            core.replay(log.log_id, offset, record.key, record.value, now.wall_ms, made, producer_id)
            offset += 1
        core.settle(outcome, now)
        if log.is_metadata:
            if outcome.once_durable is not None:
                # A power cut that takes back a block of producer ids may leave records with these ids in other logs.
                self.commits.journal.sync_next(log.log)
            # A small request may create many partitions.
            self.budget.spent += encoded.size_bytes
            self.follow_topics(now)
            changes = core.topics.take_changes()
            if changes is not None:
                outcome.follow_ups.insert(0, changes)

    def _append_markers(self, markers: list[Marker], now: Now) -> int:
        """Append the markers to their partitions; the number of their commit."""
        try:
            for marker in markers:
                self.append_marker(marker, now)
        except Exception as error:
            self.commits.journal.fail(error)
            raise
        return self.commits.newest_seq()

    def append_marker(self, marker: Marker, now: Now) -> None:
        """Append a marker. A partition that is gone has nothing left to commit or abort."""
        self.budget.spent += MARKER_COST
        if marker.topic != OFFSETS_TOPIC:
            tp = self.data_plane.table.find(marker.topic, marker.partition)
            if tp is not None:
                self.data_plane.markers.append_marker(tp, marker, now)
            return
        logs = self.core.offsets_logs()
        if 0 <= marker.partition < len(logs):
            log_id = logs[marker.partition]
            offset = self.commits.logs[log_id].append_marker(marker, now.wall_ms)
            self.core.replay_marker(log_id, offset, marker.producer_id, marker.producer_epoch, marker.is_commit)

    def _refuse(self, outcome: Outcome, reason: str, now: Now, pending: PendingRequest | None) -> None:
        """Nothing of the outcome is stored: its request gets an error, others that it would answer are closed."""
        self.outbox.facts.append(Fact(WARNING, "records_refused", {"reason": reason}, LIMIT))
        unanswered = [reply.request_id for reply in outcome.replies]
        unanswered += [step.request_id for step in outcome.continuations]
        for request_id in unanswered:
            parked = self.parked.get(request_id)
            if parked is not None:
                self.outbox.close(parked.session, reason, LIMIT)
        left = self.core.refused(outcome, now)
        own_id = 0 if pending is None else pending.request_id
        outcome.replies = [reply for reply in left.replies if reply.request_id != own_id]
        outcome.timers.extend(left.timers)
        outcome.follow_ups.clear()
        outcome.markers = None
        outcome.once_durable = None
        outcome.continuations.clear()
        outcome.jobs.clear()
        outcome.facts[:] = left.facts
        if pending is not None and pending.body is not None and pending.session.parked_request_id == own_id:
            api_key = pending.api_key
            is_commit = api_key == apis.OFFSET_COMMIT or api_key == apis.TXN_OFFSET_COMMIT
            error_code = INVALID_COMMIT_OFFSET_SIZE if is_commit else UNKNOWN_SERVER_ERROR
            response = error_response(api_key, pending.version, pending.body, error_code)
            outcome.reply(own_id, response)

    # --- answers ---------------------------------------------------------------------------------------------

    def park(self, pending: PendingRequest) -> None:
        """The request is answered by a later event, and its session waits for that."""
        pending.body = None
        pending.session.parked_request_id = pending.request_id
        self.parked[pending.request_id] = pending

    def give(self, reply: Reply, wait_seq: int, pending: PendingRequest | None = None) -> None:
        """Answer the request that is being handled (`pending`) or a parked one. Drop a reply to any other request."""
        answered = pending
        if answered is None or reply.request_id != answered.request_id:
            answered = self.parked.pop(reply.request_id, None)
            if answered is None:
                return
        session = answered.session
        session.parked_request_id = 0
        if reply.wait_log is not None and wait_seq == NO_WAIT:
            wait_seq = self.commits.seq_of(reply.wait_log, reply.wait_offset)
        if reply.response is not None:
            self.outbox.answer(
                session, answered.correlation_id, answered.api_key, answered.version, reply.response, wait_seq
            )
        self.outbox.touch(session)
        if session.backlog:
            self.backlogs.enqueue(session)

    def give_late(self) -> None:
        """Give the next answers of an event that had too many for its turn."""
        for _ in range(min(len(self.late_replies), self.replies_max)):
            wait_seq, reply = self.late_replies.popleft()
            self.give(reply, wait_seq)

    def fault_parked(self, request_id: int, where: str, error: Exception) -> None:
        """Handle an internal error in the work on a parked request: close its connection, if it is still open."""
        parked = self.parked.pop(request_id, None)
        if parked is not None:
            parked.session.parked_request_id = 0
            self.outbox.fault(parked.session, where, error)

    # --- timers and jobs -------------------------------------------------------------------------------------

    def arm(self, timer: Timer) -> None:
        timers = self.prompt_timers if timer.kind == TIMER_INITIAL_REBALANCE else self.timers
        timers.arm(timer)
        if timers.wants_weeding():
            timers.weed(self._still_counts)

    def _still_counts(self, timer: Timer) -> bool:
        if timer.kind == TIMER_FETCH:
            return self.data_plane.is_waiting(timer)
        return timer.kind == TIMER_TOPICS or self.core.still_counts(timer)

    def take_up(self, jobs: list[Job]) -> None:
        """Have jobs run; one whose key is in flight already is dropped."""
        for job in jobs:
            if job.key not in self.jobs_in_flight:
                self.jobs_in_flight[job.key] = job
                self.jobs.append(job)

    def take_jobs(self) -> list[Job]:
        """The jobs to run that came up since this was last called."""
        jobs = self.jobs
        if jobs:
            self.jobs = []
        return jobs

    # --- topics ----------------------------------------------------------------------------------------------

    def follow_topics(self, now: Now) -> None:
        """Partitions follow the records that create and delete topics."""
        self.data_plane.follower.follow(self.commits.open_seq)
        self._open_transaction_logs()
        self._arm_topic_timer(now)

    def _open_transaction_logs(self) -> None:
        """The first client that asks for a transaction coordinator creates `__transaction_state`: open its logs.

        If it exists at start-up, its logs are opened after they are loaded.
        """
        if not self.is_loading and not self.core.transactions.is_open and self.core.transactions.logs():
            for log_id in self.core.transactions.logs():
                self.commits.open_log(log_id)
            self.core.transactions.is_open = True

    def work_off_topics(self, now: Now) -> None:
        """Continue the work that the records of topics caused, and answer the requests that waited for it."""
        follower = self.data_plane.follower
        try:
            follower.work(self.commits.durable_seq)
        except OSError as error:
            self.commits.journal.fail(error)
            raise
        for held in follower.take_held():
            for reply in held.replies:
                self.give(reply, held.wait_seq)
        self.take_up(follower.take_jobs())
        self._arm_topic_timer(now)

    def _arm_topic_timer(self, now: Now) -> None:
        """Have the rest done in a later turn, after others had theirs."""
        timer = self.data_plane.follower.take_timer(self.commits.durable_seq, now)
        if timer is not None:
            self.arm(timer)
