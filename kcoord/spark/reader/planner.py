"""From partitions to slices: where reading begins and ends, and where large segments may be split.

Indexes are hints. An entry is used only if a batch with exactly that offset begins at that position and has a valid
checksum; without one a segment is read from its beginning.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from kcoord.log.directory import LOG_START_OFFSETS, META_PROPERTIES, RECOVERY_POINTS, parse_properties
from kcoord.log.reader import RELATIVE_OFFSET_MAX, Window
from kcoord.log.record_format import OFFSETS_TOPIC, format_1_end
from kcoord.spark.reader.batches import CHUNK_BYTES, INDEX_BYTES_MAX, NotAsPlanned, scan_slice
from kcoord.spark.reader.discovery import data_directory, list_partition, read_checkpoint
from kcoord.spark.reader.filesystem import FileTooLarge, read_file
from kcoord.spark.reader.following import Follower
from kcoord.spark.reader.options import (
    EARLIEST_OFFSET,
    LATEST,
    LATEST_OFFSET,
    ByPartition,
    ReadOptions,
)
from kcoord.spark.reader.segments import SegmentChanged, UnsettledFiles, open_segment
from kcoord.spark.reader.slices import INT64_MAX, NO_FILE, AbortedRange, LogPartition, SegmentFile, Slice
from kcoord.spark.reader.transactions import Transactions
from kcoord.spark.scan.columns import ScanRange
from kcoord.spark.scan.messages import MessageScan
from kcoord.spark.tables.corrupt import CorruptTable
from kcoord.wire.record_batch import BatchHeader, parse_header

# Relative offset of a batch's last record, and the batch's position.
OFFSET_ENTRY = struct.Struct(">ii")
# Largest timestamp so far, and the relative offset of its batch.
TIME_ENTRY = struct.Struct(">qi")
# The largest meta.properties, which has a few lines.
PROPERTIES_BYTES_MAX = 1 << 20
# How often a partition is planned in a row without progress, because its files have changed each time. A task opens
# files milliseconds after the listing, and brokers replace files of a partition every few seconds at most.
PLANS_MAX = 10

Result = TypeVar("Result")


class Planner:
    """Plans slices of partitions in one filesystem. `follower` knows their transactions from earlier plans."""

    def __init__(self, filesystem: Any, options: ReadOptions, follower: Follower | None = None) -> None:
        self.filesystem = filesystem
        self.follower = follower or Follower()
        self.options = options
        self._checkpoints: dict[tuple[str, str], dict[tuple[str, int], int] | None] = {}
        # meta.properties of each data directory.
        self._properties: dict[str, dict[str, str]] = {}

    def plan(self, partitions: list[LogPartition]) -> list[Slice]:
        """Slices of all that is wanted, in the order of logs, partitions and offsets. Raises OSError."""
        wanted = [one for one in partitions if self.options.wants(one)]
        self.check_offsets("startingOffsets", self.options.starting_by_partition, wanted)
        self.check_offsets("endingOffsets", self.options.ending_by_partition, wanted)
        total = sum(segment.size for one in wanted for segment in one.segments)
        most = self.options.bytes_per_partition
        if self.options.min_partitions > 1:
            most = max(min(most, total // self.options.min_partitions), 1)
        slices: list[Slice] = []
        for partition in wanted:
            planned = self.settled(partition, lambda now: self._whole(now, most))
            slices += planned or []
        return slices

    def _whole(self, partition: LogPartition, bytes_max: int) -> list[Slice]:
        return self.between(partition, self.start_of(partition), self.end_of(partition), bytes_max)

    def settled(self, partition: LogPartition, work: Callable[[LogPartition], Result]) -> Result | None:
        """The result of `work` on the partition; with a newer listing if its files have changed.

        None if the partition is gone and `failOnDataLoss` is false. Raises DataLoss, UnsettledFiles and OSError.
        """
        for _ in range(PLANS_MAX):
            try:
                return work(partition)
            except SegmentChanged as change:
                reason = change
            now = list_partition(self.filesystem, partition.path, partition)
            if now is None:
                self.lost(f"{partition.name} was removed while it was listed")
                return None
            partition = now
        raise unsettled(partition.name, str(reason))

    # --- where reading begins and ends

    def log_start(self, partition: LogPartition) -> int:
        """The first offset that exists: DeleteRecords may have moved it into a segment."""
        starts = self.checkpoint(partition, LOG_START_OFFSETS) or {}
        return max(starts.get((partition.topic, partition.partition), 0), partition.segments[0].base_offset)

    def durable_end(self, partition: LogPartition) -> int:
        """Below this offset the log was synced; its first offset without a checkpoint."""
        marks = self.checkpoint(partition, RECOVERY_POINTS) or {}
        return marks.get((partition.topic, partition.partition), partition.segments[0].base_offset)

    def synced_to(self, partition: LogPartition) -> int:
        """The durable mark: the log was on disk up to this offset, so it must not end below it; 0 without one."""
        marks = self.checkpoint(partition, RECOVERY_POINTS) or {}
        return marks.get((partition.topic, partition.partition), 0)

    def emptied(self, root: str, found: list[LogPartition]) -> list[Slice]:
        """A slice without a file for each partition that has a directory and a durable mark, but no segment.

        `found` are all partitions below `root`. A missing directory means nothing: copies may leave out some.
        """
        slices: list[Slice] = []
        paths = {one.path for one in found}
        directories = {data_directory(one): one for one in found if f"{data_directory(one)}/".startswith(f"{root}/")}
        for directory, like in directories.items():
            marks = self.checkpoint(like, RECOVERY_POINTS) or {}
            for (topic, number), mark in sorted(marks.items()):
                path = f"{directory}/{topic}-{number}"
                one = LogPartition(like.log, topic, number, path, ())
                if mark == 0 or path in paths or not self.options.wants(one):
                    continue
                if self.filesystem.get_file_info(path).type.name == "Directory":
                    file = SegmentFile(path, 0, 0)
                    slices.append(Slice(one.log, topic, number, file, NO_FILE, NO_FILE, 0, synced_to=mark))
        return slices

    def checkpoint(self, partition: LogPartition, name: str) -> dict[tuple[str, int], int] | None:
        """A checkpoint of the partition's data directory, read once; None where there is none."""
        directory = data_directory(partition)
        if (directory, name) not in self._checkpoints:
            self._checkpoints[(directory, name)] = read_checkpoint(self.filesystem, directory, name)
        return self._checkpoints[(directory, name)]

    def format_1_end(self, partition: LogPartition) -> int:
        """Below this offset records have format 1 (record_format.py)."""
        if partition.topic != OFFSETS_TOPIC:
            return 0
        directory = data_directory(partition)
        if directory not in self._properties:
            path = f"{directory}/{META_PROPERTIES}"
            self._properties[directory] = parse_properties(read_file(self.filesystem, path, PROPERTIES_BYTES_MAX))
        try:
            return format_1_end(self._properties[directory], partition.topic, partition.partition)
        except ValueError:
            raise ValueError(f"{directory}/{META_PROPERTIES} is damaged: its format cannot be read") from None

    def start_of(self, partition: LogPartition) -> int:
        options = self.options
        key = (partition.topic, partition.partition)
        log_start = self.log_start(partition)
        if key in options.starting_ms_by_partition:
            return self.offset_at(partition, options.starting_ms_by_partition[key])
        if key in options.starting_by_partition:
            offset = options.starting_by_partition[key]
            if offset == LATEST_OFFSET:
                return INT64_MAX
            if offset == EARLIEST_OFFSET:
                return log_start
            if offset < log_start:
                self.lost(
                    f"{partition.topic}-{partition.partition} in {partition.log} begins at {log_start}, "
                    f"offset {offset} is gone"
                )
            return max(offset, log_start)
        if options.starting_ms > -INT64_MAX:
            return self.offset_at(partition, options.starting_ms)
        return INT64_MAX if options.starting_offsets == LATEST else log_start

    def check_offsets(self, option: str, offsets: ByPartition, partitions: list[LogPartition]) -> None:
        """Offsets in an option must exist, as in Spark's Kafka source. Raises DataLoss and OSError."""
        for (topic, number), offset in offsets.items():
            found = [one for one in partitions if (one.topic, one.partition) == (topic, number)]
            if not found:
                self.lost(f"{option} has {topic}-{number}, which is not among the partitions that are read")
            for one in found:
                end = self.settled(one, self._end_offset) if offset > 0 else None
                if end is not None and offset > end:
                    self.lost(f"{topic}-{number} in {one.log} ends at {end}, before offset {offset} of {option}")

    def _end_offset(self, partition: LogPartition) -> int:
        """The log's end; INT64_MAX if that is below its durable mark, which the read itself reports."""
        end = self.follower.transactions_of(self.filesystem, partition).end_offset
        return end if end >= self.synced_to(partition) else INT64_MAX

    def end_of(self, partition: LogPartition) -> int:
        options = self.options
        key = (partition.topic, partition.partition)
        if key in options.ending_ms_by_partition:
            return self.offset_at(partition, options.ending_ms_by_partition[key])
        if key in options.ending_by_partition:
            offset = options.ending_by_partition[key]
            return INT64_MAX if offset == LATEST_OFFSET else offset
        if options.ending_ms < INT64_MAX:
            return self.offset_at(partition, options.ending_ms)
        return INT64_MAX

    def offset_at(self, partition: LogPartition, timestamp_ms: int) -> int:
        """The first offset whose record is not older than that time; INT64_MAX if there is none."""
        last = len(partition.segments) - 1
        for number, segment in enumerate(partition.segments):
            if number < last and self._newest(partition, segment) < timestamp_ms:
                continue
            wanted = ScanRange(0, INT64_MAX, timestamp_ms, INT64_MAX, {}, self.options.decompressed_bytes_max)
            scan = MessageScan(wanted, with_keys=False, with_values=False, with_headers=False)
            offset = self._first_row(partition, segment, scan)
            if offset is not None:
                return offset
        return INT64_MAX

    def _newest(self, partition: LogPartition, segment: SegmentFile) -> int:
        """The largest timestamp in the time index of a closed segment; INT64_MAX without an index."""
        path = partition.beside(segment, ".timeindex")
        if path is None:
            return INT64_MAX
        data = _hints(self.filesystem, path)
        if len(data) < TIME_ENTRY.size or len(data) % TIME_ENTRY.size:
            return INT64_MAX
        newest = max(TIME_ENTRY.unpack_from(data, at)[0] for at in range(0, len(data), TIME_ENTRY.size))
        return newest if newest > 0 else INT64_MAX

    def _first_row(self, partition: LogPartition, segment: SegmentFile, scan: MessageScan) -> int | None:
        part = Slice(
            partition.log, partition.topic, partition.partition, segment, 0, segment.size, segment.base_offset,
            tried_at=INT64_MAX,
        )  # fmt: skip
        for item in scan_slice(self.filesystem, part, scan, 1):
            if item is None:
                break
            if isinstance(item, NotAsPlanned):
                raise SegmentChanged(item.path, item.reason)
        columns = scan.take()
        if columns.count == 0:
            return None
        return int.from_bytes(columns.offsets.getvalue()[:8], "little", signed=True)

    # --- slices

    def replan(self, part: Slice, next_offset: int) -> list[Slice]:
        """The rest of a slice from `next_offset` on, in the current files, after its file has changed.

        Raises DataLoss if its beginning is gone and that must not be skipped, SegmentChanged and OSError.
        """
        directory, _, _ = part.segment.path.rpartition("/")
        partition = list_partition(self.filesystem, directory, part)
        is_hidden = part.from_offset == INT64_MAX
        lowest = next_offset if is_hidden else max(part.from_offset, next_offset)
        if partition is None or partition.segments[0].base_offset > lowest:
            self.lost(f"{part.name}: offset {lowest} was removed while it was read")
        if partition is None:
            return []
        end = lowest + 1 if is_hidden and not part.synced_to else part.to_offset
        found: list[Slice] = []
        for segment, beyond, tail_from in self._segments(partition, lowest, end, part.synced_to):
            is_last = segment is partition.segments[-1]
            for one in self._cut(partition, _as_planned(segment, part), lowest, beyond, INT64_MAX, tail_from):
                found.append(
                    dataclasses.replace(
                        part, segment=one.segment, start=one.start, end=one.end, next_offset=one.next_offset,
                        from_offset=INT64_MAX if is_hidden else lowest, to_offset=min(part.to_offset, beyond),
                        tail_from=tail_from, tried_at=next_offset, synced_to=part.synced_to if is_last else 0,
                    )
                )  # fmt: skip
        return found

    def _segments(
        self, partition: LogPartition, start: int, end: int, synced_to: int = 0
    ) -> list[tuple[SegmentFile, int, int]]:
        """Segments that may have records from `start` and below `end`, with the offset beyond, and `tail_from`.

        Includes an empty one at the log's end, if the log must reach `synced_to`.
        """
        found: list[tuple[SegmentFile, int, int]] = []
        beyond = INT64_MAX
        last = partition.segments[-1]
        for segment in reversed(partition.segments):
            is_cut = segment is last and segment.base_offset < synced_to
            if beyond > start and (is_cut or (segment.base_offset < end and segment.size > 0)):
                found.append((segment, beyond, self.durable_end(partition) if segment is last else INT64_MAX))
            beyond = min(self._begins_at(segment), beyond)
            if beyond <= start:
                break
        return found[::-1]

    def _begins_at(self, segment: SegmentFile) -> int:
        """Where the segment before it ends at the latest: at the offset in this one's name, unless damage is left out.

        Then a file that is not a segment, despite its name, does not shorten the one before it.
        """
        if self.options.fails_on_corrupt or segment.size == 0:
            return segment.base_offset
        with open_segment(self.filesystem, segment) as file:
            window = Window(file.pread, file.size)
            header = _header_at(window, 0) or _header_at(window, window.next_valid(1))
        if header is None or not 0 <= header.base_offset - segment.base_offset <= RELATIVE_OFFSET_MAX:
            return INT64_MAX
        return header.base_offset

    def lost(self, message: str) -> None:
        """Raises DataLoss, unless losses are to be skipped."""
        if self.options.fail_on_data_loss:
            raise DataLoss(f"{message}; failOnDataLoss=false reads what is there")

    def between(
        self, partition: LogPartition, start: int, end: int, bytes_max: int, asked_end: int = -1
    ) -> list[Slice]:
        """Slices of the partition's records from offset `start` and below `end`. Raises SegmentChanged and OSError.

        If records are missing below `asked_end` (by default `end`), the last slice reports it.
        """
        transactions = Transactions([], INT64_MAX)
        if self.options.is_committed_only and self.options.table is not CorruptTable:
            transactions = self.follower.transactions_of(self.filesystem, partition)
        stable_end = min(end, transactions.stable_end)
        left_out = transactions.aborted
        if partition.topic == OFFSETS_TOPIC:
            # What others wrote after an open transaction has its effect in a coordinator at once. A transaction may
            # stay open for long: whatever is read must not miss all that came after it.
            stable_end, left_out = end, [*left_out, *transactions.still_open]
        synced_to = min(self.synced_to(partition), end if asked_end < 0 else asked_end)
        if synced_to <= start:
            synced_to = 0
        slices: list[Slice] = []
        # What is hidden reaches to the end.
        for segment, beyond, tail_from in self._segments(
            partition, start, stable_end, synced_to if stable_end == end else 0
        ):
            slices += self._cut(partition, segment, start, min(stable_end, beyond), bytes_max, tail_from)
        if stable_end < end:
            slices += self._hidden(partition, max(start, stable_end), end, synced_to)
        if slices and slices[-1].segment is partition.segments[-1]:
            slices[-1] = dataclasses.replace(slices[-1], synced_to=synced_to)
        older = self.format_1_end(partition)
        if not left_out and not older:
            return slices
        return [dataclasses.replace(one, aborted=_overlapping(left_out, one), format_1_end=older) for one in slices]

    def _hidden(self, partition: LogPartition, start: int, end: int, synced_to: int) -> list[Slice]:
        """Segments after the beginning of an open transaction, which are read for damage only.

        The marker that ended the transaction may be damaged.
        """
        return [
            Slice(
                partition.log, partition.topic, partition.partition, segment, 0, segment.size, segment.base_offset,
                INT64_MAX, INT64_MAX, tail_from=tail_from,
            )
            for segment, _, tail_from in self._segments(partition, start, end, synced_to)
        ]  # fmt: skip

    def _cut(
        self,
        partition: LogPartition,
        segment: SegmentFile,
        start: int,
        end: int,
        bytes_max: int,
        tail_from: int,
    ) -> Iterator[Slice]:
        """A segment in slices that are not much larger than `bytes_max`, from a position at or before `start`."""
        first = 0
        cuts: list[tuple[int, int]] = []
        # Most segments are read whole; planning does not open these.
        entries: list[tuple[int, int]] = []
        # To skip the beginning of a small segment is not worth looking into its index.
        is_skipped = start > segment.base_offset and segment.size > CHUNK_BYTES // 8
        if is_skipped or segment.size > bytes_max:
            entries = self._entries(partition, segment)
        if entries:
            with open_segment(self.filesystem, segment) as file:
                window = Window(file.pread, file.size)
                for offset, position in reversed(entries):
                    if offset < start and _batch_at(window, position, offset) is not None:
                        first = position
                        break
                begin = first
                for offset, position in entries:
                    if position - begin < bytes_max or offset >= end:
                        continue
                    header = _batch_at(window, position, offset)
                    if header is not None:
                        # The index has a batch's last offset, the next slice begins with its first one.
                        cuts.append((position, header.base_offset))
                        begin = position
        points = [(first, segment.base_offset), *cuts]
        for i, (position, next_offset) in enumerate(points):
            upto, to_offset = points[i + 1] if i + 1 < len(points) else (segment.size, end)
            yield Slice(
                partition.log, partition.topic, partition.partition, segment, position, upto, next_offset,
                max(start, 0), min(to_offset, end), tail_from=tail_from,
            )  # fmt: skip

    def _entries(self, partition: LogPartition, segment: SegmentFile) -> list[tuple[int, int]]:
        """(offset, position) of the plausible entries in the segment's index."""
        path = partition.beside(segment, ".index")
        if path is None:
            return []
        data = _hints(self.filesystem, path)
        entries: list[tuple[int, int]] = []
        before = (-1, 0)
        for at in range(0, len(data) - OFFSET_ENTRY.size + 1, OFFSET_ENTRY.size):
            relative, position = OFFSET_ENTRY.unpack_from(data, at)
            # A preallocated index ends in zeros.
            if relative <= before[0] or position <= before[1] or position >= segment.size:
                break
            before = (relative, position)
            entries.append((segment.base_offset + relative, position))
        return entries


