"""Tables of short logs as Arrow tables, read by this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kcoord.spark.reader.batch_reader import plan_tasks
from kcoord.spark.reader.filters import asked_for
from kcoord.spark.reader.options import ReadOptions, parse_options
from kcoord.spark.reader.tasks import Task, by_log, read_task
from kcoord.spark.short.bounds import TABLE_BYTES_MAX, NotShort
from kcoord.spark.tables.schemas import arrow_schema

# Called with the bytes of logs that a table takes before they are read, and then with the bytes that were read.
Begin = Callable[[int], None]
Step = Callable[[int], None]


def read_table(
    path: str, options: Mapping[str, str], begin: Begin, step: Step, has_producer: bool | None = None
) -> pa.Table:
    """The table that `spark.read.format("kcoord").options(**options).load(path)` is. Each column is one piece.
    `has_producer` as in `kcoord.spark.planned.read_table`.

    Raises NotShort, and BadOption, NothingToRead, DataLoss, CorruptLog and OSError.
    """
    parsed = parse_options({**options, "path": path})
    batches = []
    held = 0
    for batch in _read(parsed, begin, step, has_producer):
        held += batch.nbytes
        if held > TABLE_BYTES_MAX:
            raise NotShort(f"the table {parsed.table.NAME} has more than {TABLE_BYTES_MAX} bytes")
        batches.append(batch)
    return pa.Table.from_batches(batches, arrow_schema(parsed.table.NAME, parsed.columns)).combine_chunks()


def read_logs(path: str, options: Mapping[str, str], begin: Begin, step: Step) -> Iterator[pa.RecordBatch]:
    """The rows of the same, one log after the other and each in its order. Raises as `read_table`, except NotShort."""
    return _read(parse_options({**options, "path": path}), begin, step, None)


def _read(options: ReadOptions, begin: Begin, step: Step, has_producer: bool | None) -> Iterator[pa.RecordBatch]:
    rows = replace(asked_for(options), has_producer=has_producer)
    tasks = [task for of_log in by_log(plan_tasks(options, rows)) for task in of_log]
    begin(sum(map(_size, tasks)))
    for task in tasks:
        yield from read_task(task, options, rows)
        step(_size(task))


def only(table: pa.Table, name: str, values: Sequence[Any]) -> pa.Table:
    """The rows whose column `name` has one of these values."""
    return table.filter(pc.is_in(table.column(name), value_set=pa.array(values))).combine_chunks()


def _size(task: Task) -> int:
    return task.part.end - task.part.start
