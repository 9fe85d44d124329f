"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: where partitions start and end."""

from __future__ import annotations

import functools

import pytest

from kcoord.core.outcome import Now, Request
from kcoord.engine.budget import TURN_COST_MAX
from kcoord.engine.list_offsets import (
    CONTENT_BYTES_PER_COST,
    LOOKUP_CONTENT_BYTES,
    LOOKUPS_AT_ONCE,
    SEARCH_BYTES_MAX,
    SEARCH_BYTES_PER_ADDRESS_MAX,
    SEARCH_DEADLINE_MS,
    ListOffsetsHandler,
    ListOffsetsWork,
    SearchJob,
    SearchRoom,
    repeated_partitions,
)
from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersionsRequest
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kcoord.protocol.delete_topics import DeleteTopicsRequest
from kcoord.protocol.errors import (
    FENCED_LEADER_EPOCH,
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    KAFKA_STORAGE_ERROR,
    NONE,
    OFFSET_OUT_OF_RANGE,
    POLICY_VIOLATION,
    REQUEST_TIMED_OUT,
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_SERVER_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_VERSION,
)
from kcoord.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kcoord.protocol.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.wire.record_batch import BatchBuilder
from kcoord.wire.record_search import RecordSearch
from tests.harness.batches import BASE_TIME_MS, batch
from tests.harness.engine import (
    Client,
    decode_answer,
    finish_turn,
    open_memory_engine,
    read_answers,
    run_jobs,
    take_output,
)
from tests.harness.log_start import advance_log_start
from tests.harness.present import present
from tests.unit.engine.plane import Plane, offsets

NOW = Now(1000, 1_700_000_000_000)


@pytest.fixture
def plane() -> Plane:
    plane = Plane()
    plane.create("t", 2)
    return plane


def list_offset(
    plane: Plane, timestamp: int, version: int = 11, topic: str = "t", partition: int = 0, epoch: int = -1
) -> tuple[int, int, int, int]:
    """(error code, timestamp, offset, leader epoch) for one partition."""
    body = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(topic, [ListOffsetsPartition(partition, epoch, timestamp)])])
    response = present(plane.offsets_handler.handle_list_offsets(plane.request(2, version, body), body, NOW))
    found = response.topics[0].partitions[0]
    return found.error_code, found.timestamp, found.offset, found.leader_epoch


NOTHING = (NONE, -1, -1, -1)


def test_both_ends(plane: Plane) -> None:
    assert list_offset(plane, -1) == (NONE, -1, 0, 0)
    assert list_offset(plane, -2) == (NONE, -1, 0, 0)
    plane.put("t", batch([b"a", b"b"]))
    plane.produce("t", batch([b"c"]))
    # What is not durable yet does not count.
    assert list_offset(plane, -1) == (NONE, -1, 2, 0)
    plane.commit()
    assert list_offset(plane, -1) == (NONE, -1, 3, 0)
    advance_log_start(plane.directory, plane.partition("t").log, 1)
    for earliest in (-2, -4):
        assert list_offset(plane, earliest) == (NONE, -1, 1, 0)
    # Version 3 knows no leader epochs.
    assert list_offset(plane, -1, 3) == (NONE, -1, 3, -1)


