"""Start-up: every record of our own logs goes through the same `replay` as in live operation.

Nearly all records of a large log are offset commits. Those go from their bytes into the state without the messages
in between, where their bytes are as we write them; anything else about a record takes the general way. Both ways
lead to the same state, which is tested.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.coordinator import Core
from kcoord.core.groups.cause_header import decode_cause
from kcoord.core.outcome import METADATA_TOPIC, WARNING, Fact, LogId
from kcoord.engine.batch_walk import BatchWalk
from kcoord.engine.group_events import GroupEvents
from kcoord.log.directory import LogDirectory
from kcoord.log.partition_log import Extent, PartitionLog
from kcoord.log.record_format import in_format_2
from kcoord.log.serde import decode_metadata_record, decode_record
from kcoord.log.storage import Storage
from kcoord.wire.compression import DecompressionError
from kcoord.wire.message import Message
from kcoord.wire.primitives import (
    ZERO_UUID,
    DecodeError,
    i64,
    read_i16_be,
    read_i32_be,
    read_i64_be,
)
from kcoord.wire.record_batch import (
    LOG_APPEND_TIME_FLAG,
    BatchHeader,
    Headers,
    headers_at,
    record_end,
    records_reader,
    skip_headers,
)

# Our own batches are not compressed; imported ones may be.
DECOMPRESSED_BYTES_MAX: Final = 256 * 1024 * 1024
# Different names and metadata strings that are remembered while loading, to keep each of them once.
SHARED_STRINGS_MAX: Final = 65536

OFFSET_COMMIT: Final = 1
# Type, two empty strings and a partition.
COMMIT_KEY_BYTES_MIN: Final = 10
# Version, offset, leader epoch, empty metadata, timestamp and, in version 4, no tags.
COMMIT_VALUE_BYTES_MIN: Final = 24


def recovery_facts(directory: LogDirectory) -> list[Fact]:
    """What recovery did to the logs, for the server's log."""
    facts: list[Fact] = []
    for event in directory.events:
        fields: dict[str, object] = {
            "log": event.log,
            "file": event.file,
            "position": event.position,
            "bytes_cut": event.bytes_cut,
            "reason": event.reason,
        }
        facts.append(Fact(WARNING, "log_recovered", fields))
    return facts


def load_coordinator_log(core: Core, log_id: LogId, log: PartitionLog) -> int:
    """Replay a whole log in order of offsets; the number of records. Raises LogDamaged."""
    loader = LogLoader(core, log_id)
    loader.format_1_end = log.format_1_end
    return loader.load_log(log, log.log_start_offset)


