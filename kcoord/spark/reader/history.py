"""The rows of the table `_history`: from which offset on each partition's log is complete.

One task reads the headers of one partition's batches, and no records. `kcoord.log.history` has the rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kcoord.log.directory import CLEANER_OFFSETS, LOG_START_OFFSETS
from kcoord.log.history import HistoryStart
from kcoord.log.reader import RELATIVE_OFFSET_MAX, Window
from kcoord.spark.reader.batches import CHUNK_BYTES
from kcoord.spark.reader.discovery import NothingToRead
from kcoord.spark.reader.options import ReadOptions
from kcoord.spark.reader.planner import Planner
from kcoord.spark.reader.roots import open_logs
from kcoord.spark.reader.row_filter import RowFilter
from kcoord.spark.reader.segments import SegmentChanged, open_segment
from kcoord.spark.reader.slices import TIME_MS_MAX, LogPartition, SegmentFile
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import HEADER_BYTES, BatchHeader, parse_header

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class HistoryTask:
    """A partition, with its offsets in the checkpoints of its data directory; `cleaned` is None without one."""

    partition: LogPartition
    log_start: int
    cleaned: int | None


def plan_history(options: ReadOptions, rows: RowFilter) -> list[HistoryTask]:
    """A task for each partition that is wanted. Raises NothingToRead and OSError."""
    filesystem, _, partitions = open_logs(options)
    if not partitions:
        raise NothingToRead(f"{options.storage.path}: no segments of partitions at or below it")
    planner = Planner(filesystem, options)
    tasks = []
    for one in partitions:
        if not rows.wants_partition(one) or not options.wants(one):
            continue
        cleaned = (planner.checkpoint(one, CLEANER_OFFSETS) or {}).get((one.topic, one.partition))
        log_start = (planner.checkpoint(one, LOG_START_OFFSETS) or {}).get((one.topic, one.partition), 0)
        tasks.append(HistoryTask(one, log_start, cleaned))
    return tasks


def read_history(task: HistoryTask, options: ReadOptions) -> pa.RecordBatch:
    """The row of one partition. Raises UnsettledFiles and OSError."""
    import pyarrow as pa

    from kcoord.spark.tables.arrow import schema_of

    schema = schema_of(options.table, options.columns)
    filesystem, _ = options.storage.open()
    one = task.partition
    planner = Planner(filesystem, replace(options, fail_on_data_loss=False))
    history = planner.settled(one, lambda now: history_start(filesystem, now, task.log_start, task.cleaned))
    if history is None:
        raise FileNotFoundError(f"{one.name}: it was removed while it was read")
    row = {
        "log": one.log,
        "log_topic": one.topic,
        "log_partition": one.partition,
        "log_start_offset": max(task.log_start, one.segments[0].base_offset),
        "end_offset": history.end_offset,
        "cleaned_offset": task.cleaned,
        "complete_from_offset": history.offset,
        "history_complete_from": _micros(history.time_ms),
        "state_complete_from_offset": history.state_offset,
        "state_complete_from": _micros(history.state_time_ms),
    }
    return pa.RecordBatch.from_arrays([pa.array([row[field.name]], field.type) for field in schema], schema=schema)


def _micros(time_ms: int) -> int | None:
    return time_ms * 1000 if 0 <= time_ms <= TIME_MS_MAX else None


def history_start(filesystem: Any, partition: LogPartition, log_start: int, cleaned: int | None = None) -> HistoryStart:
    """Find out from where on the log is complete; `cleaned` is the cleaner's checkpoint.

    Raises OSError, and SegmentChanged if files were exchanged.
    """
    history = HistoryStart(log_start)
    history.cleaned_below(partition.segments[-1].base_offset if cleaned is None else cleaned)
    for segment in partition.segments:
        history.segment(segment.base_offset)
        for header in _headers(filesystem, segment):
            history.batch(header)
    return history


def _headers(filesystem: Any, segment: SegmentFile) -> Iterator[BatchHeader]:
    """Headers of the batches in a file. Damage is skipped, and so leaves a gap.

    Raises SegmentChanged and OSError.
    """
    highest = segment.base_offset + RELATIVE_OFFSET_MAX
    with open_segment(filesystem, segment) as file:
        position = 0
        while position + HEADER_BYTES <= file.size:
            chunk = file.pread(CHUNK_BYTES, position)
            if len(chunk) < HEADER_BYTES:
                raise SegmentChanged(segment.path, "it was truncated while it was read")
            at = 0
            try:
                while at + HEADER_BYTES <= len(chunk):
                    header = parse_header(chunk, at, True)
                    if not segment.base_offset <= header.base_offset <= header.last_offset <= highest:
                        raise DecodeError(f"offset {header.base_offset}")
                    if position + at + header.size > file.size:
                        # It is being written, or it is truncated.
                        return
                    yield header
                    at += header.size
                position += at
            except DecodeError:
                position = Window(file.pread, file.size).next_valid(position + at + 1, segment.base_offset)
