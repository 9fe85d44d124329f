"""From files to rows: what is read, where it begins and ends, and what becomes of damage."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from kcoord.log.serde import encode_record, encode_value
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.spark.reader.batch_reader import plan_tasks
from kcoord.spark.reader.batches import CHUNK_BYTES
from kcoord.spark.reader.discovery import NothingToRead
from kcoord.spark.reader.options import BadOption
from kcoord.spark.reader.planner import DataLoss
from kcoord.spark.reader.row_filter import RowFilter
from kcoord.spark.reader.tasks import TORN_TAIL, CorruptLog
from tests.unit.spark.log_rig import NOW, LogRig, commit, options, rows

CONTROL_ABORT = (b"\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\x00")
CONTROL_COMMIT = (b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x00")


def offsets_of(found: list[dict[str, Any]], name: str = "offset") -> list[Any]:
    return [row[name] for row in found]


def test_messages_have_the_columns_of_sparks_kafka_source(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    log.append((b"k", b"v"), (None, b""), (b"", None), headers=[("h", b"1"), ("n", None)])
    found = rows(tmp_path)
    assert [(row["key"], row["value"]) for row in found] == [(b"k", b"v"), (None, b""), (b"", None)]
    first = found[0]
    assert first["headers"] == [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    assert (first["topic"], first["partition"], first["offset"], first["timestampType"]) == ("t", 0, 0, 0)
    assert first["timestamp"].timestamp() * 1000 == NOW
    assert first["log"] == "."


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_all_codecs(tmp_path: Path, codec: int) -> None:
    LogRig(tmp_path).append(*[(b"k%d" % n, b"v" * 100) for n in range(50)], codec=codec)
    assert len(rows(tmp_path)) == 50


def test_commits_of_every_layout(tmp_path: Path) -> None:
    log = LogRig(tmp_path, "__consumer_offsets")
    topic_id = bytes(range(16))
    key = OffsetCommitKey("g", "t", 3)
    value = OffsetCommitValue(7, 5, "some text", NOW, NOW + 9, topic_id)
    for version in range(5):
        log.append((encode_record(key, value)[0], encode_value(key, value, version)))
    long = OffsetCommitValue(8, -1, "ü" * 300, NOW)
    log.append((encode_record(key, long)[0], encode_value(key, long, 4)), (encode_record(key, None)[0], None))
    found = rows(tmp_path, "offset_commits")
    assert [row["committed_offset"] for row in found] == [7] * 5 + [8, None]
    assert [row["metadata"] for row in found] == ["some text"] * 5 + ["ü" * 300, None]
    assert [row["leader_epoch"] for row in found] == [None, None, None, 5, 5, None, None]
    assert [row["expire_timestamp"] is not None for row in found] == [False, True] + [False] * 5
    assert [row["topic_id"] for row in found] == [None] * 4 + ["AAECAwQFBgcICQoLDA0ODw", None, None]
    assert [row["is_tombstone"] for row in found] == [False] * 6 + [True]
    assert {(row["group_id"], row["topic"], row["partition"]) for row in found} == {("g", "t", 3)}


def test_other_records_are_no_commits(tmp_path: Path) -> None:
    log = LogRig(tmp_path, "__consumer_offsets")
    log.append(
        commit("g", "t", 0, 1),
        (b"\x00\x02\x00\x01g", None),
        (b"\x00\x63unknown", b"\x00\x00"),
        commit("g", "t", 0, 2),
    )
    assert offsets_of(rows(tmp_path, "offset_commits"), "committed_offset") == [1, 2]


def test_a_commit_that_cannot_be_read_is_not_dropped(tmp_path: Path) -> None:
    log = LogRig(tmp_path, "__consumer_offsets")
    key = commit("g", "t", 0, 1)[0]
    log.append(commit("g", "t", 0, 1), (key, b"\x00\x09abc"), (b"\x00\x01\x00\x05g", b""), commit("g", "t", 0, 2))
    with pytest.raises(CorruptLog, match="offset [12]: .*onCorrupt=collect"):
        rows(tmp_path, "offset_commits")
    kept = rows(tmp_path, "offset_commits", onCorrupt="collect")
    assert offsets_of(kept, "committed_offset") == [1, 2]
    assert offsets_of(rows(tmp_path, "_corrupt"), "log_offset") == [1, 2]


def test_damage_fails_or_is_collected(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    log.append((b"a", b"1"))
    log.write(b"\xff" * 100)
    log.append((b"b", b"2"))
    with pytest.raises(CorruptLog, match="at byte 7"):
        rows(tmp_path)
    assert offsets_of(rows(tmp_path, onCorrupt="collect")) == [0, 1]
    damage = rows(tmp_path, "_corrupt")
    assert len(damage) == 1
    assert (damage[0]["size_bytes"], damage[0]["log_offset"]) == (100, 1)
    assert str(damage[0]["file"]).endswith("t-0/00000000000000000000.log")


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    for n in range(3):
        log.append((b"key", b"value %d" % n))
    data = bytearray(log.file(".log").read_bytes())
    data[len(data) // 2] ^= 4
    log.file(".log").write_bytes(bytes(data))
    assert offsets_of(rows(tmp_path, onCorrupt="collect")) == [0, 2]
    assert [row["reason"] for row in rows(tmp_path, "_corrupt")] == ["wrong checksum"]


def test_a_torn_tail_was_never_acknowledged(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    log.append((b"a", b"1"))
    whole = log.size
    log.append((b"b", b"2"))
    with log.file(".log").open("r+b") as file:
        file.truncate(whole + 20)
    assert offsets_of(rows(tmp_path)) == [0]
    reasons = [str(row["reason"]) for row in rows(tmp_path, "_corrupt")]
    assert len(reasons) == 1 and reasons[0].startswith(TORN_TAIL)
    # Where a mark says that it was durable, it is damage.
    log.checkpoint("recovery-point-offset-checkpoint", 2)
    with pytest.raises(CorruptLog):
        rows(tmp_path)


def test_records_that_are_no_records(tmp_path: Path) -> None:
    """A right checksum over nonsense: the batch is left out as a whole, and named."""
    from kcoord.wire.crc import crc32c

    log = LogRig(tmp_path)
    first = log.append((b"a", b"1"))
    assert first == 0
    data = bytearray(log.file(".log").read_bytes())
    data[61] = 0x7E  # the record says it is longer than the batch
    data[17:21] = struct.pack(">I", crc32c(memoryview(bytes(data))[21:]))
    log.file(".log").write_bytes(bytes(data))
    log.append((b"b", b"2"))
    assert offsets_of(rows(tmp_path, onCorrupt="collect")) == [1]
    assert [row["log_offset"] for row in rows(tmp_path, "_corrupt")] == [0]


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    log.append((b"a", bytes(1 << 20)), codec=1)
    log.append((b"b", b"2"))
    found = rows(tmp_path, onCorrupt="collect", decompressedBytesMax="100000")
    assert offsets_of(found) == [1]
    assert "100000" in str(rows(tmp_path, "_corrupt", decompressedBytesMax="100000")[0]["reason"])


def test_a_batch_larger_than_what_is_read_at_once(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    log.append((b"a", b"1"))
    log.append((b"b", bytes(CHUNK_BYTES * 2 + 5)))
    log.append((b"c", b"3"))
    assert [len(row["value"]) for row in rows(tmp_path)] == [1, CHUNK_BYTES * 2 + 5, 1]


# --- transactions


def test_aborted_and_open_transactions_are_hidden(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    log.append((b"plain", b"0"))
    log.append((b"aborted", b"1"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.append((b"committed", b"2"), producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    log.append(CONTROL_ABORT, producer_id=7, producer_epoch=0, transactional=True, control=True)
    log.append(CONTROL_COMMIT, producer_id=8, producer_epoch=0, transactional=True, control=True)
    log.append((b"after", b"5"))
    log.append((b"open", b"6"), producer_id=7, producer_epoch=0, base_sequence=1, transactional=True)
    log.append((b"behind", b"7"))
    assert [row["key"] for row in rows(tmp_path)] == [b"plain", b"committed", b"after"]
    everything = rows(tmp_path, isolationLevel="read_uncommitted")
    assert [row["key"] for row in everything] == [
        b"plain", b"aborted", b"committed", b"after", b"open", b"behind",
    ]  # fmt: skip


def test_an_index_of_aborted_transactions_is_read(tmp_path: Path) -> None:
    """The producer snapshot spares the walk over older segments, their index says what was aborted there."""
    from kcoord.core.producers import encode_snapshot

    log = LogRig(tmp_path)
    log.append((b"aborted", b"1"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.append(CONTROL_ABORT, producer_id=7, producer_epoch=0, transactional=True, control=True)
    log.file(".txnindex").write_bytes(struct.pack(">hqqqq", 0, 7, 0, 1, 2))
    log.append((b"plain", b"0"))
    log.roll()
    log.file(".snapshot").write_bytes(encode_snapshot([]))
    log.append((b"last", b"0"))
    assert [row["key"] for row in rows(tmp_path)] == [b"plain", b"last"]


# --- where reading begins and ends


def filled(tmp_path: Path, batches: int = 30, per_segment: int = 10) -> LogRig:
    log = LogRig(tmp_path)
    for number in range(batches):
        if number and number % per_segment == 0:
            log.roll()
        log.append((b"k", b"%d" % number), (b"k", b"x"), at_ms=NOW + number * 1000)
    return log


def test_offsets(tmp_path: Path) -> None:
    filled(tmp_path)
    found = rows(tmp_path, startingOffsets='{"t": {"0": 19}}', endingOffsets='{"t": {"0": 23}}')
    assert offsets_of(found) == [19, 20, 21, 22]
    assert offsets_of(rows(tmp_path, startingOffsets='{"t": {"0": -1}}')) == []
    assert len(rows(tmp_path, startingOffsets='{"t": {"0": -2}}')) == 60


def test_offsets_that_do_not_exist_fail_as_in_sparks_kafka_source(tmp_path: Path) -> None:
    filled(tmp_path)
    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(DataLoss, match=rf"^t-0 in \. ends at 60, before offset 61 of {option}; failOnDataLoss"):
            rows(tmp_path, **{option: '{"t": {"0": 61}}'})
        with pytest.raises(DataLoss, match=rf"^{option} has t-1, which is not among the partitions"):
            rows(tmp_path, **{option: '{"t": {"1": 0}}'})
    assert offsets_of(rows(tmp_path, startingOffsets='{"t": {"0": 60}}')) == []
    assert rows(tmp_path, startingOffsets='{"t": {"0": 61, "1": 0}}', failOnDataLoss="false") == []
    assert len(rows(tmp_path, endingOffsets='{"t": {"0": 61, "1": 0}}', failOnDataLoss="false")) == 60


def test_times(tmp_path: Path) -> None:
    filled(tmp_path)
    found = rows(tmp_path, startingTimestamp=str(NOW + 12_001), endingTimestamp=str(NOW + 14_000))
    assert offsets_of(found) == [25, 26, 27]
    assert rows(tmp_path, startingTimestamp=str(NOW + 99_000)) == []


def test_records_that_were_deleted_are_not_there(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.checkpoint("log-start-offset-checkpoint", 5)
    assert offsets_of(rows(tmp_path))[:2] == [5, 6]
    with pytest.raises(DataLoss, match="failOnDataLoss"):
        rows(tmp_path, startingOffsets='{"t": {"0": 3}}')
    assert offsets_of(rows(tmp_path, startingOffsets='{"t": {"0": 3}}', failOnDataLoss="false"))[0] == 5


def indexed(tmp_path: Path) -> LogRig:
    """A segment of some MiB, with an entry for each batch."""
    log = LogRig(tmp_path)
    entries = []
    for _ in range(40):
        position = log.size
        first = log.append((b"k", bytes(60_000)), (b"k", b"x"))
        if position:
            entries.append((first + 1, position))
    log.index(*entries)
    return log


def test_segments_are_split_at_index_entries(tmp_path: Path) -> None:
    indexed(tmp_path)
    tasks = plan_tasks(options(tmp_path, minPartitions="4"), RowFilter())
    assert 4 <= len(tasks) <= 6
    assert [task.part.end for task in tasks[:-1]] == [task.part.start for task in tasks[1:]]
    assert offsets_of(rows(tmp_path, minPartitions="4")) == list(range(80))


def test_small_segments_are_split_too(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    entries = []
    for number in range(100):
        position = log.size
        log.append((b"k", bytes(900)))
        if number % 4 == 3:
            entries.append((number, position))
    log.index(*entries)
    assert log.size < 1 << 17
    tasks = plan_tasks(options(tmp_path, minPartitions="8"), RowFilter())
    assert 7 <= len(tasks) <= 9
    assert offsets_of(rows(tmp_path, minPartitions="8")) == list(range(100))
    assert len(plan_tasks(options(tmp_path), RowFilter())) == 1
    assert len(plan_tasks(options(tmp_path, maxBytesPerPartition="65536"), RowFilter())) == 2
    with pytest.raises(BadOption, match="maxbytesperpartition is at least 65536, not 65535"):
        options(tmp_path, maxBytesPerPartition="65535")


def test_a_wrong_index_is_not_believed(tmp_path: Path) -> None:
    log = indexed(tmp_path)
    log.index(*[(offset, 1000 + offset * 25_000) for offset in range(1, 80)])
    assert offsets_of(rows(tmp_path, minPartitions="4")) == list(range(80))
    assert offsets_of(rows(tmp_path, startingOffsets='{"t": {"0": 50}}')) == list(range(50, 80))


def test_files_that_go_before_they_are_read(tmp_path: Path) -> None:
    """Compaction puts small segments together: the offsets are still there, in other files."""
    from kcoord.spark.reader.tasks import read_task

    log = filled(tmp_path, 20)
    chosen = options(tmp_path)
    tasks = plan_tasks(chosen, RowFilter())
    segments = sorted(log.path.glob("*.log"))
    segments[0].write_bytes(segments[0].read_bytes() + segments[1].read_bytes())
    segments[1].unlink()
    found = [row for task in tasks for batch in read_task(task, chosen) for row in batch.to_pylist()]
    assert sorted(offsets_of(found)) == list(range(40))


def test_a_beginning_that_goes_before_it_is_read(tmp_path: Path) -> None:
    from kcoord.spark.reader.tasks import read_task

    log = filled(tmp_path, 20)
    for loses in (False, True):
        chosen = options(tmp_path, failOnDataLoss=str(loses).lower())
        if not loses:
            tasks = plan_tasks(chosen, RowFilter())
            min(log.path.glob("*.log")).unlink()
            found = [row for task in tasks for batch in read_task(task, chosen) for row in batch.to_pylist()]
            assert sorted(offsets_of(found)) == list(range(20, 40))
        else:
            with pytest.raises(DataLoss):
                list(read_task(tasks[0], chosen))


# --- what is there


def test_directories_of_many_data_directories(tmp_path: Path) -> None:
    for name in ("a/one", "a/two", "b"):
        LogRig(tmp_path / name).append((name.encode(), b""))
    LogRig(tmp_path / "b" / "snapshots" / "old").append((b"copy", b""))
    assert [(row["log"], row["key"]) for row in rows(tmp_path)] == [
        ("a/one", b"a/one"), ("a/two", b"a/two"), ("b", b"b"),
    ]  # fmt: skip
    assert [row["key"] for row in rows(tmp_path / "b" / "snapshots" / "old")] == [b"copy"]


def test_one_partitions_directory(tmp_path: Path) -> None:
    LogRig(tmp_path, "t", 4).append((b"k", b""))
    assert [(row["topic"], row["partition"]) for row in rows(tmp_path / "t-4")] == [("t", 4)]


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(NothingToRead, match="no segments"):
        rows(tmp_path)
    with pytest.raises(FileNotFoundError):
        rows(tmp_path / "not there")


def test_topics_are_chosen(tmp_path: Path) -> None:
    for topic in ("red", "blue", "__consumer_offsets", "__group_events"):
        LogRig(tmp_path, topic).append((topic.encode(), b""))
    assert {row["topic"] for row in rows(tmp_path)} == {"red", "blue", "__group_events"}
    assert {row["topic"] for row in rows(tmp_path, subscribe="red, blue")} == {"red", "blue"}
    assert {row["topic"] for row in rows(tmp_path, subscribePattern="b.*")} == {"blue"}
    assert {row["topic"] for row in rows(tmp_path, assign='{"red": [0]}')} == {"red"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"table": "no"}, "no table no"),
        ({"statingOffsets": "1"}, "no option"),
        ({"startingOffsets": "soon"}, "startingOffsets".lower()),
        ({"startingOffsets": "[1]"}, "startingoffsets"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"minPartitions": "x"}, "whole number"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "only one of"),
        ({"subscribePattern": "("}, "subscribePattern"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, given: dict[str, str], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        options(tmp_path, given.pop("table", "messages"), **given)
