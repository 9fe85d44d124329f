"""Files that are named like segments and are none, or that change while they are read; numbers at their ends."""

from __future__ import annotations

import gzip
import os
import random
import sqlite3
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from kcoord.spark.reader import segments
from kcoord.spark.reader.batch_reader import plan_tasks
from kcoord.spark.reader.filesystem import FileBytes
from kcoord.spark.reader.row_filter import RowFilter
from kcoord.spark.reader.tasks import CorruptLog, read_task
from kcoord.wire.crc import crc32c
from kcoord.wire.record_batch import encode_batch
from tests.unit.spark.log_rig import LogRig, commit, options, rows

OFFSETS = "__consumer_offsets"
INT64_MAX = 0x7FFFFFFFFFFFFFFF
# On a busy machine; without bounds these would take hours.
TIME_S = 60


def parquet(path: Path) -> bytes:
    pyarrow.parquet.write_table(pa.table({"a": list(range(5000))}), path / "parquet")
    return (path / "parquet").read_bytes()


def sqlite(path: Path) -> bytes:
    with sqlite3.connect(path / "sqlite") as database:
        database.execute("create table t (a text)")
        database.executemany("insert into t values (?)", [(str(n),) for n in range(500)])
    return (path / "sqlite").read_bytes()


def message_set(magic: int) -> bytes:
    """Three messages as brokers before 0.11 wrote them: offset, size, checksum, magic, attributes, time, key, value."""
    found = b""
    for offset in range(3):
        time_ms = struct.pack(">q", 1_500_000_000_000) if magic else b""
        body = struct.pack(">bb", magic, 0) + time_ms + struct.pack(">i1si5s", 1, b"k", 5, b"value")
        found += struct.pack(">qiI", offset, len(body) + 4, crc32c(body)) + body
    return found * 3


def little_endian() -> bytes:
    """A batch whose numbers stand the other way around."""
    data = bytearray(encode_batch(0, 0, 0, 0, 1000, 1000, -1, -1, -1, 1, b"x" * 20))
    for at, size in (
        (0, 8),
        (8, 4),
        (12, 4),
        (17, 4),
        (21, 2),
        (23, 4),
        (27, 8),
        (35, 8),
        (43, 8),
        (51, 2),
        (57, 4),
    ):
        data[at : at + size] = data[at : at + size][::-1]
    return bytes(data)


FOREIGN: dict[str, Callable[[Path], bytes]] = {
    "jpeg": lambda path: b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01" + random.Random(1).randbytes(5000),
    "gzip": lambda path: gzip.compress(random.Random(2).randbytes(5000), mtime=0),
    "parquet": parquet,
    "sqlite": sqlite,
    "text": lambda path: b"2025-10-09 08:53:23 INFO a log of another kind\n" * 100,
    "pickle": lambda path: b"cos\nsystem\n(S'touch evaluated'\ntR." * 10,
    "ones": lambda path: b"\xff" * 5000,
    "encrypted": lambda path: random.Random(4).randbytes(50_000),
    "messages of version 0": lambda path: message_set(0),
    "messages of version 1": lambda path: message_set(1),
    "little endian": lambda path: little_endian(),
}


@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.parametrize("is_after", [False, True])
def test_unknown_files(tmp_path: Path, what: str, is_after: bool) -> None:
    """Alone, and behind a batch. They are no torn tail: no crash leaves such bytes."""
    data = FOREIGN[what](tmp_path)
    for topic, table in (("t", "messages"), (OFFSETS, "offset_commits"), (OFFSETS, "records")):
        root = tmp_path / table
        log = LogRig(root, topic)
        if is_after:
            log.append(commit("g", "t", 0, 1))
        begin = log.size
        log.write(data)
        with pytest.raises(CorruptLog, match=f"00000.log at byte {begin}, offset {int(is_after)}: "):
            rows(root, table)
        assert len(rows(root, table, onCorrupt="collect")) == int(is_after)
        corrupt = rows(root, "_corrupt")
        assert sum(row["size_bytes"] for row in corrupt) == len(data)
        assert (corrupt[0]["position"], corrupt[0]["log_offset"]) == (begin, int(is_after))
        assert not str(corrupt[0]["reason"]).startswith("torn tail")


# --- files that change


@pytest.mark.parametrize("table", ["messages", "offset_commits", "records", "_corrupt"])
@pytest.mark.parametrize("left", [0, 30, 90, 1000])
def test_a_file_that_becomes_shorter_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, left: int
) -> None:
    log = LogRig(tmp_path, "t" if table == "messages" else OFFSETS)
    for number in range(100):
        log.append(commit("g", "t", 0, number))
    log.checkpoint("recovery-point-offset-checkpoint", 100)
    size = log.size

    class Shrinks(FileBytes):
        def __init__(self, filesystem: object, path: str, size: int | None = None) -> None:
            super().__init__(filesystem, path, size)
            if os.path.getsize(path) > left:
                os.truncate(path, left)

    for policy in ("collect", "fail"):
        os.truncate(log.file(".log"), size)
        chosen = options(tmp_path, table, onCorrupt=policy)
        tasks = plan_tasks(chosen, RowFilter())
        with monkeypatch.context() as patch:
            patch.setattr(segments, "FileBytes", Shrinks)
            if policy == "fail" and table != "_corrupt":
                with pytest.raises(CorruptLog):
                    [batch for task in tasks for batch in read_task(task, chosen)]
                continue
            found = [row for task in tasks for batch in read_task(task, chosen) for row in batch.to_pylist()]
        if table == "_corrupt":
            # What the file ends in, or, where it ends with a batch, that the log ends there.
            assert found[-1]["position"] + found[-1]["size_bytes"] == left
            if left == 0:
                assert found[-1]["reason"] == "the log ends at 0, but was synced up to 100"
        else:
            assert len(found) < 100


