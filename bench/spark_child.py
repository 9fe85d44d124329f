"""Measures the pipeline once in its own process: `spark_child decode|session DIR TABLE [CORES]`. Prints JSON."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

RUNS = 3


def decode(path: str, table: str) -> dict[str, float]:
    """Decode rows into Arrow, without Spark; the fastest of several runs."""
    from kcoord.spark.reader.batch_reader import plan_tasks
    from kcoord.spark.reader.options import parse_options
    from kcoord.spark.reader.row_filter import RowFilter
    from kcoord.spark.reader.tasks import read_task

    options = parse_options({"path": path, "table": table})
    tasks = plan_tasks(options, RowFilter())
    best = float("inf")
    rows = 0
    for _ in range(RUNS):
        began = time.perf_counter()
        rows = sum(batch.num_rows for task in tasks for batch in read_task(task, options))
        best = min(best, time.perf_counter() - began)
    return {
        "rows": rows,
        "seconds": best,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def through_spark(path: str, table: str, cores: int) -> dict[str, float]:
    """Read rows with all columns through Spark into the sink `noop`; the fastest of several runs."""
    from kcoord.spark.session import session

    began = time.perf_counter()
    spark = session("bench", f"local[{cores}]", **{"spark.driver.memory": "2g"})
    started = time.perf_counter() - began
    frame = spark.read.format("kcoord").option("table", table).option("minPartitions", str(4)).load(path)
    best = float("inf")
    for _ in range(RUNS):
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        best = min(best, time.perf_counter() - began)
    rows = frame.count()
    spark.stop()
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {"rows": rows, "seconds": best, "session_s": started, "rss_mb": workers}


def main() -> None:
    what, path, table = sys.argv[1:4]
    import kcoord.wire

    figures = decode(path, table) if what == "decode" else through_spark(path, table, int(sys.argv[4]))
    figures["compiled"] = bool(list(Path(kcoord.wire.__file__).parent.glob("record_batch*.so")))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
