"""The table `transactions`: each record of `__transaction_state` is a state of a transactional id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, final

from kcoord.core.outcome import TRANSACTION_TOPIC
from kcoord.log.serde import TRANSACTION_LOG, decode_transaction_record
from kcoord.protocol.records.transaction_log import PartitionsSchema, TransactionLogKey, TransactionLogValue
from kcoord.spark.reader.row_filter import EVERYTHING, RowFilter
from kcoord.spark.tables.rows import (
    DecodedTable,
    RecordPlace,
    Row,
    coordinator_record_type,
    is_about,
    known,
    micros,
    place_columns,
    subjects,
)
from kcoord.spark.tables.table import BIGINT, INT, IS_TOMBSTONE, PARTITIONS, PLACE, STRING, TIMESTAMP, Column
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
# Of a tombstone: the columns between the id and `is_tombstone`.
NOTHING: Final[Row] = (None,) * 11


@final
class TransactionsTable(DecodedTable):
    NAME: ClassVar[str] = "transactions"
    ROW: ClassVar[str] = "a state of a transactional id"
    TOPICS: ClassVar[tuple[str, ...]] = (TRANSACTION_TOPIC,)
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        *PLACE,
        Column("transactional_id", STRING, "the transactional id", "transactional_ids"),
        Column("producer_id", BIGINT, "the producer id"),
        Column("previous_producer_id", BIGINT, "the producer id before (KIP-890)"),
        Column("next_producer_id", BIGINT, "the producer id after this transaction (KIP-890)"),
        Column("producer_epoch", INT, "the producer epoch"),
        Column("next_producer_epoch", INT, "the producer epoch after this transaction (KIP-890)"),
        Column("timeout_ms", INT, "the transaction timeout"),
        Column("status", STRING, "`Empty`, `Ongoing`, `PrepareCommit`, `CompleteCommit`, ..."),
        Column("partitions", PARTITIONS, "the partitions in the transaction"),
        Column("last_update_timestamp", TIMESTAMP, "when the state last changed"),
        Column("start_timestamp", TIMESTAMP, "when the transaction began"),
        Column("client_transaction_version", INT, "the client's transaction version (KIP-890)"),
        IS_TOMBSTONE,
    )

    def __init__(
        self,
        columns: Sequence[str] = (),
        wanted: RowFilter = EVERYTHING,
        topic_names: Mapping[bytes, str] | None = None,
    ) -> None:
        super().__init__(columns, wanted, topic_names)
        self._ids = subjects(wanted.transactional_ids)

    @classmethod
    def check(cls, topic: str, record: Record) -> None:
        if topic in cls.TOPICS and coordinator_record_type(record) == TRANSACTION_LOG:
            decode_transaction(record)

    def add(self, where: RecordPlace, record: Record, header: BatchHeader) -> None:
        if header.is_control or coordinator_record_type(record) != TRANSACTION_LOG:
            return
        if not is_about(record, self._ids):
            return
        transactional_id, value = decode_transaction(record)
        about = NOTHING if value is None else _value_columns(value)
        self._put((*place_columns(where, record), transactional_id, *about, value is None))


def decode_transaction(record: Record) -> tuple[str, TransactionLogValue | None]:
    """Transactional id and value of a record of that type. Raises DecodeError, also for an unknown status."""
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
