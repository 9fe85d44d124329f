"""The aborted transactions of a segment: `<base offset>.txnindex`, in Kafka's format.

An entry (34 bytes) stands in the index of the segment that has the abort marker:

    0 version int16 (0)       10 first offset int64     26 last stable offset int64
    2 producer id int64       18 offset of the marker int64

The last stable offset is the one after the marker was appended. The entries are in the order of their markers, so it
never decreases, and a search for the transactions in a range of offsets ends at the first entry whose last stable
offset is not below the range. Segments without aborted transactions have no such file.

Like the other indexes, entries are kept in memory and written when the segment is closed. After a crash the index of
the last segment is built from its batches (`TransactionSurvey`), and from the transactions that were open before it:
those in the producer snapshot at its base offset.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from typing import Final

from kcoord.log.errors import InvalidIndex
from kcoord.wire.compression import DecompressionError
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import BatchHeader, decode_records

ENTRY: Final = struct.Struct(">hqqqq")
VERSION: Final = 0
ABORT: Final = 0
COMMIT: Final = 1
NO_OFFSET: Final = -1
BLOCK: Final = 256
# The size limit of a marker's batch if it is compressed.
MARKER_BYTES_MAX: Final = 4096
TYPE_END: Final = 4


class AbortedTransaction:
    """A transaction that ended with an abort marker at `last_offset`."""

    def __init__(self, producer_id: int, first_offset: int, last_offset: int, stable_offset: int) -> None:
        self.producer_id = producer_id
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.stable_offset = stable_offset

    def encode(self) -> bytes:
        """An entry of a `.txnindex` file, version 0."""
        return ENTRY.pack(VERSION, self.producer_id, self.first_offset, self.last_offset, self.stable_offset)


class TransactionIndex:
    """The entries of one segment, in columns: a segment may have many."""

    def __init__(self) -> None:
        # The smallest first offset of every BLOCK entries: below a long transaction thousands of others may end, and a
        # search must not look at each of them.
        self._block_firsts: array[int] = array("q")
        self.producer_ids: array[int] = array("q")
        self.first_offsets: array[int] = array("q")
        self.last_offsets: array[int] = array("q")
        self.stable_offsets: array[int] = array("q")

    def __len__(self) -> int:
        return len(self.last_offsets)

    def add(self, producer_id: int, first_offset: int, last_offset: int, stable_offset: int) -> None:
        if len(self) % BLOCK == 0:
            self._block_firsts.append(first_offset)
        elif first_offset < self._block_firsts[-1]:
            self._block_firsts[-1] = first_offset
        self.producer_ids.append(producer_id)
        self.first_offsets.append(first_offset)
        self.last_offsets.append(last_offset)
        self.stable_offsets.append(stable_offset)

    def entry(self, i: int) -> AbortedTransaction:
        return AbortedTransaction(
            self.producer_ids[i], self.first_offsets[i], self.last_offsets[i], self.stable_offsets[i]
        )

    def collect(self, first_offset: int, end_offset: int, found: list[AbortedTransaction]) -> bool:
        """Add the transactions that have records from `first_offset` up to `end_offset`, exclusive.

        Returns whether later segments have no more of them.
        """
        i = bisect_left(self.last_offsets, first_offset)
        last = bisect_left(self.stable_offsets, end_offset, i)
        is_complete = last < len(self)
        end = min(last + 1, len(self))
        while i < end:
            beyond = min((i // BLOCK + 1) * BLOCK, end)
            if self._block_firsts[i // BLOCK] < end_offset:
                for k in range(i, beyond):
                    if self.first_offsets[k] < end_offset:
                        found.append(self.entry(k))
            i = beyond
        return is_complete

    def encode(self) -> bytes:
        """The contents of the file."""
        return b"".join(self.entry(i).encode() for i in range(len(self)))


def decode_index(data: bytes, base_offset: int) -> TransactionIndex:
    """The index of the segment at `base_offset`. Raises InvalidIndex."""
    if len(data) % ENTRY.size:
        raise InvalidIndex(f"{len(data)} bytes are not a whole number of entries")
    index = TransactionIndex()
    last = base_offset - 1
    for version, producer_id, first_offset, last_offset, stable_offset in ENTRY.iter_unpack(data):
        if version != VERSION or first_offset > last_offset or last_offset <= last:
            raise InvalidIndex(f"entry {len(index)} is inconsistent")
        last = last_offset
        index.add(producer_id, first_offset, last_offset, stable_offset)
    return index


def marker_type(buf: bytes, header: BatchHeader) -> int:
    """ABORT or COMMIT; -1 for another control batch, or one that cleaning has emptied."""
    try:
        records = decode_records(buf, header.pos, header, MARKER_BYTES_MAX)
    except (DecodeError, DecompressionError):
        return -1
    key = records[0].key if records else None
    if key is None or len(key) < TYPE_END:
        return -1
    return int.from_bytes(key[2:TYPE_END], "big", signed=True)


class TransactionSurvey:
    """Follows the transactions through the batches of a segment, to build its index.

    `add` gets each batch in order. What was open before the first one is only needed for `build`, and only if there are
    abort markers.
    """

    def __init__(self) -> None:
        # A producer, and the offset of its first batch in a transaction (NO_OFFSET) or of a marker (its type).
        self._steps: list[tuple[int, int, int]] = []
        self._open: dict[int, int] = {}
        self.has_aborts = False

    def add(self, header: BatchHeader, buf: bytes) -> None:
        if header.producer_id < 0 or not header.is_transactional:
            return
        producer_id = int(header.producer_id)
        if not header.is_control:
            if producer_id not in self._open:
                self._open[producer_id] = header.base_offset
                self._steps.append((producer_id, int(header.base_offset), NO_OFFSET))
            return
        kind = marker_type(buf, header)
        if kind in (ABORT, COMMIT):
            self._open.pop(producer_id, None)
            self._steps.append((producer_id, int(header.last_offset), kind))
            self.has_aborts = self.has_aborts or kind == ABORT

    def build(self, open_before: dict[int, int]) -> TransactionIndex:
        """The index, if `open_before` was open before the segment: first offsets by producer id, ascending."""
        index = TransactionIndex()
        is_open = dict(open_before)
        for producer_id, offset, kind in self._steps:
            if kind == NO_OFFSET:
                is_open.setdefault(producer_id, offset)
                continue
            first = is_open.pop(producer_id, NO_OFFSET)
            if kind == ABORT and first >= 0:
                index.add(producer_id, first, offset, next(iter(is_open.values()), offset + 1))
        return index
