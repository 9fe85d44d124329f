"""Zeros behind the end of a log (`preallocate`): who sees them, who removes them, and what a crash makes of them."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from kcoord.log.directory import LogDirectory
from kcoord.log.errors import WriteFailed
from kcoord.log.journal import Journal
from kcoord.log.log_config import PREALLOCATING_FREE_MIN, LogConfig
from kcoord.log.partition_log import PartitionLog
from kcoord.log.reader import DamagedBytes, read_batches
from kcoord.log.storage import DiskFile, DiskStorage, Storage
from tests.harness.faulty_storage import FaultyStorage
from tests.unit.log.batches import TOPIC_ID, add, offsets, reopen

FIRST = "t-0/00000000000000000000.log"
ZEROS = 4096
CONFIG = LogConfig(tail_bytes_max=0, preallocated_bytes=ZEROS)


def make(
    storage: Storage, config: LogConfig = CONFIG, mode: str = "always", **more: int
) -> tuple[LogDirectory, Journal, PartitionLog]:
    directory = reopen(storage, config, **more)
    log = directory.create_log("t", 0, TOPIC_ID)
    return directory, Journal(directory, mode), log


def fill(journal: Journal, log: PartitionLog, count: int, **more: int) -> int:
    """Commits of a batch each. Returns their bytes."""
    written = 0
    for _ in range(count):
        written += len(add(journal, log, **more))
        journal.commit()
    return written


def all_offsets(log: PartitionLog) -> list[int]:
    found: list[int] = []
    while not found or found[-1] + 1 < log.end_offset:
        found += offsets(log.read(found[-1] + 1 if found else 0, 1 << 20, log.end_offset))
    return found


# ---- one file


def test_a_file_with_zeros_behind_its_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = DiskFile(str(path))
    file.append(b"abc")
    file.preallocate(10)
    assert (file.size, path.stat().st_size) == (3, 13)
    assert file.is_preallocated()
    assert file.append(b"defg") == 3
    assert (file.size, path.read_bytes()) == (7, b"abcdefg" + bytes(6))
    # Beyond the zeros, and then new ones.
    file.append(b"h" * 8)
    assert (file.size, path.stat().st_size) == (15, 15)
    assert not file.is_preallocated()
    file.preallocate(10)
    assert path.stat().st_size == 25
    file.trim()
    assert path.read_bytes() == b"abcdefg" + b"h" * 8
    file.preallocate(10)
    file.truncate(4)
    file.append(b"x")
    file.preallocate(3)
    file.close()
    assert path.read_bytes() == b"abcdx" + bytes(3)


def test_nothing_is_cut_that_another_descriptor_appended_after_a_trim(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = DiskFile(str(path))
    file.append(b"abc")
    file.preallocate(10)
    file.trim()
    other = DiskFile(str(path))
    other.append(b"def")
    other.close()
    file.close()
    assert path.read_bytes() == b"abcdef"


def test_a_file_that_cannot_be_trimmed_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, journal, log = make(DiskStorage(str(tmp_path)))
    written = fill(journal, log, 30)

    def fail(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(OSError, match="no"):
            log.segments[0].close()
    written += fill(journal, log, 30)
    assert all_offsets(log) == list(range(60))
    journal.close()
    assert (tmp_path / FIRST).stat().st_size == written


def test_a_log_that_has_failed_or_was_deleted_is_left_as_it_is(tmp_path: Path) -> None:
    _, journal, log = make(DiskStorage(str(tmp_path)))
    written = fill(journal, log, 30)
    size = (tmp_path / FIRST).stat().st_size
    assert size > written
    journal.fail(OSError(errno.EIO, "no"))
    journal.close()
    assert (tmp_path / FIRST).stat().st_size == size
    again = reopen(DiskStorage(str(tmp_path)), CONFIG)
    found = again.get("t", 0)
    assert found is not None and all_offsets(found) == list(range(30))
    journal = Journal(again, "always")
    fill(journal, found, 10)
    deleted = journal.delete_log("t", 0)
    assert deleted is not None
    again.purge(deleted)
    journal.close()
    assert not (tmp_path / FIRST).exists()


@pytest.mark.parametrize(
    ("code", "is_tolerated"),
    [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EFBIG, True), (errno.EIO, False)],
)
def test_no_room_for_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_tolerated: bool) -> None:
    path = tmp_path / "file"
    file = DiskFile(str(path))
    file.append(b"abc")

    def fail(fd: int, data: bytes, position: int) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        if is_tolerated:
            file.preallocate(10)
        else:
            with pytest.raises(OSError, match=os.strerror(code)):
                file.preallocate(10)
    file.append(b"def")
    file.trim()
    assert path.read_bytes() == b"abcdef"


# ---- a log


def test_a_log_ends_in_zeros_only_while_it_is_written(tmp_path: Path) -> None:
    storage = DiskStorage(str(tmp_path))
    _, journal, log = make(storage)
    file = tmp_path / FIRST
    written = fill(journal, log, 5)
    assert file.stat().st_size == written < ZEROS // 4
    written += fill(journal, log, 20)
    assert written < file.stat().st_size <= written + ZEROS
    assert not any(file.read_bytes()[written:])
    assert log.size_bytes == written
    assert all_offsets(log) == list(range(25))
    # Nobody outside sees them as damage of a log that is in use.
    assert [extent.end for extent in log.extents(0, 25)] == [written]
    size = file.stat().st_size
    written += fill(journal, log, 3)
    assert file.stat().st_size == size
    journal.close()
    assert file.stat().st_size == written
    assert not any(isinstance(item, DamagedBytes) for item in read_batches(str(tmp_path / "t-0")))
    again = reopen(storage)
    assert again.was_clean and again.events == []
    found = again.get("t", 0)
    assert found is not None and all_offsets(found) == list(range(28))
    again.close(False)


@pytest.mark.parametrize(("mode", "config"), [("os", CONFIG), ("always", LogConfig(tail_bytes_max=0))])
def test_no_zeros_without_syncs_or_the_setting(tmp_path: Path, mode: str, config: LogConfig) -> None:
    _, journal, log = make(DiskStorage(str(tmp_path)), config, mode)
    written = fill(journal, log, 40)
    assert (tmp_path / FIRST).stat().st_size == written
    journal.close()


def test_no_zeros_where_two_logs_are_written_without_a_sync(tmp_path: Path) -> None:
    directory = reopen(DiskStorage(str(tmp_path)), CONFIG)
    journal = Journal(directory, "os")
    logs = [directory.create_log("t", number, TOPIC_ID) for number in range(2)]
    written = [0, 0]
    for _ in range(30):
        for log in logs:
            written[log.partition] += len(add(journal, log))
        journal.commit()
    assert [(tmp_path / log.segments[0].log_path).stat().st_size for log in logs] == written
    journal.close()


def count_zeros(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The descriptors that zeros were written to, from now on."""
    write = os.pwrite
    found: list[int] = []

    def count(fd: int, data: bytes, position: int) -> int:
        if len(data) == ZEROS:
            found.append(fd)
        return write(fd, data, position)

    monkeypatch.setattr(os, "pwrite", count)
    return found


