"""Committed offsets, hard state: group -> topic -> partition -> StoredOffset.

Only the `replay_...` methods write. Handlers read the state and return records.

An offset that a transaction commits is pending (see pending.py) until the transaction's marker is replayed. A commit
marker makes it the committed offset, unless a record with a higher offset in the log committed the partition meanwhile:
the newest record counts, as in a compacted log. An abort marker drops it.

`end_offset` of a group is the end of the last record that changed its committed offsets. An offset from a transaction
counts with its own record, and neither pending offsets nor markers count. So a state checkpoint, which has committed
offsets at their own offsets and no markers, leads to the same number. An answer about offsets must wait for markers and
pending offsets, too: `transactions_end` of the group says how far, and a restart may forget it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.groups.records import tombstone_bytes
from kcoord.core.groups.store import GroupStore
from kcoord.core.offsets.pending import PendingOffsets
from kcoord.core.offsets.stored_offset import StoredOffset
from kcoord.core.outcome import CoordinatorRecord, LogId
from kcoord.core.topics.registry import TOPIC_NAME_CHARS_MAX, TopicRegistry
from kcoord.protocol.records.legacy_offset_commit import LegacyOffsetCommitKey, LegacyOffsetCommitValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.wire.message import Message
from kcoord.wire.primitives import ZERO_UUID

NO_EXPIRE_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
# This many characters of a group id cost as much as one more tombstone.
CHARS_PER_ITEM: Final = 256


@final
class OffsetState:
    """All committed offsets of this coordinator, and what the handlers of offsets share."""

    def __init__(
        self,
        config: CoreConfig,
        groups: GroupStore,
        topics: TopicRegistry,
        log_of: Callable[[str], LogId],
    ) -> None:
        self.config = config
        self.groups = groups
        self.topics = topics
        self.log_of = log_of
        self.by_group: dict[str, dict[str, dict[int, StoredOffset]]] = {}
        # Topics with committed offsets, with their groups as keys: the index for the deletion of a topic.
        self.groups_by_topic: dict[str, dict[str, bool]] = {}
        self.pending = PendingOffsets()
        # Deleted topics whose offsets remain, names by id (see delete.py).
        self.topics_left: dict[bytes, str] = {}
        self.count = 0

    def step_bytes_max(self) -> int:
        """How many bytes of tombstones one step of a deletion may add. At least one tombstone goes with each step."""
        return self.config.coordinator_batch_bytes_max // 2

    def get(self, group_id: str, topic: str, partition: int) -> StoredOffset | None:
        of_group = self.by_group.get(group_id)
        if of_group is None:
            return None
        of_topic = of_group.get(topic)
        if of_topic is None:
            return None
        return of_topic.get(partition)

    def has_offsets(self, group_id: str) -> bool:
        """Whether the group has offsets, committed or pending."""
        return group_id in self.by_group or self.pending.has_group(group_id)

    def has_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has an offset for this partition that may still be committed or aborted."""
        return self.pending.has(group_id, topic, partition)

    def tombstones_of(self, group_id: str, at_most: int) -> list[CoordinatorRecord]:
        """Tombstones of a group's offsets, both committed and pending (DeleteGroups)."""
        records: list[CoordinatorRecord] = []
        of_group = self.by_group.get(group_id)
        if of_group is not None:
            for topic, of_topic in of_group.items():
                for partition in of_topic:
                    if len(records) == at_most:
                        return records
                    records.append(tombstone(group_id, topic, partition))
        for topic, partitions in self.pending.partitions_of(group_id).items():
            for partition in partitions:
                if len(records) == at_most:
                    return records
                if self.get(group_id, topic, partition) is None:
                    records.append(tombstone(group_id, topic, partition))
        return records

    def replay_offset_commit(self, key: OffsetCommitKey, value: OffsetCommitValue | None, offset: int) -> None:
        """Apply one record at `offset` of its log. A value for an unknown group creates a simple group."""
        group_id = key.group
        if value is None:
            self._remove(group_id, key.topic, key.partition)
            self.pending.drop(group_id, key.topic, key.partition)
            self.groups.touch(group_id, offset + 1)
            return
        self.replay_offset(
            group_id,
            key.topic,
            key.partition,
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            value.topic_id,
            offset,
        )

    def replay_offset(
        self,
        group_id: str,
        topic: str,
        partition: int,
        committed_offset: int,
        leader_epoch: int,
        metadata: str,
        commit_timestamp_ms: int,
        expire_timestamp_ms: int,
        topic_id: bytes,
        offset: int,
    ) -> None:
        """Apply a record with a value, given as its fields. Loading calls this a million times."""
        groups = self.groups
        group = groups.get(group_id)
        if group is None:
            consumer_group = groups.consumer_groups.get(group_id)
            if consumer_group is None:
                group = groups.get_or_create(group_id)
            else:
                group_id = consumer_group.group_id
        if group is not None:
            # All tables share one string per group id.
            group_id = group.group_id
            group.end_offset = offset + 1
            groups.last_log = group.log
            groups.last_end_offset = offset + 1
        else:
            groups.touch(group_id, offset + 1)
        topic_id = ZERO_UUID if topic_id == ZERO_UUID else self._shared_topic_id(topic, topic_id)
        stored = StoredOffset(
            committed_offset,
            leader_epoch,
            metadata,
            commit_timestamp_ms,
            expire_timestamp_ms,
            topic_id,
            offset,
        )
        self._put(group_id, topic, partition, stored)

    def replay_legacy_offset_commit(
        self,
        key: LegacyOffsetCommitKey,
        value: LegacyOffsetCommitValue | None,
        offset: int,
        log_partition: int = 0,
        producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Records of brokers before 0.9 (key type 0): without leader epoch, expiry and topic id."""
        new_key = OffsetCommitKey(key.group, key.topic, key.partition)
        new_value = None
        if value is not None:
            new_value = OffsetCommitValue(value.offset, -1, value.metadata, value.commit_timestamp)
        if producer_id >= 0:
            self.replay_transactional(log_partition, producer_id, new_key, new_value, offset)
        else:
            self.replay_offset_commit(new_key, new_value, offset)

    # --- transactions ----------------------------------------------------------------------------------------

    def replay_transactional(
        self, log_partition: int, producer_id: int, key: OffsetCommitKey, value: OffsetCommitValue | None, offset: int
    ) -> None:
        """Apply one record of a transactional batch. A tombstone takes effect at once, as in Kafka."""
        if value is None:
            self.replay_offset_commit(key, None, offset)
            return
        self.replay_pending(
            log_partition,
            producer_id,
            key.group,
            key.topic,
            key.partition,
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            value.topic_id,
            offset,
        )

    def replay_pending(
        self,
        log_partition: int,
        producer_id: int,
        group_id: str,
        topic: str,
        partition: int,
        committed_offset: int,
        leader_epoch: int,
        metadata: str,
        commit_timestamp_ms: int,
        expire_timestamp_ms: int,
        topic_id: bytes,
        offset: int,
    ) -> None:
        """Apply a record with a value of a transactional batch, given as its fields. An unknown group is created."""
        group_id = self._group_with_offsets(group_id)
        self.groups.touch_transactions(group_id, offset + 1)
        known = self.topics.get(topic)
        if known is not None:
            topic = known.name
        topic_id = ZERO_UUID if topic_id == ZERO_UUID else self._shared_topic_id(topic, topic_id)
        stored = StoredOffset(
            committed_offset,
            leader_epoch,
            metadata,
            commit_timestamp_ms,
            expire_timestamp_ms,
            topic_id,
            offset,
        )
        self.pending.put((log_partition, producer_id), group_id, topic, partition, stored)

    def replay_marker(self, log_partition: int, producer_id: int, is_commit: bool, offset: int) -> None:
        """Apply the marker at `offset`: it ends the producer's transaction in this log."""
        for place, stored in self.pending.end((log_partition, producer_id)).items():
            group_id, topic, partition = place
            self.groups.touch_transactions(group_id, offset + 1)
            if not is_commit:
                continue
            existing = self.get(group_id, topic, partition)
            if existing is not None and existing.record_offset > stored.record_offset:
                continue
            group_id = self._group_with_offsets(group_id)
            self.groups.raise_end(group_id, stored.record_offset + 1)
            self._put(group_id, topic, partition, stored)

    def _group_with_offsets(self, group_id: str) -> str:
        """The id of the group as all tables share it. An unknown group becomes a simple one."""
        consumer_group = self.groups.consumer_groups.get(group_id)
        if consumer_group is not None:
            return consumer_group.group_id
        return self.groups.get_or_create(group_id).group_id

    def digest_lines(self) -> list[str]:
        """The hard state as text, in an order that does not depend on history."""
        lines: list[str] = []
        for group_id in sorted(self.by_group):
            of_group = self.by_group[group_id]
            for topic in sorted(of_group):
                of_topic = of_group[topic]
                for partition in sorted(of_topic):
                    s = of_topic[partition]
                    lines.append(f"offset {group_id!r} {topic!r} {partition} {s.digest_text()}")
        return lines + self.pending.digest_lines()

    def _shared_topic_id(self, name: str, topic_id: bytes) -> bytes:
        topic = self.topics.get(name)
        if topic is not None and topic.topic_id == topic_id:
            return topic.topic_id
        return topic_id

    def _put(self, group_id: str, topic: str, partition: int, stored: StoredOffset) -> None:
        of_group = self.by_group.get(group_id)
        if of_group is None:
            of_group = {}
            self.by_group[group_id] = of_group
        of_topic = of_group.get(topic)
        if of_topic is None:
            of_topic = {}
            known = self.topics.get(topic)
            if known is not None:
                topic = known.name
            of_group[topic] = of_topic
            groups = self.groups_by_topic.get(topic)
            if groups is None:
                groups = {}
                self.groups_by_topic[topic] = groups
            groups[group_id] = True
        before = of_topic.get(partition)
        if before is None:
            self.count += 1
        else:
            before.retire()
        of_topic[partition] = stored
        stored.is_current = True

    def _remove(self, group_id: str, topic: str, partition: int) -> None:
        # The value may be unknown: compaction removes values before their tombstones.
        of_group = self.by_group.get(group_id)
        if of_group is None:
            return
        of_topic = of_group.get(topic)
        stored = None if of_topic is None else of_topic.get(partition)
        if of_topic is None or stored is None:
            return
        stored.retire()
        del of_topic[partition]
        self.count -= 1
        if not of_topic:
            del of_group[topic]
            groups = self.groups_by_topic[topic]
            del groups[group_id]
            if not groups:
                del self.groups_by_topic[topic]
            if not of_group:
                del self.by_group[group_id]


def tombstone_weight(group_id: str) -> int:
    """The weight of a tombstone in a step: more for a long group id, which each tombstone repeats."""
    return 1 + len(group_id) // CHARS_PER_ITEM


def tombstone_bytes_max(group_id: str) -> int:
    """The most bytes of the tombstone of an offset of this group in a batch, whatever its topic."""
    return tombstone_bytes(group_id, "") + TOPIC_NAME_CHARS_MAX


def tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    key: Message = OffsetCommitKey(group_id, topic, partition)
    return CoordinatorRecord(key, None)