def test_offsets_by_time(plane: Plane) -> None:
    plane.put("t", batch([b"a", b"b"]))
    plane.put("t", batch([b"c", b"d"], base_time_ms=BASE_TIME_MS + 10000))
    assert list_offset(plane, 0) == (NONE, BASE_TIME_MS, 0, 0)
    assert list_offset(plane, BASE_TIME_MS + 1) == (NONE, BASE_TIME_MS + 1000, 1, 0)
    assert list_offset(plane, BASE_TIME_MS + 1001) == (NONE, BASE_TIME_MS + 10000, 2, 0)
    assert list_offset(plane, BASE_TIME_MS + 11001) == NOTHING
    assert list_offset(plane, -3) == (NONE, BASE_TIME_MS + 11000, 3, 0)
    assert list_offset(plane, 5, partition=1) == NOTHING
    assert list_offset(plane, -3, partition=1) == NOTHING
    plane.produce("t", batch([b"e"], base_time_ms=BASE_TIME_MS + 60000))
    # Not while it may still be lost.
    assert list_offset(plane, BASE_TIME_MS + 12000) == NOTHING
    ticket = plane.journal.write()
    assert ticket is not None
    assert list_offset(plane, BASE_TIME_MS + 12000) == NOTHING
    assert list_offset(plane, -3) == NOTHING
    ticket.sync()
    plane.journal.complete(ticket)
    assert list_offset(plane, -3) == (NONE, BASE_TIME_MS + 60000, 4, 0)
    assert list_offset(plane, BASE_TIME_MS + 12000) == (NONE, BASE_TIME_MS + 60000, 4, 0)


def test_times_of_later_versions(plane: Plane) -> None:
    refused = (UNSUPPORTED_VERSION, -1, -1, -1)
    for timestamp, version in ((-3, 7), (-4, 8), (-5, 9), (-6, 11)):
        assert list_offset(plane, timestamp, version - 1) == refused
        assert list_offset(plane, timestamp, version)[0] == NONE
    assert list_offset(plane, -7, 11) == refused
    # Nothing is in remote storage.
    assert list_offset(plane, -5) == NOTHING
    assert list_offset(plane, -6) == NOTHING


def test_errors(plane: Plane) -> None:
    unknown = (UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1)
    assert list_offset(plane, -1, topic="nowhere") == unknown
    assert list_offset(plane, -1, partition=2) == unknown
    assert list_offset(plane, -1, partition=-1) == unknown
    assert list_offset(plane, -1, epoch=0) == (NONE, -1, 0, 0)
    assert list_offset(plane, -1, epoch=1) == (UNKNOWN_LEADER_EPOCH, -1, -1, -1)
    assert list_offset(plane, -1, epoch=-2) == (FENCED_LEADER_EPOCH, -1, -1, -1)


def test_repeated_partitions(plane: Plane) -> None:
    ask = [ListOffsetsPartition(0, -1, -1), ListOffsetsPartition(0, -1, -2), ListOffsetsPartition(1, -1, -1)]
    body = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", ask), ListOffsetsTopic("t", ask[:1])])
    response = present(plane.offsets_handler.handle_list_offsets(plane.request(2, 7, body), body, NOW))
    assert [t.name for t in response.topics] == ["t"]
    found = sorted((p.partition_index, p.error_code) for p in response.topics[0].partitions)
    assert found == [(0, INVALID_REQUEST), (1, NONE)]


def epoch_end(
    plane: Plane, epoch: int, current: int = -1, topic: str = "t", partition: int = 0
) -> tuple[int, int, int]:
    """(error code, leader epoch, end offset) for one partition."""
    ask = OffsetForLeaderPartition(partition, current, epoch)
    body = OffsetForLeaderEpochRequest(-2, [OffsetForLeaderTopic(topic, [ask])])
    response = plane.epochs_handler.handle_offset_for_leader_epoch(body)
    found = response.topics[0].partitions[0]
    assert found.partition == partition
    return found.error_code, found.leader_epoch, found.end_offset


