"""The engine's turns: what goes out when, in which order, and who is held back by whom."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import BUG, ERROR, LIMIT, PEER, Now
from kcoord.engine.api_versions import PRIVATE_KEY_MIN
from kcoord.engine.engine import Engine
from kcoord.log.errors import JournalFailed, LogError
from kcoord.log.journal import CommitTicket
from kcoord.protocol import apis, errors
from kcoord.protocol.api_versions import ApiVersionsRequest
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_groups import DeleteGroupsRequest
from kcoord.protocol.delete_topics import DeleteTopicsRequest
from kcoord.protocol.describe_groups import DescribeGroupsRequest
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kcoord.protocol.heartbeat import HeartbeatRequest
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kcoord.protocol.list_groups import ListGroupsRequest
from kcoord.protocol.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kcoord.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kcoord.testing.state.disk import ForgetfulStorage
from kcoord.wire.record_batch import BatchBuilder
from tests.harness.core_invariants import engine_problems
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
HEARTBEAT = HeartbeatRequest("nobody", 1, "m")


def later(ms: int) -> Now:
    return Now(NOW.mono_ms + ms, NOW.wall_ms + ms)


def topics(*names: str, partitions: int = 1) -> CreateTopicsRequest:
    return CreateTopicsRequest([CreatableTopic(name, partitions, 1) for name in names])


def records(topic: str = "t", acks: int = -1, **producer: Any) -> ProduceRequest:
    builder = BatchBuilder()
    builder.append(NOW.wall_ms, None, b"value")
    data = [PartitionProduceData(0, builder.build(0, -1, **producer))]
    return ProduceRequest(None, acks, 1000, [TopicProduceData(topic, partition_data=data)])


def fetch(offset: int = 0, max_wait_ms: int = 0, topic: str = "t") -> FetchRequest:
    partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
    wanted = [FetchTopic(topic, partitions=[partition])]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=wanted)


def commit(offset: int, group: str = "g", topic: str = "t") -> OffsetCommitRequest:
    partitions = [OffsetCommitRequestPartition(0, offset, -1, "")]
    return OffsetCommitRequest(group, -1, "", None, -1, [OffsetCommitRequestTopic(topic, bytes(16), partitions)])


def offsets(group: str = "g", topic: str = "t") -> OffsetFetchRequest:
    return OffsetFetchRequest(group, [OffsetFetchRequestTopic(topic, [0])])


def join(group: str = "g", member_id: str = "") -> JoinGroupRequest:
    protocols = [JoinGroupRequestProtocol("range", b"x")]
    return JoinGroupRequest(group, 10000, 60000, member_id, None, "consumer", protocols)


class Rig:
    """An engine under log.sync = always, whose disk is as slow as the test wants."""

    def __init__(self, config: CoreConfig | None = None) -> None:
        self.storage = ForgetfulStorage()
        self.engine: Engine = open_engine(self.storage, NOW, random.Random(3), config=config)
        self.ticket: CommitTicket | None = None
        admin = self.client()
        assert admin.ask(apis.CREATE_TOPICS, 5, topics("t"), NOW).topics[0].error_code == 0

    def client(self) -> Client:
        return Client(self.engine)

    def turn(self, now: Now = NOW) -> None:
        ticket = self.engine.end_turn(now)
        if ticket is not None:
            assert self.ticket is None, "two commits in flight"
            self.ticket = ticket

    def fire(self, now: Now = NOW) -> None:
        """Timers, and those that they arm for at once, each in a turn of its own."""
        while 0 <= self.engine.next_deadline_ms() <= now.mono_ms:
            self.engine.fire_timers(now)
            finish_turn(self.engine, now)

    def synced(self, now: Now = NOW) -> None:
        """The disk is done with the commit in flight."""
        ticket, self.ticket = self.ticket, None
        assert ticket is not None
        ticket.sync()
        self.engine.commit_done(ticket, now)
        self.turn(now)


def taken(client: Client) -> list[int]:
    """The correlation ids of the answers that are out."""
    return [a[0] for a in read_answers(take_output(client.session))]


def test_nothing_is_answered_before_its_commit() -> None:
    rig = Rig()
    client = rig.client()
    sent = client.send(apis.PRODUCE, 9, records(), NOW)
    rig.turn()
    assert taken(client) == []
    rig.synced()
    assert taken(client) == [sent]
    assert rig.ticket is None


def test_turns_look_at_waiting_answers_only_after_a_commit() -> None:
    rig = Rig()
    clients = [rig.client() for _ in range(5)]
    outbox = rig.engine.outbox
    for number, client in enumerate(clients):
        client.send(apis.OFFSET_COMMIT, 8, commit(number), NOW)
        rig.turn()
        assert (len(outbox.touched), len(outbox.held)) == (0, number + 1)
    # An answer that waits for nothing leaves at once, beside those that wait.
    other = rig.client()
    sent = other.send(apis.API_VERSIONS, 0, ApiVersionsRequest(), NOW)
    clients[0].send(apis.API_VERSIONS, 0, ApiVersionsRequest(), NOW)
    rig.turn()
    assert taken(other) == [sent] and taken(clients[0]) == []
    assert not engine_problems(rig.engine)
    rig.engine.close_session(clients[1].session, NOW)
    rig.synced()
    assert len(taken(clients[0])) == 2 and len(outbox.held) == 3
    rig.synced()
    assert [len(taken(client)) for client in clients] == [0, 0, 1, 1, 1]
    assert not outbox.held and not outbox.touched
    assert not engine_problems(rig.engine)


def test_pipelined_requests_are_answered_in_order_over_several_commits() -> None:
    rig = Rig()
    client = rig.client()
    first = [
        client.send(apis.OFFSET_COMMIT, 8, commit(1), NOW),
        client.send(apis.HEARTBEAT, 4, HEARTBEAT, NOW),
    ]
    rig.turn()
    second = [client.send(apis.HEARTBEAT, 4, HEARTBEAT, NOW), client.send(apis.PRODUCE, 9, records(), NOW)]
    second.append(client.send(apis.HEARTBEAT, 4, HEARTBEAT, NOW))
    rig.turn()
    assert taken(client) == []
    rig.synced()
    # What stands before the second commit's first write goes with the first.
    assert taken(client) == first + second[:1]
    rig.synced()
    assert taken(client) == second[1:]


def test_one_commit_is_in_flight_and_what_arrives_goes_with_the_next() -> None:
    rig = Rig()
    client = rig.client()
    client.send(apis.PRODUCE, 9, records(), NOW)
    rig.turn()
    in_flight = rig.ticket
    for _ in range(5):
        client.send(apis.PRODUCE, 9, records(), NOW)
        rig.turn()
    assert rig.ticket is in_flight
    rig.synced()
    assert rig.ticket is not None
    rig.synced()
    assert rig.ticket is None
    assert len(taken(client)) == 6


def test_others_are_not_delayed_by_a_commit() -> None:
    rig = Rig()
    writer, other = rig.client(), rig.client()
    writer.send(apis.PRODUCE, 9, records(), NOW)
    rig.turn()
    sent = other.send(apis.HEARTBEAT, 4, HEARTBEAT, NOW)
    rig.turn()
    assert taken(other) == [sent]
    # Nor does a read wait that shows nothing of what is under way.
    sent = other.send(apis.OFFSET_FETCH, 5, offsets(), NOW)
    rig.turn()
    assert taken(other) == [sent]


@pytest.mark.parametrize("in_flight", [False, True], ids=["appended", "in flight"])
def test_reads_wait_for_what_they_show(in_flight: bool) -> None:
    """Of another client's writes that are not durable yet, whether they are being synced or not even written."""
    rig = Rig()
    writer = rig.client()
    if not in_flight:
        writer.send(apis.PRODUCE, 9, records(), NOW)
        rig.turn()
    writer.send(apis.OFFSET_COMMIT, 8, commit(7), NOW)
    writer.send(apis.METADATA, 8, MetadataRequest([MetadataRequestTopic(name="new")], True), NOW)
    if in_flight:
        rig.turn()
    group = OffsetFetchRequestGroup("g", topics=[OffsetFetchRequestTopics("t", partition_indexes=[0])])
    asked: list[tuple[int, int, Any]] = [
        (apis.OFFSET_FETCH, 5, offsets()),
        (apis.OFFSET_FETCH, 8, OffsetFetchRequest(groups=[group, OffsetFetchRequestGroup("h", topics=None)])),
        (apis.LIST_GROUPS, 4, ListGroupsRequest()),
        (apis.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(["g"])),
        (apis.METADATA, 8, MetadataRequest(None)),
        (apis.METADATA, 8, MetadataRequest([MetadataRequestTopic(name="new")], False)),
        (apis.CREATE_TOPICS, 5, topics("new")),
    ]
    readers = []
    for api_key, version, message in asked:
        reader = rig.client()
        readers.append((reader, reader.send(api_key, version, message, NOW)))
    rig.turn()
    assert [taken(reader) for reader, _ in readers] == [[]] * len(asked)
    rig.synced()
    if not in_flight:
        rig.synced()
    assert [taken(reader) for reader, _ in readers] == [[sent] for _, sent in readers]


