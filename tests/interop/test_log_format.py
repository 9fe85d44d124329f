"""The data directory, file by file, beside a real broker's after the same calls; and Kafka's dumper on all of ours."""

from __future__ import annotations

import os
import re
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kcoord.core.producers import PartitionProducers
from kcoord.engine.producer_state import rebuild_batch
from kcoord.log.log_config import LogConfig
from kcoord.log.reader import StoredBatch, find_partitions, read_batches
from kcoord.log.segment import Segment
from kcoord.log.serde import encode_record
from kcoord.log.storage import DiskStorage
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue
from kcoord.wire.record_batch import BatchBuilder
from tests.harness.kcoord_server import KcoordServer
from tests.harness.real_broker import RealBroker
from tests.interop import tools
from tests.interop.dump import dump

SEGMENT_BYTES = 1024 * 1024
CODECS = ("gzip", "snappy", "lz4", "zstd")
FIRST = f"{0:020d}"
INDEXES = (".index", ".timeindex")

# What only a broker writes: the quorum's vote and the records it was formatted with, because it has a quorum; and how
# far its cleaner came.
ONLY_BROKER = {"bootstrap.checkpoint", "cleaner-offset-checkpoint", "__cluster_metadata-0/quorum-state"}


@dataclass(frozen=True)
class Directories:
    """Data directories of a broker and of kcoord: while running, and after a clean stop."""

    broker_live: Path
    broker: Path
    live: Path
    ours: Path


def work(server: RealBroker | KcoordServer) -> None:
    """A topic of several segments by an idempotent producer, one for each codec, an empty one, and commits."""
    at = ["--bootstrap-server", server.bootstrap]

    def create(topic: str, *settings: str) -> None:
        options = [part for setting in settings for part in ("--config", setting)]
        made = tools.run(tools.TOPICS, *at, "--create", "--topic", topic, "--partitions", "1", *options)
        assert made.code == 0, made

    create("rolled", f"segment.bytes={SEGMENT_BYTES}")
    create("empty")
    options = ["--num-records", "3000", "--record-size", "1000", "--throughput", "-1"]
    sent = tools.run(tools.PRODUCER_PERFORMANCE, *at, "--topic", "rolled", *options)
    assert sent.code == 0, sent
    for codec in CODECS:
        create(codec, f"compression.type={codec}")
        lines = "".join(f"line {i}\n" for i in range(20))
        sent = tools.run(tools.CONSOLE_PRODUCER, *at, "--topic", codec, stdin=lines)
        assert sent.code == 0, sent
    options = ["--topic", "rolled", "--group", "format", "--from-beginning", "--max-messages", "5"]
    got = tools.run(tools.CONSOLE_CONSUMER, *at, *options, "--timeout-ms", "20000")
    assert len(got.lines) == 5, got


def transact(bootstrap: str) -> None:
    """Transactions of one producer, every other one aborted, and one of another that stays open."""
    at = ["--bootstrap-server", bootstrap]
    made = tools.run(tools.TOPICS, *at, "--create", "--topic", "transactional", "--partitions", "1")
    assert made.code == 0, made
    settings = {"bootstrap.servers": bootstrap, "log_level": 0}
    one = Producer({**settings, "transactional.id": "one"})
    one.init_transactions()
    for commit in (True, False, True, False):
        one.begin_transaction()
        for i in range(3):
            one.produce("transactional", b"value %d" % i)
        one.flush()
        if commit:
            one.commit_transaction()
        else:
            one.abort_transaction()
    two = Producer({**settings, "transactional.id": "two"})
    two.init_transactions()
    two.begin_transaction()
    two.produce("transactional", b"open")
    two.flush()


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Directories:
    home = tmp_path_factory.mktemp("format")
    found = Directories(home / "broker-live", home / "broker", home / "live", home / "ours")
    with RealBroker(keep=True) as broker:
        work(broker)
        transact(broker.bootstrap)
        shutil.copytree(broker.data, found.broker_live)
        broker.stop()
        shutil.move(broker.data, found.broker)
        shutil.rmtree(broker.home)
    with KcoordServer(data=home / "data") as kcoord:
        work(kcoord)
        shutil.copytree(kcoord.data, found.live, ignore=shutil.ignore_patterns("*.sock"))
        kcoord.stop()
        shutil.move(kcoord.data, found.ours)
    return found


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


