"""Commits of many batches into columns as Arrow has them: numbers, and concatenated texts with their ends.

CommitBytes reads the few layouts that nearly all records have in place. Everything else goes through the general
decoders, which also give the reason if a record cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from kcoord.log.commit_bytes import CommitBytes
from kcoord.log.serde import LEGACY_OFFSET_COMMIT, OFFSET_COMMIT, OFFSET_COMMIT_VERSION_MAX
from kcoord.protocol.records.offset_commit import decode_offset_commit_value
from kcoord.spark.reader.slices import TIME_MS_MAX
from kcoord.spark.scan.columns import Columns, RecordSpan, Scan, ScanRange
from kcoord.wire.primitives import (
    ZERO_UUID,
    DecodeError,
    Reader,
    i32,
    i64,
    read_i16_be,
    write_i32_le,
    write_i64_le,
)
from kcoord.wire.record_batch import BatchHeader

# What is null in a row, in `flags`, besides NO_TIMESTAMP.
NO_VALUE: Final = 2
NO_EPOCH: Final = 4
NO_COMMIT_TIME: Final = 8
NO_EXPIRY: Final = 16
NO_TOPIC_ID: Final = 32
TOMBSTONE: Final = NO_VALUE | NO_EPOCH | NO_COMMIT_TIME | NO_EXPIRY | NO_TOPIC_ID

# How many results of `wants` are cached.
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


@final
class CommitColumns(Columns):
    """A missing number is 0, times are microseconds. `topic_numbers` are indexes into `topic_ids`."""

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
    """Commits whose keys (group, topic, partition) `wants` accepts. `take` returns the columns so far."""

    def __init__(self, wanted: ScanRange, wants: Wants | None) -> None:
        super().__init__(wanted)
        self.wants = wants
        self.commit = CommitBytes()
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
        commit = self.commit
        if key_size >= 2:
            kind: i64 = i64(read_i16_be(data, key_at))
            if kind < LEGACY_OFFSET_COMMIT or kind > OFFSET_COMMIT:
                return
        if not commit.read_key(data, key_at, key_size):
            self._bad_key(data, span)
            return
        if self.wants is not None and not self._is_key_wanted(data[key_at : key_at + key_size]):
            return
        flags: i64 = self._value(data, span.offset, span.value_at, span.value_size)
        if flags < 0:
            return
        c = self.columns
        c.begin_row(span, flags)
        c.groups.write(data[commit.group_at : commit.group_end])
        write_i32_le(c.group_ends, i32(len(c.groups)))
        c.topics.write(data[commit.topic_at : commit.topic_end])
        write_i32_le(c.topic_ends, i32(len(c.topics)))
        write_i32_le(c.partitions, i32(commit.partition))

    def _bad_key(self, data: bytes, span: RecordSpan) -> None:
        key = span.key(data)
        if key is None:
            self._bad(span.offset, "a record without a key")
            return
        try:
            if commit_key(key) is not None:
                self._bad(span.offset, "an invalid key")
        except DecodeError as error:
            self._bad(span.offset, str(error))

    def _bad(self, offset: i64, reason: str) -> None:
        self.columns.bad.append((offset, self.columns.batches, reason))

    def _is_key_wanted(self, key: bytes) -> bool:
        """A key that cannot be read is wanted, so that it is reported."""
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
        """Write the columns that come from the value; the row's flags, or -1, and no column written, if it is bad."""
        if size < 0:
            return self._put(0, 0, data, 0, 0, 0, -1, -1) | TOMBSTONE
        if self.commit.read_value(data, at, size):
            return self._put_plain(data)
        try:
            return self._put_decoded(data[at : at + size])
        except DecodeError as error:
            self._bad(offset, str(error))
        return -1

    def _put_plain(self, data: bytes) -> i64:
        commit = self.commit
        number: i64 = -1
        if commit.topic_id_at >= 0:
            number = self._topic_number(data[commit.topic_id_at : commit.topic_id_at + 16])
        text_size: i64 = commit.text_end - commit.text_at
        epoch = commit.leader_epoch
        return self._put(commit.offset, epoch, data, commit.text_at, text_size, commit.timestamp_ms, -1, number)

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
