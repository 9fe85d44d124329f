"""Idempotent producers: who gets which producer id, and the state that each partition has of each producer (KIP-98).

Producer ids come from blocks. A ProducerIdsRecord in the metadata log reserves a block before its first id is used, and
after a restart the next block starts after the last reserved one: ids may be skipped, but are never reused.

Per partition and producer, the state is the epoch and the last five batches. It distinguishes a repeated batch (which
is answered with its first offsets) from the next batch, a batch that is out of sequence and a batch of an older epoch.
The state follows from the partition's log: `rebuild` derives it from batch headers, or it comes from a snapshot file
and the headers after that. A producer that the partition does not know may start with any sequence number, since its
earlier records may have been deleted.

Nothing checks that an id was ever issued: a client may have it from before a topic was imported or a directory was
recreated, and a broker accepts it. So clients can invent ids, and the state has limits (`ProducerPool`). A partition at
its limit forgets those of its own producers that have been idle for the longest time. A broker does the same with
idle producers: it accepts the next batch of such a producer, whatever its sequence number. Only a retry of a batch
whose answer was lost would be appended twice.

Transactional ids have their producer ids from the same blocks; see core/transactions.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.open_transactions import EndedTransaction, OpenTransactions
from kcoord.core.outcome import Event, Now, Outcome, Reply, Request
from kcoord.core.topics.registry import TopicRegistry
from kcoord.protocol.errors import (
    INVALID_PRODUCER_EPOCH,
    INVALID_REQUEST,
    INVALID_TXN_STATE,
    NONE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    TRANSACTION_COORDINATOR_FENCED,
    UNKNOWN_SERVER_ERROR,
)
from kcoord.protocol.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kcoord.protocol.records.producer_ids_record import ProducerIdsRecord
from kcoord.wire.crc import crc32c
from kcoord.wire.primitives import (
    BytesWriter,
    DecodeError,
    Reader,
    write_int16,
    write_int32,
    write_int64,
    write_uint32,
)
from kcoord.wire.record_batch import BatchHeader

INT32_MAX: Final = 2147483647
NO_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_OFFSET: Final = -1
NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
EPOCH_MAX: Final = 32767
# The epoch of the coordinator in a marker that ends a transaction which the coordinator does not know.
NO_COORDINATOR: Final = -2
# From this version of transactions on, a marker has the epoch after that of the transaction (KIP-890).
EPOCH_BUMP_FROM: Final = 2

# A producer has at most five requests in flight, so a repeated batch is one of the last five.
BATCHES_KEPT: Final = 5

# From this many producers on, a partition looks for idle ones.
SWEEP_MIN: Final = 1024
# The shortest time between two such searches on behalf of other partitions.
SWEEP_INTERVAL_MS: Final = 60_000
# Limits of producers in all partitions together and in each; see the settings. Each takes about 400 bytes of memory.
PRODUCERS_MAX: Final = 200_000
PARTITION_PRODUCERS_MAX: Final = 20_000
# A partition may always remember this many, whatever the others use.
PARTITION_PRODUCERS_MIN: Final = 16
# A partition at its limit forgets this part of its producers at once, so that the search costs each new one little.
FORGET_SHARE: Final = 8

SNAPSHOT_VERSION: Final = 1
# Version and checksum precede the bytes that the checksum covers.
SNAPSHOT_ENTRIES_AT: Final = 6
SNAPSHOT_ENTRY_BYTES: Final = 46


@final
class ProducerIdsReserved(Event):
    """The reservation of producer ids below `end` is durable."""

    def __init__(self, end: int) -> None:
        self.end = end


@final
class ProducerIds:
    """Assigns producer ids. The end of the reserved block is hard state
    (`topics.next_producer_id`), the rest is soft.
    """

    def __init__(self, config: CoreConfig, topics: TopicRegistry) -> None:
        self.config = config
        self.topics = topics
        self.next_id = 0
        self.block_end = 0
        # Ids below this one are durably reserved.
        self.durable_end = 0
        # Transactional ids use the ids below this one, which an imported metadata log may not have reserved.
        self.used_end = 0
        # Events that wait for a reservation to be durable.
        self.waiting: list[Event] = []

    def handle_init_producer_id(self, request: Request, body: InitProducerIdRequest, now: Now) -> Outcome:
        """A new producer id with epoch 0, for a producer without a transactional id.

        A request that names an id and an epoch (version 3, KIP-360) gets a new id as well, like on a broker: an
        idempotent producer bumps its epoch itself.
        """
        out = Outcome()
        if (body.producer_id == NO_PRODUCER_ID) != (body.producer_epoch == NO_EPOCH):
            out.reply(request.request_id, InitProducerIdResponse(0, INVALID_REQUEST, NO_PRODUCER_ID, NO_EPOCH))
            return out
        if self.next_id == self.block_end:
            self._reserve(out)
        response = InitProducerIdResponse(0, NONE, self.next_id, 0)
        self.next_id += 1
        if out.records:
            out.reply(request.request_id, response)
        else:
            # No id is sent before the reservation of its block is durable.
            wait_offset = self.topics.producer_ids_offset
            out.replies.append(Reply(request.request_id, response, self.topics.log, wait_offset))
        return out

    def take(self) -> int:
        """A new id that may be stored at once, in any log; NO_PRODUCER_ID if none is durably reserved: then `wait`."""
        if self.next_id >= self.durable_end:
            return NO_PRODUCER_ID
        producer_id = self.next_id
        self.next_id += 1
        return producer_id

    def wait(self, event: Event, out: Outcome) -> None:
        """Have the event handled when there are durably reserved ids."""
        self.waiting.append(event)
        if self.next_id == self.block_end:
            self._reserve(out)

    def handle_reserved(self, event: ProducerIdsReserved, now: Now) -> Outcome:
        """A block is durable: go on with what waits for it."""
        out = Outcome()
        self.durable_end = max(self.durable_end, event.end)
        out.follow_ups.extend(self.waiting)
        self.waiting = []
        return out

    def _reserve(self, out: Outcome) -> None:
        """Add the record that reserves the next block. The outcome has no other records."""
        self.next_id = max(self.topics.next_producer_id, self.used_end)
        self.block_end = self.next_id + self.config.producer_id_block_size
        record = ProducerIdsRecord(self.config.node_id, 0, self.block_end)
        out.add(self.topics.log, None, record)
        out.once_durable = [ProducerIdsReserved(self.block_end)]


@final
class SeenBatch:
    """A batch that a producer wrote. `timestamp_ms` is the largest timestamp of the batch."""

    def __init__(self, last_sequence: int, last_offset: int, offset_delta: int, timestamp_ms: int) -> None:
        self.last_sequence = last_sequence
        self.last_offset = last_offset
        self.offset_delta = offset_delta
        self.timestamp_ms = timestamp_ms

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        """The sequence of the first record. After sequence 2^31 - 1 follows 0."""
        return (self.last_sequence - self.offset_delta) & INT32_MAX


@final
class ProducerEntry:
    """The state of one producer in a partition. `seen_ms` is the time of its last batch, -1 if that was before
    start-up.
    """

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: list[SeenBatch] = []
        self.timestamp_ms = NO_TIMESTAMP
        self.coordinator_epoch = -1
        self.txn_first_offset = NO_OFFSET
        self.seen_ms = -1
        # Whether it returned since the partition last looked for producers to forget.
        self.has_returned = False

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def add(self, epoch: int, batch: SeenBatch) -> None:
        """Remember a batch. A new epoch discards the batches of the old one."""
        self.set_epoch(epoch)
        if len(self.batches) == BATCHES_KEPT:
            del self.batches[0]
        self.batches.append(batch)
        self.timestamp_ms = batch.timestamp_ms

    def set_epoch(self, epoch: int) -> None:
        if self.epoch != epoch:
            self.epoch = epoch
            self.batches.clear()

    def find(self, epoch: int, first_sequence: int, last_sequence: int) -> SeenBatch | None:
        """The batch with exactly these sequences, if it is one of the last five."""
        if epoch == self.epoch:
            for batch in self.batches:
                if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                    return batch
        return None


@final
class ProducerCheck:
    """The verdict on a batch: append it (NONE, no duplicate), repeat an answer, or refuse it."""

    def __init__(self, error_code: int, duplicate: SeenBatch | None) -> None:
        self.error_code = error_code
        self.duplicate = duplicate


ACCEPTED: Final = ProducerCheck(NONE, None)


@final
class ProducerPool:
    """The limits of remembered producers, per partition and in total."""

    def __init__(self, entries_max: int = PRODUCERS_MAX, partition_entries_max: int = PARTITION_PRODUCERS_MAX) -> None:
        self.entries_max = entries_max
        self.partition_entries_max = partition_entries_max
        self.count = 0
        # The partitions by an internal number, in the order in which they look for idle producers.
        self.partitions: dict[int, PartitionProducers] = {}
        self.last_number = 0

    @property
    def is_full(self) -> bool:
        return self.count >= self.entries_max

    def add(self, partition: PartitionProducers) -> int:
        """Count the producers of `partition`. Returns the number to remove it with."""
        self.last_number += 1
        self.partitions[self.last_number] = partition
        return self.last_number

    def remove_expired(self, wall_ms: int) -> None:
        """Let the next partition forget its idle producers, unless it did so shortly before."""
        for number, partition in self.partitions.items():
            if wall_ms - partition.swept_ms >= SWEEP_INTERVAL_MS:
                del self.partitions[number]
                self.partitions[number] = partition
                partition.remove_expired(wall_ms)
            break


@final
class PartitionProducers:
    """The producers of one partition by producer id. Without a `pool` the partition gets its own."""

    def __init__(self, expiration_ms: int, pool: ProducerPool | None = None) -> None:
        self.expiration_ms = expiration_ms
        self.pool = ProducerPool() if pool is None else pool
        self.entries: dict[int, ProducerEntry] = {}
        self.transactions = OpenTransactions()
        self._sweep_at = SWEEP_MIN
        # When the partition last looked for idle producers.
        self.swept_ms = 0
        self._number = self.pool.add(self)

    def drop(self) -> None:
        """The partition was deleted: its producers do not count any more."""
        self._forget(list(self.entries))
        self.pool.partitions.pop(self._number, None)

    def check(self, header: BatchHeader, bumps_epochs: bool = False) -> ProducerCheck:
        """Check a batch with a producer id that a client sent. Changes nothing.

        A client that `bumps_epochs` begins each transaction with a new epoch and sequence 0. So its first batch in a
        partition without state has sequence 0, or an earlier batch of the transaction was lost.
        """
        entry = self.entries.get(header.producer_id)
        epoch: int = header.producer_epoch
        sequence: int = header.base_sequence
        must_be_first = bumps_epochs and header.is_transactional
        if entry is None:
            if must_be_first and sequence != 0:
                return ProducerCheck(OUT_OF_ORDER_SEQUENCE_NUMBER, None)
            return ACCEPTED
        duplicate = entry.find(epoch, sequence, header.last_sequence)
        if duplicate is not None:
            return ProducerCheck(NONE, duplicate)
        if epoch < entry.epoch:
            return ProducerCheck(INVALID_PRODUCER_EPOCH, None)
        last = entry.last_sequence
        expected = 0 if last == INT32_MAX or epoch != entry.epoch else last + 1
        if sequence != expected and (entry.epoch != NO_EPOCH or must_be_first):
            return ProducerCheck(OUT_OF_ORDER_SEQUENCE_NUMBER, None)
        if entry.txn_first_offset >= 0 and not header.is_transactional:
            return ProducerCheck(INVALID_TXN_STATE, None)
        return ACCEPTED

    def is_fenced(self, producer_id: int, epoch: int) -> bool:
        """Whether the partition knows a later epoch of the producer."""
        entry = self.entries.get(producer_id)
        return entry is not None and epoch < entry.epoch

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int) -> int:
        """The error code for a marker; NONE if it may be appended. Changes nothing.

        With version 2 the marker has the epoch after that of the transaction. A marker that is written again, since a
        crash came before its success was logged, finds its own epoch and no open transaction, and is accepted.
        """
        if producer_id == NO_PRODUCER_ID or epoch == NO_EPOCH:
            # A broker fails when it makes the batch.
            return UNKNOWN_SERVER_ERROR
        if epoch < NO_EPOCH:
            return INVALID_PRODUCER_EPOCH
        entry = self.entries.get(producer_id)
        if entry is None:
            return NONE
        if epoch < entry.epoch:
            return INVALID_PRODUCER_EPOCH
        if transaction_version >= EPOCH_BUMP_FROM and epoch == entry.epoch:
            if entry.txn_first_offset >= 0 and epoch != EPOCH_MAX:
                return INVALID_PRODUCER_EPOCH
        if entry.coordinator_epoch > coordinator_epoch:
            return TRANSACTION_COORDINATOR_FENCED
        return NONE

    def note(self, header: BatchHeader, last_offset: int, wall_ms: int) -> None:
        """Remember a batch that was appended and ends at `last_offset`."""
        if header.producer_id not in self.entries and self.pool.is_full:
            self.pool.remove_expired(wall_ms)
        entry = self._add(header, last_offset)
        entry.seen_ms = wall_ms
        if len(self.entries) >= self._sweep_at:
            self.remove_expired(wall_ms)
            self._sweep_at = max(SWEEP_MIN, 2 * len(self.entries))

    def rebuild(self, header: BatchHeader, coordinator_epoch: int = NO_EPOCH) -> None:
        """Remember a batch that is in the log already, with its offsets. Call it in order of offsets.

        The epoch is that of the transaction coordinator in a marker.
        """
        if header.producer_id < 0:
            return
        if not header.is_control:
            self._add(header, header.last_offset)
            return
        self._end(header, header.last_offset, coordinator_epoch, True)

    def note_marker(
        self, header: BatchHeader, offset: int, coordinator_epoch: int, wall_ms: int
    ) -> EndedTransaction | None:
        """Remember a marker that was appended at `offset`. Returns the transaction that it ended, if there was one."""
        if header.producer_id not in self.entries and self.pool.is_full:
            self.pool.remove_expired(wall_ms)
        ended = self._end(header, offset, coordinator_epoch, False)
        self.entries[header.producer_id].seen_ms = wall_ms
        return ended

    def _end(
        self, header: BatchHeader, offset: int, coordinator_epoch: int, is_durable: bool
    ) -> EndedTransaction | None:
        """A marker ends the producer's transaction. With a new epoch it restarts the sequences.

        So does the marker of a transaction that the coordinator does not know. Its writes were never answered, and the
        producer repeats them in a transaction that the coordinator does know: they are no duplicates then.
        """
        entry = self._entry(header.producer_id)
        entry.set_epoch(header.producer_epoch)
        if coordinator_epoch == NO_COORDINATOR:
            entry.batches.clear()
        entry.txn_first_offset = NO_OFFSET
        entry.timestamp_ms = header.max_timestamp
        entry.coordinator_epoch = coordinator_epoch
        return self.transactions.end(header.producer_id, offset, is_durable)

    def remove_expired(self, wall_ms: int) -> int:
        """Forget producers that were idle for too long. Returns their number.

        For a producer from before start-up the time starts with the first call. One with an open transaction stays.
        """
        self.swept_ms = wall_ms
        expired: list[int] = []
        for producer_id, entry in self.entries.items():
            if entry.seen_ms < 0:
                entry.seen_ms = wall_ms
            elif entry.txn_first_offset < 0 and wall_ms - entry.seen_ms >= self.expiration_ms:
                expired.append(producer_id)
        self._forget(expired)
        return len(expired)

    def _forget(self, producer_ids: list[int]) -> None:
        for producer_id in producer_ids:
            del self.entries[producer_id]
        self.pool.count -= len(producer_ids)

    def _make_room(self) -> None:
        """Make space for one more producer, by forgetting some if necessary.

        The first to go are those that have not returned, in order of arrival. One that has returned is spared once. One
        with an open transaction stays.
        """
        size = len(self.entries)
        pool = self.pool
        if size < pool.partition_entries_max and (not pool.is_full or size < PARTITION_PRODUCERS_MIN):
            return
        count = max(size // FORGET_SHARE, size + 1 - pool.partition_entries_max)
        for _ in range(2):
            forgotten: list[int] = []
            spared: list[ProducerEntry] = []
            for producer_id, entry in self.entries.items():
                if count == len(forgotten):
                    break
                if entry.has_returned:
                    spared.append(entry)
                elif entry.txn_first_offset < 0:
                    forgotten.append(producer_id)
            self._forget(forgotten)
            for entry in spared:
                entry.has_returned = False
                del self.entries[entry.producer_id]
                self.entries[entry.producer_id] = entry
            count -= len(forgotten)
            if count == 0:
                break

    def restore(self, entries: list[ProducerEntry]) -> None:
        """Start from the entries of a snapshot."""
        self.pool.count -= len(self.entries)
        self.entries = {}
        for entry in entries:
            if entry.producer_id not in self.entries:
                self._make_room()
                self.pool.count += 1
            self.entries[entry.producer_id] = entry
        self.transactions.restore(
            [(entry.txn_first_offset, number) for number, entry in self.entries.items() if entry.txn_first_offset >= 0]
        )

    def add_repeats(self, recent: PartitionProducers) -> None:
        """Add earlier ones of the last batches, which a snapshot does not have, from the state of some batches before
        it.
        """
        for producer_id, entry in self.entries.items():
            other = recent.entries.get(producer_id)
            if other is None or not other.batches or not entry.batches or other.epoch != entry.epoch:
                continue
            if other.batches[-1].last_offset == entry.batches[-1].last_offset:
                entry.batches = other.batches

    def snapshot(self) -> bytes:
        """The state as the content of a snapshot file."""
        return encode_snapshot([self.entries[producer_id] for producer_id in sorted(self.entries)])

    def _entry(self, producer_id: int) -> ProducerEntry:
        entry = self.entries.get(producer_id)
        if entry is None:
            self._make_room()
            entry = ProducerEntry(producer_id, NO_EPOCH)
            self.entries[producer_id] = entry
            self.pool.count += 1
        else:
            entry.has_returned = True
        return entry

    def _add(self, header: BatchHeader, last_offset: int) -> ProducerEntry:
        entry = self._entry(header.producer_id)
        delta: int = header.last_offset_delta
        batch = SeenBatch(header.last_sequence, last_offset, delta, header.max_timestamp)
        entry.add(header.producer_epoch, batch)
        if header.is_transactional and entry.txn_first_offset < 0:
            entry.txn_first_offset = batch.first_offset
            self.transactions.begin(header.producer_id, batch.first_offset)
        return entry


def encode_snapshot(entries: list[ProducerEntry]) -> bytes:
    """A `.snapshot` file in Kafka's format: version 1, a CRC-32C of the rest, one entry per producer.

    It only has the last batch of each producer; see `add_repeats`.
    """
    body = BytesWriter()
    write_int32(body, len(entries))
    for entry in entries:
        last = entry.batches[-1] if entry.batches else None
        write_int64(body, entry.producer_id)
        write_int16(body, entry.epoch)
        write_int32(body, NO_SEQUENCE if last is None else last.last_sequence)
        write_int64(body, NO_OFFSET if last is None else last.last_offset)
        write_int32(body, 0 if last is None else last.offset_delta)
        write_int64(body, entry.timestamp_ms)
        write_int32(body, entry.coordinator_epoch)
        write_int64(body, entry.txn_first_offset)
    data = body.getvalue()
    head = BytesWriter()
    write_int16(head, SNAPSHOT_VERSION)
    write_uint32(head, crc32c(data))
    return head.getvalue() + data


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    """The entries of a `.snapshot` file. Raises DecodeError for another version, a wrong checksum or a torn file."""
    r = Reader(data)
    version = r.int16()
    if version != SNAPSHOT_VERSION:
        raise DecodeError(f"producer snapshot of unknown version {version}")
    crc = r.uint32()
    if crc != crc32c(data[SNAPSHOT_ENTRIES_AT:]):
        raise DecodeError("the checksum of the producer snapshot is wrong")
    entries: list[ProducerEntry] = []
    count: int = r.array_len(SNAPSHOT_ENTRY_BYTES)
    for _ in range(count):
        producer_id = r.int64()
        entry = ProducerEntry(producer_id, r.int16())
        last_sequence = r.int32()
        last_offset = r.int64()
        offset_delta = r.int32()
        entry.timestamp_ms = r.int64()
        entry.coordinator_epoch = r.int32()
        entry.txn_first_offset = r.int64()
        if last_offset >= 0:
            entry.batches.append(SeenBatch(last_sequence, last_offset, offset_delta, entry.timestamp_ms))
        entries.append(entry)
    r.expect_end()
    return entries
