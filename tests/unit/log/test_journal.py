"""Group commit: what is acknowledged is durable, and failures stop everything."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord.log.directory import COMMIT_BYTES_MIN
from kcoord.log.errors import JournalFailed, LogDamaged, SyncFailed, WriteFailed
from kcoord.log.journal import AHEAD_BYTES, Journal
from kcoord.log.log_config import LogConfig
from kcoord.log.partition_log import PartitionLog
from kcoord.log.storage import DiskStorage, MemoryStorage, SharedDescriptor, Storage
from kcoord.testing.state.disk import ForgetfulFile, ForgetfulStorage
from kcoord.wire.record_batch import parse_header
from tests.harness.faulty_storage import FaultyStorage
from tests.harness.log import batches_of, checkpoint
from tests.harness.present import present
from tests.unit.log.batches import TOPIC_ID, add, reopen

# (what, which log, how many records); most are appends, so that segments roll.
steps = st.lists(
    st.tuples(
        st.sampled_from(["append"] * 4 + ["commit"] * 2 + ["write", "complete", "checkpoint", "stop"]),
        st.sampled_from([0, 0, 0, 1]),
        st.integers(1, 3),
    ),
    min_size=10,
    max_size=60,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    steps=steps, torn=st.sampled_from([0, 1, 61, 100, 500, 10**6]), small=st.booleans(), files=st.sampled_from([2, 128])
)
def test_a_power_cut_loses_nothing_that_was_acknowledged(
    steps: list[tuple[str, int, int]], torn: int, small: bool, files: int
) -> None:
    power_cut("always", steps, torn, 250 if small else 1 << 30, files)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(steps=steps, torn=st.sampled_from([0, 1, 61, 100, 500, 10**6]), files=st.sampled_from([2, 128]))
def test_a_power_cut_without_syncs_leaves_all_rolled_segments(
    steps: list[tuple[str, int, int]], torn: int, files: int
) -> None:
    power_cut("os", steps, torn, 250, files)


def test_a_clean_stop_makes_new_logs_durable_in_every_mode() -> None:
    storage = ForgetfulStorage()
    directory = reopen(storage)
    journal = Journal(directory, "os")
    add(journal, directory.create_log("used", 0, TOPIC_ID), 3)
    directory.create_log("empty", 0, TOPIC_ID)
    journal.commit()
    journal.close()
    after = reopen(storage.crash())
    assert after.was_clean
    assert [(log.topic, log.end_offset, log.topic_id) for log in after] == [
        ("empty", 0, TOPIC_ID),
        ("used", 3, TOPIC_ID),
    ]


def power_cut(mode: str, steps: list[tuple[str, int, int]], torn: int, segment_bytes: int, files: int) -> None:
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=100)
    reach = None if mode == "os" else 1 << 20
    storage = ForgetfulStorage()
    directory = reopen(storage, config, open_files_max=files)
    journal = Journal(directory, mode)
    batches: dict[str, list[bytes]] = {}
    ticket = None
    now = 0
    for step, number, count in steps:
        now += 400
        if step == "append":
            topic = f"t{number}"
            log = directory.get(topic, 0) or directory.create_log(topic, 0, TOPIC_ID)
            batches.setdefault(topic, []).append(add(journal, log, count, timestamp=now))
        elif step == "write" and ticket is None:
            ticket = journal.write()
        elif step == "complete" and ticket is not None:
            ticket.sync()
            journal.complete(ticket)
            ticket = None
        elif step == "commit" and ticket is None:
            journal.commit()
        elif step == "checkpoint" and journal.checkpoint_due(now):
            checkpoint(journal, now)
        elif step == "stop" and ticket is None:
            journal.close()
            directory = reopen(storage, config, commit_bytes_max=reach, open_files_max=files)
            journal = Journal(directory, mode)
            assert not directory.events
    after = reopen(storage.crash(torn), config, commit_bytes_max=reach)
    for before in directory:
        promised = before.durable_end if mode == "always" else before.synced_end
        if promised:
            log = present(after.get(before.topic, 0))
            assert log.end_offset >= promised
            assert log.topic_id == TOPIC_ID
            kept = [data[pos : pos + parse_header(data, pos).size] for pos, data in batches_of(log, 0, 10**9)]
            assert kept == batches[before.topic][: len(kept)]
            newest = log.max_timestamp()
            assert newest is not None and log.find_by_timestamp(newest[0]) == newest
    again = Journal(after, mode)
    for log in list(after):
        add(again, log)
    again.commit()
    again.close()


def test_without_the_sync_the_test_above_would_fail() -> None:
    storage = ForgetfulStorage()
    directory = reopen(storage)
    journal = Journal(directory, "always")
    log = directory.create_log("t", 0, TOPIC_ID)
    add(journal, log)
    ticket = present(journal.write())
    journal.complete(ticket)
    assert log.durable_end == 1
    after = reopen(storage.crash()).get("t", 0)
    assert after is None or after.end_offset == 0


@pytest.mark.parametrize("mode", ["os", "memory"])
def test_other_modes_are_done_when_written(mode: str) -> None:
    directory = reopen(MemoryStorage())
    journal = Journal(directory, mode)
    log = directory.create_log("t", 0, TOPIC_ID)
    add(journal, log)
    assert log.durable_end == 0
    assert journal.write() is None
    assert (log.durable_end, log.synced_end) == (1, 0)
    assert not journal.checkpoint_due(10**9)
    journal.close()
    assert directory.recovery_points() == {("t", 0): 1}


def test_one_commit_at_a_time() -> None:
    directory = reopen(MemoryStorage())
    journal = Journal(directory, "always")
    log = directory.create_log("t", 0, TOPIC_ID)
    assert journal.has_pending
    add(journal, log)
    ticket = present(journal.write())
    add(journal, log)
    assert journal.has_pending
    with pytest.raises(ValueError):
        journal.write()
    journal.complete(ticket)
    assert log.durable_end == 1
    with pytest.raises(ValueError):
        journal.complete(ticket)
    second = present(journal.write())
    journal.complete(second)
    assert log.durable_end == 2
    assert journal.write() is None


def test_a_failed_sync_stops_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = ForgetfulStorage()
    directory = reopen(storage)
    journal = Journal(directory, "always")
    log = directory.create_log("t", 0, TOPIC_ID)
    add(journal, log)
    journal.commit()
    add(journal, log)
    ticket = present(journal.write())

    def broken(self: ForgetfulFile) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(ForgetfulFile, "datasync", broken)
    with pytest.raises(SyncFailed) as info:
        ticket.sync()
    journal.fail(info.value)
    for refused in (lambda: add(journal, log), journal.write, lambda: journal.complete(ticket)):
        with pytest.raises(JournalFailed):
            refused()
    assert log.durable_end == 1
    assert not journal.checkpoint_due(10**9)
    journal.close()
    monkeypatch.undo()
    assert not reopen(storage).was_clean


def test_a_failed_write_stops_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = reopen(DiskStorage(str(tmp_path)))
    journal = Journal(directory, "os")
    log = directory.create_log("t", 0, TOPIC_ID)
    add(journal, log)
    journal.write()

    def full(fd: int, data: bytes, position: int) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr("kcoord.log.storage.os.pwrite", full)
    add(journal, log)
    with pytest.raises(WriteFailed, match="no space"):
        journal.write()
    with pytest.raises(JournalFailed):
        add(journal, log)
    assert log.durable_end == 1
    monkeypatch.undo()
    journal.close()
    directory = reopen(DiskStorage(str(tmp_path)))
    assert present(directory.get("t", 0)).end_offset == 1
    directory.close(clean=True)


def test_short_writes_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    pwrite = os.pwrite
    monkeypatch.setattr("kcoord.log.storage.os.pwrite", lambda fd, data, at: pwrite(fd, data[:7], at))
    directory = reopen(DiskStorage(str(tmp_path)))
    journal = Journal(directory, "always")
    log = directory.create_log("t", 0, TOPIC_ID)
    batch = add(journal, log, 4)
    journal.commit()
    assert log._active.file().read_at(0, 10_000) == batch
    journal.close()


def test_checkpoints_come_each_second_while_ends_move() -> None:
    directory = reopen(MemoryStorage())
    journal = Journal(directory, "always")
    log = directory.create_log("t", 0, TOPIC_ID)
    assert not journal.checkpoint_due(0)
    add(journal, log)
    journal.commit()
    assert journal.checkpoint_due(0)
    checkpoint(journal, 0)
    add(journal, log)
    journal.commit()
    assert not journal.checkpoint_due(999)
    assert journal.checkpoint_due(1000)
    checkpoint(journal, 1000)
    assert not journal.checkpoint_due(5000)


def test_deleting_while_a_commit_is_in_flight(tmp_path: Path) -> None:
    directory = reopen(DiskStorage(str(tmp_path)))
    journal = Journal(directory, "always")
    log = directory.create_log("t", 0, TOPIC_ID)
    add(journal, log)
    ticket = present(journal.write())
    add(journal, log)
    deleted = present(journal.delete_log("t", 0))
    directory.purge(deleted)
    ticket.sync()
    journal.complete(ticket)
    assert not log._active.is_open
    journal.commit()
    journal.close()
    assert len(reopen(DiskStorage(str(tmp_path)))) == 0


def test_a_commit_that_is_larger_than_usual_is_announced_before_it_is_written() -> None:
    storage = FaultyStorage()
    directory = reopen(storage)
    log = directory.create_log("t", 0, TOPIC_ID)
    journal = Journal(directory, "always")
    journal.commit()
    storage.trace = []
    add(journal, log, size=100)
    journal.commit()
    assert all(path != "kcoord-commit-bytes" for _kind, path in storage.trace)
    add(journal, log, size=COMMIT_BYTES_MIN)
    ticket = present(journal.write())
    kept = storage.crash().read_bytes("kcoord-commit-bytes")
    assert kept == b"0\n1\nt 0 %d\n" % (4 * COMMIT_BYTES_MIN)
    paths = [path for _kind, path in storage.trace]
    assert paths.index("kcoord-commit-bytes") < paths.index(log.name + "/00000000000000000000.log", 3)
    ticket.sync()
    journal.complete(ticket)
    storage.trace = []
    add(journal, log, size=2 * COMMIT_BYTES_MIN)
    journal.commit()
    assert all(path != "kcoord-commit-bytes" for _kind, path in storage.trace)


def damaged_above_the_mark(size: int, count: int) -> FaultyStorage:
    """Commits of one batch each and no mark; the first batch is damaged."""
    storage = FaultyStorage()
    directory = reopen(storage)
    log = directory.create_log("t", 0, TOPIC_ID)
    journal = Journal(directory, "always")
    for _ in range(count):
        add(journal, log, size=size)
        journal.commit()
    left = storage.crash()
    file = left.open("t-0/00000000000000000000.log")
    data = bytearray(file.read_at(0, file.size))
    data[100] ^= 1
    file.truncate(0)
    file.append(bytes(data))
    return left


def test_damage_above_the_mark_is_refused_where_no_commit_could_be_torn_so_far() -> None:
    with pytest.raises(LogDamaged):
        reopen(damaged_above_the_mark(1000, COMMIT_BYTES_MIN // 1000 + 5))
    # Within one commit's reach it looks like a torn write: cut, and reported.
    (event,) = reopen(damaged_above_the_mark(1000, 20)).events
    assert event.position == 0
    # Larger commits reach farther.
    (event,) = reopen(damaged_above_the_mark(COMMIT_BYTES_MIN, 3)).events
    assert event.position == 0


def test_a_search_that_is_given_up_refuses_the_log() -> None:
    storage = damaged_above_the_mark(1000, 1)
    # Each byte may begin a batch, and none does.
    storage.open("t-0/00000000000000000000.log").append(b"\x02" * (6 * COMMIT_BYTES_MIN))
    with pytest.raises(LogDamaged, match="exceeded its limit"):
        reopen(storage)


def test_without_syncs_nothing_is_logged_about_commits() -> None:
    storage = FaultyStorage()
    reopen(storage).close(True)
    assert storage.read_bytes("kcoord-commit-bytes") == b"0\n0\n"
    reopen(storage, commit_bytes_max=None).close(True)
    assert not storage.exists("kcoord-commit-bytes")
    file = storage.open("kcoord-commit-bytes")
    file.append(b"what")
    reopen(storage).close(True)
    assert storage.read_bytes("kcoord-commit-bytes") == b"0\n0\n"


def test_under_os_files_are_synced_ahead(tmp_path: Path) -> None:
    """So that little is left to sync when a segment is closed, for which answers wait."""
    for mode, names in (("os", {"t-0", "u-0"}), ("always", set()), ("memory", set())):
        storage: Storage = MemoryStorage() if mode == "memory" else DiskStorage(str(tmp_path / mode))
        directory = reopen(storage)
        logs = [directory.create_log(name, 0, TOPIC_ID) for name in "tu"]
        journal = Journal(directory, mode)
        found: set[str] = set()
        for number in range(60):
            for log in logs if number % 3 == 0 else logs[: 1 + number % 2]:
                add(journal, log, size=AHEAD_BYTES // 12)
            journal.commit()
            for ahead in all_ahead(journal):
                ahead.datasync()
                found.add(log_of(ahead, tmp_path / mode, logs))
        assert found == names
        directory.close(True)


def test_logs_that_grow_together_are_synced_in_turn(tmp_path: Path) -> None:
    directory = reopen(DiskStorage(str(tmp_path)))
    logs = [directory.create_log("t", number, TOPIC_ID) for number in range(4)]
    journal = Journal(directory, "os")

    def grow() -> None:
        for log in logs:
            add(journal, log, size=AHEAD_BYTES)
        journal.commit()

    grow()
    first = present(journal.take_ahead())
    assert isinstance(first, SharedDescriptor)
    assert log_of(first, tmp_path, logs) == "t-0"
    # The ones that wait keep their places, and each is synced once.
    grow()
    journal.delete_log("t", 2)
    del logs[2]
    assert [log_of(ahead, tmp_path, logs) for ahead in all_ahead(journal)] == ["t-1", "t-3", "t-0"]
    directory.close(True)


def all_ahead(journal: Journal) -> list[SharedDescriptor]:
    found: list[SharedDescriptor] = []
    while (ahead := journal.take_ahead()) is not None:
        assert isinstance(ahead, SharedDescriptor)
        found.append(ahead)
    return found


def log_of(ahead: SharedDescriptor, root: Path, logs: list[PartitionLog]) -> str:
    file = os.fstat(ahead.fd)
    [name] = [log.name for log in logs if os.path.samestat(file, stat_of(root, log))]
    return name


def stat_of(root: Path, log: PartitionLog) -> os.stat_result:
    return (root / f"{log.segments[-1].path}.log").stat()
