"""Fetches against what is plainly right: no fetch waits that has enough, and a session loses and repeats nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord.protocol.errors import NONE
from kcoord.protocol.fetch import FetchRequest, FetchResponse
from tests.harness.batches import batch
from tests.unit.engine.plane import Plane, offsets, values

PARTITIONS = 3

produced = st.tuples(st.just("produce"), st.integers(0, PARTITIONS - 1), st.integers(0, 150))
committed = st.tuples(st.just("commit"), st.just(0), st.just(0))
fetched = st.tuples(st.just("fetch"), st.integers(0, 7), st.integers(0, 900))
slept = st.tuples(st.just("sleep"), st.just(0), st.integers(1, 200))


def size_of(response: object) -> int:
    assert isinstance(response, FetchResponse)
    return sum(len(p.records or b"") for topic in response.responses for p in topic.partitions)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(produced, committed, fetched, slept), max_size=40))
def test_a_fetch_waits_exactly_as_long_as_it_has_too_little(steps: list[tuple[str, int, int]]) -> None:
    plane = Plane()
    plane.create("t", PARTITIONS)
    waiting: dict[int, tuple[FetchRequest, int]] = {}
    for step, number, size in steps:
        if step == "produce":
            plane.produce("t", batch([b"x" * size]), number)
        elif step == "fetch":
            # From the durable end or from the start, of the partitions that the bits name.
            wanted = []
            for index in range(PARTITIONS):
                if number & 1 << index:
                    end = plane.partition("t", index).log.durable_end
                    wanted.append(("t", index, end if size % 2 else 0))
            body = plane.fetch_body(*wanted, max_wait_ms=300, min_bytes=size)
            request_id, response = plane.send_fetch(body, connection_id=plane.next_request)
            if response is None:
                waiting[request_id] = (body, plane.now.mono_ms + 300)
            else:
                assert size_of(response) >= size or not wanted
        elif step == "sleep":
            plane.sleep(size)
        else:
            plane.commit()
        for request_id, answer in plane.replies.items():
            body, deadline_ms = waiting.pop(request_id)
            assert size_of(answer) >= body.min_bytes or plane.now.mono_ms >= deadline_ms
        plane.replies.clear()
        for body, deadline_ms in waiting.values():
            assert plane.now.mono_ms < deadline_ms
            at_once = plane.fetch_body(max_wait_ms=0)
            at_once.topics = body.topics
            assert size_of(plane.send_fetch(at_once)[1]) < body.min_bytes
    assert len(plane.fetch_handler.parked) == len(waiting)
    plane.sleep(300)
    assert sorted(plane.replies) == sorted(waiting)
    handler = plane.fetch_handler
    assert not handler.parked and not handler.waiters and not handler.by_connection


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.one_of(produced, committed), max_size=30),
    max_bytes=st.integers(1, 600),
    version=st.sampled_from([7, 12, 13, 18]),
)
def test_a_session_loses_and_repeats_nothing(steps: list[tuple[str, int, int]], max_bytes: int, version: int) -> None:
    plane = Plane()
    plane.create("t", PARTITIONS)
    sent: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    got: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
    moved = {("t", index): 0 for index in range(PARTITIONS)}
    session_id = 0
    epoch = 0

    def poll() -> int:
        nonlocal session_id, epoch, moved
        wanted = [(topic, index, offset) for (topic, index), offset in moved.items()]
        ids = {"session_id": session_id, "session_epoch": epoch}
        response = plane.fetch_all(*wanted, version=version, max_bytes=max_bytes, **ids)
        assert response.error_code == NONE
        session_id = response.session_id
        epoch += 1
        # As a client does: the next request names only what has moved since.
        moved = {}
        for topic in response.responses:
            for data in topic.partitions:
                assert data.error_code == NONE
                if data.records:
                    found = offsets(data.records)
                    assert found[0] == len(got[data.partition_index])
                    got[data.partition_index] += values(data.records)
                    moved[("t", data.partition_index)] = found[-1] + 1
        return len(moved)

    for number, (step, index, size) in enumerate(steps):
        if step == "produce":
            text = b"%d-" % number + b"x" * size
            sent[index].append(text)
            plane.produce("t", batch([text]), index)
        else:
            plane.commit()
        poll()
    plane.commit()
    rounds = 0
    while poll():
        rounds += 1
        assert rounds <= len(steps) + 1
    assert got == sent
