"""Packs rows into batches of records, one growing batch per partition: the work of a writing task.

A full batch goes to `write`, and all batches go when they take too much memory together. Offsets count from 0 in each
partition and are adjusted when partitions are put together, unless rows keep their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from kcoord.core.hashing import coordinator_partition
from kcoord.core.outcome import METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTION_TOPIC
from kcoord.core.topics.registry import check_topic_name
from kcoord.log.import_logs import id_in_key
from kcoord.log.serde import (
    OFFSET_COMMIT_EXPIRING_VERSION,
    OFFSET_COMMIT_VERSION,
    decode_transaction_record,
    encode_record,
    encode_value,
)
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.transaction_log import TransactionLogValue
from kcoord.wire.primitives import DecodeError, EncodeError
from kcoord.wire.record_batch import BatchBuilder, Headers

# A batch is closed before it becomes larger (uncompressed), unless it is a single record: below what a broker
# takes from producers by default.
BATCH_BYTES: Final = 1_000_000
# Of all partitions' batches together, as long as they grow.
PENDING_BYTES_MAX: Final = 64 << 20
# The approximate overhead of a record and of a header.
RECORD_OVERHEAD: Final = 24
HEADER_OVERHEAD: Final = 8
KEYS_KEPT: Final = 1 << 18


class BadRow(ValueError):
    """A row that cannot become a record; the message has the reason, and identifies the row if possible."""


@final
class CommitRows:
    """Rows of offset commits, by columns. Timestamps in ms; -1 is no epoch and no expiry."""

    def __init__(
        self,
        groups: list[str],
        topics: list[str],
        partitions: list[int],
        offsets: list[int | None],
        epochs: list[int],
        metadata: list[str],
        commit_ms: list[int],
        expire_ms: list[int],
        topic_ids: list[bytes],
        tombstones: list[bool],
        timestamps: list[int],
        log_offsets: list[int],
    ) -> None:
        self.groups = groups
        self.topics = topics
        self.partitions = partitions
        self.offsets = offsets
        self.epochs = epochs
        self.metadata = metadata
        self.commit_ms = commit_ms
        self.expire_ms = expire_ms
        self.topic_ids = topic_ids
        self.tombstones = tombstones
        self.timestamps = timestamps
        self.log_offsets = log_offsets


@final
class RecordRows:
    """Rows with the bytes of records, by columns. `headers` is empty if no row has any."""

    def __init__(
        self,
        topics: list[str],
        partitions: list[int],
        timestamps: list[int],
        keys: list[bytes | None],
        values: list[bytes | None],
        headers: list[Headers],
        log_offsets: list[int],
    ) -> None:
        self.topics = topics
        self.partitions = partitions
        self.timestamps = timestamps
        self.keys = keys
        self.values = values
        self.headers = headers
        self.log_offsets = log_offsets


@final
class Pack:
    """One partition in a writing task. `builder` has the records up to `next_offset`."""

    def __init__(self, number: int, topic: str, partition: int) -> None:
        self.number = number
        self.topic = topic
        self.partition = partition
        self.builder: BatchBuilder | None = None
        self.next_offset = 0
        self.first_offset = -1
        self.pending_bytes = 0
        # What was written.
        self.record_count = 0
        self.size_bytes = 0


Write = Callable[[Pack, bytes], None]


@final
class Packer:
    """See the module. Ends with `flush`. `partition_max` is the highest number a partition may have."""

    def __init__(
        self,
        write: Write,
        codec: int,
        batch_records: int,
        offsets_partitions: int,
        transaction_partitions: int,
        keeps_offsets: bool,
        partition_max: int,
        pending_bytes_max: int = PENDING_BYTES_MAX,
    ) -> None:
        self.write = write
        self.codec = codec
        self.batch_records = batch_records
        self.offsets_partitions = offsets_partitions
        self.transaction_partitions = transaction_partitions
        self.keeps_offsets = keeps_offsets
        self.partition_max = partition_max
        self.pending_bytes_max = pending_bytes_max
        self.packs: dict[tuple[str, int], Pack] = {}
        self.pending_bytes = 0
        # Of transactional ids: new producers need others.
        self.producer_id_max = -1
        self._keys: dict[tuple[str, str, int], tuple[Pack, OffsetCommitKey, bytes]] = {}

    # --- rows

    def add_commits(self, rows: CommitRows) -> None:
        """Each to the partition of its group. Raises BadRow, and what `write` raises."""
        offsets = rows.offsets
        for i in range(len(offsets)):
            name = (rows.groups[i], rows.topics[i], rows.partitions[i])
            found = self._keys.get(name)
            if found is None:
                found = self._learn(name[0], name[1], name[2])
            pack, key, key_bytes = found
            value: bytes | None = None
            if not rows.tombstones[i]:
                offset = offsets[i]
                if offset is None:
                    raise BadRow(f"group {key.group}, {key.topic}-{key.partition}: committed_offset is null")
                expire_ms = rows.expire_ms[i]
                committed = OffsetCommitValue(
                    offset,
                    rows.epochs[i],
                    rows.metadata[i],
                    rows.commit_ms[i],
                    expire_ms,
                    rows.topic_ids[i],
                )
                version = OFFSET_COMMIT_VERSION if expire_ms == -1 else OFFSET_COMMIT_EXPIRING_VERSION
                try:
                    value = encode_value(key, committed, version)
                except (EncodeError, ValueError, OverflowError) as error:
                    raise BadRow(
                        f"group {key.group}, {key.topic}-{key.partition}: not a valid commit: {error}"
                    ) from None
            self._add(pack, rows.log_offsets[i], rows.timestamps[i], key_bytes, value, None)

    def _learn(self, group: str, topic: str, partition: int) -> tuple[Pack, OffsetCommitKey, bytes]:
        key = OffsetCommitKey(group, topic, partition)
        try:
            key_bytes, _ = encode_record(key, None)
        except (EncodeError, ValueError, OverflowError) as error:
            raise BadRow(f"group {group[:300]}, {topic[:300]}-{partition}: {error}") from None
        if len(self._keys) >= KEYS_KEPT:
            self._keys.clear()
        pack = self._pack(OFFSETS_TOPIC, coordinator_partition(group, self.offsets_partitions))
        self._keys[(group, topic, partition)] = (pack, key, key_bytes)
        return pack, key, key_bytes

    def add_records(self, rows: RecordRows) -> None:
        """Each to the partition that it names; those of coordinators to that of their group or transactional id.

        Raises BadRow, and what `write` raises.
        """
        headers = rows.headers
        for i in range(len(rows.topics)):
            topic = rows.topics[i]
            key = rows.keys[i]
            value = rows.values[i]
            if topic == OFFSETS_TOPIC:
                partition = coordinator_partition(self._id(topic, key), self.offsets_partitions)
            elif topic == TRANSACTION_TOPIC:
                partition = coordinator_partition(self._id(topic, key), self.transaction_partitions)
                self._note_producer(key, value)
            else:
                partition = rows.partitions[i]
            pack = self._pack(topic, partition)
            self._add(pack, rows.log_offsets[i], rows.timestamps[i], key, value, headers[i] if headers else None)

    def _id(self, topic: str, key: bytes | None) -> str:
        if key is None:
            raise BadRow(f"{topic}: a record without a key, which no coordinator writes")
        try:
            return id_in_key(key)
        except DecodeError as error:
            raise BadRow(f"{topic}: key {key[:40].hex()} is none of a coordinator: {error}") from None

    def _note_producer(self, key: bytes | None, value: bytes | None) -> None:
        if key is None or value is None:
            return
        try:
            _, state = decode_transaction_record(key, value)
        except DecodeError as error:
            raise BadRow(f"{TRANSACTION_TOPIC}: key {key[:40].hex()}: {error}") from None
        if isinstance(state, TransactionLogValue):
            self.producer_id_max = max(self.producer_id_max, state.producer_id, state.next_producer_id)

    # --- batches

    def _pack(self, topic: str, partition: int) -> Pack:
        pack = self.packs.get((topic, partition))
        if pack is None:
            wrong = check_topic_name(topic)
            if not wrong and topic == METADATA_TOPIC:
                wrong = f"{METADATA_TOPIC} is written by the writer itself, from what there is: leave its records out"
            if not wrong and not 0 <= partition <= self.partition_max:
                wrong = f"{topic}: partition {partition} is not from 0 to {self.partition_max}"
            if wrong:
                raise BadRow(wrong)
            pack = Pack(len(self.packs), topic, partition)
            self.packs[(topic, partition)] = pack
        return pack

    def _add(
        self,
        pack: Pack,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
    ) -> None:
        size = RECORD_OVERHEAD
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
        if headers:
            for name, text in headers:
                size += HEADER_OVERHEAD + len(name) + (0 if text is None else len(text))
        if self.keeps_offsets and offset != pack.next_offset:
            if offset < 0:
                raise BadRow(f"{pack.topic}-{pack.partition}: keepOffsets, and a row without an offset")
            if offset < pack.next_offset:
                raise BadRow(
                    f"{pack.topic}-{pack.partition}: offset {offset} after {pack.next_offset - 1}: with keepOffsets "
                    "rows come in order of topic, partition and offset"
                )
            self._emit(pack)
            pack.next_offset = offset
        if pack.first_offset < 0:
            pack.first_offset = pack.next_offset
        if pack.builder is not None and pack.pending_bytes + size > BATCH_BYTES:
            self._emit(pack)
        builder = pack.builder
        if builder is None:
            builder = pack.builder = BatchBuilder()
        try:
            builder.append(timestamp, key, value, headers)
        except (EncodeError, OverflowError) as error:
            raise BadRow(f"{pack.topic}-{pack.partition}: no record can hold that: {error}") from None
        pack.next_offset += 1
        pack.pending_bytes += size
        self.pending_bytes += size
        if builder.count >= self.batch_records:
            self._emit(pack)
        elif self.pending_bytes > self.pending_bytes_max:
            self.flush()

    def _emit(self, pack: Pack) -> None:
        builder = pack.builder
        if builder is None:
            return
        count = int(builder.count)
        batch = builder.build(pack.next_offset - count, 0, codec=self.codec)
        self.write(pack, batch)
        pack.builder = None
        pack.record_count += count
        pack.size_bytes += len(batch)
        self.pending_bytes -= pack.pending_bytes
        pack.pending_bytes = 0

    def flush(self) -> None:
        """Write all batches, full or not."""
        for pack in self.packs.values():
            self._emit(pack)
