"""Topics as consumer groups look at them: ids of the names they subscribe to, partitions, racks, and hashes."""

from __future__ import annotations

from typing import final

from kcoord.core.assignors.spec import UNKNOWN_TOPIC, TopicDescriber
from kcoord.core.config import CoreConfig
from kcoord.core.metadata_hash import group_hash, topic_hash
from kcoord.core.topics import TopicRegistry


@final
class GroupTopics(TopicDescriber):
    def __init__(self, config: CoreConfig, registry: TopicRegistry) -> None:
        self.registry = registry
        # One node holds every replica.
        self._racks = [] if config.rack is None else [config.rack]
        self._hashes: dict[str, int] = {}

    def partition_count(self, topic_id: bytes) -> int:
        topic = self.registry.by_id(topic_id)
        return UNKNOWN_TOPIC if topic is None else topic.partition_count

    def racks(self, topic_id: bytes, partition: int) -> list[str]:
        return self._racks if 0 <= partition < self.partition_count(topic_id) else []

    def topic_ids(self, names: list[str]) -> list[bytes]:
        """Ids of those that exist, ascending."""
        ids: list[bytes] = []
        for name in names:
            topic = self.registry.get(name)
            if topic is not None:
                ids.append(topic.topic_id)
        ids.sort()
        return ids

    def metadata_hash(self, names: dict[str, bool]) -> int:
        """The hash of a group that subscribes to these topics; those that do not exist do not count."""
        hashes: dict[str, int] = {}
        for name in names:
            known = self._hashes.get(name)
            if known is None:
                topic = self.registry.get(name)
                if topic is None:
                    continue
                partitions = [(partition, self._racks) for partition in range(topic.partition_count)]
                known = topic_hash(topic.topic_id, name, partitions)
                self._hashes[name] = known
            hashes[name] = known
        return group_hash(hashes)

    def forget(self, names: list[str]) -> None:
        """These topics changed."""
        for name in names:
            self._hashes.pop(name, None)
