"""Partitions follow the records of topics: in bounded steps, without files, and answered when done."""

from __future__ import annotations

import itertools
import random

import pytest

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.engine.topic_follower import REMOVE_STEPS, TURN_STEPS, RemoveLog
from kcoord.log.storage import MemoryStorage
from kcoord.protocol import apis, errors
from kcoord.protocol.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kcoord.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.testing.state.disk import ForgetfulStorage
from tests.harness.batches import batch
from tests.harness.engine import Client, finish_turn, open_engine, read_answers, run_jobs, take_output

NOW = Now(1_000, 1_800_000_000_000)
MANY = 3 * TURN_STEPS


def turns_until_quiet(engine: Engine) -> int:
    """Turns of the engine until nothing is due any more."""
    turns = 0
    while 0 <= engine.next_deadline_ms() <= NOW.mono_ms:
        engine.fire_timers(NOW)
        finish_turn(engine, NOW)
        turns += 1
        assert turns < 1000
    return turns


def served(engine: Engine, topic: str) -> int:
    found = engine.data_plane.table.topic(topic)
    return 0 if found is None else len(found.partitions)


def create(name: str, partitions: int) -> CreateTopicsRequest:
    return CreateTopicsRequest([CreatableTopic(name, partitions, 1)])


def produce(name: str, *partitions: int) -> ProduceRequest:
    data = [PartitionProduceData(partition, batch([b"v"])) for partition in partitions]
    return ProduceRequest(None, -1, 1000, [TopicProduceData(name, partition_data=data)])


def answers_of(client: Client) -> list[int]:
    return [correlation_id for correlation_id, _ in read_answers(take_output(client.session))]


def test_many_partitions_are_served_a_few_at_a_time_and_then_answered() -> None:
    engine = open_engine(MemoryStorage(), NOW)
    creator = Client(engine)
    other = Client(engine)
    sent = creator.send(apis.CREATE_TOPICS, 7, create("t", MANY), NOW)
    finish_turn(engine, NOW)
    assert served(engine, "t") == TURN_STEPS and answers_of(creator) == []
    # Others get their turns, and a small topic does not wait for the large one.
    assert other.ask(apis.CREATE_TOPICS, 7, create("small", 2), NOW).topics[0].error_code == errors.NONE
    assert served(engine, "small") == 2
    assert other.ask(apis.PRODUCE, 9, produce("small", 1), NOW).responses[0].partition_responses[0].error_code == 0
    unserved = other.ask(apis.PRODUCE, 9, produce("t", MANY - 1), NOW).responses[0].partition_responses[0]
    assert unserved.error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    before = served(engine, "t")
    engine.fire_timers(NOW)
    finish_turn(engine, NOW)
    assert served(engine, "t") <= before + TURN_STEPS
    turns_until_quiet(engine)
    assert served(engine, "t") == MANY and answers_of(creator) == [sent]
    assert other.ask(apis.PRODUCE, 9, produce("t", MANY - 1), NOW).responses[0].partition_responses[0].error_code == 0


def test_later_partitions_of_a_topic_come_after_its_first_ones() -> None:
    engine = open_engine(MemoryStorage(), NOW)
    creator, widener = Client(engine), Client(engine)
    first = creator.send(apis.CREATE_TOPICS, 7, create("t", MANY), NOW)
    finish_turn(engine, NOW)
    more = CreatePartitionsRequest([CreatePartitionsTopic("t", MANY + 1, None)])
    second = widener.send(apis.CREATE_PARTITIONS, 3, more, NOW)
    finish_turn(engine, NOW)
    assert answers_of(widener) == []
    turns_until_quiet(engine)
    assert (answers_of(creator), answers_of(widener)) == ([first], [second])
    assert served(engine, "t") == MANY + 1
    numbers = [tp.partition for tp in engine.data_plane.table.by_name["t"].partitions]
    assert numbers == list(range(MANY + 1))


