"""Transaction markers: the control batches that commit or abort what a producer wrote to a partition.

`kcoord.log.control_records` builds their batches.

Appending a marker takes these steps, in one turn:

1. The batch goes to the journal, into the open commit.
2. The producer's transaction in this partition ends. The last stable offset stays until the marker is durable: a crash
   before that would open the transaction again.
3. If the transaction is aborted, the segment that has the marker notes that in its transaction index.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.outcome import Marker, Now
from kcoord.engine.partitions import PartitionTable, TopicPartition
from kcoord.log.control_records import end_transaction_batch
from kcoord.log.journal import Journal
from kcoord.protocol.errors import NONE, UNKNOWN_TOPIC_OR_PARTITION
from kcoord.wire.record_batch import (
    LOG_APPEND_TIME,
    parse_header,
    with_log_append_time,
)

NO_OFFSET: Final = -1


def marker_batch(marker: Marker, offset: int, leader_epoch: int, wall_ms: int) -> bytes:
    """The control batch of a marker at `offset`."""
    return end_transaction_batch(
        marker.producer_id,
        marker.producer_epoch,
        marker.is_commit,
        marker.coordinator_epoch,
        offset,
        leader_epoch,
        wall_ms,
    )


def append_marker(journal: Journal, tp: TopicPartition, marker: Marker, batch: bytes, wall_ms: int) -> None:
    """Append a marker's batch, whose base offset is the end of the log, and end the transaction with it."""
    log = tp.log
    header = parse_header(batch)
    offset: int = header.base_offset
    journal.append(log, batch, offset, offset, header.max_timestamp, tp.leader_epoch)
    ended = tp.producers.note_marker(header, offset, marker.coordinator_epoch, wall_ms)
    if ended is not None and not marker.is_commit:
        log.note_aborted(ended.producer_id, ended.first_offset, offset, ended.stable_offset)


@final
class MarkerWriter:
    """Appends markers to data partitions. Those of a coordinator log go through its CoordinatorLog."""

    def __init__(self, table: PartitionTable, journal: Journal) -> None:
        self.table = table
        self.journal = journal

    def check(self, marker: Marker) -> int:
        """The error code that a broker has for the marker; NONE if it may be appended.

        UNKNOWN_TOPIC_OR_PARTITION, INVALID_PRODUCER_EPOCH for an older epoch than the partition knows, or
        TRANSACTION_COORDINATOR_FENCED for an older epoch of the coordinator.
        """
        tp = self.table.find(marker.topic, marker.partition)
        if tp is None:
            return UNKNOWN_TOPIC_OR_PARTITION
        return tp.producers.check_marker(
            marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, marker.transaction_version
        )

    def append_marker(self, tp: TopicPartition, marker: Marker, now: Now) -> int:
        """Append a marker. Returns its offset.

        A marker for a producer without an open transaction is written as well: the coordinator writes markers again if
        it does not know that they are in the log. Call `check` first.
        """
        offset = tp.log.end_offset
        batch = marker_batch(marker, offset, tp.leader_epoch, now.wall_ms)
        served = self.table.topic(tp.topic)
        if served is not None and served.settings.limits.timestamp_type == LOG_APPEND_TIME:
            batch = with_log_append_time(batch, now.wall_ms)
        append_marker(self.journal, tp, marker, batch, now.wall_ms)
        self.table.note_append(tp)
        return offset

    def write(self, marker: Marker, now: Now) -> int:
        """Append a marker if its partition exists and its epoch is not too old. Returns the error code."""
        error = self.check(marker)
        tp = self.table.find(marker.topic, marker.partition)
        if error == NONE and tp is not None:
            self.append_marker(tp, marker, now)
        return error


def open_transactions(tp: TopicPartition) -> list[tuple[int, int, int]]:
    """(producer id, epoch, first offset) of the open transactions of a partition, in order of their first offsets."""
    entries = tp.producers.entries
    return [
        (producer_id, entries[producer_id].epoch, first)
        for producer_id, first in tp.producers.transactions.open.items()
    ]
