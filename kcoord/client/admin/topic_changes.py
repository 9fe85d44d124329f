"""Creates and deletes topics, partitions and records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kcoord.client.admin.results import CreatedTopic, NewTopic
from kcoord.client.admin.spread import Spread
from kcoord.client.admin.topics import broker_ms
from kcoord.client.connection import Connection
from kcoord.client.deadline import Deadline
from kcoord.client.errors import KafkaError, error_for
from kcoord.client.metadata import TopicPartition
from kcoord.client.partition import by_topic
from kcoord.protocol import apis
from kcoord.protocol.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from kcoord.protocol.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kcoord.protocol.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from kcoord.protocol.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState

# DeleteTopics names topics in another field from version 6 on.
DELETE_STATES_FROM: Final = 6


async def create_topics(
    spread: Spread, deadline: Deadline, topics: Iterable[NewTopic], validate_only: bool
) -> dict[str, CreatedTopic | KafkaError]:
    given = {topic.name: topic for topic in topics}

    async def ask(connection: Connection, part: list[str]) -> dict[str, CreatedTopic | KafkaError]:
        version = connection.version(apis.CREATE_TOPICS)
        creatable = [_creatable(given[name]) for name in part]
        request = CreateTopicsRequest(creatable, broker_ms(deadline, connection), validate_only)
        answer = await connection.ask(apis.CREATE_TOPICS, version, request, CreateTopicsResponse)
        return {
            one.name: error_for(one.error_code, f"topic {one.name}", one.error_message)
            if one.error_code
            else CreatedTopic(one.name, one.topic_id, one.num_partitions, one.replication_factor)
            for one in answer.topics
        }

    return await spread.over_controller(deadline, given, ask)


def _creatable(topic: NewTopic) -> CreatableTopic:
    assignments = [CreatableReplicaAssignment(number, list(some)) for number, some in sorted(topic.assignments.items())]
    configs = [CreatableTopicConfig(name, value) for name, value in topic.configs.items()]
    return CreatableTopic(topic.name, topic.partitions, topic.replication_factor, assignments, configs)


async def delete_topics(spread: Spread, deadline: Deadline, names: Iterable[str]) -> dict[str, KafkaError | None]:
    async def ask(connection: Connection, part: list[str]) -> dict[str, KafkaError | None]:
        version = connection.version(apis.DELETE_TOPICS)
        request = DeleteTopicsRequest(timeout_ms=broker_ms(deadline, connection))
        if version >= DELETE_STATES_FROM:
            request.topics = [DeleteTopicState(name=name) for name in part]
        else:
            request.topic_names = part
        answer = await connection.ask(apis.DELETE_TOPICS, version, request, DeleteTopicsResponse)
        return {
            one.name or "": error_for(one.error_code, f"topic {one.name}", one.error_message)
            if one.error_code
            else None
            for one in answer.responses
        }

    return await spread.over_controller(deadline, names, ask)


async def create_partitions(
    spread: Spread, deadline: Deadline, counts: Mapping[str, int], validate_only: bool
) -> dict[str, KafkaError | None]:
    async def ask(connection: Connection, part: list[str]) -> dict[str, KafkaError | None]:
        version = connection.version(apis.CREATE_PARTITIONS)
        request = CreatePartitionsRequest(
            [CreatePartitionsTopic(name, counts[name], None) for name in part],
            broker_ms(deadline, connection),
            validate_only,
        )
        answer = await connection.ask(apis.CREATE_PARTITIONS, version, request, CreatePartitionsResponse)
        return {
            one.name: error_for(one.error_code, f"topic {one.name}", one.error_message) if one.error_code else None
            for one in answer.results
        }

    return await spread.over_controller(deadline, counts, ask)


async def delete_records(
    spread: Spread, deadline: Deadline, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | KafkaError]:
    async def ask(connection: Connection, part: list[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
        topics = [
            DeleteRecordsTopic(name, [DeleteRecordsPartition(one, offsets[TopicPartition(name, one)]) for one in some])
            for name, some in by_topic(part).items()
        ]
        version = connection.version(apis.DELETE_RECORDS)
        request = DeleteRecordsRequest(topics, broker_ms(deadline, connection))
        answer = await connection.ask(apis.DELETE_RECORDS, version, request, DeleteRecordsResponse)
        found: dict[TopicPartition, int | KafkaError] = {}
        for topic in answer.topics:
            for one in topic.partitions:
                key = TopicPartition(topic.name, one.partition_index)
                found[key] = error_for(one.error_code, f"partition {key}") if one.error_code else one.low_watermark
        return found

    return await spread.over_leaders(deadline, offsets, ask)
