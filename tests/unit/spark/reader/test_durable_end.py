"""A log that ends below its durable mark has lost records: readers fail, or list what is missing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kcoord.spark.reader import planner as planning
from kcoord.spark.reader.batch_reader import plan_tasks
from kcoord.spark.reader.discovery import read_checkpoint
from kcoord.spark.reader.row_filter import RowFilter
from kcoord.spark.reader.stream_reader import KcoordStreamReader
from kcoord.spark.reader.tasks import CorruptLog, read_task
from tests.unit.spark.exchange_rig import cut
from tests.unit.spark.log_rig import LogRig, commit, options, rows

MARK = "recovery-point-offset-checkpoint"
OFFSETS = "__consumer_offsets"
EVERYTHING = ReadAllAvailable()


def lost(root: Path, batches: int = 3, topic: str = OFFSETS) -> LogRig:
    """Ten commits in two segments, all of them synced; of the last five so many batches are left."""
    log = LogRig(root, topic)
    for number in range(10):
        if number == 5:
            log.roll()
        log.append(commit("g", "t", 0, number))
    log.checkpoint(MARK, 10)
    cut(log, batches)
    return log


def gaps(root: Path, **given: str) -> list[tuple[Any, ...]]:
    names = ("position", "size_bytes", "log_offset", "reason")
    return [tuple(row[name] for name in names) for row in rows(root, "_corrupt", **given)]


@pytest.mark.parametrize("table", ["offset_commits", "records", "group_metadata", "members", "assignments"])
@pytest.mark.parametrize("batches", [3, 1, 0])
def test_a_log_that_was_cut_at_a_batch(tmp_path: Path, table: str, batches: int) -> None:
    log = lost(tmp_path, batches)
    end = 5 + batches
    size = log.file(".log").stat().st_size
    assert (size == 0) == (batches == 0)
    reason = f"the log ends at {end}, but was synced up to 10"
    with pytest.raises(CorruptLog, match=f"{5:020d}.log at byte {size}, offset {end}: {reason}. .*onCorrupt"):
        rows(tmp_path, table)
    kept = rows(tmp_path, table, onCorrupt="collect")
    assert len(kept) == (end if table in ("offset_commits", "records") else 0)
    assert gaps(tmp_path) == [(size, 0, end, reason)]


def test_a_missing_last_segment(tmp_path: Path) -> None:
    log = lost(tmp_path)
    log.file(".log").unlink()
    with pytest.raises(CorruptLog, match="the log ends at 5, but was synced up to 10"):
        rows(tmp_path, "offset_commits")
    assert [offset for _, _, offset, _ in gaps(tmp_path)] == [5]


def test_a_directory_without_segments(tmp_path: Path) -> None:
    log = lost(tmp_path)
    LogRig(tmp_path, "t").append((b"k", b"v"))
    for file in log.path.glob("*.log"):
        file.unlink()
    reason = "the log has no segment, but was synced up to 10"
    with pytest.raises(CorruptLog, match=f"{OFFSETS}-0 at byte 0, offset 0: {reason}"):
        rows(tmp_path, "offset_commits")
    assert rows(tmp_path, "offset_commits", onCorrupt="collect") == []
    assert gaps(tmp_path) == [(0, 0, 0, reason)]
    with pytest.raises(CorruptLog, match=reason):
        reader(tmp_path).initialOffset()
    assert reader(tmp_path, onCorrupt="collect").initialOffset() == {}
    # Who asks for other topics, or for one partition by its path, does not miss it.
    assert len(rows(tmp_path)) == len(rows(tmp_path / "t-0")) == 1
    assert gaps(tmp_path, subscribe="t") == []
    # A directory that is not there may never have been copied.
    log.path.rmdir()
    assert rows(tmp_path, "offset_commits") == []


def test_messages_and_what_is_not_committed(tmp_path: Path) -> None:
    lost(tmp_path, topic="t")
    for level in ("read_committed", "read_uncommitted"):
        with pytest.raises(CorruptLog, match="the log ends at 8"):
            rows(tmp_path, isolationLevel=level)
        assert len(rows(tmp_path, isolationLevel=level, onCorrupt="collect")) == 8


def test_an_open_transaction_hides_no_gap(tmp_path: Path) -> None:
    for is_rolled in (False, True):
        root = tmp_path / str(is_rolled)
        log = LogRig(root)
        log.append((b"plain", b"0"))
        log.append((b"open", b"1"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        if is_rolled:
            log.roll()
        log.checkpoint(MARK, 5)
        with pytest.raises(CorruptLog, match="the log ends at 2, but was synced up to 5"):
            rows(root)
        assert len(rows(root, onCorrupt="collect")) == 1
        assert [offset for _, _, offset, _ in gaps(root)] == [2]


def test_the_gap_matters_to_those_who_asked_for_it(tmp_path: Path) -> None:
    lost(tmp_path)
    for ending, is_whole in ((4, True), (8, True), (9, False), (10, False), (20, False)):
        given = {"endingOffsets": f'{{"{OFFSETS}": {{"0": {ending}}}}}'}
        if is_whole:
            assert len(rows(tmp_path, "offset_commits", **given)) == ending
        else:
            with pytest.raises(CorruptLog, match=f"synced up to {min(ending, 10)}"):
                rows(tmp_path, "offset_commits", **given)
    assert rows(tmp_path, "offset_commits", startingOffsets=f'{{"{OFFSETS}": {{"0": 10}}}}') == []
    with pytest.raises(CorruptLog):
        rows(tmp_path, "offset_commits", startingOffsets=f'{{"{OFFSETS}": {{"0": 9}}}}')
    assert rows(tmp_path, "offset_commits", startingOffsets="latest") == []


def test_a_log_that_ends_at_its_mark_or_above(tmp_path: Path) -> None:
    log = lost(tmp_path, 5)
    for mark in (10, 7, 0):
        log.checkpoint(MARK, mark)
        assert len(rows(tmp_path, "offset_commits")) == 10
        assert gaps(tmp_path) == []
    # A segment that was begun and has nothing yet.
    log.checkpoint(MARK, 10)
    log.roll()
    assert len(rows(tmp_path, "offset_commits")) == 10
    assert gaps(tmp_path) == []


def test_damage_at_the_end_is_listed_once(tmp_path: Path) -> None:
    log = lost(tmp_path, 5)
    size = log.file(".log").stat().st_size
    os.truncate(log.file(".log"), size - 5)
    assert [(position, offset) for position, _, offset, _ in gaps(tmp_path)] == [(size - size // 5, 9)]


def test_a_mark_that_is_newer_than_the_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running server writes and syncs on, and its mark is read after its files were listed."""
    plain = read_checkpoint
    for what in ("offset_commits", "_corrupt", "a new segment"):
        root = tmp_path / what
        log = lost(root, 5)
        chosen = options(root, "offset_commits" if what.startswith("a ") else what)

        def late(*given: Any, log: LogRig = log, what: str = what) -> Any:
            if log.next_offset == 10 and given[-1] == MARK:
                if what.startswith("a "):
                    log.roll()
                for number in range(10, 20):
                    log.append(commit("g", "t", 0, number))
                log.checkpoint(MARK, 20)
            return plain(*given)

        monkeypatch.setattr(planning, "read_checkpoint", late)
        tasks = plan_tasks(chosen, RowFilter())
        found = [row for task in tasks for batch in read_task(task, chosen) for row in batch.to_pylist()]
        assert log.next_offset == 20
        assert [row["log_offset"] for row in found] == ([] if what == "_corrupt" else list(range(20)))


