"""The table `transactions`: each record of `__transaction_state`, the state of a transactional id at that moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, final

from kcoord.log.serde import TRANSACTION_LOG, decode_transaction_record
from kcoord.protocol.records.transaction_log import PartitionsSchema, TransactionLogKey, TransactionLogValue
from kcoord.spark.filters import EVERYTHING, RowFilter
from kcoord.spark.options import TRANSACTIONS
from kcoord.spark.tables.rows import (
    RecordPlace,
    Row,
    TableDecoder,
    coordinator_record_type,
    is_about,
    known,
    micros,
    place_columns,
    subjects,
)
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import BatchHeader, Record

# Kafka's names (KIP-664, KIP-890).
STATUSES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
# Of a tombstone: all columns between the id and `is_tombstone`.
NOTHING: Final[Row] = (None,) * 11


@final
class TransactionsDecoder(TableDecoder):
    TABLE: ClassVar[str] = TRANSACTIONS

    def __init__(self, columns: Sequence[str] = (), wanted: RowFilter = EVERYTHING) -> None:
        super().__init__(columns, wanted)
        self._ids = subjects(wanted.transactional_ids)

    def add(self, where: RecordPlace, record: Record, header: BatchHeader) -> None:
        if header.is_control or coordinator_record_type(record) != TRANSACTION_LOG:
            return
        if not is_about(record, self._ids):
            return
        transactional_id, value = decode_transaction(record)
        about = NOTHING if value is None else _value_columns(value)
        self._put((*place_columns(where, record), transactional_id, *about, value is None))


def decode_transaction(record: Record) -> tuple[str, TransactionLogValue | None]:
    """Transactional id and value of a record of that type. Raises DecodeError, also for a status that is not known."""
    key, value = decode_transaction_record(record.key or b"", record.value)
    if not isinstance(key, TransactionLogKey):
        raise DecodeError("a record of another type")
    if not isinstance(value, TransactionLogValue):
        return key.transactional_id, None
    if not 0 <= value.transaction_status < len(STATUSES):
        raise DecodeError(f"transaction status {value.transaction_status}")
    return key.transactional_id, value


def _value_columns(value: TransactionLogValue) -> Row:
    return (
        known(value.producer_id),
        known(value.previous_producer_id),
        known(value.next_producer_id),
        known(value.producer_epoch),
        known(value.next_producer_epoch),
        value.transaction_timeout_ms,
        STATUSES[value.transaction_status],
        _partitions(value.transaction_partitions),
        micros(value.transaction_last_update_timestamp_ms),
        micros(value.transaction_start_timestamp_ms),
        value.client_transaction_version,
    )


def _partitions(topics: list[PartitionsSchema] | None) -> list[dict[str, object]] | None:
    if topics is None:
        return None
    return [{"topic": one.topic, "partitions": one.partition_ids} for one in topics]