def test_a_deleted_group_is_gone_only_when_that_is_durable() -> None:
    rig = Rig()
    client, reader = rig.client(), rig.client()
    client.ask(apis.OFFSET_COMMIT, 8, commit(7), NOW)
    client.send(apis.DELETE_GROUPS, 2, DeleteGroupsRequest(["g"]), NOW)
    rig.turn()
    reader.send(apis.OFFSET_FETCH, 5, offsets(), NOW)
    reader.send(apis.LIST_GROUPS, 4, ListGroupsRequest(), NOW)
    rig.turn()
    assert taken(reader) == []
    rig.synced()
    assert len(taken(reader)) == 2


def test_records_and_ends_of_logs_show_once_they_are_durable() -> None:
    rig = Rig()
    writer, reader = rig.client(), rig.client()
    writer.send(apis.PRODUCE, 9, records(), NOW)
    rig.turn()

    def end() -> int:
        partitions = [ListOffsetsPartition(0, timestamp=-1)]
        reader.send(apis.LIST_OFFSETS, 5, ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", partitions)]), NOW)
        rig.turn()
        ((_, rest),) = read_answers(take_output(reader.session))
        return int(decode_answer(apis.LIST_OFFSETS, 5, rest).topics[0].partitions[0].offset)

    def read() -> bytes | None:
        reader.send(apis.FETCH, 11, fetch(), NOW)
        rig.turn()
        ((_, rest),) = read_answers(take_output(reader.session))
        data: bytes | None = decode_answer(apis.FETCH, 11, rest).responses[0].partitions[0].records
        return data

    assert (end(), read()) == (0, b"")
    rig.synced()
    assert end() == 1
    assert read()


def test_a_repeated_batch_is_not_acknowledged_before_the_first_copy() -> None:
    rig = Rig()
    first, second = rig.client(), rig.client()
    batch: dict[str, Any] = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
    first.send(apis.PRODUCE, 9, records(**batch), NOW)
    second.send(apis.PRODUCE, 9, records(**batch), NOW)
    rig.turn()
    third = rig.client()
    third.send(apis.PRODUCE, 9, records(**batch), NOW)
    rig.turn()
    assert taken(first) + taken(second) + taken(third) == []
    rig.synced()
    assert [len(taken(c)) for c in (first, second, third)] == [1, 1, 1]


def test_producer_ids_wait_for_the_block_they_come_from() -> None:
    rig = Rig()
    first, second = rig.client(), rig.client()
    first.send(apis.INIT_PRODUCER_ID, 1, InitProducerIdRequest(None, 0), NOW)
    rig.turn()
    second.send(apis.INIT_PRODUCER_ID, 1, InitProducerIdRequest(None, 0), NOW)
    rig.turn()
    assert taken(first) + taken(second) == []
    rig.synced()
    assert [len(taken(c)) for c in (first, second)] == [1, 1]


def test_a_follower_gets_its_assignment_once_the_generation_is_durable() -> None:
    rig = Rig()
    leader, follower = rig.client(), rig.client()
    leader.send(apis.JOIN_GROUP, 3, join(), NOW)
    follower.send(apis.JOIN_GROUP, 3, join(), NOW)
    rig.fire()
    answers = [
        decode_answer(apis.JOIN_GROUP, 3, read_answers(take_output(c.session))[0][1]) for c in (leader, follower)
    ]
    if answers[0].leader != answers[0].member_id:
        answers.reverse()
        leader, follower = follower, leader
    ids = [a.member_id for a in answers]
    given = [SyncGroupRequestAssignment(member_id, b"part") for member_id in ids]
    leader.send(apis.SYNC_GROUP, 3, SyncGroupRequest("g", 1, ids[0], None, None, None, given), NOW)
    rig.turn()
    follower.send(apis.SYNC_GROUP, 3, SyncGroupRequest("g", 1, ids[1], None, None, None, []), NOW)
    beat = follower.send(apis.HEARTBEAT, 3, HeartbeatRequest("g", 1, ids[1]), NOW)
    rig.turn()
    assert taken(leader) + taken(follower) == []
    rig.synced()
    assert len(taken(leader)) == 1
    assert taken(follower)[-1] == beat


def test_a_parked_join_holds_back_its_own_connection_only() -> None:
    rig = Rig()
    joiner, other = rig.client(), rig.client()
    sent = [joiner.send(apis.JOIN_GROUP, 3, join(), NOW)]
    sent += [
        joiner.send(apis.HEARTBEAT, 4, HEARTBEAT, NOW),
        joiner.send(apis.OFFSET_COMMIT, 8, commit(3), NOW),
    ]
    rig.turn()
    beat = other.send(apis.HEARTBEAT, 4, HEARTBEAT, NOW)
    rig.turn()
    assert (taken(joiner), taken(other)) == ([], [beat])
    assert len(joiner.session.backlog) == 2
    rig.engine.fire_timers(NOW)
    finish_turn(rig.engine, NOW)
    while rig.ticket is not None:
        rig.synced()
    assert taken(joiner) == sent
    assert not joiner.session.backlog
    assert not joiner.session.backlog_bytes


def test_frames_that_arrive_while_older_ones_wait_stay_after_them() -> None:
    engine = open_memory_engine(NOW)
    client, producer = Client(engine), Client(engine)
    producer.ask(apis.CREATE_TOPICS, 5, topics("t"), NOW)
    sent = [
        client.send(apis.FETCH, 11, fetch(0, 1000), NOW),
        client.send(apis.FETCH, 11, fetch(1, 1000), NOW),
    ]
    sent += [client.send(apis.HEARTBEAT, 4, HEARTBEAT, NOW) for _ in range(3)]
    finish_turn(engine, NOW)
    producer.send(apis.PRODUCE, 9, records(), NOW)
    finish_turn(engine, NOW)
    assert taken(client) == sent[:1]
    sent.append(client.send(apis.HEARTBEAT, 4, HEARTBEAT, NOW))
    producer.send(apis.PRODUCE, 9, records(), NOW)
    finish_turn(engine, NOW)
    assert taken(client) == sent[1:]


def test_a_poll_ends_at_its_time_and_when_its_topic_goes() -> None:
    rig = Rig()
    waiting, doomed, admin = rig.client(), rig.client(), rig.client()
    admin.ask(apis.CREATE_TOPICS, 5, topics("gone"), NOW)
    sent = waiting.send(apis.FETCH, 11, fetch(0, 500), NOW)
    lost = doomed.send(apis.FETCH, 11, fetch(0, 500, "gone"), NOW)
    rig.turn()
    assert rig.engine.next_deadline_ms() <= NOW.mono_ms + 500
    admin.send(apis.DELETE_TOPICS, 3, DeleteTopicsRequest(topic_names=["gone"]), NOW)
    rig.turn()
    ((got, rest),) = read_answers(take_output(doomed.session))
    assert got == lost
    answer = decode_answer(apis.FETCH, 11, rest)
    assert answer.responses[0].partitions[0].error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    rig.engine.fire_timers(later(500))
    rig.turn(later(500))
    assert taken(waiting) == [sent]
    assert not rig.engine.applier.parked


def test_many_held_back_frames_stop_the_reading_until_they_are_handled() -> None:
    engine = open_memory_engine(NOW)
    client, producer = Client(engine), Client(engine)
    producer.ask(apis.CREATE_TOPICS, 5, topics("t"), NOW)
    client.send(apis.FETCH, 11, fetch(0, 1000), NOW)
    beat = request_frame(apis.HEARTBEAT, 4, HEARTBEAT)
    engine.receive(client.session, beat * 1001, NOW)
    assert client.session.paused
    producer.send(apis.PRODUCE, 9, records(), NOW)
    engine.end_turn(NOW)
    # It must be among those that the server looks at again.
    assert client.session in engine.take_ready()
    assert not client.session.paused
    assert len(taken(client)) == 1002


def test_a_connection_that_closes_takes_its_parked_request_along() -> None:
    rig = Rig()
    joiner, poller = rig.client(), rig.client()
    joiner.send(apis.JOIN_GROUP, 3, join(), NOW)
    joiner.send(apis.OFFSET_COMMIT, 8, commit(3), NOW)
    poller.send(apis.FETCH, 11, fetch(0, 1000), NOW)
    for client in (joiner, poller):
        rig.engine.close_session(client.session, NOW)
        rig.engine.close_session(client.session, NOW)
    assert not rig.engine.applier.parked
    assert not {joiner.session.id, poller.session.id} & rig.engine.sessions.keys()
    rig.engine.fire_timers(later(1000))
    finish_turn(rig.engine, later(1000))
    assert (taken(joiner), taken(poller)) == ([], [])
    # What it had held back was never handled.
    answer = rig.client().ask(apis.OFFSET_FETCH, 5, offsets(), later(1000))
    assert answer.topics[0].partitions[0].committed_offset == -1


def test_a_connection_that_closes_while_its_commit_is_in_flight() -> None:
    rig = Rig()
    client = rig.client()
    client.send(apis.OFFSET_COMMIT, 8, commit(3), NOW)
    rig.turn()
    rig.engine.close_session(client.session, NOW)
    rig.synced()
    assert client.session not in rig.engine.take_ready()
    answer = rig.client().ask(apis.OFFSET_FETCH, 5, offsets(), NOW)
    assert answer.topics[0].partitions[0].committed_offset == 3


def test_what_was_asked_before_garbage_is_answered_before_the_end() -> None:
    rig = Rig()
    client = rig.client()
    sent = client.send(apis.OFFSET_COMMIT, 8, commit(3), NOW)
    rig.engine.receive(client.session, b"GET / HTTP/1.1\r\n\r\n", NOW)
    assert "HTTP" in client.session.close_reason
    rig.engine.receive(client.session, request_frame(apis.HEARTBEAT, 4, HEARTBEAT), NOW)
    rig.turn()
    rig.engine.take_ready()
    assert client.session.chunks, "it may not be closed yet"
    rig.synced()
    assert client.session in rig.engine.take_ready()
    assert taken(client) == [sent]


@pytest.mark.parametrize("frame", [b"\x7f\xff\0\0\0\0\0\1\0\0", b"\0\x0c\0\x63\0\0\0\1\0\0"], ids=["api", "version"])
def test_unknown_apis_and_versions_close_the_connection(frame: bytes) -> None:
    engine = open_memory_engine(NOW)
    client = Client(engine)
    engine.receive(client.session, len(frame).to_bytes(4, "big") + frame, NOW)
    engine.end_turn(NOW)
    assert engine.take_ready() == [client.session]
    assert client.session.close_reason
    assert taken(client) == []
    assert [(fact.event, fact.kind) for fact in engine.take_facts()][-1:] == [("connection_refused", PEER)]


def test_a_frame_that_is_too_large_is_a_matter_of_limits() -> None:
    engine = open_memory_engine(NOW)
    client = Client(engine)
    engine.receive(client.session, b"\x7f\xff\xff\xff\0\x0c\0\4\0\0\0\1\0\0", NOW)
    engine.end_turn(NOW)
    assert "at most" in client.session.close_reason
    assert [(fact.event, fact.kind) for fact in engine.take_facts()][-1:] == [("connection_refused", LIMIT)]


def test_api_versions_of_an_unknown_version_is_answered_in_the_oldest() -> None:
    engine = open_memory_engine(NOW)
    client = Client(engine)
    frame = b"\0\x12\0\x63\0\0\0\x05\0\0" + b"whatever"
    engine.receive(client.session, len(frame).to_bytes(4, "big") + frame, NOW)
    finish_turn(engine, NOW)
    ((correlation_id, rest),) = read_answers(take_output(client.session))
    assert correlation_id == 5
    answer = decode_answer(apis.API_VERSIONS, 0, rest)
    assert answer.error_code == errors.UNSUPPORTED_VERSION
    assert [k.max_version for k in answer.api_keys if k.api_key == apis.API_VERSIONS] == [
        apis.APIS[apis.API_VERSIONS].max_version
    ]
    assert not client.session.close_reason
    assert client.ask(apis.API_VERSIONS, 3, ApiVersionsRequest("x", "1"), NOW).error_code == 0


def test_an_api_that_is_not_served_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_memory_engine(NOW)
    client = Client(engine)
    listed = client.ask(apis.API_VERSIONS, 4, ApiVersionsRequest("x", "1"), NOW).api_keys
    # Those of ours are served and not listed.
    assert [k.api_key for k in listed] == sorted(
        key for key, api in apis.APIS.items() if api.served and key < PRIVATE_KEY_MIN
    )
    assert sorted(key for key in apis.APIS if key >= PRIVATE_KEY_MIN) == [10000, 10001]
    monkeypatch.setattr(apis.APIS[apis.HEARTBEAT], "served", False)
    listed = client.ask(apis.API_VERSIONS, 4, ApiVersionsRequest("x", "1"), NOW).api_keys
    assert apis.HEARTBEAT not in [k.api_key for k in listed]
    client.send(apis.HEARTBEAT, 4, HEARTBEAT, NOW)
    finish_turn(engine, NOW)
    assert client.session.close_reason == "unknown api key 12"


def test_acks_0_is_never_answered_and_ends_the_connection_on_an_error() -> None:
    rig = Rig()
    client = rig.client()
    client.send(apis.PRODUCE, 9, records(acks=0), NOW)
    beat = client.send(apis.HEARTBEAT, 4, HEARTBEAT, NOW)
    rig.turn()
    rig.synced()
    assert taken(client) == [beat]
    client.send(apis.PRODUCE, 9, records("no such topic", acks=0), NOW)
    rig.turn()
    assert taken(client) == []
    assert client.session.close_reason


def test_a_full_disk_refuses_writes_and_nothing_else() -> None:
    rig = Rig()
    client = rig.client()
    client.ask(apis.OFFSET_COMMIT, 8, commit(3), NOW)
    rig.engine.set_disk_full(True)
    answer = client.ask(apis.PRODUCE, 9, records(), NOW)
    assert answer.responses[0].partition_responses[0].error_code == errors.KAFKA_STORAGE_ERROR
    answer = client.ask(apis.OFFSET_COMMIT, 8, commit(4), NOW)
    assert answer.topics[0].partitions[0].error_code == errors.KAFKA_STORAGE_ERROR
    assert client.ask(apis.HEARTBEAT, 4, HEARTBEAT, NOW).error_code == errors.UNKNOWN_MEMBER_ID
    assert client.ask(apis.OFFSET_FETCH, 5, offsets(), NOW).topics[0].partitions[0].committed_offset == 3
    rig.engine.set_disk_full(False)
    assert client.ask(apis.OFFSET_COMMIT, 8, commit(4), NOW).topics[0].partitions[0].error_code == 0
    events = [fact.event for fact in rig.engine.take_facts()]
    assert [e for e in events if e.startswith("disk")] == ["disk_full", "disk_has_space"]


def test_a_failed_sync_is_never_answered_for() -> None:
    rig = Rig()
    client = rig.client()
    client.send(apis.PRODUCE, 9, records(), NOW)
    rig.turn()
    client.send(apis.PRODUCE, 9, records(), NOW)
    rig.engine.journal.fail(OSError(5, "the disk is gone"))
    assert rig.ticket is not None
    with pytest.raises(JournalFailed):
        rig.engine.commit_done(rig.ticket, NOW)
    with pytest.raises(LogError):
        client.send(apis.PRODUCE, 9, records(), NOW)
    assert taken(client) == []


def test_an_internal_error_closes_the_connection_of_the_request() -> None:
    engine = open_memory_engine(NOW)
    engine.outbox.strict = False
    bad, good = Client(engine), Client(engine)
    # No handler of the core knows what to do with a body that is none.
    engine.core.groups.groups["nobody"] = None  # type: ignore[assignment]
    sent = bad.send(apis.LIST_GROUPS, 4, ListGroupsRequest(), NOW)
    beat = good.send(apis.API_VERSIONS, 3, ApiVersionsRequest("x", "1"), NOW)
    engine.end_turn(NOW)
    assert taken(good) == [beat]
    assert sent not in taken(bad)
    assert "internal error" in bad.session.close_reason
    (fact,) = [fact for fact in engine.take_facts() if fact.kind]
    assert (fact.level, fact.event, fact.kind) == (ERROR, "internal_error", BUG)
    assert fact.fields["client"] == "127.0.0.1" and "Traceback" in str(fact.fields["traceback"])


def test_an_answer_that_cannot_be_released_costs_its_connection() -> None:
    engine = open_memory_engine(NOW)
    engine.outbox.strict = False
    bad, good = Client(engine), Client(engine)
    bad.send(apis.API_VERSIONS, 3, ApiVersionsRequest("x", "1"), NOW)
    bad.session.chunks.append(None)  # type: ignore[arg-type]
    beat = good.send(apis.API_VERSIONS, 3, ApiVersionsRequest("x", "1"), NOW)
    engine.end_turn(NOW)
    assert taken(good) == [beat]
    assert "internal error in releasing answers" in bad.session.close_reason
    assert bad.session.chunks == [], "no answer goes out after a gap"
    assert bad.session in engine.take_ready(), "the server closes it"


@pytest.mark.parametrize("logs", [1, 3])
def test_everything_is_there_again_after_a_restart(logs: int) -> None:
    config = CoreConfig()
    config.offsets_topic_num_partitions = logs
    rig = Rig(config)
    client = rig.client()
    groups = [f"group-{number}" for number in range(20)]
    for number, group in enumerate(groups):
        client.send(apis.OFFSET_COMMIT, 8, commit(number, group), NOW)
    client.send(apis.DELETE_GROUPS, 2, DeleteGroupsRequest(groups[10:]), NOW)
    batch: dict[str, Any] = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
    client.send(apis.PRODUCE, 9, records(**batch), NOW)
    finish_turn(rig.engine, NOW)
    # Neither of these is durable: the power goes before.
    client.send(apis.OFFSET_COMMIT, 8, commit(99, groups[0]), NOW)
    client.send(apis.CREATE_TOPICS, 5, topics("half", partitions=3), NOW)
    rig.turn()
    digest_config = CoreConfig()
    digest_config.offsets_topic_num_partitions = logs
    engine = open_engine(rig.storage.crash(), NOW, random.Random(4), config=digest_config)
    client = Client(engine)
    listed = client.ask(apis.LIST_GROUPS, 4, ListGroupsRequest(), NOW).groups
    assert sorted(g.group_id for g in listed) == sorted(groups[:10])
    for number, group in enumerate(groups[:10]):
        answer = client.ask(apis.OFFSET_FETCH, 5, offsets(group), NOW)
        assert answer.topics[0].partitions[0].committed_offset == number
    # An idempotent producer that never heard of its answer tries again, and gets the offsets of the first time.
    answer = client.ask(apis.PRODUCE, 9, records(**batch), NOW)
    result = answer.responses[0].partition_responses[0]
    assert (result.error_code, result.base_offset) == (0, 0)
    assert client.ask(apis.CREATE_TOPICS, 5, topics("half"), NOW).topics[0].error_code == 0
