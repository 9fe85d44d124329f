"""The checker of Jepsen's Kafka workload: from a history to its anomalies.

    python -m tests.jepsen.checker HISTORY.jsonl

jepsen.tests.kafka describes the analysis. Beyond it: reads before the commit was sent (`precommitted-read`), offsets
against real time (`realtime-order`), and what groups consume (groups.py). Poll skips are judged for subscribed readers,
too, since histories name the keys of each rebalance.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.jepsen import cycles, groups, positions, values
from tests.jepsen.anomalies import MEANINGS, Anomaly
from tests.jepsen.history import History, load
from tests.jepsen.orders import Analysis

CHECKS: tuple[Callable[[Analysis], Iterator[Anomaly]], ...] = (
    values.inconsistent_offsets,
    values.duplicates,
    values.unwritten_reads,
    values.aborted_reads,
    values.precommitted_reads,
    values.lost_writes,
    values.unseen,
    positions.int_polls,
    positions.polls,
    positions.int_sends,
    positions.sends,
    positions.realtime_order,
    groups.consumed_twice,
    groups.consumed_never,
    cycles.write_cycles,
    cycles.read_cycles,
)
SHOWN_OF_KIND = 5


def check(history: History) -> list[Anomaly]:
    """All anomalies, the allowed ones included."""
    facts = Analysis(history)
    return [found for one in CHECKS for found in one(facts)]


def errors(found: Iterable[Anomaly]) -> list[Anomaly]:
    return [one for one in found if not one.is_allowed]


def describe(found: list[Anomaly]) -> str:
    """A line for each kind, with some of its anomalies."""
    lines: list[str] = []
    for kind, count in Counter(one.kind for one in found).items():
        some = [one for one in found if one.kind == kind]
        lines.append(f"{count} {kind}{' (allowed)' if some[0].is_allowed else ''}: {MEANINGS[kind]}")
        if not some[0].is_allowed:
            lines += [f"  {one}" for one in some[:SHOWN_OF_KIND]]
    return "\n".join(lines)


def main() -> int:
    history = load(Path(sys.argv[1]))
    found = check(history)
    print(describe(found))
    print(f"{len(history)} operations, {len(errors(found))} errors")
    return 1 if errors(found) else 0


if __name__ == "__main__":
    sys.exit(main())
