"""Logs whose files are exchanged between plan and read: the same offsets come from the files that are there then."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kcoord.log.reader import StoredBatch, read_batches
from kcoord.spark.reader import discovery, segments
from kcoord.spark.reader.batch_reader import plan_tasks
from kcoord.spark.reader.discovery import LISTINGS_MAX, discover, list_partition
from kcoord.spark.reader.filesystem import FileBytes, FileState, read_file
from kcoord.spark.reader.options import ReadOptions
from kcoord.spark.reader.planner import PLANS_MAX, DataLoss
from kcoord.spark.reader.row_filter import RowFilter
from kcoord.spark.reader.segments import UnsettledFiles, difference
from kcoord.spark.reader.slices import SegmentFile
from kcoord.spark.reader.tasks import CorruptLog, Task, read_task
from tests.unit.spark.exchange_rig import Exchange, compact, even
from tests.unit.spark.log_rig import NOW, LogRig, commit, options, rows

OFFSETS = "__consumer_offsets"
TABLES = {"messages": "offset", "offset_commits": "log_offset", "records": "log_offset", "_corrupt": "log_offset"}
CONTROL = {"abort": b"\x00\x00\x00\x00", "commit": b"\x00\x00\x00\x01"}


def filled(root: Path, table: str = "messages", segments: int = 3, batches: int = 10) -> LogRig:
    """Segments of so many batches of one record each, the last of which is the log's last one."""
    log = LogRig(root, "t" if table in ("messages", "_corrupt") else OFFSETS)
    for number in range(segments * batches):
        if number and number % batches == 0:
            log.roll()
        # Of different sizes: positions in a shorter file fit by no chance.
        log.append(commit("g", "t", 0, number, "m" * (number * 7 % 40)))
    return log


def planned(root: Path, table: str = "messages", **given: str) -> tuple[ReadOptions, list[Task]]:
    chosen = options(root, table, **given)
    return chosen, plan_tasks(chosen, RowFilter())


def read(chosen: ReadOptions, tasks: list[Task]) -> list[int]:
    name = TABLES[chosen.table.NAME]
    return [row[name] for task in tasks for batch in read_task(task, chosen) for row in batch.to_pylist()]


def on_open(monkeypatch: pytest.MonkeyPatch, happens: Callable[[int], None], is_local: bool = True) -> None:
    """Lets something happen after a segment was opened, with the number of the opening. A file that is not local is
    read by its name, whatever has that name."""
    count = [0]

    class Opened(FileBytes):
        def __init__(self, filesystem: object, path: str, size: int | None = None) -> None:
            super().__init__(filesystem, path, size)
            self.path = path
            happens(count[0])
            count[0] += 1

        def pread(self, size: int, position: int) -> bytes:
            if is_local:
                return super().pread(size, position)
            with open(self.path, "rb") as file:
                file.seek(position)
                return file.read(max(min(size, self.size - position), 0))

    monkeypatch.setattr(segments, "FileBytes", Opened)


# --- batches


@pytest.mark.parametrize("table", TABLES)
def test_a_compacted_segment_of_the_same_name(tmp_path: Path, table: str) -> None:
    log = filled(tmp_path, table)
    chosen, tasks = planned(tmp_path, table)
    compact(log)
    compact(log, first=1)
    expected = [offset for offset in range(30) if offset >= 20 or even(offset)]
    assert read(chosen, tasks) == ([] if table == "_corrupt" else expected)


def test_segments_that_became_one(tmp_path: Path) -> None:
    """The first one's name is that of a longer file; each offset comes once, wherever its slice finds it."""
    log = filled(tmp_path, segments=4)
    chosen, tasks = planned(tmp_path)
    compact(log, lambda offset: offset % 5 > 0, count=3)
    expected = [offset for offset in range(40) if offset >= 30 or offset % 5 > 0]
    assert read(chosen, tasks) == expected
    # In any order of the slices.
    assert sorted(read(chosen, tasks[::-1])) == expected


