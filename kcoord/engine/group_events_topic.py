"""The topic `__group_events` in an engine: created with the first event, appended to, and read at start-up."""

from __future__ import annotations

from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import (
    GROUP_EVENTS_TOPIC,
    LIMIT,
    OFFSETS_TOPIC,
    WARNING,
    CoordinatorRecord,
    Fact,
    LogId,
    Now,
    Outcome,
)
from kcoord.core.topics.registry import TopicRegistry
from kcoord.engine.data_plane import DataPlane
from kcoord.engine.group_events import EventBatch, GroupEvents
from kcoord.log.errors import LogDamaged
from kcoord.log.journal import Journal
from kcoord.protocol.records.offset_commit import OffsetCommitKey

# Small segments, since retention removes whole ones.
TOPIC_CONFIGS: Final = (
    ("cleanup.policy", "delete"),
    ("compression.type", "producer"),
    ("segment.bytes", "16777216"),
    ("segment.ms", "86400000"),
)


@final
class GroupEventsTopic:
    def __init__(self, config: CoreConfig, topics: TopicRegistry, data_plane: DataPlane, journal: Journal) -> None:
        self.config = config
        self.topics = topics
        self.data_plane = data_plane
        self.table = data_plane.table
        self.journal = journal
        self.events = GroupEvents()
        # None if events are disabled, or if too many records waited.
        self.is_stopped = not config.group_events_enable
        # Batches to append as soon as the topic exists.
        self._batches: list[EventBatch] = []

    # ---- start-up

    def read_marks(self, now: Now) -> None:
        """Read from the topic how far the coordinator logs are projected. Raises OSError."""
        self.events.oldest_ms = now.wall_ms - self.config.group_events_retention_ms
        tp = self.table.find(GROUP_EVENTS_TOPIC, 0)
        if tp is not None and not self.is_stopped:
            try:
                self.events.read_marks(tp.log)
            except LogDamaged as damage:
                # Nothing depends on the marks. At worst some events are written twice.
                self.table.note_damage(tp, damage)

    def begin(self, partition: int, end_offset: int) -> GroupEvents | None:
        """A coordinator log that ends at `end_offset` is replayed next. Returns the object that needs its records."""
        if self.is_stopped:
            return None
        self.events.begin(partition, end_offset)
        return self.events

    # ---- live

    def note(self, seq: int, log_id: LogId, offset: int, records: list[CoordinatorRecord], now: Now) -> None:
        """Records from `offset` on were replayed, which belong to commit `seq`."""
        if log_id.topic != OFFSETS_TOPIC or self.is_stopped:
            return
        events = self.events
        for record in records:
            if not isinstance(record.key, OffsetCommitKey):
                events.note(seq, log_id.partition, offset, now.wall_ms, record.key, record.value, record.cause)
            offset += 1

    def take(self, durable_seq: int, open_seq: int, is_disk_full: bool) -> bool:
        """Whether there are events to append, now that commit `durable_seq` is durable. They become
        part of `open_seq`.
        """
        events = self.events
        if self.is_stopped or not events.committed(durable_seq) or is_disk_full:
            return False
        if events.has_overflowed:
            # The next start continues after the last mark.
            self.is_stopped = True
            self.table.facts.append(
                Fact(WARNING, "group_events_stopped", {"reason": "too many records waited for the disk"}, LIMIT)
            )
            return False
        ends: dict[int, int] = {}
        for partition in range(self.topics.partition_count(OFFSETS_TOPIC)):
            tp = self.table.find(OFFSETS_TOPIC, partition)
            if tp is not None:
                ends[partition] = tp.log.durable_end
        self._batches = events.take_batches(open_seq, ends)
        return bool(self._batches)

    def creation(self, entropy: bytes) -> Outcome:
        """The records that create the topic; none if it exists."""
        out = Outcome()
        if self.table.find(GROUP_EVENTS_TOPIC, 0) is None:
            configs = dict(TOPIC_CONFIGS)
            configs["retention.ms"] = str(self.config.group_events_retention_ms)
            topic_id = self.topics.new_topic_id(entropy, 0)
            self.topics.add_topic_records(out, GROUP_EVENTS_TOPIC, topic_id, 1, configs)
        return out

    def append(self) -> None:
        """Append the batches that were taken. They are part of the open commit."""
        tp = self.table.find(GROUP_EVENTS_TOPIC, 0)
        if tp is None:
            raise RuntimeError(f"{GROUP_EVENTS_TOPIC} was created but does not exist")
        for batch in self._batches:
            base = tp.log.end_offset
            data = batch.builder.build(base, tp.leader_epoch)
            last = base + batch.count - 1
            self.journal.append(tp.log, data, base, last, batch.max_timestamp, tp.leader_epoch)
        self._batches = []
        self.data_plane.note_append(tp)
