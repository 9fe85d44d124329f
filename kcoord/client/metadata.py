"""What a client knows of a cluster: brokers, topics, partitions and their leaders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, final

from kcoord.client.partition import TopicPartition as TopicPartition  # noqa: PLC0414  others import it from here
from kcoord.protocol.errors import LEADER_NOT_AVAILABLE, NONE
from kcoord.protocol.metadata import MetadataResponse, MetadataResponseTopic

NO_NODE: Final = -1
NO_EPOCH: Final = -1
NO_ID: Final = bytes(16)


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """Who a consumer is in its group, for a producer that commits its offsets in a transaction (KIP-447).

    `generation_id` is the member epoch in a consumer group (KIP-848), and -1 without a member.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A broker."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """`leader` is NO_NODE if there is none; `leader_epoch` is NO_EPOCH if the broker is too old to know it."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    error_code: int = NONE


@dataclass(slots=True)
class TopicMetadata:
    """`topic_id` is NO_ID from brokers before 2.8."""

    name: str
    topic_id: bytes = NO_ID
    is_internal: bool = False
    error_code: int = NONE
    partitions: dict[int, PartitionMetadata] = field(default_factory=dict)


@final
class Metadata:
    """The newest answers. A leader epoch never goes back while the topic stays the same (KIP-320)."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.controller_id = NO_NODE
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, TopicMetadata] = {}
        self.names_by_id: dict[bytes, str] = {}

    def leader(self, partition: TopicPartition) -> int:
        """The node id of the leader, NO_NODE while unknown."""
        found = self.partition(partition)
        return NO_NODE if found is None else found.leader

    def leader_epoch(self, partition: TopicPartition) -> int:
        found = self.partition(partition)
        return NO_EPOCH if found is None else found.leader_epoch

    def partition(self, partition: TopicPartition) -> PartitionMetadata | None:
        topic = self.topics.get(partition.topic)
        return None if topic is None else topic.partitions.get(partition.partition)

    def partition_count(self, topic: str) -> int:
        """The number of partitions, 0 while the topic is unknown."""
        found = self.topics.get(topic)
        return 0 if found is None else len(found.partitions)

    def update(self, answer: MetadataResponse, is_complete: bool) -> bool:
        """Take over an answer, which names all topics if it `is_complete`. Returns whether anything has changed."""
        before = (self.nodes, dict(self.topics))
        self.cluster_id = answer.cluster_id
        self.controller_id = answer.controller_id
        self.nodes = {one.node_id: Node(one.node_id, one.host, one.port, one.rack) for one in answer.brokers}
        topics = {} if is_complete else dict(self.topics)
        for described in answer.topics:
            if described.name is not None:
                topics[described.name] = self._topic(described.name, described)
        self.topics = topics
        self.names_by_id = {topic.topic_id: name for name, topic in topics.items() if topic.topic_id != NO_ID}
        return before != (self.nodes, self.topics)

    def _topic(self, name: str, described: MetadataResponseTopic) -> TopicMetadata:
        known = self.topics.get(name)
        is_same = known is not None and known.topic_id == described.topic_id
        topic = TopicMetadata(name, described.topic_id, described.is_internal, described.error_code)
        for one in described.partitions:
            leader = one.leader_id if one.error_code in (NONE, LEADER_NOT_AVAILABLE) else NO_NODE
            found = PartitionMetadata(
                leader,
                one.leader_epoch,
                tuple(one.replica_nodes),
                tuple(one.isr_nodes),
                tuple(one.offline_replicas),
                one.error_code,
            )
            if is_same and known is not None:
                old = known.partitions.get(one.partition_index)
                if old is not None and old.leader_epoch > found.leader_epoch != NO_EPOCH:
                    found = old
            topic.partitions[one.partition_index] = found
        return topic

    def note_leader(self, partition: TopicPartition, leader: int, leader_epoch: int, nodes: list[Node]) -> bool:
        """A broker named a new leader with an error (KIP-951). Returns whether that was news."""
        topic = self.topics.get(partition.topic)
        known = self.partition(partition)
        if topic is None or known is None or leader < 0 or leader_epoch <= known.leader_epoch:
            return False
        for node in nodes:
            self.nodes.setdefault(node.node_id, node)
        if leader not in self.nodes:
            return False
        topic.partitions[partition.partition] = PartitionMetadata(
            leader, leader_epoch, known.replicas, known.in_sync, known.offline
        )
        return True
