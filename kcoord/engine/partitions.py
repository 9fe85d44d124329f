"""The partitions that this broker serves, each with its log, its producers and its topic's settings.

The table follows the topic registry: the engine adds a topic's partitions once their logs exist, and drops them when
the topic is deleted. All code that reads or writes records finds the log here. The only broker leads every partition,
in the leader epoch that the registry has for it when the partition is added.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.outcome import WARNING, Fact
from kcoord.core.producers import PartitionProducers
from kcoord.core.topics.registry import Topic, TopicRegistry
from kcoord.log.errors import LogDamaged
from kcoord.log.partition_log import PartitionLog
from kcoord.protocol.errors import FENCED_LEADER_EPOCH, NONE, UNKNOWN_LEADER_EPOCH
from kcoord.wire.compression import CODEC_GZIP, CODEC_LZ4, CODEC_NONE, CODEC_SNAPPY, CODEC_ZSTD
from kcoord.wire.produced_batch import CODEC_OF_PRODUCER, ProduceLimits
from kcoord.wire.record_batch import CREATE_TIME, LOG_APPEND_TIME

# The value of an epoch field that a client does not set.
NO_EPOCH: Final = -1
# The isolation level of clients that see no open or aborted transactions.
READ_COMMITTED: Final = 1

_CODECS: Final[dict[str, int]] = {
    "producer": CODEC_OF_PRODUCER,
    "uncompressed": CODEC_NONE,
    "none": CODEC_NONE,
    "gzip": CODEC_GZIP,
    "snappy": CODEC_SNAPPY,
    "lz4": CODEC_LZ4,
    "zstd": CODEC_ZSTD,
}


@final
class TopicSettings:
    """The part of a topic's configuration that concerns its records."""

    def __init__(
        self, limits: ProduceLimits, is_compacted: bool, is_deleted: bool, codec: int, segment_bytes: int
    ) -> None:
        self.limits = limits
        self.is_compacted = is_compacted
        self.is_deleted = is_deleted
        # The codec for stored batches, or CODEC_OF_PRODUCER.
        self.codec = codec
        self.segment_bytes = segment_bytes

    def checks_as(self, other: TopicSettings) -> bool:
        """Whether batches checked with these settings need no new check for `other`."""
        a, b = self.limits, other.limits
        return (
            self.codec == other.codec
            and a.max_batch_bytes == b.max_batch_bytes
            and a.max_decompressed_bytes == b.max_decompressed_bytes
            and a.compacted == b.compacted
            and a.timestamp_type == b.timestamp_type
            and a.timestamp_before_max_ms == b.timestamp_before_max_ms
            and a.timestamp_after_max_ms == b.timestamp_after_max_ms
        )


def read_settings(topics: TopicRegistry, topic: Topic, decompressed_bytes_max: int) -> TopicSettings:
    """The settings of `topic` from its configuration and the broker's defaults."""
    policies = topics.config_value(topic, "cleanup.policy").split(",")
    is_compacted = False
    is_deleted = False
    for policy in policies:
        name = policy.strip()
        if name == "compact":
            is_compacted = True
        elif name == "delete":
            is_deleted = True
    append_time = topics.config_value(topic, "message.timestamp.type") == "LogAppendTime"
    limits = ProduceLimits(
        int(topics.config_value(topic, "max.message.bytes")),
        decompressed_bytes_max,
        is_compacted,
        LOG_APPEND_TIME if append_time else CREATE_TIME,
        int(topics.config_value(topic, "message.timestamp.before.max.ms")),
        int(topics.config_value(topic, "message.timestamp.after.max.ms")),
    )
    codec = _CODECS.get(topics.config_value(topic, "compression.type"), CODEC_OF_PRODUCER)
    return TopicSettings(limits, is_compacted, is_deleted, codec, int(topics.config_value(topic, "segment.bytes")))


@final
class TopicPartition:
    """One partition. Offsets up to `log.durable_end` (the high watermark) may be shown to clients, or up to the last
    stable offset.
    """

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        log: PartitionLog,
        producers: PartitionProducers,
        leader_epoch: int = 0,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.log = log
        self.producers = producers
        # Never below the epoch of a batch in the log.
        self.leader_epoch = max(leader_epoch, log.leader_epoch)
        # Set when the topic is deleted. Code that still holds the object must not use its log any more.
        self.is_dropped = False
        # The high watermark that waiting fetches saw last, and whether more bytes are on their way to the disk.
        self.announced_end = log.durable_end
        self.is_moving = False
        # Damage found in the log's files, to be reported once.
        self.damage = ""

    @property
    def last_stable_offset(self) -> int:
        """Below this offset every transaction has a durable end. At most the high watermark."""
        end = self.log.durable_end
        first = self.producers.transactions.unstable_offset(end)
        if first < 0 or first >= end:
            return end
        return max(first, self.log.log_start_offset)

    def readable_end(self, isolation_level: int) -> int:
        """The end of what a client may read."""
        return self.last_stable_offset if isolation_level == READ_COMMITTED else self.log.durable_end

    def check_leader_epoch(self, epoch: int) -> int:
        """The error code for a request that expects leader epoch `epoch` (KIP-320)."""
        if epoch == NO_EPOCH or epoch == self.leader_epoch:
            return NONE
        # Any other negative epoch counts as an older one.
        return FENCED_LEADER_EPOCH if epoch < self.leader_epoch else UNKNOWN_LEADER_EPOCH


