"""The direct path of OffsetFetch against the generic one: the same answers, byte for byte."""

from __future__ import annotations

import pytest

from kcoord.core.offsets.stored_offset import StoredOffset
from kcoord.protocol import apis, errors
from kcoord.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tests.harness.engine import Client, decode_answer, finish_turn, read_answers, request_frame, take_output
from tests.harness.engine_twins import Twin, usual

STEPS = 80


@pytest.mark.parametrize("seed", range(30))
def test_both_paths_answer_the_same(seed: int) -> None:
    partitions = 1 if seed % 2 else 3
    direct, generic = Twin(seed, True, partitions, 0.35), Twin(seed, False, partitions, 0.35)
    for _ in range(STEPS):
        direct.step()
        generic.step()
        assert direct.said == generic.said
        assert direct.engine.next_deadline_ms() == generic.engine.next_deadline_ms()
    direct.end()
    generic.end()
    assert direct.said == generic.said
    assert direct.state() == generic.state()
    assert direct.fetches.handled > 4
    assert generic.fetches.handled == 0


def fetch(twin: Twin, group: str, version: int, require_stable: bool = False, partitions: int = 2) -> bytes:
    member_id, epoch = twin.members.get(group, ("", -1))
    asked = OffsetFetchRequestGroup(group)
    if version >= 9 and group == "consumer":
        asked.member_id, asked.member_epoch = member_id, epoch
    asked.topics = [OffsetFetchRequestTopics("a", twin.topic_ids["a"], list(range(partitions)))]
    body = OffsetFetchRequest(groups=[asked], require_stable=require_stable)
    return request_frame(apis.OFFSET_FETCH, version, body)


@pytest.mark.parametrize("group", ["simple", "classic", "consumer"])
@pytest.mark.parametrize("version", [8, 9, 10])
def test_what_is_there_is_direct(group: str, version: int) -> None:
    twin = usual()
    other = Client(twin.engine)
    twin.engine.receive(other.session, fetch(twin, group, version, version == 9), twin.now())
    assert twin.fetches.handled == 1
    # The commits of the first connection are not durable yet, so neither is what this one sees.
    assert [chunk.wait_seq for chunk in other.session.chunks] == [twin.engine.commits.open_seq]
    finish_turn(twin.engine, twin.now())
    answers = read_answers(take_output(other.session))
    found = decode_answer(apis.OFFSET_FETCH, version, answers[-1][1]).groups[0].topics[0].partitions
    assert [(one.partition_index, one.committed_offset, one.error_code) for one in found] == [(0, 1, 0), (1, 1, 0)]


def test_what_may_be_unstable_is_not() -> None:
    twin = usual()
    offsets = twin.engine.core.offsets
    offsets.pending.put((0, 7), "simple", "a", 1, StoredOffset(5, -1, "", 0, -1, b"", 9))
    twin.engine.receive(twin.client.session, fetch(twin, "simple", 8), twin.now())
    assert twin.fetches.handled == 1
    twin.engine.receive(twin.client.session, fetch(twin, "simple", 8, True), twin.now())
    assert twin.fetches.handled == 1
    finish_turn(twin.engine, twin.now())
    answers = read_answers(take_output(twin.client.session))
    found = decode_answer(apis.OFFSET_FETCH, 8, answers[-1][1]).groups[0].topics[0].partitions
    assert [one.error_code for one in found] == [errors.NONE, errors.UNSTABLE_OFFSET_COMMIT]


def test_offsets_of_an_earlier_topic_are_not_shown() -> None:
    twin = usual()
    stored = twin.engine.core.offsets.get("simple", "a", 1)
    assert stored is not None
    stored.topic_id = bytes(15) + b"\x01"
    for version, expected in ((9, [1, 1]), (10, [1, -1])):
        twin.engine.receive(twin.client.session, fetch(twin, "simple", version), twin.now())
        finish_turn(twin.engine, twin.now())
        answers = read_answers(take_output(twin.client.session))
        found = decode_answer(apis.OFFSET_FETCH, version, answers[-1][1]).groups[0].topics[0].partitions
        assert [one.committed_offset for one in found] == expected
    assert twin.fetches.handled == 2


def test_very_many_partitions_are_not() -> None:
    twin = usual()
    twin.engine.receive(twin.client.session, fetch(twin, "simple", 8, partitions=1000), twin.now())
    assert twin.fetches.handled == 1
    twin.engine.receive(twin.client.session, fetch(twin, "simple", 8, partitions=1001), twin.now())
    assert twin.fetches.handled == 1
