"""Offset commits, read in place: where the fields are in the bytes of a key and a value.

Nearly all records of a log of offsets have one of three layouts: a key, and a value of version 3, of version 4, or of
version 4 with a topic id. Start-up and Spark's scans read these here, without an object for each record. Any other
layout, and any length that does not fit, is refused; the caller then takes the general decoders of `serde`, which
accept the record or raise the reason why not. So this module may be strict, and must never accept what they refuse,
except for texts that are not UTF-8: these are for the caller to check.

Key: type, group, topic (each with a length of two bytes), partition.
Value: version, offset, leader epoch, metadata, commit timestamp; version 4 ends with tagged fields. The length of the
metadata takes two bytes in version 3. In version 4 it is a varint of one byte here, and one more than the length.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.wire.primitives import i64, read_i16_be, read_i32_be, read_i64_be

# A key without its two names, and a value without its metadata (and without a topic id, in version 4).
KEY_FIXED: Final = 10
VALUE_FIXED: Final = 24
# The tag, its size and the topic id.
TOPIC_ID_FIELD: Final = 18
# Where these begin in a value.
OFFSET_AT: Final = 2
EPOCH_AT: Final = 10
TEXT_SIZE_AT: Final = 14
# The longest text whose length is a varint of one byte.
SHORT_TEXT_MAX: Final = 126


@final
class CommitBytes:
    """The fields of the commit that was read last. Names and metadata are positions in the bytes it was read from.

    One instance serves any number of records. A method that returns False leaves fields in any state.
    """

    def __init__(self) -> None:
        self.group_at: i64 = 0
        self.group_end: i64 = 0
        self.topic_at: i64 = 0
        self.topic_end: i64 = 0
        self.partition: i64 = 0
        self.version: i64 = 0
        self.offset: i64 = 0
        self.leader_epoch: i64 = 0
        self.text_at: i64 = 0
        self.text_end: i64 = 0
        self.timestamp_ms: i64 = 0
        # -1: the value has no topic id.
        self.topic_id_at: i64 = -1

    def read_key(self, data: bytes, at: i64, size: i64) -> bool:
        """A key of type 0 or 1, which have the same layout; the caller looks at the type."""
        if size < KEY_FIXED:
            return False
        group_size: i64 = i64(read_i16_be(data, at + 2))
        if group_size < 0 or group_size > size - KEY_FIXED:
            return False
        group_end: i64 = at + 4 + group_size
        topic_end: i64 = at + size - 4
        topic_size: i64 = i64(read_i16_be(data, group_end))
        if topic_size < 0 or group_end + 2 + topic_size != topic_end:
            return False
        self.group_at = at + 4
        self.group_end = group_end
        self.topic_at = group_end + 2
        self.topic_end = topic_end
        self.partition = i64(read_i32_be(data, topic_end))
        return True

    def read_value(self, data: bytes, at: i64, size: i64) -> bool:
        """A value of version 3 or 4. Not a tombstone."""
        if size < VALUE_FIXED:
            return False
        version: i64 = i64(read_i16_be(data, at))
        text_at: i64 = at + TEXT_SIZE_AT + 1
        text_size: i64 = 0
        topic_id_at: i64 = -1
        if version == 4:
            text_size = i64(data[at + TEXT_SIZE_AT]) - 1
            left: i64 = size - VALUE_FIXED - text_size
            if text_size < 0 or text_size > SHORT_TEXT_MAX or left < 0:
                return False
            # After the commit timestamp: how many tagged fields there are.
            tags: i64 = text_at + text_size + 8
            if left == 0:
                if data[tags] != 0:
                    return False
            elif left == TOPIC_ID_FIELD and data[tags] == 1 and data[tags + 1] == 0 and data[tags + 2] == 16:
                topic_id_at = tags + 3
            else:
                return False
        elif version == 3:
            text_at += 1
            text_size = i64(read_i16_be(data, at + TEXT_SIZE_AT))
            if text_size != size - VALUE_FIXED:
                return False
        else:
            return False
        self.version = version
        self.offset = read_i64_be(data, at + OFFSET_AT)
        self.leader_epoch = i64(read_i32_be(data, at + EPOCH_AT))
        self.text_at = text_at
        self.text_end = text_at + text_size
        self.timestamp_ms = read_i64_be(data, text_at + text_size)
        self.topic_id_at = topic_id_at
        return True
