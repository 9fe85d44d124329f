"""The tables of `spark.read.format("kcoord")` for the jobs of the pipeline, planned in this process.

Spark starts a Python process for each step of a data source in Python: one that looks for sources, one that creates
the source, one that pushes filters down, one that plans, and then the workers that read. Each of them imports PySpark,
PyArrow and kcoord again, one after the other, which takes longer than reading a short log. Here the driver, which has
imported all of it, plans, and Spark starts only the workers. Rows are the same, with the same errors; a table is listed
once, when it is made, instead of once in each query that uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from kcoord.spark import register
from kcoord.spark.reader.batch_reader import keep_modules, plan_tasks
from kcoord.spark.reader.filters import asked_for
from kcoord.spark.reader.history import HistoryTask, plan_history, read_history
from kcoord.spark.reader.options import ReadOptions, parse_options
from kcoord.spark.reader.row_filter import RowFilter
from kcoord.spark.reader.slices import INT64_MAX
from kcoord.spark.reader.tasks import Task, by_log, read_task
from kcoord.spark.tables.schemas import arrow_schema, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
# Headers in logs of this size are read by the driver.
DRIVER_BYTES_MAX: Final = 256 << 20
# Shares of a table for each core: the last one to end is not long alone.
SHARES_PER_CORE: Final = 2
# What opening a file counts as.
SLICE_COST_BYTES: Final = 64 << 10
# Every task of Spark gets the list of all tasks. Longer lists are left to the data source, whose tasks get their own.
TASKS_MAX: Final = 1_000


def read_table(
    spark: SparkSession, path: str, options: Mapping[str, str], has_producer: bool | None = None
) -> DataFrame:
    """The table that `spark.read.format("kcoord").options(**options).load(path)` is.

    With `has_producer`, only batches that a producer with an id wrote, or the others, as far as the table `records` is
    concerned; without it Spark filters such rows itself. Raises BadOption, NothingToRead, DataLoss and OSError.
    """
    parsed = parse_options({**options, "path": path})
    if parsed.table.HAS_ROW_PER_PARTITION:
        found = _read_history_table(spark, parsed)
        return spark.createDataFrame(found) if isinstance(found, pa.Table) else found
    rows = replace(asked_for(parsed), has_producer=has_producer)
    tasks = plan_tasks(parsed, rows)
    if len(tasks) > TASKS_MAX:
        register(spark)
        return spark.read.format("kcoord").options(**options).load(path)

    shares = in_shares([[task] for task in tasks], _share_count(spark), parsed.bytes_per_partition)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _read(batches, shares, parsed, rows)

    return _numbered(spark, len(shares)).mapInArrow(read, spark_schema(parsed.table.NAME, parsed.columns))


def read_whole_logs(
    spark: SparkSession, path: str, options: Mapping[str, str], function: BatchFunction, schema: str
) -> DataFrame | None:
    """What `function` makes of the rows of some partitions' logs, one after the other and each in its order. One task
    has all rows of a log, so nothing is shuffled or sorted: for short logs, which leave a core enough to do.

    None if there are too many tasks for a plan. Raises as `read_table`.
    """
    parsed = parse_options({**options, "path": path})
    rows = asked_for(parsed)
    tasks = plan_tasks(parsed, rows)
    if len(tasks) > TASKS_MAX:
        return None
    shares = in_shares(by_log(tasks), _share_count(spark), INT64_MAX)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return function(_read(batches, shares, parsed, rows))

    return _numbered(spark, len(shares)).mapInArrow(read, schema)


def in_shares(parts: Sequence[Sequence[Task]], count: int, bytes_max: int) -> list[list[Task]]:
    """The tasks in their order, those of a part together, in about `count` shares of the same size, and more where a
    share would be larger than `bytes_max`. A task of Spark's reads a share, because starting one takes longer than
    reading a small file.
    """
    sizes = [sum(task.part.end - task.part.start + SLICE_COST_BYTES for task in part) for part in parts]
    limit = min(max(sum(sizes) // max(count, 1), 1), bytes_max)
    shares: list[list[Task]] = []
    filled = limit
    for part, size in zip(parts, sizes, strict=True):
        # A part goes where more than half of it fits.
        if filled + size // 2 >= limit:
            shares.append([])
            filled = 0
        shares[-1] += part
        filled += size
    return shares


def _share_count(spark: SparkSession) -> int:
    return spark.sparkContext.defaultParallelism * SHARES_PER_CORE


def _read(
    numbers: Iterator[pa.RecordBatch], shares: Sequence[Sequence[Task]], options: ReadOptions, rows: RowFilter
) -> Iterator[pa.RecordBatch]:
    """In a worker: the rows of the shares with these numbers."""
    keep_modules()
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            for task in shares[number]:
                yield from read_task(task, options, rows)


def read_history_table(spark: SparkSession, path: str, options: Mapping[str, str]) -> DataFrame | pa.Table:
    """The table `_history`, read by the driver without Spark unless the logs are long. Raises as `read_table`."""
    return _read_history_table(spark, parse_options({**options, "path": path}))


def read_history_here(path: str, options: Mapping[str, str]) -> pa.Table | None:
    """The same by this process alone; None if the logs are long. Raises as `read_table`."""
    parsed = parse_options({**options, "path": path})
    return _small_history(parsed, plan_history(parsed, asked_for(parsed)))


def warm_workers(spark: SparkSession) -> None:
    """Let Spark start its processes of Python, which import what reading a table takes. Raises what Spark raises."""
    _numbered(spark, spark.sparkContext.defaultParallelism).mapInArrow(_imported, "id bigint").collect()


def _imported(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a worker, which has imported this module for it."""
    keep_modules()
    yield from batches


def _read_history_table(spark: SparkSession, options: ReadOptions) -> DataFrame | pa.Table:
    tasks = plan_history(options, asked_for(options))
    small = _small_history(options, tasks)
    return _of_partitions(spark, options, tasks) if small is None else small


def _small_history(options: ReadOptions, tasks: Sequence[HistoryTask]) -> pa.Table | None:
    # The headers of few batches are read sooner than Spark starts a task.
    if sum(segment.size for task in tasks for segment in task.partition.segments) > DRIVER_BYTES_MAX:
        return None
    schema = arrow_schema(options.table.NAME, options.columns)
    return pa.Table.from_batches([read_history(task, options) for task in tasks], schema)


def _of_partitions(spark: SparkSession, options: ReadOptions, tasks: Sequence[HistoryTask]) -> DataFrame:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield read_history(tasks[number], options)

    return _numbered(spark, len(tasks)).mapInArrow(read, spark_schema(options.table.NAME, options.columns))


def _numbered(spark: SparkSession, count: int) -> DataFrame:
    """A row for each number below `count`, each in a partition of its own."""
    return spark.range(0, count, 1, max(count, 1))
