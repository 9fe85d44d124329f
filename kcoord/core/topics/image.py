"""What the metadata log amounts to, as records: the fewest that make the same registry again.

Records stand in the order in which Kafka's metadata image writes them (KIP-630): features, topics with their
partitions, configurations, producer ids. Partitions are written as this server has them: it is their only replica and
leads them. A record of any other kind is not in the registry, so whoever makes a snapshot keeps those as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kcoord.core.topics.features import METADATA_VERSION
from kcoord.core.topics.registry import TopicRegistry
from kcoord.protocol.records.config_record import ConfigRecord
from kcoord.protocol.records.feature_level_record import FeatureLevelRecord
from kcoord.protocol.records.partition_change_record import PartitionChangeRecord
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.producer_ids_record import ProducerIdsRecord
from kcoord.protocol.records.remove_topic_record import RemoveTopicRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.wire.message import Message

# A block of producer ids is nobody's any more.
NO_BROKER: Final = -1


def is_in_image(record: Message) -> bool:
    """Whether what the record says is in the registry, and so in its image."""
    return isinstance(
        record,
        (
            TopicRecord,
            PartitionRecord,
            PartitionChangeRecord,
            RemoveTopicRecord,
            ConfigRecord,
            ProducerIdsRecord,
            FeatureLevelRecord,
        ),
    )


def feature_records(topics: TopicRegistry) -> Iterator[Message]:
    """The first part, the metadata version before all others; what is about nodes comes between the two."""
    levels = topics.features.levels
    if METADATA_VERSION in levels:
        yield FeatureLevelRecord(METADATA_VERSION, levels[METADATA_VERSION])
    for name, level in levels.items():
        if name != METADATA_VERSION:
            yield FeatureLevelRecord(name, level)


def image_records(topics: TopicRegistry) -> Iterator[Message]:
    """The second part. Both make a registry with the same digest."""
    node_id = topics.config.node_id
    for topic in topics.topics_by_id.values():
        yield TopicRecord(topic.name, topic.topic_id)
        for partition in range(topic.partition_count):
            yield PartitionRecord(
                partition_id=partition,
                topic_id=topic.topic_id,
                replicas=[node_id],
                isr=[node_id],
                leader=node_id,
                leader_epoch=topic.leader_epochs[partition],
                partition_epoch=0,
            )
    for resource_type, of_type in topics.configs.items():
        for resource_name, configs in of_type.items():
            for name, value in configs.items():
                yield ConfigRecord(resource_type, resource_name, name, value)
    if topics.next_producer_id > 0:
        yield ProducerIdsRecord(NO_BROKER, NO_BROKER, topics.next_producer_id)
