"""What one client can do to the engine's memory and to everybody else's answers: nothing without bounds."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import Now
from kcoord.engine.session import OUTPUT_BYTES_MAX
from kcoord.log.storage import MemoryStorage
from kcoord.protocol import apis, errors
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_groups import DeleteGroupsRequest
from kcoord.protocol.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kcoord.protocol.describe_groups import DescribeGroupsRequest
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kcoord.protocol.heartbeat import HeartbeatRequest
from kcoord.protocol.list_groups import ListGroupsRequest
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.testing.state.disk import ForgetfulStorage
from kcoord.wire.record_batch import BatchBuilder
from tests.harness.engine import (
    Client,
    decode_answer,
    finish_turn,
    open_engine,
    open_memory_engine,
    read_answers,
    request_frame,
    take_output,
)

NOW = Now(1000, 1_700_000_000_000)


def create(client: Client, name: str, partitions: int = 1) -> None:
    body = CreateTopicsRequest([CreatableTopic(name, partitions, 1)])
    client.send(apis.CREATE_TOPICS, 5, body, NOW)
    finish_turn(client.engine, NOW)
    output = take_output(client.session)
    while not output:
        # Many partitions take several turns.
        client.engine.fire_timers(NOW)
        finish_turn(client.engine, NOW)
        output = take_output(client.session)
    ((_, answer),) = read_answers(output)
    assert decode_answer(apis.CREATE_TOPICS, 5, answer).topics[0].error_code == 0


def produce_request(topic: str, size: int, acks: int = -1) -> ProduceRequest:
    builder = BatchBuilder()
    builder.append(NOW.wall_ms, None, bytes(size))
    data = [PartitionProduceData(0, builder.build(0, -1))]
    return ProduceRequest(None, acks, 1000, [TopicProduceData(topic, partition_data=data)])


def fetch_request(topic: str, offset: int = 0, max_wait_ms: int = 0, min_bytes: int = 1) -> FetchRequest:
    partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 30)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=1 << 30,
        session_epoch=-1,
        topics=[FetchTopic(topic, partitions=[partition])],
    )


def commit_request(group: str, topic: str, count: int = 1) -> OffsetCommitRequest:
    partitions = [OffsetCommitRequestPartition(0, number, -1, "") for number in range(count)]
    return OffsetCommitRequest(group, -1, "", None, -1, [OffsetCommitRequestTopic(topic, bytes(16), partitions)])


def committed(client: Client, group: str, topic: str) -> int:
    answer = client.ask(apis.OFFSET_FETCH, 5, OffsetFetchRequest(group, [OffsetFetchRequestTopic(topic, [0])]), NOW)
    return int(answer.topics[0].partitions[0].committed_offset)


def test_a_commit_that_no_batch_can_hold_is_refused() -> None:
    """A long group id is stored with each offset, so a small request may ask for records without end."""
    storage = MemoryStorage()
    engine = open_engine(storage, NOW)
    engine.config.request_elements_max = 30_000
    engine.outbox.strict = False
    client = Client(engine)
    create(client, "t")
    group = "g" * 32000
    answer = client.ask(apis.OFFSET_COMMIT, 8, commit_request(group, "t", 20000), NOW)
    codes = {p.error_code for p in answer.topics[0].partitions}
    assert codes == {errors.INVALID_COMMIT_OFFSET_SIZE}
    # Nothing of it is there, and what comes after is stored as ever.
    assert committed(client, group, "t") == -1
    assert client.ask(apis.OFFSET_COMMIT, 8, commit_request(group, "t"), NOW).topics[0].partitions[0].error_code == 0
    engine.stop()
    engine = open_engine(storage, NOW)
    assert committed(Client(engine), group, "t") == 0


def test_a_request_with_too_many_elements_names_the_setting() -> None:
    config = CoreConfig()
    config.request_elements_max = 1000
    engine = open_memory_engine(NOW, config=config)
    client = Client(engine)
    client.send(apis.OFFSET_COMMIT, 8, commit_request("g", "t", 999), NOW)
    assert not client.session.close_reason, "the topic is an element, too"
    client.send(apis.OFFSET_COMMIT, 8, commit_request("g", "t", 1000), NOW)
    assert "request.elements.max" in client.session.close_reason


@pytest.mark.slow
def test_expiry_of_long_group_ids_is_cut_into_batches() -> None:
    config = CoreConfig()
    engine = open_memory_engine(NOW, config=config)
    client = Client(engine)
    create(client, "t", 3000)
    for group in [letter + "g" * 32000 for letter in "abc"] + ["small"]:
        for first in range(0, 3000, 1000):
            partitions = [OffsetCommitRequestPartition(first + i, 5, -1, "") for i in range(1000)]
            topics = [OffsetCommitRequestTopic("t", bytes(16), partitions)]
            client.ask(apis.OFFSET_COMMIT, 8, OffsetCommitRequest(group, -1, "", None, -1, topics), NOW)
    assert committed(client, "small", "t") == 5
    # No batch can hold the tombstones of one such group: they go in several.
    later_ms = config.offsets_retention_ms + config.offsets_retention_check_interval_ms
    later = Now(NOW.mono_ms + later_ms, NOW.wall_ms + later_ms)
    steps = 0
    while 0 <= engine.next_deadline_ms() <= later.mono_ms:
        engine.fire_timers(later)
        finish_turn(engine, later)
        steps += 1
    assert steps > 3
    assert committed(client, "small", "t") == -1
    assert client.ask(apis.LIST_GROUPS, 4, ListGroupsRequest(), later).groups == []


@pytest.mark.slow
def test_unread_answers_delay_later_requests() -> None:
    """A few kilobytes of requests may ask for gigabytes of answers."""
    engine = open_memory_engine(NOW)
    client = Client(engine)
    create(client, "t")
    size = 900_000
    for _ in range(20):
        assert client.ask(apis.PRODUCE, 9, produce_request("t", size), NOW).responses
    asked = 30
    frames = b"".join(request_frame(apis.FETCH, 11, fetch_request("t"), 100 + i) for i in range(asked))
    engine.receive(client.session, frames, NOW)
    finish_turn(engine, NOW)
    assert client.session.paused
    seen: list[int] = []
    rounds = 0
    while True:
        data = take_output(client.session)
        if not data:
            break
        assert len(data) < OUTPUT_BYTES_MAX + 21 * size
        seen += [correlation_id for correlation_id, _ in read_answers(data)]
        engine.output_taken(client.session)
        finish_turn(engine, NOW)
        rounds += 1
    assert seen == list(range(100, 100 + asked))
    assert rounds > 1
    assert not client.session.paused


def test_appends_wait_while_a_commit_would_grow_too_large() -> None:
    """Recovery after a power cut counts on a commit's size, and memory on the disk keeping up."""
    engine = open_engine(ForgetfulStorage(), NOW)
    engine.commits.bytes_target = 1_000_000
    client, other = Client(engine), Client(engine)
    create(client, "t")
    client.send(apis.PRODUCE, 9, produce_request("t", 100), NOW)
    in_flight = engine.end_turn(NOW)
    assert in_flight is not None
    sent = [client.send(apis.PRODUCE, 9, produce_request("t", 300_000), NOW) for _ in range(20)]
    assert engine.journal.pending_bytes < 2_000_000
    assert engine.end_turn(NOW) is None
    # Others are heard meanwhile.
    engine.take_ready()
    beat = other.send(apis.HEARTBEAT, 4, HeartbeatRequest("g", 1, "m"), NOW)
    engine.end_turn(NOW)
    assert [a[0] for a in read_answers(take_output(other.session))] == [beat]
    answers: list[int] = []
    commits = 0
    ticket: Any = in_flight
    while ticket is not None:
        ticket.sync()
        engine.commit_done(ticket, NOW)
        ticket = engine.end_turn(NOW)
        assert engine.journal.pending_bytes < 2_000_000
        answers += [a[0] for a in read_answers(take_output(client.session))]
        commits += 1
    assert answers[1:] == sent
    assert commits > 3


