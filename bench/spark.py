"""`make bench-spark`: how fast logs become rows.

A data directory with many commits is decoded into Arrow by one process (interpreted and compiled), read through Spark
with one core and with two, and dumped by Kafka's own `kafka-dump-log --offsets-decoder`, all in the same run. Where
Java 17 or Maven is missing, the dump's row is missing, too, and a line gives the reason.

`--scaling` compares one core and two in several rounds, and measures nothing else: over short logs, the start of tasks
takes part of the time, so a longer `--history` shows more. With `--jobs`, `--both-ways` or `--log-gb` long logs are
measured instead, which takes hours: `bench.spark_jobs`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench import open as bench_open
from bench import servers, spark_jobs

TABLE = "offset_commits"
DEADLINE_S = 3600.0
PER_COMMIT = 10


def child(compiled: bool, *arguments: str) -> dict[str, Any]:
    done = servers.run_module(compiled, "bench.spark_child", arguments, DEADLINE_S)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if figures["compiled"] != compiled:
        raise RuntimeError("the wrong tree was measured: does build/compiled exist?")
    return figures


def dump_log(data: Path) -> dict[str, Any]:
    """Time Kafka's dump of the same segments, without its output. Raises java.ToolchainMissing."""
    from tests.harness import java

    files = sorted((data / "__consumer_offsets-0").glob("*.log"))
    command = [
        java.tool("java"),
        "-Xmx1g",
        "-cp",
        f"{java.libs()}/*",
        "org.apache.kafka.tools.DumpLogSegments",
    ]
    began = time.perf_counter()
    done = subprocess.run(
        [*command, "--offsets-decoder", "--files", ",".join(map(str, files))],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=DEADLINE_S,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    return {"rows": done.stdout.count(b"offset: "), "seconds": seconds, "rss_mb": float("nan")}


def show(label: str, figures: dict[str, Any]) -> None:
    rate = figures["rows"] / figures["seconds"]
    print(f"{label:34}{figures['rows']:>12,}{figures['seconds']:>10.2f}{rate:>14,.0f}{figures['rss_mb']:>10,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--offsets", type=int, default=1_000_000)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--history", type=int, default=4_000_000, help="records in the log")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--scaling", type=int, metavar="ROUNDS", help="only Spark with one core and with two, in turn")
    parser.add_argument("--jobs", type=int, metavar="N", help="all jobs over N commits, and over ten times as many")
    parser.add_argument("--both-ways", type=int, metavar="N", help="all jobs over N commits, with Spark and without")
    parser.add_argument("--only", action="append", default=[], metavar="JOB", help="only these of the jobs; repeatable")
    parser.add_argument("--log-gb", type=float, metavar="N", help="memory of reading a log of N GB, and one of N/10 GB")
    parser.add_argument("--driver-memory", default="2g", help="the JVM's heap, for --jobs and --log-gb")
    parser.add_argument("--job-groups", type=int, default=5_000, help="groups in the logs of --jobs and --log-gb")
    parser.add_argument("--interpreted", action="store_true", help="--jobs and --log-gb without compiled modules")
    given = parser.parse_args()
    results: dict[str, Any] = {}
    if given.jobs or given.both_ways or given.log_gb:
        settings = (given.job_groups, given.driver_memory)
        if given.jobs:
            results["jobs"] = spark_jobs.jobs(not given.interpreted, given.jobs, *settings, given.only)
        if given.both_ways:
            results["both_ways"] = spark_jobs.both_ways(not given.interpreted, given.both_ways, *settings, given.only)
        if given.log_gb:
            results["reading"] = spark_jobs.long_log(not given.interpreted, given.log_gb, *settings)
    elif given.scaling:
        results = scaling(given.offsets, given.groups, given.history, given.scaling)
    else:
        results = rows_per_second(given.offsets, given.groups, given.history)
    if given.json:
        given.json.write_text(json.dumps(results, indent=2))
    problems = [one for part in ("jobs", "both_ways", "reading") for one in results.get(part, {}).get("problems", ())]
    if problems:
        raise SystemExit("\n\n".join(["", *problems]))


@contextmanager
def built_log(offsets: int, groups: int, history: int) -> Iterator[Path]:
    """A data directory with so many commits, and the head of the table."""
    with servers.scratch_folder() as folder:
        bench_open.build(folder / "data", offsets, groups, PER_COMMIT, history)
        print(f"{'':34}{'rows':>12}{'s':>10}{'rows/s':>14}{'MiB':>10}")
        yield folder / "data"


def scaling(offsets: int, groups: int, history: int, rounds: int) -> dict[str, Any]:
    """Rounds of Spark with one core and with two, and the median of their ratios."""
    figures: dict[str, list[dict[str, Any]]] = {"1 core": [], "2 cores": []}
    with built_log(offsets, groups, history) as data:
        for _ in range(rounds):
            for label, found in figures.items():
                found.append(child(True, "session", str(data), TABLE, label[0]))
                show(f"through Spark, {label}, compiled", found[-1])
    pairs = zip(figures["1 core"], figures["2 cores"], strict=True)
    ratios = sorted(one["seconds"] / two["seconds"] for one, two in pairs)
    print(f"from 1 core to 2: {median(ratios):.2f} times as fast ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    return {**figures, "ratios": ratios}


def rows_per_second(offsets: int, groups: int, history: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with built_log(offsets, groups, history) as data:
        runs = [
            ("into Arrow, interpreted", False, ("decode", str(data), TABLE)),
            ("into Arrow, compiled", True, ("decode", str(data), TABLE)),
            ("through Spark, 1 core, compiled", True, ("session", str(data), TABLE, "1")),
            ("through Spark, 2 cores, compiled", True, ("session", str(data), TABLE, "2")),
        ]
        for label, compiled, arguments in runs:
            results[label] = child(compiled, *arguments)
            show(label, results[label])
        from tests.harness.java import ToolchainMissing

        try:
            results["kafka-dump-log"] = dump_log(data)
            show("kafka-dump-log", results["kafka-dump-log"])
        except ToolchainMissing as error:
            print(f"kafka-dump-log was not measured: {error}")
    one, two = (results[f"through Spark, {cores}, compiled"]["seconds"] for cores in ("1 core", "2 cores"))
    print(f"from 1 core to 2: {one / two:.2f} times as fast")
    return results


if __name__ == "__main__":
    main()
