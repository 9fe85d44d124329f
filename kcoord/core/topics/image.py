"""The image of the metadata log: the fewest records that build the same registry.

Records are in the order of Kafka's metadata image (KIP-630): features, topics with their partitions, configurations,
producer ids. Partitions are written as this server has them: it is their only replica and leader. The registry does not
have records of any other kind, so the code that writes a snapshot copies those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kcoord.core.topics.features import METADATA_VERSION
from kcoord.core.topics.registry import TopicRegistry, partition_record
from kcoord.protocol.records.config_record import ConfigRecord
from kcoord.protocol.records.feature_level_record import FeatureLevelRecord
from kcoord.protocol.records.partition_change_record import PartitionChangeRecord
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.producer_ids_record import ProducerIdsRecord
from kcoord.protocol.records.remove_topic_record import RemoveTopicRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.wire.message import Message

# The block of producer ids that belongs to no broker.
NO_BROKER: Final = -1


def is_in_image(record: Message) -> bool:
    """Whether the registry, and so its image, has the content of the record."""
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
    """The first part, starting with the metadata version. Records of nodes follow it, before the second part."""
    levels = topics.features.levels
    if METADATA_VERSION in levels:
        yield FeatureLevelRecord(METADATA_VERSION, levels[METADATA_VERSION])
    for name, level in levels.items():
        if name != METADATA_VERSION:
            yield FeatureLevelRecord(name, level)


def image_records(topics: TopicRegistry) -> Iterator[Message]:
    """The second part. Both together build a registry with the same digest."""
    node_id = topics.config.node_id
    for topic in topics.topics_by_id.values():
        yield TopicRecord(topic.name, topic.topic_id)
        for partition in range(topic.partition_count):
            yield partition_record(topic.topic_id, partition, node_id, topic.leader_epochs[partition])
    for resource_type, of_type in topics.configs.items():
        for resource_name, configs in of_type.items():
            for name, value in configs.items():
                yield ConfigRecord(resource_type, resource_name, name, value)
    if topics.next_producer_id > 0:
        yield ProducerIdsRecord(NO_BROKER, NO_BROKER, topics.next_producer_id)
