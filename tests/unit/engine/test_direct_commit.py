"""The direct path of OffsetCommit against the generic one: the same answers, files and state, byte for byte."""

from __future__ import annotations

import random

import pytest

from kcoord.engine.direct_commit import PARTITIONS_MAX
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_groups import DeleteGroupsRequest
from kcoord.protocol.delete_topics import DeleteTopicsRequest
from kcoord.protocol.offset_commit import (
    MAX_VERSION,
    MIN_VERSION,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.harness.engine import Client, finish_turn, open_engine, request_frame, take_output
from tests.harness.engine_twins import TOPICS, Twin, frame_of, usual

STEPS = 80


def twins(seed: int) -> tuple[Twin, Twin]:
    partitions = 1 if seed % 2 else 3
    return Twin(seed, True, partitions), Twin(seed, False, partitions)


@pytest.mark.parametrize("seed", range(40))
def test_both_paths_do_the_same(seed: int) -> None:
    direct, generic = twins(seed)
    for _ in range(STEPS):
        direct.step()
        generic.step()
        assert direct.said == generic.said
        assert direct.state() == generic.state()
    direct.end()
    generic.end()
    assert direct.said == generic.said
    assert direct.state() == generic.state()
    assert direct.commits.handled > 4
    assert generic.commits.handled == 0


@pytest.mark.parametrize("seed", range(10))
def test_a_restart_has_the_same_state(seed: int) -> None:
    twin = Twin(1000 + seed, True, 3)
    for _ in range(STEPS):
        twin.step()
    twin.end()
    assert twin.commits.handled > 4
    again = open_engine(twin.storage.copy(), twin.now(), random.Random(1), "memory", twin.engine.config)
    assert again.core.digest() == twin.engine.core.digest()


@pytest.mark.parametrize("group", ["simple", "classic", "consumer"])
def test_what_repeats_is_direct(group: str) -> None:
    twin = usual()
    # Members of the consumer protocol commit with version 9 and later ones.
    versions = range(9 if group == "consumer" else MIN_VERSION, MAX_VERSION + 1)
    for version in versions:
        twin.engine.receive(twin.client.session, frame_of(twin, group, version, 100 + version), twin.now())
        stored = twin.engine.core.offsets.get(group, "a", 3)
        assert stored is not None and stored.committed_offset == 100 + version
    assert twin.commits.handled == len(versions)


def test_the_answer_waits_for_the_disk() -> None:
    """As on the generic path: no answer leaves before the commit of its records."""
    twin = usual()
    finish_turn(twin.engine, twin.now())
    take_output(twin.client.session)
    twin.engine.receive(twin.client.session, frame_of(twin, "simple", 8, 2), twin.now())
    assert twin.commits.handled == 1
    assert take_output(twin.client.session) == b""
    finish_turn(twin.engine, twin.now())
    assert take_output(twin.client.session) != b""


def test_a_failure_to_write_ends_the_engine() -> None:
    """State and log may disagree after it, so nothing is answered any more."""
    twin = usual()
    log = twin.engine.commits.logs[twin.engine.core.offsets_logs()[0]]
    # The batch is as long as the format allows.
    log.builder.count = (1 << 31) - 2
    with pytest.raises(Exception, match="batch is full"):
        twin.engine.receive(twin.client.session, frame_of(twin, "simple", 8, 2), twin.now())
    assert twin.engine.has_failed()


def test_a_topic_that_was_created_again_has_its_new_id_in_the_records() -> None:
    """A session remembers how the records of its commits end, and that contains the id of the topic."""
    twins = [Twin(1, is_direct, 1) for is_direct in (True, False)]
    for twin in twins:
        for offset in (1, 2):
            twin.engine.receive(twin.client.session, frame_of(twin, "simple", 9, offset), twin.now())
        twin.send(apis.DELETE_TOPICS, 4, DeleteTopicsRequest(topic_names=["a"]))
        finish_turn(twin.engine, twin.now())
        twin.send(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic("a", 4, 1)]))
        finish_turn(twin.engine, twin.now())
        for offset in (3, 4):
            twin.engine.receive(twin.client.session, frame_of(twin, "simple", 9, offset), twin.now())
        twin.end()
    direct, generic = twins
    assert direct.commits.handled >= 2
    assert direct.said == generic.said
    assert direct.state() == generic.state()


def test_a_remembered_offset_that_was_deleted_is_looked_up_again() -> None:
    """Otherwise a commit after it would change an offset that nobody sees any more."""
    twins = [Twin(1, is_direct, 1) for is_direct in (True, False)]
    for twin in twins:
        session, engine = twin.client.session, twin.engine
        for offset in (1, 2, 3):
            engine.receive(session, frame_of(twin, "simple", 9, offset), twin.now())
        deleted = OffsetDeleteRequestTopic("a", [OffsetDeleteRequestPartition(2)])
        twin.send(apis.OFFSET_DELETE, 0, OffsetDeleteRequest("simple", [deleted]))
        for offset in (4, 5):
            engine.receive(session, frame_of(twin, "simple", 9, offset), twin.now())
        found = [engine.core.offsets.get("simple", "a", index) for index in range(4)]
        assert [stored.committed_offset for stored in found if stored is not None] == [5, 5, 5, 5]
        twin.end()
    direct, generic = twins
    assert direct.commits.handled == 3
    assert direct.said == generic.said
    assert direct.state() == generic.state()


