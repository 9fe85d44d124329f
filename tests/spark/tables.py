"""Tables by hand: a few columns of a few rows, as the data source would give them. Times are seconds of one day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from kcoord.spark.tables.schemas import arrow_schema, spark_schema

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY = datetime(2026, 1, 31, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return DAY + timedelta(seconds=seconds)


def micros(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


def frame(spark: SparkSession, table: str, rows: list[dict[str, Any]]) -> DataFrame:
    schema = spark_schema(table)
    cells = [tuple({"log": ".", **row}.get(name) for name in schema.names) for row in rows]
    return spark.createDataFrame(cells, schema)


def arrow(table: str, rows: list[dict[str, Any]]) -> pa.Table:
    """The same as `frame`, for jobs without Spark."""
    schema = arrow_schema(table)
    return pa.Table.from_pylist([{"log": ".", **row} for row in rows], schema)


def same_rows(found: DataFrame, short: pa.Table) -> None:
    """Fail unless a job without Spark has the same columns and rows, in any order."""
    rows = found.toArrow()
    assert short.schema.names == rows.schema.names
    # What is in a list is never null, as Spark sees it.
    assert [str(field.type) for field in short.schema] == [
        str(field.type).replace(" not null", "") for field in rows.schema
    ]
    assert sorted(map(repr, short.to_pylist())) == sorted(map(repr, rows.to_pylist()))


def commit(
    offset: int,
    seconds: float,
    committed: int | None,
    group: str = "g",
    topic: str = "t",
    partition: int = 0,
    **more: Any,
) -> dict[str, Any]:
    """A commit at this offset of the log; None is a tombstone."""
    row: dict[str, Any] = {
        "log_topic": "__consumer_offsets", "log_partition": 0, "log_offset": offset, "log_timestamp": at(seconds),
        "group_id": group, "topic": topic, "partition": partition, "is_tombstone": committed is None,
    }  # fmt: skip
    if committed is not None:
        row |= {"committed_offset": committed, "commit_timestamp": at(seconds)}
    return row | more


def message(offset: int, seconds: float, topic: str = "t", partition: int = 0, **more: Any) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "offset": offset, "timestamp": at(seconds), **more}


def seconds_of(time: datetime | None) -> float | None:
    """Back from what Spark collects: a time without a zone, in this machine's."""
    return None if time is None else (time.astimezone(UTC) - DAY).total_seconds()
