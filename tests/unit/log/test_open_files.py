"""How many files the logs have open, which are closed for others, and what happens where no descriptor is left."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from kcoord.log.directory import LogDirectory
from kcoord.log.journal import Journal
from kcoord.log.log_config import LogConfig
from kcoord.log.log_write import LogWrite
from kcoord.log.partition_log import PartitionLog
from kcoord.log.storage import DiskStorage, Storage
from kcoord.testing.state.disk import ForgetfulStorage
from tests.unit.log.batches import TOPIC_ID, add, offsets, reopen

NO_TAIL = LogConfig(tail_bytes_max=0)


def make(storage: Storage, count: int, files_max: int) -> tuple[LogDirectory, list[PartitionLog]]:
    directory = reopen(storage, NO_TAIL, open_files_max=files_max)
    return directory, [directory.create_log("t", number, TOPIC_ID) for number in range(count)]


def opened(logs: list[PartitionLog]) -> list[int]:
    return [log.partition for log in logs if log._active.is_open]


def test_the_least_recently_used_file_is_closed_first(tmp_path: Path) -> None:
    directory, logs = make(DiskStorage(str(tmp_path)), 8, 4)
    journal = Journal(directory, "always")
    for log in logs:
        add(journal, log)
        journal.commit()
    assert opened(logs) == [4, 5, 6, 7] and len(directory.files) == 4
    assert offsets(logs[4].read(0, 1000, 1)) == [0]
    assert offsets(logs[0].read(0, 1000, 1)) == [0]
    assert opened(logs) == [0, 4, 6, 7]
    journal.close()
    assert len(directory.files) == 0


def test_a_file_that_cannot_be_closed_does_not_keep_others_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LogConfig(tail_bytes_max=0, preallocated_bytes=400)
    directory = reopen(DiskStorage(str(tmp_path)), config, open_files_max=6)
    journal = Journal(directory, "always")
    logs = [directory.create_log("t", number, TOPIC_ID) for number in range(8)]
    for _ in range(5):
        add(journal, logs[0])
        journal.commit()
    assert logs[0]._active.is_preallocated()

    def fail(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", fail)
        for log in logs[1:]:
            add(journal, log)
            journal.commit()
        assert opened(logs) == [0, 3, 4, 5, 6, 7]
        for log in logs[3:]:
            log._active.close()
        with pytest.raises(OSError, match="no"):
            directory.files._close_oldest()
    assert offsets(logs[0].read(0, 1000, 5)) == [0, 1, 2, 3, 4]
    journal.close()


def test_a_descriptor_whose_close_failed_is_used_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system closes it nevertheless, and gives its number to the next file."""
    directory, logs = make(DiskStorage(str(tmp_path)), 12, 6)
    journal = Journal(directory, "always")
    close = os.close
    failures = 1

    def fail_once(fd: int) -> None:
        nonlocal failures
        close(fd)
        if failures:
            failures -= 1
            raise OSError(errno.EIO, "no")

    for log in logs[:6]:
        add(journal, log)
        journal.commit()
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", fail_once)
        with pytest.raises(OSError, match="no"):
            logs[6]._active.file()
        assert not failures and opened(logs) == [1, 2, 3, 4, 5]
    for log in logs:
        add(journal, log)
        journal.commit()
    for log in logs:
        assert offsets(log.read(0, 1000, 9)) == list(range(log.end_offset))
    journal.close()


def test_a_file_with_bytes_that_are_not_synced_stays_open(tmp_path: Path) -> None:
    directory, logs = make(DiskStorage(str(tmp_path)), 8, 4)
    journal = Journal(directory, "always")
    journal.commit()
    add(journal, logs[0])
    ticket = journal.write()
    assert ticket is not None
    for log in logs[1:]:
        log._active.file()
    assert opened(logs) == [0, 5, 6, 7]
    ticket.sync()
    journal.complete(ticket)
    for log in logs[1:5]:
        log._active.file()
    assert 0 not in opened(logs)
    journal.close()


@pytest.mark.parametrize("mode", ["always", "os"])
def test_more_logs_are_written_at_once_than_files_may_be_open(mode: str) -> None:
    storage = ForgetfulStorage()
    directory, logs = make(storage, 20, 4)
    journal = Journal(directory, mode)
    journal.commit()
    for number in range(3):
        for log in logs:
            add(journal, log, 2)
        ticket = journal.write()
        assert ticket is not None
        # Three of four may be held.
        assert sum(isinstance(item, LogWrite) for item in ticket.syncs) >= 17
        assert max(log.durable_end for log in logs) == 2 * number
        ticket.sync()
        journal.complete(ticket)
        assert len(directory.files) <= 4
        assert {log.durable_end for log in logs} == {2 * number + 2}
    directory.write_recovery_points()
    after = reopen(storage.crash(), NO_TAIL, commit_bytes_max=None if mode == "os" else 1 << 20)
    # Under `os` nobody synced the names of the logs, and no mark says so.
    assert [log.end_offset for log in after] == ([6] * 20 if mode == "always" else [])


def test_files_of_idle_logs_are_closed_under_os() -> None:
    directory, logs = make(ForgetfulStorage(), 20, 8)
    journal = Journal(directory, "os")
    for log in logs[:6]:
        add(journal, log)
    journal.commit()
    assert opened(logs) == [0, 1, 2, 3, 4, 5]
    for _ in range(3):
        for log in logs[10:14]:
            add(journal, log)
        journal.commit()
    assert {10, 11, 12, 13} <= set(opened(logs))


def test_where_no_descriptor_is_left_files_are_closed_and_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, logs = make(DiskStorage(str(tmp_path)), 10, 100)
    journal = Journal(directory, "always")
    for log in logs[:9]:
        add(journal, log)
    journal.commit()
    open_ = os.open

    def scarce(path: str, flags: int, mode: int = 0o777) -> int:
        if len(directory.files) > 5:
            raise OSError(errno.EMFILE, "too many open files")
        return open_(path, flags, mode)

    monkeypatch.setattr("kcoord.log.storage.os.open", scarce)
    add(journal, logs[9])
    journal.commit()
    directory.write_recovery_points()
    assert logs[9].durable_end == 1 and len(directory.files) <= 6
    # A thread waits until whoever owns the files closes some.
    for log in logs:
        log._active.close()
    monkeypatch.undo()
    for log in logs:
        log._active.file()
    monkeypatch.setattr("kcoord.log.storage.os.open", scarce)
    done = threading.Event()

    def work() -> None:
        directory.storage.sync_dir("")
        done.set()

    threading.Thread(target=work, daemon=True).start()
    assert not done.wait(0.05)
    directory.files.ease()
    assert done.wait(10)
    monkeypatch.undo()
    journal.close()


def test_a_failure_that_closing_files_does_not_mend_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, logs = make(DiskStorage(str(tmp_path)), 1, 100)

    def scarce(path: str, flags: int, mode: int = 0o777) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr("kcoord.log.storage.os.open", scarce)
    with pytest.raises(OSError, match="too many open files"):
        logs[0]._active.file()
    monkeypatch.undo()
    directory.close(True)


def test_opening_leaves_no_files_open(tmp_path: Path) -> None:
    directory, logs = make(DiskStorage(str(tmp_path)), 5, 100)
    journal = Journal(directory, "always")
    for log in logs:
        add(journal, log)
    journal.commit()
    journal.close(clean=False)
    for _ in range(2):  # after a crash, after a clean stop
        directory = reopen(DiskStorage(str(tmp_path)))
        assert len(directory.files) == 0
        directory.close(True)
