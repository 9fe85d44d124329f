"""Records of coordinators' logs into columns: commits, which most are, in place; others through the decoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

from kcoord.log.commit_bytes import CommitBytes
from kcoord.log.serde import LEGACY_OFFSET_COMMIT, OFFSET_COMMIT
from kcoord.spark.scan.columns import BYTES_MAX, Columns, RecordSpan, Scan, ScanRange
from kcoord.spark.scan.messages import RawColumns
from kcoord.wire.primitives import DecodeError, i32, i64, read_i16_be, write_i32_le
from kcoord.wire.record_batch import CONTROL_FLAG, BatchHeader, Headers, Record
from kcoord.wire.record_batch import headers_at as headers_of

# What is null in a row, in `flags`, besides those of RawColumns, and whether it is a tombstone.
NO_TYPE: Final = 16
NO_VERSION: Final = 32
NO_NAME: Final = 64
NO_GROUP: Final = 128
NO_TOPIC: Final = 256
NO_PARTITION: Final = 512
NO_MEMBER: Final = 1024
NO_TRANSACTIONAL_ID: Final = 2048
TOMBSTONE: Final = 4096
UNTYPED: Final = NO_NAME | NO_GROUP | NO_TOPIC | NO_PARTITION | NO_MEMBER | NO_TRANSACTIONAL_ID

# Larger records go to `typed`, which may refuse them.
FRAME_BYTES_MAX: Final = 1 << 20
ASCII_MAX: Final = 127

# From a record to record_type, record_version, record_name, group_id, topic, partition, member_id and
# transactional_id, and more; None if it is not wanted. Raises DecodeError.
Typed = Callable[[Record, BatchHeader], tuple[Any, ...] | None]


def is_commit(data: bytes, key_at: i64, key_size: i64) -> bool:
    """Whether the type in a key is that of an offset commit, also of the oldest kind."""
    if key_size < 2:
        return False
    kind: i64 = i64(read_i16_be(data, key_at))
    return kind >= LEGACY_OFFSET_COMMIT and kind <= OFFSET_COMMIT


def is_ascii(data: bytes, at: i64, end: i64) -> bool:
    while at < end:
        if i64(data[at]) > ASCII_MAX:
            return False
        at += 1
    return True


@final
class RecordColumns(RawColumns):
    """The columns of `records` without JSON."""

    def __init__(self, with_keys: bool, with_values: bool, with_headers: bool) -> None:
        super().__init__(with_keys, with_values, with_headers)
        self.types = self.four()
        self.versions = self.four()
        self.name_numbers = self.four()
        self.group_ends, self.groups = self.text()
        self.topic_ends, self.topics = self.text()
        self.partitions = self.four()
        self.member_ends, self.members = self.text()
        self.transactional_ends, self.transactional_ids = self.text()


@final
class RecordScan(Scan):
    """`name_numbers` are indexes into `names`. `take` returns the columns so far and starts new ones.

    With `has_commits`, commits of the common layouts are decoded here, in place. With `is_framed`, only the type and
    the version of any record are read.
    """

    def __init__(
        self,
        wanted: ScanRange,
        typed: Typed,
        has_commits: bool,
        is_framed: bool,
        with_control: bool,
        with_keys: bool,
        with_values: bool,
        with_headers: bool,
    ) -> None:
        super().__init__(wanted, with_control)
        self.typed = typed
        self.has_commits = has_commits
        self.is_framed = is_framed
        self.names: list[str] = []
        self.number_of: dict[str, int] = {}
        # The index of the name of commits, once one was decoded.
        self.commit_name: i64 = -1
        self.commit = CommitBytes()
        self.columns = RecordColumns(with_keys, with_values, with_headers)
        self.base = self.columns

    def take(self) -> RecordColumns:
        columns = self.columns
        self.columns = RecordColumns(columns.with_keys, columns.with_values, columns.with_headers)
        self.base = self.columns
        return columns

    def record(self, data: bytes, header: BatchHeader, span: RecordSpan) -> None:
        c = self.columns
        is_control = (header.attributes & CONTROL_FLAG) != 0
        flags: i64 = -1
        if not is_control:
            if self.is_framed:
                flags = self._frame(data, span)
            elif self.commit_name >= 0:
                flags = self._commit(data, span)
        if flags < 0:
            record = Record(span.offset, span.timestamp, span.key(data), span.value(data), [])
            try:
                about = self.typed(record, header)
            except DecodeError as error:
                c.bad.append((span.offset, c.batches, str(error)))
                return
            if about is None:
                return
            flags = self._put(about)
            if self.has_commits and about[0] == OFFSET_COMMIT and about[2] is not None and not is_control:
                self.commit_name = self.number_of[about[2]]
        if span.value_size < 0 and span.key_size >= 0 and not is_control:
            flags |= TOMBSTONE
        c.put(data, span, flags)

    def _commit(self, data: bytes, span: RecordSpan) -> i64:
        """Write the columns of a commit in a layout of CommitBytes; the row's flags, or -1, and no column written."""
        key_at = span.key_at
        key_size = span.key_size
        value_at = span.value_at
        value_size = span.value_size
        if key_size < 2 or i64(read_i16_be(data, key_at)) != OFFSET_COMMIT:
            return -1
        commit = self.commit
        # In ASCII, lengths are below 128. Other keys are decoded, which finds what is not UTF-8.
        if not commit.read_key(data, key_at, key_size) or not is_ascii(data, key_at, commit.topic_end):
            return -1
        flags: i64 = NO_MEMBER | NO_TRANSACTIONAL_ID
        version: i64 = 0
        if value_size < 0:
            flags |= NO_VERSION
        else:
            if not commit.read_value(data, value_at, value_size):
                return -1
            version = commit.version
            if not is_ascii(data, commit.text_at, commit.text_end):
                return -1
        if commit.topic_at == commit.topic_end:
            flags |= NO_TOPIC
        if commit.partition == -1:
            flags |= NO_PARTITION
        c = self.columns
        c.groups.write(data[commit.group_at : commit.group_end])
        c.topics.write(data[commit.topic_at : commit.topic_end])
        self._numbers(OFFSET_COMMIT, version, self.commit_name, commit.partition)
        self._ends()
        return flags

    def _frame(self, data: bytes, span: RecordSpan) -> i64:
        """The same for any record, of which only type and version are read."""
        if span.key_size < 2 or span.key_size > FRAME_BYTES_MAX or span.value_size > FRAME_BYTES_MAX:
            return -1
        flags: i64 = UNTYPED
        version: i64 = 0
        if span.value_size < 2:
            flags |= NO_VERSION
        else:
            version = i64(read_i16_be(data, span.value_at))
        self._numbers(i64(read_i16_be(data, span.key_at)), version, 0, 0)
        self._ends()
        return flags

    def _put(self, about: tuple[Any, ...]) -> i64:
        """Write the result of `typed`; the row's flags."""
        record_type, version, name = about[0], about[1], about[2]
        group, topic, partition, member_id, transactional_id = about[3], about[4], about[5], about[6], about[7]
        c = self.columns
        flags: i64 = 0
        number = 0
        if record_type is None:
            flags |= NO_TYPE
        if version is None:
            flags |= NO_VERSION
        if name is None:
            flags |= NO_NAME
        else:
            known = self.number_of.get(name)
            if known is None:
                known = len(self.names)
                self.number_of[name] = known
                self.names.append(name)
            number = known
        if partition is None:
            flags |= NO_PARTITION
        self._numbers(record_type or 0, version or 0, number, partition or 0)
        if group is None:
            flags |= NO_GROUP
        else:
            c.groups.write(group.encode())
        if topic is None:
            flags |= NO_TOPIC
        else:
            c.topics.write(topic.encode())
        if member_id is None:
            flags |= NO_MEMBER
        else:
            c.members.write(member_id.encode())
        if transactional_id is None:
            flags |= NO_TRANSACTIONAL_ID
        else:
            c.transactional_ids.write(transactional_id.encode())
        self._ends()
        return flags

    def _numbers(self, record_type: i64, version: i64, name: i64, partition: i64) -> None:
        c = self.columns
        write_i32_le(c.types, i32(record_type))
        write_i32_le(c.versions, i32(version))
        write_i32_le(c.name_numbers, i32(name))
        write_i32_le(c.partitions, i32(partition))

    def _ends(self) -> None:
        """Write where the texts of this row end."""
        c = self.columns
        write_i32_le(c.group_ends, i32(len(c.groups)))
        write_i32_le(c.topic_ends, i32(len(c.topics)))
        write_i32_le(c.member_ends, i32(len(c.members)))
        write_i32_le(c.transactional_ends, i32(len(c.transactional_ids)))


