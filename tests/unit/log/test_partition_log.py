"""Segments, indexes, reads and time look-ups of one log."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kcoord.log.directory import LogDirectory
from kcoord.log.errors import LogDamaged, OffsetOutOfRange
from kcoord.log.journal import Journal
from kcoord.log.log_config import LogConfig
from kcoord.log.partition_log import FILE_RANGE_BYTES_MIN, PartitionLog
from kcoord.log.storage import DiskStorage, MemoryFile, MemoryStorage
from tests.harness.log import batches_of, checkpoint
from tests.harness.log_start import advance_log_start
from tests.harness.present import present
from tests.unit.log.batches import TOPIC_ID, add, make_batch, offsets, reopen


def small(**more: int) -> LogConfig:
    return LogConfig(**{"segment_bytes": 2000, "index_interval_bytes": 200, "tail_bytes_max": 0, **more})


def make(config: LogConfig | None = None) -> tuple[MemoryStorage, LogDirectory, Journal, PartitionLog]:
    storage = MemoryStorage()
    directory = reopen(storage, config or small())
    journal = Journal(directory, "always")
    return storage, directory, journal, directory.create_log("t", 0, TOPIC_ID)


def fill(journal: Journal, log: PartitionLog, batches: int = 100, count: int = 3) -> list[bytes]:
    made = []
    for i in range(batches):
        made.append(add(journal, log, count, timestamp=1000 + i * 10))
        if i % 7 == 0:
            journal.commit()
    journal.commit()
    return made


def test_files_have_kafkas_names() -> None:
    storage, _, journal, log = make()
    fill(journal, log)
    names = storage.list_dir("t-0")
    assert "00000000000000000000.log" in names and "00000000000000000000.timeindex" in names
    assert len(log.segments) > 5 and len([n for n in names if n.endswith(".log")]) == len(log.segments)
    assert storage.read_bytes("t-0/partition.metadata") == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 60_000), min_size=3, max_size=25),
    offset=st.integers(0, 30),
    max_bytes=st.integers(60_000, 700_000),
    upto=st.integers(1, 60),
    interval=st.sampled_from([100, 4096, 200_000]),
)
# The batch before the first one that is wanted is larger than two intervals.
@example(sizes=[475, 475, 53_086], offset=2, max_bytes=107_294, upto=5, interval=100)
def test_large_reads_return_all_whole_batches_that_fit(
    sizes: list[int], offset: int, max_bytes: int, upto: int, interval: int
) -> None:
    directory = reopen(MemoryStorage(), LogConfig(index_interval_bytes=interval, tail_bytes_max=0))
    log = directory.create_log("t", 0, TOPIC_ID)
    journal = Journal(directory, "memory")
    batches = [(2 * i, add(journal, log, 2, size=size)) for i, size in enumerate(sizes)]
    journal.commit()
    offset = min(offset, log.end_offset - 1)
    expected = b""
    for base, batch in batches:
        if base + 1 >= offset and base < upto:
            if expected and len(expected) + len(batch) > max_bytes:
                break
            expected += batch
    assert log.read(offset, max_bytes, upto) == (expected if offset < upto else b"")


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60_000), min_size=3, max_size=25),
    segment_bytes=st.sampled_from([150_000, 10_000_000]),
    interval=st.sampled_from([100, 4096, 200_000]),
    reads=st.lists(
        st.tuples(st.integers(0, 50), st.integers(60_000, 700_000), st.integers(1, 60)), min_size=1, max_size=10
    ),
)
def test_what_is_located_is_what_is_read(
    sizes: list[int], segment_bytes: int, interval: int, reads: list[tuple[int, int, int]]
) -> None:
    with TemporaryDirectory() as folder:
        config = LogConfig(index_interval_bytes=interval, segment_bytes=segment_bytes, tail_bytes_max=0)
        directory = reopen(DiskStorage(folder), config)
        log = directory.create_log("t", 0, TOPIC_ID)
        journal = Journal(directory, "os")
        for size in sizes:
            add(journal, log, 2, size=size)
        journal.commit()
        add(journal, log, 2, size=sizes[0])  # not written yet
        for offset, max_bytes, upto in reads:
            found = log.locate(offset, max_bytes, upto)
            if found is not None:
                assert FILE_RANGE_BYTES_MIN <= len(found) <= max_bytes
                assert found.read() == log.read(offset, max_bytes, upto)
        journal.commit()
        directory.close(True)


def test_large_reads_are_located_in_files_alone() -> None:
    with TemporaryDirectory() as folder:
        directory = reopen(DiskStorage(folder), LogConfig(tail_bytes_max=0))
        log = directory.create_log("t", 0, TOPIC_ID)
        journal = Journal(directory, "os")
        for _ in range(300):
            add(journal, log, size=1000)
        journal.commit()
        found = log.locate(100, 100_000, 300)
        assert found is not None and found.read() == log.read(100, 100_000, 300)
        assert log.locate(299, 100_000, 300) is None, "too little to be worth it"
        assert log.locate(100, 100_000, 110) is None, "the range would reach beyond what may be read"
        assert log.locate(300, 100_000, 300) is None and log.locate(301, 100_000, 300) is None
        log.log_start_offset = 101
        assert log.locate(100, 100_000, 300) is None
        directory.close(True)
    _, _, journal, in_memory = make()
    fill(journal, in_memory)
    assert in_memory.locate(0, 1 << 20, 300) is None


def test_a_reader_that_arrives_at_damage_is_told() -> None:
    """In the middle of what is sent, its client finds it. A retry begins there, and gets the error."""
    with TemporaryDirectory() as folder:
        directory = reopen(DiskStorage(folder), LogConfig(tail_bytes_max=0))
        log = directory.create_log("t", 0, TOPIC_ID)
        journal = Journal(directory, "os")
        sizes = [len(add(journal, log, size=1000)) for _ in range(300)]
        journal.commit()
        before = log.locate(0, 200_000, 300)
        assert before is not None
        intact = before.read()
        with open(f"{folder}/{log.segments[0].log_path}", "r+b") as file:
            file.seek(sum(sizes[:100]) + 8)
            file.write(b"\xff\xff\xff\xff")
        found = log.locate(0, 200_000, 300)
        assert found is not None and len(found) == len(before) and found.read() != intact
        assert log.locate(100, 100_000, 300) is None
        with pytest.raises(LogDamaged):
            log.read(100, 100_000, 300)
        directory.close(False)


def test_a_range_needs_descriptors_to_spare() -> None:
    """A file that was closed for its descriptor must give it back."""
    with TemporaryDirectory() as folder:
        directory = reopen(DiskStorage(folder), LogConfig(tail_bytes_max=0, segment_bytes=200_000), open_files_max=4)
        log = directory.create_log("t", 0, TOPIC_ID)
        journal = Journal(directory, "os")
        while len(log.segments) < 6:
            add(journal, log, size=1000)
            journal.commit()
        directory.files.retire()
        first = log.segments[0]
        assert log.locate(0, 100_000, log.end_offset) is not None
        for segment in log.segments[:3]:
            segment.file()
        assert directory.files.is_scarce
        assert log.locate(first.base_offset, 100_000, log.end_offset) is None
        directory.close(True)


def test_a_large_read_reads_little_more_than_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = reopen(MemoryStorage(), LogConfig(tail_bytes_max=0))
    log = directory.create_log("t", 0, TOPIC_ID)
    journal = Journal(directory, "memory")
    for _ in range(1000):
        add(journal, log, size=1000)
    journal.commit()
    read_at = MemoryFile.read_at
    sizes: list[int] = []

    def counted(file: MemoryFile, position: int, size: int) -> bytes:
        sizes.append(size)
        return read_at(file, position, size)

    monkeypatch.setattr(MemoryFile, "read_at", counted)
    data = log.read(500, 300_000, 1000)
    assert len(data) > 298_000 and sum(sizes) < len(data) + 5000 and max(sizes) == len(data)


@pytest.mark.parametrize("tail", [0, 1000, 1 << 20])
@pytest.mark.parametrize("reopened", [False, True])
def test_every_offset_can_be_read(tail: int, reopened: bool) -> None:
    storage, _, journal, log = make(small(tail_bytes_max=tail))
    batches = fill(journal, log)
    if reopened:
        journal.close()
        log = present(reopen(storage, small(tail_bytes_max=tail)).get("t", 0))
    for offset in range(300):
        data = log.read(offset, 1, 300)
        assert data == batches[offset // 3]
        assert log.read(offset, 400, 300).startswith(data)
        assert len(log.read(offset, 400, 300)) <= 400
    everything = b""
    while (at := len(offsets(everything))) < 300:
        everything += log.read(at, 100_000, 300)
    assert everything == b"".join(batches)
    assert log.read(300, 100, 300) == b""


@pytest.mark.parametrize("tail", [0, 1 << 20])
def test_reads_stop_at_their_end_offset(tail: int) -> None:
    _, _, journal, log = make(small(tail_bytes_max=tail))
    batches = fill(journal, log, 5)
    assert log.read(0, 1 << 20, 6) == b"".join(batches[:2])
    # A batch that begins below the bound is whole.
    assert log.read(0, 1 << 20, 7) == b"".join(batches[:3])
    assert log.read(3, 1, 15, min_one_batch=False) == b""
    assert log.read(3, len(batches[1]), 15, min_one_batch=False) == batches[1]
    assert log.read(3, len(batches[1]) * 2 - 1, 15) == batches[1]
    for bad in (-1, 16):
        with pytest.raises(OffsetOutOfRange):
            log.read(bad, 100, 15)


@pytest.mark.parametrize("tail", [0, 1 << 20])
def test_nothing_unwritten_is_read(tail: int) -> None:
    _, _, journal, log = make(small(tail_bytes_max=tail))
    add(journal, log)
    assert (log.end_offset, log.written_end, log.durable_end) == (1, 0, 0)
    assert log.read(0, 100, 10) == b""
    ticket = journal.write()
    assert ticket is not None
    assert (log.end_offset, log.written_end, log.durable_end) == (1, 1, 0)
    assert offsets(log.read(0, 100, 10)) == [0]
    assert log.read(0, 100, log.durable_end) == b""
    ticket.sync()
    journal.complete(ticket)
    assert (log.durable_end, log.synced_end) == (1, 1)


def test_one_write_for_all_batches_of_a_turn() -> None:
    storage, _, journal, log = make()
    calls: list[int] = []
    file = storage.open("t-0/00000000000000000000.log")

    class Counting:
        def append(self, data: bytes) -> int:
            calls.append(len(data))
            return file.append(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(file, name)

    counting: Any = Counting()
    log._active._file = counting
    sizes = [len(add(journal, log)) for _ in range(10)]
    journal.commit()
    assert calls == [sum(sizes)]


def test_a_batch_bigger_than_chunks_and_segments() -> None:
    storage, _, journal, log = make()
    big = add(journal, log, size=3 << 20)
    fill(journal, log, 3)
    assert log.read(0, 10, 99) == big
    journal.close()
    log = present(reopen(storage, small(), verify=True).get("t", 0))
    assert log.read(0, 10, 99) == big and log.end_offset == 10


def test_batches_gives_all_with_checked_sums() -> None:
    storage, _, journal, log = make()
    batches = fill(journal, log)
    from kcoord.wire.record_batch import parse_header

    got = [data[pos : pos + parse_header(data, pos).size] for pos, data in batches_of(log, 0, 300)]
    assert got == batches
    got = [data[pos : pos + parse_header(data, pos).size] for pos, data in batches_of(log, 100, 200)]
    assert got == batches[33:67]
    path = "t-0/00000000000000000000.log"
    storage._file(path).data[100] ^= 1
    with pytest.raises(LogDamaged, match="00000000000000000000.log"):
        list(batches_of(log, 0, 300))


@settings(max_examples=40)
@given(
    stamps=st.lists(st.integers(0, 300), min_size=1, max_size=80),
    start=st.integers(0, 60),
    codec=st.sampled_from([0, 1, 3]),
    reopened=st.booleans(),
)
def test_find_by_timestamp_is_a_linear_search(stamps: list[int], start: int, codec: int, reopened: bool) -> None:
    storage, directory, journal, log = make(small(segment_bytes=700))
    records = []
    for stamp in stamps:
        records += [(stamp, log.end_offset), (stamp + 1, log.end_offset + 1)]
        add(journal, log, 2, timestamp=stamp, codec=codec)
    journal.commit()
    advance_log_start(directory, log, min(start, log.durable_end))
    if reopened:
        journal.close()
        log = present(reopen(storage, small()).get("t", 0))
    live = [r for r in records if r[1] >= log.log_start_offset]
    for target in range(0, 303, 7):
        want = next((r for r in live if r[0] >= target), None)
        got = log.find_by_timestamp(target)
        assert (got and got[:2]) == want
        bound = log.end_offset - 3
        got = log.find_by_timestamp(target, bound)
        assert (got and got[:2]) == (want if want and want[1] < bound else None)


def test_max_timestamp() -> None:
    _, _, journal, log = make()
    assert log.max_timestamp() is None
    for stamp in (5, 900, 3, 800):
        add(journal, log, 3, timestamp=stamp)
    journal.commit()
    assert log.max_timestamp() == (902, 5, 0)


def test_old_segments_go_with_the_log_start() -> None:
    storage, directory, journal, log = make()
    fill(journal, log)
    before = len(log.segments)
    assert advance_log_start(directory, log, 150) > 0
    assert log.log_start_offset == 150 and len(log.segments) < before
    assert not storage.exists("t-0/00000000000000000000.index")
    with pytest.raises(OffsetOutOfRange):
        log.read(149, 10, 300)
    assert offsets(log.read(150, 1, 300))[0] == 150
    assert advance_log_start(directory, log, 10) == 0
    with pytest.raises(ValueError):
        advance_log_start(directory, log, 301)
    advance_log_start(directory, log, 300)
    journal.close()
    log = present(reopen(storage, small()).get("t", 0))
    assert (log.log_start_offset, log.end_offset) == (300, 300)


def test_roll_by_time() -> None:
    _, _, journal, log = make(LogConfig(segment_ms=100))
    for stamp in (1000, 1100, 1101, 1150):
        add(journal, log, timestamp=stamp)
    journal.commit()
    assert log._bases == [0, 2]


def test_roll_makes_the_old_segment_durable_and_due_for_a_mark() -> None:
    _, directory, journal, log = make()
    journal.commit()
    checkpoint(journal, 0)
    fill(journal, log, 20)
    assert journal.checkpoint_due(1)
    checkpoint(journal, 1)
    assert directory.recovery_points() == {("t", 0): 60}


def test_leader_epochs() -> None:
    storage, _, journal, log = make()
    assert log.epoch_end_offset(0) == (0, 0) and log.epoch_end_offset(1) == (-1, -1)
    for epoch in (0, 0, 2, 5):
        add(journal, log, 2, epoch=epoch)
    journal.commit()
    assert log.epoch_end_offset(0) == (0, 4)
    assert log.epoch_end_offset(1) == (0, 4)
    assert log.epoch_end_offset(4) == (2, 6)
    assert log.epoch_end_offset(5) == (5, 8)
    assert log.epoch_end_offset(6) == (-1, -1)
    with pytest.raises(ValueError):
        add(journal, log, epoch=1)
    assert storage.read_bytes("t-0/leader-epoch-checkpoint") == b"0\n3\n0 0\n2 4\n5 6\n"
    journal.close()
    log = present(reopen(storage).get("t", 0))
    assert log.epoch_end_offset(3) == (2, 6) and log.leader_epoch == 5


def test_a_later_epoch_forgets_one_without_batches() -> None:
    storage, _, journal, log = make()
    add(journal, log, 2, epoch=7)
    journal.commit()
    assert log.epoch_end_offset(0) == (0, 0) and log.epoch_end_offset(7) == (7, 2)
    journal.close()
    assert storage.read_bytes("t-0/leader-epoch-checkpoint") == b"0\n1\n7 0\n"


def test_an_epoch_file_lost_in_a_crash() -> None:
    storage, _, journal, log = make()
    add(journal, log, 2)
    journal.commit()
    journal.close(clean=False)
    storage.open("t-0/leader-epoch-checkpoint").truncate(0)
    log = present(reopen(storage).get("t", 0))
    assert log.leader_epoch == 0 and log.epoch_end_offset(0) == (0, 2)


def test_a_new_log_has_its_files() -> None:
    storage, _, journal, _ = make()
    files = {name: storage.read_bytes(f"t-0/{name}") for name in storage.list_dir("t-0")}
    assert files == {
        "00000000000000000000.index": b"",
        "00000000000000000000.log": b"",
        "00000000000000000000.timeindex": b"",
        "leader-epoch-checkpoint": b"0\n1\n0 0\n",
        "partition.metadata": b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw",
    }
    journal.close()
    log = present(reopen(storage).get("t", 0))
    assert (log.log_start_offset, log.end_offset) == (0, 0)


@pytest.mark.parametrize("suffixes", [[".index"], [".timeindex"], [".index", ".timeindex"]])
@pytest.mark.parametrize("how", ["missing", "short", "zeros", "odd"])
def test_indexes_are_made_again(suffixes: list[str], how: str) -> None:
    storage, _, journal, log = make()
    fill(journal, log)
    journal.close()
    want = {n: storage.read_bytes(f"t-0/{n}") for n in storage.list_dir("t-0")}
    for name in storage.list_dir("t-0"):
        if any(name.endswith(suffix) for suffix in suffixes):
            path = f"t-0/{name}"
            if how == "missing":
                storage.remove(path)
            elif how == "short":
                storage.open(path).truncate(12)
            elif how == "zeros":
                storage.open(path).append(bytes(240))
            else:
                storage.open(path).append(b"odd")
    directory = reopen(storage, small())
    log = present(directory.get("t", 0))
    for offset in (0, 77, 299):
        assert offset in offsets(log.read(offset, 1, 300))
    assert present(log.find_by_timestamp(1500))[1] == 150
    assert present(log.max_timestamp())[1] == 299
    for segment in log._segments:
        segment.save_indexes()
    if how != "short" or suffixes == [".index"]:
        got = {n: storage.read_bytes(f"t-0/{n}") for n in want if n.endswith(".index")}
        assert got == {n: want[n] for n in got}


def test_append_must_fit_the_end() -> None:
    _, _, journal, log = make()
    with pytest.raises(ValueError):
        journal.append(log, make_batch(5), 5, 5, 1000)


def test_metadata_of_a_crashed_creation() -> None:
    storage, _, journal, log = make()
    add(journal, log)
    journal.close()
    storage.open("t-0/partition.metadata").truncate(0)
    assert present(reopen(storage).get("t", 0)).topic_id == bytes(16)


@pytest.mark.parametrize("interval", [1, 200, 5000])
def test_offsets_some_bytes_back(interval: int) -> None:
    _, _, journal, log = make(small(index_interval_bytes=interval))
    batches = fill(journal, log)
    for offset in (0, 3, 30, 150, 300):
        for size in (0, 1, 400, 3000, 1 << 20):
            back = log.offset_before(offset, size)
            between = sum(len(batch) for batch in batches[back // 3 : offset // 3])
            assert back == 0 or between + 3 * interval + len(batches[0]) >= size
            # Where there are no entries a segment is the smallest step.
            assert between <= size + (2 * 2000 if interval == 5000 else 3 * interval + 4 * len(batches[0]))
