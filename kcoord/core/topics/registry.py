"""Topics and all other state of the metadata log: configurations, producer ids, the broker's registration.

The registry is hard state. Handlers read it and return records; only `replay_metadata` changes it, live and at
start-up. The log holds KRaft's records. One node is the only replica and the leader of every partition, without
elections. Its leader epoch is 0, unless the partition came from a broker or from a snapshot: then it is above every
epoch that clients may have seen. Records of other kinds are ignored and stay in the log as they are.

Deleting a topic takes two steps in two logs: the RemoveTopicRecord here, then the tombstones of its committed offsets.
The second begins once the first is durable: a power cut may lose the end of one log and keep that of another, and then
the topic would exist without its offsets. It may also keep only the first. So replay remembers what was removed, and
`unfinished_deletions` repeats all of it once offsets are loaded. Deleting offsets by topic id is harmless if they were
deleted before, and does not affect a newer topic with the same name.
"""

from __future__ import annotations

import re
from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import (
    GROUP_EVENTS_TOPIC,
    INTERNAL_TOPICS,
    METADATA_TOPIC,
    OFFSETS_TOPIC,
    WARNING,
    Fact,
    LogId,
    Outcome,
    TopicsChanged,
    TopicsDeleted,
)
from kcoord.core.topics.config_defs import (
    BROKER_ASSIGNMENT_INTERVAL,
    SOURCE_DEFAULT,
    SOURCE_DYNAMIC_BROKER,
    SOURCE_DYNAMIC_DEFAULT,
    SOURCE_STATIC_BROKER,
    TOPIC_CONFIGS,
    TOPIC_DEFAULTS,
)
from kcoord.core.topics.features import FinalizedFeatures
from kcoord.core.topics.group_configs import GroupConfig, GroupConfigs
from kcoord.protocol.records.config_record import ConfigRecord
from kcoord.protocol.records.feature_level_record import FeatureLevelRecord
from kcoord.protocol.records.partition_change_record import PartitionChangeRecord
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.producer_ids_record import ProducerIdsRecord
from kcoord.protocol.records.remove_topic_record import RemoveTopicRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.wire.message import Message

TOPIC_NAME_CHARS_MAX: Final = 249
# The value of a PartitionChangeRecord without a leader. Any other value starts a new leader epoch (KIP-500).
NO_LEADER_CHANGE: Final = -2
# The records of one CreateTopics, at some 4 µs each. The limit of Kafka's controller is 10,000, which is one too few
# for a topic with 10,000 partitions.
REQUEST_RECORDS_MAX: Final = 11000
TOO_MANY_RECORDS: Final = "Unable to perform excessively large batch operation."
SHARE_STATE_TOPIC: Final = "__share_group_state"

# Resource types of ConfigRecord and of the config APIs.
RESOURCE_TOPIC: Final = 2
RESOURCE_BROKER: Final = 4
RESOURCE_BROKER_LOGGER: Final = 8
RESOURCE_CLIENT_METRICS: Final = 16
RESOURCE_GROUP: Final = 32

_LOW_MASK: Final = (1 << 56) - 1
_NAME: Final = re.compile("[a-zA-Z0-9._-]*")

# Compacted, with small segments, as in Kafka.
INTERNAL_CONFIGS: Final = (
    ("cleanup.policy", "compact"),
    ("compression.type", "producer"),
    ("segment.bytes", "104857600"),
)
TRANSACTION_CONFIGS: Final = (
    ("cleanup.policy", "compact"),
    ("compression.type", "uncompressed"),
    ("min.insync.replicas", "1"),
    ("segment.bytes", "104857600"),
    ("unclean.leader.election.enable", "false"),
)


@final
class Topic:
    """A topic. Its partitions are numbered from 0."""

    def __init__(self, name: str, topic_id: bytes) -> None:
        self.name = name
        self.topic_id = topic_id
        self.is_internal = is_internal_name(name)
        self.partition_count = 0
        # By partition.
        self.leader_epochs: list[int] = []
        # Whoever remembers it has to look it up again.
        self.is_deleted = False

    def leader_epoch(self, partition: int) -> int:
        return self.leader_epochs[partition] if partition < len(self.leader_epochs) else 0