@final
class RecordPicker(Scan):
    """Single records for decoders, without commits unless `with_commits`.

    `take` returns them with the headers and positions of their batches.
    """

    def __init__(self, wanted: ScanRange, with_control: bool, with_commits: bool) -> None:
        super().__init__(wanted, with_control)
        self.with_commits = with_commits
        self.picked: list[tuple[int, BatchHeader, Record]] = []
        self.picked_bytes: i64 = 0

    def is_full(self, records_max: i64) -> bool:
        return len(self.picked) >= records_max or self.picked_bytes >= BYTES_MAX

    def undo(self, count: i64, bad: i64) -> None:
        self.base.count = count
        del self.picked[count:]

    def take(self) -> list[tuple[int, BatchHeader, Record]]:
        """(position of the batch, its header, record)."""
        positions = self.base.positions.getvalue()
        self.base = Columns()
        picked, self.picked = self.picked, []
        self.picked_bytes = 0
        found: list[tuple[int, BatchHeader, Record]] = []
        for number, header, record in picked:
            at: i64 = i64(number) * 8
            found.append((int.from_bytes(positions[at : at + 8], "little"), header, record))
        return found

    def record(self, data: bytes, header: BatchHeader, span: RecordSpan) -> None:
        is_control = (header.attributes & CONTROL_FLAG) != 0
        if not self.with_commits and not is_control and is_commit(data, span.key_at, span.key_size):
            return
        headers: Headers = headers_of(data, span.headers_at, span.end) if span.end - span.headers_at > 1 else []
        record = Record(span.offset, span.timestamp, span.key(data), span.value(data), headers)
        self.base.count += 1
        self.picked_bytes += span.end - span.key_at
        self.picked.append((self.base.batches, header, record))
