"""InitProducerId: a producer id and epoch for a transactional id (KIP-98, KIP-360).

Each call increments the epoch, which fences every older producer with the same transactional id. If that producer has
an open transaction, the call aborts it and is answered with CONCURRENT_TRANSACTIONS: the client tries again, and gets
its epoch once the transaction is over. When a producer id has no epochs left, the next call gets a new producer id.

A producer that wants to go on after an error names its id and epoch. It is fenced if another one came in between. A
repeated request, whose answer was lost, names the epoch before the last one, and gets the same answer again.

A producer may name the partitions that a group has assigned to its consumer: claims.py.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import LIMIT, WARNING, Fact, Now, Outcome, Request
from kcoord.core.producers import ProducerIds
from kcoord.core.transactions.claims import AssignmentClaims
from kcoord.core.transactions.end import replaced_by
from kcoord.core.transactions.expiry import TransactionExpiry
from kcoord.core.transactions.state import (
    CLIENT_EPOCH_MAX,
    EMPTY,
    NO_CONNECTION,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    ONGOING,
    VERSION_1,
    RetryRequest,
    Transaction,
    Transactions,
)
from kcoord.protocol.errors import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_EPOCH,
    INVALID_REQUEST,
    INVALID_TRANSACTION_TIMEOUT,
    NONE,
    NOT_COORDINATOR,
    PRODUCER_FENCED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
from kcoord.protocol.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue

# Before this version clients do not know PRODUCER_FENCED.
PRODUCER_FENCED_FROM: Final = 4


@final
class TransactionInits:
    def __init__(
        self,
        config: CoreConfig,
        transactions: Transactions,
        producer_ids: ProducerIds,
        expiry: TransactionExpiry,
        claims: AssignmentClaims,
    ) -> None:
        self.config = config
        self.transactions = transactions
        self.producer_ids = producer_ids
        self.expiry = expiry
        self.claims = claims
        self.ends = claims.ends

    def handle_init_producer_id(self, request: Request, body: InitProducerIdRequest, now: Now) -> Outcome:
        """A producer id and epoch. Without a transactional id it is a new producer id with epoch 0."""
        if body.transactional_id is None and body.group_assignment is None:
            return self.producer_ids.handle_init_producer_id(request, body, now)
        out = Outcome()
        error = self._check(body)
        if error == NONE:
            error = self._init(request, body, body.transactional_id or "", now, out)
        if error != NONE:
            if error == PRODUCER_FENCED and request.version < PRODUCER_FENCED_FROM:
                error = INVALID_PRODUCER_EPOCH
            out.reply(request.request_id, InitProducerIdResponse(0, error, NO_PRODUCER_ID, NO_EPOCH))
        return out

    def _check(self, body: InitProducerIdRequest) -> int:
        if (body.producer_id == NO_PRODUCER_ID) != (body.producer_epoch == NO_EPOCH) or not body.transactional_id:
            return INVALID_REQUEST
        timeout_ms = body.transaction_timeout_ms
        if timeout_ms <= 0 or timeout_ms > self.config.transaction_max_timeout_ms:
            return INVALID_TRANSACTION_TIMEOUT
        return NONE if self.transactions.logs() else NOT_COORDINATOR

    def _init(
        self, request: Request, body: InitProducerIdRequest, transactional_id: str, now: Now, out: Outcome
    ) -> int:
        """Add the record and the answer, or the abort of an ongoing transaction, or wait; otherwise return an error."""
        txn = self.transactions.by_id.get(transactional_id)
        if txn is not None:
            if txn.is_ending:
                return CONCURRENT_TRANSACTIONS
            # A broker would abort the transaction of the current producer, and refuse an outdated one when it retries.
            if not _may_go_on(txn, body) or (txn.status == ONGOING and _is_outdated(txn, body)):
                return PRODUCER_FENCED
        if body.group_assignment is not None:
            error = self.claims.claim(transactional_id, body.group_assignment, out)
            if error != NONE:
                return error
        if txn is None:
            if len(self.transactions.by_id) >= self.config.transactional_ids_max:
                out.facts.append(_too_many_ids(transactional_id, self.config.transactional_ids_max))
                return TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            producer_id = self.producer_ids.take()
            if producer_id == NO_PRODUCER_ID:
                self.producer_ids.wait(RetryRequest(request), out)
                return NONE
            txn = Transaction(transactional_id, self.transactions.log_of(transactional_id))
            self._add(request, txn, body, producer_id, 0, NO_EPOCH, now, out)
            return NONE
        if txn.status == ONGOING:
            if self.ends.fence(txn, replaced_by(request), now, out):
                return CONCURRENT_TRANSACTIONS
            self.producer_ids.wait(RetryRequest(request), out)
            return NONE
        return self._next_epoch(request, txn, body, now, out)

    def _next_epoch(
        self, request: Request, txn: Transaction, body: InitProducerIdRequest, now: Now, out: Outcome
    ) -> int:
        epoch = txn.producer_epoch
        expected: int = body.producer_epoch
        names_epoch = expected != NO_EPOCH
        if txn.is_exhausted and (not names_epoch or expected == epoch):
            producer_id = self.producer_ids.take()
            if producer_id == NO_PRODUCER_ID:
                self.producer_ids.wait(RetryRequest(request), out)
                return NONE
            self._add(request, txn, body, producer_id, 0, epoch if names_epoch else NO_EPOCH, now, out)
        elif not names_epoch:
            self._add(request, txn, body, txn.producer_id, epoch + 1, NO_EPOCH, now, out)
        elif expected == epoch:
            self._add(request, txn, body, txn.producer_id, epoch + 1, epoch, now, out)
        elif expected == txn.last_epoch:
            self._add(request, txn, body, txn.producer_id, epoch, txn.last_epoch, now, out)
        else:
            return PRODUCER_FENCED
        return NONE

    def _add(
        self,
        request: Request,
        txn: Transaction,
        body: InitProducerIdRequest,
        producer_id: int,
        epoch: int,
        last_epoch: int,
        now: Now,
        out: Outcome,
    ) -> None:
        """Add the records of the new epoch, and the answer."""
        if txn.producer_id == NO_PRODUCER_ID:
            self.expiry.arm(now, out)
            value = TransactionLogValue(
                producer_id=producer_id,
                previous_producer_id=producer_id,
                transaction_partitions=None,
                transaction_last_update_timestamp_ms=now.wall_ms,
                client_transaction_version=VERSION_1,
            )
        else:
            value = txn.record(EMPTY, now.wall_ms)
            value.producer_id = producer_id
        value.producer_epoch = epoch
        value.transaction_timeout_ms = body.transaction_timeout_ms
        value.transaction_start_timestamp_ms = NO_TIME
        if producer_id != txn.producer_id or epoch != txn.producer_epoch:
            # The new producer may come on any connection: its epoch fences the old one.
            txn.connection = NO_CONNECTION
            txn.commit_connection = NO_CONNECTION
            txn.expects_late_commit = False
        txn.next_last_epoch = last_epoch
        out.add(txn.log, TransactionLogKey(txn.transactional_id), value)
        self.claims.add_record(txn, body.group_assignment, out)
        out.reply(request.request_id, InitProducerIdResponse(0, NONE, producer_id, epoch))


def _too_many_ids(transactional_id: str, ids_max: int) -> Fact:
    """`transactional.ids.max` is reached."""
    fields: dict[str, object] = {"transactional_id": transactional_id, "transactional.ids.max": ids_max}
    return Fact(WARNING, "transactional_id_refused", fields, LIMIT)


def _may_go_on(txn: Transaction, body: InitProducerIdRequest) -> bool:
    """Whether the producer that the request names, if any, may be the current one.

    It may have missed the answer that gave it a new producer id after the last epoch of the old one.
    """
    if body.producer_id == NO_PRODUCER_ID or body.producer_id == txn.producer_id:
        return True
    return body.producer_id == txn.previous_producer_id and body.producer_epoch >= CLIENT_EPOCH_MAX


def _is_outdated(txn: Transaction, body: InitProducerIdRequest) -> bool:
    """Whether the request names an earlier producer than the one with the open transaction: it is late, or a zombie."""
    if body.producer_id == NO_PRODUCER_ID:
        return False
    return body.producer_id != txn.producer_id or body.producer_epoch != txn.producer_epoch