def test_a_topic_that_goes_before_all_of_it_is_served() -> None:
    engine = open_engine(MemoryStorage(), NOW)
    creator, deleter = Client(engine), Client(engine)
    sent = creator.send(apis.CREATE_TOPICS, 7, create("t", MANY), NOW)
    finish_turn(engine, NOW)
    deletion = deleter.send(apis.DELETE_TOPICS, 6, DeleteTopicsRequest([DeleteTopicState("t")]), NOW)
    again = deleter.send(apis.CREATE_TOPICS, 7, create("t", 3), NOW)
    finish_turn(engine, NOW)
    turns_until_quiet(engine)
    assert answers_of(creator) == [sent] and answers_of(deleter) == [deletion, again]
    assert served(engine, "t") == 3
    assert len(engine.directory) == engine.core.topics.total_partitions + 1


def test_whoever_created_and_left_is_not_answered() -> None:
    engine = open_engine(MemoryStorage(), NOW)
    creator = Client(engine)
    creator.send(apis.CREATE_TOPICS, 7, create("t", MANY), NOW)
    finish_turn(engine, NOW)
    engine.close_session(creator.session, NOW)
    turns_until_quiet(engine)
    assert served(engine, "t") == MANY and not engine.data_plane.follower.held and not engine.applier.parked


def test_topics_that_metadata_creates_are_bounded_and_a_retry_creates_more() -> None:
    config = CoreConfig()
    config.group_events_enable = False
    config.num_partitions = 10
    engine = open_engine(MemoryStorage(), NOW, config=config)
    config.partitions_max = engine.core.topics.total_partitions + 1500
    client = Client(engine)
    names = [f"t{number}" for number in range(200)]
    body = MetadataRequest([MetadataRequestTopic(name=name) for name in names + names], True)
    known = []
    for _ in range(4):
        client.send(apis.METADATA, 12, body, NOW)
        finish_turn(engine, NOW)
        turns_until_quiet(engine)
        (_answer,) = read_answers(take_output(client.session))
        found = [name for name in names if engine.core.topics.get(name) is not None]
        known.append(len(found))
        assert served(engine, found[-1]) == 10
    assert known == [50, 100, 150, 150]
    facts = [fact.event for fact in engine.take_facts()]
    assert facts.count("topics_not_created") == 2


def test_partitions_have_no_files_until_they_are_written() -> None:
    storage = ForgetfulStorage()
    engine = open_engine(storage, NOW)
    client = Client(engine)
    client.ask(apis.CREATE_TOPICS, 7, create("t", 20), NOW)
    assert not [name for name in storage.list_dir("") if name.startswith("t-")]
    client.ask(apis.PRODUCE, 9, produce("t", 3), NOW)
    assert [name for name in storage.list_dir("") if name.startswith("t-")] == ["t-3"]
    # Everything that tells whose records these are got to the disk with them.
    engine = open_engine(storage.crash(), NOW)
    log = engine.directory.get("t", 3)
    assert log is not None and log.end_offset == 1 and log.topic_id == engine.core.topics.topics["t"].topic_id
    assert served(engine, "t") == 20
    client = Client(engine)
    client.ask(apis.PRODUCE, 9, produce("t", 3, 4), NOW)
    engine.stop()


def test_an_unwritten_topic_is_deleted_without_touching_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    engine = open_engine(storage, NOW)
    client = Client(engine)
    client.ask(apis.CREATE_TOPICS, 7, create("t", 20), NOW)

    def refuse(old: str, new: str) -> None:
        raise AssertionError("renamed")

    monkeypatch.setattr(storage, "rename", refuse)
    client.ask(apis.DELETE_TOPICS, 6, DeleteTopicsRequest([DeleteTopicState("t")]), NOW)
    assert not engine.data_plane.follower.has_work(1 << 60) and engine.directory.get("t", 0) is None


