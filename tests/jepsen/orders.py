"""What a history says about the logs: which value is at which offset, who wrote it, and who read it.

A value counts as being in the log if a poll returned it, or if its send was acknowledged and certainly happened: the
operation is `ok`, or it is an `info` transaction of which another value was read (a transaction happens as a whole).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.jepsen.history import History, Operation, Poll, Send, completions

At = tuple[str, int]  # a key and a value


@dataclass
class Order:
    """The log of one key. Places are offsets without their gaps, which markers and aborted records leave."""

    log: dict[int, set[int]] = field(default_factory=dict)  # offset -> values; more than one is an anomaly
    values: list[int] = field(default_factory=list)  # place -> value
    places: dict[int, int] = field(default_factory=dict)  # value -> its first place
    last_places: dict[int, int] = field(default_factory=dict)  # value -> its last place

    def add(self, offset: int, value: int) -> None:
        self.log.setdefault(offset, set()).add(value)

    def finish(self) -> None:
        self.log = dict(sorted(self.log.items()))
        for place, found in enumerate(self.log.values()):
            self.values.append(min(found))
            for value in found:
                self.places.setdefault(value, place)
                self.last_places[value] = place

    def distance(self, first: int, second: int) -> int:
        """From one value to another, in places; 1 if one of them has no known place."""
        if first not in self.places or second not in self.places:
            return 1
        return self.places[second] - self.places[first]

    def between(self, first: int, second: int) -> list[int]:
        return self.values[self.places[first] + 1 : self.places[second]]


class Analysis:
    """The facts that all checks start from."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.completions = list(completions(history))
        self.writers: dict[At, Operation] = {}
        self.readers: dict[At, list[Operation]] = {}
        for one in self.completions:
            for step in one.steps:
                if isinstance(step, Send):
                    self.writers[step.key, step.value] = one
                else:
                    self._add_reader(one, step)
        self.proven = {one.index for one in self.completions if self._is_proven(one)}
        self.orders = self._find_orders()

    def _add_reader(self, reader: Operation, poll: Poll) -> None:
        for key, records in poll.records.items():
            for _, value in records:
                self.readers.setdefault((key, value), []).append(reader)

    def _is_proven(self, one: Operation) -> bool:
        """Whether all of it has certainly happened."""
        if one.kind == "ok":
            return True
        if one.kind != "info" or one.name != "txn":
            return False
        return any(isinstance(step, Send) and (step.key, step.value) in self.readers for step in one.steps)

    def _find_orders(self) -> dict[str, Order]:
        orders: dict[str, Order] = {}
        for one in self.completions:
            for step in one.steps:
                if isinstance(step, Poll):
                    for key, records in step.records.items():
                        for offset, value in records:
                            orders.setdefault(key, Order()).add(offset, value)
                elif step.offset is not None and one.index in self.proven:
                    orders.setdefault(step.key, Order()).add(step.offset, step.value)
        for order in orders.values():
            order.finish()
        return orders

    def order(self, key: str) -> Order:
        return self.orders.get(key) or Order()

    def sent(self, only: Iterable[str]) -> list[tuple[Operation, Send]]:
        """The sends of all completions of these kinds."""
        kinds = set(only)
        return [
            (one, step)
            for one in self.completions
            if one.kind in kinds
            for step in one.steps
            if isinstance(step, Send)
        ]  # fmt: skip
