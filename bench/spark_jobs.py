"""The optional part of `make bench-spark` that takes hours: long logs.

`--jobs N` runs every job of `kcoord pipeline` over a log with N commits and over one with ten times as many, and shows
how its time and its memory grew. `--both-ways N` runs them over one log of N commits, with Spark and without.
`--log-gb N` counts and aggregates a log of a tenth of N gigabytes and one of N: the memory of Python workers and the
JVM must not depend on the length of the log. Both runs have a JVM of the same size.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench import servers, spark_log
from bench.spark_jobs_child import JOBS, READS

GROWTH: Final = 10
DEADLINE_S: Final = 6 * 3600.0
# The approximate number of rows in a gigabyte; the real size is measured.
ROWS_PER_GB: Final = 9_200_000
MEMORY: Final = ("jvm_mb", "workers_mb", "worker_mb", "driver_mb")
# How much more memory a worker may use for the long log: a factor, or MiB. With short logs buffers stay half empty.
BOUNDED: Final = 1.25
BUFFERS_MB: Final = 64.0
# Beyond this factor the table says that time grew more than the log.
LINEAR: Final = 1.2


def child(compiled: bool, module: str, *arguments: str) -> dict[str, Any]:
    """Run the module. Returns its figures, or `error`, the end of its error output."""
    try:
        done = servers.run_module(compiled, f"bench.{module}", arguments, DEADLINE_S)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {DEADLINE_S:.0f} s"}
    if done.returncode != 0:
        return {"error": done.stderr.strip()[-1500:] or f"exit code {done.returncode}"}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def make_log(compiled: bool, folder: Path, rows: int, groups: int, memory: str) -> dict[str, Any]:
    """Write a log. Returns its figures. Raises RuntimeError if it fails."""
    figures = child(compiled, "spark_log", str(folder), str(rows), str(groups), memory)
    if "error" in figures:
        raise RuntimeError(f"the log was not written:\n{figures['error']}")
    print(
        f"\na log of {rows:,} rows, {figures['bytes'] / 1e9:.2f} GB, written in {figures['seconds']:.0f} s "
        f"({rows / figures['seconds']:,.0f} rows/s); MiB: {_memory(figures)}",
        flush=True,
    )
    return figures


def measure(compiled: bool, names: Sequence[str], sizes: Sequence[int], groups: int, memory: str) -> dict[str, Any]:
    """Run `names` over logs of `sizes` rows, one log at a time, because the largest logs fill a disk."""
    scratch = servers.ROOT / "build" / "bench"
    scratch.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"logs": [], "runs": {name: [] for name in names}}
    for rows in sizes:
        folder = Path(tempfile.mkdtemp(dir=scratch))
        try:
            log = folder / "data"
            results["logs"].append(make_log(compiled, log, rows, groups, memory))
            print(
                f"{'':27}{'s':>10}{'s CPU':>10}{'MiB: JVM':>12}{'workers':>10}{'largest':>10}{'driver':>10}",
                flush=True,
            )
            for name in names:
                output = folder / "output"
                found = child(compiled, "spark_jobs_child", str(log), memory, str(output), name)
                results["runs"][name].append(found)
                show(name, found)
                shutil.rmtree(output, ignore_errors=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return results


def show(name: str, found: dict[str, Any]) -> None:
    if "error" in found:
        print(f"{name:27}  failed: {found['error'].splitlines()[-1][:200]}", flush=True)
        return
    memory = "".join(f"{found[one]:>{12 if one == 'jvm_mb' else 10},.0f}" for one in MEMORY)
    print(f"{name:27}{found['seconds']:>10.1f}{found['cpu_s']:>10.1f}{memory}", flush=True)


def show_growth(results: dict[str, Any]) -> None:
    """Print the figures of the second log relative to the first."""
    first, second = results["logs"]
    times = second["rows"] / first["rows"]
    print(f"\n{'times as much, of':27}{'time':>10}{'CPU':>10}{'JVM':>12}{'workers':>10}{'largest':>10}{'driver':>10}")
    print(f"{'rows in the log':27}{times:>10.1f}")
    for name, (small, large) in ((name, runs) for name, runs in results["runs"].items() if len(runs) == 2):
        if "error" in small or "error" in large:
            print(f"{name:27}{'-':>10}")
            continue
        grown = {key: large[key] / max(small[key], 1e-9) for key in ("seconds", "cpu_s", *MEMORY)}
        cells = "".join(f"{grown[one]:>{12 if one == 'jvm_mb' else 10}.2f}" for one in MEMORY)
        note = "  more than the log" if max(grown["seconds"], grown["cpu_s"]) > LINEAR * times else ""
        print(f"{name:27}{grown['seconds']:>10.1f}{grown['cpu_s']:>10.1f}{cells}{note}")
        large["growth"] = grown


def jobs(compiled: bool, commits: int, groups: int, memory: str, only: Sequence[str] = ()) -> dict[str, Any]:
    """Measure the jobs (`--jobs`). `problems` are jobs that failed."""
    names = [name for name in JOBS if not only or name.split(" ")[0] in only]
    sizes = [round(commits * size / spark_log.COMMITS_PART) for size in (1, GROWTH)]
    results = measure(compiled, names, sizes, groups, memory)
    show_growth(results)
    results["problems"] = _failed(results)
    return results


def both_ways(compiled: bool, commits: int, groups: int, memory: str, only: Sequence[str] = ()) -> dict[str, Any]:
    """Measure the jobs over a short log with Spark, and as they run by default (`--both-ways`)."""
    scratch = servers.ROOT / "build" / "bench"
    scratch.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"logs": [], "runs": {}}
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        results["logs"].append(
            make_log(compiled, folder / "data", round(commits / spark_log.COMMITS_PART), groups, memory)
        )
        print(f"{'':27}{'s':>10}{'s CPU':>10}{'MiB: JVM':>12}{'workers':>10}{'largest':>10}{'driver':>10}", flush=True)
        for job in [job for job in JOBS if not only or job.split(" ")[0] in only]:
            for label, heap in ((f"{job}, Spark", memory), (job, "")):
                output = folder / "output"
                found = child(compiled, "spark_jobs_child", str(folder / "data"), heap, str(output), job)
                results["runs"][label] = [found]
                show(label, found)
                shutil.rmtree(output, ignore_errors=True)
                Path(f"{output}.html").unlink(missing_ok=True)
    results["problems"] = _failed(results)
    return results


def long_log(compiled: bool, gigabytes: float, groups: int, memory: str) -> dict[str, Any]:
    """Measure memory (`--log-gb`). It is a problem if a worker uses more for the long log than for the short one."""
    sizes = [round(gigabytes * ROWS_PER_GB * size) for size in (1 / GROWTH, 1)]
    results = measure(compiled, list(READS), sizes, groups, memory)
    show_growth(results)
    results["problems"] = problems = _failed(results)
    for name, (short, long) in results["runs"].items():
        if "error" in short or "error" in long:
            continue
        if short["rows"] * GROWTH > long["rows"] * 1.01:
            problems.append(f"{name} did not read all rows: {short['rows']:,}, and {long['rows']:,}")
        if long["worker_mb"] > max(short["worker_mb"] * BOUNDED, short["worker_mb"] + BUFFERS_MB):
            used = f"{short['worker_mb']:,.0f} MiB, and {long['worker_mb']:,.0f} MiB"
            problems.append(f"{name}: a worker used {used} for a log {GROWTH} times as long")
    return results


def _failed(results: dict[str, Any]) -> list[str]:
    found = []
    for name, runs in results["runs"].items():
        for log, one in zip(results["logs"], runs, strict=True):
            if "error" in one:
                found.append(f"{name} over {log['rows']:,} rows failed:\n{one['error']}")
    return found


def _memory(figures: dict[str, Any]) -> str:
    names = ("JVM", "workers", "the largest worker", "driver")
    return ", ".join(f"{name} {figures[one]:,.0f}" for name, one in zip(names, MEMORY, strict=True))
