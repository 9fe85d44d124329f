"""The two looks of a cleaning at each record, held against plain Python on decoded records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kcoord.log.pace import Pace
from kcoord.log.sieve import WHOLE_KEY_BYTES_MAX, NewestOffsets, Sieve, cut_out, cut_out_shifted, short_key
from kcoord.wire.primitives import Reader
from kcoord.wire.record_batch import BatchBuilder, Record, decode_records, encode_batch, parse_header, records_reader

BASE_OFFSET = 1000
EDGE = WHOLE_KEY_BYTES_MAX
Pairs = list[tuple[bytes | None, bytes | None]]

some_keys = st.sampled_from([None, b"", b"a", b"b", b"c" * EDGE, b"c" * (EDGE + 1), b"d" * (EDGE + 1)])
some_pairs = st.lists(st.tuples(some_keys, st.sampled_from([None, b"", b"1", b"2" * 200])), min_size=1, max_size=30)


def batch_of(pairs: Pairs) -> bytes:
    builder = BatchBuilder()
    for number, (key, value) in enumerate(pairs):
        builder.append(5_000 + 70 * (number % 7), key, value, [("h", b"x")])
    return builder.build(BASE_OFFSET, 0)


def reader_of(batch: bytes) -> Reader:
    return records_reader(batch, 0, parse_header(batch), 1 << 20)


def noted(pairs: Pairs, first_dirty: int) -> NewestOffsets:
    newest = NewestOffsets(1000)
    newest.note_batch(reader_of(batch_of(pairs)), BASE_OFFSET, len(pairs), first_dirty, Pace())
    return newest


def rebuilt(count: int, records: bytes, base_timestamp: int, number_of_offsets: int) -> list[Record]:
    batch = encode_batch(BASE_OFFSET, 0, 0, number_of_offsets - 1, base_timestamp, -1, -1, -1, -1, count, records)
    return decode_records(batch, 0, parse_header(batch), 1 << 20)


@given(some_pairs, some_pairs, st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_what_stays(pairs: Pairs, later: Pairs, dirty: int, beyond: int, deleted: int) -> None:
    """The map is that of a later batch with the same offsets: what counts is which offset is larger."""
    first_dirty = BASE_OFFSET + dirty
    end_offset = BASE_OFFSET + beyond
    deleted_end = min(BASE_OFFSET + deleted, end_offset)
    newest = noted(later, first_dirty)
    by_key = {key: BASE_OFFSET + i for i, (key, _) in enumerate(later) if key is not None and i >= dirty}
    assert newest.by_key == {short_key(key): offset for key, offset in by_key.items()}

    batch = batch_of(pairs)
    expected = []
    for record in decode_records(batch, 0, parse_header(batch), 1 << 20):
        if record.offset >= end_offset:
            stays = True
        elif record.key is None or by_key.get(record.key, -1) > record.offset:
            stays = False
        else:
            stays = record.value is not None or record.offset >= deleted_end
        if stays:
            expected.append(record)

    sieve = Sieve()
    sieve.take_newest(reader_of(batch), BASE_OFFSET, len(pairs), newest, end_offset, deleted_end, Pace())
    base_timestamp = int(parse_header(batch).base_timestamp)
    assert sieve.kept == len(expected)
    assert sieve.has_tombstone == any(record.value is None for record in expected)
    if expected:
        assert base_timestamp + sieve.time_delta_max == max(record.timestamp for record in expected)
    shown = [repr(record) for record in expected]
    kept = rebuilt(len(expected), cut_out(batch, sieve.ranges), base_timestamp, len(pairs))
    assert [repr(record) for record in kept] == shown
    shifted = cut_out_shifted(batch, sieve.ranges, base_timestamp - 9_000_000)
    kept = rebuilt(len(expected), shifted, 9_000_000, len(pairs))
    assert [repr(record) for record in kept] == shown


def test_a_map_is_full_after_so_many_usual_keys_or_fewer_large_ones() -> None:
    for size, count in ((4, 100), (32, 100), (64, 50), (EDGE, 34), (10_000, 34)):
        newest = NewestOffsets(100)
        while not newest.is_full:
            key = len(newest.by_key).to_bytes(4, "big").rjust(size, b"k")
            newest.note_batch(reader_of(batch_of([(key, b"1"), (key, b"2")])), BASE_OFFSET, 2, 0, Pace())
        assert len(newest.by_key) == count, size


def test_long_keys_are_told_apart_from_all_others() -> None:
    long = b"x" * (EDGE + 1)
    assert len(short_key(long)) == EDGE + 1 and short_key(long) != short_key(b"y" * (EDGE + 1))
    assert short_key(short_key(long)) != short_key(long)
    assert short_key(b"x" * EDGE) == b"x" * EDGE
