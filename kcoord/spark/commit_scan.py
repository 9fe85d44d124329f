"""Commits of many batches into columns as Arrow has them: numbers, and texts one behind the other.

Nearly all records of a log of offsets have one of a few layouts, which are read where they stand. Everything else goes
through the decoders that everybody uses, and gets its reason from them where it cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from kcoord.log.serde import LEGACY_OFFSET_COMMIT, OFFSET_COMMIT, OFFSET_COMMIT_VERSION_MAX
from kcoord.protocol.records.offset_commit import decode_offset_commit_value
from kcoord.spark.plan import TIME_MS_MAX
from kcoord.spark.scan import Columns, RecordSpan, Scan, ScanRange
from kcoord.wire.primitives import (
    ZERO_UUID,
    DecodeError,
    Reader,
    i32,
    i64,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_i32_le,
    write_i64_le,
)
from kcoord.wire.record_batch import BatchHeader

# A key besides its two names; a value of version 3 besides its text, of version 4 too, and with the id of a topic.
KEY_FIXED: Final = 10
VALUE_FIXED: Final = 24
TOPIC_ID_BYTES: Final = 18
# Where these are in a value of version 3 or 4.
OFFSET_AT: Final = 2
EPOCH_AT: Final = 10
TEXT_AT: Final = 14
# Texts that are shorter have a length of one byte in version 4.
SHORT_TEXT_MAX: Final = 126

OTHER_LAYOUT: Final = 0
LAYOUT_3: Final = 1
LAYOUT_4: Final = 2
LAYOUT_4_WITH_ID: Final = 3

# What a row has not, in `flags`, besides NO_TIMESTAMP.
NO_VALUE: Final = 2
NO_EPOCH: Final = 4
NO_COMMIT_TIME: Final = 8
NO_EXPIRY: Final = 16
NO_TOPIC_ID: Final = 32
TOMBSTONE: Final = NO_VALUE | NO_EPOCH | NO_COMMIT_TIME | NO_EXPIRY | NO_TOPIC_ID

# Answers of `wants` that are remembered.
KNOWN_MAX: Final = 1 << 19

Wants = Callable[[str, str, int], bool]


def commit_key(key: bytes) -> tuple[str, str, int] | None:
    """Group, topic and partition of a commit's key; None for a key of another record. Raises DecodeError."""
    r = Reader(key)
    kind = r.int16()
    if not LEGACY_OFFSET_COMMIT <= kind <= OFFSET_COMMIT:
        return None
    found = (r.string(), r.string(), r.int32())
    r.expect_end()
    return found


def group_size_of(data: bytes, key_at: i64, key_size: i64) -> i64:
    """How long the group is in a commit's key of at least KEY_FIXED bytes; -1 if lengths do not fit together."""
    size: i64 = i64(read_i16_be(data, key_at + 2))
    if size < 0 or size > key_size - KEY_FIXED:
        return -1
    topic_size: i64 = i64(read_i16_be(data, key_at + 4 + size))
    return size if topic_size >= 0 and size + topic_size + KEY_FIXED == key_size else -1


def value_layout(data: bytes, at: i64, size: i64) -> i64:
    """Which of the layouts a commit's value has; then all lengths in it are right."""
    if size < VALUE_FIXED:
        return OTHER_LAYOUT
    version: i64 = i64(read_i16_be(data, at))
    if version == 3:
        return LAYOUT_3 if i64(read_i16_be(data, at + TEXT_AT)) == size - VALUE_FIXED else OTHER_LAYOUT
    if version == 4:
        text_size: i64 = i64(data[at + TEXT_AT]) - 1
        left: i64 = size - VALUE_FIXED - text_size
        if text_size >= 0 and text_size < SHORT_TEXT_MAX:
            tags: i64 = at + TEXT_AT + 1 + text_size + 8
            if left == 0 and data[tags] == 0:
                return LAYOUT_4
            if left == TOPIC_ID_BYTES and data[tags] == 1 and data[tags + 1] == 0 and data[tags + 2] == 16:
                return LAYOUT_4_WITH_ID
    return OTHER_LAYOUT


def text_at_of(layout: i64) -> i64:
    """Where the text begins in a value of that layout."""
    return TEXT_AT + 2 if layout == LAYOUT_3 else TEXT_AT + 1


def text_size_of(layout: i64, size: i64) -> i64:
    return size - VALUE_FIXED - TOPIC_ID_BYTES if layout == LAYOUT_4_WITH_ID else size - VALUE_FIXED


@final
class CommitColumns(Columns):
    """A number that is not there is a 0, times are microseconds. `topic_numbers` are places in `topic_ids`."""

    def __init__(self) -> None:
        super().__init__()
        self.group_ends, self.groups = self.text()
        self.topic_ends, self.topics = self.text()
        self.partitions = self.four()
        self.committed = self.eight()
        self.epochs = self.four()
        self.text_ends, self.metadata = self.text()
        self.commit_times = self.eight()
        self.expire_times = self.eight()
        self.topic_numbers = self.four()
        self.topic_ids: list[bytes] = []


