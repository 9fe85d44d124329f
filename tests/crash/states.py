"""Every state that a crash of the reference workload may leave, opened again.

    python -m tests.crash.states [--seconds N] [--seed S] [--jobs J]

A crash may come between any two operations of the storage. Up to OPERATIONS_MAX operations that are not synced then,
all their subsets are tried, with the sectors of torn writes counted one by one where that many pieces can be tried;
beyond that, the prefixes, each operation alone, each one missing, and a seeded sample.

From each state an engine is opened. It must open, keep what was acknowledged, and show nothing by halves. What it
then shows must survive a further crash that keeps nothing, and a crash in the middle of its opening must be none the
worse. With --seconds the moments are taken in random order until the time is up.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kcoord.core.outcome import Now
from kcoord.log.journal import sync_one
from tests.crash.promises import Promises, Recovered
from tests.crash.transaction_workload import Account, RecoveredTransactions, TransactionWorkload
from tests.crash.workload import WALL_MS, Event, Reference, open_small
from tests.harness.faulty_storage import FaultyStorage, Piece, Snapshot

OPERATIONS_MAX = 10
SAMPLES = 100
LATER = Now(1_000_000, WALL_MS + 1_000_000)
PROBLEMS_SHOWN = 10
CALM, BUSY, TRANSACTIONS = KINDS = ("calm", "busy", "transactions")
SHARES_PER_JOB = 24


class Moment(NamedTuple):
    """Between two operations: what the disk may hold, and how many events had happened."""

    snapshot: Snapshot
    events: int
    next_operation: str


class Tally:
    """What was covered. Adds up over processes."""

    def __init__(self) -> None:
        self.moments = 0
        self.exhaustive = 0
        self.states = 0
        self.images = 0
        self.recoveries = 0
        self.problems: list[str] = []

    def add(self, other: Tally) -> None:
        self.moments += other.moments
        self.exhaustive += other.exhaustive
        self.states += other.states
        self.images += other.images
        self.recoveries += other.recoveries
        self.problems += other.problems


def record(seed: int, busy: bool, sync: Callable[[Any], None] = sync_one) -> tuple[list[Moment], list[Event]]:
    """Run the workload once; every moment at which a crash would leave something new."""
    storage = FaultyStorage()
    workload = Reference(storage, seed, busy, sync)
    moments: list[Moment] = []
    seen = (-1, -1)

    def note(kind: str, path: str) -> None:
        nonlocal seen
        if seen != (storage.changes, len(workload.events)):
            seen = (storage.changes, len(workload.events))
            moments.append(Moment(storage.snapshot(), len(workload.events), f"{kind} {path}"))

    storage.on_operation = note
    workload.run()
    note("the end", "")
    return moments, workload.events


def record_transactions(seed: int, sync: Callable[[Any], None] = sync_one) -> tuple[list[Moment], list[Account]]:
    """The same for the workload with transactions, and what its clients knew by each number of events."""
    storage = FaultyStorage()
    moments: list[Moment] = []
    seen = (-1, -1)
    workload: TransactionWorkload | None = None

    def note(kind: str, path: str) -> None:
        nonlocal seen
        events = 0
        if workload is not None:
            workload.note_account()
            events = len(workload.accounts) - 1
        if seen != (storage.changes, events):
            seen = (storage.changes, events)
            moments.append(Moment(storage.snapshot(), events, f"{kind} {path}"))

    workload = TransactionWorkload(storage, seed, sync)
    storage.on_operation = note
    workload.run()
    note("the end", "")
    return moments, workload.accounts


def is_exhaustive(snapshot: Snapshot) -> bool:
    return len(snapshot.pending) <= OPERATIONS_MAX


def subsets(snapshot: Snapshot, rng: random.Random) -> Iterator[list[Piece]]:
    """What may have got to the disk; may repeat itself."""
    pieces = snapshot.pieces()
    if len(pieces) <= OPERATIONS_MAX:
        for count in range(len(pieces) + 1):
            for kept in itertools.combinations(pieces, count):
                yield list(kept)
        return
    operations = list(range(len(snapshot.pending)))
    wholes: Iterator[set[int]]
    if is_exhaustive(snapshot):
        wholes = (set(c) for n in range(len(operations) + 1) for c in itertools.combinations(operations, n))
    else:
        prefixes = (set(operations[:n]) for n in range(len(operations) + 1))
        alone = ({operation} for operation in operations)
        missing = (set(operations) - {operation} for operation in operations)
        wholes = itertools.chain(prefixes, alone, missing)
    for whole in wholes:
        yield [piece for piece in pieces if piece.operation in whole]
    for _ in range(SAMPLES):
        chance = rng.random()
        yield [piece for piece in pieces if rng.random() < chance]


def digest(storage: FaultyStorage) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for path, data in storage.image().items():
        state.update(repr((path, data)).encode())
    return state.digest()


class Explorer:
    """Opens states and holds them against what was promised, each distinct one once."""

    def __init__(self, events: list[Event], rng: random.Random, label: str) -> None:
        self.events = events
        self.rng = rng
        self.label = label
        self.tally = Tally()
        self._found: dict[bytes, list[Any]] = {}
        self._promises: dict[int, Promises] = {}

    def broken_by(self, found: Any, events: int) -> list[str]:
        """The promises of the first events that are not kept."""
        promises = self._promises.get(events)
        if promises is None:
            promises = self._promises[events] = Promises(self.events, events)
        return promises.broken_by(found)

    def explore(self, moment: Moment) -> None:
        self.tally.moments += 1
        self.tally.exhaustive += is_exhaustive(moment.snapshot)
        checked: set[bytes] = set()
        for kept in subsets(moment.snapshot, self.rng):
            left = moment.snapshot.crash(kept)
            key = digest(left)
            if key in checked:
                continue
            checked.add(key)
            where = f"{self.label}, before {moment.next_operation}"
            if key not in self._found:
                self.tally.images += 1
                self._found[key] = self._recover(left, where)
            for found in self._found[key]:
                self.tally.problems += [f"{where}: {text}" for text in self.broken_by(found, moment.events)]
        self.tally.states += len(checked)

    def _recover(self, left: FaultyStorage, where: str) -> list[Any]:
        """Open a state: as it is, after a crash that keeps nothing of that, and after one in the midst of it."""
        snapshots: list[Snapshot] = []
        left.on_operation = lambda kind, path: snapshots.append(left.snapshot())
        found: list[Any] = []
        try:
            found.append(self._open(left))
            left.on_operation = None
            found.append(self._open(left.crash()))
            if found[0].content() != found[1].content():
                self.tally.problems.append(f"{where}: what was shown after the start was lost by another crash")
            if snapshots:
                middle = self.rng.choice(snapshots)
                pieces = [piece for piece in middle.pieces() if self.rng.random() < 0.5]
                found.append(self._open(middle.crash(pieces)))
        except Exception as error:
            self.tally.problems.append(f"{where}: {type(error).__name__}: {error}")
        return found

    def _open(self, storage: FaultyStorage) -> Any:
        self.tally.recoveries += 1
        engine = open_small(storage, LATER, random.Random(self.tally.recoveries))
        return Recovered(engine, LATER)


class TransactionExplorer(Explorer):
    """The same for the workload with transactions."""

    def __init__(self, accounts: list[Account], rng: random.Random, label: str) -> None:
        super().__init__([], rng, label)
        self.accounts = accounts

    def broken_by(self, found: RecoveredTransactions, events: int) -> list[str]:
        return found.broken_for(self.accounts[events])

    def _open(self, storage: FaultyStorage) -> RecoveredTransactions:
        self.tally.recoveries += 1
        return RecoveredTransactions(storage)


def recorded(seed: int, kind: str, rng: random.Random) -> tuple[list[Moment], Explorer]:
    """The moments of one of KINDS, and who looks at them."""
    label = f"seed {seed}, {kind}"
    if kind == TRANSACTIONS:
        moments, accounts = record_transactions(seed)
        return moments, TransactionExplorer(accounts, rng, label)
    moments, events = record(seed, kind == BUSY)
    return moments, Explorer(events, rng, label)


def run(seed: int, kind: str, part: int, parts: int, seconds: float) -> Tally:
    """One of `parts` shares of all moments; `seconds` 0 takes every one."""
    ends_at = time.monotonic() + seconds
    rng = random.Random(seed * 1000 + part)
    moments, explorer = recorded(seed, kind, rng)
    # Neighbours share most of their states, so each process takes a stretch of them.
    mine = moments[len(moments) * part // parts : len(moments) * (part + 1) // parts]
    if seconds:
        rng.shuffle(mine)
    for moment in mine:
        if seconds and time.monotonic() >= ends_at:
            break
        explorer.explore(moment)
    return explorer.tally


def run_share(share: tuple[int, str, int, int, float]) -> Tally:
    return run(*share)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="open every state that a crash may leave")
    parser.add_argument("--seconds", type=float, default=0.0, help="a sample for so long instead of everything")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    total = Tally()
    # Everything takes long, so it is cut into shares whose ends can be told.
    shares = options.jobs if options.seconds else options.jobs * SHARES_PER_JOB
    seconds = options.seconds / len(KINDS)
    work = [(options.seed, kind, part, shares, seconds) for kind in KINDS for part in range(shares)]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for done, tally in enumerate(pool.imap_unordered(run_share, work, 1), 1):
            total.add(tally)
            if not options.seconds:
                minutes = (time.monotonic() - began) / 60
                print(
                    f"{done} of {len(work)} shares, {total.states} states, {len(total.problems)} promises broken, "
                    f"{minutes:.1f} min",
                    file=sys.stderr,
                )
    print(
        f"{total.states} crash states at {total.moments} moments ({total.exhaustive} of them with all subsets of the "
        f"unsynced operations); {total.images} different disks, {total.recoveries} starts, "
        f"{time.monotonic() - began:.0f} s (seed {options.seed})"
    )
    for text in total.problems[:PROBLEMS_SHOWN]:
        print(f"  {text}")
    print(f"{len(total.problems)} promises broken")
    return 1 if total.problems else 0


if __name__ == "__main__":
    sys.exit(main())
