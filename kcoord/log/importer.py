"""Imports the data directory of a stopped Kafka broker into a new kcoord data directory.

- `__cluster_metadata-0`: imports topics with their ids, partitions and configurations. Every partition gets a leader
  epoch above the broker's, so clients that switch over notice the change. Committed offsets and records keep their
  epochs.
- `__consumer_offsets-*`: merged into kcoord's number of partitions, see `import_logs`.
- `__transaction_state-*`: kept. Open transactions continue, and the decisions of the coordinator are respected.
- topics: imported with their records on request, otherwise empty from their end offset; see `import_topics`.

The import writes into a folder inside the new directory. Once that folder is complete, its contents move up, and
`meta.properties` moves last. So the server refuses the incomplete directory that a crash leaves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, final

from kcoord.log.cluster_image import (
    METADATA_DIRECTORY,
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    ClusterImage,
    ImageTopic,
    read_cluster_image,
)
from kcoord.log.directory import (
    HARMLESS_NAMES,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    DirectoryMeta,
    LogDirectory,
    encode_checkpoint,
    encode_meta,
    open_directory,
)
from kcoord.log.errors import DirectoryLocked, ForeignDirectory, StorageError
from kcoord.log.import_logs import (
    LogWriter,
    OffsetsImport,
    PartitionOf,
    TransactionLogs,
    import_transaction_logs,
)
from kcoord.log.import_report import ImportReport
from kcoord.log.import_topics import TopicWriter, end_offset_of, scan
from kcoord.log.inspect import DataDirectory, PartitionFiles, inspect_directory
from kcoord.log.journal import SYNC_OS, Journal
from kcoord.log.log_config import LogConfig
from kcoord.log.lost_logs import LostLog, is_missed
from kcoord.log.serde import encode_metadata_record
from kcoord.log.steps import Steps
from kcoord.log.storage import DiskStorage
from kcoord.protocol.records.config_record import ConfigRecord
from kcoord.protocol.records.producer_ids_record import ProducerIdsRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.wire.message import Message
from kcoord.wire.primitives import ZERO_UUID
from kcoord.wire.record_batch import Record

STAGING: Final = ".importing"
METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_TOPIC_ID: Final = b"\x00" * 15 + b"\x01"
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_TOPIC: Final = "__transaction_state"
SHARE_STATE_TOPIC: Final = "__share_group_state"
COORDINATOR_TOPICS: Final = (OFFSETS_TOPIC, TRANSACTION_TOPIC)
COMPACTED: Final = {"cleanup.policy": "compact"}
# The segment size of compacted internal topics, as in Kafka.
INTERNAL_SEGMENT_BYTES: Final = 104857600
# A merged log has records with very different timestamps; their age must not roll a segment each.
NEVER_MS: Final = 1 << 62


@final
class ImportPlan:
    """What to import and how. `wall_ms` is the current time, `partition_of` maps a group to its partition."""

    def __init__(
        self,
        sources: list[str],
        target: str,
        with_records: bool,
        partition_of: PartitionOf,
        directory_id: str,
        new_topic_id: Callable[[], bytes],
        wall_ms: int,
        node_id: int = 1,
        offsets_partitions: int = 1,
        transaction_partitions: int = 1,
    ) -> None:
        self.sources = sources
        self.target = target
        self.with_records = with_records
        self.partition_of = partition_of
        self.directory_id = directory_id
        self.new_topic_id = new_topic_id
        self.wall_ms = wall_ms
        self.node_id = node_id
        self.offsets_partitions = offsets_partitions
        self.transaction_partitions = transaction_partitions


def run_import(plan: ImportPlan, steps: Steps) -> ImportReport:
    """Create the new data directory.

    Raises DirectoryLocked, ForeignDirectory, LogDamaged, StorageError and OSError. After an error the target is
    unchanged, or contains a folder `.importing` that can be removed.
    """
    sources = [open_source(path) for path in plan.sources]
    _check_target(plan.target)
    staging = os.path.join(plan.target, STAGING)
    storage = DiskStorage(staging)
    os.makedirs(staging)
    run = Import(plan, sources, storage, steps)
    try:
        run.work()
    except BaseException:
        storage.remove_tree("")
        raise
    _move_up(plan.target, staging)
    return run.report


def open_source(path: str) -> DataDirectory:
    source = inspect_directory(path)
    if source.in_use:
        raise DirectoryLocked(f"{path} is in use: stop the broker first")
    if source.is_kcoord:
        raise ForeignDirectory(f"{path} is already a kcoord data directory")
    return source


def _check_target(path: str) -> None:
    if not os.path.exists(path):
        return
    others = [name for name in os.listdir(path) if name not in HARMLESS_NAMES]
    if others:
        raise ForeignDirectory(f"{path} is not empty ({others[0]} …): use a new directory")


def _move_up(target: str, staging: str) -> None:
    names = [name for name in os.listdir(staging) if name != META_PROPERTIES]
    for name in [*names, META_PROPERTIES]:
        os.rename(os.path.join(staging, name), os.path.join(target, name))
    os.rmdir(staging)
    DiskStorage(target).sync_dir("")


@final
class Import:
    """One run of an import."""

    def __init__(
        self,
        plan: ImportPlan,
        sources: list[DataDirectory],
        storage: DiskStorage,
        steps: Steps,
    ) -> None:
        self.plan = plan
        self.sources = sources
        self.storage = storage
        self.steps = steps
        self.report = ImportReport()
        self.image = ClusterImage()
        # Each partition's files with the first offset that exists; the first source that has the partition wins.
        self.found: dict[tuple[str, int], tuple[PartitionFiles, int]] = {}

    def work(self) -> None:
        self._find()
        self._read_image()
        self._check_lost()
        plan = self.plan
        meta = DirectoryMeta(plan.node_id, self._cluster_id(), plan.directory_id)
        self.storage.write_atomic(META_PROPERTIES, encode_meta(meta))
        self.steps.begin("Importing", self._total_bytes())
        transactions = self._read_transactions_ahead()
        self._write_topics(transactions)
        config = LogConfig(segment_bytes=INTERNAL_SEGMENT_BYTES, segment_ms=NEVER_MS)
        directory = open_directory(self.storage, plan.node_id, meta.cluster_id, plan.directory_id, config=config)
        try:
            self._write_coordinator_logs(directory, transactions)
        except BaseException:
            directory.close(False)
            raise
        directory.close(True)
        for name in ("left_out", "kept", "taken"):
            counter = getattr(self.report, name)
            for key in [key for key in counter if not counter[key]]:
                del counter[key]

    # --- reading

    def _cluster_id(self) -> str:
        for source in self.sources:
            found = source.properties.get("cluster.id")
            if found:
                return found
        raise StorageError("no meta.properties with a cluster.id: is this a broker's data directory?")

    def _check_lost(self) -> None:
        """Raises LogDamaged if a log had durable records and is in none of the directories, and OSError."""
        for source in self.sources:
            for key, mark in sorted(source.marks.items()):
                lost = LostLog(*key, mark)
                if mark and key not in self.found and is_missed(source.root, self.image, lost):
                    raise lost.as_damage(source.root)

    def _find(self) -> None:
        report = self.report
        for source in self.sources:
            for files in source.partitions:
                if files.topic == METADATA_TOPIC:
                    continue
                key = (files.topic, files.partition)
                if key in self.found:
                    report.left_out["partitions that an earlier directory has, too"] += 1
                else:
                    self.found[key] = (files, source.start_of(files))
            for name in os.listdir(source.root):
                if name.endswith(("-delete", "-future", "-stray")):
                    report.left_out["directories of deleted, moving or stray partitions"] += 1
            if not source.was_clean:
                report.notes.append(f"{source.root} was not stopped cleanly: torn ends of logs were left out")

    def _read_image(self) -> None:
        for source in self.sources:
            image = read_cluster_image(source.root)
            if image is not None:
                self.image = image
                self.report.left_out.update(image.left_out)
                self.report.left_out["bytes at torn ends of logs"] += image.torn_bytes
                self._check_against_image()
                return
        self.report.notes.append(
            f"no {METADATA_DIRECTORY}: topics were taken from the partition directories, without configurations"
        )
        for (topic, partition), (files, _start) in sorted(self.found.items()):
            known = self.image.by_name().get(topic)
            if known is None:
                topic_id = files.topic_id if files.topic_id != ZERO_UUID else self.plan.new_topic_id()
                known = self.image.topics[topic_id] = ImageTopic(topic, topic_id)
            epochs = files.epochs()
            known.leader_epochs[partition] = epochs[-1][0] if epochs else 0

    def _check_against_image(self) -> None:
        """Leave out directories of topics that are not in the metadata, as the broker does."""
        names = self.image.by_name()
        for key, (files, _start) in list(self.found.items()):
            topic = names.get(key[0])
            if topic is None or (files.topic_id not in (ZERO_UUID, topic.topic_id)):
                del self.found[key]
                self.report.left_out["directories that no topic has"] += 1
            elif key[1] not in topic.leader_epochs:
                del self.found[key]
                self.report.left_out["directories that no topic has"] += 1

    def _sources_of(self, topic: str) -> list[tuple[PartitionFiles, int]]:
        return [self.found[key] for key in sorted(self.found) if key[0] == topic]

    def _total_bytes(self) -> int:
        """The number of bytes to read; bytes that are read twice count twice."""
        total = 0
        for (topic, _partition), (files, _start) in self.found.items():
            if topic == OFFSETS_TOPIC:
                total += files.size_bytes
            elif topic in (TRANSACTION_TOPIC, SHARE_STATE_TOPIC) or self.plan.with_records:
                total += 2 * files.size_bytes
            elif files.segments:
                total += files.segments[-1].size_bytes
        return total

    # --- writing

    def _read_transactions_ahead(self) -> TransactionLogs:
        """Read the decisions of transactions; they must be known before a transaction's records are copied."""
        sources = self._sources_of(TRANSACTION_TOPIC)
        return import_transaction_logs(sources, [], self.plan.partition_of, ImportReport(), self.steps.step)

    def _write_topics(self, transactions: TransactionLogs) -> None:
        writer = TopicWriter(self.storage, self.report, self.steps.step, self.plan.wall_ms)
        for topic in sorted(self.image.topics.values(), key=lambda t: t.name):
            if topic.name in COORDINATOR_TOPICS:
                continue
            self.report.taken["topics"] += 1
            for partition in range(topic.partition_count):
                self.report.taken["partitions of topics"] += 1
                self._write_partition(writer, topic, partition, transactions)
        self.storage.write_atomic(RECOVERY_POINTS, encode_checkpoint(writer.points))
        self.storage.write_atomic(LOG_START_OFFSETS, encode_checkpoint(writer.starts))
        self.storage.sync_dir("")

    def _write_partition(
        self, writer: TopicWriter, topic: ImageTopic, partition: int, transactions: TransactionLogs
    ) -> None:
        report = self.report
        known = self.found.get((topic.name, partition))
        if known is None:
            report.left_out["partitions without a directory here"] += 1
            report.notes.append(f"{topic.name}-{partition} has no directory and begins empty at offset 0")
            writer.write_empty(topic.name, partition, topic.topic_id, 0)
            return
        files, start = known
        is_kept = topic.name == SHARE_STATE_TOPIC
        if not self.plan.with_records and not is_kept:
            end = end_offset_of(files, start, self.steps.step)
            epochs = files.epochs()
            self._raise_epoch(topic, partition, epochs[-1][0] if epochs else -1)
            if end > start:
                report.left_out["partitions whose records are not imported"] += 1
                report.left_out["bytes of topics"] += files.size_bytes
            writer.write_empty(topic.name, partition, topic.topic_id, end)
            return
        found = scan(files, start, transactions.committed, self.steps.step)
        self._raise_epoch(topic, partition, found.leader_epoch)
        transactions.producer_id_max = max(transactions.producer_id_max, found.producer_id_max)
        if found.open_count:
            report.notes.append(
                f"{files.name}: {found.open_count} transactions are open; the server aborts those that its coordinator "
                "does not know"
            )
        if found.decided:
            report.notes.append(f"{files.name}: {len(found.decided)} transactions were decided and were committed")
        writer.copy(files, topic.topic_id, found)

    def _raise_epoch(self, topic: ImageTopic, partition: int, epoch: int) -> None:
        topic.leader_epochs[partition] = max(topic.leader_epochs.get(partition, 0), epoch)

    def _write_coordinator_logs(self, directory: LogDirectory, transactions: TransactionLogs) -> None:
        plan = self.plan
        journal = Journal(directory, SYNC_OS)
        names = self.image.by_name()
        counts = {OFFSETS_TOPIC: plan.offsets_partitions, TRANSACTION_TOPIC: plan.transaction_partitions}
        writers: dict[str, list[LogWriter]] = {}
        made: dict[str, ImageTopic] = {}
        for name, count in counts.items():
            old = names.get(name)
            made[name] = ImageTopic(name, old.topic_id if old is not None else plan.new_topic_id())
            # All partitions continue above the highest epoch of any old partition.
            epoch = max(old.leader_epochs.values(), default=0) if old is not None else -1
            for files, _start in self._sources_of(name):
                epoch = max([epoch, *(entry[0] for entry in files.epochs())])
            made[name].leader_epochs = dict.fromkeys(range(count), epoch)
            writers[name] = [
                LogWriter(journal, directory.create_log(name, p, made[name].topic_id), epoch + 1) for p in range(count)
            ]
        self._write_metadata(directory, journal, made, transactions)
        sources = self._sources_of(TRANSACTION_TOPIC)
        old_offsets = names.get(OFFSETS_TOPIC)
        is_same = old_offsets is not None and old_offsets.partition_count == plan.offsets_partitions
        import_transaction_logs(
            sources,
            writers[TRANSACTION_TOPIC],
            plan.partition_of,
            self.report,
            self.steps.step,
            0 if is_same else plan.offsets_partitions,
        )
        for writer in writers[TRANSACTION_TOPIC]:
            writer.flush()
        offsets = OffsetsImport(writers[OFFSETS_TOPIC], plan.partition_of, transactions, self.report)
        for files, start in self._sources_of(OFFSETS_TOPIC):
            offsets.read(files, start, self.steps.step)
        offsets.finish()
        self._note_partition_counts(names, counts)

    def _note_partition_counts(self, names: dict[str, ImageTopic], counts: dict[str, int]) -> None:
        for name, count in counts.items():
            old = names.get(name)
            if old is not None and old.partition_count != count:
                self.report.notes.append(f"{name}: {old.partition_count} partitions were merged into {count}")

    # --- the metadata log

    def _write_metadata(
        self,
        directory: LogDirectory,
        journal: Journal,
        made: dict[str, ImageTopic],
        transactions: TransactionLogs,
    ) -> None:
        log = directory.create_log(METADATA_TOPIC, 0, METADATA_TOPIC_ID)
        writer = LogWriter(journal, log, 0)
        topics = [t for t in self.image.topics.values() if t.name not in COORDINATOR_TOPICS]
        for topic in [*made.values(), *sorted(topics, key=lambda t: t.name)]:
            for record in self._topic_records(topic):
                self._add(writer, encode_metadata_record(record))
        for (kind, owner, name), value in sorted(self.image.configs.items()):
            if kind == RESOURCE_TOPIC:
                continue
            if kind == RESOURCE_BROKER and owner:
                self.report.left_out["settings of single brokers"] += 1
                self.report.notes.append(f"broker {owner}: {name}={value} was left out")
                continue
            self.report.taken["other settings"] += 1
            self._add(writer, encode_metadata_record(ConfigRecord(kind, owner, name, value)))
        next_id = max(self.image.next_producer_id, transactions.producer_id_max + 1)
        if next_id:
            self._add(writer, encode_metadata_record(ProducerIdsRecord(self.plan.node_id, 0, next_id)))
        for about, value_bytes in self.image.kept:
            self.report.kept[about] += 1
            self._add(writer, value_bytes)
        writer.flush()

    def _add(self, writer: LogWriter, value: bytes) -> None:
        writer.append(Record(0, self.plan.wall_ms, None, value, []))

    def _topic_records(self, topic: ImageTopic) -> list[Message]:
        records: list[Message] = [TopicRecord(topic.name, topic.topic_id)]
        configs = self.image.configs_of(RESOURCE_TOPIC, topic.name)
        if topic.name.startswith("__") and not configs:
            configs = dict(COMPACTED)
        elif topic.name not in COORDINATOR_TOPICS:
            self.report.taken["settings of topics"] += len(configs)
        for name, value in sorted(configs.items()):
            records.append(ConfigRecord(RESOURCE_TOPIC, topic.name, name, value))
        for partition in range(topic.partition_count):
            epoch = topic.leader_epochs.get(partition, 0) + 1
            records.append(topic.partition_record(partition, self.plan.node_id, epoch))
        return records
