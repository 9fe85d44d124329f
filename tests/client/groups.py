"""Topics with records and groups with members, for tests of the admin client and of commands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, KafkaError, Message, Producer

from kcoord.client.admin.admin import Admin
from kcoord.client.admin.results import NewTopic
from kcoord.client.admin.spread import only
from kcoord.client.partition import TopicPartition

WAIT_S = 60.0
FIRST_MS = 1_700_000_000_000


async def make_topic(admin: Admin, name: str, partitions: int = 1) -> list[TopicPartition]:
    """A topic that did not exist, and that keeps old records."""
    only(await admin.create_topics(NewTopic(name, partitions, configs={"retention.ms": "-1"})), name)
    return [TopicPartition(name, one) for one in range(partitions)]


def produce(bootstrap: str, topic: str, counts: dict[int, int], first_ms: int = FIRST_MS, value: bytes = b"v") -> None:
    """Records in partitions; the timestamp of each is a second after that of the one before."""
    failures: list[str] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for partition, count in counts.items():
        for number in range(count):
            at_ms = first_ms + 1000 * number
            producer.produce(topic, value, b"%d" % number, partition=partition, timestamp=at_ms, on_delivery=delivered)
    assert producer.flush(WAIT_S) == 0 and not failures, failures


@asynccontextmanager
async def classic_member(bootstrap: str, group: str, topic: str, client_id: str) -> AsyncIterator[AIOKafkaConsumer]:
    """A member of a classic group, with its assignment."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, client_id=client_id, enable_auto_commit=False
    )
    await consumer.start()
    try:
        await until(lambda: bool(consumer.assignment()))
        yield consumer
    finally:
        await consumer.stop()


@asynccontextmanager
async def consumer_member(bootstrap: str, group: str, topic: str, client_id: str) -> AsyncIterator[Consumer]:
    """A member of a consumer group (KIP-848), with its assignment."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "client.id": client_id, "group.protocol": "consumer"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "log_level": 0})
    consumer.subscribe([topic])
    try:
        deadline = time.monotonic() + WAIT_S
        while not consumer.assignment():
            assert time.monotonic() < deadline
            await asyncio.to_thread(consumer.poll, 0.1)
        yield consumer
    finally:
        await asyncio.to_thread(consumer.close)


async def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
