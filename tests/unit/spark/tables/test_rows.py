"""What decoders have in common: batches of bounded size, times that do not fit, records that are too large."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from kcoord.log.other_codecs import ALL_METADATA, ALL_PAIRS
from kcoord.log.serde import encode_metadata_record
from kcoord.protocol.records.consumer_group_member_metadata import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from kcoord.protocol.records.transaction_log import PartitionsSchema, TransactionLogKey, TransactionLogValue
from kcoord.spark.reader.slices import TIME_MS_MAX
from kcoord.spark.tables import rows as tables
from kcoord.spark.tables.checks import check_record
from kcoord.spark.tables.group_metadata import GroupMetadataTable
from kcoord.spark.tables.members import MembersTable
from kcoord.spark.tables.records import RecordsTable
from kcoord.spark.tables.registry import REGISTERED
from kcoord.spark.tables.rows import (
    ROW_BYTES_MAX,
    ROWS_MAX,
    DecodedTable,
    RecordPlace,
    micros,
    size_of,
)
from kcoord.spark.tables.transactions import TransactionsTable
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError
from tests.unit.spark.table_rig import (
    METADATA,
    OFFSETS,
    ORDERS,
    TRANSACTIONS,
    add,
    add_bytes,
    bytes_of,
    rows,
    stored,
)

DECODERS = [table for table in REGISTERED if issubclass(table, DecodedTable)]


def group(count: int) -> GroupMetadataValue:
    members = [MemberMetadata(f"m{n}") for n in range(count)]
    return GroupMetadataValue("consumer", 1, "range", None, 0, members)


@pytest.mark.parametrize("decoder_class", DECODERS)
def test_without_rows(decoder_class: type[DecodedTable]) -> None:
    decoder = decoder_class()
    assert (len(decoder), decoder.is_full) == (0, False)
    batch = decoder.take()
    assert (batch.num_rows, batch.schema) == (0, decoder.schema)


def test_rows_are_taken_once_and_in_order() -> None:
    decoder = MembersTable()
    key, value = ConsumerGroupMemberMetadataKey("g", "m"), ConsumerGroupMemberMetadataValue()
    add(decoder, key, value)
    add(decoder, key, None)
    assert len(decoder) == 2
    assert [row["is_tombstone"] for row in rows(decoder)] == [False, True]
    add(decoder, key, None)
    assert [row["is_tombstone"] for row in rows(decoder)] == [True]


def test_a_batch_is_full_by_rows() -> None:
    decoder = MembersTable()
    record, header = stored(*bytes_of(GroupMetadataKey("g"), group(ROWS_MAX // 2)))
    decoder.add(OFFSETS, record, header)
    assert not decoder.is_full
    decoder.add(OFFSETS, record, header)
    assert decoder.is_full
    assert decoder.take().num_rows == ROWS_MAX
    assert (len(decoder), decoder.is_full) == (0, False)


def test_one_record_with_more_members_than_a_batch_has_rows() -> None:
    decoder = MembersTable()
    add(decoder, GroupMetadataKey("g"), group(2 * ROWS_MAX + 3))
    sizes = []
    while len(decoder):
        assert decoder.is_full == (len(decoder) >= ROWS_MAX)
        sizes.append(decoder.take().num_rows)
    assert sizes == [ROWS_MAX, ROWS_MAX, 3]


def test_one_record_whose_rows_take_far_more_than_itself() -> None:
    """The long id of its group stands in every row; nothing else keeps memory in bounds."""
    decoder = MembersTable()
    add(decoder, GroupMetadataKey("g" * 32_000), group(5_000))
    seen: list[str] = []
    while len(decoder):
        batch = decoder.take()
        assert batch.nbytes < ROW_BYTES_MAX * 1.1
        seen += batch.column("member_id").to_pylist()
    assert seen == [f"m{n}" for n in range(5_000)]


def test_a_batch_is_full_by_bytes() -> None:
    decoder = RecordsTable()
    record, header = stored(b"k", bytes(ROW_BYTES_MAX // 4))
    for count in range(1, 5):
        decoder.add(ORDERS, record, header)
        assert decoder.is_full == (count == 4)
    # The fourth would be too much together with the others.
    assert [decoder.take().num_rows, decoder.take().num_rows, len(decoder)] == [3, 1, 0]


def test_a_row_that_is_larger_than_a_batch_goes_alone() -> None:
    decoder = RecordsTable()
    large, header = stored(b"k", bytes(ROW_BYTES_MAX + 1))
    small, _ = stored(b"k", b"v")
    for record in (small, large, small):
        decoder.add(ORDERS, record, header)
    assert [decoder.take().num_rows for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("decoder_class", DECODERS)
def test_records_that_no_coordinator_writes(decoder_class: type[DecodedTable], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RECORD_BYTES_MAX", 100)
    decoder = decoder_class()
    place = TRANSACTIONS if decoder_class is TransactionsTable else OFFSETS
    with pytest.raises(DecodeError, match="a record of 105 bytes, more than 100"):
        add_bytes(decoder, b"\x00\x02\x00\x01g", bytes(100), place)
    assert len(decoder) == 0


def test_metadata_records_that_no_controller_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RECORD_BYTES_MAX", 100)
    with pytest.raises(DecodeError, match="a record of 101 bytes"):
        add_bytes(RecordsTable(), None, bytes(101), METADATA)


@pytest.mark.parametrize(
    ("timestamp_ms", "expected"),
    [
        (-1, None),
        (-(1 << 63), None),
        (0, 0),
        (1, 1000),
        (TIME_MS_MAX, TIME_MS_MAX * 1000),
        (TIME_MS_MAX + 1, None),
        ((1 << 63) - 1, None),
    ],
)
def test_times(timestamp_ms: int, expected: int | None) -> None:
    assert micros(timestamp_ms) == expected


@pytest.mark.parametrize("timestamp_ms", [-1, (1 << 63) - 1])
def test_records_without_a_time_that_fits(timestamp_ms: int) -> None:
    decoder = GroupMetadataTable()
    value = GroupMetadataValue("consumer", 1, None, None, timestamp_ms)
    add(decoder, GroupMetadataKey("g"), value, timestamp=timestamp_ms)
    (row,) = rows(decoder)
    assert (row["log_timestamp"], row["state_timestamp"]) == (None, None)


@pytest.mark.parametrize("decoder_class", DECODERS)
@pytest.mark.parametrize("seed", range(3))
def test_damaged_records_are_refused_or_become_rows(decoder_class: type[DecodedTable], seed: int) -> None:
    """Nothing but DecodeError, no row of a record that is refused, and Arrow takes every other."""
    chance = random.Random(seed)
    places: tuple[RecordPlace, ...] = (OFFSETS, TRANSACTIONS, METADATA)
    decoder = decoder_class()
    whole = [bytes_of(GroupMetadataKey("g"), group(3))]
    whole += [bytes_of(_key_of(key_class), _value_of(key_class)) for key_class, _ in ALL_PAIRS]
    refused = 0
    for _ in range(1_500):
        key, value = chance.choice(whole)
        assert value is not None
        damaged = _damage(chance, value)
        damaged_key = _damage(chance, key) if chance.random() < 0.3 else key
        before = len(decoder)
        try:
            record, header = stored(damaged_key, damaged)
            decoder.add(chance.choice(places), record, header)
        except DecodeError as error:
            refused += 1
            assert str(error)
            assert len(decoder) == before
    assert refused > 20
    rows(decoder)


@pytest.mark.parametrize("seed", range(3))
def test_the_check_agrees_with_the_tables(seed: int) -> None:
    chance = random.Random(seed)
    transaction = TransactionLogValue(1, transaction_status=1, transaction_partitions=[PartitionsSchema("t", [1])])
    whole: dict[RecordPlace, list[tuple[bytes, bytes | None]]] = {
        OFFSETS: [
            bytes_of(GroupMetadataKey("g"), group(3)),
            (b"\x00\x63", b"\x00\x07"),
            *(bytes_of(_key_of(key_class), _value_of(key_class)) for key_class, _ in ALL_PAIRS),
        ],
        TRANSACTIONS: [bytes_of(TransactionLogKey("g"), transaction), (b"\x00\x63", b"\x00\x07")],
        METADATA: [(b"", encode_metadata_record(record_class())) for record_class, _ in ALL_METADATA],
        ORDERS: [(b"\x00\x01", b"\x00\x01")],
    }
    counts = {True: 0, False: 0}
    for _ in range(3_000):
        place = chance.choice(list(whole))
        key, value = chance.choice(whole[place])
        assert value is not None
        key = _damage(chance, key) if key and chance.random() < 0.3 else key
        value_or_none = None if chance.random() < 0.05 else _damage(chance, value)
        record, header = stored(key, value_or_none, control=chance.random() < 0.05)
        decoders = [decoder_class() for decoder_class in DECODERS if _is_for(decoder_class, place)]
        is_shown = not any(_is_refused(decoder.add, place, record, header) for decoder in decoders)
        assert is_shown != _is_refused(check_record, place.log_topic, record, header), (place, record)
        counts[is_shown] += 1
    assert min(counts.values()) > 200


def _is_for(decoder_class: type[DecodedTable], place: RecordPlace) -> bool:
    """Whether the table is made from the place's topic."""
    return place.log_topic in decoder_class.TOPICS or decoder_class is RecordsTable


def _is_refused(take: Callable[..., None], *arguments: object) -> bool:
    try:
        take(*arguments)
    except DecodeError:
        return True
    return False


def _key_of(key_class: Any) -> Message:
    """Every key begins with a group id."""
    key: Message = key_class("g")
    return key


def _value_of(key_class: type) -> Message:
    module = __import__(key_class.__module__, fromlist=["x"])
    value: Message = getattr(module, key_class.__name__.removesuffix("Key") + "Value")()
    return value


def _damage(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randrange(3)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed[: chance.randrange(len(changed) + 1)] if chance.random() < 0.3 else changed)


def test_the_size_of_a_row() -> None:
    assert size_of(()) == 0
    assert size_of((None, 1, True, "abc", b"de")) == 5 * 8 + 5
    assert size_of(([],)) == 8
    assert size_of((["abc", "d"], [{"key": "k", "value": b"12"}], [1, 2])) == 3 * 8 + (16 + 4) + (8 + 16 + 3) + 16
