"""Exactly once, for a group: every value is consumed by one committed transaction.

Jepsen counts this and judges nothing, since not every client fences its zombies. Here a transaction names its group
only if it committed the offsets of its polls with the group's fences, or under a transactional id that is its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.jepsen import anomalies
from tests.jepsen.anomalies import Anomaly
from tests.jepsen.history import Operation
from tests.jepsen.orders import Analysis


def consumed_twice(facts: Analysis) -> Iterator[Anomaly]:
    consumers: dict[tuple[str, str, int], Operation] = {}
    for one in facts.completions:
        if not one.group or one.index not in facts.proven:
            continue
        for key, records in one.polls().items():
            for value in {value for _, value in records}:
                first = consumers.setdefault((one.group, key, value), one)
                if first is not one:
                    yield Anomaly(anomalies.CONSUMED_TWICE, key, (value,), f"group {one.group}", (first, one))


def consumed_never(facts: Analysis) -> Iterator[Anomaly]:
    """Below the highest value that a group consumed, every value was consumed, perhaps by an operation without result.

    What a client without a result had polled is not known, unless it reported it: such a group is not judged.
    """
    consumed: dict[tuple[str, str], set[int]] = {}
    highest: dict[tuple[str, str], tuple[int, Operation]] = {}
    unknown: set[str] = set()
    for one in facts.completions:
        if not one.group or one.kind == "fail":
            continue
        if one.kind == "info" and not one.polls():
            unknown.add(one.group)
        for key, records in one.polls().items():
            place = max(facts.order(key).places.get(value, -1) for _, value in records)
            consumed.setdefault((one.group, key), set()).update(value for _, value in records)
            if one.index in facts.proven and place > highest.get((one.group, key), (-1, one))[0]:
                highest[one.group, key] = (place, one)
    for (group, key), (place, last) in highest.items():
        if group in unknown:
            continue
        for value in facts.order(key).values[:place]:
            if value not in consumed[group, key]:
                yield Anomaly(anomalies.CONSUMED_NEVER, key, (value,), f"group {group}", (last,))
