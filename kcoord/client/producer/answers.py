"""What the answer to a Produce request means for a batch, as Kafka's producer classifies it."""

from __future__ import annotations

from typing import Final

from kcoord.client.metadata import Metadata, Node, TopicPartition
from kcoord.client.producer.batch import Batch
from kcoord.protocol import errors
from kcoord.protocol.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

DONE: Final = 0
RETRY: Final = 1
# The broker does not know the numbers of this producer any more: go on with the next epoch.
NEW_EPOCH: Final = 2
SPLIT: Final = 3
FAIL: Final = 4

# Versions with zstd (KIP-110), and with topic ids instead of names (KIP-516).
ZSTD_FROM: Final = 7
TOPIC_IDS_FROM: Final = 13
VERSION_MIN: Final = 3
# After these codes the records may be in the log.
MAYBE_WRITTEN: Final = frozenset(
    {
        errors.REQUEST_TIMED_OUT,
        errors.NETWORK_EXCEPTION,
        errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        errors.KAFKA_STORAGE_ERROR,
    }
)


def classify(code: int, batch: Batch, is_idempotent: bool, is_first: bool) -> int:
    """`is_first` says that no batch of the partition with a smaller sequence number waits for its result."""
    if code in (errors.NONE, errors.DUPLICATE_SEQUENCE_NUMBER):
        return DONE
    if is_idempotent and code == errors.OUT_OF_ORDER_SEQUENCE_NUMBER:
        return NEW_EPOCH if is_first else RETRY
    if is_idempotent and code == errors.UNKNOWN_PRODUCER_ID:
        return NEW_EPOCH
    if code == errors.MESSAGE_TOO_LARGE and batch.count > 1:
        return SPLIT
    return RETRY if code in errors.RETRIABLE else FAIL


def produce_request(
    version: int,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    data: list[tuple[TopicPartition, bytes]],
    metadata: Metadata,
) -> ProduceRequest:
    """One request with a batch for each of these partitions."""
    topics: dict[str, TopicProduceData] = {}
    for (topic, partition), records in data:
        entry = topics.get(topic)
        if entry is None:
            if version >= TOPIC_IDS_FROM:
                entry = TopicProduceData(topic_id=metadata.topics[topic].topic_id)
            else:
                entry = TopicProduceData(topic)
            topics[topic] = entry
        entry.partition_data.append(PartitionProduceData(partition, records))
    return ProduceRequest(transactional_id, acks, timeout_ms, list(topics.values()))


def by_partition(
    request_ids: dict[bytes, str], version: int, answer: ProduceResponse
) -> dict[TopicPartition, PartitionProduceResponse]:
    """The parts of an answer. `request_ids` are the names of the topic ids that were sent."""
    found: dict[TopicPartition, PartitionProduceResponse] = {}
    for topic in answer.responses:
        name = request_ids.get(topic.topic_id) if version >= TOPIC_IDS_FROM else topic.name
        if name is not None:
            for one in topic.partition_responses:
                found[TopicPartition(name, one.index)] = one
    return found


def endpoints(answer: ProduceResponse) -> list[Node]:
    """The brokers that the answer names as new leaders (KIP-951)."""
    return [Node(one.node_id, one.host, one.port, one.rack) for one in answer.node_endpoints]