def test_a_full_disk_sends_no_response_without_acks() -> None:
    engine = open_memory_engine(NOW)
    client = Client(engine)
    create(client, "t")
    engine.set_disk_full(True)
    client.send(apis.PRODUCE, 9, produce_request("t", 10, acks=0), NOW)
    finish_turn(engine, NOW)
    assert take_output(client.session) == b""
    assert client.session.close_reason


def test_steps_that_follow_each_other_need_no_stack() -> None:
    """Groups that alternate between logs are deleted in as many steps."""
    config = CoreConfig()
    config.offsets_topic_num_partitions = 2
    engine = open_memory_engine(NOW, config=config)
    client = Client(engine)
    create(client, "t")
    by_log: dict[int, list[str]] = {0: [], 1: []}
    for number in range(3000):
        group = f"g{number}"
        by_log[engine.core.log_of(group).partition].append(group)
    names = [name for pair in zip(by_log[0], by_log[1], strict=False) for name in pair]
    for name in names:
        client.send(apis.OFFSET_COMMIT, 8, commit_request(name, "t"), NOW)
    finish_turn(engine, NOW)
    take_output(client.session)
    answer = client.ask(apis.DELETE_GROUPS, 2, DeleteGroupsRequest(names), NOW)
    assert [r.error_code for r in answer.results] == [0] * len(names)


