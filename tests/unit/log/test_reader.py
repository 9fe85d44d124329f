"""Reading partition directories as they lie, damage included."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcoord.log.journal import Journal
from kcoord.log.log_config import LogConfig
from kcoord.log.reader import (
    READ_BYTES,
    SEARCH_BYTES_MIN,
    SEARCH_RATIO,
    DamagedBytes,
    StoredBatch,
    Window,
    find_partitions,
    read_batches,
    segment_files,
)
from kcoord.log.storage import DiskStorage
from tests.unit.log.batches import TOPIC_ID, add, make_batch, reopen


def filled(root: Path, count: int = 30, segment_bytes: int = 500) -> Path:
    """A partition `t-0` with one batch of 2 records per append, over several segments."""
    directory = reopen(DiskStorage(str(root)), LogConfig(segment_bytes=segment_bytes))
    journal = Journal(directory, "always")
    log = directory.create_log("t", 0, TOPIC_ID)
    for _ in range(count):
        add(journal, log, 2)
    journal.commit()
    journal.close()
    return root / "t-0"


def whole(path: Path) -> list[StoredBatch]:
    items = list(read_batches(str(path)))
    assert all(isinstance(item, StoredBatch) for item in items)
    return [item for item in items if isinstance(item, StoredBatch)]


def split(path: Path) -> tuple[list[StoredBatch], list[DamagedBytes]]:
    items = list(read_batches(str(path)))
    return (
        [item for item in items if isinstance(item, StoredBatch)],
        [item for item in items if isinstance(item, DamagedBytes)],
    )


def test_batches_of_all_segments_in_order(tmp_path: Path) -> None:
    path = filled(tmp_path)
    files = segment_files(str(path))
    assert len(files) > 3
    batches = whole(path)
    assert [batch.header.base_offset for batch in batches] == list(range(0, 60, 2))
    assert b"".join(batch.data for batch in batches) == b"".join(Path(file).read_bytes() for file in files)
    for batch in batches:
        assert Path(batch.file).read_bytes()[batch.position :].startswith(batch.data)
        assert [record.offset for record in batch.records(1 << 20)] == [
            batch.header.base_offset,
            batch.header.last_offset,
        ]


class Spy:
    """A file made of bytes, which says how much of it was asked for at once and in all."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.most = 0
        self.total = 0

    def pread(self, size: int, position: int) -> bytes:
        self.most = max(self.most, size)
        self.total += size
        return self.data[position : position + size]


def header(size: int, offset: int = 0) -> bytes:
    """The header of a batch of `size` bytes, with a wrong checksum."""
    return offset.to_bytes(8, "big") + (size - 12).to_bytes(4, "big") + bytes(4) + b"\x02" + bytes(44)


def test_looking_for_the_next_batch_takes_little_memory() -> None:
    batch = make_batch(7, 3, size=100)
    claims = header(6 << 20) + bytes(39)
    spy = Spy(claims + bytes(5 << 20) + batch + bytes(3 << 20))
    window = Window(spy.pread, len(spy.data))
    assert window.next_valid(0) == len(claims) + (5 << 20)
    assert not window.has_given_up
    assert spy.most <= READ_BYTES
    # One with an older offset is none.
    assert window.next_valid(0, 8) == len(spy.data) and not window.has_given_up


def test_a_batch_larger_than_a_window_is_found() -> None:
    batch = make_batch(7, 1, size=3 << 20)
    spy = Spy(b"\x02" * 100 + batch)
    assert Window(spy.pread, len(spy.data)).next_valid(0) == 100
    assert spy.most <= READ_BYTES