@pytest.mark.parametrize(("files_max", "is_preallocating"), [(4, False), (128, True)])
def test_no_zeros_where_files_are_closed_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files_max: int, is_preallocating: bool
) -> None:
    directory = reopen(DiskStorage(str(tmp_path)), CONFIG, open_files_max=files_max)
    journal = Journal(directory, "always")
    logs = [directory.create_log("t", number, TOPIC_ID) for number in range(8)]
    zeros = count_zeros(monkeypatch)
    for _ in range(40):
        for log in logs:
            fill(journal, log, 1)
    assert (len(zeros) >= len(logs)) is is_preallocating
    # Only the first files that were open, if files are scarce.
    assert is_preallocating or len(zeros) <= files_max
    journal.close()


def test_no_zeros_on_a_volume_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = DiskStorage(str(tmp_path))
    free = PREALLOCATING_FREE_MIN - 1
    monkeypatch.setattr(storage, "free_bytes", lambda: free)
    _, journal, log = make(storage)
    zeros = count_zeros(monkeypatch)
    fill(journal, log, 100)
    assert not zeros
    free += 1
    fill(journal, log, 1)
    assert zeros
    journal.close()


def test_a_clean_stop_writes_no_zeros() -> None:
    storage = FaultyStorage()
    _, journal, log = make(storage)
    while 4 * log.size_bytes < ZEROS:
        add(journal, log)
    storage.trace = []
    journal.close()
    assert [kind for kind, path in storage.trace if path == FIRST and kind == "write"] == ["write"]
    again = reopen(storage.crash(), CONFIG)
    assert again.was_clean and again.events == []
    found = again.get("t", 0)
    assert found is not None and all_offsets(found) == list(range(log.end_offset))