def test_directories_of_deleted_topics_go_a_few_at_a_time() -> None:
    count = 3 * TURN_STEPS // REMOVE_STEPS
    storage = ForgetfulStorage()
    engine = open_engine(storage, NOW)
    client = Client(engine)
    client.ask(apis.CREATE_TOPICS, 7, create("t", count), NOW)
    client.ask(apis.PRODUCE, 9, produce("t", *range(count)), NOW)
    sent = client.send(apis.DELETE_TOPICS, 6, DeleteTopicsRequest([DeleteTopicState("t")]), NOW)
    finish_turn(engine, NOW)
    left = [len(storage.list_dir(""))]
    while 0 <= engine.next_deadline_ms() <= NOW.mono_ms:
        engine.fire_timers(NOW)
        finish_turn(engine, NOW)
        left.append(len(storage.list_dir("")))
    assert answers_of(client) == [sent]
    most = TURN_STEPS // REMOVE_STEPS + 1
    assert all(before - after <= 2 * most for before, after in itertools.pairwise(left)) and len(left) > 2
    assert not [name for name in storage.list_dir("") if name.startswith("t-")]
    assert engine.directory.deleted == []


def test_a_start_after_a_crash_in_the_middle_of_a_deletion_completes_it() -> None:
    count = 3 * TURN_STEPS // REMOVE_STEPS
    storage = ForgetfulStorage()
    engine = open_engine(storage, NOW)
    client = Client(engine)
    client.ask(apis.CREATE_TOPICS, 7, create("t", count), NOW)
    client.ask(apis.PRODUCE, 9, produce("t", *range(count)), NOW)
    client.send(apis.DELETE_TOPICS, 6, DeleteTopicsRequest([DeleteTopicState("t")]), NOW)
    finish_turn(engine, NOW)
    left = storage.crash()
    assert [name for name in left.list_dir("") if name.startswith("t-")]
    open_engine(left, NOW)
    assert not [name for name in left.list_dir("") if name.startswith("t-")]


def test_a_large_log_is_removed_in_a_thread() -> None:
    storage = MemoryStorage()
    engine = open_engine(storage, NOW)
    engine.data_plane.follower.remove_bytes_max = 10
    client = Client(engine)
    client.ask(apis.CREATE_TOPICS, 7, create("t", 1), NOW)
    client.ask(apis.PRODUCE, 9, produce("t", 0), NOW)
    client.ask(apis.DELETE_TOPICS, 6, DeleteTopicsRequest([DeleteTopicState("t")]), NOW)
    turns_until_quiet(engine)
    (job,) = engine.applier.jobs_in_flight.values()
    assert isinstance(job, RemoveLog) and storage.exists(job.path)
    run_jobs(engine, NOW)
    assert not storage.exists(job.path) and not engine.applier.jobs_in_flight


def test_random_topics_come_and_go_and_the_table_agrees_with_the_registry() -> None:
    rng = random.Random(11)
    storage = ForgetfulStorage()
    engine = open_engine(storage, NOW)
    for round_number in range(60):
        client = Client(engine)
        name = f"t{rng.randrange(4)}"
        kind = rng.randrange(4)
        if kind == 0:
            client.send(apis.CREATE_TOPICS, 7, create(name, rng.choice([1, 7, TURN_STEPS + 9])), NOW)
        elif kind == 1:
            client.send(apis.DELETE_TOPICS, 6, DeleteTopicsRequest([DeleteTopicState(name)]), NOW)
        elif kind == 2:
            client.send(apis.PRODUCE, 9, produce(name, rng.randrange(9)), NOW)
        else:
            engine.fire_timers(NOW)
        if rng.random() < 0.7:
            finish_turn(engine, NOW)
        if round_number % 20 == 19:
            finish_turn(engine, NOW)
            turns_until_quiet(engine)
            for topic in engine.core.topics.topics.values():
                assert served(engine, topic.name) == topic.partition_count
            assert len(engine.data_plane.table.by_name) == len(engine.core.topics.topics)
            assert len(engine.directory) == engine.core.topics.total_partitions + 1
            assert not engine.data_plane.follower.held
    engine = open_engine(storage.crash(), NOW)
    assert len(engine.directory) == engine.core.topics.total_partitions + 1
