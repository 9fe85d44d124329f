"""Consumers of four client libraries that read a topic of a compiled kcoord from its beginning, in turns.

The topic is filled once for each size of a record; every library reads the same log, with the same limits. kcoord's
client is measured compiled and interpreted. See client_consume_child.py.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

from bench import members_child, servers, workload

Figures = dict[str, float]
Results = dict[str, dict[str, Figures]]

# Bytes of a record -> records in the topic.
SIZES = {100: 600_000, 1000: 200_000}
PARTITIONS = 4
ROUNDS = 3
DEADLINE_S = 180.0
VARIANTS = (
    ("kcoord, compiled", "kcoord", True),
    ("kcoord, interpreted", "kcoord", False),
    ("kcoord by record, compiled", "kcoord-iterate", True),
    ("aiokafka", "aiokafka", True),
    ("kafka-python", "kafka-python", True),
    ("confluent-kafka", "confluent-kafka", True),
)


def child(server: servers.Server, client: str, compiled: bool, size: int) -> Figures:
    words = [client, server.host, str(server.port), str(size), str(SIZES[size])]
    try:
        done = servers.run_module(compiled, "bench.client_consume_child", words, DEADLINE_S)
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"{client} took more than {DEADLINE_S:.0f} s") from late
    if done.returncode != 0:
        raise RuntimeError(f"{client} failed:\n{done.stderr[-2000:]}")
    figures: Figures = json.loads(done.stdout)
    return figures


def run(note: Callable[[str], None]) -> Results:
    """The best of ROUNDS for each library and size of a record."""
    results: Results = {}
    with servers.scratch_folder() as folder:
        with servers.kcoord(True, folder / "data", "os") as server:
            client = workload.Client(server.host, server.port)
            for size in SIZES:
                members_child.make_topic(client, f"client-consume-{size}", PARTITIONS)
            client.close()
            for size in SIZES:
                note(f"client-consume: filling the topic of {size} bytes")
                child(server, "fill", True, size)
            for number in range(ROUNDS):
                for size in SIZES:
                    note(f"client-consume, round {number + 1} of {ROUNDS}: {size} bytes")
                    for label, name, compiled in VARIANTS:
                        figures = child(server, name, compiled, size)
                        best = results.setdefault(label, {}).get(str(size))
                        if best is None or figures["records_per_s"] > best["records_per_s"]:
                            results[label][str(size)] = figures
    return results


def print_table(results: Results) -> None:
    print("\nconsume: records/s, MB/s, CPU of the client in us for a record")
    print(f"{'':<28}" + "".join(f"{f'{size} bytes':^30}" for size in SIZES).rstrip())
    for label, by_size in results.items():
        cells = ""
        for size in SIZES:
            one = by_size[str(size)]
            cells += f"{one['records_per_s']:>12.0f}{one['mb_s']:>9.1f}{one['cpu_us']:>9.2f}"
        print(f"{label:<28}{cells}")
