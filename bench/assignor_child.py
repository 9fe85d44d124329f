"""Times the target assignments of one source tree. `bench.assignors` runs it by path, with that tree in PYTHONPATH.

Arguments: members, partitions, topics, runs. Prints JSON: {"compiled": whether the tree is compiled, "figures": {group:
{change: {"ms": the fastest run, "targets": how many changed}}}}.
"""

from __future__ import annotations

import gc
import json
import sys
import time

from kcoord.core.assignors import homogeneous
from kcoord.core.assignors.range_assignor import RangeAssignor
from kcoord.core.assignors.spec import Assignment, Assignor, TopicDescriber
from kcoord.core.assignors.target_builder import TargetBuilder
from kcoord.core.assignors.uniform import UniformAssignor
from kcoord.server.main import GC_THRESHOLDS

# All members subscribe to all topics, or every other member to the first half of the topics.
EQUAL, MIXED = "equal", "mixed"


class Topics(TopicDescriber):
    def __init__(self, topics: int, partitions: int) -> None:
        self.counts = {number.to_bytes(16, "big"): partitions // topics for number in range(topics)}

    def partition_count(self, topic_id: bytes) -> int:
        return self.counts.get(topic_id, -1)

    def racks(self, topic_id: bytes, partition: int) -> list[str]:
        return []


class Group:
    """A group as in the coordinator. It times the calls that the coordinator makes."""

    def __init__(self, assignor: Assignor, subscriptions: str, members: int, topics: Topics) -> None:
        self.targets: dict[str, Assignment] = {}
        self.builder = TargetBuilder(assignor, topics, self.targets)
        self.topic_ids = sorted(topics.counts)
        self.subscriptions = subscriptions
        self.times: dict[str, list[float]] = {}
        self.changed: dict[str, int] = {}
        for number in range(members):
            self.builder.set_member(f"member-{number:05}", None, None, self.topics_of(number))

    def topics_of(self, number: int) -> list[bytes]:
        half = self.subscriptions == MIXED and number % 2 == 1
        return self.topic_ids[: len(self.topic_ids) // 2] if half else self.topic_ids

    def compute(self, change: str, started: float) -> None:
        answer = self.builder.compute()
        self.times.setdefault(change, []).append((time.perf_counter() - started) * 1000)
        self.changed[change] = len(answer)
        self.targets.update(answer)

    def join(self, number: int) -> None:
        started = time.perf_counter()
        self.builder.set_member(f"member-{number:05}-a", None, None, self.topics_of(number))
        self.compute("join", started)

    def leave(self, number: int) -> None:
        member_id = f"member-{number:05}"
        del self.targets[member_id]
        started = time.perf_counter()
        self.builder.remove_member(member_id)
        self.compute("leave", started)


def measure(
    assignor: Assignor, subscriptions: str, members: int, topics: Topics, runs: int
) -> dict[str, dict[str, float]]:
    times: list[float] = []
    for _ in range(runs):
        group = Group(assignor, subscriptions, members, topics)
        group.compute("nothing", time.perf_counter())
        times += group.times["nothing"]
    group.times["nothing"] = times
    for run in range(runs):
        # In the middle of the sorted members, because the position matters to `range`.
        group.join(members // 2 + 2 * run)
        group.leave(members // 2 + 2 * run)
    return {change: {"ms": min(times), "targets": group.changed[change]} for change, times in group.times.items()}


def main() -> None:
    members, partitions, topic_count, runs = (int(argument) for argument in sys.argv[1:])
    topics = Topics(topic_count, partitions)
    # As in the server.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    figures = {
        "uniform": measure(UniformAssignor(), EQUAL, members, topics, runs),
        "uniform, mixed": measure(UniformAssignor(), MIXED, members, topics, runs),
        "range": measure(RangeAssignor(), EQUAL, members, topics, runs),
    }
    compiled = not homogeneous.__file__.endswith(".py")
    print(json.dumps({"compiled": compiled, "figures": figures}))


if __name__ == "__main__":
    main()
