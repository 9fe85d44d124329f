"""The history of a transactional id, from its records."""

from __future__ import annotations

from kcoord.core.cause import CLIENT_ABORTED, Cause
from kcoord.core.transactions.state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
)
from kcoord.history.transactions import ABORTED, COMMITTED, EXPIRED, NEW_EPOCH, OPEN, TransactionHistory
from kcoord.protocol.records.transaction_log import PartitionsSchema, TransactionLogValue


class Log:
    def __init__(self) -> None:
        self.history = TransactionHistory()
        self.offset = 0

    def record(self, status: int, now: int, start: int, *partitions: int, epoch: int = 0, cause: str = "") -> None:
        value = TransactionLogValue(
            producer_id=7,
            producer_epoch=epoch,
            transaction_timeout_ms=1000,
            transaction_status=status,
            transaction_partitions=[PartitionsSchema("t", list(partitions))],
            transaction_last_update_timestamp_ms=now,
            transaction_start_timestamp_ms=start,
        )
        self.history.replay(value, now, self.offset, Cause(cause) if cause else None)
        self.offset += 1


def test_transactions_and_what_lies_between_them() -> None:
    log = Log()
    log.record(EMPTY, 10, -1)
    log.record(ONGOING, 20, 20, 0)
    log.record(ONGOING, 30, 20, 0, 1)
    log.record(PREPARE_COMMIT, 40, 20, 0, 1)
    log.record(COMPLETE_COMMIT, 45, 20)
    log.record(ONGOING, 50, 50, 2)
    log.record(PREPARE_ABORT, 60, 50, 2, epoch=1, cause=CLIENT_ABORTED)
    log.record(COMPLETE_ABORT, 61, 50, epoch=1)
    log.record(ONGOING, 70, 70, 3, epoch=1)
    spans = log.history.spans
    assert [span.kind for span in spans] == [NEW_EPOCH, COMMITTED, ABORTED, OPEN]
    times = [(span.time_ms, span.decided_ms, span.completed_ms) for span in spans[1:]]
    assert times == [(20, 40, 45), (50, 60, 61), (70, -1, -1)]
    assert [sorted(span.partitions) for span in spans[1:]] == [[("t", 0), ("t", 1)], [("t", 2)], [("t", 3)]]
    assert [(span.producer_epoch, span.next_epoch) for span in spans[1:]] == [(0, 0), (0, 1), (1, 1)]
    assert [span.cause.kind if span.cause else None for span in spans] == [None, None, CLIENT_ABORTED, None]
    assert [change.state for change in spans[1].changes] == ["Ongoing", "Ongoing", "PrepareCommit", "CompleteCommit"]


def test_the_history_begins_with_any_record() -> None:
    """Compaction leaves the last record of an id, whatever it is."""
    for status, kind in ((COMPLETE_COMMIT, COMMITTED), (PREPARE_ABORT, ABORTED), (ONGOING, OPEN), (EMPTY, NEW_EPOCH)):
        log = Log()
        log.record(status, 30, -1 if status == EMPTY else 20)
        assert [span.kind for span in log.history.spans] == [kind]


def test_an_abort_without_partitions_and_an_expired_id() -> None:
    log = Log()
    log.record(COMPLETE_COMMIT, 30, 20)
    log.record(PREPARE_ABORT, 40, 40, epoch=1)
    log.record(COMPLETE_ABORT, 41, 40, epoch=1)
    log.history.replay(None, 90, 3, None)
    log.record(EMPTY, 100, -1)
    assert [span.kind for span in log.history.spans] == [COMMITTED, ABORTED, EXPIRED, NEW_EPOCH]
    assert log.history.spans[2].producer_id == 7