def partition_record(topic_id: bytes, partition: int, node_id: int, leader_epoch: int) -> PartitionRecord:
    """The record of a partition whose only replica and leader is this node."""
    return PartitionRecord(
        partition_id=partition,
        topic_id=topic_id,
        replicas=[node_id],
        isr=[node_id],
        leader=node_id,
        leader_epoch=leader_epoch,
        partition_epoch=0,
    )


@final
class PartitionsCreated:
    """Partitions from `first` up to `end` that were created; the engine opens them next."""

    def __init__(self, topic: str, topic_id: bytes, first: int, end: int) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.first = first
        self.end = end


@final
class TopicRemoved:
    """A topic that was deleted; its directories follow."""

    def __init__(self, topic: str, topic_id: bytes, partition_count: int) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition_count = partition_count


def is_internal_name(name: str) -> bool:
    """Whether clients see a topic of this name as internal."""
    return name in INTERNAL_TOPICS or name == SHARE_STATE_TOPIC or name == GROUP_EVENTS_TOPIC


def check_topic_name(name: str) -> str:
    """Check a topic's name: an error message, or "" if it is valid."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name == "." or name == "..":
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > TOPIC_NAME_CHARS_MAX:
        return (
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed length "
            f"{TOPIC_NAME_CHARS_MAX}"
        )
    if _NAME.fullmatch(name) is None:
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    return ""


def unified_name(name: str) -> str:
    """The name with dots and underscores unified: metrics cannot distinguish names that are equal in this form."""
    return name.replace(".", "_")


def topic_id_from(entropy: bytes, index: int) -> bytes:
    """The `index`-th topic id of a request: a random UUID (version 4) from 16 random bytes.

    The last seven bytes have no fixed bits and count the index, so the ids of one request differ. As in Kafka, no id
    looks like a command line option: its base64 form does not begin with a dash.
    """
    raw = bytearray(entropy[:16].ljust(16, b"\0"))
    low = (int.from_bytes(raw[9:16], "big") + index) & _LOW_MASK
    raw[9:16] = low.to_bytes(7, "big")
    raw[6] = (raw[6] & 0x0F) | 0x40
    raw[8] = (raw[8] & 0x3F) | 0x80
    if raw[0] >> 2 == 62:
        raw[0] ^= 0x80
    return bytes(raw)


@final
class TopicRegistry:
    """The hard state of `__cluster_metadata-0`.

    `created`, `deleted` and `reconfigured` (topic names; empty for the broker's defaults) queue changes in order; the
    engine drains them after replay. `changed` is for groups: the names of topics that were created, deleted or extended
    since start-up.

    `new_topics_version` is the offset of the last record that created a topic, -1 if there is none: matches of a
    regular expression with a lower `version` may be out of date.
    """

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self.log = LogId(METADATA_TOPIC, 0)
        self.end_offset = 0
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[bytes, Topic] = {}
        # The number of partitions of all topics.
        self.total_partitions = 0
        # Names with a dot or an underscore by their unified form.
        self.names_by_unified: dict[str, list[str]] = {}
        # Configurations by resource type and name.
        self.configs: dict[int, dict[str, dict[str, str]]] = {}
        self.features = FinalizedFeatures()
        # The configurations of groups, as numbers in use.
        self.groups = GroupConfigs(config)
        # The end of all reserved producer ids, and the offset after the record that set it.
        self.next_producer_id = 0
        self.producer_ids_offset = 0

        self.created: list[PartitionsCreated] = []
        self.deleted: list[TopicRemoved] = []
        self.reconfigured: list[str] = []
        self.changed: dict[str, bool] = {}
        self.new_topics_version = -1
        self._names: tuple[str, ...] | None = None
        # Soft state: deleted topics, names by id, until the deletion of their offsets begins (TopicsDeleted).
        self.removed: dict[bytes, str] = {}
        self._is_loading = True

    # --- queries

    def get(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        return self.topics_by_id.get(topic_id)

    def partition_count(self, name: str) -> int:
        """The number of the topic's partitions; -1 if the topic does not exist."""
        topic = self.topics.get(name)
        return -1 if topic is None else topic.partition_count

    @property
    def version(self) -> int:
        """The offset of the last replayed record; -1 if there is none."""
        return self.end_offset - 1

    def name_snapshot(self) -> tuple[str, ...]:
        """The names of all topics, unsorted. The tuple is shared until topics are created or deleted."""
        if self._names is None:
            self._names = tuple(self.topics)
        return self._names

    def take_changes(self) -> TopicsChanged | None:
        """The changes since the last call, in order of the records; None if there are none."""
        if not self.changed:
            return None
        event = TopicsChanged(list(self.changed))
        self.changed = {}
        return event

    def has_room(self, partitions: int) -> bool:
        """Whether this many more partitions are within `partitions.max`."""
        return self.total_partitions + partitions <= self.config.partitions_max

    def sorted_names(self) -> list[str]:
        """All topics that clients may see, sorted by name."""
        return sorted(self.topics)

    def colliding_name(self, name: str) -> str:
        """An existing topic whose name differs from `name` only in dots and underscores; "" if there is none."""
        if "." in name or "_" in name:
            for other in self.names_by_unified.get(unified_name(name), []):
                if other != name:
                    return other
        return ""

    def configs_of(self, resource_type: int, name: str) -> dict[str, str]:
        """The configurations that are set on a resource. Must not be changed."""
        of_type = self.configs.get(resource_type)
        if of_type is None:
            return {}
        found = of_type.get(name)
        return {} if found is None else found

    def config_value(self, topic: Topic, name: str) -> str:
        """The value in use of a topic's configuration; "" for an unknown name."""
        own = self.configs_of(RESOURCE_TOPIC, topic.name).get(name)
        if own is not None:
            return own
        return self.default_value(name)

    def default_value(self, name: str) -> str:
        """The value of a topic configuration for topics that do not set it."""
        definition = TOPIC_CONFIGS.get(name)
        if definition is None:
            return ""
        if definition.broker_names:
            broker_name = definition.broker_names[0]
            value = self.dynamic_broker_value(broker_name)
            return self.static_default(name) if value is None else value
        return definition.default

    def group_config(self, group_id: str) -> GroupConfig:
        """The values in use in a group."""
        return self.groups.in_force(group_id)

    def dynamic_broker_value(self, broker_name: str) -> str | None:
        """The value that was set on the running broker, for this node or else for every node."""
        value = self.configs_of(RESOURCE_BROKER, str(self.config.node_id)).get(broker_name)
        if value is None:
            value = self.configs_of(RESOURCE_BROKER, "").get(broker_name)
        return value

    def static_default(self, name: str) -> str:
        """The default of a topic configuration when the server was started."""
        config = self.config
        if name == "max.message.bytes":
            return str(config.message_max_bytes)
        if name == "retention.ms":
            return str(config.log_retention_ms)
        if name == "retention.bytes":
            return str(config.log_retention_bytes)
        if name == "segment.bytes":
            return str(config.log_segment_bytes)
        if name == "segment.ms":
            return str(config.log_roll_ms)
        if name == "preallocate":
            return "true" if config.log_preallocate else "false"
        definition = TOPIC_CONFIGS[name]
        if definition.broker_names:
            value = config.static_values.get(definition.broker_names[0])
            if value is not None:
                return value
        return definition.default

    def default_source(self, name: str) -> int:
        """The source of `default_value`: one of the SOURCE constants."""
        broker_names = TOPIC_CONFIGS[name].broker_names
        if not broker_names:
            return SOURCE_DEFAULT
        if broker_names[0] in self.configs_of(RESOURCE_BROKER, str(self.config.node_id)):
            return SOURCE_DYNAMIC_BROKER
        if broker_names[0] in self.configs_of(RESOURCE_BROKER, ""):
            return SOURCE_DYNAMIC_DEFAULT
        for broker_name in broker_names:
            if broker_name in self.config.static_values:
                return SOURCE_STATIC_BROKER
        return SOURCE_DEFAULT

    # --- creating topics

    def new_topic_id(self, entropy: bytes, index: int) -> bytes:
        """A topic id that is not in use."""
        topic_id = topic_id_from(entropy, index)
        while topic_id in self.topics_by_id:
            index += 65536
            topic_id = topic_id_from(entropy, index)
        return topic_id

    def add_topic_records(
        self, out: Outcome, name: str, topic_id: bytes, partition_count: int, configs: dict[str, str]
    ) -> None:
        """Add the records that create a topic, in the order of a KRaft controller."""
        out.add(self.log, None, TopicRecord(name, topic_id))
        for key in sorted(configs):
            out.add(self.log, None, ConfigRecord(RESOURCE_TOPIC, name, key, configs[key]))
        self.add_partition_records(out, topic_id, 0, partition_count)

    def add_partition_records(self, out: Outcome, topic_id: bytes, first: int, end: int) -> None:
        node_id = self.config.node_id
        for partition in range(first, end):
            out.add(self.log, None, partition_record(topic_id, partition, node_id, 0))

    def loaded(self, entropy: bytes) -> Outcome:
        """The metadata log was replayed: create missing features and internal topics."""
        out = Outcome()
        for feature in self.features.missing():
            out.add(self.log, None, FeatureLevelRecord(feature.name, feature.maximum))
        config = self.config
        if OFFSETS_TOPIC not in self.topics:
            topic_id = self.new_topic_id(entropy, 0)
            count = config.offsets_topic_num_partitions
            self.add_topic_records(out, OFFSETS_TOPIC, topic_id, count, dict(INTERNAL_CONFIGS))
        bounded = self.groups.out_of_bounds()
        if bounded:
            fields: dict[str, object] = {"groups": len(bounded), "first": bounded[0]}
            out.facts.append(Fact(WARNING, "group_configs_out_of_bounds", fields))
        return out

    def unfinished_deletions(self) -> TopicsDeleted:
        """All deletions in the replayed log, to be handled again once offsets are loaded. They may be done already."""
        self._is_loading = False
        return TopicsDeleted(dict(self.removed), is_repeated=True)

    # --- replay ----------------------------------------------------------------------------------------------

    def replay_metadata(self, record: Message | None, offset: int) -> None:
        """Apply one record of the metadata log."""
        self.end_offset = offset + 1
        if isinstance(record, PartitionRecord):
            self._replay_partition(record)
        elif isinstance(record, PartitionChangeRecord):
            self._replay_partition_change(record)
        elif isinstance(record, TopicRecord):
            self._replay_topic(record)
        elif isinstance(record, RemoveTopicRecord):
            self._replay_remove_topic(record)
        elif isinstance(record, ConfigRecord):
            self._replay_config(record)
        elif isinstance(record, FeatureLevelRecord):
            self.features.replay(record.name, record.feature_level, offset)
        elif isinstance(record, ProducerIdsRecord):
            if record.next_producer_id > self.next_producer_id:
                self.next_producer_id = record.next_producer_id
                self.producer_ids_offset = self.end_offset

    def _replay_topic(self, record: TopicRecord) -> None:
        topic = Topic(record.name, record.topic_id)
        for before in (self.topics.get(topic.name), self.topics_by_id.get(topic.topic_id)):
            if before is not None:
                before.is_deleted = True
        self.topics[topic.name] = topic
        self.topics_by_id[topic.topic_id] = topic
        self.new_topics_version = self.version
        self._names = None
        self._note_change(topic.name)
        if "." in topic.name or "_" in topic.name:
            unified = unified_name(topic.name)
            names = self.names_by_unified.get(unified)
            if names is None:
                self.names_by_unified[unified] = [topic.name]
            elif topic.name not in names:
                names.append(topic.name)

    def _note_change(self, name: str) -> None:
        if not self._is_loading:
            self.changed[name] = True

    def _replay_partition(self, record: PartitionRecord) -> None:
        topic = self.topics_by_id.get(record.topic_id)
        if topic is None or record.partition_id < 0:
            return
        # A snapshot may list partitions in any order. Later records of a known partition change nothing here.
        while topic.partition_count <= record.partition_id:
            self._note_created(topic)
            topic.leader_epochs.append(0)
            topic.partition_count += 1
            self.total_partitions += 1
        # Directories are created later, so an epoch takes effect with a partition's first record or with a restart.
        topic.leader_epochs[record.partition_id] = max(record.leader_epoch, 0)

    def _note_created(self, topic: Topic) -> None:
        """The topic's next partition was created."""
        self._note_change(topic.name)
        if self.created:
            last = self.created[-1]
            if last.topic_id == topic.topic_id and last.end == topic.partition_count:
                last.end += 1
                return
        count = topic.partition_count
        self.created.append(PartitionsCreated(topic.name, topic.topic_id, count, count + 1))

    def _replay_partition_change(self, record: PartitionChangeRecord) -> None:
        topic = self.topics_by_id.get(record.topic_id)
        if topic is None or record.partition_id < 0 or record.partition_id >= topic.partition_count:
            return
        if record.leader != NO_LEADER_CHANGE:
            topic.leader_epochs[record.partition_id] += 1

    def _replay_remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self.topics_by_id.pop(record.topic_id, None)
        if topic is None:
            return
        name = topic.name
        topic.is_deleted = True
        self.total_partitions -= topic.partition_count
        self._note_change(name)
        if self.topics.get(name) is not topic:
            # A foreign log: another topic has the name now.
            return
        del self.topics[name]
        self._names = None
        names = self.names_by_unified.get(unified_name(name))
        if names is not None and name in names:
            names.remove(name)
            if not names:
                del self.names_by_unified[unified_name(name)]
        of_type = self.configs.get(RESOURCE_TOPIC)
        if of_type is not None:
            of_type.pop(name, None)
        self.deleted.append(TopicRemoved(name, topic.topic_id, topic.partition_count))
        self.removed[topic.topic_id] = name

    def _replay_config(self, record: ConfigRecord) -> None:
        of_type = self.configs.get(record.resource_type)
        if of_type is None:
            of_type = {}
            self.configs[record.resource_type] = of_type
        configs = of_type.get(record.resource_name)
        if configs is None:
            configs = {}
            of_type[record.resource_name] = configs
        if record.value is None:
            configs.pop(record.name, None)
            if not configs:
                del of_type[record.resource_name]
        else:
            configs[record.name] = record.value
        if record.resource_type == RESOURCE_TOPIC:
            self.reconfigured.append(record.resource_name)
        elif record.resource_type == RESOURCE_GROUP:
            self.groups.replay_group(record.resource_name, configs)
        elif record.resource_type == RESOURCE_BROKER and record.name in TOPIC_DEFAULTS:
            self.reconfigured.append("")
        elif record.resource_type == RESOURCE_BROKER and record.name == BROKER_ASSIGNMENT_INTERVAL:
            self.groups.replay_broker(self.dynamic_broker_value(BROKER_ASSIGNMENT_INTERVAL))

    def digest_lines(self) -> list[str]:
        """The hard state as text, one line per item, in a fixed order."""
        lines: list[str] = []
        for name in sorted(self.topics):
            topic = self.topics[name]
            lines.append(f"topic {name} {topic.topic_id.hex()} {topic.partition_count} {topic.leader_epochs}")
        for resource_type in sorted(self.configs):
            of_type = self.configs[resource_type]
            for resource_name in sorted(of_type):
                configs = of_type[resource_name]
                for key in sorted(configs):
                    lines.append(f"config {resource_type} {resource_name!r} {key} {configs[key]!r}")
        for name in sorted(self.features.levels):
            lines.append(f"feature {name} {self.features.levels[name]}")
        lines.append(f"next_producer_id {self.next_producer_id}")
        return lines
