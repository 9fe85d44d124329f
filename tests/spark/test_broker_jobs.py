"""Lag and rebalances over a real broker's logs, against what its clients were told and what they did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from kcoord.spark.jobs.lag import lag
from kcoord.spark.jobs.rebalances import rebalances

BROKER = Path(__file__).parents[1] / "data" / "broker"


def table(spark: SparkSession, name: str, **options: str) -> DataFrame:
    return spark.read.format("kcoord").options(table=name, **options).load(str(BROKER / "logs"))


@pytest.fixture(scope="module")
def answers() -> Any:
    return json.loads((BROKER / "answers.json").read_text())


def test_lag_is_that_of_the_broker_s_own_offsets(spark: SparkSession, answers: Any) -> None:
    rows = lag(table(spark, "offset_commits"), table(spark, "messages")).where("is_last").collect()
    found = {(row.group_id, row.topic, row.partition): row for row in rows}
    known = 0
    for group, commits in answers["committed"].items():
        told = {(topic, partition): offset for topic, partition, offset, *_ in commits if offset >= 0}
        mine = {key[1:]: row.committed_offset for key, row in found.items() if key[0] == group}
        assert mine == told, group
        for (topic, partition), offset in told.items():
            ends = answers["ends"][f"{topic}-{partition}"]
            row = found[(group, topic, partition)]
            if row.end_offset is None:
                # Nothing is left of it that could tell where it begins and ends.
                assert ends["start"] == ends["last_stable"], (topic, partition)
                continue
            # Only `payments` has transactions: what was aborted, and markers, are no records to wait for.
            assert row.end_offset <= ends["last_stable"] and row.log_start >= ends["start"]
            behind = max(ends["last_stable"] - max(offset, row.log_start), 0)
            if topic == "payments":
                assert row.lag_records <= behind, (group, partition)
            else:
                assert row.lag_records == behind, (group, topic, partition)
            known += 1
    assert known >= 50


def test_rebalances_are_what_the_clients_did(spark: SparkSession) -> None:
    records = table(spark, "records", subscribe="__consumer_offsets")
    rows = rebalances(records).where("group_id in ('next', 'migrated')").orderBy("group_id", "first_offset").collect()
    told = [
        (
            row.group_id, row.protocol, row.from_epoch, row.to_epoch, row.cause, row.partitions_after,
            row.partitions_moved, [one.client_id for one in row.members_joined],
            [one.client_id for one in row.members_left],
        )
        for row in rows
    ]  # fmt: skip
    assert told == [
        ("migrated", "classic", 0, 1, "member_joined", 3, 0, ["old"], []),
        ("migrated", "consumer", 1, 1, "protocol_upgraded", 3, 0, [], []),
        ("migrated", "consumer", 1, 2, "member_joined", 3, 1, ["new"], []),
        ("migrated", "consumer", 2, 3, "member_left", 3, 2, [], ["old"]),
        ("migrated", "consumer", 3, 4, "member_left", 0, 0, [], ["new"]),
        ("next", "consumer", 0, 2, "member_joined", 3, 0, ["next-1"], []),
        ("next", "consumer", 2, 3, "member_joined", 3, 1, ["next-2"], []),
        # It also subscribes to another topic, whose two partitions nobody had.
        ("next", "consumer", 3, 4, "member_joined", 5, 0, ["next-static"], []),
        ("next", "consumer", 4, 5, "member_left", 5, 1, [], ["next-2"]),
        # The static member's place was taken by another one meanwhile, which is no change.
        ("next", "consumer", 5, 7, "member_left", 5, 2, ["next-dying"], ["next-1"]),
        ("next", "consumer", 7, 8, "member_left", 5, 2, [], ["next-dying"]),
        ("next", "consumer", 8, 9, "member_left", 0, 0, [], ["next-static-2"]),
    ]
    assert {row.cause_source for row in rows} == {"derived"}
