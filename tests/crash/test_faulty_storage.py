"""The faulty disk behaves as it says; what the crash tests prove rests on that."""

from __future__ import annotations

import errno
import itertools
import random

import pytest

from tests.harness.faulty_storage import SECTOR_BYTES, Fault, FaultyStorage


def all_states(storage: FaultyStorage) -> list[dict[str, bytes | None]]:
    pieces = storage.pieces()
    states = []
    for count in range(len(pieces) + 1):
        states += [storage.crash(kept).image() for kept in itertools.combinations(pieces, count)]
    return states


def durable_file(data: bytes) -> FaultyStorage:
    storage = FaultyStorage()
    file = storage.open("f")
    file.append(data)
    file.datasync()
    storage.sync_dir("")
    return storage


def test_a_new_file_needs_its_own_sync_and_that_of_its_directory() -> None:
    storage = FaultyStorage()
    file = storage.open("f")
    file.append(b"abc")
    file.datasync()
    assert storage.crash().image() == {}
    storage.sync_dir("")
    assert storage.crash().image() == {"f": b"abc"}
    assert storage.pieces() == []
    storage = FaultyStorage()
    storage.open("f").append(b"abc")
    storage.sync_dir("")
    assert storage.crash().image() == {"f": b""}


def test_unsynced_writes_survive_in_any_combination() -> None:
    storage = durable_file(b"a")
    file = storage.open("f")
    file.append(b"b")
    file.append(b"c")
    assert {state["f"] for state in all_states(storage)} == {b"a", b"ab", b"a\0c", b"abc"}


def test_a_write_tears_at_sectors_of_the_disk() -> None:
    storage = durable_file(b"a" * (SECTOR_BYTES - 1))
    storage.open("f").append(b"b" * (SECTOR_BYTES + 2))
    pieces = storage.pieces()
    assert [(piece.start, piece.end) for piece in pieces] == [(511, 512), (512, 1024), (1024, 1025)]
    middle = storage.crash([pieces[1]]).image()["f"]
    assert middle == b"a" * 511 + b"\0" + b"b" * 512


def test_a_rename_without_its_directory_is_undone_or_whole() -> None:
    storage = durable_file(b"old")
    file = storage.open("new")
    file.append(b"new")
    file.datasync()
    storage.rename("new", "f")
    states = all_states(storage)
    assert {"f": b"old"} in states and {"f": b"new"} in states and {"f": b"old", "new": b"new"} in states
    assert all(state["f"] in (b"old", b"new") for state in states)
    storage.sync_dir("")
    assert all_states(storage) == [{"f": b"new"}]


def test_an_atomic_write_leaves_the_old_or_the_new_contents_at_every_step() -> None:
    storage = durable_file(b"old")
    states: list[dict[str, bytes | None]] = []
    storage.on_operation = lambda kind, path: states.extend(all_states(storage))
    storage.write_atomic("f", b"new")
    storage.on_operation = None
    assert {state["f"] for state in states} == {b"old", b"new"}
    assert storage.crash().image() == {"f": b"new"}


def test_directories_and_removals_need_a_sync_as_well() -> None:
    storage = FaultyStorage()
    storage.make_dir("d")
    storage.open("d/f").datasync()
    storage.sync_dir("d")
    assert storage.crash().image() == {}
    storage.sync_dir("")
    assert storage.crash().image() == {"d": None, "d/f": b""}
    storage.remove_tree("d")
    assert storage.image() == {}
    assert storage.crash().image() == {"d": None, "d/f": b""}
    storage.sync_dir("")
    assert storage.crash().image() == {}


def test_the_chosen_operation_fails() -> None:
    storage = FaultyStorage()
    storage.trace = []
    storage.faults[2] = Fault(errno.EIO)
    file = storage.open("f")
    with pytest.raises(OSError) as caught:
        file.append(b"abcd")
    assert caught.value.errno == errno.EIO
    assert storage.read_bytes("f") == b""
    storage.faults[3] = Fault(errno.ENOSPC, short=True)
    with pytest.raises(OSError):
        file.append(b"abcd")
    assert storage.read_bytes("f") == b"ab"
    storage.faults[4] = Fault(0, short=True)
    file.append(b"wxyz")
    assert storage.read_bytes("f") == b"abwxyz"
    assert storage.trace == [("create", "f")] + [("write", "f")] * 4


def test_what_a_failed_sync_left_no_later_sync_settles() -> None:
    storage = durable_file(b"a")
    file = storage.open("f")
    file.append(b"b")
    storage.faults[storage.operations + 1] = Fault(errno.EIO)
    with pytest.raises(OSError):
        file.datasync()
    file.append(b"c")
    file.datasync()
    assert storage.crash().image() == {"f": b"a\0c"}
    assert storage.crash(storage.pieces()).image() == {"f": b"abc"}


def test_a_random_crash_is_one_of_the_possible_ones() -> None:
    storage = durable_file(b"a" * 600)
    storage.open("f").append(b"b" * 1200)
    storage.open("g").append(b"c")
    states = all_states(storage)
    rng = random.Random(3)
    for _ in range(50):
        assert storage.crash_at_random(rng).image() in states
