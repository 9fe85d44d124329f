"""TxnOffsetCommits of version 1 that may belong to a transaction that their client has aborted meanwhile.

If a client gives up a TxnOffsetCommit, aborts the transaction and begins the next one, the request may arrive only
then, and nothing in it shows that it is late. But the client has closed its connection, and the end of a connection
arrives right after its last bytes. So the first commit after an abort is held for a moment: if its connection ends in
that time it is dropped, otherwise it is handled as if it had arrived now.

Everything here is soft state. A restart closes all connections, so that no old request can arrive.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.outcome import HELD, TIMER_HELD_COMMIT, Now, Outcome, Request, Timer
from kcoord.core.transactions.state import NO_TOKEN, RetryRequest, Transactions
from kcoord.protocol.errors import NONE

# Longer than a connection's end takes from the socket to this place when the event loop is busy; short for a client.
HOLD_MS: Final = 20


@final
class HeldCommits:
    def __init__(self, transactions: Transactions) -> None:
        self.transactions = transactions
        # Transactional ids by the connections that their held requests came on.
        self.by_connection: dict[int, str] = {}

    def check(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        topic: str,
        partition: int,
        connection_id: int,
    ) -> int:
        """HELD, or an error code as from `Transactions.check_offsets_write`."""
        error = self.transactions.check_offsets_write(
            transactional_id, producer_id, producer_epoch, topic, partition, connection_id
        )
        is_doubtful = error == NONE and self.transactions.by_id[transactional_id].expects_late_commit
        return HELD if is_doubtful else error

    def hold(self, transactional_id: str, request: Request, now: Now) -> Outcome:
        """Hold a request. An earlier one, on a connection that this one's client has replaced, is refused."""
        out = Outcome()
        txn = self.transactions.by_id[transactional_id]
        self.release(transactional_id, out)
        txn.held_commit = request
        txn.held_token = self.transactions.new_token()
        self.by_connection[request.connection_id] = transactional_id
        deadline_ms = now.mono_ms + HOLD_MS
        out.timers.append(Timer(TIMER_HELD_COMMIT, transactional_id, "", txn.held_token, deadline_ms))
        return out

    def release(self, transactional_id: str, out: Outcome) -> None:
        """Handle the held request after the outcome: its transaction is ending, or a newer request has come."""
        txn = self.transactions.by_id.get(transactional_id)
        if txn is None or txn.held_commit is None:
            return
        request = txn.held_commit
        txn.held_commit = None
        txn.held_token = NO_TOKEN
        self.by_connection.pop(request.connection_id, None)
        out.follow_ups.append(RetryRequest(request))

    def is_current(self, timer: Timer) -> bool:
        """Whether the timer's request is still held."""
        txn = self.transactions.by_id.get(timer.group_id)
        return txn is not None and txn.held_token == timer.token

    def handle_timer(self, timer: Timer) -> Outcome:
        """The connection is still there, so the request is not late."""
        out = Outcome()
        if self.is_current(timer):
            self.transactions.by_id[timer.group_id].expects_late_commit = False
            self.release(timer.group_id, out)
        return out

    def disconnected(self, connection_id: int) -> None:
        """The connection of a held request has ended: drop the request."""
        transactional_id = self.by_connection.pop(connection_id, None)
        if transactional_id is None:
            return
        txn = self.transactions.by_id.get(transactional_id)
        if txn is not None:
            txn.held_commit = None
            txn.held_token = NO_TOKEN
