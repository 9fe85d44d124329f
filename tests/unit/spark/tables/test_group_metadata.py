"""The table `group_metadata`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kcoord.core.cause import Cause
from kcoord.core.groups.cause_header import CAUSE_HEADER, encode_cause
from kcoord.log.other_codecs import ALL_PAIRS
from kcoord.log.serde import UnknownRecord
from kcoord.protocol.records import (
    consumer_group_metadata as consumer,
)
from kcoord.protocol.records import (
    consumer_group_target_assignment_metadata as consumer_target,
)
from kcoord.protocol.records import (
    share_group_metadata as share,
)
from kcoord.protocol.records import (
    share_group_target_assignment_metadata as share_target,
)
from kcoord.protocol.records import (
    streams_group_metadata as streams,
)
from kcoord.protocol.records import (
    streams_group_target_assignment_metadata as streams_target,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.spark.tables.group_metadata import KINDS, GroupMetadataTable
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError
from tests.unit.spark.table_rig import PLACE, TIME, TIME_MS, add, add_bytes, bytes_of, only, rows

NOTHING = {
    "epoch": None,
    "assignment_epoch": None,
    "protocol_type": None,
    "protocol": None,
    "leader": None,
    "state_timestamp": None,
    "member_count": None,
    "metadata_hash": None,
    "cause": None,
    "is_tombstone": False,
}
CLASSIC = GroupMetadataValue("consumer", 7, "range", "a-1", TIME_MS, [MemberMetadata("a-1"), MemberMetadata("b-1")])


@pytest.mark.parametrize("version", range(5))
def test_a_classic_group_in_every_version(version: int) -> None:
    decoder = GroupMetadataTable()
    add(decoder, GroupMetadataKey("billing"), CLASSIC, version)
    assert only(decoder) == {
        **PLACE,
        **NOTHING,
        "group_id": "billing",
        "kind": "classic",
        "record_name": "group_metadata",
        "epoch": 7,
        "protocol_type": "consumer",
        "protocol": "range",
        "leader": "a-1",
        # Since version 2.
        "state_timestamp": TIME if version >= 2 else None,
        "member_count": 2,
    }


def test_a_classic_group_without_members() -> None:
    decoder = GroupMetadataTable()
    add(decoder, GroupMetadataKey("billing"), GroupMetadataValue("consumer", 8, None, None))
    row = only(decoder, "epoch", "protocol", "leader", "state_timestamp", "member_count", "is_tombstone")
    assert row == {
        "epoch": 8, "protocol": None, "leader": None, "state_timestamp": None, "member_count": 0, "is_tombstone": False
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (
            consumer.ConsumerGroupMetadataKey("g"),
            consumer.ConsumerGroupMetadataValue(4, -(1 << 63)),
            {
                "kind": "consumer",
                "record_name": "consumer_group_metadata",
                "epoch": 4,
                "metadata_hash": -(1 << 63),
            },
        ),
        (
            consumer_target.ConsumerGroupTargetAssignmentMetadataKey("g"),
            consumer_target.ConsumerGroupTargetAssignmentMetadataValue(3),
            {
                "kind": "consumer",
                "record_name": "consumer_group_target_assignment_metadata",
                "assignment_epoch": 3,
            },
        ),
        (
            share.ShareGroupMetadataKey("g"),
            share.ShareGroupMetadataValue(4, 12),
            {"kind": "share", "record_name": "share_group_metadata", "epoch": 4, "metadata_hash": 12},
        ),
        (
            share_target.ShareGroupTargetAssignmentMetadataKey("g"),
            share_target.ShareGroupTargetAssignmentMetadataValue(3),
            {"kind": "share", "record_name": "share_group_target_assignment_metadata", "assignment_epoch": 3},
        ),
        (
            streams.StreamsGroupMetadataKey("g"),
            streams.StreamsGroupMetadataValue(4, 12),
            {"kind": "streams", "record_name": "streams_group_metadata", "epoch": 4, "metadata_hash": 12},
        ),
        (
            streams_target.StreamsGroupTargetAssignmentMetadataKey("g"),
            streams_target.StreamsGroupTargetAssignmentMetadataValue(3),
            {
                "kind": "streams",
                "record_name": "streams_group_target_assignment_metadata",
                "assignment_epoch": 3,
            },
        ),
    ],
)
def test_groups_of_the_newer_kinds(key: Message, value: Message, expected: dict[str, Any]) -> None:
    decoder = GroupMetadataTable()
    add(decoder, key, value)
    add(decoder, key, None)
    first, last = rows(decoder)
    assert first == {**PLACE, **NOTHING, "group_id": "g", **expected}
    same = {"group_id": "g", "kind": expected["kind"], "record_name": expected["record_name"]}
    assert last == {**PLACE, **NOTHING, **same, "is_tombstone": True}


def test_a_tombstone_of_a_classic_group() -> None:
    decoder = GroupMetadataTable()
    add(decoder, GroupMetadataKey("billing"), None)
    expected = {
        "group_id": "billing",
        "kind": "classic",
        "record_name": "group_metadata",
        "is_tombstone": True,
    }
    assert only(decoder) == {**PLACE, **NOTHING, **expected}


def test_the_cause_is_json() -> None:
    decoder = GroupMetadataTable()
    cause = Cause("session_timeout", "zoë-1", 'no "heartbeat"', 99)
    add(
        decoder,
        GroupMetadataKey("g"),
        CLASSIC,
        headers=[("trace", b"x"), (CAUSE_HEADER, encode_cause(cause))],
    )
    text = only(decoder)["cause"]
    assert json.loads(text) == {
        "kind": "session_timeout", "member": "zoë-1", "detail": 'no "heartbeat"', "since_ms": 99
    }  # fmt: skip


@pytest.mark.parametrize("header", [b"", b"\xff", b"{", b"[]", b'{"kind": 3}', None])
def test_a_cause_that_is_not_understood_is_none(header: bytes | None) -> None:
    decoder = GroupMetadataTable()
    add(decoder, GroupMetadataKey("g"), CLASSIC, headers=[(CAUSE_HEADER, header)])
    assert only(decoder)["cause"] is None


def test_records_of_other_tables_are_passed_over() -> None:
    decoder = GroupMetadataTable()
    add(decoder, OffsetCommitKey("g", "orders", 0), OffsetCommitValue(5))
    for key_class, codec in ALL_PAIRS:
        if codec.record_type not in KINDS:
            add(decoder, key_class(), None)
    add(decoder, UnknownRecord(99, b"\x00\x63???", b"\x00\x09"), None)
    # What is not its own is not even looked into.
    add_bytes(decoder, b"\x00\x01", b"\x00\x63")
    assert len(decoder) == 0


def test_control_records_are_passed_over() -> None:
    decoder = GroupMetadataTable()
    add_bytes(decoder, b"\x00\x00\x00\x01", bytes(6), control=True, transactional=True, producer_id=1)
    assert len(decoder) == 0


@pytest.mark.parametrize("record_type", KINDS)
@pytest.mark.parametrize("value", [b"", b"\x00", b"\x00\x09\x00", b"\xff\xff\x00", b"\x00\x00"])
def test_values_that_cannot_be_decoded(record_type: int, value: bytes) -> None:
    """Too short, of a version that is not known, and cut short."""
    decoder = GroupMetadataTable()
    key = record_type.to_bytes(2, "big") + b"\x00\x01g"
    with pytest.raises(DecodeError, match=r"."):
        add_bytes(decoder, key, value)
    assert len(decoder) == 0


@pytest.mark.parametrize("key", [None, b"", b"\x00", b"\x00\x02", b"\x00\x0b\x00\x05g", b"\x00\x02\x00\x01\xff"])
def test_keys_that_cannot_be_decoded(key: bytes | None) -> None:
    decoder = GroupMetadataTable()
    with pytest.raises(DecodeError, match=r"."):
        add_bytes(decoder, key, bytes_of(GroupMetadataKey("g"), CLASSIC)[1])
    assert len(decoder) == 0