def test_a_second_exchange_after_the_first_was_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice that was planned again finds that its neighbour is gone as well: no offset comes twice."""
    log = filled(tmp_path, segments=4)
    chosen, tasks = planned(tmp_path)
    compact(log, lambda offset: offset != 3)

    def happens(number: int) -> None:
        if number == 1:
            compact(log, lambda offset: offset % 5 > 0, count=3)

    on_open(monkeypatch, happens)
    found = read(chosen, tasks)
    assert len(found) == len(set(found))
    assert set(found) >= {offset for offset in range(40) if offset >= 30 or offset % 5 > 0} - {3}


def test_a_split_segment(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    entries = []
    for number in range(40):
        position = log.size
        first = log.append((b"k", bytes(60_000 + number * 11)), (b"k", b"x"))
        if position:
            entries.append((first + 1, position))
    log.index(*entries)
    log.roll()
    log.append((b"k", b"v"))
    chosen, tasks = planned(tmp_path, minPartitions="4")
    assert len(tasks) > 4
    compact(log, lambda offset: offset % 3 > 0)
    assert read(chosen, tasks) == [offset for offset in range(80) if (offset - offset % 2) % 3 > 0] + [80]


def test_a_file_that_is_exchanged_while_it_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a local disk the open file is the old one; elsewhere the rest is read from the new one."""
    for is_local in (True, False):
        root = tmp_path / str(is_local)
        log = filled(root)
        chosen, tasks = planned(root)
        with monkeypatch.context() as patch:
            on_open(patch, lambda number, log=log: compact(log) if number == 0 else None, is_local)  # type: ignore[misc]
            found = read(chosen, tasks)
        assert found == [offset for offset in range(30) if is_local or offset >= 10 or even(offset)]


