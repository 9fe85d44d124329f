"""The registry of topics, and making, widening and deleting them."""

from __future__ import annotations

import re

import pytest

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import OFFSETS_TOPIC, TRANSACTION_TOPIC, TopicsDeleted
from kcoord.core.topics.registry import RESOURCE_TOPIC, TopicRegistry, check_topic_name, topic_id_from
from kcoord.protocol import apis, errors
from kcoord.protocol.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kcoord.protocol.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kcoord.protocol.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kcoord.protocol.records.config_record import ConfigRecord
from kcoord.protocol.records.no_op_record import NoOpRecord
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.remove_topic_record import RemoveTopicRecord
from kcoord.protocol.records.topic_record import TopicRecord
from tests.harness.schema_json import uuid_text
from tests.unit.core.admin.admin_rig import AdminRig


def create(rig: AdminRig, *names: str, partitions: int = 1, version: int = 7, **configs: str) -> list[int]:
    """Create topics; the error codes."""
    asked = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
    body = CreateTopicsRequest([CreatableTopic(name, partitions, 1, [], asked) for name in names])
    return [topic.error_code for topic in rig.ask(apis.CREATE_TOPICS, version, body).topics]


def delete(rig: AdminRig, *names: str) -> list[int]:
    body = DeleteTopicsRequest([DeleteTopicState(name) for name in names])
    return [result.error_code for result in rig.ask(apis.DELETE_TOPICS, 6, body).responses]


def widen(rig: AdminRig, name: str, count: int) -> int:
    body = CreatePartitionsRequest([CreatePartitionsTopic(name, count, None)])
    result = rig.ask(apis.CREATE_PARTITIONS, 3, body).results[0]
    code: int = result.error_code
    return code


def test_internal_topics_are_made_once() -> None:
    config = CoreConfig()
    config.offsets_topic_num_partitions = 7
    rig = AdminRig(config)
    assert rig.topics.partition_count(OFFSETS_TOPIC) == 7
    assert rig.topics.get(TRANSACTION_TOPIC) is None, "a broker makes it for the first transaction"
    topic = rig.topics.get(OFFSETS_TOPIC)
    assert topic is not None and topic.is_internal
    assert rig.topics.config_value(topic, "cleanup.policy") == "compact"
    config.offsets_topic_num_partitions = 50
    rig.open()
    assert rig.topics.loaded(b"\1" * 16).records == []
    assert rig.topics.partition_count(OFFSETS_TOPIC) == 7


def test_a_request_is_one_batch_in_a_controllers_order() -> None:
    rig = AdminRig()
    asked = CreatableTopic("t", 2, 1, [], [CreatableTopicConfig("retention.ms", "5")])
    body = CreateTopicsRequest([asked, CreatableTopic("u", 1, 1)])
    out = rig.handle(apis.CREATE_TOPICS, 7, body)
    assert out.log is rig.topics.log
    kinds = [type(record.value) for record in out.records]
    assert kinds == [
        TopicRecord,
        ConfigRecord,
        PartitionRecord,
        PartitionRecord,
        TopicRecord,
        PartitionRecord,
    ]
    # The answer waits for its own records.
    assert out.replies[0].wait_log is None


def test_only_replay_changes_the_registry() -> None:
    rig = AdminRig()
    before = rig.topics.digest_lines()
    apply = rig.apply
    rig.apply = lambda out: out  # type: ignore[method-assign]
    assert create(rig, "t") == [errors.NONE]
    assert rig.topics.digest_lines() == before
    rig.apply = apply  # type: ignore[method-assign]
    assert create(rig, "t") == [errors.NONE]
    assert rig.topics.digest_lines() != before


def test_a_restart_finds_the_same_state() -> None:
    rig = AdminRig()
    create(rig, "a.b", "c", partitions=3, retention_ms="77")
    widen(rig, "c", 5)
    create(rig, "gone")
    delete(rig, "gone")
    before = rig.topics.digest_lines()
    end = rig.topics.end_offset
    rig.open()
    assert rig.topics.digest_lines() == before
    assert rig.topics.end_offset == end == len(rig.log)


