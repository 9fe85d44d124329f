"""Checks of sequences: polls and sends of a process, or of one operation, follow the order of the log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.jepsen import anomalies
from tests.jepsen.anomalies import Anomaly
from tests.jepsen.history import Operation, invocations
from tests.jepsen.orders import Analysis


def int_polls(facts: Analysis) -> Iterator[Anomaly]:
    """Within one operation, each poll goes on where the last one ended, unless the key was rebalanced."""
    for one in facts.completions:
        for key, records in one.polls().items():
            if key in one.rebalanced:
                continue
            order = facts.order(key)
            for (_, first), (_, second) in pairwise(records):
                distance = order.distance(first, second)
                if distance > 1:
                    detail = f"left out {order.between(first, second)}"
                    yield Anomaly(anomalies.INT_POLL_SKIP, key, (first, second), detail, (one,))
                elif distance < 1:
                    yield Anomaly(anomalies.INT_NONMONOTONIC_POLL, key, (first, second), f"{distance} places", (one,))


def polls(facts: Analysis) -> Iterator[Anomaly]:
    """An operation goes on where the last successful one of its process ended.

    A failed one counts for nothing: its client goes back. After one whose result is unknown, the client may have done
    either, so the next poll of these keys starts anew. So it does after a rebalance, and keys that a client does not
    read any more are forgotten.
    """
    last_by_process: dict[str, dict[str, tuple[int, Operation]]] = {}
    for one in facts.completions:
        last = last_by_process.setdefault(one.process, {})
        if one.name in ("assign", "subscribe"):
            if one.kind != "fail":
                last_by_process[one.process] = {key: last[key] for key in one.keys if key in last}
            continue
        for key in one.rebalanced:
            last.pop(key, None)
        for key, records in one.polls().items():
            if key in last:
                yield from poll_step(facts, key, last[key], (records[0][1], one))
            if one.kind == "ok" and key not in one.rebalanced:
                last[key] = (records[-1][1], one)
        if one.kind == "info" and one.name == "txn":
            last.clear()


def poll_step(
    facts: Analysis, key: str, before: tuple[int, Operation], now: tuple[int, Operation]
) -> Iterator[Anomaly]:
    order = facts.order(key)
    values, evidence = (before[0], now[0]), (before[1], now[1])
    distance = order.distance(*values)
    if distance > 1:
        yield Anomaly(anomalies.POLL_SKIP, key, values, f"left out {order.between(*values)}", evidence)
    elif distance < 1:
        yield Anomaly(anomalies.NONMONOTONIC_POLL, key, values, f"{distance} places", evidence)


def int_sends(facts: Analysis) -> Iterator[Anomaly]:
    for one in facts.completions:
        for key, sends in one.sends().items():
            order = facts.order(key)
            for first, second in pairwise(sends):
                values = (first.value, second.value)
                distance = order.distance(*values)
                if distance > 1:
                    detail = f"{order.between(*values)} between them"
                    yield Anomaly(anomalies.INT_SEND_SKIP, key, values, detail, (one,))
                elif distance < 1:
                    yield Anomaly(anomalies.INT_NONMONOTONIC_SEND, key, values, f"{distance} places", (one,))


def sends(facts: Analysis) -> Iterator[Anomaly]:
    """The offsets of a process's sends to a key grow from operation to operation."""
    last: dict[tuple[str, str], tuple[int, Operation]] = {}
    for one in facts.completions:
        if one.kind not in ("ok", "info"):
            continue
        for key, found in one.sends().items():
            if (one.process, key) in last:
                before, earlier = last[one.process, key]
                values = (before, found[0].value)
                distance = facts.order(key).distance(*values)
                if distance < 1:
                    yield Anomaly(anomalies.NONMONOTONIC_SEND, key, values, f"{distance} places", (earlier, one))
            last[one.process, key] = (found[-1].value, one)


def realtime_order(facts: Analysis) -> Iterator[Anomaly]:
    """An acknowledged send has a higher offset than all that were acknowledged before it began, of any process."""
    began = invocations(facts.history)
    highest: dict[str, list[tuple[int, int, int, Operation]]] = {}  # by key: (index, offset, value, writer), growing
    for one in facts.completions:
        if one.kind != "ok":
            continue
        for key, found in one.sends().items():
            known = highest.setdefault(key, [])
            before = latest_before(known, began[one.index].index)
            for offset, value in sorted((send.offset, send.value) for send in found if send.offset is not None):
                if before is not None and before[1] >= offset:
                    detail = f"offset {offset} after {before[1]}"
                    yield Anomaly(anomalies.REALTIME_ORDER, key, (before[2], value), detail, (before[3], one))
                if not known or known[-1][1] < offset:
                    known.append((one.index, offset, value, one))


def latest_before(known: list[tuple[int, int, int, Operation]], index: int) -> tuple[int, int, int, Operation] | None:
    """The highest offset that was acknowledged before the operation at `index`."""
    for found in reversed(known):
        if found[0] < index:
            return found
    return None
