"""What one request about topics or configurations may ask for: beyond it nothing is done, and the answer says so."""

from __future__ import annotations

import pytest

from kcoord.core.admin.configs import ALTERED_MAX, DESCRIBED_ENTRIES_MAX
from kcoord.core.admin.metadata import AUTO_CREATED_PARTITIONS_MAX
from kcoord.core.admin.topics import CONFIGS_SHOWN_TOPICS_MAX
from kcoord.core.config import CoreConfig
from kcoord.core.topics.config_defs import TOPIC_CONFIGS
from kcoord.core.topics.registry import RESOURCE_TOPIC
from kcoord.protocol import apis, errors
from kcoord.protocol.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kcoord.protocol.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kcoord.protocol.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kcoord.protocol.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    RequestCursor,
    TopicRequest,
)
from kcoord.protocol.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kcoord.protocol.metadata import MetadataRequest, MetadataRequestTopic
from tests.unit.core.admin.admin_rig import AdminRig
from tests.unit.core.topics.test_topics import create


def test_records_of_one_creation_are_limited() -> None:
    rig = AdminRig()
    rig.admin.request_records_max = 10
    before = len(rig.log)
    configs = [CreatableTopicConfig(name, "1") for name in ("retention.ms", "segment.ms", "flush.ms")]
    topics = [CreatableTopic("a", 3, 1, [], configs), CreatableTopic("b", 3, 1)]
    refused = rig.ask(apis.CREATE_TOPICS, 7, CreateTopicsRequest(topics)).topics
    assert [topic.error_code for topic in refused] == [errors.POLICY_VIOLATION] * 2
    assert len(rig.log) == before
    made = rig.ask(apis.CREATE_TOPICS, 7, CreateTopicsRequest(topics[:1])).topics
    assert [topic.error_code for topic in made] == [errors.NONE]


def test_topics_of_one_deletion_are_limited() -> None:
    config = CoreConfig()
    config.request_partitions_max = 3
    rig = AdminRig(config)
    create(rig, "a", "b", "c")
    create(rig, "d")
    before = len(rig.log)
    body = DeleteTopicsRequest([DeleteTopicState(name) for name in ("a", "b", "c", "d")])
    refused = rig.ask(apis.DELETE_TOPICS, 6, body).responses
    assert [topic.error_code for topic in refused] == [errors.POLICY_VIOLATION] * 4
    assert len(rig.log) == before
    body.topics = body.topics[1:]
    assert {topic.error_code for topic in rig.ask(apis.DELETE_TOPICS, 6, body).responses} == {errors.NONE}


def test_an_answer_about_many_new_topics_leaves_configurations_out() -> None:
    rig = AdminRig()
    names = [f"t{number}" for number in range(CONFIGS_SHOWN_TOPICS_MAX + 2)]
    body = CreateTopicsRequest([CreatableTopic(name, 1, 1) for name in names])
    made = rig.ask(apis.CREATE_TOPICS, 7, body).topics
    assert {topic.error_code for topic in made} == {errors.NONE}
    assert [len(topic.configs) for topic in made[-3:]] == [len(TOPIC_CONFIGS), 0, 0]
    left_out = [topic.topic_config_error_code for topic in made[-3:]]
    assert left_out == [errors.NONE, errors.POLICY_VIOLATION, errors.POLICY_VIOLATION]


@pytest.mark.parametrize("partitions", [1, 7, AUTO_CREATED_PARTITIONS_MAX + 1])
def test_metadata_creates_a_bounded_number_of_partitions(partitions: int) -> None:
    config = CoreConfig()
    config.num_partitions = partitions
    rig = AdminRig(config)
    before = rig.topics.total_partitions
    names = [f"t{number}" for number in range(AUTO_CREATED_PARTITIONS_MAX + 5)]
    asked = [MetadataRequestTopic(name=name) for name in (*names, names[0])]
    codes = [topic.error_code for topic in rig.ask(apis.METADATA, 12, MetadataRequest(asked, True)).topics]
    made = max(AUTO_CREATED_PARTITIONS_MAX // partitions, 1)
    # A client asks again about these, and gets the next of them.
    assert codes == [errors.NONE] * made + [errors.UNKNOWN_TOPIC_OR_PARTITION] * (len(names) - made)
    assert rig.topics.total_partitions == before + made * partitions
    again = rig.ask(apis.METADATA, 12, MetadataRequest(asked, True)).topics
    assert [topic.error_code for topic in again].count(errors.NONE) == min(2 * made, len(names))


def test_a_description_is_limited() -> None:
    rig = AdminRig()
    create(rig, "t")
    whole = DESCRIBED_ENTRIES_MAX // (1 + len(TOPIC_CONFIGS)) + 1
    resources = [DescribeConfigsResource(RESOURCE_TOPIC, "t", None)] * (whole + 5)
    results = rig.ask(apis.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources)).results
    codes = [result.error_code for result in results]
    assert codes == [errors.NONE] * whole + [errors.POLICY_VIOLATION] * 5
    few = [DescribeConfigsResource(RESOURCE_TOPIC, "t", ["retention.ms"])] * (whole + 5)
    results = rig.ask(apis.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(few)).results
    assert {result.error_code for result in results} == {errors.NONE}


def test_keys_of_a_description_are_looked_up_by_hash() -> None:
    class Counted(str):
        """A key that counts how often it is compared."""

        comparisons = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Counted.comparisons += 1
            return str.__eq__(self, other)

    rig = AdminRig()
    create(rig, "t")
    keys: list[str] = [Counted(f"key-{number}") for number in range(1000)]
    resource = DescribeConfigsResource(RESOURCE_TOPIC, "t", [*keys, "retention.ms"])
    (result,) = rig.handle(apis.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest([resource])).replies
    assert [config.name for config in result.response.results[0].configs] == ["retention.ms"]  # type: ignore[union-attr]
    assert Counted.comparisons < 100


def test_alterations_of_one_request_are_limited() -> None:
    assert ALTERED_MAX == 10000
    rig = AdminRig()
    rig.configs.altered_max = 2
    create(rig, "a", "b")
    before = len(rig.log)
    changes = [AlterableConfig("retention.ms", 0, "1000"), AlterableConfig("segment.ms", 0, "1000")]
    body = IncrementalAlterConfigsRequest([AlterConfigsResource(RESOURCE_TOPIC, n, changes) for n in "ab"])
    refused = rig.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, body).responses
    assert [resource.error_code for resource in refused] == [errors.POLICY_VIOLATION] * 2
    assert len(rig.log) == before
    body.resources = body.resources[:1]
    assert rig.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, body).responses[0].error_code == errors.NONE


def test_unknown_topics_count_for_the_limit_of_a_description_in_parts() -> None:
    config = CoreConfig()
    config.max_request_partition_size_limit = 3
    rig = AdminRig(config)
    create(rig, "c", partitions=2)
    asked = [TopicRequest(name) for name in ("a", "b", "c", "d", "e")]
    cursor: RequestCursor | None = None
    parts = []
    for _ in range(10):
        body = DescribeTopicPartitionsRequest(asked, 2000, cursor)
        answer = rig.ask(apis.DESCRIBE_TOPIC_PARTITIONS, 0, body)
        parts.append([(topic.name, len(topic.partitions)) for topic in answer.topics])
        if answer.next_cursor is None:
            break
        cursor = RequestCursor(answer.next_cursor.topic_name, answer.next_cursor.partition_index)
    assert parts == [[("a", 0), ("b", 0), ("c", 1)], [("c", 1), ("d", 0), ("e", 0)]]
