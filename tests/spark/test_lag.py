"""Lag in records and in seconds, and every trap that tools for it have fallen into; answers are by hand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kcoord.spark.jobs.brokers import one_cluster
from kcoord.spark.jobs.completeness import LogHistory
from kcoord.spark.jobs.lag import lag, log_starts
from kcoord.spark.short.lag import TooManySamples
from kcoord.spark.short.lag import lag as short_lag
from tests.spark.tables import arrow, at, commit, frame, message, micros, same_rows, seconds_of

# A message each 10 s: offset 0 at 10 s, 9 at 100 s.
STEADY = [message(offset, 10 + 10 * offset) for offset in range(10)]


def measure(
    spark: SparkSession, commits: list[Any], messages: list[Any], assignments: list[Any] | None = None, **more: Any
) -> list[tuple[Any, ...]]:
    """(group, topic-partition, seconds, committed, lag in records, in seconds), at commits and at the end. The job
    without Spark finds the same."""
    held = None if assignments is None else frame(spark, "assignments", assignments)
    table = lag(frame(spark, "offset_commits", commits), frame(spark, "messages", messages), held, **more)
    same_rows(table, measure_short(commits, messages, assignments, **more))
    rows = table.collect()
    found = [
        (
            row.group_id, f"{row.topic}-{row.partition}", seconds_of(row.at), row.committed_offset, row.lag_records,
            row.lag_seconds, *([] if held is None else [row.is_left]),
        )
        for row in rows
    ]  # fmt: skip
    return sorted(found)


def measure_short(
    commits: list[Any],
    messages: list[Any],
    assignments: list[Any] | None = None,
    every_s: float = 0,
    until: datetime | None = None,
    now: datetime | None = None,
    histories: Sequence[LogHistory] = (),
) -> pa.Table:
    held = None if assignments is None else arrow("assignments", assignments)
    now_us = micros(now or datetime.now(UTC))
    until_us = None if until is None else micros(until)
    tables = (arrow("offset_commits", commits), arrow("messages", messages), held)
    return short_lag(*tables, now_us, every_s, until_us, histories)


def test_lag_at_each_commit_and_at_the_end(spark: SparkSession) -> None:
    commits = [commit(1, 5, 0), commit(2, 35, 2), commit(3, 90, 9)]
    assert measure(spark, commits, STEADY) == [
        ("g", "t-0", 5, 0, 0, 0.0),  # nothing was there yet
        ("g", "t-0", 35, 2, 1, 5.0),  # offset 2 came at 30 s
        ("g", "t-0", 90, 9, 0, 0.0),
        ("g", "t-0", 100, 9, 1, 0.0),  # offset 9 has just come
    ]


def test_lag_at_regular_times(spark: SparkSession) -> None:
    commits = [commit(1, 5, 0), commit(2, 40, 2)]
    assert measure(spark, commits, STEADY, every_s=20) == [
        ("g", "t-0", 20, 0, 2, 10.0),
        ("g", "t-0", 40, 2, 2, 10.0),  # a commit at that moment counts, as does a message
        ("g", "t-0", 60, 2, 4, 30.0),
        ("g", "t-0", 80, 2, 6, 50.0),
        ("g", "t-0", 100, 2, 8, 70.0),  # the end, once
    ]


def test_a_group_that_stopped_is_shown_until_the_end(spark: SparkSession) -> None:
    rows = measure(spark, [commit(1, 20, 1)], STEADY, every_s=50, until=at(150))
    assert rows == [("g", "t-0", 50, 1, 4, 30.0), ("g", "t-0", 100, 1, 9, 80.0), ("g", "t-0", 150, 1, 9, 130.0)]


def test_records_after_the_end_do_not_count(spark: SparkSession) -> None:
    rows = measure(spark, [commit(1, 20, 1), commit(2, 60, 6)], STEADY, until=at(45))
    assert rows == [("g", "t-0", 20, 1, 1, 0.0), ("g", "t-0", 45, 1, 3, 25.0)]


def test_lag_counts_from_the_log_start(spark: SparkSession) -> None:
    """Retention took what the group had not read: not 999,950 records are waited for, but 3."""
    messages = [message(1_000_000 + n, 100 + n) for n in range(3)]
    rows = measure(spark, [commit(1, 50, 50)], messages, until=at(110))
    assert rows == [
        ("g", "t-0", 50, 50, None, None),  # how far the log went then, nobody knows any more
        ("g", "t-0", 110, 50, 3, 10.0),
    ]


def test_minus_one_and_tombstones_are_no_offset(spark: SparkSession) -> None:
    commits = [
        commit(1, 20, 1), commit(2, 30, -1),
        commit(3, 20, 1, partition=1), commit(4, 40, None, partition=1),
        commit(5, 30, -1, group="never"),
    ]  # fmt: skip
    messages = STEADY + [message(offset, 10 + 10 * offset, partition=1) for offset in range(10)]
    assert measure(spark, commits, messages, every_s=15) == [("g", "t-1", 30, 1, 2, 10.0)]


def test_markers_of_transactions_are_no_records_to_wait_for(spark: SparkSession) -> None:
    """Offsets 0 and 1 and a marker at 2; a reader of all of it commits 2 or 3, by client."""
    messages = [message(0, 10), message(1, 10)]
    commits = [commit(1, 20, 2), commit(2, 20, 3, group="java")]
    assert [row[4:] for row in measure(spark, commits, messages)] == [(0, 0.0)] * 4


def test_late_messages_came_when_they_came(spark: SparkSession) -> None:
    """Offset 2 was stamped before all others. It does not make the log longer at earlier times."""
    messages = [message(0, 50), message(1, 60), message(2, 1), message(3, 70)]
    commits = [commit(1, 55, 1), commit(2, 65, 2)]
    assert measure(spark, commits, messages) == [
        ("g", "t-0", 55, 1, 0, 0.0), ("g", "t-0", 65, 2, 1, 5.0), ("g", "t-0", 70, 2, 2, 10.0)
    ]  # fmt: skip


def test_stamps_from_the_future_are_not_believed(spark: SparkSession) -> None:
    """Else the end of the log would be there, and all behind such a message would seem to come then."""
    far = 5000 * 365 * 86400.0
    messages = [message(0, far), message(1, 20), message(2, far), message(3, 40)]
    commits = [commit(1, 25, 1), commit(2, 50, 1)]
    options: list[dict[str, Any]] = [{}, {"until": at(50)}]
    for more in options:
        assert measure(spark, commits, messages, now=at(86400), **more) == [
            ("g", "t-0", 25, 1, 2, 5.0),  # offset 2 counts from when 1 came
            ("g", "t-0", 50, 1, 3, 30.0), ("g", "t-0", 50, 1, 3, 30.0),
        ]  # fmt: skip


def test_how_long_is_unknown_if_nobody_knows_when_messages_came(spark: SparkSession) -> None:
    """The first message that has a time came after the sample, and there was one to wait for."""
    messages = [message(0, 5000 * 365 * 86400.0), message(1, 50)]
    assert measure(spark, [commit(1, 20, 0)], messages, now=at(86400)) == [
        ("g", "t-0", 20, 0, 1, None), ("g", "t-0", 50, 0, 2, 0.0)
    ]  # fmt: skip


def test_offsets_that_compaction_took_are_passed_over(spark: SparkSession) -> None:
    messages = [message(0, 10), message(7, 20), message(9, 30)]
    rows = measure(spark, [commit(1, 30, 3)], messages)
    # Lag in records is a difference of offsets, as everywhere; the first one to be read is 7.
    assert rows == [("g", "t-0", 30, 3, 7, 10.0)] * 2


def test_lag_in_a_topic_that_was_deleted_is_not_known(spark: SparkSession) -> None:
    """The messages are those of the topic that was created again. Only commits with ids show that it was."""
    commits = [
        commit(0, 20, 500, topic_id="A"), commit(1, 30, None), commit(2, 40, 1), commit(3, 50, 2, topic_id="B"),
        commit(4, 60, 9, "h", topic_id="A"), commit(5, 70, 9, "i"),
        # In another partition the group has no newer commit.
        commit(6, 80, 9, partition=1, topic_id="A"),
    ]  # fmt: skip
    messages = [*STEADY, *(message(offset, 10, partition=1) for offset in range(10))]
    assert measure(spark, commits, messages) == [
        ("g", "t-0", 20, 500, None, None),
        ("g", "t-0", 40, 1, 3, 20.0),
        ("g", "t-0", 50, 2, 3, 20.0),
        ("g", "t-0", 100, 2, 8, 70.0),
        ("g", "t-1", 80, 9, 1, 70.0),
        ("g", "t-1", 100, 9, 1, 90.0),
        ("h", "t-0", 60, 9, 0, 0.0),
        ("h", "t-0", 100, 9, 1, 0.0),
        ("i", "t-0", 70, 9, 0, 0.0),
        ("i", "t-0", 100, 9, 1, 0.0),
    ]
    [row] = [row for row in measure_short(commits, messages).to_pylist() if row["committed_offset"] == 500]
    assert (row["log_start"], row["end_offset"]) == (None, None)
    every = measure(spark, commits[:4], STEADY, every_s=10, until=at(60))
    assert [row[2:5] for row in every] == [(20, 500, None), (40, 1, 3), (50, 2, 3), (60, 2, 4)]


def test_without_messages_lag_is_not_known(spark: SparkSession) -> None:
    assert measure(spark, [commit(1, 30, 3, topic="gone")], STEADY, until=at(40)) == [
        ("g", "gone-0", 30, 3, None, None), ("g", "gone-0", 40, 3, None, None)
    ]  # fmt: skip


def test_partitions_groups_and_logs_are_apart(spark: SparkSession) -> None:
    commits = [
        commit(1, 100, 8), commit(2, 100, 3, group="h"), commit(3, 100, 1, partition=1), commit(4, 100, 9, log="b")
    ]  # fmt: skip
    messages = [*STEADY, message(1, 90, partition=1), message(9, 95, log="b"), message(10, 100, log="b")]
    table = lag(frame(spark, "offset_commits", commits), frame(spark, "messages", messages), until=at(100))
    rows = table.where("is_last").select("log", "group_id", "partition", "lag_records", "lag_seconds").collect()
    assert sorted(map(tuple, rows)) == [
        (".", "g", 0, 2, 10.0), (".", "g", 1, 1, 10.0), (".", "h", 0, 7, 60.0), ("b", "g", 0, 2, 5.0)
    ]  # fmt: skip


def test_brokers_of_one_cluster_find_each_other_s_messages(spark: SparkSession) -> None:
    commits = frame(spark, "offset_commits", [commit(1, 100, 8, log=log) for log in ("a", "b")])
    messages = frame(spark, "messages", [one | {"log": log} for one in STEADY for log in ("b", "c")])
    rows = lag(one_cluster(commits), one_cluster(messages)).where("is_last").collect()
    assert [(row.log, row.lag_records, row.lag_seconds) for row in rows] == [(".", 2, 10.0)]


def held(
    offset: int, group: str, member: str | None, topic: str | None, kind: str = "classic", **more: Any
) -> dict[str, Any]:
    return {
        "log_offset": offset, "group_id": group, "kind": kind, "role": "current", "member_id": member, "topic": topic,
        "partitions": [0], "is_tombstone": member is None, **more,
    }  # fmt: skip


def test_topics_that_a_group_has_left(spark: SparkSession) -> None:
    """They still have offsets, and lag that grows for ever; a group without members has left nothing."""
    groups = ("classic", "stopped", "consumer", "unnamed", "unknown")
    commits = [commit(n, 100, 9, group=group, topic=topic) for n, group in enumerate(groups) for topic in ("t", "u")]
    assignments = [
        held(1, "classic", "m", "u"), held(2, "classic", "m", "t"),
        held(3, "stopped", "m", "t"), held(4, "stopped", None, None),
        held(5, "consumer", "a", "t", "consumer"), held(6, "consumer", "b", "u", "consumer"),
        held(7, "consumer", "b", None, "consumer", is_tombstone=True),
        held(8, "consumer", "c", "u", "consumer", role="target"),
        held(9, "unnamed", "a", "t", "consumer"), held(9, "unnamed", "a", None, "consumer", topic_id="X"),
    ]  # fmt: skip
    messages = [message(offset, 100, topic=topic) for offset in range(10) for topic in ("t", "u")]
    rows = {(row[0], row[1]): row[6] for row in measure(spark, commits, messages, assignments)}
    assert rows == {
        ("classic", "t-0"): False, ("classic", "u-0"): True,
        ("stopped", "t-0"): False, ("stopped", "u-0"): False,
        ("consumer", "t-0"): False, ("consumer", "u-0"): True,
        ("unnamed", "t-0"): False, ("unnamed", "u-0"): None,
        ("unknown", "t-0"): False, ("unknown", "u-0"): False,
    }  # fmt: skip


def test_no_more_samples_than_anybody_can_want(spark: SparkSession) -> None:
    commits, messages = [commit(1, 0, 1)], [message(0, 2000)]
    rows = lag(frame(spark, "offset_commits", commits), frame(spark, "messages", messages), every_s=0.001)
    with pytest.raises(PySparkException, match="more than 1000000 samples"):
        rows.collect()
    with pytest.raises(TooManySamples, match="more than 1000000 samples"):
        measure_short(commits, messages, every_s=0.001)


def test_where_logs_begin(spark: SparkSession) -> None:
    rows = log_starts(frame(spark, "messages", [message(7, 0), message(8, 0), message(3, 0, topic="u")])).collect()
    assert sorted(map(tuple, rows)) == [(".", "t", 0, 7), (".", "u", 0, 3)]
