"""The clients of the workload, each in a process of its own.

    python -m tests.jepsen.clients PROCESS BOOTSTRAP FIRST_VALUE SEED ISOLATION ZOMBIES

What precedes the first dash of PROCESS is its role:

- `member`: confluent-kafka, transactions of polls, sends and offsets. It subscribes, and the group fences it (KIP-447).
- `owner`: aiokafka, the same. It assigns itself all partitions, and its transactional id fences it.
- `plain`: confluent-kafka, idempotent sends without transactions.
- `reader`: confluent-kafka, polls of assigned partitions.
- `watcher`: aiokafka, polls as the only member of a group that commits nothing.

A client ends when its standard input does, after the operation it is at, and at the first error that its library does
not hide. What it had begun is then unknown, or has failed if its commit was never sent. ZOMBIES is the part of the
transactions in which a member is stopped until its session is over.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from tests.crash.copy_client import RECOVERY
from tests.jepsen.history import Kind, Poll, Send, Step
from tests.jepsen.recorder import Recorder

TOPICS = ("jepsen-a", "jepsen-b")
PARTITIONS = 2
KEYS = tuple(f"{topic}-{partition}" for topic in TOPICS for partition in range(PARTITIONS))
GROUP = "jepsen-members"
TIMEOUT_S = 30.0
POLL_S = 0.1
POLLED = 6
READ_AT_ONCE = 100
ABORTS = 0.15
# How often an owner dies during a commit, which a kill from outside seldom meets, and how long a commit may take.
DEATHS = 0.01
SESSION_MS = 6000
ZOMBIE_S = 8
COMMIT_S = 0.006
QUICK: dict[str, Any] = {
    "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200, "log_level": 0, "error_cb": lambda error: None,
    "metadata.recovery.strategy": RECOVERY,
}  # fmt: skip


def split(key: str) -> tuple[str, int]:
    topic, _, partition = key.rpartition("-")
    return topic, int(partition)


def transactional_id(process: str) -> str:
    """The same for all lives of a client: `member-0.3` is the fourth of `member-0`."""
    return process.partition(".")[0]


class Client:
    """What all clients share: their process, what they send, and when they stop."""

    def __init__(
        self, process: str, bootstrap: str, first_value: int, seed: int, isolation: str, zombies: float
    ) -> None:
        self.process = process
        self.bootstrap = bootstrap
        self.value = first_value
        self.rng = random.Random(seed)
        self.isolation = isolation  # of readers and watchers
        self.zombies = zombies
        self.recorder = Recorder(process)
        self.is_over = threading.Event()
        threading.Thread(target=self._wait_end, daemon=True).start()

    def _wait_end(self) -> None:
        sys.stdin.read()
        self.is_over.set()

    def plan(self, least: int, most: int) -> list[Send]:
        sends: list[Send] = []
        for _ in range(self.rng.randint(least, most)):
            self.value += 1
            sends.append(Send(self.rng.choice(KEYS), self.value))
        return sends


class Steps:
    """What a transaction has done so far."""

    def __init__(self, sends: list[Send]) -> None:
        self.steps: list[Step] = []
        self.planned = sends
        self.offsets: dict[int, int] = {}  # by value, of acknowledged sends
        self.positions: dict[str, int] = {}  # after what was polled
        self.rebalanced: set[str] = set()

    def add_poll(self, records: Iterable[tuple[str, int, bytes]]) -> None:
        found: dict[str, list[tuple[int, int]]] = {}
        now = time.monotonic_ns()
        for key, offset, value in records:
            found.setdefault(key, []).append((offset, int(value)))
            self.positions[key] = offset + 1
        self.steps.append(Poll(found, now))

    def all(self) -> list[Step]:
        """Steps with the offsets of sends; those that were not sent yet are at the end."""
        known = [
            step._replace(offset=self.offsets.get(step.value)) if isinstance(step, Send) else step
            for step in self.steps
        ]
        return known + [send for send in self.planned if send not in self.steps]


# --- confluent-kafka


class Member(Client):
    """Consume, transform, produce, with all fences."""

    def run(self) -> None:
        from confluent_kafka import Consumer, Producer

        common = {**QUICK, "bootstrap.servers": self.bootstrap}
        self.producer = Producer({**common, "transactional.id": transactional_id(self.process), "linger.ms": 0})
        self.consumer = Consumer(
            {
                **common, "group.id": GROUP, "enable.auto.commit": False, "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 500,
            }
        )  # fmt: skip
        self.rebalanced: set[str] = set()
        self.producer.init_transactions(TIMEOUT_S)
        self.recorder.invoke("subscribe", keys=KEYS)
        self.consumer.subscribe(
            list(TOPICS), on_assign=self._on_rebalance, on_revoke=self._on_rebalance, on_lost=self._on_rebalance
        )
        self.recorder.done(self.recorder.operation("ok", "subscribe", keys=KEYS))
        while not self.is_over.is_set():
            self.transaction()
        self.consumer.close()

    def _on_rebalance(self, consumer: Any, partitions: list[Any]) -> None:
        self.rebalanced |= {f"{one.topic}-{one.partition}" for one in partitions}

    def transaction(self) -> None:
        made = Steps(self.plan(0, 3))
        self.rebalanced = made.rebalanced
        self.recorder.invoke("txn", made.planned)
        self.producer.begin_transaction()
        polls_at = self.rng.randint(0, len(made.planned))
        for number, send in enumerate([*made.planned, None]):
            if number == polls_at:
                messages = self.consumer.consume(POLLED, POLL_S)
                made.add_poll(
                    (f"{one.topic()}-{one.partition()}", one.offset() or 0, one.value() or b"")
                    for one in messages
                    if one.error() is None
                )
            if send is not None:
                topic, partition = split(send.key)
                self.producer.produce(topic, b"%d" % send.value, partition=partition, on_delivery=self._delivered(made))
                made.steps.append(send)
        # What was polled before a rebalance may be another member's now.
        if made.rebalanced or self.rng.random() < ABORTS:
            self.abort(made)
        else:
            self.commit(made)

    @staticmethod
    def _delivered(made: Steps) -> Any:
        def note(error: Any, message: Any) -> None:
            if error is None:
                made.offsets[int(message.value())] = message.offset()

        return note

    def abort(self, made: Steps) -> None:
        from confluent_kafka import TopicPartition

        self.producer.abort_transaction(TIMEOUT_S)
        self.recorder.done(self.recorder.operation("fail", "txn", made.all(), rebalanced=made.rebalanced, group=GROUP))
        assigned = {(one.topic, one.partition) for one in self.consumer.assignment()}
        polled = [TopicPartition(*split(key)) for key in made.positions if split(key) in assigned]
        for one in self.consumer.committed(polled, TIMEOUT_S) if polled else []:
            self.consumer.seek(TopicPartition(one.topic, one.partition, max(one.offset, 0)))

    def commit(self, made: Steps) -> None:
        from confluent_kafka import TopicPartition

        if made.positions:
            if self.rng.random() < self.zombies:
                become_zombie()
            offsets = [TopicPartition(*split(key), position) for key, position in made.positions.items()]
            self.producer.send_offsets_to_transaction(offsets, self.consumer.consumer_group_metadata(), TIMEOUT_S)
        self.producer.flush(TIMEOUT_S)
        one = self.recorder.begin_commit(made.all(), made.rebalanced, GROUP if made.positions else "")
        self.producer.commit_transaction(TIMEOUT_S)
        self.recorder.done(one)


def become_zombie() -> None:
    """Stops this process until its group has given its partitions to others."""
    subprocess.run(
        ["sh", "-c", f"(sleep {ZOMBIE_S}; kill -CONT {os.getpid()}) >&- & kill -STOP {os.getpid()}"], check=True
    )


class Plain(Client):
    def run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer({**QUICK, "bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 0})
        while not self.is_over.is_set():
            offsets: dict[int, int] = {}

            def note(error: Any, message: Any, offsets: dict[int, int] = offsets) -> None:
                if error is None:
                    offsets[int(message.value())] = message.offset()

            sends = self.plan(1, 4)
            self.recorder.invoke("send", sends)
            for send in sends:
                topic, partition = split(send.key)
                producer.produce(topic, b"%d" % send.value, partition=partition, on_delivery=note)
            producer.flush(TIMEOUT_S)
            kind: Kind = "ok" if len(offsets) == len(sends) else "info"
            steps = [send._replace(offset=offsets.get(send.value)) for send in sends]
            self.recorder.done(self.recorder.operation(kind, "send", steps))
            if kind == "info":
                raise TimeoutError
            time.sleep(0.01)


class Reader(Client):
    def run(self) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                **QUICK, "bootstrap.servers": self.bootstrap, "group.id": self.process, "enable.auto.commit": False,
                "auto.offset.reset": "earliest", "isolation.level": self.isolation,
            }
        )  # fmt: skip
        self.recorder.invoke("assign", keys=KEYS)
        consumer.assign([TopicPartition(*split(key), 0) for key in KEYS])
        self.recorder.done(self.recorder.operation("ok", "assign", keys=KEYS))
        while not self.is_over.is_set():
            begun = self.recorder.operation("invoke", "poll")
            made = Steps([])
            made.add_poll(
                (f"{one.topic()}-{one.partition()}", one.offset() or 0, one.value() or b"")
                for one in consumer.consume(READ_AT_ONCE, POLL_S)
                if one.error() is None
            )
            if made.positions:
                self.recorder.write("invoke", begun)
                self.recorder.done(self.recorder.operation("ok", "poll", made.steps))
        consumer.close()


# --- aiokafka


class Owner(Client):
    """Consume, transform, produce with one transactional id for all partitions, as before KIP-447."""

    def run(self) -> None:
        asyncio.run(self.live())

    async def live(self) -> None:
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

        self.group = transactional_id(self.process)
        self.producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap, transactional_id=self.group, request_timeout_ms=2000
        )
        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, group_id=self.group, enable_auto_commit=False,
            isolation_level="read_committed",
        )  # fmt: skip
        await asyncio.wait_for(self.producer.start(), TIMEOUT_S)
        await asyncio.wait_for(self.consumer.start(), TIMEOUT_S)
        self.recorder.invoke("assign", keys=KEYS)
        self.partitions = {key: TopicPartition(*split(key)) for key in KEYS}
        self.consumer.assign(list(self.partitions.values()))
        for one in self.partitions.values():
            self.consumer.seek(one, await asyncio.wait_for(self.consumer.committed(one), TIMEOUT_S) or 0)
        self.recorder.done(self.recorder.operation("ok", "assign", keys=KEYS))
        while not self.is_over.is_set():
            # One step of the library that hangs ends this life, as an error does.
            await asyncio.wait_for(self.transaction(), TIMEOUT_S)

    async def transaction(self) -> None:
        made = Steps(self.plan(0, 3))
        self.recorder.invoke("txn", made.planned)
        await self.producer.begin_transaction()
        polls_at = self.rng.randint(0, len(made.planned))
        sent: list[Any] = []
        for number, send in enumerate([*made.planned, None]):
            if number == polls_at:
                found = await self.consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=POLLED)
                made.add_poll(
                    (f"{one.topic}-{one.partition}", one.offset, one.value)
                    for messages in found.values()
                    for one in messages
                )
            if send is not None:
                topic, partition = split(send.key)
                sent.append(await self.producer.send(topic, b"%d" % send.value, partition=partition))
                made.steps.append(send)
        for send, result in zip(made.planned, await asyncio.gather(*sent), strict=True):
            made.offsets[send.value] = result.offset
        if self.rng.random() < ABORTS:
            await self.abort(made)
        else:
            await self.commit(made)

    async def abort(self, made: Steps) -> None:
        await self.producer.abort_transaction()
        self.recorder.done(self.recorder.operation("fail", "txn", made.all(), group=self.group))
        for key in made.positions:
            one = self.partitions[key]
            self.consumer.seek(one, await self.consumer.committed(one) or 0)

    async def commit(self, made: Steps) -> None:
        if made.positions:
            offsets = {self.partitions[key]: position for key, position in made.positions.items()}
            await self.producer.send_offsets_to_transaction(offsets, self.group)
        one = self.recorder.begin_commit(made.all(), made.rebalanced, self.group if made.positions else "")
        if self.rng.random() < DEATHS:
            delay_s = self.rng.uniform(0, COMMIT_S)
            threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        await self.producer.commit_transaction()
        self.recorder.done(one)


class Watcher(Client):
    def run(self) -> None:
        asyncio.run(self.live())

    async def live(self) -> None:
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener

        rebalanced: set[str] = set()

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
            def on_partitions_revoked(self, revoked: Any) -> None:
                rebalanced.update(f"{one.topic}-{one.partition}" for one in revoked)

            def on_partitions_assigned(self, assigned: Any) -> None:
                rebalanced.update(f"{one.topic}-{one.partition}" for one in assigned)

        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, group_id=self.process, enable_auto_commit=False,
            auto_offset_reset="earliest", isolation_level=self.isolation,
        )  # fmt: skip
        await asyncio.wait_for(consumer.start(), TIMEOUT_S)
        self.recorder.invoke("subscribe", keys=KEYS)
        consumer.subscribe(list(TOPICS), listener=Listener())
        self.recorder.done(self.recorder.operation("ok", "subscribe", keys=KEYS))
        while not self.is_over.is_set():
            begun = self.recorder.operation("invoke", "poll")
            made = Steps([])
            found = await consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=READ_AT_ONCE)
            made.add_poll(
                (f"{one.topic}-{one.partition}", one.offset, one.value)
                for messages in found.values()
                for one in messages
            )
            if made.positions:
                self.recorder.write("invoke", begun)
                self.recorder.done(self.recorder.operation("ok", "poll", made.steps, rebalanced=rebalanced))
                rebalanced.clear()


ROLES: dict[str, type[Member | Owner | Plain | Reader | Watcher]] = {
    "member": Member, "owner": Owner, "plain": Plain, "reader": Reader, "watcher": Watcher,
}  # fmt: skip


def main() -> None:
    process, bootstrap, first_value, seed, isolation, zombies = sys.argv[1:]
    role = ROLES[process.partition("-")[0]]
    role(process, bootstrap, int(first_value), int(seed), isolation, float(zombies)).run()


if __name__ == "__main__":
    main()