@pytest.mark.parametrize("is_pending", [False, True])
def test_what_was_cut_off_in_a_clean_stop_does_not_come_back(is_pending: bool) -> None:
    storage = FaultyStorage()
    _, journal, log = make(storage)
    fill(journal, log, 30)
    if is_pending:
        add(journal, log)
    journal.close()
    again = reopen(storage.crash(), CONFIG)
    assert again.was_clean
    found = again.get("t", 0)
    assert found is not None and all_offsets(found) == list(range(log.end_offset))


def test_no_zeros_after_large_writes_and_beyond_the_end_of_a_segment(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=8000, tail_bytes_max=0, preallocated_bytes=ZEROS)
    _, journal, log = make(DiskStorage(str(tmp_path)), config)
    file = tmp_path / FIRST
    written = fill(journal, log, 2, size=2000)
    assert file.stat().st_size == written
    while written < 7500:
        written += fill(journal, log, 1, size=500)
        assert file.stat().st_size <= 8000
    assert file.stat().st_size == 8000
    journal.close()
    assert file.stat().st_size == written


@pytest.mark.parametrize("files_max", [2, 128])
def test_closed_segments_have_no_zeros(tmp_path: Path, files_max: int) -> None:
    config = LogConfig(segment_bytes=2500, tail_bytes_max=0, preallocated_bytes=1000)
    storage = DiskStorage(str(tmp_path))
    directory, journal, log = make(storage, config, open_files_max=files_max)
    others = [directory.create_log("o", number, TOPIC_ID) for number in range(6)]
    rng = random.Random(files_max)
    for _ in range(300):
        for other in rng.sample(others, rng.randrange(5)):
            add(journal, other, rng.randrange(1, 4))
        add(journal, log, rng.randrange(1, 4), size=rng.choice([10, 10, 100, 900]))
        if rng.random() < 0.05:
            journal.roll(log)
        journal.commit()
        for one in (log, *others):
            for segment in one.segments[:-1]:
                assert (tmp_path / segment.log_path).stat().st_size == segment.size
        if rng.random() < 0.2:
            # Evicts files of others.
            one = rng.choice(others)
            assert not one.end_offset or all_offsets(one) == list(range(one.end_offset))
    assert len(log.segments) > 10
    ends = [(one.topic, one.partition, one.end_offset) for one in (log, *others)]
    assert all_offsets(log) == list(range(log.end_offset))
    # As a killed process leaves it.
    directory.storage.unlock()
    again = reopen(storage, config)
    for topic, partition, end in ends:
        found = again.get(topic, partition)
        assert found is not None and all_offsets(found) == list(range(end))
    assert all("zeros" in event.reason for event in again.events)
    again.close(False)


