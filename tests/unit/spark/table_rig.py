"""Records for the decoders of tables, as they come out of batches; rows as dicts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema

from kcoord.log.serde import encode_record, encode_value
from kcoord.spark.tables.rows import DecodedTable, RecordPlace
from kcoord.spark.tables.schemas import spark_schema
from kcoord.wire.message import Message
from kcoord.wire.record_batch import BatchBuilder, BatchHeader, Headers, Record, decode_records, parse_header

TIME_MS = 1_769_860_800_123
TIME = datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=UTC)
OFFSET = 41
OFFSETS = RecordPlace("broker-1", "__consumer_offsets", 3)
TRANSACTIONS = RecordPlace("broker-1", "__transaction_state", 3)
METADATA = RecordPlace("broker-1", "__cluster_metadata", 0)
ORDERS = RecordPlace("broker-1", "orders", 7)
# The columns that all these tables begin with, for a record of `OFFSETS`.
PLACE = {
    "log": "broker-1",
    "log_topic": "__consumer_offsets",
    "log_partition": 3,
    "log_offset": OFFSET,
    "log_timestamp": TIME,
}


def stored(
    key: bytes | None,
    value: bytes | None,
    timestamp: int = TIME_MS,
    headers: Headers | None = None,
    **batch: Any,
) -> tuple[Record, BatchHeader]:
    """A record as it is read from a batch of its own at `OFFSET`. `batch` is for BatchBuilder.build."""
    builder = BatchBuilder()
    builder.append(timestamp, key, value, headers)
    data = builder.build(OFFSET, batch.pop("leader_epoch", 5), **batch)
    header = parse_header(data)
    return decode_records(data, 0, header, 1 << 20)[0], header


def bytes_of(key: Message, value: Message | None, version: int | None = None) -> tuple[bytes, bytes | None]:
    """Key and value; the value in a version other than the one that is written."""
    key_bytes, value_bytes = encode_record(key, value)
    if value is not None and version is not None:
        value_bytes = encode_value(key, value, version)
    return key_bytes, value_bytes


def add(
    decoder: DecodedTable,
    key: Message,
    value: Message | None,
    version: int | None = None,
    place: RecordPlace = OFFSETS,
    **more: Any,
) -> None:
    record, header = stored(*bytes_of(key, value, version), **more)
    decoder.add(place, record, header)


def add_bytes(
    decoder: DecodedTable, key: bytes | None, value: bytes | None, place: RecordPlace = OFFSETS, **more: Any
) -> None:
    record, header = stored(key, value, **more)
    decoder.add(place, record, header)


def rows(decoder: DecodedTable) -> list[dict[str, Any]]:
    """All that is there, in batches that Spark would take."""
    wanted = to_arrow_schema(spark_schema(decoder.NAME), timezone="UTC")
    found: list[dict[str, Any]] = []
    while len(decoder):
        count = len(decoder)
        batch = decoder.take()
        batch.validate(full=True)
        assert batch.schema.equals(wanted)
        assert batch.num_rows == count - len(decoder) > 0
        found += batch.to_pylist()
    return found


def only(decoder: DecodedTable, *names: str) -> dict[str, Any]:
    """The one row that there is; of it the columns of these names."""
    (row,) = rows(decoder)
    return {name: row[name] for name in names} if names else row
