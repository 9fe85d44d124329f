"""Bugs for the search through transactions to find, each put into the code by a function.

    python -m tests.explore.transaction_mutations NAME [SECONDS]

exits with 1 when the search finds the bug.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from kcoord.core.coordinator import Core
from kcoord.core.outcome import Marker, Outcome, Reply
from kcoord.core.producers import ACCEPTED, PartitionProducers
from kcoord.core.transactions import init
from kcoord.core.transactions.end import TransactionEnds
from kcoord.core.transactions.held_commits import HeldCommits
from kcoord.core.transactions.state import PREPARE_COMMIT, MarkersStep, Transaction, Transactions
from kcoord.engine import engine
from kcoord.engine.core_gate import CoreGate
from kcoord.engine.engine import Engine
from kcoord.engine.partitions import TopicPartition
from kcoord.protocol.end_txn import EndTxnResponse
from kcoord.protocol.errors import NONE
from tests.explore.transactions import run

SECONDS: Final = 60.0


def replace(owner: Any, name: str, value: object) -> None:
    setattr(owner, name, value)


def markers_with_the_decision() -> None:
    """Markers are appended in the commit of the decision, not after it."""
    prepare = TransactionEnds._prepare

    def early(self: TransactionEnds, txn: Transaction, status: int, *rest: Any) -> None:
        prepare(self, txn, status, *rest)
        out: Outcome = rest[-1]
        epoch = txn.producer_epoch + (1 if rest[0] else 0)
        is_commit = status == PREPARE_COMMIT
        partitions = txn.partition_list()
        out.markers = [Marker(t, p, txn.producer_id, epoch, is_commit, 0, rest[0]) for t, p in partitions]
        out.once_durable = [MarkersStep(txn.transactional_id, txn.producer_id, epoch, len(partitions))]

    replace(TransactionEnds, "_prepare", early)


def no_connection_rule() -> None:
    """An EndTxn or AddPartitionsToTxn that was overtaken counts."""
    replace(Transaction, "admits", lambda self, connection_id: True)


def no_connection_rule_for_commits() -> None:
    """A TxnOffsetCommit that was overtaken counts."""
    replace(Transaction, "admits_commit", lambda self, connection_id: True)


def no_doubt_about_commits() -> None:
    """The first TxnOffsetCommit after an abort counts at once, even if it is a late one of the aborted transaction."""
    replace(HeldCommits, "check", lambda self, *rest: self.transactions.check_offsets_write(*rest))


def no_check_at_append() -> None:
    """Whether a batch belongs to an open transaction is only checked before its content is."""
    check = CoreGate.check_write

    def once(self: CoreGate, *rest: Any) -> int:
        is_append = sys._getframe(2).f_code.co_name == "_append_some"
        return NONE if is_append else check(self, *rest)

    replace(CoreGate, "check_write", once)


def no_check_of_writes() -> None:
    """Batches are appended whether they belong to an open transaction or not."""
    replace(CoreGate, "check_write", lambda self, *rest: NONE)


def unknown_transactions_stay_open() -> None:
    """A start does not abort what the coordinator does not know."""
    replace(Engine, "_abort_unknown_transactions", lambda self, now: None)


def unknown_transactions_keep_sequences() -> None:
    """The retry of a write that a start aborted counts as a duplicate."""
    replace(engine, "NO_COORDINATOR", 0)


def epochs_do_not_matter_at_the_start() -> None:
    """What belongs to the next transaction is committed with the last one at a start."""
    covers = Transactions.covers
    replace(
        Transactions, "covers", lambda self, number, topic, partition, epoch: covers(self, number, topic, partition)
    )


def open_transactions_are_read() -> None:
    """The last stable offset passes open transactions."""
    replace(TopicPartition, "last_stable_offset", property(lambda self: self.log.durable_end))


def answer_with_the_decision() -> None:
    """EndTxn is answered before the markers are durable, and the next transaction may begin."""
    prepare = TransactionEnds.handle_end_txn

    def early(self: TransactionEnds, request: Any, body: Any, now: Any) -> Outcome:
        out = prepare(self, request, body, now)
        if out.records:
            txn = self.transactions.by_id[body.transactional_id]
            value: Any = out.records[0].value
            response = EndTxnResponse(0, NONE, value.producer_id, value.producer_epoch)
            out.replies.append(Reply(request.request_id, response))
            txn.end_request_id = 0
        return out

    replace(TransactionEnds, "handle_end_txn", early)


def no_sequences() -> None:
    """A partition does not recognise a repeated batch."""
    replace(PartitionProducers, "check", lambda self, header, bumps_epochs=False: ACCEPTED)


def ends_are_not_continued() -> None:
    """A start does not go on with ends that were decided."""
    replace(TransactionEnds, "loaded", lambda self, now, out: None)


def zombies_abort() -> None:
    """InitProducerId with an older epoch aborts the transaction of the current producer."""
    replace(init, "_is_outdated", lambda txn, body: False)


def aborted_offsets_count() -> None:
    """Offsets of an aborted transaction are committed."""
    replay = Core.replay_marker
    replace(
        Core,
        "replay_marker",
        lambda self, log, offset, number, epoch, is_commit: replay(self, log, offset, number, epoch, True),
    )


MUTATIONS: Final[dict[str, Callable[[], None]]] = {
    one.__name__: one
    for one in (
        markers_with_the_decision, no_connection_rule, no_connection_rule_for_commits, no_doubt_about_commits,
        no_check_at_append,
        no_check_of_writes, unknown_transactions_stay_open, unknown_transactions_keep_sequences,
        epochs_do_not_matter_at_the_start, open_transactions_are_read,
        answer_with_the_decision, no_sequences, ends_are_not_continued, zombies_abort, aborted_offsets_count,
    )
}  # fmt: skip


def main() -> int:
    name = sys.argv[1]
    MUTATIONS[name]()
    tally = run(1, sys.maxsize, float(sys.argv[2]) if len(sys.argv) > 2 else SECONDS)
    print(f"{name}: {tally.walks} walks, {tally.violation or 'nothing found'}")
    return 1 if tally.violation else 0


if __name__ == "__main__":
    sys.exit(main())
