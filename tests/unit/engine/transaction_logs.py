"""Random logs of `__consumer_offsets` with transactions, and a simple model of what they mean."""

from __future__ import annotations

import random

from kcoord.core.config import CoreConfig
from kcoord.core.coordinator import Core
from kcoord.core.outcome import OFFSETS_TOPIC, LogId, Marker
from kcoord.engine.markers import marker_batch
from kcoord.log.log_config import LogConfig
from kcoord.log.partition_log import PartitionLog
from kcoord.log.serde import encode_record
from kcoord.log.storage import MemoryStorage, Storage
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from kcoord.protocol.records.legacy_offset_commit import LegacyOffsetCommitKey, LegacyOffsetCommitValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.wire.message import Message
from kcoord.wire.record_batch import BatchBuilder
from tests.harness.core_invariants import offset_problems

LOG = LogId(OFFSETS_TOPIC, 0)
NAME = "__consumer_offsets-0"
TOPIC_ID = b"\x01" * 16
NO_PRODUCER = -1
PRODUCERS = (1, 2, 3)
# Group, topic, partition.
Place = tuple[str, str, int]
Typed = tuple[Message, Message | None]


def new_core() -> Core:
    core = Core(CoreConfig())
    core.replay(core.metadata_log, 0, None, TopicRecord(OFFSETS_TOPIC, TOPIC_ID))
    core.replay(core.metadata_log, 1, None, PartitionRecord(0, TOPIC_ID, [1], [1]))
    return core


def new_log(storage: Storage | None = None, segment_bytes: int = 900) -> PartitionLog:
    storage = storage or MemoryStorage()
    storage.make_dir(NAME)
    return PartitionLog(storage, OFFSETS_TOPIC, 0, TOPIC_ID, LogConfig(segment_bytes=segment_bytes))


def commit(place: Place, offset: int | None) -> Typed:
    group, topic, partition = place
    value = None if offset is None else OffsetCommitValue(offset, 1, "m", 5000 + offset)
    return OffsetCommitKey(group, topic, partition), value


class Model:
    """Committed and pending offsets, by the rules of a broker and without any index."""

    def __init__(self) -> None:
        # With the offset of the record first, so that the newer one is the larger one.
        self.committed: dict[Place, tuple[int, int]] = {}
        self.pending: list[tuple[int, Place, tuple[int, int]]] = []

    def record(self, producer_id: int, place: Place, record: int, offset: int | None) -> None:
        if offset is None:
            self.committed.pop(place, None)
            self.pending = [p for p in self.pending if p[1] != place]
        elif producer_id < 0:
            self.committed[place] = (record, offset)
        else:
            self.pending = [p for p in self.pending if p[:2] != (producer_id, place)]
            self.pending.append((producer_id, place, (record, offset)))

    def marker(self, producer_id: int, is_commit: bool) -> None:
        for owner, place, offset in self.pending:
            if owner == producer_id and is_commit:
                self.committed[place] = max(offset, self.committed.get(place, offset))
        self.pending = [p for p in self.pending if p[0] != producer_id]

    def check(self, core: Core) -> None:
        found: dict[Place, tuple[int, int]] = {}
        for group, topics in core.offsets.by_group.items():
            for topic, partitions in topics.items():
                for partition, stored in partitions.items():
                    found[(group, topic, partition)] = (stored.record_offset, stored.committed_offset)
        assert found == self.committed
        # Without a group: a tombstone of the group came between, which no coordinator writes there.
        assert not [text for text in offset_problems(core.offsets) if "is no group" not in text]
        pending: list[tuple[int, Place, tuple[int, int]]] = []
        for (_, producer_id), places in core.offsets.pending.by_producer.items():
            for place, stored in places.items():
                pending.append((producer_id, place, (stored.record_offset, stored.committed_offset)))
        assert sorted(pending) == sorted(self.pending)
        unstable = {place for _, place, _ in pending}
        for group in "abc":
            for topic in "tu":
                for partition in range(3):
                    has = core.offsets.has_pending(group, topic, partition)
                    assert has == ((group, topic, partition) in unstable)


class RandomLog:
    """A log that grows batch by batch, with a live core and a model beside it."""

    def __init__(self, rng: random.Random, log: PartitionLog | None = None) -> None:
        self.rng = rng
        self.log = new_log() if log is None else log
        self.core = new_core()
        self.model = Model()

    def grow(self) -> None:
        choice = self.rng.randrange(10)
        if choice < 3:
            self.marker(self.rng.choice(PRODUCERS), self.rng.random() < 0.6)
        elif choice < 7:
            self.append(self.rng.choice(PRODUCERS), [self.commit_record() for _ in range(self.rng.randrange(1, 4))])
        else:
            self.append(NO_PRODUCER, [self.any_record() for _ in range(self.rng.randrange(1, 4))])

    def place(self) -> Place:
        return self.rng.choice("abc"), self.rng.choice("tu"), self.rng.randrange(3)

    def commit_record(self) -> Typed:
        if self.rng.random() < 0.1:
            group, topic, partition = self.place()
            value = LegacyOffsetCommitValue(self.rng.randrange(99), "o", 7)
            return LegacyOffsetCommitKey(group, topic, partition), value
        return commit(self.place(), self.rng.randrange(1000))

    def any_record(self) -> Typed:
        choice = self.rng.randrange(10)
        if choice < 4:
            return self.commit_record()
        if choice < 8:
            return commit(self.place(), None)
        group = self.rng.choice("abc")
        value = GroupMetadataValue("consumer", self.rng.randrange(9), None, None, 5, [])
        return GroupMetadataKey(group), self.rng.choice([value, None])

    def append(self, producer_id: int, records: list[Typed]) -> None:
        base = self.log.end_offset
        builder = BatchBuilder()
        for number, (key, value) in enumerate(records):
            builder.append(1000 + base, *encode_record(key, value))
            offset = base + number
            self.core.replay(LOG, offset, key, value, 1000 + base, None, producer_id)
            if isinstance(key, OffsetCommitKey | LegacyOffsetCommitKey):
                to = None
                if isinstance(value, OffsetCommitValue | LegacyOffsetCommitValue):
                    to = value.offset
                self.model.record(producer_id, (key.group, key.topic, key.partition), offset, to)
        is_transactional = producer_id >= 0
        epoch = producer_id + 10 if is_transactional else -1
        self.store(builder.build(base, 0, producer_id, epoch, 0, transactional=is_transactional), len(records))

    def marker(self, producer_id: int, is_commit: bool) -> None:
        base = self.log.end_offset
        epoch = producer_id + 10
        marker = Marker(OFFSETS_TOPIC, 0, producer_id, epoch, is_commit, 0, 2)
        self.store(marker_batch(marker, base, 0, 1000 + base), 1)
        self.core.replay_marker(LOG, base, producer_id, epoch, is_commit)
        self.model.marker(producer_id, is_commit)

    def store(self, batch: bytes, count: int) -> None:
        base = self.log.end_offset
        self.log.append(batch, base, base + count - 1, 1000 + base)
        self.log.flush()
        self.log.durable_end = self.log.written_end