def test_epoch_ends(plane: Plane) -> None:
    assert epoch_end(plane, 0) == (NONE, 0, 0)
    plane.put("t", batch([b"a", b"b"]))
    plane.produce("t", batch([b"c"]))
    assert epoch_end(plane, 0) == (NONE, 0, 2)
    assert epoch_end(plane, 0, current=0) == (NONE, 0, 2)
    for never in (-1, 1, 7):
        assert epoch_end(plane, never) == (NONE, -1, -1)
    assert epoch_end(plane, -2) == (NONE, -2, 0)
    assert epoch_end(plane, 0, current=1) == (UNKNOWN_LEADER_EPOCH, -1, -1)
    assert epoch_end(plane, 0, current=-2) == (FENCED_LEADER_EPOCH, -1, -1)
    assert epoch_end(plane, 0, topic="nowhere") == (UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert epoch_end(plane, 0, partition=9) == (UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


def delete(plane: Plane, offset: int, topic: str = "t", partition: int = 0) -> tuple[int, int]:
    """(error code, low watermark) for one partition."""
    body = DeleteRecordsRequest([DeleteRecordsTopic(topic, [DeleteRecordsPartition(partition, offset)])], 5000)
    response = plane.delete_handler.handle_delete_records(body)
    found = response.topics[0].partitions[0]
    assert found.partition_index == partition
    return found.error_code, found.low_watermark


def test_deleting_records(plane: Plane) -> None:
    plane.put("t", batch([b"a", b"b", b"c"]))
    plane.produce("t", batch([b"d"]))
    assert delete(plane, 1) == (NONE, 1)
    assert delete(plane, 0) == (NONE, 1)
    assert plane.fetch("t", 0).error_code == OFFSET_OUT_OF_RANGE
    assert offsets(plane.fetch("t", 1).records) == [0, 1, 2]
    # The fourth record is there but not durable.
    assert delete(plane, 4) == (OFFSET_OUT_OF_RANGE, -1)
    assert delete(plane, -2) == (OFFSET_OUT_OF_RANGE, -1)
    assert delete(plane, -1) == (NONE, 3)
    plane.commit()
    assert delete(plane, -1) == (NONE, 4)
    assert list_offset(plane, -2) == (NONE, -1, 4, 0)
    assert list_offset(plane, BASE_TIME_MS) == NOTHING
    # Offsets go on where they were.
    assert plane.put("t", batch([b"e"])) == 4


def test_records_that_may_not_be_deleted(plane: Plane) -> None:
    assert delete(plane, 0, "nowhere") == (UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete(plane, 0, partition=5) == (UNKNOWN_TOPIC_OR_PARTITION, -1)
    plane.create("__consumer_offsets")
    assert delete(plane, 0, "__consumer_offsets") == (INVALID_TOPIC_EXCEPTION, -1)
    plane.create("c", cleanup_policy="compact")
    assert delete(plane, 0, "c") == (POLICY_VIOLATION, -1)
    plane.configure("c", "cleanup.policy", "compact,delete")
    assert delete(plane, 0, "c") == (NONE, 0)


def test_a_request_for_many_times_takes_several_turns() -> None:
    count = 3 * LOOKUPS_AT_ONCE
    plane = Plane()
    plane.create("t", count)
    for index in range(count):
        plane.put("t", batch([b"a", b"b"]), index)
    wanted = [ListOffsetsPartition(index, -1, BASE_TIME_MS + 1) for index in range(count)]
    body = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", wanted)])
    handler = plane.offsets_handler
    assert handler.handle_list_offsets(plane.request(2, 6, body), body, NOW) is None
    reply = None
    turns = 0
    while reply is None:
        assert handler.has_due()
        reply = handler.answer_next(NOW)
        handler.budget.end_turn()
        turns += 1
    assert turns == 3 and not handler.has_due()
    assert isinstance(reply.response, ListOffsetsResponse)
    found = reply.response.topics[0].partitions
    assert [p.partition_index for p in found] == list(range(count))
    assert {(p.error_code, p.offset) for p in found} == {(NONE, 1)}


def test_who_leaves_is_not_looked_up_for() -> None:
    plane = Plane()
    plane.create("t", 1)
    wanted = [ListOffsetsPartition(index, -1, 0) for index in range(LOOKUPS_AT_ONCE + 1)]
    body = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", wanted)])
    handler = plane.offsets_handler
    for connection_id in (1, 2):
        handler.handle_list_offsets(plane.request(2, 6, body, connection_id), body, NOW)
    handler.on_disconnect(1, NOW)
    assert [work.connection_id for work in handler.waiting] == [2]


def test_an_engine_answers_them_in_order() -> None:
    """Others are served between the turns of a request for many times; its own connection waits."""
    engine = open_memory_engine(NOW)
    slow, other = Client(engine), Client(engine)
    count = 3 * LOOKUPS_AT_ONCE
    slow.ask(apis.CREATE_TOPICS, 7, CreateTopicsRequest([CreatableTopic("t", count, 1)], 1000, False), NOW)
    wanted = [ListOffsetsPartition(index, -1, 0) for index in range(count)]
    first = slow.send(apis.LIST_OFFSETS, 6, ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", wanted)]), NOW)
    second = slow.send(apis.API_VERSIONS, 0, ApiVersionsRequest("", ""), NOW)
    engine.end_turn(NOW)
    assert engine.has_more() and take_output(slow.session) == b""
    other.send(apis.API_VERSIONS, 0, ApiVersionsRequest("", ""), NOW)
    engine.end_turn(NOW)
    assert take_output(other.session) and take_output(slow.session) == b""
    finish_turn(engine, NOW)
    assert [answer[0] for answer in read_answers(take_output(slow.session))] == [first, second]


@functools.cache
def large(codec: int, records: int = 3, size: int = LOOKUP_CONTENT_BYTES, time_ms: int = BASE_TIME_MS) -> bytes:
    """A batch with more in it than a turn looks at. Each record is a second later than the one before."""
    builder = BatchBuilder()
    for index in range(records):
        builder.append(time_ms + 1000 * index, None, bytes(size))
    return builder.build(0, 0, codec=codec)


class Times:
    """An engine whose topic t has the batches, one in each partition, and a client that asks for times of all."""

    def __init__(self, *batches: bytes) -> None:
        self.engine = open_memory_engine(NOW)
        self.client, self.other = Client(self.engine), Client(self.engine)
        self.count = len(batches)
        self.create()
        for index, records in enumerate(batches):
            data = TopicProduceData("t", partition_data=[PartitionProduceData(index, records)])
            self.other.send(apis.PRODUCE, 9, ProduceRequest(None, -1, 1000, [data]), NOW)
            run_jobs(self.engine, NOW)
        take_output(self.other.session)

    def create(self) -> None:
        body = CreateTopicsRequest([CreatableTopic("t", self.count, 1)], 1000, False)
        self.other.ask(apis.CREATE_TOPICS, 7, body, NOW)

    def ask(self, *times: int) -> None:
        wanted = [ListOffsetsPartition(index, -1, time) for index, time in enumerate(times)]
        self.client.send(apis.LIST_OFFSETS, 7, ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", wanted)]), NOW)
        finish_turn(self.engine, NOW)

    def answer(self) -> list[tuple[int, int, int]]:
        """(error code, timestamp, offset) of each partition."""
        ((_, data),) = read_answers(take_output(self.client.session))
        topic = decode_answer(apis.LIST_OFFSETS, 7, data).topics[0]
        return [(p.error_code, p.timestamp, p.offset) for p in topic.partitions]

    @property
    def handler(self) -> ListOffsetsHandler:
        return self.engine.data_plane.list_offsets


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_a_job_looks_into_a_batch_with_much_in_it(codec: int) -> None:
    times = Times(large(codec), batch([b"a", b"b"]), large(codec), large(codec, 1))
    times.ask(BASE_TIME_MS + 1500, BASE_TIME_MS + 1, -3, BASE_TIME_MS + 1)
    assert take_output(times.client.session) == b"" and len(times.engine.applier.jobs_in_flight) == 1
    # Others are served meanwhile.
    times.other.ask(apis.API_VERSIONS, 0, ApiVersionsRequest("", ""), NOW)
    assert len(run_jobs(times.engine, NOW)) >= 2
    assert times.answer() == [
        (NONE, BASE_TIME_MS + 2000, 2), (NONE, BASE_TIME_MS + 1000, 1), (NONE, BASE_TIME_MS + 2000, 2), (NONE, -1, -1),
    ]  # fmt: skip
    assert not times.handler.searching and not times.handler.waiting


def test_what_is_looked_into_counts_in_the_budget() -> None:
    size = 100_000
    times = Times(*[large(4, 1, size, BASE_TIME_MS + index) for index in range(3)])
    before = times.engine.budget.spent
    times.handler.handle_list_offsets(*time_request(3, BASE_TIME_MS), NOW)
    assert times.engine.budget.spent - before >= 3 * size // CONTENT_BYTES_PER_COST
    assert not times.engine.applier.jobs_in_flight


def test_a_request_ends_its_turn_when_it_looked_into_much() -> None:
    size = LOOKUP_CONTENT_BYTES - 10_000
    count = 2 + TURN_COST_MAX * CONTENT_BYTES_PER_COST // size
    times = Times(*[large(4, 1, size, BASE_TIME_MS + index) for index in range(count)])
    request, body = time_request(count, BASE_TIME_MS)
    assert times.handler.handle_list_offsets(request, body, NOW) is None
    (work,) = times.handler.waiting
    assert 0 < work.position < count
    times.engine.budget.end_turn()
    reply = times.handler.answer_next(NOW)
    assert reply is not None and isinstance(reply.response, ListOffsetsResponse)
    assert [p.offset for p in reply.response.topics[0].partitions] == [0] * count


def time_request(count: int, time: int) -> tuple[Request, ListOffsetsRequest]:
    wanted = [ListOffsetsPartition(index, -1, time) for index in range(count)]
    body = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", wanted)])
    return Request(1, 1, apis.LIST_OFFSETS, 7, "", "", body), body


def test_who_leaves_while_a_job_searches() -> None:
    times = Times(large(4))
    times.ask(BASE_TIME_MS + 1500)
    times.engine.close_session(times.client.session, NOW)
    assert not times.handler.searching
    run_jobs(times.engine, NOW)
    assert not times.handler.waiting and not times.engine.has_more()


def test_a_topic_that_is_another_one_once_the_job_is_done() -> None:
    times = Times(large(4))
    times.ask(BASE_TIME_MS + 1500)
    times.other.ask(apis.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["t"]), NOW)
    times.create()
    run_jobs(times.engine, NOW)
    assert times.answer() == [(NONE, -1, -1)]


def test_a_topic_that_was_deleted_before_the_job_is_done() -> None:
    times = Times(large(4))
    times.ask(BASE_TIME_MS + 1500)
    times.other.ask(apis.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["t"]), NOW)
    assert len([key for key in run_jobs(times.engine, NOW) if key.startswith("list-offsets")]) == 1
    assert times.answer() == [(UNKNOWN_TOPIC_OR_PARTITION, -1, -1)]


def test_searches_that_fail() -> None:
    times = Times(large(4), large(4))
    times.ask(BASE_TIME_MS + 1500, BASE_TIME_MS + 1500)
    engine = times.engine
    for is_abandoned in (False, True):
        (job,) = engine.applier.jobs_in_flight.values()
        job.is_abandoned = is_abandoned
        engine.job_done(job, None, "late or broken", NOW)
        finish_turn(engine, NOW)
    assert [code for code, _, _ in times.answer()] == [UNKNOWN_SERVER_ERROR, REQUEST_TIMED_OUT]


def test_records_that_a_search_cannot_read() -> None:
    times = Times(large(4))
    times.ask(BASE_TIME_MS + 1500)
    (job,) = times.engine.applier.jobs_in_flight.values()
    assert isinstance(job, SearchJob)
    job.content_bytes_max = 1000
    assert run_jobs(times.engine, NOW) == [job.key]
    assert [code for code, _, _ in times.answer()] == [KAFKA_STORAGE_ERROR]


def test_a_search_is_not_needed_after_the_end_of_its_connection() -> None:
    times = Times(large(4))
    times.ask(BASE_TIME_MS + 1500)
    (job,) = times.engine.applier.jobs_in_flight.values()
    session = times.client.session
    assert (job.client_host, job.connection_id, job.kind) == (session.member_host, session.id, "list-offsets")
    assert not job.outlives_connection
    times.engine.close_session(session, NOW)
    job.is_abandoned = True
    times.engine.job_done(job, None, "its connection is closed", NOW)
    finish_turn(times.engine, NOW)
    assert times.engine.applier.jobs_in_flight == {} and not times.engine.has_more()


class Crowd:
    """Clients of one address that ask for the same time in a batch of about 1 MB, and one of another address."""

    def __init__(self) -> None:
        self.times = Times(large(0, 4, 250_000))
        self.engine = self.times.engine
        self.room = self.times.handler.room
        self.size = len(large(0, 4, 250_000))
        self.clients = [Client(self.engine, "10.0.0.1") for _ in range(20)]
        self.stranger = Client(self.engine, "10.0.0.2")
        self.host = self.clients[0].session.member_host
        for client in [*self.clients, self.stranger]:
            wanted = [ListOffsetsPartition(0, -1, BASE_TIME_MS + 2500)]
            client.send(apis.LIST_OFFSETS, 7, ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", wanted)]), NOW)
            finish_turn(self.engine, NOW)

    def answered(self) -> list[Client]:
        """The clients that have the right answer by now, in the order of their connections."""
        found = []
        for client in [*self.clients, self.stranger]:
            for _, data in read_answers(take_output(client.session)):
                (one,) = decode_answer(apis.LIST_OFFSETS, 7, data).topics[0].partitions
                assert (one.error_code, one.offset) == (NONE, 3)
                found.append(client)
        return found

    def codes(self) -> list[int]:
        """The errors of the answers that have come."""
        return [
            decode_answer(apis.LIST_OFFSETS, 7, data).topics[0].partitions[0].error_code
            for client in [*self.clients, self.stranger]
            for _, data in read_answers(take_output(client.session))
        ]


def test_searches_of_an_address_have_a_limit_of_memory() -> None:
    crowd = Crowd()
    assert crowd.room.bytes_of[crowd.host] == SEARCH_BYTES_PER_ADDRESS_MAX // crowd.size * crowd.size
    # Others do not wait for them.
    assert crowd.room.bytes_of[crowd.stranger.session.member_host] == crowd.size
    assert len(crowd.room.held[crowd.host]) == 20 - SEARCH_BYTES_PER_ADDRESS_MAX // crowd.size
    while crowd.engine.applier.jobs_in_flight:
        assert crowd.room.bytes <= SEARCH_BYTES_PER_ADDRESS_MAX + crowd.size
        run_jobs(crowd.engine, NOW, next(iter(crowd.engine.applier.jobs_in_flight)))
    assert crowd.answered() == [*crowd.clients, crowd.stranger]
    assert (crowd.room.bytes, crowd.room.counts, crowd.room.bytes_of, crowd.room.held) == (0, {}, {}, {})


def test_searches_of_those_who_leave_make_room() -> None:
    crowd = Crowd()
    searching = {work.connection_id for work in crowd.times.handler.searching.values()}
    stays = crowd.clients[-1]
    for client in crowd.clients[:-1]:
        crowd.engine.close_session(client.session, NOW)
        finish_turn(crowd.engine, NOW)
    assert stays.session.id not in searching and not crowd.room.held
    assert crowd.room.bytes == 2 * crowd.size
    run_jobs(crowd.engine, NOW)
    assert crowd.answered() == [stays, crowd.stranger] and crowd.room.bytes == 0


def test_a_batch_that_is_larger_than_the_limit_is_searched_alone() -> None:
    room = SearchRoom()
    works = [
        ListOffsetsWork(Request(number, number, apis.LIST_OFFSETS, 7, "", "h", ListOffsetsRequest()), 0)
        for number in (1, 2, 3)
    ]
    assert room.take(works[0], SEARCH_BYTES_MAX + 1, NOW)
    assert not room.take(works[1], SEARCH_BYTES_MAX + 1, NOW) and not room.take(works[2], 1, NOW)
    assert room.next_held("h", NOW) is None
    room.free(works[0])
    # The first one to wait is the first one to try again, and keeps its place.
    assert room.next_held("h", NOW) is works[1]
    assert room.take(works[0], 2, NOW) and not room.take(works[1], SEARCH_BYTES_MAX, NOW)
    assert room.next_held("h", NOW) is None
    room.free(works[0])
    assert room.next_held("h", NOW) is works[1]
    assert room.take(works[1], SEARCH_BYTES_MAX, NOW)
    room.free(works[1])
    assert room.next_held("h", NOW) is works[2]
    assert room.take(works[2], 1, NOW)
    room.free(works[2])
    assert (room.bytes, room.counts, room.bytes_of, room.held) == (0, {}, {}, {})


def test_requests_that_waited_for_room_and_need_none_pass_the_turn_on() -> None:
    """The topic is deleted while they wait."""
    crowd = Crowd()
    crowd.times.other.ask(apis.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["t"]), NOW)
    run_jobs(crowd.engine, NOW)
    assert crowd.codes() == [UNKNOWN_TOPIC_OR_PARTITION] * (len(crowd.clients) + 1)
    assert (crowd.room.bytes, crowd.room.held) == (0, {})


def test_requests_leave_while_they_are_about_to_try_again() -> None:
    crowd = Crowd()
    first = crowd.room.held[crowd.host][0].connection_id
    job = next(iter(crowd.engine.applier.jobs_in_flight.values()))
    crowd.engine.job_done(job, job.run(), None, NOW)
    assert first in {work.connection_id for work in crowd.times.handler.waiting}
    (leaver,) = [client for client in crowd.clients if client.session.id == first]
    crowd.engine.close_session(leaver.session, NOW)
    run_jobs(crowd.engine, NOW)
    assert len(crowd.answered()) == len(crowd.clients)
    assert (crowd.room.bytes, crowd.room.held) == (0, {})


def test_waiting_for_room_has_an_end() -> None:
    crowd = Crowd()
    held = len(crowd.room.held[crowd.host])
    late = Now(NOW.mono_ms + SEARCH_DEADLINE_MS, NOW.wall_ms + SEARCH_DEADLINE_MS)
    job = next(iter(crowd.engine.applier.jobs_in_flight.values()))
    crowd.engine.job_done(job, job.run(), None, late)
    finish_turn(crowd.engine, late)
    assert not crowd.room.held
    assert crowd.codes() == [NONE] + [REQUEST_TIMED_OUT] * held
    run_jobs(crowd.engine, late)
    assert len(crowd.answered()) == len(crowd.clients) - held


def test_a_search_goes_in_steps() -> None:
    search = RecordSearch(large(4, 50, 0), BASE_TIME_MS + 45_000, 0)
    assert search.open(1_000_000, 1_000_000)
    steps = 1
    while not search.step(10):
        steps += 1
    assert steps == 5 and search.found == (BASE_TIME_MS + 45_000, 45)


def test_what_is_named_twice_takes_no_longer_the_more_there_is(plane: Plane) -> None:
    """Each repeated partition is refused once; what is looked up for it does not grow with the others."""
    indexes = [*range(20_000)] * 2
    wanted = [ListOffsetsPartition(index, -1, -1) for index in indexes]
    body = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", wanted), ListOffsetsTopic("t", wanted)])
    repeated = repeated_partitions(body)
    assert {name: type(found) for name, found in repeated.items()} == {"t": dict}
    response = present(plane.offsets_handler.handle_list_offsets(plane.request(2, 6, body), body, NOW))
    assert [len(topic.partitions) for topic in response.topics] == [20_000]
    assert {partition.error_code for partition in response.topics[0].partitions} == {INVALID_REQUEST}
