"""DeleteRecords: a turn changes numbers only, and the answer waits for the one file that makes them durable."""

from __future__ import annotations

import time

import pytest

from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.log.directory import LOG_START_OFFSETS, StartsWrite
from kcoord.log.storage import Storage
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kcoord.protocol.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from kcoord.protocol.delete_topics import DeleteTopicsRequest
from kcoord.protocol.errors import (
    INVALID_TOPIC_EXCEPTION,
    NONE,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.testing.state.disk import ForgetfulStorage
from kcoord.wire.record_batch import BatchBuilder
from tests.harness.engine import Client, decode_answer, finish_turn, open_engine, read_answers, take_output

NOW = Now(1000, 1_700_000_000_000)
VERSION = 2
PARTITIONS = 50
# Ten times what it takes on a machine that is busy with other things.
CPU_S_MAX = 2.0

Offsets = list[tuple[str, int, int]]


class CountingStorage(ForgetfulStorage):
    """Remembers what was written as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def write_atomic(self, path: str, data: bytes) -> None:
        self.written.append(path)
        super().write_atomic(path, data)

    @property
    def starts(self) -> int:
        return self.written.count(LOG_START_OFFSETS)


def request(offsets: Offsets) -> DeleteRecordsRequest:
    topics = [DeleteRecordsTopic(name, [DeleteRecordsPartition(index, at)]) for name, index, at in offsets]
    return DeleteRecordsRequest(topics, 5000)


def produce(partition: int, count: int, topic: str = "t") -> ProduceRequest:
    builder = BatchBuilder()
    for _ in range(count):
        builder.append(NOW.wall_ms, None, bytes(100))
    data = PartitionProduceData(partition, builder.build(0, -1))
    return ProduceRequest(None, -1, 1000, [TopicProduceData(topic, partition_data=[data])])


def opened(storage: Storage, sync: str = "always") -> tuple[Engine, Client]:
    engine = open_engine(storage, NOW, sync=sync)
    client = Client(engine)
    if engine.core.topics.get("t") is None:
        configs = [CreatableTopicConfig("segment.bytes", "1048576")]
        made = CreateTopicsRequest([CreatableTopic("t", PARTITIONS, 1, [], configs)])
        assert client.ask(apis.CREATE_TOPICS, 5, made, NOW).topics[0].error_code == NONE
        for partition in range(PARTITIONS):
            client.ask(apis.PRODUCE, 9, produce(partition, 10), NOW)
    return engine, client


def start_of(engine: Engine, partition: int) -> int:
    log = engine.directory.get("t", partition)
    assert log is not None
    return log.log_start_offset


def answers(client: Client) -> list[DeleteRecordsResponse]:
    client.engine.outbox.release()
    client.engine.take_ready()
    found = read_answers(take_output(client.session))
    return [decode_answer(apis.DELETE_RECORDS, VERSION, rest) for _, rest in found]


@pytest.mark.parametrize("sync", ["always", "os"])
def test_one_file_for_all_requests_of_a_commit_and_no_answer_before_it(sync: str) -> None:
    storage = CountingStorage()
    engine, client = opened(storage, sync)
    other = Client(engine)
    before = storage.starts
    client.send(apis.DELETE_RECORDS, VERSION, request([("t", n, 3) for n in range(20)]), NOW)
    client.send(apis.DELETE_RECORDS, VERSION, request([("t", 7, 5)]), NOW)
    other.send(apis.DELETE_RECORDS, VERSION, request([("t", 8, 4)]), NOW)
    # Readers see it at once.
    assert [start_of(engine, n) for n in (7, 8, 9)] == [5, 4, 3]
    ticket = engine.end_turn(NOW)
    assert ticket is not None and storage.starts == before
    assert sum(isinstance(item, StartsWrite) for item in ticket.syncs) == 1
    assert answers(client) == [] and answers(other) == []
    ticket.sync()
    assert storage.starts == before + 1
    assert answers(client) == [] and answers(other) == []
    engine.commit_done(ticket, NOW)
    assert len(answers(client)) == 2 and len(answers(other)) == 1
    # Nothing moved since.
    assert engine.end_turn(NOW) is None
    engine.journal.close(clean=False)
    # A power cut, or a killed process.
    again, _ = opened(storage.crash() if sync == "always" else storage, sync)
    assert [start_of(again, n) for n in (0, 7, 8, 9, 20)] == [3, 5, 4, 3, 0]


@pytest.mark.parametrize("sync", ["always", "os", "memory"])
def test_a_request_that_comes_while_the_file_is_written(sync: str) -> None:
    storage = CountingStorage()
    engine, client = opened(storage, sync)
    client.send(apis.DELETE_RECORDS, VERSION, request([("t", 0, 3)]), NOW)
    ticket = engine.end_turn(NOW)
    assert (ticket is None) == (sync == "memory")
    # The same again changes nothing, and its answer still waits for the first one's file; another one waits longer.
    client.send(apis.DELETE_RECORDS, VERSION, request([("t", 0, 3)]), NOW)
    client.send(apis.DELETE_RECORDS, VERSION, request([("t", 1, 3)]), NOW)
    assert engine.end_turn(NOW) is None
    if ticket is not None:
        assert answers(client) == []
        ticket.sync()
        engine.commit_done(ticket, NOW)
        assert len(answers(client)) == 2
        finish_turn(engine, NOW)
        assert len(answers(client)) == 1
    else:
        assert len(answers(client)) == 3
    assert [start_of(engine, n) for n in (0, 1)] == [3, 3]


def test_of_several_offsets_for_one_partition_the_last_one_counts() -> None:
    """And the answer names it once, as a broker's does."""
    engine, client = opened(ForgetfulStorage())
    wanted = [("t", 0, 5), ("t", 0, 99), ("x", 0, 1), ("t", 1, 7), ("t", 0, 2), ("x", 0, 3), ("t", 1, 4), ("t", 60, 0)]
    wanted += [("__consumer_offsets", 0, 0), ("t", 2, -1), ("t", 3, 11), ("t", 3, 12)]
    body = request(wanted)
    body.topics.append(DeleteRecordsTopic("empty", []))
    answer = client.ask(apis.DELETE_RECORDS, VERSION, body, NOW)
    found = {
        topic.name: [(p.partition_index, p.low_watermark, p.error_code) for p in topic.partitions]
        for topic in answer.topics
    }
    assert found == {
        "t": [
            (0, 2, NONE), (1, 4, NONE), (60, -1, UNKNOWN_TOPIC_OR_PARTITION), (2, 10, NONE),
            (3, -1, OFFSET_OUT_OF_RANGE),
        ],
        "x": [(0, -1, UNKNOWN_TOPIC_OR_PARTITION)],
        "__consumer_offsets": [(0, -1, INVALID_TOPIC_EXCEPTION)],
    }  # fmt: skip
    assert [start_of(engine, n) for n in range(4)] == [2, 4, 10, 0]


def test_twenty_thousand_entries_are_one_file_and_little_work() -> None:
    storage = CountingStorage()
    engine, client = opened(storage)
    engine.config.request_elements_max = 30_000
    partitions = [DeleteRecordsPartition(n % PARTITIONS, 1 + n * 9 // 20_000) for n in range(20_000)]
    body = DeleteRecordsRequest([DeleteRecordsTopic("t", partitions)], 5000)
    before = storage.starts
    began = time.process_time()
    client.send(apis.DELETE_RECORDS, VERSION, body, NOW)
    ticket = engine.end_turn(NOW)
    assert time.process_time() - began < CPU_S_MAX
    assert ticket is not None
    ticket.sync()
    engine.commit_done(ticket, NOW)
    assert storage.starts == before + 1
    assert len(answers(client)[0].topics[0].partitions) == PARTITIONS


def test_segments_are_removed_once_the_start_is_durable() -> None:
    storage = ForgetfulStorage()
    engine, client = opened(storage)
    for _ in range(3):
        client.ask(apis.PRODUCE, 9, produce(0, 6000), NOW)
    log = engine.directory.get("t", 0)
    assert log is not None and len(log.segments) > 2
    handler = engine.data_plane.delete_records
    client.send(apis.DELETE_RECORDS, VERSION, request([("t", 0, -1)]), NOW)
    assert handler.take_waste("") == []
    ticket = engine.end_turn(NOW)
    assert ticket is not None and handler.take_waste("") == []
    # A crash now finds everything that the old start stands for.
    again, _ = opened(storage.crash())
    assert start_of(again, 0) == 0
    ticket.sync()
    engine.commit_done(ticket, NOW)
    assert handler.take_waste("t-0") == []
    waste = handler.take_waste("")
    assert len(waste) > 1 and len(log.segments) == 1 and handler.moved == {}
    again, _ = opened(storage.crash())
    assert start_of(again, 0) == log.log_start_offset
    for segment in waste:
        segment.remove()
    storage.sync_dir("t-0")
    again, _ = opened(storage.crash())
    assert start_of(again, 0) == log.log_start_offset
    assert Client(again).ask(apis.PRODUCE, 9, produce(0, 1), NOW).responses[0].partition_responses[0].base_offset == (
        log.end_offset
    )


def test_a_topic_that_is_deleted_before_its_start_is_durable() -> None:
    engine, client = opened(ForgetfulStorage())
    client.send(apis.DELETE_RECORDS, VERSION, request([("t", 0, 5)]), NOW)
    client.send(apis.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["t"]), NOW)
    client.send(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic("t", 1, 1)]), NOW)
    finish_turn(engine, NOW)
    assert engine.data_plane.delete_records.take_waste("") == []
    assert engine.data_plane.delete_records.moved == {}
    assert start_of(engine, 0) == 0
    engine.stop()
