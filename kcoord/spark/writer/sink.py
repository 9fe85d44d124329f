"""`df.write.format("kcoord").mode(...).save(path)` writes rows as a log directory: the interface to Spark.

Spark has two modes for Python data sources: `append`, which here makes a new log and refuses a directory that is not
empty, and `overwrite`, which replaces a log of kcoord and nothing else. Spark itself refuses its default,
`errorifexists`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from kcoord.spark.tables.messages import MessagesTable
from kcoord.spark.writer.assembly import NotWritten, assemble, check_target, put_in_place
from kcoord.spark.writer.options import BadColumns, WriteOptions, kind_of
from kcoord.spark.writer.staging import StagedTask, remove_staging, stage, staging_folder

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Staged(WriterCommitMessage):
    """What a task reports to the driver."""

    task: StagedTask


class KcoordWriter(DataSourceArrowWriter):
    """Writes one log directory. It is pickled to the executors, and to the driver's process that commits."""

    def __init__(self, columns: Sequence[str], overwrite: bool, options: WriteOptions) -> None:
        """Raises BadColumns and NotWritten."""
        self.kind = kind_of(columns)
        self.overwrite = overwrite
        self.options = options
        wanted = "offset" if self.kind == MessagesTable.NAME else "log_offset"
        if options.keeps_offsets and wanted not in [name.lower() for name in columns]:
            raise BadColumns(f"keepOffsets needs a column {wanted}")
        check_target(options.path, overwrite)
        self.folder = staging_folder(options.path)
        self.now_ms = time.time_ns() // 1_000_000

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return Staged(stage(iterator, self.kind, self.options, self.folder, self.now_ms))

    def commit(self, messages: Sequence[Any]) -> None:
        """Raises NotWritten, StorageError and OSError; the target is unchanged then."""
        tasks = [message.task for message in messages if message is not None]
        try:
            if len(tasks) != len(messages):
                raise NotWritten(f"{len(messages) - len(tasks)} tasks did not report what they wrote")
            assemble(tasks, self.kind, self.options, self.folder, self.now_ms)
            put_in_place(self.folder, self.options.path, self.overwrite)
        finally:
            remove_staging(self.folder)

    def abort(self, messages: Sequence[Any]) -> None:
        remove_staging(self.folder)
