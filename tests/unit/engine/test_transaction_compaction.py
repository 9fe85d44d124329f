"""Compaction, retention and DeleteRecords under transactions, in random orders and with restarts, against a model.

The model knows every record that was written, its key and how its transaction ended, and nothing of logs:

- readers with `read_committed` find the newest committed record of each key that is left, and only committed records;
- the last stable offset is the first offset of the oldest open transaction, or the start of the log if that is higher;
- every record of an open transaction stays, byte by byte, until its end or until the start of the log passes it;
- below what was cleaned no record of an aborted transaction is left;
- a marker goes only after the last batch of its transaction, after the delete horizon that it carries (KIP-534), and
  never if it is what is left of its producer (KAFKA-9144).

All of it holds after a clean stop, after a power cut, and if snapshots and indexes have to be built from the log again.
"""

from __future__ import annotations

import random

import pytest

from kcoord.log.cleaner import CleanConfig
from kcoord.log.retention import RetentionPolicy, plan_retention
from kcoord.log.transaction_index import marker_type
from kcoord.protocol import apis
from kcoord.protocol.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kcoord.wire.record_batch import DELETE_HORIZON_FLAG, BatchHeader, Record, decode_records, parse_header
from tests.harness.log import batches_of, compact
from tests.unit.engine.test_transaction_recovery import CONFIG, NOW, Rig

KEYS = (b"a", b"b", b"c", b"d")
DELETE_RETENTION_MS = 10_000
RECORD_BYTES_MAX = 1 << 20
UNLIMITED = -1
INDEXES = (".index", ".timeindex", ".txnindex")


class Stored:
    """A batch as it stands in the log."""

    def __init__(self, header: BatchHeader, records: list[Record], kind: int | None) -> None:
        self.producer_id = header.producer_id
        self.offset = header.base_offset
        self.is_transactional = header.is_transactional
        self.horizon_ms = header.base_timestamp if header.attributes & DELETE_HORIZON_FLAG else None
        self.records = records
        # Of a marker that still has its record.
        self.kind = kind
        self.is_control = header.is_control