# --- streams


def reader(root: Path, table: str = "offset_commits", **given: str) -> KcoordStreamReader:
    return KcoordStreamReader(options(root, table, **{"startingOffsets": "earliest", **given}))


def read(one: KcoordStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for part in one.partitions(start, end) for batch in one.read(part) for row in batch.to_pylist()]


def at(offset: int) -> dict[str, Any]:
    return {".": {OFFSETS: {"0": offset}}}


@pytest.mark.parametrize("until", ["durable", "written"])
@pytest.mark.parametrize("batches", [3, 0])
def test_a_stream_of_a_log_that_was_cut(tmp_path: Path, batches: int, until: str) -> None:
    lost(tmp_path, batches)
    end = 5 + batches
    message = f"{OFFSETS}-0: the log ends at {end}, but was synced up to 10. .*onCorrupt=collect"
    every: tuple[Callable[[KcoordStreamReader], object], ...] = (
        lambda one: one.initialOffset(),
        lambda one: one.latestOffset(at(0), EVERYTHING),
        # With nothing new it would wait for ever.
        lambda one: one.latestOffset(at(end), EVERYTHING),
        lambda one: one.prepareForTriggerAvailableNow(),
        lambda one: one.partitions(at(0), at(4)),
    )
    for asks in every:
        with pytest.raises(CorruptLog, match=message):
            asks(reader(tmp_path, until=until))
    lenient = reader(tmp_path, until=until, onCorrupt="collect")
    assert lenient.latestOffset(at(0), EVERYTHING) == at(end)
    assert len(read(lenient, at(0), at(end))) == end
    listed = reader(tmp_path, "_corrupt", until=until)
    assert read(listed, at(0), at(4)) == []
    assert [row["log_offset"] for row in read(listed, at(0), at(end))] == [end]


def test_a_stream_whose_mark_is_newer_than_the_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = read_checkpoint
    log = lost(tmp_path, 5)

    def late(*given: Any) -> Any:
        if log.next_offset == 10:
            for number in range(10, 20):
                log.append(commit("g", "t", 0, number))
            log.checkpoint(MARK, 20)
        return plain(*given)

    monkeypatch.setattr(planning, "read_checkpoint", late)
    assert reader(tmp_path).latestOffset(at(0), EVERYTHING) == at(20)
