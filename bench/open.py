"""`make bench-open`: how long a server takes to open a large log, and how much memory it then uses.

A log with many committed offsets is written as record batches, one commit of `--per-commit` partitions each. `kcoord
serve` then opens it: interpreted and compiled, after a clean stop and after a kill, from the log alone and with a state
checkpoint. `ready` is the time from the start of the command until the listener accepts connections, `answer` the time
until the first OffsetFetch response, and the memory is the difference from an empty server. With `--history N` the
same commits are repeated until the log has N records. The time to open must still depend on the live offsets only.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench import open_transactions, servers, workload

TARGET_SECONDS = 2.0
TARGET_BYTES = 250.0
REPEAT = 3
# Longer logs are not measured without a checkpoint.
ALONE_RECORDS_MAX = 5_000_000
STATE_FILE = Path("__consumer_offsets-0") / "state-checkpoint"


def build(data: Path, offsets: int, groups: int, per_commit: int, history: int) -> dict[str, float]:
    """Create the data directory in a child process, compiled if build/compiled exists. Returns figures of the log."""
    command = [sys.executable, "-P", "-m", "bench.open_log", str(data)]
    numbers = [str(number) for number in (offsets, groups, per_commit, history)]
    environment = servers.environment((servers.ROOT / "build" / "compiled" / "kcoord").is_dir())
    environment["PYTHONPATH"] += f":{servers.ROOT}"
    done = subprocess.run([*command, *numbers], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def open_once(compiled: bool, data: Path) -> dict[str, float]:
    """Start a server on the directory, ask it for one group's offsets, and stop it cleanly."""
    with servers.kcoord(compiled, data, "os") as server:
        client = workload.Client(server.host, server.port)
        found = workload.fetch_group(client, "group-000000")
        answer_ms = (time.perf_counter() - server.started) * 1000
        memory = server.rss_mb()
        client.close()
    if not found:
        raise RuntimeError("the group has no offsets")
    return {"ready_ms": server.ready_ms, "answer_ms": answer_ms, "rss_mb": memory}


def measure(compiled: bool, data: Path, clean: bool, alone: bool, repeat: int) -> dict[str, float]:
    kept = data.parent / "kept"
    if not kept.exists():
        shutil.copy(data / STATE_FILE, kept)
    runs = []
    for _ in range(repeat):
        (data / STATE_FILE).unlink(missing_ok=True)
        if not alone:
            shutil.copy(kept, data / STATE_FILE)
        if not clean:
            # A kill leaves the same files, without the mark of a clean stop.
            (data / ".kafka_cleanshutdown").unlink(missing_ok=True)
        runs.append(open_once(compiled, data))
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def empty_rss_mb(compiled: bool, scratch: Path) -> float:
    with servers.kcoord(compiled, scratch / f"empty-{compiled}", "os") as server:
        time.sleep(0.1)
        return server.rss_mb()


def run(args: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"offsets": args.offsets, "groups": args.groups, "servers": {}}
    with servers.scratch_folder() as folder:
        data = folder / "data"
        print("... the log", file=sys.stderr, flush=True)
        results["log"] = build(data, args.offsets, args.groups, args.per_commit, args.history)
        for compiled in [True] if args.compiled_only else [True, False]:
            label = "compiled" if compiled else "interpreted"
            base = empty_rss_mb(compiled, folder)
            for alone in (True, False):
                if alone and results["log"]["records"] > ALONE_RECORDS_MAX:
                    continue
                for clean in (False, True):
                    name = f"{label}, {'log alone' if alone else 'checkpoint'}, {'clean' if clean else 'killed'}"
                    print(f"... {name}", file=sys.stderr, flush=True)
                    figures = measure(compiled, data, clean, alone, args.repeat)
                    figures["bytes_per_offset"] = (figures["rss_mb"] - base) * 1e6 / args.offsets
                    results["servers"][name] = figures
    return results


def print_table(results: dict[str, Any]) -> None:
    log = results["log"]
    print(f"{results['offsets']} offsets of {results['groups']} groups; {log['records']:.0f} records, ", end="")
    print(f"{log['bytes'] / 1e6:.0f} MB, {log['segments']:.0f} segments; ", end="")
    print(f"the checkpoint took {log['checkpoint_s']:.1f} s")
    print(f"\n{'open':<34}{'ready, s':>10}{'answer, s':>11}{'RSS, MB':>10}{'bytes per offset':>18}")
    for name, figures in results["servers"].items():
        times = f"{figures['ready_ms'] / 1000:>10.2f}{figures['answer_ms'] / 1000:>11.2f}"
        print(f"{name:<34}{times}{figures['rss_mb']:>10.0f}{figures['bytes_per_offset']:>18.0f}")
    print(f"{'aim, compiled':<34}{TARGET_SECONDS:>10.2f}{TARGET_SECONDS:>11.2f}{'':>10}{TARGET_BYTES:>18.0f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--offsets", type=int, default=1_000_000, help="live offsets")
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--per-commit", type=int, default=50, help="partitions in one commit, one batch each")
    parser.add_argument("--history", type=int, default=0, help="records in the log, if more than the offsets")
    parser.add_argument("--repeat", type=int, default=REPEAT, help="starts per figure; the median is shown")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--compiled-only", action="store_true", help="leave out the interpreted servers")
    parser.add_argument("--transactional-ids", type=int, default=0, help="measure a log with so many of them instead")
    args = parser.parse_args()
    if args.transactional_ids:
        found = open_transactions.run(args.transactional_ids, args.repeat, args.compiled_only)
        if args.output == "json":
            print(json.dumps(found, indent=2))
        else:
            open_transactions.print_table(found)
        return 0
    results = run(args)
    if args.output == "json":
        print(json.dumps(results, indent=2))
    else:
        print_table(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
