"""What the admin client takes and returns. Times are Unix times in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kcoord.client.metadata import Node, TopicPartition

# Instead of a time, in `Admin.list_offsets`.
EARLIEST: Final = -2
LATEST: Final = -1
# The record with the largest timestamp.
MAX_TIMESTAMP: Final = -3

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"


@dataclass(frozen=True, slots=True)
class GroupListing:
    """`state` and `type` are empty if the broker is too old to name them."""

    group_id: str
    protocol_type: str
    state: str
    type: str


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """`epoch`, `target` and `subscription` are for members of consumer groups."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...] = ()
    rack_id: str | None = None
    epoch: int | None = None
    target: tuple[TopicPartition, ...] | None = None
    subscription: tuple[str, ...] = ()
    subscription_regex: str | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """`type` is `classic` or `consumer`. Epochs are for consumer groups."""

    group_id: str
    type: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: Node
    members: tuple[MemberDescription, ...] = ()
    epoch: int | None = None
    assignment_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """`leader_epoch` is -1 if unknown."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """`offset` is -1 if no record is that new. `timestamp` is -1 for the first and the last offset."""

    offset: int
    timestamp: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class TopicListing:
    """`topic_id` is NO_ID from brokers before 2.8."""

    name: str
    topic_id: bytes
    is_internal: bool
    partition_count: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """`leader` is -1 if there is none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """Partitions in the order of their numbers."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """-1 means the broker's default. `assignments` are the brokers of each partition, instead of numbers."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, str | None] = field(default_factory=dict)
    assignments: dict[int, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """Numbers are -1 from brokers before 2.4."""

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int


TOPIC_RESOURCE: Final = "topic"
BROKER_RESOURCE: Final = "broker"
GROUP_RESOURCE: Final = "group"
RESOURCE_CODES: Final = {
    TOPIC_RESOURCE: 2,
    BROKER_RESOURCE: 4,
    "broker-logger": 8,
    "client-metrics": 16,
    GROUP_RESOURCE: 32,
}


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """`kind` is one of RESOURCE_CODES. The name of a broker is its id; empty: the default of all brokers."""

    kind: str
    name: str


CONFIG_SOURCES: Final = {
    0: "unknown",
    1: "topic",
    2: "broker",
    3: "default broker",
    4: "static broker",
    5: "default",
    6: "broker logger",
    7: "client metrics",
    8: "group",
}


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """`value` is None if it is sensitive. `source` is one of CONFIG_SOURCES."""

    name: str
    value: str | None
    source: str
    is_read_only: bool = False
    is_sensitive: bool = False

    @property
    def is_default(self) -> bool:
        return self.source in ("default", "static broker", "default broker")


SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """`operation` is SET, DELETE (back to the default), APPEND or SUBTRACT (of lists)."""

    name: str
    value: str | None = None
    operation: int = SET


@dataclass(frozen=True, slots=True)
class LogReplica:
    """A partition in a log directory."""

    partition: TopicPartition
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    """Sizes of the volume are -1 from brokers before 3.3. `error_code` is not 0 if the directory has failed."""

    path: str
    error_code: int
    replicas: tuple[LogReplica, ...]
    total_bytes: int = -1
    usable_bytes: int = -1


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """`coordinator` is the broker's id."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """`start_ms` is -1 if no transaction is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    coordinator: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """`transaction_start_offset` is -1 without an open transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int


@dataclass(frozen=True, slots=True)
class FencedProducer:
    """The producer id and epoch that the coordinator gave out instead."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """`controller` is None if the cluster has none now."""

    cluster_id: str | None
    controller: Node | None
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Features:
    """(least, newest) level of each feature: what is in force, and what the broker supports."""

    finalized: dict[str, tuple[int, int]]
    supported: dict[str, tuple[int, int]]
    epoch: int
