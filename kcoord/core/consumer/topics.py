"""Topics as consumer groups look at them: ids of the names they subscribe to, partitions, racks, and hashes."""

from __future__ import annotations

from typing import Final, final

from kcoord.core.assignors.spec import UNKNOWN_TOPIC, Assignment, TopicDescriber
from kcoord.core.config import CoreConfig
from kcoord.core.topics.hash import group_hash, topic_hash
from kcoord.core.topics.registry import TopicRegistry
from kcoord.protocol.records.consumer_protocol_assignment import ConsumerProtocolAssignment, TopicPartition
from kcoord.protocol.records.consumer_protocol_subscription import ConsumerProtocolSubscription

# Of a topic that groups have not asked about, or whose size was not known when they did.
NOT_SEEN: Final = -2
# Names that members subscribe to and that do not exist: so many are remembered, to tell creation from growth.
MISSING_MAX: Final = 10000


@final
class GroupTopics(TopicDescriber):
    def __init__(self, config: CoreConfig, registry: TopicRegistry) -> None:
        self.registry = registry
        # One node holds every replica.
        self._racks = [] if config.rack is None else [config.rack]
        self._hashes: dict[str, int] = {}
        # How many partitions there were when a hash was made, UNKNOWN_TOPIC for none of that name.
        self._counts: dict[str, int] = {}
        self._missing = 0
        # What `topic_ids` answered last, at this version of the registry. Most members of a group ask for the same.
        self._ids_version = NOT_SEEN
        self._ids_names: list[str] = []
        self._ids: list[bytes] = []

    def partition_count(self, topic_id: bytes) -> int:
        topic = self.registry.by_id(topic_id)
        return UNKNOWN_TOPIC if topic is None else topic.partition_count

    def racks(self, topic_id: bytes, partition: int) -> list[str]:
        return self._racks if 0 <= partition < self.partition_count(topic_id) else []

    def topic_ids(self, names: list[str]) -> list[bytes]:
        """Ids of those that exist, ascending. Nobody changes the list: members with the same names share it."""
        version = self.registry.version
        if version == self._ids_version and names == self._ids_names:
            return self._ids
        ids: list[bytes] = []
        for name in names:
            topic = self.registry.get(name)
            if topic is not None:
                ids.append(topic.topic_id)
        ids.sort()
        self._ids_version = version
        self._ids_names = names
        self._ids = ids
        return ids

    def assignment_message(self, assignment: Assignment) -> ConsumerProtocolAssignment:
        """An assignment as consumers of the classic protocol read it; topics that are gone are left out."""
        topics: list[TopicPartition] = []
        for topic_id, partitions in assignment.items():
            topic = self.registry.by_id(topic_id)
            if topic is not None:
                topics.append(TopicPartition(topic.name, sorted(partitions)))
        return ConsumerProtocolAssignment(topics)

    def owned_partitions(self, subscription: ConsumerProtocolSubscription) -> dict[bytes, list[int]]:
        """What a consumer of the classic protocol says it has; topics that are gone are left out."""
        owned: dict[bytes, list[int]] = {}
        for of_topic in subscription.owned_partitions:
            topic = self.registry.get(of_topic.topic)
            if topic is not None:
                owned[topic.topic_id] = owned.get(topic.topic_id, []) + of_topic.partitions
        return owned

    def metadata_hash(self, names: dict[str, bool]) -> int:
        """The hash of a group that subscribes to these topics; those that do not exist do not count."""
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
        """These topics changed. How many partitions each had when a group last looked, for describe_change."""
        changes: dict[str, int] = {}
        for name in names:
            self._hashes.pop(name, None)
            before = self._counts.pop(name, NOT_SEEN)
            if before == UNKNOWN_TOPIC:
                self._missing -= 1
            changes[name] = before
        return changes

    def describe_change(self, name: str, before: int) -> str:
        """What happened to a topic, for people."""
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
        return f"{name} created anew with {count} partitions"
