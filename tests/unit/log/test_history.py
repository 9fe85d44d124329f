"""From where on a log holds everything: offsets without gaps, whatever took the others."""

from __future__ import annotations

import pytest

from kcoord.log.history import HistoryStart
from kcoord.wire.record_batch import CONTROL_FLAG, DELETE_HORIZON_FLAG, NO_TIMESTAMP, TRANSACTIONAL_FLAG, BatchHeader


def header(first: int, last: int, count: int, at_ms: int, attributes: int = 0) -> BatchHeader:
    """A batch whose last record is 9 ms younger than its first."""
    return BatchHeader(0, first, 100, 0, 0, attributes, last - first, at_ms, at_ms + 9, -1, -1, -1, count)


def start_of(*batches: BatchHeader, log_start: int = 0, end: int = 0) -> tuple[int, int]:
    found = HistoryStart(log_start)
    for one in batches:
        found.batch(one)
    found.segment(end)
    return found.offset, found.time_ms


def test_a_log_without_gaps_is_whole() -> None:
    assert start_of() == (0, NO_TIMESTAMP)
    assert start_of(header(0, 4, 5, 10), header(5, 5, 1, 20), end=6) == (0, NO_TIMESTAMP)


@pytest.mark.parametrize(
    ("batches", "end", "expected"),
    [
        # Between two batches, before the first one, in one, and in the last of several.
        ((header(0, 4, 5, 10), header(7, 7, 1, 20)), 8, (7, 20)),
        ((header(3, 4, 2, 10), header(5, 5, 1, 20)), 6, (3, 10)),
        ((header(0, 4, 2, 10), header(5, 5, 1, 20)), 6, (5, 20)),
        ((header(0, 4, 2, 10), header(5, 9, 4, 20), header(10, 10, 1, 30)), 11, (10, 30)),
        # A batch without records, as the cleaner leaves for a producer's sequence.
        ((header(0, 4, 0, 10), header(5, 5, 1, 20)), 6, (5, 20)),
        # Nothing follows the gap: the newest that is left.
        ((header(0, 4, 2, 10),), 5, (5, 19)),
        ((header(0, 4, 5, 10),), 9, (9, 19)),
        ((), 9, (9, NO_TIMESTAMP)),
    ],
)
def test_history_begins_after_the_last_gap(
    batches: tuple[BatchHeader, ...], end: int, expected: tuple[int, int]
) -> None:
    assert start_of(*batches, end=end) == expected


def test_what_lies_below_the_log_s_start_is_not_there() -> None:
    batches = (header(0, 4, 2, 10), header(5, 9, 5, 20), header(10, 10, 1, 30))
    assert start_of(*batches, log_start=10, end=11) == (10, 30)
    # The first record at or after the start is not the batch's first.
    assert start_of(*batches, log_start=7, end=11) == (7, 29)


def test_a_delete_horizon_is_no_time_of_a_record() -> None:
    batches = (header(0, 4, 2, 10), header(5, 6, 2, 900_000, DELETE_HORIZON_FLAG), header(7, 7, 1, 30))
    batches[1].max_timestamp = 25
    assert start_of(*batches, end=8) == (5, 25)


def of_producer(first: int, at_ms: int, producer_id: int, control: int = 0) -> BatchHeader:
    attributes = TRANSACTIONAL_FLAG | (CONTROL_FLAG if control else 0)
    return BatchHeader(0, first, 100, 0, 0, attributes, 0, at_ms, at_ms, producer_id, 0, -1, 1)


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        # No transaction, one that ended before the cleaner's mark, one that began at it, and one without an end.
        ((header(6, 6, 1, 60), header(7, 7, 1, 70)), (6, 60)),
        (
            (of_producer(4, 40, 7), of_producer(5, 50, 7, True), of_producer(6, 60, 7), of_producer(7, 70, 7, True)),
            (6, 60),
        ),
        ((of_producer(6, 60, 7), of_producer(7, 70, 7, True)), (6, 60)),
        ((of_producer(4, 40, 7), header(6, 6, 1, 60), of_producer(7, 70, 8, True)), (6, 60)),
        # One was open at the mark: what it replaced below may be gone, though that counted until its marker.
        ((of_producer(4, 40, 7), header(6, 6, 1, 60), of_producer(7, 70, 7, True), header(8, 8, 1, 80)), (8, 80)),
        # Its next transaction says nothing of that, but another one's marker does.
        (
            (
                of_producer(4, 40, 7), of_producer(5, 50, 8), of_producer(6, 60, 7, True), of_producer(7, 70, 7),
                of_producer(8, 80, 8, True), of_producer(9, 90, 7, True), header(10, 10, 1, 100),
            ),
            (9, 90),
        ),
        # Nothing follows the marker.
        ((of_producer(4, 40, 7), of_producer(6, 60, 7, True)), (7, 60)),
    ],
)  # fmt: skip
def test_states_begin_after_the_transactions_that_were_open_at_the_mark(
    batches: tuple[BatchHeader, ...], expected: tuple[int, int]
) -> None:
    found = HistoryStart(0)
    found.cleaned_below(6)
    found.batch(header(0, 2, 2, 10))
    found.batch(header(3, batches[0].base_offset - 1, batches[0].base_offset - 3, 20))
    for one in batches:
        if one.base_offset > found.end_offset:
            found.batch(header(found.end_offset, one.base_offset - 1, one.base_offset - found.end_offset, 50))
        found.batch(one)
    assert found.offset == 3
    assert (found.state_offset, found.state_time_ms) == expected


def test_a_whole_log_has_all_states() -> None:
    found = HistoryStart(0)
    found.cleaned_below(1)
    for one in (of_producer(0, 0, 7), header(1, 1, 1, 10), of_producer(2, 20, 7, True)):
        found.batch(one)
    assert (found.state_offset, found.state_time_ms) == (0, NO_TIMESTAMP)
