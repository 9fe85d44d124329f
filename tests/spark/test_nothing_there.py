"""A table of a directory that holds nothing of its kind is empty, and no failure."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.unit.spark.log_rig import LogRig


def test_a_table_may_have_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    LogRig(tmp_path).append((b"k", b"v"))
    reader = spark.read.format("kcoord")
    assert reader.option("table", "transactions").load(str(tmp_path)).collect() == []
    assert reader.option("table", "messages").load(str(tmp_path)).count() == 1
