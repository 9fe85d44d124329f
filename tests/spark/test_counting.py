"""Offsets of transactions count from the commit marker on, in jobs with Spark and without it."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import pytest
from pyspark.sql import SparkSession

from kcoord.log.committed_offsets import CommittedOffsets
from kcoord.spark.jobs.lag import COMMIT_COLUMNS, lag
from kcoord.spark.jobs.offsets_history import offset_of, offsets_history
from kcoord.spark.jobs.rebalances import rebalances
from kcoord.spark.jobs.report.collect import collect
from kcoord.spark.jobs.report.data import Report
from kcoord.spark.short.counting import counting
from kcoord.spark.short.lag import lag as short_lag
from kcoord.spark.short.offsets_history import offsets_history as short_history
from kcoord.spark.short.report import collect as short_report
from tests.spark.tables import arrow, at, commit, frame, message, micros, same_rows

Rows = list[dict[str, Any]]
PRODUCERS = (1, 2, 3)


def marker(offset: int, seconds: float, producer: int, name: str = "commit_marker") -> dict[str, Any]:
    return {
        "log_topic": "__consumer_offsets", "log_partition": 0, "log_offset": offset, "log_timestamp": at(seconds),
        "producer_id": producer, "record_name": name,
    }  # fmt: skip


def random_log(rng: random.Random, size: int) -> tuple[Rows, Rows, list[dict[tuple[str, str, int], int]]]:
    """Commits without those of aborted and open transactions, markers, and the offsets after each record."""
    held: dict[int, Rows] = {}
    commits: Rows = []
    markers: Rows = []
    states: list[dict[tuple[str, str, int], int]] = []
    model = CommittedOffsets()
    for offset in range(size):
        producer = rng.choice([-1, -1, *PRODUCERS])
        if producer >= 0 and producer in held and rng.random() < 0.3:
            is_commit = rng.random() < 0.7
            rows = held.pop(producer)
            markers.append(marker(offset, offset, producer, "commit_marker" if is_commit else "abort_marker"))
            commits += rows if is_commit else []
            model.end_transaction(producer, is_commit)
        else:
            group = rng.choice(["g", "h"])
            is_gone = producer < 0 and rng.random() < 0.2
            row = commit(offset, offset, None if is_gone else rng.randrange(1, 90), group)
            if producer >= 0:
                row["producer_id"] = producer
                held.setdefault(producer, []).append(row)
            else:
                commits.append(row)
            if is_gone:
                model.remove((group, "t", 0))
            else:
                model.commit((group, "t", 0), (offset, row["committed_offset"]), producer)
        states.append({place: one[1] for place, one in model.by_place.items()})
    return commits, markers, states


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_the_offsets_at_every_time_are_those_of_the_coordinator(spark: SparkSession, seed: int) -> None:
    commits, markers, states = random_log(random.Random(seed), 150)
    found = offsets_history(frame(spark, "offset_commits", commits), markers=frame(spark, "records", markers))
    short = short_history(counting(arrow("offset_commits", commits), arrow("records", markers)))
    same_rows(found, short)
    rows = [row for row in short.to_pylist() if not row["is_tombstone"]]
    for offset, state in enumerate(states):
        now = at(offset)
        valid = [row for row in rows if row["valid_from"] <= now and (row["valid_to"] is None or now < row["valid_to"])]
        assert {(row["group_id"], "t", 0): row["committed_offset"] for row in valid} == state, offset


def test_before_its_marker_a_transaction_is_not_seen(spark: SparkSession) -> None:
    rows = [commit(0, 0, 5), commit(1, 10, 9, producer_id=7)]
    ends = [marker(2, 200, 7)]
    commits, markers = frame(spark, "offset_commits", rows), frame(spark, "records", ends)
    history = offsets_history(commits, markers=markers)
    seen = [[row.committed_offset for row in offset_of(history, at(when)).collect()] for when in (199, 200)]
    assert seen == [[5], [9]]
    messages = [message(offset, 1) for offset in range(20)]
    of_spark = frame(spark, "messages", messages)
    counted = counting(arrow("offset_commits", rows), arrow("records", ends))
    for until, expected in ((199, 15), (200, 11)):
        found = lag(commits, of_spark, None, 0, at(until), at(1000), markers=markers)
        short = short_lag(counted, arrow("messages", messages), None, micros(at(1000)), 0, micros(at(until)))
        same_rows(found, short)
        assert [row["lag_records"] for row in short.to_pylist() if row["is_last"]] == [expected]


class Logs:
    """An offset that was committed outside while a transaction was open, and a transaction that is open at the end."""

    commits: ClassVar = [
        commit(0, 10, 50),
        commit(1, 20, 15, producer_id=7),
        commit(2, 20, 30, partition=1, producer_id=7),
        commit(3, 30, 40, partition=1),
        # The table has no commits of the open transaction, and it has no marker.
        commit(5, 61, 41, partition=1),
    ]
    markers: ClassVar = [marker(4, 60, 7), marker(6, 62, 8, "abort_marker")]
    messages: ClassVar = [message(offset, 1, partition=partition) for offset in range(100) for partition in (0, 1)]
    until = at(70)
    now = at(1000)


def report_without_spark() -> Report:
    counted = counting(arrow("offset_commits", Logs.commits).select(COMMIT_COLUMNS), arrow("records", Logs.markers))
    until_ms, now_ms = (micros(when) // 1000 for when in (Logs.until, Logs.now))
    return short_report(counted, arrow("messages", Logs.messages), [], "data", now_ms, None, until_ms)


def test_a_report_counts_from_the_marker_on() -> None:
    found = report_without_spark()

    def seconds(at_ms: int) -> float:
        return (at_ms * 1000 - micros(at(0))) / 1_000_000

    assert [(seconds(when), count) for when, count in found.commits] == [(10, 1), (30, 1), (60, 1), (61, 1)]
    [line] = found.lag_records
    lags = {seconds(when): value for when, value in line.points}
    assert [lags[when] for when in (10, 29, 30, 59, 60, 61, 70)] == [50, 50, 110, 110, 145, 144, 144]
    # Partition 0 went back at the marker. In partition 1, the commit outside came first, so that of 30 never counted.
    [jump] = found.jumps
    assert (jump.partition, jump.rewinds, jump.farthest, seconds(jump.last_ms)) == (0, 1, -35, 60)
    assert (found.commits_total, found.rewinds_total, found.partitions) == (4, 1, 2)


# CI compares the reports of a random log (test_report.py). Spark takes half a minute for a report.
@pytest.mark.nightly
def test_a_report_with_spark_is_the_same(spark: SparkSession) -> None:
    whole = collect(
        frame(spark, "offset_commits", Logs.commits), frame(spark, "messages", Logs.messages),
        rebalances(frame(spark, "records", [])), "data", Logs.now, None, Logs.until,
        markers=frame(spark, "records", Logs.markers),
    )  # fmt: skip
    assert vars(whole) == vars(report_without_spark())
