"""Closing a segment: what a thread does, in which order, and what the loop sees of it."""

from __future__ import annotations

import errno
import threading

import pytest

from kcoord.log.errors import SyncFailed
from kcoord.log.journal import CommitTicket, Journal
from kcoord.log.log_config import LogConfig
from kcoord.log.partition_log import PartitionLog
from tests.harness.faulty_storage import Fault, FaultyStorage
from tests.harness.present import present
from tests.unit.log.batches import TOPIC_ID, add, offsets, reopen

ROLLS = LogConfig(segment_bytes=250)
SECOND = "t-0/00000000000000000004.log"


def rolling(mode: str) -> tuple[FaultyStorage, Journal, PartitionLog]:
    """A log whose next append begins a second segment, at offset 4."""
    storage = FaultyStorage()
    directory = reopen(storage, ROLLS, commit_bytes_max=None if mode == "os" else 1 << 20)
    journal = Journal(directory, mode)
    log = directory.create_log("t", 0, TOPIC_ID)
    log.producer_state = lambda: b"producers"
    add(journal, log, 4)
    journal.commit()
    assert log.durable_end == 4
    storage.trace = []
    return storage, journal, log


def begin(journal: Journal, log: PartitionLog) -> CommitTicket:
    add(journal, log, 4)
    assert len(log.segments) == 2
    ticket = journal.write()
    assert ticket is not None
    return ticket


@pytest.mark.parametrize("mode", ["always", "os"])
def test_nothing_is_synced_where_the_commit_is_written(mode: str) -> None:
    storage, journal, log = rolling(mode)
    ticket = begin(journal, log)
    assert storage.trace is not None
    assert [kind for kind, path in storage.trace if "sync" in kind and "kcoord-commit-bytes" not in path] == []
    assert not storage.exists(SECOND)
    ticket.sync()
    journal.complete(ticket)
    assert storage.read_bytes("t-0/00000000000000000004.snapshot") == b"producers"
    assert (log.durable_end, log.written_end, len(log.segments)) == (8, 8, 2)
    assert journal.checkpoint_due(0)


def test_nothing_of_the_new_segment_exists_before_the_old_one_is_synced() -> None:
    storage, journal, log = rolling("always")
    seen: list[str] = []

    def look(kind: str, path: str) -> None:
        if kind == "create" and path == SECOND:
            # Whatever of the rest a crash loses, the old segment is there with its indexes.
            left = storage.crash()
            old = "t-0/00000000000000000000"
            assert left.read_bytes(old + ".log") == storage.read_bytes(old + ".log")
            for index in (".index", ".timeindex"):
                assert left.read_bytes(old + index) == storage.read_bytes(old + index)
            assert left.exists("t-0/00000000000000000004.snapshot")
            seen.append(path)

    ticket = begin(journal, log)
    storage.on_operation = look
    ticket.sync()
    storage.on_operation = None
    assert seen == [SECOND]
    journal.complete(ticket)


@pytest.mark.parametrize("mode", ["always", "os"])
def test_the_new_segment_takes_appends_meanwhile_and_shows_nothing(mode: str) -> None:
    storage, journal, log = rolling(mode)
    ticket = begin(journal, log)
    add(journal, log, 2)
    for after_sync in (False, True):
        assert (log.durable_end, log.written_end) == (4, 4)
        log._tail.forget(100)
        assert offsets(log.read(0, 10_000, 100)) == [0, 1, 2, 3]
        assert log.read(4, 10_000, 100) == b""
        assert [extent.path for extent in log.extents(0, 100)] == [log.segments[0].log_path]
        assert log.take_segments_below(4) == []
        if not after_sync:
            ticket.sync()
    journal.complete(ticket)
    assert log.durable_end == 8 and not log.is_writing
    journal.commit()
    assert log.durable_end == 10
    assert offsets(log.read(4, 10_000, 100)) == [4, 5, 6, 7, 8, 9]
    assert [segment.base_offset for segment in log.take_segments_below(4)] == [0]
    journal.close()
    storage.unlock()
    assert reopen(storage).get("t", 0).end_offset == 10  # type: ignore[union-attr]


def test_several_segments_of_one_commit() -> None:
    storage, journal, log = rolling("always")
    for _ in range(4):
        add(journal, log, 4)
    ticket = journal.write()
    assert ticket is not None and len(log.segments) == 5
    ticket.sync()
    journal.complete(ticket)
    assert log.durable_end == 20 and len(log.closed_segments) == 4
    after = reopen(storage.crash(), ROLLS).get("t", 0)
    assert after is not None and after.end_offset == 20 and len(after.segments) == 5


def test_a_roll_without_a_batch_makes_the_files_of_the_next_segment() -> None:
    storage, journal, log = rolling("os")
    journal.roll(log)
    assert not storage.exists(SECOND) and log.closed_segments == []
    journal.commit()
    assert storage.crash().exists(SECOND)
    assert [segment.base_offset for segment in log.closed_segments] == [0]


def test_a_log_that_is_deleted_meanwhile_keeps_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a new log of that name, made at once, gets nothing of it."""
    storage, journal, log = rolling("always")
    reached, may_continue = threading.Event(), threading.Event()
    sync_dir = FaultyStorage.sync_dir

    def slow(self: FaultyStorage, path: str) -> None:
        if path == "t-0" and not reached.is_set():
            reached.set()
            assert may_continue.wait(10)
        sync_dir(self, path)

    monkeypatch.setattr(FaultyStorage, "sync_dir", slow)
    ticket = begin(journal, log)
    thread = threading.Thread(target=ticket.sync)
    thread.start()
    assert reached.wait(10)
    deleted = present(journal.delete_log("t", 0))
    fresh = journal.directory.create_log("t", 0, TOPIC_ID[::-1])
    may_continue.set()
    thread.join(10)
    assert not thread.is_alive()
    journal.complete(ticket)
    assert log.durable_end == 8
    assert storage.list_dir("t-0") == [
        "00000000000000000000.index", "00000000000000000000.log", "00000000000000000000.timeindex",
        "leader-epoch-checkpoint", "partition.metadata",
    ]  # fmt: skip
    # The deletion is not durable yet: a crash brings the old log back, with what was acknowledged.
    left = storage.crash()
    path = deleted.path if left.exists(deleted.path) else "t-0"
    assert left.size_of(f"{path}/00000000000000000004.log") > 0
    add(journal, fresh)
    journal.commit()
    assert fresh.durable_end == 1


def test_a_removed_log_needs_no_work() -> None:
    storage, journal, log = rolling("always")
    ticket = begin(journal, log)
    journal.directory.purge(present(journal.delete_log("t", 0)))
    ticket.sync()
    journal.complete(ticket)
    assert storage.list_dir("") == [name for name in storage.list_dir("") if not name.startswith("t-0")]


@pytest.mark.parametrize("kind", ["sync", "create", "write"])
def test_a_failure_in_the_thread_stops_everything(kind: str) -> None:
    storage, journal, log = rolling("always")
    ticket = begin(journal, log)

    def broken(what: str, path: str) -> Fault | None:
        return Fault(errno.EIO) if what == kind and path.startswith("t-0/") else None

    storage.choose_fault = broken
    with pytest.raises(SyncFailed) as caught:
        ticket.sync()
    journal.fail(caught.value)
    assert log.durable_end == 4
    journal.close()
    left = storage.crash()
    after = reopen(left, ROLLS).get("t", 0)
    assert after is not None and after.end_offset in (4, 8)
