"""The table `records`: every type in every version, and JSON as `kcoord log dump` shows it, with Kafka's names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kcoord.cli.log.common import json_line
from kcoord.cli.log.records import typed_plain
from kcoord.log.other_codecs import ALL_METADATA, ALL_PAIRS
from kcoord.log.record_codecs import MetadataCodec, PairCodec
from kcoord.log.record_plain import kafka_name, with_kafka_names
from kcoord.log.serde import UnknownRecord, encode_metadata_record
from kcoord.log.typed_records import CONTROL_TYPES, RecordReader
from kcoord.protocol.records.config_record import ConfigRecord
from kcoord.protocol.records.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from kcoord.protocol.records.legacy_offset_commit import LegacyOffsetCommitKey, LegacyOffsetCommitValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.partition_change_record import PartitionChangeRecord
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.remove_topic_record import RemoveTopicRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.protocol.records.transaction_group_assignment import (
    AssignedTopic,
    TransactionGroupAssignmentKey,
    TransactionGroupAssignmentValue,
)
from kcoord.protocol.records.transaction_log import PartitionsSchema, TransactionLogKey, TransactionLogValue
from kcoord.spark.tables.records import RecordsTable
from kcoord.spark.tables.rows import RecordPlace
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, DecodeError, write_i16_be, write_uvarint
from tests.harness import schema_json
from tests.unit.spark.table_rig import (
    METADATA as METADATA_LOG,
)
from tests.unit.spark.table_rig import (
    OFFSETS,
    ORDERS,
    PLACE,
    TRANSACTIONS,
    add,
    add_bytes,
    bytes_of,
    only,
    rows,
    stored,
)

TOPIC_ID = bytes(range(16))
# What a record about nothing in particular has.
UNTYPED: dict[str, Any] = {
    "record_name": None,
    "group_id": None,
    "topic": None,
    "partition": None,
    "member_id": None,
    "transactional_id": None,
    "key_json": None,
    "value_json": None,
}
BATCH = {"headers": None, "producer_id": None, "producer_epoch": None, "leader_epoch": 5}
SUBJECT = ("record_type", "record_version", "record_name", "group_id", "topic", "partition", "member_id")
COMMIT = OffsetCommitValue(100, 3, "note", 1000)
GROUP = GroupMetadataValue("consumer", 7, "range", "a-1", 0, [MemberMetadata("a-1")])
TRANSACTION = TransactionLogValue(7, transaction_partitions=[PartitionsSchema("orders", [1])])


def check_json(row: dict[str, Any], place: RecordPlace) -> None:
    """JSON is that of `kcoord log dump`, character for character but for names of fields."""
    record, header = stored(row["key"], row["value"])
    shown = typed_plain(RecordReader().read(place.log_topic, header, record))
    assert row["record_name"] == shown["type"]
    for column in ("key", "value"):
        assert row[f"{column}_json"] == (None if shown[column] is None else json_line(with_kafka_names(shown[column])))


def metadata_bytes(codec: MetadataCodec, message: Message, version: int) -> bytes:
    w = BytesWriter()
    for number in (1, codec.record_type, version):
        write_uvarint(w, number)
    codec.encode(w, message, version)
    return w.getvalue()


# --- __consumer_offsets


@pytest.mark.parametrize("version", range(5))
def test_offset_commits_in_every_version(version: int) -> None:
    decoder = RecordsTable()
    epoch = 3 if version >= 3 else -1
    expires = 2000 if version == 1 else -1
    topic_id = TOPIC_ID if version >= 4 else bytes(16)
    value = OffsetCommitValue(100, epoch, "note", 1000, expires, topic_id)
    key_bytes, value_bytes = bytes_of(OffsetCommitKey("billing", "orders", 2), value, version)
    add_bytes(decoder, key_bytes, value_bytes)
    row = only(decoder)
    check_json(row, OFFSETS)
    assert json.loads(row.pop("key_json")) == {"group": "billing", "topic": "orders", "partition": 2}
    assert json.loads(row.pop("value_json"))["offset"] == 100
    assert row == {
        **PLACE,
        **BATCH,
        "record_type": 1,
        "record_version": version,
        "record_name": "offset_commit",
        "group_id": "billing",
        "topic": "orders",
        "partition": 2,
        "member_id": None,
        "transactional_id": None,
        "key": key_bytes,
        "value": value_bytes,
        "is_tombstone": False,
    }


def test_json_has_the_names_of_kafkas_definitions() -> None:
    """In all records that there are: what a definition calls CommitTimestamp is commitTimestamp."""
    for schema in schema_json.schemas().values():
        for field in all_fields(schema.fields):
            assert kafka_name(field.attribute) == field.key, schema.name
    decoder = RecordsTable()
    add(decoder, OffsetCommitKey("g", "t", 0), OffsetCommitValue(7, 3, "", 1000, -1, TOPIC_ID))
    add(decoder, GroupMetadataKey("g"), GROUP)
    commit, group = (json.loads(row["value_json"]) for row in rows(decoder))
    assert set(commit) == {"offset", "leaderEpoch", "metadata", "commitTimestamp", "expireTimestamp", "topicId"}
    assert {"protocolType", "currentStateTimestamp"} < set(group)
    assert {"memberId", "clientHost", "sessionTimeout"} < set(group["members"][0])


def all_fields(fields: tuple[schema_json.Field, ...]) -> Iterator[schema_json.Field]:
    for field in fields:
        yield field
        yield from all_fields(field.fields)


def test_the_oldest_offset_commits() -> None:
    decoder = RecordsTable()
    add(decoder, LegacyOffsetCommitKey("billing", "orders", 2), LegacyOffsetCommitValue(100, "note", 1000))
    row = only(decoder)
    check_json(row, OFFSETS)
    assert [row[name] for name in SUBJECT] == [0, 0, "offset_commit", "billing", "orders", 2, None]


@pytest.mark.parametrize("version", range(5))
def test_classic_groups_in_every_version(version: int) -> None:
    decoder = RecordsTable()
    add(decoder, GroupMetadataKey("zoë"), GROUP, version)
    row = only(decoder)
    check_json(row, OFFSETS)
    assert [row[name] for name in SUBJECT] == [2, version, "group_metadata", "zoë", None, None, None]
    # Readable, not escaped.
    assert row["key_json"] == '{"group":"zoë"}'
    assert json.loads(row["value_json"])["members"][0]["subscription"] is None


@pytest.mark.parametrize(("key_class", "codec"), ALL_PAIRS)
def test_records_of_the_newer_kinds_of_groups(key_class: type[Message], codec: PairCodec) -> None:
    """Each in the version there is, as a tombstone, and in one that nobody knows."""
    decoder = RecordsTable()
    key = key_class(*(["g", "m-1"] if "member_id" in key_class.FIELDS else ["g"]))
    value_class = _value_class(key_class)
    add(decoder, key, value_class(), 0)
    add(decoder, key, None)
    key_bytes, value_bytes = bytes_of(key, value_class(), 0)
    assert value_bytes is not None
    newer = b"\x00\x01" + value_bytes[2:]
    add_bytes(decoder, key_bytes, newer)
    typed, tombstone, unknown = rows(decoder)
    check_json(typed, OFFSETS)
    check_json(tombstone, OFFSETS)
    member_id = "m-1" if "member_id" in key_class.FIELDS else None
    name = typed["record_name"]
    assert name.replace("_", "") == key_class.__name__.removesuffix("Key").lower()
    assert [typed[n] for n in SUBJECT] == [codec.record_type, 0, name, "g", None, None, member_id]
    assert [tombstone[n] for n in SUBJECT] == [codec.record_type, None, name, "g", None, None, member_id]
    assert (tombstone["value_json"], tombstone["value"], tombstone["is_tombstone"]) == (None, None, True)
    expected = {"record_type": codec.record_type, "record_version": 1, "key": key_bytes, "value": newer}
    assert unknown == {**PLACE, **BATCH, **UNTYPED, **expected, "is_tombstone": False}


def _value_class(key_class: type[Message]) -> type[Message]:
    module = __import__(key_class.__module__, fromlist=["x"])
    found: type[Message] = getattr(module, key_class.__name__.removesuffix("Key") + "Value")
    return found


@pytest.mark.parametrize(
    "key", [OffsetCommitKey("g", "t", 0), GroupMetadataKey("g"), LegacyOffsetCommitKey("g", "t", 0)]
)
def test_tombstones(key: Message) -> None:
    decoder = RecordsTable()
    add(decoder, key, None)
    row = only(decoder)
    check_json(row, OFFSETS)
    assert (row["group_id"], row["record_version"], row["value_json"], row["is_tombstone"]) == (
        "g",
        None,
        None,
        True,
    )


def test_the_subject_of_an_assignment() -> None:
    decoder = RecordsTable(topic_names={TOPIC_ID: "orders"})
    key = ConsumerGroupCurrentMemberAssignmentKey("g", "m-1")
    add(decoder, key, ConsumerGroupCurrentMemberAssignmentValue(3, 2, 0))
    expected = [8, 0, "consumer_group_current_member_assignment", "g", None, None, "m-1"]
    assert list(only(decoder, *SUBJECT).values()) == expected


def test_headers_and_the_producer() -> None:
    decoder = RecordsTable()
    headers = [("a", b"1"), ("a", None), ("é", b"\xff")]
    more: dict[str, Any] = {
        "producer_id": 1 << 40,
        "producer_epoch": 3,
        "base_sequence": 0,
        "transactional": True,
        "leader_epoch": -1,
    }
    add(decoder, OffsetCommitKey("g", "t", 0), COMMIT, headers=headers, **more)
    row = only(decoder, "headers", "producer_id", "producer_epoch", "leader_epoch")
    assert row == {
        "headers": [{"key": name, "value": value} for name, value in headers],
        "producer_id": 1 << 40,
        "producer_epoch": 3,
        "leader_epoch": None,
    }


def test_names_of_headers_need_not_be_utf_8() -> None:
    decoder = RecordsTable()
    add(decoder, OffsetCommitKey("g", "t", 0), COMMIT, headers=[("a\udcff", b"1")])
    assert only(decoder)["headers"] == [{"key": "a\ufffd", "value": b"1"}]


# --- __transaction_state


@pytest.mark.parametrize("version", [0, 1])
def test_transactions_in_every_version(version: int) -> None:
    decoder = RecordsTable()
    add(decoder, TransactionLogKey("pay-1"), TRANSACTION, version, TRANSACTIONS)
    row = only(decoder)
    check_json(row, TRANSACTIONS)
    assert [row[name] for name in SUBJECT] == [0, version, "transaction_log", None, None, None, None]
    assert row["transactional_id"] == "pay-1"


def test_a_group_assignment_of_a_transactional_id() -> None:
    decoder = RecordsTable()
    value = TransactionGroupAssignmentValue("billing", 7, "a-1", None, [AssignedTopic("orders", [1])])
    add(decoder, TransactionGroupAssignmentKey("pay-1"), value, place=TRANSACTIONS)
    row = only(decoder)
    check_json(row, TRANSACTIONS)
    assert [row[name] for name in SUBJECT] == [
        10000, 0, "transaction_group_assignment", None, None, None, None,
    ]  # fmt: skip
    assert row["transactional_id"] == "pay-1"


def test_a_transaction_that_was_forgotten() -> None:
    decoder = RecordsTable()
    add(decoder, TransactionLogKey("pay-1"), None, place=TRANSACTIONS)
    row = only(decoder, "record_name", "transactional_id", "value_json", "is_tombstone")
    assert list(row.values()) == ["transaction_log", "pay-1", None, True]


# --- __cluster_metadata


@pytest.mark.parametrize(("record_class", "codec"), ALL_METADATA)
def test_metadata_records_in_every_version(record_class: type[Message], codec: MetadataCodec) -> None:
    for version in range(codec.version_max + 1):
        decoder = RecordsTable()
        value = metadata_bytes(codec, record_class(), version)
        add_bytes(decoder, None, value, METADATA_LOG)
        newer = bytes([1, codec.record_type, codec.version_max + 1]) + value[3:]
        add_bytes(decoder, None, newer, METADATA_LOG)
        typed, unknown = rows(decoder)
        check_json(typed, METADATA_LOG)
        assert typed["record_name"].replace("_", "") == record_class.__name__.lower()
        assert (typed["record_type"], typed["record_version"]) == (codec.record_type, version)
        assert (typed["key"], typed["key_json"], typed["value"]) == (None, None, value)
        place = {**PLACE, "log_topic": "__cluster_metadata", "log_partition": 0}
        about = {
            "record_type": codec.record_type,
            "record_version": codec.version_max + 1,
            "key": None,
            "value": newer,
        }
        assert unknown == {**place, **BATCH, **UNTYPED, **about, "is_tombstone": False}


def test_metadata_records_are_about_topics() -> None:
    """By names that were given, and by those of records that came before."""
    decoder = RecordsTable(topic_names={bytes(15) + b"\x01": "payments"})
    for message in (
        TopicRecord("orders", TOPIC_ID),
        PartitionRecord(3, TOPIC_ID),
        PartitionChangeRecord(4, TOPIC_ID),
        PartitionRecord(5, bytes(15) + b"\x01"),
        PartitionRecord(6, bytes(15) + b"\x02"),
        ConfigRecord(2, "orders", "retention.ms", "1"),
        ConfigRecord(4, "1", "log.retention.ms", "1"),
        RemoveTopicRecord(TOPIC_ID),
    ):
        add_bytes(decoder, None, encode_metadata_record(message), METADATA_LOG)
    assert [(row["topic"], row["partition"]) for row in rows(decoder)] == [
        ("orders", None),
        ("orders", 3),
        ("orders", 4),
        ("payments", 5),
        (None, 6),
        ("orders", None),
        (None, None),
        ("orders", None),
    ]


def test_given_names_stay_as_they_are() -> None:
    names: dict[bytes, str] = {}
    decoder = RecordsTable(topic_names=names)
    add_bytes(decoder, None, encode_metadata_record(TopicRecord("orders", TOPIC_ID)), METADATA_LOG)
    assert names == {}


# --- what is not known, and what is not typed


@pytest.mark.parametrize("value", [None, b"", b"\x00", b"\x00\x07anything"])
def test_types_that_are_not_known(value: bytes | None) -> None:
    decoder = RecordsTable()
    key = b"\x00\x63\xff\xfe"
    add_bytes(decoder, key, value)
    add_bytes(decoder, key, value, TRANSACTIONS)
    version = 7 if value and len(value) > 1 else None
    about = {
        "record_type": 99,
        "record_version": version,
        "key": key,
        "value": value,
        "is_tombstone": value is None,
    }
    for row, topic in zip(rows(decoder), ("__consumer_offsets", "__transaction_state"), strict=True):
        assert row == {**PLACE, **BATCH, **UNTYPED, **about, "log_topic": topic}


@pytest.mark.parametrize("version", [5, 32767, -1, -32768])
@pytest.mark.parametrize("key", [OffsetCommitKey("g", "t", 0), GroupMetadataKey("g")])
def test_versions_that_are_not_known(key: Message, version: int) -> None:
    decoder = RecordsTable()
    w = BytesWriter()
    write_i16_be(w, version)
    key_bytes, _ = bytes_of(key, None)
    add_bytes(decoder, key_bytes, w.getvalue() + b"anything")
    row = only(decoder, "record_version", *UNTYPED, "key", "value")
    assert row == {
        **UNTYPED,
        "record_version": version,
        "key": key_bytes,
        "value": w.getvalue() + b"anything",
    }


def test_metadata_of_a_type_that_is_not_known() -> None:
    decoder = RecordsTable()
    value = encode_metadata_record(UnknownRecord(999, b"", b"\x01\xe7\x07\x02anything"))
    add_bytes(decoder, None, value, METADATA_LOG)
    row = only(decoder, "record_type", "record_version", *UNTYPED, "value")
    assert row == {**UNTYPED, "record_type": 999, "record_version": 2, "value": value}


def test_a_body_of_a_kind_that_is_still_changing() -> None:
    """Share and streams groups' records are kept as they are where they are not understood."""
    decoder = RecordsTable()
    add_bytes(decoder, b"\x00\x0b\x00\x01g", b"\x00\x00")
    assert only(decoder, "record_type", *UNTYPED) == {**UNTYPED, "record_type": 11}


