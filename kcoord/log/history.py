"""Determines the offset from which a log still holds every record that was ever written to it.

Offsets are written without gaps: the leader assigns one to each record and marker. So every gap was removed by
compaction, retention or DeleteRecords: a batch with fewer records than offsets, offsets missing between two batches, or
offsets missing before the first one. After the last gap the log is complete. The cleaner's checkpoint does not give
this offset: all records below it may still exist, and after a crash it may be too low.

The state at a point is another matter. The cleaner removes a record below its checkpoint if a newer one, also below the
checkpoint, replaces it, and the gap that it leaves may lie before the point. So in a log with gaps states are complete
only from the checkpoint on, or from the last segment on if there is none. The newer record may be one of a transaction,
which counts only from its marker on. So if transactions were open at the checkpoint, states are complete only after
their markers. A transaction without a marker has replaced nothing, since the cleaner stops before it.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.wire.record_batch import DELETE_HORIZON_FLAG, NO_TIMESTAMP, BatchHeader

# The log is complete.
FROM_THE_BEGINNING: Final = 0


@final
class HistoryStart:
    """Fed with a log's segments and their batch headers, in order. `log_start` is the first offset that exists.

    `offset` is where the complete history begins, FROM_THE_BEGINNING if nothing is missing.
    """

    def __init__(self, log_start: int) -> None:
        self.offset = max(log_start, 0)
        self.end_offset = self.offset
        self._first_ms = NO_TIMESTAMP
        self._newest_ms = NO_TIMESTAMP
        self._floor = FROM_THE_BEGINNING
        # At least `_floor`, and after the markers of transactions that were open there.
        self._state_floor = FROM_THE_BEGINNING
        self._state_floor_ms = NO_TIMESTAMP
        # The producers of transactions that began below `_floor` and have no marker so far.
        self._open: set[int] = set()

    @property
    def is_whole(self) -> bool:
        return self.offset == FROM_THE_BEGINNING

    @property
    def time_ms(self) -> int:
        """The timestamp of the first record after the last gap, or of the newest record if none follows the gap.

        NO_TIMESTAMP if the log is complete or has no records."""
        if self.is_whole:
            return NO_TIMESTAMP
        return self._newest_ms if self._first_ms == NO_TIMESTAMP else self._first_ms

    @property
    def state_offset(self) -> int:
        """The offset from which on the state at each point is complete, FROM_THE_BEGINNING if nothing is missing."""
        return self.offset if self.is_whole else max(self.offset, self._state_floor)

    @property
    def state_time_ms(self) -> int:
        """As `time_ms`, for `state_offset`."""
        if self.is_whole or self._state_floor <= self.offset:
            return self.time_ms
        return self._newest_ms if self._state_floor_ms == NO_TIMESTAMP else self._state_floor_ms

    def cleaned_below(self, floor: int) -> None:
        """Records below `floor` may have been removed. Call it before the first batch."""
        self._floor = floor
        self._state_floor = floor

    def batch(self, header: BatchHeader) -> None:
        if header.last_offset < self.end_offset:
            # Below the log's start, or a duplicate of an earlier batch.
            return
        if header.base_offset > self.end_offset:
            self._begin(int(header.base_offset))
        if header.count <= header.last_offset_delta:
            self._begin(int(header.last_offset) + 1)
        elif self._first_ms == NO_TIMESTAMP:
            # The cleaner replaces the base timestamp by the delete horizon. If the log starts inside the batch, its
            # first record does not exist.
            is_horizon = (header.attributes & DELETE_HORIZON_FLAG) != 0
            is_cut = header.base_offset < self.end_offset
            self._first_ms = int(header.max_timestamp if is_horizon or is_cut else header.base_timestamp)
        if self._state_floor_ms == NO_TIMESTAMP and header.last_offset >= self._state_floor:
            self._state_floor_ms = int(header.base_timestamp)
        if header.producer_id >= 0:
            self._follow_transaction(header)
        if header.max_timestamp > self._newest_ms:
            self._newest_ms = int(header.max_timestamp)
        self.end_offset = int(header.last_offset) + 1

    def segment(self, base_offset: int) -> None:
        """A segment begins at `base_offset`: all lower offsets belong to earlier segments. It may be empty."""
        if base_offset > self.end_offset:
            self._begin(base_offset)
            self.end_offset = base_offset

    def _follow_transaction(self, header: BatchHeader) -> None:
        producer_id = int(header.producer_id)
        if not header.is_control:
            if header.base_offset < self._floor:
                self._open.add(producer_id)
            return
        if producer_id not in self._open:
            return
        self._open.remove(producer_id)
        if header.last_offset >= self._floor:
            self._state_floor = int(header.last_offset) + 1
            self._state_floor_ms = NO_TIMESTAMP

    def _begin(self, offset: int) -> None:
        self.offset = offset
        self._first_ms = NO_TIMESTAMP
