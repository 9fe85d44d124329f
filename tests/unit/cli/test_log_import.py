"""`kcoord log import`, on directories as a broker leaves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kcoord.cli.main import main
from kcoord.core.hashing import coordinator_partition
from kcoord.core.outcome import Now
from kcoord.log.directory import LogDirectory, open_directory
from kcoord.log.exporter import encode_snapshot
from kcoord.log.import_logs import LogWriter
from kcoord.log.journal import Journal
from kcoord.log.serde import encode_metadata_record, encode_record
from kcoord.log.storage import DiskStorage
from kcoord.protocol import apis
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.records.config_record import ConfigRecord
from kcoord.protocol.records.feature_level_record import FeatureLevelRecord
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.partition_change_record import PartitionChangeRecord
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.producer_ids_record import ProducerIdsRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.protocol.records.transaction_group_assignment import (
    TransactionGroupAssignmentKey,
    TransactionGroupAssignmentValue,
)
from kcoord.protocol.records.transaction_log import PartitionsSchema, TransactionLogKey, TransactionLogValue
from kcoord.protocol.records.user_scram_credential_record import UserScramCredentialRecord
from kcoord.wire.message import Message
from kcoord.wire.record_batch import BatchBuilder, Record, decode_records
from tests.harness.engine import Client, open_engine
from tests.harness.record_batches import parse_batches

NOW = Now(1000, 1_700_000_000_000)
OFFSETS = "__consumer_offsets"
STATE = "__transaction_state"
IDS = {name: bytes([number]) * 16 for number, name in enumerate(("t", OFFSETS, STATE), 1)}
COMMIT, ABORT = 1, 0
# A share group's epoch, a record type that nobody here reads.
SHARE_KEY = b"\x00\x0b\x00\x05share"
FUTURE_KEY = b"\x00\x63\x00\x05later"


class Broker:
    """Makes a data directory as a broker with several partitions leaves it."""

    def __init__(self, path: Path, partitions: int = 3) -> None:
        self.path = path
        self.partitions = partitions
        self.directory: LogDirectory = open_directory(DiskStorage(str(path)), 1, "brokers-cluster", "directory")
        self.journal = Journal(self.directory, "os")
        for name, count in (("t", 2), (OFFSETS, partitions), (STATE, 2)):
            for partition in range(count):
                self.directory.create_log(name, partition, IDS[name])
        self.directory.create_log("__cluster_metadata", 0, bytes(15) + b"\x01")

    def metadata(self, *more: Message) -> None:
        records: list[Message] = [FeatureLevelRecord("metadata.version", 30)]
        for name, count in (("t", 2), (OFFSETS, self.partitions), (STATE, 2)):
            records.append(TopicRecord(name, IDS[name]))
            records += [PartitionRecord(p, IDS[name], leader=1, leader_epoch=0) for p in range(count)]
        records += [ConfigRecord(2, "t", "retention.ms", "77"), ProducerIdsRecord(1, 1, 5000)]
        self.write("__cluster_metadata", 0, [(None, encode_metadata_record(r)) for r in [*records, *more]])

    def write(
        self,
        topic: str,
        partition: int,
        pairs: list[tuple[bytes | None, bytes | None]],
        epoch: int = 0,
        **fields: Any,
    ) -> None:
        log = self.directory.get(topic, partition)
        assert log is not None
        builder = BatchBuilder()
        for i, (key, value) in enumerate(pairs):
            builder.append(NOW.wall_ms + i, key, value, [("h", b"1")] if key == SHARE_KEY else None)
        base = log.end_offset
        batch = builder.build(base, epoch, **fields)
        last = base + len(pairs) - 1
        self.journal.append(log, batch, base, last, NOW.wall_ms + len(pairs) - 1, epoch)
        self.journal.commit()

    def record(self, key: Message, value: Message | None, **fields: Any) -> None:
        group = key.group  # type: ignore[attr-defined]
        self.write(OFFSETS, coordinator_partition(group, self.partitions), [encode_record(key, value)], **fields)

    def commit(self, group: str, offset: int, topic: str = "t", partition: int = 0, **fields: Any) -> None:
        key = OffsetCommitKey(group, topic, partition)
        self.record(key, OffsetCommitValue(offset, 0, "", NOW.wall_ms), **fields)

    def marker(self, topic: str, partition: int, kind: int, producer_id: int) -> None:
        pair = (b"\x00\x00" + kind.to_bytes(2, "big"), bytes(6))
        self.write(
            topic,
            partition,
            [pair],
            producer_id=producer_id,
            producer_epoch=0,
            transactional=True,
            control=True,
        )

    def end(self, group: str, kind: int, producer_id: int) -> None:
        self.marker(OFFSETS, coordinator_partition(group, self.partitions), kind, producer_id)

    def close(self) -> None:
        self.directory.close(True)
        meta = self.path / "meta.properties"
        lines = [line for line in meta.read_text().splitlines() if not line.startswith("kcoord.format")]
        meta.write_text("\n".join(lines) + "\n")
        # As the broker leaves it before the cleaner ran.
        (self.path / "cleaner-offset-checkpoint").write_bytes(b"")


def transactional(producer_id: int) -> dict[str, Any]:
    return {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "transactional": True}


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "broker")


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["log", *arguments])
    assert done.exit_code == code, done.output
    return done.output


def take(broker: Broker, tmp_path: Path, *more: str) -> dict[str, dict[str, int]]:
    broker.close()
    text = run("import", str(broker.path), "--data", str(tmp_path / "new"), "--output", "json", *more)
    found: dict[str, dict[str, int]] = json.loads(text)
    return found


def offsets(engine: object, group: str) -> dict[tuple[str, int], int]:
    of_group = engine.core.offsets.by_group.get(group, {})  # type: ignore[attr-defined]
    return {(t, p): s.committed_offset for t, parts in of_group.items() for p, s in parts.items()}


def test_groups_and_offsets(broker: Broker, tmp_path: Path) -> None:
    broker.metadata(UserScramCredentialRecord("alice", 1, b"s", b"k", b"v", 4096))
    names = [f"group-{n}" for n in range(12)]
    for n, name in enumerate(names):
        broker.record(GroupMetadataKey(name), GroupMetadataValue("consumer", n + 3, None, None, NOW.wall_ms, []))
        broker.commit(name, n)
        broker.commit(name, n + 100)
        broker.commit(name, 5, partition=1)
    broker.record(OffsetCommitKey(names[0], "t", 1), None)
    broker.write(OFFSETS, 1, [(SHARE_KEY, b"\x00\x00share"), (FUTURE_KEY, b"\x00\x09what it is")])
    report = take(broker, tmp_path, "--offsets-partitions", "4")
    assert report["taken"] == {
        "classic groups": 12, "committed offsets": 23, "group records": 12, "offset commit records": 37,
        "partitions of topics": 2, "settings of topics": 1, "topics": 1,
    }  # fmt: skip
    assert report["kept"] == {
        "SCRAM credentials": 1, "coordinator records of type 99": 1, "share group records": 1, "share groups": 1,
    }  # fmt: skip
    assert report["left_out"] == {"feature levels": 1}

    engine = open_engine(DiskStorage(str(tmp_path / "new")), NOW)
    core = engine.core
    assert engine.directory.meta.cluster_id == "brokers-cluster"
    assert engine.directory.events == []
    for n, name in enumerate(names):
        assert core.groups.groups[name].generation_id == n + 3
        wanted = {("t", 0): n + 100, ("t", 1): 5}
        if n == 0:
            del wanted[("t", 1)]
        assert offsets(engine, name) == wanted
    assert {t.name: t.topic_id for t in core.topics.topics.values()} == IDS
    assert core.topics.partition_count(OFFSETS) == 4
    assert core.topics.configs_of(2, "t") == {"retention.ms": "77"}
    assert core.topics.next_producer_id == 5000
    assert core.topics.topics["t"].leader_epochs == [1, 1]
    kept = [r for p in range(4) for r in records(engine.directory, OFFSETS, p) if r.key in (SHARE_KEY, FUTURE_KEY)]
    assert sorted((r.key, r.value, r.timestamp, r.headers) for r in kept) == [
        (SHARE_KEY, b"\x00\x00share", NOW.wall_ms, [("h", b"1")]),
        (FUTURE_KEY, b"\x00\x09what it is", NOW.wall_ms + 1, []),
    ]
    engine.stop()


def records(directory: LogDirectory, topic: str, partition: int) -> list[Record]:
    log = directory.get(topic, partition)
    assert log is not None
    data = log.read(log.log_start_offset, 1 << 24, log.end_offset)
    return [r for h in parse_batches(data) for r in decode_records(data, h.pos, h, 1 << 20)]


def test_group_assignments_are_kept_with_their_transactional_ids(broker: Broker, tmp_path: Path) -> None:
    """They are in the directory of a broker that has taken over one of kcoord."""
    broker.metadata()
    key, value = TransactionGroupAssignmentKey("tx"), TransactionGroupAssignmentValue("g", 1, "m")
    state = TransactionLogValue(3, 0, transaction_timeout_ms=1000, transaction_status=0)
    pairs = [encode_record(TransactionLogKey("tx"), state), encode_record(key, value), encode_record(key, None)]
    broker.write(STATE, 1, list(pairs))
    report = take(broker, tmp_path)
    # The tombstone of an assignment removes no transactional id.
    assert report["kept"] == {"transaction records": 3, "transactional ids": 1}


def test_transactions_count_as_they_ended(broker: Broker, tmp_path: Path) -> None:
    broker.metadata()
    for producer_id in (1, 2, 3, 4):
        broker.commit("g", 10 * producer_id, partition=producer_id, **transactional(producer_id))
    broker.commit("g", 99, partition=1)
    broker.commit("g", 88, partition=9)
    broker.end("g", COMMIT, 1)
    broker.end("g", ABORT, 2)
    broker.commit("g", 11, partition=9, **transactional(5))
    broker.end("g", COMMIT, 5)
    state = TransactionLogValue(3, 0, transaction_timeout_ms=1000, transaction_status=2)
    broker.write(STATE, 1, [encode_record(TransactionLogKey("tx"), state)])
    report = take(broker, tmp_path)
    assert report["kept"] == {"transaction records": 1, "transactional ids": 1}
    assert report["left_out"] == {
        "feature levels": 1,
        "markers in coordinator logs": 3,
        "offset commits of aborted transactions": 1,
        "offset commits of open transactions": 1,
        "offset commits replaced before their transaction ended": 1,
    }
    engine = open_engine(DiskStorage(str(tmp_path / "new")), NOW)
    assert offsets(engine, "g") == {("t", 1): 99, ("t", 3): 30, ("t", 9): 11}
    # The coordinator completes the decided transaction.
    assert [r.key for r in records(engine.directory, STATE, 0)] == [b"\x00\x00\x00\x02tx"] * 2
    assert engine.core.topics.next_producer_id == 5000
    engine.stop()


def test_topics_with_their_records(broker: Broker, tmp_path: Path) -> None:
    broker.metadata(PartitionChangeRecord(0, IDS["t"], leader=1))
    broker.write("t", 0, [(b"k", b"1"), (b"k", b"2")])
    broker.write("t", 0, [(b"k", b"gone")], **transactional(7))
    broker.marker("t", 0, ABORT, 7)
    broker.write("t", 0, [(b"k", b"3")], epoch=1)
    broker.write("t", 0, [(b"k", b"open")], epoch=1, **transactional(6000))
    report = take(broker, tmp_path, "--topics")
    assert report["taken"]["records of topics"] == 5
    assert any("1 transactions are open" in note for note in report["notes"])
    engine = open_engine(DiskStorage(str(tmp_path / "new")), NOW)
    log = engine.directory.get("t", 0)
    assert log is not None
    # The start aborts the open transaction, of which the coordinator knows nothing.
    assert (log.end_offset, log.leader_epoch) == (7, 2)
    aborted = log.aborted_transactions(0, 7)
    assert [(one.producer_id, one.first_offset, one.last_offset) for one in aborted] == [(7, 2, 3), (6000, 5, 6)]
    values = [r.value for r in records(engine.directory, "t", 0) if r.offset not in (3, 6)]
    assert values == [b"1", b"2", b"gone", b"3", b"open"]
    assert engine.core.topics.topics["t"].leader_epochs == [2, 1]
    assert engine.core.topics.next_producer_id == 6001
    engine.stop()


def state_of(producer_id: int, status: int, epoch: int = 0, version: int = 0) -> TransactionLogValue:
    partitions = [PartitionsSchema("t", [0]), PartitionsSchema(OFFSETS, [2])]
    return TransactionLogValue(
        producer_id,
        producer_id,
        producer_epoch=epoch,
        transaction_timeout_ms=60_000,
        transaction_status=status,
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=NOW.wall_ms,
        transaction_start_timestamp_ms=NOW.wall_ms,
        client_transaction_version=version,
    )


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_open_transaction_goes_on(broker: Broker, tmp_path: Path, is_commit: bool) -> None:
    """Its producer ends it after the import, and that reaches its offsets in their new partition."""
    broker.metadata()
    broker.write("t", 0, [(b"k", b"1")], **transactional(7))
    broker.commit("g", 10, **transactional(7))
    broker.commit("g", 5, partition=1)
    broker.write(STATE, 1, [encode_record(TransactionLogKey("tx"), state_of(7, 1))])
    report = take(broker, tmp_path, "--topics")
    assert report["kept"]["offset commits of open transactions"] == 1
    for start in range(2):
        engine = open_engine(DiskStorage(str(tmp_path / "new")), NOW)
        table = engine.data_plane.table
        log, stored = table.find("t", 0), table.find(OFFSETS, 0)
        assert log is not None and stored is not None
        assert log.last_stable_offset == 0 and log.log.end_offset == 1
        assert stored.last_stable_offset == 1 and engine.core.offsets.has_pending("g", "t", 0)
        assert offsets(engine, "g") == {("t", 1): 5}
        if start == 0:
            engine.stop()
    assert log is not None and stored is not None
    client = Client(engine)
    assert client.ask(apis.END_TXN, 4, EndTxnRequest("tx", 7, 0, is_commit), NOW).error_code == 0
    assert log.last_stable_offset == log.log.end_offset == 2 and stored.last_stable_offset == stored.log.end_offset
    assert len(log.log.aborted_transactions(0, 2)) == (0 if is_commit else 1)
    assert offsets(engine, "g") == ({("t", 0): 10, ("t", 1): 5} if is_commit else {("t", 1): 5})
    engine.stop()


@pytest.mark.parametrize(("status", "epoch", "version"), [(2, 0, 0), (4, 0, 0), (2, 1, 2), (4, 1, 2)])
def test_a_decided_transaction_is_committed(
    broker: Broker, tmp_path: Path, status: int, epoch: int, version: int
) -> None:
    """Version 2 has incremented the epoch with the decision."""
    broker.metadata()
    broker.write("t", 0, [(b"k", b"1")], **transactional(7))
    broker.commit("g", 10, **transactional(7))
    state = state_of(7, status, epoch, version)
    if status == 4:
        state.transaction_partitions = []
    broker.write(STATE, 1, [encode_record(TransactionLogKey("tx"), state)])
    report = take(broker, tmp_path, "--topics")
    assert any("1 transactions were decided" in note for note in report["notes"])
    engine = open_engine(DiskStorage(str(tmp_path / "new")), NOW)
    log = engine.data_plane.table.find("t", 0)
    assert log is not None and log.last_stable_offset == log.log.end_offset >= 2
    assert log.log.aborted_transactions(0, 9) == []
    assert offsets(engine, "g") == {("t", 0): 10}
    assert not engine.core.offsets.has_pending("g", "t", 0)
    engine.stop()


def test_topics_without_their_records_continue_at_their_end(broker: Broker, tmp_path: Path) -> None:
    broker.metadata()
    broker.write("t", 1, [(None, b"v")] * 5)
    report = take(broker, tmp_path)
    assert report["left_out"]["partitions whose records are not imported"] == 1
    for _ in range(2):
        engine = open_engine(DiskStorage(str(tmp_path / "new")), NOW)
        log = engine.directory.get("t", 1)
        assert log is not None
        assert (log.log_start_offset, log.end_offset) == (5, 5)
        engine.stop()


def test_without_metadata_the_directories_decide(broker: Broker, tmp_path: Path) -> None:
    broker.commit("g", 4)
    broker.close()
    for path in (broker.path / "__cluster_metadata-0").iterdir():
        path.unlink()
    (broker.path / "__cluster_metadata-0").rmdir()
    run("import", str(broker.path), "--data", str(tmp_path / "new"))
    engine = open_engine(DiskStorage(str(tmp_path / "new")), NOW)
    assert {t.name: t.topic_id for t in engine.core.topics.topics.values()} == IDS
    assert offsets(engine, "g") == {("t", 0): 4}
    engine.stop()


def test_torn_ends_and_leftovers_are_counted(broker: Broker, tmp_path: Path) -> None:
    broker.metadata()
    broker.commit("g", 4)
    (broker.path / "old-0.0123-delete").mkdir()
    (broker.path / "nobody-0").mkdir()
    log = broker.path / f"{OFFSETS}-{coordinator_partition('g', 3)}" / f"{0:020d}.log"
    broker.directory.close(True)
    log.write_bytes(log.read_bytes() + b"torn")
    report = take(broker, tmp_path)
    assert report["left_out"]["bytes at torn ends of logs"] == 4
    assert report["left_out"]["directories of deleted, moving or stray partitions"] == 1
    assert report["left_out"]["directories that no topic has"] == 1


def test_damage_is_refused_and_nothing_is_left(broker: Broker, tmp_path: Path) -> None:
    broker.metadata()
    for n in range(3):
        broker.commit("g", n)
    log = broker.path / f"{OFFSETS}-{coordinator_partition('g', 3)}" / f"{0:020d}.log"
    broker.close()
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(bytes(data))
    text = run("import", str(broker.path), "--data", str(tmp_path / "new"), code=7)
    assert "is damaged at byte 0" in text
    assert list((tmp_path / "new").iterdir()) == []


def test_refusals(broker: Broker, tmp_path: Path) -> None:
    assert "in use" in run("import", str(broker.path), "--data", str(tmp_path / "new"), code=6)
    broker.directory.close(True)
    assert "already a kcoord data directory" in run("import", str(broker.path), "--data", str(tmp_path / "new"), code=5)
    broker.close()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    assert "not empty" in run("import", str(broker.path), "--data", str(tmp_path / "full"), code=5)
    (tmp_path / "nothing").mkdir()
    run("import", str(tmp_path / "nothing"), "--data", str(tmp_path / "new"), code=5)


def test_writers_flush_nothing_when_there_is_nothing(broker: Broker) -> None:
    log = broker.directory.get(OFFSETS, 0)
    assert log is not None
    LogWriter(broker.journal, log, 0).flush()
    assert log.end_offset == 0


def test_metadata_snapshots_count_and_unfinished_transactions_do_not(broker: Broker, tmp_path: Path) -> None:
    broker.metadata()
    folder = broker.path / "__cluster_metadata-0"
    early = TopicRecord("early", b"e" * 16)
    late = TopicRecord("late", b"l" * 16)
    snapshot = [
        early,
        PartitionRecord(0, early.topic_id, leader=1, leader_epoch=6),
        ConfigRecord(2, "early", "a", "1"),
    ]
    values = [encode_metadata_record(record) for record in snapshot]
    (folder / f"{0:020d}-{0:010d}.checkpoint").write_bytes(b"not read")
    log = broker.directory.get("__cluster_metadata", 0)
    assert log is not None
    (folder / f"{log.end_offset:020d}-{0:010d}.checkpoint").write_bytes(encode_snapshot(values, NOW.wall_ms))
    frames = [
        b"\x01\x17\x00\x00",  # begin a metadata transaction
        encode_metadata_record(late),
        encode_metadata_record(PartitionRecord(0, late.topic_id, leader=1, leader_epoch=0)),
        b"\x01\x18\x00\x00",  # end it
        b"\x01\x17\x00\x00",
        encode_metadata_record(TopicRecord("never", b"n" * 16)),
        b"\x01\x19\x00\x00",  # abort
    ]
    broker.write("__cluster_metadata", 0, [(None, frame) for frame in frames])
    report = take(broker, tmp_path)
    # What the log says before the snapshot is not read any more.
    assert report["left_out"]["records of unfinished transactions"] == 1
    engine = open_engine(DiskStorage(str(tmp_path / "new")), NOW)
    topics = engine.core.topics
    assert {name for name in topics.topics if not name.startswith("__")} == {"early", "late"}
    assert topics.topics["early"].leader_epochs == [7]
    assert topics.configs_of(2, "early") == {"a": "1"}
    engine.stop()