def kinds(path: Path) -> dict[str, int]:
    """How many files of each kind a partition has; kinds are suffixes after an offset, else names."""
    found: dict[str, int] = {}
    for name in os.listdir(path):
        kind = re.sub(r"^\d{20}", "", name)
        found[kind] = found.get(kind, 0) + 1
    return found


def test_the_same_files_at_the_top(directories: Directories) -> None:
    # A broker removes its lock file when it ends; we leave ours, since another process may wait for it.
    theirs = {path.name for path in directories.broker.iterdir() if path.is_file()} | {".lock"}
    ours = {path.name for path in directories.ours.iterdir() if path.is_file() and "kcoord" not in path.name}
    assert theirs - ONLY_BROKER == ours
    assert (directories.broker_live / ".lock").read_bytes() == (directories.ours / ".lock").read_bytes() == b""
    starts = "log-start-offset-checkpoint"
    assert (directories.broker / starts).read_bytes() == (directories.ours / starts).read_bytes() == b"0\n0\n"
    theirs_clean = (directories.broker / ".kafka_cleanshutdown").read_text()
    assert re.fullmatch(r'\{"version":0,"brokerEpoch":\d+\}', theirs_clean)
    assert (directories.ours / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":-1}'


def checkpoint(path: Path) -> set[str]:
    lines = path.read_text().split("\n")
    assert lines[0] == "0" and lines[-1] == ""
    assert int(lines[1]) == len(lines) - 3
    # The metadata log's own marks are in its quorum's files; logs at 0 need none; only the broker saw transactions.
    others = ("__cluster", "__transaction", "transactional ")
    return {line for line in lines[2:-1] if not line.startswith(others) and not line.endswith(" 0 0")}


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "replication-offset-checkpoint"])
def test_the_same_checkpoints(directories: Directories, name: str) -> None:
    assert checkpoint(directories.broker / name) == checkpoint(directories.ours / name)


def test_the_same_properties(directories: Directories) -> None:
    def properties(path: Path) -> dict[str, str]:
        lines = (path / "meta.properties").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if not line.startswith("#"))

    theirs, ours = properties(directories.broker), properties(directories.ours)
    assert set(ours) - set(theirs) == {"kcoord.format"} and set(theirs) <= set(ours)
    for name in ("version", "node.id"):
        assert theirs[name] == ours[name]
    for name in ("cluster.id", "directory.id"):
        assert re.fullmatch(r"[\w-]{22}", ours[name])


def test_a_partition_that_was_never_written_costs_no_disk(directories: Directories) -> None:
    # A broker makes its files when the topic is created, kcoord with the first write.
    assert set(files(directories.broker / "empty-0")) == {
        f"{FIRST}.log",
        *(f"{FIRST}{kind}" for kind in INDEXES),
        "leader-epoch-checkpoint",
        "partition.metadata",
    }
    assert not (directories.ours / "empty-0").exists() and not (directories.live / "empty-0").exists()


def test_the_same_files_of_partitions(directories: Directories) -> None:
    for name in ("rolled-0", "__consumer_offsets-0", *(f"{codec}-0" for codec in CODECS)):
        theirs, ours = directories.broker / name, directories.ours / name
        assert kinds(theirs) == kinds(ours), name
        assert files(theirs)["leader-epoch-checkpoint"] == files(ours)["leader-epoch-checkpoint"], name
        # While it runs a broker has its files, too (and indexes of the size they may grow to).
        assert kinds(directories.broker_live / name) == kinds(directories.live / name), name
    theirs, ours = directories.broker / "__cluster_metadata-0", directories.ours / "__cluster_metadata-0"
    assert set(kinds(theirs)) - set(kinds(ours)) == {"quorum-state"}
    assert set(kinds(ours)) <= set(kinds(theirs))
    assert files(theirs)["partition.metadata"] == files(ours)["partition.metadata"]


