"""A client of the kill loop, in a process of its own: it produces and commits for ever and says what was acknowledged.

    python -m tests.crash.kill_client LIBRARY BOOTSTRAP

The consumers of three libraries commit what they like without being members of their groups; `consumer-protocol` is a
member of a consumer group (KIP-848), with confluent-kafka.

On standard output, after the acknowledgement: `record OFFSET VALUE` and `commit NUMBER`; before a commit is sent,
`asked NUMBER`. Errors while the server is away are ignored: what they were about may be there or not.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Any

BURST = 8
TIMEOUT_S = 5.0


def report(*words: object) -> None:
    print(*words, flush=True)


async def run_aiokafka(bootstrap: str, topic: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
    from aiokafka.errors import KafkaError

    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", request_timeout_ms=2000)
    await producer.start()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=topic, enable_auto_commit=False, request_timeout_ms=2000
    )
    await consumer.start()
    consumer.assign([TopicPartition(topic, 0)])
    number = 0
    while True:
        sent: list[tuple[Any, str]] = []
        with suppress(KafkaError):
            for _ in range(BURST):
                number += 1
                value = f"{topic}-{number}"
                sent.append((await producer.send(topic, value.encode(), partition=0), value))
        for future, value in sent:
            with suppress(KafkaError):
                report("record", (await future).offset, value)
        with suppress(KafkaError):
            report("asked", number)
            await consumer.commit({TopicPartition(topic, 0): number})
            report("commit", number)


def run_kafka_python(bootstrap: str, topic: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

    quick = {"bootstrap_servers": bootstrap, "reconnect_backoff_ms": 50, "reconnect_backoff_max_ms": 200}
    producer = KafkaProducer(acks="all", **quick)
    consumer = KafkaConsumer(group_id=topic, enable_auto_commit=False, **quick)
    consumer.assign([TopicPartition(topic, 0)])
    number = 0
    while True:
        sent = []
        for _ in range(BURST):
            number += 1
            value = f"{topic}-{number}"
            with suppress(KafkaError):
                sent.append((producer.send(topic, value.encode(), partition=0), value))
        for future, value in sent:
            with suppress(KafkaError):
                report("record", future.get(TIMEOUT_S).offset, value)
        with suppress(KafkaError):
            report("asked", number)
            consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(number, "", -1)})
            report("commit", number)


def run_confluent(bootstrap: str, topic: str, member: bool) -> None:
    from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

    quick = {"bootstrap.servers": bootstrap, "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200}
    quiet = {"log_level": 0, "error_cb": lambda error: None}
    producer = Producer({**quick, **quiet, "acks": "all", "linger.ms": 1})
    protocol = {"group.protocol": "consumer", "topic.metadata.refresh.interval.ms": 500} if member else {}
    consumer = Consumer({**quick, **quiet, **protocol, "group.id": topic, "enable.auto.commit": False})
    if member:
        producer.list_topics(topic, TIMEOUT_S)  # which makes it
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.05)
    else:
        consumer.assign([TopicPartition(topic, 0)])

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            report("record", message.offset(), message.value().decode())

    number = 0
    while True:
        for _ in range(BURST):
            number += 1
            producer.produce(topic, f"{topic}-{number}".encode(), partition=0, on_delivery=delivered)
        producer.flush(TIMEOUT_S)
        if member:
            consumer.poll(0)  # what it is told of its group; a member that never polls has to go
        with suppress(KafkaException):
            report("asked", number)
            for done in consumer.commit(offsets=[TopicPartition(topic, 0, number)], asynchronous=False):
                if done.error is None:
                    report("commit", number)


def main() -> None:
    library, bootstrap = sys.argv[1:]
    topic = f"kill-{library}"
    if library == "aiokafka":
        asyncio.run(run_aiokafka(bootstrap, topic))
    elif library == "kafka-python":
        run_kafka_python(bootstrap, topic)
    else:
        run_confluent(bootstrap, topic, member=library == "consumer-protocol")


if __name__ == "__main__":
    main()
