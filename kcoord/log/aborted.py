"""The aborted transactions of a log, from the indexes of its segments, which are built here if they are not valid."""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import Final

from kcoord.log.errors import InvalidIndex
from kcoord.log.segment import Segment
from kcoord.log.snapshot_files import SnapshotFiles, offsets_of_files
from kcoord.log.storage import Storage
from kcoord.log.transaction_index import (
    ABORT,
    COMMIT,
    AbortedTransaction,
    TransactionIndex,
    TransactionSurvey,
    marker_type,
)
from kcoord.wire.crc import crc32c

# A producer snapshot: version, checksum of what follows, number of entries; of each entry the producer id, and the
# first offset of its open transaction. The core reads all of it, but the log does not import the core.
SNAPSHOT_HEAD: Final = struct.Struct(">hIi")
SNAPSHOT_ENTRY: Final = struct.Struct(">q30xq")
SNAPSHOT_VERSION: Final = 1
SNAPSHOT_CRC_FROM: Final = 6
SNAPSHOT_ENTRIES_AT: Final = 10


def rebuild_index(
    survey: TransactionSurvey, earlier: list[Segment], snapshots: SnapshotFiles, base_offset: int
) -> TransactionIndex:
    """The index of the segment at `base_offset`, whose batches are in `survey`. `earlier` are the segments before it.

    Raises LogDamaged.
    """
    before: dict[int, int] = {}
    if survey.has_aborts and earlier:
        before = open_before(earlier, snapshots, base_offset)
    return survey.build(before)


def rebuild_indexes(storage: Storage, directory: str, base_offset: int, interval: int) -> None:
    """Write all indexes of the segment at `base_offset` again. Raises BadBatch, LogDamaged and OSError."""
    bases = [base for base in offsets_of_files(storage, directory, ".log") if base <= base_offset]
    segments = [Segment(storage, directory, base, interval).existing() for base in bases]
    segment = segments[-1]
    survey = TransactionSurvey()
    try:
        segment.rescan(contiguous=False, survey=survey)
        snapshots = SnapshotFiles(storage, directory)
        segment.set_transactions(rebuild_index(survey, segments[:-1], snapshots, base_offset))
        segment.save_indexes()
    finally:
        for one in segments:
            one.close()


def open_before(segments: list[Segment], snapshots: SnapshotFiles, end_offset: int) -> dict[int, int]:
    """The transactions that are open where `segments` end: first offsets by producer id, ascending. Raises LogDamaged.

    From the newest readable producer snapshot, and the batches after it.
    """
    start = 0
    found: dict[int, int] = {}
    for offset in snapshots.offsets():
        if offset <= end_offset:
            firsts = _open_in_snapshot(snapshots, offset)
            if firsts is not None:
                start, found = offset, firsts
                break
    for i, segment in enumerate(segments):
        beyond = segments[i + 1].base_offset if i + 1 < len(segments) else end_offset
        if beyond <= start:
            continue
        for header, data in segment.batches(segment.position_before(start), False):
            if header.base_offset >= start and header.producer_id >= 0 and header.is_transactional:
                producer_id = int(header.producer_id)
                if not header.is_control:
                    found.setdefault(producer_id, int(header.base_offset))
                elif marker_type(data, header) in (ABORT, COMMIT):
                    found.pop(producer_id, None)
    return found


def _open_in_snapshot(snapshots: SnapshotFiles, offset: int) -> dict[int, int] | None:
    """The open transactions in a producer snapshot; None if it is not readable."""
    try:
        data = snapshots.read(offset)
    except OSError:
        return None
    entries = data[SNAPSHOT_ENTRIES_AT:]
    if len(data) < SNAPSHOT_ENTRIES_AT or len(entries) % SNAPSHOT_ENTRY.size:
        return None
    version, crc, count = SNAPSHOT_HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION or crc != crc32c(data[SNAPSHOT_CRC_FROM:]):
        return None
    if count * SNAPSHOT_ENTRY.size != len(entries):
        return None
    firsts = [(first, producer_id) for producer_id, first in SNAPSHOT_ENTRY.iter_unpack(entries) if first >= 0]
    return {producer_id: first for first, producer_id in sorted(firsts)}


def collect_aborted(
    segments: list[Segment],
    bases: list[int],
    snapshots: SnapshotFiles,
    offset: int,
    last_offset: int,
    end_offset: int,
) -> list[AbortedTransaction]:
    """See PartitionLog.aborted_transactions. `bases` are the base offsets of `segments`, a log up to `end_offset`."""
    last = max(bisect_right(bases, last_offset) - 1, 0)
    upper = segments[last].offset_after(last_offset)
    if upper < 0:
        upper = bases[last + 1] if last + 1 < len(bases) else end_offset
    found: list[AbortedTransaction] = []
    for i in range(max(bisect_right(bases, offset) - 1, 0), len(segments)):
        if index_of(segments, i, snapshots).collect(offset, upper, found):
            break
    return found


def has_aborted(segments: list[Segment], bases: list[int], snapshots: SnapshotFiles, offset: int) -> bool:
    """Whether the segment of `offset` or a later one has an entry. Raises LogDamaged."""
    for i in range(max(bisect_right(bases, offset) - 1, 0), len(segments)):
        if len(index_of(segments, i, snapshots)):
            return True
    return False


def index_of(segments: list[Segment], i: int, snapshots: SnapshotFiles) -> TransactionIndex:
    """The index of the i-th segment. If its file is not valid, it is built from the segment. Raises LogDamaged."""
    segment = segments[i]
    try:
        return segment.transactions()
    except InvalidIndex:
        survey = TransactionSurvey()
        for header, data in segment.batches(0, False):
            survey.add(header, data)
        index = rebuild_index(survey, segments[:i], snapshots, segment.base_offset)
        segment.set_transactions(index)
        return index
