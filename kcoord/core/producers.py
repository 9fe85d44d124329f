"""Idempotent producers: who gets which producer id, and what each partition remembers of each producer (KIP-98).

Producer ids come from blocks. A block is reserved by a ProducerIdsRecord in the metadata log before its first id is
given out, and after a restart the next block begins behind the last reserved one: ids may be skipped, never reused.

Per partition and producer, the epoch and the last five batches are kept. They tell a repeated batch (answered with
the offsets it got the first time) from one that comes next, one that came too early and one of an older epoch. This
state follows from the partition's log: `rebuild` makes it again from batch headers, or it comes from a snapshot file
and the headers after it. A producer that the partition does not know may begin with any sequence number, since its
earlier records may have been deleted.

Nobody checks that an id was ever given out: a client may have it from before a topic was imported or a directory was
made anew, and a broker takes it. So ids can be made up, and what is remembered has bounds (`ProducerPool`). A partition
that is at its bound forgets those of its own producers that have not come back for the longest time. Forgetting is
what a broker does with idle producers: the next batch of such a producer is taken, whatever its sequence number. Only
a batch that it sends again, because the answer to it was lost, would be taken twice.

Transactions are not here yet. InitProducerId with a transactional id is answered with
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: of all codes it is the one that Java, librdkafka and aiokafka take as final
(they would ask again for ever after a coordinator error), and the server's log says what it means.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import WARNING, Fact, Now, Outcome, Reply, Request
from kcoord.core.topics.registry import TopicRegistry
from kcoord.protocol.errors import (
    INVALID_PRODUCER_EPOCH,
    INVALID_REQUEST,
    INVALID_TRANSACTION_TIMEOUT,
    NONE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
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

# A producer has at most five requests in flight, so a repeated batch is one of the last five.
BATCHES_KEPT: Final = 5

# How many producers a partition has to have before idle ones are looked for.
SWEEP_MIN: Final = 1024
# How long after that a partition does not look for them again for the sake of others.
SWEEP_INTERVAL_MS: Final = 60_000
# Producers that all partitions together remember, and one of them at most; see the settings. Each takes about 400 bytes
# of memory.
PRODUCERS_MAX: Final = 200_000
PARTITION_PRODUCERS_MAX: Final = 20_000
# So many a partition may always remember, whatever the others do.
PARTITION_PRODUCERS_MIN: Final = 16
# Which part of its producers a partition forgets at once, so that looking for them costs each new one little.
FORGET_SHARE: Final = 8

SNAPSHOT_VERSION: Final = 1
# The version and the checksum stand before what the checksum covers.
SNAPSHOT_ENTRIES_AT: Final = 6
SNAPSHOT_ENTRY_BYTES: Final = 46


@final
class ProducerIds:
    """Gives out producer ids. The reserved end is hard state (`topics.next_producer_id`); the rest is soft."""

    def __init__(self, config: CoreConfig, topics: TopicRegistry) -> None:
        self.config = config
        self.topics = topics
        self.next_id = 0
        self.block_end = 0

    def handle_init_producer_id(self, request: Request, body: InitProducerIdRequest, now: Now) -> Outcome:
        """A fresh producer id with epoch 0.

        A request that names an id and an epoch (version 3, KIP-360) gets a fresh id, too, as on a broker: bumping
        the epoch of an idempotent producer is the client's own affair.
        """
        out = Outcome()
        error = self._refuse(body)
        if error != NONE:
            if error == TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                fields: dict[str, object] = {
                    "transactional_id": body.transactional_id,
                    "client_id": request.client_id,
                }
                out.facts.append(Fact(WARNING, "transactions_not_supported", fields))
            out.reply(request.request_id, InitProducerIdResponse(0, error, NO_PRODUCER_ID, NO_EPOCH))
            return out
        if self.next_id == self.block_end:
            self.next_id = self.topics.next_producer_id
            self.block_end = self.next_id + self.config.producer_id_block_size
            record = ProducerIdsRecord(self.config.node_id, 0, self.block_end)
            out.add(self.topics.log, None, record)
        response = InitProducerIdResponse(0, NONE, self.next_id, 0)
        self.next_id += 1
        if out.records:
            out.reply(request.request_id, response)
        else:
            # No id is told before the reservation of its block is durable.
            wait_offset = self.topics.producer_ids_offset
            out.replies.append(Reply(request.request_id, response, self.topics.log, wait_offset))
        return out

    def _refuse(self, body: InitProducerIdRequest) -> int:
        if (body.producer_id == NO_PRODUCER_ID) != (body.producer_epoch == NO_EPOCH):
            return INVALID_REQUEST
        if body.transactional_id is None:
            return NONE
        if not body.transactional_id:
            return INVALID_REQUEST
        timeout_ms = body.transaction_timeout_ms
        if timeout_ms <= 0 or timeout_ms > self.config.transaction_max_timeout_ms:
            return INVALID_TRANSACTION_TIMEOUT
        return TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@final
class SeenBatch:
    """A batch that a producer wrote. `timestamp_ms` is the batch's largest."""

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
        """Sequence of the first record; sequences go from 2^31 - 1 to 0."""
        return (self.last_sequence - self.offset_delta) & INT32_MAX


@final
class ProducerEntry:
    """What a partition remembers of one producer. `seen_ms` is when it last wrote, -1 if that was before start-up."""

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: list[SeenBatch] = []
        self.timestamp_ms = NO_TIMESTAMP
        self.coordinator_epoch = -1
        self.txn_first_offset = NO_OFFSET
        self.seen_ms = -1
        # Whether it came back since the partition last looked for producers to forget.
        self.has_returned = False

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def add(self, epoch: int, batch: SeenBatch) -> None:
        """Remember a batch; a new epoch forgets those of the old one."""
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
        """The batch with exactly these sequences, if it is among the last five."""
        if epoch == self.epoch:
            for batch in self.batches:
                if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                    return batch
        return None


