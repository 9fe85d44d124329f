"""`spark.read.format("kcoord")`: reads a table once, in tasks that Spark distributes to its workers.

Spark pickles options and tasks; executors open the files.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition

from kcoord.core.outcome import METADATA_TOPIC
from kcoord.spark.reader.discovery import NothingToRead
from kcoord.spark.reader.filters import asked_for, row_filter
from kcoord.spark.reader.history import HistoryTask, plan_history, read_history
from kcoord.spark.reader.options import ReadOptions
from kcoord.spark.reader.planner import Planner
from kcoord.spark.reader.roots import emptied_in, open_logs
from kcoord.spark.reader.row_filter import RowFilter
from kcoord.spark.reader.tasks import Task, read_task

if TYPE_CHECKING:
    import pyarrow as pa


class TaskPartition(InputPartition):
    def __init__(self, task: Task) -> None:
        super().__init__(task.part.start)
        self.task = task


class KcoordReader(DataSourceReader):
    """Reads a table once. `rows` are the filters."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.rows = asked_for(options)

    def partitions(self) -> list[InputPartition]:
        return [TaskPartition(task) for task in plan_tasks(self.options, self.rows)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        # Without partitions Spark makes one itself.
        if isinstance(partition, TaskPartition):
            keep_modules()
            yield from read_task(partition.task, self.options, self.rows)


class PushdownReader(KcoordReader):
    """The same with filters that Spark pushes down (`spark.sql.python.filterPushdown.enabled`).

    Spark 4.3 keeps the reader with the filters of one query and uses it for other queries of the loaded table, too.

    It is a class of its own because Spark refuses a reader that takes filters if that setting is off.
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


def keep_modules() -> None:
    """Tell the collector of a worker's garbage that what is imported stays.

    A worker of Spark's collects garbage after each task. Most of what it looks at each time are modules of PySpark,
    Arrow and kcoord, which takes longer than reading a small file.
    """
    if TaskContext.get() is not None and gc.get_freeze_count() == 0:
        gc.freeze()


def plan_tasks(options: ReadOptions, rows: RowFilter) -> list[Task]:
    """The tasks of a read. Raises NothingToRead, DataLoss and OSError."""
    filesystem, roots, partitions = open_logs(options)
    if not partitions:
        paths = ", ".join((options.storage.path, *options.more_paths))
        raise NothingToRead(f"{paths}: no segments of partitions (TOPIC-N/00000000000000000000.log) at or below it")
    wanted = [one for one in partitions if rows.wants_partition(one)]
    planner = Planner(filesystem, options)
    slices = [rows.narrow(part) for part in planner.plan(wanted)]
    slices += [part for part in emptied_in(planner, roots, partitions) if rows.wants_partition(part)]
    if not options.table.NEEDS_TOPIC_NAMES:
        return [Task(part) for part in slices]
    metadata = {one.log: one for one in partitions if one.topic == METADATA_TOPIC}
    return [Task(part, metadata.get(part.log)) for part in slices]
