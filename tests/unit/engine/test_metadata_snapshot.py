"""Snapshots of the metadata log: the same state with fewer records, nothing lost that is not understood, no way around
a damaged one but an older one, and a log that may begin where one ends."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kcoord.core.config import CoreConfig
from kcoord.core.coordinator import Core
from kcoord.core.outcome import Fact, LogId, Now
from kcoord.engine.engine import Engine
from kcoord.engine.metadata_snapshot import MetadataState
from kcoord.engine.metadata_writer import SnapshotNotWritten, SnapshotPlan, WrittenSnapshot, write_snapshot
from kcoord.log.errors import LogDamaged
from kcoord.log.log_config import LogConfig
from kcoord.log.metadata_checkpoint import (
    BadCheckpoint,
    CheckpointName,
    CheckpointWriter,
    list_checkpoints,
    parse_checkpoint,
    read_checkpoint_file,
)
from kcoord.log.partition_log import PartitionLog
from kcoord.log.serde import decode_metadata_record, encode_metadata_record
from kcoord.log.storage import DiskStorage, MemoryStorage, Storage
from kcoord.protocol import apis
from kcoord.protocol.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kcoord.protocol.records.access_control_entry_record import AccessControlEntryRecord
from kcoord.protocol.records.begin_transaction_record import BeginTransactionRecord
from kcoord.protocol.records.config_record import ConfigRecord
from kcoord.protocol.records.feature_level_record import FeatureLevelRecord
from kcoord.protocol.records.fence_broker_record import FenceBrokerRecord
from kcoord.protocol.records.no_op_record import NoOpRecord
from kcoord.protocol.records.partition_change_record import PartitionChangeRecord
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.producer_ids_record import ProducerIdsRecord
from kcoord.protocol.records.remove_topic_record import RemoveTopicRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.wire.message import Message
from kcoord.wire.record_batch import HEADER_BYTES, BatchBuilder, decode_records
from tests.harness.engine import open_engine
from tests.harness.metadata import shorten, take_snapshot
from tests.harness.record_batches import parse_batches
from tests.unit.cli.rig import METADATA, LogRig, at

LOG = LogId("__cluster_metadata", 0)
NOW = Now(0, 1_700_000_000_000)
UNKNOWN = b"\x01\x63\x00what is this"


# --- logs without an engine


class Writer:
    """A metadata log in memory."""

    def __init__(self, segment_bytes: int = 1 << 20) -> None:
        self.storage: Storage = MemoryStorage()
        self.storage.make_dir(METADATA)
        config = LogConfig(segment_bytes=segment_bytes)
        self.log = PartitionLog(self.storage, "__cluster_metadata", 0, bytes(15) + b"\x01", config)
        self.log.create_files()
        self.core = Core(CoreConfig())

    def add(self, *values: bytes, timestamp: int = NOW.wall_ms) -> None:
        """A batch of records."""
        builder = BatchBuilder()
        for value in values:
            builder.append(timestamp, None, value)
        first = self.log.end_offset
        self.log.append(builder.build(first, 0), first, first + len(values) - 1, timestamp)
        self.log.flush()
        self.log.durable_end = self.log.end_offset
        for i, value in enumerate(values):
            self.core.replay(LOG, first + i, None, decode_metadata_record(value))

    def put(self, *records: Message) -> None:
        self.add(*(encode_metadata_record(record) for record in records))

    def snapshot(self, state: MetadataState) -> tuple[SnapshotPlan, WrittenSnapshot]:
        plan = state.plan(self.log.durable_end, 1, [])
        result = write_snapshot(self.storage, plan, NOW.wall_ms)
        state.written(plan, result)
        return plan, result

    def names(self) -> list[str]:
        return [name.file for name in list_checkpoints(self.storage, METADATA)]

    def load(self) -> tuple[Core, list[Fact], MetadataState]:
        """What a start finds."""
        core = Core(CoreConfig())
        state = MetadataState(self.log)
        return core, state.load(core), state


def random_record(rng: random.Random, live: dict[bytes, str]) -> bytes:
    choice = rng.randrange(12)
    name = rng.choice(["a", "b.c", "b_c", "d"])
    if name not in live.values() and (choice < 3 or not live):
        topic_id = rng.randbytes(16)
        live[topic_id] = name
        return encode_metadata_record(TopicRecord(name, topic_id))
    topic_id = rng.choice(list(live))
    if choice < 5:
        partition = rng.randrange(3)
        return encode_metadata_record(PartitionRecord(partition, topic_id, [1], [1], leader_epoch=rng.randrange(5)))
    if choice == 5:
        return encode_metadata_record(PartitionChangeRecord(rng.randrange(3), topic_id, leader=rng.choice([1, -2])))
    if choice == 6:
        del live[topic_id]
        return encode_metadata_record(RemoveTopicRecord(topic_id))
    if choice < 9:
        value = rng.choice([None, "1", "2"])
        kind = rng.choice([2, 4, 32])
        return encode_metadata_record(ConfigRecord(kind, rng.choice([name, ""]), rng.choice("xyz"), value))
    if choice == 9:
        return encode_metadata_record(ProducerIdsRecord(1, 0, rng.randrange(10_000)))
    if choice == 10:
        return encode_metadata_record(NoOpRecord())
    return rng.choice(
        [
            UNKNOWN,
            encode_metadata_record(FenceBrokerRecord(rng.randrange(3), 1)),
            encode_metadata_record(FeatureLevelRecord(rng.choice(["x", "metadata.version"]), rng.randrange(3))),
        ]
    )


@pytest.mark.parametrize("seed", range(40))
def test_a_snapshot_and_the_log_after_it_are_the_same_state(seed: int) -> None:
    rng = random.Random(seed)
    writer = Writer(segment_bytes=rng.choice([300, 2000, 1 << 20]))
    state = MetadataState(writer.log)
    live: dict[bytes, str] = {}
    kept: list[bytes] = []
    for _ in range(rng.randrange(2, 6)):
        for _ in range(rng.randrange(1, 12)):
            values = [random_record(rng, live) for _ in range(rng.randrange(1, 4))]
            kept += [value for value in values if value[1] in (0x63, 7)]
            writer.add(*values)
        _, result = writer.snapshot(state)
        # From the snapshot alone.
        core, facts, _ = writer.load()
        assert facts == []
        assert core.digest() == writer.core.digest()
        assert list(core.topics.topics) == list(writer.core.topics.topics)
        assert result.kept == len(kept)
        found = read_checkpoint_file(writer.storage, METADATA, CheckpointName(result.end_offset, 0))
        of_cluster = [value for value in kept if value[1] == 7]
        assert [value for value in found.values if value[1] == 7] == of_cluster
        assert [value for value in found.values if value[1] == 0x63] == [v for v in kept if v[1] == 0x63]
        assert found.last_timestamp == NOW.wall_ms
        # And with a log behind it.
        writer.add(random_record(rng, live))
        kept += [v for v in read_last(writer) if v[1] in (0x63, 7)]
        core, _, state = writer.load()
        assert core.digest() == writer.core.digest()
        assert core.topics.next_producer_id == writer.core.topics.next_producer_id


def read_last(writer: Writer) -> list[bytes]:
    data = writer.log.read(writer.log.end_offset - 1, 1 << 20, writer.log.end_offset)
    [header] = parse_batches(data)
    return [record.value or b"" for record in decode_records(data, 0, header, 1 << 20)]


def test_the_order_is_that_of_an_image() -> None:
    writer = Writer()
    topic_id, rule = b"t" * 16, AccessControlEntryRecord(id=b"r" * 16)
    writer.put(rule, ProducerIdsRecord(1, 0, 1000), ConfigRecord(2, "t", "x", "1"))
    writer.put(TopicRecord("t", topic_id), PartitionRecord(0, topic_id, [1], [1], leader_epoch=3))
    writer.put(FenceBrokerRecord(1, 1), FeatureLevelRecord("group.version", 1), NoOpRecord())
    writer.put(FeatureLevelRecord("metadata.version", 7), FeatureLevelRecord("metadata.version", 30))
    _, result = writer.snapshot(MetadataState(writer.log))
    found = read_checkpoint_file(writer.storage, METADATA, CheckpointName(result.end_offset, 0))
    records = [decode_metadata_record(value) for value in found.values]
    assert [type(record).__name__ for record in records] == [
        "FeatureLevelRecord", "FeatureLevelRecord", "FenceBrokerRecord", "TopicRecord", "PartitionRecord",
        "ConfigRecord", "ProducerIdsRecord", "AccessControlEntryRecord",
    ]  # fmt: skip
    assert isinstance(records[0], FeatureLevelRecord) and records[0].feature_level == 30
    assert isinstance(records[4], PartitionRecord) and records[4].leader_epoch == 3
    assert isinstance(records[6], ProducerIdsRecord)
    assert (records[6].broker_id, records[6].broker_epoch, records[6].next_producer_id) == (-1, -1, 1000)
    assert result.records == 8 and result.kept == 2


def test_the_file_is_a_header_batches_and_a_footer() -> None:
    writer = Writer()
    writer.put(TopicRecord("t", b"t" * 16))
    writer.put(ProducerIdsRecord(1, 0, 1000))
    writer.snapshot(MetadataState(writer.log))
    assert writer.names() == [f"{2:020d}-{0:010d}.checkpoint"]
    data = writer.storage.read_bytes(f"{METADATA}/{writer.names()[0]}")
    headers = list(parse_batches(data))
    assert [(h.base_offset, h.count, h.is_control) for h in headers] == [
        (0, 1, True),
        (1, 2, False),
        (3, 1, True),
    ]
    for header in headers:
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    # Key: version 0, type 3. Value: version 0, the timestamp of the log's last record, no tags.
    record = data[HEADER_BYTES : headers[1].pos]
    assert record.endswith(b"\0\0\0\3" + bytes([22]) + b"\0\0" + NOW.wall_ms.to_bytes(8, "big") + b"\0" + b"\0")
    assert data.endswith(b"\0\0\0\4" + bytes([6]) + b"\0\0\0" + b"\0")


def test_batches_are_no_larger_than_a_brokers() -> None:
    storage = MemoryStorage()
    storage.make_dir(METADATA)
    name = CheckpointName(9, 4)
    writer = CheckpointWriter(storage, METADATA, name, 7, NOW.wall_ms, 500)
    values = [bytes(size) for size in (100, 200, 300, 1000, 5, 5)]
    for value in values:
        writer.append(value)
    writer.finish()
    data = storage.read_bytes(name.path_in(METADATA))
    assert writer.size_bytes == len(data)
    assert [header.count for header in parse_batches(data)] == [1, 2, 1, 1, 2, 1]
    found = parse_checkpoint(data, 4)
    assert found.values == values and found.last_timestamp == 7


def test_every_bit_of_a_snapshot_counts() -> None:
    writer = Writer()
    writer.put(TopicRecord("t", b"t" * 16), PartitionRecord(0, b"t" * 16, [1], [1]), ConfigRecord(2, "t", "x", "1"))
    writer.snapshot(MetadataState(writer.log))
    data = writer.storage.read_bytes(f"{METADATA}/{writer.names()[0]}")
    parse_checkpoint(data, 0)
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadCheckpoint):
            parse_checkpoint(bytes(damaged), 0)
    for size in range(len(data)):
        with pytest.raises(BadCheckpoint):
            parse_checkpoint(data[:size], 0)
    with pytest.raises(BadCheckpoint):
        parse_checkpoint(data + data, 0)


def test_what_is_not_understood_keeps_the_log_as_long_as_it_is() -> None:
    writer = Writer()
    writer.put(BeginTransactionRecord("x"), TopicRecord("t", b"t" * 16))
    state = MetadataState(writer.log)
    with pytest.raises(SnapshotNotWritten, match="a metadata transaction at offset 0"):
        write_snapshot(writer.storage, state.plan(2, 1, []), 0)
    assert writer.names() == [] and not [n for n in writer.storage.list_dir(METADATA) if "checkpoint." in n]
    assert state.grown_bytes() > 0
    fact = state.failed("a metadata transaction")
    assert fact.event == "metadata_snapshot_not_written" and state.grown_bytes() == 0


def test_a_name_or_an_id_that_is_there_twice_keeps_the_log_too() -> None:
    for second in (TopicRecord("t", b"u" * 16), TopicRecord("u", b"t" * 16)):
        writer = Writer()
        writer.put(TopicRecord("t", b"t" * 16), second)
        with pytest.raises(SnapshotNotWritten, match="twice"):
            write_snapshot(writer.storage, MetadataState(writer.log).plan(2, 1, []), 0)


def test_a_snapshot_is_of_what_is_durable() -> None:
    writer = Writer()
    writer.put(TopicRecord("t", b"t" * 16))
    with pytest.raises(ValueError, match="durable up to 1"):
        MetadataState(writer.log).plan(2, 1, [])


# --- what may go


def three_snapshots() -> tuple[Writer, MetadataState]:
    """At offsets 1, 2 and 3, each at the beginning of a segment, one day after the other."""
    writer = Writer()
    state = MetadataState(writer.log)
    for day in range(3):
        value = encode_metadata_record(ProducerIdsRecord(1, 0, day * 1000 + 1000))
        writer.add(value, timestamp=NOW.wall_ms + day * 24 * 3600 * 1000)
        writer.log.roll()
        writer.log.flush()
        writer.snapshot(state)
    return writer, state


@pytest.mark.parametrize(("days", "start"), [(0, 3), (1, 2), (2, 1), (3, 0)])
def test_records_stay_for_their_time(days: int, start: int) -> None:
    _writer, state = three_snapshots()
    now_ms = NOW.wall_ms + 2 * 24 * 3600 * 1000 + 1
    assert state.new_start(now_ms, days * 24 * 3600 * 1000, -1) == start


def test_a_log_that_is_too_large_is_shortened_step_by_step() -> None:
    writer, state = three_snapshots()
    sizes = [writer.storage.size_of(f"{METADATA}/{name}") for name in writer.names()]
    batch = writer.log.segments[0].size
    everything = sum(sizes) + 3 * batch
    assert state.new_start(NOW.wall_ms, -1, everything) == 0
    assert state.new_start(NOW.wall_ms, -1, everything - 1) == 1
    assert state.new_start(NOW.wall_ms, -1, everything - batch - 1) == 2
    assert state.new_start(NOW.wall_ms, -1, 0) == 3
    assert state.new_start(NOW.wall_ms, -1, -1) == 0


def test_what_lies_below_the_start_goes() -> None:
    writer, state = three_snapshots()
    writer.log.log_start_offset = 2
    assert state.has_waste()
    segments, paths = state.take_waste()
    assert [segment.base_offset for segment in segments] == [0, 1]
    assert paths == [f"{METADATA}/{writer.names()[0]}"]
    assert not state.has_waste() and state.end_offset == 3 and len(state.known) == 2


# --- starts


def make(path: Path) -> LogRig:
    """Topics, of which one is deleted; a snapshot at the beginning of a segment; and more behind it."""
    rig = LogRig(path)
    rig.create("orders", 2, 0)
    rig.create("gone", 1, 1)
    request = DeleteTopicsRequest(topics=[DeleteTopicState("gone")])
    assert rig.client.ask(apis.DELETE_TOPICS, 6, request, at(2)).responses[0].error_code == 0
    return rig


def reopen(path: Path) -> tuple[Engine, list[str]]:
    engine = open_engine(DiskStorage(str(path)), at(100))
    return engine, [fact.event for fact in engine.take_facts()]


def checkpoints(path: Path) -> list[Path]:
    return sorted((path / METADATA).glob("*.checkpoint"))


def test_a_start_from_a_snapshot(tmp_path: Path) -> None:
    rig = make(tmp_path)
    before = rig.engine.core.topics.end_offset
    take_snapshot(rig.engine, at(3))
    assert shorten(rig.engine, at(3)) == before
    rig.create("later", 1, 4)
    digest = rig.engine.core.digest()
    rig.kill()
    assert [path.name for path in checkpoints(tmp_path)] == [f"{before:020d}-{0:010d}.checkpoint"]
    assert [p.name for p in (tmp_path / METADATA).glob("*.log")] == [f"{before:020d}.log"]
    assert f"__cluster_metadata 0 {before}" in (tmp_path / "log-start-offset-checkpoint").read_text()
    engine, facts = reopen(tmp_path)
    assert engine.core.digest() == digest and facts == []
    assert engine.metadata is not None and engine.metadata.log.log_start_offset == before
    assert engine.core.topics.end_offset == engine.metadata.log.end_offset > before
    engine.stop()
    engine, facts = reopen(tmp_path)
    assert engine.core.digest() == digest and facts == []


def test_deletions_below_a_snapshot_are_not_looked_at_again() -> None:
    writer = Writer()
    writer.put(TopicRecord("gone", b"g" * 16), PartitionRecord(0, b"g" * 16, [1], [1]))
    writer.put(RemoveTopicRecord(b"g" * 16))
    core, _, state = writer.load()
    assert list(core.topics.unfinished_deletions().topics.values()) == ["gone"]
    writer.snapshot(state)
    core, _, _ = writer.load()
    assert core.topics.unfinished_deletions().topics == {}


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_an_older_snapshot_replaces_a_damaged_one(tmp_path: Path) -> None:
    rig = make(tmp_path)
    take_snapshot(rig.engine, at(3))
    rig.create("between", 1, 4)
    take_snapshot(rig.engine, at(5))
    state = rig.engine.metadata
    assert state is not None
    # As much as that of the older one goes.
    assert shorten(rig.engine, at(5), retention_bytes=1 << 20) == 0
    state.log.log_start_offset = state.known[0].name.end_offset
    rig.create("later", 1, 6)
    digest = rig.engine.core.digest()
    rig.stop()
    damage(checkpoints(tmp_path)[1])
    engine, facts = reopen(tmp_path)
    assert engine.core.digest() == digest
    assert facts == ["metadata_snapshot_damaged"]
    # The next one has it gone.
    take_snapshot(engine, at(101))
    shorten(engine, at(101), retention_bytes=1 << 20)
    assert len(checkpoints(tmp_path)) == 2
    engine.stop()
    assert reopen(tmp_path)[1] == []


def test_the_whole_log_replaces_a_damaged_snapshot(tmp_path: Path) -> None:
    rig = make(tmp_path)
    take_snapshot(rig.engine, at(3))
    digest = rig.engine.core.digest()
    rig.stop()
    damage(checkpoints(tmp_path)[0])
    engine, facts = reopen(tmp_path)
    assert engine.core.digest() == digest
    assert facts == ["metadata_snapshot_damaged"]
    # In the very place of the damaged one.
    take_snapshot(engine, at(101))
    engine.stop()
    assert reopen(tmp_path)[1] == [] and len(checkpoints(tmp_path)) == 1


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("kind", ["damaged", "gone"])
def test_a_start_without_what_was_before_the_log_is_refused(tmp_path: Path, kind: str, stop: bool) -> None:
    rig = make(tmp_path)
    take_snapshot(rig.engine, at(3))
    shorten(rig.engine, at(3))
    rig.create("later", 1, 4)
    rig.stop() if stop else rig.kill()
    [path] = checkpoints(tmp_path)
    if kind == "damaged":
        damage(path)
    else:
        path.unlink()
    before = {p: p.read_bytes() for p in tmp_path.glob("*/*.log")}
    reason = "wrong checksum" if kind == "damaged" else "there is none"
    with pytest.raises(
        LogDamaged, match=f"{METADATA}/{path.name} is damaged .*no snapshot has the earlier records.*{reason}"
    ):
        reopen(tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.glob("*/*.log")} == before


@pytest.mark.parametrize("stop", [True, False])
def test_a_log_that_ends_before_its_snapshot_is_refused(tmp_path: Path, stop: bool) -> None:
    rig = make(tmp_path)
    take_snapshot(rig.engine, at(3), roll=False)
    rig.stop() if stop else rig.kill()
    (tmp_path / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    log = tmp_path / METADATA / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:-3])
    with pytest.raises(LogDamaged, match=METADATA):
        reopen(tmp_path)


def test_what_a_crash_left_of_a_snapshot_goes(tmp_path: Path) -> None:
    rig = make(tmp_path)
    rig.stop()
    for name in (f"{5:020d}-{0:010d}.checkpoint.part", f"{5:020d}-{0:010d}.checkpoint.deleted"):
        (tmp_path / METADATA / name).write_bytes(b"half")
    engine, facts = reopen(tmp_path)
    assert facts == []
    assert not list((tmp_path / METADATA).glob("*.checkpoint*"))
    engine.stop()


def test_a_clean_stop_may_leave_a_snapshot_within_a_segment(tmp_path: Path) -> None:
    rig = make(tmp_path)
    take_snapshot(rig.engine, at(3), roll=False)
    rig.create("later", 1, 4)
    digest = rig.engine.core.digest()
    assert rig.engine.metadata is not None
    grown = rig.engine.metadata.grown_bytes()
    rig.stop()
    engine, facts = reopen(tmp_path)
    assert engine.core.digest() == digest and facts == []
    state = engine.metadata
    assert state is not None and state.has_news
    # The index leads to a place somewhat before, or to that very place.
    assert 0 < grown <= state.grown_bytes() <= grown + 4096
