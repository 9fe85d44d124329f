"""Data directories: whose they are, clean and unclean stops, deletion."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from kcoord.log.directory import open_directory
from kcoord.log.errors import (
    DirectoryLocked,
    DirectoryNotWritable,
    ForeignDirectory,
    LogDamaged,
    StorageError,
    UnknownFormat,
    WrongNode,
)
from kcoord.log.journal import Journal
from kcoord.log.log_config import LogConfig
from kcoord.log.storage import DiskStorage, MemoryStorage
from tests.harness.faulty_storage import FaultyStorage
from tests.harness.log import checkpoint
from tests.harness.log_start import advance_log_start
from tests.harness.present import present
from tests.unit.log.batches import TOPIC_ID, add, make_batch, offsets, reopen


def test_a_new_directory_on_disk(tmp_path: Path) -> None:
    root = tmp_path / "a" / "data"
    directory = reopen(DiskStorage(str(root)))
    assert (root / "meta.properties").read_text().split() == [
        "version=1",
        "cluster.id=cluster",
        "node.id=1",
        "directory.id=directory",
        "kcoord.format=2",
    ]
    journal = Journal(directory, "always")
    logs = [directory.create_log("orders", n, TOPIC_ID) for n in range(3)]
    for log in logs:
        add(journal, log, 5)
    journal.commit()
    journal.close()
    assert (root / ".kafka_cleanshutdown").exists()
    text = (root / "recovery-point-offset-checkpoint").read_text()
    assert text == "0\n3\norders 0 5\norders 1 5\norders 2 5\n"
    directory = reopen(DiskStorage(str(root)))
    assert directory.was_clean and not directory.events
    assert not (root / ".kafka_cleanshutdown").exists()
    assert sorted(log.name for log in directory) == ["orders-0", "orders-1", "orders-2"]
    log = present(directory.get("orders", 1))
    assert log.topic_id == TOPIC_ID and log.end_offset == 5
    assert offsets(log.read(0, 1000, 5)) == [0, 1, 2, 3, 4]
    directory.close(clean=False)


def test_locked(tmp_path: Path) -> None:
    first = reopen(DiskStorage(str(tmp_path)))
    with pytest.raises(DirectoryLocked, match="in use"):
        reopen(DiskStorage(str(tmp_path)))
    first.close(clean=True)
    reopen(DiskStorage(str(tmp_path))).close(clean=True)


def test_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DirectoryNotWritable):
        reopen(DiskStorage(str(tmp_path / "file")))


@pytest.mark.parametrize("name", ["orders-0/00000000000000000000.log", "notes.txt"])
def test_a_directory_with_something_else_in_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("x")
    with pytest.raises(ForeignDirectory, match="kcoord log import"):
        reopen(DiskStorage(str(tmp_path)))
    assert os.listdir(tmp_path) == [name.split("/", maxsplit=1)[0]]


def test_a_kafka_brokers_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = "#\n#Fri Nov 20 10:00:00 UTC 2026\nnode.id=1\nversion=1\ncluster.id=abc\n"
    (tmp_path / "meta.properties").write_text(text)
    (tmp_path / ".kafka_cleanshutdown").write_text("{}")
    with pytest.raises(ForeignDirectory, match="kcoord log import"):
        reopen(DiskStorage(str(tmp_path)))
    assert (tmp_path / "meta.properties").read_text() == text
    assert (tmp_path / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("data", [b"", bytes(range(256)), b"color=red\n"])
def test_a_damaged_meta_properties_is_not_called_a_broker_s(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "meta.properties").write_bytes(data)
    with pytest.raises(ForeignDirectory, match="neither kcoord's nor a Kafka broker's: it is damaged"):
        reopen(DiskStorage(str(tmp_path)))
    assert (tmp_path / "meta.properties").read_bytes() == data


def test_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DirectoryNotWritable, match="is not a directory$"):
            reopen(DiskStorage(str(path)))


def test_another_nodes_or_formats_directory() -> None:
    storage = MemoryStorage()
    reopen(storage).close(clean=True)
    with pytest.raises(WrongNode, match="node 1, this is node 2"):
        open_directory(storage, 2, "x", "y")
    directory = open_directory(storage, 1, "x", "y")
    assert (directory.meta.cluster_id, directory.meta.directory_id) == ("cluster", "directory")
    directory.close(clean=True)
    data = storage.read_bytes("meta.properties")
    storage.write_atomic("meta.properties", data.replace(b"format=2", b"format=3"))
    with pytest.raises(UnknownFormat):
        reopen(storage)


def test_a_damaged_checkpoint_is_not_taken_for_an_empty_one() -> None:
    storage = MemoryStorage()
    reopen(storage).close(clean=True)
    storage.write_atomic("recovery-point-offset-checkpoint", b"0\n5\na 0 1\n")
    with pytest.raises(StorageError, match="recovery-point"):
        reopen(storage)


def filled(commits: int = 5) -> tuple[MemoryStorage, Journal]:
    storage = MemoryStorage()
    directory = reopen(storage)
    journal = Journal(directory, "always")
    log = directory.create_log("t", 0, TOPIC_ID)
    for _ in range(commits):
        add(journal, log, 2)
        journal.commit()
    return storage, journal


PATH = "t-0/00000000000000000000.log"
SIZE = len(make_batch(0, 2))


@pytest.mark.parametrize("tail", [b"x", bytes(30), bytes(4000), make_batch(10, 2)[:-1], b"\xff" * 100])
@pytest.mark.parametrize("marked", [False, True])
def test_a_torn_tail_is_cut_and_reported(tail: bytes, marked: bool) -> None:
    storage, journal = filled()
    if marked:
        checkpoint(journal, 0)
    storage.open(PATH).append(tail)
    storage.unlock()
    directory = reopen(storage)
    assert not directory.was_clean
    (event,) = directory.events
    assert (event.log, event.file, event.position, event.bytes_cut) == ("t-0", PATH, 5 * SIZE, len(tail))
    assert present(directory.get("t", 0)).end_offset == 10
    assert storage.size_of(PATH) == 5 * SIZE
    log = present(directory.get("t", 0))
    journal = Journal(directory, "always")
    add(journal, log)
    journal.commit()
    assert offsets(log.read(0, 10_000, 11)) == list(range(11))


def test_whole_batches_after_the_mark_are_kept() -> None:
    storage, _journal = filled()
    storage.open(PATH).append(make_batch(10, 2))
    storage.unlock()
    directory = reopen(storage)
    assert directory.events == [] and present(directory.get("t", 0)).end_offset == 12


def test_offsets_that_go_back_are_no_log() -> None:
    storage, _journal = filled()
    storage.open(PATH).append(make_batch(4, 2))
    storage.unlock()
    (event,) = reopen(storage).events
    assert event.position == 5 * SIZE and "offset 4" in event.reason


@pytest.mark.parametrize("position", [5, 30, SIZE + 70, 3 * SIZE + 16])
def test_damage_below_the_mark(position: int) -> None:
    storage, journal = filled()
    checkpoint(journal, 0)
    storage._file(PATH).data[position] ^= 0x40
    storage.unlock()
    with pytest.raises(LogDamaged) as info:
        reopen(storage)
    assert info.value.file == PATH
    assert info.value.position == position // SIZE * SIZE
    assert info.value.offset == position // SIZE * 2
    storage.lock()  # a failed opening lets go


def test_missing_data_below_the_mark() -> None:
    for cut in (3 * SIZE, 5 * SIZE - 1, 0):
        storage, journal = filled()
        checkpoint(journal, 0)
        storage.open(PATH).truncate(cut)
        storage.unlock()
        with pytest.raises(LogDamaged):
            reopen(storage)
    storage, journal = filled()
    journal.close()
    storage.open(PATH).truncate(3 * SIZE)
    with pytest.raises(LogDamaged, match="synced up to 10"):
        reopen(storage)
    storage, journal = filled()
    journal.close()
    storage.remove(PATH)
    with pytest.raises(LogDamaged, match="no segments"):
        reopen(storage)


def test_valid_batches_far_after_a_bad_one_are_damage() -> None:
    storage, _ = filled(20)
    storage._file(PATH).data[SIZE * 2 + 70] ^= 1
    storage.unlock()
    with pytest.raises(LogDamaged, match="a valid batch follows"):
        reopen(storage, commit_bytes_max=10 * SIZE)
    # Within the reach of one commit it is what a power cut leaves of that commit.
    (event,) = reopen(storage, commit_bytes_max=20 * SIZE).events
    assert event.position == 2 * SIZE
    storage, _journal = filled(20)
    storage._file(PATH).data[SIZE * 2 + 70] ^= 1
    storage.unlock()
    assert reopen(storage, commit_bytes_max=None).events[0].position == 2 * SIZE
    assert storage.size_of(PATH) == 2 * SIZE


def test_deletion_can_be_taken_back_until_it_is_purged() -> None:
    storage, journal = filled()
    checkpoint(journal, 0)
    deleted = present(journal.delete_log("t", 0))
    assert deleted.path == f"t-0.{TOPIC_ID.hex()}-delete"
    assert journal.directory.get("t", 0) is None
    storage.unlock()
    directory = reopen(storage)
    assert len(directory) == 0
    (deleted,) = directory.deleted
    assert (deleted.topic, deleted.partition, deleted.topic_id) == ("t", 0, TOPIC_ID)
    # Loading finds that the record of the deletion did not survive: the topic is still there.
    log = directory.create_log("t", 0, TOPIC_ID)
    assert log.end_offset == 10 and directory.deleted == []
    deleted = present(directory.delete_log("t", 0))
    directory.purge(deleted)
    assert [n for n in storage.list_dir("") if n.startswith("t-0")] == []


def test_a_log_that_comes_back_knows_its_topic() -> None:
    """Made and deleted in one commit, of which a power cut left the renamed directory and no file contents."""
    storage, journal = filled()
    journal.delete_log("t", 0)
    path = f"t-0.{TOPIC_ID.hex()}-delete/partition.metadata"
    storage.open(path).truncate(0)
    storage.unlock()
    directory = reopen(storage)
    assert directory.create_log("t", 0, TOPIC_ID).topic_id == TOPIC_ID
    directory.close(True)
    log = present(reopen(storage).get("t", 0))
    assert log is not None and log.topic_id == TOPIC_ID


def test_a_name_used_again_does_not_inherit_marks() -> None:
    storage, journal = filled()
    directory = journal.directory
    advance_log_start(directory, present(directory.get("t", 0)), 4)
    checkpoint(journal, 0)
    directory.purge(present(journal.delete_log("t", 0)))
    log = directory.create_log("t", 0, bytes(15) + b"\x01")
    add(journal, log)
    journal.commit()
    storage.unlock()
    log = present(reopen(storage).get("t", 0))
    assert (log.log_start_offset, log.end_offset, log.topic_id[-1]) == (0, 1, 1)


def test_long_topic_names_can_be_deleted() -> None:
    directory = reopen(MemoryStorage())
    directory.create_log("x" * 249, 7, TOPIC_ID)
    deleted = present(directory.delete_log("x" * 249, 7))
    assert len(deleted.path) == 255
    assert directory.deleted == [deleted]


def test_topics_with_odd_names() -> None:
    storage = MemoryStorage()
    directory = reopen(storage)
    for topic in ("a-1", "a.b_c", "a-1-delete"):
        directory.create_log(topic, 0, TOPIC_ID)
    directory.close(clean=True)
    assert sorted((log.topic, log.partition) for log in reopen(storage)) == [
        ("a-1", 0),
        ("a-1-delete", 0),
        ("a.b_c", 0),
    ]


def test_marks_taken_earlier_do_not_overwrite_later_ones() -> None:
    storage, journal = filled()
    directory = journal.directory
    early = journal.begin_checkpoint(0)
    directory.purge(present(journal.delete_log("t", 0)))
    directory.create_log("u", 0, TOPIC_ID[::-1])
    add(journal, present(directory.get("u", 0)), 3)
    journal.commit()
    directory.write_recovery_points()
    directory.write_recovery_points(early)
    assert storage.read_bytes("recovery-point-offset-checkpoint") == b"0\n1\nu 0 3\n"


def test_marks_on_their_way_do_not_reach_a_new_log_of_the_name() -> None:
    storage, journal = filled()
    directory = journal.directory
    early = journal.begin_checkpoint(0)
    directory.purge(present(journal.delete_log("t", 0)))
    log = directory.create_log("t", 0, TOPIC_ID[::-1])
    directory.write_recovery_points(early)
    add(journal, log)
    journal.commit()
    storage.unlock()
    log = present(reopen(storage).get("t", 0))
    assert log is not None and log.end_offset == 1


def test_reading_old_segments_keeps_few_files_open(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=300, tail_bytes_max=0)
    directory = reopen(DiskStorage(str(tmp_path)), config, open_files_max=6)
    journal = Journal(directory, "os")
    log = directory.create_log("t", 0, TOPIC_ID)
    for _ in range(50):
        add(journal, log, 2)
        journal.commit()
    assert len(log.segments) > 15
    for offset in range(100):
        assert offset in offsets(log.read(offset, 1, 100))
    assert log.find_by_timestamp(1001) == (1001, 1, 0)
    assert sum(segment.is_open for segment in log._segments) <= 6
    directory.close(clean=True)


def crashed(logs: int, marked: bool) -> FaultyStorage:
    """What a killed process leaves: everything, and some of it never synced."""
    storage = FaultyStorage()
    directory = reopen(storage)
    journal = Journal(directory, "always")
    for number in range(logs):
        add(journal, directory.create_log("t", number, TOPIC_ID), 2)
    journal.commit()
    if marked:
        checkpoint(journal, 0)
        add(journal, present(directory.get("t", 0)))
        journal.commit()
    storage.unlock()
    storage.trace = []
    return storage


def test_a_start_after_a_crash_syncs_what_no_mark_covers_and_the_root_once() -> None:
    for marked, files, folders in ((False, 2 * 5, 5), (True, 1, 0)):
        storage = crashed(5, marked)
        reopen(storage)
        assert storage.trace is not None
        synced = [path for kind, path in storage.trace if kind == "sync"]
        assert sum(path.startswith("t-") and "/" in path for path in synced) == files
        assert sum(path.startswith("t-") and "/" not in path for path in synced) == folders
        assert synced.count("") == 1


def test_a_start_after_a_crash_syncs_many_logs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = reopen(DiskStorage(str(tmp_path)))
    journal = Journal(directory, "os")
    for number in range(8):
        add(journal, directory.create_log("t", number, TOPIC_ID))
    journal.commit()
    journal.close(clean=False)
    meet = threading.Barrier(4)
    sync_dir = DiskStorage.sync_dir

    def together(self: DiskStorage, path: str) -> None:
        if path.startswith("t-"):
            meet.wait(10)
        sync_dir(self, path)

    monkeypatch.setattr(DiskStorage, "sync_dir", together)
    reported: list[tuple[str, int, int]] = []
    directory = reopen(DiskStorage(str(tmp_path)), progress=lambda *what: reported.append(what))
    assert [log.end_offset for log in directory] == [1] * 8
    assert reported[-1] == ("syncing", 8, 8) and reported[0][0] == "opening"
    monkeypatch.undo()
    directory.close(True)


def test_a_torn_tail_is_gone_for_good_before_the_log_is_shown() -> None:
    storage = crashed(1, True)
    storage.open(PATH).append(bytes(100))
    directory = reopen(storage)
    assert len(directory.events) == 1
    left = storage.crash()
    assert left.size_of(PATH) == storage.size_of(PATH)


def test_a_clean_stop_writes_high_watermarks() -> None:
    storage, journal = filled()
    journal.close()
    ends = storage.read_bytes("recovery-point-offset-checkpoint")
    assert storage.read_bytes("replication-offset-checkpoint") == ends
    reopen(storage)
    # They would be wrong after the next crash.
    assert not storage.exists("replication-offset-checkpoint")


def test_two_deleted_logs_whose_ids_were_lost_share_a_name() -> None:
    storage = MemoryStorage()
    directory = reopen(storage)
    for _ in range(2):
        directory.create_log("t", 0, bytes(16))
        directory.delete_log("t", 0)
    first = directory.deleted[0]
    directory.purge(first)
    directory.purge(first)
    assert directory.deleted == []
    directory.close(True)


def test_a_start_whose_write_is_late_does_not_reach_a_new_log_of_the_name() -> None:
    storage, journal = filled()
    directory = journal.directory
    advance_log_start(directory, present(directory.get("t", 0)), 4)
    directory.purge(present(journal.delete_log("t", 0)))
    # Retention of another log: a thread is to write these.
    late = directory.take_starts()
    log = directory.create_log("t", 0, TOPIC_ID[::-1])
    directory.write_start_offsets(late)
    add(journal, log)
    journal.commit()
    storage.unlock()
    log = present(reopen(storage).get("t", 0))
    assert (log.log_start_offset, log.end_offset) == (0, 1)


@pytest.mark.parametrize("writes_starts", [False, True])
def test_a_deletion_that_is_taken_back_keeps_the_start(writes_starts: bool) -> None:
    storage, journal = filled()
    directory = journal.directory
    advance_log_start(directory, present(directory.get("t", 0)), 4)
    journal.delete_log("t", 0)
    if writes_starts:
        directory.write_start_offsets(directory.take_starts())
    storage.unlock()
    directory = reopen(storage)
    if writes_starts:
        directory.write_start_offsets(directory.take_starts())
    log = directory.create_log("t", 0, TOPIC_ID)
    assert (log.log_start_offset, log.end_offset) == (4, 10)


def test_the_start_of_a_purged_log_is_forgotten() -> None:
    _storage, journal = filled()
    directory = journal.directory
    advance_log_start(directory, present(directory.get("t", 0)), 4)
    directory.purge(present(journal.delete_log("t", 0)))
    assert directory.take_starts().points == {}


def test_a_start_beyond_the_end_does_not_apply_to_later_records() -> None:
    """A power cut under `os`: the start was synced, the records below it were not."""
    storage, journal = filled()
    storage.write_atomic("log-start-offset-checkpoint", b"0\n1\nt 0 20\n")
    storage.unlock()
    directory = reopen(storage)
    assert present(directory.get("t", 0)).log_start_offset == 10
    journal = Journal(directory, "always")
    for _ in range(15):
        add(journal, present(directory.get("t", 0)))
    journal.commit()
    storage.unlock()
    log = present(reopen(storage).get("t", 0))
    assert (log.log_start_offset, log.end_offset) == (10, 25)


def test_what_was_cleaned_of_a_deleted_log_says_nothing_about_a_new_one() -> None:
    storage, journal = filled()
    directory = journal.directory
    directory.write_cleaned_ends(directory.take_cleaned_ends({("t", 0): 8, ("u", 0): 3}))
    storage.unlock()
    directory = reopen(storage)
    late = directory.take_cleaned_ends({("t", 0): 9})
    directory.purge(present(directory.delete_log("t", 0)))
    directory.create_log("t", 0, TOPIC_ID[::-1])
    directory.write_cleaned_ends(late)
    assert storage.read_bytes("cleaner-offset-checkpoint") == b"0\n1\nu 0 3\n"


def test_the_start_of_a_metadata_log_that_ends_below_it_stays() -> None:
    """Such a log is refused later, and nothing may be changed before."""
    storage = MemoryStorage()
    directory = reopen(storage)
    log = directory.create_log("__cluster_metadata", 0, TOPIC_ID)
    journal = Journal(directory, "always")
    add(journal, log, 3)
    journal.commit()
    starts = b"0\n1\n__cluster_metadata 0 20\n"
    storage.write_atomic("log-start-offset-checkpoint", starts)
    storage.unlock()
    reopen(storage)
    assert storage.read_bytes("log-start-offset-checkpoint") == starts
