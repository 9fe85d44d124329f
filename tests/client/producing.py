"""What holds for the producer with every broker: the same checks run with kcoord and with Kafka."""

from __future__ import annotations

import asyncio
import random

from confluent_kafka import Consumer, Message, TopicPartition

from kcoord.client.cluster import Cluster, ClusterOptions, parse_bootstrap
from kcoord.client.deadline import Deadline
from kcoord.client.errors import ConnectionLost, check
from kcoord.client.producer import Producer, RecordMetadata
from kcoord.client.producer.partitioner import partition_of_key
from kcoord.protocol import apis
from kcoord.protocol.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

READ_DEADLINE_S = 30.0
PARTITIONS = 3


async def create_topic(bootstrap: str, topic: str) -> None:
    cluster = Cluster(ClusterOptions(parse_bootstrap(bootstrap)))
    await cluster.start()
    try:
        # Tests write records of 2023. A broker deletes them half a minute after its start if they can expire.
        forever = [CreatableTopicConfig("retention.ms", "-1")]
        request = CreateTopicsRequest([CreatableTopic(topic, PARTITIONS, 1, [], forever)], 20_000)

        async def create() -> None:
            answer = await cluster.ask(
                cluster.metadata.controller_id, apis.CREATE_TOPICS, request, CreateTopicsResponse
            )
            check(answer.topics[0].error_code, topic, answer.topics[0].error_message)

        await cluster.retry(Deadline(READ_DEADLINE_S), create)
    finally:
        await cluster.close()


def read_all(bootstrap: str, topic: str, count: int) -> dict[int, list[Message]]:
    """All records of a topic by partition, read by librdkafka. Fails if there are more or fewer than `count`."""
    settings: dict[str, str | bool] = {
        "bootstrap.servers": bootstrap,
        "group.id": "reader",
        "enable.auto.commit": False,
    }
    settings["auto.offset.reset"] = "earliest"
    consumer = Consumer(settings)
    found: dict[int, list[Message]] = {number: [] for number in range(PARTITIONS)}
    try:
        partitions = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
        ends = [consumer.get_watermark_offsets(one, timeout=READ_DEADLINE_S)[1] for one in partitions]
        assert sum(ends) == count
        consumer.assign(partitions)
        deadline = Deadline(READ_DEADLINE_S)
        while sum(len(records) for records in found.values()) < count:
            for message in consumer.consume(500, 0.5):
                assert message.error() is None
                found[message.partition() or 0].append(message)
            lengths = [len(records) for records in found.values()]
            assert not deadline.is_over(), f"read {lengths} of {ends}"
    finally:
        consumer.close()
    return found


async def check_codec(bootstrap: str, topic: str, codec: str | None) -> None:
    """Keys, values, headers and timestamps arrive, in partitions that the keys decide."""
    await create_topic(bootstrap, topic)
    sent: list[asyncio.Future[RecordMetadata]] = []
    async with Producer(bootstrap_servers=bootstrap, compression_type=codec) as producer:
        for number in range(300):
            key, value = b"key-%d" % number, b"%d" % number * 20 if number % 7 else None
            headers = [("number", b"%d" % number), ("none", None)] if number % 3 else None
            sent.append(
                await producer.send_nowait(topic, value, key, headers=headers, timestamp_ms=1_700_000_000_000 + number)
            )
        await producer.flush()
    found = await asyncio.to_thread(read_all, bootstrap, topic, len(sent))
    for number, future in enumerate(sent):
        where = future.result()
        assert where.partition == partition_of_key(b"key-%d" % number, PARTITIONS)
        record = found[where.partition][where.offset]
        assert record.key() == b"key-%d" % number
        assert record.value() == (b"%d" % number * 20 if number % 7 else None)
        assert record.timestamp()[1] == where.timestamp_ms == 1_700_000_000_000 + number
        assert len(record.headers() or []) == (2 if number % 3 else 0)


async def check_order(bootstrap: str, topic: str, sent: list[asyncio.Future[RecordMetadata]]) -> None:
    """Record i of partition i % PARTITIONS is there exactly once, and in order."""
    found = await asyncio.to_thread(read_all, bootstrap, topic, len(sent))
    for partition, records in found.items():
        assert [int(record.value() or b"") for record in records] == list(range(partition, len(sent), PARTITIONS))
    for number, future in enumerate(sent):
        where = future.result()
        assert where.offset in (-1, number // PARTITIONS)


async def check_killed_connections(bootstrap: str, topic: str, count: int, seed: int) -> None:
    """Every record is written exactly once and in order, however often connections end."""
    chance = random.Random(seed)
    await create_topic(bootstrap, topic)
    producer = Producer(bootstrap_servers=bootstrap, batch_bytes_max=500, linger_ms=1, retry_backoff_ms=5)
    sent: list[asyncio.Future[RecordMetadata]] = []
    kills = 0
    async with producer:
        assert producer._sender is not None
        cluster = producer._sender.cluster
        for number in range(count):
            sent.append(await producer.send_nowait(topic, b"%020d" % number, partition=number % PARTITIONS))
            if chance.random() < 0.01:
                await asyncio.sleep(chance.choice((0, 0, 0.001, 0.005)))
                connection = cluster.open_connection(cluster.metadata.controller_id)
                if connection is not None and connection.in_flight:
                    kills += 1
                    connection.abort(ConnectionLost("killed by the test"))
        await producer.flush()
    assert kills
    await check_order(bootstrap, topic, sent)
