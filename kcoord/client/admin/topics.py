"""Topics, partitions, and the offsets of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kcoord.client.admin.results import (
    MAX_TIMESTAMP,
    ListedOffset,
    PartitionDescription,
    TopicDescription,
    TopicListing,
)
from kcoord.client.admin.spread import Spread
from kcoord.client.connection import Connection
from kcoord.client.deadline import Deadline
from kcoord.client.errors import KafkaError, error_for
from kcoord.client.metadata import NO_NODE, TopicPartition
from kcoord.client.partition import by_topic
from kcoord.protocol import apis, errors
from kcoord.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kcoord.protocol.metadata import MetadataResponseTopic

# The broker ends its part of a call in this share of the time, so that its answer arrives before the deadline.
BROKER_SHARE: Final = 0.8
INT32_MAX: Final = 2**31 - 1
# ListOffsets knows MAX_TIMESTAMP from version 7 on.
MAX_TIMESTAMP_FROM: Final = 7
# A consumer's request, not one of a replica.
CONSUMER: Final = -1


def broker_ms(deadline: Deadline, connection: Connection) -> int:
    limit_s = min(deadline.left_s(), connection.options.request_timeout_s)
    return min(int(limit_s * BROKER_SHARE * 1000), INT32_MAX)


async def list_topics(spread: Spread, deadline: Deadline, include_internal: bool) -> list[TopicListing]:
    topics = await spread.cluster.retry(deadline, lambda: spread.topics(None))
    return [
        TopicListing(name, topic.topic_id, topic.is_internal, len(topic.partitions))
        for name, topic in sorted(topics.items())
        if include_internal or not topic.is_internal
    ]


async def describe_topics(
    spread: Spread, deadline: Deadline, names: Iterable[str]
) -> dict[str, TopicDescription | KafkaError]:
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return {}
    topics = await spread.cluster.retry(deadline, lambda: spread.topics(wanted))
    found: dict[str, TopicDescription | KafkaError] = {}
    for name in wanted:
        topic = topics.get(name)
        code = errors.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
        found[name] = error_for(code, f"topic {name}") if topic is None or code else _described(name, topic)
    return found


def _described(name: str, topic: MetadataResponseTopic) -> TopicDescription:
    partitions = [
        PartitionDescription(
            one.partition_index,
            NO_NODE if one.error_code == errors.LEADER_NOT_AVAILABLE else one.leader_id,
            one.leader_epoch,
            tuple(one.replica_nodes),
            tuple(one.isr_nodes),
            tuple(one.offline_replicas),
        )
        for one in topic.partitions
    ]
    partitions.sort(key=lambda one: one.partition)
    return TopicDescription(name, topic.topic_id, topic.is_internal, tuple(partitions))


async def list_offsets(
    spread: Spread, deadline: Deadline, times: Mapping[TopicPartition, int], read_committed: bool
) -> dict[TopicPartition, ListedOffset | KafkaError]:
    async def ask(
        connection: Connection, part: list[TopicPartition]
    ) -> dict[TopicPartition, ListedOffset | KafkaError]:
        version_min = MAX_TIMESTAMP_FROM if any(times[one] == MAX_TIMESTAMP for one in part) else 0
        topics = [
            ListOffsetsTopic(name, [ListOffsetsPartition(one, -1, times[TopicPartition(name, one)]) for one in some])
            for name, some in by_topic(part).items()
        ]
        version = connection.version(apis.LIST_OFFSETS, version_min)
        request = ListOffsetsRequest(CONSUMER, int(read_committed), topics, broker_ms(deadline, connection))
        answer = await connection.ask(apis.LIST_OFFSETS, version, request, ListOffsetsResponse)
        found: dict[TopicPartition, ListedOffset | KafkaError] = {}
        for topic in answer.topics:
            for one in topic.partitions:
                key = TopicPartition(topic.name, one.partition_index)
                found[key] = ListedOffset(one.offset, one.timestamp, one.leader_epoch)
                if one.error_code:
                    found[key] = error_for(one.error_code, f"partition {key}")
        return found

    return await spread.over_leaders(deadline, times, ask)
