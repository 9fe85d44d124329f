"""Segments that are cut, flipped or made to hurt: rows are what was written, or `_corrupt` says what is missing."""

from __future__ import annotations

import gzip
import resource
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import pytest

from kcoord.log.serde import encode_record, encode_value
from kcoord.protocol.records.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
)
from kcoord.protocol.records.consumer_group_member_metadata import ConsumerGroupMemberMetadataKey
from kcoord.protocol.records.consumer_group_metadata import ConsumerGroupMetadataKey
from kcoord.protocol.records.consumer_group_target_assignment_member import (
    ConsumerGroupTargetAssignmentMemberKey,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from kcoord.protocol.records.transaction_log import PartitionsSchema, TransactionLogKey, TransactionLogValue
from kcoord.spark.reader.tasks import CorruptLog
from kcoord.wire.primitives import BytesWriter, write_varint
from kcoord.wire.record_batch import encode_batch
from tests.unit.spark.log_rig import NOW, LogRig, commit, rows

OFFSETS = "__consumer_offsets"
TRANSACTIONS = "__transaction_state"
# Bytes of a batch that no checksum covers: base offset and leader epoch. Its length has to fit.
UNCOVERED = (*range(8), *range(12, 16))
# Of the processor, whatever else the machine does meanwhile.
TIME_S = 20
# Bytes from one try to the next. Tables that are made record by record differ in records alone.
STEP = {"group_metadata": 7, "members": 7, "assignments": 7, "transactions": 7, "records": 5}
Pair = tuple[bytes | None, bytes | None]


def group(number: int) -> Pair:
    member = MemberMetadata("m-1", None, "c", "/h", 1000, 1000, b"\0\0\0\0\0\0", b"\0\0\0\0\0\0\0\0\0\0")
    value = GroupMetadataValue("consumer", number, "range", "m-1", NOW, [member])
    return encode_record(GroupMetadataKey("g"), value)


def transaction(number: int) -> Pair:
    value = TransactionLogValue(7, -1, -1, number, -1, 1000, 1, [PartitionsSchema("t", [0])], NOW, NOW, 0)
    return encode_record(TransactionLogKey("id"), value)


# Of each table: its topic, and a record that is in it.
TABLES: dict[str, tuple[str, Callable[[int], Pair]]] = {
    "messages": ("t", lambda number: (b"k%d" % number, b"v")),
    "offset_commits": (OFFSETS, lambda number: commit("g", "t", 0, number)),
    "group_metadata": (OFFSETS, group),
    "members": (OFFSETS, group),
    "assignments": (OFFSETS, group),
    "records": (OFFSETS, group),
    "transactions": (TRANSACTIONS, transaction),
}


def three_batches(root: Path, table: str, **batch: Any) -> tuple[LogRig, list[int]]:
    """A log, and where its batches end."""
    topic, record = TABLES[table]
    log = LogRig(root, topic)
    ends = []
    for number in range(3):
        log.append(record(number), **batch)
        ends.append(log.size)
    return log, ends


def offset_name(table: str) -> str:
    return "offset" if table == "messages" else "log_offset"


# --- cut and flipped


@pytest.mark.parametrize("table", TABLES)
def test_a_log_cut_anywhere_has_the_rows_of_what_is_whole(tmp_path: Path, table: str) -> None:
    log, ends = three_batches(tmp_path, table)
    data = log.file(".log").read_bytes()
    whole = rows(tmp_path, table)
    assert len(whole) == 3
    for size in range(0, len(data), STEP.get(table, 1)):
        log.file(".log").write_bytes(data[:size])
        kept = sum(end <= size for end in ends)
        # A tail that nobody was told of is no damage, for those who fail at damage, too.
        assert rows(tmp_path, table) == whole[:kept]
        corrupt = rows(tmp_path, "_corrupt")
        begin = ends[kept - 1] if kept else 0
        expected = [(begin, size - begin, kept)] if size > begin else []
        assert [(row["position"], row["size_bytes"], row["log_offset"]) for row in corrupt] == expected
        assert all(str(row["reason"]).startswith("torn tail: ") for row in corrupt)


@pytest.mark.parametrize("table", TABLES)
def test_a_log_cut_before_its_mark_is_damaged(tmp_path: Path, table: str) -> None:
    log, ends = three_batches(tmp_path, table)
    log.checkpoint("recovery-point-offset-checkpoint", 3)
    data = log.file(".log").read_bytes()
    for size in range(1, len(data), 7):
        if size in ends:
            continue
        log.file(".log").write_bytes(data[:size])
        with pytest.raises(CorruptLog, match=r"00000.log at byte \d+, offset \d: "):
            rows(tmp_path, table)
        assert len(rows(tmp_path, table, onCorrupt="collect")) == sum(end <= size for end in ends)


@pytest.mark.parametrize(("table", "codec"), [*((table, 0) for table in TABLES), ("messages", 4), ("records", 1)])
def test_no_flipped_bit_goes_unsaid(tmp_path: Path, table: str, codec: int) -> None:
    """A bit of each byte (of tables that are read alike, of every few) that a checksum covers, or in a length."""
    log, ends = three_batches(tmp_path, table, codec=codec)
    log.checkpoint("recovery-point-offset-checkpoint", 3)
    data = log.file(".log").read_bytes()
    whole = rows(tmp_path, table)
    for at in range(0, ends[1], STEP.get(table, 1)):
        begin = 0 if at < ends[0] else ends[0]
        if at - begin in UNCOVERED:
            continue
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at % 8)
        log.file(".log").write_bytes(flipped)
        lost = int(at >= ends[0])
        left = [row for row in whole if row[offset_name(table)] != lost]
        assert rows(tmp_path, table, onCorrupt="collect") == left, at
        corrupt = rows(tmp_path, "_corrupt")
        assert [(row["position"], row["log_offset"]) for row in corrupt] == [(begin, lost)], at
        with pytest.raises(CorruptLog, match=f"at byte {begin}, offset {lost}: "):
            rows(tmp_path, table)


