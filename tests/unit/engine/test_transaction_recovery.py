"""Open and aborted transactions across rolls, clean stops and crashes: readers see the same as before."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.engine.markers import open_transactions
from kcoord.engine.partitions import TopicPartition
from kcoord.log.log_config import LogConfig
from kcoord.log.storage import Storage
from kcoord.log.transaction_index import ENTRY, marker_type
from kcoord.protocol import apis
from kcoord.protocol.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.errors import NONE
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kcoord.protocol.find_coordinator import FindCoordinatorRequest
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.testing.state.disk import ForgetfulStorage
from kcoord.wire.record_batch import decode_records
from tests.harness.batches import BASE_TIME_MS, batch
from tests.harness.engine import Client, finish_turn, open_engine
from tests.harness.record_batches import parse_batches
from tests.harness.transactions import marker, transactional

NOW = Now(0, BASE_TIME_MS)
COMMITTED = 1
# A segment has a few batches, and an index entry for every other one.
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=120, tail_bytes_max=300)
# FindCoordinator's key type.
TRANSACTION = 1
# Their ids, which the coordinator assigns in this order, and the numbers of their transactional ids.
PRODUCERS = 5


def transactional_id(producer_id: int) -> str:
    return f"p{producer_id}"


class Rig:
    """An engine with the topic `t`, whose transactions the test begins and ends, and what must become of them."""

    def __init__(self, storage: Storage | None = None) -> None:
        self.forgetful = ForgetfulStorage()
        self.storage: Storage = storage or self.forgetful
        self.open()
        self.client.ask(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic("t", 1, 1)]), NOW)
        self.client.ask(apis.FIND_COORDINATOR, 4, FindCoordinatorRequest("", TRANSACTION, [transactional_id(1)]), NOW)
        for producer_id in range(PRODUCERS):
            body = InitProducerIdRequest(transactional_id(producer_id), 60_000)
            answer = self.client.ask(apis.INIT_PRODUCER_ID, 4, body, NOW)
            assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (NONE, producer_id, 0)
        self.tp.log.config = CONFIG
        # Of each offset: its value, and the number of its transaction (0: none). How each transaction ended.
        self.written: dict[int, tuple[bytes, int]] = {}
        self.ended: dict[int, bool] = {}
        # By producer: its transaction, the first offset, the next sequence, the epoch.
        self.current: dict[int, int] = {}
        self.firsts: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.count = 0
        # The key of the next record.
        self.key: bytes | None = None
        # Compaction may leave no batch right below the last stable offset.
        self.has_gaps = False

    def open(self) -> None:
        self.engine: Engine = open_engine(self.storage, NOW)
        self.client = Client(self.engine)
        if self.engine.directory.get("t", 0) is not None:
            self.tp.log.config = CONFIG

    @property
    def tp(self) -> TopicPartition:
        found = self.engine.data_plane.table.find("t", 0)
        assert found is not None
        return found

    def send(self, records: bytes, transactional_id: str | None = None) -> int:
        data = [TopicProduceData("t", partition_data=[PartitionProduceData(0, records)])]
        response = self.client.ask(apis.PRODUCE, 9, ProduceRequest(transactional_id, -1, 1000, data), NOW)
        answer = response.responses[0].partition_responses[0]
        assert answer.error_code == NONE
        return int(answer.base_offset)

    def plain(self) -> None:
        value = b"plain %d" % len(self.written)
        self.written[self.send(batch([value], self.key))] = (value, 0)

    def write(self, producer_id: int) -> None:
        """A batch of the producer's transaction, which begins if it has none."""
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + 1
        value = b"%d %d" % (producer_id, sequence)
        epoch = self.epochs.get(producer_id, 0)
        if producer_id not in self.current:
            self.enlist(producer_id)
        offset = self.send(
            transactional([value], producer_id, sequence, epoch, self.key), transactional_id(producer_id)
        )
        if producer_id not in self.current:
            self.count += 1
            self.current[producer_id] = self.count
            self.firsts[producer_id] = offset
        self.written[offset] = (value, self.current[producer_id])

    def enlist(self, producer_id: int) -> None:
        """Add the partition to the producer's transaction, as clients of version 1 do."""
        body = AddPartitionsToTxnRequest(
            [],
            transactional_id(producer_id),
            producer_id,
            self.epochs.get(producer_id, 0),
            [AddPartitionsToTxnTopic("t", [0])],
        )
        answer = self.client.ask(apis.ADD_PARTITIONS_TO_TXN, 3, body, NOW)
        assert answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == NONE

    def end(self, producer_id: int, is_commit: bool, bumps: bool = False) -> None:
        """End the producer's transaction; with version 2, that increments its epoch. Without one: a marker alone."""
        epoch = self.epochs.get(producer_id, 0)
        if producer_id not in self.current:
            # The coordinator repeats markers after a crash.
            assert self.engine.data_plane.markers.write(marker(producer_id, is_commit, epoch), NOW) == NONE
            finish_turn(self.engine, NOW)
            return
        body = EndTxnRequest(transactional_id(producer_id), producer_id, epoch, is_commit)
        answer = self.client.ask(apis.END_TXN, 5 if bumps else 4, body, NOW)
        assert answer.error_code == NONE
        if bumps:
            assert (answer.producer_id, answer.producer_epoch) == (producer_id, epoch + 1)
            self.epochs[producer_id] = epoch + 1
            self.sequences[producer_id] = 0
        self.ended[self.current.pop(producer_id)] = is_commit
        del self.firsts[producer_id]

    def restart(self, clean: bool) -> None:
        if clean:
            self.engine.stop()
        self.storage = self.forgetful = self.forgetful.crash()
        self.open()

    def fetch(self, offset: int, max_bytes: int = 1 << 20) -> Any:
        topics = [FetchTopic("t", partitions=[FetchPartition(0, fetch_offset=offset, partition_max_bytes=max_bytes)])]
        body = FetchRequest(max_wait_ms=0, isolation_level=COMMITTED, topics=topics, session_epoch=-1)
        data = self.client.ask(apis.FETCH, 11, body, NOW).responses[0].partitions[0]
        assert data.error_code == NONE
        return data

    def consume(self, max_bytes: int, position: int = 0) -> dict[int, bytes]:
        """What a consumer with isolation level READ_COMMITTED returns, by offset."""
        found: dict[int, bytes] = {}
        while True:
            data = self.fetch(position, max_bytes)
            if not data.records:
                assert position == data.last_stable_offset or self.has_gaps
                return found
            position = filter_committed(data, position, found)

    def check(self) -> None:
        assert self.tp.last_stable_offset == min(self.firsts.values(), default=self.tp.log.end_offset)
        opened = sorted((first, producer_id) for producer_id, first in self.firsts.items())
        assert [(one[2], one[0]) for one in open_transactions(self.tp)] == opened
        stable = self.tp.last_stable_offset
        wanted = {
            offset: value
            for offset, (value, number) in self.written.items()
            if offset < stable and (number == 0 or self.ended[number])
        }
        for max_bytes in (1, 400, 1 << 20):
            assert self.consume(max_bytes) == wanted