# --- bytes that are made to be searched


def test_bytes_that_look_like_headers_are_not_searched_for_ever(tmp_path: Path) -> None:
    header = bytearray(encode_batch(5, 0, 0, 0, 0, 0, -1, -1, -1, 1, b"x" * 50)[:61])
    struct.pack_into(">i", header, 8, 6_000_000)
    for name, data in (("headers", bytes(header) * 200_000), ("twos", b"\x02" * (40 << 20))):
        log = LogRig(tmp_path / name)
        log.append((b"k", b"v"))
        log.write(data)
        began = time.monotonic()
        assert len(rows(log.root, onCorrupt="collect")) == 1
        assert sum(row["size_bytes"] for row in rows(log.root, "_corrupt")) == len(data)
        assert time.monotonic() - began < TIME_S


def test_a_batch_after_a_megabyte_of_garbage_is_found(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    log.append((b"k", b"v"))
    log.write(random.Random(5).randbytes(1 << 20))
    log.append((b"k", b"v"))
    assert [row["offset"] for row in rows(tmp_path, onCorrupt="collect")] == [0, 1]


# --- offsets and times


@pytest.mark.parametrize("table", ["messages", "offset_commits", "records"])
@pytest.mark.parametrize("bit", range(4, 31, 5))
def test_an_offset_that_was_moved_past_the_next_segment(tmp_path: Path, table: str, bit: int) -> None:
    """No checksum covers it, but it cannot be there."""
    log = LogRig(tmp_path, "t" if table == "messages" else OFFSETS)
    for number in range(8):
        log.append(commit("g", "t", 0, number))
    file, at = log.file(".log"), log.size - log.size // 8
    log.roll()
    log.append(commit("g", "t", 0, 8))
    data = bytearray(file.read_bytes())
    data[at + 7 - bit // 8] ^= 1 << (bit % 8)
    file.write_bytes(data)
    with pytest.raises(CorruptLog, match=f"at byte {at}, offset 8: offsets up to {7 ^ 1 << bit} where the next"):
        rows(tmp_path, table)
    assert len(rows(tmp_path, table, onCorrupt="collect")) == 8
    assert [row["position"] for row in rows(tmp_path, "_corrupt")] == [at]


def test_no_flipped_bit_of_an_offset_goes_unsaid_but_at_the_end(tmp_path: Path) -> None:
    """They are held against what is due and what comes behind; behind the last batch nothing comes."""
    log = LogRig(tmp_path)
    for _ in range(3):
        log.append((b"k", b"v"))
    data = log.file(".log").read_bytes()
    for begin in (0, log.size // 3):
        for bit in range(64):
            flipped = bytearray(data)
            flipped[begin + bit // 8] ^= 0x80 >> (bit % 8)
            log.file(".log").write_bytes(flipped)
            assert rows(tmp_path, "_corrupt"), (begin, bit)
            with pytest.raises(CorruptLog):
                rows(tmp_path)


@pytest.mark.parametrize("table", ["offset_commits", "records"])
def test_the_last_offset_there_could_be(tmp_path: Path, table: str) -> None:
    for offset, is_there in ((INT64_MAX - 1, True), (INT64_MAX, False)):
        log = LogRig(tmp_path / str(offset), OFFSETS)
        log.file(".log").unlink()
        log.base = log.next_offset = offset
        log.append(commit("g", "t", 0, 1))
        found = rows(log.root, table, onCorrupt="collect")
        assert [row["log_offset"] for row in found] == ([offset] if is_there else [])
        assert len(rows(log.root, "_corrupt")) == int(not is_there)
        if not is_there:
            with pytest.raises(CorruptLog):
                rows(log.root, table)


TIMES = [-INT64_MAX - 1, -INT64_MAX, -5, -1, 0, 1 << 55, 1 << 61, INT64_MAX - 1, INT64_MAX]


@pytest.mark.parametrize("at_ms", TIMES)
@pytest.mark.parametrize("attributes", [0, 8])
def test_times_that_no_clock_shows(tmp_path: Path, at_ms: int, attributes: int) -> None:
    """Times of records, and those that the log gave them (attribute 8): a row without a time, or damage."""
    key, value = commit("g", "t", 0, 1)
    assert key is not None and value is not None
    body = b"\0\0\0" + bytes([len(key) * 2]) + key + bytes([len(value) * 2]) + value + b"\0"
    log = LogRig(tmp_path, OFFSETS)
    base_ms = 0 if attributes else at_ms
    log.write(encode_batch(0, 0, attributes, 0, base_ms, at_ms, -1, -1, -1, 1, bytes([len(body) * 2]) + body))
    log.next_offset = 1
    log.append(commit("g", "t", 0, 2))
    is_damage = abs(at_ms) >= 1 << 62
    for table in ("offset_commits", "records"):
        found = rows(tmp_path, table, onCorrupt="collect")
        assert [row["log_offset"] for row in found] == ([1] if is_damage else [0, 1])
        assert is_damage or at_ms == 0 or found[0]["log_timestamp"] is None
        if is_damage:
            with pytest.raises(CorruptLog, match="at byte 0, offset 0: "):
                rows(tmp_path, table)
    assert [row["log_offset"] for row in rows(tmp_path, "_corrupt")] == ([0] if is_damage else [])
