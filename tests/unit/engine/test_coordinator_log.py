"""The batches of a coordinator log: those of transactions and markers stand between the others, in order."""

from __future__ import annotations

from kcoord.core.outcome import OFFSETS_TOPIC, CoordinatorRecord, LogId, Marker, TransactionalProducer
from kcoord.core.producers import PartitionProducers
from kcoord.engine.control_batch import NO_MARKER, marker_type
from kcoord.engine.coordinator_log import CoordinatorLog
from kcoord.engine.partitions import TopicPartition
from kcoord.log.directory import open_directory
from kcoord.log.journal import Journal
from kcoord.log.log_config import LogConfig
from kcoord.log.partition_log import PartitionLog
from kcoord.log.storage import MemoryStorage
from kcoord.log.transaction_index import ABORT, COMMIT
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.wire.record_batch import BatchBuilder, BatchHeader, parse_header
from tests.harness.log import batches_of

LOG = LogId(OFFSETS_TOPIC, 0)
PRODUCER = TransactionalProducer(7, 3)


class Rig:
    def __init__(self) -> None:
        storage = MemoryStorage()
        journal = Journal(open_directory(storage, 1, "cluster", "directory"), "memory")
        storage.make_dir("__consumer_offsets-0")
        self.log = PartitionLog(storage, OFFSETS_TOPIC, 0, b"\x01" * 16, LogConfig())
        producers = PartitionProducers(1000)
        self.partition = TopicPartition(OFFSETS_TOPIC, b"\x01" * 16, 0, self.log, producers, 4)
        self.coordinator_log = CoordinatorLog(LOG, self.log, self.partition, journal, 1 << 20)

    def append(self, count: int, producer: TransactionalProducer | None = None) -> int:
        records: list[CoordinatorRecord] = []
        for number in range(count):
            records.append(CoordinatorRecord(OffsetCommitKey("g", "t", number), OffsetCommitValue(number)))
        return self.coordinator_log.append(self.coordinator_log.encode(records), 1000, producer)

    def marker(self, is_commit: bool) -> int:
        marker = Marker(OFFSETS_TOPIC, 0, PRODUCER.producer_id, PRODUCER.producer_epoch, is_commit, 6, 2)
        return self.coordinator_log.append_marker(marker, 1000)

    def batches(self) -> list[tuple[bytes, BatchHeader]]:
        self.coordinator_log.close_batch()
        self.log.flush()
        batches: list[tuple[bytes, BatchHeader]] = []
        for pos, data in batches_of(self.log, 0, self.log.end_offset):
            batches.append((data, parse_header(data, pos)))
        return batches


def test_batches_of_transactions_stand_alone_and_offsets_ascend() -> None:
    rig = Rig()
    assert [rig.append(2), rig.append(1), rig.append(2, PRODUCER), rig.append(1, PRODUCER)] == [0, 2, 3, 5]
    assert rig.append(1) == 6
    assert rig.marker(True) == 7
    assert rig.append(3) == 8
    headers = [header for _, header in rig.batches()]
    found = [(h.base_offset, h.last_offset, h.is_transactional, h.is_control) for h in headers]
    assert found == [
        (0, 2, False, False),
        (3, 4, True, False),
        (5, 5, True, False),
        (6, 6, False, False),
        (7, 7, True, True),
        (8, 10, False, False),
    ]
    ids = [(h.producer_id, h.producer_epoch, h.base_sequence) for h in headers]
    assert ids == [(-1, -1, 0), (7, 3, 0), (7, 3, 0), (-1, -1, 0), (7, 3, -1), (-1, -1, 0)]
    assert {h.leader_epoch for h in headers} == {4}


def test_the_partition_knows_its_open_transactions() -> None:
    rig = Rig()
    rig.append(1)
    rig.append(1, PRODUCER)
    rig.append(1, PRODUCER)
    entry = rig.partition.producers.entries[7]
    assert (entry.epoch, entry.txn_first_offset) == (3, 1)
    rig.marker(False)
    assert (entry.txn_first_offset, entry.coordinator_epoch) == (-1, 6)


def test_each_write_learns_once_that_a_batch_was_closed() -> None:
    rig = Rig()
    assert not rig.coordinator_log.take_closed()
    rig.append(1, PRODUCER)
    assert not rig.coordinator_log.close_batch()
    assert rig.coordinator_log.take_closed() and not rig.coordinator_log.take_closed()
    rig.marker(True)
    assert rig.coordinator_log.take_closed()


def test_what_a_control_batch_says() -> None:
    rig = Rig()
    rig.marker(True)
    rig.marker(False)
    assert [marker_type(data, header) for data, header in rig.batches()] == [COMMIT, ABORT]
    builder = BatchBuilder()
    # A change of the leader is type 2.
    builder.append(1, b"\x00\x00\x00\x02", b"")
    other = builder.build(0, 0, control=True)
    assert marker_type(other, parse_header(other)) == NO_MARKER
