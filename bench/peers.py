"""`make bench-peers`: `kcoord bench compare` of a compiled kcoord with kfake (Go) and with Kafka (Java 17, Maven).

The servers run on this machine, one pair at a time, and so does the load generator. Kafka has its defaults and does not
wait for the disk, and is given load for a while before the rounds, since its compiler is at work at first. In the
workloads of groups and newcomers, nobody waits before a first rebalance, or between two assignments.

Nothing of this is a test: no figure fails. A tool that is missing leaves its lines out.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import servers
from bench.fixture import BUILD, DOUBLES, NotMeasured, run

# Of one call of `kcoord bench compare`: a round of 1,000 restarts takes two to three minutes for each server.
DEADLINE_S: Final = 1800.0
WARM_UP_S: Final = 5.0
REQUESTS: Final = ("commit-5", "offset-fetch", "heartbeat", "consumer-heartbeat")
RECORDS: Final = ("produce", "fetch")
JOINS: Final = ("join-classic", "join-consumer")
RESTARTS: Final = ("restart-classic", "restart-consumer")
NEWCOMERS: Final = ("newcomer-classic", "newcomer-consumer")
GROUPS: Final = (*JOINS, *RESTARTS)
WITHOUT_PAUSES: Final = (*GROUPS, *NEWCOMERS)
# `log.sync=always` and `log.preallocate=true`.
PREALLOCATED: Final = "preallocated"
# Kafka's names of the pauses, with the prefix that a setting of kcoord has none of.
NO_PAUSES: Final = {"group.initial.rebalance.delay.ms": "0", "group.consumer.assignment.interval.ms": "0"}
MANY_MEMBERS: Final = {"group.consumer.max.size": "20000", "group.max.size": "20000"}


class Case(NamedTuple):
    """A pair of servers and one call of `kcoord bench compare`."""

    peer: str
    sync: str
    load: str
    workloads: tuple[str, ...]
    options: tuple[str, ...]


def steady(peer: str, sync: str, connections: int, in_flight: int, workloads: tuple[str, ...]) -> Case:
    options = ("--connections", str(connections), "--in-flight", str(in_flight))
    return Case(peer, sync, f"{connections}x{in_flight}", workloads, options)


def members(peer: str, count: int, workloads: tuple[str, ...], *options: str) -> Case:
    return Case(peer, "os", f"{count} members", workloads, ("--members", str(count), "--timeout", "300", *options))


CASES: Final = (
    *(steady("kfake", "os", *load, REQUESTS) for load in ((8, 1), (8, 32), (64, 1), (64, 32))),
    *(steady("kafka", "os", *load, REQUESTS) for load in ((8, 1), (8, 32), (64, 1))),
    *(
        steady("kafka", sync, *load, ("commit-5",))
        for sync in ("always", PREALLOCATED)
        for load in ((8, 1), (8, 32), (64, 1), (64, 32))
    ),
    *(steady("kafka", "os", *load, RECORDS) for load in ((8, 1), (8, 4))),
    *(members(peer, 1000, JOINS) for peer in ("kfake", "kafka")),
    *(steady(peer, "os", 400, 1, NEWCOMERS) for peer in ("kfake", "kafka")),
    # All 1,000 would take 50 times as long; the time for each is the same.
    *(members(peer, 1000, RESTARTS, "--restarts", "20") for peer in ("kfake", "kafka")),
    *(members(peer, 5000, JOINS) for peer in ("kfake", "kafka")),
)


@contextmanager
def serving(name: str, sync: str, settings: dict[str, str]) -> Iterator[str]:
    """The address of a server of a kind: `kcoord`, `kfake` or `kafka`. Raises NotMeasured."""
    with tempfile.TemporaryDirectory(prefix="kcoord-peers-") as folder:
        if name == "kafka":
            from tests.harness.java import ToolchainMissing

            try:
                with servers.kafka(Path(folder), settings) as address:
                    yield f"{address.host}:{address.port}"
            except ToolchainMissing as error:
                raise NotMeasured(str(error)) from error
            return
        if name == "kfake":
            program = BUILD / "kfake"
            run(["go", "build", "-o", str(program), "./kfake"], folder=DOUBLES / "go")
            server = servers.Server([str(program)], {})
        else:
            pairs = [f"{key}={value}" for key, value in settings.items()]
            if sync == PREALLOCATED:
                sync = "always"
                pairs.append("log.preallocate=true")
            server = servers.kcoord(True, Path(folder), sync, *pairs)
        with server:
            yield f"{server.host}:{server.port}"


def bench(words: list[str]) -> list[dict[str, Any]]:
    """The rows of `kcoord bench ...` with the compiled load generator. Raises NotMeasured."""
    command = [sys.executable, "-P", "-m", "kcoord.cli.main", "bench", *words, "--output", "json"]
    output, _ = run(command, servers.environment(True), deadline_s=DEADLINE_S)
    found: list[dict[str, Any]] = json.loads(output)
    return found


def measure(
    peer: str, sync: str, cases: list[Case], rounds: int, seconds: float, more: list[str]
) -> Iterator[dict[str, Any]]:
    """The rows of all cases of a pair of servers. `more` are further words for the command."""
    settings = NO_PAUSES | MANY_MEMBERS if any(case.workloads[0] in WITHOUT_PAUSES for case in cases) else {}
    with ExitStack() as stack:
        mine = stack.enter_context(serving("kcoord", sync, settings))
        other = stack.enter_context(serving(peer, "os", settings))
        if peer == "kafka":
            for workload in dict.fromkeys(one for case in cases for one in case.workloads if one not in GROUPS):
                bench(["run", "-b", other, workload, "--seconds", str(WARM_UP_S), "--rounds", "1", "--in-flight", "8"])
        for case in cases:
            for workload in case.workloads:
                print(f"  {peer} {case.load} {workload}", file=sys.stderr, flush=True)
                words = ["compare", mine, other, workload, "--rounds", str(rounds), "--seconds", str(seconds)]
                try:
                    rows = bench([*words, *case.options, *more])
                except NotMeasured as error:
                    rows = [{"workload": workload, "figure": "", "note": str(error)}]
                yield from ({"peer": peer, "sync": sync, "load": case.load, **row} for row in rows)


def print_row(row: dict[str, Any]) -> None:
    head = f"{row['peer']:<7}{row['sync']:<13}{row['load']:<14}{row['workload']:<20}{row['figure']:<14}"
    if row.get("ratio") is None:
        print(f"{head}{row['note'] or 'not measured'}", flush=True)
        return
    spread = f"{row['ratio']:>8.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})"
    print(f"{head}{row['a']:>12,.3f}{row['b']:>12,.3f}{spread}  {row['note']}".rstrip(), flush=True)


def choose(words: list[str]) -> dict[tuple[str, str, bool], list[Case]]:
    """The cases that all words fit, by the servers that they need. A word that names a workload leaves only it."""
    chosen: dict[tuple[str, str, bool], list[Case]] = {}
    for case in CASES:
        names = {case.peer, case.sync, case.load, *case.load.split()}
        workloads = tuple(one for one in case.workloads if one in words) or case.workloads
        if all(word in names or word in workloads for word in words):
            key = (case.peer, case.sync, case.workloads[0] in WITHOUT_PAUSES)
            chosen.setdefault(key, []).append(case._replace(workloads=workloads))
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of a round of a steady workload")
    parser.add_argument("--restarts", type=int, help="of a group's members, instead of 20")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="cases with all words")
    args = parser.parse_args()
    more = [] if args.restarts is None else ["--restarts", str(args.restarts)]
    rows: list[dict[str, Any]] = []
    for (peer, sync, _), cases in choose(args.only).items():
        try:
            for row in measure(peer, sync, cases, args.rounds, args.seconds, more):
                rows.append(row)
                if args.output == "table":
                    print_row(row)
        except NotMeasured as error:
            print(f"{peer} was not measured: {error}", file=sys.stderr)
    if args.output == "json":
        print(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
