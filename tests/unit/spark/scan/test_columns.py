"""The option `columns`, and schemas of users: the same values, and nothing made for columns that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from kcoord.log.serde import encode_record
from kcoord.log.typed_records import RecordReader
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from kcoord.spark.reader import tasks as reading
from kcoord.spark.reader.options import BadOption
from kcoord.spark.reader.tasks import CorruptLog
from kcoord.spark.source import KcoordDataSource, with_columns_of
from kcoord.spark.tables import columns, group_metadata, members, records
from kcoord.spark.tables.registry import TABLES
from kcoord.spark.tables.schemas import arrow_schema, spark_schema
from tests.data.known import LOGS
from tests.unit.spark.log_rig import LogRig, commit, options, rows

MADE_OF_NOTHING = ("record_type", "record_version", "key", "value", "is_tombstone", "log_offset")


def damaged(tmp_path: Path) -> Path:
    log = LogRig(tmp_path, "__consumer_offsets")
    log.append(commit("g", "t", 0, 1))
    log.append((commit("g", "t", 0, 2)[0], b"\x00\x04"))
    log.write(bytes(100))
    return tmp_path


@pytest.mark.parametrize("table", TABLES)
def test_each_column_is_what_it_is_with_all_others(table: str, tmp_path: Path) -> None:
    root = damaged(tmp_path) if table == "_corrupt" else LOGS
    everything = rows(root, table)
    assert everything
    names = arrow_schema(table).names
    for name in names:
        assert rows(root, table, columns=name) == [{name: row[name]} for row in everything]
    backwards = list(reversed(names))
    found = rows(root, table, columns=" , ".join(backwards).upper())
    assert found == everything
    assert [list(row) for row in found] == [backwards] * len(found)


def test_records_without_json_are_the_same_also_where_control_records_are_shown() -> None:
    everything = rows(LOGS, "records", isolationLevel="read_uncommitted")
    names = [name for name in arrow_schema("records").names if not name.endswith("_json")]
    found = rows(LOGS, "records", isolationLevel="read_uncommitted", columns=",".join(names))
    assert found == [{name: row[name] for name in names} for row in everything]
    assert any(row["record_name"] == "commit_marker" for row in found)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("group_id,nobody, no", r"offset_commits has no nobody, no; it has log, log_topic.*is_tombstone"),
        ("", 'has no ""; it has log'),
        ("log,", 'has no ""; it has log'),
        ("log,group_id,LOG", "each at most once"),
    ],
)
def test_columns_that_cannot_be(tmp_path: Path, given: str, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        options(tmp_path, "offset_commits", columns=given)


# --- what is not made


def never(*_: Any) -> Any:
    raise AssertionError("this is made of nothing that was asked for")


def test_records_are_decoded_and_json_is_made_where_a_column_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogRig(tmp_path, "__consumer_offsets")
    log.append(commit("g", "t", 0, 1), headers=[("a", b"b")])
    monkeypatch.setattr(records, "_json", never)
    assert rows(tmp_path, "records", columns="group_id,record_name") == [
        {"group_id": "g", "record_name": "offset_commit"}
    ]
    with pytest.raises(AssertionError):
        rows(tmp_path, "records", columns="value_json")
    monkeypatch.setattr(RecordReader, "decode", never)
    monkeypatch.setattr(columns, "headers_at", never)
    assert rows(tmp_path, "records", columns=",".join(MADE_OF_NOTHING))[0]["record_version"] == 4
    for column in ("group_id", "headers"):
        with pytest.raises(AssertionError):
            rows(tmp_path, "records", columns=column)


def test_what_no_column_needs_is_no_damage(tmp_path: Path) -> None:
    root = damaged(tmp_path)
    assert [row["value"] for row in rows(root, "records", columns="value")][1] == b"\x00\x04"
    with pytest.raises(CorruptLog, match="offset 1"):
        rows(root, "records", columns="topic")
    assert len(rows(root, "records", columns="topic", onCorrupt="collect")) == 1


def test_groups_members_and_messages_make_no_more_than_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogRig(tmp_path, "__consumer_offsets")
    group = GroupMetadataValue("consumer", 1, "range", "m", 0, [MemberMetadata("m")])
    log.append(encode_record(GroupMetadataKey("g"), group))
    LogRig(tmp_path, "t").append((b"k", b"v"), headers=[("a", b"b")])
    made = (
        (group_metadata, "_cause", "group_metadata", "epoch", "cause"),
        (members, "_subscription", "members", "client_id", "subscribed_topics"),
        (columns, "headers_at", "messages", "offset", "headers"),
        (reading, "_topic_names", "assignments", "topic_id", "topic"),
    )
    for module, function, table, without, needing in made:
        monkeypatch.setattr(module, function, never)
        assert len(rows(tmp_path, table, columns=without)) == 1
        with pytest.raises(AssertionError):
            rows(tmp_path, table, columns=needing)


# --- schemas of users


def test_spark_receives_the_columns(tmp_path: Path) -> None:
    given = {"path": str(tmp_path), "table": "messages", "columns": "value,OFFSET,timestamptype"}
    assert KcoordDataSource(given).schema().names == ["value", "offset", "timestampType"]


def test_a_schema_chooses_columns(tmp_path: Path) -> None:
    plain = options(tmp_path, "offset_commits")
    schema = StructType([StructField("committed_offset", LongType()), StructField("group_id", StringType())])
    assert with_columns_of(plain, schema).columns == ("committed_offset", "group_id")
    assert with_columns_of(plain, spark_schema("offset_commits")) == plain
    chosen = options(tmp_path, "offset_commits", columns="group_id")
    assert with_columns_of(chosen, spark_schema("offset_commits", ["group_id"])) == chosen
    with pytest.raises(BadOption, match="give one of them"):
        with_columns_of(chosen, schema)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (
            StructField("nobody", LongType()),
            "a column nobody; the table offset_commits has log, .*is_tombstone",
        ),
        (StructField("partition", LongType()), "partition is bigint; in the table offset_commits it is int"),
        (
            StructField("partition", IntegerType(), False),
            "partition is int not null; .* any part of it may be null",
        ),
    ],
)
def test_a_schema_that_cannot_be(tmp_path: Path, field: StructField, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        with_columns_of(options(tmp_path, "offset_commits"), StructType([field]))
