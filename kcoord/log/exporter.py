"""Exports a data directory for a Kafka broker, and committed offsets as CSV.

The exported directory is complete. A new controller reads its first records from `bootstrap.checkpoint`, so this file
holds topics, settings and producer ids in addition to the feature levels that formatting would write. Partition
directories are copied, and records of format 1 (record_format.py) are converted to Kafka's format. There is no mark of
a clean stop, so the broker checks every segment itself. `meta.properties` is written last: after a crash no broker
accepts the incomplete directory.
"""

from __future__ import annotations

import base64
import os
from collections import Counter
from typing import Final, final

from kcoord.log.cluster_image import (
    DECOMPRESSED_BYTES_MAX,
    METADATA_DIRECTORY,
    RESOURCE_TOPIC,
    ClusterImage,
    ImageTopic,
    read_cluster_image,
    sound_batches,
)
from kcoord.log.committed_offsets import Commit, CommittedOffsets, Place
from kcoord.log.directory import (
    LOG_START_OFFSETS,
    META_PROPERTIES,
    Checkpoint,
    encode_checkpoint,
)
from kcoord.log.errors import DirectoryLocked, ForeignDirectory, LogDamaged, StorageError
from kcoord.log.import_logs import OFFSET_TYPES, is_commit, records_of
from kcoord.log.inspect import DataDirectory, PartitionFiles, inspect_directory
from kcoord.log.partition_files import encode_partition_metadata
from kcoord.log.partition_log import EPOCH_CHECKPOINT, PARTITION_METADATA
from kcoord.log.reader import DamagedBytes, StoredBatch, read_batches
from kcoord.log.record_format import OFFSETS_TOPIC, batch_in_format_2
from kcoord.log.segment import segment_name
from kcoord.log.serde import decode_record, encode_metadata_record
from kcoord.log.steps import Step, Steps, copy_file, ignore_step, watched
from kcoord.log.storage import DiskStorage
from kcoord.protocol.records.config_record import ConfigRecord
from kcoord.protocol.records.feature_level_record import FeatureLevelRecord
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.producer_ids_record import ProducerIdsRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.wire.compression import DecompressionError
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import BatchBuilder

BOOTSTRAP: Final = "bootstrap.checkpoint"
METADATA_TOPIC: Final = "__cluster_metadata"
COPIED_SUFFIXES: Final = (".log", ".index", ".timeindex", ".txnindex")
COPIED_NAMES: Final = (PARTITION_METADATA, EPOCH_CHECKPOINT)
BATCH_BYTES_TARGET: Final = 1 << 20
# The features that `kafka-storage format` of Kafka 4.3 writes (metadata.version 30 is 4.3-IV0), without
# eligible.leader.replicas.version: with it, a broker that registers for the first time leaves the in-sync replicas, so
# a partition with one replica would lose its leader. Users can enable it later.
FEATURES: Final = (
    ("metadata.version", 30),
    ("group.version", 1),
    ("share.version", 1),
    ("streams.version", 1),
    ("transaction.version", 2),
)
NO_LEADER: Final = -1
# Control records of a snapshot (KIP-630): key and value, both with a version before the body.
SNAPSHOT_HEADER: Final = (b"\x00\x00\x00\x03", b"\x00\x00" + bytes(8) + b"\x00")
SNAPSHOT_FOOTER: Final = (b"\x00\x00\x00\x04", b"\x00\x00\x00")

# group, topic, partition, committed offset
CommittedOffset = tuple[str, str, int, int]


def open_own_directory(path: str, running_too: bool = False) -> DataDirectory:
    """Open a kcoord data directory. Raises a StorageError, and OSError."""
    source = inspect_directory(path)
    if not source.is_kcoord:
        raise ForeignDirectory(f"{path} is not a kcoord data directory")
    if source.in_use and not running_too:
        raise DirectoryLocked(f"{path} is in use: stop the server first")
    return source


# --- offsets


def committed_offsets(source: DataDirectory, groups: set[str], steps: Steps) -> list[CommittedOffset]:
    """Committed offsets sorted by group, topic and partition; of all groups if `groups` is empty.

    Those of open transactions are left out. For a running server, the state at the durable mark. Raises LogDamaged and
    OSError.
    """
    found: dict[Place, Commit] = {}
    logs = source.of_topic(OFFSETS_TOPIC)
    steps.begin("Reading", sum(files.size_bytes for files in logs))
    for files in logs:
        offsets = _offsets_of(files, source.start_of(files), source.readable_end(files), groups, steps.step)
        found.update(offsets.by_place)
    return [(*place, found[place][1]) for place in sorted(found)]


