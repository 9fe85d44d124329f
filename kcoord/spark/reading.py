"""A slice becomes batches of rows: what executors do. Knows nothing of Spark."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from kcoord.core.outcome import METADATA_TOPIC, OFFSETS_TOPIC
from kcoord.log.metadata_checkpoint import CHECKPOINT_FILE
from kcoord.log.reader import DamagedBytes
from kcoord.spark.batches import ROWS_PER_BATCH, NotAsPlanned, scan_slice, stored_batches, wanted_range
from kcoord.spark.commit_scan import CommitScan
from kcoord.spark.discovery import list_partition
from kcoord.spark.filesystem import state_of
from kcoord.spark.filters import RowFilter, asked_for
from kcoord.spark.message_scan import MessageScan
from kcoord.spark.options import (
    ASSIGNMENTS,
    COORDINATOR_TOPICS,
    CORRUPT,
    MESSAGES,
    OFFSET_COMMITS,
    RECORDS,
    ReadOptions,
)
from kcoord.spark.plan import NO_FILE, LogPartition, SegmentFile, Slice
from kcoord.spark.planning import PLANS_MAX, Planner, unsettled
from kcoord.spark.record_scan import RecordPicker, RecordScan
from kcoord.spark.segments import GONE, SegmentChanged
from kcoord.spark.tables.columns import ScannedTable
from kcoord.spark.tables.records import RecordsDecoder
from kcoord.spark.tables.rows import RecordPlace, batch_of
from kcoord.spark.tables.schemas import CORRUPT_SCHEMA
from kcoord.wire.compression import DecompressionError
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import BatchHeader, Record

TORN_TAIL = "torn tail: "
# What is wrong with a batch that was being written: there is less than a header, or less than it says, or zeros in
# place of some or all of it. Bytes that begin otherwise were not left by a crash.
TORN = re.compile(
    r"batch header of |batch of \d+ bytes|zeros|wrong checksum|cut short|the file became shorter"
)
CORRUPT_ROWS = 10_000
ADVICE = "The option onCorrupt=collect reads on, and the table _corrupt lists what was left out"
# Of so many records the newest of each key are looked for.
NEWEST_ROWS = 4 * ROWS_PER_BATCH
# Records that are decoded one by one, and kept until then.
PICKED_MAX = 10_000
DECODERS = {
    RECORDS: ("records", "RecordsDecoder"),
    "group_metadata": ("group_metadata", "GroupMetadataDecoder"),
    "members": ("members", "MembersDecoder"),
    "assignments": ("assignments", "AssignmentsDecoder"),
    "transactions": ("transactions", "TransactionsDecoder"),
}


class CorruptLog(ValueError):
    """Something in the log cannot be read; the message says where and what to do."""


@dataclass(frozen=True)
class Task:
    """What one executor reads at a time. `names_from` is where topic ids get their names from, if that is needed."""

    part: Slice
    names_from: LogPartition | None = None


class Sink:
    """Where corrupt things go: to rows, to nowhere, or up the stack. `left` is what is to be planned again."""

    def __init__(self, options: ReadOptions, part: Slice) -> None:
        self.part = part
        self.fails = options.fails_on_corrupt
        self.keeps = options.table == CORRUPT
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
        self._add(
            item.file, item.position, item.size_bytes, item.next_offset, reason, self.fails and not is_tail
        )

    def record(self, offset: int, position: int, reason: str) -> None:
        """A record that cannot be understood, in the batch at `position`."""
        if self.part.from_offset <= offset < self.part.to_offset:
            self._add(self.part.segment.path, position, 0, offset, reason, self.fails)

    def _add(self, file: str, position: int, size_bytes: int, offset: int, reason: str, fails: bool) -> None:
        part = self.part
        if fails:
            raise CorruptLog(f"{file} at byte {position}, offset {offset}: {reason}. {ADVICE}")
        if self.keeps:
            self.rows.append(
                (part.log, part.topic, part.partition, file, position, size_bytes, offset, reason)
            )

    def take(self) -> pa.RecordBatch:
        rows, self.rows = self.rows, []
        return batch_of(rows, CORRUPT_SCHEMA)


def emptied_reason(part: Slice) -> str:
    return f"the log has no segment, but was synced up to {part.synced_to}"


def read_task(task: Task, options: ReadOptions, rows: RowFilter | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a slice, in the order of the log. Raises OSError, CorruptLog and DataLoss.

    Compaction and retention may exchange the file or take it away, before it is opened or, where an open file does not
    stay what it is, while it is read: then the rest of the offsets is read from what is there instead.
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
            if options.table == CORRUPT:
                yield _chosen(sink.take(), options)
            continue
        yield from _rows(filesystem, task, options, wanted, sink)
        left = sink.left
        if left is None:
            continue
        tries = 1 if left.next_offset > before else tries + 1
        before = max(before, left.next_offset)
        waiting = [Task(part, task.names_from) for part in _replanned(filesystem, task, options, left, tries)] + waiting


def _replanned(
    filesystem: Any, task: Task, options: ReadOptions, left: NotAsPlanned, tries: int
) -> list[Slice]:
    """What is left of a task, from the files as they are now. `tries` ended there without getting on."""
    part, reason = task.part, f"{left.path}: {left.reason}"
    while tries <= PLANS_MAX:
        try:
            return Planner(filesystem, options).replan(part, left.next_offset)
        except SegmentChanged as change:
            tries, reason = tries + 1, str(change)
    raise unsettled(part.name, reason)


def _rows(
    filesystem: Any, task: Task, options: ReadOptions, rows: RowFilter, sink: Sink
) -> Iterator[pa.RecordBatch]:
    if options.table == CORRUPT:
        yield from _corrupt(filesystem, task, options, sink)
        return
    table = _scanned_table(task, options, sink, rows)
    if table is None:
        yield from _decoded(filesystem, task, options, sink, rows)
        return
    rows_max = NEWEST_ROWS if options.is_newest else ROWS_PER_BATCH
    for item in scan_slice(filesystem, task.part, table.scan, rows_max):
        if item is not None:
            sink.take_item(item)
            continue
        batch = table.take()
        if batch is not None:
            yield batch
    batch = table.take()
    if batch is not None:
        yield batch


def _scanned_table(task: Task, options: ReadOptions, sink: Sink, rows: RowFilter) -> ScannedTable | None:
    """The table, if a scan finds all that its rows have; not if records have to be decoded one by one."""
    from kcoord.spark.tables.messages import MessageTable
    from kcoord.spark.tables.offset_commits import CommitTable
    from kcoord.spark.tables.record_rows import RecordTable

    part = task.part
    wanted = wanted_range(part, options.decompressed_bytes_max)
    parts = (options.makes("key"), options.makes("value"), options.makes("headers"))
    if options.table == OFFSET_COMMITS:
        commits = CommitScan(wanted, rows.wants_commit if rows.narrows_commits else None)
        return CommitTable(commits, part, sink.record, options.columns)
    if options.table == MESSAGES:
        return MessageTable(MessageScan(wanted, *parts), part, sink.record, options.columns)
    makes_json = options.makes("key_json") or options.makes("value_json")
    if options.table != RECORDS or makes_json or rows.narrows_records or part.topic == METADATA_TOPIC:
        return None
    wanted.has_producer = rows.has_producer
    decoder = RecordsDecoder(columns=options.columns)
    about = partial(decoder.about, part.topic)
    has_commits = part.topic == OFFSETS_TOPIC and decoder.decodes
    is_framed, with_control = not decoder.decodes, not options.is_committed_only
    with_keys = options.makes("key") or options.is_newest
    records = RecordScan(wanted, about, has_commits, is_framed, with_control, with_keys, *parts[1:])
    return RecordTable(records, part, sink.record, options.columns, options.is_newest)


def _records(
    filesystem: Any,
    part: Slice,
    options: ReadOptions,
    sink: Sink,
    has_producer: bool | None = None,
    with_commits: bool = True,
) -> Iterator[tuple[int, BatchHeader, Record]]:
    """(position, header, record) of all records that are wanted; control batches where uncommitted ones are."""
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


def _decoder(filesystem: Any, task: Task, options: ReadOptions, rows: RowFilter) -> Any:
    module, name = DECODERS[options.table]
    kind = getattr(importlib.import_module(f"kcoord.spark.tables.{module}"), name)
    if options.table == ASSIGNMENTS:
        names = _topic_names(filesystem, task, options) if options.makes("topic") else {}
        return kind(names, columns=options.columns, wanted=rows)
    return kind(columns=options.columns, wanted=rows)


def _chosen(batch: pa.RecordBatch, options: ReadOptions) -> pa.RecordBatch:
    """The columns that were asked for, where the table is made as a whole."""
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
        # A newer snapshot took the place of files.
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
    """All damage, and for logs of coordinators all records that a table they belong to cannot show."""
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
