"""Topics, their partitions and their offsets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

# Instead of a time, in `Admin.list_offsets`.
EARLIEST: Final = -2
LATEST: Final = -1
# The record with the largest timestamp.
MAX_TIMESTAMP: Final = -3


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """`offset` is -1 if no record is that new. `timestamp` is -1 for the first and the last offset."""

    offset: int
    timestamp: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Record batches as the broker sent them. The last one may be cut, the first one may begin before the offset."""

    data: bytes
    high_watermark: int


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
