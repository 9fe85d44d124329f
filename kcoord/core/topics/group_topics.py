"""The view of topics that consumer groups have: ids of subscribed names, partitions, racks, and hashes."""

from __future__ import annotations

from typing import Final, final

from kcoord.core.assignors.spec import UNKNOWN_TOPIC, Assignment, TopicDescriber
from kcoord.core.config import CoreConfig
from kcoord.core.topics.hash import group_hash, topic_hash
from kcoord.core.topics.registry import TopicRegistry
from kcoord.protocol.records.consumer_protocol_assignment import ConsumerProtocolAssignment, TopicPartition
from kcoord.protocol.records.consumer_protocol_subscription import ConsumerProtocolSubscription

# The partition count of a topic that no group has looked up, or that did not exist then.
NOT_SEEN: Final = -2
# How many subscribed names without a topic are remembered, to distinguish creation from growth.
MISSING_MAX: Final = 10000
# How many names the remembered lists of names may have. That is some megabytes.
KNOWN_NAMES_MAX: Final = 100000


@final
class GroupTopics(TopicDescriber):
    def __init__(self, config: CoreConfig, registry: TopicRegistry) -> None:
        self.registry = registry
        # The only node has every replica.
        self._racks = [] if config.rack is None else [config.rack]
        self._hashes: dict[str, int] = {}
        # Partition counts at the time of the last hash; UNKNOWN_TOPIC if the topic did not exist.
        self._counts: dict[str, int] = {}
        self._missing = 0
        # Results of `topic_ids` for one version of the registry, and the last one. Most members of a group share the
        # same names, or there are a few lists of names that alternate.
        self._ids_version = NOT_SEEN
        self._ids_names: list[str] = []
        self._ids: list[bytes] = []
        self._known_ids: dict[tuple[str, ...], list[bytes]] = {}
        self._known_size = 0

    def partition_count(self, topic_id: bytes) -> int:
        topic = self.registry.by_id(topic_id)
        return UNKNOWN_TOPIC if topic is None else topic.partition_count

    def racks(self, topic_id: bytes, partition: int) -> list[str]:
        return self._racks if 0 <= partition < self.partition_count(topic_id) else []

    def topic_ids(self, names: list[str]) -> list[bytes]:
        """The ids of existing topics, ascending. The list is shared between callers and must not be changed."""
        version = self.registry.version
        if version == self._ids_version and names == self._ids_names:
            return self._ids
        if version != self._ids_version or self._known_size > KNOWN_NAMES_MAX:
            self._known_ids = {}
            self._known_size = 0
        key = tuple(names)
        ids = self._known_ids.get(key)
        if ids is None:
            ids = []
            for name in names:
                topic = self.registry.get(name)
                if topic is not None:
                    ids.append(topic.topic_id)
            ids.sort()
            self._known_ids[key] = ids
            self._known_size += len(names) + 1
        self._ids_version = version
        self._ids_names = names
        self._ids = ids
        return ids

    def assignment_message(self, assignment: Assignment) -> ConsumerProtocolAssignment:
        """An assignment in the classic embedded format. Deleted topics are left out."""
        topics: list[TopicPartition] = []
        for topic_id, partitions in assignment.items():
            topic = self.registry.by_id(topic_id)
            if topic is not None:
                topics.append(TopicPartition(topic.name, sorted(partitions)))
        return ConsumerProtocolAssignment(topics)

    def owned_partitions(self, subscription: ConsumerProtocolSubscription) -> dict[bytes, list[int]]:
        """The partitions that a classic consumer reports as owned. Deleted topics are left out."""
        owned: dict[bytes, list[int]] = {}
        for of_topic in subscription.owned_partitions:
            topic = self.registry.get(of_topic.topic)
            if topic is not None:
                owned[topic.topic_id] = owned.get(topic.topic_id, []) + of_topic.partitions
        return owned

    def metadata_hash(self, names: dict[str, bool]) -> int:
        """The metadata hash of a group that subscribes to these topics. Topics that do not exist do not count."""
        hashes: dict[str, int] = {}
        for name in names:
            known = self._hashes.get(name)
            if known is None:
                topic = self.registry.get(name)
                if topic is None:
                    if name not in self._counts and self._missing < MISSING_MAX:
                        self._missing += 1
                        self._counts[name] = UNKNOWN_TOPIC
                    continue
                self._counts[name] = topic.partition_count
                partitions = [(partition, self._racks) for partition in range(topic.partition_count)]
                known = topic_hash(topic.topic_id, name, partitions)
                self._hashes[name] = known
            hashes[name] = known
        return group_hash(hashes)

    def forget(self, names: list[str]) -> dict[str, int]:
        """These topics changed. Returns their partition counts at the last look-up, for `describe_change`."""
        changes: dict[str, int] = {}
        for name in names:
            self._hashes.pop(name, None)
            before = self._counts.pop(name, NOT_SEEN)
            if before == UNKNOWN_TOPIC:
                self._missing -= 1
            changes[name] = before
        return changes

    def describe_change(self, name: str, before: int) -> str:
        """How a topic changed, as a text for people."""
        topic = self.registry.get(name)
        if topic is None:
            return f"{name} deleted"
        count = topic.partition_count
        if before == UNKNOWN_TOPIC:
            return f"{name} created with {count} partitions"
        if before == NOT_SEEN:
            return f"{name} now has {count} partitions"
        if before < count:
            return f"{name} grew from {before} to {count} partitions"
        return f"{name} recreated with {count} partitions"
