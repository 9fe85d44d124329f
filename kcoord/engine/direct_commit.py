"""The direct path of the most frequent request: an OffsetCommit that only repeats what the group has done before.

A consumer commits the same partitions again and again. Such a request needs no objects of its own: it is read in place,
its records are written straight into the open batch, the stored offsets change in place, and the answer is written
straight into the chunk of its session. This takes two passes over the request:

1. *Read and check.* Nothing changes. Everything that is unusual ends the pass: a partition without a committed offset,
   an error of any kind, a retention time, records that may not fit into a batch. The request then takes the generic
   path (`core/offsets/commit.py`), which knows all cases and starts from the beginning.
2. *Write.* Nothing can be refused any more, so a failure is one of the log, as in step 3 of `apply.py`.

The generic path defines what is right. Both paths produce the same records, answers and hard state, and
`tests/unit/engine/test_direct_commit.py` compares them byte for byte. A start replays the records on the generic path.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.coordinator import Core
from kcoord.core.groups.classic import ClassicGroup
from kcoord.core.groups.errors import GroupError
from kcoord.core.groups.members import ConsumerMember
from kcoord.core.offsets.commit import NO_RETENTION_TIME, TOPIC_ID_VERSION, is_metadata_too_large
from kcoord.core.offsets.fences import check_commit, check_partition
from kcoord.core.offsets.stored_offset import StoredOffset
from kcoord.core.outcome import Now
from kcoord.core.topics.registry import Topic
from kcoord.engine.commits import Commits
from kcoord.engine.coordinator_log import RECORD_OVERHEAD_BYTES, CoordinatorLog
from kcoord.engine.outbox import Outbox
from kcoord.engine.request_head import HEAD_BYTES_MAX, RequestHead, read_head
from kcoord.engine.session import Session
from kcoord.log.serde import OFFSET_COMMIT, OFFSET_COMMIT_VERSION
from kcoord.protocol.errors import NONE
from kcoord.protocol.offset_commit import FLEXIBLE_VERSION
from kcoord.wire.primitives import (
    ZERO_UUID,
    BytesWriter,
    DecodeError,
    EncodeError,
    Reader,
    i32,
    i64,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    uvarint_size,
    write_compact_array_len,
    write_compact_string,
    write_i16_be,
    write_i32_be,
    write_i64_be,
    write_string,
    write_varint,
)

INSTANCE_VERSION: Final = 7
LEADER_EPOCH_VERSION: Final = 6
RETENTION_VERSION_MAX: Final = 4
THROTTLE_VERSION: Final = 3
# The least bytes of a topic and of a partition in a request.
TOPIC_BYTES_MIN: Final = 3
PARTITION_BYTES_MIN: Final = 14
# A value: version, offset, leader epoch, timestamp, number of tags; the tag of the topic id.
VALUE_BYTES: Final = 2 + 8 + 4 + 8 + 1
TOPIC_ID_BYTES: Final = 2 + 16
PARTITION_INDEX_BYTES: Final = 4


@final
class TopicCommit:
    """One topic of a request. `stored` and `metadata` have an element for each partition, in the request's order."""

    def __init__(self, topic: Topic, key_prefix: bytes, start: i64) -> None:
        self.topic = topic
        # The key of the topic's records up to the partition.
        self.key_prefix = key_prefix
        # Where the partitions start in the request.
        self.start = start
        self.stored: list[StoredOffset] = []
        self.metadata: list[str] = []