def test_queues_follow_the_records_in_order() -> None:
    rig = AdminRig()
    rig.topics.created.clear()
    create(rig, "t", partitions=2)
    widen(rig, "t", 3)
    assert [(made.topic, made.first, made.end) for made in rig.topics.created] == [("t", 0, 3)]
    topic_id = rig.topics.topics["t"].topic_id
    delete(rig, "t")
    assert [(gone.topic, gone.topic_id, gone.partition_count) for gone in rig.topics.deleted] == [("t", topic_id, 3)]


def test_answers_that_show_what_is_not_durable_wait_for_it() -> None:
    rig = AdminRig()
    create(rig, "t")
    out = rig.handle(apis.CREATE_TOPICS, 7, CreateTopicsRequest([CreatableTopic("t", 1, 1)]))
    assert out.records == []
    assert out.replies[0].wait_log is rig.topics.log
    assert out.replies[0].wait_offset == len(rig.log)


def test_validation_writes_nothing() -> None:
    rig = AdminRig()
    before = len(rig.log)
    body = CreateTopicsRequest([CreatableTopic("t", 4, 1)], validate_only=True)
    answer = rig.ask(apis.CREATE_TOPICS, 7, body).topics[0]
    assert (answer.error_code, answer.num_partitions) == (errors.NONE, 4)
    create(rig, "t")
    widening = CreatePartitionsRequest([CreatePartitionsTopic("t", 4, None)], validate_only=True)
    assert rig.ask(apis.CREATE_PARTITIONS, 3, widening).results[0].error_code == errors.NONE
    assert rig.topics.partition_count("t") == 1
    assert len(rig.log) == before + 2


def test_a_deletion_is_followed_by_that_of_offsets() -> None:
    rig = AdminRig()
    create(rig, "t")
    topic_id = rig.topics.topics["t"].topic_id
    out = rig.handle(apis.DELETE_TOPICS, 6, DeleteTopicsRequest([DeleteTopicState(None, topic_id)]))
    assert [record.value for record in out.records] == [RemoveTopicRecord(topic_id)]
    assert not out.follow_ups and out.once_durable is not None
    event = out.once_durable[0]
    assert isinstance(event, TopicsDeleted)
    assert event.topics == {topic_id: "t"}
    assert rig.topics.get("t") is None and rig.topics.by_id(topic_id) is None
    assert rig.topics.configs_of(RESOURCE_TOPIC, "t") == {}


def test_deletions_are_repeated_after_a_restart_once() -> None:
    rig = AdminRig()
    create(rig, "t")
    first = rig.topics.topics["t"].topic_id
    delete(rig, "t")
    create(rig, "t")
    rig.open()
    assert rig.topics.unfinished_deletions().topics == {first: "t"}
    assert rig.topics.unfinished_deletions().is_repeated


@pytest.mark.parametrize("name", [OFFSETS_TOPIC, TRANSACTION_TOPIC])
def test_internal_topics_can_be_neither_deleted_nor_widened(name: str) -> None:
    rig = AdminRig()
    if name == TRANSACTION_TOPIC:
        create(rig, name)
    before = len(rig.log)
    assert delete(rig, name) == [errors.INVALID_REQUEST]
    assert widen(rig, name, 9) == errors.INVALID_REQUEST
    assert len(rig.log) == before


@pytest.mark.parametrize(("version", "code"), [(2, errors.INVALID_REQUEST), (6, errors.TOPIC_DELETION_DISABLED)])
def test_deletion_can_be_switched_off(version: int, code: int) -> None:
    config = CoreConfig()
    config.delete_topic_enable = False
    rig = AdminRig(config)
    create(rig, "t")
    body = DeleteTopicsRequest(topic_names=["t"])
    if version == 6:
        body = DeleteTopicsRequest([DeleteTopicState("t")])
    assert [r.error_code for r in rig.ask(apis.DELETE_TOPICS, version, body).responses] == [code]
    assert rig.topics.get("t") is not None


def test_the_limit_of_partitions_counts_the_whole_request() -> None:
    config = CoreConfig()
    config.request_partitions_max = 10
    rig = AdminRig(config)
    assert create(rig, "a", "b", partitions=5) == [errors.NONE, errors.NONE]
    assert create(rig, "c", "d", partitions=6) == [errors.POLICY_VIOLATION, errors.POLICY_VIOLATION]
    assert widen(rig, "a", 16) == errors.POLICY_VIOLATION
    assert widen(rig, "a", 15) == errors.NONE


