"""Worst frames of the APIs of topics, configs, the cluster and producer ids."""

from __future__ import annotations

from typing import Any, Final

from kcoord.protocol import apis
from kcoord.protocol.api_versions import ApiVersionsRequest
from kcoord.protocol.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kcoord.protocol.describe_cluster import DescribeClusterRequest
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.list_config_resources import ListConfigResourcesRequest
from kcoord.protocol.metadata import MetadataRequest
from tests.stall.frames import Frame, filled, message
from tests.stall.frames_groups import ALL_TOPICS, ONE, UNKNOWN
from tests.stall.shapes import DIFFERENT_MAX
from tests.stall.worlds import WIDE, topic_name

# Each collides with all others but for the first: '.' and '_' are the same in names of metrics.
COLLIDING: Final = [f"a.{number}_b" for number in range(DIFFERENT_MAX)]
TIMEOUT_MS: Final = 30_000
# What a controller takes in one request.
PARTITIONS: Final = 10_000
# Resource types.
TOPIC, BROKER, GROUP = 2, 4, 32
APPEND: Final = 2


def create_frames() -> list[Frame]:
    create = apis.CREATE_TOPICS
    both = ALL_TOPICS + UNKNOWN
    return [
        message(create, 7, "10,000 partitions", "empty", lambda world: CreateTopicsRequest(
            [CreatableTopic("n", world.size(PARTITIONS), 1)], TIMEOUT_MS, False), changes=True),
        message(create, 7, "10,000 topics", "empty", lambda world: CreateTopicsRequest(
            [CreatableTopic(f"n{number}", 1, 1) for number in range(world.size(PARTITIONS))], TIMEOUT_MS, False),
                changes=True),
        filled(create, 7, "names that exist", "topics", "Topics", "different", Name=ALL_TOPICS),
        filled(create, 7, "names that collide", "topics", "Topics", "different", Name=COLLIDING),
        filled(create, 7, "configs of one topic", "topics", "Topics.Configs", "different"),
        filled(create, 7, "assignments of one topic", "topics", "Topics.Assignments", "different", "deep", Name="n",
               PartitionIndex=range(DIFFERENT_MAX), BrokerIds=1),
        message(apis.CREATE_PARTITIONS, 3, "9,999 more", "topics", lambda world: CreatePartitionsRequest(
            [CreatePartitionsTopic(topic_name(0), world.size(PARTITIONS), None)], TIMEOUT_MS, False), changes=True),
        filled(apis.CREATE_PARTITIONS, 3, "names", "topics", "Topics", "different", Name=both, Count=1),
        filled(apis.CREATE_PARTITIONS, 3, "assignments", "topics", "Topics.Assignments", Count=5),
        message(apis.DELETE_TOPICS, 6, "8,000 partitions", "topics", lambda world: DeleteTopicsRequest(
            [DeleteTopicState(WIDE)], [], TIMEOUT_MS), changes=True),
        filled(apis.DELETE_TOPICS, 4, "1,000 topics", "topics", "TopicNames", "different", changes=True,
               TopicNames=both),
        message(apis.DELETE_TOPICS, 6, "8,000 partitions with offsets", "offsets", lambda world: DeleteTopicsRequest(
            [DeleteTopicState(WIDE)], [], TIMEOUT_MS), changes=True),
    ]  # fmt: skip


def metadata_frames() -> list[Frame]:
    key, new = apis.METADATA, [f"n{number}" for number in range(DIFFERENT_MAX)]
    ids = [number.to_bytes(16, "big") for number in range(1, DIFFERENT_MAX)]
    return [
        message(key, 12, "all topics", "topics", lambda world: MetadataRequest(None, False, False)),
        filled(key, 12, "8,000 partitions, as often as fits", "topics", "Topics", AllowAutoTopicCreation=0, Name=WIDE),
        filled(key, 9, "8,000 partitions, as often as fits", "topics", "Topics", AllowAutoTopicCreation=0, Name=WIDE),
        filled(key, 9, "topics to create", "topics", "Topics", "different", changes=True, Name=new),
        filled(key, 9, "topics to create, 100 KB", "topics", "Topics", "different", share=0.1, changes=True, Name=new),
        filled(key, 9, "names that collide", "topics", "Topics", "different", changes=True, Name=COLLIDING),
        filled(key, 9, "unknown topics", "topics", "Topics", "different", AllowAutoTopicCreation=0, Name=new),
        filled(key, 13, "unknown topic ids", "topics", "Topics", "different", Name=None, TopicId=ids),
        filled(apis.DESCRIBE_TOPIC_PARTITIONS, 0, "8,000 partitions, as often as fits", "topics", "Topics", Name=WIDE),
        filled(apis.DESCRIBE_TOPIC_PARTITIONS, 0, "topics", "topics", "Topics", "different", Name=ALL_TOPICS + UNKNOWN),
    ]


