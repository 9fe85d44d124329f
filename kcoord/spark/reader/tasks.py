"""From a slice to batches of rows: the work of executors. Does not import Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kcoord.core.outcome import METADATA_TOPIC
from kcoord.log.metadata_checkpoint import CHECKPOINT_FILE
from kcoord.log.reader import DamagedBytes
from kcoord.spark.reader.batches import ROWS_PER_BATCH, NotAsPlanned, scan_slice, stored_batches, wanted_range
from kcoord.spark.reader.discovery import list_partition
from kcoord.spark.reader.filesystem import state_of
from kcoord.spark.reader.filters import asked_for
from kcoord.spark.reader.options import ReadOptions
from kcoord.spark.reader.planner import PLANS_MAX, Planner, unsettled
from kcoord.spark.reader.row_filter import RowFilter
from kcoord.spark.reader.segments import GONE, SegmentChanged
from kcoord.spark.reader.slices import NO_FILE, LogPartition, SegmentFile, Slice
from kcoord.spark.scan.records import RecordPicker
from kcoord.spark.tables.arrow import batch_of, schema_of
from kcoord.spark.tables.corrupt import CorruptTable
from kcoord.spark.tables.rows import DecodedTable, RecordPlace
from kcoord.spark.tables.table import COORDINATOR_TOPICS, SliceRequest
from kcoord.wire.compression import DecompressionError
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import BatchHeader, Record

TORN_TAIL = "torn tail: "
# The signs of a torn write: less than a header, less than the header's length, or zeros instead of some or all bytes.
# A crash does not leave other garbage.
TORN = re.compile(r"batch header of |batch of \d+ bytes|zeros|wrong checksum|cut short|the file became shorter")
CORRUPT_ROWS = 10_000
ADVICE = "The option onCorrupt=collect reads on, and the table _corrupt lists what was left out"
# The newest record of each key is looked for among this many records.
NEWEST_ROWS = 4 * ROWS_PER_BATCH
# Records that are kept until they are decoded one by one.
PICKED_MAX = 10_000


class CorruptLog(ValueError):
    """A log has unreadable data; the message gives the place and what to do."""


@dataclass(frozen=True)
class Task:
    """What one executor reads at a time. `names_from` is the metadata log with the names of topics, if needed."""

    part: Slice
    names_from: LogPartition | None = None


def by_log(tasks: Iterable[Task]) -> list[list[Task]]:
    """The tasks of each partition's log, in their order."""
    found: dict[tuple[str, str, int], list[Task]] = {}
    for task in tasks:
        found.setdefault((task.part.log, task.part.topic, task.part.partition), []).append(task)
    return list(found.values())


class Sink:
    """Takes corrupt data: it becomes rows, is left out, or raises. `left` is what must be planned again."""

    def __init__(self, options: ReadOptions, part: Slice) -> None:
        self.part = part
        self.fails = options.fails_on_corrupt
        self.keeps = options.table is CorruptTable
        self.rows: list[tuple[Any, ...]] = []
        self.left: NotAsPlanned | None = None

    def take_item(self, item: DamagedBytes | NotAsPlanned) -> None:
        if isinstance(item, NotAsPlanned):
            self.left = item
        else:
            self._damaged(item)

    def emptied(self) -> None:
        """Nothing is left of the log."""
        part = self.part
        self._add(part.segment.path, 0, 0, 0, emptied_reason(part), self.fails)

    def _damaged(self, item: DamagedBytes) -> None:
        part = self.part
        is_tail = (
            item.position + item.size_bytes >= part.segment.size
            and item.next_offset >= part.tail_from
            and TORN.match(item.reason) is not None
        )
        reason = TORN_TAIL + item.reason if is_tail else item.reason
        self._add(item.file, item.position, item.size_bytes, item.next_offset, reason, self.fails and not is_tail)

    def record(self, offset: int, position: int, reason: str) -> None:
        """A record that cannot be decoded, in the batch at `position`."""
        if self.part.from_offset <= offset < self.part.to_offset:
            self._add(self.part.segment.path, position, 0, offset, reason, self.fails)

    def _add(self, file: str, position: int, size_bytes: int, offset: int, reason: str, fails: bool) -> None:
        part = self.part
        if fails:
            raise CorruptLog(f"{file} at byte {position}, offset {offset}: {reason}. {ADVICE}")
        if self.keeps:
            self.rows.append((part.log, part.topic, part.partition, file, position, size_bytes, offset, reason))

    def take(self) -> pa.RecordBatch:
        rows, self.rows = self.rows, []
        return batch_of(rows, schema_of(CorruptTable))


def emptied_reason(part: Slice) -> str:
    return f"the log has no segment, but was synced up to {part.synced_to}"


