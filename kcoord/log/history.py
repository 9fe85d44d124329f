"""From where on a log still holds every record that was written to it.

The offsets of a log have no gaps of their own: a leader gives one to each record and marker. What compaction,
retention or DeleteRecords removed is a gap: batches with fewer records than offsets, offsets between two batches, or
offsets before the first one. After the last gap nothing is missing. The cleaner's checkpoint cannot say this: below it
all records may still be there, and a crash before it was written leaves one that is too low.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.wire.record_batch import DELETE_HORIZON_FLAG, NO_TIMESTAMP, BatchHeader

# The whole history is there.
FROM_THE_BEGINNING: Final = 0


@final
class HistoryStart:
    """Takes a log's segments and the headers of their batches, in order. `log_start` is the first offset that exists.

    `offset` is where complete history begins, FROM_THE_BEGINNING if nothing is missing.
    """

    def __init__(self, log_start: int) -> None:
        self.offset = max(log_start, 0)
        self.end_offset = self.offset
        self._first_ms = NO_TIMESTAMP
        self._newest_ms = NO_TIMESTAMP

    @property
    def is_whole(self) -> bool:
        return self.offset == FROM_THE_BEGINNING

    @property
    def time_ms(self) -> int:
        """The timestamp of the first record of complete history; that of the newest record where none follows the
        last gap. NO_TIMESTAMP if the whole history is there, or no record at all."""
        if self.is_whole:
            return NO_TIMESTAMP
        return self._newest_ms if self._first_ms == NO_TIMESTAMP else self._first_ms

    def batch(self, header: BatchHeader) -> None:
        if header.last_offset < self.end_offset:
            # Below the log's start, or a copy of what came before.
            return
        if header.base_offset > self.end_offset:
            self._begin(int(header.base_offset))
        if header.count <= header.last_offset_delta:
            self._begin(int(header.last_offset) + 1)
        elif self._first_ms == NO_TIMESTAMP:
            # The cleaner puts the time at which tombstones may go in the place of the first record's. Of a batch that
            # the log's start is in, the first record does not exist.
            is_horizon = (header.attributes & DELETE_HORIZON_FLAG) != 0
            is_cut = header.base_offset < self.end_offset
            self._first_ms = int(header.max_timestamp if is_horizon or is_cut else header.base_timestamp)
        if header.max_timestamp > self._newest_ms:
            self._newest_ms = int(header.max_timestamp)
        self.end_offset = int(header.last_offset) + 1

    def segment(self, base_offset: int) -> None:
        """A segment begins there: all offsets below belong to those before. It may stay empty."""
        if base_offset > self.end_offset:
            self._begin(base_offset)
            self.end_offset = base_offset

    def _begin(self, offset: int) -> None:
        self.offset = offset
        self._first_ms = NO_TIMESTAMP
