"""The log that the jobs are measured on is one that they can be measured on: all of it is there, and it makes sense."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench import process_memory, spark_log
from kcoord.spark.jobs.rebalances import rebalances
from kcoord.spark.jobs.verify import verify

ROWS = 4_000
GROUPS = 10


@pytest.mark.nightly
def test_the_measured_log(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    with process_memory.Sampler() as sampler:
        spark_log.write(spark, path, ROWS, GROUPS)
    # The JVM and the workers were seen.
    peaks = sampler.peaks()
    assert peaks["jvm_mb"] > 100 and peaks["driver_mb"] > 10 and peaks["cpu_s"] > 0.1
    assert peaks["workers_mb"] >= peaks["worker_mb"] > 10

    def table(name: str, **more: str) -> DataFrame:
        return spark.read.format("kcoord").option("table", name).options(**more).load(path)

    commits = table("offset_commits")
    messages = table("messages")
    records = table("records", isolationLevel="read_uncommitted").where("log_topic = '__consumer_offsets'").persist()
    assert commits.count() == ROWS * spark_log.COMMITS_PART
    assert messages.count() == ROWS / 10
    assert records.where("record_type = 2").count() == ROWS / 100
    # Times rise within a partition, and nobody is ahead of the messages.
    ends = messages.groupBy("topic", "partition").agg((F.max("offset") + 1).alias("end"))
    joined = commits.join(ends, ["topic", "partition"], "left")
    assert joined.where("committed_offset > coalesce(end, 0) or leader_epoch != 7").count() == 0
    assert commits.select("group_id").distinct().count() == GROUPS
    # Four generations of each group, and in every one after the first somebody comes or goes.
    found = rebalances(records)
    assert found.where("partitions_moved > 0").count() > 0
    assert found.groupBy("group_id").agg(F.max("to_epoch").alias("last")).where("last = 4").count() == GROUPS
    assert [row.message for row in verify(records, {}, spark_log.OFFSETS_PARTITIONS).take(3)] == []
    records.unpersist()
