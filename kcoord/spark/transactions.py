"""What a partition's transactions hide: the ranges of aborted ones, and where the oldest open one begins."""

from __future__ import annotations

import struct
from typing import Any, final

from kcoord.core.producers import decode_snapshot
from kcoord.log.reader import Window
from kcoord.spark.batches import CHUNK_BYTES, INDEX_BYTES_MAX
from kcoord.spark.filesystem import FileBytes, read_file
from kcoord.spark.plan import INT64_MAX, AbortedRange, LogPartition
from kcoord.spark.scan import TransactionSurvey
from kcoord.wire.primitives import DecodeError

# Version, producer id, first offset, last offset, last stable offset.
ENTRY = struct.Struct(">hqqqq")


@final
class Transactions:
    """Below `stable_end` every transaction of the partition has ended; at `end_offset` the log ends."""

    def __init__(self, aborted: list[AbortedRange], stable_end: int, end_offset: int = INT64_MAX) -> None:
        self.aborted = aborted
        self.stable_end = stable_end
        self.end_offset = end_offset


def transactions_of(filesystem: Any, partition: LogPartition) -> Transactions:
    """From the indexes of aborted transactions and the newest producer snapshot, and behind that from the batches.

    A log without a snapshot that can be read is walked from its beginning, by headers. Raises OSError.
    """
    survey = TransactionSurvey()
    for segment in partition.segments[_begin(filesystem, partition, survey) :]:
        with FileBytes(filesystem, segment.path, segment.size) as file:
            _walk(file, survey)
    found = {AbortedRange(producer, first, last) for producer, first, last in survey.aborted}
    for segment in partition.segments:
        path = partition.beside(segment, ".txnindex")
        if path is not None:
            found.update(_indexed(filesystem, path))
    stable_end = min(survey.open_since.values(), default=INT64_MAX)
    ordered = sorted(found, key=lambda one: (one.first_offset, one.producer_id))
    return Transactions(ordered, stable_end, max(survey.end_offset, partition.segments[-1].base_offset))


def _begin(filesystem: Any, partition: LogPartition, survey: TransactionSurvey) -> int:
    """The number of the first segment to be walked, once `survey` knows what a snapshot says of those before."""
    for number in range(len(partition.segments) - 1, 0, -1):
        path = partition.beside(partition.segments[number], ".snapshot")
        if path is None:
            continue
        try:
            entries = decode_snapshot(read_file(filesystem, path, INDEX_BYTES_MAX))
        except DecodeError:
            continue
        for entry in entries:
            if entry.txn_first_offset >= 0:
                survey.open_since[entry.producer_id] = entry.txn_first_offset
        return number
    return 0


def _walk(file: FileBytes, survey: TransactionSurvey) -> None:
    position = 0
    wanted = CHUNK_BYTES
    while position < file.size:
        chunk = file.pread(wanted, position)
        at = survey.feed(chunk, file.size - position - len(chunk))
        position += at + survey.skip
        if at == 0 and survey.skip == 0:
            if survey.needs > len(chunk) and position + survey.needs <= file.size:
                wanted = survey.needs
                continue
            window = Window(file.pread, file.size)
            position = window.next_valid(position + 1)
        wanted = CHUNK_BYTES


def _indexed(filesystem: Any, path: str) -> list[AbortedRange]:
    """What a `.txnindex` file says; an entry that cannot be ends it."""
    data = read_file(filesystem, path, INDEX_BYTES_MAX)
    found: list[AbortedRange] = []
    for at in range(0, len(data) - ENTRY.size + 1, ENTRY.size):
        version, producer, first, last, _stable = ENTRY.unpack_from(data, at)
        if version != 0 or first < 0 or last < first:
            break
        found.append(AbortedRange(producer, first, last))
    return found