class World(Rig):
    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.has_gaps = True
        self.keys: dict[int, bytes] = {}
        self.clean_ms = NOW.wall_ms
        self.first_dirty = 0
        self.markers_gone = 0
        self.aborted_gone = 0

    # --- what happens

    def step(self) -> None:
        rng = self.rng
        self.key = rng.choice(KEYS)
        producer_id = rng.randint(1, 4)
        kind = rng.random()
        if kind < 0.3:
            self.plain()
        elif kind < 0.7:
            self.write(producer_id)
        else:
            self.end(producer_id, rng.random() < 0.5, rng.random() < 0.5)
        for offset in self.written:
            self.keys.setdefault(offset, self.key)

    def compact(self, keys_max: int) -> None:
        """Clean the closed segments as the server does: on from where the last cleaning ended."""
        log = self.tp.log
        if not log.closed_segments:
            return
        before = self.stored()
        config = CleanConfig(DELETE_RETENTION_MS, CONFIG.segment_bytes, CONFIG.index_interval_bytes, keys_max)
        producers = frozenset(self.tp.producers.entries)
        result = compact(log, self.first_dirty, config, self.clean_ms, producers)
        if self.tp.last_stable_offset > log.log_start_offset:
            assert result.end <= max(self.tp.last_stable_offset, self.first_dirty)
        self.first_dirty = result.end
        self.check_rules(before, self.stored())

    def delete_records(self) -> None:
        """Move the start of the log, maybe into the middle of open transactions."""
        log = self.tp.log
        start = self.rng.randint(log.log_start_offset, min(log.log_start_offset + 25, log.end_offset))
        topics = [DeleteRecordsTopic("t", [DeleteRecordsPartition(0, start)])]
        answer = self.client.ask(apis.DELETE_RECORDS, 2, DeleteRecordsRequest(topics, 1000), NOW)
        assert answer.topics[0].partitions[0].error_code == 0
        if self.rng.random() < 0.5:
            for segment in self.engine.data_plane.delete_records.take_waste(""):
                segment.remove()

    def retain(self) -> None:
        """Retention by size, which does not ask for transactions."""
        log = self.tp.log
        policy = RetentionPolicy(True, UNLIMITED, self.rng.randint(log.size_bytes // 2, log.size_bytes))
        plan = plan_retention(log, policy, NOW.wall_ms)
        if plan is None or plan.must_roll:
            return
        log.log_start_offset = plan.start
        self.engine.directory.write_start_offsets(self.engine.directory.take_starts())
        for segment in log.take_segments_below(plan.start):
            segment.remove()

    def restart_without(self, hints: tuple[str, ...]) -> None:
        """A power cut, and somebody removes these files: what they hold comes from the batches."""
        self.storage = self.forgetful = self.forgetful.crash()
        for name in self.storage.list_dir("t-0"):
            if name.endswith(hints):
                self.storage.remove(f"t-0/{name}")
        self.storage.sync_dir("t-0")
        self.open()

    # --- what must hold

    def stored(self) -> list[Stored]:
        found = []
        for position, data in batches_of(self.tp.log, 0, self.tp.log.end_offset):
            header = parse_header(data, position)
            kind = marker_type(data, header) if header.is_control and header.count else None
            records = [] if header.is_control else decode_records(data, position, header, RECORD_BYTES_MAX)
            found.append(Stored(header, records, kind))
        return found

    def check_rules(self, before: list[Stored], after: list[Stored]) -> None:
        """What a cleaning may remove."""
        offsets = {record.offset for batch in after for record in batch.records}
        for batch in before:
            for record in batch.records:
                number = self.written[record.offset][1]
                is_aborted = number > 0 and self.ended.get(number) is False
                if is_aborted and record.offset < self.first_dirty:
                    assert record.offset not in offsets, record.offset
                    self.aborted_gone += 1
        markers = {batch.offset for batch in after if batch.kind is not None}
        previous: dict[int, int] = {}
        for batch in before:
            if batch.kind is None:
                continue
            since = previous.get(batch.producer_id, -1)
            previous[batch.producer_id] = batch.offset
            if batch.offset in markers:
                continue
            self.markers_gone += 1
            assert batch.horizon_ms is not None and batch.horizon_ms <= self.clean_ms, batch.offset
            data = [one.offset for one in after if one.producer_id == batch.producer_id and not one.is_control]
            assert not [offset for offset in data if since < offset < batch.offset], batch.offset
        for producer_id in self.tp.producers.entries:
            was_there = [batch.offset for batch in before if batch.producer_id == producer_id]
            is_there = [batch.offset for batch in after if batch.producer_id == producer_id]
            assert bool(is_there) == bool(was_there), producer_id

    def check_all(self) -> None:
        log = self.tp.log
        start = log.log_start_offset
        stable = max(start, min(self.firsts.values(), default=log.end_offset))
        assert self.tp.last_stable_offset == stable
        found = {record.offset: record.value for batch in self.stored() for record in batch.records}
        for offset, (value, number) in self.written.items():
            if offset >= start and number in self.current.values():
                assert found.get(offset) == value, offset
        committed = {
            offset: value
            for offset, (value, number) in self.written.items()
            if start <= offset < stable and (number == 0 or self.ended[number])
        }
        for max_bytes in (1, 400, 1 << 20):
            read = {offset: value for offset, value in self.read(max_bytes).items() if offset >= start}
            assert read.items() <= committed.items()
            assert self.newest(read) == self.newest(committed)

    def read(self, max_bytes: int) -> dict[int, bytes]:
        """As `consume`, from the start of the log on."""
        return self.consume(max_bytes, self.tp.log.log_start_offset)

    def newest(self, found: dict[int, bytes]) -> dict[bytes, bytes]:
        return {self.keys[offset]: value for offset, value in sorted(found.items())}


def live(world: World, rounds: int, deletes: bool) -> None:
    rng = world.rng
    for _ in range(rounds):
        for _ in range(rng.randint(5, 30)):
            world.step()
        world.check_all()
        if deletes and rng.random() < 0.4:
            rng.choice((world.delete_records, world.retain))()
            world.check_all()
        world.compact(rng.choice((3, 1000)))
        world.check_all()
        world.clean_ms += rng.choice((0, DELETE_RETENTION_MS // 2, 2 * DELETE_RETENTION_MS))
        way = rng.randrange(4)
        if way == 3:
            # Producers whose records were deleted are in snapshots alone.
            world.restart_without(INDEXES if deletes else (*INDEXES, ".snapshot"))
        elif way:
            world.restart(way == 1)
        world.check_all()


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_readers_and_open_transactions_survive(seed: int, deletes: bool) -> None:
    world = World(random.Random(seed))
    live(world, 8, deletes)
    # What is open is committed, and all of it is there.
    for producer_id in list(world.current):
        world.end(producer_id, True)
    world.check_all()
    world.restart_without(INDEXES)
    assert world.tp.last_stable_offset == world.tp.log.end_offset
    world.check_all()


def test_aborted_records_and_markers_go_in_the_end() -> None:
    """Two cleanings with the delete horizon in between leave the newest records, and one batch of each producer."""
    world = World(random.Random(1))
    live(world, 4, False)
    for producer_id in list(world.current):
        world.end(producer_id, False)
    # Everything of transactions is in closed segments.
    world.key = b"filler"
    for _ in range(30):
        world.plain()
        world.keys[max(world.written)] = b"filler"
    for _ in range(3):
        world.compact(1000)
        world.clean_ms += DELETE_RETENTION_MS
        world.check_all()
    closed = [one for one in world.stored() if one.offset < world.first_dirty]
    markers = [one for one in closed if one.kind is not None]
    with_data = {one.producer_id for one in closed if one.is_transactional and not one.is_control}
    assert world.markers_gone > 10 and world.aborted_gone > 10
    # A marker is left where a batch of its transaction is, or where it is all that is left of its producer.
    assert len(markers) <= 2 * len(world.tp.producers.entries), [one.offset for one in markers]
    assert len(with_data) <= len(world.tp.producers.entries)
    world.restart_without((*INDEXES, ".snapshot"))
    world.check_all()