def test_no_partition_has_a_transaction_index_without_transactions(directories: Directories) -> None:
    assert [path.parent.name for path in directories.broker.rglob("*.txnindex")] == ["transactional-0"]
    assert not list(directories.ours.rglob("*.txnindex"))


def whole(path: Path) -> list[StoredBatch]:
    batches = []
    for item in read_batches(str(path)):
        assert isinstance(item, StoredBatch), item
        batches.append(item)
    return batches


def test_a_brokers_transaction_index_matches_its_log(directories: Directories) -> None:
    path = directories.broker / "transactional-0"
    began: dict[int, int] = {}
    entries = b""
    for batch in whole(path):
        header = batch.header
        if not header.is_control:
            began.setdefault(header.producer_id, header.base_offset)
            continue
        first = began.pop(header.producer_id)
        if batch.records(1000)[0].key == b"\0\0\0\0":
            stable = min(began.values(), default=header.last_offset + 1)
            entries += struct.pack(">hqqqq", 0, header.producer_id, first, header.last_offset, stable)
    index = path / f"{FIRST}.txnindex"
    assert entries and index.read_bytes() == entries
    assert dumped([index]).count("version: 0 producerId: ") == 2


def compare_with_remade(root: Path, scratch: Path) -> int:
    """Indexes and snapshots follow from the log: made from it again they must be the very bytes. How many."""
    compared = 0
    storage = DiskStorage(str(scratch))
    for directory in find_partitions(str(root)):
        source = Path(directory.path)
        copy = scratch / source.name
        copy.mkdir()
        for log in sorted(source.glob("*.log")):
            shutil.copy(log, copy)
            segment = Segment(storage, source.name, int(log.stem), LogConfig().index_interval_bytes)
            segment.existing().rescan(contiguous=True)
            segment.save_indexes()
            segment.close()
            for kind in INDEXES:
                name = log.stem + kind
                assert (copy / name).read_bytes() == (source / name).read_bytes(), f"{source.name}/{name}"
                compared += 1
        batches = whole(source)
        for snapshot in source.glob("*.snapshot"):
            producers = PartitionProducers(1000)
            for batch in batches:
                if batch.header.last_offset < int(snapshot.stem):
                    rebuild_batch(producers, batch.data, batch.header)
            assert producers.snapshot() == snapshot.read_bytes(), snapshot
            compared += 1
    return compared


def test_we_make_the_brokers_indexes_and_snapshots_of_the_brokers_logs(
    directories: Directories, tmp_path: Path
) -> None:
    assert compare_with_remade(directories.broker, tmp_path) > 25


def test_files_of_a_stopped_server_match_its_logs(directories: Directories, tmp_path: Path) -> None:
    assert compare_with_remade(directories.ours, tmp_path) > 25


def test_batches_bear_what_the_brokers_bear(directories: Directories) -> None:
    def marks(root: Path, name: str) -> set[tuple[int, int, int, int]]:
        headers = [batch.header for batch in whole(root / name)]
        return {(h.attributes, h.producer_id, h.producer_epoch, h.base_sequence) for h in headers if not h.is_control}

    for name in ("__consumer_offsets-0", "__cluster_metadata-0"):
        assert marks(directories.broker, name) == marks(directories.ours, name), name
    for codec in CODECS:
        codecs = [{b.header.codec for b in whole(d / f"{codec}-0")} for d in (directories.broker, directories.ours)]
        assert codecs[0] == codecs[1] and len(codecs[0]) == 1, codec


def dumped(paths: list[Path], *options: str) -> str:
    shown = tools.run(tools.DUMP_LOG, *options, "--files", ",".join(map(str, paths)))
    assert shown.code == 0, shown
    for complaint in ("isvalid: false", "mismatch", "Mismatch", "out of order", "Out of order", "Exception", "corrupt"):
        assert complaint not in shown.out, shown.out
    return shown.out


