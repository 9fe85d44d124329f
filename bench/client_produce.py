"""Producers of four client libraries against one compiled kcoord, `log.sync=os`, in turns on the same machine.

kcoord's client is measured twice, with the compiled and the interpreted tree; the client itself is interpreted in both,
what it encodes with is not. See client_produce_child.py for the settings of the libraries.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

from bench import members_child, servers, workload

Figures = dict[str, float]
Results = dict[str, dict[str, Figures]]

SIZES = (100, 1000)
PARTITIONS = 4
ROUNDS = 3
DEADLINE_S = 180.0
# (label, client of the child, compiled)
VARIANTS = (
    ("kcoord, compiled", "kcoord", True),
    ("kcoord, interpreted", "kcoord", False),
    ("aiokafka", "aiokafka", True),
    ("kafka-python", "kafka-python", True),
    ("confluent-kafka", "confluent-kafka", True),
)


def once(server: servers.Server, client: str, compiled: bool, size: int, seconds: float) -> Figures:
    words = [client, server.host, str(server.port), str(size), str(seconds)]
    try:
        done = servers.run_module(compiled, "bench.client_produce_child", words, DEADLINE_S)
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"{client} took more than {DEADLINE_S:.0f} s") from late
    if done.returncode != 0:
        raise RuntimeError(f"{client} failed:\n{done.stderr[-2000:]}")
    figures: Figures = json.loads(done.stdout)
    return figures


def run(seconds: float, note: Callable[[str], None]) -> Results:
    """The best of ROUNDS for each library and size of a record."""
    results: Results = {}
    with servers.scratch_folder() as folder:
        with servers.kcoord(True, folder / "data", "os") as server:
            client = workload.Client(server.host, server.port)
            members_child.make_topic(client, "client-produce", PARTITIONS)
            client.close()
            for number in range(ROUNDS):
                for size in SIZES:
                    note(f"client-produce, round {number + 1} of {ROUNDS}: {size} bytes")
                    for label, name, compiled in VARIANTS:
                        figures = once(server, name, compiled, size, seconds)
                        best = results.setdefault(label, {}).get(str(size))
                        if best is None or figures["records_per_s"] > best["records_per_s"]:
                            results[label][str(size)] = figures
    return results


def print_table(results: Results) -> None:
    print("\nproduce: records/s, MB/s, CPU of the client in us for a record; acks=all, idempotent")
    print(f"{'':<22}" + "".join(f"{f'{size} bytes':^30}" for size in SIZES).rstrip())
    for label, by_size in results.items():
        cells = ""
        for size in SIZES:
            one = by_size[str(size)]
            cells += f"{one['records_per_s']:>12.0f}{one['mb_s']:>9.1f}{one['cpu_us']:>9.2f}"
        print(f"{label:<22}{cells}")
