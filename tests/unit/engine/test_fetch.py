"""Fetch: what is read, how much of it, and when a fetch waits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord.protocol.errors import (
    FENCED_LEADER_EPOCH,
    INCONSISTENT_TOPIC_ID,
    KAFKA_STORAGE_ERROR,
    NONE,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kcoord.protocol.fetch import FetchResponse, FetchTopic, ReplicaState
from tests.harness.batches import batch
from tests.harness.log_start import advance_log_start
from tests.harness.record_batches import parse_batches
from tests.unit.engine.plane import Plane, answer_due, answered, offsets, topic_id, values


@pytest.fixture
def plane() -> Plane:
    plane = Plane()
    plane.create("t", 3)
    return plane


def test_what_was_produced_is_fetched_with_its_offsets(plane: Plane) -> None:
    plane.put("t", batch([b"a", b"b"]))
    plane.put("t", batch([b"c"]))
    data = plane.fetch("t", 0)
    assert data.error_code == NONE
    assert values(data.records) == [b"a", b"b", b"c"]
    assert offsets(data.records) == [0, 1, 2]
    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (3, 3, 0)
    # Leader epoch 0 is filled in where the producer left -1 or anything else.
    assert data.records is not None
    assert [h.leader_epoch for h in parse_batches(data.records)] == [0, 0]


def test_a_fetch_inside_a_batch_gives_the_whole_batch(plane: Plane) -> None:
    plane.put("t", batch([b"a", b"b", b"c"]))
    plane.put("t", batch([b"d"]))
    assert offsets(plane.fetch("t", 1).records) == [0, 1, 2, 3]
    assert offsets(plane.fetch("t", 3).records) == [3]


def test_only_durable_records_are_shown(plane: Plane) -> None:
    plane.put("t", batch([b"a"]))
    plane.produce("t", batch([b"b"]))
    data = plane.fetch("t", 0)
    assert values(data.records) == [b"a"]
    assert data.high_watermark == 1
    # Beyond the high watermark but not beyond the end: nothing, and no error.
    beyond = plane.fetch("t", 2)
    assert (beyond.error_code, beyond.records) == (NONE, b"")
    plane.commit()
    assert values(plane.fetch("t", 0).records) == [b"a", b"b"]


def test_offsets_out_of_range(plane: Plane) -> None:
    plane.put("t", batch([b"a"]))
    for offset in (-1, 2, 1 << 60):
        data = plane.fetch("t", offset)
        assert data.error_code == OFFSET_OUT_OF_RANGE
        assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (-1, -1, -1)
        assert data.records == b""
    assert plane.fetch("t", 1).error_code == NONE


def test_unknown_topics_and_partitions(plane: Plane) -> None:
    response = plane.fetch_all(("t", 3, 0), ("nowhere", 0, 0), ("t", 0, 0), ("t", -1, 0))
    # What could be read stands first.
    assert answered(response) == [
        ("t", 0, NONE),
        ("t", 3, UNKNOWN_TOPIC_OR_PARTITION),
        ("nowhere", 0, UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, UNKNOWN_TOPIC_OR_PARTITION),
    ]
    unknown = response.responses[1].partitions[0]
    assert (unknown.high_watermark, unknown.log_start_offset, unknown.records) == (-1, -1, b"")


def test_topic_ids(plane: Plane) -> None:
    plane.put("t", batch([b"a"]))
    assert values(plane.fetch("t", 0, version=13).records) == [b"a"]
    body = plane.fetch_body(("t", 0, 0), version=13)
    body.topics[0].topic_id = topic_id(99)
    _, response = plane.send_fetch(body, 13)
    assert response is not None
    assert response.responses[0].topic_id == topic_id(99)
    assert response.responses[0].partitions[0].error_code == UNKNOWN_TOPIC_ID


def test_isolation_levels(plane: Plane) -> None:
    plane.put("t", batch([b"a"]))
    assert plane.fetch("t", 0).aborted_transactions is None
    committed = plane.fetch("t", 0, isolation_level=1)
    assert committed.aborted_transactions == []
    assert values(committed.records) == [b"a"]


def test_leader_epochs(plane: Plane) -> None:
    plane.put("t", batch([b"a"]))
    for epoch, error in ((0, NONE), (1, UNKNOWN_LEADER_EPOCH), (-1, NONE), (-7, FENCED_LEADER_EPOCH)):
        body = plane.fetch_body(("t", 0, 0), version=16)
        body.topics[0].partitions[0].current_leader_epoch = epoch
        _, response = plane.send_fetch(body, 16)
        assert response is not None
        data = response.responses[0].partitions[0]
        assert data.error_code == error
        if error == FENCED_LEADER_EPOCH:
            assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (1, 0)
            assert [(e.node_id, e.host, e.port) for e in response.node_endpoints] == [(1, "localhost", 9092)]
        else:
            assert data.current_leader.leader_id == -1
            assert response.node_endpoints == []


def test_last_fetched_epoch(plane: Plane) -> None:
    plane.put("t", batch([b"a", b"b"]))
    expected = {(0, 1): (NONE, -1), (0, 5): (NONE, 2), (7, 1): (OFFSET_OUT_OF_RANGE, -1)}
    for (epoch, offset), (error, diverging) in expected.items():
        body = plane.fetch_body(("t", 0, offset), version=12, max_wait_ms=1000, min_bytes=1 << 20)
        body.topics[0].partitions[0].last_fetched_epoch = epoch
        _, response = plane.send_fetch(body, 12)
        if (error, diverging) == (NONE, -1):
            assert response is None
            continue
        assert response is not None
        data = response.responses[0].partitions[0]
        assert data.error_code == error
        assert data.diverging_epoch.end_offset == diverging
        assert data.records == b""


def test_replicas_are_refused(plane: Plane) -> None:
    plane.put("t", batch([b"a"]))
    assert plane.fetch("t", 0, version=14, replica_id=1).error_code == TOPIC_AUTHORIZATION_FAILED
    body = plane.fetch_body(("t", 0, 0), version=15)
    body.replica_state = ReplicaState(1, -1)
    _, response = plane.send_fetch(body, 15)
    assert response is not None
    assert response.responses[0].partitions[0].error_code == TOPIC_AUTHORIZATION_FAILED
    # In versions without the field it has no meaning.
    assert plane.fetch("t", 0, version=15, replica_id=1).error_code == NONE


def test_a_topic_of_zstd_is_for_old_consumers_as_well(plane: Plane) -> None:
    # Brokers before 4.0 refused it: they also converted records for old consumers, and could not convert these.
    plane.create("z", compression_type="zstd")
    plane.put("z", batch([b"a"]))
    for version in (4, 9, 10):
        assert values(plane.fetch("z", 0, version=version).records) == [b"a"]


def test_damaged_files_are_an_error_of_their_partition_and_reported_once() -> None:
    plane = Plane()
    # Nothing is kept in memory, so everything is read from the file.
    plane.directory.config.tail_bytes_max = 0
    plane.create("t", 2)
    for index in (0, 1):
        plane.put("t", batch([b"a"]), index)
    plane.directory.storage.open("t-0/00000000000000000000.log").truncate(0)
    plane.directory.storage.open("t-0/00000000000000000000.log").append(b"\xff" * 69)
    response = plane.fetch_all(("t", 0, 0), ("t", 1, 0))
    assert answered(response) == [("t", 0, KAFKA_STORAGE_ERROR), ("t", 1, NONE)]
    assert values(response.responses[0].partitions[1].records) == [b"a"]
    assert plane.fetch("t", 0, version=5).error_code == NOT_LEADER_OR_FOLLOWER
    facts = plane.table.take_facts()
    assert [fact.event for fact in facts] == ["log_damaged"]
    assert plane.table.take_facts() == []


# Limits.


def test_byte_limits(plane: Plane) -> None:
    sizes = []
    for value in (b"a" * 100, b"b" * 100, b"c" * 100):
        data = batch([value])
        sizes.append(len(data))
        plane.put("t", data)
    one, all_three = sizes[0], sum(sizes)
    assert offsets(plane.fetch("t", 0, partition_max_bytes=all_three).records) == [0, 1, 2]
    assert offsets(plane.fetch("t", 0, partition_max_bytes=all_three - 1).records) == [0, 1]
    assert offsets(plane.fetch("t", 0, max_bytes=2 * one).records) == [0, 1]
    # The first batch is given whole whatever the limits are.
    for limits in ({"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0}, {"max_bytes": -5}):
        assert offsets(plane.fetch("t", 1, **limits).records) == [1]


def test_the_first_batch_rule_holds_once_per_request(plane: Plane) -> None:
    size = len(batch([b"a"]))
    for index in range(3):
        plane.put("t", batch([b"a"]), index)
    three = (("t", 0, 0), ("t", 1, 0), ("t", 2, 0))

    def lengths(response: FetchResponse) -> list[int]:
        return [len(p.records or b"") for topic in response.responses for p in topic.partitions]

    assert lengths(plane.fetch_all(*three, max_bytes=1)) == [size, 0, 0]
    assert lengths(plane.fetch_all(*three, max_bytes=2 * size)) == [size, size, 0]
    assert lengths(plane.fetch_all(*three, partition_max_bytes=1)) == [size, 0, 0]
    assert lengths(plane.fetch_all(("t", 0, 1), ("t", 1, 0), max_bytes=1)) == [0, size]


def test_the_brokers_own_limit() -> None:
    plane = Plane(fetch_max_bytes=100)
    plane.create("t")
    plane.put("t", batch([b"a"]))
    plane.put("t", batch([b"b"]))
    assert offsets(plane.fetch("t", 0).records) == [0]


def test_repeated_partitions_are_answered_once(plane: Plane) -> None:
    plane.put("t", batch([b"a"]))
    response = plane.fetch_all(("t", 0, 0), ("t", 1, 0), ("t", 0, 1))
    assert answered(response) == [("t", 0, NONE), ("t", 1, NONE)]
    assert response.responses[0].partitions[0].records == b""


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    width=st.integers(0, 200),
    max_bytes=st.integers(1, 2000),
    partition_max_bytes=st.integers(1, 2000),
)
def test_whatever_the_limits_everything_is_fetched_once(
    counts: list[int], width: int, max_bytes: int, partition_max_bytes: int
) -> None:
    plane = Plane()
    plane.create("t")
    produced: list[bytes] = []
    for number, count in enumerate(counts):
        texts = [b"%d-%d-" % (number, i) + b"x" * width for i in range(count)]
        produced += texts
        plane.produce("t", batch(texts))
        if number % 3 == 0:
            plane.commit()
    plane.commit()
    fetched: list[bytes | None] = []
    position = 0
    for _ in range(len(counts) + 1):
        data = plane.fetch("t", position, max_bytes=max_bytes, partition_max_bytes=partition_max_bytes)
        assert data.records is not None
        headers = parse_batches(data.records)
        assert len(headers) <= 1 or len(data.records) <= min(max_bytes, partition_max_bytes)
        assert sum(h.size for h in headers) == len(data.records)
        if not data.records:
            break
        found = offsets(data.records)
        assert found[0] == position
        fetched += values(data.records)
        position = found[-1] + 1
    assert fetched == produced
    assert position == plane.partition("t").log.end_offset


# Waiting.


def test_a_fetch_waits_for_bytes(plane: Plane) -> None:
    body = plane.fetch_body(("t", 0, 0), ("t", 1, 0), max_wait_ms=500, min_bytes=1)
    request_id, response = plane.send_fetch(body)
    assert response is None
    plane.produce("t", batch([b"a"]), 1)
    assert plane.replies == {}
    plane.commit()
    answer = plane.replies.pop(request_id)
    assert isinstance(answer, FetchResponse)
    assert [values(p.records) for t in answer.responses for p in t.partitions] == [[], [b"a"]]
    # Its timer comes to nothing later.
    plane.sleep(1000)
    assert plane.replies == {}
    assert not plane.fetch_handler.parked and not plane.fetch_handler.waiters and not plane.fetch_handler.by_connection


def test_a_fetch_waits_no_longer_than_it_asked_for(plane: Plane) -> None:
    body = plane.fetch_body(("t", 0, 0), max_wait_ms=500, min_bytes=1)
    request_id, _ = plane.send_fetch(body)
    plane.sleep(499)
    assert plane.replies == {}
    plane.sleep(1)
    answer = plane.replies[request_id]
    assert isinstance(answer, FetchResponse)
    assert answer.responses[0].partitions[0].records == b""


def test_other_partitions_do_not_wake_a_fetch(plane: Plane) -> None:
    plane.send_fetch(plane.fetch_body(("t", 0, 0), max_wait_ms=500, min_bytes=1))
    plane.put("t", batch([b"a"]), 1)
    assert plane.replies == {}


def test_min_bytes_are_gathered_over_partitions(plane: Plane) -> None:
    size = len(batch([b"a"]))
    plane.put("t", batch([b"a"]))
    body = plane.fetch_body(("t", 0, 0), ("t", 1, 0), max_wait_ms=500, min_bytes=3 * size)
    request_id, response = plane.send_fetch(body)
    assert response is None
    plane.put("t", batch([b"a"]), 1)
    assert plane.replies == {}
    plane.put("t", batch([b"a"]), 0)
    answer = plane.replies[request_id]
    assert isinstance(answer, FetchResponse)
    assert [offsets(p.records) for t in answer.responses for p in t.partitions] == [[0, 1], [0]]


def test_bytes_are_counted_once(plane: Plane) -> None:
    size = len(batch([b"a"]))
    request_id, _ = plane.send_fetch(plane.fetch_body(("t", 0, 0), max_wait_ms=500, min_bytes=3 * size))
    for _ in range(2):
        plane.put("t", batch([b"a"]))
    assert plane.replies == {}
    plane.put("t", batch([b"a"]))
    assert list(plane.replies) == [request_id]


def test_what_comes_during_a_commit_is_announced_with_the_next(plane: Plane) -> None:
    first, _ = plane.send_fetch(plane.fetch_body(("t", 0, 0), max_wait_ms=500, min_bytes=1))
    plane.produce("t", batch([b"a"]))
    ticket = plane.journal.write()
    plane.produce("t", batch([b"b"]))
    assert ticket is not None
    ticket.sync()
    plane.journal.complete(ticket)
    replies = answer_due(plane.fetch_handler, plane.now)
    assert [reply.request_id for reply in replies] == [first]
    answer = replies[0].response
    assert isinstance(answer, FetchResponse)
    assert values(answer.responses[0].partitions[0].records) == [b"a"]
    second, response = plane.send_fetch(plane.fetch_body(("t", 0, 1), max_wait_ms=500, min_bytes=1))
    assert response is None
    plane.commit()
    assert list(plane.replies) == [second]


def test_min_bytes_beyond_the_limit_are_cut_to_it(plane: Plane) -> None:
    size = len(batch([b"a"]))
    plane.put("t", batch([b"a"]))
    body = plane.fetch_body(("t", 0, 0), max_wait_ms=500, min_bytes=1 << 30, max_bytes=size)
    _, response = plane.send_fetch(body)
    assert response is not None


def test_a_partition_that_gave_all_it_can_counts_as_full(plane: Plane) -> None:
    size = len(batch([b"a"]))
    body = plane.fetch_body(("t", 0, 0), max_wait_ms=500, min_bytes=size + 1, partition_max_bytes=size + 1)
    request_id, response = plane.send_fetch(body)
    assert response is None
    plane.put("t", batch([b"a"]))
    plane.put("t", batch([b"a"]))
    answer = plane.replies[request_id]
    assert isinstance(answer, FetchResponse)
    assert offsets(answer.responses[0].partitions[0].records) == [0]


def test_errors_do_not_wait(plane: Plane) -> None:
    body = plane.fetch_body(("t", 0, 0), ("t", 1, 77), max_wait_ms=500, min_bytes=1)
    _, response = plane.send_fetch(body)
    assert response is not None
    assert answered(response) == [("t", 0, NONE), ("t", 1, OFFSET_OUT_OF_RANGE)]


def test_a_fetch_of_nothing_does_not_wait(plane: Plane) -> None:
    for wanted in ((), (("nowhere", 0, 0),)):
        _, response = plane.send_fetch(plane.fetch_body(*wanted, max_wait_ms=500, min_bytes=1))
        assert response is not None


def test_a_deleted_topic_ends_the_wait(plane: Plane) -> None:
    body = plane.fetch_body(("t", 0, 0), max_wait_ms=500, min_bytes=1)
    request_id, _ = plane.send_fetch(body)
    plane.delete("t")
    answer = plane.replies[request_id]
    assert isinstance(answer, FetchResponse)
    assert answered(answer) == [("t", 0, UNKNOWN_TOPIC_OR_PARTITION)]
    assert not plane.fetch_handler.parked and not plane.fetch_handler.waiters


def test_a_closed_connection_waits_for_nothing(plane: Plane) -> None:
    body = plane.fetch_body(("t", 0, 0), max_wait_ms=500, min_bytes=1)
    plane.send_fetch(body, connection_id=4)
    kept, _ = plane.send_fetch(body, connection_id=5)
    plane.fetch_handler.on_disconnect(4)
    plane.fetch_handler.on_disconnect(9)
    plane.put("t", batch([b"a"]))
    assert list(plane.replies) == [kept]


def test_a_fetch_whose_offset_was_deleted_while_it_waited(plane: Plane) -> None:
    plane.put("t", batch([b"a", b"b"]))
    body = plane.fetch_body(("t", 0, 1), max_wait_ms=500, min_bytes=1 << 20)
    request_id, response = plane.send_fetch(body)
    assert response is None
    advance_log_start(plane.directory, plane.partition("t").log, 2)
    plane.put("t", batch([b"c"]))
    plane.sleep(500)
    answer = plane.replies[request_id]
    assert isinstance(answer, FetchResponse)
    assert answered(answer) == [("t", 0, OFFSET_OUT_OF_RANGE)]


def test_a_recreated_topic_is_not_taken_for_the_old_one(plane: Plane) -> None:
    body = plane.fetch_body(("t", 0, 0), version=13, session_epoch=0)
    _, first = plane.send_fetch(body, 13)
    assert first is not None and first.session_id != 0
    plane.delete("t")
    plane.journal.delete_log("t", 0)
    plane.journal.delete_log("t", 1)
    plane.journal.delete_log("t", 2)
    plane.create("t")
    again = plane.fetch_body(version=13, session_id=first.session_id, session_epoch=1)
    _, response = plane.send_fetch(again, 13)
    assert response is not None
    assert response.responses == [only_answer(response, INCONSISTENT_TOPIC_ID)]


def only_answer(response: FetchResponse, error: int) -> object:
    assert [p.error_code for p in response.responses[0].partitions] == [error]
    return response.responses[0]


def test_fetches_carry_topics_in_groups(plane: Plane) -> None:
    plane.create("u", 2)
    body = plane.fetch_body(("t", 0, 0), ("t", 1, 0), ("u", 0, 0))
    body.topics.append(FetchTopic("t", partitions=plane.fetch_body(("t", 2, 0)).topics[0].partitions))
    _, response = plane.send_fetch(body)
    assert response is not None
    assert [(t.topic, [p.partition_index for p in t.partitions]) for t in response.responses] == [
        ("t", [0, 1]),
        ("u", [0]),
        ("t", [2]),
    ]
