"""Dependencies between operations, and cycles of them, which no order of the operations could explain.

- ww: the second one wrote the value that follows in the log. Records of transactions interleave in Kafka, so cycles of
  these alone (G0) are reported and allowed.
- wr: the second one read a value of the first. A reader of committed records comes after the writer's commit.
- process: the second one is of the same process and came later, after a success.
- realtime: the first one succeeded before the second began.

A cycle of the last three with at least one wr is G1c, and never allowed. Realtime has a node for each completion, and
these nodes are a chain, so the graph stays linear in the history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise

from tests.jepsen import anomalies
from tests.jepsen.anomalies import Anomaly
from tests.jepsen.history import invocations
from tests.jepsen.orders import Analysis

# Nodes: the index of a completion, or the moment of a completion as the negative of (index + 1).
Graph = dict[int, dict[int, str]]


def write_cycles(facts: Analysis) -> Iterator[Anomaly]:
    for cycle in cycles(write_graph(facts)):
        yield as_anomaly(facts, anomalies.WRITE_CYCLE, cycle)


def read_cycles(facts: Analysis) -> Iterator[Anomaly]:
    for cycle in cycles(read_graph(facts)):
        yield as_anomaly(facts, anomalies.READ_CYCLE, cycle)


def as_anomaly(facts: Analysis, kind: str, cycle: list[tuple[int, str]]) -> Anomaly:
    by_index = {node: facts.history[node] for node, _ in cycle if node >= 0}
    steps = [f"{node} {reason}" for node, reason in cycle if node >= 0]
    return Anomaly(kind, "", (), " -> ".join([*steps, steps[0].split()[0]]), tuple(by_index.values()))


def write_graph(facts: Analysis) -> Graph:
    graph: Graph = {}
    for key, order in facts.orders.items():
        for first, second in pairwise(order.values):
            before, after = facts.writers.get((key, first)), facts.writers.get((key, second))
            if before is not None and after is not None and before is not after:
                link(graph, before.index, after.index, "ww")
    return graph


def read_graph(facts: Analysis) -> Graph:
    graph: Graph = {}
    for at, readers in facts.readers.items():
        writer = facts.writers.get(at)
        for reader in readers:
            if writer is not None and writer is not reader:
                link(graph, writer.index, reader.index, "wr")
    began = invocations(facts.history)
    moment_of_invocation: dict[int, int] = {}
    moment = 0
    last_of_process: dict[str, int] = {}
    for one in facts.history:
        if one.kind == "invoke":
            moment_of_invocation[one.index] = moment
            continue
        if one.name not in ("txn", "send", "poll"):
            continue
        if one.process in last_of_process:
            link(graph, last_of_process[one.process], one.index, "process")
        since = moment_of_invocation[began[one.index].index]
        if since:
            link(graph, since, one.index, "realtime")
        if one.kind == "ok":
            last_of_process[one.process] = one.index
            now = -one.index - 1
            link(graph, one.index, now, "realtime")
            if moment:
                link(graph, moment, now, "realtime")
            moment = now
    return graph


def link(graph: Graph, first: int, second: int, reason: str) -> None:
    graph.setdefault(first, {}).setdefault(second, reason)
    graph.setdefault(second, {})


def cycles(graph: Graph) -> Iterator[list[tuple[int, str]]]:
    """One short cycle of each strongly connected component: nodes with the reason of the edge to the next one."""
    for component in components(graph):
        if len(component) > 1:
            yield shortest_cycle(graph, component)


def components(graph: Graph) -> Iterator[set[int]]:
    """Strongly connected components, after Tarjan, without recursion."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in graph:
        if root in order:
            continue
        work = [(root, iter(graph[root]))]
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, following = work[-1]
            for other in following:
                if other not in order:
                    order[other] = low[other] = len(order)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(graph[other])))
                    break
                if other in on_stack:
                    low[node] = min(low[node], order[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    found = {stack.pop()}
                    while node not in found:
                        found.add(stack.pop())
                    on_stack -= found
                    yield found


def shortest_cycle(graph: Graph, component: set[int]) -> list[tuple[int, str]]:
    """The shortest way from the component's first operation back to itself."""
    start = min(node for node in component if node >= 0)
    came_from: dict[int, int] = {}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for other in graph[node]:
            if other == start:
                path = [node]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                path.reverse()
                return [(one, graph[one][path[(place + 1) % len(path)]]) for place, one in enumerate(path)]
            if other in component and other not in came_from:
                came_from[other] = node
                queue.append(other)
    raise AssertionError("a component without a cycle")
