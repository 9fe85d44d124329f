"""The table `_history`: for each partition from when on its log holds everything that was written to it.

One task reads the headers of one partition's batches, and no records. `kcoord.log.history` has the rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kcoord.log.directory import CLEANER_OFFSETS, LOG_START_OFFSETS
from kcoord.log.history import HistoryStart
from kcoord.log.reader import RELATIVE_OFFSET_MAX, Window
from kcoord.spark.batches import CHUNK_BYTES
from kcoord.spark.discovery import NothingToRead, data_directory, list_partition, read_checkpoint
from kcoord.spark.filesystem import FileBytes
from kcoord.spark.filters import RowFilter
from kcoord.spark.options import HISTORY, ReadOptions
from kcoord.spark.plan import TIME_MS_MAX, LogPartition, SegmentFile, Slice
from kcoord.spark.roots import open_logs
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import HEADER_BYTES, BatchHeader, parse_header

if TYPE_CHECKING:
    import pyarrow as pa

# How often files may go while the headers of a partition are read.
TRIES_MAX: Final = 10


@dataclass(frozen=True)
class HistoryTask:
    """A partition, and what the checkpoints of its data directory say about it; `cleaned` is None if they do not."""

    partition: LogPartition
    log_start: int
    cleaned: int | None


def plan_history(options: ReadOptions, rows: RowFilter) -> list[HistoryTask]:
    """A task for each partition that is wanted. Raises NothingToRead and OSError."""
    filesystem, _, partitions = open_logs(options)
    if not partitions:
        raise NothingToRead(f"{options.storage.path}: no segments of partitions at or below it")
    checkpoints: dict[tuple[str, str], dict[tuple[str, int], int]] = {}
    tasks = []
    for one in partitions:
        if not rows.wants_partition(one) or not options.wants(one):
            continue
        found = []
        for name in (LOG_START_OFFSETS, CLEANER_OFFSETS):
            place = (data_directory(one), name)
            if place not in checkpoints:
                checkpoints[place] = read_checkpoint(filesystem, *place) or {}
            found.append(checkpoints[place].get((one.topic, one.partition)))
        tasks.append(HistoryTask(one, found[0] or 0, found[1]))
    return tasks


def read_history(task: HistoryTask, options: ReadOptions) -> pa.RecordBatch:
    """The row of one partition. Raises OSError."""
    import pyarrow as pa

    from kcoord.spark.tables.schemas import arrow_schema

    filesystem, _ = options.storage.open()
    one = task.partition
    history = history_start(filesystem, one, task.log_start)
    from_ms = history.time_ms
    row = {
        "log": one.log,
        "log_topic": one.topic,
        "log_partition": one.partition,
        "log_start_offset": max(task.log_start, one.segments[0].base_offset),
        "end_offset": history.end_offset,
        "cleaned_offset": task.cleaned,
        "complete_from_offset": history.offset,
        "history_complete_from": from_ms * 1000 if 0 <= from_ms <= TIME_MS_MAX else None,
    }
    schema = arrow_schema(HISTORY, options.columns)
    return pa.RecordBatch.from_arrays([pa.array([row[field.name]], field.type) for field in schema], schema=schema)


def history_start(filesystem: Any, partition: LogPartition, log_start: int) -> HistoryStart:
    """Compaction and retention may take files away meanwhile; then what is there instead is read. Raises OSError."""
    tries = TRIES_MAX
    while True:
        try:
            history = HistoryStart(log_start)
            for segment in partition.segments:
                history.segment(segment.base_offset)
                for header in _headers(filesystem, segment):
                    history.batch(header)
            return history
        except FileNotFoundError:
            tries -= 1
            like = Slice(partition.log, partition.topic, partition.partition, partition.segments[0], 0, 0, 0)
            now = list_partition(filesystem, partition.path, like)
            if now is None or not tries:
                raise
            partition = now


def _headers(filesystem: Any, segment: SegmentFile) -> Iterator[BatchHeader]:
    """Headers of the batches in a file. What cannot be one is passed over: that leaves a gap. Raises OSError."""
    highest = segment.base_offset + RELATIVE_OFFSET_MAX
    with FileBytes(filesystem, segment.path, segment.size) as file:
        position = 0
        while position + HEADER_BYTES <= file.size:
            chunk = file.pread(CHUNK_BYTES, position)
            at = 0
            try:
                while at + HEADER_BYTES <= len(chunk):
                    header = parse_header(chunk, at, True)
                    if not segment.base_offset <= header.base_offset <= header.last_offset <= highest:
                        raise DecodeError(f"offset {header.base_offset}")
                    if position + at + header.size > file.size:
                        # It is being written, or it was cut.
                        return
                    yield header
                    at += header.size
                position += at
            except DecodeError:
                position = Window(file.pread, file.size).next_valid(position + at + 1, segment.base_offset)
