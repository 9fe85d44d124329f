"""The columns of every table, once: what Arrow batches have, and what Spark is told.

Every field may be null, and Arrow's types are those that PySpark makes of its own: timestamps in microseconds in the
zone "UTC", list elements called "element". A batch that differs in any of it is refused by Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kcoord.spark.options import (
    ASSIGNMENTS,
    CORRUPT,
    GROUP_METADATA,
    HISTORY,
    MEMBERS,
    MESSAGES,
    OFFSET_COMMITS,
    RECORDS,
    TRANSACTIONS,
    BadOption,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Fields = list[tuple[str, Any]]

BINARY: Final = pa.binary()
BOOLEAN: Final = pa.bool_()
INT: Final = pa.int32()
BIGINT: Final = pa.int64()
STRING: Final = pa.string()
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


def _array(of: Any) -> Any:
    return pa.list_(pa.field("element", of))


HEADERS: Final = _array(pa.struct([("key", STRING), ("value", BINARY)]))

# Where a record lies: what all tables but `messages` and `_corrupt` begin with.
_PLACE: Final[Fields] = [
    ("log", STRING),
    ("log_topic", STRING),
    ("log_partition", INT),
    ("log_offset", BIGINT),
    ("log_timestamp", TIMESTAMP),
]

_FIELDS: Final[dict[str, Fields]] = {
    # The names of Spark's Kafka source.
    MESSAGES: [
        ("key", BINARY),
        ("value", BINARY),
        ("topic", STRING),
        ("partition", INT),
        ("offset", BIGINT),
        ("timestamp", TIMESTAMP),
        ("timestampType", INT),
        ("headers", HEADERS),
        ("log", STRING),
    ],
    RECORDS: [
        *_PLACE,
        ("record_type", INT),
        ("record_version", INT),
        ("record_name", STRING),
        ("group_id", STRING),
        ("topic", STRING),
        ("partition", INT),
        ("member_id", STRING),
        ("transactional_id", STRING),
        ("key_json", STRING),
        ("value_json", STRING),
        ("key", BINARY),
        ("value", BINARY),
        ("headers", HEADERS),
        ("producer_id", BIGINT),
        ("producer_epoch", INT),
        ("leader_epoch", INT),
        ("is_tombstone", BOOLEAN),
    ],
    OFFSET_COMMITS: [
        *_PLACE,
        ("group_id", STRING),
        ("topic", STRING),
        ("partition", INT),
        ("committed_offset", BIGINT),
        ("leader_epoch", INT),
        ("metadata", STRING),
        ("commit_timestamp", TIMESTAMP),
        ("expire_timestamp", TIMESTAMP),
        ("topic_id", STRING),
        ("producer_id", BIGINT),
        ("is_tombstone", BOOLEAN),
    ],
    GROUP_METADATA: [
        *_PLACE,
        ("group_id", STRING),
        ("kind", STRING),
        ("record_name", STRING),
        ("epoch", INT),
        ("assignment_epoch", INT),
        ("protocol_type", STRING),
        ("protocol", STRING),
        ("leader", STRING),
        ("state_timestamp", TIMESTAMP),
        ("member_count", INT),
        ("metadata_hash", BIGINT),
        ("cause", STRING),
        ("is_tombstone", BOOLEAN),
    ],
    MEMBERS: [
        *_PLACE,
        ("group_id", STRING),
        ("kind", STRING),
        ("record_name", STRING),
        ("member_id", STRING),
        ("instance_id", STRING),
        ("rack_id", STRING),
        ("client_id", STRING),
        ("client_host", STRING),
        ("epoch", INT),
        ("rebalance_timeout_ms", INT),
        ("session_timeout_ms", INT),
        ("subscribed_topics", _array(STRING)),
        ("subscribed_regex", STRING),
        ("assignor", STRING),
        ("is_tombstone", BOOLEAN),
    ],
    ASSIGNMENTS: [
        *_PLACE,
        ("group_id", STRING),
        ("kind", STRING),
        ("record_name", STRING),
        ("member_id", STRING),
        ("role", STRING),
        ("epoch", INT),
        ("previous_epoch", INT),
        ("state", STRING),
        ("topic_id", STRING),
        ("topic", STRING),
        ("partitions", _array(INT)),
        ("pending_partitions", _array(INT)),
        ("is_tombstone", BOOLEAN),
    ],
    TRANSACTIONS: [
        *_PLACE,
        ("transactional_id", STRING),
        ("producer_id", BIGINT),
        ("previous_producer_id", BIGINT),
        ("next_producer_id", BIGINT),
        ("producer_epoch", INT),
        ("next_producer_epoch", INT),
        ("timeout_ms", INT),
        ("status", STRING),
        ("partitions", _array(pa.struct([("topic", STRING), ("partitions", _array(INT))]))),
        ("last_update_timestamp", TIMESTAMP),
        ("start_timestamp", TIMESTAMP),
        ("client_transaction_version", INT),
        ("is_tombstone", BOOLEAN),
    ],
    CORRUPT: [
        ("log", STRING),
        ("log_topic", STRING),
        ("log_partition", INT),
        ("file", STRING),
        ("position", BIGINT),
        ("size_bytes", BIGINT),
        ("log_offset", BIGINT),
        ("reason", STRING),
    ],
    HISTORY: [
        ("log", STRING),
        ("log_topic", STRING),
        ("log_partition", INT),
        ("log_start_offset", BIGINT),
        ("end_offset", BIGINT),
        ("cleaned_offset", BIGINT),
        ("complete_from_offset", BIGINT),
        ("history_complete_from", TIMESTAMP),
    ],
}
_SCHEMAS: Final = {table: pa.schema(fields) for table, fields in _FIELDS.items()}

MESSAGES_SCHEMA: Final = _SCHEMAS[MESSAGES]
OFFSET_COMMITS_SCHEMA: Final = _SCHEMAS[OFFSET_COMMITS]
CORRUPT_SCHEMA: Final = _SCHEMAS[CORRUPT]


def arrow_schema(table: str, columns: Sequence[str] = ()) -> pa.Schema:
    """The schema that batches of a table have; with `columns` of just these, in their order.

    Raises KeyError for what is no table, and for what is no column of it.
    """
    schema = _SCHEMAS[table]
    return pa.schema([schema.field(name) for name in columns]) if columns else schema


def spark_schema(table: str, columns: Sequence[str] = ()) -> StructType:
    """The same for Spark, as `DataSource.schema` gives it. Raises KeyError as `arrow_schema` does."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(arrow_schema(table, columns))


def columns_of(table: str, schema: StructType) -> tuple[str, ...]:
    """Which columns a schema asks for that Spark was given: some of the table's, in any order, as they are.

    Raises BadOption for one that the table does not have, or has in another way.
    """
    known = spark_schema(table)
    for field in schema.fields:
        if field.name not in known.names:
            raise BadOption(
                f"the schema has a column {field.name}; the table {table} has {', '.join(known.names)}"
            )
        ours, theirs = known[field.name].dataType, field.dataType
        if ours != theirs or not field.nullable:
            given = theirs.simpleString() + ("" if field.nullable else " not null")
            raise BadOption(
                f"the schema's column {field.name} is {given}; in the table {table} it is {ours.simpleString()}, "
                "and any part of it may be null"
            )
    return tuple(schema.names)
