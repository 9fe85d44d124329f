"""The open batch of a coordinator or metadata log.

Records of all events of one loop turn go into one batch: one header, one checksum, one write. What one event leads to
is never split over two batches, so a batch is atomic for every event in it.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.groups.cause import Cause
from kcoord.core.groups.cause_header import cause_headers
from kcoord.core.outcome import CoordinatorRecord, LogId
from kcoord.engine.partitions import TopicPartition
from kcoord.log.journal import Journal
from kcoord.log.partition_log import PartitionLog
from kcoord.log.serde import encode_metadata_record, encode_record
from kcoord.wire.record_batch import NO_SEQUENCE, BatchBuilder, Headers

# A batch that has grown beyond this is closed before the next event's records (Kafka's own batches are about as big).
BATCH_BYTES_TARGET: Final = 1024 * 1024
# The most that a batch needs for a record beside key and value.
RECORD_OVERHEAD_BYTES: Final = 24


class BatchTooLarge(Exception):
    """One event's records do not fit into an atomic batch."""


@final
class EncodedRecords:
    """One event's records as they go into a batch."""

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        # By position; few records have any.
        self.headers: dict[int, Headers] = {}
        self.size_bytes = 0

    def add_cause(self, cause: Cause) -> None:
        """Why the record that is added next is there."""
        headers, size_bytes = cause_headers(cause)
        self.headers[len(self.keys)] = headers
        self.size_bytes += size_bytes

    def add(self, key: bytes | None, value: bytes | None) -> None:
        self.keys.append(key)
        self.values.append(value)
        self.size_bytes += RECORD_OVERHEAD_BYTES
        if key is not None:
            self.size_bytes += len(key)
        if value is not None:
            self.size_bytes += len(value)


@final
class CoordinatorLog:
    """Appends typed records to a log of ours. `next_offset` is the offset the next record gets."""

    def __init__(
        self,
        log_id: LogId,
        log: PartitionLog,
        partition: TopicPartition | None,
        journal: Journal,
        batch_bytes_max: int,
    ) -> None:
        self.log_id = log_id
        self.log = log
        # Consumers may watch `__consumer_offsets` like any topic; the metadata log is nobody's to fetch.
        self.partition = partition
        self.journal = journal
        self.batch_bytes_max = batch_bytes_max
        self.is_metadata = log_id.topic == "__cluster_metadata"
        self.builder = BatchBuilder()
        self.next_offset = log.end_offset
        # The end of what the commit in flight (or the last one) covers.
        self.written_end = log.end_offset

    def encode(self, records: list[CoordinatorRecord]) -> EncodedRecords:
        """The records of one event. Nothing is changed yet. Raises BatchTooLarge and EncodeError.

        A small request may ask for records of any size, so encoding ends where the batch would be full.
        """
        encoded = EncodedRecords()
        is_metadata = self.is_metadata
        for record in records:
            if is_metadata:
                assert record.value is not None
                encoded.add(None, encode_metadata_record(record.value))
            else:
                assert record.key is not None
                if record.cause is not None:
                    encoded.add_cause(record.cause)
                key, value = encode_record(record.key, record.value)
                encoded.add(key, value)
            if encoded.size_bytes > self.batch_bytes_max:
                raise BatchTooLarge(f"more than {self.batch_bytes_max} bytes of records at once for {self.log_id}")
        return encoded

    def append(self, encoded: EncodedRecords, wall_ms: int) -> int:
        """Put the records of one event into the open batch; the offset of the first one."""
        if self.builder.size_bytes() > BATCH_BYTES_TARGET:
            self.close_batch()
        builder = self.builder
        first = self.next_offset
        count = len(encoded.keys)
        if encoded.headers:
            for i in range(count):
                builder.append(wall_ms, encoded.keys[i], encoded.values[i], encoded.headers.get(i))
        else:
            for i in range(count):
                builder.append(wall_ms, encoded.keys[i], encoded.values[i])
        self.next_offset = first + count
        return first

    def close_batch(self) -> bool:
        """Hand the open batch to the journal; whether there was one."""
        builder = self.builder
        count = int(builder.count)
        if count == 0:
            return False
        base = self.next_offset - count
        epoch = 0 if self.partition is None else self.partition.leader_epoch
        # The broker's coordinators number their batches 0 without having a producer id; its controller does not.
        sequence = NO_SEQUENCE if self.is_metadata else 0
        batch = builder.build(base, epoch, base_sequence=sequence)
        self.journal.append(self.log, batch, base, self.next_offset - 1, int(builder.max_timestamp), epoch)
        self.builder = BatchBuilder()
        return True
