"""What a task writes before the log exists: one file of batches per partition, in the task's own folder.

    .NAME.staging-ID/        next to the target NAME, so that a rename moves the finished log there
      tasks/TASK/0, 1, ...   batches of one partition each
      log/                   the new data directory, see `assembly`
      replaced/              the old log, until it is removed

Memory is bounded by the packer's batches. No file stays open between batches, so tasks may write to any number of
partitions.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kcoord.spark.tables.offset_commits import OffsetCommitsTable
from kcoord.spark.tables.records import RecordsTable
from kcoord.spark.writer.incoming import commit_rows, record_rows
from kcoord.spark.writer.options import PARTITIONS_MAX, WriteOptions
from kcoord.spark.writer.pack import Pack, Packer

TASKS = "tasks"
LOG = "log"
REPLACED = "replaced"
# Rows that become Python objects at a time.
ROWS_AT_A_TIME = 10_000


@dataclass(frozen=True)
class StagedLog:
    """Batches of one partition, `size_bytes` of them. `first_offset` is that of the first record."""

    topic: str
    partition: int
    path: str
    size_bytes: int
    record_count: int
    first_offset: int


@dataclass(frozen=True)
class StagedTask:
    """All that one task wrote. Producer ids up to `producer_id_max` are in use."""

    logs: tuple[StagedLog, ...] = ()
    producer_id_max: int = -1


def staging_folder(path: str) -> str:
    """A new name for the folder next to the target."""
    parent, name = os.path.split(path)
    return os.path.join(parent, f".{name}.staging-{uuid.uuid4().hex[:12]}")


def take_place(made: str, path: str, replaced: str) -> None:
    """Rename `made` to `path`, and what was there to `replaced`. If that fails, it is there again. Raises OSError."""
    os.rename(path, replaced)
    try:
        os.rename(made, path)
    except BaseException:
        os.rename(replaced, path)
        raise


def remove_staging(folder: str) -> None:
    """An abandoned task may still write there: it fails at its next batch."""
    shutil.rmtree(folder, ignore_errors=True)


class _Files:
    """Files for batches. A file is open only while a batch is written."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.join(folder, TASKS, uuid.uuid4().hex)
        os.makedirs(self.folder)

    def path(self, pack: Pack) -> str:
        return os.path.join(self.folder, str(pack.number))

    def write(self, pack: Pack, batch: bytes) -> None:
        with open(self.path(pack), "ab") as file:
            file.write(batch)


def stage(batches: Iterable[Any], kind: str, options: WriteOptions, folder: str, now_ms: int) -> StagedTask:
    """Write the rows of all batches. Raises BadColumns, BadRow and OSError; abort removes what was written."""
    files = _Files(folder)
    packer = Packer(
        files.write,
        options.codec,
        options.batch_records,
        options.offsets_partitions,
        options.transaction_partitions,
        options.keeps_offsets,
        PARTITIONS_MAX - 1,
    )
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_AT_A_TIME):
            _add(packer, batch.slice(start, ROWS_AT_A_TIME), kind, now_ms)
    packer.flush()
    return StagedTask(
        tuple(
            StagedLog(
                pack.topic,
                pack.partition,
                files.path(pack),
                pack.size_bytes,
                pack.record_count,
                pack.first_offset,
            )
            for pack in packer.packs.values()
        ),
        packer.producer_id_max,
    )


def _add(packer: Packer, batch: pa.RecordBatch, kind: str, now_ms: int) -> None:
    if kind == OffsetCommitsTable.NAME:
        packer.add_commits(commit_rows(batch, now_ms))
    elif kind == RecordsTable.NAME:
        packer.add_records(record_rows(batch, "log_topic", "log_partition", "log_timestamp", "log_offset"))
    else:
        packer.add_records(record_rows(batch, "topic", "partition", "timestamp", "offset"))
