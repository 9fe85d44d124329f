"""Cleaned segments take the place of old ones, and a crash at any moment leaves the one or the other."""

from __future__ import annotations

import itertools
import random

import pytest

from kcoord.log.cleaner import CleanConfig, clean
from kcoord.log.directory import LogDirectory
from kcoord.log.exchange import demote, promote
from kcoord.log.journal import Journal
from kcoord.log.log_config import LogConfig
from kcoord.log.partition_log import PartitionLog
from kcoord.log.reader import Window, next_offset_in
from kcoord.log.recovery import recover_files
from kcoord.log.segment import segment_name
from kcoord.wire.record_batch import BatchBuilder, decode_records, parse_header
from tests.harness.faulty_storage import FaultyStorage, Snapshot
from tests.harness.log import batches_of
from tests.harness.log_start import advance_log_start
from tests.unit.log.batches import TOPIC_ID, reopen

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100, tail_bytes_max=0)
KEYS = 3
SUBSETS_UP_TO = 7


def put(journal: Journal, log: PartitionLog, number: int) -> None:
    builder = BatchBuilder()
    builder.append(1000 + number, b"k%d" % (number % KEYS), b"%d" % number + bytes(80))
    journal.append(log, builder.build(log.end_offset, 0), log.end_offset, log.end_offset, 1000 + number)


def open_log(storage: FaultyStorage) -> tuple[LogDirectory, PartitionLog]:
    directory = reopen(storage, CONFIG)
    log = directory.get("t", 0)
    assert log is not None
    return directory, log


def make(storage: FaultyStorage, records: int = 20) -> tuple[LogDirectory, Journal, PartitionLog]:
    directory = reopen(storage, CONFIG)
    journal = Journal(directory, "always")
    log = directory.create_log("t", 0, TOPIC_ID)
    for number in range(records):
        put(journal, log, number)
        journal.commit()
    return directory, journal, log


def records_of(log: PartitionLog) -> list[tuple[int, bytes, bytes]]:
    found = []
    for position, data in batches_of(log, 0, log.end_offset):
        for record in decode_records(data, position, parse_header(data, position), 1 << 20):
            assert record.key is not None and record.value is not None
            found.append((record.offset, record.key, record.value))
    return found


def bytes_by_recovery(storage: FaultyStorage) -> bytes:
    """What tools read that do not open the log (recovery.py)."""
    sizes = {name: storage.size_of(f"t-0/{name}") for name in storage.list_dir("t-0")}

    def next_offset_of(name: str) -> int:
        data = storage.read_bytes(f"t-0/{name}")
        return next_offset_in(Window(lambda size, at: data[at : at + size], len(data)), int(name[:20]))

    found = recover_files("t-0", sizes, next_offset_of, is_own=True)
    return b"".join(storage.read_bytes(f"t-0/{name}") for _, name in found.segments)


def bytes_of(storage: FaultyStorage, log: PartitionLog) -> bytes:
    return b"".join(storage.read_bytes(segment.log_path) for segment in log.segments)


def state_of(log: PartitionLog) -> dict[bytes, bytes]:
    return {key: value for _, key, value in records_of(log)}


def exchange(log: PartitionLog) -> int:
    """A whole round, as a server does it; how many segments came of it."""
    storage = log.storage
    bases = [segment.base_offset for segment in log.closed_segments]
    result = clean(storage, log.name, bases, 0, CleanConfig(segment_bytes=800, index_interval_bytes=100), 0)
    promote(storage, log.name, [group.base for group in result.groups], 100)
    replaced = [log.begin_replace(group.base, group.old_bases) for group in result.groups]
    assert state_of(log)
    storage.sync_dir(log.name)
    for found in replaced:
        assert found is not None
        found[0].rename("")
    storage.sync_dir(log.name)
    for found in replaced:
        assert found is not None
        for segment in found[1]:
            segment.remove()
    return len(result.groups)


def test_an_exchange_is_seen_by_readers_and_by_the_next_start() -> None:
    storage = FaultyStorage()
    directory, journal, log = make(storage)
    before = state_of(log)
    count = len(log.segments)
    assert exchange(log) > 1
    assert len(log.segments) < count and state_of(log) == before
    kept = records_of(log)
    assert len(kept) < 20 and kept == sorted(kept)
    for offset in range(20):
        data = log.read(offset, 1, 20)
        assert parse_header(data).last_offset >= offset
    put(journal, log, 99)
    journal.commit()
    kept = records_of(log)
    journal.close()
    directory, log = open_log(storage)
    assert records_of(log) == kept and directory.events == []
    names = storage.list_dir("t-0")
    assert not [name for name in names if name.endswith((".swap", ".cleaned", ".deleted"))]
    exchange(log)
    assert state_of(log)[b"k0"].startswith(b"99")