@final
class EpochEnd:
    """A leader epoch and the offset after its last record; both -1 if there is none."""

    def __init__(self, epoch: int, offset: int) -> None:
        self.epoch = epoch
        self.offset = offset


def epoch_end(tp: TopicPartition, epoch: int) -> EpochEnd:
    """The end of leader epoch `epoch`, or of the newest earlier one with records; -1 for a later epoch.

    An epoch before the first one ended where the first one begins.
    """
    if epoch == tp.leader_epoch:
        return EpochEnd(epoch, tp.log.end_offset)
    if epoch == NO_EPOCH or epoch > tp.leader_epoch:
        return EpochEnd(-1, -1)
    newest = tp.log.leader_epoch
    if epoch < NO_EPOCH or newest < 0:
        return EpochEnd(epoch, tp.log.log_start_offset)
    # An epoch without a record ended where the newest earlier one with records did.
    found, offset = tp.log.epoch_end_offset(min(epoch, newest))
    return EpochEnd(found, offset)


@final
class ServedTopic:
    """A topic with its settings and its partitions by index."""

    def __init__(self, name: str, topic_id: bytes, settings: TopicSettings) -> None:
        self.name = name
        self.topic_id = topic_id
        self.settings = settings
        self.partitions: list[TopicPartition] = []


@final
class PartitionTable:
    """Topics and their partitions by name and by id."""

    def __init__(self, topics: TopicRegistry, decompressed_bytes_max: int) -> None:
        self.topics = topics
        self.decompressed_bytes_max = decompressed_bytes_max
        self.by_name: dict[str, ServedTopic] = {}
        self.by_id: dict[bytes, ServedTopic] = {}
        self.moving: list[TopicPartition] = []
        # Facts for the server's log, until the engine takes them.
        self.facts: list[Fact] = []

    def add_topic(self, topic: Topic) -> ServedTopic:
        """Start serving `topic`; add_partition adds its partitions, in order. May be called again."""
        served = self.by_name.get(topic.name)
        if served is None:
            settings = read_settings(self.topics, topic, self.decompressed_bytes_max)
            served = ServedTopic(topic.name, topic.topic_id, settings)
            self.by_name[topic.name] = served
            self.by_id[topic.topic_id] = served
        return served

    def add_partition(self, topic: Topic, log: PartitionLog, producers: PartitionProducers) -> TopicPartition:
        """Serve the topic's next partition from `log`."""
        served = self.add_topic(topic)
        index = len(served.partitions)
        epoch = topic.leader_epoch(index)
        tp = TopicPartition(served.name, served.topic_id, index, log, producers, epoch)
        served.partitions.append(tp)
        return tp

    def drop_topic(self, name: str) -> list[TopicPartition]:
        """Stop serving a deleted topic. Returns its partitions."""
        served = self.by_name.pop(name, None)
        if served is None:
            return []
        self.by_id.pop(served.topic_id, None)
        for tp in served.partitions:
            tp.is_dropped = True
            tp.producers.drop()
        return served.partitions

    def refresh_settings(self, topic: Topic) -> None:
        """Call this when the configuration of `topic` changed."""
        served = self.by_name.get(topic.name)
        if served is not None:
            served.settings = read_settings(self.topics, topic, self.decompressed_bytes_max)

    def topic(self, name: str) -> ServedTopic | None:
        return self.by_name.get(name)

    def topic_by_id(self, topic_id: bytes) -> ServedTopic | None:
        return self.by_id.get(topic_id)

    def find(self, name: str, partition: int) -> TopicPartition | None:
        """The partition, or None if the topic or the partition does not exist."""
        served = self.by_name.get(name)
        if served is None or partition < 0 or partition >= len(served.partitions):
            return None
        return served.partitions[partition]

    def note_append(self, tp: TopicPartition) -> None:
        """Note that `tp` has bytes on their way to the disk."""
        if not tp.is_moving:
            tp.is_moving = True
            self.moving.append(tp)

    def take_moved(self) -> list[TopicPartition]:
        """The partitions whose high watermark moved since the last call."""
        moving = self.moving
        if not moving:
            return []
        moved: list[TopicPartition] = []
        still: list[TopicPartition] = []
        for tp in moving:
            if tp.is_dropped:
                tp.is_moving = False
                continue
            end = tp.log.durable_end
            if end > tp.announced_end:
                tp.announced_end = end
                moved.append(tp)
            if end < tp.log.end_offset:
                still.append(tp)
            else:
                tp.is_moving = False
        self.moving = still
        return moved

    def note_damage(self, tp: TopicPartition, error: LogDamaged) -> None:
        """Report that bytes of `tp` cannot be read any more. Readers get KAFKA_STORAGE_ERROR for them."""
        text = str(error)
        if tp.damage != text:
            tp.damage = text
            self.facts.append(Fact(WARNING, "log_damaged", {"file": error.file, "reason": text}))

    def take_facts(self) -> list[Fact]:
        """The facts for the server's log since the last call."""
        facts = self.facts
        if facts:
            self.facts = []
        return facts
