"""verify, snapshot, compact and migrate in Spark: on records by hand, on kcoord's log, and on a real broker's."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kcoord.cli.log.past.plain_state import group_plain
from kcoord.cli.log.past.replay import coordinator_logs, replay_until
from kcoord.cli.log.points import parse_point
from kcoord.cli.main import main
from kcoord.core.cause import Cause
from kcoord.core.groups.cause_header import CAUSE_HEADER, encode_cause
from kcoord.core.outcome import OFFSETS_TOPIC, TRANSACTION_TOPIC
from kcoord.log.inspect import inspect_directory
from kcoord.log.serde import encode_record
from kcoord.protocol.records.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from kcoord.protocol.records.consumer_group_member_metadata import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from kcoord.protocol.records.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue
from kcoord.spark.jobs.compact import compact, open_transactions
from kcoord.spark.jobs.migrate import (
    Conflicts,
    Migration,
    committed,
    counts,
    migrate,
    of_details,
    refuse_conflicts,
    rows,
    write_csv,
)
from kcoord.spark.jobs.migration_rules import parse_rules
from kcoord.spark.jobs.places import floors_of, with_files
from kcoord.spark.jobs.snapshot import snapshot
from kcoord.spark.jobs.state import newest_replicas, one_cluster
from kcoord.spark.jobs.transaction_rules import COMPLETE_COMMIT, EMPTY, ONGOING
from kcoord.spark.jobs.verify import RECORD_COLUMNS, verify, verify_short
from tests.data.known import LOGS
from tests.unit.cli.rig import LogRig
from tests.unit.spark.records_rig import ABORT, COMMIT, START_MS, HandLog, table_of

TOPIC_ID = bytes(range(16))


def at(second: float) -> datetime:
    return datetime.fromtimestamp(START_MS / 1000 + second, UTC)


def read(spark: SparkSession, path: Path, isolation: str = "read_uncommitted") -> DataFrame:
    reader = spark.read.format("kcoord").option("table", "records").option("isolationLevel", isolation)
    return reader.load(str(path))


def commit(log: HandLog, second: float, group: str, topic: str, offset: int | None, producer_id: int = -1) -> None:
    value = None if offset is None else OffsetCommitValue(offset, 3, "", START_MS + int(second * 1000), -1)
    log.put(second, OffsetCommitKey(group, topic, 0), value, producer_id)


def classic(log: HandLog, second: float, group: str, generation: int, *members: str) -> None:
    described = [MemberMetadata(name, None, "client", "host", 1, 1, b"", b"") for name in members]
    leader = members[0] if members else None
    value = GroupMetadataValue("consumer", generation, "range", leader, START_MS, described)
    log.put(second, GroupMetadataKey(group), value)


# --- verify


def two_owners(log: HandLog) -> None:
    """The group `twins`: both members have the same partition, one after the other."""
    log.put(1, ConsumerGroupMetadataKey("twins"), ConsumerGroupMetadataValue(1))
    for second, name in ((2, "a"), (3, "b")):
        log.put(second, ConsumerGroupMemberMetadataKey("twins", name), ConsumerGroupMemberMetadataValue())
        value = ConsumerGroupCurrentMemberAssignmentValue(1, 1, 0, [TopicPartitions(TOPIC_ID, [0])], [])
        log.put(second + 0.5, ConsumerGroupCurrentMemberAssignmentKey("twins", name), value)


def given_back(log: HandLog) -> None:
    value = ConsumerGroupCurrentMemberAssignmentValue(1, 1, 0, [], [])
    log.put(9, ConsumerGroupCurrentMemberAssignmentKey("twins", "b"), value)


def test_violations_by_hand(spark: SparkSession) -> None:
    whole, compacted, cleaned, transactions = (
        HandLog("whole"), HandLog("compacted"), HandLog("cleaned"), HandLog("whole", TRANSACTION_TOPIC, 4),
    )  # fmt: skip
    classic(whole, 0, "back", 7)
    classic(whole, 0, "back", 6)
    two_owners(whole)
    given_back(whole)
    # What was wrong for a while is not told of a log that was compacted, what is wrong in the end is.
    classic(compacted, 0, "back", 7)
    compacted.skip(3)
    classic(compacted, 0, "back", 6)
    two_owners(compacted)
    cleaned.skip(3)
    two_owners(cleaned)
    given_back(cleaned)
    for status in (EMPTY, ONGOING, COMPLETE_COMMIT):
        value = TransactionLogValue(9, producer_epoch=0, transaction_status=status)
        transactions.put(1, TransactionLogKey("pay"), value)
    # A marker is no hole in a log.
    commit(transactions, 2, "nobody", "orders", 1)
    transactions.end(3, 9, COMMIT)
    records = spark.createDataFrame(table_of(whole, compacted, cleaned, transactions))
    in_order = records.select(*RECORD_COLUMNS).coalesce(1)
    floors = {("cleaned", OFFSETS_TOPIC, 0): 3}
    expected = [
        ("cleaned", "group", "twins", 0, 7, "ownership"),
        ("compacted", "group", "back", 0, 4, "generation"),
        ("compacted", "group", "twins", 0, 9, "ownership"),
        ("whole", "group", "back", 0, 1, "generation"),
        ("whole", "group", "twins", 0, 6, "ownership"),
        ("whole", "transaction", "pay", 4, 2, "transaction"),
    ]
    for found in (verify(records, floors), verify_short(in_order.mapInArrow, floors)):
        assert found is not None
        told = ((row.log, row.kind, row.id, row.log_partition, row.log_offset, row.rule) for row in found.collect())
        assert sorted(told) == expected
    of_some = verify_short(in_order.mapInArrow, floors, ids=("twins", "nobody"))
    assert of_some is not None
    assert {(row.id, row.log) for row in of_some.collect()} == {
        ("twins", "cleaned"), ("twins", "compacted"), ("twins", "whole"),
    }  # fmt: skip


def test_a_real_brokers_log_has_no_violation_until_its_history_runs_backwards(spark: SparkSession) -> None:
    records = read(spark, LOGS).cache()
    floors = floors_of({"path": str(LOGS)})
    assert verify(records, floors, 3).collect() == []
    ends = records.groupBy("log_topic", "log_partition").agg(F.max("log_offset").alias("last"))
    backwards = records.join(ends, ["log_topic", "log_partition"]).withColumn("log_offset", F.expr("last - log_offset"))
    wrong = {(row.kind, row.rule) for row in verify(backwards).select("kind", "rule").distinct().collect()}
    assert {("group", "generation"), ("transaction", "transaction")} <= wrong
    records.unpersist()


def test_violations_have_the_file_that_they_are_in(spark: SparkSession, tmp_path: Path) -> None:
    LogRig(tmp_path).history()
    found = spark.createDataFrame(
        [(".", OFFSETS_TOPIC, 0, 2), (".", OFFSETS_TOPIC, 7, 2)],
        "log string, log_topic string, log_partition int, log_offset bigint",
    )
    rows_found = with_files(found, {"path": str(tmp_path)}).orderBy("log_partition").collect()
    path = f"{tmp_path}/{OFFSETS_TOPIC}-0/{0:020}.log"
    assert [row.file for row in rows_found] == [path, None]


# --- snapshot


@pytest.fixture(scope="module")
def life(spark: SparkSession) -> DataFrame:
    """A group that commits in and out of transactions, rebalances, and loses a topic."""
    log = HandLog("east", partition=3)
    classic(log, 0, "pay", 1, "a", "b")
    commit(log, 1, "pay", "orders", 10)
    commit(log, 2, "pay", "gone", 1)
    commit(log, 3, "pay", "orders", 20, 7)
    commit(log, 4, "pay", "bills", 5, 8)
    log.end(5, 8, ABORT)
    log.end(6, 7, COMMIT)
    classic(log, 7, "pay", 2, "b")
    commit(log, 8, "pay", "gone", None)
    commit(log, 9, "pay", "open", 99, 7)
    commit(log, 9.5, "pay", "orders", 30)
    log.put_bytes(9.6, b"\x00\x63of a type nobody knows", b"value", headers=[("name", b"\xff")])
    return spark.createDataFrame(table_of(log)).cache()


def test_the_state_at_points(life: DataFrame) -> None:
    """Offsets by topic, at each point; a transaction counts from its marker on."""
    points: list[tuple[dict[str, Any], dict[str, int]]] = [
        ({"time": at(5.5)}, {"orders": 10, "gone": 1}),
        ({"time": at(6)}, {"orders": 20, "gone": 1}),
        ({"before_offset": 9}, {"orders": 20}),
        ({"before_offset": {(OFFSETS_TOPIC, 3): 2}}, {"orders": 10}),
        ({"time": at(100)}, {"orders": 30}),
    ]
    tables = [
        snapshot(life, **point).offsets.select(F.lit(number).alias("number"), "topic", "committed_offset")
        for number, (point, _) in enumerate(points)
    ]
    found: list[dict[str, int]] = [{} for _ in points]
    for row in reduce(DataFrame.union, tables).collect():
        found[row.number][row.topic] = row.committed_offset
    assert found == [offsets for _, offsets in points]


def test_groups_and_members_at_a_point(life: DataFrame) -> None:
    before, after = snapshot(life, time=at(6)), snapshot(life, time=at(100))
    groups = before.groups.union(after.groups).collect()
    assert [(row.group_id, row.kind, row.epoch) for row in groups] == [
        ("pay", "classic", 1), ("pay", "classic", 2),
    ]  # fmt: skip
    members = before.members.union(after.members).collect()
    assert sorted((row.epoch, row.member_id) for row in members) == [(1, "a"), (1, "b"), (2, "b")]


def test_groups_have_the_causes_of_their_epochs(spark: SparkSession) -> None:
    """Also beside headers that others wrote, and one of that name without a value."""
    log = HandLog("east")
    cause = encode_cause(Cause("member_joined", "m"))
    headers: list[tuple[str, bytes | None]] = [("trace", b"1"), (CAUSE_HEADER, None), (CAUSE_HEADER, cause)]
    log.put_bytes(1, *encode_record(ConsumerGroupMetadataKey("told"), ConsumerGroupMetadataValue(1)), headers=headers)
    log.put(1, ConsumerGroupMetadataKey("untold"), ConsumerGroupMetadataValue(1))
    rows = snapshot(spark.createDataFrame(table_of(log))).groups.collect()
    causes = {row.group_id: row.cause for row in rows}
    assert "member_joined" in causes["told"] and causes["untold"] is None


def state_of(path: Path) -> dict[str, Any]:
    """What `kcoord log state` tells, without the offsets of records."""
    directory = inspect_directory(str(path))
    logs = coordinator_logs(directory, "", -1)
    past = replay_until(directory, logs, parse_point("end"), False, lambda _: None)
    groups = sorted(set(past.core.groups.groups) | set(past.core.offsets.by_group))
    state = {group: group_plain(past.core, group) for group in groups}
    for document in state.values():
        for row in document["offsets"]:
            del row["record_offset"]
    return state


def is_sound(path: Path) -> bool:
    return CliRunner().invoke(main, ["log", "verify", str(path)]).exit_code == 0


def test_a_compacted_log_has_the_same_state(spark: SparkSession, tmp_path: Path, life: DataFrame) -> None:
    rig = LogRig(tmp_path / "old")
    rig.history()
    rig.join(8)
    rig.stop()
    records = read(spark, tmp_path / "old").cache()
    assert verify(records, floors_of({"path": str(tmp_path / "old")}), 1).collect() == []
    offsets = snapshot(records).offsets.collect()
    assert {(row.group_id, row.topic, row.partition, row.committed_offset) for row in offsets} == {
        ("workers", "orders", 0, 2), ("workers", "orders", 1, 7),
    }  # fmt: skip
    compact(records).write.format("kcoord").mode("append").save(str(tmp_path / "new"))
    assert is_sound(tmp_path / "new")
    after = state_of(tmp_path / "new")
    assert after == {"workers": state_of(tmp_path / "old")["workers"]}
    assert len(after["workers"]["members"]) == 1
    assert read(spark, tmp_path / "new").where("log_topic = '__consumer_offsets'").count() == 3
    records.unpersist()


def test_what_is_left_of_records_by_compaction(life: DataFrame) -> None:
    committed_only = life.where("producer_id is null")
    kept = compact(committed_only).collect()
    assert [row.log_offset for row in kept] == [7, 10, 11]
    assert bytes(kept[2].value) == b"value" and kept[2].headers[0].key == "name"
    [left] = open_transactions(life).collect()
    assert (left.producer_id, left.records, left.first_offset) == (7, 1, 9)


def scans(frame: DataFrame) -> int:
    """How often it reads what it is made of."""
    of_java: Any = frame
    plan = str(of_java._jdf.queryExecution().optimizedPlan().toString())
    return plan.count("LogicalRDD") + plan.count("LocalRelation")


def test_of_replicas_the_one_that_goes_furthest_counts(spark: SparkSession) -> None:
    ahead, behind = HandLog("1"), HandLog("2")
    for log in (ahead, behind):
        commit(log, 0, "stays", "orders", 1)
        commit(log, 1, "gone", "orders", 2)
    commit(ahead, 2, "stays", "orders", 3)
    commit(ahead, 3, "gone", "orders", None)
    # Elsewhere it is the other one.
    other = HandLog("2", partition=1)
    commit(other, 0, "there", "orders", 9)
    commit(other, 1, "open", "orders", 4, 7)
    records = spark.createDataFrame(table_of(ahead, behind, other))

    def kept(*groups: str) -> list[tuple[int, int]]:
        found = compact(records, one_cluster(), groups).select("log_partition", "log_offset").collect()
        return [(row.log_partition, row.log_offset) for row in found]

    assert sorted(kept()) == [(0, 2), (1, 0), (1, 1)]
    # A group that is gone where the log goes on is not brought back by one that stayed behind.
    assert kept("gone") == []
    assert kept("stays") == [(0, 2)]
    assert len(compact(records).collect()) == 5
    [left] = open_transactions(newest_replicas(records, one_cluster())).collect()
    assert (left.log, left.log_partition, left.records, left.first_offset) == ("2", 1, 1, 1)
    rules = parse_rules({"cluster": [{"name": "all", "logs": ".*"}]})
    frames = (compact(records, one_cluster()), open_transactions(records), migrate(records, rules).details)
    assert [scans(frame) for frame in frames] == [1, 1, 1]
    assert scans(newest_replicas(records, one_cluster())) == 2


# --- migrate


def test_clusters_become_one(spark: SparkSession, tmp_path: Path) -> None:
    east, copy, west = HandLog("east/1"), HandLog("east/2"), HandLog("west")
    classic(east, 0, "pay-v1", 4, "a")
    commit(east, 1, "pay-v1", "orders", 10)
    commit(east, 2, "pay-v1", "tmp", 11)
    commit(east, 3, "both", "orders", 1)
    # A copy that stayed behind: its last record was replaced where the log goes on.
    commit(copy, 1, "gone", "orders", 99)
    commit(west, 1, "both", "orders", 2)
    commit(west, 2, "test-1", "orders", 3)
    west.put(3, ConsumerGroupMetadataKey("new"), ConsumerGroupMetadataValue(8))
    records = spark.createDataFrame(table_of(east, copy, west))
    document: dict[str, Any] = {
        "cluster": [{"name": "east", "logs": "east/.*"}],
        "group": [{"match": "test-.*", "drop": True}, {"match": "(.*)-v1", "rename": r"\1"}],
        "topic": [{"match": "tmp", "drop": True}, {"match": "orders", "rename": "shop.orders"}],
    }
    details = migrate(records, parse_rules(document)).details.cache()
    refused = of_details(details, parse_rules(document)).plan
    with pytest.raises(Conflicts) as caught:
        refuse_conflicts(refused)
    assert "both of east: 2 groups would be both: both of east, both of west; both of west" in str(caught.value)

    document["conflict"] = [{"match": ".*", "winner": "west"}]
    migration = of_details(details, parse_rules(document))
    migration = Migration(details, migration.plan.cache())
    refuse_conflicts(migration.plan)
    plan = migration.plan.orderBy("cluster", "group_id").collect()
    told = [
        (row.action, row.cluster, row.group_id, row.kind, row.new_group, row.offsets, row.offsets_renamed,
         row.offsets_dropped, row.reason)
        for row in plan
    ]  # fmt: skip
    won = "conflict rule 1: west wins"
    assert told == [
        ("dropped", "east", "both", "offsets only", "both", 1, 1, 0, won),
        ("renamed", "east", "pay-v1", "classic", "pay", 1, 1, 1, "group rule 2"),
        ("kept", "west", "both", "offsets only", "both", 1, 1, 0, won),
        ("kept", "west", "new", "consumer", "new", 0, 0, 0, ""),
        ("dropped", "west", "test-1", "offsets only", None, 0, 0, 1, "group rule 1"),
    ]
    counted = [tuple(row) for row in counts(migration.plan).collect()]
    assert counted == [("dropped", 2, 1, 1, 1), ("kept", 2, 1, 1, 0), ("renamed", 1, 1, 1, 1)]

    rows(migration).write.format("kcoord").mode("append").save(str(tmp_path / "new"))
    assert is_sound(tmp_path / "new")
    state = state_of(tmp_path / "new")
    assert {name: group["generation"] for name, group in state.items()} == {"both": -1, "pay": 4}
    lines = io.StringIO()
    assert write_csv(committed(migration), lines) == 2
    assert lines.getvalue() == "both,shop.orders,0,2\npay,shop.orders,0,10\n"
    assert state["pay"]["offsets"][0]["commit_timestamp_ms"] == START_MS + 1000
    assert state["pay"]["offsets"][0]["leader_epoch"] == -1
    migration.plan.unpersist()
    details.unpersist()