def refuse_zeros(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """From now on a disk takes everything but preallocated zeros: of those only a part, and then it fails."""
    write = os.pwrite

    def fail(fd: int, data: bytes, position: int) -> int:
        if len(data) == ZEROS:
            write(fd, data[:100], position)
            raise OSError(code, os.strerror(code))
        return write(fd, data, position)

    monkeypatch.setattr(os, "pwrite", fail)


def test_without_room_for_zeros_a_log_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, journal, log = make(DiskStorage(str(tmp_path)))
    refuse_zeros(monkeypatch, errno.ENOSPC)
    written = fill(journal, log, 200)
    assert written > 3 * ZEROS
    assert all_offsets(log) == list(range(200))
    journal.close()
    assert (tmp_path / FIRST).stat().st_size == written


def test_a_disk_that_fails_to_take_zeros_fails_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, journal, log = make(DiskStorage(str(tmp_path)))
    refuse_zeros(monkeypatch, errno.EIO)
    with pytest.raises(WriteFailed):
        fill(journal, log, 200)
    assert journal.failure is not None
    journal.close()


# ---- crashes


@pytest.mark.parametrize("seed", range(60))
def test_what_was_acknowledged_survives_a_crash(seed: int) -> None:
    rng = random.Random(seed)
    config = LogConfig(segment_bytes=3000, tail_bytes_max=0, preallocated_bytes=rng.choice([300, 1000, 5000]))
    storage = FaultyStorage()
    # Files are closed for others, and opened again.
    directory = reopen(storage, config, open_files_max=rng.choice([2, 3, 128]))
    journal = Journal(directory, "always")
    logs = [directory.create_log("t", number, TOPIC_ID) for number in range(3)]
    for _ in range(rng.randrange(5, 90)):
        for log in rng.sample(logs, rng.randrange(1, 4)):
            add(journal, log, rng.randrange(1, 4), size=rng.choice([0, 10, 200]))
            if rng.random() < 0.05:
                journal.roll(log)
        journal.commit()
    acknowledged = [log.end_offset for log in logs]
    for log in rng.sample(logs, rng.randrange(3)):
        add(journal, log, rng.randrange(1, 4))
    ticket = journal.write()
    if ticket is not None and rng.random() < 0.5:
        for item in rng.sample(ticket.syncs, rng.randrange(len(ticket.syncs))):
            item.datasync()
    left = storage.crash_at_random(rng)
    again = reopen(left, config)
    journal = Journal(again, "always")
    for log, least in zip(logs, acknowledged, strict=True):
        found = again.get("t", log.partition)
        assert found is not None and least <= found.end_offset <= log.end_offset
        assert not found.end_offset or all_offsets(found) == list(range(found.end_offset))
        # It goes on from there, and what is written now survives as well.
        fill(journal, found, 10)
    once_more = reopen(left.crash(), config)
    for log in logs:
        before, found = again.get("t", log.partition), once_more.get("t", log.partition)
        assert before is not None and found is not None and found.end_offset == before.end_offset
        assert all_offsets(found) == list(range(found.end_offset))


def test_zeros_that_were_cut_off_before_a_kill_do_not_come_back_after_a_roll() -> None:
    storage = FaultyStorage()
    directory, journal, log = make(storage)
    fill(journal, log, 30)
    directory.write_recovery_points()
    # As for another file.
    log.segments[0].close()
    # The process is killed: what it wrote stays, and is not synced.
    directory.storage.unlock()
    again = reopen(storage, CONFIG)
    found = again.get("t", 0)
    assert found is not None
    journal = Journal(again, "always")
    journal.roll(found)
    journal.commit()
    fill(journal, found, 3)
    once_more = reopen(storage.crash(), CONFIG).get("t", 0)
    assert once_more is not None and all_offsets(once_more) == list(range(33))


def test_zeros_after_a_kill_are_named_as_what_they_are(tmp_path: Path) -> None:
    storage = DiskStorage(str(tmp_path))
    directory, journal, log = make(storage)
    written = fill(journal, log, 30)
    directory.storage.unlock()
    again = reopen(storage)
    (event,) = again.events
    assert event.position == written and "preallocated" in event.reason
    assert (tmp_path / FIRST).stat().st_size == written
    again.close(False)
