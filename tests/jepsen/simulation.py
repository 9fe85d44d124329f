"""Histories of a simulated cluster: good ones, and ones with a seeded fault of the server.

The clients are those of the workload: members of a group that poll, send and commit offsets in transactions, producers
without a group, plain producers, and readers of committed records. They abort, lose their answers, die, and are
rebalanced. Each is a Python generator that yields after each request; a seeded scheduler interleaves them. At the end
every open transaction ends, and a reader reads everything.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.jepsen.history import History, Kind, Name, Operation, Poll, Send, Step, renumber

# Faults of the server, by name. Each strikes now and then, never twice in a row on purpose.
FAULTS = (
    "lose", "tear", "append-twice", "show-aborted", "show-open", "skip", "rewind", "reuse-offset", "swap", "fill-gap",
    "invent", "no-fences", "commit-aborted-offsets", "hold-back",
)  # fmt: skip
GROUP = "members"
MEMBERS = 2
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


@dataclass(eq=False)
class Transaction:
    state: str = OPEN
    keys: set[str] = field(default_factory=set)
    offsets: dict[str, int] = field(default_factory=dict)  # of the group


@dataclass
class Entry:
    """A place of a log; a marker has no value."""

    value: int | None
    transaction: Transaction | None = None
    is_lost: bool = False


class Cluster:
    """The logs and the committed offsets of one group."""

    def __init__(self, keys: list[str], rng: random.Random, fault: str) -> None:
        self.logs: dict[str, list[Entry]] = {key: [] for key in keys}
        self.offsets = dict.fromkeys(keys, 0)
        self.owners: dict[str, int] = {}
        self.generation = 0
        self.rng = rng
        self.fault = fault
        self.struck = 0

    def strikes(self, fault: str, chance: float = 0.1) -> bool:
        if fault != self.fault or self.rng.random() >= chance:
            return False
        self.struck += 1
        return True

    # --- writes

    def append(self, key: str, value: int, transaction: Transaction | None) -> int:
        log = self.logs[key]
        if transaction is not None:
            transaction.keys.add(key)
        entry = Entry(value, transaction)
        gaps = [place for place, one in enumerate(log) if one.value is None]
        if gaps and self.strikes("fill-gap"):
            log[gaps[0]] = entry
            return gaps[0]
        if log and log[-1].value is not None and self.strikes("reuse-offset"):
            log[-1] = entry
            return len(log) - 1
        if log and log[-1].transaction is transaction is not None and self.strikes("swap", 0.3):
            log.insert(len(log) - 1, entry)
            return len(log) - 2
        log.append(entry)
        offset = len(log) - 1
        if self.strikes("append-twice"):
            log.append(Entry(value, transaction))
        if transaction is None and self.strikes("lose"):
            entry.is_lost = True
        return offset

    def end(self, transaction: Transaction, is_commit: bool) -> None:
        if transaction.state != OPEN:
            return
        transaction.state = COMMITTED if is_commit else ABORTED
        mine = [one for key in sorted(transaction.keys) for one in self.logs[key] if one.transaction is transaction]
        if is_commit and mine and self.strikes("lose", 0.2):
            mine[0].is_lost = True
        if is_commit and len(transaction.keys) > 1 and self.strikes("tear", 0.4):
            torn = min(transaction.keys)
            for one in self.logs[torn]:
                one.is_lost = one.is_lost or one.transaction is transaction
        for key in sorted(transaction.keys):
            self.logs[key].append(Entry(None))
        if is_commit or (transaction.offsets and self.strikes("commit-aborted-offsets", 0.5)):
            self.offsets.update(transaction.offsets)

    # --- reads

    def read(self, key: str, position: int, most: int, is_last: bool = False) -> tuple[list[tuple[int, int]], int]:
        """Committed records from a position, and the next position."""
        log = self.logs[key]
        sees_open = self.strikes("show-open", 0.3)
        sees_aborted = self.strikes("show-aborted")
        found: list[tuple[int, int]] = []
        if position > 0 and self.strikes("rewind", 0.05):
            position = max(position - 3, 0)
        end = len(log)
        if is_last and self.fault == "hold-back":
            end -= min(end, 4)
            self.struck += 1
        while position < end and len(found) < most:
            entry = log[position]
            state = entry.transaction.state if entry.transaction is not None else COMMITTED
            if state == OPEN and not sees_open:
                break
            if entry.value is not None and not entry.is_lost and (state != ABORTED or sees_aborted):
                value = -entry.value if self.strikes("invent", 0.02) else entry.value
                if not self.strikes("skip", 0.05):
                    found.append((position, value))
            position += 1
        return found, position


class Member:
    """One client's consumer."""

    def __init__(self) -> None:
        self.positions: dict[str, int] = {}
        self.generation = 0