@final
class ProducerCheck:
    """What to do with a batch: append it (NONE, no duplicate), repeat an answer, or refuse it."""

    def __init__(self, error_code: int, message: str, duplicate: SeenBatch | None) -> None:
        self.error_code = error_code
        self.message = message
        self.duplicate = duplicate


ACCEPTED: Final = ProducerCheck(NONE, "", None)


@final
class ProducerPool:
    """How many producers partitions remember, one by one and all together."""

    def __init__(
        self, entries_max: int = PRODUCERS_MAX, partition_entries_max: int = PARTITION_PRODUCERS_MAX
    ) -> None:
        self.entries_max = entries_max
        self.partition_entries_max = partition_entries_max
        self.count = 0
        # The partitions by a number of their own, in the order in which idle producers are looked for.
        self.partitions: dict[int, PartitionProducers] = {}
        self.last_number = 0

    @property
    def is_full(self) -> bool:
        return self.count >= self.entries_max

    def add(self, partition: PartitionProducers) -> int:
        """Count what `partition` remembers; the number to remove it by."""
        self.last_number += 1
        self.partitions[self.last_number] = partition
        return self.last_number

    def remove_expired(self, wall_ms: int) -> None:
        """Have the partition whose turn it is forget its idle producers, if that was not done just before."""
        for number, partition in self.partitions.items():
            if wall_ms - partition.swept_ms >= SWEEP_INTERVAL_MS:
                del self.partitions[number]
                self.partitions[number] = partition
                partition.remove_expired(wall_ms)
            break


@final
class PartitionProducers:
    """The producers of one partition, by producer id. Without a `pool`, it has one of its own."""

    def __init__(self, expiration_ms: int, pool: ProducerPool | None = None) -> None:
        self.expiration_ms = expiration_ms
        self.pool = ProducerPool() if pool is None else pool
        self.entries: dict[int, ProducerEntry] = {}
        self._sweep_at = SWEEP_MIN
        # When idle producers were last looked for.
        self.swept_ms = 0
        self._number = self.pool.add(self)

    def drop(self) -> None:
        """The partition is gone, and its producers do not count any more."""
        self._forget(list(self.entries))
        self.pool.partitions.pop(self._number, None)

    def check(self, header: BatchHeader) -> ProducerCheck:
        """Judge a batch with a producer id that a client sent. Changes nothing."""
        entry = self.entries.get(header.producer_id)
        if entry is None:
            return ACCEPTED
        epoch: int = header.producer_epoch
        sequence: int = header.base_sequence
        duplicate = entry.find(epoch, sequence, header.last_sequence)
        if duplicate is not None:
            return ProducerCheck(NONE, "", duplicate)
        who = f"producer {header.producer_id}"
        if epoch < entry.epoch:
            message = f"{who} wrote with epoch {epoch}, the newest is {entry.epoch}"
            return ProducerCheck(INVALID_PRODUCER_EPOCH, message, None)
        if entry.epoch == NO_EPOCH:
            return ACCEPTED
        if epoch != entry.epoch:
            if sequence != 0:
                message = f"{who} began epoch {epoch} with sequence {sequence} instead of 0"
                return ProducerCheck(OUT_OF_ORDER_SEQUENCE_NUMBER, message, None)
            return ACCEPTED
        last = entry.last_sequence
        expected = 0 if last == INT32_MAX else last + 1
        if sequence != expected:
            message = f"{who} wrote sequence {sequence}, expected {expected}"
            return ProducerCheck(OUT_OF_ORDER_SEQUENCE_NUMBER, message, None)
        return ACCEPTED

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
        """Remember a batch that is in the log already, with its offsets. To be called in order of offsets.

        The epoch is the transaction coordinator's in a marker.
        """
        if header.producer_id < 0:
            return
        if not header.is_control:
            self._add(header, header.last_offset)
            return
        # A marker ends the producer's transaction and starts its sequences anew if it bears a new epoch.
        entry = self._entry(header.producer_id)
        entry.set_epoch(header.producer_epoch)
        entry.txn_first_offset = NO_OFFSET
        entry.timestamp_ms = header.max_timestamp
        entry.coordinator_epoch = coordinator_epoch

    def remove_expired(self, wall_ms: int) -> int:
        """Forget producers that were silent for too long; how many.

        The clock of one found at start-up starts with the first call. One with an open transaction stays.
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
        """Let there be room for one more producer, if need be by forgetting some.

        Those go first that came once and not again, in the order in which they came; one that came back is spared
        until it is met for the second time. One with an open transaction stays.
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
        """Begin from the entries of a snapshot."""
        self.pool.count -= len(self.entries)
        self.entries = {}
        for entry in entries:
            if entry.producer_id not in self.entries:
                self._make_room()
                self.pool.count += 1
            self.entries[entry.producer_id] = entry

    def add_repeats(self, recent: PartitionProducers) -> None:
        """Fill in the older ones of the last batches, which no snapshot holds, from the state of some batches
        before it."""
        for producer_id, entry in self.entries.items():
            other = recent.entries.get(producer_id)
            if other is None or not other.batches or not entry.batches or other.epoch != entry.epoch:
                continue
            if other.batches[-1].last_offset == entry.batches[-1].last_offset:
                entry.batches = other.batches

    def snapshot(self) -> bytes:
        """The state as a snapshot file."""
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
        return entry


def encode_snapshot(entries: list[ProducerEntry]) -> bytes:
    """A `.snapshot` file as Kafka writes it: version 1, a CRC-32C of the rest, one entry per producer.

    It holds the last batch of each producer only; see add_repeats.
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