def read_task(task: Task, options: ReadOptions, rows: RowFilter | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a slice, in the order of the log. Raises OSError, CorruptLog and DataLoss.

    Compaction and retention may replace or remove the file before it is opened, and on stores where an open file can
    change, also while it is read. The remaining offsets are then read from the files that are there now.
    """
    filesystem, _ = options.storage.open()
    wanted = asked_for(options) if rows is None else rows
    waiting = [task]
    tries, before = 0, -1
    while waiting:
        task = waiting.pop(0)
        sink = Sink(options, task.part)
        if task.part.start == NO_FILE:
            sink.emptied()
            if options.table is CorruptTable:
                yield _chosen(sink.take(), options)
            continue
        yield from _rows(filesystem, task, options, wanted, sink)
        left = sink.left
        if left is None:
            continue
        tries = 1 if left.next_offset > before else tries + 1
        before = max(before, left.next_offset)
        waiting = [Task(part, task.names_from) for part in _replanned(filesystem, task, options, left, tries)] + waiting


def _replanned(filesystem: Any, task: Task, options: ReadOptions, left: NotAsPlanned, tries: int) -> list[Slice]:
    """The rest of a task, from the current files. `tries` is how many plans ended there without progress."""
    part, reason = task.part, f"{left.path}: {left.reason}"
    while tries <= PLANS_MAX:
        try:
            return Planner(filesystem, options).replan(part, left.next_offset)
        except SegmentChanged as change:
            tries, reason = tries + 1, str(change)
    raise unsettled(part.name, reason)


def _rows(filesystem: Any, task: Task, options: ReadOptions, rows: RowFilter, sink: Sink) -> Iterator[pa.RecordBatch]:
    if options.table is CorruptTable:
        yield from _corrupt(filesystem, task, options, sink)
        return
    part = task.part
    request = SliceRequest(
        part,
        wanted_range(part, options.decompressed_bytes_max),
        rows,
        options.columns,
        options.is_newest,
        options.is_committed_only,
        sink.record,
    )
    found = options.table.scan_rows(request)
    if found is None:
        yield from _decoded(filesystem, task, options, sink, rows)
        return
    rows_max = NEWEST_ROWS if options.is_newest else ROWS_PER_BATCH
    for item in scan_slice(filesystem, part, found.scan, rows_max):
        if item is not None:
            sink.take_item(item)
            continue
        batch = found.take()
        if batch is not None:
            yield batch
    batch = found.take()
    if batch is not None:
        yield batch


def _records(
    filesystem: Any,
    part: Slice,
    options: ReadOptions,
    sink: Sink,
    has_producer: bool | None = None,
    with_commits: bool = True,
) -> Iterator[tuple[int, BatchHeader, Record]]:
    """(position, header, record) of all wanted records; with uncommitted records also those of control batches."""
    wanted = wanted_range(part, options.decompressed_bytes_max)
    wanted.has_producer = has_producer
    scan = RecordPicker(wanted, not options.is_committed_only, with_commits)
    for item in scan_slice(filesystem, part, scan, PICKED_MAX):
        if item is None:
            yield from scan.take()
        else:
            sink.take_item(item)
    yield from scan.take()


def _decoded(
    filesystem: Any, task: Task, options: ReadOptions, sink: Sink, rows: RowFilter
) -> Iterator[pa.RecordBatch]:
    part = task.part
    decoder = _decoder(filesystem, task, options, rows)
    place = _place(part)
    found = _records(filesystem, part, options, sink, rows.has_producer, decoder.takes_commits)
    for position, header, record in found:
        try:
            decoder.add(place, record, header)
        except DecodeError as error:
            sink.record(record.offset, position, str(error))
        if decoder.is_full:
            yield decoder.take()
    while len(decoder):
        yield decoder.take()


def _decoder(filesystem: Any, task: Task, options: ReadOptions, rows: RowFilter) -> DecodedTable:
    table = options.table
    if not issubclass(table, DecodedTable):
        raise TypeError(f"the table {table.NAME} has neither scan_rows nor a decoder")
    needs_names = table.NEEDS_TOPIC_NAMES and options.makes("topic")
    return table(options.columns, rows, _topic_names(filesystem, task, options) if needs_names else None)


def _chosen(batch: pa.RecordBatch, options: ReadOptions) -> pa.RecordBatch:
    """The chosen columns of a table that is made with all columns."""
    return batch.select(list(options.columns)) if options.columns else batch


def _place(part: Slice) -> RecordPlace:
    return RecordPlace(part.log, part.topic, part.partition)


def _topic_names(filesystem: Any, task: Task, options: ReadOptions) -> dict[bytes, str]:
    """Topic ids of the data directory's metadata log and its snapshots, as far as those can be read."""
    from kcoord.spark.tables.topic_names import topic_names

    source, reason = task.names_from, ""
    for _ in range(PLANS_MAX):
        if source is None:
            return {}
        try:
            return topic_names(_metadata_records(filesystem, source, options))
        except SegmentChanged as change:
            reason = str(change)
        # A newer snapshot has replaced files.
        source = list_partition(filesystem, source.path, source)
    raise unsettled(task.part.name, reason)


def _metadata_records(filesystem: Any, source: LogPartition, options: ReadOptions) -> list[Record]:
    """Those that can be read. Raises SegmentChanged and OSError."""
    files = list(source.segments)
    for name in source.files:
        if CHECKPOINT_FILE.fullmatch(name):
            path = f"{source.path}/{name}"
            state = state_of(filesystem, path)
            if state is None:
                raise SegmentChanged(path, GONE)
            files.append(SegmentFile(path, 0, state.size))
    records: list[Record] = []
    for file in files:
        part = Slice(source.log, METADATA_TOPIC, 0, file, 0, file.size, file.base_offset)
        for item in stored_batches(filesystem, part):
            if isinstance(item, DamagedBytes) or item.header.is_control:
                continue
            try:
                records += item.records(options.decompressed_bytes_max)
            except (DecodeError, DecompressionError):
                continue
    return records


def _corrupt(filesystem: Any, task: Task, options: ReadOptions, sink: Sink) -> Iterator[pa.RecordBatch]:
    """All damage, and in coordinators' logs all records that a table they belong to cannot show."""
    from kcoord.spark.tables.checks import check_record

    part = task.part
    for position, header, record in _records(filesystem, part, options, sink):
        if part.topic in COORDINATOR_TOPICS:
            try:
                check_record(part.topic, record, header)
            except DecodeError as error:
                sink.record(record.offset, position, str(error))
        if len(sink.rows) >= CORRUPT_ROWS:
            yield _chosen(sink.take(), options)
    yield _chosen(sink.take(), options)
