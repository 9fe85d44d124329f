"""`spark.read.format("kcoord")`: the data source that Spark calls. Other modules do the work."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter

from kcoord.spark.catalog import is_of_catalog, options_of, stated_options, with_options
from kcoord.spark.reader.batch_reader import HistoryReader, KcoordReader, PushdownReader
from kcoord.spark.reader.options import BadOption, ReadOptions, parse_options
from kcoord.spark.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class KcoordDataSource(DataSource):
    """Tables of kcoord's and Kafka's data directories."""

    @classmethod
    def name(cls) -> str:
        return "kcoord"

    def schema(self) -> StructType:
        from kcoord.spark.tables.schemas import spark_schema

        stated = stated_options(self.options)
        options = parse_options(stated)
        schema = spark_schema(options.table.NAME, options.columns)
        return with_options(schema, stated) if is_of_catalog(self.options) else schema

    def reader(self, schema: StructType) -> DataSourceReader:
        options = with_columns_of(parse_options(options_of(schema, self.options)), schema)
        if options.table.HAS_ROW_PER_PARTITION:
            return HistoryReader(options)
        return PushdownReader(options) if options.is_pushing_down else KcoordReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from kcoord.spark.reader.stream_reader import KcoordStreamReader

        options = with_columns_of(parse_options(options_of(schema, self.options)), schema)
        table = options.table
        if table.UNSTREAMABLE:
            raise BadOption(f"the table {table.NAME} cannot be streamed: {table.UNSTREAMABLE}")
        return KcoordStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from kcoord.spark.writer.options import parse_write_options
        from kcoord.spark.writer.sink import KcoordWriter

        return KcoordWriter(schema.fieldNames(), overwrite, parse_write_options(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise BadOption(
            "a stream is not written to a log, since nothing is appended to one that is there: write each batch to a "
            "directory of its own with foreachBatch, or to a running server with format kafka (docs/spark-write.md)"
        )


def with_columns_of(options: ReadOptions, schema: StructType) -> ReadOptions:
    """The options with the columns of the schema that Spark uses, which may be a user's. Raises BadOption."""
    columns = columns_of(options.table, schema)
    if options.columns and options.columns != columns:
        raise BadOption(
            f"columns is {','.join(options.columns)}, and the schema has {','.join(columns)}: give one of them"
        )
    return options if columns == options.table.column_names() else replace(options, columns=columns)


def columns_of(table: type[Table], schema: StructType) -> tuple[str, ...]:
    """The names of the columns in a schema that Spark was given: some of the table's, in any order.

    Raises BadOption for a column that the table does not have, or has with another type.
    """
    from kcoord.spark.tables.schemas import spark_schema

    known = spark_schema(table.NAME)
    for field in schema.fields:
        if field.name not in known.names:
            raise BadOption(
                f"the schema has a column {field.name}; the table {table.NAME} has {', '.join(known.names)}"
            )
        ours, theirs = known[field.name].dataType, field.dataType
        if ours != theirs or not field.nullable:
            given = theirs.simpleString() + ("" if field.nullable else " not null")
            raise BadOption(
                f"the schema's column {field.name} is {given}; in the table {table.NAME} it is {ours.simpleString()}, "
                "and any part of it may be null"
            )
    return tuple(schema.names)
