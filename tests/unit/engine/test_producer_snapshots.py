"""Producers across restarts: snapshots at rolls and clean stops, and the batches behind them."""

from __future__ import annotations

import random

import pytest

from kcoord.core.outcome import Now
from kcoord.core.producers import PartitionProducers, decode_snapshot
from kcoord.engine import producer_state
from kcoord.engine.engine import Engine
from kcoord.engine.producer_state import load_producers
from kcoord.log.log_config import LogConfig
from kcoord.log.partition_log import PartitionLog
from kcoord.log.storage import MemoryFile
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kcoord.protocol.errors import INVALID_PRODUCER_EPOCH, NONE, OUT_OF_ORDER_SEQUENCE_NUMBER
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.testing.state.disk import ForgetfulStorage
from kcoord.wire.record_batch import (
    CONTROL_FLAG,
    TRANSACTIONAL_FLAG,
    BatchBuilder,
    encode_batch,
    parse_header,
)
from tests.harness.engine import Client, open_engine
from tests.harness.log import batches_of

NOW = Now(0, 1_700_000_000_000)


class Rig:
    """An engine with the topic `t`, whose segments take a few batches."""

    def __init__(self) -> None:
        self.storage = ForgetfulStorage()
        self.open()
        self.client.ask(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic("t", 1, 1)]), NOW)
        self.log.config = LogConfig(segment_bytes=600)

    def open(self) -> None:
        self.engine: Engine = open_engine(self.storage, NOW)
        self.client = Client(self.engine)
        if self.engine.directory.get("t", 0) is not None:
            self.log.config = LogConfig(segment_bytes=600)

    @property
    def log(self) -> PartitionLog:
        log = self.engine.directory.get("t", 0)
        assert log is not None
        return log

    @property
    def producers(self) -> PartitionProducers:
        partition = self.engine.data_plane.table.find("t", 0)
        assert partition is not None
        return partition.producers

    def send(self, producer_id: int, sequence: int, count: int = 1, epoch: int = 0) -> tuple[int, int]:
        """(error, base offset) of a batch."""
        builder = BatchBuilder()
        for _ in range(count):
            builder.append(1, None, b"value")
        batch = builder.build(0, -1, producer_id, epoch, sequence)
        data = [TopicProduceData("t", partition_data=[PartitionProduceData(0, batch)])]
        response = self.client.ask(apis.PRODUCE, 9, ProduceRequest(None, -1, 1000, data), NOW)
        answer = response.responses[0].partition_responses[0]
        return (answer.error_code, answer.base_offset)

    def restart(self, clean: bool = True) -> None:
        if clean:
            self.engine.stop()
        self.storage = self.storage.crash()
        self.open()

    def snapshots(self) -> list[int]:
        return [int(name[:20]) for name in self.storage.list_dir("t-0") if name.endswith(".snapshot")]

    def from_log_alone(self) -> PartitionProducers:
        producers = PartitionProducers(1000)
        for position, data in batches_of(self.log, 0, self.log.end_offset):
            producers.rebuild(parse_header(data, position))
        return producers


