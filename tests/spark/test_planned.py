"""Tables that the driver plans have the rows of the data source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kcoord.spark import planned
from kcoord.spark.planned import read_table
from kcoord.spark.reader.discovery import NothingToRead
from tests.unit.cli import rig
from tests.unit.spark.log_rig import LogRig


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("planned")
    log = rig.LogRig(root)
    log.create("orders", 1, 4)
    for number in range(20):
        log.commit(f"group-{number % 3}", 2, orders_0=number)
    log.stop()
    return str(root)


def of_source(spark: SparkSession, path: str, options: dict[str, str]) -> list[Any]:
    return spark.read.format("kcoord").options(**options).load(path).collect()


@pytest.mark.parametrize("table", ["offset_commits", "records", "topics", "transactions", "_history", "_corrupt"])
@pytest.mark.parametrize("more", [{}, {"minPartitions": "4"}])
def test_rows_are_those_of_the_data_source(spark: SparkSession, logs: str, table: str, more: dict[str, str]) -> None:
    options = {"table": table, **more}
    found = read_table(spark, logs, options)
    assert found.schema == spark.read.format("kcoord").options(**options).load(logs).schema
    assert sorted(map(str, found.collect())) == sorted(map(str, of_source(spark, logs, options)))


def test_options_narrow_what_is_read(spark: SparkSession, logs: str) -> None:
    options = {"table": "offset_commits", "columns": "committed_offset,group_id", "where": '{"group_id": "group-1"}'}
    found = read_table(spark, logs, options)
    assert found.columns == ["committed_offset", "group_id"]
    assert {row.group_id for row in found.collect()} == {"group-1"}


def test_more_slices_than_fit_into_a_plan_are_left_to_the_data_source(
    spark: SparkSession, logs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned, "TASKS_MAX", 0)
    options = {"table": "offset_commits"}
    assert len(read_table(spark, logs, options).collect()) == len(of_source(spark, logs, options))


def test_long_histories_are_read_by_workers(spark: SparkSession, logs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"table": "_history"}
    here = read_table(spark, logs, options).collect()
    monkeypatch.setattr(planned, "DRIVER_BYTES_MAX", -1)
    assert sorted(read_table(spark, logs, options).collect()) == sorted(here)


def test_records_of_producers_alone(spark: SparkSession, logs: str) -> None:
    options = {"table": "records", "isolationLevel": "read_uncommitted"}
    everything = read_table(spark, logs, options)
    of_producers = read_table(spark, logs, options, has_producer=True)
    others = read_table(spark, logs, options, has_producer=False)
    assert of_producers.where("producer_id is null").count() == 0
    assert of_producers.count() + others.count() == everything.count()


def test_a_table_may_have_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    LogRig(tmp_path).append((b"k", b"v"))
    assert read_table(spark, str(tmp_path), {"table": "transactions"}).collect() == []


def test_where_there_is_no_log_the_driver_says_so(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NothingToRead):
        read_table(spark, str(tmp_path), {"table": "messages"})
