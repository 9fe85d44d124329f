"""Produce requests that take more than a turn: checked in a thread, appended later, to what is there by then."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import Job, Now, Request
from kcoord.engine import produce
from kcoord.engine.engine import Engine
from kcoord.engine.produce import ProduceHandler
from kcoord.engine.produce_work import CHECK_DEADLINE_MS, STEP_ELEMENTS, ProduceWork
from kcoord.protocol import apis, errors
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kcoord.protocol.heartbeat import HeartbeatRequest
from kcoord.protocol.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kcoord.wire.record_batch import BatchBuilder, decode_records, encode_batch, parse_header
from tests.harness.engine import (
    Client,
    decode_answer,
    finish_turn,
    open_memory_engine,
    read_answers,
    run_jobs,
    take_output,
)
from tests.harness.log import batches_of

NOW = Now(1000, 1_700_000_000_000)
LATER = Now(3000, NOW.wall_ms + 2000)
MIB = 1024 * 1024
VERSION = 12


@functools.cache
def many(count: int = produce.TURN_ELEMENTS + 1, **fields: Any) -> bytes:
    """A batch of more records than a turn looks at."""
    builder = BatchBuilder()
    for _ in range(count):
        builder.append(NOW.wall_ms, b"k", b"")
    return builder.build(0, -1, **fields)


@functools.cache
def bomb(size: int = 2 * MIB, codec: int = 4, key: bytes | None = b"k", **fields: Any) -> bytes:
    """A small batch of one record that becomes large."""
    builder = BatchBuilder()
    builder.append(NOW.wall_ms, key, bytes(size))
    return builder.build(0, -1, codec=codec, **fields)


def small(value: bytes = b"v", **fields: Any) -> bytes:
    builder = BatchBuilder()
    builder.append(NOW.wall_ms, b"k", value)
    return builder.build(0, -1, **fields)


def request(*writes: tuple[int, bytes | None], topic: str = "t", acks: int = -1) -> ProduceRequest:
    data = [PartitionProduceData(index, records) for index, records in writes]
    return ProduceRequest(None, acks, 1000, [TopicProduceData(topic, partition_data=data)])


class Rig:
    """An engine with the topic t, whose jobs the test runs, or does not."""

    def __init__(self, partitions: int = 2, config: CoreConfig | None = None) -> None:
        if config is not None:
            config.group_events_enable = False
        self.engine: Engine = open_memory_engine(NOW, config=config)
        self.admin = Client(self.engine)
        self.create("t", partitions)

    def create(self, topic: str, partitions: int = 1) -> None:
        body = CreateTopicsRequest([CreatableTopic(topic, partitions, 1)])
        assert self.admin.ask(apis.CREATE_TOPICS, 5, body, NOW).topics[0].error_code == 0

    def delete(self, topic: str) -> None:
        body = DeleteTopicsRequest([DeleteTopicState(topic)])
        assert self.admin.ask(apis.DELETE_TOPICS, 6, body, NOW).responses[0].error_code == 0

    def configure(self, key: str, value: str) -> None:
        resource = AlterConfigsResource(2, "t", [AlterableConfig(key, 0, value)])
        body = IncrementalAlterConfigsRequest([resource])
        assert self.admin.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, body, NOW).responses[0].error_code == 0

    def send(self, client: Client, body: ProduceRequest, now: Now = NOW) -> int:
        """Send, and end the turn; the correlation id."""
        number = client.send(apis.PRODUCE, VERSION, body, now)
        finish_turn(self.engine, now)
        return number

    def engine_request(self) -> Request:
        return Request(0, 0, apis.PRODUCE, VERSION, "", "", request())

    def job(self) -> Job:
        """The first of the jobs that are not done."""
        return next(iter(self.engine.applier.jobs_in_flight.values()))

    def log(self, partition: int = 0, topic: str = "t") -> Any:
        return self.engine.directory.get(topic, partition)

    def values(self, partition: int = 0) -> list[bytes | None]:
        log = self.log(partition)
        found: list[bytes | None] = []
        for position, data in batches_of(log, 0, log.end_offset):
            header = parse_header(data, position)
            found += [record.value for record in decode_records(data, position, header, 256 * MIB)]
        return found


def answers(client: Client) -> list[tuple[int, ProduceResponse]]:
    found = read_answers(take_output(client.session))
    return [(number, decode_answer(apis.PRODUCE, VERSION, rest)) for number, rest in found]


def codes(client: Client) -> list[int]:
    """Error codes of all partitions in all answers that came."""
    return [
        part.error_code
        for _, response in answers(client)
        for topic in response.responses
        for part in topic.partition_responses
    ]


@pytest.mark.parametrize("records", [many(), bomb(), bomb(codec=1), bomb(codec=2), bomb(codec=3)])
def test_large_checks_are_jobs_and_small_ones_are_not(records: bytes) -> None:
    rig = Rig()
    client = Client(rig.engine)
    rig.send(client, request((0, small())))
    assert not rig.engine.applier.jobs_in_flight and codes(client) == [errors.NONE]
    rig.send(client, request((0, records)))
    assert answers(client) == [] and rig.log().end_offset == 1 and rig.engine.is_checking()
    assert [key.split("-")[0] for key in run_jobs(rig.engine, NOW)] == ["produce"]
    assert codes(client) == [errors.NONE]
    assert rig.log().end_offset == 1 + parse_header(records).count
    assert not rig.engine.is_checking() and rig.engine.data_plane.produce.large_room.bytes_of == {}


def test_requests_of_a_connection_stay_in_order_and_others_do_not_wait() -> None:
    rig = Rig()
    client, other = Client(rig.engine), Client(rig.engine)
    first = rig.send(client, request((0, many(producer_id=5, producer_epoch=0, base_sequence=0))))
    count = produce.TURN_ELEMENTS + 1
    second = rig.send(client, request((0, small(producer_id=5, producer_epoch=0, base_sequence=count))))
    rig.send(other, request((0, small(b"other"))))
    assert codes(other) == [errors.NONE] and rig.log().end_offset == 1
    run_jobs(rig.engine, NOW)
    found = answers(client)
    assert [number for number, _ in found] == [first, second]
    offsets = [r.responses[0].partition_responses[0].base_offset for _, r in found]
    assert offsets == [1, 1 + count]


def test_two_connections_of_a_producer_are_the_producers_affair() -> None:
    rig = Rig()
    one, two = Client(rig.engine), Client(rig.engine)
    rig.send(one, request((0, many(producer_id=5, producer_epoch=0, base_sequence=0))))
    rig.send(two, request((0, small(producer_id=5, producer_epoch=0, base_sequence=7))))
    assert codes(two) == [errors.NONE]
    run_jobs(rig.engine, NOW)
    # The other one was first: sequence 0 does not follow 7.
    assert codes(one) == [errors.OUT_OF_ORDER_SEQUENCE_NUMBER]


def test_a_repeat_while_its_first_copy_is_checked() -> None:
    rig = Rig()
    one, two = Client(rig.engine), Client(rig.engine)
    records = many(producer_id=5, producer_epoch=0, base_sequence=0)
    rig.send(one, request((0, records)))
    rig.send(two, request((0, records)))
    run_jobs(rig.engine, NOW)
    assert codes(one) == codes(two) == [errors.NONE]
    assert rig.log().end_offset == parse_header(records).count


def test_acks_0_gets_no_answer_and_an_error_closes() -> None:
    rig = Rig()
    client = Client(rig.engine)
    rig.send(client, request((0, many()), acks=0))
    after = rig.send(client, request((0, small())))
    run_jobs(rig.engine, NOW)
    assert [number for number, _ in answers(client)] == [after]
    assert rig.log().end_offset == produce.TURN_ELEMENTS + 2
    rig.send(client, request((0, bomb(1)), (1, many(codec=0)[:-1] + b"!"), (0, many()), acks=0))
    run_jobs(rig.engine, NOW)
    assert "without acks" in client.session.close_reason


def test_a_topic_that_is_deleted_meanwhile() -> None:
    rig = Rig()
    client = Client(rig.engine)
    rig.send(client, request((0, many()), (1, small())))
    rig.delete("t")
    run_jobs(rig.engine, NOW)
    assert codes(client) == [errors.UNKNOWN_TOPIC_OR_PARTITION] * 2
    # One of the same name is another topic.
    rig.create("t", 2)
    rig.send(client, request((0, many())))
    rig.delete("t")
    rig.create("t", 2)
    run_jobs(rig.engine, NOW)
    assert codes(client) == [errors.UNKNOWN_TOPIC_OR_PARTITION]
    assert rig.log().end_offset == 0


def test_settings_that_change_meanwhile_count() -> None:
    rig = Rig()
    client = Client(rig.engine)
    rig.send(client, request((0, bomb(key=None)), (1, bomb())))
    first = rig.job()
    rig.configure("cleanup.policy", "compact")
    assert len(run_jobs(rig.engine, NOW)) == 2
    assert rig.engine.applier.jobs_in_flight == {} and first.key
    assert codes(client) == [errors.INVALID_RECORD, errors.NONE]
    # What has nothing to do with checks does not start them again.
    rig.send(client, request((1, bomb())))
    rig.configure("retention.ms", "1000000")
    assert len(run_jobs(rig.engine, NOW)) == 1
    assert codes(client) == [errors.NONE]


def test_log_append_time_is_that_of_the_append() -> None:
    rig = Rig()
    rig.configure("message.timestamp.type", "LogAppendTime")
    client = Client(rig.engine)
    rig.send(client, request((0, many())))
    run_jobs(rig.engine, LATER)
    ((_, response),) = answers(client)
    assert response.responses[0].partition_responses[0].log_append_time_ms == LATER.wall_ms
    ((_, data),) = list(batches_of(rig.log(), 0, rig.log().end_offset))
    assert parse_header(data).max_timestamp == LATER.wall_ms


def test_a_disk_that_is_full_by_then() -> None:
    rig = Rig()
    client = Client(rig.engine)
    rig.send(client, request((0, many()), (5, small())))
    rig.engine.set_disk_full(True)
    run_jobs(rig.engine, NOW)
    assert codes(client) == [errors.KAFKA_STORAGE_ERROR, errors.UNKNOWN_TOPIC_OR_PARTITION]
    assert rig.log().end_offset == 0


def test_the_request_of_a_closed_connection_is_still_written() -> None:
    rig = Rig()
    client = Client(rig.engine)
    rig.send(client, request((0, many())))
    rig.engine.close_session(client.session, NOW)
    run_jobs(rig.engine, NOW)
    assert rig.log().end_offset == produce.TURN_ELEMENTS + 1
    assert rig.engine.applier.parked == {} and not rig.engine.is_checking()


def test_a_job_that_is_dropped_with_its_connection_frees_what_it_holds() -> None:
    rig = Rig()
    client = Client(rig.engine, "10.0.0.1")
    rig.send(client, request((0, many()), (1, small())))
    job = rig.job()
    assert (job.client_host, job.connection_id, job.kind) == ("/10.0.0.1", client.session.id, "produce")
    assert not job.outlives_connection
    rig.engine.close_session(client.session, NOW)
    job.is_abandoned = True
    rig.engine.job_done(job, None, "its connection is closed", NOW)
    finish_turn(rig.engine, NOW)
    produce_handler = rig.engine.data_plane.produce
    assert (produce_handler.waiting, produce_handler.large_room.bytes) == (0, 0) and not produce_handler.ready
    assert not rig.engine.applier.parked and not rig.engine.applier.jobs_in_flight
    assert rig.log().end_offset == rig.log(1).end_offset == 0


def test_what_a_producer_without_acks_sent_is_needed_after_its_end() -> None:
    rig = Rig()
    client = Client(rig.engine)
    rig.send(client, request((0, many()), acks=0))
    assert rig.job().outlives_connection


def test_a_job_that_is_late_and_one_that_fails() -> None:
    rig = Rig()
    client = Client(rig.engine)
    rig.send(client, request((0, many())))
    late = rig.job()
    assert late.deadline_ms == CHECK_DEADLINE_MS
    late.is_abandoned = True
    rig.engine.job_done(late, None, "not done within 30000 ms", NOW)
    finish_turn(rig.engine, NOW)
    assert codes(client) == [errors.REQUEST_TIMED_OUT]
    # What the thread finds out after all changes nothing.
    late.run()
    rig.engine.job_done(late, None, None, NOW)
    finish_turn(rig.engine, NOW)
    assert rig.log().end_offset == 0 and not rig.engine.is_checking()
    rig.send(client, request((0, many())))
    rig.engine.job_done(rig.job(), None, "MemoryError: ", NOW)
    finish_turn(rig.engine, NOW)
    assert codes(client) == [errors.KAFKA_STORAGE_ERROR]


def test_a_request_has_a_budget_for_all_its_bombs() -> None:
    config = CoreConfig()
    config.produce_decompressed_bytes_max = 10 * MIB
    rig = Rig(20, config)
    client = Client(rig.engine)
    rig.send(client, request(*[(index, bomb(MIB)) for index in range(20)]))
    work = rig.job()
    run_jobs(rig.engine, NOW)
    assert codes(client) == [errors.MESSAGE_TOO_LARGE] * 20
    assert all(rig.log(index).end_offset == 0 for index in range(20))
    # Nine were looked at, and the tenth did not fit any more.
    assert work.budget.content_bytes >= 0  # type: ignore[attr-defined]
    rig.send(client, request(*[(index, bomb(MIB)) for index in range(9)]))
    run_jobs(rig.engine, NOW)
    assert codes(client) == [errors.NONE] * 9
    # The same partition over and over is no way around it, nor are blocks without content.
    rig.send(client, request(*[(0, bomb(MIB))] * 20))
    run_jobs(rig.engine, NOW)
    assert codes(client) == [errors.MESSAGE_TOO_LARGE] * 20
    empty = b"\x28\xb5\x2f\xfd\x00\x58" + bytes(3) * 3000 + b"\x01\x00\x00"
    records = encode_batch(0, 0, 4, 0, 0, 0, -1, -1, -1, 1, empty)
    rig.send(client, request((0, records)))
    run_jobs(rig.engine, NOW)
    assert codes(client) == [errors.MESSAGE_TOO_LARGE]


def test_a_job_goes_in_steps() -> None:
    rig = Rig()
    client = Client(rig.engine)
    rig.send(client, request((0, many())))
    job = rig.job()
    steps = 1
    while not job.step():  # type: ignore[attr-defined]
        steps += 1
    assert steps > produce.TURN_ELEMENTS // STEP_ELEMENTS - 4
    rig.engine.job_done(job, None, None, NOW)
    finish_turn(rig.engine, NOW)
    assert codes(client) == [errors.NONE]


def test_a_turn_has_a_budget_for_all_its_requests() -> None:
    rig = Rig()
    clients = [Client(rig.engine) for _ in range(5)]
    half = many(produce.TURN_ELEMENTS // 2 - 100)
    for client in clients:
        client.send(apis.PRODUCE, VERSION, request((0, half)), NOW)
    finish_turn(rig.engine, NOW)
    done = len([client for client in clients if codes(client) == [errors.NONE]])
    assert done == 2 or rig.log().end_offset == done * parse_header(half).count
    run_jobs(rig.engine, NOW)
    assert rig.log().end_offset == 5 * parse_header(half).count


def test_waiting_work_is_bounded_and_continues_later() -> None:
    rig = Rig()
    handler = rig.engine.data_plane.produce
    clients = [Client(rig.engine, f"10.0.0.{number}") for number in range(20)]
    # More headers than a turn passes over, and a large value.
    builder = BatchBuilder()
    builder.append(NOW.wall_ms, b"k", bytes(5 * MIB), [("", None)] * (produce.TURN_ELEMENTS + 1))
    records = builder.build(0, -1)
    rig.configure("max.message.bytes", str(8 * MIB))
    for client in clients:
        rig.send(client, request((0, records)))
    assert handler.is_crowded
    waiting = len(rig.engine.applier.jobs_in_flight)
    assert waiting == handler.waiting == produce.WAITING_BYTES_MAX // len(records) + 1 < len(clients)
    # Others are served, and requests of other kinds.
    other = Client(rig.engine)
    assert other.ask(apis.HEARTBEAT, 3, HeartbeatRequest("g", 1, "m"), NOW).error_code != 0
    while rig.engine.applier.jobs_in_flight:
        # Other tests check what is in them; here it is enough that they are done.
        rig.engine.job_done(rig.job(), None, "MemoryError: ", NOW)
        finish_turn(rig.engine, NOW)
    assert [codes(client) for client in clients] == [[errors.KAFKA_STORAGE_ERROR]] * len(clients)
    assert is_empty(handler)


def test_appends_of_jobs_wait_while_a_commit_is_large() -> None:
    rig = Rig()
    rig.engine.journal.sync_mode = "always"
    rig.engine.commits.bytes_target = 1000
    clients = [Client(rig.engine) for _ in range(3)]
    for client in clients:
        client.send(apis.PRODUCE, VERSION, request((0, many())), NOW)
        rig.engine.end_turn(NOW)
    for job in list(rig.engine.applier.jobs_in_flight.values()):
        rig.engine.job_done(job, job.run(), None, NOW)
    ticket = rig.engine.end_turn(NOW)
    assert ticket is not None
    count = produce.TURN_ELEMENTS + 1
    assert rig.log().end_offset == count
    # While it is synced, one more is appended and the third has to wait.
    assert rig.engine.end_turn(NOW) is None and rig.log().end_offset == 2 * count
    assert rig.engine.end_turn(NOW) is None and rig.log().end_offset == 2 * count
    assert not rig.engine.has_more()
    while ticket is not None:
        ticket.sync()
        rig.engine.commit_done(ticket, NOW)
        ticket = rig.engine.end_turn(NOW)
    finish_turn(rig.engine, NOW)
    assert rig.log().end_offset == 3 * count
    assert [codes(client) for client in clients] == [[errors.NONE]] * 3


def test_very_many_partitions_are_appended_over_several_turns() -> None:
    rig = Rig(2)
    client = Client(rig.engine)
    count = produce.APPENDS_PER_TURN * 2 + 10
    body = request(*[(index % 2, small()) for index in range(count)])
    client.send(apis.PRODUCE, VERSION, body, NOW)
    ends = [rig.log(0).end_offset]
    while rig.engine.is_checking() or rig.engine.has_more():
        run_one_turn(rig.engine)
        ends.append(rig.log(0).end_offset)
    assert len(ends) >= 4 and ends[-1] == count // 2
    assert max(b - a for a, b in itertools.pairwise(ends)) <= produce.APPENDS_PER_TURN // 2 + 1
    finish_turn(rig.engine, NOW)
    assert codes(client) == [errors.NONE] * count


def test_first_writes_to_very_many_partitions_take_several_turns() -> None:
    """Each makes a directory and its files."""
    count = produce.FIRST_APPENDS_PER_TURN * 3 + 10
    rig = Rig(count)
    client = Client(rig.engine)
    client.send(apis.PRODUCE, VERSION, request(*[(index, small()) for index in range(count)]), NOW)

    def written() -> int:
        return sum(rig.log(index).end_offset for index in range(count))

    ends = [written()]
    assert ends == [produce.FIRST_APPENDS_PER_TURN]
    while rig.engine.is_checking() or rig.engine.has_more():
        run_one_turn(rig.engine)
        ends.append(written())
    assert max(b - a for a, b in itertools.pairwise(ends)) <= produce.FIRST_APPENDS_PER_TURN
    assert ends[-1] == count
    finish_turn(rig.engine, NOW)
    assert codes(client) == [errors.NONE] * count


@pytest.mark.parametrize("checked_at_once", [True, False])
def test_very_many_bytes_are_appended_over_several_turns(checked_at_once: bool) -> None:
    rig = Rig(2)
    handler = rig.engine.data_plane.produce
    handler.append_bytes_max = 1000
    client, other, leaver = Client(rig.engine), Client(rig.engine), Client(rig.engine)
    values = [bytes([index]) * 400 for index in range(12)]
    writes = [(index % 2, small(values[index])) for index in range(12)]
    if not checked_at_once:
        writes.append((0, many()))
    client.send(apis.PRODUCE, VERSION, request(*writes), NOW)
    leaver.send(apis.PRODUCE, VERSION, request((1, small(b"x" * 2000)), (1, small(b"left"))), NOW)
    rig.engine.close_session(leaver.session, NOW)
    ends = []
    while rig.engine.is_checking() or rig.engine.has_more():
        ends.append(min(rig.log(0).end_offset, 6) + rig.log(1).end_offset)
        other.send(apis.HEARTBEAT, 3, HeartbeatRequest("g", 1, "m"), NOW)
        run_one_turn(rig.engine)
        rig.engine.take_ready()
        assert take_output(other.session)
    steps = [b - a for a, b in itertools.pairwise(ends) if b > a]
    # A batch has some 470 bytes, and one more goes beyond the bound.
    assert len(steps) >= 3 and max(steps) <= 3
    finish_turn(rig.engine, NOW)
    assert codes(client) == [errors.NONE] * len(writes)
    # What another connection wrote meanwhile is there whole, although it is gone.
    found = rig.values(1)
    assert [value for value in found if value in values] == values[1::2]
    assert [value for value in found if value not in values] == [b"x" * 2000, b"left"]
    assert is_empty(handler)


def test_who_waits_for_a_commit_is_looked_at_when_it_is_written() -> None:
    """Not each turn: while the commit is full, there is nothing to go on with."""
    rig = Rig()
    rig.engine.journal.sync_mode = "always"
    rig.engine.commits.bytes_target = 1000
    clients = [Client(rig.engine) for _ in range(3)]
    for client in clients[:2]:
        client.send(apis.PRODUCE, VERSION, request((0, many())), NOW)
        rig.engine.end_turn(NOW)
    for job in list(rig.engine.applier.jobs_in_flight.values()):
        rig.engine.job_done(job, job.run(), None, NOW)
    ticket = rig.engine.end_turn(NOW)
    assert ticket is not None and rig.engine.end_turn(NOW) is None
    clients[2].send(apis.PRODUCE, VERSION, request((0, small())), NOW)
    handler = rig.engine.data_plane.produce
    handler.ready.append(ProduceWork(rig.engine_request(), -1, None))
    stalled = rig.engine.backlogs.stalled
    assert [session.id for session in stalled] == [clients[2].session.id]
    rig.engine.end_turn(NOW)
    assert rig.engine.backlogs.stalled is stalled and not rig.engine.backlogs.queue
    handler.ready.clear()
    ticket.sync()
    rig.engine.commit_done(ticket, NOW)
    finish_turn(rig.engine, NOW)
    assert codes(clients[2]) == [errors.NONE]


def run_one_turn(engine: Engine) -> None:
    for job in engine.take_jobs():
        engine.job_done(job, job.run(), None, NOW)
    ticket = engine.end_turn(NOW)
    if ticket is not None:
        ticket.sync()
        engine.commit_done(ticket, NOW)


def test_a_bug_in_an_append_costs_its_connection() -> None:
    rig = Rig()
    rig.engine.outbox.strict = False
    client, other = Client(rig.engine), Client(rig.engine)
    rig.send(client, request((0, many())))
    rig.send(other, request((1, many())))
    # Nobody ran it: the request is to be appended without a verdict.
    rig.engine.job_done(rig.job(), None, None, NOW)
    finish_turn(rig.engine, NOW)
    assert "internal error in Produce" in client.session.close_reason
    run_jobs(rig.engine, NOW)
    assert codes(other) == [errors.NONE] and not rig.engine.is_checking()
    assert is_empty(rig.engine.data_plane.produce)


def damaged(rng: random.Random, records: bytes) -> bytes:
    """The batch with a byte of its records changed, under a right checksum."""
    body = bytearray(records[61:])
    body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    h = parse_header(records)
    return encode_batch(
        0, 0, h.attributes, h.last_offset_delta, h.base_timestamp, h.max_timestamp,
        h.producer_id, h.producer_epoch, h.base_sequence, h.count, bytes(body),
    )  # fmt: skip


@given(seed=st.integers(0, 2**32))
@example(seed=609122)
@settings(max_examples=40)
def test_a_job_gives_the_same_answers_as_a_turn(seed: int) -> None:
    rng = random.Random(seed)
    writes: list[tuple[int, bytes | None]] = []
    for _ in range(rng.randint(1, 6)):
        producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": rng.randint(0, 2)}
        records = bomb(
            rng.choice((1, 300, 3000)), rng.randint(0, 4), rng.choice((None, b"k")), **rng.choice(({}, producer))
        )
        if rng.random() < 0.4:
            records = damaged(rng, records)
        writes.append((rng.randint(0, 2), rng.choice((records, records, records, None, records[:-1]))))
    setting = rng.choice((("cleanup.policy", "compact"), ("compression.type", "gzip"), ("max.message.bytes", "500")))
    found = []
    for as_job in (False, True):
        rig = Rig()
        rig.configure(*setting)
        client = Client(rig.engine)
        if as_job:
            handler = rig.engine.data_plane.produce
            handler.turn.elements = handler.small.elements = 0
        rig.send(client, request(*writes))
        # Without `as_job` some requests are large enough for a job, too.
        run_jobs(rig.engine, NOW)
        assert not rig.engine.is_checking()
        parts = [part for _, response in answers(client) for part in response.responses[0].partition_responses]
        assert len(parts) == len(writes)
        facts = [
            (p.index, p.error_code, p.base_offset, p.log_start_offset, p.log_append_time_ms, p.error_message)
            for p in parts
        ]
        errors_of = [[(e.batch_index, e.batch_index_error_message) for e in p.record_errors] for p in parts]
        found.append((facts, errors_of, [rig.values(index) for index in (0, 1)]))
    assert found[0] == found[1]


def is_empty(handler: ProduceHandler) -> bool:
    """Whether no request waits, and nothing is left of those that did."""
    rooms = (handler.small_room, handler.large_room)
    return handler.waiting == 0 and all((room.bytes, room.bytes_of, room.is_full) == (0, {}, False) for room in rooms)


def crowded(count: int) -> tuple[Rig, list[Client], bytes]:
    """So many clients of one address, each with a request of 5 MiB for a thread to check: more than may wait."""
    rig = Rig()
    builder = BatchBuilder()
    builder.append(NOW.wall_ms, b"k", bytes(5 * MIB), [("", None)] * (produce.TURN_ELEMENTS + 1))
    records = builder.build(0, -1)
    rig.configure("max.message.bytes", str(8 * MIB))
    clients = [Client(rig.engine, "10.0.0.1") for _ in range(count)]
    for client in clients:
        rig.send(client, request((0, records)))
    assert rig.engine.data_plane.produce.is_crowded
    return rig, clients, records


def test_small_requests_have_room_beside_large_ones() -> None:
    rig, _, _ = crowded(20)
    handler = rig.engine.data_plane.produce
    other = Client(rig.engine)
    rig.send(other, request((1, small())))
    assert codes(other) == [errors.NONE]
    # Small ones that need a thread have their own limit.
    bombs = [Client(rig.engine) for _ in range(40)]
    waiting = handler.waiting
    for client in bombs:
        rig.send(client, request((1, bomb())))
    assert handler.waiting == waiting + len(bombs) and handler.small_room.bytes > 0
    while rig.engine.applier.jobs_in_flight:
        rig.engine.job_done(rig.job(), None, "MemoryError: ", NOW)
        finish_turn(rig.engine, NOW)
    assert is_empty(handler)


def test_room_goes_to_those_that_waited_for_it() -> None:
    """Clients that send one large request after the other do not keep it among themselves."""
    rig, greedy, records = crowded(20)
    other = Client(rig.engine, "10.0.0.1")
    rig.send(other, request((0, records)))
    for client in greedy * 2:
        client.send(apis.PRODUCE, VERSION, request((0, records)), NOW)
    done = 0
    while not codes(other):
        rig.engine.job_done(rig.job(), None, "MemoryError: ", NOW)
        finish_turn(rig.engine, NOW)
        done += 1
    assert done <= len(greedy) + 1


def test_large_requests_of_one_address_leave_room_for_others() -> None:
    rig, greedy, records = crowded(20)
    handler = rig.engine.data_plane.produce
    assert handler.waiting == produce.WAITING_BYTES_MAX // 2 // len(records) + 1
    other, late = Client(rig.engine, "10.0.0.2"), Client(rig.engine, "10.0.0.2")
    jobs = [*rig.engine.applier.jobs_in_flight]
    rig.send(other, request((1, records)))
    (job,) = [job for key, job in rig.engine.applier.jobs_in_flight.items() if key not in jobs]
    rig.engine.job_done(job, job.run(), None, NOW)
    finish_turn(rig.engine, NOW)
    assert codes(other) == [errors.NONE]
    # Its end gives no room to those that are above their share.
    assert [*rig.engine.applier.jobs_in_flight] == jobs
    rig.send(late, request((1, records)))
    run_jobs(rig.engine, NOW)
    assert codes(late) == [errors.NONE]
    assert [codes(client) for client in greedy] == [[errors.NONE]] * len(greedy)
    assert is_empty(handler)
