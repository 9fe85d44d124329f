"""Target assignments of a large group: `make bench ARGS="--only assignors"`.

10,000 members and 100,000 partitions of ten topics: the time of the first assignment, and of an assignment after one
member joins or leaves. It includes all work of the coordinator up to the list of changed targets; for Kafka, up to
their records. Each tree of kcoord runs in its own process, and Kafka's target assignment builder with its assignors in
a Java process, after warm-up. The fastest of several runs counts, because other work on the machine only adds time. If
Java or Maven is missing, the row of Kafka is missing too, and a line gives the reason.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench import servers

MEMBERS = 10_000
PARTITIONS = 100_000
TOPICS = 10
CHANGES = ("nothing", "join", "leave")
RUNS = 15
WARM_UPS = 40
HEAP_MB = 2048
DEADLINE_S = 300.0

# {group: {change: {"ms": the fastest run, "targets": how many changed}}}
Figures = dict[str, dict[str, dict[str, float]]]


def output_of(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
    if done.returncode != 0:
        raise RuntimeError(f"timing the assignors failed:\n{done.stderr}")
    return done.stdout


def kcoord(compiled: bool) -> Figures:
    """The figures of one tree."""
    child = Path(__file__).with_name("assignor_child.py")
    sizes = [str(number) for number in (MEMBERS, PARTITIONS, TOPICS, RUNS)]
    text = output_of([sys.executable, "-P", str(child), *sizes], servers.environment(compiled))
    answer = json.loads(text)
    if answer["compiled"] != compiled:
        raise RuntimeError("the wrong tree was measured: does build/compiled exist?")
    figures: Figures = answer["figures"]
    return figures


def kafka() -> Figures:
    """The figures of Kafka's jar. Raises `java.ToolchainMissing` without Java or Maven."""
    # The tests are not part of the package; the benchmarks run in the checkout, which has them.
    from tests.harness import java

    sizes = [str(number) for number in (MEMBERS, PARTITIONS, TOPICS, WARM_UPS, RUNS)]
    # The harness sets one compiler tier; a server uses all of them.
    tiers = ("-XX:TieredStopAtLevel=4",)
    figures: Figures = {}
    for line in output_of(java.command("AssignorTimes", *sizes, heap_mb=HEAP_MB, options=tiers)).splitlines():
        group, change, ms, records = line.split("\t")
        figures.setdefault(group, {})[change] = {"ms": float(ms), "targets": float(records)}
    return figures


def run(trees: list[bool]) -> dict[str, Figures | str]:
    """The figures by implementation, or a text with the reason why there are none."""
    from tests.harness import java

    results: dict[str, Figures | str] = {}
    for compiled in trees:
        results["compiled" if compiled else "interpreted"] = kcoord(compiled)
    try:
        results["Kafka 4.3"] = kafka()
    except java.ToolchainMissing as e:
        results["Kafka 4.3"] = str(e).splitlines()[0]
    return results


def print_table(results: dict[str, Figures | str]) -> None:
    title = f"ms ({MEMBERS:,} members)"
    print(f"\n{title:<32}{'from nothing':>16}{'one joins':>16}{'one leaves':>16}")
    for label, figures in results.items():
        if isinstance(figures, str):
            print(f"{label:<16}not measured: {figures}")
            continue
        for group, by_change in figures.items():
            cells = "".join(f"{by_change[change]['ms']:>16.2f}" for change in CHANGES)
            print(f"{label:<16}{group:<16}{cells}")
