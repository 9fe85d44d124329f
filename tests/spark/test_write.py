"""`df.write.format("kcoord")` in a session: what Spark itself says about modes, and a log that went through it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from kcoord.cli.main import main

ROWS = 2000


def commits(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, numPartitions=3).selectExpr(
        "concat('group-', id % 10) as group_id",
        "'orders' as topic",
        "cast(id % 4 as int) as partition",
        "id as committed_offset",
        "timestamp_millis(1760000000000 + id) as commit_timestamp",
    )


def read(spark: SparkSession, path: Path, table: str) -> DataFrame:
    return spark.read.format("kcoord").option("table", table).load(str(path))


def test_commits_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log"
    given = commits(spark)
    saving = given.write.format("kcoord").option("offsetsPartitions", 4).option("compression", "zstd")
    saving.mode("append").save(str(path))
    assert os.listdir(tmp_path) == ["log"]
    found = read(spark, path, "offset_commits")
    columns = given.columns
    assert sorted(found.select(columns).collect()) == sorted(given.collect())
    # Of each group the order is that of the rows.
    [[disordered]] = (
        found.selectExpr(
            "committed_offset - lag(committed_offset) over "
            "(partition by group_id order by log_partition, log_offset) as step"
        )
        .selectExpr("count_if(step <= 0)")
        .collect()
    )
    assert disordered == 0
    verified = CliRunner().invoke(main, ["log", "verify", str(path)])
    assert verified.exit_code == 0 and "no problems found" in verified.output, verified.output

    with pytest.raises(PySparkException, match="nothing can be appended"):
        saving.mode("append").save(str(path))
    with pytest.raises(PySparkException, match="(?i)errorifexists"):
        saving.mode("errorifexists").save(str(path))
    # What is written may come from the very log that it replaces.
    found.where("group_id = 'group-3'").write.format("kcoord").mode("overwrite").save(str(path))
    assert read(spark, path, "offset_commits").count() == ROWS // 10
    assert os.listdir(tmp_path) == ["log"]


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    bad = commits(spark).selectExpr(
        "group_id",
        "topic",
        "partition",
        "if(committed_offset < 1990, committed_offset, null) as committed_offset",
    )
    with pytest.raises(PySparkException, match="committed_offset is null"):
        bad.write.format("kcoord").mode("append").save(str(tmp_path / "log"))
    assert os.listdir(tmp_path) == []


def test_messages_keep_their_offsets_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    given = spark.range(100, 400).selectExpr(
        "cast(id as string) as key",
        "cast(concat('value ', id) as binary) as value",
        "'orders' as topic",
        "cast(id % 2 as int) as partition",
        "id * 3 as offset",
        "timestamp_millis(1760000000000 + id) as timestamp",
        "array(named_struct('key', 'k', 'value', cast('v' as binary))) as headers",
    )
    ordered = given.orderBy("topic", "partition", "offset")
    ordered.write.format("kcoord").option("keepOffsets", True).mode("append").save(str(tmp_path / "log"))
    found = read(spark, tmp_path / "log", "messages")
    columns = ["value", "topic", "partition", "offset", "timestamp", "headers"]
    assert sorted(found.select(columns).collect()) == sorted(given.select(columns).collect())
