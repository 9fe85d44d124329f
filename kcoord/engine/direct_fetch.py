"""The direct path of OffsetFetch: a request for committed offsets of one group that are all there.

As in `direct_commit.py`, a first pass over the request checks everything and changes nothing, and a second one writes
the answer straight into the chunk of the session. Everything unusual takes the generic path (`core/offsets/fetch.py`),
which defines what is right: several groups, all offsets of a group, topics without offsets, long metadata, offsets that
may be unstable, and errors. `tests/unit/engine/test_direct_fetch.py` compares both.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.coordinator import Core
from kcoord.core.offsets.fences import check_fetch
from kcoord.core.offsets.fetch import GROUPS_VERSION, INVALID_OFFSET, MEMBER_EPOCH_VERSION, TOPIC_ID_VERSION
from kcoord.core.offsets.stored_offset import StoredOffset
from kcoord.core.outcome import LogId
from kcoord.engine.commits import Commits
from kcoord.engine.outbox import Outbox
from kcoord.engine.session import Session
from kcoord.protocol.errors import NONE
from kcoord.wire.primitives import (
    ZERO_UUID,
    BytesWriter,
    DecodeError,
    Reader,
    i32,
    i64,
    read_i32_be,
    write_compact_array_len,
    write_compact_string,
    write_i16_be,
    write_i32_be,
    write_i64_be,
)

# More partitions, and longer metadata, are for the generic path.
PARTITIONS_MAX: Final = 1000
METADATA_CHARS_MAX: Final = 64
GROUP_BYTES_MIN: Final = 3
TOPIC_BYTES_MIN: Final = 3
INDEX_BYTES: Final = 4


@final
class TopicOffsets:
    """One topic of a request. `stored` has the offset of each partition, None where there is none."""

    def __init__(self, name: str, topic_id: bytes, start: i64) -> None:
        self.name = name
        self.topic_id = topic_id
        # Where the partitions start in the request.
        self.start = start
        self.stored: list[StoredOffset | None] = []


@final
class DirectFetches:
    """Handles OffsetFetch requests that name partitions of one group."""

    def __init__(self, core: Core, commits: Commits, outbox: Outbox) -> None:
        self.offsets = core.offsets
        self.groups = core.groups
        self.topics = core.topics
        self.commits = commits
        self.outbox = outbox
        # Tests compare both paths: they switch this one off, and count what it handles.
        self.is_on = True
        self.handled = 0
        # What the first pass has found, for the second one: the answer shows the log up to an offset.
        self.group_id = ""
        self.log: LogId | None = None
        self.end_offset = 0

    def handle(self, session: Session, reader: Reader, version: int, correlation_id: int) -> bool:
        """Answer a request whose body is next in `reader`. False: nothing has changed, the reader is where it was, and
        the generic path must answer.
        """
        if not self.is_on or version < GROUPS_VERSION:
            return False
        start = reader.pos
        elements_left = reader.elements_left
        topics: list[TopicOffsets] | None
        try:
            topics = self._check(reader, version)
        except DecodeError:
            topics = None
        log = self.log
        if topics is None or log is None:
            reader.pos = start
            reader.elements_left = elements_left
            return False
        chunk = self.outbox.begin_answer(session, correlation_id, True, self.commits.seq_of(log, self.end_offset))
        w = chunk.writer
        write_i32_be(w, 0)
        write_compact_array_len(w, 1)
        write_compact_string(w, self.group_id)
        write_compact_array_len(w, len(topics))
        for one in topics:
            write_topic(w, reader.buf, one, version >= TOPIC_ID_VERSION)
        write_i16_be(w, NONE)
        w.append(0)
        w.append(0)
        self.outbox.end_answer(session, chunk, 0)
        self.outbox.touch(session)
        self.handled += 1
        return True

    def _check(self, reader: Reader, version: int) -> list[TopicOffsets] | None:
        """The topics of the request; None or a DecodeError if anything about it is unusual."""
        self.log = None
        if reader.compact_array_len(GROUP_BYTES_MIN) != 1:
            return None
        group_id = reader.compact_string()
        member_id: str | None = None
        epoch = -1
        if version >= MEMBER_EPOCH_VERSION:
            member_id = reader.compact_nullable_string()
            epoch = reader.int32()
        of_group = self.offsets.by_group.get(group_id)
        count = reader.compact_nullable_array_len(TOPIC_BYTES_MIN)
        if of_group is None or count < 0:
            return None
        topics: list[TopicOffsets] = []
        partitions: i64 = 0
        for _ in range(count):
            one = self._check_topic(reader, version, of_group)
            if one is None:
                return None
            topics.append(one)
            partitions += len(one.stored)
        reader.skip_tags()
        require_stable = reader.boolean()
        reader.skip_tags()
        if partitions > PARTITIONS_MAX or (require_stable and self.offsets.pending.has_group(group_id)):
            return None
        return topics if self._check_group(group_id, member_id, epoch, version) else None

    def _check_topic(
        self, reader: Reader, version: int, of_group: dict[str, dict[int, StoredOffset]]
    ) -> TopicOffsets | None:
        name = ""
        topic_id = ZERO_UUID
        if version >= TOPIC_ID_VERSION:
            topic = self.topics.by_id(reader.uuid())
            if topic is None:
                return None
            name = topic.name
            topic_id = topic.topic_id
        else:
            name = reader.compact_string()
        of_topic = of_group.get(name)
        if of_topic is None:
            return None
        count = reader.compact_array_len(INDEX_BYTES)
        one = TopicOffsets(name, topic_id, reader.pos)
        for _ in range(count):
            stored = of_topic.get(int(read_i32_be(reader.buf, reader.take(INDEX_BYTES))))
            if stored is not None:
                if len(stored.metadata) > METADATA_CHARS_MAX:
                    return None
                if topic_id != ZERO_UUID and stored.topic_id != topic_id and stored.topic_id != ZERO_UUID:
                    # The offset belongs to an earlier topic of the same name.
                    stored = None
            one.stored.append(stored)
        reader.skip_tags()
        return one

    def _check_group(self, group_id: str, member_id: str | None, epoch: int, version: int) -> bool:
        """Whether the group exists and answers this member. Notes how far its log must be durable."""
        self.group_id = group_id
        consumer_group = self.groups.consumer_groups.get(group_id)
        if consumer_group is not None:
            if version >= MEMBER_EPOCH_VERSION and check_fetch(consumer_group, member_id, epoch) != NONE:
                return False
            self.log = consumer_group.log
            self.end_offset = max(consumer_group.end_offset, consumer_group.transactions_end)
            return True
        group = self.groups.get(group_id)
        if group is None:
            return False
        self.log = group.log
        self.end_offset = max(group.end_offset, group.transactions_end)
        return True


def write_topic(w: BytesWriter, request: bytes, one: TopicOffsets, by_id: bool) -> None:
    """One topic of the answer: its partitions in the order of the request."""
    if by_id:
        w.write(one.topic_id)
    else:
        write_compact_string(w, one.name)
    write_compact_array_len(w, len(one.stored))
    at = one.start
    for stored in one.stored:
        write_i32_be(w, read_i32_be(request, at))
        at += INDEX_BYTES
        if stored is None:
            write_i64_be(w, INVALID_OFFSET)
            write_i32_be(w, -1)
            w.append(1)
        else:
            write_i64_be(w, stored.committed_offset)
            write_i32_be(w, i32(stored.leader_epoch))
            if stored.metadata:
                write_compact_string(w, stored.metadata)
            else:
                w.append(1)
        write_i16_be(w, NONE)
        w.append(0)
    w.append(0)
