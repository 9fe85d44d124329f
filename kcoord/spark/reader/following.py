"""Transactions of growing partitions: another scan costs only what is new.

For each partition this keeps the state of the scan over its batches, with the listed files that it covered. The scan
continues where it ended if these files are still the same, except for those that retention removed from the beginning,
and the last one, which may have grown. The last bytes read of that one are compared first: a log that was truncated and
written again has other bytes there. In all other cases (compaction, another log) everything is scanned again.
"""

from __future__ import annotations

import hashlib
from typing import Any, final

from kcoord.spark.reader.filesystem import FileBytes
from kcoord.spark.reader.segments import open_segment
from kcoord.spark.reader.slices import AbortedRange, LogPartition, SegmentFile
from kcoord.spark.reader.transactions import Transactions, begin_survey, surveyed, walk
from kcoord.spark.scan.columns import TransactionSurvey

# How many bytes are compared before the scan of a grown file continues.
TAIL_BYTES = 16 << 10


@final
class _Walk:
    """The scan of one partition. `files` are those that it covered, the last one up to `position`."""

    def __init__(self, survey: TransactionSurvey, found: set[AbortedRange]) -> None:
        self.survey = survey
        self.found = found
        self.files: list[SegmentFile] = []
        self.position = 0
        self.tail = b""

    def left(self, filesystem: Any, partition: LogPartition) -> tuple[SegmentFile, ...] | None:
        """The segments from the last scanned one on; None if everything must be scanned again.

        Raises SegmentChanged and OSError.
        """
        segments = partition.segments
        kept = [file for file in self.files if file.base_offset >= segments[0].base_offset]
        if not kept:
            return None
        first = next((i for i, one in enumerate(segments) if one.base_offset == kept[0].base_offset), -1)
        last = first + len(kept) - 1
        if first < 0 or last >= len(segments) or list(segments[first:last]) != kept[:-1]:
            return None
        now, before = segments[last], kept[-1]
        if now != before:
            was, is_now = ((one.path, one.base_offset, one.inode) for one in (before, now))
            if was != is_now or now.size < before.size:
                return None
            with open_segment(filesystem, now) as file:
                if _tail(file, self.position) != self.tail:
                    return None
        self.files = kept
        return segments[last:]

    def advance(self, filesystem: Any, segments: tuple[SegmentFile, ...]) -> None:
        """Scan the rest of the first segment, and all of the others. Raises SegmentChanged and OSError."""
        if self.files and list(segments) == self.files[-1:]:
            return
        position = self.position
        del self.files[-1:]
        for number, segment in enumerate(segments):
            with open_segment(filesystem, segment) as file:
                position = walk(file, self.survey, position)
                if number == len(segments) - 1:
                    self.position, self.tail = position, _tail(file, position)
            position = 0
        self.files += segments


@final
class Follower:
    """The scans of the partitions of one filesystem."""

    def __init__(self) -> None:
        # By path.
        self._walks: dict[str, _Walk] = {}

    def transactions_of(self, filesystem: Any, partition: LogPartition) -> Transactions:
        """The same as a walk over the whole partition finds. Raises SegmentChanged and OSError."""
        # A failed scan is not continued.
        known = self._walks.pop(partition.path, None)
        left = known.left(filesystem, partition) if known is not None else None
        if known is None or left is None:
            begin, survey, found = begin_survey(filesystem, partition)
            known, left = _Walk(survey, found), partition.segments[begin:]
        known.advance(filesystem, left)
        self._walks[partition.path] = known
        return surveyed(partition, known.survey, known.found)

    def forget(self, partition: LogPartition, below: int) -> None:
        """Drop aborted transactions that ended below an offset: they are no longer needed."""
        known = self._walks.get(partition.path)
        if known is not None:
            known.found = {one for one in known.found if one.last_offset >= below}

    def keep(self, paths: set[str]) -> None:
        """Forget the partitions that are not among these."""
        self._walks = {path: known for path, known in self._walks.items() if path in paths}


def _tail(file: FileBytes, position: int) -> bytes:
    """What identifies the bytes before `position`."""
    begin = max(position - TAIL_BYTES, 0)
    data = file.pread(position - begin, begin)
    return hashlib.blake2b(data, digest_size=16).digest()
