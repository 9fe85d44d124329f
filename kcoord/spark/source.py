"""`spark.read.format("kcoord")`: the data source as Spark sees it. All work is done elsewhere.

What Spark pickles are options and slices; files are opened by whoever reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)

from kcoord.core.outcome import METADATA_TOPIC
from kcoord.spark.catalog import is_of_catalog, options_of, stated_options, with_options
from kcoord.spark.discovery import NothingToRead
from kcoord.spark.filters import RowFilter, asked_for, row_filter
from kcoord.spark.history import HistoryTask, plan_history, read_history
from kcoord.spark.options import ASSIGNMENTS, HISTORY, BadOption, ReadOptions, parse_options
from kcoord.spark.planning import Planner
from kcoord.spark.reading import Task, read_task
from kcoord.spark.roots import emptied_in, open_logs

if TYPE_CHECKING:
    import pyarrow as pa
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
        schema = spark_schema(options.table, options.columns)
        return with_options(schema, stated) if is_of_catalog(self.options) else schema

    def reader(self, schema: StructType) -> DataSourceReader:
        options = with_columns_of(parse_options(options_of(schema, self.options)), schema)
        if options.table == HISTORY:
            return HistoryReader(options)
        return PushdownReader(options) if options.is_pushing_down else KcoordReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from kcoord.spark.stream import KcoordStreamReader

        options = with_columns_of(parse_options(options_of(schema, self.options)), schema)
        if options.table == HISTORY:
            raise BadOption(f"the table {HISTORY} cannot be streamed: compaction changes its rows")
        return KcoordStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from kcoord.spark.write_options import parse_write_options
        from kcoord.spark.writer import KcoordWriter

        return KcoordWriter(schema.fieldNames(), overwrite, parse_write_options(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise BadOption(
            "a stream is not written to a log, since nothing is appended to one that is there: write each batch to a "
            "directory of its own with foreachBatch, or to a running server with format kafka (docs/spark-write.md)"
        )


def with_columns_of(options: ReadOptions, schema: StructType) -> ReadOptions:
    """The options with the columns of the schema that Spark goes by, which may be a user's. Raises BadOption."""
    from kcoord.spark.tables.schemas import columns_of, spark_schema

    columns = columns_of(options.table, schema)
    if options.columns and options.columns != columns:
        raise BadOption(
            f"columns is {','.join(options.columns)}, and the schema has {','.join(columns)}: give one of them"
        )
    is_all = columns == tuple(spark_schema(options.table).names)
    return options if is_all else replace(options, columns=columns)


class TaskPartition(InputPartition):
    def __init__(self, task: Task) -> None:
        super().__init__(task.part.start)
        self.task = task


class KcoordReader(DataSourceReader):
    """Reads a table once. `rows` is what filters left to be read."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.rows = asked_for(options)

    def partitions(self) -> list[InputPartition]:
        return [TaskPartition(task) for task in plan_tasks(self.options, self.rows)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        # Where there are no partitions, Spark makes one of its own.
        if isinstance(partition, TaskPartition):
            yield from read_task(partition.task, self.options, self.rows)


class PushdownReader(KcoordReader):
    """The same where Spark may hand filters down (`spark.sql.python.filterPushdown.enabled`).

    What is read for the filters of one query Spark 4.3 keeps with what was loaded, and reads it for other queries, too.

    It is a class of its own since Spark refuses a reader that takes filters while it may not give any.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        self.rows = row_filter(self.options.table, filters, asked_for(self.options))
        return filters


class HistoryPartition(InputPartition):
    def __init__(self, task: HistoryTask) -> None:
        super().__init__(task.log_start)
        self.task = task


class HistoryReader(DataSourceReader):
    """Reads the table `_history`: a row for each partition."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.rows = asked_for(options)

    def partitions(self) -> list[InputPartition]:
        return [HistoryPartition(task) for task in plan_history(self.options, self.rows)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, HistoryPartition):
            yield read_history(partition.task, self.options)


def plan_tasks(options: ReadOptions, rows: RowFilter) -> list[Task]:
    """All there is to be read. Raises NothingToRead, DataLoss and OSError."""
    filesystem, roots, partitions = open_logs(options)
    if not partitions:
        paths = ", ".join((options.storage.path, *options.more_paths))
        raise NothingToRead(
            f"{paths}: no segments of partitions (TOPIC-N/00000000000000000000.log) at or below it"
        )
    wanted = [one for one in partitions if rows.wants_partition(one)]
    planner = Planner(filesystem, options)
    slices = [rows.narrow(part) for part in planner.plan(wanted)]
    slices += [part for part in emptied_in(planner, roots, partitions) if rows.wants_partition(part)]
    if options.table != ASSIGNMENTS:
        return [Task(part) for part in slices]
    metadata = {one.log: one for one in partitions if one.topic == METADATA_TOPIC}
    return [Task(part, metadata.get(part.log)) for part in slices]
