"""Producer ids, and what partitions remember of producers."""

from __future__ import annotations

import pytest

from kcoord.core.config import CoreConfig
from kcoord.core.producers import (
    INT32_MAX,
    PARTITION_PRODUCERS_MIN,
    PartitionProducers,
    ProducerEntry,
    ProducerPool,
    SeenBatch,
    decode_snapshot,
    encode_snapshot,
)
from kcoord.protocol import apis, errors
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.records.producer_ids_record import ProducerIdsRecord
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchHeader
from tests.unit.core.admin.admin_rig import AdminRig

DAY_MS = 86400000

# Written by Kafka 4.3.1 from the entries of `snapshot_entries`.
KAFKA_SNAPSHOT = bytes.fromhex(
    "000160b68c58000000020000000000000007000300000029000000000000006300000004"
    "00000174876e807bffffffffffffffffffffffff00000000000003e80000ffffffffffff"
    "ffffffffffff0000000000000174876e81c8000000050000000000000037"
)


def batch(
    sequence: int, count: int = 1, epoch: int = 0, producer_id: int = 7, offset: int = 0, attributes: int = 0
) -> BatchHeader:
    return BatchHeader(
        0, offset, 61, 0, 0, attributes, count - 1, 1000, 1000 + offset, producer_id, epoch, sequence, count
    )


class Partition:
    """Appends what passes, as the data plane does."""

    def __init__(self) -> None:
        self.producers = PartitionProducers(DAY_MS)
        self.end = 0
        self.now_ms = 0

    def send(self, header: BatchHeader) -> int | tuple[int, int]:
        """The error code, or the offsets that the answer names."""
        check = self.producers.check(header)
        if check.error_code != errors.NONE:
            return check.error_code
        if check.duplicate is not None:
            return check.duplicate.first_offset, check.duplicate.last_offset
        first = self.end
        self.end += header.count
        self.producers.note(header, self.end - 1, self.now_ms)
        return first, self.end - 1


def test_ids_come_from_durable_blocks() -> None:
    config = CoreConfig()
    config.producer_id_block_size = 3
    rig = AdminRig(config)
    before = len(rig.log)
    ids = [rig.ask(apis.INIT_PRODUCER_ID, 5, InitProducerIdRequest(None)).producer_id for _ in range(7)]
    assert ids == list(range(7))
    ends = [record.next_producer_id for record in rig.log[before:] if isinstance(record, ProducerIdsRecord)]
    assert ends == [3, 6, 9]
    # A restart begins a new block: no id is given out twice.
    rig.open()
    assert rig.ask(apis.INIT_PRODUCER_ID, 5, InitProducerIdRequest(None)).producer_id == 9


def test_no_id_is_sent_before_its_block_is_durable() -> None:
    rig = AdminRig()
    first = rig.handle(apis.INIT_PRODUCER_ID, 5, InitProducerIdRequest(None))
    assert first.records and first.replies[0].wait_log is None
    reserved = len(rig.log)
    second = rig.handle(apis.INIT_PRODUCER_ID, 5, InitProducerIdRequest(None))
    assert second.records == []
    assert (second.replies[0].wait_log, second.replies[0].wait_offset) == (rig.topics.log, reserved)


