"""Histories: what clients asked for, and what came of it, in the order of time.

The form is that of Jepsen's Kafka workload. A process does one operation after the other; an operation has an `invoke`
and one completion:

- `ok`: it happened;
- `fail`: it did not happen, and never will;
- `info`: unknown. The process may go on; what it did takes effect at any time, or never.

Operations by name:

- `txn`: a transaction of sends and polls;
- `send`: sends without a transaction, each of which happens or not;
- `poll`: polls without a transaction;
- `assign` and `subscribe`: the consumer reads `keys` from now on.

A key is a topic and a partition (`topic-0`). A value is sent once in a history, so it identifies its send.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

Kind = Literal["invoke", "ok", "fail", "info"]
Name = Literal["txn", "send", "poll", "assign", "subscribe"]


class Send(NamedTuple):
    key: str
    value: int
    offset: int | None = None  # None: not acknowledged


class Poll(NamedTuple):
    """What one poll returned: offsets and values by key, in the order of delivery."""

    records: dict[str, list[tuple[int, int]]]
    time_ns: int = 0


Step = Send | Poll


@dataclass(frozen=True, slots=True)
class Operation:
    """An invocation or a completion. `index` is its place in the history."""

    index: int
    process: str
    kind: Kind
    name: Name
    steps: tuple[Step, ...] = ()
    keys: tuple[str, ...] = ()  # of assign and subscribe
    rebalanced: frozenset[str] = frozenset()  # keys that the consumer got or lost during the operation
    group: str = ""  # the offsets of the polls were committed in the transaction, to this group
    commit_ns: int = 0  # when the commit was sent; 0 if it was not, or nobody recorded it
    time_ns: int = 0

    def sends(self) -> dict[str, list[Send]]:
        found: dict[str, list[Send]] = {}
        for step in self.steps:
            if isinstance(step, Send):
                found.setdefault(step.key, []).append(step)
        return found

    def polls(self) -> dict[str, list[tuple[int, int]]]:
        """Offsets and values by key, of all polls together."""
        found: dict[str, list[tuple[int, int]]] = {}
        for step in self.steps:
            if isinstance(step, Poll):
                for key, records in step.records.items():
                    found.setdefault(key, []).extend(records)
        return {key: records for key, records in found.items() if records}

    def __str__(self) -> str:
        return f"{self.index} {self.process} {self.kind} {self.name}"


History = list[Operation]


def completions(history: Iterable[Operation]) -> Iterator[Operation]:
    return (one for one in history if one.kind != "invoke")


def invocations(history: History) -> dict[int, Operation]:
    """The invocation of every completion, by the completion's index."""
    open_by_process: dict[str, Operation] = {}
    found: dict[int, Operation] = {}
    for one in history:
        if one.kind == "invoke":
            if one.process in open_by_process:
                raise ValueError(f"{one}: {open_by_process[one.process]} is not complete")
            open_by_process[one.process] = one
        else:
            if one.process not in open_by_process:
                raise ValueError(f"{one}: a completion without an invocation")
            found[one.index] = open_by_process.pop(one.process)
    return found


def renumber(operations: Iterable[Operation]) -> History:
    """The history of operations that are in the order of time."""
    return [replace(one, index=number) for number, one in enumerate(operations)]


# --- as JSON lines


def encode(one: Operation) -> str:
    fields = asdict(one)
    fields["steps"] = [
        ["send", step.key, step.value, step.offset]
        if isinstance(step, Send)
        else ["poll", step.records, step.time_ns]
        for step in one.steps
    ]  # fmt: skip
    fields["rebalanced"] = sorted(one.rebalanced)
    return json.dumps({name: value for name, value in fields.items() if value or name == "index"})


def decode(line: str) -> Operation:
    fields: dict[str, Any] = json.loads(line)
    fields["steps"] = tuple(decode_step(step) for step in fields.get("steps", ()))
    fields["keys"] = tuple(fields.get("keys", ()))
    fields["rebalanced"] = frozenset(fields.get("rebalanced", ()))
    return Operation(**fields)


def decode_step(step: list[Any]) -> Step:
    if step[0] == "send":
        return Send(step[1], step[2], step[3])
    return Poll({key: [(one[0], one[1]) for one in records] for key, records in step[1].items()}, step[2])


def save(history: History, path: Path) -> None:
    path.write_text("".join(f"{encode(one)}\n" for one in history))


def load(path: Path) -> History:
    return [decode(line) for line in path.read_text().splitlines()]
