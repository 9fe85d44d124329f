"""Leader epochs of partitions that came from elsewhere, or back from a snapshot: they go on where they were."""

from __future__ import annotations

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import CoordinatorRecord, Now
from kcoord.core.producers import PartitionProducers
from kcoord.core.topics.registry import TopicRegistry
from kcoord.engine.partitions import PartitionTable, TopicPartition, epoch_end
from kcoord.log.directory import LogDirectory
from kcoord.log.journal import Journal
from kcoord.log.storage import MemoryStorage
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.protocol.records.partition_change_record import PartitionChangeRecord
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.topic_record import TopicRecord
from tests.harness.engine import Client, finish_turn, open_engine
from tests.harness.record_batches import parse_batches
from tests.unit.log.batches import make_batch, reopen

ID = bytes(15) + b"\x07"
NOW = Now(1000, 1_700_000_000_000)


def registry(epoch: int = 0) -> TopicRegistry:
    topics = TopicRegistry(CoreConfig())
    topics.replay_metadata(TopicRecord("t", ID), 0)
    topics.replay_metadata(PartitionRecord(0, ID, leader=1, leader_epoch=epoch), 1)
    return topics


def partition(directory: LogDirectory, topics: TopicRegistry) -> TopicPartition:
    table = PartitionTable(topics, 1 << 20)
    topic = topics.topics["t"]
    log = directory.get("t", 0)
    assert log is not None
    return table.add_partition(topic, log, PartitionProducers(1000))


def ends(tp: TopicPartition, *epochs: int) -> list[tuple[int, int]]:
    found = [epoch_end(tp, epoch) for epoch in epochs]
    return [(end.epoch, end.offset) for end in found]


def test_the_registry_follows_leader_changes() -> None:
    topics = registry(4)
    assert topics.topics["t"].leader_epoch(0) == 4
    before = topics.digest_lines()
    topics.replay_metadata(PartitionChangeRecord(0, ID, leader=1), 2)
    assert topics.topics["t"].leader_epoch(0) == 5
    assert topics.digest_lines() != before
    # A change of something else is no new epoch, and one of an unknown partition is nothing at all.
    topics.replay_metadata(PartitionChangeRecord(0, ID, isr=[1]), 3)
    topics.replay_metadata(PartitionChangeRecord(9, ID, leader=1), 4)
    topics.replay_metadata(PartitionRecord(-1, ID, leader=1), 5)
    assert topics.topics["t"].leader_epochs == [5]


def test_ends_of_older_epochs() -> None:
    directory = reopen(MemoryStorage())
    log = directory.create_log("t", 0, ID)
    journal = Journal(directory, "always")
    for base, epoch in ((0, 2), (3, 2), (6, 4)):
        journal.append(log, make_batch(base, 3, epoch=epoch), base, base + 2, 1000, epoch)
    journal.commit()
    tp = partition(directory, registry(6))
    assert tp.leader_epoch == 6
    assert ends(tp, 6, 5, 4, 3, 2, 1) == [(6, 9), (4, 9), (4, 9), (2, 6), (2, 6), (1, 0)]
    assert ends(tp, 7, -1) == [(-1, -1), (-1, -1)]
    # Never below what the log has.
    assert partition(directory, registry(0)).leader_epoch == 4


def test_an_empty_log_that_begins_somewhere() -> None:
    directory = reopen(MemoryStorage())
    log = directory.create_log("t", 0, ID)
    directory.storage.remove("t-0/leader-epoch-checkpoint")
    log._start_at(40)
    tp = partition(directory, registry(3))
    assert ends(tp, 3, 2) == [(3, 40), (2, 40)]


def test_records_are_written_in_the_epoch_in_force() -> None:
    storage = MemoryStorage()
    engine = open_engine(storage, NOW)
    client = Client(engine)
    assert (
        client.ask(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic("t", 1, 1)]), NOW).topics[0].error_code
        == 0
    )
    metadata = engine.commits.logs[engine.core.metadata_log]
    for name in ("t", "t", "__consumer_offsets"):
        change = PartitionChangeRecord(0, engine.core.topics.topics[name].topic_id, leader=1)
        metadata.append(metadata.encode([CoordinatorRecord(None, change)]), NOW.wall_ms)
    finish_turn(engine, NOW)
    engine.stop()

    engine = open_engine(storage, NOW)
    client = Client(engine)
    shown = client.ask(apis.METADATA, 12, MetadataRequest([MetadataRequestTopic(name="t")]), NOW)
    assert shown.topics[0].partitions[0].leader_epoch == 2
    data = [PartitionProduceData(0, make_batch(0, epoch=-1))]
    client.ask(apis.PRODUCE, 9, ProduceRequest(None, -1, 1000, [TopicProduceData("t", partition_data=data)]), NOW)
    partitions = [OffsetCommitRequestPartition(0, 1, -1, "")]
    topics = [OffsetCommitRequestTopic("t", bytes(16), partitions)]
    client.ask(apis.OFFSET_COMMIT, 8, OffsetCommitRequest("g", -1, "", None, -1, topics), NOW)
    for name, epoch in (("t", 2), ("__consumer_offsets", 1)):
        log = engine.directory.get(name, 0)
        assert log is not None
        assert [h.leader_epoch for h in parse_batches(log.read(0, 1 << 20, log.end_offset))] == [epoch]