@pytest.mark.parametrize("version", range(6))
def test_every_version_gets_a_fresh_id(version: int) -> None:
    rig = AdminRig()
    answer = rig.ask(apis.INIT_PRODUCER_ID, version, InitProducerIdRequest(None, 60000))
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (errors.NONE, 0, 0)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (InitProducerIdRequest(None, 0, 5, -1), errors.INVALID_REQUEST),
        (InitProducerIdRequest(None, 0, -1, 5), errors.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_served_is_refused_for_good(body: InitProducerIdRequest, code: int) -> None:
    rig = AdminRig()
    out = rig.handle(apis.INIT_PRODUCER_ID, 5, body)
    assert out.records == []
    assert code not in errors.RETRIABLE
    answer = rig.ask(apis.INIT_PRODUCER_ID, 5, body)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (code, -1, -1)


def test_batches_in_order_are_taken_and_the_last_five_recognised() -> None:
    p = Partition()
    for number in range(7):
        assert p.send(batch(2 * number, 2)) == (2 * number, 2 * number + 1)
    for number in range(2, 7):
        assert p.send(batch(2 * number, 2)) == (2 * number, 2 * number + 1)
    assert p.send(batch(2, 2)) == errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert p.end == 14
    # The same sequences cut otherwise are not the same batch.
    assert p.send(batch(12, 1)) == errors.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_is_out_of_order_and_costs_nothing() -> None:
    p = Partition()
    p.send(batch(0))
    assert p.send(batch(2)) == errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert p.send(batch(1)) == (1, 1)


def test_an_unknown_producer_may_begin_anywhere() -> None:
    p = Partition()
    assert p.send(batch(50, producer_id=1)) == (0, 0)
    assert p.send(batch(52, producer_id=1)) == errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert p.send(batch(0, producer_id=2)) == (1, 1)


def test_sequences_wrap() -> None:
    p = Partition()
    p.send(batch(INT32_MAX - 2, 3))
    assert p.send(batch(0)) == (3, 3)
    q = Partition()
    q.send(batch(INT32_MAX, 3))
    entry = q.producers.entries[7]
    assert (entry.batches[0].first_sequence, entry.last_sequence) == (INT32_MAX, 1)
    assert q.send(batch(INT32_MAX, 3)) == (0, 2)
    assert q.send(batch(2)) == (3, 3)


def test_a_new_epoch_begins_at_zero_and_ends_the_old_one() -> None:
    p = Partition()
    p.send(batch(0))
    assert p.send(batch(1, epoch=1)) == errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert p.send(batch(0, epoch=1)) == (1, 1)
    assert p.send(batch(1)) == errors.INVALID_PRODUCER_EPOCH
    # Not even a repetition counts any more.
    assert p.send(batch(0)) == errors.INVALID_PRODUCER_EPOCH
    assert p.send(batch(0, epoch=1)) == (1, 1)


def test_a_log_gives_back_what_was_known() -> None:
    p = Partition()
    rebuilt = PartitionProducers(DAY_MS)
    written = [
        (0, 0, 1),
        (0, 0, 9),
        (2, 0, 9),
        (0, 1, 1),
        (4, 0, 9),
        (2, 1, 1),
        (6, 0, 9),
        (8, 0, 9),
        (10, 0, 9),
    ]
    for sequence, epoch, producer_id in written:
        rebuilt.rebuild(batch(sequence, 2, epoch, producer_id, p.end))
        p.send(batch(sequence, 2, epoch, producer_id, p.end))
    rebuilt.rebuild(batch(-1, epoch=-1, producer_id=-1, offset=p.end))
    assert p.end == 2 * len(written)
    assert rebuilt.snapshot() == p.producers.snapshot()
    assert sorted(rebuilt.entries) == [1, 9]
    for sequence, epoch, producer_id in [*written, (12, 0, 9), (14, 0, 9), (4, 1, 1), (0, 2, 1), (1, 2, 1)]:
        header = batch(sequence, 2, epoch, producer_id)
        ours, theirs = rebuilt.check(header), p.producers.check(header)
        assert ours.error_code == theirs.error_code
        if theirs.duplicate is not None:
            assert ours.duplicate is not None and ours.duplicate.last_offset == theirs.duplicate.last_offset


def test_a_marker_with_a_new_epoch_resets_sequences() -> None:
    producers = PartitionProducers(DAY_MS)
    producers.rebuild(batch(0, attributes=TRANSACTIONAL_FLAG, offset=3))
    assert producers.entries[7].txn_first_offset == 3
    producers.rebuild(batch(-1, epoch=1, attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG, offset=4))
    entry = producers.entries[7]
    assert (entry.epoch, entry.batches, entry.txn_first_offset) == (1, [], -1)
    assert producers.check(batch(0, epoch=1)).error_code == errors.NONE
    assert producers.check(batch(1, epoch=1)).error_code == errors.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_idle_producers_are_forgotten() -> None:
    p = Partition()
    p.send(batch(0, producer_id=1))
    p.now_ms = DAY_MS - 1
    p.send(batch(0, producer_id=2))
    p.producers.rebuild(batch(0, producer_id=3))
    assert p.producers.remove_expired(DAY_MS) == 1
    assert sorted(p.producers.entries) == [2, 3]
    # The clock of one that was found in the log began with that call.
    assert p.producers.remove_expired(2 * DAY_MS - 1) == 1
    assert p.producers.remove_expired(2 * DAY_MS) == 1


def test_many_short_lived_producers_do_not_pile_up() -> None:
    p = Partition()
    for number in range(5000):
        p.now_ms = number * DAY_MS // 100
        p.send(batch(0, producer_id=number))
    assert len(p.producers.entries) < 2100


def test_a_partition_forgets_producers_that_came_once() -> None:
    pool = ProducerPool(100_000, 100)
    producers = PartitionProducers(DAY_MS, pool)
    for sequence in range(2):
        for number in range(10):
            producers.note(batch(sequence, producer_id=number), number, 0)
    for number in range(1000, 3000):
        # Ids that nobody gave out. The honest ones go on writing now and then.
        producers.note(batch(0, producer_id=number), number, 0)
        if number % 50 == 0:
            for honest in range(10):
                sequence = producers.entries[honest].last_sequence + 1
                producers.note(batch(sequence, producer_id=honest), number, 0)
        assert len(producers.entries) <= 100 and pool.count == len(producers.entries)
    assert all(number in producers.entries for number in [*range(10), *range(2990, 3000)])
    # Where all of them come back, the oldest goes.
    for _ in range(2):
        for number in list(producers.entries):
            producers.note(batch(1, producer_id=number), number, 0)
    oldest = next(iter(producers.entries))
    while len(producers.entries) < 100:
        producers.note(batch(0, producer_id=9000 + len(producers.entries)), 0, 0)
    producers.note(batch(0, producer_id=9999), 0, 0)
    assert oldest not in producers.entries and 9999 in producers.entries


def test_a_forgotten_producer_continues() -> None:
    p = Partition()
    p.producers = PartitionProducers(DAY_MS, ProducerPool(100_000, 20))
    assert p.send(batch(0)) == (0, 0)
    for number in range(100, 200):
        p.send(batch(0, producer_id=number))
    assert 7 not in p.producers.entries
    end = p.end
    assert p.send(batch(1)) == (end, end)
    assert p.send(batch(3)) == errors.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_partitions_share_a_pool_and_keep_a_few_each() -> None:
    pool = ProducerPool(1000, 500)
    one, two, three = (PartitionProducers(DAY_MS, pool) for _ in range(3))
    for number in range(50):
        three.note(batch(0, producer_id=number), number, 0)
    for number in range(2000):
        one.note(batch(0, producer_id=number), number, 0)
        two.note(batch(0, producer_id=number), number, 0)
    assert pool.count == len(one.entries) + len(two.entries) + len(three.entries) <= 1000
    # What others do takes nothing away from it, and it may have new ones.
    assert len(three.entries) == 50
    pool.entries_max = pool.count
    three.note(batch(0, producer_id=99), 99, 0)
    assert 99 in three.entries and len(three.entries) == 45
    four = PartitionProducers(DAY_MS, pool)
    for number in range(100):
        four.note(batch(0, producer_id=number), number, 0)
    assert PARTITION_PRODUCERS_MIN <= len(four.entries) < 100
    one.drop()
    one.drop()
    assert pool.count == len(two.entries) + len(three.entries) + len(four.entries)


def test_a_full_pool_looks_for_idle_producers_everywhere() -> None:
    pool = ProducerPool(1000, 900)
    idle, gone, busy = (PartitionProducers(DAY_MS, pool) for _ in range(3))
    for number in range(800):
        idle.note(batch(0, producer_id=number), number, 0)
    gone.note(batch(0), 0, 0)
    gone.drop()
    for number in range(600):
        busy.note(batch(0, producer_id=number), number, 2 * DAY_MS)
    assert idle.entries == {} and len(busy.entries) == 600 == pool.count
    assert list(pool.partitions.values()) == [busy, idle]


def test_an_open_transaction_is_not_forgotten() -> None:
    pool = ProducerPool(100_000, 20)
    producers = PartitionProducers(DAY_MS, pool)
    producers.rebuild(batch(0, attributes=TRANSACTIONAL_FLAG, offset=3))
    for number in range(100, 300):
        producers.rebuild(batch(0, producer_id=number, offset=number))
    assert 7 in producers.entries and len(producers.entries) <= 20


def test_a_snapshot_with_more_than_there_may_be() -> None:
    pool = ProducerPool(100_000, 20)
    producers = PartitionProducers(DAY_MS, pool)
    entries = [ProducerEntry(number, 0) for number in range(100)]
    producers.restore(entries)
    assert len(producers.entries) <= 20 and 99 in producers.entries
    producers.restore(entries[:5])
    assert pool.count == len(producers.entries) == 5


def snapshot_entries() -> list[ProducerEntry]:
    one = ProducerEntry(7, 3)
    one.batches = [SeenBatch(36, 94, 1, 5), SeenBatch(41, 99, 4, 1600000000123)]
    one.timestamp_ms = 1600000000123
    two = ProducerEntry(1000, 0)
    two.coordinator_epoch = 5
    two.timestamp_ms = 1600000000456
    two.txn_first_offset = 55
    return [one, two]


def test_a_snapshot_is_written_as_kafka_writes_it() -> None:
    assert encode_snapshot(snapshot_entries()) == KAFKA_SNAPSHOT


def test_a_snapshot_of_kafka_is_read() -> None:
    producers = PartitionProducers(DAY_MS)
    producers.restore(decode_snapshot(KAFKA_SNAPSHOT))
    assert producers.snapshot() == KAFKA_SNAPSHOT
    entry = producers.entries[7]
    assert (entry.epoch, entry.last_sequence, entry.batches[0].first_offset) == (3, 41, 95)
    duplicate = producers.check(batch(37, 5, epoch=3)).duplicate
    assert duplicate is not None and duplicate.last_offset == 99
    assert producers.entries[1000].batches == []


def test_a_damaged_snapshot_is_refused() -> None:
    assert decode_snapshot(encode_snapshot([])) == []
    for size in range(len(KAFKA_SNAPSHOT)):
        with pytest.raises(DecodeError):
            decode_snapshot(KAFKA_SNAPSHOT[:size])
    for position in range(len(KAFKA_SNAPSHOT)):
        damaged = bytearray(KAFKA_SNAPSHOT)
        damaged[position] ^= 0x40
        with pytest.raises(DecodeError):
            decode_snapshot(bytes(damaged))
