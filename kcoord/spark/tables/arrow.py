"""Columns as Arrow has them. The only module that maps the types of columns to Arrow types.

Every field may be null, and the types are those that PySpark makes of its own: timestamps in microseconds in the zone
"UTC", list elements called "element". Spark refuses a batch that differs in any of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from kcoord.spark.tables import table as types
from kcoord.spark.tables.table import Table

BINARY: Final = pa.binary()
BOOLEAN: Final = pa.bool_()
INT: Final = pa.int32()
BIGINT: Final = pa.int64()
STRING: Final = pa.string()
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


def _array(of: Any) -> Any:
    return pa.list_(pa.field("element", of))


HEADERS: Final = _array(pa.struct([("key", STRING), ("value", BINARY)]))

TYPES: Final = {
    types.BINARY: BINARY,
    types.BOOLEAN: BOOLEAN,
    types.INT: INT,
    types.BIGINT: BIGINT,
    types.STRING: STRING,
    types.TIMESTAMP: TIMESTAMP,
    types.INTS: _array(INT),
    types.STRINGS: _array(STRING),
    types.HEADERS: HEADERS,
    types.PARTITIONS: _array(pa.struct([("topic", STRING), ("partitions", _array(INT))])),
}


def schema_of(table: type[Table], columns: Sequence[str] = ()) -> pa.Schema:
    """The schema that batches of a table have; with `columns` of just these, in their order.

    Raises KeyError for a name that is not a column of the table.
    """
    fields = {column.name: TYPES[column.type] for column in table.COLUMNS}
    return pa.schema([(name, fields[name]) for name in columns or fields])


def batch_of(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as a batch. Each row has a value for every field of the schema."""
    columns: list[Any] = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in schema]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