def _offsets_of(files: PartitionFiles, start: int, end: int, groups: set[str], step: Step) -> CommittedOffsets:
    """The committed offsets of one log, from what it has at `start` up to `end`. Raises LogDamaged and OSError."""
    offsets = CommittedOffsets()
    for batch in watched(sound_batches(files.path, start), step):
        header = batch.header
        if header.base_offset >= end:
            break
        if header.is_control:
            outcome = is_commit(batch)
            if outcome is not None:
                offsets.end_transaction(int(header.producer_id), outcome)
            continue
        for record in records_of(batch):
            if record.offset < start or record.key is None:
                continue
            if int.from_bytes(record.key[:2], "big") not in OFFSET_TYPES:
                continue
            key, value = _decode(batch, record.key, record.value)
            if not isinstance(key, OffsetCommitKey) or (groups and key.group not in groups):
                continue
            place = (key.group, key.topic, key.partition)
            if isinstance(value, OffsetCommitValue):
                offsets.commit(place, (record.offset, value.offset), int(header.producer_id))
            else:
                offsets.remove(place)
    return offsets


def _decode(batch: StoredBatch, key: bytes, value: bytes | None) -> tuple[Message, Message | None]:
    try:
        return decode_record(key, value)
    except DecodeError as error:
        raise LogDamaged(batch.file, batch.header.base_offset, batch.position, str(error)) from None


# --- a broker's directory


@final
class Export:
    """One export. `counts` reports what was written."""

    def __init__(
        self,
        source: DataDirectory,
        target: str,
        directory_id: str,
        wall_ms: int,
        steps: Steps,
    ) -> None:
        self.source = source
        self.target = target
        self.directory_id = directory_id
        self.wall_ms = wall_ms
        self.steps = steps
        self.counts: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.storage = DiskStorage(target)
        self.node_id = int(source.properties["node.id"])

    def run(self) -> None:
        """Raises a StorageError, LogDamaged and OSError."""
        if os.path.exists(self.target) and os.listdir(self.target):
            raise ForeignDirectory(f"{self.target} is not empty: use a new directory")
        lock = DiskStorage(self.source.root)
        lock.lock()
        try:
            self._write()
        finally:
            lock.unlock()

    def _write(self) -> None:
        image = read_cluster_image(self.source.root)
        if image is None:
            raise StorageError(f"{self.source.root} has no {METADATA_DIRECTORY}")
        os.makedirs(self.target, exist_ok=True)
        self.steps.begin("Copying", sum(files.size_bytes for files in self.source.partitions))
        starts: Checkpoint = {}
        known = image.by_name()
        found = {files.name for files in self.source.partitions}
        for files in self.source.partitions:
            if files.topic == METADATA_TOPIC:
                continue
            topic = known.get(files.topic)
            if topic is None or files.topic_id != topic.topic_id:
                self.left_out["directories that no topic has"] += 1
                continue
            start = self.source.start_of(files)
            if start:
                starts[(files.topic, files.partition)] = start
            self._copy(files, topic, start)
        for topic in image.topics.values():
            for partition in range(topic.partition_count):
                if f"{topic.name}-{partition}" not in found and not self.source.marks.get((topic.name, partition), 0):
                    self._make_empty(topic, partition)
        self.storage.write_atomic(LOG_START_OFFSETS, encode_checkpoint(starts))
        self.storage.write_atomic(BOOTSTRAP, self._bootstrap(image))
        properties = self.source.properties
        lines = ["version=1", f"cluster.id={properties['cluster.id']}", f"node.id={self.node_id}"]
        lines.append(f"directory.id={self.directory_id}")
        self.storage.write_atomic(META_PROPERTIES, ("\n".join(lines) + "\n").encode())

    def _copy(self, files: PartitionFiles, topic: ImageTopic, start: int) -> None:
        self.storage.make_dir(files.name)
        target = os.path.join(self.target, files.name)
        # If a crash interrupted compaction, files have other names now than after the next start.
        names = [segment.name for segment in files.segments]
        changed = self._copy_changed(files, target)
        for name in files.recovered.present():
            stem, dot, suffix = name.rpartition(".")
            is_segments = f"{stem}.log" in names and dot + suffix in COPIED_SUFFIXES
            # The indexes of a changed segment would point to wrong positions; the broker rebuilds them.
            is_segments = is_segments and f"{stem}.log" not in changed
            if is_segments or name in COPIED_NAMES:
                step = self.steps.step if name in names else ignore_step
                now = files.recovered.names.get(name, name)
                copy_file(os.path.join(files.path, now), os.path.join(target, name), step)
        if not names:
            # An empty log still continues at its offset, which the name of this segment records.
            self._sync(f"{files.name}/{segment_name(start)}.log")
        if not self.storage.exists(f"{files.name}/{PARTITION_METADATA}"):
            data = encode_partition_metadata(topic.topic_id)
            self.storage.write_atomic(f"{files.name}/{PARTITION_METADATA}", data)
        self.storage.sync_dir(files.name)
        self.counts["partitions"] += 1
        self.counts["bytes of logs"] += files.size_bytes

    def _make_empty(self, topic: ImageTopic, partition: int) -> None:
        """Create the files of a partition that was never written: a broker, unlike kcoord, creates them at once."""
        name = f"{topic.name}-{partition}"
        self.storage.make_dir(name)
        self._sync(f"{name}/{segment_name(0)}.log")
        self.storage.write_atomic(f"{name}/{PARTITION_METADATA}", encode_partition_metadata(topic.topic_id))
        self.counts["partitions"] += 1

    def _copy_changed(self, files: PartitionFiles, target: str) -> set[str]:
        """Copy the segments with records of format 1, converted to format 2. Returns their names."""
        end = self.source.format_1_end(files)
        changed: set[str] = set()
        for segment in files.segments:
            if segment.base_offset >= end:
                break
            name = segment.name
            count = copy_in_format_2(segment.path, os.path.join(target, name), end)
            if count:
                changed.add(name)
                self.counts["records put into Kafka's format"] += count
                self.steps.step(segment.size_bytes)
        return changed

    def _sync(self, path: str) -> None:
        file = self.storage.open(path)
        file.datasync()
        file.close()

    # --- the controller's first records

    def _bootstrap(self, image: ClusterImage) -> bytes:
        values = [encode_metadata_record(FeatureLevelRecord(name, level)) for name, level in FEATURES]
        for topic in sorted(image.topics.values(), key=lambda t: t.name):
            self.counts["topics"] += 1
            values += [encode_metadata_record(record) for record in self._topic_records(image, topic)]
        for (kind, owner, name), value in sorted(image.configs.items()):
            if kind != RESOURCE_TOPIC:
                self.counts["other settings"] += 1
                values.append(encode_metadata_record(ConfigRecord(kind, owner, name, value)))
        if image.next_producer_id:
            record = ProducerIdsRecord(self.node_id, 0, image.next_producer_id)
            values.append(encode_metadata_record(record))
        for about, raw in image.kept:
            self.counts[about] += 1
            values.append(raw)
        self.left_out.update(image.left_out)
        # The exported feature levels come first, so kcoord's own are not missing.
        del self.left_out["feature levels"]
        return encode_snapshot(values, self.wall_ms)

    def _topic_records(self, image: ClusterImage, topic: ImageTopic) -> list[Message]:
        records: list[Message] = [TopicRecord(topic.name, topic.topic_id)]
        for name, value in sorted(image.configs_of(RESOURCE_TOPIC, topic.name).items()):
            self.counts["settings of topics"] += 1
            records.append(ConfigRecord(RESOURCE_TOPIC, topic.name, name, value))
        directory = base64.urlsafe_b64decode(self.directory_id + "==")
        for partition in range(topic.partition_count):
            records.append(
                PartitionRecord(
                    partition_id=partition,
                    topic_id=topic.topic_id,
                    replicas=[self.node_id],
                    isr=[self.node_id],
                    # As after a clean stop: the broker becomes the leader when it registers, with the next epoch.
                    leader=NO_LEADER,
                    leader_epoch=topic.leader_epochs.get(partition, 0),
                    partition_epoch=0,
                    directories=[directory],
                )
            )
        return records