def filter_committed(data: Any, position: int, found: dict[int, bytes]) -> int:
    """Add the records that a client returns from a fetch, as clients do it. Returns the next position."""
    waiting = sorted((one.first_offset, one.producer_id) for one in data.aborted_transactions)
    aborted: set[int] = set()
    for header in parse_batches(data.records):
        while waiting and waiting[0][0] <= header.last_offset:
            aborted.add(waiting.pop(0)[1])
        if header.is_control:
            if marker_type(data.records, header) == 0:
                aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            for record in decode_records(data.records, header.pos, header, 1 << 20):
                if record.offset >= position:
                    assert record.value is not None
                    found[record.offset] = record.value
        position = header.last_offset + 1
    return position


@pytest.mark.parametrize("seed", range(12))
def test_committed_readers_see_the_same_after_each_restart(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig()
    for step in range(120):
        producer_id = rng.randint(1, 4)
        kind = rng.random()
        if kind < 0.25:
            rig.plain()
        elif kind < 0.65:
            rig.write(producer_id)
        elif kind < 0.9:
            rig.end(producer_id, rng.random() < 0.5, rng.random() < 0.5)
        elif kind < 0.95:
            rig.restart(rng.random() < 0.5)
        if step % 10 == 9:
            rig.check()
    rig.restart(True)
    rig.check()
    rig.restart(False)
    rig.check()


def test_closed_segments_have_their_aborted_transactions_in_files() -> None:
    rig = Rig()
    for i in range(20):
        rig.write(1 + i % 2)
        rig.end(1 + i % 2, i % 3 == 0)
        rig.plain()
    found: list[tuple[int, ...]] = []
    names = [name for name in rig.storage.list_dir("t-0") if name.endswith(".txnindex")]
    bases = [segment.base_offset for segment in rig.tp.log.segments]
    for name in names:
        for entry in ENTRY.iter_unpack(rig.storage.read_bytes(f"t-0/{name}")):
            base = int(name[:20])
            beyond = bases[bases.index(base) + 1]
            assert base <= entry[3] < beyond
            found.append(entry)
    assert len(names) > 3
    # The last segment's are in memory.
    assert f"{bases[-1]:020d}.txnindex" not in names
    aborted = [number for number, is_commit in rig.ended.items() if not is_commit]
    wanted = [(0, 1 + (number - 1) % 2, 3 * (number - 1), 3 * (number - 1) + 1) for number in aborted]
    assert [entry[:4] for entry in found] == [entry for entry in wanted if entry[3] < bases[-1]]
    assert all(entry[4] == entry[3] + 1 for entry in found)


def test_an_entry_has_the_last_stable_offset_after_its_marker() -> None:
    rig = Rig()
    rig.write(1)
    rig.write(2)
    rig.write(3)
    rig.end(2, False)
    rig.end(1, False)
    rig.end(3, False)
    rig.restart(True)
    data = rig.storage.read_bytes("t-0/00000000000000000000.txnindex")
    assert list(ENTRY.iter_unpack(data)) == [(0, 2, 1, 3, 0), (0, 1, 0, 4, 2), (0, 3, 2, 5, 6)]
    rig.check()


def test_a_stale_index_of_the_last_segment_is_replaced_after_a_crash() -> None:
    """A clean stop writes it, then the segment grows, then the power fails."""
    rig = Rig()
    rig.write(1)
    rig.end(1, False)
    rig.restart(True)
    rig.write(1)
    rig.restart(False)
    rig.end(1, False)
    rig.check()
    rig.restart(True)
    data = rig.storage.read_bytes("t-0/00000000000000000000.txnindex")
    assert [entry[2:4] for entry in ENTRY.iter_unpack(data)] == [(0, 1), (2, 3)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("files_go", [True, False])
def test_records_of_open_and_aborted_transactions_may_be_deleted(clean: bool, files_go: bool) -> None:
    rig = Rig()
    rig.write(1)
    rig.write(2)
    for _ in range(12):
        rig.plain()
    rig.write(1)
    rig.end(2, False)
    start = rig.tp.log.segments[1].base_offset + 2
    topics = [DeleteRecordsTopic("t", [DeleteRecordsPartition(0, start)])]
    rig.client.ask(apis.DELETE_RECORDS, 2, DeleteRecordsRequest(topics, 1000), NOW)
    if files_go:
        for segment in rig.engine.data_plane.delete_records.take_waste(""):
            segment.remove()
    assert rig.tp.last_stable_offset == rig.tp.log.log_start_offset == start
    rig.restart(clean)
    assert rig.tp.last_stable_offset == start
    rig.end(1, False)
    assert rig.tp.last_stable_offset == rig.tp.log.end_offset
    rig.restart(clean)
    data = rig.fetch(start)
    assert [(one.producer_id, one.first_offset) for one in data.aborted_transactions] == [(2, 1), (1, 0)]
    found: dict[int, bytes] = {}
    position = start
    while position < rig.tp.log.end_offset:
        position = filter_committed(rig.fetch(position), position, found)
    assert found == {o: value for o, (value, number) in rig.written.items() if o >= start and not number}


def test_a_file_that_no_segment_vouches_for_is_not_trusted() -> None:
    """A repair or a removal that a crash interrupted may have left it."""
    rig = Rig()
    rig.plain()
    entry = ENTRY.pack(0, 1, 0, 1, 2)
    base = rig.tp.log.end_offset
    while len(rig.tp.log.segments) == 1:
        rig.storage.open(f"t-0/{base:020d}.txnindex").append(entry)
        rig.plain()
        base += 1
    rig.restart(True)
    rig.restart(True)
    base = rig.tp.log.segments[-1].base_offset
    assert rig.storage.read_bytes(f"t-0/{base:020d}.txnindex") == b""
    rig.check()


@pytest.mark.parametrize("damage", [b"", b"\0" * 5, b"\0\1" + b"\0" * 32])
def test_an_invalid_index_is_built_from_the_segment(damage: bytes) -> None:
    rig = Rig()
    rig.write(1)
    for _ in range(6):
        rig.plain()
    rig.write(2)
    rig.end(1, False)
    rig.end(2, False)
    rig.restart(True)
    base = rig.tp.log.segments[-1].base_offset
    assert base > 0
    file = rig.storage.open(f"t-0/{base:020d}.txnindex")
    file.truncate(20)
    file.append(damage)
    rig.restart(True)
    if damage:
        rig.check()
    rig.write(1)
    rig.end(1, False)
    rig.check()


@pytest.mark.parametrize("clean", [True, False])
def test_indexes_that_somebody_removed_are_built_again(clean: bool) -> None:
    """As a broker does when the offset index is missing. Without that, readers would see aborted records."""
    rig = Rig()
    for i in range(12):
        rig.write(1 + i % 2)
        rig.plain()
        rig.end(1 + i % 2, i % 3 == 0)
    rig.restart(clean)
    names = [name for name in rig.storage.list_dir("t-0") if name.endswith(("index", ".snapshot"))]
    assert len([name for name in names if name.endswith(".txnindex")]) > 2
    for name in names:
        rig.storage.remove(f"t-0/{name}")
    rig.storage.sync_dir("t-0")
    rig.restart(False)
    rig.check()
    rig.write(1)
    rig.end(1, False)
    rig.restart(clean)
    rig.check()
