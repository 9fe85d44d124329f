"""The table `assignments`, and the names of topics that it needs."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord.core.groups.embedded_protocol import encode_assignment
from kcoord.log.other_codecs import ALL_PAIRS
from kcoord.log.record_plain import uuid_text
from kcoord.log.serde import encode_metadata_record
from kcoord.protocol.records import consumer_group_current_member_assignment as consumer_current
from kcoord.protocol.records import consumer_group_target_assignment_member as consumer_target
from kcoord.protocol.records import share_group_current_member_assignment as share_current
from kcoord.protocol.records import share_group_target_assignment_member as share_target
from kcoord.protocol.records import streams_group_current_member_assignment as streams_current
from kcoord.protocol.records import streams_group_target_assignment_member as streams_target
from kcoord.protocol.records.consumer_protocol_assignment import ConsumerProtocolAssignment, TopicPartition
from kcoord.protocol.records.feature_level_record import FeatureLevelRecord
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from kcoord.protocol.records.offset_commit import OffsetCommitKey
from kcoord.protocol.records.remove_topic_record import RemoveTopicRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.spark.tables.assignments import KINDS, AssignmentsTable
from kcoord.spark.tables.topic_names import topic_names
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import Record
from tests.unit.spark.table_rig import PLACE, add, add_bytes, only, rows

ORDERS = bytes(range(16))
PAYMENTS = bytes(range(16, 32))
NAMES = {ORDERS: "orders"}
NOTHING: dict[str, Any] = {
    "epoch": None,
    "previous_epoch": None,
    "state": None,
    "topic_id": None,
    "topic": None,
    "partitions": None,
    "pending_partitions": None,
    "is_tombstone": False,
}
CLASSIC = {
    **PLACE,
    "group_id": "billing",
    "kind": "classic",
    "record_name": "group_metadata",
    "role": "current",
}


def same(kind: str, record_name: str, role: str) -> dict[str, Any]:
    about = {"group_id": "g", "kind": kind, "record_name": record_name, "member_id": "m-1", "role": role}
    return {**PLACE, **NOTHING, **about}


def assigned(version: int, *topics: tuple[str, list[int]]) -> bytes:
    parts = [TopicPartition(topic, partitions) for topic, partitions in topics]
    return encode_assignment(ConsumerProtocolAssignment(parts, None), version)


def classic(*members: MemberMetadata, protocol_type: str = "consumer") -> GroupMetadataValue:
    return GroupMetadataValue(protocol_type, 7, "range", "a-1", 0, list(members))


def member(member_id: str, assignment: bytes) -> MemberMetadata:
    return MemberMetadata(member_id, None, "c", "/1", -1, 1, b"", assignment)


# --- classic groups


@pytest.mark.parametrize("version", range(5))
def test_classic_groups_in_every_version(version: int) -> None:
    decoder = AssignmentsTable(topic_names=NAMES)
    value = classic(
        member("a-1", assigned(1, ("orders", [0, 2]), ("payments", [1]))),
        member("b-1", assigned(1)),
        member("c-1", b""),
    )
    add(decoder, GroupMetadataKey("billing"), value, version)
    of_group = {**CLASSIC, **NOTHING, "epoch": 7}
    assert rows(decoder) == [
        {**of_group, "member_id": "a-1", "topic": "orders", "partitions": [0, 2]},
        {**of_group, "member_id": "a-1", "topic": "payments", "partitions": [1]},
        {**of_group, "member_id": "b-1", "partitions": []},
        {**of_group, "member_id": "c-1", "partitions": []},
    ]


@pytest.mark.parametrize("version", range(4))
def test_classic_assignments_of_every_version(version: int) -> None:
    decoder = AssignmentsTable()
    add(decoder, GroupMetadataKey("billing"), classic(member("a-1", assigned(version, ("orders", [3])))))
    assert only(decoder, "topic", "partitions") == {"topic": "orders", "partitions": [3]}


def test_a_classic_assignment_newer_than_we_know() -> None:
    decoder = AssignmentsTable()
    data = b"\x00\x09" + assigned(3, ("orders", [3]))[2:] + b"more"
    add(decoder, GroupMetadataKey("billing"), classic(member("a-1", data)))
    assert only(decoder, "topic", "partitions") == {"topic": "orders", "partitions": [3]}


def test_a_topic_that_is_named_twice_is_one_row() -> None:
    decoder = AssignmentsTable()
    data = assigned(1, ("orders", [0]), ("payments", [1]), ("orders", [2]))
    add(decoder, GroupMetadataKey("billing"), classic(member("a-1", data)))
    assert [(row["topic"], row["partitions"]) for row in rows(decoder)] == [
        ("orders", [0, 2]),
        ("payments", [1]),
    ]


@pytest.mark.parametrize("data", [b"\x00", b"\xff\xff\x00\x00\x00\x00", b"\x00\x00\x7f\xff\xff\xff", b"custom bytes"])
def test_bytes_that_are_no_assignment_are_no_damage(data: bytes) -> None:
    """And nobody can take them for an empty assignment."""
    decoder = AssignmentsTable()
    add(
        decoder,
        GroupMetadataKey("billing"),
        classic(member("a-1", data), member("b-1", assigned(1, ("t", [1])))),
    )
    first, last = rows(decoder)
    assert first == {**CLASSIC, **NOTHING, "epoch": 7, "member_id": "a-1"}
    assert (last["topic"], last["partitions"]) == ("t", [1])


def test_other_protocols_than_that_of_consumers() -> None:
    decoder = AssignmentsTable()
    value = classic(member("worker-1", assigned(1, ("orders", [0]))), protocol_type="connect")
    add(decoder, GroupMetadataKey("billing"), value)
    assert only(decoder) == {**CLASSIC, **NOTHING, "epoch": 7, "member_id": "worker-1"}


def test_an_empty_classic_group_has_no_row_and_a_removed_one_has_one() -> None:
    decoder = AssignmentsTable()
    add(decoder, GroupMetadataKey("billing"), classic())
    assert len(decoder) == 0
    add(decoder, GroupMetadataKey("billing"), None)
    assert only(decoder) == {**CLASSIC, **NOTHING, "member_id": None, "is_tombstone": True}


# --- the newer kinds


def test_targets_of_consumer_groups() -> None:
    decoder = AssignmentsTable(topic_names=NAMES)
    key = consumer_target.ConsumerGroupTargetAssignmentMemberKey("g", "m-1")
    parts = [consumer_target.TopicPartition(ORDERS, [0, 1]), consumer_target.TopicPartition(PAYMENTS, [4])]
    add(decoder, key, consumer_target.ConsumerGroupTargetAssignmentMemberValue(parts))
    add(decoder, key, consumer_target.ConsumerGroupTargetAssignmentMemberValue([]))
    add(decoder, key, None)
    row = same("consumer", "consumer_group_target_assignment_member", "target")
    assert rows(decoder) == [
        {**row, "topic_id": uuid_text(ORDERS), "topic": "orders", "partitions": [0, 1]},
        # Its name is not known.
        {**row, "topic_id": uuid_text(PAYMENTS), "topic": None, "partitions": [4]},
        {**row, "partitions": []},
        {**row, "is_tombstone": True},
    ]


def test_current_assignments_of_consumer_groups() -> None:
    decoder = AssignmentsTable(topic_names=NAMES)
    key = consumer_current.ConsumerGroupCurrentMemberAssignmentKey("g", "m-1")
    has = [consumer_current.TopicPartitions(ORDERS, [0, 1])]
    gives_up = [
        consumer_current.TopicPartitions(ORDERS, [2]),
        consumer_current.TopicPartitions(PAYMENTS, [4, 5]),
    ]
    value = consumer_current.ConsumerGroupCurrentMemberAssignmentValue
    add(decoder, key, value(9, 8, 1, has, gives_up))
    add(decoder, key, value(10, 9, 0, has, []))
    add(decoder, key, value(11, -1, 2, [], []))
    add(decoder, key, value(11, 10, 77, [], []))
    add(decoder, key, None)
    row = same("consumer", "consumer_group_current_member_assignment", "current")
    unrevoked = {**row, "epoch": 9, "previous_epoch": 8, "state": "unrevoked_partitions"}
    orders = {"topic_id": uuid_text(ORDERS), "topic": "orders", "partitions": [0, 1]}
    payments: dict[str, Any] = {"topic_id": uuid_text(PAYMENTS), "topic": None, "partitions": []}
    nothing: dict[str, Any] = {"partitions": [], "pending_partitions": []}
    assert rows(decoder) == [
        {**unrevoked, **orders, "pending_partitions": [2]},
        {**unrevoked, **payments, "pending_partitions": [4, 5]},
        {**row, "epoch": 10, "previous_epoch": 9, "state": "stable", **orders, "pending_partitions": []},
        {**row, "epoch": 11, "previous_epoch": None, "state": "unreleased_partitions", **nothing},
        {**row, "epoch": 11, "previous_epoch": 10, "state": "state 77", **nothing},
        {**row, "is_tombstone": True},
    ]


def test_share_groups() -> None:
    decoder = AssignmentsTable(topic_names=NAMES)
    target_key = share_target.ShareGroupTargetAssignmentMemberKey("g", "m-1")
    current_key = share_current.ShareGroupCurrentMemberAssignmentKey("g", "m-1")
    target_parts = [share_target.TopicPartition(ORDERS, [0])]
    current_parts = [share_current.TopicPartitions(ORDERS, [0])]
    add(decoder, target_key, share_target.ShareGroupTargetAssignmentMemberValue(target_parts))
    add(decoder, current_key, share_current.ShareGroupCurrentMemberAssignmentValue(3, 2, 0, current_parts))
    add(decoder, current_key, share_current.ShareGroupCurrentMemberAssignmentValue(4, 3, 0, []))
    add(decoder, target_key, None)
    add(decoder, current_key, None)
    target = same("share", "share_group_target_assignment_member", "target")
    current = same("share", "share_group_current_member_assignment", "current")
    orders = {"topic_id": uuid_text(ORDERS), "topic": "orders", "partitions": [0]}
    assert rows(decoder) == [
        {**target, **orders},
        {**current, "epoch": 3, "previous_epoch": 2, "state": "stable", **orders},
        {**current, "epoch": 4, "previous_epoch": 3, "state": "stable", "partitions": []},
        {**target, "is_tombstone": True},
        {**current, "is_tombstone": True},
    ]


def test_streams_groups_have_tasks_and_no_partitions_of_topics() -> None:
    decoder = AssignmentsTable(topic_names=NAMES)
    target_key = streams_target.StreamsGroupTargetAssignmentMemberKey("g", "m-1")
    current_key = streams_current.StreamsGroupCurrentMemberAssignmentKey("g", "m-1")
    target_tasks = [streams_target.TaskIds("sub-0", [0, 1])]
    current_tasks = [streams_current.TaskIds("sub-0", [0, 1])]
    add(decoder, target_key, streams_target.StreamsGroupTargetAssignmentMemberValue(target_tasks, [], []))
    add(decoder, current_key, streams_current.StreamsGroupCurrentMemberAssignmentValue(3, 2, 2, current_tasks))
    add(decoder, target_key, None)
    add(decoder, current_key, None)
    target = same("streams", "streams_group_target_assignment_member", "target")
    current = same("streams", "streams_group_current_member_assignment", "current")
    assert rows(decoder) == [
        target,
        {**current, "epoch": 3, "previous_epoch": 2, "state": "unrevoked_tasks"},
        {**target, "is_tombstone": True},
        {**current, "is_tombstone": True},
    ]


# --- what is not its own, and what is damaged


def test_records_of_other_tables_are_passed_over() -> None:
    decoder = AssignmentsTable()
    add(decoder, OffsetCommitKey("g", "orders", 0), None)
    for key_class, codec in ALL_PAIRS:
        if codec.record_type not in KINDS:
            add(decoder, key_class(), None)
    add_bytes(decoder, b"\x00\x63???", b"\x00\x09")
    add_bytes(decoder, b"\x00\x00\x00\x01", bytes(6), control=True)
    assert len(decoder) == 0


@pytest.mark.parametrize("record_type", KINDS)
@pytest.mark.parametrize("value", [b"", b"\x00\x09\x00", b"\xff\xff\x00", b"\x00\x00"])
def test_values_that_cannot_be_decoded(record_type: int, value: bytes) -> None:
    decoder = AssignmentsTable()
    with pytest.raises(DecodeError, match=r"."):
        add_bytes(decoder, record_type.to_bytes(2, "big") + b"\x00\x01g\x00\x01m", value)
    assert len(decoder) == 0


# --- names of topics


def test_names_of_topics_come_from_the_metadata_log() -> None:
    values: list[bytes | None] = [
        encode_metadata_record(FeatureLevelRecord("metadata.version", 25)),
        encode_metadata_record(TopicRecord("orders", ORDERS)),
        b"\x01\x7f\x00of a type that is not known",
        b"damaged",
        None,
        encode_metadata_record(TopicRecord("payments", PAYMENTS)),
        # Older records are still about it.
        encode_metadata_record(RemoveTopicRecord(PAYMENTS)),
    ]
    found = topic_names(Record(n, 0, None, value, []) for n, value in enumerate(values))
    assert found == {ORDERS: "orders", PAYMENTS: "payments"}
    assert topic_names([]) == {}
