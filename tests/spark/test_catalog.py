"""Tables of Spark's catalog, views, several paths and modes of writing: what Spark itself makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.unit.spark.log_rig import LogRig, commit


@pytest.fixture
def data(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    log = LogRig(tmp_path / "data", "__consumer_offsets")
    log.append(commit("g", "t", 0, 1), commit("g", "t", 1, 2))
    yield tmp_path / "data"
    for name in ("commits", "listed"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")
    spark.sql("DROP VIEW IF EXISTS seen")


def test_a_table_of_the_catalog(spark: SparkSession, data: Path) -> None:
    spark.sql(
        f"CREATE TABLE commits USING kcoord OPTIONS (path '{data}', `table` 'offset_commits', "
        "columns 'group_id,committed_offset') COMMENT 'offsets' TBLPROPERTIES (team = 'data')"
    )
    assert [tuple(row) for row in spark.sql("SELECT * FROM commits").collect()] == [("g", 1), ("g", 2)]
    assert spark.read.option("where", '{"partition": 1}').table("commits").count() == 1
    with pytest.raises(PySparkException, match="a path is needed.*INSERT"):
        spark.sql("INSERT INTO commits VALUES ('g', 3)")
    spark.sql("DROP TABLE commits")
    assert list(data.iterdir()) == [data / "__consumer_offsets-0"]


def test_a_table_with_a_column_list_gets_its_options_with_each_read(spark: SparkSession, data: Path) -> None:
    """Spark passes none, neither when such a table is created nor when it is read."""
    spark.sql(f"CREATE TABLE listed (group_id STRING, committed_offset BIGINT) USING kcoord OPTIONS (path '{data}')")
    with pytest.raises(PySparkException, match=r"created with a column list.*WITH \(path"):
        spark.sql("SELECT * FROM listed").collect()
    rows = spark.sql(f"SELECT * FROM listed WITH (path = '{data}')").collect()
    assert [tuple(row) for row in rows] == [("g", 1), ("g", 2)]


def test_a_temporary_view(spark: SparkSession, data: Path) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW seen USING kcoord OPTIONS (path '{data}', `table` 'records')")
    assert spark.sql("SELECT record_name FROM seen").collect() == [("offset_commit",)] * 2


def test_several_paths(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    LogRig(tmp_path / "more", "__consumer_offsets").append(commit("h", "t", 0, 1))
    found = spark.read.format("kcoord").load([str(data), str(tmp_path / "more")])
    assert sorted({(row.log, row.group_id) for row in found.collect()}) == [
        (str(data), "g"), (str(tmp_path / "more"), "h")
    ]  # fmt: skip


def test_modes_that_spark_refuses(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    writer = spark.read.format("kcoord").load(str(data)).write.format("kcoord")
    for mode in ("errorifexists", "ignore"):
        with pytest.raises(PySparkException, match='use either the "Append" or "Overwrite" mode'):
            writer.mode(mode).save(str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
