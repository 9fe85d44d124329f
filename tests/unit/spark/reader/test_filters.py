"""Filters that Spark hands down: with them there are the same rows, and what certainly is not wanted is not made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, IsNotNull, IsNull

from kcoord.log.other_codecs import ALL_PAIRS
from kcoord.log.serde import encode_record
from kcoord.log.typed_records import RecordReader
from kcoord.protocol.records.legacy_offset_commit import LegacyOffsetCommitKey
from kcoord.protocol.records.offset_commit import OffsetCommitKey
from kcoord.protocol.records.transaction_log import TransactionLogKey
from kcoord.spark.reader.filters import asked_for, row_filter
from kcoord.spark.reader.options import BadOption
from kcoord.spark.reader.row_filter import RowFilter
from kcoord.spark.tables import rows as table_rows
from kcoord.spark.tables.registry import TABLES
from kcoord.spark.tables.rows import is_about, subjects
from kcoord.wire.message import Message
from kcoord.wire.record_batch import Record
from tests.data.known import LOGS
from tests.unit.spark.log_rig import NOW, LogRig, commit, options, rows

UNCOMMITTED = {"isolationLevel": "read_uncommitted"}
# What is answered before decoding, by table.
COLUMNS = {
    "records": ("record_type", "record_name", "group_id", "transactional_id", "log_topic"),
    "group_metadata": ("kind", "record_name", "group_id"),
    "members": ("kind", "record_name", "group_id"),
    "assignments": ("kind", "record_name", "role", "group_id"),
    "transactions": ("transactional_id",),
    "offset_commits": ("group_id", "topic", "partition"),
}


def pushed(table: str, *filters: Filter) -> RowFilter:
    return row_filter(TABLES[table], filters)


@pytest.fixture(scope="module")
def everything() -> dict[str, list[dict[str, Any]]]:
    return {table: rows(LOGS, table, **UNCOMMITTED) for table in COLUMNS}


@pytest.mark.parametrize("table", COLUMNS)
def test_each_value_gives_the_same_rows(table: str, everything: dict[str, list[dict[str, Any]]]) -> None:
    for column in COLUMNS[table]:
        values = sorted({row[column] for row in everything[table] if row[column] is not None}, key=str)
        assert values
        # All of few, some of many.
        chosen = [[value] for value in values[:: max(len(values) // 8, 1)]] + [values[:2], ["nobody"]]
        for some in chosen:
            name = (column,)
            one = EqualTo(name, some[0]) if len(some) == 1 else In(name, tuple(some))
            found = rows(LOGS, table, pushed(table, one), **UNCOMMITTED)
            wanted = [row for row in everything[table] if row[column] in some]
            assert [row for row in found if row[column] in some] == wanted
            # All of these are answered as a whole.
            assert found == wanted


def test_producers_and_filters_together(everything: dict[str, list[dict[str, Any]]]) -> None:
    all_rows = everything["records"]
    for is_with, one in ((True, IsNotNull(("producer_id",))), (False, IsNull(("producer_id",)))):
        found = rows(LOGS, "records", pushed("records", one), **UNCOMMITTED)
        assert found == [row for row in all_rows if (row["producer_id"] is not None) == is_with] != []
    # Of commits the column says whether they are of a transaction, not who wrote the batch.
    assert pushed("offset_commits", IsNull(("producer_id",))) == RowFilter()
    group = next(row["group_id"] for row in all_rows if row["record_type"] == 2 and row["group_id"])
    both = pushed("records", In(("record_type",), (1, 2)), EqualTo(("group_id",), group))
    assert rows(LOGS, "records", both, **UNCOMMITTED) == [
        row for row in all_rows if row["record_type"] in (1, 2) and row["group_id"] == group
    ]
    nothing = pushed("records", EqualTo(("record_type",), 1), EqualTo(("record_type",), 2))
    assert rows(LOGS, "records", nothing) == []


def test_names_of_topics_are_known_to_records_that_are_left(
    everything: dict[str, list[dict[str, Any]]],
) -> None:
    wanted = [row for row in everything["records"] if row["record_name"] == "partition_record"]
    assert all(row["topic"] for row in wanted) and wanted
    last = wanted[-1]["log_offset"]
    given = pushed("records", EqualTo(("log_topic",), "__cluster_metadata"), GreaterThan(("log_offset",), last - 1))
    found = rows(LOGS, "records", given, **UNCOMMITTED)
    assert [row for row in found if row["log_offset"] >= last] == [
        row for row in everything["records"] if row["log_topic"] == "__cluster_metadata" and row["log_offset"] >= last
    ]


def counting(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[int]:
    before: Callable[..., Any] = getattr(owner, name)
    calls = [0]

    def counted(*given: Any) -> Any:
        calls[0] += 1
        return before(*given)

    monkeypatch.setattr(owner, name, counted)
    return calls


def test_what_is_not_wanted_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogRig(tmp_path, "__consumer_offsets")
    log.append(*[commit(f"g{n % 10}", "t", 0, n) for n in range(100)])
    log.append(commit("later", "t", 0, 1), producer_id=7, producer_epoch=0, base_sequence=0)
    decoded = counting(monkeypatch, RecordReader, "decode")
    for given, most in (
        (EqualTo(("record_type",), 2), 0),
        # A type's name is known once one record of it was decoded.
        (EqualTo(("record_name",), "group_metadata"), 1),
        (EqualTo(("group_id",), "g3"), 10),
        (EqualTo(("transactional_id",), "g3"), 0),
        (IsNotNull(("producer_id",)), 1),
    ):
        decoded[0] = 0
        rows(tmp_path, "records", pushed("records", given))
        assert decoded[0] == most
    of_groups = counting(monkeypatch, table_rows, "decode_group_record")
    log.append((b"\x00\x02\x00\x01g", None), (b"\x00\x03\x00\x01g", None), at_ms=NOW)
    for table, given, most in (
        ("group_metadata", EqualTo(("kind",), "classic"), 1),
        ("group_metadata", EqualTo(("group_id",), "h"), 0),
        ("assignments", EqualTo(("role",), "target"), 0),
    ):
        of_groups[0] = 0
        assert len(rows(tmp_path, table, pushed(table, given))) == most
        assert of_groups[0] == most


def _with_group(key_class: Any, group: str) -> Message:
    key: Message = key_class(group_id=group)
    return key


def test_every_key_begins_with_its_group_or_transactional_id() -> None:
    keys: list[Message] = [_with_group(cls, "ü-1") for cls, _ in ALL_PAIRS]
    keys += [OffsetCommitKey("ü-1", "t", 0), LegacyOffsetCommitKey("ü-1", "t", 0), TransactionLogKey("ü-1")]
    for key in keys:
        record = Record(0, 0, encode_record(key, None)[0], None, [])
        assert is_about(record, subjects(frozenset(["x", "ü-1"])))
        assert not is_about(record, subjects(frozenset(["ü-", "ü-12", ""])))
        assert is_about(record, None)


# --- the option `where`


@pytest.mark.parametrize("table", COLUMNS)
def test_where_is_answered_exactly(table: str, everything: dict[str, list[dict[str, Any]]]) -> None:
    for column in ("log_partition", *COLUMNS[table]):
        values = sorted({row[column] for row in everything[table] if row[column] is not None}, key=str)
        some = values[: len(values) // 2 + 1]
        wanted = [row for row in everything[table] if row[column] in some]
        assert rows(LOGS, table, where=json.dumps({column: some}), **UNCOMMITTED) == wanted != []
        # Whether the column is made or not.
        shown = rows(LOGS, table, where=json.dumps({column: some}), columns="log_offset", **UNCOMMITTED)
        assert shown == [{"log_offset": row["log_offset"]} for row in wanted]
    assert rows(LOGS, table, where='{"log_partition": []}') == []


def test_where_of_messages() -> None:
    found = rows(LOGS, where='{"topic": "payments", "partition": [0, 1]}')
    assert found == [row for row in rows(LOGS, subscribe="payments") if row["partition"] in (0, 1)] != []


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("group_id = 'a'", 'where is JSON like {"group_id"'),
        ("[1]", "where is JSON"),
        ('{"epoch": 1}', "not by epoch; in the table members by log, log_topic, .*group_id"),
        ('{"group_id": [1]}', "group_id is text"),
        ('{"log_partition": "1"}', "log_partition is a number"),
        ('{"log_partition": true}', "log_partition is a number"),
        ('{"group_id": null}', "group_id is text"),
    ],
)
def test_where_that_cannot_be(given: str, problem: str) -> None:
    with pytest.raises(BadOption, match=problem):
        asked_for(options(LOGS, "members", where=given))