# --- records that are not what they say


def varint(number: int) -> bytes:
    w = BytesWriter()
    write_varint(w, number)
    return w.getvalue()


def record_bytes(
    key: bytes,
    value: bytes,
    key_size: int | None = None,
    value_size: int | None = None,
    headers: bytes = b"\0",
    offset_delta: int = 0,
) -> bytes:
    body = b"\0" + varint(0) + varint(offset_delta)
    body += varint(len(key) if key_size is None else key_size) + key
    body += varint(len(value) if value_size is None else value_size) + value + headers
    return varint(len(body)) + body


def batch(records: bytes, offset: int = 0, attributes: int = 0, count: int = 1, at_ms: int = NOW) -> bytes:
    """A batch with a right checksum, whatever is in it."""
    return encode_batch(offset, 0, attributes, count - 1, at_ms, at_ms, -1, -1, -1, count, records)


KEY, VALUE = commit("g", "t", 0, 1)
assert KEY is not None and VALUE is not None
HUGE = 0x7FFFFFFF
NONSENSE = {
    "key of 2 GiB": record_bytes(KEY, VALUE, key_size=HUGE),
    "value of 2 GiB": record_bytes(KEY, VALUE, value_size=HUGE),
    "record of 2 GiB": varint(HUGE) + bytes(50),
    "record of negative size": varint(-7) + bytes(50),
    "a size without end": b"\xff" * 50,
    "2^31 headers": record_bytes(KEY, VALUE, headers=varint(HUGE)),
    "a negative number of headers": record_bytes(KEY, VALUE, headers=varint(-3)),
    "a header without a name": record_bytes(KEY, VALUE, headers=varint(1) + varint(-1) + varint(-1)),
    "an offset outside of the batch": record_bytes(KEY, VALUE, offset_delta=3),
    "bytes behind the record": record_bytes(KEY, VALUE) + b"more",
    "no record": b"",
}


@pytest.mark.parametrize("what", NONSENSE)
@pytest.mark.parametrize("table", ["offset_commits", "records", "members"])
def test_records_that_cannot_be(tmp_path: Path, what: str, table: str) -> None:
    log = LogRig(tmp_path, OFFSETS)
    log.write(batch(NONSENSE[what]))
    log.next_offset = 1
    log.append(group(1), commit("g", "t", 0, 2))
    with pytest.raises(CorruptLog, match="at byte 0, offset 0: "):
        rows(tmp_path, table)
    kept = rows(tmp_path, table, onCorrupt="collect")
    assert kept and min(int(str(row["log_offset"])) for row in kept) >= 1
    assert [row["log_offset"] for row in rows(tmp_path, "_corrupt")] == [0]


