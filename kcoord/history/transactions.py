"""The transactions of one transactional id, from its records in `__transaction_state`.

Each record is a whole state, so the history begins with any record. Compaction leaves only the last one of them.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.cause import Cause
from kcoord.core.transactions.state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    NO_TIME,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    state_name,
)
from kcoord.protocol.records.transaction_log import TransactionLogValue

# What a row of the history is about.
NEW_EPOCH: Final = "new epoch"
OPEN: Final = "open"
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
EXPIRED: Final = "expired"


@final
class StateChange:
    """One record: a state, and when it was stored."""

    def __init__(self, status: int, time_ms: int, offset: int) -> None:
        self.state = state_name(status)
        self.time_ms = time_ms
        self.offset = offset


@final
class Span:
    """One transaction, or what happened to the transactional id between two of them. NO_TIME means unknown."""

    def __init__(self, kind: str, time_ms: int, producer_id: int, producer_epoch: int) -> None:
        self.kind = kind
        self.time_ms = time_ms
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        # Producer id and epoch after the end.
        self.next_producer_id = producer_id
        self.next_epoch = producer_epoch
        self.client_version = 0
        self.decided_ms = NO_TIME
        self.completed_ms = NO_TIME
        self.timeout_ms = NO_TIME
        self.cause: Cause | None = None
        self.partitions: dict[tuple[str, int], bool] = {}
        self.changes: list[StateChange] = []

    def note(self, value: TransactionLogValue, offset: int) -> None:
        """Take what a record adds to the transaction."""
        self.changes.append(StateChange(value.transaction_status, value.transaction_last_update_timestamp_ms, offset))
        self.timeout_ms = value.transaction_timeout_ms
        self.client_version = value.client_transaction_version
        self.next_producer_id = value.producer_id
        self.next_epoch = value.producer_epoch
        for schema in value.transaction_partitions or []:
            for partition in schema.partition_ids:
                self.partitions[schema.topic, partition] = True


@final
class TransactionHistory:
    """Replays the records of one transactional id in order; `spans` is the result."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        # The transaction that is not complete.
        self._current: Span | None = None

    def replay(self, value: TransactionLogValue | None, time_ms: int, offset: int, cause: Cause | None) -> None:
        """`time_ms` is that of the record, and `cause` that in its header."""
        if value is None:
            last = self.spans[-1] if self.spans else None
            span = Span(EXPIRED, time_ms, last.next_producer_id if last else -1, last.next_epoch if last else -1)
            self.spans.append(span)
            self._current = None
            return
        status: int = value.transaction_status
        update_ms: int = value.transaction_last_update_timestamp_ms
        if status == EMPTY:
            self._current = None
            taken = self._begin(NEW_EPOCH, value, update_ms)
            taken.note(value, offset)
            taken.cause = cause
            return
        span = self._span(value)
        span.note(value, offset)
        if status == ONGOING:
            return
        span.kind = COMMITTED if status == PREPARE_COMMIT or status == COMPLETE_COMMIT else ABORTED
        if status == PREPARE_COMMIT or status == PREPARE_ABORT:
            span.decided_ms = update_ms
            span.cause = cause
        elif status == COMPLETE_COMMIT or status == COMPLETE_ABORT:
            span.completed_ms = update_ms
            self._current = None

    def _span(self, value: TransactionLogValue) -> Span:
        """The transaction that a record is about: the current one, if that began at the same time."""
        if self._current is None:
            start_ms: int = value.transaction_start_timestamp_ms
            # An abort without any partition has no start of its own in some versions.
            self._current = self._begin(
                OPEN, value, start_ms if start_ms != NO_TIME else value.transaction_last_update_timestamp_ms
            )
        return self._current

    def _begin(self, kind: str, value: TransactionLogValue, time_ms: int) -> Span:
        span = Span(kind, time_ms, value.producer_id, value.producer_epoch)
        self.spans.append(span)
        return span
