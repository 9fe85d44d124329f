"""A partition by name. A module of its own, so that commands can name partitions without the codec."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A partition by the name of its topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, sorted."""
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(set(partitions)):
        found.setdefault(topic, []).append(partition)
    return found
