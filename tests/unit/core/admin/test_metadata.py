"""Answers about the cluster beyond those that were recorded from a broker."""

from __future__ import annotations

import pytest

from kcoord.core.config import CoreConfig
from kcoord.protocol import apis, errors
from kcoord.protocol.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    RequestCursor,
    TopicRequest,
)
from kcoord.protocol.find_coordinator import FindCoordinatorRequest
from kcoord.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kcoord.wire.primitives import ZERO_UUID
from tests.unit.core.admin.admin_rig import HOST, PORT, AdminRig
from tests.unit.core.topics.test_topics import create


def by_name(*names: str) -> list[MetadataRequestTopic]:
    return [MetadataRequestTopic(ZERO_UUID, name) for name in names]


@pytest.mark.parametrize("version", range(14))
def test_an_unknown_topic_is_created_and_shown_in_one_answer(version: int) -> None:
    config = CoreConfig()
    config.num_partitions = 3
    rig = AdminRig(config)
    out = rig.handle(apis.METADATA, version, MetadataRequest(by_name("new", "newer", "new")))
    # The answer waits for the records it came with.
    assert out.records and out.replies[0].wait_log is None
    assert rig.topics.partition_count("new") == rig.topics.partition_count("newer") == 3
    shown = rig.ask(apis.METADATA, version, MetadataRequest(by_name("new", "newer")))
    assert [(t.error_code, t.name, len(t.partitions)) for t in shown.topics] == [
        (0, "new", 3),
        (0, "newer", 3),
    ]
    assert [(b.node_id, b.host, b.port) for b in shown.brokers] == [(1, HOST, PORT)]


@pytest.mark.parametrize(("wanted", "enabled"), [(False, True), (True, False)])
def test_both_sides_have_to_want_creation(wanted: bool, enabled: bool) -> None:
    config = CoreConfig()
    config.auto_create_topics_enable = enabled
    rig = AdminRig(config)
    answer = rig.ask(apis.METADATA, 12, MetadataRequest(by_name("new"), wanted))
    assert [t.error_code for t in answer.topics] == [errors.UNKNOWN_TOPIC_OR_PARTITION]
    assert rig.topics.get("new") is None


def test_names_that_cannot_be_created_fail_at_once() -> None:
    rig = AdminRig()
    create(rig, "a.b")
    before = len(rig.log)
    answer = rig.ask(apis.METADATA, 12, MetadataRequest(by_name("a_b", "no name", "__cluster_metadata")))
    assert [t.error_code for t in answer.topics] == [
        errors.INVALID_TOPIC_EXCEPTION,
        errors.INVALID_TOPIC_EXCEPTION,
        errors.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert len(rig.log) == before


def test_answers_without_records_wait_for_what_they_show() -> None:
    rig = AdminRig()
    create(rig, "t")
    out = rig.handle(apis.METADATA, 12, MetadataRequest(None))
    reply = out.replies[0]
    assert (reply.wait_log, reply.wait_offset) == (rig.topics.log, len(rig.log))


def test_every_topic_but_the_metadata_log_is_listed_in_order() -> None:
    rig = AdminRig()
    create(rig, "b", "a")
    names = [t.name for t in rig.ask(apis.METADATA, 9, MetadataRequest(None)).topics]
    assert names == ["__consumer_offsets", "a", "b"]
    described = rig.ask(apis.DESCRIBE_TOPIC_PARTITIONS, 0, DescribeTopicPartitionsRequest([]))
    assert [t.name for t in described.topics] == names


def test_a_cursor_goes_through_everything_once() -> None:
    rig = AdminRig()
    create(rig, "a", "b", "c", partitions=5)
    seen: list[tuple[str, int]] = []
    cursor: RequestCursor | None = None
    for _ in range(20):
        body = DescribeTopicPartitionsRequest([TopicRequest(name) for name in ("c", "a", "b")], 3, cursor)
        answer = rig.ask(apis.DESCRIBE_TOPIC_PARTITIONS, 0, body)
        for topic in answer.topics:
            seen.extend((topic.name, partition.partition_index) for partition in topic.partitions)
        if answer.next_cursor is None:
            break
        cursor = RequestCursor(answer.next_cursor.topic_name, answer.next_cursor.partition_index)
    assert seen == [(name, index) for name in "abc" for index in range(5)]


def test_the_address_is_the_one_of_the_clients_listener() -> None:
    rig = AdminRig()
    answer = rig.ask(apis.FIND_COORDINATOR, 6, FindCoordinatorRequest("", 0, ["g", ""]))
    assert [(c.key, c.error_code, c.host, c.port) for c in answer.coordinators] == [
        ("g", 0, HOST, PORT),
        ("", 0, HOST, PORT),
    ]
    old = rig.ask(apis.FIND_COORDINATOR, 0, FindCoordinatorRequest("g"))
    assert (old.error_code, old.node_id, old.host, old.port) == (0, 1, HOST, PORT)
    transactional = rig.ask(apis.FIND_COORDINATOR, 2, FindCoordinatorRequest("x", 1))
    assert (transactional.error_code, transactional.host, transactional.port) == (0, HOST, PORT)