@pytest.mark.parametrize("hostile", [header(4 << 20), b"\x02"])
def test_bytes_made_to_be_searched_for_ever_are_given_up(hostile: bytes) -> None:
    data = (hostile * ((8 << 20) // len(hostile)))[: 8 << 20]
    spy = Spy(data)
    window = Window(spy.pread, len(data))
    assert window.next_valid(0) == len(data)
    assert window.has_given_up
    assert spy.total < SEARCH_BYTES_MIN + SEARCH_RATIO * len(data)


def test_one_file_and_a_first_offset(tmp_path: Path) -> None:
    path = filled(tmp_path)
    files = segment_files(str(path))
    one = [item for item in read_batches(files[1]) if isinstance(item, StoredBatch)]
    assert {batch.file for batch in one} == {files[1]}
    some = [item for item in read_batches(str(path), 21) if isinstance(item, StoredBatch)]
    assert [batch.header.base_offset for batch in some] == list(range(20, 60, 2))


def test_nothing_is_touched(tmp_path: Path) -> None:
    path = filled(tmp_path)
    for file in path.iterdir():
        file.chmod(0o400)
        os.utime(file, (1, 1))
    path.chmod(0o500)
    before = sorted((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in path.iterdir())
    try:
        assert len(whole(path)) == 30
        assert sorted((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in path.iterdir()) == before
    finally:
        path.chmod(0o700)


def test_partitions_of_a_data_directory(tmp_path: Path) -> None:
    filled(tmp_path)
    for name in ("a-b-12", "a-b-2", "t-0.0123456789abcdef0123456789abcdef-delete", "plain", "t-1-stray"):
        (tmp_path / name).mkdir()
    (tmp_path / "file-1").write_bytes(b"")
    found = [(directory.topic, directory.partition) for directory in find_partitions(str(tmp_path))]
    assert found == [("a-b", 2), ("a-b", 12), ("t", 0)]


@pytest.mark.parametrize("at", [0, 8, 16, 20, 40, 70])
def test_a_wrong_byte_costs_one_batch(tmp_path: Path, at: int) -> None:
    path = filled(tmp_path, segment_bytes=1 << 20)
    intact = whole(path)
    victim = intact[7]
    file = Path(victim.file)
    data = bytearray(file.read_bytes())
    data[victim.position + at] ^= 0x40
    file.write_bytes(data)
    batches, damage = split(path)
    assert [batch.data for batch in batches] == [batch.data for batch in intact if batch is not victim]
    assert [(found.position, found.size_bytes, found.next_offset) for found in damage] == [
        (victim.position, len(victim.data), victim.header.base_offset)
    ]
    assert not damage[0].zeros and damage[0].reason


def test_a_torn_end_and_zeros(tmp_path: Path) -> None:
    path = filled(tmp_path, segment_bytes=1 << 20)
    file = Path(segment_files(str(path))[0])
    data = file.read_bytes()
    file.write_bytes(data[:-5])
    batches, damage = split(path)
    assert len(batches) == 29
    assert [(found.next_offset, found.zeros) for found in damage] == [(58, False)]
    file.write_bytes(data + bytes(3 << 20))
    batches, damage = split(path)
    assert len(batches) == 30
    assert [(found.position, found.size_bytes, found.zeros) for found in damage] == [(len(data), 3 << 20, True)]


def test_an_offset_that_goes_back_is_named_once(tmp_path: Path) -> None:
    path = filled(tmp_path, count=10, segment_bytes=1 << 20)
    file = Path(segment_files(str(path))[0])
    data = b"".join(make_batch(base, 2) for base in (0, 2, 4, 0, 2, 4, 6))
    file.write_bytes(data)
    batches, damage = split(path)
    assert [batch.header.base_offset for batch in batches] == [0, 2, 4, 2, 4, 6]
    assert [found.next_offset for found in damage] == [6]


def test_any_bytes_are_read_to_their_end(tmp_path: Path) -> None:
    file = tmp_path / "00000000000000000000.log"
    for data in (b"", b"\x02", b"\x02" * 200, bytes(range(256)) * 30, b"\x00" * 17):
        file.write_bytes(data)
        batches, damage = split(file)
        assert not batches
        assert sum(found.size_bytes for found in damage) == len(data)
