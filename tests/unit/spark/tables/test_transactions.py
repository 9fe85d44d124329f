"""The table `transactions`."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kcoord.log.serde import UnknownRecord
from kcoord.protocol.records.transaction_log import PartitionsSchema, TransactionLogKey, TransactionLogValue
from kcoord.spark.tables.transactions import TransactionsTable
from kcoord.wire.primitives import DecodeError
from tests.unit.spark.table_rig import PLACE, TIME, TIME_MS, TRANSACTIONS, add, add_bytes, bytes_of, only

KEY = TransactionLogKey("pay-1")
HEAD = {**PLACE, "log_topic": "__transaction_state", "transactional_id": "pay-1"}
STATUSES = [
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
]


def value(status: int = 1) -> TransactionLogValue:
    return TransactionLogValue(
        (1 << 40) + 1,
        (1 << 40),
        (1 << 40) + 2,
        6,
        3,
        60_000,
        status,
        [PartitionsSchema("orders", [0, 3]), PartitionsSchema("__consumer_offsets", [17])],
        TIME_MS + 1000,
        TIME_MS,
        2,
    )


def test_a_transaction_that_is_open() -> None:
    decoder = TransactionsTable()
    add(decoder, KEY, value(), place=TRANSACTIONS)
    assert only(decoder) == {
        **HEAD,
        "producer_id": (1 << 40) + 1,
        "previous_producer_id": 1 << 40,
        "next_producer_id": (1 << 40) + 2,
        "producer_epoch": 6,
        "next_producer_epoch": 3,
        "timeout_ms": 60_000,
        "status": "Ongoing",
        "partitions": [
            {"topic": "orders", "partitions": [0, 3]},
            {"topic": "__consumer_offsets", "partitions": [17]},
        ],
        "last_update_timestamp": TIME + timedelta(seconds=1),
        "start_timestamp": TIME,
        "client_transaction_version": 2,
        "is_tombstone": False,
    }


def test_version_0_has_fewer_fields() -> None:
    decoder = TransactionsTable()
    old = TransactionLogValue(
        7, producer_epoch=1, transaction_timeout_ms=5, transaction_status=4, transaction_partitions=None,
        transaction_last_update_timestamp_ms=TIME_MS, transaction_start_timestamp_ms=-1,
    )  # fmt: skip
    add(decoder, KEY, old, 0, place=TRANSACTIONS)
    assert only(decoder) == {
        **HEAD,
        "producer_id": 7,
        "previous_producer_id": None,
        "next_producer_id": None,
        "producer_epoch": 1,
        "next_producer_epoch": None,
        "timeout_ms": 5,
        "status": "CompleteCommit",
        "partitions": None,
        "last_update_timestamp": TIME,
        "start_timestamp": None,
        "client_transaction_version": 0,
        "is_tombstone": False,
    }


@pytest.mark.parametrize(("status", "name"), list(enumerate(STATUSES)))
@pytest.mark.parametrize("version", [0, 1])
def test_every_status(status: int, name: str, version: int) -> None:
    decoder = TransactionsTable()
    empty = TransactionLogValue(7, transaction_status=status, transaction_partitions=[])
    add(decoder, KEY, empty, version, place=TRANSACTIONS)
    assert only(decoder, "status", "partitions") == {"status": name, "partitions": []}


@pytest.mark.parametrize("status", [-1, 8, 127])
def test_a_status_that_is_not_known(status: int) -> None:
    decoder = TransactionsTable()
    with pytest.raises(DecodeError, match=f"status {status}$"):
        add(decoder, KEY, value(status), place=TRANSACTIONS)
    assert len(decoder) == 0


def test_a_tombstone() -> None:
    decoder = TransactionsTable()
    add(decoder, KEY, None, place=TRANSACTIONS)
    row = only(decoder)
    assert row == {**dict.fromkeys(row), **HEAD, "is_tombstone": True}


def test_other_records_are_passed_over() -> None:
    decoder = TransactionsTable()
    add(decoder, UnknownRecord(4, b"\x00\x04???", b"\x00\x00"), None, place=TRANSACTIONS)
    add_bytes(decoder, b"\x00\x00\x00\x01", bytes(6), TRANSACTIONS, control=True)
    assert len(decoder) == 0


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x02", b"\xff\xff", b"\x00\x00\x01", b"\x00\x01\x01"])
def test_values_that_cannot_be_decoded(data: bytes) -> None:
    decoder = TransactionsTable()
    with pytest.raises(DecodeError, match=r"."):
        add_bytes(decoder, bytes_of(KEY, None)[0], data, TRANSACTIONS)
    assert len(decoder) == 0


@pytest.mark.parametrize("key", [None, b"", b"\x00", b"\x00\x00", b"\x00\x00\x00\x05g"])
def test_keys_that_cannot_be_decoded(key: bytes | None) -> None:
    decoder = TransactionsTable()
    with pytest.raises(DecodeError, match=r"."):
        add_bytes(decoder, key, None, TRANSACTIONS)
    assert len(decoder) == 0
