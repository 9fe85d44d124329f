"""Small transactions: `make bench ARGS="--only transactions"`.

A transaction is one record, the offset of a group and the commit (see transactions_child.py for the requests), with 1
and 16 producers, in both versions of the protocol. A Kafka broker of one node with its defaults is measured in the same
way, with the same compiled generator, if Java and its jars are available. It does not wait for the disk, so it compares
with `os`.

All servers run at the same time, idle but for the one that is measured, and every round measures each of them once: on
a busy machine, neighbours in time compare best. The table has the best round of each figure. `CPU` is the time that the
process of the server used for a transaction in that round, its threads included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench import members_child, servers, workload
from bench.transactions_child import TOPIC, VERSIONS
from kcoord.protocol import apis, errors
from kcoord.protocol.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

PRODUCERS: Final = (1, 16)
ROUNDS: Final = 3
# A JVM compiles what is called often. Without that a broker would take several times as long.
WARM_UP_S: Final = 8.0
DEADLINE_S: Final = 180.0
KAFKA: Final = "Kafka 4.3"
# A broker's default; the harness of the tests has fewer.
KAFKA_SETTINGS: Final = {"transaction.state.log.num.partitions": "50"}

Figures = dict[str, float]
# {server: {"16 v2": figures}}, or a text with the reason why a server was not measured.
Results = dict[str, dict[str, Figures] | str]


def key(count: int, version: int) -> str:
    return f"{count} v{version}"


def cpu_s(pid: int) -> float:
    """The CPU time of a process, from /proc; not-a-number on systems without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def prepare(address: servers.Address) -> None:
    """Create the topic, and wait until both coordinators answer for every group and transactional id."""
    client = workload.Client(address.host, address.port)
    members_child.make_topic(client, TOPIC, max(PRODUCERS))
    asked = FindCoordinatorRequest(key_type=1, coordinator_keys=["bench"])
    for _ in range(200):
        found = client.call(apis.FIND_COORDINATOR, 4, asked, FindCoordinatorResponse).coordinators[0]
        if found.error_code == errors.NONE:
            break
        time.sleep(members_child.WAIT_S)
    workload.check(found.error_code, "FindCoordinator")
    client.close()


def once(address: servers.Address, count: int, version: int, seconds: float, first: int) -> Figures:
    """One measurement."""
    before = cpu_s(address.pid)
    words = [address.host, str(address.port), str(count), str(version), str(seconds), str(first)]
    try:
        done = servers.run_module(True, "bench.transactions_child", words, DEADLINE_S)
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"{count} producers took more than {DEADLINE_S:.0f} s") from late
    if done.returncode != 0:
        raise RuntimeError(f"{count} producers failed:\n{done.stderr[-2000:]}")
    figures: Figures = json.loads(done.stdout)
    if not figures.pop("compiled"):
        raise RuntimeError("the producers are not compiled: does build/compiled exist?")
    figures["cpu_us"] = (cpu_s(address.pid) - before) * 1e6 / figures["transactions"]
    return figures


def best(rounds: list[Figures]) -> Figures:
    found = dict(max(rounds, key=lambda one: one["per_second"]))
    for name in ("p50_ms", "p99_ms", "cpu_us"):
        found[name] = min(one[name] for one in rounds)
    return found


def run(variants: list[tuple[str, bool, str]], seconds: float, note: Callable[[str], None]) -> Results:
    """The figures of kcoord's `variants` (label, compiled, sync) and of Kafka."""
    from tests.harness.java import ToolchainMissing

    results: Results = {}
    rounds: dict[str, dict[str, list[Figures]]] = {}
    with servers.scratch_folder() as folder:
        with ExitStack() as stack:
            addresses: dict[str, servers.Address] = {}
            for label, compiled, sync in variants:
                server = stack.enter_context(servers.kcoord(compiled, folder / label.replace(", ", "-"), sync))
                addresses[label] = servers.Address(server.host, server.port, server.process.pid)
            try:
                addresses[KAFKA] = stack.enter_context(servers.kafka(folder / "kafka", KAFKA_SETTINGS))
            except ToolchainMissing as missing:
                results[KAFKA] = str(missing).splitlines()[0]
            for address in addresses.values():
                prepare(address)
            first = 0
            for version in VERSIONS if KAFKA in addresses else ():
                note(f"transactions, warm-up of {KAFKA}, version {version}")
                once(addresses[KAFKA], max(PRODUCERS), version, WARM_UP_S, first)
                first += max(PRODUCERS)
            for number in range(ROUNDS):
                for version in VERSIONS:
                    for count in PRODUCERS:
                        note(f"transactions, round {number + 1} of {ROUNDS}: {count} producers, version {version}")
                        for label, address in addresses.items():
                            figures = once(address, count, version, seconds, first)
                            rounds.setdefault(label, {}).setdefault(key(count, version), []).append(figures)
                        first += count
    for label, by_load in rounds.items():
        results[label] = {load: best(each) for load, each in by_load.items()}
    return results


def print_table(results: Results) -> None:
    loads = [(count, version) for version in VERSIONS for count in PRODUCERS]
    print("\ntransactions/s, p50 ms, p99 ms, CPU of the server in us: one record, one offset, commit")
    print(f"{'':<20}" + "".join(f"{f'{count} producers, v{version}':^30}" for count, version in loads).rstrip())
    for label, by_load in results.items():
        if isinstance(by_load, str):
            print(f"{label:<20}not measured: {by_load}")
            continue
        cells = ""
        for count, version in loads:
            one = by_load[key(count, version)]
            cells += f"{one['per_second']:>8.0f}{one['p50_ms']:>7.2f}{one['p99_ms']:>8.2f}{one['cpu_us']:>7.0f}"
        print(f"{label:<20}{cells}")


def main() -> int:
    """A part of the table: labels of servers, such as `compiled,os`, and the seconds of each measurement."""
    variants = []
    for word in sys.argv[2:]:
        tree, sync = word.split(",")
        variants.append((f"{tree}, {sync}", tree == "compiled", sync))
    print_table(run(variants, float(sys.argv[1]), lambda text: print(f"  {text}", file=sys.stderr, flush=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
