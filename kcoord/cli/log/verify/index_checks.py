"""Compares a segment with its other files: indexes, producer snapshots.

An index is valid if a lookup cannot miss its target. The batch at an entry's position must begin at or below the
entry's offset (older brokers write the last offset of several batches), and no batch up to an entry of the time index
may be newer than the entry's timestamp.
"""

from __future__ import annotations

import os
from typing import Final, final

from kcoord.cli.log.verify.findings import Findings
from kcoord.core.producers import decode_snapshot
from kcoord.log.inspect import PartitionFiles, SegmentFile
from kcoord.log.segment import INDEX_ENTRY_BYTES, TIME_ENTRY_BYTES
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import BatchHeader

SNAPSHOT_NAME_DIGITS: Final = 20


def read_entries(path: str, size: int, first_bytes: int) -> list[tuple[int, int]]:
    """(first, second) number of each entry of an index file, without the zeros that brokers preallocate at the end.

    Raises OSError.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return []
    entries = []
    for at in range(0, len(data) - size + 1, size):
        first = int.from_bytes(data[at : at + first_bytes], "big", signed=True)
        second = int.from_bytes(data[at + first_bytes : at + size], "big", signed=True)
        entries.append((first, second))
    while entries and entries[-1] == (0, 0):
        entries.pop()
    return entries


@final
class IndexChecks:
    """Compares the indexes of one segment with its batches as they are read."""

    def __init__(self, log: str, segment: SegmentFile, findings: Findings) -> None:
        self.log = log
        self.findings = findings
        self.index_path = segment.beside(".index")
        self.time_path = segment.beside(".timeindex")
        base = segment.base_offset
        # Offsets by position; an entry is removed when its batch is read.
        self._positions: dict[int, int] = {}
        last_offset, last_position = -1, -1
        for number, (offset, position) in enumerate(read_entries(self.index_path, INDEX_ENTRY_BYTES, 4)):
            if offset < 0 or base + offset <= last_offset or position <= last_position:
                self._wrong(self.index_path, number * INDEX_ENTRY_BYTES, "its entries are not ascending")
                break
            last_offset, last_position = base + offset, position
            self._positions[position] = base + offset
        self._times: list[tuple[int, int]] = []
        for number, (timestamp, offset) in enumerate(read_entries(self.time_path, TIME_ENTRY_BYTES, 8)):
            if self._times and (timestamp < self._times[-1][0] or base + offset < self._times[-1][1]):
                self._wrong(self.time_path, number * TIME_ENTRY_BYTES, "its entries are not ascending")
                break
            self._times.append((timestamp, base + offset))
        self._next_time = 0

    def _wrong(self, path: str, position: int, message: str, offset: int = -1) -> None:
        self.findings.error("index", self.log, message, path, position, offset)

    def note(self, position: int, header: BatchHeader) -> None:
        offset = self._positions.pop(position, None)
        if offset is not None and header.base_offset > offset:
            text = f"its entry for offset {offset} points at the batch of {header.base_offset}, byte {position}"
            self._wrong(self.index_path, -1, text, offset)
        while self._next_time < len(self._times) and self._times[self._next_time][1] < header.last_offset:
            self._next_time += 1
        if self._next_time < len(self._times):
            timestamp, upto = self._times[self._next_time]
            if header.max_timestamp > timestamp:
                text = f"a batch up to offset {upto} is newer than {timestamp}, the timestamp of its entry"
                self._wrong(self.time_path, -1, text, int(header.base_offset))

    def finish(self, end_offset: int) -> None:
        """Called after the last batch of the segment, which ends at `end_offset`."""
        for position, offset in self._positions.items():
            self._wrong(self.index_path, -1, f"its entry points at byte {position}, where no batch begins", offset)
        if self._times and self._times[-1][1] >= end_offset:
            text = f"its last entry is for offset {self._times[-1][1]}, the segment ends at {end_offset}"
            self._wrong(self.time_path, -1, text)


def check_snapshots(files: PartitionFiles, end_offset: int, findings: Findings) -> None:
    """Check the checksum of producer snapshots, and that the log reaches their offset. Raises OSError."""
    for name in sorted(os.listdir(files.path)):
        stem, _, suffix = name.partition(".")
        if suffix != "snapshot" or len(stem) != SNAPSHOT_NAME_DIGITS or not stem.isdecimal():
            continue
        path = os.path.join(files.path, name)
        with open(path, "rb") as file:
            data = file.read()
        try:
            entries = decode_snapshot(data)
        except DecodeError as error:
            # Opening the log ignores an invalid snapshot.
            findings.error("producer snapshot", files.name, str(error), path)
            continue
        if int(stem) > end_offset:
            text = f"the log ends at {end_offset}, before the snapshot's offset {int(stem)}"
            findings.warning("producer snapshot", files.name, text, path)
        for entry in entries:
            last = entry.batches[-1].last_offset if entry.batches else -1
            if last >= int(stem):
                text = f"producer {entry.producer_id} has a batch at {last}, after the snapshot's offset"
                findings.error("producer snapshot", files.name, text, path, -1, last)
