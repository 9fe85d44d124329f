"""Transactional producers as a workload of the crash tests, and what their clients were promised.

Two producers of both protocol versions write to two partitions and commit offsets, in segments of a few batches, with
durable marks and a clean stop in between. The clients are those of the search through transactions
(tests/explore/transaction_client.py): they lose answers, retry, abort and commit. What they know about their
transactions is copied whenever it changes, so "what was promised by then" is the number of a copy.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any, Final

from kcoord.core.outcome import Now
from kcoord.log.errors import LogError, SyncFailed
from kcoord.log.journal import sync_one
from tests.crash.workload import PREALLOCATED_BYTES, SEGMENT_BYTES
from tests.explore.transaction_checks import CommittedReader, Verdict, broken, read_logs
from tests.explore.transaction_client import Txn
from tests.explore.transaction_world import WALL_MS, Violation, World
from tests.harness.faulty_storage import FaultyStorage
from tests.harness.log import checkpoint

PRODUCERS: Final = 2
TRANSACTIONS: Final = 3
# Of so many steps one is a durable mark.
MARK_SHARE: Final = 40
STEPS_MAX: Final = 4000
LATER_MS: Final = 1_000_000
# Nothing is late here: the search is about that.
NO_API: Final = -1
Account = dict[int, Txn]


class TransactionWorkload(World):
    """Runs the workload on a storage. The same seed does the same things."""

    def __init__(self, storage: FaultyStorage, seed: int, sync: Callable[[Any], None] = sync_one) -> None:
        self.sync_file = sync
        # What clients knew, oldest first.
        self.accounts: list[Account] = [{}]
        self._seen: list[tuple[Any, ...]] = []
        self.stops = 1
        super().__init__(random.Random(seed), 0, PRODUCERS, TRANSACTIONS, storage)
        self.late_api, self.late_share = NO_API, 0.0

    def run(self) -> None:
        for number in range(STEPS_MAX):
            if not self.remotes:
                break
            self._step(number)
            self.note_account()
        assert not self.remotes, "the clients did not come to their ends"
        self._drain()

    def _step(self, number: int) -> None:
        rng = self.rng
        waiting = [remote for remote in self.remotes if remote.sent is None]
        choices = ["turn"] * 2 + ["send"] * (4 if waiting else 0) + ["job"] * (4 if self.jobs else 0)
        choices += ["sync"] * (4 if self.ticket is not None else 0)
        step = rng.choice(choices)
        if number % MARK_SHARE == MARK_SHARE - 1:
            checkpoint(self.engine.journal, self.mono_ms)
        elif self.stops and len(self.txns) > PRODUCERS * TRANSACTIONS // 2:
            self.stops -= 1
            self._restart()
        elif step == "turn":
            self.end_turn()
        elif step == "send":
            self.send(rng.choice(waiting))
        elif step == "job":
            self.run_job()
        else:
            self.sync()

    def _restart(self) -> None:
        """A clean stop, and a start. Clients connect again."""
        self._drain()
        self.engine.stop()
        for remote in list(self.remotes):
            remote.sessions.clear()
            if remote.sent is not None:
                remote.sent = None
                self.resume(remote, None)
        self.open()

    def _drain(self) -> None:
        while self.ticket is not None or self.engine.has_unwritten() or self.jobs or self.engine.has_more():
            while self.jobs:
                self.run_job()
            self.end_turn()
            while self.ticket is not None:
                self.sync()

    def end_turn(self) -> None:
        for log in self.engine.directory:
            log.config.segment_bytes = SEGMENT_BYTES
            log.config.preallocated_bytes = PREALLOCATED_BYTES
        super().end_turn()

    def sync(self) -> None:
        ticket = self.ticket
        assert ticket is not None
        if ticket.syncs:
            try:
                self.sync_file(ticket.syncs.pop(self.rng.randrange(len(ticket.syncs))))
            except SyncFailed as error:
                self.engine.journal.fail(error)
                raise
        if not ticket.syncs:
            self.ticket = None
            self.engine.commit_done(ticket, self.now())
            self.collect()

    # --- what clients know

    def acknowledged(self) -> list[tuple[Any, ...]]:
        """What the server has told: values, offsets and ends by transaction."""
        return [
            (txn.number, {p: list(values) for p, values in txn.values.items()}, list(txn.offsets), txn.told)
            for txn in self.txns.values()
        ]

    def note_account(self) -> None:
        seen = [(*known, txn.commit_asked) for known, txn in zip(self.acknowledged(), self.txns.values(), strict=True)]
        if seen != self._seen:
            self._seen = seen
            self.accounts.append(copy.deepcopy(self.txns))

    def insist(self) -> None:
        """What a server that did not notice a failure would do: more requests, turns, syncs and answers."""
        for _ in range(12):
            try:
                self._step(0)
            except (LogError, OSError, ValueError, LookupError, AssertionError, Violation):
                # Refused, which is what is wanted.
                continue


class RecoveredTransactions(World):
    """An engine over what a crash left, without clients, after every transaction has come to its end."""

    def __init__(self, storage: FaultyStorage) -> None:
        self.rng = random.Random(3)
        self.mono_ms = LATER_MS
        self.steps: list[str] = []
        self.txns: dict[int, Txn] = {}
        self.remotes = []
        self.jumps = self.crashes = self.correlation_id = 0
        self.reader = CommittedReader()
        self.storage = storage
        self.open()
        self.settle()
        self.verdict: Verdict = read_logs(self.engine)

    def content(self) -> tuple[Any, ...]:
        """What clients can see, for comparing."""
        return self.shown()

    def broken_for(self, account: Account) -> list[str]:
        """Every promise that is not kept, in words."""
        return broken(self.verdict, account, True)


def later() -> Now:
    return Now(LATER_MS, WALL_MS + LATER_MS)
