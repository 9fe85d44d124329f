"""Tables of short logs as Arrow tables, read by this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kcoord.spark.reader.batch_reader import plan_tasks
from kcoord.spark.reader.filters import asked_for
from kcoord.spark.reader.options import parse_options
from kcoord.spark.reader.tasks import Task, read_task
from kcoord.spark.short.bounds import TABLE_BYTES_MAX, NotShort
from kcoord.spark.tables.schemas import arrow_schema

# Told how many bytes of logs a table takes, before they are read, and then again and again how many were read.
Begin = Callable[[int], None]
Step = Callable[[int], None]


def read_table(path: str, options: Mapping[str, str], begin: Begin, step: Step) -> pa.Table:
    """The table that `spark.read.format("kcoord").options(**options).load(path)` is. Each column is one piece.

    Raises NotShort, and BadOption, NothingToRead, DataLoss, CorruptLog and OSError.
    """
    parsed = parse_options({**options, "path": path})
    rows = asked_for(parsed)
    tasks = plan_tasks(parsed, rows)
    begin(sum(map(_size, tasks)))
    batches = []
    held = 0
    for task in tasks:
        for batch in read_task(task, parsed, rows):
            held += batch.nbytes
            if held > TABLE_BYTES_MAX:
                raise NotShort(f"the table {parsed.table.NAME} has more than {TABLE_BYTES_MAX} bytes")
            batches.append(batch)
        step(_size(task))
    return pa.Table.from_batches(batches, arrow_schema(parsed.table.NAME, parsed.columns)).combine_chunks()


def only(table: pa.Table, name: str, values: Sequence[Any]) -> pa.Table:
    """The rows whose column `name` has one of these values."""
    return table.filter(pc.is_in(table.column(name), value_set=pa.array(values))).combine_chunks()


def _size(task: Task) -> int:
    return task.part.end - task.part.start