def test_all_topics_together_have_a_limit_of_partitions() -> None:
    config = CoreConfig()
    rig = AdminRig(config)
    # Internal topics count.
    internal = rig.topics.total_partitions
    config.partitions_max = internal + 10
    assert create(rig, "a", "b", "c", partitions=4) == [errors.NONE, errors.NONE, errors.POLICY_VIOLATION]
    assert widen(rig, "a", 5) == errors.NONE
    assert widen(rig, "a", 7) == errors.POLICY_VIOLATION
    delete(rig, "b")
    assert rig.topics.total_partitions == internal + 5
    assert widen(rig, "a", 10) == errors.NONE
    rig.open()
    assert rig.topics.total_partitions == internal + 10
    assert create(rig, "d") == [errors.POLICY_VIOLATION]


def test_names_that_differ_in_dots_and_underscores_collide_until_one_goes() -> None:
    rig = AdminRig()
    assert create(rig, "a.b_c") == [errors.NONE]
    assert create(rig, "a_b.c") == [errors.INVALID_TOPIC_EXCEPTION]
    assert create(rig, "a.b.c") == [errors.INVALID_TOPIC_EXCEPTION]
    delete(rig, "a.b_c")
    assert create(rig, "a_b.c") == [errors.NONE]


def test_names() -> None:
    assert check_topic_name("a" * 249) == ""
    assert check_topic_name("A-z_0.9") == ""
    for bad in ("", ".", "..", "a" * 250, "a b", "a/b", "grün", "a\0b", "é"):
        assert check_topic_name(bad) != "", bad


def test_topic_ids_are_random_uuids_that_differ() -> None:
    pattern = re.compile(r"^[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}$")
    for entropy in (b"", b"\0" * 16, b"\xff" * 16, bytes(range(16))):
        ids = [topic_id_from(entropy, index) for index in range(300)]
        assert len(set(ids)) == 300
        for topic_id in ids:
            assert pattern.match(topic_id.hex())
            assert not uuid_text(topic_id).startswith("-")


def test_the_same_entropy_does_not_give_the_same_id_twice() -> None:
    rig = AdminRig()
    rig.entropy = lambda: b"\7" * 16  # type: ignore[method-assign]
    create(rig, "a", "b")
    create(rig, "c")
    assert len({topic.topic_id for topic in rig.topics.topics.values()}) == 4


def test_records_we_have_no_use_for_are_passed_over() -> None:
    topics = TopicRegistry(CoreConfig())
    topics.replay_metadata(NoOpRecord(), 0)
    topics.replay_metadata(None, 1)
    topics.replay_metadata(PartitionRecord(0, b"\1" * 16), 2)
    topics.replay_metadata(RemoveTopicRecord(b"\1" * 16), 3)
    assert topics.end_offset == 4
    assert topics.digest_lines() == ["next_producer_id 0"]


@pytest.mark.parametrize("version", range(2, 8))
def test_bad_configurations_are_refused(version: int) -> None:
    rig = AdminRig()
    assert create(rig, "t", version=version, no_such="1") == [errors.INVALID_CONFIG]
    assert create(rig, "t", version=version, retention_ms="soon") == [errors.INVALID_CONFIG]
    assert rig.topics.get("t") is None


def test_whoever_remembers_a_topic_learns_that_it_is_gone() -> None:
    """Also in logs that no controller writes: a name or an id that is given twice."""
    topics = TopicRegistry(CoreConfig())
    ids = [bytes([number]) * 16 for number in range(3)]
    topics.replay_metadata(TopicRecord("a", ids[0]), 0)
    first = topics.get("a")
    topics.replay_metadata(TopicRecord("a", ids[1]), 1)
    second = topics.get("a")
    assert first is not None and second is not None
    assert (first.is_deleted, second.is_deleted) == (True, False)
    # The name belongs to the second one, whatever happens to the first.
    topics.replay_metadata(RemoveTopicRecord(ids[0]), 2)
    assert topics.get("a") is second and topics.by_id(ids[0]) is None
    topics.replay_metadata(TopicRecord("b", ids[1]), 3)
    third = topics.by_id(ids[1])
    assert third is topics.get("b") and third is not None
    assert (second.is_deleted, third.is_deleted) == (True, False)
    topics.replay_metadata(RemoveTopicRecord(ids[1]), 4)
    assert third.is_deleted and topics.get("b") is None