def config_frames() -> list[Frame]:
    describe, alter, resources = apis.DESCRIBE_CONFIGS, apis.INCREMENTAL_ALTER_CONFIGS, "Resources"
    topic: dict[str, Any] = {"ResourceName": topic_name(0)}
    session: dict[str, Any] = {"Name": "consumer.session.timeout.ms", "Value": "45000"}
    interval: dict[str, Any] = {"Name": "group.consumer.assignment.interval.ms", "Value": "1000"}
    retention: dict[str, Any] = {"Name": "retention.ms", "Value": "100000"}
    return [
        filled(describe, 4, "a topic, as often as fits", "topics", resources, "nulls", **topic),
        filled(describe, 4, "1,000 topics, as often as fits", "topics", resources, "nulls", "different",
               ResourceName=ALL_TOPICS),
        filled(describe, 4, "1,000 topics", "topics", resources, "nulls", "different", share=0.0105,
               ResourceName=ALL_TOPICS),
        filled(describe, 4, "the broker, as often as fits", "topics", resources, "nulls", ResourceType=BROKER,
               ResourceName="1"),
        filled(describe, 4, "unknown groups", "groups", resources, "nulls", "different", ResourceType=GROUP,
               ResourceName=UNKNOWN),
        filled(describe, 4, "a config, as often as fits", "topics", "Resources.ConfigurationKeys", **topic,
               ConfigurationKeys="retention.ms"),
        filled(alter, 1, "a config, as often as fits", "topics", "Resources.Configs", changes=True, **topic,
               **retention),
        filled(alter, 1, "appended to a list", "topics", "Resources.Configs", share=0.032, changes=True, **topic,
               Name="cleanup.policy", Value="compact" + ",compact" * 4_000, ConfigOperation=APPEND),
        filled(alter, 1, "a config of 1,000 topics", "topics", resources, "different", "deep", changes=True,
               ResourceName=ALL_TOPICS, **retention),
        filled(alter, 1, "a config of new groups", "topics", resources, "different", "deep", changes=True,
               ResourceType=GROUP, ResourceName=UNKNOWN, **session),
        filled(alter, 1, "a default of all groups", "topics", resources, "deep", share=1.5e-4, changes=True,
               ResourceType=BROKER, ResourceName="", **interval),
        filled(apis.ALTER_CONFIGS, 2, "a config of 1,000 topics", "topics", resources, "different", "deep",
               changes=True, ResourceName=ALL_TOPICS, **retention),
        filled(apis.ALTER_CONFIGS, 2, "a config, as often as fits", "topics", "Resources.Configs", changes=True,
               **topic, **retention),
        filled(apis.LIST_CONFIG_RESOURCES, 1, "a type, as often as fits", "topics", "ResourceTypes",
               ResourceTypes=TOPIC),
        message(apis.LIST_CONFIG_RESOURCES, 1, "all types", "topics", lambda world: ListConfigResourcesRequest(
            [TOPIC, BROKER, 8, 16, GROUP])),
    ]  # fmt: skip


def other_frames() -> list[Frame]:
    name = "a" * 30_000
    return [
        message(apis.INIT_PRODUCER_ID, 4, "a producer id", "empty", lambda world: InitProducerIdRequest(
            None, 1_000, -1, -1), changes=True),
        message(apis.DESCRIBE_CLUSTER, 2, "the cluster", "topics", lambda world: DescribeClusterRequest(True, 1, True)),
        message(apis.API_VERSIONS, 4, "versions", "empty", lambda world: ApiVersionsRequest(name, name)),
        filled(apis.LIST_CONFIG_RESOURCES, 1, "unknown types", "topics", "ResourceTypes", share=ONE, ResourceTypes=99),
    ]  # fmt: skip


def topic_frames() -> list[Frame]:
    return create_frames() + metadata_frames() + config_frames() + other_frames()