@pytest.mark.slow
def test_timers_of_fetches_that_were_answered_do_not_pile_up() -> None:
    engine = open_memory_engine(NOW)
    client, producer = Client(engine), Client(engine)
    create(client, "t")
    for offset in range(5000):
        client.send(apis.FETCH, 11, fetch_request("t", offset, max_wait_ms=2_000_000_000), NOW)
        producer.send(apis.PRODUCE, 9, produce_request("t", 1), NOW)
        finish_turn(engine, NOW)
        assert len(read_answers(take_output(client.session))) == 1
        take_output(producer.session)
    assert len(engine.applier.timers) < 3000


@pytest.mark.slow
def test_timers_that_still_count_survive_the_weeding() -> None:
    engine = open_memory_engine(NOW)
    client, producer, patient = Client(engine), Client(engine), Client(engine)
    create(client, "t")
    create(client, "quiet")
    waiting = patient.send(apis.FETCH, 11, fetch_request("quiet", 0, max_wait_ms=60_000), NOW)
    for offset in range(5000):
        client.send(apis.FETCH, 11, fetch_request("t", offset, max_wait_ms=2_000_000_000), NOW)
        producer.send(apis.PRODUCE, 9, produce_request("t", 1), NOW)
        finish_turn(engine, NOW)
        take_output(client.session)
        take_output(producer.session)
    later = Now(NOW.mono_ms + 60_000, NOW.wall_ms + 60_000)
    engine.fire_timers(later)
    finish_turn(engine, later)
    assert [a[0] for a in read_answers(take_output(patient.session))] == [waiting]


def test_an_answer_that_cannot_be_encoded_costs_its_own_connection_only() -> None:
    """One commit may answer many; what one of them gets must not stop the others."""
    engine = open_memory_engine(NOW)
    engine.outbox.strict = False
    waiting = [Client(engine) for _ in range(3)]
    producer = Client(engine)
    create(producer, "t")
    sent = [c.send(apis.FETCH, 11, fetch_request("t", 0, max_wait_ms=60_000), NOW) for c in waiting]
    # Longer than a string may be.
    next(iter(engine.data_plane.fetch.parked.values())).items[0].topic = "t" * 40000
    producer.send(apis.PRODUCE, 9, produce_request("t", 10), NOW)
    finish_turn(engine, NOW)
    outcomes = []
    for client, correlation_id in zip(waiting, sent, strict=True):
        output = take_output(client.session)
        outcomes.append((bool(client.session.close_reason), [a[0] for a in read_answers(output)]))
        assert outcomes[-1] in ((True, []), (False, [correlation_id]))
    assert sum(closed for closed, _ in outcomes) == 1


def test_names_too_long_to_be_repeated_are_refused_all_the_same() -> None:
    engine = open_memory_engine(NOW)
    client = Client(engine)
    answer = client.ask(apis.CREATE_TOPICS, 4, CreateTopicsRequest([CreatableTopic("n" * 32767, 1, 1)]), NOW)
    assert answer.topics[0].error_code == errors.INVALID_TOPIC_EXCEPTION
    name = "g" * 32767
    groups = client.ask(apis.DESCRIBE_GROUPS, 6, DescribeGroupsRequest([name]), NOW).groups
    assert groups[0].error_code == errors.GROUP_ID_NOT_FOUND
    resources = [DescribeConfigsResource(4, name, None)]
    results = client.ask(apis.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources), NOW).results
    assert results[0].error_code == errors.INVALID_REQUEST