@final
class DirectCommits:
    """Handles OffsetCommit requests that only change committed offsets which are there already."""

    def __init__(self, core: Core, commits: Commits, outbox: Outbox) -> None:
        self.offsets = core.offsets
        self.groups = core.groups
        self.topics = core.topics
        self.config = core.offsets.config
        self.commits = commits
        self.outbox = outbox
        # Tests compare both paths: they switch this one off, and count what it handles.
        self.is_on = True
        self.handled = 0
        # What the first pass has found, for the second one.
        self.group_id = ""
        self.member_id = ""
        self.classic: ClassicGroup | None = None
        self.member: ConsumerMember | None = None
        self.epoch = 0
        self.records_bytes: i64 = 0

    def handle(self, session: Session, reader: Reader, version: int, correlation_id: int, now: Now) -> bool:
        """Handle a request whose body is next in `reader`. False: nothing has changed, the reader is where it was, and
        the generic path must handle the request.
        """
        if not self.is_on:
            return False
        start = reader.pos
        elements_left = reader.elements_left
        topics: list[TopicCommit] | None
        try:
            topics = self._check(session, reader, version)
        except (DecodeError, EncodeError, GroupError):
            topics = None
        if topics is not None:
            log = self.commits.logs[self.offsets.log_of(self.group_id)]
            if self.records_bytes <= log.batch_bytes_max:
                try:
                    self._write(session, reader, version, correlation_id, topics, log, now)
                except Exception as error:
                    self.commits.journal.fail(error)
                    raise
                self.handled += 1
                return True
        reader.pos = start
        reader.elements_left = elements_left
        return False

    # --- first pass ------------------------------------------------------------------------------------------

    def _check(self, session: Session, reader: Reader, version: int) -> list[TopicCommit] | None:
        """The topics of the request; None or an exception if anything about it is unusual."""
        is_compact = version >= FLEXIBLE_VERSION
        head = read_head(reader, session.commit_head, version, is_compact, version >= INSTANCE_VERSION)
        if head is not session.commit_head and head.size <= HEAD_BYTES_MAX:
            session.commit_head = head
        group_id = head.group_id
        if version <= RETENTION_VERSION_MAX and reader.int64() != NO_RETENTION_TIME:
            return None
        of_group = self.offsets.by_group.get(group_id)
        if of_group is None or not group_id or not self._check_group(head, version):
            return None
        topics: list[TopicCommit] = []
        self.records_bytes = 0
        count = reader.compact_array_len(TOPIC_BYTES_MIN) if is_compact else reader.array_len(TOPIC_BYTES_MIN)
        for _ in range(count):
            if version >= TOPIC_ID_VERSION:
                topic = self.topics.by_id(reader.uuid())
            else:
                topic = self.topics.get(reader.compact_string() if is_compact else reader.string())
            if topic is None:
                return None
            of_topic = of_group.get(topic.name)
            if of_topic is None:
                return None
            one = self._check_topic(reader, version, head, topic, of_topic)
            if one is None:
                return None
            topics.append(one)
            if is_compact:
                reader.skip_tags()
        if is_compact:
            reader.skip_tags()
        return topics if topics else None

    def _check_group(self, head: RequestHead, version: int) -> bool:
        """Whether the group accepts a commit of this member. Raises GroupError."""
        group_id = head.group_id
        member_id = head.member_id
        epoch = head.epoch
        group = self.groups.get(group_id)
        self.group_id = group_id
        self.member_id = member_id
        self.classic = group
        self.member = None
        self.epoch = epoch
        if group is not None:
            return group.validate_offset_commit(member_id, head.instance_id, epoch) == NONE
        consumer_group = self.groups.consumer_groups.get(group_id)
        if consumer_group is None:
            return False
        self.member = check_commit(consumer_group, member_id, epoch, version)
        return True

    def _check_topic(
        self, reader: Reader, version: int, head: RequestHead, topic: Topic, of_topic: dict[int, StoredOffset]
    ) -> TopicCommit | None:
        """The partitions of a topic, or None. Raises GroupError for one that the member does not own."""
        is_compact = version >= FLEXIBLE_VERSION
        fixed: i64 = 16 if version >= LEADER_EPOCH_VERSION else 12
        count = reader.compact_array_len(PARTITION_BYTES_MIN) if is_compact else reader.array_len(PARTITION_BYTES_MIN)
        if count == 0:
            return None
        key_prefix = head.key_prefixes.get(topic.name)
        if key_prefix is None:
            key_prefix = make_key_prefix(head.group_id, topic.name)
            head.add_key_prefix(topic.name, key_prefix)
        one = TopicCommit(topic, key_prefix, reader.pos)
        member = self.member
        partition_count = topic.partition_count
        record_bytes: i64 = RECORD_OVERHEAD_BYTES + len(one.key_prefix) + PARTITION_INDEX_BYTES + VALUE_BYTES
        if topic.topic_id != ZERO_UUID:
            record_bytes += TOPIC_ID_BYTES
        for _ in range(count):
            index = int(read_i32_be(reader.buf, reader.take(fixed)))
            stored = of_topic.get(index)
            if stored is None or index < 0 or index >= partition_count:
                return None
            if member is not None:
                check_partition(member, self.epoch, topic.topic_id, index)
            metadata = ""
            at = reader.pos
            size = metadata_size(reader, is_compact)
            if size > 0:
                reader.pos = at
                text = reader.compact_nullable_string() if is_compact else reader.nullable_string()
                if text is None or is_metadata_too_large(self.config, text):
                    return None
                metadata = text
            if is_compact:
                reader.skip_tags()
            self.records_bytes += record_bytes + compact_size(size)
            one.stored.append(stored)
            one.metadata.append(metadata)
        return one

    # --- second pass -----------------------------------------------------------------------------------------

    def _write(
        self,
        session: Session,
        reader: Reader,
        version: int,
        correlation_id: int,
        topics: list[TopicCommit],
        log: CoordinatorLog,
        now: Now,
    ) -> None:
        """Append the records, change the stored offsets, extend the member's session, and answer."""
        is_compact = version >= FLEXIBLE_VERSION
        self.commits.open_bytes += int(self.records_bytes)
        log.make_room()
        chunk = self.outbox.begin_answer(session, correlation_id, is_compact, self.commits.open_seq)
        w = chunk.writer
        if version >= THROTTLE_VERSION:
            write_i32_be(w, 0)
        write_array_len(w, len(topics), is_compact)
        for one in topics:
            if version >= TOPIC_ID_VERSION:
                w.write(one.topic.topic_id)
            elif is_compact:
                write_compact_string(w, one.topic.name)
            else:
                write_string(w, one.topic.name)
            write_array_len(w, len(one.stored), is_compact)
            reader.pos = one.start
            self._write_topic(w, reader, version, one, log, now)
            if is_compact:
                w.append(0)
        if is_compact:
            w.append(0)
        self.outbox.end_answer(session, chunk, 0)
        self.outbox.touch(session)
        self.groups.touch(self.group_id, log.next_offset)
        if self.classic is not None:
            self.groups.touch_member(self.classic, self.member_id, now.mono_ms)

    def _write_topic(
        self, w: BytesWriter, reader: Reader, version: int, one: TopicCommit, log: CoordinatorLog, now: Now
    ) -> None:
        """For each partition of a topic: its record, its stored offset, its answer."""
        is_compact = version >= FLEXIBLE_VERSION
        has_epoch = version >= LEADER_EPOCH_VERSION
        fixed: i64 = 16 if has_epoch else 12
        wall_ms = now.wall_ms
        timestamp: i64 = wall_ms
        topic_id = one.topic.topic_id
        has_topic_id = topic_id != ZERO_UUID
        builder = log.builder
        records = builder.records
        key_size: i64 = len(one.key_prefix) + PARTITION_INDEX_BYTES
        offset = log.next_offset
        for number, stored in enumerate(one.stored):
            p = reader.take(fixed)
            index = read_i32_be(reader.buf, p)
            committed_offset = read_i64_be(reader.buf, p + 4)
            leader_epoch: i32 = -1
            if has_epoch:
                leader_epoch = read_i32_be(reader.buf, p + 12)
                if leader_epoch < 0:
                    leader_epoch = -1
            size = metadata_size(reader, is_compact)
            if size > 0:
                reader.take(size)
            if is_compact:
                reader.skip_tags()
            metadata = one.metadata[number]
            value_size: i64 = VALUE_BYTES + compact_size(size)
            if has_topic_id:
                value_size += TOPIC_ID_BYTES
            builder.begin_record(timestamp, key_size, value_size, 1)
            records.write(one.key_prefix)
            write_i32_be(records, index)
            write_varint(records, value_size)
            write_i16_be(records, OFFSET_COMMIT_VERSION)
            write_i64_be(records, committed_offset)
            write_i32_be(records, leader_epoch)
            if size > 0:
                write_compact_string(records, metadata)
            else:
                records.append(1)
            write_i64_be(records, timestamp)
            if has_topic_id:
                records.append(1)
                records.append(0)
                records.append(16)
                records.write(topic_id)
            else:
                records.append(0)
            records.append(0)
            builder.end_record(timestamp)
            stored.replace(int(committed_offset), int(leader_epoch), metadata, wall_ms, topic_id, offset)
            offset += 1
            write_i32_be(w, index)
            write_i16_be(w, NONE)
            if is_compact:
                w.append(0)
        log.next_offset = offset


def make_key_prefix(group_id: str, topic: str) -> bytes:
    """The key of a record of a committed offset, up to the partition."""
    w = BytesWriter()
    write_i16_be(w, OFFSET_COMMIT)
    write_string(w, group_id)
    write_string(w, topic)
    return w.getvalue()


def metadata_size(reader: Reader, is_compact: bool) -> i64:
    """The size of the string that follows, whose bytes are next. Negative for null."""
    if is_compact:
        return reader.uvarint() - 1
    return i64(read_i16_be(reader.buf, reader.take(2)))


def compact_size(size: i64) -> i64:
    """The bytes that a compact string takes whose text has `size` bytes."""
    if size <= 0:
        return 1
    return uvarint_size(size + 1) + size


def write_array_len(w: BytesWriter, count: i64, is_compact: bool) -> None:
    if is_compact:
        write_compact_array_len(w, count)
    else:
        write_i32_be(w, i32(count))