def test_a_file_that_is_exchanged_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read before stays, and does not come again."""
    from kcoord.spark.reader import batches

    log = filled(tmp_path)
    sizes = [log.path.joinpath(f"{0:020d}.log").stat().st_size]
    monkeypatch.setattr(batches, "CHUNK_BYTES", sizes[0] // 2)
    chosen, tasks = planned(tmp_path)
    reads = [0]

    class Remote(FileBytes):
        def __init__(self, filesystem: object, path: str, size: int | None = None) -> None:
            super().__init__(filesystem, path, size)
            self.path = path

        def pread(self, size: int, position: int) -> bytes:
            with open(self.path, "rb") as file:
                file.seek(position)
                data = file.read(max(min(size, self.size - position), 0))
            reads[0] += 1
            if reads[0] == 1:
                compact(log, lambda offset: offset > 6)
            return data

    monkeypatch.setattr(segments, "FileBytes", Remote)
    found = read(chosen, tasks)
    assert found == sorted(set(found))
    assert set(found) >= set(range(7, 30)) | {0, 1}
    assert 6 not in found


def test_it_ends_at_some_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    chosen, tasks = planned(tmp_path)
    opened: list[str] = []

    class Moving(FileBytes):
        def __init__(self, filesystem: object, path: str, size: int | None = None) -> None:
            opened.append(path)
            new = Path(path + ".swap")
            new.write_bytes(Path(path).read_bytes())
            new.replace(path)
            super().__init__(filesystem, path, size)

    monkeypatch.setattr(segments, "FileBytes", Moving)
    with pytest.raises(UnsettledFiles, match=f"t-0 in .: its files were exchanged {PLANS_MAX} times.*Read a copy"):
        read(chosen, tasks)
    assert len(opened) <= PLANS_MAX + 1


def test_files_that_are_exchanged_while_the_read_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path)
    listed = discovery.discover

    def late(*given: Any) -> Any:
        found = listed(*given)
        compact(log)
        return found

    monkeypatch.setattr("kcoord.spark.reader.roots.discover", late)
    chosen, tasks = planned(tmp_path)
    assert read(chosen, tasks) == [offset for offset in range(30) if offset >= 10 or even(offset)]


def test_an_index_of_transactions_that_is_not_of_the_listed_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleaner leaves out aborted records, and their index is empty then: it says nothing of the old segment."""
    from kcoord.core.producers import encode_snapshot
    from kcoord.spark.reader import transactions

    log = LogRig(tmp_path)
    log.append((b"aborted", b"1"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.append((CONTROL["abort"], bytes(6)), producer_id=7, producer_epoch=0, transactional=True, control=True)
    index = log.file(".txnindex")
    index.write_bytes(transactions.ENTRY.pack(0, 7, 0, 1, 2))
    log.append((b"plain", b"0"))
    log.roll()
    log.file(".snapshot").write_bytes(encode_snapshot([]))
    log.append((b"last", b"0"))
    ready = Exchange(log, lambda offset: offset >= 1)
    plain = read_file

    def late(filesystem: Any, path: str, bytes_max: int) -> bytes:
        if path.endswith(".txnindex") and ready.cleaned.exists():
            ready.run()
            index.write_bytes(b"")
        return plain(filesystem, path, bytes_max)

    monkeypatch.setattr(transactions, "read_file", late)
    assert [row["key"] for row in rows(tmp_path)] == [b"plain", b"last"]


def test_damage_in_a_log_that_is_written_to_is_still_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path, segments=1)
    data = bytearray(log.file(".log").read_bytes())
    data[len(data) // 2] ^= 4
    log.file(".log").write_bytes(bytes(data))
    chosen, tasks = planned(tmp_path)
    on_open(monkeypatch, lambda number: (log.append((b"k", b"more")), None)[1])
    with pytest.raises(CorruptLog, match="at byte 591, offset 5: "):
        read(chosen, tasks)
    chosen, tasks = planned(tmp_path, onCorrupt="collect")
    found = read(chosen, tasks)
    assert len(found) == len(set(found)) >= 9
    chosen, tasks = planned(tmp_path, "_corrupt")
    assert len(read(chosen, tasks)) == 1


@pytest.mark.parametrize("at", [3, 9, 10, 17])
def test_damage_in_a_file_that_slices_share_is_listed_once(tmp_path: Path, at: int) -> None:
    log = filled(tmp_path)
    (chosen, tasks), (shown, corrupt) = planned(tmp_path, onCorrupt="collect"), planned(tmp_path, "_corrupt")
    merged = Exchange(log, lambda offset: True, count=2)
    data = bytearray(merged.cleaned.read_bytes())
    (position,) = [
        item.position
        for item in read_batches(str(merged.cleaned))
        if isinstance(item, StoredBatch) and item.header.base_offset == at
    ]
    # In its records.
    data[position + 70] ^= 4
    merged.cleaned.write_bytes(bytes(data))
    merged.run()
    assert len(read(shown, corrupt)) == 1
    found = read(chosen, tasks)
    assert len(found) == len(set(found)) == 29


def test_a_batch_that_was_being_written_is_no_torn_tail(tmp_path: Path) -> None:
    log = filled(tmp_path, segments=1)
    whole = log.file(".log").read_bytes()
    os.truncate(log.file(".log"), len(whole) - 20)
    (chosen, tasks), (shown, corrupt) = planned(tmp_path), planned(tmp_path, "_corrupt")
    log.file(".log").write_bytes(whole)
    assert read(chosen, tasks) == list(range(10))
    assert read(shown, corrupt) == []


def test_retention_while_a_read_waits(tmp_path: Path) -> None:
    log = filled(tmp_path)
    chosen, tasks = planned(tmp_path)
    lenient, _ = planned(tmp_path, failOnDataLoss="false")
    min(log.path.glob("*.log")).unlink()
    compact(log, first=0)
    with pytest.raises(DataLoss, match="offset 0 was removed while it was read"):
        read(chosen, tasks)
    assert read(lenient, tasks) == [offset for offset in range(10, 30) if offset >= 20 or even(offset)]


def test_what_an_open_transaction_hides_is_looked_through_for_damage(tmp_path: Path) -> None:
    log = LogRig(tmp_path)
    log.append((b"plain", b"0"))
    log.append((b"open", b"1"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.roll()
    for _ in range(4):
        log.append((b"k", b"v"))
    log.roll()
    log.append((b"last", b"0"))
    chosen, tasks = planned(tmp_path)
    assert read(chosen, tasks) == [0]
    compact(log, first=1)
    assert read(chosen, tasks) == [0]
    file = sorted(log.path.glob("*.log"))[1]
    file.write_bytes(b"\xff" * 200)
    with pytest.raises(CorruptLog, match=file.name):
        read(chosen, tasks)


# --- identity


def of(size: int = 100, modified_ns: int = 5, inode: int = 3, is_last: bool = False) -> SegmentFile:
    return SegmentFile("t-0/file", 0, size, modified_ns, inode, is_last)


@pytest.mark.parametrize(
    ("planned", "now", "is_same"),
    [
        (of(), FileState(100, 5, 3), True),
        (of(), FileState(100, 5, 4), False),
        (of(), FileState(90, 5, 3), False),
        # The inode of a removed file was given to a new one.
        (of(), FileState(120, 5, 3), False),
        (of(), FileState(100, 6, 3), False),
        # The last segment is written to, preallocated ones in place.
        (of(is_last=True), FileState(120, 6, 3), True),
        (of(is_last=True), FileState(100, 6, 3), True),
        (of(is_last=True), FileState(120, 6, 4), False),
        (of(is_last=True), FileState(90, 6, 3), False),
        # Without inodes nothing says that a file only grew.
        (of(inode=0, is_last=True), FileState(120, 6), False),
        (of(inode=0), FileState(100, 5), True),
        (of(inode=0), FileState(100, 2_000_000_000), False),
        # Stores round times.
        (of(inode=0), FileState(100, 1_000_000_000), True),
        (of(inode=0, modified_ns=0), FileState(100, 6), True),
        (of(), None, False),
    ],
)
def test_which_files_are_the_same(planned: SegmentFile, now: FileState | None, is_same: bool) -> None:
    assert (difference(planned, now) == "") is is_same


def test_inodes_that_do_not_last(tmp_path: Path) -> None:
    """Some file systems that are mounted give a file another inode each time."""
    filled(tmp_path)
    chosen, tasks = planned(tmp_path)
    tasks = [
        dataclasses.replace(
            task, part=dataclasses.replace(task.part, segment=dataclasses.replace(task.part.segment, inode=7))
        )
        for task in tasks
    ]
    assert read(chosen, tasks) == list(range(30))


# --- listings


def test_a_listing_in_the_middle_of_an_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With each listing the broker gets on by one step. The first that shows the same twice is the one."""
    plain = discovery._files_in
    for begin in range(4):
        root = tmp_path / str(begin)
        log = filled(root)
        waiting = Exchange(log, count=2).steps()
        for step in waiting[:begin]:
            step()
        del waiting[:begin]
        before = len(list(log.path.glob("*.log")))

        def moving(filesystem: Any, directory: str, waiting: list[Callable[[], None]] = waiting) -> Any:
            if waiting:
                waiting.pop(0)()
            return plain(filesystem, directory)

        with monkeypatch.context() as patch:
            patch.setattr(discovery, "_files_in", moving)
            patch.setattr(discovery, "LISTING_PAUSE_S", 0)
            found = rows(root)
        assert before < 4
        assert [row["offset"] for row in found] == [n for n in range(30) if n >= 20 or even(n)]


def test_a_directory_that_never_settles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path)
    plain = discovery._files_in
    number = [0]

    def moving(filesystem: Any, directory: str) -> Any:
        number[0] += 1
        (log.path / f"{number[0]:020d}.log.deleted").touch()
        return plain(filesystem, directory)

    monkeypatch.setattr(discovery, "_files_in", moving)
    monkeypatch.setattr(discovery, "LISTING_PAUSE_S", 0)
    (log.path / f"{0:020d}.log.deleted").touch()
    with pytest.raises(UnsettledFiles, match=f"t-0: {LISTINGS_MAX} listings in a row differ"):
        rows(tmp_path)
    assert number[0] <= LISTINGS_MAX


def test_what_was_deleted_stays_there_for_a_minute(tmp_path: Path) -> None:
    """A directory with files that were renamed to be removed is listed twice, and is as it is."""
    log = filled(tmp_path)
    compact(log)
    chosen = options(tmp_path)
    filesystem, root = chosen.storage.open()
    (found,) = discover(filesystem, root)
    again = list_partition(filesystem, found.path, found)
    assert again == found
    assert [segment.base_offset for segment in found.segments] == [0, 10, 20]
    assert all(segment.inode for segment in found.segments)
    assert NOW and [row["offset"] for row in rows(tmp_path)] == [n for n in range(30) if n >= 10 or even(n)]
