"""`kcoord log verify`: nothing is found in what the engine wrote, and each kind of damage is."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kcoord.core.producers import ProducerEntry, SeenBatch, encode_snapshot
from kcoord.core.topics.features import supported_features
from kcoord.engine.state_checkpoint import StatePlan
from kcoord.engine.state_checkpoint import write_state as write_checkpoint
from kcoord.log.partition_log import Extent
from kcoord.log.reader import StoredBatch, read_batches
from kcoord.log.serde import encode_metadata_record, encode_record
from kcoord.log.state_file import StateFileWriter
from kcoord.log.storage import DiskStorage
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.producer_ids_record import ProducerIdsRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.wire.record_batch import BatchBuilder
from tests.unit.cli.rig import METADATA, OFFSETS, START_MS, LogRig, batches_of, run, split_segment, stopped

SEGMENT = f"{0:020d}.log"
# Keys of offsets and groups in the log that `stopped` leaves.
LIVE_KEYS = 3
# A metadata log begins with one record for each.
FEATURES = len(supported_features())


def verify(path: Path, *arguments: str) -> Any:
    result = run("verify", path, *arguments, "-o", "json")
    document = json.loads(result.stdout)
    assert result.exit_code == (1 if document["errors"] else 0)
    return document


def problems(path: Path, severity: str = "error") -> list[tuple[str, str, int | None]]:
    """(check, log, offset) of each problem."""
    found = [problem for problem in verify(path)["problems"] if problem["severity"] == severity]
    return [(problem["check"], problem["log"], problem["offset"]) for problem in found]


def append(path: Path, log: str, *records: tuple[bytes | None, bytes | None], epoch: int = 0) -> None:
    """One more batch at the end of a closed log, as a faulty server could have written it."""
    segment = path / log / SEGMENT
    last = batches_of(segment)[-1]
    base = int.from_bytes(last[:8], "big") + int.from_bytes(last[23:27], "big") + 1
    builder = BatchBuilder()
    for key, value in records:
        builder.append(START_MS + 60_000, key, value)
    segment.write_bytes(segment.read_bytes() + builder.build(base, epoch))
    for index in (path / log).glob("*.timeindex"):
        index.unlink()


def group(generation: int, *members: str, leader: str | None = None, name: str = "workers") -> tuple[bytes, Any]:
    listed = [MemberMetadata(member, None, "c", "/h", 1, 1, b"", b"") for member in members]
    lead = leader or (members[0] if members else None)
    protocol = "range" if members else None
    return encode_record(GroupMetadataKey(name), GroupMetadataValue("consumer", generation, protocol, lead, 1, listed))


def test_nothing_is_wrong_with_what_the_engine_wrote(tmp_path: Path) -> None:
    document = verify(stopped(tmp_path), "--strict")
    assert document["problems"] == [] and document["state"] == "clean"
    logs = {log["log"]: (log["end_offset"], log["batches"], log["records"]) for log in document["logs"]}
    assert logs[OFFSETS] == (10, 8, 10) and logs[METADATA][0] == logs[METADATA][2] == 8 + FEATURES
    assert document["replayed"] == {"groups": 1, "offsets": 2, "topics": 2}
    result = run("verify", tmp_path)
    assert result.exit_code == 0 and result.stdout.splitlines()[-1] == "no problems found"


def test_nor_with_one_that_runs_or_was_killed(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    rig.history()
    rig.marks()
    rig.commit("late", 8, orders_0=1)
    segment = tmp_path / OFFSETS / SEGMENT
    whole = segment.read_bytes()
    segment.write_bytes(whole + b"\0\0\1")
    assert verify(tmp_path, "--strict")["problems"] == []
    rig.kill()
    assert problems(tmp_path) == []
    assert problems(tmp_path, "warning") == [("torn end", OFFSETS, 11)]
    assert run("verify", tmp_path).exit_code == 0 and run("verify", tmp_path, "--strict").exit_code == 1


def test_every_byte_counts(tmp_path: Path) -> None:
    """A flipped bit anywhere in a log of the coordinator is found, and so is a missing end."""
    stopped(tmp_path)
    segment = tmp_path / OFFSETS / SEGMENT
    data = segment.read_bytes()
    for at in range(0, len(data), 37):
        segment.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        document = verify(tmp_path)
        assert document["errors"], at
        assert all(problem["log"] == OFFSETS for problem in document["problems"]), at
    segment.write_bytes(data[: -len(batches_of(segment)[-1])])
    assert ("durable mark", OFFSETS, 8) in problems(tmp_path)


def test_file_and_position_are_reported(tmp_path: Path) -> None:
    stopped(tmp_path)
    segment = tmp_path / OFFSETS / SEGMENT
    data = bytearray(segment.read_bytes())
    data[data.index(b"range")] ^= 1
    segment.write_bytes(data)
    problem = verify(tmp_path)["problems"][0]
    position = len(batches_of(segment)[0]) + len(batches_of(segment)[1])
    assert (problem["file"], problem["position"], problem["offset"]) == (str(segment), position, 2)
    assert "wrong checksum" in problem["message"]
    text = " ".join(run("verify", tmp_path).stdout.split())
    assert f"at byte {position}, offset 2:" in text
    assert f"`kcoord log repair {tmp_path}`" in text
    assert max(map(len, run("verify", tmp_path).stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([group(1, "m")], "generation"),
        ([group(3, "m", leader="stranger")], "members"),
        ([group(3, "m", "m")], "members"),
        ([(b"\0\2\0\1", None)], "records"),
        ([(b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\x63")], "records"),
        ([(None, b"value")], "records"),
    ],
)
def test_records_that_cannot_be(tmp_path: Path, records: list[Any], expected: str) -> None:
    stopped(tmp_path)
    append(tmp_path, OFFSETS, *records)
    assert problems(tmp_path) == [(expected, OFFSETS, 10)]


def test_a_group_may_begin_again(tmp_path: Path) -> None:
    stopped(tmp_path)
    append(tmp_path, OFFSETS, group(2147483647, "m"), group(1, "m"), (group(0)[0], None), group(0, "m"))
    assert problems(tmp_path) == []


def test_groups_are_in_their_partition(tmp_path: Path) -> None:
    stopped(tmp_path)
    (tmp_path / "__consumer_offsets-1").mkdir()
    key, value = encode_record(OffsetCommitKey("g", "t", 0), OffsetCommitValue(1))
    other, _ = encode_record(OffsetCommitKey("h", "t", 0), None)
    append(tmp_path, OFFSETS, (key, value), (other, None))
    # The hashes of "g" and "h" are neighbours.
    misplaced = [offset for check, _, offset in problems(tmp_path) if check == "placement" and (offset or 0) >= 10]
    assert len(misplaced) == 1


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (TopicRecord("orders", bytes(range(16))), "metadata"),
        (PartitionRecord(0, bytes(range(16))), "metadata"),
        (ProducerIdsRecord(1, 0, -5), "producer ids"),
    ],
)
def test_metadata_that_cannot_be(tmp_path: Path, record: Any, expected: str) -> None:
    stopped(tmp_path)
    append(tmp_path, METADATA, (None, encode_metadata_record(record)))
    assert (expected, METADATA, 8 + FEATURES) in problems(tmp_path)


def test_gaps(tmp_path: Path) -> None:
    stopped(tmp_path)
    split_segment(tmp_path / OFFSETS, 6, without=(5,))
    assert problems(tmp_path) == []
    split_segment(tmp_path / METADATA, 99, without=(0,))
    (tmp_path / METADATA / f"{99:020d}.log").unlink()
    assert ("offsets", METADATA, 5 + FEATURES) in problems(tmp_path)


def test_a_gap_in_the_active_segment(tmp_path: Path) -> None:
    stopped(tmp_path)
    split_segment(tmp_path / OFFSETS, 5, without=(7,))
    assert problems(tmp_path) == [("offsets", OFFSETS, 8)]


def filled(path: Path) -> Path:
    """Enough batches for index entries: one each 4 KiB."""
    rig = LogRig(path)
    rig.create("orders", 1, 0)
    for i in range(8):
        rig.produce("orders", bytes(2000), 1 + i)
    rig.stop()
    return path / "orders-0"


def shift_position(data: bytes) -> bytes:
    return data[:4] + (int.from_bytes(data[4:8], "big") + 1).to_bytes(4, "big") + data[8:]


def lower_offset(data: bytes) -> bytes:
    return bytes(4) + data[4:]


def swap_entries(data: bytes) -> bytes:
    return data[8:16] + data[:8] + data[16:]


@pytest.mark.parametrize("change", [shift_position, lower_offset, swap_entries])
def test_offset_index(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    index = filled(tmp_path) / f"{0:020d}.index"
    data = index.read_bytes()
    assert len(data) >= 16 and problems(tmp_path) == []
    index.write_bytes(change(data))
    assert {(check, log) for check, log, _ in problems(tmp_path)} == {("index", "orders-0")}
    index.write_bytes(data + bytes(80))
    assert problems(tmp_path) == []


def test_time_index(tmp_path: Path) -> None:
    index = filled(tmp_path) / f"{0:020d}.timeindex"
    data = index.read_bytes()
    earlier = int.from_bytes(data[:8], "big") - 500
    index.write_bytes(earlier.to_bytes(8, "big") + data[8:])
    [problem] = verify(tmp_path)["problems"]
    assert problem["check"] == "index" and problem["file"] == str(index)
    index.write_bytes(data[:-4] + (100).to_bytes(4, "big"))
    [problem] = verify(tmp_path)["problems"]
    assert "its last entry is for offset 100" in problem["message"]


def test_transaction_index(tmp_path: Path) -> None:
    index = filled(tmp_path) / f"{0:020d}.txnindex"
    entry = b"\0\0" + b"".join(number.to_bytes(8, "big") for number in (7, 1, 3, 4))
    index.write_bytes(entry)
    assert problems(tmp_path) == []
    index.write_bytes(entry + entry)
    assert problems(tmp_path) == [("index", "orders-0", None)]
    index.write_bytes(entry + b"x")
    assert problems(tmp_path) == [("index", "orders-0", None)]


def test_producer_snapshots(tmp_path: Path) -> None:
    path = filled(tmp_path) / f"{8:020d}.snapshot"
    entry = ProducerEntry(5, 0)
    entry.batches.append(SeenBatch(1, 7, 0, START_MS))
    data = encode_snapshot([entry])
    path.write_bytes(data)
    assert problems(tmp_path) == []
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert problems(tmp_path) == [("producer snapshot", "orders-0", None)]
    path.rename(path.with_name(f"{6:020d}.snapshot")).write_bytes(data)
    assert problems(tmp_path) == [("producer snapshot", "orders-0", 7)]


def test_checkpoints(tmp_path: Path) -> None:
    stopped(tmp_path)
    points = tmp_path / "recovery-point-offset-checkpoint"
    points.write_text("0\n1\n__consumer_offsets 0 12\n")
    assert problems(tmp_path) == [("durable mark", OFFSETS, 10)]
    points.write_text("what?")
    assert problems(tmp_path) == [("checkpoint", "", None)]
    points.unlink()
    epochs = tmp_path / OFFSETS / "leader-epoch-checkpoint"
    epochs.write_text("0\n2\n3 0\n2 5\n")
    found = problems(tmp_path)
    assert found == [("leader epoch", OFFSETS, None), ("leader epoch", OFFSETS, 0)]
    epochs.write_text("0\n1\n0 0\n")
    assert problems(tmp_path) == []
    append(tmp_path, OFFSETS, group(5), epoch=4)
    assert problems(tmp_path) == [("leader epoch", OFFSETS, 10)]


def write_state(path: Path, end: int, *records: tuple[int, bytes | None, bytes | None]) -> Path:
    """A state checkpoint of these records (offset, key, value)."""
    writer = StateFileWriter(DiskStorage(str(path)), f"{OFFSETS}/state-checkpoint")
    for offset, key, value in records:
        builder = BatchBuilder()
        builder.append(1, key, value)
        writer.append(builder.build(offset, 0))
    writer.finish(len(records), end)
    return path / OFFSETS / "state-checkpoint"


def test_state_checkpoint(tmp_path: Path) -> None:
    stopped(tmp_path)
    records = []
    for item in read_batches(str(tmp_path / OFFSETS)):
        assert isinstance(item, StoredBatch)
        records += [(record.offset, record.key, record.value) for record in item.records(1 << 20)]
    # Below 6 the newest are: report's offset, the group, and its two offsets.
    right = [records[0], records[2], records[4], records[5]]
    state = write_state(tmp_path, 6, *right)
    assert problems(tmp_path) == []
    write_state(tmp_path, 10, records[4], records[6], records[7], records[9])
    assert problems(tmp_path) == []
    write_state(tmp_path, 6, *right[:-1])
    assert problems(tmp_path) == [("state checkpoint", OFFSETS, 5)]
    write_state(tmp_path, 6, records[0], records[2], records[3], records[4])
    assert problems(tmp_path) == [("state checkpoint", OFFSETS, 3)]
    write_state(tmp_path, 11, *right)
    assert problems(tmp_path) == [("state checkpoint", OFFSETS, 10)]
    write_state(tmp_path, 6, *right)
    data = state.read_bytes()
    state.write_bytes(data[:70] + bytes([data[70] ^ 1]) + data[71:])
    assert problems(tmp_path) == [("state checkpoint", OFFSETS, None)]
    state.write_bytes(b"short")
    assert problems(tmp_path) == [("state checkpoint", OFFSETS, None)]


def test_state_checkpoint_with_transactions(tmp_path: Path) -> None:
    """One that is aborted, one that commits, one that loses against a newer commit, and one that is open."""
    stopped(tmp_path)
    segment = tmp_path / OFFSETS / f"{0:020d}.log"

    def batch(base: int, producer_id: int, key: bytes, value: bytes | None, control: bool = False) -> bytes:
        builder = BatchBuilder()
        builder.append(START_MS + 9000, key, value)
        is_transactional = producer_id >= 0
        return builder.build(base, 0, producer_id, 0, 0, transactional=is_transactional, control=control)

    def offset_record(partition: int, offset: int) -> tuple[bytes, bytes | None]:
        return encode_record(OffsetCommitKey("txn", "orders", partition), OffsetCommitValue(offset))

    commit, abort = (bytes.fromhex(f"0000000{kind}") for kind in (1, 0))
    batches = [
        batch(10, 4, *offset_record(0, 1)),
        batch(11, 5, *offset_record(1, 2)),
        batch(12, 5, *offset_record(2, 3)),
        batch(13, -1, *offset_record(2, 4)),
        batch(14, 4, abort, bytes(6), True),
        batch(15, 5, commit, bytes(6), True),
        batch(16, 6, *offset_record(1, 5)),
    ]
    segment.write_bytes(segment.read_bytes() + b"".join(batches))
    # Version, producer id, first and last offset, last stable offset of the one that is aborted.
    segment.with_suffix(".txnindex").write_bytes(struct.pack(">hqqqq", 0, 4, 10, 14, 11))
    storage = DiskStorage(str(tmp_path))
    plan = StatePlan(OFFSETS, 0, 0, 17, [Extent(f"{OFFSETS}/{segment.name}", 0, segment.stat().st_size)])
    # The one that committed, the newer commit, and the open one come on top.
    assert write_checkpoint(storage, plan) == LIVE_KEYS + 3
    assert problems(tmp_path) == []
    state = tmp_path / OFFSETS / "state-checkpoint"
    writer = StateFileWriter(storage, f"{OFFSETS}/state-checkpoint")
    kept = batches_of(state)[:-1]
    writer.append(b"".join(kept))
    writer.finish(LIVE_KEYS + 2, 17)
    assert [problem[2] for problem in problems(tmp_path)] == [16]


def test_directories_and_topics(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    rig.history()
    rig.produce("orders", b"value", 8, 1)
    rig.stop()
    # The other partition was never written, so it has no directory.
    assert problems(tmp_path) == [] and not (tmp_path / "orders-0").exists()
    (tmp_path / "orders-1").rename(tmp_path / "other-0")
    assert problems(tmp_path) == [("durable mark", "orders-1", None)]
    assert problems(tmp_path, "warning") == [("topics", "other-0", None)]
    (tmp_path / "other-0").rename(tmp_path / "orders-1")
    (tmp_path / "orders-1" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    assert problems(tmp_path) == [("topics", "orders-1", None)]


def test_some_logs(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    rig.history()
    rig.produce("orders", b"value", 8)
    rig.produce("orders", b"value", 8, 1)
    rig.stop()
    append(tmp_path, OFFSETS, group(1, "m"))
    assert [log["log"] for log in verify(tmp_path, "orders")["logs"]] == ["orders-0", "orders-1"]
    assert verify(tmp_path, "orders")["problems"] == []
    assert verify(tmp_path, OFFSETS)["errors"] == 1


def test_many_problems_of_a_kind_are_counted(tmp_path: Path) -> None:
    stopped(tmp_path)
    append(tmp_path, OFFSETS, *[(None, b"x")] * 50)
    document = verify(tmp_path)
    assert document["errors"] == 50 and len(document["problems"]) == 20
    assert "and 30 more of the same kinds" in run("verify", tmp_path).stdout