def last_batches(producers: PartitionProducers) -> dict[int, list[tuple[int, int, int]]]:
    return {
        producer_id: [(entry.epoch, b.first_sequence, b.last_offset) for b in entry.batches]
        for producer_id, entry in producers.entries.items()
    }


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_each_segment_has_the_producers_of_its_start() -> None:
    rig = Rig()
    for i in range(30):
        assert rig.send(5 + i % 3, i // 3)[0] == NONE
    assert len(bases(rig.log)) == 4
    assert rig.snapshots() == bases(rig.log)[1:]
    for offset in rig.snapshots():
        want = PartitionProducers(1000)
        for position, data in batches_of(rig.log, 0, offset):
            want.rebuild(parse_header(data, position))
        assert want.snapshot() == rig.log.snapshots.read(offset)


@pytest.mark.parametrize("clean", [True, False])
def test_producers_are_the_same_after_a_restart(clean: bool) -> None:
    rig = Rig()
    for i in range(60):
        rig.send(5 + i % 3, i // 3)
    before = last_batches(rig.producers)
    rig.restart(clean)
    assert last_batches(rig.producers) == before == last_batches(rig.from_log_alone())
    # Repeats of all that may have been in flight, and the next one.
    for i in range(15, 20):
        assert rig.send(5, i) == (NONE, i * 3)
    assert rig.send(5, 14)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert rig.send(5, 20) == (NONE, 60)
    if clean:
        assert rig.snapshots()[-1] == 60


def test_a_clean_stop_leaves_a_snapshot_of_the_end_and_the_next_start_the_newest_one() -> None:
    rig = Rig()
    rig.send(5, 0)
    rig.restart()
    assert rig.snapshots() == [1]
    rig.restart()
    assert rig.snapshots() == [1]
    rig.send(5, 1)
    rig.restart()
    assert rig.snapshots() == [2]
    assert [entry.last_sequence for entry in decode_snapshot(rig.log.snapshots.read(2))] == [1]


def test_only_the_tail_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    for i in range(60):
        rig.send(5, i)
    rig.restart()
    read: list[int] = []
    read_at = MemoryFile.read_at

    def counting(file: MemoryFile, position: int, size: int) -> bytes:
        data = read_at(file, position, size)
        if position + len(data) <= rig.log.size_bytes:
            read.append(len(data))
        return data

    monkeypatch.setattr(MemoryFile, "read_at", counting)
    load_producers(rig.engine.config, rig.log, [])
    # What may be repeated, before the snapshot, and nothing behind it: all of this short log, once.
    assert rig.log.size_bytes <= sum(read) < 2 * rig.log.size_bytes
    # Of a log that is longer than what may be in flight, only that much.
    assert rig.log.offset_before(60, 1500) == bases(rig.log)[-4]
    assert rig.log.offset_before(60, 1 << 20) == 0


def test_a_damaged_snapshot_is_reported_and_not_used() -> None:
    rig = Rig()
    for i in range(60):
        rig.send(5 + i % 3, i // 3)
    before = last_batches(rig.producers)
    rig.engine.stop()
    offsets = rig.snapshots()
    rig.storage.open(f"t-0/{offsets[-1]:020d}.snapshot").truncate(20)
    rig.storage.open(f"t-0/{offsets[-2]:020d}.snapshot").truncate(0)
    rig.storage = rig.storage.crash()
    for offset in offsets[-2:]:
        rig.storage.open(f"t-0/{offset:020d}.snapshot").truncate(7)
    rig.open()
    facts = [fact for fact in rig.engine.take_facts() if fact.event == "producer_snapshot_damaged"]
    assert [fact.fields["offset"] for fact in facts] == [offsets[-1], offsets[-2]]
    assert last_batches(rig.producers) == before
    assert rig.snapshots() == offsets[:-2]


def test_a_snapshot_from_beyond_the_end_goes() -> None:
    rig = Rig()
    rig.send(5, 0)
    rig.log.snapshots.write(7, PartitionProducers(0).snapshot())
    rig.restart()
    assert rig.snapshots() == [1]
    assert rig.send(5, 0) == (NONE, 0)


def test_coordinator_logs_have_empty_snapshots() -> None:
    rig = Rig()
    rig.engine.stop()
    names = [name for name in rig.storage.list_dir("__cluster_metadata-0") if name.endswith(".snapshot")]
    assert [rig.storage.read_bytes(f"__cluster_metadata-0/{name}").hex() for name in names] == ["000148674bc700000000"]


@pytest.mark.parametrize("seed", range(10))
def test_any_history_survives_restarts_and_crashes(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig()
    sequences: dict[int, tuple[int, int]] = {}
    for _ in range(150):
        what = rng.random()
        if what < 0.04:
            before = last_batches(rig.producers)
            rig.restart(clean=rng.random() < 0.5)
            assert last_batches(rig.producers) == before
            continue
        producer_id = rng.randrange(4)
        epoch, sequence = sequences.get(producer_id, (0, 0))
        if what < 0.08:
            epoch, sequence = epoch + 1, 0
        count = rng.randrange(1, 4)
        assert rig.send(producer_id, sequence, count, epoch)[0] == NONE
        sequences[producer_id] = (epoch, sequence + count)
    assert last_batches(rig.producers) == last_batches(rig.from_log_alone())


def test_what_may_be_in_flight_is_bounded() -> None:
    # Five batches of the size that the clients make by default, of a dozen producers.
    assert producer_state.REPEATS_BYTES >= 12 * 5 * 16384


@pytest.mark.parametrize(
    ("value", "epoch"), [(b"\0\0\0\0\0\x09", 9), (b"\0\0\0\0\0\x09more", 9), (b"\0\0", -1), (None, -1)]
)
def test_a_marker_has_the_coordinators_epoch(value: bytes | None, epoch: int) -> None:
    producers = PartitionProducers(1000)
    for sequence, control in ((0, False), (-1, True)):
        builder = BatchBuilder()
        builder.append(5, b"\0\0\0\x01", value)
        data = builder.build(max(-sequence, 0), 0, 3, 1, sequence, transactional=True, control=control)
        producer_state.rebuild_batch(producers, data, parse_header(data))
        entry = producers.entries[3]
        assert entry.txn_first_offset == (-1 if control else 0)
        assert entry.coordinator_epoch == (epoch if control else -1)
    assert entry.last_sequence == 0


def test_a_marker_of_nonsense_ends_the_transaction() -> None:
    producers = PartitionProducers(1000)
    data = encode_batch(0, 0, CONTROL_FLAG | TRANSACTIONAL_FLAG, 0, 5, 5, 3, 1, -1, 1, b"nonsense")
    producer_state.rebuild_batch(producers, data, parse_header(data))
    assert (producers.entries[3].coordinator_epoch, producers.entries[3].txn_first_offset) == (-1, -1)


def cleared() -> Rig:
    """A snapshot after the first batch, two more batches, and no record that is left."""
    rig = Rig()
    rig.log.config = LogConfig()
    assert rig.send(5, 0) == (NONE, 0)
    rig.restart(clean=True)
    rig.log.config = LogConfig()
    assert rig.send(5, 1) == (NONE, 1)
    assert rig.send(5, 0, epoch=1) == (NONE, 2)
    body = DeleteRecordsRequest([DeleteRecordsTopic("t", [DeleteRecordsPartition(0, -1)])], 5000)
    assert rig.client.ask(apis.DELETE_RECORDS, 2, body, NOW).topics[0].partitions[0].error_code == NONE
    return rig


@pytest.mark.parametrize("restarts", [False, True])
def test_removed_records_leave_the_state_of_their_producer(restarts: bool) -> None:
    rig = cleared()
    if restarts:
        rig.restart(clean=False)
    # A repeat, the older epoch, the next one.
    assert rig.send(5, 0, epoch=1) == (NONE, 2)
    assert rig.send(5, 2, epoch=0)[0] == INVALID_PRODUCER_EPOCH
    assert rig.send(5, 1, epoch=1) == (NONE, 3)
