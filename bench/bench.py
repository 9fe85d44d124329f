"""`make bench`: how fast kcoord is on this machine, compared with a bare echo of the same frames.

Every figure of a table comes from one run. The generator and the server share the machine, so on two cores each has
one. The ratio divides kcoord's requests per second by those of an echo server, which only writes back the request
frames that it reads. Data directories are created under build/, on the project's disk.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench import (
    assignors,
    client_consume,
    client_produce,
    compaction,
    members,
    newcomers,
    servers,
    transactions,
    workload,
)
from bench.load import Traffic, measure

OPERATIONS = ("OffsetCommit v8", "OffsetFetch v8", "Heartbeat v4")
# (connections, requests in flight on each)
LOADS = ((8, 1), (8, 32), (64, 1))
START_TARGET_MS = 100.0
MEMORY_TARGET_MB = 50.0
STARTS = 5
STREAMS, STREAM_DEPTH = 4, 4
MEASUREMENTS = (
    "requests",
    "start",
    "streams",
    "compaction",
    "assignors",
    "members",
    "newcomers",
    "transactions",
    "client-produce",
    "client-consume",
)


def name_of(compiled: bool, sync: str) -> str:
    return f"{'compiled' if compiled else 'interpreted'}, {sync}"


@contextmanager
def running(compiled: bool, sync: str) -> Iterator[servers.Server]:
    """Run kcoord on an empty data directory, which is removed afterwards."""
    with servers.scratch_folder() as folder, servers.kcoord(compiled, folder / "data", sync) as server:
        yield server


def prepare(server: servers.Server, groups: int) -> dict[str, list[Traffic]]:
    """Create a topic and `groups` groups of one member each. Returns the requests of each member."""
    client = workload.Client(server.host, server.port)
    workload.create_topic(client, workload.TOPIC, workload.PARTITIONS)
    traffic: dict[str, list[Traffic]] = {operation: [] for operation in OPERATIONS}
    for number in range(groups):
        member = workload.Member(client, f"bench-{number:02}")
        traffic["OffsetCommit v8"].append(member.commit(client))
        traffic["OffsetFetch v8"].append(member.fetch_offsets(client))
        traffic["Heartbeat v4"].append(member.heartbeat(client))
    client.close()
    return traffic


class Bench:
    """The measurements of one run. `results` is {operation: {server: {load: figures}}}."""

    def __init__(self, seconds: float, variants: list[tuple[bool, str]]) -> None:
        self.seconds = seconds
        self.variants = variants
        self.results: dict[str, dict[str, dict[str, dict[str, float]]]] = {name: {} for name in OPERATIONS}
        self.traffic: dict[str, list[Traffic]] = {}
        self.start: dict[str, dict[str, float]] = {}
        self.streams: dict[str, dict[str, float]] = {}
        self.compactions: dict[str, dict[str, float]] = {}
        self.assignments: dict[str, assignors.Figures | str] = {}
        self.groups: dict[str, members.Figures | str] = {}
        self.newcomers: dict[str, newcomers.Figures] = {}
        self.transactions: transactions.Results = {}
        self.produce: client_produce.Results = {}
        self.consume: client_consume.Results = {}

    def note(self, text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    def one(self, server: servers.Server, operation: str, label: str, lanes: list[Traffic]) -> None:
        for connections, in_flight in LOADS:
            result = measure(server.host, server.port, lanes[:connections], in_flight, self.seconds)
            figures = self.results[operation].setdefault(label, {})
            figures[f"{connections}x{in_flight}"] = result.as_dict()

    def requests(self) -> None:
        """Measure every operation with every variant, and then the echo with the same frames."""
        for compiled, sync in self.variants:
            label = name_of(compiled, sync)
            self.note(f"requests, {label}")
            with running(compiled, sync) as server:
                self.traffic = prepare(server, max(connections for connections, _ in LOADS))
                for operation in OPERATIONS:
                    # Only commits write, so only they differ by sync mode.
                    if sync == "os" or operation.startswith("OffsetCommit"):
                        self.one(server, operation, label, self.traffic[operation])
        self.note("requests, echo")
        with servers.echo() as server:
            for operation in OPERATIONS:
                self.one(server, operation, "echo", self.echoed(operation))
        if any(sync == "always" for _, sync in self.variants):
            self.note("requests, echo that syncs")
            with servers.scratch_folder() as folder, servers.synced_echo(folder / "frames") as server:
                self.one(server, OPERATIONS[0], "echo, always", self.echoed(OPERATIONS[0]))

    def echoed(self, operation: str) -> list[Traffic]:
        return [Traffic(each.request, each.request, echo=True) for each in self.traffic[operation]]

    def start_up(self) -> None:
        for compiled in sorted({compiled for compiled, _ in self.variants}):
            self.note(f"start-up, {'compiled' if compiled else 'interpreted'}")
            times, memory = [], []
            for _ in range(STARTS):
                with running(compiled, "always") as server:
                    times.append(server.ready_ms)
                    time.sleep(0.1)
                    memory.append(server.rss_mb())
            figures = {"ready_ms": statistics.median(times), "rss_mb": statistics.median(memory)}
            self.start["compiled" if compiled else "interpreted"] = figures

    def throughput(self) -> None:
        """Measure Produce and Fetch on several connections, one partition each, in MB/s of record batches."""
        for compiled, sync in self.variants:
            label = name_of(compiled, sync)
            self.note(f"produce and fetch, {label}")
            with running(compiled, sync) as server:
                client = workload.Client(server.host, server.port)
                workload.create_topic(client, workload.TOPIC, workload.PARTITIONS)
                records = workload.batch()
                lanes = [workload.produce(client, number, records) for number in range(STREAMS)]
                result = measure(server.host, server.port, lanes, STREAM_DEPTH, self.seconds)
                figures = {"produce_mb_s": result.per_second * len(records) / 1e6}
                fetches = [workload.fetch(client, number) for number in range(STREAMS)]
                lanes = [traffic for traffic, _ in fetches]
                result = measure(server.host, server.port, lanes, 1, self.seconds)
                figures["fetch_mb_s"] = result.per_second * fetches[0][1] / 1e6
                self.streams[label] = figures
                client.close()

    def beside_compaction(self) -> None:
        """Measure commits during the compaction of another log."""
        for compiled, sync in self.variants:
            label = name_of(compiled, sync)
            self.note(f"compaction, {label}")
            with servers.scratch_folder() as folder:
                self.compactions[label] = compaction.run(compiled, sync, folder / "data")

    def large_group(self) -> None:
        """Measure target assignments of 10,000 members, and those of Kafka."""
        self.note("assignors")
        self.assignments = assignors.run(sorted({compiled for compiled, _ in self.variants}, reverse=True))

    def consumer_groups(self) -> None:
        """Measure members of the new protocol that join at once, and their heartbeats, and those of a Kafka broker."""
        for compiled, sync in self.variants:
            label = name_of(compiled, sync)
            self.note(f"members, {label}")
            self.groups[label] = members.kcoord(compiled, sync, self.seconds)
        self.note(f"members, {members.KAFKA}")
        self.groups[members.KAFKA] = members.kafka(self.seconds)

    def late_clients(self) -> None:
        """Measure clients and members that connect while others work."""
        for compiled, sync in self.variants:
            label = name_of(compiled, sync)
            self.note(f"newcomers, {label}")
            self.newcomers[label] = newcomers.kcoord(compiled, sync)

    def transact(self) -> None:
        """Measure small transactions of one producer and of several, and those of a Kafka broker."""
        variants = [(name_of(compiled, sync), compiled, sync) for compiled, sync in self.variants]
        self.transactions = transactions.run(variants, self.seconds, self.note)

    def clients(self) -> None:
        """Measure the producers of client libraries."""
        self.produce = client_produce.run(self.seconds, self.note)

    def consumers(self) -> None:
        """Measure the consumers of client libraries."""
        self.consume = client_consume.run(self.note)

    def as_dict(self) -> dict[str, Any]:
        return {
            "requests": self.results,
            "start": self.start,
            "streams": self.streams,
            "compaction": self.compactions,
            "assignors": self.assignments,
            "members": self.groups,
            "newcomers": self.newcomers,
            "transactions": self.transactions,
            "client-produce": self.produce,
            "client-consume": self.consume,
        }


def rate(per_second: float) -> str:
    return f"{per_second / 1000:.1f}k" if per_second < 999_950 else f"{per_second / 1e6:.2f}M"


def cell(figures: dict[str, float], echo: dict[str, float] | None) -> str:
    text = f"{rate(figures['per_second']):>6} {figures['p50_ms']:5.2f} {figures['p99_ms']:6.2f}"
    share = figures["per_second"] / echo["per_second"] * 100 if echo else 100.0
    return f"{text} {share:3.0f}%"


def print_tables(results: dict[str, Any]) -> None:
    loads = [f"{connections}x{in_flight}" for connections, in_flight in LOADS]
    title = "requests/s, p50 ms, p99 ms, % of echo; connections x in flight; 5 partitions per request"
    for operation, by_server in results["requests"].items():
        if not by_server:
            continue
        if title:
            print(title)
            title = ""
        print(f"\n{operation:<20}" + "".join(f"{load:^27}" for load in loads).rstrip())
        for label, figures in by_server.items():
            echo = by_server.get("echo", {})
            cells = "  ".join(f"{cell(figures[load], echo.get(load)):>24}" for load in loads)
            print(f"{label:<20}{cells}")
    if results["streams"]:
        print(f"\n{'MB/s, acks=all':<20}{'produce':>10}{'fetch':>10}")
        for label, figures in results["streams"].items():
            print(f"{label:<20}{figures['produce_mb_s']:>10.0f}{figures['fetch_mb_s']:>10.0f}")
    if results["compaction"]:
        print(f"\n{'commits, ms':<20}{'p99 alone':>12}{'p99 beside':>12}{'ratio':>8}{'MB':>8}{'left':>8}{'s':>8}")
        for label, figures in results["compaction"].items():
            times = f"{figures['without_p99_ms']:>12.2f}{figures['during_p99_ms']:>12.2f}{figures['p99_ratio']:>8.2f}"
            work = f"{figures['log_mb']:>8.0f}{figures['left_mb']:>8.0f}{figures['compaction_s']:>8.1f}"
            print(f"{label:<20}{times}{work}")
    if results["assignors"]:
        assignors.print_table(results["assignors"])
    if results["members"]:
        members.print_table(results["members"])
    if results["newcomers"]:
        newcomers.print_table(results["newcomers"])
    if results["transactions"]:
        transactions.print_table(results["transactions"])
    if results["client-produce"]:
        client_produce.print_table(results["client-produce"])
    if results["client-consume"]:
        client_consume.print_table(results["client-consume"])
    if results["start"]:
        print(f"\n{'empty server':<20}{'ready, ms':>10}{'RSS, MB':>10}")
        for label, figures in results["start"].items():
            print(f"{label:<20}{figures['ready_ms']:>10.0f}{figures['rss_mb']:>10.1f}")
        print(f"{'aim':<20}{START_TARGET_MS:>10.0f}{MEMORY_TARGET_MB:>10.1f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement, except compaction")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--only", choices=MEASUREMENTS, action="append")
    parser.add_argument("--compiled-only", action="store_true", help="leave out the interpreted servers")
    args = parser.parse_args()
    trees = [True] if args.compiled_only else [True, False]
    bench = Bench(args.seconds, [(compiled, sync) for compiled in trees for sync in ("os", "always")])
    wanted = args.only or ["requests", "streams", "start"]
    if "requests" in wanted:
        bench.requests()
    if "streams" in wanted:
        bench.throughput()
    if "start" in wanted:
        bench.start_up()
    if "compaction" in wanted:
        bench.beside_compaction()
    if "assignors" in wanted:
        bench.large_group()
    if "members" in wanted:
        bench.consumer_groups()
    if "newcomers" in wanted:
        bench.late_clients()
    if "transactions" in wanted:
        bench.transact()
    if "client-produce" in wanted:
        bench.clients()
    if "client-consume" in wanted:
        bench.consumers()
    results = bench.as_dict()
    if args.output == "json":
        print(json.dumps(results, indent=2))
    else:
        print_tables(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
