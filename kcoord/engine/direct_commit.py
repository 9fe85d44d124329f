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
from kcoord.core.outcome import Now
from kcoord.core.topics.registry import Topic
from kcoord.engine.commits import Commits
from kcoord.engine.coordinator_log import RECORD_OVERHEAD_BYTES, CoordinatorLog
from kcoord.engine.outbox import Outbox
from kcoord.engine.request_head import HEAD_BYTES_MAX, RequestHead, read_head
from kcoord.engine.session import Session
from kcoord.engine.topic_commit import NO_REQUEST, PARTITION_INDEX_BYTES, TopicCommit
from kcoord.log.serde import OFFSET_COMMIT_VERSION
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
    varint_size,
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
# A request with more partitions of a topic does not change what is remembered of it.
PARTITIONS_MAX: Final = 100
# A value: version, offset, leader epoch, timestamp, number of tags; the tag of the topic id.
VALUE_BYTES: Final = 2 + 8 + 4 + 8 + 1
TOPIC_ID_BYTES: Final = 2 + 16
NO_HEADERS_BYTES: Final = 1
# The bytes of a partition without metadata and tags, after its numbers: no string or an empty one, and no tags.
PLAIN_BYTES: Final = 2
# Instead of the size of metadata that is refused.
TOO_LARGE: Final = -(1 << 31)
# The answer for a partition after its index: no error; and no tags in flexible versions.
ACCEPTED: Final = b"\x00\x00"
ACCEPTED_COMPACT: Final = b"\x00\x00\x00"


def value_start(size: i64) -> bytes:
    """How a value of this size begins in its record: the size and the version."""
    w = BytesWriter()
    write_varint(w, size)
    write_i16_be(w, OFFSET_COMMIT_VERSION)
    return w.getvalue()


