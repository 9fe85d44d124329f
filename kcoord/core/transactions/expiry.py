"""Expiry of transactional ids that nobody has used for `transactional.id.expiration.ms`.

Only ids without an open transaction expire. A pass visits all ids, a limited number at a time, so that other requests
are served in between.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.groups.records import tombstone_bytes
from kcoord.core.outcome import INFO, TIMER_TRANSACTIONAL_IDS, Fact, LogId, Now, Outcome, Timer
from kcoord.core.transactions.state import ONGOING, Transactions
from kcoord.protocol.records.transaction_group_assignment import TransactionGroupAssignmentKey
from kcoord.protocol.records.transaction_log import TransactionLogKey

# The default of a broker's `transaction.remove.expired.transaction.cleanup.interval.ms`.
CHECK_INTERVAL_MS: Final = 3_600_000
# Transactional ids that one step visits, some 5 ms if all expire.
STEP_IDS_MAX: Final = 4000
TOKEN_START: Final = 0
TOKEN_CONTINUE: Final = 1


@final
class TransactionExpiry:
    def __init__(self, config: CoreConfig, transactions: Transactions) -> None:
        self.config = config
        self.transactions = transactions
        # What this pass has still to visit, the last one first. Soft state: a new pass starts over.
        self.left: list[str] = []
        self._is_armed = False

    def arm(self, now: Now, out: Outcome) -> None:
        """Start the passes, unless they have started: there is a transactional id now."""
        if not self._is_armed:
            self._is_armed = True
            out.timers.append(self._next_pass(now))

    def _next_pass(self, now: Now) -> Timer:
        return Timer(TIMER_TRANSACTIONAL_IDS, "", "", TOKEN_START, now.mono_ms + CHECK_INTERVAL_MS)

    def handle_timer(self, timer: Timer, now: Now) -> Outcome:
        """Add tombstones for ids that expired. An outcome has one log, so another one is left to the next step."""
        out = Outcome()
        if timer.token == TOKEN_START:
            out.timers.append(self._next_pass(now))
            self.left = list(self.transactions.by_id)
            self.left.reverse()
        log: LogId | None = None
        count = 0
        bytes_left = self.config.coordinator_batch_bytes_max
        for _ in range(STEP_IDS_MAX):
            if not self.left:
                break
            txn = self.transactions.by_id.get(self.left[-1])
            if txn is not None and not txn.is_ending and txn.status != ONGOING:
                if txn.update_ms <= now.wall_ms - self.config.transactional_id_expiration_ms:
                    # With the tombstone of its group assignment.
                    size = 2 * tombstone_bytes(txn.transactional_id, "")
                    if log is not None and (log is not txn.log or size > bytes_left):
                        break
                    bytes_left -= size
                    log = txn.log
                    count += 1
                    out.add(log, TransactionLogKey(txn.transactional_id), None)
                    if txn.transactional_id in self.transactions.assignments.by_id:
                        out.add(log, TransactionGroupAssignmentKey(txn.transactional_id), None)
            self.left.pop()
        if self.left:
            out.timers.append(Timer(TIMER_TRANSACTIONAL_IDS, "", "", TOKEN_CONTINUE, now.mono_ms))
        if out.records:
            out.facts.append(Fact(INFO, "transactional_ids_expired", {"count": count}))
        return out
