"""Schemas of tables by their names, for Arrow and for Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from kcoord.spark.tables.arrow import schema_of
from kcoord.spark.tables.registry import TABLES

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def arrow_schema(table: str, columns: Sequence[str] = ()) -> pa.Schema:
    """The schema that batches of a table have; with `columns` of just these, in their order.

    Raises KeyError for a name that is not a table, and for one that is not a column of it.
    """
    return schema_of(TABLES[table], columns)


def spark_schema(table: str, columns: Sequence[str] = ()) -> StructType:
    """The same for Spark, as `DataSource.schema` returns it. Raises KeyError as `arrow_schema` does."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(arrow_schema(table, columns))
