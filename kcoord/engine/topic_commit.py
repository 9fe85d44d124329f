"""What the commits of one session for one topic have in common, from request to request."""

from __future__ import annotations

from typing import Final, final

from kcoord.core.offsets.stored_offset import StoredOffset
from kcoord.core.topics.registry import Topic
from kcoord.log.serde import OFFSET_COMMIT
from kcoord.wire.primitives import (
    ZERO_UUID,
    BytesWriter,
    i64,
    write_i16_be,
    write_i64_be,
    write_string,
    write_varint,
)
from kcoord.wire.record_batch import NO_TIMESTAMP

PARTITION_INDEX_BYTES: Final = 4
# One tag: number 0, 16 bytes.
TOPIC_ID_TAG: Final = b"\x01\x00\x10"
NO_REQUEST: Final = 0


@final
class TopicCommit:
    """One topic of requests with the same head, so of one group: what they have in common, and what is read of the
    current one. A request uses it for one array of partitions only.
    """

    def __init__(self, group_id: str, topic: Topic) -> None:
        self.topic = topic
        self.name = topic.name
        self.topic_id = topic.topic_id
        # The bytes that name the topic in requests with this head.
        self.wire = b""
        prefix = BytesWriter()
        write_i16_be(prefix, OFFSET_COMMIT)
        write_string(prefix, group_id)
        write_string(prefix, topic.name)
        self.key_size: i64 = len(prefix) + PARTITION_INDEX_BYTES
        w = BytesWriter()
        write_varint(w, self.key_size)
        w.write(prefix.getvalue())
        # How the key of a record begins, up to the partition, with its size.
        self.key_start = w.getvalue()
        # What ends the value and its record: the tags, with that of the topic id if there is one, and no headers.
        self.tail = b"\x00\x00" if topic.topic_id == ZERO_UUID else TOPIC_ID_TAG + topic.topic_id + b"\x00"
        # How a record without metadata ends that was made at this time.
        self.end = b""
        self.end_timestamp: i64 = NO_TIMESTAMP - 1
        # Partitions of this request and earlier ones, in the order of a request, and the committed offset of each. One
        # that is not current any more has to be looked up again.
        self.indexes: list[int] = []
        self.stored: list[StoredOffset] = []
        # What the answer says of the first `answer_count` of these, if all are accepted; empty if it has to be encoded.
        self.answer = b""
        self.answer_count: i64 = 0
        # The number of the last request that uses it; where the partitions start in that one, and how many there are.
        self.request = NO_REQUEST
        self.start: i64 = 0
        self.count: i64 = 0
        # Whether the version is a flexible one and no partition has metadata or tags. Their ends take two bytes then.
        self.is_plain = True
        # Unless it is plain, where its partitions begin in `DirectCommits.metadata`.
        self.metadata_at: i64 = 0

    def end_at(self, timestamp: i64) -> bytes:
        """How a record without metadata ends: no metadata, the timestamp, and the tail."""
        if timestamp != self.end_timestamp:
            w = BytesWriter()
            w.append(1)
            write_i64_be(w, timestamp)
            w.write(self.tail)
            self.end = w.getvalue()
            self.end_timestamp = timestamp
        return self.end
