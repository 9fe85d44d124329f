"""The index of aborted transactions: its format, and the search in it, against a plain loop."""

from __future__ import annotations

import random

import pytest

from kcoord.log.errors import InvalidIndex
from kcoord.log.transaction_index import (
    BLOCK,
    ENTRY,
    AbortedTransaction,
    TransactionIndex,
    TransactionSurvey,
    decode_index,
    marker_type,
)
from kcoord.wire.record_batch import BatchBuilder, empty_batch, parse_header


def random_index(rng: random.Random, count: int) -> TransactionIndex:
    """Transactions that overlap, below some that stay open for long."""
    index = TransactionIndex()
    offset = 0
    opened: dict[int, int] = {}
    while len(index) < count:
        producer_id = rng.randint(0, 5) if rng.random() < 0.99 else 99
        first = opened.pop(producer_id, -1)
        if first < 0:
            opened[producer_id] = offset
        elif producer_id == 99 or rng.random() < 0.8:
            index.add(producer_id, first, offset, min(opened.values(), default=offset + 1))
        offset += rng.randint(1, 3)
    return index


def search(index: TransactionIndex, first: int, end: int) -> tuple[list[int], bool]:
    """As a broker searches: one entry after the other."""
    found = []
    for i in range(len(index)):
        if index.last_offsets[i] >= first and index.first_offsets[i] < end:
            found.append(index.last_offsets[i])
        if index.stable_offsets[i] >= end and index.last_offsets[i] >= first:
            return found, True
    return found, False


@pytest.mark.parametrize("seed", range(10))
def test_a_search_finds_what_a_plain_loop_finds(seed: int) -> None:
    rng = random.Random(seed)
    index = random_index(rng, rng.choice([0, 1, 20, BLOCK, 3 * BLOCK + 7]))
    beyond = index.last_offsets[-1] + 3 if len(index) else 3
    for _ in range(300):
        first = rng.randint(0, beyond)
        end = rng.randint(first, min(beyond, first + rng.choice([1, 20, beyond])))
        found: list[AbortedTransaction] = []
        is_complete = index.collect(first, end, found)
        assert ([one.last_offset for one in found], is_complete) == search(index, first, end)


def test_the_file_has_kafkas_format() -> None:
    index = TransactionIndex()
    index.add(7, 1, 5, 6)
    index.add(8, 2, 9, 4)
    data = index.encode()
    assert data == b"".join(b"\0\0" + ENTRY.pack(0, *entry)[2:] for entry in ((7, 1, 5, 6), (8, 2, 9, 4)))
    assert len(data) == 68
    assert decode_index(data, 0).encode() == data
    assert len(decode_index(b"", 0)) == 0


@pytest.mark.parametrize(
    "data",
    [
        bytes(33),
        ENTRY.pack(1, 7, 1, 5, 6),
        ENTRY.pack(0, 7, 6, 5, 6),
        ENTRY.pack(0, 7, 1, 5, 6) * 2,
        ENTRY.pack(0, 7, 1, 2, 3),
    ],
)
def test_an_invalid_file(data: bytes) -> None:
    with pytest.raises(InvalidIndex):
        decode_index(data, 3)


def control(base: int, producer_id: int, key: bytes, transactional: bool = True) -> bytes:
    builder = BatchBuilder()
    builder.append(1, key, b"")
    return builder.build(base, 0, producer_id, 0, transactional=transactional, control=True)


def data_batch(base: int, producer_id: int) -> bytes:
    builder = BatchBuilder()
    builder.append(1, b"k", b"v")
    return builder.build(base, 0, producer_id, 0, 0, transactional=True)


def test_the_type_of_a_marker() -> None:
    for key, wanted in ((b"\0\0\0\0", 0), (b"\0\0\0\1", 1), (b"\0\0\0\2", 2), (b"\0", -1)):
        data = control(0, 7, key)
        assert marker_type(data, parse_header(data)) == wanted
    emptied = empty_batch(parse_header(control(0, 7, b"\0\0\0\1")))
    assert marker_type(emptied, parse_header(emptied)) == -1
    broken = control(0, 7, b"\0\0\0\1")[:-1] + b"\5"
    assert marker_type(broken, parse_header(broken)) == -1


def test_a_survey_knows_what_was_open_before() -> None:
    survey = TransactionSurvey()
    batches = [
        data_batch(10, 1),
        data_batch(11, 2),
        data_batch(12, 1),
        control(13, 1, b"\0\0\0\0"),
        control(14, 3, b"\0\0\0\0"),
        control(15, 2, b"\0\0\0\1"),
        control(16, 4, b"\0\0\0\0"),
        control(17, -1, b"\0\0\0\0", transactional=False),
    ]
    for data in batches:
        survey.add(parse_header(data), data)
    assert survey.has_aborts
    before = {3: 2, 1: 5}
    found = [survey.build(before).entry(i) for i in range(2)]
    assert [(one.producer_id, one.first_offset, one.last_offset, one.stable_offset) for one in found] == [
        (1, 5, 13, 2),
        (3, 2, 14, 11),
    ]
    assert before == {3: 2, 1: 5}
    assert len(survey.build({})) == 1
