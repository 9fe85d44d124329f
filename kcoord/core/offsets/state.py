"""Committed offsets as the log says: group -> topic -> partition -> StoredOffset.

`replay_offset_commit` is the only writer. Handlers read from here and return records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.groups.store import GroupStore
from kcoord.core.outcome import CoordinatorRecord, LogId
from kcoord.core.topics.registry import TopicRegistry
from kcoord.protocol.records.legacy_offset_commit import LegacyOffsetCommitKey, LegacyOffsetCommitValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.wire.message import Message
from kcoord.wire.primitives import ZERO_UUID

NO_EXPIRE_TIMESTAMP: Final = -1


@final
class StoredOffset:
    """One committed offset. There are many of these: plain numbers, and strings and ids that are shared.

    `expire_timestamp_ms` is -1 unless the commit carried a retention time (OffsetCommit up to v4, record value
    v1). `topic_id` is zero where the record did not say. `record_offset` is where the record stands in the log.
    """

    __slots__ = (
        "committed_offset",
        "leader_epoch",
        "metadata",
        "commit_timestamp_ms",
        "expire_timestamp_ms",
        "topic_id",
        "record_offset",
    )

    def __init__(
        self,
        committed_offset: int,
        leader_epoch: int,
        metadata: str,
        commit_timestamp_ms: int,
        expire_timestamp_ms: int,
        topic_id: bytes,
        record_offset: int,
    ) -> None:
        self.committed_offset = committed_offset
        self.leader_epoch = leader_epoch
        self.metadata = metadata
        self.commit_timestamp_ms = commit_timestamp_ms
        self.expire_timestamp_ms = expire_timestamp_ms
        self.topic_id = topic_id
        self.record_offset = record_offset


@final
class OffsetState:
    """All committed offsets of this coordinator, and what the offset handlers share."""

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
        # Topics with committed offsets, with their groups as keys: what deleting a topic has to look at.
        self.groups_by_topic: dict[str, dict[str, bool]] = {}
        # Partitions with offsets of open transactions: group -> topic -> partition -> number of transactions.
        # Nothing fills it before there are transactions; OffsetFetch, OffsetDelete and expiry look at it already.
        self.pending: dict[str, dict[str, dict[int, int]]] = {}
        self.count = 0

    def get(self, group_id: str, topic: str, partition: int) -> StoredOffset | None:
        of_group = self.by_group.get(group_id)
        if of_group is None:
            return None
        of_topic = of_group.get(topic)
        if of_topic is None:
            return None
        return of_topic.get(partition)

    def has_offsets(self, group_id: str) -> bool:
        return group_id in self.by_group

    def has_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has an offset for this partition that may still be committed or aborted."""
        of_group = self.pending.get(group_id)
        if of_group is None:
            return False
        of_topic = of_group.get(topic)
        return of_topic is not None and partition in of_topic

    def tombstones_of(self, group_id: str, at_most: int) -> list[CoordinatorRecord]:
        """Tombstones of a group's offsets, committed and pending alike (DeleteGroups)."""
        records: list[CoordinatorRecord] = []
        of_group = self.by_group.get(group_id)
        if of_group is not None:
            for topic, of_topic in of_group.items():
                for partition in of_topic:
                    if len(records) == at_most:
                        return records
                    records.append(tombstone(group_id, topic, partition))
        of_pending = self.pending.get(group_id)
        if of_pending is not None:
            for topic, counts in of_pending.items():
                for partition in counts:
                    if len(records) == at_most:
                        return records
                    if self.get(group_id, topic, partition) is None:
                        records.append(tombstone(group_id, topic, partition))
        return records

    def replay_offset_commit(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, offset: int
    ) -> None:
        """Apply one record at `offset` of its log. A value for an unknown group makes a simple group of it."""
        group_id = key.group
        if value is None:
            self._remove(group_id, key.topic, key.partition)
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
        """Apply a record with a value, given as its fields: what loading reads a million of."""
        groups = self.groups
        group = groups.get(group_id)
        if group is None:
            consumer_group = groups.consumer_groups.get(group_id)
            if consumer_group is None:
                group = groups.get_or_create(group_id)
            else:
                group_id = consumer_group.group_id
        if group is not None:
            # One string for all tables that name the group.
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
        self, key: LegacyOffsetCommitKey, value: LegacyOffsetCommitValue | None, offset: int
    ) -> None:
        """Records of brokers before 0.9 (key type 0): the same without leader epoch, expiry and topic id."""
        new_key = OffsetCommitKey(key.group, key.topic, key.partition)
        if value is None:
            self.replay_offset_commit(new_key, None, offset)
        else:
            new_value = OffsetCommitValue(value.offset, -1, value.metadata, value.commit_timestamp)
            self.replay_offset_commit(new_key, new_value, offset)

    def clear(self) -> None:
        """Forget everything (test control)."""
        self.by_group.clear()
        self.groups_by_topic.clear()
        self.pending.clear()
        self.count = 0

    def digest_lines(self) -> list[str]:
        """The hard state as text, in an order that does not depend on history."""
        lines: list[str] = []
        for group_id in sorted(self.by_group):
            of_group = self.by_group[group_id]
            for topic in sorted(of_group):
                of_topic = of_group[topic]
                for partition in sorted(of_topic):
                    s = of_topic[partition]
                    lines.append(
                        f"offset {group_id!r} {topic!r} {partition} {s.committed_offset} {s.leader_epoch} "
                        f"{s.metadata!r} {s.commit_timestamp_ms} {s.expire_timestamp_ms} {s.topic_id.hex()} "
                        f"{s.record_offset}"
                    )
        return lines

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
        if partition not in of_topic:
            self.count += 1
        of_topic[partition] = stored

    def _remove(self, group_id: str, topic: str, partition: int) -> None:
        # A tombstone may name what we never saw: compaction removes values before their tombstones.
        of_group = self.by_group.get(group_id)
        if of_group is None:
            return
        of_topic = of_group.get(topic)
        if of_topic is None or partition not in of_topic:
            return
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


def tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    key: Message = OffsetCommitKey(group_id, topic, partition)
    return CoordinatorRecord(key, None)
