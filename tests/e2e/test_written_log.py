"""A log that `df.write.format("kcoord")` made, served: clients find the offsets, the messages and the topics in it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from click.testing import CliRunner
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as KafkaPartition
from pyspark.sql.types import StructType

from kcoord.cli.main import main
from kcoord.log.serde import encode_record
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.spark.source import KcoordDataSource
from tests.e2e.process import ServerProcess

GROUPS = 40
# Younger than what retention takes.
NOW = datetime.now(UTC).replace(microsecond=0)
TIMES = pa.timestamp("us", tz="UTC")


def save(path: Path, *tasks: pa.RecordBatch, **options: str) -> None:
    schema = StructType()
    for name in tasks[0].schema.names:
        schema = schema.add(name, "string")
    writer: Any = KcoordDataSource({"path": str(path), **options}).writer(schema, False)
    writer.commit([writer.write(iter([task])) for task in tasks])


def messages(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "topic": ["orders"] * count,
            "partition": pa.array([number % 2 for number in numbers], pa.int32()),
            "key": [b"%d" % number for number in numbers],
            "value": [b"value %d" % number for number in numbers],
            "timestamp": pa.array([NOW + timedelta(milliseconds=number) for number in numbers], TIMES),
        }
    )


async def consumed(bootstrap: str, count: int, start: dict[TopicPartition, int]) -> dict[int, list[bytes]]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign(list(start))
        for partition, offset in start.items():
            consumer.seek(partition, offset)
        found: dict[int, list[bytes]] = {}
        for _ in range(count):
            record = await asyncio.wait_for(consumer.getone(), 60)
            found.setdefault(record.partition, []).append(record.value)
        return found
    finally:
        await consumer.stop()


async def produced(bootstrap: str) -> int:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    await producer.start()
    try:
        sent = await producer.send_and_wait("orders", b"one more", partition=0)
        return int(sent.offset)
    finally:
        await producer.stop()


def offset_of(bootstrap: str, group: str, topic: str, partition: int) -> int:
    consumer = ConfluentConsumer({"bootstrap.servers": bootstrap, "group.id": group})
    [found] = consumer.committed([KafkaPartition(topic, partition)], timeout=60)
    consumer.close()
    return int(found.offset)


def commit(bootstrap: str, group: str, topic: str, partition: int, offset: int) -> None:
    consumer = ConfluentConsumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[KafkaPartition(topic, partition, offset)], asynchronous=False)
    consumer.close()


def verified(path: Path) -> None:
    done = CliRunner().invoke(main, ["log", "verify", str(path)])
    assert done.exit_code == 0 and "no problems found" in done.output, done.output


def test_clients_fetch_the_committed_offsets(tmp_path: Path) -> None:
    path = tmp_path / "data"
    count = 2000
    numbers = range(count)
    rows = pa.record_batch(
        {
            "group_id": [f"group-{number % GROUPS}" for number in numbers],
            "topic": ["orders"] * count,
            "partition": pa.array([number % 2 for number in numbers], pa.int32()),
            "committed_offset": pa.array(list(numbers)),
            "commit_timestamp": pa.array([NOW] * count, TIMES),
        }
    )
    topics = '{"orders": {"partitions": 2}}'
    save(path, rows.slice(0, 700), rows.slice(700), offsetsPartitions="7", compression="lz4", topics=topics)
    # Where the server's own setting differs, the directory's number counts.
    for life in range(2):
        with ServerProcess(path) as server:
            for number in range(count - GROUPS, count):
                wanted = number if life == 0 or number != count - 1 else 5
                assert offset_of(server.bootstrap, f"group-{number % GROUPS}", "orders", number % 2) == wanted
            assert offset_of(server.bootstrap, "stranger", "orders", 0) < 0
            if life == 0:
                commit(server.bootstrap, f"group-{(count - 1) % GROUPS}", "orders", 1, 5)
                server.kill()
    verified(path)


async def test_clients_read_the_messages_and_continue(tmp_path: Path) -> None:
    path = tmp_path / "data"
    save(path, messages(0, 600), messages(600, 400), compression="zstd", batchRecords="50")
    partitions = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
    with ServerProcess(path) as server:
        found = await consumed(server.bootstrap, 1000, dict.fromkeys(partitions, 0))
        assert found == {p: [b"value %d" % number for number in range(p, 1000, 2)] for p in range(2)}
        assert await produced(server.bootstrap) == 500
        server.kill()
    with ServerProcess(path) as server:
        assert await consumed(server.bootstrap, 2, {partitions[0]: 499}) == {0: [b"value 998", b"one more"]}
        assert server.stop() == 0
    verified(path)


async def test_logs_that_begin_later_and_have_gaps_survive_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "data"
    offsets = [1000, 1001, 1010, 1011, 5000]
    rows = messages(0, 10).take(pa.array(range(0, 10, 2)))
    rows = rows.append_column("offset", pa.array(offsets))
    save(path, rows.slice(0, 2), rows.slice(2), keepOffsets="true")
    partition = TopicPartition("orders", 0)
    for life in range(3):
        with ServerProcess(path) as server:
            found = await consumed(server.bootstrap, 5 + life, {partition: 1000})
            assert found[0] == [b"value %d" % number for number in range(0, 10, 2)] + [b"one more"] * life
            assert await produced(server.bootstrap) == 5001 + life
            server.kill()


def test_records_of_a_coordinator_become_a_server_s(tmp_path: Path) -> None:
    path = tmp_path / "data"
    now_ms = int(NOW.timestamp() * 1000)
    pairs = [
        encode_record(OffsetCommitKey(f"group-{n}", "orders", 0), OffsetCommitValue(n, commit_timestamp=now_ms))
        for n in range(GROUPS)
    ]
    rows = pa.record_batch(
        {
            "log_topic": ["__consumer_offsets"] * GROUPS,
            "log_partition": pa.array([n % 50 for n in range(GROUPS)], pa.int32()),
            "key": [key for key, _ in pairs],
            "value": [value for _, value in pairs],
            "log_timestamp": pa.array([NOW] * GROUPS, TIMES),
        }
    )
    save(path, rows, offsetsPartitions="3")
    with ServerProcess(path) as server:
        for n in range(GROUPS):
            assert offset_of(server.bootstrap, f"group-{n}", "orders", 0) == n