def test_many_partitions_and_a_topic_twice_are_not_remembered() -> None:
    twin = usual()
    count = PARTITIONS_MAX + 1
    for log in twin.engine.commits.logs.values():
        log.batch_bytes_max = 1 << 20
    twin.send(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic("wide", count, 1)]))
    finish_turn(twin.engine, twin.now())
    take_output(twin.client.session)
    for rounds, counts in ((1, [count]), (2, [count]), (3, [4, 3]), (4, [4, 3]), (5, [4])):
        partitions = [
            [OffsetCommitRequestPartition(index, rounds, 0, "m" * rounds) for index in range(n)] for n in counts
        ]
        topics = [OffsetCommitRequestTopic("wide", b"", some) for some in partitions]
        frame = request_frame(apis.OFFSET_COMMIT, 9, OffsetCommitRequest("simple", -1, "", topics=topics))
        before = twin.commits.handled
        twin.engine.receive(twin.client.session, frame, twin.now())
        # The first commit of partitions takes the generic path, and so does a second array for the same topic.
        assert twin.commits.handled == before + (rounds in (2, 5))
        stored = [twin.engine.core.offsets.get("simple", "wide", index) for index in range(4)]
        assert [(one.committed_offset, one.metadata) for one in stored if one] == [(rounds, "m" * rounds)] * 4
    head = twin.client.session.commit_head
    assert head is not None and len(head.topic_commits["wide"].stored) == 4


def test_a_request_that_does_not_fit_into_a_batch_is_left_to_the_generic_path_early() -> None:
    """What is made for a topic has the length of the group's id, so a small request may not make it for a thousand."""
    twin = usual()
    group = "g" * 1500
    names = [f"t{number}" for number in range(30)]
    twin.send(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic(name, 1, 1) for name in names]))
    finish_turn(twin.engine, twin.now())
    topics = [OffsetCommitRequestTopic(name, b"", [OffsetCommitRequestPartition(0, 1, 0, "")]) for name in names]
    for some in [[topic] for topic in topics] + [topics]:
        body = OffsetCommitRequest(group, -1, "", topics=some)
        twin.engine.receive(twin.client.session, request_frame(apis.OFFSET_COMMIT, 9, body), twin.now())
        finish_turn(twin.engine, twin.now())
    assert twin.engine.core.offsets.get(group, names[-1], 0) is not None
    limit = twin.engine.config.coordinator_batch_bytes_max
    assert limit < twin.commits.records_bytes < limit + 2 * len(group)


def fixed_history(seed: int, is_direct: bool) -> Twin:
    """Sessions whose commits always begin alike, so that they remember, while others change what they remember."""
    twin = Twin(seed, is_direct, 3)
    rng = random.Random(seed)
    clients = [(Client(twin.engine), group, version) for group in ("simple", "classic") for version in (8, 9, 10)]
    for _ in range(150):
        client, group, version = rng.choice(clients)
        member_id, epoch = twin.members.get(group, ("", -1))
        kind = rng.random()
        if kind < 0.8:
            # Now and then a partition or a topic that does not exist ends the direct path half way.
            last = rng.choice((3, 3, 3, 3, 4))
            names = rng.choice((["a"], ["a"], [TOPICS[1], "a"], ["a", TOPICS[1]], ["a", "a"], ["a", "unknown"]))
            topics = []
            for name in names:
                chosen = [0, 1, last] if rng.random() < 0.8 else [rng.randrange(4) for _ in range(rng.randint(1, 5))]
                metadata = [rng.choice(("", "", "m" * 7)) if rng.random() < 0.3 else "" for _ in chosen]
                parts = [
                    OffsetCommitRequestPartition(one, rng.randrange(99), 0, text)
                    for one, text in zip(chosen, metadata, strict=True)
                ]
                # The id of a topic that was created again may be its old one.
                found = twin.engine.core.topics.get(name)
                topic_id = twin.topic_ids.get(name, bytes(16))
                if found is not None and rng.random() < 0.8:
                    topic_id = found.topic_id
                topics.append(OffsetCommitRequestTopic(name, topic_id if version >= 10 else bytes(16), parts))
            body = OffsetCommitRequest(group, epoch, member_id, topics=topics)
            client.send(apis.OFFSET_COMMIT, version, body, twin.now())
        elif kind < 0.86:
            gone = OffsetDeleteRequestTopic("a", [OffsetDeleteRequestPartition(rng.randrange(4))])
            client.send(apis.OFFSET_DELETE, 0, OffsetDeleteRequest(group, [gone]), twin.now())
        elif kind < 0.9:
            # The generic path replaces the object: this version has a retention time.
            part = OffsetCommitRequestPartition(rng.randrange(4), rng.randrange(99), 0, "")
            body = OffsetCommitRequest(
                group, epoch, member_id, None, 1000, [OffsetCommitRequestTopic("a", b"", [part])]
            )
            client.send(apis.OFFSET_COMMIT, 4, body, twin.now())
        elif kind < 0.93:
            client.send(apis.DELETE_GROUPS, 2, DeleteGroupsRequest(["simple"]), twin.now())
        elif kind < 0.96:
            client.send(apis.DELETE_TOPICS, 4, DeleteTopicsRequest(topic_names=[TOPICS[1]]), twin.now())
            finish_turn(twin.engine, twin.now())
            client.send(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic(TOPICS[1], 4, 1)]), twin.now())
        else:
            twin.mono_ms += 700
            twin.engine.fire_timers(twin.now())
        if rng.random() < 0.7:
            finish_turn(twin.engine, twin.now())
        twin.said.extend(take_output(client.session) for client, _, _ in clients)
    twin.end()
    return twin


@pytest.mark.parametrize("seed", range(25))
def test_what_sessions_remember_is_checked(seed: int) -> None:
    direct, generic = fixed_history(seed, True), fixed_history(seed, False)
    assert direct.said == generic.said
    assert direct.state() == generic.state()
    assert direct.commits.handled > 20