def copy_in_format_2(source: str, target: str, end: int) -> int:
    """Copy a segment whose records below `end` have format 1. Returns how many records differ in format 2.

    If there are none, nothing is copied. Raises LogDamaged and OSError.
    """
    total = 0
    with open(source, "rb") as file, open(target, "wb") as copy:
        for item in read_batches(source):
            if isinstance(item, DamagedBytes):
                # A torn tail is copied as it is; the broker truncates it.
                file.seek(item.position)
                copy.write(file.read(item.size_bytes))
                continue
            try:
                data, changed = batch_in_format_2(item.data, item.header, end, DECOMPRESSED_BYTES_MAX)
            except (DecodeError, DecompressionError) as error:
                raise LogDamaged(source, item.header.base_offset, item.position, str(error)) from None
            copy.write(data)
            total += changed
        copy.flush()
        os.fsync(copy.fileno())
    if not total:
        os.remove(target)
    return total


def encode_snapshot(values: list[bytes], wall_ms: int) -> bytes:
    """Metadata records as a `.checkpoint` file: a header, batches, a footer."""
    parts: list[bytes] = []
    offset = 0

    def add(builder: BatchBuilder, control: bool) -> None:
        nonlocal offset
        parts.append(builder.build(offset, 0, control=control))
        offset += int(builder.count)

    def add_control(pair: tuple[bytes, bytes]) -> None:
        builder = BatchBuilder()
        builder.append(wall_ms, *pair)
        add(builder, True)

    add_control(SNAPSHOT_HEADER)
    builder = BatchBuilder()
    for value in values:
        builder.append(wall_ms, None, value)
        if builder.size_bytes() > BATCH_BYTES_TARGET:
            add(builder, False)
            builder = BatchBuilder()
    if builder.count:
        add(builder, False)
    add_control(SNAPSHOT_FOOTER)
    return b"".join(parts)