# Those of values without metadata.
PLAIN_START: Final = value_start(VALUE_BYTES + 1)
PLAIN_START_WITH_ID: Final = value_start(VALUE_BYTES + 1 + TOPIC_ID_BYTES)


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
        self.log: CoordinatorLog
        self.classic: ClassicGroup | None = None
        self.member: ConsumerMember | None = None
        self.epoch = 0
        self.records_bytes: i64 = 0
        # The metadata of all partitions of topics that are not plain, in the request's order.
        self.metadata: list[str] = []
        # The number of the request.
        self.request = NO_REQUEST

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
            try:
                self._write(session, reader, version, correlation_id, topics, now)
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
        if not group_id or not self._check_group(head, version):
            return None
        classic = self.classic
        self.log = self.commits.logs[self.offsets.log_of(group_id) if classic is None else classic.log]
        bytes_max: i64 = self.log.batch_bytes_max
        topics: list[TopicCommit] = []
        self.records_bytes = 0
        self.request += 1
        if self.metadata:
            self.metadata = []
        count = reader.compact_array_len(TOPIC_BYTES_MIN) if is_compact else reader.array_len(TOPIC_BYTES_MIN)
        for place in range(count):
            known = head.at(place, reader)
            topic: Topic | None
            wire = b""
            if known is not None:
                topic = known.topic
            else:
                start = reader.pos
                if version >= TOPIC_ID_VERSION:
                    topic = self.topics.by_id(reader.uuid())
                else:
                    topic = self.topics.get(reader.compact_string() if is_compact else reader.string())
                if topic is None:
                    return None
                wire = reader.buf[start : reader.pos]
            one = self._check_topic(reader, version, head, topic, known)
            # Records that may not fit are counted topic by topic: what is made for a topic has the length of its key.
            if one is None or self.records_bytes > bytes_max:
                return None
            if known is None:
                head.put(place, one, wire)
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
        self, reader: Reader, version: int, head: RequestHead, topic: Topic, known: TopicCommit | None
    ) -> TopicCommit | None:
        """The partitions of a topic, or None. Raises GroupError for one that the member does not own."""
        is_compact = version >= FLEXIBLE_VERSION
        fixed: i64 = 16 if version >= LEADER_EPOCH_VERSION else 12
        count = reader.compact_array_len(PARTITION_BYTES_MIN) if is_compact else reader.array_len(PARTITION_BYTES_MIN)
        if count == 0:
            return None
        one = self._topic_commit(head, topic, count, known)
        if one is None:
            return None
        one.start = reader.pos
        one.count = count
        one.is_plain = is_compact
        one.metadata_at = len(self.metadata)
        buf = reader.buf
        member = self.member
        partition_count = topic.partition_count
        record_bytes: i64 = RECORD_OVERHEAD_BYTES + one.key_size + VALUE_BYTES
        if topic.topic_id != ZERO_UUID:
            record_bytes += TOPIC_ID_BYTES
        records_bytes = self.records_bytes
        known_count = len(one.indexes)
        end = reader.end
        p = reader.pos
        for number in range(count):
            if p + fixed > end:
                reader.pos = p
                reader.take(fixed)  # raises
            index = int(read_i32_be(buf, p))
            p += fixed
            if index < 0 or index >= partition_count:
                return None
            if number >= known_count or one.indexes[number] != index or not one.stored[number].is_current:
                # Not what the last request had here.
                if not self._find(one, number, index):
                    return None
            if member is not None:
                check_partition(member, self.epoch, topic.topic_id, index)
            if is_compact and p + PLAIN_BYTES <= end and buf[p] <= 1 and buf[p + 1] == 0:
                p += PLAIN_BYTES
                records_bytes += record_bytes + 1
                if not one.is_plain:
                    self.metadata.append("")
                continue
            if one.is_plain:
                one.is_plain = False
                self.metadata.extend([""] * number)
            reader.pos = p
            size = self._take_metadata(reader, is_compact)
            if size == TOO_LARGE:
                return None
            p = reader.pos
            records_bytes += record_bytes + compact_size(size)
        reader.pos = p
        self.records_bytes = records_bytes
        return one

    def _take_metadata(self, reader: Reader, is_compact: bool) -> i64:
        """Note the metadata of a partition, which is next, and go to the partition's end. Returns the metadata's size,
        negative for null, or TOO_LARGE.
        """
        at = reader.pos
        metadata = ""
        size = metadata_size(reader, is_compact)
        if size > 0:
            reader.pos = at
            text = reader.compact_nullable_string() if is_compact else reader.nullable_string()
            if text is None or is_metadata_too_large(self.config, text):
                return TOO_LARGE
            metadata = text
        if is_compact:
            reader.skip_tags()
        self.metadata.append(metadata)
        return size

    def _topic_commit(
        self, head: RequestHead, topic: Topic, count: int, known: TopicCommit | None
    ) -> TopicCommit | None:
        """What the head remembers of this topic, or a new one. None for a second array of the same topic."""
        one = head.topic_commits.get(topic.name) if known is None else known
        if one is not None and one.request == self.request:
            return None
        # A topic that was deleted and created again is another one.
        if one is None or one.topic is not topic or count > PARTITIONS_MAX:
            one = TopicCommit(head.group_id, topic)
            if count <= PARTITIONS_MAX:
                head.remember(one)
        one.request = self.request
        return one

    def _find(self, one: TopicCommit, number: int, index: int) -> bool:
        """Find the committed offset of the partition at this place of the request; whether there is one."""
        stored = self.offsets.get(self.group_id, one.name, index)
        if stored is None:
            return False
        one.answer = b""
        if number < len(one.indexes):
            one.indexes[number] = index
            one.stored[number] = stored
        else:
            one.indexes.append(index)
            one.stored.append(stored)
        return True

    # --- second pass -----------------------------------------------------------------------------------------

    def _write(
        self,
        session: Session,
        reader: Reader,
        version: int,
        correlation_id: int,
        topics: list[TopicCommit],
        now: Now,
    ) -> None:
        """Append the records, change the stored offsets, extend the member's session, and answer."""
        log = self.log
        is_compact = version >= FLEXIBLE_VERSION
        self.commits.open_bytes += int(self.records_bytes)
        log.make_room()
        chunk = self.outbox.begin_answer(session, correlation_id, is_compact, self.commits.open_seq)
        w = chunk.writer
        if version >= THROTTLE_VERSION:
            write_i32_be(w, 0)
        write_array_len(w, len(topics), is_compact)
        for one in topics:
            reader.pos = one.start
            self._write_records(reader, version, one, now)
            if not one.answer or one.answer_count != one.count:
                encode_answer(one, version)
            w.write(one.answer)
        if is_compact:
            w.append(0)
        self.outbox.end_answer(session, chunk, 0)
        self.outbox.touch(session)
        classic = self.classic
        if classic is None:
            self.groups.touch(self.group_id, log.next_offset)
        else:
            self.groups.touch_classic(classic, log.next_offset)
            self.groups.touch_member(classic, self.member_id, now.mono_ms)

    def _write_records(self, reader: Reader, version: int, one: TopicCommit, now: Now) -> None:
        """For each partition of a topic: its record, and its stored offset."""
        is_compact = version >= FLEXIBLE_VERSION
        has_epoch = version >= LEADER_EPOCH_VERSION
        fixed: i64 = 16 if has_epoch else 12
        wall_ms = now.wall_ms
        timestamp: i64 = wall_ms
        topic_id = one.topic_id
        builder = self.log.builder
        records = builder.records
        key_start = one.key_start
        # Values without metadata.
        plain_start = PLAIN_START
        plain_size: i64 = VALUE_BYTES + 1
        if topic_id != ZERO_UUID:
            plain_start = PLAIN_START_WITH_ID
            plain_size += TOPIC_ID_BYTES
        key_bytes: i64 = len(key_start) + PARTITION_INDEX_BYTES
        plain_bytes = key_bytes + varint_size(plain_size) + plain_size + NO_HEADERS_BYTES
        plain_end = one.end_at(timestamp)
        is_plain = one.is_plain
        offset = self.log.next_offset
        buf = reader.buf
        p = reader.pos
        for number in range(one.count):
            stored = one.stored[number]
            index = read_i32_be(buf, p)
            committed_offset = read_i64_be(buf, p + 4)
            leader_epoch: i32 = -1
            if has_epoch:
                leader_epoch = read_i32_be(buf, p + 12)
                if leader_epoch < 0:
                    leader_epoch = -1
            p += fixed
            size: i64 = 0
            if is_plain:
                p += PLAIN_BYTES
            else:
                reader.pos = p
                size = metadata_size(reader, is_compact)
                if size > 0:
                    reader.take(size)
                if is_compact:
                    reader.skip_tags()
                p = reader.pos
            metadata = "" if is_plain else self.metadata[one.metadata_at + number]
            record_bytes = plain_bytes
            start = plain_start
            if size > 0:
                value_size: i64 = plain_size - 1 + compact_size(size)
                record_bytes = key_bytes + varint_size(value_size) + value_size + NO_HEADERS_BYTES
                start = value_start(value_size)
            builder.begin_encoded(timestamp, record_bytes)
            records.write(key_start)
            write_i32_be(records, index)
            records.write(start)
            write_i64_be(records, committed_offset)
            write_i32_be(records, leader_epoch)
            if size > 0:
                write_compact_string(records, metadata)
                write_i64_be(records, timestamp)
                records.write(one.tail)
            else:
                records.write(plain_end)
            builder.end_record(timestamp)
            stored.replace(committed_offset, leader_epoch, metadata, wall_ms, topic_id, offset)
            offset += 1
        reader.pos = p
        self.log.next_offset = offset


def encode_answer(one: TopicCommit, version: int) -> None:
    """What the answer says of a topic whose partitions are all accepted. It is the same for the same partitions."""
    is_compact = version >= FLEXIBLE_VERSION
    accepted = ACCEPTED_COMPACT if is_compact else ACCEPTED
    w = BytesWriter()
    if version >= TOPIC_ID_VERSION:
        w.write(one.topic_id)
    elif is_compact:
        write_compact_string(w, one.name)
    else:
        write_string(w, one.name)
    write_array_len(w, one.count, is_compact)
    for number in range(one.count):
        write_i32_be(w, i32(one.indexes[number]))
        w.write(accepted)
    if is_compact:
        w.append(0)
    one.answer = w.getvalue()
    one.answer_count = one.count


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
