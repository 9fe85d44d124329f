"""Spark's own Kafka source on the server, in batches and as streams; beside it kcoord's source on the server's files.

What both sources read must be the same, row for row and column for column. `--target=kafka` runs all of it on a real
broker and its files.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.interop.conftest import Target, start_target

PARTITIONS = 3
# A micro-batch takes a second; on a busy machine it has taken ten.
DEADLINE_S = 90
COLUMNS = "topic string, partition int, key binary, value binary, headers array<struct<key:string,value:binary>>"
Headers = list[tuple[str, bytes | None]]
Message = tuple[str, int, bytes | None, bytes | None, Headers | None]


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    with start_target(request.config, {"num.partitions": str(PARTITIONS)}) as running:
        yield running


@pytest.fixture(scope="module")
def at(target: Target) -> dict[str, str]:
    """Options that all of these reads and writes need."""
    return {"kafka.bootstrap.servers": target.bootstrap, "includeHeaders": "true"}


def messages(topic: str, first: int, count: int) -> list[Message]:
    """Spread over the partitions; some have no key, no value, empty ones, or headers of every kind."""
    headers: list[Headers | None] = [None, [("a", b"1"), ("a", b"2")], [("", b""), ("gr\xfcn", None)]]
    return [
        (
            topic,
            i % PARTITIONS,
            None if i % 5 == 0 else b"" if i % 11 == 0 else b"key %d" % i,
            None if i % 7 == 3 else b"" if i % 13 == 0 else b"value %d \x00\xff" % i,
            headers[i // PARTITIONS % len(headers)],
        )
        for i in range(first, first + count)
    ]  # fmt: skip


def write(spark: SparkSession, at: dict[str, str], sent: list[Message], **more: str) -> None:
    frame = spark.createDataFrame(sent, COLUMNS).coalesce(1)
    frame.write.format("kafka").options(**at, **more).save()


def read(spark: SparkSession, at: dict[str, str], **more: str) -> list[Row]:
    return in_order(spark.read.format("kafka").options(**at, **more).load())


def in_order(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def places(rows: list[Row]) -> list[tuple[str, int, int]]:
    return [(row.topic, row.partition, row.offset) for row in rows]


def sent_as(rows: list[Row]) -> list[Message]:
    return [(row.topic, row.partition, row.key, row.value, row.headers) for row in rows]


def by_partition(sent: list[Message]) -> list[Message]:
    """In the order of a read: that within a partition stays."""
    return sorted(sent, key=lambda message: message[:2])


def finished(query: StreamingQuery) -> int:
    """Number of rows that a query with Trigger.AvailableNow read until it ended."""
    try:
        assert query.awaitTermination(DEADLINE_S), f"the query still runs: {query.lastProgress}"
    finally:
        query.stop()
    return sum(progress.numInputRows for progress in query.recentProgress)


def test_what_is_written_is_read_back(spark: SparkSession, at: dict[str, str]) -> None:
    topic = "spark-batch"
    sent = messages(topic, 0, 45)
    began = time.time() - 1
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        write(spark, at, sent[number * 9 : number * 9 + 9], **{"kafka.compression.type": codec})
    rows = read(spark, at, subscribe=topic)
    assert sent_as(rows) == by_partition(sent)
    assert places(rows) == [(topic, partition, offset) for partition in range(PARTITIONS) for offset in range(15)]
    assert all(began <= row.timestamp.timestamp() <= time.time() + 1 and row.timestampType == 0 for row in rows)


def test_offsets_may_be_given(spark: SparkSession, at: dict[str, str]) -> None:
    topic = "spark-offsets"
    sent = messages(topic, 0, 30)
    write(spark, at, sent)
    rows = read(
        spark,
        at,
        assign=json.dumps({topic: [0, 2]}),
        startingOffsets=json.dumps({topic: {"0": -2, "2": 3}}),
        endingOffsets=json.dumps({topic: {"0": 4, "2": -1}}),
    )
    assert places(rows) == [(topic, 0, offset) for offset in range(4)] + [(topic, 2, offset) for offset in range(3, 10)]
    assert sent_as(rows) == by_partition(sent)[:4] + by_partition(sent)[23:]


def test_a_read_may_start_and_end_at_a_time(spark: SparkSession, at: dict[str, str]) -> None:
    topic = "spark-times"
    write(spark, at, messages(topic, 0, 9))
    time.sleep(0.01)
    middle = time.time_ns() // 1_000_000
    time.sleep(0.01)
    later = messages(topic, 9, 12)
    write(spark, at, later)
    times = json.dumps({topic: {str(partition): middle for partition in range(PARTITIONS)}})
    assert sent_as(read(spark, at, subscribe=topic, startingOffsetsByTimestamp=times)) == by_partition(later)
    before = read(spark, at, subscribe=topic, endingOffsetsByTimestamp=times)
    assert places(before) == [(topic, partition, offset) for partition in range(PARTITIONS) for offset in range(3)]
    future = {"subscribe": topic, "startingTimestamp": str(middle + 3_600_000)}
    assert read(spark, at, startingOffsetsByTimestampStrategy="latest", **future) == []
    with pytest.raises(Exception, match="(?i)no offset matched from request"):
        read(spark, at, **future)


@pytest.mark.parametrize("asks", ["admin", "consumer"])
def test_topics_may_be_given_by_a_pattern(spark: SparkSession, at: dict[str, str], asks: str) -> None:
    """Offsets and topics are asked for with an admin client, or, as Spark once did, with a member of a group."""
    left, right = f"spark-{asks}-left", f"spark-{asks}-right"
    sent = messages(left, 0, 6) + messages(right, 6, 6)
    write(spark, at, [*sent, *messages(f"{asks}-other", 0, 1)])
    name = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
    spark.conf.set(name, asks == "consumer")
    try:
        rows = read(spark, at, subscribePattern=f"spark-{asks}-.*", groupIdPrefix=asks)
    finally:
        spark.conf.unset(name)
    assert sent_as(rows) == by_partition(sent)


def test_a_stream_is_written_and_continues_from_its_checkpoint(
    spark: SparkSession, at: dict[str, str], tmp_path: Path
) -> None:
    source = tmp_path / "lines"
    source.mkdir()
    lines: list[bytes] = []

    def write_on(*files: str) -> int:
        for name in files:
            new = [f"{name} {i}" for i in range(10)]
            (source / f"{name}.txt").write_text("\n".join(new))
            lines.extend(line.encode() for line in new)
        frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(source))
        stream = frame.writeStream.format("kafka").options(**at, topic="spark-stream-to")
        return finished(
            stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )

    assert write_on("a", "b") == 20
    assert write_on("c") == 10
    assert sorted(row.value for row in read(spark, at, subscribe="spark-stream-to")) == lines


def test_a_stream_is_read_and_continues_from_its_checkpoint(
    spark: SparkSession, at: dict[str, str], tmp_path: Path
) -> None:
    topic = "spark-stream-from"

    def read_on() -> int:
        stream = spark.readStream.format("kafka").options(**at, subscribe=topic, startingOffsets="earliest")
        frame = stream.option("maxOffsetsPerTrigger", 15).load()
        out = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        return finished(out.trigger(availableNow=True).start(str(tmp_path / "rows")))

    first, second = messages(topic, 0, 30), messages(topic, 30, 12)
    write(spark, at, first)
    assert read_on() == 30
    write(spark, at, second)
    assert read_on() == 12
    rows = in_order(spark.read.parquet(str(tmp_path / "rows")))
    assert sent_as(rows) == by_partition(first + second)
    assert rows == read(spark, at, subscribe=topic)


def test_the_files_hold_what_the_server_answers(spark: SparkSession, target: Target, at: dict[str, str]) -> None:
    """Also what an earlier test wrote with every codec."""
    write(spark, at, messages("spark-files", 0, 30))
    pattern = "spark-(batch|files)"
    answered = spark.read.format("kafka").options(**at, subscribePattern=pattern).load()
    table = spark.read.format("kcoord").options(table="messages", subscribePattern=pattern).load(str(target.data))
    held = table.drop("log")
    assert held.schema == answered.schema
    rows = in_order(answered)
    assert ("spark-files", 2, 9) in places(rows)
    assert in_order(held) == rows


def test_the_files_are_followed_while_the_server_writes(
    spark: SparkSession, target: Target, at: dict[str, str], tmp_path: Path
) -> None:
    topic = "spark-followed"
    write(spark, at, messages(topic, 0, 15))
    seen: list[Row] = []

    def keep(frame: DataFrame, _: int) -> None:
        seen.extend(frame.collect())

    def wait_for(count: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while len(seen) < count:
            assert query.isActive, f"the query ended by itself: {query.exception()}"
            assert time.monotonic() < deadline, f"{len(seen)} of {count} rows were seen"
            time.sleep(0.05)

    stream = spark.readStream.format("kcoord").options(table="messages", subscribe=topic, startingOffsets="earliest")
    frame: Any = stream.load(str(target.data)).drop("log")
    query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path)).start()
    try:
        wait_for(15)
        write(spark, at, messages(topic, 15, 15))
        wait_for(30)
    finally:
        query.stop()
    assert sorted(seen, key=lambda row: (row.partition, row.offset)) == read(spark, at, subscribe=topic)