def test_the_dumper_reads_every_file_of_kcoord(directories: Directories) -> None:
    for root in (directories.ours, directories.live):
        paths = sorted(
            path
            for path in root.rglob("*-0/*")
            if path.suffix in (".log", ".index", ".timeindex", ".snapshot") and path.parent.parent == root
        )
        shown = dumped(paths)
        for path in paths:
            assert f"Dumping {path}" in shown
    assert dumped(paths, "--deep-iteration").count("isvalid: true") == dumped(paths).count("isvalid: true") > 50


def test_the_dumper_finds_the_indexes_sound(directories: Directories) -> None:
    paths = sorted(path for path in directories.ours.glob("*-0/*") if path.suffix in INDEXES)
    assert len(paths) > 15
    shown = dumped(paths, "--index-sanity-check")
    # Small partitions have no entries in their offset index.
    assert shown.count("passed sanity check") + shown.count(".index is empty") == len(paths)
    assert shown.count("passed sanity check") > 10
    assert "offset:" not in dumped(paths, "--verify-index-only")


def test_the_dumper_reads_our_producers(directories: Directories) -> None:
    snapshots = sorted((directories.ours / "rolled-0").glob("*.snapshot"))
    assert len(snapshots) > 2
    lines = [line for line in dumped(snapshots).splitlines() if line.startswith("producerId: ")]
    ends = [int(snapshot.stem) - 1 for snapshot in snapshots]
    assert [int(re.findall(r"lastOffset: (\d+)", line)[0]) for line in lines] == ends
    assert [int(re.findall(r"lastSequence: (\d+)", line)[0]) for line in lines] == ends


def test_the_dumper_decodes_our_records(directories: Directories) -> None:
    offsets = dump("--offsets-decoder", directories.ours / "__consumer_offsets-0" / f"{FIRST}.log")
    assert {record["key"]["type"] for record in offsets} == {"1", "2"}
    # Why a group has a new generation, as a header: past which the dumper reads.
    shown = dumped([directories.ours / "__consumer_offsets-0" / f"{FIRST}.log"], "--offsets-decoder")
    causes = [line for line in shown.splitlines() if "headerKeys: [kcoord.cause]" in line]
    assert len(causes) >= 2 and all('"type":"2"' in line for line in causes), shown
    metadata = dump("--cluster-metadata-decoder", directories.ours / "__cluster_metadata-0" / f"{FIRST}.log")
    types = {record["payload"]["type"] for record in metadata if isinstance(record["payload"], dict)}
    assert {"TOPIC_RECORD", "PARTITION_RECORD", "CONFIG_RECORD", "PRODUCER_IDS_RECORD"} <= types
    first = metadata[0]["payload"]
    assert first["type"] == "FEATURE_LEVEL_RECORD"
    assert first["data"] == {"name": "metadata.version", "featureLevel": 30}
    for codec in CODECS:
        records = dump("--print-data-log", directories.ours / f"{codec}-0" / f"{FIRST}.log")
        assert [record["payload"] for record in records] == [f"line {i}" for i in range(20)], codec


def test_the_dumper_decodes_transactions(tmp_path: Path) -> None:
    """The transaction log as we write its records, and a transaction index."""
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, *encode_record(TransactionLogKey("tx"), TransactionLogValue(producer_id=7)))
    builder.append(1_700_000_000_000, encode_record(TransactionLogKey("gone"), None)[0], None)
    log = tmp_path / f"{FIRST}.log"
    log.write_bytes(builder.build(0, 0, base_sequence=0))
    records = dump("--transaction-log-decoder", log)
    assert records[0]["key"]["data"]["transactionalId"] == "tx"
    assert records[0]["payload"]["data"]["producerId"] == 7
    assert records[1]["key"]["data"]["transactionalId"] == "gone"
    index = tmp_path / f"{FIRST}.txnindex"
    index.write_bytes(struct.pack(">hqqqq", 0, 7, 10, 20, 30))
    shown = dumped([index])
    assert "version: 0 producerId: 7 firstOffset: 10 lastOffset: 20 lastStableOffset: 30" in shown
