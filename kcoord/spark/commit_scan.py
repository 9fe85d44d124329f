"""Commits of many batches into columns as Arrow has them: numbers, and texts one behind the other.

Nearly all records of a log of offsets have one of a few layouts, which are read where they stand. Everything else goes
through the decoders that everybody uses, and gets its reason from them where it cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from kcoord.protocol.records.offset_commit import decode_offset_commit_value
from kcoord.spark.plan import TIME_MS_MAX
from kcoord.spark.scan import BYTES_MAX, Scan, ScanRange
from kcoord.wire.primitives import (
    ZERO_UUID,
    BytesWriter,
    DecodeError,
    Reader,
    i32,
    i64,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    u8,
    write_i32_le,
    write_i64_le,
)

# Types of offset commits: 0 for the oldest brokers', 1.
COMMIT_KEY_MAX: Final = 1
VALUE_VERSION_MAX: Final = 4
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

# What a row has not, in `flags`.
NO_VALUE: Final = 1
NO_EPOCH: Final = 2
NO_TIMESTAMP: Final = 4
NO_COMMIT_TIME: Final = 8
NO_EXPIRY: Final = 16
NO_TOPIC_ID: Final = 32
TOMBSTONE: Final = NO_VALUE | NO_EPOCH | NO_COMMIT_TIME | NO_EXPIRY | NO_TOPIC_ID

# Answers of `wants`, and topic ids, that are remembered.
KNOWN_MAX: Final = 1 << 19

Wants = Callable[[str, str, int], bool]


def commit_key(key: bytes) -> tuple[str, str, int] | None:
    """Group, topic and partition of a commit's key; None for a key of another record. Raises DecodeError."""
    r = Reader(key)
    kind = r.int16()
    if kind < 0 or kind > COMMIT_KEY_MAX:
        return None
    found = (r.string(), r.string(), r.int32())
    r.expect_end()
    return found


@final
class CommitColumns:
    """One column each, `count` rows long; of batches `batches` long.

    `*_ends` begin with a 0, times are microseconds, and a number that is not there is a 0. `bad` are records that
    cannot be read: offset, number of the batch, why. `topic_ids` are those that `topic_numbers` mean.
    """

    def __init__(self) -> None:
        self.count: i64 = 0
        self.offsets = BytesWriter()
        self.timestamps = BytesWriter()
        self.batch_of = BytesWriter()
        self.group_ends = _ends()
        self.groups = BytesWriter()
        self.topic_ends = _ends()
        self.topics = BytesWriter()
        self.partitions = BytesWriter()
        self.flags = BytesWriter()
        self.committed = BytesWriter()
        self.epochs = BytesWriter()
        self.text_ends = _ends()
        self.texts = BytesWriter()
        self.commit_times = BytesWriter()
        self.expire_times = BytesWriter()
        self.topic_numbers = BytesWriter()
        self.topic_ids: list[bytes] = []
        self.bad: list[tuple[int, int, str]] = []
        self.batches: i64 = 0
        self.positions = BytesWriter()
        self.producer_ids = BytesWriter()
        self.is_transactional = False


def _ends() -> BytesWriter:
    ends = BytesWriter()
    write_i32_le(ends, 0)
    return ends


