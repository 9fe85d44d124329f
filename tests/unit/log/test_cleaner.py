"""Compaction keeps what a reader may rely on: the named bugs of other cleaners, and properties over any log.

The model is independent of the cleaner: a log is decoded record by record, transactions are resolved by their
markers, and the state is the newest committed value of each key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord.log.cleaner import CleanConfig, CleanResult, clean
from kcoord.log.errors import LogDamaged
from kcoord.log.segment import Segment, segment_name
from kcoord.log.storage import MemoryStorage
from kcoord.log.transaction_index import ABORT, COMMIT
from kcoord.wire.record_batch import (
    LOG_APPEND_TIME_FLAG,
    BatchBuilder,
    BatchHeader,
    Record,
    check_crc,
    decode_records,
    parse_header,
    with_log_append_time,
)
from tests.harness.record_batches import parse_batches

DAY_MS = 24 * 3600 * 1000
START_MS = 1_700_000_000_000
Pairs = list[tuple[bytes | None, bytes | None]]


class Log:
    """Segments of one log in memory, written batch by batch and cleaned."""

    def __init__(self, delete_retention_ms: int = DAY_MS, segment_bytes: int = 1 << 20, keys_max: int = 1000) -> None:
        self.storage = MemoryStorage()
        self.storage.make_dir("t-0")
        self.config = CleanConfig(delete_retention_ms, segment_bytes, 100, keys_max, 1 << 24)
        self.bases = [0]
        self.end = 0
        self.first_dirty = 0
        self.sequences: dict[int, int] = {}

    # --- writing

    def _write(self, batch: bytes) -> None:
        file = self.storage.open(f"t-0/{segment_name(self.bases[-1])}.log")
        file.append(batch)
        self.end = parse_header(batch).last_offset + 1

    def put(
        self, pairs: Pairs, pid: int = -1, epoch: int = 0, txn: bool = False, codec: int = 0,
        timestamp: int = START_MS, append_time: bool = False,
    ) -> None:  # fmt: skip
        builder = BatchBuilder()
        for i, (key, value) in enumerate(pairs):
            builder.append(timestamp + i, key, value, [("h", b"x")])
        sequence = -1
        if pid >= 0:
            sequence = self.sequences.get(pid, 0)
            self.sequences[pid] = sequence + len(pairs)
        batch = builder.build(self.end, 0, pid, epoch if pid >= 0 else -1, sequence, txn, False, codec)
        self._write(with_log_append_time(batch, timestamp + 77) if append_time else batch)

    def mark(self, kind: int, pid: int, epoch: int = 0) -> None:
        builder = BatchBuilder()
        builder.append(START_MS, b"\x00\x00" + kind.to_bytes(2, "big"), b"\x00\x00\x00\x00\x00\x00")
        self._write(builder.build(self.end, 0, pid, epoch, -1, True, True))

    def roll(self) -> None:
        if self.end > self.bases[-1]:
            self.bases.append(self.end)

    # --- cleaning

    def clean(
        self, now_ms: int = START_MS, upto: int | None = None, producers: frozenset[int] | None = None
    ) -> CleanResult:
        """Clean all segments but the last, or those below `upto`, and exchange the files."""
        bases = self.bases[:-1] if upto is None else [base for base in self.bases[:-1] if base < upto]
        result = clean(self.storage, "t-0", bases, self.first_dirty, self.config, now_ms, producers)
        self.first_dirty = result.end
        for group in result.groups:
            for base in group.old_bases:
                Segment(self.storage, "t-0", base, 100).remove()
            Segment(self.storage, "t-0", group.base, 100, ".cleaned").existing().rename("")
            self.bases = [b for b in self.bases if b not in group.old_bases[1:]]
        assert not [name for name in self.storage.list_dir("t-0") if name.endswith(".cleaned")]
        return result

    # --- reading

    def batches(self) -> list[tuple[BatchHeader, list[Record]]]:
        found = []
        for base in self.bases:
            path = f"t-0/{segment_name(base)}.log"
            data = self.storage.read_bytes(path) if self.storage.exists(path) else b""
            for header in parse_batches(data):
                assert check_crc(data, header.pos, header)
                found.append((header, decode_records(data, header.pos, header, 1 << 24)))
        offsets = [header.base_offset for header, _ in found]
        assert offsets == sorted(set(offsets))
        return found

    def records(self) -> dict[int, tuple[bytes | None, bytes | None]]:
        """Data records by offset."""
        return {r.offset: (r.key, r.value) for h, rs in self.batches() if not h.is_control for r in rs}

    def values(self) -> list[bytes | None]:
        return [value for _, value in self.records().values()]

    def markers(self) -> list[tuple[int, int]]:
        """(producer id, offset) of the markers that still say something."""
        return [(h.producer_id, h.base_offset) for h, rs in self.batches() if h.is_control and rs]

    def state(self, from_offset: int = 0, state: dict[bytes, bytes] | None = None) -> dict[bytes, bytes]:
        """What a read_committed reader knows that began at `from_offset` with `state`."""
        known = dict(state or {})
        events: list[tuple[int, bytes, bytes | None]] = []
        waiting: dict[int, list[tuple[int, bytes, bytes | None]]] = {}
        for header, records in self.batches():
            if header.is_control:
                for record in records:
                    assert record.key is not None
                    mine = waiting.pop(header.producer_id, [])
                    if record.key[3] == COMMIT:
                        events += mine
                continue
            for record in records:
                assert record.key is not None
                event = (record.offset, record.key, record.value)
                if header.is_transactional:
                    waiting.setdefault(header.producer_id, []).append(event)
                else:
                    events.append(event)
        for offset, key, value in sorted(events):
            if offset < from_offset:
                continue
            if value is None:
                known.pop(key, None)
            else:
                known[key] = value
        return known

    def producers(self) -> dict[int, tuple[int, int]]:
        """Epoch and last sequence of every producer, as loading the log finds them."""
        found: dict[int, tuple[int, int]] = {}
        for header, _ in self.batches():
            if header.producer_id >= 0:
                old = found.get(header.producer_id)
                last = header.last_sequence
                if header.is_control:
                    last = old[1] if old is not None and old[0] == header.producer_epoch else -1
                found[header.producer_id] = (header.producer_epoch, last)
        return found


def test_only_the_newest_record_of_a_key_stays_at_its_offset() -> None:
    log = Log()
    log.put([(b"a", b"1"), (b"b", b"1"), (b"a", b"2")])
    log.put([(b"a", b"3"), (b"c", b"1")])
    log.roll()
    log.put([(b"b", b"2")])
    result = log.clean()
    # What the active segment says about a key does not count yet.
    assert log.records() == {1: (b"b", b"1"), 3: (b"a", b"3"), 4: (b"c", b"1"), 5: (b"b", b"2")}
    first = log.batches()[0][0]
    assert (first.base_offset, first.last_offset, first.max_timestamp) == (0, 2, START_MS + 1)
    assert (result.end, result.records_before, result.records_after) == (5, 5, 3)
    assert log.clean().groups == []


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("append_time", [False, True])
def test_records_keep_their_bytes_codec_and_times(codec: int, append_time: bool) -> None:
    log = Log()
    log.put([(b"a", b"1"), (b"b", None), (b"c", b"3" * 500)], codec=codec, append_time=append_time)
    log.put([(b"a", b"2")])
    log.roll()
    before = log.batches()[0]
    log.clean()
    header, records = log.batches()[0]
    assert header.codec == codec and bool(header.attributes & LOG_APPEND_TIME_FLAG) == append_time
    assert [repr(record) for record in records] == [repr(record) for record in before[1][1:]]
    assert header.max_timestamp == before[0].max_timestamp


def test_a_tombstone_stays_for_its_time_from_the_first_cleaning_on() -> None:
    """KAFKA-4529: a reader that lags behind the cleaner must still learn of deletions."""
    log = Log()
    log.put([(b"a", b"1")])
    log.put([(b"a", None), (b"b", b"1")])
    log.roll()
    late = START_MS + 30 * DAY_MS
    log.clean(late)
    assert log.records() == {1: (b"a", None), 2: (b"b", b"1")}
    assert log.batches()[-1][0].base_timestamp == late + DAY_MS
    log.put([(b"x", b"1")])
    log.roll()
    log.clean(late + DAY_MS - 1)
    assert (b"a", None) in log.records().values()
    log.clean(late + DAY_MS)
    assert log.records() == {2: (b"b", b"1"), 3: (b"x", b"1")}


def test_tombstones_beyond_what_was_looked_at_keep_their_time() -> None:
    log = Log(keys_max=1)
    log.put([(b"a", b"1")])
    log.put([(b"b", b"1")])
    log.put([(b"a", None)])
    log.roll()
    assert log.clean().end == 1
    assert log.records()[2] == (b"a", None) and log.batches()[2][0].base_timestamp == START_MS
    while log.first_dirty < 3:
        log.clean(START_MS + 5 * DAY_MS)
    assert log.records() == {1: (b"b", b"1"), 2: (b"a", None)}


def test_markers_are_not_compared_with_keys() -> None:
    """KAFKA-14055: a user's key that looks like a marker's must not remove the marker."""
    log = Log()
    commit_key = b"\x00\x00\x00\x01"
    abort_key = b"\x00\x00\x00\x00"
    log.put([(b"a", b"1")], 7, txn=True)
    log.mark(COMMIT, 7)
    log.put([(b"b", b"1")], 8, txn=True)
    log.mark(ABORT, 8)
    log.put([(commit_key, b"x"), (abort_key, b"x")])
    log.roll()
    log.clean()
    assert log.markers() == [(7, 1), (8, 3)]
    assert log.state() == {b"a": b"1", commit_key: b"x", abort_key: b"x"}


def test_transactions_are_followed_through_all_segments() -> None:
    """KAFKA-8351: data in one group of segments, its marker in another."""
    for kind in (COMMIT, ABORT):
        log = Log(segment_bytes=1)
        for i in range(5):
            log.put([(b"k%d" % i, b"1")], 7, txn=True)
            log.roll()
        log.mark(kind, 7)
        log.roll()
        log.put([(b"z", b"1")])
        log.roll()
        before = log.state()
        log.clean()
        assert log.markers() == [(7, 5)] and log.state() == before
        assert len(log.values()) == (6 if kind == COMMIT else 1)


def test_an_abort_marker_goes_only_after_its_data_and_its_time() -> None:
    log = Log()
    log.put([(b"a", b"1")], 7, txn=True)
    log.put([(b"b", b"1")], 7, txn=True)
    log.mark(ABORT, 7)
    log.put([(b"c", b"1")], 7, txn=True)
    log.mark(COMMIT, 7)
    log.roll()
    log.clean()
    # The first cleaning takes the data; a reader that is between them needs the marker.
    assert log.values() == [b"1"] and log.markers() == [(7, 2), (7, 4)]
    log.clean(START_MS + 1)
    assert log.markers() == [(7, 2), (7, 4)]
    log.clean(START_MS + 1 + DAY_MS)
    assert log.markers() == [(7, 4)]
    assert log.state() == {b"c": b"1"}


def test_an_open_transaction_delays_everything_after_it() -> None:
    log = Log()
    log.put([(b"a", b"1")])
    log.put([(b"a", b"2")])
    log.put([(b"t", b"1")], 7, txn=True)
    log.put([(b"a", b"3")])
    log.put([(b"a", b"4")])
    log.roll()
    assert log.clean().end == 2
    assert log.values() == [b"2", b"1", b"3", b"4"]
    log.mark(COMMIT, 7)
    log.roll()
    log.clean()
    assert log.values() == [b"1", b"4"] and log.state() == {b"t": b"1", b"a": b"4"}


def test_keys_of_aborted_records_do_not_count() -> None:
    log = Log()
    log.put([(b"a", b"good")])
    log.put([(b"a", b"bad")], 7, txn=True)
    log.mark(ABORT, 7)
    log.roll()
    log.clean()
    assert log.values() == [b"good"]


def test_the_last_batch_of_a_producer_stays_as_an_empty_one() -> None:
    log = Log()
    log.put([(b"a", b"1"), (b"b", b"1")], 7)
    log.put([(b"a", b"2"), (b"b", b"2")], 7)
    log.put([(b"a", b"3"), (b"b", b"3")])
    log.roll()
    log.clean()
    assert log.producers() == {7: (0, 3)} and [h.count for h, _ in log.batches()] == [0, 2]
    log.put([(b"x", b"1")])
    log.roll()
    log.clean(producers=frozenset())
    assert log.producers() == {}


def test_producers_of_markers_alone_keep_their_epoch() -> None:
    """KAFKA-9144: an epoch that went back would let a zombie write, and leave its transaction open for ever."""
    log = Log()
    log.put([(b"a", b"1")], 7, 3, txn=True)
    log.mark(ABORT, 7, 4)
    log.roll()
    log.put([(b"x", b"1")])
    log.roll()
    for i in range(4):
        log.clean(START_MS + 2 * DAY_MS * i)
    assert log.producers()[7][0] == 4 and log.markers() == []
    assert log.state() == {b"x": b"1"}


def test_small_segments_become_one() -> None:
    log = Log(segment_bytes=700)
    for i in range(20):
        log.put([(b"k%d" % i, b"v" * 50)])
        log.roll()
    result = log.clean()
    assert 1 < len(log.bases) < 10 and len(log.values()) == 20
    assert all(len(log.storage.read_bytes(f"t-0/{segment_name(base)}.log")) <= 700 for base in log.bases[:-1])
    assert [base for group in result.groups for base in group.old_bases] == list(range(20))


def test_a_group_ends_where_its_segments_did() -> None:
    log = Log(segment_bytes=1)
    for _ in range(3):
        log.put([(b"a", b"1"), (b"a", b"2")])
        log.roll()
    log.clean()
    assert [(h.base_offset, h.last_offset, h.count) for h, _ in log.batches()] == [(0, 1, 0), (2, 3, 0), (4, 5, 1)]


def damage_first_segment(log: Log) -> bytes:
    """Change the last byte of the first segment. Returns its content."""
    file = log.storage.open(f"t-0/{segment_name(0)}.log")
    damaged = file.read_at(0, file.size)[:-1] + b"?"
    file.truncate(0)
    file.append(damaged)
    return damaged


def test_damage_is_not_copied() -> None:
    log = Log()
    log.put([(b"a", b"1")])
    log.put([(b"a", b"2")])
    log.roll()
    damaged = damage_first_segment(log)
    with pytest.raises(LogDamaged):
        log.clean()
    assert log.storage.read_bytes(f"t-0/{segment_name(0)}.log") == damaged


def test_damage_in_the_part_that_was_cleaned_before_is_not_copied() -> None:
    log = Log()
    log.put([(b"a", b"1")])
    log.roll()
    log.clean()
    log.put([(b"b", b"2")])
    log.roll()
    damage_first_segment(log)
    with pytest.raises(LogDamaged):
        log.clean()


def test_long_keys_differ() -> None:
    log = Log()
    keys = [bytes([i]) * 40 for i in range(3)] + [b"\x00" * 33, b"\x00" * 32]
    log.put([(key, b"1") for key in keys])
    log.put([(key, b"2") for key in keys[:2]])
    log.roll()
    log.clean()
    assert log.values() == [b"1", b"1", b"1", b"2", b"2"]


# --- any log

KEYS = st.sampled_from([b"a", b"b", b"c", b"\x00\x00\x00\x01", b"\x00\x00\x00\x00"])
PAIRS = st.lists(st.tuples(KEYS, st.none() | st.sampled_from([b"1", b"2", b"3"])), min_size=1, max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), PAIRS, st.sampled_from([-1, 1, 2])),
        st.tuples(st.just("txn"), PAIRS, st.sampled_from([3, 4])),
        st.tuples(st.just("end"), st.sampled_from([COMMIT, ABORT]), st.sampled_from([3, 4])),
        st.tuples(st.just("roll"), st.none(), st.none()),
        st.tuples(st.just("clean"), st.integers(0, 3), st.booleans()),
    ),
    max_size=40,
)


def play(log: Log, steps: Iterable[tuple[str, Any, Any]], does_clean: bool) -> None:
    """Do the steps. Transactions change epoch with every marker, as newer producers do."""
    epochs: dict[int, int] = {}
    is_open: set[int] = set()
    now_ms = START_MS
    for kind, first, second in steps:
        if kind == "put":
            log.put(first, second)
        elif kind == "txn":
            is_open.add(second)
            log.put(first, second, epochs.get(second, 0), txn=True)
        elif kind == "end" and second in is_open:
            is_open.discard(second)
            epochs[second] = epochs.get(second, 0) + 1
            log.mark(first, second, epochs[second])
        elif kind == "roll":
            log.roll()
        elif kind == "clean":
            now_ms += first * DAY_MS // 2
            if does_clean and len(log.bases) > 1:
                log.clean(now_ms, max(log.end // 2, 1) if second else None)


@settings(max_examples=300, deadline=None)
@given(STEPS, st.sampled_from([1, 300, 1 << 20]), st.sampled_from([1, 3, 1000]))
def test_cleaning_changes_no_state(steps: list[tuple[str, object, object]], segment_bytes: int, keys_max: int) -> None:
    plain = Log()
    cleaned = Log(segment_bytes=segment_bytes, keys_max=keys_max)
    play(plain, steps, False)
    play(cleaned, [*steps], True)
    assert cleaned.end == plain.end
    assert cleaned.state() == plain.state()
    assert cleaned.producers() == plain.producers()
    # Nothing is new and nothing has moved.
    assert cleaned.records().items() <= plain.records().items()


@settings(max_examples=200, deadline=None)
@given(STEPS, st.sampled_from([1, 300, 1 << 20]), st.sampled_from([1, 3, 1000]))
def test_the_files_do_not_depend_on_what_is_read_twice(
    steps: list[tuple[str, object, object]], segment_bytes: int, keys_max: int
) -> None:
    logs = [Log(segment_bytes=segment_bytes, keys_max=keys_max) for _ in range(2)]
    logs[1].config.survivors_max = -1
    for log in logs:
        play(log, steps, True)
        log.roll()
        if len(log.bases) > 1:
            log.clean(START_MS + 9 * DAY_MS)
    files = [
        {name: log.storage.read_bytes(f"t-0/{name}") for name in log.storage.list_dir("t-0") if name.endswith(".log")}
        for log in logs
    ]
    assert files[0] == files[1]


@settings(max_examples=200, deadline=None)
@given(STEPS, st.integers(0, 100))
def test_a_reader_in_the_middle_ends_with_the_same_state(steps: list[tuple[str, object, object]], at: int) -> None:
    """Who is no further behind than delete.retention.ms may begin anywhere and misses nothing."""
    plain = Log()
    cleaned = Log(delete_retention_ms=1000 * DAY_MS, segment_bytes=300)
    play(plain, steps, False)
    play(cleaned, steps, True)
    known: dict[bytes, bytes] = {}
    for header, records in plain.batches():
        if not header.is_control and not header.is_transactional:
            for record in records:
                if record.offset < at and record.key is not None:
                    if record.value is None:
                        known.pop(record.key, None)
                    else:
                        known[record.key] = record.value
    assert cleaned.state(at, known) == plain.state(at, known)


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_every_step_of_an_exchange_has_the_same_state(steps: list[tuple[str, object, object]]) -> None:
    """Groups are exchanged one by one; a crash may leave any number of the first ones done."""
    log = Log(segment_bytes=1)
    play(log, steps, False)
    log.roll()
    if len(log.bases) < 2:
        return
    before, producers = log.state(), log.producers()
    result = clean(log.storage, "t-0", log.bases[:-1], 0, log.config, START_MS + 9 * DAY_MS)
    for group in result.groups:
        for base in group.old_bases:
            Segment(log.storage, "t-0", base, 100).remove()
        Segment(log.storage, "t-0", group.base, 100, ".cleaned").existing().rename("")
        assert log.state() == before and log.producers() == producers