def test_records_of_other_topics() -> None:
    decoder = RecordsTable()
    for key, value in ((b"\x00\x01\x00\x01g", b"\xff"), (b"k", None), (None, None)):
        add_bytes(decoder, key, value, ORDERS)
    same = {**PLACE, "log_topic": "orders", "log_partition": 7, **BATCH, **UNTYPED}
    untyped = {**same, "record_type": None, "record_version": None}
    assert rows(decoder) == [
        {**untyped, "key": b"\x00\x01\x00\x01g", "value": b"\xff", "is_tombstone": False},
        {**untyped, "key": b"k", "value": None, "is_tombstone": True},
        {**untyped, "key": None, "value": None, "is_tombstone": False},
    ]


@pytest.mark.parametrize(("record_type", "name"), [*CONTROL_TYPES.items(), (77, None)])
@pytest.mark.parametrize("place", [OFFSETS, ORDERS, METADATA_LOG])
def test_control_records(record_type: int, name: str | None, place: RecordPlace) -> None:
    decoder = RecordsTable()
    key = b"\x00\x00" + record_type.to_bytes(2, "big")
    add_bytes(decoder, key, b"\x00\x00\x00\x00\x00\x09", place, control=True, producer_id=5, producer_epoch=1)
    row = only(decoder, "record_type", "record_version", *UNTYPED, "key", "value", "producer_id", "is_tombstone")
    assert row == {
        **UNTYPED,
        "record_type": record_type,
        "record_version": 0,
        "record_name": name,
        "key": key,
        "value": b"\x00\x00\x00\x00\x00\x09",
        "producer_id": 5,
        "is_tombstone": False,
    }


