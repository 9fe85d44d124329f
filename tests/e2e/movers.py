"""Consumers of four libraries, each on a thread of its own, that note what they own and what they process.

A worker processes a message only while it owns the partition, and commits what it processed: before it gives a
partition up, and now and then. Its callbacks note when it was given a partition and when it was done with it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from aiokafka.abc import ConsumerRebalanceListener as AioListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener as PythonListener
from kafka.coordinator.assignors.range import RangePartitionAssignor as PythonRange
from kafka.errors import KafkaError as PythonError
from kafka.structs import OffsetAndMetadata

from kcoord.client import Consumer as OwnConsumer
from kcoord.client import KafkaError as OwnError
from kcoord.client import RebalanceListener as OwnListener
from kcoord.client import TopicPartition as OwnPartition
from tests.e2e.ownership import Ownership
from tests.harness.present import present

COMMIT_S = 0.1
POLL_S = 0.05
END_S = 60.0
# A busy machine may let one of them wait for seconds, and who is missed no longer owns what it has.
SESSION_MS = 30_000


class Worker(threading.Thread):
    """Starts with the object; `stop` leaves the group."""

    def __init__(self, kind: str, bootstrap: str, group: str, topic: str, notes: Ownership) -> None:
        super().__init__(name=f"{kind}-{time.monotonic():.3f}", daemon=True)
        self.kind = kind
        self.bootstrap = bootstrap
        self.group = group
        self.topic = topic
        self.notes = notes
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        # Partition -> next offset, of what is processed and not committed.
        self.done: dict[int, int] = {}
        self.commit_at = 0.0
        self.start()

    def run(self) -> None:
        try:
            if self.kind == "aiokafka":
                asyncio.run(run_aiokafka(self))
            elif self.kind == "kafka-python":
                run_kafka_python(self)
            elif self.kind.startswith("kcoord-"):
                asyncio.run(run_kcoord(self, self.kind.removeprefix("kcoord-")))
            elif self.kind == "confluent":
                run_confluent(self, {"partition.assignment.strategy": "range", "session.timeout.ms": SESSION_MS,
                                     "heartbeat.interval.ms": 100})  # fmt: skip
            else:
                run_confluent(self, {"group.protocol": "consumer"})
        except BaseException as e:
            self.failure = e
        finally:
            self.notes.given_up(self.name, self.owned())

    def stop(self) -> None:
        self.stopping.set()
        self.join(END_S)
        assert not self.is_alive(), f"{self.name} does not end"
        assert self.failure is None, (self.name, self.failure)

    def owned(self) -> list[int]:
        return self.notes.owned(self.name)

    def process(self, partition: int, offset: int, value: bytes | None) -> None:
        if self.notes.process(self.name, partition, offset, (value or b"").decode()):
            self.done[partition] = offset + 1

    def to_commit(self, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """What is to be committed now: of partitions that go, or of all once it is time again."""
        if partitions is None:
            if time.monotonic() < self.commit_at:
                return {}
            self.commit_at = time.monotonic() + COMMIT_S
            partitions = list(self.done)
        offsets: dict[int, int] = {}
        for partition in partitions:
            offset = self.done.pop(partition, None)
            if offset is not None:
                offsets[partition] = offset
        return offsets


# ---- aiokafka


class _AioCallbacks(AioListener):  # type: ignore[misc]
    def __init__(self, worker: Worker, consumer: AIOKafkaConsumer) -> None:
        self.worker = worker
        self.consumer = consumer

    async def on_partitions_revoked(self, revoked: Any) -> None:
        partitions = [one.partition for one in revoked]
        await commit_aiokafka(self.worker, self.consumer, self.worker.to_commit(partitions))
        self.worker.notes.given_up(self.worker.name, partitions)

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self.worker.notes.assigned(self.worker.name, [one.partition for one in assigned])


async def commit_aiokafka(worker: Worker, consumer: AIOKafkaConsumer, offsets: dict[int, int]) -> None:
    if offsets:
        with suppress(AioError):
            await consumer.commit({AioPartition(worker.topic, number): at for number, at in offsets.items()})


async def run_aiokafka(worker: Worker) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=worker.bootstrap, group_id=worker.group, enable_auto_commit=False,
        auto_offset_reset="earliest", heartbeat_interval_ms=100, session_timeout_ms=SESSION_MS, retry_backoff_ms=50,
        partition_assignment_strategy=[AioRange],
    )  # fmt: skip
    consumer.subscribe([worker.topic], listener=_AioCallbacks(worker, consumer))
    await consumer.start()
    try:
        while not worker.stopping.is_set():
            batches = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
            for part, records in batches.items():
                for record in records:
                    worker.process(part.partition, record.offset, record.value)
            await commit_aiokafka(worker, consumer, worker.to_commit())
        await commit_aiokafka(worker, consumer, worker.to_commit(worker.owned()))
        worker.notes.given_up(worker.name, worker.owned())
    finally:
        await consumer.stop()


# ---- kcoord.client, of either protocol


class _OwnCallbacks(OwnListener):
    def __init__(self, worker: Worker, consumer: OwnConsumer) -> None:
        self.worker = worker
        self.consumer = consumer

    async def on_partitions_revoked(self, revoked: Collection[OwnPartition]) -> None:
        partitions = [one.partition for one in revoked]
        await commit_kcoord(self.worker, self.consumer, self.worker.to_commit(partitions))
        self.worker.notes.given_up(self.worker.name, partitions)

    async def on_partitions_lost(self, lost: Collection[OwnPartition]) -> None:
        self.worker.notes.given_up(self.worker.name, [one.partition for one in lost])

    async def on_partitions_assigned(self, assigned: Collection[OwnPartition]) -> None:
        self.worker.notes.assigned(self.worker.name, [one.partition for one in assigned])


async def commit_kcoord(worker: Worker, consumer: OwnConsumer, offsets: dict[int, int]) -> None:
    if offsets:
        with suppress(OwnError):
            await consumer.commit({OwnPartition(worker.topic, number): at for number, at in offsets.items()})


async def run_kcoord(worker: Worker, protocol: str) -> None:
    consumer = OwnConsumer(
        bootstrap_servers=worker.bootstrap,
        group_id=worker.group,
        group_protocol=protocol,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=100,
        session_timeout_ms=SESSION_MS,
        partition_assignment_strategy=["range"],
    )
    async with consumer:
        consumer.subscribe([worker.topic], listener=_OwnCallbacks(worker, consumer))
        while not worker.stopping.is_set():
            for record in await consumer.poll(POLL_S):
                worker.process(record.partition, record.offset, record.value)
            await commit_kcoord(worker, consumer, worker.to_commit())


# ---- kafka-python


class _PythonCallbacks(PythonListener):  # type: ignore[misc]
    def __init__(self, worker: Worker, consumer: KafkaConsumer) -> None:
        self.worker = worker
        self.consumer = consumer

    def on_partitions_revoked(self, revoked: Any) -> None:
        # Called by the client's own thread, which must not wait.
        partitions = [one.partition for one in revoked]
        offsets = positions_kafka_python(self.worker, self.worker.to_commit(partitions))
        if offsets:
            self.consumer.commit_async(offsets)
        self.worker.notes.given_up(self.worker.name, partitions)

    def on_partitions_lost(self, lost: Any) -> None:
        self.worker.notes.given_up(self.worker.name, [one.partition for one in lost])

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.worker.notes.assigned(self.worker.name, [one.partition for one in assigned])


def positions_kafka_python(worker: Worker, offsets: dict[int, int]) -> dict[PythonPartition, OffsetAndMetadata]:
    return {PythonPartition(worker.topic, number): OffsetAndMetadata(at, "", -1) for number, at in offsets.items()}


def commit_kafka_python(worker: Worker, consumer: KafkaConsumer, offsets: dict[int, int]) -> None:
    if offsets:
        with suppress(PythonError):
            consumer.commit(positions_kafka_python(worker, offsets))


def run_kafka_python(worker: Worker) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=worker.bootstrap, group_id=worker.group, enable_auto_commit=False,
        auto_offset_reset="earliest", heartbeat_interval_ms=100, session_timeout_ms=SESSION_MS,
        partition_assignment_strategy=[PythonRange],
    )  # fmt: skip
    consumer.subscribe([worker.topic], listener=_PythonCallbacks(worker, consumer))
    try:
        while not worker.stopping.is_set():
            for part, records in consumer.poll(timeout_ms=int(POLL_S * 1000)).items():
                for record in records:
                    worker.process(part.partition, record.offset, record.value)
            commit_kafka_python(worker, consumer, worker.to_commit())
        commit_kafka_python(worker, consumer, worker.to_commit(worker.owned()))
        worker.notes.given_up(worker.name, worker.owned())
    finally:
        consumer.close()


# ---- confluent-kafka, of either protocol


def commit_confluent(worker: Worker, consumer: Consumer, offsets: dict[int, int]) -> None:
    if offsets:
        with suppress(KafkaException):
            parts = [ConfluentPartition(worker.topic, number, at) for number, at in offsets.items()]
            consumer.commit(offsets=parts, asynchronous=False)


def run_confluent(worker: Worker, settings: dict[str, Any]) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": worker.bootstrap, "group.id": worker.group, "enable.auto.commit": False,
            "auto.offset.reset": "earliest", "log_level": 0, "reconnect.backoff.max.ms": 200, **settings,
        }
    )  # fmt: skip

    def assigned(_: Consumer, parts: list[ConfluentPartition]) -> None:
        worker.notes.assigned(worker.name, [one.partition for one in parts])

    def revoked(_: Consumer, parts: list[ConfluentPartition]) -> None:
        partitions = [one.partition for one in parts]
        commit_confluent(worker, consumer, worker.to_commit(partitions))
        worker.notes.given_up(worker.name, partitions)

    def lost(_: Consumer, parts: list[ConfluentPartition]) -> None:
        worker.notes.given_up(worker.name, [one.partition for one in parts])

    consumer.subscribe([worker.topic], on_assign=assigned, on_revoke=revoked, on_lost=lost)
    try:
        while not worker.stopping.is_set():
            message = consumer.poll(POLL_S)
            if message is not None and message.error() is None:
                worker.process(present(message.partition()), present(message.offset()), message.value())
            commit_confluent(worker, consumer, worker.to_commit())
        commit_confluent(worker, consumer, worker.to_commit(worker.owned()))
        worker.notes.given_up(worker.name, worker.owned())
    finally:
        consumer.close()
