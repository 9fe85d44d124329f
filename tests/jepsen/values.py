"""Checks of single values: what is in the logs, what should be, and whether a reader may have seen it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.jepsen import anomalies
from tests.jepsen.anomalies import Anomaly
from tests.jepsen.history import Operation, Poll, Send
from tests.jepsen.orders import Analysis


def inconsistent_offsets(facts: Analysis) -> Iterator[Anomaly]:
    for key, order in facts.orders.items():
        for offset, values in order.log.items():
            if len(values) > 1:
                seen = [one for value in sorted(values) for one in facts.readers.get((key, value), [])[:1]]
                yield Anomaly(
                    anomalies.INCONSISTENT_OFFSETS, key, tuple(sorted(values)), f"all at offset {offset}", tuple(seen)
                )


def duplicates(facts: Analysis) -> Iterator[Anomaly]:
    for key, order in facts.orders.items():
        offsets: dict[int, list[int]] = {}
        for offset, values in order.log.items():
            for value in values:
                offsets.setdefault(value, []).append(offset)
        for value, found in offsets.items():
            if len(found) > 1:
                seen = tuple(facts.readers.get((key, value), [])[:2])
                yield Anomaly(anomalies.DUPLICATE, key, (value,), f"at offsets {found}", seen)


def unwritten_reads(facts: Analysis) -> Iterator[Anomaly]:
    for (key, value), readers in facts.readers.items():
        if (key, value) not in facts.writers:
            yield Anomaly(anomalies.UNWRITTEN_READ, key, (value,), "nobody sent it", (readers[0],))


def aborted_reads(facts: Analysis) -> Iterator[Anomaly]:
    for (key, value), readers in facts.readers.items():
        writer = facts.writers.get((key, value))
        if writer is not None and writer.kind == "fail":
            yield Anomaly(anomalies.ABORTED_READ, key, (value,), "its writer failed", (writer, readers[0]))


def precommitted_reads(facts: Analysis) -> Iterator[Anomaly]:
    """Reads by the same transaction; and, where the times are known, reads before the commit was sent."""
    for reader in facts.completions:
        for step in reader.steps:
            if not isinstance(step, Poll):
                continue
            for key, records in step.records.items():
                for _, value in records:
                    writer = facts.writers.get((key, value))
                    if writer is None or writer.name != "txn":
                        continue
                    if writer.index == reader.index:
                        detail = "a transaction read its own write"
                    elif 0 < step.time_ns < writer.commit_ns:
                        detail = f"{writer.commit_ns - step.time_ns} ns before its commit was sent"
                    else:
                        continue
                    yield Anomaly(anomalies.PRECOMMITTED_READ, key, (value,), detail, (writer, reader))


def has_happened(facts: Analysis, writer: Operation, send: Send) -> bool:
    """Whether a send is certainly in the log. Sends without a transaction happen one by one."""
    return writer.index in facts.proven or (send.key, send.value) in facts.readers


def lost_writes(facts: Analysis) -> Iterator[Anomaly]:
    """Values below the highest place of a key that was read, which nobody read.

    A value at two places counts with its last one, and as a bound with its first one: a duplicate alone loses nothing.
    """
    bounds: dict[str, tuple[int, int]] = {}
    for key, value in facts.readers:
        place = facts.order(key).places.get(value, -1)
        bounds[key] = max(bounds.get(key, (-1, 0)), (place, value))
    for writer, send in facts.sent(("ok", "info")):
        place = facts.order(send.key).last_places.get(send.value, -1)
        if place < 0 or (send.key, send.value) in facts.readers or not has_happened(facts, writer, send):
            continue
        bound, highest = bounds.get(send.key, (-1, 0))
        if place <= bound:
            reader = facts.readers[send.key, highest][0]
            detail = f"at offset {send.offset}; {highest} was read, which is later"
            yield Anomaly(anomalies.LOST_WRITE, send.key, (send.value,), detail, (writer, reader))


def unseen(facts: Analysis) -> Iterator[Anomaly]:
    """Values that were written for certain, and never read; an error if the history ends with readers of everything."""
    for writer, send in facts.sent(("ok", "info")):
        if (send.key, send.value) not in facts.readers and has_happened(facts, writer, send):
            yield Anomaly(anomalies.UNSEEN, send.key, (send.value,), f"at offset {send.offset}", (writer,))