@final
class CommitScan(Scan):
    """Commits, of keys (group, topic, partition) that `wants` says yes to. `take` gives what came together."""

    def __init__(self, wanted: ScanRange, wants: Wants | None) -> None:
        super().__init__(wanted)
        self.wants = wants
        self.is_known_wanted: dict[bytes, bool] = {}
        self.columns = CommitColumns()
        self.topic_number_of: dict[bytes, int] = {}
        # How long the columns were when the batch began.
        self.count: i64 = 0
        self.group_bytes: i64 = 0
        self.topic_bytes: i64 = 0
        self.text_bytes: i64 = 0
        self.bad_count: i64 = 0

    def take(self) -> CommitColumns:
        columns = self.columns
        self.columns = CommitColumns()
        self.topic_number_of = {}
        return columns

    def is_full(self, records_max: i64) -> bool:
        c = self.columns
        return (
            c.count >= records_max
            or len(c.bad) >= records_max
            or len(c.groups) + len(c.topics) + len(c.texts) >= BYTES_MAX
        )

    def begin_batch(self) -> None:
        c = self.columns
        self.count = c.count
        self.group_bytes = len(c.groups)
        self.topic_bytes = len(c.topics)
        self.text_bytes = len(c.texts)
        self.bad_count = len(c.bad)

    def undo_batch(self) -> None:
        c = self.columns
        count = self.count
        c.count = count
        for column in (c.offsets, c.timestamps, c.committed, c.commit_times, c.expire_times):
            column.truncate(count * 8)
        for column in (c.batch_of, c.partitions, c.epochs, c.topic_numbers):
            column.truncate(count * 4)
        for column in (c.group_ends, c.topic_ends, c.text_ends):
            column.truncate(count * 4 + 4)
        c.flags.truncate(count)
        c.groups.truncate(self.group_bytes)
        c.topics.truncate(self.topic_bytes)
        c.texts.truncate(self.text_bytes)
        del c.bad[self.bad_count :]

    def end_batch(self, position: i64, producer_id: i64, timestamp_type: i64) -> None:
        c = self.columns
        c.batches += 1
        write_i64_le(c.positions, position)
        write_i64_le(c.producer_ids, producer_id)
        if producer_id >= 0:
            c.is_transactional = True

    def record(
        self,
        data: bytes,
        offset: i64,
        timestamp: i64,
        key_at: i64,
        key_size: i64,
        value_at: i64,
        value_size: i64,
        headers_at: i64,
        end: i64,
    ) -> None:
        c = self.columns
        group_size: i64 = -1
        topic_size: i64 = -1
        if key_size >= KEY_FIXED:
            kind: i64 = i64(read_i16_be(data, key_at))
            if kind < 0 or kind > COMMIT_KEY_MAX:
                return
            group_size = i64(read_i16_be(data, key_at + 2))
            if group_size >= 0 and group_size <= key_size - KEY_FIXED:
                topic_size = i64(read_i16_be(data, key_at + 4 + group_size))
        if topic_size < 0 or group_size + topic_size + KEY_FIXED != key_size:
            self._bad_key(data, offset, key_at, key_size)
            return
        if self.wants is not None and not self._is_key_wanted(data[key_at : key_at + key_size]):
            return
        flags: i64 = 0
        if timestamp < 0 or timestamp > TIME_MS_MAX:
            flags = NO_TIMESTAMP
            timestamp = 0
        if not self._value(data, offset, value_at, value_size, flags):
            return
        c.count += 1
        write_i64_le(c.offsets, offset)
        write_i64_le(c.timestamps, timestamp * 1000)
        write_i32_le(c.batch_of, i32(c.batches))
        at: i64 = key_at + 4
        c.groups.write(data[at : at + group_size])
        write_i32_le(c.group_ends, i32(len(c.groups)))
        at += group_size + 2
        c.topics.write(data[at : at + topic_size])
        write_i32_le(c.topic_ends, i32(len(c.topics)))
        write_i32_le(c.partitions, i32(read_i32_be(data, at + topic_size)))

    def _bad_key(self, data: bytes, offset: i64, key_at: i64, key_size: i64) -> None:
        if key_size < 0:
            self._bad(offset, "a record without a key")
            return
        try:
            if commit_key(data[key_at : key_at + key_size]) is not None:
                self._bad(offset, "a key that is none")
        except DecodeError as error:
            self._bad(offset, str(error))

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

    def _value(self, data: bytes, offset: i64, at: i64, size: i64, flags: i64) -> bool:
        """The columns that come from the value; False, and nothing in them, if it cannot be read."""
        if size < 0:
            self._row(0, 0, data, 0, 0, 0, 0, -1, flags | TOMBSTONE)
            return True
        if size >= VALUE_FIXED:
            version: i64 = i64(read_i16_be(data, at))
            text_size: i64 = -1
            if version == 3:
                text_size = i64(read_i16_be(data, at + TEXT_AT))
                if text_size >= 0 and VALUE_FIXED + text_size == size:
                    self._plain(data, at, at + TEXT_AT + 2, text_size, -1, flags)
                    return True
            elif version == VALUE_VERSION_MAX:
                text_size = i64(data[at + TEXT_AT]) - 1
                if text_size >= 0 and text_size < SHORT_TEXT_MAX:
                    tags: i64 = at + TEXT_AT + 1 + text_size + 8
                    left: i64 = size - VALUE_FIXED - text_size
                    if left == 0 and data[tags] == 0:
                        self._plain(data, at, at + TEXT_AT + 1, text_size, -1, flags)
                        return True
                    if left == TOPIC_ID_BYTES and data[tags] == 1 and data[tags + 1] == 0 and data[tags + 2] == 16:
                        self._plain(data, at, at + TEXT_AT + 1, text_size, tags + 3, flags)
                        return True
        try:
            self._decode(data[at : at + size], flags)
        except DecodeError as error:
            self._bad(offset, str(error))
            return False
        return True

    def _plain(self, data: bytes, at: i64, text_at: i64, text_size: i64, id_at: i64, flags: i64) -> None:
        commit_ms = read_i64_be(data, text_at + text_size)
        epoch: i64 = i64(read_i32_be(data, at + EPOCH_AT))
        number: i64 = -1 if id_at < 0 else self._topic_number(data[id_at : id_at + 16])
        offset = read_i64_be(data, at + OFFSET_AT)
        self._row(offset, epoch, data, text_at, text_size, commit_ms, -1, number, flags)

    def _decode(self, data: bytes, flags: i64) -> None:
        r = Reader(data)
        version = r.int16()
        if version < 0 or version > VALUE_VERSION_MAX:
            raise DecodeError(f"OffsetCommitValue of unknown version {version}")
        value = decode_offset_commit_value(r, version)
        r.expect_end()
        text = value.metadata.encode()
        number = -1 if value.topic_id == ZERO_UUID else self._topic_number(value.topic_id)
        times = (value.commit_timestamp, value.expire_timestamp)
        self._row(value.offset, value.leader_epoch, text, 0, len(text), times[0], times[1], number, flags)

    def _row(
        self,
        offset: i64,
        epoch: i64,
        data: bytes,
        text_at: i64,
        text_size: i64,
        commit_ms: i64,
        expire_ms: i64,
        topic_number: i64,
        flags: i64,
    ) -> None:
        c = self.columns
        write_i64_le(c.committed, offset)
        if epoch == -1:
            flags |= NO_EPOCH
        write_i32_le(c.epochs, i32(epoch))
        if text_size > 0:
            c.texts.write(data[text_at : text_at + text_size])
        write_i32_le(c.text_ends, i32(len(c.texts)))
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
        c.flags.append(u8(flags))

    def _topic_number(self, topic_id: bytes) -> i64:
        number = self.topic_number_of.get(topic_id)
        if number is None:
            if topic_id == ZERO_UUID:
                return -1
            number = len(self.columns.topic_ids)
            self.topic_number_of[topic_id] = number
            self.columns.topic_ids.append(topic_id)
        return number