def test_more_records_than_bytes(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    log.write(batch(record_bytes(b"k", b"v"), count=HUGE))
    log.next_offset = HUGE
    log.append((b"k", b"v"))
    with pytest.raises(CorruptLog, match=f"{HUGE} records in"):
        rows(tmp_path)
    assert len(rows(tmp_path, onCorrupt="collect")) == 1


def _huge_count(key: bytes, version: int, before: bytes) -> Pair:
    """A value that ends in the number of things that are to follow: 2^31 - 1, as a varint and as an int32."""
    return key, struct.pack(">h", version) + before + b"\xff\xff\xff\xff\x07"


COUNTS = {
    # Protocol type, generation, protocol, leader, time; then members.
    "members of a classic group": _huge_count(
        encode_record(GroupMetadataKey("g"), None)[0],
        3,
        b"\0\1c" + bytes(4) + b"\xff\xff" * 2 + bytes(8) + b"\x7f",
    ),
    "topics of a target assignment": _huge_count(
        encode_record(ConsumerGroupTargetAssignmentMemberKey("g", "m"), None)[0], 0, b""
    ),
    "partitions of a transaction": _huge_count(
        encode_record(TransactionLogKey("id"), None)[0], 0, bytes(8) + bytes(2) + bytes(4) + b"\1" + b"\x7f"
    ),
}


@pytest.mark.parametrize("what", COUNTS)
def test_counts_that_nothing_follows(tmp_path: Path, what: str) -> None:
    topic, tables = (TRANSACTIONS, ["transactions"])
    if "transaction" not in what:
        topic = OFFSETS
        tables = ["assignments"] if "target" in what else ["group_metadata", "members", "assignments"]
    log = LogRig(tmp_path, topic)
    log.append(COUNTS[what])
    began = time.process_time()
    for table in (*tables, "records"):
        with pytest.raises(CorruptLog, match="at byte 0, offset 0: "):
            rows(tmp_path, table)
        assert rows(tmp_path, table, onCorrupt="collect") == []
    assert len(rows(tmp_path, "_corrupt")) == 1
    assert time.process_time() - began < TIME_S


def test_a_hundred_thousand_members(tmp_path: Path) -> None:
    """No damage: it only has to fit, into batches of rows that Arrow takes."""
    member = MemberMetadata("m", None, "c", "/h", 1000, 1000, b"", b"")
    value = GroupMetadataValue("other", 1, "range", "m", NOW, [member] * 100_000)
    LogRig(tmp_path, OFFSETS).append(encode_record(GroupMetadataKey("g"), value))
    began = time.process_time()
    assert len(rows(tmp_path, "members")) == 100_000
    assert [row["member_count"] for row in rows(tmp_path, "group_metadata")] == [100_000]
    assert time.process_time() - began < TIME_S


UNKNOWN = {
    "offset_commits": (OFFSETS, commit("g", "t", 0, 1)[0]),
    "group_metadata": (OFFSETS, encode_record(ConsumerGroupMetadataKey("g"), None)[0]),
    "members": (OFFSETS, encode_record(ConsumerGroupMemberMetadataKey("g", "m"), None)[0]),
    "assignments": (OFFSETS, encode_record(ConsumerGroupCurrentMemberAssignmentKey("g", "m"), None)[0]),
    "transactions": (TRANSACTIONS, encode_record(TransactionLogKey("id"), None)[0]),
}


@pytest.mark.parametrize("version", [-1, 9, 0x7FFF])
@pytest.mark.parametrize("table", UNKNOWN)
def test_values_of_versions_that_are_not_known(tmp_path: Path, table: str, version: int) -> None:
    topic, key = UNKNOWN[table]
    log = LogRig(tmp_path, topic)
    log.append((key, struct.pack(">h", version) + bytes(40)))
    with pytest.raises(CorruptLog, match="offset 0: "):
        rows(tmp_path, table)
    assert rows(tmp_path, table, onCorrupt="collect") == []
    assert [row["log_offset"] for row in rows(tmp_path, "_corrupt")] == [0]
    # As bytes they are still there.
    shown = rows(tmp_path, "records", onCorrupt="collect")
    assert [(row["key"], row["value_json"]) for row in shown] == [(key, None)]


@pytest.mark.parametrize("topic", [OFFSETS, TRANSACTIONS])
def test_keys_of_types_that_are_not_known(tmp_path: Path, topic: str) -> None:
    LogRig(tmp_path, topic).append((b"\x03\xe7", b"\x00\x00later"), (b"\xff\xff", b""))
    assert [(row["record_type"], row["record_name"]) for row in rows(tmp_path, "records")] == [
        (999, None),
        (-1, None),
    ]
    assert rows(tmp_path, "_corrupt") == []


@pytest.mark.parametrize("key", [None, b"", b"\x00", KEY[:-1], KEY + b"\x00", b"\x00\x01\x7f\xffg"])
def test_keys_that_are_none(tmp_path: Path, key: bytes | None) -> None:
    LogRig(tmp_path, OFFSETS).append((key, VALUE))
    with pytest.raises(CorruptLog):
        rows(tmp_path, "offset_commits")
    assert rows(tmp_path, "offset_commits", onCorrupt="collect") == []
    assert [row["log_offset"] for row in rows(tmp_path, "_corrupt")] == [0]


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("more", [b"\x00", b"more"])
def test_values_with_extra_bytes(tmp_path: Path, version: int, more: bytes) -> None:
    key, value = _commit_of("text")
    LogRig(tmp_path, OFFSETS).append((KEY, encode_value(key, value, version) + more))
    with pytest.raises(CorruptLog):
        rows(tmp_path, "offset_commits")
    assert rows(tmp_path, "offset_commits", onCorrupt="collect") == []
    assert [row["log_offset"] for row in rows(tmp_path, "_corrupt")] == [0]


def test_messages_may_be_any_bytes(tmp_path: Path) -> None:
    LogRig(tmp_path).append((b"\xff\xfe\x00", b"\x80" * 9), headers=[("\udcff", b"\xff")])
    (found,) = rows(tmp_path)
    assert (found["key"], found["value"]) == (b"\xff\xfe\x00", b"\x80" * 9)
    assert found["headers"] == [{"key": "\N{REPLACEMENT CHARACTER}", "value": b"\xff"}]


PICKLE = b"cos\nsystem\n(S'touch evaluated'\ntR."


@pytest.mark.parametrize("text", [PICKLE, b"__import__('os').system('touch evaluated')", b"${jndi:ldap://127.0.0.1/x}"])
def test_nothing_is_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "data"
    log = LogRig(root, OFFSETS)
    log.append((KEY, encode_value(*_commit_of(text.decode()), 3)))
    log.append((text, text))
    log.file(".snapshot").write_bytes(text)
    log.file(".index").write_bytes(text)
    LogRig(root).append((text, text))
    assert [row["value"] for row in rows(root)] == [text]
    assert [row["metadata"] for row in rows(root, "offset_commits", onCorrupt="collect")] == [text.decode()]
    for table in ("records", "members", "_corrupt"):
        rows(root, table, onCorrupt="collect")
    assert [file.name for file in tmp_path.iterdir()] == ["data"]


def _commit_of(metadata: str) -> tuple[Any, Any]:
    from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue

    return OffsetCommitKey("g", "t", 0), OffsetCommitValue(1, -1, metadata, NOW)


# --- bombs

ZEROS = 1 << 28
BOMBS: dict[str, tuple[int, Callable[[], bytes]]] = {
    "gzip": (1, lambda: gzip.compress(bytes(ZEROS), 6)),
    "snappy": (2, lambda: bytes(cramjam.snappy.compress_raw(bytes(ZEROS)))),
    "lz4": (3, lambda: bytes(cramjam.lz4.compress(bytes(ZEROS)))),
    "zstd": (4, lambda: bytes(cramjam.zstd.compress(bytes(ZEROS)))),
    # What it says of itself is not believed.
    "snappy of 4 GiB": (2, lambda: b"\xff\xff\xff\xff\x0f" + bytes(100)),
    "no gzip": (1, lambda: b"\x1f\x8b" + b"\xff" * 100),
    "no zstd": (4, lambda: b"\x28\xb5\x2f\xfd" + b"\xff" * 100),
    "a codec that does not exist": (7, lambda: bytes(100)),
}


@pytest.mark.parametrize("what", BOMBS)
def test_bombs_are_not_unpacked(tmp_path: Path, what: str) -> None:
    codec, make = BOMBS[what]
    log = LogRig(tmp_path, OFFSETS)
    data = make()
    log.write(batch(data, attributes=codec))
    del data
    log.next_offset = 1
    log.append(commit("g", "t", 0, 2))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    given = {"decompressedBytesMax": str(8 << 20)}
    for table in ("offset_commits", "records"):
        with pytest.raises(CorruptLog, match="at byte 0, offset 0: "):
            rows(tmp_path, table, **given)
        assert [row["log_offset"] for row in rows(tmp_path, table, onCorrupt="collect", **given)] == [1]
    assert [row["log_offset"] for row in rows(tmp_path, "_corrupt", **given)] == [0]
    assert time.process_time() - began < TIME_S
    # In KiB. The peak of the process so far, which making the bomb raised, is passed by less than that.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 200 << 10
