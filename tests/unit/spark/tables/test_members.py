"""The table `members`."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord.log.other_codecs import ALL_PAIRS
from kcoord.protocol.records import consumer_group_member_metadata as consumer
from kcoord.protocol.records import share_group_member_metadata as share
from kcoord.protocol.records import streams_group_member_metadata as streams
from kcoord.protocol.records.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
    encode_consumer_protocol_subscription,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from kcoord.protocol.records.offset_commit import OffsetCommitKey
from kcoord.spark.tables.members import KINDS, MembersTable
from kcoord.wire.primitives import BytesWriter, DecodeError, write_int16
from tests.unit.spark.table_rig import PLACE, add, add_bytes, only, rows

NOTHING: dict[str, Any] = {
    "member_id": None,
    "instance_id": None,
    "rack_id": None,
    "client_id": None,
    "client_host": None,
    "epoch": None,
    "rebalance_timeout_ms": None,
    "session_timeout_ms": None,
    "subscribed_topics": None,
    "subscribed_regex": None,
    "assignor": None,
    "is_tombstone": False,
}
CLASSIC = {"group_id": "billing", "kind": "classic", "record_name": "group_metadata"}


def subscription(version: int, *topics: str, rack: str | None = None) -> bytes:
    w = BytesWriter()
    write_int16(w, version)
    # A version that is newer than we know has more at its end.
    known = ConsumerProtocolSubscription(list(topics), b"", [], 3, rack)
    encode_consumer_protocol_subscription(w, known, min(version, 3))
    return w.getvalue() + (b"more" if version > 3 else b"")


def classic(*members: MemberMetadata, protocol_type: str = "consumer") -> GroupMetadataValue:
    return GroupMetadataValue(protocol_type, 7, "range", "a-1", 0, list(members))


@pytest.mark.parametrize("version", range(5))
def test_classic_members_in_every_version(version: int) -> None:
    decoder = MembersTable()
    # Versions differ in what they can hold: an instance since 3, a rebalance timeout since 1.
    instance = "i-1" if version >= 3 else None
    timeout = 300_000 if version >= 1 else -1
    subscribed = subscription(3, "orders", "payments", rack="east")
    a = MemberMetadata("a-1", instance, "a", "/10.0.0.1", timeout, 45_000, subscribed, b"")
    b = MemberMetadata("b-1", None, "b", "/10.0.0.2", timeout, 10_000, subscription(0), b"")
    add(decoder, GroupMetadataKey("billing"), classic(a, b), version)
    assert rows(decoder) == [
        {
            **PLACE,
            **CLASSIC,
            **NOTHING,
            "member_id": "a-1",
            "instance_id": instance,
            "rack_id": "east",
            "client_id": "a",
            "client_host": "/10.0.0.1",
            "epoch": 7,
            "rebalance_timeout_ms": timeout if version >= 1 else None,
            "session_timeout_ms": 45_000,
            "subscribed_topics": ["orders", "payments"],
            "assignor": "range",
        },
        {
            **PLACE,
            **CLASSIC,
            **NOTHING,
            "member_id": "b-1",
            "client_id": "b",
            "client_host": "/10.0.0.2",
            "epoch": 7,
            "rebalance_timeout_ms": timeout if version >= 1 else None,
            "session_timeout_ms": 10_000,
            "subscribed_topics": [],
            "assignor": "range",
        },
    ]


@pytest.mark.parametrize("version", range(6))
def test_subscriptions_of_every_version(version: int) -> None:
    decoder = MembersTable()
    member = MemberMetadata("a-1", subscription=subscription(version, "orders", rack="east"))
    add(decoder, GroupMetadataKey("billing"), classic(member))
    row = only(decoder, "subscribed_topics", "rack_id")
    assert row == {"subscribed_topics": ["orders"], "rack_id": "east" if version >= 3 else None}


@pytest.mark.parametrize(
    "subscribed", [b"", b"\x00", b"\xff\xff\x00\x00\x00\x00", b"\x00\x00\x7f\xff\xff\xff", b"custom"]
)
def test_bytes_that_are_no_subscription_are_no_damage(subscribed: bytes) -> None:
    decoder = MembersTable()
    add(decoder, GroupMetadataKey("billing"), classic(MemberMetadata("a-1", subscription=subscribed)))
    assert only(decoder, "member_id", "subscribed_topics") == {"member_id": "a-1", "subscribed_topics": None}


def test_other_protocols_than_that_of_consumers() -> None:
    decoder = MembersTable()
    member = MemberMetadata("worker-1", subscription=subscription(0, "orders"))
    add(decoder, GroupMetadataKey("billing"), classic(member, protocol_type="connect"))
    assert only(decoder, "member_id", "subscribed_topics") == {
        "member_id": "worker-1",
        "subscribed_topics": None,
    }


def test_an_empty_classic_group_has_no_row_and_a_removed_one_has_one() -> None:
    decoder = MembersTable()
    add(decoder, GroupMetadataKey("billing"), classic())
    assert len(decoder) == 0
    add(decoder, GroupMetadataKey("billing"), None)
    assert only(decoder) == {**PLACE, **CLASSIC, **NOTHING, "is_tombstone": True}


def test_a_member_of_a_consumer_group() -> None:
    decoder = MembersTable()
    key = consumer.ConsumerGroupMemberMetadataKey("g", "m-1")
    value = consumer.ConsumerGroupMemberMetadataValue(
        "i-1", "east", "a", "/10.0.0.1", ["orders", "payments"], "^o.*", 300_000, "uniform", None
    )
    add(decoder, key, value)
    add(decoder, key, consumer.ConsumerGroupMemberMetadataValue(None, None, "a", "/1", [], "", -1, None, None))
    classic_said = consumer.ClassicMemberMetadata(45_000, [consumer.ClassicProtocol("range", b"")])
    add(
        decoder,
        key,
        consumer.ConsumerGroupMemberMetadataValue(
            None, None, "a", "/1", ["t"], None, 5, None, classic_said, [consumer.ClientAssignor("own", 0, 1)]
        ),
    )
    add(decoder, key, None)
    same = {
        **PLACE, **NOTHING, "group_id": "g", "kind": "consumer", "record_name": "consumer_group_member_metadata",
        "member_id": "m-1",
    }  # fmt: skip
    assert rows(decoder) == [
        {
            **same,
            "instance_id": "i-1",
            "rack_id": "east",
            "client_id": "a",
            "client_host": "/10.0.0.1",
            "rebalance_timeout_ms": 300_000,
            "subscribed_topics": ["orders", "payments"],
            "subscribed_regex": "^o.*",
            "assignor": "uniform",
        },
        {**same, "client_id": "a", "client_host": "/1", "subscribed_topics": []},
        {
            **same,
            "client_id": "a",
            "client_host": "/1",
            "rebalance_timeout_ms": 5,
            "session_timeout_ms": 45_000,
            "subscribed_topics": ["t"],
        },
        {**same, "is_tombstone": True},
    ]


def test_a_member_of_a_share_group() -> None:
    decoder = MembersTable()
    key = share.ShareGroupMemberMetadataKey("g", "m-1")
    add(decoder, key, share.ShareGroupMemberMetadataValue("east", "a", "/1", ["orders"]))
    add(decoder, key, None)
    same = {
        **PLACE, **NOTHING, "group_id": "g", "kind": "share", "record_name": "share_group_member_metadata",
        "member_id": "m-1",
    }  # fmt: skip
    assert rows(decoder) == [
        {**same, "rack_id": "east", "client_id": "a", "client_host": "/1", "subscribed_topics": ["orders"]},
        {**same, "is_tombstone": True},
    ]


def test_a_member_of_a_streams_group() -> None:
    decoder = MembersTable()
    key = streams.StreamsGroupMemberMetadataKey("g", "m-1")
    add(decoder, key, streams.StreamsGroupMemberMetadataValue("i-1", "east", "a", "/1", 9_000, 2, "process"))
    add(decoder, key, None)
    same = {
        **PLACE, **NOTHING, "group_id": "g", "kind": "streams", "record_name": "streams_group_member_metadata",
        "member_id": "m-1",
    }  # fmt: skip
    about = {"instance_id": "i-1", "rack_id": "east", "client_id": "a", "client_host": "/1"}
    assert rows(decoder) == [{**same, **about, "rebalance_timeout_ms": 9_000}, {**same, "is_tombstone": True}]


def test_records_of_other_tables_are_passed_over() -> None:
    decoder = MembersTable()
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
    decoder = MembersTable()
    with pytest.raises(DecodeError, match=r"."):
        add_bytes(decoder, record_type.to_bytes(2, "big") + b"\x00\x01g\x00\x01m", value)
    assert len(decoder) == 0
