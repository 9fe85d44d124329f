"""Every operation of the reference workload fails once, in every way.

    python -m tests.crash.io_faults [--seconds N] [--seed S] [--jobs J]

The n-th write, sync, open, create, rename, truncation, removal or directory gets EIO, ENOSPC, or a short write before
one of them, for every n. Then nothing more may be acknowledged, whatever is asked of the engine, and what had been
acknowledged must be there after a crash: with nothing kept of what was not synced, with everything, and in between.
A short write that is no error must make no difference. With --seconds the faults are taken in random order.
"""

from __future__ import annotations

import argparse
import errno
import multiprocessing
import os
import random
import sys
import time
from collections import Counter

from kcoord.log.errors import LogError
from tests.crash.promises import Promises, Recovered
from tests.crash.states import BUSY, KINDS, LATER, PROBLEMS_SHOWN, TRANSACTIONS
from tests.crash.transaction_workload import RecoveredTransactions, TransactionWorkload
from tests.crash.workload import Reference, open_small
from tests.harness.faulty_storage import Fault, FaultyStorage

FAULTS = {
    "EIO": Fault(errno.EIO),
    "ENOSPC": Fault(errno.ENOSPC),
    "short write, EIO": Fault(errno.EIO, short=True),
    "short write, ENOSPC": Fault(errno.ENOSPC, short=True),
    "short write": Fault(0, short=True),
}
CRASHES = (0.0, 1.0, 0.5, 0.9)


class Tally:
    """What was covered. Adds up over processes."""

    def __init__(self) -> None:
        self.operations: Counter[str] = Counter()
        self.ended = 0
        self.went_on = 0
        self.recoveries = 0
        self.problems: list[str] = []

    def add(self, other: Tally) -> None:
        self.operations += other.operations
        self.ended += other.ended
        self.went_on += other.went_on
        self.recoveries += other.recoveries
        self.problems += other.problems


def make_workload(storage: FaultyStorage, seed: int, kind: str) -> Reference | TransactionWorkload:
    if kind == TRANSACTIONS:
        return TransactionWorkload(storage, seed)
    return Reference(storage, seed, kind == BUSY)


def list_cases(seed: int, workload: str) -> list[tuple[int, str, str]]:
    """(number of the operation, its kind, name of the fault) of everything that can go wrong."""
    storage = FaultyStorage()
    storage.trace = []
    made = make_workload(storage, seed, workload)
    # The first operations make the directory, and are those of every workload.
    began = len(storage.trace) if workload == TRANSACTIONS else 0
    made.run()
    return [
        (number, kind, name)
        for number, (kind, _path) in enumerate(storage.trace, 1)
        for name, fault in FAULTS.items()
        if number > began and (kind == "write" or not fault.short)
    ]


def try_case(seed: int, kind: str, number: int, operation: str, name: str, tally: Tally) -> None:
    """Run the workload into one fault, go on asking, and see what is left after crashes."""
    storage = FaultyStorage()
    storage.faults[number] = FAULTS[name]
    workload = make_workload(storage, seed, kind)
    where = f"seed {seed}, {kind}, operation {number} ({operation}): {name}"
    error: Exception | None = None
    try:
        workload.run()
    except (OSError, LogError) as caught:
        error = caught
    except Exception as caught:
        tally.problems.append(f"{where}: {type(caught).__name__}: {caught}")
        return
    tally.operations[operation] += 1
    if error is None:
        tally.went_on += 1
    else:
        tally.ended += 1
        if name == "short write":
            tally.problems.append(f"{where}: {error}")
        acknowledged = acknowledged_after(workload)
        if acknowledged:
            tally.problems.append(f"{where}: {acknowledged} acknowledged after {error!r}")
    rng = random.Random(number)
    for keep in CRASHES:
        tally.recoveries += 1
        try:
            problems = look(storage.crash_at_random(rng, keep), workload, rng)
        except Exception as caught:
            problems = [f"does not open: {type(caught).__name__}: {caught}"]
        tally.problems += [f"{where}: {text}" for text in problems]


def look(left: FaultyStorage, workload: Reference | TransactionWorkload, rng: random.Random) -> list[str]:
    """Open what a crash left; every promise of the workload that is not kept."""
    if isinstance(workload, TransactionWorkload):
        return RecoveredTransactions(left).broken_for(workload.txns)
    promises = Promises(workload.events, len(workload.events))
    return promises.broken_by(Recovered(open_small(left, LATER, rng), LATER))


def acknowledged_after(workload: Reference | TransactionWorkload) -> str:
    """What is acknowledged when clients go on asking after a failure; it should be nothing."""
    if isinstance(workload, TransactionWorkload):
        before = workload.acknowledged()
        workload.insist()
        return "" if workload.acknowledged() == before else "something"
    promised = len(workload.events)
    insist(workload)
    later = [event.kind for event in workload.events[promised:] if not event.is_sent and event.kind != "stop"]
    return later[0] if later else ""


def insist(workload: Reference) -> None:
    """What a server that did not notice would do: more requests, more turns, syncs and answers."""
    if not hasattr(workload, "clients"):
        return
    attempts = (
        lambda: workload.commit(workload.clients[0], "group-0"),
        lambda: workload.produce(workload.clients[1], "a", 0),
        *([workload.turn] * 12),
        workload.stop,
    )
    for attempt in attempts:
        try:
            attempt()
        except (OSError, LogError, KeyError, ValueError):
            # Refused, which is what is wanted; or the workload had not come to where topics exist.
            continue


def run(seed: int, kind: str, part: int, parts: int, seconds: float) -> Tally:
    """One of `parts` shares of all cases; `seconds` 0 takes every one."""
    ends_at = time.monotonic() + seconds
    cases = list_cases(seed, kind)[part::parts]
    if seconds:
        random.Random(seed * 1000 + part).shuffle(cases)
    tally = Tally()
    for number, operation, name in cases:
        if seconds and time.monotonic() >= ends_at:
            break
        try_case(seed, kind, number, operation, name, tally)
    return tally


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="let every operation of a workload fail once")
    parser.add_argument("--seconds", type=float, default=0.0, help="a sample for so long instead of everything")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    work = [
        (options.seed, kind, part, options.jobs, options.seconds / len(KINDS))
        for kind in KINDS
        for part in range(options.jobs)
    ]
    total = Tally()
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for tally in pool.starmap(run, work, 1):
            total.add(tally)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(total.operations.items()))
    print(
        f"{sum(total.operations.values())} faults ({kinds}): {total.ended} ended the engine, {total.went_on} did "
        f"not; {total.recoveries} starts after crashes, {time.monotonic() - began:.0f} s (seed {options.seed})"
    )
    for text in total.problems[:PROBLEMS_SHOWN]:
        print(f"  {text}")
    print(f"{len(total.problems)} promises broken")
    return 1 if total.problems else 0


if __name__ == "__main__":
    sys.exit(main())
