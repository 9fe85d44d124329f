"""The connector in Spark itself: filters, streams that begin again, and a log that grows under them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.data.known import LOGS, answers, messages
from tests.e2e.process import ServerProcess
from tests.unit.spark.log_rig import LogRig, commit

WAIT_S = 120


def read(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("kcoord").options(**options).load(str(path))


def test_a_brokers_messages_in_spark(spark: SparkSession) -> None:
    found = read(spark, LOGS, table="messages", subscribe="payments,orders")
    seen = Counter(one["topic"] for one in messages() if one["committed"] and one["topic"] in ("payments", "orders"))
    assert dict(seen) == {row["topic"]: row["count"] for row in found.groupBy("topic").count().collect()}


def test_filters_give_the_same_whether_handed_down_or_not(spark: SparkSession) -> None:
    group = next(iter(answers()["committed"]))
    found = []
    for pushdown in ("false", "true"):
        frame = read(spark, LOGS, pushdown=pushdown).where(f"group_id = '{group}' and log_offset > 3 and partition = 0")
        found.append(sorted((row["log_partition"], row["log_offset"]) for row in frame.collect()))
    assert found[0] == found[1] != []


def test_records_of_some_types_whether_handed_down_or_not(spark: SparkSession) -> None:
    wanted = (
        "record_type in (2, 3, 4, 5) and log_topic = '__consumer_offsets'", "record_name = 'group_metadata'",
        "producer_id is not null", "producer_id is null and record_name in ('offset_commit', 'partition_record')",
    )  # fmt: skip
    for where in wanted:
        found = []
        for pushdown in ("false", "true"):
            frame = read(spark, LOGS, table="records", pushdown=pushdown).where(where)
            found.append(sorted(frame.select("log_topic", "log_partition", "log_offset", "topic").collect(), key=str))
        assert found[0] == found[1] != []


def test_columns_by_option_and_by_schema(spark: SparkSession, tmp_path: Path) -> None:
    log = LogRig(tmp_path, "__consumer_offsets")
    log.append(commit("g", "t", 0, 1), commit("g", "t", 1, 2))
    chosen = read(spark, tmp_path, columns="committed_offset,group_id")
    given = spark.read.format("kcoord").schema("committed_offset bigint, group_id string").load(str(tmp_path))
    for found in (chosen, given):
        assert found.columns == ["committed_offset", "group_id"]
        assert [tuple(row) for row in found.collect()] == [(1, "g"), (2, "g")]
    with pytest.raises(PySparkException, match="has no nothing; it has log, log_topic"):
        read(spark, tmp_path, columns="nothing")
    with pytest.raises(PySparkException, match="group_id is bigint; in the table offset_commits it is string"):
        spark.read.format("kcoord").schema("group_id bigint").load(str(tmp_path)).collect()


def test_mistakes_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="no table nonsense"):
        read(spark, tmp_path, table="nonsense")
    log = LogRig(tmp_path, "__consumer_offsets")
    log.append(commit("g", "t", 0, 1))
    log.write(b"\xff" * 100)
    log.append(commit("g", "t", 0, 2))
    with pytest.raises(PySparkException, match="onCorrupt=collect"):
        read(spark, tmp_path).collect()
    assert read(spark, tmp_path, onCorrupt="collect").count() == 2
    assert read(spark, tmp_path, table="_corrupt").select("size_bytes").collect()[0][0] == 100


def run(spark: SparkSession, data: Path, out: Path, **options: str) -> list[int]:
    """A query with Trigger.AvailableNow from its checkpoint; rows of each batch."""
    given = {
        "table": "messages", "columns": "partition,offset,value", "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "40", **options,
    }  # fmt: skip
    query = (
        spark.readStream.format("kcoord").options(**given).load(str(data))
        .selectExpr("partition", "offset", "cast(value as string) as value")
        .writeStream.format("parquet").option("checkpointLocation", str(out / "checkpoint"))
        .trigger(availableNow=True).start(str(out / "rows"))
    )  # fmt: skip
    assert query.awaitTermination(WAIT_S)
    return [int(progress["numInputRows"]) for progress in query.recentProgress]


def produce(bootstrap: str, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(first, first + count):
        producer.produce("orders", str(number).encode(), partition=number % 2)
    assert producer.flush(30) == 0


def test_a_stream_over_a_live_log_loses_and_repeats_nothing(spark: SparkSession, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    with ServerProcess(data, "--set", "num.partitions=2") as server:
        for first in (0, 100):
            produce(server.bootstrap, first, 100)
            batches = run(spark, data, out, until="written", subscribe="orders")
            assert sum(batches) == 100
            assert max(batches) <= 40
        server.kill()
    with ServerProcess(data, "--set", "num.partitions=2") as server:
        produce(server.bootstrap, 200, 50)
        assert server.stop() == 0
    # Now everything is durable, as the marks of a stopped server say.
    assert sum(run(spark, data, out, subscribe="orders")) == 50
    rows = spark.read.parquet(str(out / "rows")).collect()
    assert Counter(int(row["value"]) for row in rows) == Counter(range(250))
    assert {(row["partition"], row["offset"]) for row in rows} == {(n % 2, n // 2) for n in range(250)}
