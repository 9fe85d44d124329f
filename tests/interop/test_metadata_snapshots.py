"""Snapshots of the metadata log: Kafka's dumper reads ours, we read a real broker's, and both have the same form."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kcoord.log.metadata_checkpoint import (
    METADATA_LOG,
    CheckpointWriter,
    list_checkpoints,
    parse_name,
    read_checkpoint_file,
)
from kcoord.log.serde import decode_metadata_record
from kcoord.log.storage import DiskStorage
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.wire.record_batch import HEADER_BYTES, BatchHeader
from tests.harness.kcoord_server import KcoordServer
from tests.harness.real_broker import RealBroker
from tests.harness.record_batches import parse_batches
from tests.interop import tools
from tests.interop.dump import dump

OFTEN = {
    "metadata.log.max.record.bytes.between.snapshots": "3000",
    "metadata.log.max.snapshot.interval.ms": "3000",
}
WAIT_S = 120.0


def work(bootstrap: str) -> None:
    """Topics with configs, one that grows and some that go."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topics = [NewTopic(f"topic-{number}", 2, 1, config={"retention.ms": "1234567"}) for number in range(6)]
    for made in admin.create_topics(topics).values():
        made.result(WAIT_S)
    for grown in admin.create_partitions([NewPartitions("topic-0", 3)]).values():
        grown.result(WAIT_S)
    for gone in admin.delete_topics(["topic-4", "topic-5"]).values():
        gone.result(WAIT_S)


def create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for made in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        made.result(WAIT_S)


def snapshot_after_work(bootstrap: str, data: Path) -> Path:
    """The newest snapshot, which has all of the work: no other comes before there is more."""
    work(bootstrap)
    create(bootstrap, "last")
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = max((data / METADATA_LOG).glob("*.checkpoint"), default=None)
        with suppress(FileNotFoundError):  # a newer one has come meanwhile
            if found is not None and "last" in topics_of(found):
                return found
        time.sleep(0.1)
    raise AssertionError(f"no snapshot in {data}")


def records_of(path: Path) -> list[object]:
    name = parse_name(path.name)
    assert name is not None
    found = read_checkpoint_file(DiskStorage(str(path.parent.parent)), METADATA_LOG, name)
    return [decode_metadata_record(value) for value in found.values]


def topics_of(path: Path) -> list[str]:
    return [record.name for record in records_of(path) if isinstance(record, TopicRecord)]


def kinds(path: Path) -> list[str]:
    """Names of the kinds of records in a snapshot, in the order of their first one."""
    return list(dict.fromkeys(type(record).__name__ for record in records_of(path)))


def plain(header: BatchHeader) -> tuple[int, ...]:
    return (
        header.base_offset, header.last_offset_delta, header.count, header.size, header.leader_epoch,
        header.attributes, header.producer_id, header.producer_epoch, header.base_sequence,
    )  # fmt: skip


def test_the_dumper_reads_our_snapshots(tmp_path: Path) -> None:
    with KcoordServer(OFTEN | {"metadata.max.retention.bytes": "0"}, data=tmp_path / "data") as server:
        path = snapshot_after_work(server.bootstrap, server.data)
        # The log begins where it ends, and goes on.
        end = int(path.name[:20])
        deadline = time.monotonic() + WAIT_S
        while (server.data / METADATA_LOG / f"{0:020d}.log").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        create(server.bootstrap, "after")
        server.stop(kill=True)
        records = [record["payload"] for record in dump("--cluster-metadata-decoder", path)]
        topics = {r["data"]["name"] for r in records if isinstance(r, dict) and r["type"] == "TOPIC_RECORD"}
        assert topics >= {f"topic-{number}" for number in range(4)} | {"__consumer_offsets"}
        assert not topics & {"topic-4", "topic-5"}
        configs = [r["data"] for r in records if isinstance(r, dict) and r["type"] == "CONFIG_RECORD"]
        assert sum(c["resourceName"].startswith("topic-") and c["value"] == "1234567" for c in configs) == 4
        partitions = [r for r in records if isinstance(r, dict) and r["type"] == "PARTITION_RECORD"]
        assert len(partitions) >= 3 + 3 * 2 + 1
        shown = tools.run(tools.DUMP_LOG, "--cluster-metadata-decoder", "--files", str(path))
        assert "SnapshotHeader" in shown.out and "SnapshotFooter" in shown.out
        assert "Snapshot end offset: " + str(end) in shown.out
        for log in (server.data / METADATA_LOG).glob("*.log"):
            assert int(log.stem) >= end
            dump("--cluster-metadata-decoder", log)
        server.start()
        listed = tools.run(tools.TOPICS, "--bootstrap-server", server.bootstrap, "--list")
        assert set(listed.lines) >= {"after", "topic-0"} and "topic-4" not in listed.lines


def test_a_brokers_snapshots_have_the_same_format(tmp_path: Path) -> None:
    with RealBroker(OFTEN, data=tmp_path / "broker") as broker:
        theirs = snapshot_after_work(broker.bootstrap, tmp_path / "broker")
        broker.stop()
    with KcoordServer(OFTEN, data=tmp_path / "data") as server:
        ours = snapshot_after_work(server.bootstrap, server.data)
    order = kinds(theirs)
    assert [kind for kind in order if kind in kinds(ours)] == kinds(ours)
    # What we make of a broker's records is what the broker made of them, but for times.
    source = DiskStorage(str(tmp_path / "broker"))
    name = list_checkpoints(source, METADATA_LOG)[-1]
    found = read_checkpoint_file(source, METADATA_LOG, name)
    target = DiskStorage(str(tmp_path / "again"))
    target.make_dir(METADATA_LOG)
    writer = CheckpointWriter(target, METADATA_LOG, name, found.last_timestamp, 1_700_000_000_000)
    for value in found.values:
        writer.append(value)
    writer.finish()
    data = [storage.read_bytes(name.path_in(METADATA_LOG)) for storage in (source, target)]
    headers = [list(parse_batches(one)) for one in data]
    assert len(headers[0]) == len(headers[1])
    # A quorum's first batch says more: its version and who votes.
    shift = headers[0][0].count - headers[1][0].count
    for batch, other in zip(headers[0][1:], headers[1][1:], strict=True):
        assert plain(batch) == (other.base_offset + shift, *plain(other)[1:])
        bodies = [one[h.pos + HEADER_BYTES : h.pos + h.size] for one, h in ((data[0], batch), (data[1], other))]
        assert bodies[0] == bodies[1]
    first = headers[1][0]
    record = data[1][HEADER_BYTES : first.size]
    assert data[0][HEADER_BYTES : HEADER_BYTES + len(record)] == record
    assert plain(headers[0][0])[5:] == plain(first)[5:]
