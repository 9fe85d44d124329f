"""Directories follow the records: what a crash left half made or half deleted is put right at start-up."""

from __future__ import annotations

from typing import Any

from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.log.storage import DirectorySync, FileSync
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_topics import DeleteTopicsRequest
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.testing.state.disk import ForgetfulStorage
from kcoord.wire.record_batch import BatchBuilder
from tests.harness.engine import Client, open_engine
from tests.harness.record_batches import parse_batches

NOW = Now(0, 1_700_000_000_000)


def create(name: str) -> Any:
    return CreateTopicsRequest([CreatableTopic(name, 2, 1)])


def produce(topic: str) -> ProduceRequest:
    builder = BatchBuilder()
    builder.append(1, None, b"value")
    return ProduceRequest(
        None,
        -1,
        1000,
        [TopicProduceData(topic, partition_data=[PartitionProduceData(0, builder.build(0, -1))])],
    )


def folders(storage: ForgetfulStorage) -> list[str]:
    return sorted(name for name in storage.list_dir("") if storage.is_dir(name) and not name.startswith("__"))


def reopened(storage: ForgetfulStorage) -> Engine:
    return open_engine(storage, NOW)


def test_a_topic_whose_creation_was_lost_leaves_no_directory() -> None:
    storage = ForgetfulStorage()
    engine = open_engine(storage, NOW)
    client = Client(engine)
    client.send(apis.CREATE_TOPICS, 5, create("lost"), NOW)
    client.send(apis.PRODUCE, 9, produce("lost"), NOW)
    ticket = engine.end_turn(NOW)
    assert ticket is not None
    for item in ticket.syncs:
        # The new directories reach the disk, the record that speaks of them does not.
        if isinstance(item, (FileSync, DirectorySync)):
            item.datasync()
    storage = storage.crash()
    engine = reopened(storage)
    assert engine.core.topics.get("lost") is None
    assert folders(storage) == []


def test_a_deletion_that_was_lost_brings_the_records_back() -> None:
    storage = ForgetfulStorage()
    engine = open_engine(storage, NOW)
    client = Client(engine)
    client.ask(apis.CREATE_TOPICS, 5, create("t"), NOW)
    assert client.ask(apis.PRODUCE, 9, produce("t"), NOW).responses[0].partition_responses[0].error_code == 0
    client.send(apis.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["t"]), NOW)
    # The directories are renamed, and the rename is durable; the record is not.
    storage.sync_dir("")
    storage = storage.crash()
    engine = reopened(storage)
    assert engine.core.topics.get("t") is not None
    log = engine.directory.get("t", 0)
    assert log is not None and log.end_offset == 1
    # The other partition was never written.
    assert folders(storage) == ["t-0"]


def test_a_deletion_that_is_durable_is_finished_after_a_crash() -> None:
    storage = ForgetfulStorage()
    engine = open_engine(storage, NOW)
    client = Client(engine)
    client.ask(apis.CREATE_TOPICS, 5, create("t"), NOW)
    client.ask(apis.PRODUCE, 9, produce("t"), NOW)
    client.send(apis.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["t"]), NOW)
    ticket = engine.end_turn(NOW)
    assert ticket is not None
    ticket.sync()
    storage = storage.crash()
    engine = reopened(storage)
    assert engine.core.topics.get("t") is None
    assert folders(storage) == []
    client = Client(engine)
    assert client.ask(apis.CREATE_TOPICS, 5, create("t"), NOW).topics[0].error_code == 0
    log = engine.directory.get("t", 0)
    assert log is not None and log.end_offset == 0


def test_batches_bear_the_sequences_of_a_broker() -> None:
    storage = ForgetfulStorage()
    engine = open_engine(storage, NOW)
    client = Client(engine)
    client.ask(apis.CREATE_TOPICS, 5, create("t"), NOW)
    topic = OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 5)])
    client.ask(apis.OFFSET_COMMIT, 8, OffsetCommitRequest("g", topics=[topic]), NOW)
    engine.stop()
    for name, sequence in (("__consumer_offsets-0", 0), ("__cluster_metadata-0", -1)):
        headers = parse_batches(storage.read_bytes(f"{name}/{0:020d}.log"))
        assert headers
        assert {(h.producer_id, h.producer_epoch, h.base_sequence) for h in headers} == {(-1, -1, sequence)}
