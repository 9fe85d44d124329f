"""One consumer of a client library for `bench.client_consume`: client_consume_child CLIENT HOST PORT BYTES RECORDS

Reads a whole topic from its beginning, without a group's offsets, in batches as the library offers them. The clock
starts at the first record. Prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Final

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition as AioPartition
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition

from kcoord.client import Consumer, Producer, TopicPartition

PARTITIONS: Final = 4
BATCH_BYTES: Final = 16_384
POLL_MAX: Final = 500
PARTITION_BYTES: Final = 1_048_576


class Clock:
    """Starts at the first record, and fails if they are not as many as expected."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.seen = 0
        self.first_s = self.last_s = 0.0
        self.first_cpu = self.last_cpu = 0.0
        self.skipped = 0

    def note(self, count: int) -> bool:
        """Whether all records have been seen."""
        if count:
            if not self.seen:
                self.first_s, self.first_cpu, self.skipped = time.perf_counter(), cpu_s(), count
            self.seen += count
        if self.seen < self.expected:
            return False
        self.last_s, self.last_cpu = time.perf_counter(), cpu_s()
        return True

    def figures(self, size: int) -> dict[str, float]:
        count = self.seen - self.skipped
        elapsed = self.last_s - self.first_s
        return {
            "records_per_s": count / elapsed,
            "mb_s": count * size / elapsed / 1e6,
            "cpu_us": (self.last_cpu - self.first_cpu) / count * 1e6,
        }


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def kcoord(bootstrap: str, topic: str, clock: Clock) -> None:
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        while not clock.note(len(await consumer.poll(1.0, POLL_MAX))):
            pass


async def kcoord_iterate(bootstrap: str, topic: str, clock: Clock) -> None:
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        async for _ in consumer:
            if clock.note(1):
                break


async def aiokafka(bootstrap: str, topic: str, clock: Clock) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_partition_fetch_bytes=PARTITION_BYTES
    )
    async with consumer:
        consumer.assign([AioPartition(topic, number) for number in range(PARTITIONS)])
        while True:
            found = await consumer.getmany(timeout_ms=1000, max_records=POLL_MAX)
            if clock.note(sum(len(records) for records in found.values())):
                break


def kafka_python(bootstrap: str, topic: str, clock: Clock) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_partition_fetch_bytes=PARTITION_BYTES
    )
    consumer.assign([PythonPartition(topic, number) for number in range(PARTITIONS)])
    while True:
        found = consumer.poll(timeout_ms=1000, max_records=POLL_MAX)
        if clock.note(sum(len(records) for records in found.values())):
            break
    consumer.close()


def confluent(bootstrap: str, topic: str, clock: Clock) -> None:
    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "client-consume",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "max.partition.fetch.bytes": PARTITION_BYTES,
        }
    )
    consumer.assign([ConfluentPartition(topic, number, 0) for number in range(PARTITIONS)])
    while True:
        found = consumer.consume(POLL_MAX, 1.0)
        for message in found:
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
        if clock.note(len(found)):
            break
    consumer.close()


async def fill(bootstrap: str, topic: str, clock: Clock) -> None:
    value = b"x" * int(topic.rsplit("-", 1)[1])
    async with Producer(bootstrap_servers=bootstrap, batch_bytes_max=BATCH_BYTES) as producer:
        for number in range(clock.expected):
            await producer.send_nowait(topic, value, partition=number // 100 % PARTITIONS)
        await producer.flush()
    clock.note(1)
    clock.note(clock.expected - 1)


def run_async(client: Callable[..., object]) -> Callable[[str, str, Clock], None]:
    def run(bootstrap: str, topic: str, clock: Clock) -> None:
        asyncio.run(client(bootstrap, topic, clock))  # type: ignore[arg-type]

    return run


CLIENTS: Final[dict[str, Callable[[str, str, Clock], None]]] = {
    "kcoord": run_async(kcoord),
    "kcoord-iterate": run_async(kcoord_iterate),
    "aiokafka": run_async(aiokafka),
    "kafka-python": kafka_python,
    "confluent-kafka": confluent,
    "fill": run_async(fill),
}


def main() -> int:
    client, host, port, size, records = sys.argv[1:]
    clock = Clock(int(records))
    CLIENTS[client](f"{host}:{port}", f"client-consume-{size}", clock)
    print(json.dumps(clock.figures(int(size))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
