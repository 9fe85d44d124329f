"""Records of format 1 in format 2: the bytes of values, of batches, and what meta.properties says."""

from __future__ import annotations

import pytest

from kcoord.log.record_format import (
    INT64_MAX,
    batch_in_format_2,
    decode_ends,
    encode_ends,
    format_1_end,
    in_format_2,
)
from kcoord.log.serde import decode_record, encode_record
from kcoord.protocol.records.consumer_group_member_metadata import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ClientAssignor,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.wire.message import Message
from kcoord.wire.record_batch import BatchBuilder, decode_records, parse_header

OFFSETS = "__consumer_offsets"
KEY = ConsumerGroupMemberMetadataKey("g", "m")
CLASSIC = ClassicMemberMetadata(45_000, [ClassicProtocol("range", b"\x00\x01")])
NULL_TAG = b"\x00\x01\x00"


def member(classic: ClassicMemberMetadata | None, own: bool = False) -> ConsumerGroupMemberMetadataValue:
    assignors = [ClientAssignor("mine", 1, 3)] if own else None
    topics = ["orders", "x" * 200]
    return ConsumerGroupMemberMetadataValue("i", None, "client", "/1", topics, "^o", 5, None, classic, assignors)


def pair(key: Message, value: Message | None) -> tuple[bytes, bytes | None]:
    return encode_record(key, value)


def as_format_1(value: ConsumerGroupMemberMetadataValue) -> tuple[bytes, bytes]:
    """A member without classic metadata as format 1 has it: the same bytes without the tag that says null."""
    key_bytes, value_bytes = pair(KEY, value)
    assert value_bytes is not None and value.classic_member_metadata is None
    count = 1 + (value.client_assignors is not None)
    head, tail = value_bytes.split(bytes([count]) + NULL_TAG, 1)
    return key_bytes, head + bytes([count - 1]) + tail


@pytest.mark.parametrize("own", [False, True])
def test_a_null_that_was_left_out_is_written_out(own: bool) -> None:
    value = member(None, own)
    key_bytes, older = as_format_1(value)
    # As Kafka reads it, and as it was meant.
    assert decode_record(key_bytes, older)[1] == member(ClassicMemberMetadata(), own)
    newer = in_format_2(key_bytes, older)
    assert newer == pair(KEY, value)[1] and decode_record(key_bytes, newer)[1] == value
    assert in_format_2(key_bytes, newer) is newer


@pytest.mark.parametrize(
    "record",
    [
        pair(KEY, member(CLASSIC)),
        pair(KEY, member(CLASSIC, own=True)),
        pair(KEY, None),
        pair(GroupMetadataKey("g"), GroupMetadataValue("consumer", 1)),
        pair(OffsetCommitKey("g", "t", 0), OffsetCommitValue(3, -1, "", 7)),
        (b"", b""),
        (b"\x00\x05", b"\x00\x01\x00"),
        # Cut in the middle: reading it reports what is wrong.
        (pair(KEY, None)[0], (pair(KEY, member(None))[1] or b"")[:20]),
        (pair(KEY, None)[0], (pair(KEY, member(None))[1] or b"")[:-4]),
        (None, b"x"),
    ],
)
def test_everything_else_stays_as_it_is(record: tuple[bytes | None, bytes | None]) -> None:
    assert in_format_2(*record) is record[1]


@pytest.mark.parametrize("codec", range(5))
def test_a_batch(codec: int) -> None:
    builder = BatchBuilder()
    older = as_format_1(member(None))
    commit = pair(OffsetCommitKey("g", "t", 0), OffsetCommitValue(3, -1, "", 7))
    headers: list[tuple[str, bytes | None]] = [("cause", b"member_joined")]
    for number, (key, value) in enumerate([commit, older, pair(KEY, None), older, older]):
        builder.append(1000 + number, key, value, headers if number == 3 else None)
    data = builder.build(40, 7, codec=codec)
    changed, count = batch_in_format_2(data, parse_header(data), 44, 1 << 20)
    # The last one is at 44, where records have format 2 already.
    assert count == 2
    header, before = parse_header(changed), parse_header(data)
    assert header.size == len(changed)
    same = "base_offset leader_epoch attributes count last_offset base_timestamp max_timestamp"
    for name in same.split():
        assert getattr(header, name) == getattr(before, name), name
    was = decode_records(data, 0, before, 1 << 20)
    now = decode_records(changed, 0, header, 1 << 20)
    newer = pair(KEY, member(None))[1]
    assert [one.value for one in now] == [commit[1], newer, None, newer, older[1]]
    for one, other in zip(was, now, strict=True):
        assert (one.offset, one.timestamp, one.key, one.headers) == (
            other.offset, other.timestamp, other.key, other.headers,
        )  # fmt: skip


def test_a_batch_without_such_records_keeps_its_bytes() -> None:
    builder = BatchBuilder()
    builder.append(1, *as_format_1(member(None)))
    data = builder.build(40, 7)
    # Behind the end of format 1, and control batches.
    assert batch_in_format_2(data, parse_header(data), 40, 1 << 20)[0] is data
    builder = BatchBuilder()
    builder.append(1, *pair(KEY, member(CLASSIC)))
    data = builder.build(40, 7)
    assert batch_in_format_2(data, parse_header(data), INT64_MAX, 1 << 20) == (data, 0)


def test_the_contents_of_meta_properties() -> None:
    assert decode_ends(encode_ends({12: 3, 0: 1 << 40})) == {12: 3, 0: 1 << 40} and decode_ends("") == {}
    for damaged in ("1", "1:", "x:3", "1:2:3"):
        with pytest.raises(ValueError):
            decode_ends(damaged)
    ends = {"kcoord.format": "2", "kcoord.format.1.ends": "0:7 3:9"}
    assert [format_1_end(ends, OFFSETS, number) for number in (0, 3, 4)] == [7, 9, 0]
    assert format_1_end(ends, "orders", 0) == 0
    assert format_1_end({"kcoord.format": "1"}, OFFSETS, 4) == INT64_MAX
    assert format_1_end({"kcoord.format": "1"}, "orders", 4) == 0
    # A broker's.
    assert format_1_end({"version": "1"}, OFFSETS, 0) == 0 and format_1_end({}, OFFSETS, 0) == 0
