"""Polite members of groups, in a process for each library.

    python -m tests.strangers.members LIBRARY BOOTSTRAP

Each group has two members, which read the topic `polite`, commit after each poll and read that back. Each record must
be the one after the record before it, with its offset as its value. On standard output: `asked`, `committed`, `stored`
and `failed`, as the methods of the ledger take them, and `broken`, a promise that was not kept.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from kcoord.client import Consumer, KafkaError
from kcoord.client import TopicPartition as Partition
from kcoord.client.consumer.listener import RebalanceListener
from tests.strangers.child import report, until_end
from tests.strangers.newcomers import TOPIC
from tests.strangers.requests import SESSION_MS

KCOORD: Final = "kcoord"
CONFLUENT: Final = "confluent"
AIOKAFKA: Final = "aiokafka"
GROUPS: Final = {
    KCOORD: ("polite-kcoord-classic", "polite-kcoord-consumer"),
    CONFLUENT: ("polite-confluent-classic", "polite-confluent-consumer"),
    AIOKAFKA: ("polite-aiokafka-classic",),
}
MEMBERS: Final = 2
POLL_S: Final = 0.25
QUICK: Final[dict[str, Any]] = {
    "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200, "log_level": 0, "error_cb": lambda error: None,
    "metadata.recovery.strategy": "none",
}  # fmt: skip


class Notes:
    """What one member has read and committed."""

    def __init__(self, group: str) -> None:
        self.group = group
        self._next: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._began = time.monotonic()

    def reassigned(self) -> None:
        self._next.clear()
        self._committed.clear()

    def take(self, records: Iterable[tuple[int, int, bytes]]) -> dict[int, int]:
        """Records that were polled. Returns what to commit."""
        offsets: dict[int, int] = {}
        for partition, offset, value in records:
            expected = self._next.get(partition, offset)
            if offset != expected or value != b"%d" % offset:
                report("broken", f"{self.group}-{partition}: a member got {offset} ({value!r}) and not {expected}")
            offsets[partition] = self._next[partition] = offset + 1
        return offsets

    def begin(self, offsets: dict[int, int]) -> None:
        self._began = time.monotonic()
        for partition, offset in offsets.items():
            report("asked", self.group, partition, offset)

    def done(self, offsets: dict[int, int]) -> None:
        for partition, offset in offsets.items():
            report("committed", self.group, partition, offset)

    def read_back(self, offsets: dict[int, int], found: dict[int, int]) -> None:
        for partition, offset in offsets.items():
            report("stored", self.group, partition, offset, found.get(partition, -1))

    def failed(self, error: BaseException) -> None:
        report("failed", self.group, f"{type(error).__name__}: {error}"[:300], self._began, time.monotonic())


class Reset(RebalanceListener):
    """Positions may change with the assignment."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def on_partitions_revoked(self, revoked: object) -> None:
        self.notes.reassigned()

    def on_partitions_assigned(self, assigned: object) -> None:
        self.notes.reassigned()


async def run_kcoord(bootstrap: str, group: str, is_over: Callable[[], bool]) -> None:
    notes = Notes(group)
    consumer = Consumer(
        bootstrap_servers=bootstrap, group_id=group, group_protocol=group.rpartition("-")[2],
        auto_offset_reset="earliest", enable_auto_commit=False, session_timeout_ms=SESSION_MS,
    )  # fmt: skip
    async with consumer:
        consumer.subscribe([TOPIC], listener=Reset(notes))
        while not is_over():
            try:
                polled = await consumer.poll(POLL_S)
                offsets = notes.take((one.partition, one.offset, one.value or b"") for one in polled)
                if not offsets:
                    continue
                notes.begin(offsets)
                await consumer.commit({Partition(TOPIC, one): offset for one, offset in offsets.items()})
                notes.done(offsets)
                stored = await consumer.committed([Partition(TOPIC, one) for one in offsets])
                notes.read_back(offsets, {one.partition: at.offset for one, at in stored.items() if at is not None})
            except KafkaError as error:
                notes.failed(error)


def run_confluent(bootstrap: str, group: str, is_over: Callable[[], bool]) -> None:
    from confluent_kafka import Consumer as Client
    from confluent_kafka import KafkaException, TopicPartition

    notes = Notes(group)
    protocol = group.rpartition("-")[2]
    session = {"session.timeout.ms": SESSION_MS} if protocol == "classic" else {}
    client = Client(
        {
            **QUICK, **session, "bootstrap.servers": bootstrap, "group.id": group, "group.protocol": protocol,
            "enable.auto.commit": False, "auto.offset.reset": "earliest",
        }
    )  # fmt: skip
    client.subscribe(
        [TOPIC], on_assign=lambda *_: notes.reassigned(), on_revoke=lambda *_: notes.reassigned(),
        on_lost=lambda *_: notes.reassigned(),
    )  # fmt: skip
    while not is_over():
        polled = [one for one in client.consume(100, POLL_S) if one.error() is None]
        offsets = notes.take((one.partition() or 0, one.offset() or 0, one.value() or b"") for one in polled)
        if not offsets:
            continue
        notes.begin(offsets)
        wanted = [TopicPartition(TOPIC, one, offset) for one, offset in offsets.items()]
        try:
            made = client.commit(offsets=wanted, asynchronous=False)
            errors = [one.error for one in made if one.error is not None]
            if errors:
                raise KafkaException(errors[0])
            notes.done(offsets)
            stored = client.committed([TopicPartition(TOPIC, one) for one in offsets], 30.0)
            notes.read_back(offsets, {one.partition: one.offset for one in stored})
        except KafkaException as error:
            notes.failed(error)
    client.close()


async def run_aiokafka(bootstrap: str, group: str, is_over: Callable[[], bool]) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
    from aiokafka.errors import KafkaError as Failure

    notes = Notes(group)

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: object) -> None:
            notes.reassigned()

        async def on_partitions_assigned(self, assigned: object) -> None:
            notes.reassigned()

    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS,
    )  # fmt: skip
    consumer.subscribe([TOPIC], listener=Listener())
    await consumer.start()
    try:
        while not is_over():
            try:
                polled = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
                records = ((one.partition, one.offset, one.value) for part in polled.values() for one in part)
                offsets = notes.take(records)
                if not offsets:
                    continue
                notes.begin(offsets)
                await consumer.commit({TopicPartition(TOPIC, one): offset for one, offset in offsets.items()})
                notes.done(offsets)
                found = {one: await consumer.committed(TopicPartition(TOPIC, one)) for one in offsets}
                notes.read_back(offsets, {one: -1 if offset is None else offset for one, offset in found.items()})
            except Failure as error:
                notes.failed(error)
    finally:
        await consumer.stop()


async def run_all(
    work: Callable[[str, str, Callable[[], bool]], Awaitable[None]], bootstrap: str, groups: tuple[str, ...]
) -> None:
    over = until_end()
    await asyncio.gather(*(work(bootstrap, group, over.done) for group in groups for _ in range(MEMBERS)))


def run_threads(bootstrap: str, groups: tuple[str, ...]) -> None:
    over = threading.Event()
    threads = [
        threading.Thread(target=run_confluent, args=(bootstrap, group, over.is_set))
        for group in groups
        for _ in range(MEMBERS)
    ]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join()


def main() -> None:
    library, bootstrap = sys.argv[1:]
    if library == CONFLUENT:
        run_threads(bootstrap, GROUPS[library])
    else:
        work = run_kcoord if library == KCOORD else run_aiokafka
        asyncio.run(run_all(work, bootstrap, GROUPS[library]))


if __name__ == "__main__":
    main()
