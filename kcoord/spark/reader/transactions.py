"""What a partition's transactions hide: the ranges of aborted ones, and where the oldest open one begins."""

from __future__ import annotations

import struct
from typing import Any, final

from kcoord.core.producers import decode_snapshot
from kcoord.log.reader import Window
from kcoord.spark.reader.batches import CHUNK_BYTES, INDEX_BYTES_MAX
from kcoord.spark.reader.filesystem import FileBytes, FileTooLarge, read_file, state_of
from kcoord.spark.reader.segments import SegmentChanged, difference
from kcoord.spark.reader.slices import INT64_MAX, AbortedRange, LogPartition
from kcoord.spark.scan.columns import TransactionSurvey
from kcoord.wire.primitives import DecodeError

# Version, producer id, first offset, last offset, last stable offset.
ENTRY = struct.Struct(">hqqqq")


@final
class Transactions:
    """Below `stable_end` every transaction of the partition has ended; at `end_offset` the log ends.

    `still_open` are those that have not ended, as if they had been aborted at the end of the log.
    """

    def __init__(
        self, aborted: list[AbortedRange], stable_end: int, end_offset: int = INT64_MAX,
        still_open: list[AbortedRange] | None = None,
    ) -> None:  # fmt: skip
        self.aborted = aborted
        self.stable_end = stable_end
        self.end_offset = end_offset
        self.still_open = still_open or []


def begin_survey(filesystem: Any, partition: LogPartition) -> tuple[int, TransactionSurvey, set[AbortedRange]]:
    """The number of the first segment to scan, and the transactions of those before it.

    Raises SegmentChanged and OSError.
    """
    survey = TransactionSurvey()
    begin = _begin(filesystem, partition, survey)
    found: set[AbortedRange] = set()
    for number in range(begin):
        indexed = _indexed(filesystem, partition, number)
        if indexed is None:
            return 0, TransactionSurvey(), set()
        found.update(indexed)
    return begin, survey, found


def surveyed(partition: LogPartition, survey: TransactionSurvey, found: set[AbortedRange]) -> Transactions:
    """The result of a survey that reached the end of the partition; its aborted transactions are added to `found`."""
    found.update(AbortedRange(producer, first, last) for producer, first, last in survey.aborted)
    survey.aborted = []
    stable_end = min(survey.open_since.values(), default=INT64_MAX)
    ordered = sorted(found, key=lambda one: (one.first_offset, one.producer_id))
    end_offset = max(survey.end_offset, partition.segments[-1].base_offset)
    still_open = [AbortedRange(producer, first, INT64_MAX) for producer, first in sorted(survey.open_since.items())]
    return Transactions(ordered, stable_end, end_offset, still_open)


def _begin(filesystem: Any, partition: LogPartition, survey: TransactionSurvey) -> int:
    """The number of the first segment to scan, after `survey` got the snapshot for those before."""
    for number in range(len(partition.segments) - 1, 0, -1):
        path = partition.beside(partition.segments[number], ".snapshot")
        if path is None:
            continue
        try:
            entries = decode_snapshot(read_file(filesystem, path, INDEX_BYTES_MAX))
        except (DecodeError, FileTooLarge):
            continue
        for entry in entries:
            if entry.txn_first_offset >= 0:
                survey.open_since[entry.producer_id] = entry.txn_first_offset
        return number
    return 0


def walk(file: FileBytes, survey: TransactionSurvey, position: int) -> int:
    """Feed all batches from `position` on to `survey`; where the last of them ends."""
    done = position
    wanted = CHUNK_BYTES
    while position < file.size:
        chunk = file.pread(wanted, position)
        if not chunk:
            # The file became shorter meanwhile.
            break
        at = survey.feed(chunk, file.size - position - len(chunk))
        position += at + survey.skip
        if at == 0 and survey.skip == 0:
            if wanted < survey.needs and position + survey.needs <= file.size:
                wanted = survey.needs
                continue
            window = Window(file.pread, file.size)
            position = window.next_valid(position + 1)
        else:
            done = position
        wanted = CHUNK_BYTES
    return done


def _indexed(filesystem: Any, partition: LogPartition, number: int) -> list[AbortedRange] | None:
    """The entries in the `.txnindex` of a segment that is not the last; None if the index is invalid.

    Entries are in the order of their markers, which are in the segment.
    """
    segment = partition.segments[number]
    path = partition.beside(segment, ".txnindex")
    if path is None:
        return []
    try:
        data = read_file(filesystem, path, INDEX_BYTES_MAX)
    except FileTooLarge:
        return None
    # A broker replaces a segment before its index: the index belongs to this segment if the segment is still the same.
    if reason := difference(segment, state_of(filesystem, segment.path)):
        raise SegmentChanged(segment.path, reason)
    if len(data) % ENTRY.size:
        return None
    found: list[AbortedRange] = []
    lowest, beyond = segment.base_offset, partition.segments[number + 1].base_offset
    for at in range(0, len(data), ENTRY.size):
        version, producer, first, last, stable = ENTRY.unpack_from(data, at)
        if version != 0 or producer < 0 or not 0 <= first <= last or not lowest <= last < beyond or stable > last + 1:
            return None
        lowest = last + 1
        found.append(AbortedRange(producer, first, last))
    return found
