"""Start-up: every record of the coordinator logs goes through the same `replay` as in live operation.

Nearly all records of a large log are offset commits. If the bytes of one have the layout that kcoord writes, they are
replayed in place, without message objects. All other records are decoded first. Both ways lead to the same state, and
tests compare them.

Offsets of a transactional batch become pending, in both ways, and the marker in a control batch decides them.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.coordinator import Core
from kcoord.core.groups.cause_header import decode_cause
from kcoord.core.offsets.state import NO_PRODUCER_ID
from kcoord.core.outcome import METADATA_TOPIC, TRANSACTION_TOPIC, WARNING, Fact, LogId
from kcoord.engine.batch_walk import BatchWalk
from kcoord.engine.control_batch import NO_MARKER, marker_type
from kcoord.engine.group_events import GroupEvents
from kcoord.log.commit_bytes import CommitBytes
from kcoord.log.directory import LogDirectory
from kcoord.log.partition_log import Extent, PartitionLog
from kcoord.log.record_format import in_format_2
from kcoord.log.serde import OFFSET_COMMIT, decode_metadata_record, decode_record, decode_transaction_record
from kcoord.log.storage import Storage
from kcoord.log.transaction_index import COMMIT
from kcoord.wire.compression import DecompressionError
from kcoord.wire.message import Message
from kcoord.wire.primitives import ZERO_UUID, DecodeError, i64, read_i16_be
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


@final
class LogLoader:
    """Replays records of one log. What is not a commit also goes to `events`."""

    def __init__(self, core: Core, log_id: LogId, events: GroupEvents | None = None) -> None:
        self.events = events
        self.core = core
        self.log_id = log_id
        self.is_metadata = log_id.topic == METADATA_TOPIC
        self.is_transactions = log_id.topic == TRANSACTION_TOPIC
        self.state = core.offsets
        self.commit = CommitBytes()
        # Commits of one group are usually adjacent.
        self.group_bytes = b""
        self.group_id = ""
        self.topics: dict[bytes, str] = {}
        self.strings: dict[bytes, str] = {}
        self.timestamp_ms = 0
        # The producer of the current batch. A coordinator writes none but for transactions, and so a broker takes any
        # batch with one as part of a transaction.
        self.producer_id = NO_PRODUCER_ID
        # Below this offset records have format 1 (record_format.py).
        self.format_1_end: i64 = 0
        # For tools: if it is a list, all replayed records are added, except commits in their newest form.
        self.others: list[tuple[Message, Message | None]] | None = None

    def load_log(self, log: PartitionLog, from_offset: int) -> int:
        """Replay everything from an offset on; the number of records. Raises LogDamaged."""
        count = 0
        for extent in log.extents(from_offset, log.end_offset):
            count += self.load_extent(log.storage, extent, from_offset)
        return count

    def load_extent(self, storage: Storage, extent: Extent, from_offset: i64) -> int:
        """Replay an extent of a file. Raises LogDamaged."""
        count: i64 = 0
        walk = BatchWalk(storage, extent)
        try:
            while True:
                header = walk.advance()
                if header is None:
                    return count
                if header.last_offset < from_offset:
                    continue
                try:
                    count += self.load_batch(walk.buf, header, from_offset)
                except (DecodeError, DecompressionError) as error:
                    raise walk.damaged_here(header, str(error)) from None
        finally:
            walk.close()

    def load_batch(self, data: bytes, header: BatchHeader, from_offset: i64) -> i64:
        """Replay the records of one batch, or its marker. Returns the number of records.

        Raises DecodeError and DecompressionError.
        """
        if header.is_control:
            if header.last_offset >= from_offset:
                self._replay_control(data, header)
            return 0
        self.producer_id = header.producer_id
        r = records_reader(data, header.pos, header, DECOMPRESSED_BYTES_MAX)
        buf = r.buf
        is_offsets = not self.is_metadata and not self.is_transactions
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
                self._note_event(key_bytes, value_bytes, offset, timestamp, headers_at(buf, headers, end))
        if r.pos != r.end:
            raise DecodeError(f"{r.end - r.pos} bytes after the last record")
        return count

    def _replay_control(self, data: bytes, header: BatchHeader) -> None:
        """Replay the marker of a control batch, if it has one. The metadata log has other control records."""
        if self.is_metadata:
            return
        kind = marker_type(data, header)
        if kind != NO_MARKER:
            producer_id: int = header.producer_id
            self.core.replay_marker(self.log_id, header.base_offset, producer_id, header.producer_epoch, kind == COMMIT)

    def _replay(self, key_bytes: bytes | None, value_bytes: bytes | None, offset: int, time_ms: int) -> None:
        """Decode a record of any type and replay it."""
        if self.is_metadata:
            if value_bytes is not None:
                self.core.replay(self.log_id, offset, None, decode_metadata_record(value_bytes))
        elif key_bytes is not None:
            if self.is_transactions:
                # The types of its records have numbers of their own.
                key, value = decode_transaction_record(key_bytes, value_bytes)
            else:
                key, value = decode_record(key_bytes, value_bytes)
            self.core.replay(self.log_id, offset, key, value, time_ms, None, self.producer_id)
            if self.others is not None:
                self.others.append((key, value))

    def _note_event(
        self, key_bytes: bytes, value_bytes: bytes | None, offset: int, time_ms: int, headers: Headers
    ) -> None:
        if self.events is not None:
            key, value = decode_record(key_bytes, value_bytes)
            cause = decode_cause(headers) if headers else None
            partition = self.log_id.partition
            self.events.loaded(partition, offset, time_ms, key, value, cause)

    def _replay_commit(self, buf: bytes, key: i64, key_size: i64, value: i64, value_size: i64, offset: i64) -> bool:
        """Replay an offset commit in place; False, and nothing is replayed, if its layout is none of CommitBytes."""
        commit = self.commit
        if key_size < 2 or read_i16_be(buf, key) != OFFSET_COMMIT or not commit.read_key(buf, key, key_size):
            return False
        if not commit.read_value(buf, value, value_size):
            return False
        topic_id = ZERO_UUID
        if commit.topic_id_at >= 0:
            topic_id = buf[commit.topic_id_at : commit.topic_id_at + 16]
        group_bytes = buf[commit.group_at : commit.group_end]
        try:
            if group_bytes != self.group_bytes:
                self.group_id = group_bytes.decode("utf-8")
                self.group_bytes = group_bytes
            topic_name = self._shared(self.topics, buf[commit.topic_at : commit.topic_end])
            text = buf[commit.text_at : commit.text_end]
            metadata = self._shared(self.strings, text) if text else ""
        except UnicodeDecodeError:
            return False
        timestamp_ms = commit.timestamp_ms
        if timestamp_ms != self.timestamp_ms:
            # Commits with the same time share one int.
            self.timestamp_ms = timestamp_ms
        if self.producer_id >= 0:
            self.state.replay_pending(
                self.log_id.partition,
                self.producer_id,
                self.group_id,
                topic_name,
                commit.partition,
                commit.offset,
                commit.leader_epoch,
                metadata,
                self.timestamp_ms,
                -1,
                topic_id,
                offset,
            )
            return True
        self.state.replay_offset(
            self.group_id,
            topic_name,
            commit.partition,
            commit.offset,
            commit.leader_epoch,
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