@final
class LogLoader:
    """Replays records of one log. What is not a commit also goes to `events`."""

    def __init__(self, core: Core, log_id: LogId, events: GroupEvents | None = None) -> None:
        self.events = events
        self.core = core
        self.log_id = log_id
        self.is_metadata = log_id.topic == METADATA_TOPIC
        self.state = core.offsets.state
        # Commits of one group usually stand together.
        self.group_bytes = b""
        self.group_id = ""
        self.topics: dict[bytes, str] = {}
        self.strings: dict[bytes, str] = {}
        self.timestamp_ms = 0
        # Below this offset records have format 1 (record_format.py).
        self.format_1_end: i64 = 0
        # For tools: where it is a list, it gets what was replayed besides commits in their newest form.
        self.others: list[tuple[Message, Message | None]] | None = None

    def load_log(self, log: PartitionLog, from_offset: int) -> int:
        """Replay everything from an offset on; the number of records. Raises LogDamaged."""
        count = 0
        for extent in log.extents(from_offset, log.end_offset):
            count += self.load_extent(log.storage, extent, from_offset)
        return count

    def load_extent(self, storage: Storage, extent: Extent, from_offset: i64) -> int:
        """Replay a stretch of a file. Raises LogDamaged."""
        count: i64 = 0
        walk = BatchWalk(storage, extent)
        try:
            while True:
                header = walk.advance()
                if header is None:
                    return count
                if header.is_control or header.last_offset < from_offset:
                    continue
                try:
                    count += self.load_batch(walk.buf, header, from_offset)
                except (DecodeError, DecompressionError) as error:
                    raise walk.damaged_here(header, str(error)) from None
        finally:
            walk.close()

    def load_batch(self, data: bytes, header: BatchHeader, from_offset: i64) -> i64:
        """Replay the records of one batch; how many. Raises DecodeError and DecompressionError."""
        r = records_reader(data, header.pos, header, DECOMPRESSED_BYTES_MAX)
        buf = r.buf
        is_offsets = not self.is_metadata
        count: i64 = 0
        left = header.count
        while left > 0:
            left -= 1
            end = record_end(r)
            time_delta = r.varlong()
            delta = r.varint()
            if delta < 0 or delta > header.last_offset_delta:
                raise DecodeError(f"offset delta {delta} in a batch that ends at {header.last_offset_delta}")
            offset = header.base_offset + delta
            key_size = r.varint()
            key = r.take(key_size) if key_size > 0 else r.pos
            value_size = r.varint()
            value = r.take(value_size) if value_size > 0 else r.pos
            headers = r.pos
            skip_headers(r)
            if r.pos != end:
                raise DecodeError("record does not match its size")
            if offset < from_offset:
                continue
            count += 1
            if is_offsets and self._replay_commit(buf, key, key_size, value, value_size, offset):
                continue
            key_bytes = None if key_size < 0 else buf[key : key + key_size]
            value_bytes = None if value_size < 0 else buf[value : value + value_size]
            if offset < self.format_1_end:
                value_bytes = in_format_2(key_bytes, value_bytes)
            timestamp = header.base_timestamp + time_delta
            if header.attributes & LOG_APPEND_TIME_FLAG:
                timestamp = header.max_timestamp
            self._replay(key_bytes, value_bytes, offset, timestamp)
            if self.events is not None and key_bytes is not None:
                self._tell(key_bytes, value_bytes, offset, timestamp, headers_at(buf, headers, end))
        if r.pos != r.end:
            raise DecodeError(f"{r.end - r.pos} bytes after the last record")
        return count

    def _replay(
        self, key_bytes: bytes | None, value_bytes: bytes | None, offset: int, time_ms: int
    ) -> None:
        """The general way."""
        if self.is_metadata:
            if value_bytes is not None:
                self.core.replay(self.log_id, offset, None, decode_metadata_record(value_bytes))
        elif key_bytes is not None:
            key, value = decode_record(key_bytes, value_bytes)
            self.core.replay(self.log_id, offset, key, value, time_ms)
            if self.others is not None:
                self.others.append((key, value))

    def _tell(
        self, key_bytes: bytes, value_bytes: bytes | None, offset: int, time_ms: int, headers: Headers
    ) -> None:
        if self.events is not None:
            key, value = decode_record(key_bytes, value_bytes)
            cause = decode_cause(headers) if headers else None
            partition = self.log_id.partition
            self.events.loaded(partition, offset, time_ms, key, value, cause)

    def _replay_commit(
        self, buf: bytes, key: i64, key_size: i64, value: i64, value_size: i64, offset: i64
    ) -> bool:
        """Replay an offset commit in one of the two newest forms; False for whatever is not exactly that."""
        if key_size < COMMIT_KEY_BYTES_MIN or value_size < COMMIT_VALUE_BYTES_MIN:
            return False
        if read_i16_be(buf, key) != OFFSET_COMMIT:
            return False
        group_size: i64 = i64(read_i16_be(buf, key + 2))
        if group_size < 0 or group_size > key_size - COMMIT_KEY_BYTES_MIN:
            return False
        group: i64 = key + 4
        topic_size: i64 = i64(read_i16_be(buf, group + group_size))
        if topic_size < 0 or topic_size > key_size - COMMIT_KEY_BYTES_MIN - group_size:
            return False
        topic: i64 = group + group_size + 2
        partition: i64 = i64(read_i32_be(buf, topic + topic_size))
        version: i64 = i64(read_i16_be(buf, value))
        # Where the metadata begins, and how much of the value has no place in it.
        at: i64 = value + 16
        metadata_size: i64 = 0
        if version == 4:
            metadata_size = i64(buf[value + 14]) - 1
            at = value + 15
            if metadata_size < 0 or metadata_size > 126 or metadata_size > value_size - 24:
                return False
        elif version == 3:
            metadata_size = i64(read_i16_be(buf, value + 14))
            if metadata_size < 0 or metadata_size > value_size - 24:
                return False
        else:
            return False
        after: i64 = at + metadata_size
        topic_id = ZERO_UUID
        if version == 4:
            tags: i64 = i64(buf[after + 8])
            if (
                tags == 1
                and value + value_size - after >= 27
                and buf[after + 9] == 0
                and buf[after + 10] == 16
            ):
                topic_id = buf[after + 11 : after + 27]
            elif tags != 0:
                return False
        group_bytes = buf[group : group + group_size]
        try:
            if group_bytes != self.group_bytes:
                self.group_id = group_bytes.decode("utf-8")
                self.group_bytes = group_bytes
            topic_name = self._shared(self.topics, buf[topic : topic + topic_size])
            metadata = self._shared(self.strings, buf[at:after]) if metadata_size > 0 else ""
        except UnicodeDecodeError:
            return False
        timestamp_ms = read_i64_be(buf, after)
        if timestamp_ms != self.timestamp_ms:
            self.timestamp_ms = timestamp_ms
        self.state.replay_offset(
            self.group_id,
            topic_name,
            partition,
            read_i64_be(buf, value + 2),
            read_i32_be(buf, value + 10),
            metadata,
            self.timestamp_ms,
            -1,
            topic_id,
            offset,
        )
        return True

    def _shared(self, strings: dict[bytes, str], data: bytes) -> str:
        text = strings.get(data)
        if text is None:
            text = data.decode("utf-8")
            if len(strings) >= SHARED_STRINGS_MAX:
                strings.clear()
            strings[data] = text
        return text