# --- damage


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        (OFFSETS, None, b"\x00\x00"),
        (OFFSETS, b"", b"\x00\x00"),
        (OFFSETS, b"\x00", b"\x00\x00"),
        (OFFSETS, b"\x00\x01\x00\x01g", None),
        (OFFSETS, b"\x00\x02\x00\x01g", b""),
        (OFFSETS, b"\x00\x02\x00\x01g", b"\x00"),
        (OFFSETS, b"\x00\x02\x00\x01g", b"\x00\x03\x00"),
        (OFFSETS, b"\x00\x02\x00\x01\xff", None),
        (OFFSETS, b"\x00\x03\x00\x01g", b"\x00\x00"),
        (TRANSACTIONS, None, None),
        (TRANSACTIONS, b"\x00\x00\x00\x05g", None),
        (TRANSACTIONS, b"\x00\x00\x00\x01g", b"\x00\x01"),
        (METADATA_LOG, None, None),
        (METADATA_LOG, None, b""),
        (METADATA_LOG, None, b"\x01\x02"),
        (METADATA_LOG, None, b"\x02\x02\x00"),
        (METADATA_LOG, None, b"\x01\x02\x00\x05"),
        # A type and a version that do not fit into 16 bits.
        (METADATA_LOG, None, b"\x01\xff\xff\xff\xff\x0f\x00"),
        (METADATA_LOG, None, b"\x01\x02\xff\xff\xff\xff\x0f"),
    ],
)
def test_what_cannot_be_decoded(place: RecordPlace, key: bytes | None, value: bytes | None) -> None:
    decoder = RecordsTable()
    with pytest.raises(DecodeError, match=r"."):
        add_bytes(decoder, key, value, place)
    assert len(decoder) == 0


@pytest.mark.parametrize("key", [None, b"", b"\x00\x00\x00"])
def test_control_records_that_cannot_be_decoded(key: bytes | None) -> None:
    decoder = RecordsTable()
    with pytest.raises(DecodeError, match=r"."):
        add_bytes(decoder, key, b"", ORDERS, control=True)
    assert len(decoder) == 0
