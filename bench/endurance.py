"""Commits at the highest rate for an hour, and the size of the log: `make bench-endurance` (ARGS="--minutes 5").

`kcoord bench run` sends OffsetCommits to a compiled server with `log.sync=os`, for a minute at a time, and a line is
printed for each. The sizes are those of the segments of `__consumer_offsets-0`; the largest one is looked for each
second. For comparison, a server that does not clean is loaded first, for a minute. At the end the server is idle for a
while, in which the cleaner finishes.

Nothing of this is a test: no figure fails.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import servers
from bench.fixture import run
from bench.newcomers import cpu_s

WORKLOAD: Final = "commit-5"
MINUTE_S: Final = 60.0
SAMPLE_S: Final = 1.0
IDLE_S: Final = 60.0
MIB: Final = 1 << 20
LOG: Final = "__consumer_offsets-0"


class Minute(NamedTuple):
    rate: float
    p50_ms: float
    p99_ms: float
    server_cores: float
    rss_mib: float
    end_mib: float
    most_mib: float


class Sampler(threading.Thread):
    """Looks at the size of a log each second."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.most_mib = 0.0
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.wait(SAMPLE_S):
            self.most_mib = max(self.most_mib, log_mib(self.folder))


def log_mib(folder: Path) -> float:
    """The size of all segments, those included that the cleaner is writing or about to remove."""
    total = 0
    for path in folder.glob("*.log*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total / MIB


def load(
    server: servers.Server, data: Path, connections: int, in_flight: int, seconds: float, compiled: bool = True
) -> Minute:
    """Load the server for `seconds`. `compiled` is for the load generator."""
    command = [
        sys.executable, "-P", "-m", "kcoord.cli.main", "bench", "run", "-b", f"{server.host}:{server.port}", WORKLOAD,
        "--connections", str(connections), "--in-flight", str(in_flight), "--rounds", "1", "--warm-up", "0",
        "--seconds", str(seconds), "--output", "json",
    ]  # fmt: skip
    sampler = Sampler(data / LOG)
    sampler.start()
    started, used = time.monotonic(), cpu_s(server)
    output, _ = run(command, servers.environment(compiled))
    elapsed, used = time.monotonic() - started, cpu_s(server) - used
    sampler.is_over.set()
    sampler.join()
    row: dict[str, Any] = json.loads(output)["workloads"][0]
    rss_mib = server.rss_mb() * 1e6 / MIB
    size = log_mib(data / LOG)
    return Minute(
        row["per_second"], row["p50_ms"], row["p99_ms"], used / elapsed, rss_mib, size,
        max(sampler.most_mib, size),
    )  # fmt: skip


def live_mib(folder: Path) -> float:
    """The size of the newest record of each key: that of the newest state checkpoint. 0 if there is none."""
    return max((path.stat().st_size for path in folder.glob("*state-checkpoint*")), default=0) / MIB


def print_minute(name: str, one: Minute) -> None:
    print(
        f"{name:>8}{one.rate:>12,.0f}{one.p50_ms:>10.2f}{one.p99_ms:>10.2f}{one.server_cores:>8.2f}{one.rss_mib:>8.0f}"
        f"{one.end_mib:>10,.0f}{one.most_mib:>10,.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--minute", type=float, default=MINUTE_S, metavar="SECONDS", help="the length of a minute")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument(
        "--idle", type=float, default=IDLE_S, metavar="SECONDS", help="how long the server is idle then"
    )
    parser.add_argument("--set", action="append", default=[], metavar="SETTING", help="a setting of the server")
    parser.add_argument("--interpreted", action="store_true", help="measure the interpreted server")
    args = parser.parse_args()
    print(
        f"{'minute':>8}{'req/s':>12}{'p50 ms':>10}{'p99 ms':>10}{'cores':>8}{'RSS':>8}{'log MiB':>10}{'most MiB':>10}"
    )
    settings = args.set
    with tempfile.TemporaryDirectory(prefix="kcoord-endurance-") as folder:
        data = Path(folder) / "without"
        with servers.kcoord(not args.interpreted, data, "os", *settings, "log.cleaner.enable=false") as server:
            without = load(server, data, args.connections, args.in_flight, args.minute)
            print_minute("without", without)
    with tempfile.TemporaryDirectory(prefix="kcoord-endurance-") as folder:
        data = Path(folder) / "data"
        with servers.kcoord(not args.interpreted, data, "os", *settings) as server:
            minutes: list[Minute] = []
            for number in range(args.minutes):
                minutes.append(load(server, data, args.connections, args.in_flight, args.minute))
                print_minute(str(number + 1), minutes[-1])
            time.sleep(args.idle)
            p99_ms = statistics.median(one.p99_ms for one in minutes)
            print(
                f"p99: {p99_ms:.2f} ms in the median minute, {max(one.p99_ms for one in minutes):.2f} in the worst,"
                f" {without.p99_ms:.2f} without cleaning\n"
                f"log: at most {max(one.most_mib for one in minutes):,.0f} MiB,"
                f" {log_mib(data / LOG):,.0f} MiB {args.idle:g} s after the load;"
                f" live state: {live_mib(data / LOG):.3f} MiB"
            )


if __name__ == "__main__":
    main()