def test_closed_by_hand_all_of_a_log_can_be_cleaned() -> None:
    storage = FaultyStorage()
    _, journal, log = make(storage, 9)
    journal.roll(log)
    journal.commit()
    exchange(log)
    kept = records_of(log)
    assert len(kept) == KEYS
    # The active segment has no batch and yet a file: the cleaned one before it must not be taken for the last.
    for crashed in (storage.crash(), storage.crash().crash()):
        _, found = open_log(crashed)
        assert records_of(found) == kept and found.end_offset == 9


def test_segments_that_went_meanwhile_are_not_replaced() -> None:
    storage = FaultyStorage()
    directory, _, log = make(storage)
    bases = [segment.base_offset for segment in log.closed_segments]
    result = clean(storage, "t-0", bases, 0, CleanConfig(index_interval_bytes=100), 0)
    promote(storage, "t-0", [group.base for group in result.groups], 100)
    advance_log_start(directory, log, 7)
    kept = records_of(log)
    assert log.begin_replace(result.groups[0].base, result.groups[0].old_bases) is None
    demote(storage, "t-0", result.groups[0].base, 100)
    _, log = open_log(storage.crash())
    assert [record for record in records_of(log) if record[0] >= 7] == [r for r in kept if r[0] >= 7]
    assert not [name for name in storage.list_dir("t-0") if "swap" in name]


def test_an_index_that_was_renamed_too_late_is_found() -> None:
    storage = FaultyStorage()
    _, journal, log = make(storage)
    exchange(log)
    journal.close()
    path = f"t-0/{segment_name(0)}.index"
    index = storage.read_bytes(path)
    storage.rename(path, path + ".swap")
    storage.open(f"t-0/{segment_name(4711)}.timeindex.swap").close()
    open_log(storage)
    assert storage.read_bytes(path) == index
    assert not [name for name in storage.list_dir("t-0") if name.endswith(".swap")]


class Recorder:
    """What the disk may hold before each operation."""

    def __init__(self, storage: FaultyStorage) -> None:
        self.storage = storage
        self.moments: list[tuple[str, Snapshot]] = []

    def __call__(self, *what: object) -> None:
        self.moments.append((str(what), self.storage.snapshot()))


def crashes(snapshot: Snapshot, rng: random.Random) -> list[FaultyStorage]:
    """All that a crash may leave of few operations, a sample where there are many."""
    pieces = snapshot.pieces()
    if len(pieces) <= SUBSETS_UP_TO:
        sizes = range(len(pieces) + 1)
        return [snapshot.crash(kept) for size in sizes for kept in itertools.combinations(pieces, size)]
    chances = [rng.random() for _ in range(25)]
    sample = [[piece for piece in pieces if rng.random() < chance] for chance in chances]
    return [snapshot.crash(kept) for kept in [[], pieces, *sample]]


@pytest.mark.slow
@pytest.mark.parametrize("records", [8, 12])
def test_every_crash_of_an_exchange(records: int) -> None:
    storage = FaultyStorage()
    _, _, log = make(storage, records)
    before = state_of(log)
    recorder = Recorder(storage)
    storage.on_operation = recorder
    exchange(log)
    storage.on_operation = None
    recorder(("end",))
    rng = random.Random(records)
    states = 0
    for what, snapshot in recorder.moments:
        for left in crashes(snapshot, rng):
            states += 1
            shown = bytes_by_recovery(left)
            _, found = open_log(left)
            assert shown == bytes_of(left, found), what
            assert state_of(found) == before and found.end_offset == records, what
            names = left.list_dir("t-0")
            assert not [name for name in names if name.endswith((".swap", ".cleaned", ".deleted"))], what
            # What recovery did must not be undone by a second crash.
            _, again = open_log(left.crash_at_random(rng))
            assert state_of(again) == before, what
    assert states > 500


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_crash_while_a_crash_is_settled(seed: int) -> None:
    storage = FaultyStorage()
    _, _, log = make(storage, 14)
    before = state_of(log)
    recorder = Recorder(storage)
    storage.on_operation = recorder
    exchange(log)
    storage.on_operation = None
    rng = random.Random(seed)
    for what, snapshot in recorder.moments:
        left = snapshot.crash([piece for piece in snapshot.pieces() if rng.random() < 0.5])
        inner = Recorder(left)
        left.on_operation = inner
        open_log(left)
        left.on_operation = None
        for step, again in inner.moments:
            settled = again.crash([piece for piece in again.pieces() if rng.random() < 0.5])
            assert state_of(open_log(settled)[1]) == before, (what, step)
