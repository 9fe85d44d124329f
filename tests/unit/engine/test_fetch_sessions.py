"""Incremental fetch sessions (KIP-227)."""

from __future__ import annotations

import pytest

from kcoord.engine import fetch_sessions
from kcoord.engine.fetch_sessions import (
    INT32_MAX,
    SESSION_EVICTION_MS,
    FetchItem,
    FetchSessionCache,
    next_epoch,
)
from kcoord.protocol.errors import (
    FETCH_SESSION_ID_NOT_FOUND,
    FETCH_SESSION_TOPIC_ID_ERROR,
    INVALID_FETCH_SESSION_EPOCH,
    NONE,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kcoord.protocol.fetch import FetchResponse, ForgottenTopic
from kcoord.wire.primitives import ZERO_UUID
from tests.harness.batches import batch
from tests.harness.log_start import advance_log_start
from tests.unit.engine.plane import Plane, answered, topic_id, values


@pytest.fixture
def plane() -> Plane:
    plane = Plane()
    plane.create("t", 3)
    return plane


class Consumer:
    """One consumer with a session; each call is one request of it."""

    def __init__(self, plane: Plane, version: int = 11) -> None:
        self.plane = plane
        self.version = version
        self.session_id = 0
        self.epoch = 0

    def fetch(self, *wanted: tuple[str, int, int], forget: list[int] | None = None, **fields: int) -> FetchResponse:
        response = self.send(*wanted, forget=forget, **fields)[1]
        assert response is not None
        return response

    def send(
        self, *wanted: tuple[str, int, int], forget: list[int] | None = None, **fields: int
    ) -> tuple[int, FetchResponse | None]:
        body = self.plane.fetch_body(
            *wanted, version=self.version, session_id=self.session_id, session_epoch=self.epoch, **fields
        )
        if forget is not None:
            topic = ForgottenTopic("t", ZERO_UUID, forget)
            if self.version >= 13:
                topic = ForgottenTopic("", topic_id(1), forget)
            body.forgotten_topics_data = [topic]
        request_id, response = self.plane.send_fetch(body, self.version)
        if response is not None and response.error_code == NONE:
            self.session_id = response.session_id
        self.epoch = next_epoch(self.epoch)
        return request_id, response


@pytest.mark.parametrize("version", [7, 11, 13, 18])
def test_an_incremental_fetch_names_only_what_changed(plane: Plane, version: int) -> None:
    consumer = Consumer(plane, version)
    plane.put("t", batch([b"a"]))
    name = "t"
    first = consumer.fetch(("t", 0, 0), ("t", 1, 0), ("t", 2, 0))
    assert first.session_id > 0
    assert answered(first) == [(name, 0, NONE), (name, 1, NONE), (name, 2, NONE)]
    # Nothing is new for partition 0 at its next offset: its high watermark was told already.
    assert answered(consumer.fetch(("t", 0, 1))) == []
    plane.put("t", batch([b"b"]), 2)
    second = consumer.fetch()
    assert answered(second) == [(name, 2, NONE)]
    assert values(second.responses[0].partitions[0].records) == [b"b"]
    # The consumer has not moved on, so the same data comes again.
    assert answered(consumer.fetch()) == [(name, 2, NONE)]
    assert answered(consumer.fetch(("t", 2, 1))) == []


def test_changed_offsets_are_sent_without_data(plane: Plane) -> None:
    consumer = Consumer(plane)
    plane.put("t", batch([b"a", b"b"]))
    consumer.fetch(("t", 0, 2))
    advance_log_start(plane.directory, plane.partition("t").log, 1)
    response = consumer.fetch()
    assert answered(response) == [("t", 0, NONE)]
    assert response.responses[0].partitions[0].log_start_offset == 1
    assert answered(consumer.fetch()) == []


def test_partitions_with_data_go_to_the_end_of_the_line(plane: Plane) -> None:
    consumer = Consumer(plane)
    consumer.fetch(("t", 0, 0), ("t", 1, 0), ("t", 2, 0))
    for _ in range(2):
        for index in range(3):
            plane.put("t", batch([b"x"]), index)
    # With bytes for one batch only, each gets its turn.
    served = []
    for _ in range(4):
        response = consumer.fetch(max_bytes=1)
        for topic in response.responses:
            served += [p.partition_index for p in topic.partitions if p.records]
    assert served == [0, 1, 2, 0]


def test_forgotten_partitions_are_not_fetched_any_more(plane: Plane) -> None:
    for version in (11, 13):
        consumer = Consumer(plane, version)
        consumer.fetch(("t", 0, 0), ("t", 1, 0))
        consumer.fetch(forget=[0, 2])
        base = plane.put("t", batch([b"a"]), 0)
        plane.put("t", batch([b"b"]), 1)
        assert answered(consumer.fetch(("t", 1, base))) == [("t", 1, NONE)]


def test_a_session_that_forgot_everything_is_closed(plane: Plane) -> None:
    consumer = Consumer(plane)
    consumer.fetch(("t", 0, 0))
    closed = consumer.session_id
    response = consumer.fetch(forget=[0], max_wait_ms=500, min_bytes=1)
    assert (response.session_id, response.responses) == (0, [])
    consumer.session_id = closed
    assert consumer.fetch().error_code == FETCH_SESSION_ID_NOT_FOUND


def test_session_errors(plane: Plane) -> None:
    consumer = Consumer(plane)
    consumer.fetch(("t", 0, 0))
    consumer.epoch = 2
    early = consumer.fetch()
    assert (early.error_code, early.session_id, early.responses) == (INVALID_FETCH_SESSION_EPOCH, 0, [])
    consumer.epoch = 1
    consumer.version = 13
    assert consumer.fetch().error_code == FETCH_SESSION_TOPIC_ID_ERROR
    consumer.version = 11
    consumer.epoch = 1
    assert consumer.fetch().error_code == NONE
    consumer.session_id += 1
    assert consumer.fetch().error_code == FETCH_SESSION_ID_NOT_FOUND
    consumer.session_id = 0
    assert consumer.fetch().error_code == FETCH_SESSION_ID_NOT_FOUND


def test_a_full_fetch_closes_the_session_it_names(plane: Plane) -> None:
    consumer = Consumer(plane)
    consumer.fetch(("t", 0, 0))
    old = consumer.session_id
    consumer.epoch = 0
    consumer.fetch(("t", 0, 0))
    assert consumer.session_id not in (0, old)
    assert list(plane.fetch_handler.sessions.sessions) == [consumer.session_id]
    # The final epoch closes it and opens none.
    body = plane.fetch_body(("t", 0, 0), session_id=consumer.session_id, session_epoch=-1)
    _, response = plane.send_fetch(body)
    assert response is not None and response.session_id == 0
    assert answered(response) == [("t", 0, NONE)]
    assert plane.fetch_handler.sessions.sessions == {}
    assert plane.fetch_handler.sessions.partitions == 0


def test_errors_are_repeated_until_they_are_resolved(plane: Plane) -> None:
    consumer = Consumer(plane)
    consumer.fetch(("t", 0, 5), ("u", 0, 0))
    for _ in range(2):
        expected = [("t", 0, OFFSET_OUT_OF_RANGE), ("u", 0, UNKNOWN_TOPIC_OR_PARTITION)]
        assert answered(consumer.fetch()) == expected
    plane.create("u")
    assert answered(consumer.fetch(("t", 0, 0))) == [("t", 0, NONE), ("u", 0, NONE)]
    assert answered(consumer.fetch()) == []


def test_an_id_that_becomes_known(plane: Plane) -> None:
    consumer = Consumer(plane, 13)
    body = plane.fetch_body(("t", 0, 0), version=13, session_epoch=0)
    body.topics[0].topic_id = topic_id(2)
    _, response = plane.send_fetch(body, 13)
    assert response is not None
    assert answered(response) == [("", 0, UNKNOWN_TOPIC_ID)]
    consumer.session_id, consumer.epoch = response.session_id, 1
    plane.create("u")
    assert answered(consumer.fetch()) == [("u", 0, NONE)]


def test_a_waiting_incremental_fetch(plane: Plane) -> None:
    consumer = Consumer(plane)
    consumer.fetch(("t", 0, 0), ("t", 1, 0))
    request_id, response = consumer.send(max_wait_ms=500, min_bytes=1)
    assert response is None
    plane.put("t", batch([b"a"]), 1)
    answer = plane.replies[request_id]
    assert isinstance(answer, FetchResponse)
    assert answer.session_id == consumer.session_id
    assert answered(answer) == [("t", 1, NONE)]


def test_a_waiting_fetch_whose_session_went_on_elsewhere(plane: Plane) -> None:
    consumer = Consumer(plane)
    consumer.fetch(("t", 0, 0))
    request_id, _ = consumer.send(max_wait_ms=500, min_bytes=1)
    assert consumer.fetch().error_code == NONE
    plane.sleep(500)
    answer = plane.replies[request_id]
    assert isinstance(answer, FetchResponse)
    assert (answer.error_code, answer.responses) == (INVALID_FETCH_SESSION_EPOCH, [])


def test_a_session_of_nothing(plane: Plane) -> None:
    """A broker opens one, too, and closes it if the next request adds nothing."""
    consumer = Consumer(plane)
    assert consumer.fetch().session_id != 0
    assert len(plane.fetch_handler.sessions.sessions) == 1
    assert consumer.fetch().session_id == 0
    assert len(plane.fetch_handler.sessions.sessions) == 0


# The cache.


def items(count: int) -> list[FetchItem]:
    return [FetchItem("t", ZERO_UUID, index, 0, 1, -1, -1) for index in range(count)]


def test_slots_are_limited() -> None:
    cache = FetchSessionCache(2, 1)
    first = cache.maybe_create(items(1), False, 0)
    second = cache.maybe_create(items(3), False, 0)
    assert len({first, second, 0}) == 3
    # All sessions are new: none is evicted.
    assert cache.maybe_create(items(5), False, SESSION_EVICTION_MS) == 0
    later = SESSION_EVICTION_MS + 1
    for session_id in (first, second):
        session = cache.find(session_id)
        assert session is not None
        cache.touch(session, later)
    # In use, but old enough to be evicted for a larger one; never for one of the same size.
    assert cache.maybe_create(items(1), False, later) == 0
    third = cache.maybe_create(items(2), False, later)
    assert third != 0
    assert list(cache.sessions) == [second, third]
    assert cache.partitions == 5


def test_stale_sessions_are_evicted_for_new_ones() -> None:
    cache = FetchSessionCache(2, 1)
    first = cache.maybe_create(items(9), False, 0)
    second = cache.maybe_create(items(9), False, 0)
    session = cache.find(first)
    assert session is not None
    cache.touch(session, 50)
    third = cache.maybe_create(items(1), False, SESSION_EVICTION_MS + 1)
    assert list(cache.sessions) == [first, third]
    assert cache.find(second) is None
    assert cache.partitions == 10


def test_partitions_of_all_sessions_are_limited() -> None:
    limit = fetch_sessions.SESSION_PARTITIONS_MAX
    cache = FetchSessionCache(5, 1)
    assert cache.maybe_create(items(10), False, 0) != 0
    cache.partitions = limit - 3
    assert cache.maybe_create(items(4), False, 0) == 0
    assert cache.maybe_create(items(3), False, 0) != 0


def test_stale_sessions_are_evicted_for_partitions() -> None:
    cache = FetchSessionCache(5, 1)
    cache.partitions_max = 10
    first = cache.maybe_create(items(4), False, 0)
    second = cache.maybe_create(items(4), False, 100)
    assert cache.maybe_create(items(4), False, SESSION_EVICTION_MS) == 0
    assert cache.maybe_create(items(4), False, SESSION_EVICTION_MS + 1) != 0
    assert cache.find(first) is None and cache.find(second) is not None
    assert cache.partitions == 8


def test_a_session_has_a_limit_of_partitions() -> None:
    cache = FetchSessionCache(5, 1)
    cache.session_partitions_max = 5
    assert cache.maybe_create(items(6), False, 0) == 0
    assert cache.maybe_create(items(5), False, 0) != 0


@pytest.mark.parametrize("limit", ["session_partitions_max", "partitions_max"])
@pytest.mark.parametrize("version", [11, 13])
def test_incremental_fetches_cannot_grow_a_session_beyond_its_limit(plane: Plane, limit: str, version: int) -> None:
    sessions = plane.fetch_handler.sessions
    setattr(sessions, limit, 2)
    consumer = Consumer(plane, version)
    consumer.fetch(("t", 0, 0), ("t", 1, 0))
    # One for another is no growth.
    assert consumer.fetch(("t", 2, 0), forget=[0]).error_code == NONE
    assert sessions.partitions == 2
    grown = consumer.fetch(("t", 0, 0))
    assert (grown.error_code, grown.session_id, grown.responses) == (FETCH_SESSION_ID_NOT_FOUND, 0, [])
    assert (sessions.partitions, sessions.sessions) == (0, {})
    # The consumer starts over, and goes on without a session.
    consumer.session_id, consumer.epoch = 0, 0
    full = consumer.fetch(("t", 0, 0), ("t", 1, 0), ("t", 2, 0))
    assert (full.error_code, full.session_id, len(answered(full))) == (NONE, 0, 3)


def test_epochs_wrap_to_one() -> None:
    assert next_epoch(1) == 2
    assert next_epoch(INT32_MAX) == 1


def test_session_ids_differ_by_seed_and_are_never_zero() -> None:
    seen = set()
    for seed in range(50):
        cache = FetchSessionCache(100, seed)
        seen |= {cache.maybe_create(items(1), False, 0) for _ in range(20)}
    assert len(seen) == 1000
    assert all(0 < session_id <= INT32_MAX for session_id in seen)