@final
class CommitScan(Scan):
    """Commits, of keys (group, topic, partition) that `wants` says yes to. `take` gives what came together."""

    def __init__(self, wanted: ScanRange, wants: Wants | None) -> None:
        super().__init__(wanted)
        self.wants = wants
        self.is_known_wanted: dict[bytes, bool] = {}
        self.columns = CommitColumns()
        self.base = self.columns
        self.topic_number_of: dict[bytes, int] = {}

    def take(self) -> CommitColumns:
        columns = self.columns
        self.columns = CommitColumns()
        self.base = self.columns
        self.topic_number_of = {}
        return columns

    def record(self, data: bytes, header: BatchHeader, span: RecordSpan) -> None:
        key_at = span.key_at
        key_size = span.key_size
        group_size: i64 = -1
        if key_size >= KEY_FIXED:
            kind: i64 = i64(read_i16_be(data, key_at))
            if kind < LEGACY_OFFSET_COMMIT or kind > OFFSET_COMMIT:
                return
            group_size = group_size_of(data, key_at, key_size)
        if group_size < 0:
            self._bad_key(data, span)
            return
        if self.wants is not None and not self._is_key_wanted(data[key_at : key_at + key_size]):
            return
        flags: i64 = self._value(data, span.offset, span.value_at, span.value_size)
        if flags < 0:
            return
        c = self.columns
        c.begin_row(span, flags)
        at: i64 = key_at + 4
        c.groups.write(data[at : at + group_size])
        write_i32_le(c.group_ends, i32(len(c.groups)))
        at += group_size + 2
        topic_end: i64 = key_at + key_size - 4
        c.topics.write(data[at:topic_end])
        write_i32_le(c.topic_ends, i32(len(c.topics)))
        write_i32_le(c.partitions, i32(read_i32_be(data, topic_end)))

    def _bad_key(self, data: bytes, span: RecordSpan) -> None:
        key = span.key(data)
        if key is None:
            self._bad(span.offset, "a record without a key")
            return
        try:
            if commit_key(key) is not None:
                self._bad(span.offset, "a key that is none")
        except DecodeError as error:
            self._bad(span.offset, str(error))

    def _bad(self, offset: i64, reason: str) -> None:
        self.columns.bad.append((offset, self.columns.batches, reason))

    def _is_key_wanted(self, key: bytes) -> bool:
        """Keys that cannot be read are: somebody has to say so."""
        known = self.is_known_wanted.get(key)
        if known is None:
            known = True
            try:
                found = commit_key(key)
                if found is not None and self.wants is not None:
                    known = self.wants(found[0], found[1], found[2])
            except DecodeError:
                pass
            if len(self.is_known_wanted) >= KNOWN_MAX:
                self.is_known_wanted = {}
            self.is_known_wanted[key] = known
        return known

    def _value(self, data: bytes, offset: i64, at: i64, size: i64) -> i64:
        """Write the columns that come from the value; the row's flags, or -1, and nothing in them, if it is bad."""
        if size < 0:
            return self._put(0, 0, data, 0, 0, 0, -1, -1) | TOMBSTONE
        layout = value_layout(data, at, size)
        if layout != OTHER_LAYOUT:
            return self._put_plain(data, at, size, layout)
        try:
            return self._put_decoded(data[at : at + size])
        except DecodeError as error:
            self._bad(offset, str(error))
        return -1

    def _put_plain(self, data: bytes, at: i64, size: i64, layout: i64) -> i64:
        text_at = at + text_at_of(layout)
        text_size = text_size_of(layout, size)
        end: i64 = text_at + text_size
        number: i64 = -1
        if layout == LAYOUT_4_WITH_ID:
            # Behind the time, the number of tags, the tag and its size.
            number = self._topic_number(data[end + 11 : end + 27])
        epoch: i64 = i64(read_i32_be(data, at + EPOCH_AT))
        offset = read_i64_be(data, at + OFFSET_AT)
        return self._put(offset, epoch, data, text_at, text_size, read_i64_be(data, end), -1, number)

    def _put_decoded(self, data: bytes) -> i64:
        r = Reader(data)
        version = r.int16()
        if version < 0 or version > OFFSET_COMMIT_VERSION_MAX:
            raise DecodeError(f"OffsetCommitValue of unknown version {version}")
        value = decode_offset_commit_value(r, version)
        r.expect_end()
        text = value.metadata.encode()
        number = self._topic_number(value.topic_id)
        times = (value.commit_timestamp, value.expire_timestamp)
        return self._put(value.offset, value.leader_epoch, text, 0, len(text), times[0], times[1], number)

    def _put(
        self,
        offset: i64,
        epoch: i64,
        data: bytes,
        text_at: i64,
        text_size: i64,
        commit_ms: i64,
        expire_ms: i64,
        topic_number: i64,
    ) -> i64:
        c = self.columns
        flags: i64 = 0
        write_i64_le(c.committed, offset)
        if epoch == -1:
            flags |= NO_EPOCH
        write_i32_le(c.epochs, i32(epoch))
        if text_size > 0:
            c.metadata.write(data[text_at : text_at + text_size])
        write_i32_le(c.text_ends, i32(len(c.metadata)))
        if commit_ms < 0 or commit_ms > TIME_MS_MAX:
            flags |= NO_COMMIT_TIME
            commit_ms = 0
        write_i64_le(c.commit_times, commit_ms * 1000)
        if expire_ms < 0 or expire_ms > TIME_MS_MAX:
            flags |= NO_EXPIRY
            expire_ms = 0
        write_i64_le(c.expire_times, expire_ms * 1000)
        if topic_number < 0:
            flags |= NO_TOPIC_ID
            topic_number = 0
        write_i32_le(c.topic_numbers, i32(topic_number))
        return flags

    def _topic_number(self, topic_id: bytes) -> i64:
        number = self.topic_number_of.get(topic_id)
        if number is None:
            if topic_id == ZERO_UUID:
                return -1
            number = len(self.columns.topic_ids)
            self.topic_number_of[topic_id] = number
            self.columns.topic_ids.append(topic_id)
        return number
