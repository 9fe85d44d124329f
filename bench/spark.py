"""`make bench-spark`: how fast logs become rows.

A data directory with many commits is decoded into Arrow by one process (interpreted and compiled), read through Spark
with one core and with two, and dumped by Kafka's own `kafka-dump-log --offsets-decoder`, all in the same run. Where
Java 17 or Maven is missing, the dump's row is missing, too, with a line that says why.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import open as bench_open
from bench import servers

TABLE = "offset_commits"
DEADLINE_S = 3600.0
PER_COMMIT = 10


def child(compiled: bool, *arguments: str) -> dict[str, Any]:
    environment = servers.environment(compiled)
    environment["PYTHONPATH"] += f":{servers.ROOT}"
    environment["PYTHONSAFEPATH"] = "1"
    command = [sys.executable, "-m", "bench.spark_child", *arguments]
    done = subprocess.run(
        command,
        env=environment,
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if figures["compiled"] != compiled:
        raise RuntimeError("the wrong tree was measured: is build/compiled there?")
    return figures


def dump_log(data: Path) -> dict[str, Any]:
    """Kafka's dump of the same segments, its output thrown away. Raises java.ToolchainMissing."""
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
    print(
        f"{label:34}{figures['rows']:>12,}{figures['seconds']:>10.2f}{rate:>14,.0f}{figures['rss_mb']:>10,.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--offsets", type=int, default=1_000_000)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--history", type=int, default=4_000_000, help="records in the log")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    given = parser.parse_args()
    scratch = servers.ROOT / "build" / "bench"
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=scratch))
    results: dict[str, Any] = {}
    try:
        data = folder / "data"
        bench_open.build(data, given.offsets, given.groups, PER_COMMIT, given.history)
        print(f"{'':34}{'rows':>12}{'s':>10}{'rows/s':>14}{'MiB':>10}")
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
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
