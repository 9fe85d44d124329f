"""The state in a broker's `__cluster_metadata-0`: topics, their configurations, and other records.

The newest `.checkpoint` snapshot is read first, then the log from its end offset (KIP-630). Records of a metadata
transaction take effect when it ends (KIP-868). There are three kinds of records: those that kcoord writes as well,
those that are kept byte for byte because they are settings (users, ACLs, quotas, tokens), and those that
describe the nodes of the other cluster, which are left out.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Final, final

from kcoord.log.directory import LOG_START_OFFSETS
from kcoord.log.errors import LogDamaged
from kcoord.log.inspect import PartitionFiles, lost_end, read_checkpoint
from kcoord.log.metadata_checkpoint import METADATA_LOG, METADATA_TOPIC, Base, find_base, no_base
from kcoord.log.reader import DamagedBytes, StoredBatch, read_batches, segment_files
from kcoord.log.serde import decode_metadata_record
from kcoord.log.storage import DiskStorage
from kcoord.protocol.records.config_record import ConfigRecord
from kcoord.protocol.records.partition_change_record import PartitionChangeRecord
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.producer_ids_record import ProducerIdsRecord
from kcoord.protocol.records.remove_topic_record import RemoveTopicRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.wire.compression import DecompressionError
from kcoord.wire.primitives import DecodeError, Reader

METADATA_DIRECTORY: Final = METADATA_LOG
DECOMPRESSED_BYTES_MAX: Final = 256 << 20
NO_LEADER_CHANGE: Final = -2

RESOURCE_TOPIC: Final = 2
RESOURCE_BROKER: Final = 4

BEGIN_TRANSACTION: Final = 23
END_TRANSACTION: Final = 24
ABORT_TRANSACTION: Final = 25
# Records whose state kcoord's own records express.
TAKEN_TYPES: Final = frozenset((2, 3, 4, 5, 9, 15))
# Settings that are kept byte for byte.
KEPT_TYPES: Final[dict[int, str]] = {
    10: "delegation tokens",
    26: "delegation tokens",
    11: "SCRAM credentials",
    22: "SCRAM credentials",
    14: "client quotas",
    18: "access rules",
    19: "access rules",
}
# Records about the nodes of the other cluster.
FOREIGN_TYPES: Final[dict[int, str]] = {
    0: "broker registrations",
    1: "broker registrations",
    7: "broker registrations",
    8: "broker registrations",
    17: "broker registrations",
    12: "feature levels",
    20: "no-ops",
    BEGIN_TRANSACTION: "metadata transactions",
    END_TRANSACTION: "metadata transactions",
    ABORT_TRANSACTION: "metadata transactions",
    27: "controller registrations",
    28: "replica bookkeeping",
}


@final
class ImageTopic:
    """A topic. `leader_epochs` maps partitions to epochs."""

    def __init__(self, name: str, topic_id: bytes) -> None:
        self.name = name
        self.topic_id = topic_id
        self.leader_epochs: dict[int, int] = {}

    @property
    def partition_count(self) -> int:
        return max(self.leader_epochs, default=-1) + 1

    def partition_record(self, partition: int, node_id: int, leader_epoch: int) -> PartitionRecord:
        """The record of a partition whose only replica and leader is this node."""
        return PartitionRecord(
            partition_id=partition,
            topic_id=self.topic_id,
            replicas=[node_id],
            isr=[node_id],
            leader=node_id,
            leader_epoch=leader_epoch,
            partition_epoch=0,
        )


@final
class ClusterImage:
    """The metadata at the end of the log."""

    def __init__(self) -> None:
        self.topics: dict[bytes, ImageTopic] = {}
        # Values by resource type, resource name and name.
        self.configs: dict[tuple[int, str, str], str] = {}
        self.next_producer_id = 0
        # (kind of setting, value) of the records that are kept byte for byte, in order.
        self.kept: list[tuple[str, bytes]] = []
        # How many records of each kind were left out.
        self.left_out: Counter[str] = Counter()
        # The unreadable bytes at the end of the log.
        self.torn_bytes = 0

    def by_name(self) -> dict[str, ImageTopic]:
        return {topic.name: topic for topic in self.topics.values()}

    def configs_of(self, resource_type: int, resource: str) -> dict[str, str]:
        return {
            name: value
            for (kind, owner, name), value in self.configs.items()
            if kind == resource_type and owner == resource
        }

    def apply(self, value: bytes) -> None:
        """Apply one record. Raises DecodeError if a record that matters cannot be decoded."""
        kind = record_type_of(value)
        if kind in TAKEN_TYPES:
            self._replay(value)
            return
        about = KEPT_TYPES.get(kind)
        if about is None:
            self.left_out[FOREIGN_TYPES.get(kind, f"records of type {kind}")] += 1
            return
        try:
            # The server could not start with a record that it cannot decode.
            decode_metadata_record(value)
        except DecodeError:
            self.left_out[f"{about} of an unknown version"] += 1
            return
        self.kept.append((about, value))

    def _replay(self, value: bytes) -> None:
        record = decode_metadata_record(value)
        if isinstance(record, TopicRecord):
            self.topics[record.topic_id] = ImageTopic(record.name, record.topic_id)
        elif isinstance(record, RemoveTopicRecord):
            gone = self.topics.pop(record.topic_id, None)
            if gone is not None:
                for key in [k for k in self.configs if k[0] == RESOURCE_TOPIC and k[1] == gone.name]:
                    del self.configs[key]
        elif isinstance(record, PartitionRecord):
            topic = self.topics.get(record.topic_id)
            if topic is not None:
                topic.leader_epochs[record.partition_id] = max(record.leader_epoch, 0)
        elif isinstance(record, PartitionChangeRecord):
            topic = self.topics.get(record.topic_id)
            if topic is not None and record.leader != NO_LEADER_CHANGE:
                topic.leader_epochs[record.partition_id] = topic.leader_epochs.get(record.partition_id, 0) + 1
        elif isinstance(record, ConfigRecord):
            key = (record.resource_type, record.resource_name, record.name)
            if record.value is None:
                self.configs.pop(key, None)
            else:
                self.configs[key] = record.value
        elif isinstance(record, ProducerIdsRecord):
            self.next_producer_id = max(self.next_producer_id, record.next_producer_id)


def record_type_of(value: bytes) -> int:
    """The type of a metadata record. Raises DecodeError."""
    r = Reader(value)
    r.uvarint()
    return int(r.uvarint())


def sound_batches(path: str, from_offset: int = 0, torn: list[int] | None = None) -> Iterator[StoredBatch]:
    """The batches of a partition's directory, or of one file, in order.

    Unreadable bytes at the very end are the leftover of a crash: their number is appended to `torn`. Elsewhere they are
    damage. Raises LogDamaged and OSError.
    """
    waiting: DamagedBytes | None = None
    for item in read_batches(path, from_offset):
        if waiting is not None:
            raise LogDamaged(waiting.file, waiting.next_offset, waiting.position, waiting.reason)
        if isinstance(item, DamagedBytes):
            waiting = item
        else:
            yield item
    if waiting is not None:
        if "format version" in waiting.reason:
            raise LogDamaged(waiting.file, waiting.next_offset, waiting.position, waiting.reason)
        if torn is not None:
            torn.append(waiting.size_bytes)


def durable_batches(files: PartitionFiles, from_offset: int, torn: list[int]) -> Iterator[StoredBatch]:
    """Like sound_batches, for a partition. Also raises LogDamaged if the batches end before the durable mark."""
    end = from_offset
    for batch in sound_batches(files.path, from_offset, torn):
        end = batch.header.last_offset + 1
        yield batch
    lost = lost_end(files, end)
    if lost is not None:
        raise lost


def base_of(root: str) -> Base:
    """The newest whole snapshot of the metadata log in a data directory, if there is one.

    Raises LogDamaged if the log does not start at offset 0 and no snapshot is usable, StorageError and OSError.
    """
    path = os.path.join(root, METADATA_DIRECTORY)
    segments = segment_files(path)
    start = int(os.path.basename(segments[0])[:20]) if segments else 0
    start = max(start, read_checkpoint(root, LOG_START_OFFSETS).get((METADATA_TOPIC, 0), 0))
    base = find_base(DiskStorage(root), METADATA_DIRECTORY, start)
    if base.is_missing:
        raise no_base(path, start, base.names, base.damaged[0][1] if base.damaged else "")
    return base


def read_cluster_image(root: str) -> ClusterImage | None:
    """The metadata of the data directory `root`; None if it has no metadata log. Raises LogDamaged and OSError."""
    path = os.path.join(root, METADATA_DIRECTORY)
    if not os.path.isdir(path):
        return None
    image = ClusterImage()
    torn: list[int] = []
    base = base_of(root)
    for value in base.values:
        try:
            image.apply(value)
        except DecodeError as error:
            file = "" if base.name is None else os.path.join(path, base.name.file)
            raise LogDamaged(file, base.offset, 0, str(error)) from None
    _replay_log(image, path, base.offset, torn)
    image.torn_bytes = sum(torn)
    return image


def _replay_log(image: ClusterImage, path: str, from_offset: int, torn: list[int]) -> None:
    transaction: list[bytes] | None = None
    for batch in sound_batches(path, from_offset, torn):
        if batch.header.is_control:
            continue
        try:
            for record in batch.records(DECOMPRESSED_BYTES_MAX):
                if record.value is None or record.offset < from_offset:
                    continue
                kind = record_type_of(record.value)
                if kind in (BEGIN_TRANSACTION, END_TRANSACTION, ABORT_TRANSACTION):
                    image.left_out[FOREIGN_TYPES[kind]] += 1
                    if kind == END_TRANSACTION:
                        for value in transaction or []:
                            image.apply(value)
                    elif kind == ABORT_TRANSACTION:
                        image.left_out["records of unfinished transactions"] += len(transaction or [])
                    transaction = [] if kind == BEGIN_TRANSACTION else None
                elif transaction is not None:
                    transaction.append(record.value)
                else:
                    image.apply(record.value)
        except (DecodeError, DecompressionError) as error:
            raise LogDamaged(batch.file, batch.header.base_offset, batch.position, str(error)) from None
    if transaction:
        image.left_out["records of unfinished transactions"] += len(transaction)
