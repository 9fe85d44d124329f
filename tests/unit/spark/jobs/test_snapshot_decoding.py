"""Rows of the table `records` through the decoders of tables, one by one: as the slices of a log give them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from kcoord.protocol.records.legacy_offset_commit import LegacyOffsetCommitKey, LegacyOffsetCommitValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.spark.jobs.snapshot import RAW_COLUMNS, OffsetsDecoder, decode_rows
from kcoord.spark.tables.group_metadata import GroupMetadataTable
from kcoord.spark.tables.members import MembersTable
from kcoord.wire.primitives import DecodeError
from tests.unit.spark.records_rig import START_MS, HandLog
from tests.unit.spark.table_rig import TIME


def raw(log: HandLog, cause: bytes | None = None) -> pa.RecordBatch:
    """The rows of RAW_COLUMNS that are not taken yet; `cause` is that of all of them."""
    batch = log.batch()
    causes = pa.array([cause] * batch.num_rows, pa.binary())
    return batch.append_column("cause", causes).select(RAW_COLUMNS)


def test_offsets_groups_and_members_of_single_records() -> None:
    log = HandLog("east", partition=3)
    value = OffsetCommitValue(9, 4, "note", START_MS + 123, -1, bytes(range(16)))
    log.put(0.123, OffsetCommitKey("pay", "orders", 2), value)
    log.put(0.123, LegacyOffsetCommitKey("pay", "bills", 1), LegacyOffsetCommitValue(7, "", START_MS + 123))
    member = MemberMetadata("m", "i", "client", "host", 1, 2, b"", b"")
    log.put(
        0.123,
        GroupMetadataKey("pay"),
        GroupMetadataValue("consumer", 5, "range", "m", START_MS + 123, [member]),
    )
    batch = raw(log)
    place = {"log": "east", "log_topic": "__consumer_offsets", "log_partition": 3, "log_timestamp": TIME}
    [offsets] = decode_rows(iter([batch]), OffsetsDecoder())
    first, second = offsets.to_pylist()
    assert first == {
        **place, "log_offset": 0, "group_id": "pay", "topic": "orders", "partition": 2, "committed_offset": 9,
        "leader_epoch": 4, "metadata": "note", "commit_timestamp": TIME, "expire_timestamp": None,
        "topic_id": "AAECAwQFBgcICQoLDA0ODw", "producer_id": None, "is_tombstone": False,
    }  # fmt: skip
    assert (second["topic"], second["committed_offset"], second["leader_epoch"], second["topic_id"]) == (
        "bills", 7, None, None,
    )  # fmt: skip
    [groups] = decode_rows(iter([batch]), GroupMetadataTable())
    [row] = groups.to_pylist()
    assert (row["log_offset"], row["group_id"], row["epoch"], row["cause"]) == (2, "pay", 5, None)
    [members] = decode_rows(iter([batch]), MembersTable())
    assert [(row["member_id"], row["instance_id"]) for row in members.to_pylist()] == [("m", "i")]


def test_groups_have_the_causes_of_their_epochs() -> None:
    log = HandLog("east")
    log.put(1, GroupMetadataKey("pay"), GroupMetadataValue("consumer", 5, "range", "m", START_MS, []))
    batch = raw(log, b'{"kind": "member_joined"}')
    [groups] = decode_rows(iter([batch]), GroupMetadataTable())
    assert "member_joined" in groups.to_pylist()[0]["cause"]


def test_nothing_is_passed_over_that_cannot_be_decoded() -> None:
    log = HandLog("east")
    log.put_bytes(0, b"\x00\x63whatever", b"\x00\x00")
    batch = raw(log)
    assert list(decode_rows(iter([batch]), OffsetsDecoder())) == []
    broken = batch.set_column(5, "key", pa.array([b"\x00\x01\x00"], pa.binary()))
    with pytest.raises(DecodeError):
        list(decode_rows(iter([broken]), OffsetsDecoder()))
