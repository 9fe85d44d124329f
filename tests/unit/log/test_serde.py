"""Coordinator and metadata records to bytes and back."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord.log.serde import (
    UnknownRecord,
    decode_metadata_record,
    decode_record,
    decode_transaction_record,
    encode_metadata_record,
    encode_record,
)
from kcoord.protocol.records.config_record import ConfigRecord
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
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.protocol.records.transaction_group_assignment import (
    AssignedTopic,
    TransactionGroupAssignmentKey,
    TransactionGroupAssignmentValue,
)
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError, EncodeError
from tests.harness.present import present

TOPIC_ID = bytes(range(16))

PAIRS: list[tuple[Message, Message]] = [
    (OffsetCommitKey("g", "t", 3), OffsetCommitValue(42, 7, "meta", 1000)),
    (OffsetCommitKey("g", "t", 3), OffsetCommitValue(42, 7, "meta", 1000, -1, TOPIC_ID)),
    (
        GroupMetadataKey("g"),
        GroupMetadataValue(
            "consumer", 5, "range", "m", 99, [MemberMetadata("m", "i", "c", "/1.2.3.4", 60, 30, b"s", b"a")]
        ),
    ),
    (ConsumerGroupMetadataKey("g"), ConsumerGroupMetadataValue(9)),
    (ConsumerGroupMemberMetadataKey("g", "m"), ConsumerGroupMemberMetadataValue("i", None, "c", "h", ["t"])),
]


@pytest.mark.parametrize(("key", "value"), PAIRS)
def test_round_trip(key: Message, value: Message) -> None:
    key_bytes, value_bytes = encode_record(key, value)
    assert decode_record(key_bytes, value_bytes) == (key, value)
    assert decode_record(encode_record(key, None)[0], None) == (key, None)


def test_group_assignments_of_transactions_have_a_type_of_their_own() -> None:
    key = TransactionGroupAssignmentKey("tx")
    value = TransactionGroupAssignmentValue("g", 7, "m", None, [AssignedTopic("t", [0, 2])])
    key_bytes, value_bytes = encode_record(key, value)
    assert key_bytes == bytes.fromhex("2710 0002 7478")
    # Version, group, generation, member, no instance, one topic with two partitions, and no tags.
    assert value_bytes == bytes.fromhex("0000 0267 00000007 026d 00 02 0274 03 00000000 00000002 00 00")
    assert decode_transaction_record(key_bytes, value_bytes) == (key, value)
    assert decode_transaction_record(encode_record(key, None)[0], None) == (key, None)
    # In `__consumer_offsets` the number is unknown.
    unknown, nothing = decode_record(key_bytes, value_bytes)
    assert isinstance(unknown, UnknownRecord) and nothing is None
    with pytest.raises(DecodeError):
        decode_transaction_record(key_bytes, b"\0\1")


def test_offset_commit_bytes() -> None:
    key, value = encode_record(OffsetCommitKey("g", "t", 3), OffsetCommitValue(42, 7, "m", 1000))
    assert key == b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x03"
    # Version 4 is compact and ends with its tags.
    assert value == b"\x00\x04" + bytes(7) + b"\x2a\x00\x00\x00\x07\x02m" + bytes(6) + b"\x03\xe8\x00"


def test_versions_written() -> None:
    assert present(encode_record(*PAIRS[2])[1])[:2] == b"\x00\x03"
    expiring = OffsetCommitValue(42, -1, "m", 1000, 5000)
    value = present(encode_record(OffsetCommitKey("g", "t", 3), expiring)[1])
    assert value[:2] == b"\x00\x01"
    assert decode_record(encode_record(OffsetCommitKey("g", "t", 3), None)[0], value)[1] == expiring


def test_older_offset_commits_are_read() -> None:
    key = b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x03"
    v0 = b"\x00\x00" + bytes(7) + b"\x2a\x00\x01m" + bytes(6) + b"\x03\xe8"
    v3 = b"\x00\x03" + bytes(7) + b"\x2a\x00\x00\x00\x07\x00\x01m" + bytes(6) + b"\x03\xe8"
    assert decode_record(key, v0)[1] == OffsetCommitValue(42, -1, "m", 1000)
    assert decode_record(key, v3)[1] == OffsetCommitValue(42, 7, "m", 1000)
    # Key type 0 is the first form of the same.
    assert decode_record(b"\x00\x00" + key[2:], v0) == (
        OffsetCommitKey("g", "t", 3),
        OffsetCommitValue(42, -1, "m", 1000),
    )


def test_unknown_types_keep_their_bytes() -> None:
    key, value = decode_record(b"\x00\x63abc", b"\x00\x00xyz")
    assert isinstance(key, UnknownRecord) and key.record_type == 0x63 and value is None
    assert encode_record(key, None) == (b"\x00\x63abc", b"\x00\x00xyz")
    metadata = decode_metadata_record(b"\x01\x7f\x00zzz")
    assert isinstance(metadata, UnknownRecord) and metadata.record_type == 0x7F
    assert encode_metadata_record(metadata) == b"\x01\x7f\x00zzz"


def test_newer_versions_are_refused() -> None:
    key = encode_record(OffsetCommitKey("g", "t", 3), None)[0]
    for bad in (b"\x00\x05" + bytes(40), b"\xff\xff" + bytes(40), b"", b"\x00"):
        with pytest.raises(DecodeError):
            decode_record(key, bad)
    for bad in (b"\x02\x02\x00", b"\x01\x02\x09" + bytes(30), b""):
        with pytest.raises(DecodeError):
            decode_metadata_record(bad)


def test_mismatched_messages_are_refused() -> None:
    with pytest.raises(EncodeError):
        encode_record(OffsetCommitKey("g", "t", 3), GroupMetadataValue())
    with pytest.raises(EncodeError):
        encode_record(OffsetCommitValue(), None)
    with pytest.raises(EncodeError):
        encode_metadata_record(OffsetCommitKey())


@pytest.mark.parametrize(
    "record",
    [
        TopicRecord("orders", TOPIC_ID),
        PartitionRecord(3, TOPIC_ID, [1], [1], leader=1, directories=[TOPIC_ID]),
        ConfigRecord(2, "orders", "retention.ms", None),
    ],
)
def test_metadata_round_trip(record: Message) -> None:
    data = encode_metadata_record(record)
    assert data[0] == 1
    assert decode_metadata_record(data) == record


def test_transaction_records() -> None:
    key, value = TransactionLogKey("tx"), TransactionLogValue(7)
    assert decode_transaction_record(*encode_record(key, value)) == (key, value)
    assert decode_transaction_record(encode_record(key, None)[0], None) == (key, None)


@given(key=st.binary(max_size=60), value=st.none() | st.binary(max_size=60))
def test_garbage_is_a_decode_error(key: bytes, value: bytes | None) -> None:
    for prefix in (b"", b"\x00\x01", b"\x00\x02", b"\x00\x05", b"\x00\x08"):
        with contextlib.suppress(DecodeError):
            decode_record(prefix + key, value)
    with contextlib.suppress(DecodeError):
        decode_metadata_record(b"\x01" + key)


def test_a_consumer_group_member_as_a_broker_writes_it() -> None:
    """Kafka 4.3.1 writes the tagged field for a member of the new protocol as well, as one byte 0."""
    key = b"\x00\x05\x00\x03new\x00\x16nJBk8AR-QXiRF75usKqpLw"
    value = b"\x00\x00\x00\x00\x11console-consumer\x0b/127.0.0.1\x02\x02t\x01\x00\x04\x93\xe0\x00\x01\x00\x01\x00"
    _key, member = decode_record(key, value)
    assert isinstance(member, ConsumerGroupMemberMetadataValue)
    assert (member.subscribed_topic_names, member.rebalance_timeout_ms) == (["t"], 300000)
    assert member.classic_member_metadata is None
