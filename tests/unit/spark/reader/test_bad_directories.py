"""Directories that are not as they should be: links in circles, odd names, files beside segments that are none."""

from __future__ import annotations

import os
import random
import shutil
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from kcoord.core.producers import encode_snapshot
from kcoord.spark.reader import segments
from kcoord.spark.reader.filesystem import FileBytes
from kcoord.spark.reader.tasks import CorruptLog
from tests.unit.spark.log_rig import LogRig, rows

ABORT = (b"\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\x00")
COMMIT = (b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x00")
JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01" + bytes(range(256)) * 12
LARGE_BYTES = 65 << 20
NOBODY = 65534


def one(root: Path, topic: str = "t") -> LogRig:
    log = LogRig(root, topic)
    log.append((b"k", b"v"))
    return log


def places(root: Path) -> list[tuple[object, object, object]]:
    return [(row["log"], row["topic"], row["partition"]) for row in rows(root)]


# --- names and links


def test_links_in_circles_are_followed_once(tmp_path: Path) -> None:
    one(tmp_path / "a")
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).mkdir(exist_ok=True)
    # Followed blindly, each step would have four ways on.
    for name in ("a", "b", "c", "d"):
        for to in ("a", "b", "c", "d"):
            (tmp_path / name / f"to-{to}").symlink_to(tmp_path / to)
        (tmp_path / name / "up").symlink_to("..")
    (tmp_path / "a" / "t-0" / "back").symlink_to(tmp_path)
    began = time.process_time()
    assert places(tmp_path) == [("a", "t", 0)]
    assert time.process_time() - began < 5


def test_what_is_linked_to_is_read(tmp_path: Path) -> None:
    one(tmp_path / "elsewhere")
    root = tmp_path / "root"
    root.mkdir()
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    partition = root / "files-3"
    partition.mkdir()
    (partition / f"{0:020d}.log").symlink_to(tmp_path / "elsewhere" / "t-0" / f"{0:020d}.log")
    assert places(root) == [(".", "files", 3), ("linked", "t", 0)]


def test_a_link_that_leads_to_nothing_is_no_silence(tmp_path: Path) -> None:
    log = one(tmp_path)
    (log.path / f"{7:020d}.log").symlink_to("gone")
    with pytest.raises(FileNotFoundError, match="00007.log is a link that leads to nothing"):
        rows(tmp_path)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("t-2147483647", ("t", 2147483647)),
        ("t--1", ("t-", 1)),
        ("spaces and \"quotes'-3", ("spaces and \"quotes'", 3)),
        ("\N{SNOWMAN}-1", ("\N{SNOWMAN}", 1)),
        # No names of partitions.
        ("t-2147483648", None),
        ("t-99999999999", None),
        ("t-\N{ARABIC-INDIC DIGIT THREE}", None),
        ("-0", None),
        ("t", None),
        ("t-0-delete", None),
    ],
)
def test_names_of_directories(tmp_path: Path, name: str, found: tuple[str, int] | None) -> None:
    one(tmp_path, "there")
    shutil.copytree(tmp_path / "there-0", tmp_path / name)
    assert set(places(tmp_path)) == {(".", "there", 0)} | ({(".", *found)} if found else set())


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    log = one(tmp_path)
    odd = os.path.join(os.fsencode(tmp_path), b"odd\xff-0")
    os.mkdir(odd)
    assert len(rows(tmp_path)) == 1
    shutil.copy(os.fsencode(log.file(".log")), odd)
    with pytest.raises(OSError, match=r"odd\\xff-0.* not UTF-8"):
        rows(tmp_path)


def test_what_is_named_like_a_segment_and_is_no_file(tmp_path: Path) -> None:
    log = one(tmp_path)
    os.mkfifo(log.path / f"{7:020d}.log")
    (log.path / f"{9:020d}.log").mkdir()
    assert len(rows(tmp_path)) == 1


def test_files_that_may_not_be_read() -> None:
    """Not even where damage is left out: nothing is known of them."""
    root = Path(tempfile.mkdtemp())
    try:
        log = one(root)
        root.chmod(0o755)
        log.file(".log").chmod(0)
        user = os.geteuid()
        if user == 0:
            # Nothing is forbidden to root.
            os.seteuid(NOBODY)
        try:
            with pytest.raises(PermissionError, match="00000.log"):
                rows(root, onCorrupt="collect")
        finally:
            os.seteuid(user)
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize("number", [7, 2**63 - 2, 2**63 - 1, 10**20 - 1])
def test_a_segment_under_another_name(tmp_path: Path, number: int) -> None:
    """Its batches are not where they are due, whatever number there is; the real segment is read."""
    log = one(tmp_path)
    log.append((b"more", b"v"))
    shutil.copy(log.file(".log"), log.path / f"{number:020d}.log")
    found = rows(tmp_path, onCorrupt="collect")
    assert [row["key"] for row in found] == [b"k", b"more"]
    damage = rows(tmp_path, "_corrupt")
    assert {row["file"] for row in damage} == {str(log.path / f"{number:020d}.log")}
    assert sum(row["size_bytes"] for row in damage) == log.size


@pytest.mark.parametrize("number", [1, 3, 50])
def test_an_unknown_file_between_segments_hides_no_records(tmp_path: Path, number: int) -> None:
    log = LogRig(tmp_path)
    for _ in range(10):
        log.append((b"k", b"v"))
    log.roll()
    for _ in range(10):
        log.append((b"k", b"v"))
    foreign = log.path / f"{number:020d}.log"
    foreign.write_bytes(JPEG)
    assert [row["offset"] for row in rows(tmp_path, onCorrupt="collect")] == list(range(20))
    assert [row["file"] for row in rows(tmp_path, "_corrupt")] == [str(foreign)]


