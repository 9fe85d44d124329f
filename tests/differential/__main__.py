"""`make differential`: random histories that a Kafka broker and kcoord have to answer alike.

    make differential ARGS="--seconds 60 --seed 1 --kind transactions"

Each sequence of requests goes to both servers, which began empty, under names of its own. Answers are compared field by
field, apart from those in known.py. A difference is confirmed with more time for the servers, shrunk, and printed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.differential import (
    admin,
    configs,
    consumer,
    data,
    groups,
    mixed,
    producers,
    regex,
    timeouts,
    transactions,
)
from tests.differential.finding import Finding, Pair, Tally, confirmed, finding, shrink, told
from tests.differential.sequence import Kind
from tests.harness.broker_scripts_consumer import COMMON
from tests.harness.kcoord_server import KcoordServer
from tests.harness.real_broker import RealBroker

# Kinds that run unless one is named.
USUAL = (
    "admin", "configs", "consumer", "data", "groups", "mixed", "producers", "regex", "timeouts", "transactions",
)  # fmt: skip
ALL = (
    admin.KIND, configs.KIND, consumer.KIND, data.KIND, groups.KIND, mixed.KIND, producers.KIND, regex.KIND,
    timeouts.KIND, transactions.KIND, timeouts.EXHAUSTED, transactions.RACING,
)  # fmt: skip
KINDS = {kind.name: kind for kind in ALL}
SHRINK_S = 60.0
SETTINGS = {
    **COMMON,
    "group.consumer.assignors": "range",
    "group.consumer.migration.policy": "bidirectional",
    # How often a broker looks for transactions that timed out, and both for segments to delete.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "10",
    "log.retention.check.interval.ms": "100",
}


@contextmanager
def servers(broker: int) -> Iterator[Pair]:
    """A broker and kcoord with the same settings; `broker` is the port of one that runs already, or 0."""
    with KcoordServer(SETTINGS) as ours:
        if broker:
            yield Pair(broker, ours.port)
        else:
            with RealBroker(SETTINGS) as theirs:
                yield Pair(theirs.port, ours.port)


class Search:
    def __init__(self, pair: Pair, seed: int) -> None:
        self._pair = pair
        self._seed = seed
        self.tally = Tally()
        self.found: dict[tuple[str, ...], Finding] = {}

    def one(self, kind: Kind, number: int) -> None:
        """One sequence; the seed and the number name it."""
        steps = kind.sequence(random.Random(f"{self._seed} {kind.name} {number}"))
        played = self._pair.play(kind, steps)
        self.count(played.expected)
        found = finding(kind, steps, played, self.tally)
        if found is None or found.signature in self.found:
            return
        again = confirmed(self._pair, kind, found)
        if again is None:
            print(f"race in sequence {number} of {kind.name}: {found.difference}", flush=True)
            self.tally.races[kind.name] += 1
            return
        self.found[found.signature] = found
        small = shrink(self._pair, kind, again, SHRINK_S)
        print(f"\nsequence {number} of {kind.name}, {len(steps)} steps, {len(small.steps)} needed:", flush=True)
        print(told(small), flush=True)

    def count(self, recorded: list[dict[str, object]]) -> None:
        self.tally.sequences += 1
        self.tally.answers += len(recorded)
        for step in recorded:
            for code in error_codes(step.get("response")):
                self.tally.errors[f"{step['api']} {code}"] += 1


def error_codes(value: object) -> Iterator[int]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "errorCode":
                yield inner
            else:
                yield from error_codes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from error_codes(inner)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make differential", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--kind", choices=KINDS, action="append", help="may be repeated (default: all but exhausted and racing)"
    )
    parser.add_argument("--only", type=int, help="the sequence of this number alone")
    parser.add_argument("--broker", type=int, default=0, help="port of a broker that runs already")
    args = parser.parse_args()
    kinds = [KINDS[name] for name in args.kind or USUAL]
    with servers(args.broker) as pair:
        search = Search(pair, args.seed)
        end = time.monotonic() + args.seconds
        number = 0
        while time.monotonic() < end and args.only is None:
            for kind in kinds:
                search.one(kind, number)
            number += 1
        if args.only is not None:
            for kind in kinds:
                search.one(kind, args.only)
    return report(search)


def report(search: Search) -> int:
    tally = search.tally
    print(f"\n{tally.sequences} sequences, {tally.answers} answers compared")
    print("errors: " + ", ".join(f"{name}: {count}" for name, count in sorted(tally.errors.items())))
    for name, count in tally.known.most_common():
        print(f"known: {count} of {name}")
    for name, count in tally.races.items():
        print(f"races: {count} sequences of {name} differed once and not again")
    print(f"{len(search.found)} differences")
    return 1 if search.found else 0


if __name__ == "__main__":
    sys.exit(main())
