"""How transactions end: EndTxn, timeouts, and producers that replace others.

An end is a chain of steps, each of which is durable before the next one begins:

1. The record of PrepareCommit or PrepareAbort: the decision.
2. The markers in all partitions of the transaction, a limited number at a time.
3. The record of CompleteCommit or CompleteAbort. The answer to EndTxn does not wait for it, so it waits for the next
   commit, which is usually that of the next transaction: one sync less for each.

A crash before the decision is durable leaves the transaction open; it is aborted at its timeout, or when its producer
returns. After the decision, `loaded` goes on with the markers. Some may be in their partitions already: a second marker
finds nothing open there and changes nothing. If markers were written together with the decision, a crash could keep
one of them without the decision, and the transaction would be committed in one partition and aborted in the others.

The markers of a restart come after the commit that is open while logs are loaded. The engine uses that to abort what
`Transactions.covers` does not cover before a marker of an earlier transaction can commit it.

While a transaction ends, every other request of its transactional id is answered with CONCURRENT_TRANSACTIONS, and
clients try again.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.cause import CLIENT_ABORTED, PRODUCER_REPLACED, TRANSACTION_TIMEOUT, Cause
from kcoord.core.outcome import (
    INFO,
    OFFSETS_TOPIC,
    PEER,
    TIMER_TRANSACTION,
    WARNING,
    Fact,
    Marker,
    Now,
    Outcome,
    Reply,
    Request,
    Timer,
    TimerFired,
)
from kcoord.core.producers import ProducerIds
from kcoord.core.transactions.held_commits import HeldCommits
from kcoord.core.transactions.state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    EPOCH_MAX,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_REQUEST,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    VERSION_1,
    VERSION_2,
    CompleteStep,
    MarkersStep,
    RetryRequest,
    Transaction,
    Transactions,
)
from kcoord.protocol.end_txn import EndTxnRequest, EndTxnResponse
from kcoord.protocol.errors import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_REQUEST,
    INVALID_TXN_STATE,
    NONE,
    NOT_COORDINATOR,
    PRODUCER_FENCED,
)
from kcoord.protocol.records.transaction_log import PartitionsSchema, TransactionLogKey

# From this version on EndTxn increments the producer epoch (KIP-890).
VERSION_2_FROM: Final = 5
# Before this version clients do not know PRODUCER_FENCED.
PRODUCER_FENCED_FROM: Final = 2
# Markers of one step, at some 20 µs each.
MARKERS_MAX: Final = 500
# What a timeout, the step that follows a commit and the end of the chain cost in a turn's budget, in bytes: a record
# each, and for a timeout a line in the server's log. Thousands may be due at once.
TIMEOUT_COST: Final = 512
STEP_COST: Final = 128
COMPLETE_COST: Final = 256
# A verdict beside the error codes: the transaction ends now.
ENDS: Final = -1


@final
class TransactionEnds:
    def __init__(self, transactions: Transactions, producer_ids: ProducerIds, held_commits: HeldCommits) -> None:
        self.transactions = transactions
        self.producer_ids = producer_ids
        self.held_commits = held_commits
        # The cost of timeouts and steps, until Core.take_cost fetches it.
        self.cost = 0

    # --- EndTxn ----------------------------------------------------------------------------------------------

    def handle_end_txn(self, request: Request, body: EndTxnRequest, now: Now) -> Outcome:
        """Decide how the transaction ends. The answer follows when its markers are durable.

        A retry after that gets the same answer again.
        """
        out = Outcome()
        txn, verdict = self._verdict(request, body, out)
        if txn is None or verdict != ENDS:
            self._answer(request, txn, verdict, out)
            return out
        version = VERSION_2 if request.version >= VERSION_2_FROM else VERSION_1
        next_id = NO_PRODUCER_ID
        if version == VERSION_2 and txn.is_exhausted:
            next_id = self.producer_ids.take()
            if next_id == NO_PRODUCER_ID:
                self.producer_ids.wait(RetryRequest(request), out)
                return out
        cause = None if body.committed else Cause(CLIENT_ABORTED, "", by_client(request))
        status = PREPARE_COMMIT if body.committed else PREPARE_ABORT
        self._prepare(txn, status, version, next_id, cause, now, out)
        txn.end_request_id = request.request_id
        if version == VERSION_1 and not body.committed and OFFSETS_TOPIC in txn.partitions:
            txn.expects_late_commit = True
        return out

    def _answer(self, request: Request, txn: Transaction | None, error: int, out: Outcome) -> None:
        if error == NONE and txn is not None:
            response = EndTxnResponse(0, NONE, txn.producer_id, txn.producer_epoch)
            out.replies.append(Reply(request.request_id, response, txn.log, txn.end_offset))
            return
        if error == PRODUCER_FENCED and request.version < PRODUCER_FENCED_FROM:
            error = INVALID_PRODUCER_EPOCH
        out.reply(request.request_id, EndTxnResponse(0, error, NO_PRODUCER_ID, NO_EPOCH))

    def _verdict(self, request: Request, body: EndTxnRequest, out: Outcome) -> tuple[Transaction | None, int]:
        """The transaction, and ENDS, an error code or NONE for a retry."""
        if not body.transactional_id:
            return None, INVALID_REQUEST
        if not self.transactions.logs():
            return None, NOT_COORDINATOR
        txn = self.transactions.by_id.get(body.transactional_id)
        if txn is None:
            return None, INVALID_PRODUCER_ID_MAPPING
        if request.version >= VERSION_2_FROM:
            return txn, _verdict_2(txn, body)
        verdict = _verdict_1(txn, body)
        # An overtaken request must not end the next transaction, which has the same epoch in this version.
        if (verdict == ENDS or verdict == NONE) and not txn.admits(request.connection_id):
            out.facts.append(overtaken(request, txn))
            return txn, INVALID_TXN_STATE
        return txn, verdict

    # --- fencing ---------------------------------------------------------------------------------------------

    def fence(self, txn: Transaction, cause: Cause, now: Now, out: Outcome) -> bool:
        """Abort an ongoing transaction with a new epoch, so that its producer cannot go on.

        Returns False if that has to wait for a producer id: then nothing has changed.
        """
        next_id = NO_PRODUCER_ID
        if txn.is_exhausted:
            next_id = self.producer_ids.take()
            if next_id == NO_PRODUCER_ID:
                return False
        self._prepare(txn, PREPARE_ABORT, VERSION_2, next_id, cause, now, out)
        return True

    def arm_timeout(self, txn: Transaction, start_ms: int, now: Now, out: Outcome) -> None:
        """Arm the timer of a transaction that began at `start_ms`. It aborts the transaction later than its timeout."""
        txn.timer_token = self.transactions.new_token()
        # The clock may have gone back since the transaction began.
        left_ms = min(max(start_ms + txn.timeout_ms - now.wall_ms, 0), txn.timeout_ms)
        deadline_ms = now.mono_ms + left_ms + 1
        out.timers.append(Timer(TIMER_TRANSACTION, txn.transactional_id, "", txn.timer_token, deadline_ms))

    def handle_timeout(self, timer: Timer, now: Now) -> Outcome:
        """The timeout of a transaction is over: abort it, if it is still going on."""
        out = Outcome()
        if not self.transactions.is_current(timer):
            return out
        self.cost += TIMEOUT_COST
        txn = self.transactions.by_id[timer.group_id]
        cause = Cause(TRANSACTION_TIMEOUT, "", f"not ended within {txn.timeout_ms} ms")
        if not self.fence(txn, cause, now, out):
            self.producer_ids.wait(TimerFired(timer), out)
            return out
        fields: dict[str, object] = {
            "transactional_id": txn.transactional_id,
            "producer_id": txn.producer_id,
            "timeout_ms": txn.timeout_ms,
        }
        out.facts.append(Fact(INFO, "transaction_timed_out", fields))
        return out

    # --- the chain -------------------------------------------------------------------------------------------

    def _prepare(
        self,
        txn: Transaction,
        status: int,
        version: int,
        next_id: int,
        cause: Cause | None,
        now: Now,
        out: Outcome,
    ) -> None:
        """Add the record that decides the end, and the step that follows it."""
        value = txn.record(status, now.wall_ms)
        if version >= VERSION_2 and txn.producer_epoch < EPOCH_MAX:
            value.producer_epoch = txn.producer_epoch + 1
        value.next_producer_id = next_id
        value.client_transaction_version = version
        if txn.status != ONGOING:
            # An abort without any partition.
            value.transaction_start_timestamp_ms = now.wall_ms
        txn.end_request_id = NO_REQUEST
        out.add(txn.log, TransactionLogKey(txn.transactional_id), value, cause)
        out.once_durable = [MarkersStep(txn.transactional_id, value.producer_id, value.producer_epoch, 0)]
        self.held_commits.release(txn.transactional_id, out)

    def loaded(self, now: Now, out: Outcome) -> None:
        """All logs were replayed: go on with ends that were decided, and arm the timers of open transactions."""
        steps: list[MarkersStep] = []
        for txn in self.transactions.by_id.values():
            if txn.is_ending:
                steps.append(MarkersStep(txn.transactional_id, txn.producer_id, txn.producer_epoch, 0))
            elif txn.status == ONGOING:
                self.arm_timeout(txn, txn.start_ms, now, out)
        if steps:
            out.once_durable = [*(out.once_durable or []), *steps]

    def handle_markers_step(self, step: MarkersStep, now: Now) -> Outcome:
        """Write some of the markers; after the last ones answer EndTxn and complete the end."""
        out = Outcome()
        self.cost += STEP_COST
        txn = self._ending(step.transactional_id, step.producer_id, step.producer_epoch)
        if txn is None:
            return out
        partitions = txn.partition_list()[step.start : step.start + MARKERS_MAX]
        if partitions:
            is_commit = txn.status == PREPARE_COMMIT
            epoch = self.transactions.coordinator_epoch(txn.log)
            markers: list[Marker] = []
            for topic, partition in partitions:
                markers.append(
                    Marker(topic, partition, txn.producer_id, txn.producer_epoch, is_commit, epoch, txn.client_version)
                )
            out.markers = markers
            next_start = step.start + len(markers)
            out.once_durable = [MarkersStep(txn.transactional_id, txn.producer_id, txn.producer_epoch, next_start)]
            return out
        if txn.end_request_id != NO_REQUEST:
            producer_id, epoch = _producer_after(txn)
            out.reply(txn.end_request_id, EndTxnResponse(0, NONE, producer_id, epoch))
            txn.end_request_id = NO_REQUEST
        out.follow_ups.append(CompleteStep(txn.transactional_id, txn.producer_id, txn.producer_epoch))
        return out

    def handle_complete_step(self, step: CompleteStep, now: Now) -> Outcome:
        """Add the record after which the next transaction may begin."""
        out = Outcome()
        self.cost += COMPLETE_COST
        txn = self._ending(step.transactional_id, step.producer_id, step.producer_epoch)
        if txn is None:
            return out
        status = COMPLETE_COMMIT if txn.status == PREPARE_COMMIT else COMPLETE_ABORT
        value = txn.record(status, now.wall_ms)
        value.producer_id, value.producer_epoch = _producer_after(txn)
        value.next_producer_id = NO_PRODUCER_ID
        no_partitions: list[PartitionsSchema] = []
        value.transaction_partitions = no_partitions
        out.add(txn.log, TransactionLogKey(txn.transactional_id), value)
        # EndTxn is answered. A start without this record writes the markers again, and then the record.
        out.may_wait = True
        return out

    def _ending(self, transactional_id: str, producer_id: int, producer_epoch: int) -> Transaction | None:
        """The transaction that a step is about, if that is the one that ends."""
        txn = self.transactions.by_id.get(transactional_id)
        if txn is None or not txn.is_ending:
            return None
        if txn.producer_id != producer_id or txn.producer_epoch != producer_epoch:
            return None
        return txn


def _producer_after(txn: Transaction) -> tuple[int, int]:
    """Producer id and epoch after the end."""
    if txn.client_version >= VERSION_2 and txn.next_producer_id != NO_PRODUCER_ID:
        return txn.next_producer_id, 0
    return txn.producer_id, txn.producer_epoch


def _verdict_1(txn: Transaction, body: EndTxnRequest) -> int:
    """Version 1: the epoch does not change, so a retry looks like the first request."""
    if txn.producer_id != body.producer_id:
        return INVALID_PRODUCER_ID_MAPPING
    if txn.producer_epoch != body.producer_epoch:
        return PRODUCER_FENCED
    if txn.is_ending:
        return CONCURRENT_TRANSACTIONS
    if txn.status == ONGOING:
        return ENDS
    is_retry = txn.status == (COMPLETE_COMMIT if body.committed else COMPLETE_ABORT)
    return NONE if is_retry else INVALID_TXN_STATE


def _verdict_2(txn: Transaction, body: EndTxnRequest) -> int:
    """Version 2: a retry has the epoch before the last increment. An abort may be about a transaction without
    partitions: its producer cannot know whether one was added, and needs a new epoch.
    """
    if txn.is_ending:
        return CONCURRENT_TRANSACTIONS
    is_overflow_retry = (
        txn.previous_producer_id == body.producer_id
        and body.producer_epoch == EPOCH_MAX - 1
        and txn.producer_epoch == 0
    )
    is_retry = is_overflow_retry or txn.producer_epoch == body.producer_epoch + 1
    is_complete = txn.status == COMPLETE_COMMIT or txn.status == COMPLETE_ABORT
    if txn.producer_id != body.producer_id and not is_overflow_retry:
        return INVALID_PRODUCER_ID_MAPPING
    if txn.producer_epoch != body.producer_epoch and not (is_complete and is_retry):
        return PRODUCER_FENCED
    if txn.status == ONGOING:
        return ENDS
    if txn.status == EMPTY or not is_retry:
        return INVALID_TXN_STATE if body.committed else ENDS
    is_same_result = txn.status == (COMPLETE_COMMIT if body.committed else COMPLETE_ABORT)
    return NONE if is_same_result else INVALID_TXN_STATE


def by_client(request: Request) -> str:
    """The client of a request, for causes."""
    return f"client id {request.client_id}, host {request.client_host}"


def replaced_by(request: Request) -> Cause:
    """The cause of an abort because a new producer has the same transactional id."""
    return Cause(PRODUCER_REPLACED, "", f"by {by_client(request)}")


def overtaken(request: Request, txn: Transaction) -> Fact:
    """A request of a transaction came late, on an older connection than later requests."""
    fields: dict[str, object] = {
        "transactional_id": txn.transactional_id,
        "api_key": request.api_key,
        "client_id": request.client_id,
    }
    return Fact(WARNING, "overtaken_request_refused", fields, PEER)
