"""Which files count after a crash, by the rules of Kafka's LogLoader; tests/interop/test_recovery.py asks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcoord.log.errors import ImpossibleFiles
from kcoord.log.reader import (
    StoredBatch,
    Window,
    next_offset_in,
    read_batches,
    recovered_files,
    segment_files,
)
from kcoord.log.recovery import (
    NOT_FINISHED,
    REPLACED,
    TO_BE_DELETED,
    UNDONE,
    RecoveredFiles,
    UnknownEnd,
    recover_files,
)
from kcoord.log.segment import segment_name
from tests.unit.log.batches import make_batch

FAR = 1 << 31


def files(*names: str, ends: dict[str, int] | None = None, own: bool = False) -> RecoveredFiles:
    """Names without leading zeros; `ends` are those of the segments by the same names."""
    known = {full(name): end for name, end in (ends or {}).items()}
    sizes = {full(name): 0 if ends is not None and ends.get(name) == -1 else 100 for name in names}
    return recover_files("t-0", sizes, known.__getitem__, own)


def full(name: str) -> str:
    base, dot, rest = name.partition(".")
    return f"{segment_name(int(base))}.{rest}" if base.isdecimal() and dot else name


def segments(found: RecoveredFiles) -> list[str]:
    return [f"{base} {name[20:]}" for base, name in found.segments]


def name_now(found: RecoveredFiles, name: str) -> str | None:
    """The present name of the file that is called `name` after recovery; None if there is none."""
    return found.names.get(name, name if name in found.others else None)


def dropped(found: RecoveredFiles, reason: str) -> list[str]:
    return sorted(f"{int(one.name[:20])}{one.name[20:]}" for one in found.dropped if one.reason == reason)


def test_without_temporary_files_segments_are_the_logs() -> None:
    found = files("9.log", "3.log", "3.index", "partition.metadata", "12.snapshot", "3.log.old")
    assert segments(found) == ["3 .log", "9 .log"] and not found.dropped and not found.is_interrupted


def test_deleted_and_cleaned_files_do_not_count() -> None:
    found = files("0.log", "0.log.cleaned", "0.index.cleaned", "5.log", "2.log.deleted", "2.snapshot.deleted")
    assert segments(found) == ["0 .log", "5 .log"] and not found.is_interrupted
    assert dropped(found, TO_BE_DELETED) == ["2.log.deleted", "2.snapshot.deleted"]
    assert dropped(found, NOT_FINISHED) == ["0.index.cleaned", "0.log.cleaned"]


def test_a_snapshot_of_the_metadata_log_that_is_to_go_is_none_of_it() -> None:
    name = "00000000000000000007-0000000001.checkpoint.deleted"
    found = files("0.log", name)
    assert not found.dropped and name in found.others


def test_a_swap_file_takes_the_place_of_all_that_begins_in_its_range() -> None:
    found = files(
        "0.log", "0.index", "0.snapshot", "5.log", "7.log", "7.snapshot", "20.log", "20.index",
        "0.log.swap", "0.index.swap", ends={"0.log.swap": 7},
    )  # fmt: skip
    # Segment 7 begins after the last record that was kept; the broker lets it stand, although it was compacted.
    assert segments(found) == ["0 .log.swap", "7 .log", "20 .log"] and found.is_interrupted
    assert dropped(found, REPLACED) == ["0.index", "0.log", "0.snapshot", "5.log"]
    assert name_now(found, full("0.index")) == full("0.index.swap")
    assert name_now(found, full("20.index")) == full("20.index")
    assert name_now(found, full("0.snapshot")) is None and name_now(found, full("5.log")) is None


def test_a_swap_file_counts_without_the_old_segments_too() -> None:
    found = files("0.log.swap", "0.log.deleted", "5.log.deleted", "9.log", ends={"0.log.swap": 6})
    assert segments(found) == ["0 .log.swap", "9 .log"]


def test_an_empty_swap_file_replaces_only_the_segment_of_its_name() -> None:
    found = files("0.log", "0.index", "5.log", "0.log.swap", ends={"0.log.swap": -1})
    assert segments(found) == ["0 .log.swap", "5 .log"] and dropped(found, REPLACED) == ["0.log"]
    assert name_now(found, full("0.index")) == full("0.index")


def test_a_swap_file_at_or_after_a_cleaned_one_does_not_count() -> None:
    found = files("0.log", "5.log", "0.log.swap", "0.index.cleaned")
    assert segments(found) == ["0 .log", "5 .log"] and not found.is_interrupted
    assert dropped(found, UNDONE) == ["0.log.swap"] and dropped(found, NOT_FINISHED) == ["0.index.cleaned"]
    found = files("0.log", "5.log", "0.log.swap", "0.index.cleaned", ends={"0.log.swap": 5}, own=True)
    assert segments(found) == ["0 .log.swap", "5 .log"]


def test_a_split_that_was_not_finished_is_undone() -> None:
    names = ("0.log", f"{FAR}.log.swap", "3.log.cleaned", f"{2 * FAR}.log.swap", f"{3 * FAR}.log")
    assert segments(files(*names, ends={"0.log": 2 * FAR + 9})) == ["0 .log", f"{3 * FAR} .log"]
    with pytest.raises(ImpossibleFiles):
        files(*names, ends={"0.log": 3})


def test_a_finished_split_replaces_the_segment_that_overflows() -> None:
    ends = {"3.log.swap": 9, f"{FAR}.log.swap": FAR + 9}
    swaps = ("3.log.swap", f"{FAR}.log.swap")
    for old in ("3.log", "3.log.deleted"):
        assert segments(files(*swaps, old, ends=ends)) == ["3 .log.swap", f"{FAR} .log.swap"]
    assert segments(files("3.log", f"{FAR}.log.swap", ends=ends)) == ["3 .log", f"{FAR} .log.swap"]


def test_an_index_that_was_not_renamed_is_found() -> None:
    found = files("0.log", "0.index.swap", "0.timeindex.swap", "0.log.deleted", "0.index.deleted")
    assert segments(found) == ["0 .log"] and name_now(found, full("0.index")) == full("0.index.swap")


def test_what_replaces_nothing_that_is_there_is_refused() -> None:
    with pytest.raises(ImpossibleFiles, match=r"t-0: 0{20}\.log\.cleaned: its source, .*0{20}\.log, is missing"):
        files("5.log", "0.log.cleaned")
    with pytest.raises(ImpossibleFiles) as refused:
        files("0.log", "5.log.swap", "5.index.cleaned", ends={"0.log": 5})
    assert refused.value.files == [full("5.log.swap")]


def test_segments_between_two_exchanges_are_refused_unless_kcoord_left_them() -> None:
    names = ("0.log", "0.log.swap", "5.log", "9.log", "9.log.swap", "20.log")
    ends = {"0.log.swap": 5, "9.log.swap": 20}
    with pytest.raises(ImpossibleFiles, match="next start would remove them") as refused:
        files(*names, ends=ends)
    assert full("5.log") in refused.value.files
    assert segments(files(*names, ends=ends, own=True)) == ["0 .log.swap", "5 .log", "9 .log.swap", "20 .log"]


def test_names_that_are_no_segments_names() -> None:
    assert segments(files("0.log", "notes.swap", "a.cleaned")) == ["0 .log"]
    for name in ("5.log.swap", "00000000000000000005.part.swap", "000000000000000000005.log.cleaned"):
        with pytest.raises(ImpossibleFiles, match="not the name of a segment.s file"):
            recover_files("t-0", {name: 1}, int)


def test_a_swap_file_whose_end_is_not_known_is_refused(tmp_path: Path) -> None:
    batch = make_batch(0, 3)
    (tmp_path / full("0.log")).write_bytes(batch + make_batch(3, 2))
    (tmp_path / full("0.log.swap")).write_bytes(batch[:-1])
    with pytest.raises(ImpossibleFiles, match="no whole batch"):
        segment_files(str(tmp_path))


def bases_of(path: Path, from_offset: int = 0) -> list[int]:
    batches = [one for one in read_batches(str(path), from_offset) if isinstance(one, StoredBatch)]
    return [int(one.header.base_offset) for one in batches]


def test_batches_are_read_from_the_file_that_counts(tmp_path: Path) -> None:
    (tmp_path / full("0.log")).write_bytes(make_batch(0, 3))
    (tmp_path / full("3.log")).write_bytes(make_batch(3, 2))
    (tmp_path / full("5.log")).write_bytes(make_batch(5))
    (tmp_path / full("0.log.swap")).write_bytes(make_batch(1, 1) + make_batch(4, 1))
    assert bases_of(tmp_path) == [1, 4, 5] and bases_of(tmp_path, 4) == [4, 5]
    assert [one.name for one in recovered_files(str(tmp_path)).dropped] == [full("0.log"), full("3.log")]


def end_of(data: bytes, index: bytes = b"") -> int:
    return next_offset_in(Window(lambda size, at: data[at : at + size], len(data)), 0, index)


def test_the_end_of_a_segment_by_its_headers() -> None:
    data = make_batch(0, 3) + make_batch(7, 2) + make_batch(20)
    assert end_of(data) == 21 and end_of(b"") == 0
    at = len(make_batch(0, 3))
    entry = (8).to_bytes(4, "big") + at.to_bytes(4, "big")
    # With an index that is right the beginning is not looked at; one that is wrong or preallocated does no harm.
    assert end_of(b"\xff" * at + data[at:], entry + bytes(16)) == 21
    for wrong in (bytes(16), (9).to_bytes(4, "big") + entry[4:], entry[:4] + (at + 1).to_bytes(4, "big"), entry[:5]):
        assert end_of(data, wrong) == 21
    with pytest.raises(UnknownEnd):
        end_of(b"\xff" * at + data[at:])
    # Formats 0 and 1 have a last offset and no delta.
    old = (41).to_bytes(8, "big") + (22).to_bytes(4, "big") + bytes(4) + b"\x01" + bytes(17)
    assert end_of(old) == 42
    for cut in (data[:-1], data + b"\x00", data[:70]):
        with pytest.raises(UnknownEnd):
            end_of(cut)
