"""What must be true of the records of one transactional id, in the order of their log.

A transaction is begun by an id that has no other, is prepared to be committed or aborted, and is completed once, in
the way in which it was prepared, by the producer that prepared it (KIP-98, KIP-890). The epoch of a producer id never
goes back. The first rule holds for the part that compaction left complete; the second for any log.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.protocol.records.transaction_log import TransactionLogValue

NONE: Final = -1
EMPTY: Final = 0
ONGOING: Final = 1
PREPARE_COMMIT: Final = 2
PREPARE_ABORT: Final = 3
COMPLETE_COMMIT: Final = 4
COMPLETE_ABORT: Final = 5
DEAD: Final = 6
PREPARE_EPOCH_FENCE: Final = 7
NAMES: Final = {
    NONE: "unknown",
    EMPTY: "Empty",
    ONGOING: "Ongoing",
    PREPARE_COMMIT: "PrepareCommit",
    PREPARE_ABORT: "PrepareAbort",
    COMPLETE_COMMIT: "CompleteCommit",
    COMPLETE_ABORT: "CompleteAbort",
    DEAD: "Dead",
    PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}
SETTLED: Final = (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT)
# The statuses that may precede a status. Since KIP-890 a producer without a transaction may abort, too.
FOLLOWS: Final = {
    EMPTY: (NONE, *SETTLED),
    ONGOING: (ONGOING, *SETTLED),
    PREPARE_COMMIT: (ONGOING,),
    PREPARE_ABORT: (ONGOING, PREPARE_EPOCH_FENCE, *SETTLED),
    COMPLETE_COMMIT: (PREPARE_COMMIT,),
    COMPLETE_ABORT: (PREPARE_ABORT,),
    DEAD: SETTLED,
    PREPARE_EPOCH_FENCE: (ONGOING,),
}
PREPARED: Final = {PREPARE_COMMIT: "committed", PREPARE_ABORT: "aborted"}


@final
class TransactionRules:
    """The rules for one id. `replay` returns violations of a record as (rule, text, is_of_state); a violation of
    the state counts only if no earlier record of the id is missing."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.status = NONE
        self.last: TransactionLogValue | None = None

    def replay(self, value: TransactionLogValue | None) -> list[tuple[str, str, bool]]:
        found: list[tuple[str, str, bool]] = []
        name = f"transactional id {self.transactional_id!r}"
        if value is None:
            if self.status != NONE and self.status not in (*SETTLED, DEAD):
                text = f"{name} is removed while its transaction is {NAMES[self.status]}"
                found.append(("transaction", text, True))
            self.status = NONE
            self.last = None
            return found
        status = value.transaction_status
        if status not in FOLLOWS:
            found.append(("transaction", f"{name} has status {status}, which there is not", False))
            return found
        before = self.last
        if before is not None and value.producer_id == before.producer_id:
            if value.producer_epoch < before.producer_epoch:
                epochs = f"from epoch {before.producer_epoch} to {value.producer_epoch}"
                text = f"{name}: producer {value.producer_id} goes back {epochs}"
                found.append(("producer epoch", text, False))
        if self.status not in FOLLOWS[status]:
            found.append(("transaction", f"{name} {self._what_is_wrong(status)}", True))
        elif status in (COMPLETE_COMMIT, COMPLETE_ABORT) and before is not None:
            if value.producer_id not in (before.producer_id, before.next_producer_id):
                text = f"is prepared by producer {before.producer_id} and completed by {value.producer_id}"
                found.append(("transaction", f"{name} {text}", True))
        self.status = status
        self.last = value
        return found

    def _what_is_wrong(self, status: int) -> str:
        before, after = NAMES[self.status], NAMES[status]
        if self.status in PREPARED:
            return f"is to be {PREPARED[self.status]} ({before}), and is {after} then"
        if status in (COMPLETE_COMMIT, COMPLETE_ABORT):
            return f"is {after} without having been prepared for it: it was {before}"
        if status == PREPARE_COMMIT and self.status in SETTLED:
            return f"ends a transaction that was not begun: it was {before}"
        return f"is {after} after {before}"
