"""The open batch of a coordinator or metadata log.

Records of all events of one turn go into one batch: one header, one checksum, one write. The records of one event are
never split over two batches, so they are atomic.

Records that belong to a transaction get a batch of their own, since the id and epoch of the producer are in the header
of a batch; so does a marker, which is a control batch. Both close the open batch first, so that offsets ascend. The
producer state of the partition learns of them when they are appended: the last stable offset must not pass the first
record of an open transaction.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.cause import Cause
from kcoord.core.groups.cause_header import cause_headers
from kcoord.core.outcome import CoordinatorRecord, LogId, Marker, TransactionalProducer
from kcoord.engine.markers import append_marker, marker_batch
from kcoord.engine.partitions import TopicPartition
from kcoord.log.journal import Journal
from kcoord.log.partition_log import PartitionLog
from kcoord.log.serde import encode_metadata_record, encode_record
from kcoord.wire.record_batch import NO_SEQUENCE, BatchBuilder, Headers, parse_header

# A batch that exceeds this is closed before the next event's records. Kafka's own batches are about as large.
BATCH_BYTES_TARGET: Final = 1024 * 1024
# The largest overhead of a record besides key and value.
RECORD_OVERHEAD_BYTES: Final = 24


class BatchTooLarge(Exception):
    """The records of one event do not fit into an atomic batch."""


@final
class EncodedRecords:
    """The encoded records of one event."""

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        # Headers by position in the list. Few records have any.
        self.headers: dict[int, Headers] = {}
        self.size_bytes = 0

    def add_cause(self, cause: Cause) -> None:
        """Set the cause of the record that is added next."""
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
    """Appends typed records to one of the server's own logs. The next record gets `next_offset`."""

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
        # Consumers may read `__consumer_offsets` like any topic; no client may fetch the metadata log.
        self.partition = partition
        self.journal = journal
        self.batch_bytes_max = batch_bytes_max
        self.is_metadata = log_id.topic == "__cluster_metadata"
        self.builder = BatchBuilder()
        # How many records of the open batch may wait for the next commit.
        self.may_wait = 0
        self.next_offset = log.end_offset
        # The end of the commit in flight, or of the last one.
        self.written_end = log.end_offset
        # Whether a batch went to the journal since the last write.
        self.has_closed = False

    def encode(self, records: list[CoordinatorRecord]) -> EncodedRecords:
        """Encode the records of one event. Nothing changes yet. Raises BatchTooLarge and EncodeError.

        A small request may cause records of any size, so encoding stops as soon as they exceed the batch.
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

    def append(self, encoded: EncodedRecords, wall_ms: int, producer: TransactionalProducer | None = None) -> int:
        """Append the records of one event: to the open batch, or to one of their own if they belong to a transaction
        of `producer`. Returns the offset of the first one.
        """
        if producer is not None:
            self.close_batch()
            first = self._add(encoded, wall_ms)
            self._close_transactional(producer, wall_ms)
            return first
        self.make_room()
        return self._add(encoded, wall_ms)

    def make_room(self) -> None:
        """Close the open batch if it is large, before the records of one event are added to it."""
        if self.builder.size_bytes() > BATCH_BYTES_TARGET:
            self.close_batch()

    def _add(self, encoded: EncodedRecords, wall_ms: int) -> int:
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
        """Pass the open batch to the journal. Returns whether there was one."""
        builder = self.builder
        count = int(builder.count)
        if count == 0:
            return False
        base = self.next_offset - count
        epoch = 0 if self.partition is None else self.partition.leader_epoch
        # A broker's coordinators number their batches 0 without a producer id; its controller does not.
        sequence = NO_SEQUENCE if self.is_metadata else 0
        batch = builder.build(base, epoch, base_sequence=sequence)
        self._pass_on(batch, base, epoch, int(builder.max_timestamp))
        return True

    def append_marker(self, marker: Marker, wall_ms: int) -> int:
        """Append the marker that ends a transaction in this log. Returns its offset."""
        self.close_batch()
        partition = self.partition
        if partition is None:
            raise RuntimeError(f"{self.log_id} has no transactions")
        offset = self.next_offset
        batch = marker_batch(marker, offset, partition.leader_epoch, wall_ms)
        append_marker(self.journal, partition, marker, batch, wall_ms)
        self.next_offset = offset + 1
        self.has_closed = True
        return offset

    def is_urgent(self) -> bool:
        """Whether the open batch has a record that may not wait for the next commit."""
        return int(self.builder.count) > self.may_wait

    def take_closed(self) -> bool:
        """Whether a batch went to the journal since the last call."""
        has_closed = self.has_closed
        self.has_closed = False
        return has_closed

    def _close_transactional(self, producer: TransactionalProducer, wall_ms: int) -> None:
        """Pass the open batch to the journal as part of a transaction, numbered like all batches of a coordinator."""
        base = self.next_offset - int(self.builder.count)
        epoch = 0 if self.partition is None else self.partition.leader_epoch
        batch = self.builder.build(base, epoch, producer.producer_id, producer.producer_epoch, 0, transactional=True)
        self._pass_on(batch, base, epoch, int(self.builder.max_timestamp))
        if self.partition is not None:
            self.partition.producers.note(parse_header(batch), self.next_offset - 1, wall_ms)

    def _pass_on(self, batch: bytes, base: int, leader_epoch: int, max_timestamp: int) -> None:
        self.journal.append(self.log, batch, base, self.next_offset - 1, max_timestamp, leader_epoch)
        self.builder = BatchBuilder()
        self.may_wait = 0
        self.has_closed = True