class DataLoss(Exception):
    """Requested records are gone."""


def unsettled(name: str, reason: str) -> UnsettledFiles:
    return UnsettledFiles(
        f"{name}: its files were exchanged {PLANS_MAX} times while they were about to be read; the last time {reason}. "
        "Read a copy or a snapshot of the log"
    )


def _as_planned(segment: SegmentFile, part: Slice) -> SegmentFile:
    """Drop the inode of a file that is the same otherwise: some file systems report another one each time."""
    before = dataclasses.replace(part.segment, inode=segment.inode, is_last=segment.is_last)
    return dataclasses.replace(segment, inode=0) if segment == before != part.segment else segment


def _hints(filesystem: Any, path: str) -> bytes:
    """An index file; empty if it is too large to be valid."""
    try:
        return read_file(filesystem, path, INDEX_BYTES_MAX)
    except FileTooLarge:
        return b""


def _batch_at(window: Window, position: int, last_offset: int) -> BatchHeader | None:
    """The header of the batch at `position`, if there is one with that last offset."""
    header = _header_at(window, position)
    return header if header is not None and header.last_offset == last_offset else None


def _header_at(window: Window, position: int) -> BatchHeader | None:
    """The header of the batch at `position`, if there is one whose checksum is right."""
    batch = window.batch_at(position)
    return None if isinstance(batch, str) else parse_header(batch)


def _overlapping(ranges: list[AbortedRange], part: Slice) -> tuple[AbortedRange, ...]:
    return tuple(one for one in ranges if one.last_offset >= part.next_offset and one.first_offset < part.to_offset)
