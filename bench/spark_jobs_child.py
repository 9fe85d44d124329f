"""Runs one job, or one way to read, in its own process: `spark_jobs_child LOG MEMORY OUTPUT NAME`. Prints JSON.

With an empty MEMORY a job decides itself whether it needs Spark.

A job is the whole command, with the start of Spark, whose settings depend on the length of the log. A way to read gets
a session that has started before the measurement.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES: Final = 2
# Typical uses: whole tables to Parquet, a log to a log, otherwise the first rows of the result.
JOBS: Final = {
    "offsets-history": ("--to", "{}", "--limit", "0"),
    "lag": ("--to", "{}", "--limit", "0"),
    "lag --every 60": ("--every", "60", "--to", "{}", "--limit", "0"),
    "rebalances": ("--to", "{}", "--limit", "0"),
    "snapshot": ("--to", "{}", "--limit", "0"),
    "compact": ("--to", "{}"),
    "migrate --dry-run": ("--dry-run",),
    "verify": (),
    "report": ("--to", "{}.html"),
}


def count(spark: SparkSession, log: str) -> int:
    """Count rows with every column decoded."""
    return spark.read.format("kcoord").option("table", "offset_commits").load(log).count()


def aggregate(spark: SparkSession, log: str) -> int:
    """Find the newest offset of each group and partition, with only the columns that this needs."""
    from pyspark.sql import functions as F

    key = ("group_id", "topic", "partition")
    reader = spark.read.format("kcoord").option("table", "offset_commits")
    frame = reader.option("columns", ",".join((*key, "committed_offset"))).load(log)
    found = frame.groupBy(*key).agg(F.count("*").alias("count"), F.max("committed_offset"))
    row = found.agg(F.sum("count")).first()
    return 0 if row is None else int(row[0])


READS: Final[dict[str, Callable[[SparkSession, str], int]]] = {"count": count, "aggregate": aggregate}


def command(name: str, log: str, memory: str, output: str) -> list[str]:
    words = [word.format(output) for word in JOBS[name]]
    job = name.split(" ", maxsplit=1)[0]
    spark = ["--master", f"local[{CORES}]", "--conf", f"spark.driver.memory={memory}"] if memory else []
    return ["pipeline", job, log, *spark, "--output", "json", *words]


def run_job(name: str, log: str, memory: str, output: str) -> None:
    """Raises RuntimeError if it fails."""
    from click.testing import CliRunner

    from kcoord.cli.main import main as kcoord

    result = CliRunner().invoke(kcoord, command(name, log, memory, output), catch_exceptions=False)
    if result.exit_code != 0:
        raise RuntimeError(f"exit code {result.exit_code}: {result.output[-1000:]}")


def read(name: str, log: str, memory: str) -> tuple[int, float, dict[str, float]]:
    """The number of rows that were read, the seconds, and the memory."""
    from bench import process_memory
    from kcoord.spark.session import session

    spark = session("bench", f"local[{CORES}]", **{"spark.driver.memory": memory})
    with process_memory.Sampler() as sampler:
        began = time.perf_counter()
        rows = READS[name](spark, log)
        seconds = time.perf_counter() - began
    spark.stop()
    return rows, seconds, sampler.peaks()


def main() -> None:
    log, memory, output, name = sys.argv[1:5]
    import kcoord.wire
    from bench import process_memory

    rows = 0
    if name in READS:
        rows, seconds, peaks = read(name, log, memory)
    else:
        with process_memory.Sampler() as sampler:
            began = time.perf_counter()
            run_job(name, log, memory, output)
            seconds = time.perf_counter() - began
        peaks = sampler.peaks()
    compiled = bool(list(Path(kcoord.wire.__file__).parent.glob("record_batch*.so")))
    print(json.dumps({"seconds": seconds, "rows": rows, "compiled": compiled, **peaks}))


if __name__ == "__main__":
    main()