def test_an_unknown_file_between_segments_fails(tmp_path: Path) -> None:
    log = one(tmp_path)
    log.append((b"k", b"v"), (b"k", b"v"))
    log.roll()
    log.append((b"k", b"v"))
    (log.path / f"{1:020d}.log").write_bytes(JPEG)
    with pytest.raises(CorruptLog, match="offset 1: (batch of format version|offsets up to 2)"):
        rows(tmp_path)


# --- files beside the segments


def with_transactions(root: Path) -> LogRig:
    """Three segments, each with an aborted transaction of 2 MB and a message."""
    log = LogRig(root)
    for number in range(3):
        if number:
            log.roll()
        given: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
        log.append((b"aborted", bytes(2_000_000)), base_sequence=0, **given)
        log.append(ABORT, control=True, **given)
        log.append((b"plain", b"%d" % number))
        first = log.base
        log.file(".txnindex").write_bytes(struct.pack(">hqqqq", 0, 7, first, first + 1, first + 2))
        log.file(".snapshot").write_bytes(encode_snapshot([]))
    return log


GARBAGE = {
    "random": random.Random(3).randbytes(3400),
    "text": b"This is no index.\n" * 20,
    "beyond the end": struct.pack(">ii", 5, 1 << 30) * 17,
    "zeros": bytes(3400),
    "ones": b"\xff" * 3400,
    "nothing": b"",
    "torn": b"\x00",
}


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_indexes_that_are_none(tmp_path: Path, suffix: str, garbage: str) -> None:
    log = with_transactions(tmp_path)
    for file in log.path.glob(f"*{suffix}"):
        file.write_bytes(GARBAGE[garbage])
    plain = [2, 5, 8]
    assert [row["offset"] for row in rows(tmp_path)] == plain
    assert [row["offset"] for row in rows(tmp_path, minPartitions="5")] == plain
    assert [row["offset"] for row in rows(tmp_path, startingOffsets='{"t": {"0": 4}}')] == plain[1:]
    assert [row["offset"] for row in rows(tmp_path, startingTimestamp="5")] == plain


@pytest.mark.parametrize("garbage", [name for name in GARBAGE if name != "nothing"])
def test_an_index_of_transactions_that_is_none(tmp_path: Path, garbage: str) -> None:
    """A snapshot spares the walk over the older segments; what their indexes cannot say, a walk does."""
    log = with_transactions(tmp_path)
    (log.path / f"{3:020d}.txnindex").write_bytes(GARBAGE[garbage])
    assert [row["offset"] for row in rows(tmp_path)] == [2, 5, 8]


@pytest.mark.parametrize(
    "entry", [(0, 7, 0, 99, 0), (0, 7, 5, 4, 0), (1, 7, 3, 4, 5), (0, -7, 3, 4, 5), (0, 7, 3, 4, 77)]
)
def test_entries_of_transactions_that_cannot_be(tmp_path: Path, entry: tuple[int, ...]) -> None:
    log = with_transactions(tmp_path)
    (log.path / f"{3:020d}.txnindex").write_bytes(struct.pack(">hqqqq", *entry))
    assert [row["offset"] for row in rows(tmp_path)] == [2, 5, 8]


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot"])
def test_indexes_larger_than_any(tmp_path: Path, suffix: str) -> None:
    log = with_transactions(tmp_path)
    for file in log.path.glob(f"*{suffix}"):
        os.truncate(file, LARGE_BYTES)
    assert [row["offset"] for row in rows(tmp_path, minPartitions="5")] == [2, 5, 8]
    assert [row["offset"] for row in rows(tmp_path, startingTimestamp="5")] == [2, 5, 8]


@pytest.mark.parametrize(
    "text",
    [
        b"hello",
        b"\xff\xfe" * 50,
        b"0\n1\nt 0 99999999999999999999\n",
        b"0\n1\nt 0 -5\n",
        b"0\n9\nt 0\n",
        b"x" * 9999,
    ],
)
def test_checkpoints_that_are_none(tmp_path: Path, text: bytes) -> None:
    one(tmp_path)
    for name in ("log-start-offset", "recovery-point-offset", "replication-offset"):
        (tmp_path / f"{name}-checkpoint").write_bytes(text)
    assert len(rows(tmp_path)) == 1


# --- transactions and damage


def test_a_marker_that_is_damaged_hides_no_damage(tmp_path: Path) -> None:
    """Without it its transaction is open for ever, and what lies behind is not to be seen: that is said."""
    log = LogRig(tmp_path)
    given: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    log.append((b"committed", b"0"), base_sequence=0, **given)
    at = log.size
    log.append(COMMIT, control=True, **given)
    log.append((b"plain", b"2"))
    data = bytearray(log.file(".log").read_bytes())
    data[at + 16] = 9
    log.file(".log").write_bytes(data)
    assert rows(tmp_path, onCorrupt="collect") == []
    with pytest.raises(CorruptLog, match=f"at byte {at}, offset 1: batch of format version 9"):
        rows(tmp_path)
    assert [row["position"] for row in rows(tmp_path, "_corrupt")] == [at]


def test_a_file_that_becomes_shorter_while_its_transactions_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogRig(tmp_path)
    for _ in range(100):
        log.append((b"k", bytes(100)))

    class Shrinks(FileBytes):
        def __init__(self, filesystem: object, path: str, size: int | None = None) -> None:
            super().__init__(filesystem, path, size)
            if os.path.getsize(path) > 150:
                os.truncate(path, 150)

    monkeypatch.setattr(segments, "FileBytes", Shrinks)
    assert [row["offset"] for row in rows(tmp_path, onCorrupt="collect")] == []
