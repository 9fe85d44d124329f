"""What each commit changed, and what was valid when; answers are written down by hand."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from kcoord.spark.jobs.brokers import one_cluster
from kcoord.spark.jobs.offsets_history import offset_of, offsets_history
from kcoord.spark.short.offsets_history import offset_of as short_offset_of
from kcoord.spark.short.offsets_history import offsets_history as short_history
from tests.spark.tables import arrow, at, commit, frame, message, micros, same_rows, seconds_of

COMMITS = [
    commit(10, 0, 100, metadata="first"),
    commit(11, 10, 150),
    # Another group and another partition are other histories.
    commit(12, 11, 7, group="other"),
    commit(13, 12, 5, partition=1),
    commit(14, 20, 120),  # went back
    commit(15, 20, 130),  # in the same millisecond
    commit(16, 30, None),
    commit(17, 40, 130),
    commit(18, 50, 60),  # back to where the log begins
    commit(19, 60, -1),
    commit(20, 70, 0),
    commit(21, 65, 10),  # the clock was set back
    commit(22, 80, 9, topic_id="A"),
    commit(23, 90, 20, topic_id="B"),
]


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> list[Any]:
    starts = spark.createDataFrame([(".", "t", 0, 60)], "log string, topic string, partition int, log_start bigint")
    history = offsets_history(frame(spark, "offset_commits", COMMITS), starts)
    messages = arrow("messages", [message(60, 0), message(70, 0)])
    same_rows(history, short_history(arrow("offset_commits", COMMITS), messages))
    return history.where("group_id = 'g' and partition = 0").orderBy("log_offset").collect()


def column(rows: list[Any], *names: str) -> dict[int, Any]:
    found = {row.log_offset: tuple(row[name] for name in names) for row in rows}
    return {offset: values[0] if len(names) == 1 else values for offset, values in found.items()}


def test_gaps_and_rates(rows: list[Any]) -> None:
    wanted = {
        10: (None, None, None),
        11: (50, 10.0, 5.0),
        14: (-30, 10.0, None),
        15: (10, 0.0, None),
        16: (None, 10.0, None),
        17: (None, 10.0, None),
        18: (-70, 10.0, None),
        19: (None, 10.0, None),
        20: (None, 10.0, None),
        21: (10, -5.0, None),
        22: (-1, 15.0, None),
        23: (11, 10.0, 1.1),
    }
    assert column(rows, "offset_gap", "seconds_since_previous", "rate") == wanted


def test_rewinds_and_resets(rows: list[Any]) -> None:
    values = column(rows, "is_rewind", "is_reset", "reset_reason")
    told = {offset: value for offset, value in values.items() if any(value)}
    assert told == {
        14: (True, False, None),
        17: (False, True, "tombstone"),
        18: (True, True, "log_start"),
        20: (False, True, "tombstone"),
        22: (True, False, None),
        23: (False, True, "topic_recreated"),
    }


def test_without_log_starts_only_zero_is_one(spark: SparkSession) -> None:
    commits = [commit(1, 0, 100), commit(2, 1, 60), commit(3, 2, 0)]
    history = offsets_history(frame(spark, "offset_commits", commits))
    same_rows(history, short_history(arrow("offset_commits", commits)))
    rows = history.collect()
    assert column(rows, "reset_reason") == {1: None, 2: None, 3: "log_start"}


def test_an_offset_of_minus_one_is_none(rows: list[Any]) -> None:
    assert column(rows, "committed_offset", "is_tombstone")[19] == (None, True)


def test_valid_from_and_to_follow_the_log_also_where_the_clock_does_not(rows: list[Any]) -> None:
    valid = [(seconds_of(row.valid_from), seconds_of(row.valid_to)) for row in rows]
    assert valid == [
        (0, 10), (10, 20), (20, 20), (20, 30), (30, 40), (40, 50), (50, 60), (60, 70), (70, 70), (70, 80), (80, 90),
        (90, None),
    ]  # fmt: skip


def test_the_offset_as_of_a_time(spark: SparkSession) -> None:
    history = offsets_history(frame(spark, "offset_commits", COMMITS)).where("group_id = 'g'").cache()
    short = short_history(arrow("offset_commits", [one for one in COMMITS if one["group_id"] == "g"]))
    wanted = {-1: [], 0: [(0, 100)], 10: [(0, 150)], 25: [(0, 130), (1, 5)], 35: [(1, 5)], 72: [(0, 10), (1, 5)]}
    for seconds, offsets in wanted.items():
        table = offset_of(history, at(seconds))
        same_rows(table, short_offset_of(short, micros(at(seconds))))
        found = table.select("partition", "committed_offset").collect()
        assert sorted(tuple(row) for row in found) == offsets, seconds
    history.unpersist()


def test_logs_are_apart_unless_they_are_replicas_of_one(spark: SparkSession) -> None:
    commits = [commit(1, 0, 1, log=log) for log in ("a", "b")] + [commit(2, 1, 2, log="a")]
    table = frame(spark, "offset_commits", commits)
    same_rows(offsets_history(table), short_history(arrow("offset_commits", commits)))
    found = offsets_history(table).select("log", "log_offset", "offset_gap").collect()
    assert sorted(map(tuple, found), key=str) == [("a", 1, None), ("a", 2, 1), ("b", 1, None)]
    found = offsets_history(one_cluster(table)).select("log", "log_offset", "offset_gap").collect()
    assert sorted(map(tuple, found), key=str) == [(".", 1, None), (".", 2, 1)]