class Simulation:
    """Runs all clients; `history` is the result."""

    def __init__(self, seed: int, fault: str = "", rounds: int = 30, keys: int = 3, has_times: bool = True) -> None:
        self.rng = random.Random(seed)
        self.keys = [f"topic-{number}" for number in range(keys)]
        self.cluster = Cluster(self.keys, self.rng, fault)
        self.fault = fault
        self.rounds = rounds
        self.has_times = has_times
        self.operations: list[Operation] = []
        self.value = 0
        self.clock = 0
        self.unfinished: list[tuple[Transaction, bool]] = []
        self.rebalance()

    def run(self) -> History:
        clients = {
            **{f"member-{number}": self.member(f"member-{number}", number) for number in range(MEMBERS)},
            "producer": self.producer("producer"),
            "plain": self.plain("plain"),
            **{f"reader-{number}": self.reader(f"reader-{number}") for number in range(2)},
        }
        while clients:
            name = self.rng.choice(sorted(clients))
            if next(clients[name], None) is None:
                del clients[name]
            if self.rng.random() < 0.01:
                self.rebalance()
            if self.unfinished and self.rng.random() < 0.05:
                self.cluster.end(*self.unfinished.pop(0))
        for transaction, is_commit in self.unfinished:
            self.cluster.end(transaction, is_commit)
        self.last_reader()
        return renumber(self.operations)

    # --- recording

    def now(self) -> int:
        self.clock += 1
        return self.clock if self.has_times else 0

    def record(
        self, process: str, kind: Kind, name: Name, steps: list[Step] | None = None, keys: tuple[str, ...] = (),
        rebalanced: frozenset[str] = frozenset(), group: str = "", commit_ns: int = 0,
    ) -> None:  # fmt: skip
        one = Operation(0, process, kind, name, tuple(steps or ()), keys, rebalanced, group, commit_ns, self.now())
        self.operations.append(one)

    def next_value(self) -> int:
        self.value += 1
        return self.value

    # --- clients

    def rebalance(self) -> None:
        """Keys go to members, some to others than before."""
        self.cluster.owners = {key: self.rng.randrange(MEMBERS) for key in self.keys}
        self.cluster.generation += 1

    def reassign(self, number: int, consumer: Member) -> frozenset[str]:
        """What a member notices when it polls: keys that it got or lost."""
        if consumer.generation == self.cluster.generation:
            return frozenset()
        consumer.generation = self.cluster.generation
        before = consumer.positions.keys()
        consumer.positions = {key: self.cluster.offsets[key] for key in self.keys if self.cluster.owners[key] == number}
        return frozenset(before | consumer.positions.keys())

    def poll(self, consumer: Member, most: int = 4) -> Poll:
        records: dict[str, list[tuple[int, int]]] = {}
        for key in sorted(consumer.positions):
            found, consumer.positions[key] = self.cluster.read(key, consumer.positions[key], most)
            if found:
                records[key] = found
        return Poll(records, self.now())

    def member(self, name: str, number: int) -> Iterator[bool]:
        """Transactions of polls, sends and offsets, with fences, as KIP-447 has them."""
        life = 0
        consumer = Member()
        for _ in range(self.rounds):
            process = f"{name}.{life}"
            planned = [Send(self.rng.choice(self.keys), self.next_value()) for _ in range(self.rng.randrange(1, 4))]
            self.record(process, "invoke", "txn", list(planned))
            yield True
            transaction = Transaction()
            rebalanced = self.reassign(number, consumer)
            steps: list[Step] = [self.poll(consumer)]
            yield True
            for send in planned:
                steps.append(send._replace(offset=self.cluster.append(send.key, send.value, transaction)))
                yield True
            polled = {key for step in steps if isinstance(step, Poll) for key in step.records}
            transaction.offsets = {key: consumer.positions[key] for key in polled}
            is_fenced = consumer.generation != self.cluster.generation and self.fault != "no-fences"
            if is_fenced or self.rng.random() < 0.15:
                self.cluster.end(transaction, False)
                consumer.positions = {key: self.cluster.offsets[key] for key in consumer.positions}
                self.record(process, "fail", "txn", steps, rebalanced=rebalanced, group=GROUP)
                continue
            commit_ns = self.now()
            if self.rng.random() < 0.15:
                # It dies, and its next life waits for the end of this transaction, one way or the other.
                self.cluster.end(transaction, self.rng.random() < 0.5)
                self.record(process, "info", "txn", steps, rebalanced=rebalanced, group=GROUP, commit_ns=commit_ns)
                life += 1
                consumer = Member()
                continue
            self.cluster.end(transaction, True)
            self.record(process, "ok", "txn", steps, rebalanced=rebalanced, group=GROUP, commit_ns=commit_ns)
            yield True

    def producer(self, name: str) -> Iterator[bool]:
        """Transactions of sends and polls without a group; some end much later than their client."""
        life = 0
        consumer = Member()
        consumer.positions = dict.fromkeys(self.keys, 0)
        self.record(name + ".0", "invoke", "assign", keys=tuple(self.keys))
        self.record(name + ".0", "ok", "assign", keys=tuple(self.keys))
        for _ in range(self.rounds):
            process = f"{name}.{life}"
            planned = [Send(self.rng.choice(self.keys), self.next_value()) for _ in range(self.rng.randrange(1, 5))]
            self.record(process, "invoke", "txn", list(planned))
            before = dict(consumer.positions)
            transaction = Transaction()
            steps: list[Step] = []
            for send in planned:
                yield True
                steps.append(send._replace(offset=self.cluster.append(send.key, send.value, transaction)))
            yield True
            steps.append(self.poll(consumer, 2))
            choice = self.rng.random()
            commit_ns = self.now() if choice > 0.2 else 0
            if choice < 0.2:
                self.cluster.end(transaction, False)
                consumer.positions = before
                self.record(process, "fail", "txn", steps)
            elif choice < 0.35:
                self.unfinished.append((transaction, self.rng.random() < 0.5))
                self.record(process, "info", "txn", steps, commit_ns=commit_ns)
                life += 1
            else:
                self.cluster.end(transaction, True)
                self.record(process, "ok", "txn", steps, commit_ns=commit_ns)
            yield True

    def plain(self, process: str) -> Iterator[bool]:
        """Sends without a transaction; some answers are lost."""
        for _ in range(self.rounds):
            send = Send(self.rng.choice(self.keys), self.next_value())
            self.record(process, "invoke", "send", [send])
            yield True
            choice = self.rng.random()
            if choice < 0.1:
                self.record(process, "fail", "send", [send])
                continue
            if choice < 0.2:
                if self.rng.random() < 0.5:
                    self.cluster.append(send.key, send.value, None)
                self.record(process, "info", "send", [send])
                continue
            offset = self.cluster.append(send.key, send.value, None)
            yield True
            self.record(process, "ok", "send", [send._replace(offset=offset)])
            yield True

    def reader(self, process: str) -> Iterator[bool]:
        consumer = Member()
        consumer.positions = dict.fromkeys(self.keys, 0)
        self.record(process, "invoke", "assign", keys=tuple(self.keys))
        self.record(process, "ok", "assign", keys=tuple(self.keys))
        for _ in range(self.rounds * 2):
            self.record(process, "invoke", "poll")
            yield True
            polls: list[Step] = [self.poll(consumer) for _ in range(self.rng.randrange(1, 3))]
            self.record(process, "ok", "poll", polls)
            yield True

    def last_reader(self) -> None:
        self.record("last", "invoke", "assign", keys=tuple(self.keys))
        self.record("last", "ok", "assign", keys=tuple(self.keys))
        for key in self.keys:
            self.record("last", "invoke", "poll")
            found, _ = self.cluster.read(key, 0, len(self.cluster.logs[key]), is_last=True)
            self.record("last", "ok", "poll", [Poll({key: found}, self.now())])
