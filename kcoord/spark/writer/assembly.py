"""Makes the log directory from the batches that tasks staged, with the code that writes a server's log.

Partitions are concatenated in the order of tasks, rolled into segments, and indexed. The directory has the marks of a
clean stop and a metadata log with the topics, so `kcoord serve` opens it like one of its own. It appears at the target
by one rename; until then the target does not exist, or is the old log.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from typing import Final

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTION_TOPIC, Outcome
from kcoord.core.topics.registry import (
    INTERNAL_CONFIGS,
    SHARE_STATE_TOPIC,
    TRANSACTION_CONFIGS,
    TopicRegistry,
)
from kcoord.log.cluster_image import sound_batches
from kcoord.log.directory import (
    LOG_START_OFFSETS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    DirectoryMeta,
    LogDirectory,
    encode_checkpoint,
    encode_meta,
    open_directory,
    refuse_foreign,
)
from kcoord.log.errors import StorageError
from kcoord.log.import_logs import LogWriter
from kcoord.log.import_report import ImportReport
from kcoord.log.import_topics import TopicWriter
from kcoord.log.journal import SYNC_OS, Journal
from kcoord.log.log_config import LogConfig
from kcoord.log.partition_log import PartitionLog
from kcoord.log.serde import encode_metadata_record
from kcoord.log.steps import ignore_step
from kcoord.log.storage import DiskStorage
from kcoord.protocol.records.producer_ids_record import ProducerIdsRecord
from kcoord.spark.tables.offset_commits import OffsetCommitsTable
from kcoord.spark.writer.options import WriteOptions
from kcoord.spark.writer.staging import LOG, REPLACED, StagedLog, StagedTask, take_place
from kcoord.wire.record_batch import NO_TIMESTAMP, Record, encode_batch, with_offsets

METADATA_TOPIC_ID: Final = b"\x00" * 15 + b"\x01"
# Records have very different timestamps: their age must not roll a segment each time.
NEVER_MS: Final = 1 << 62
WRITE_BYTES: Final = 1 << 20
INT32_MAX: Final = 0x7FFFFFFF
# The offsets that one empty batch covers, times the number of empty batches for one gap in kept offsets.
GAP_MAX: Final = 1024 << 31
LEADER_EPOCH: Final = 0

# (topic, partition)
Place = tuple[str, int]


class NotWritten(ValueError):
    """The log cannot be written or moved to its target; the message has the reason."""


def check_target(path: str, overwrite: bool) -> None:
    """Raises NotWritten for a target that the log cannot replace, and OSError."""
    parent = os.path.dirname(path)
    if os.path.ismount(path):
        raise NotWritten(f"{path} is a mount point: give a directory below it")
    if not os.path.lexists(path):
        os.makedirs(parent, exist_ok=True)
        return
    if not os.path.isdir(path):
        raise NotWritten(f"{path} is not a directory")
    if not os.listdir(path):
        return
    if not overwrite:
        raise NotWritten(
            f"{path} is not empty, and nothing can be appended to a log that is there: give a new directory, "
            'or replace the log with .mode("overwrite")'
        )
    try:
        refuse_foreign(DiskStorage(path))
    except StorageError as error:
        raise NotWritten(f"{path} is not replaced, since it is not a log directory of kcoord: {error}") from None


def assemble(
    tasks: Iterable[StagedTask], kind: str, options: WriteOptions, folder: str, now_ms: int
) -> dict[Place, int]:
    """Make the new data directory in the staging folder; the number of records by partition.

    Staged files are removed one by one. Raises NotWritten, StorageError, LogDamaged and OSError.
    """
    tasks = list(tasks)
    staged: dict[Place, list[StagedLog]] = {}
    for task in tasks:
        for one in task.logs:
            staged.setdefault((one.topic, one.partition), []).append(one)
    topics = _partition_counts(staged, kind, options)
    registry = TopicRegistry(CoreConfig())
    entropy = os.urandom(16)
    ids = {name: registry.new_topic_id(entropy, index) for index, name in enumerate(sorted(topics))}
    storage = DiskStorage(os.path.join(folder, LOG))
    os.makedirs(storage.root)
    meta = DirectoryMeta(registry.config.node_id, _new_id(), _new_id())
    storage.write_atomic(META_PROPERTIES, encode_meta(meta))
    if options.keeps_offsets:
        _begin_later(storage, staged, ids)
    directory = open_directory(
        storage,
        meta.node_id,
        meta.cluster_id,
        meta.directory_id,
        config=LogConfig(options.segment_bytes, NEVER_MS, tail_bytes_max=0),
    )
    try:
        journal = Journal(directory, SYNC_OS)
        for name in sorted(topics):
            for partition in range(topics[name]):
                log = directory.get(name, partition) or directory.create_log(name, partition, ids[name])
                has_gaps = False
                for one in staged.get((name, partition), ()):
                    has_gaps |= _take_over(journal, log, one, options.keeps_offsets)
                if has_gaps:
                    # A segment that a server still appends to must be complete.
                    journal.roll(log)
                journal.commit()
                # There may be more partitions than files that can be open.
                log.close(save=True)
        highest = max((task.producer_id_max for task in tasks), default=-1)
        _write_metadata(directory, journal, registry, options, topics, ids, highest, now_ms)
    except BaseException:
        directory.close(False)
        raise
    directory.close(True)
    return {place: sum(log.record_count for log in logs) for place, logs in staged.items()}


def _partition_counts(staged: dict[Place, list[StagedLog]], kind: str, options: WriteOptions) -> dict[str, int]:
    counts = {name: plan.partitions for name, plan in options.topics.items() if plan.partitions}
    for topic, partition in staged:
        counts[topic] = max(counts.get(topic, 0), partition + 1)
    if kind == OffsetCommitsTable.NAME or OFFSETS_TOPIC in counts:
        counts[OFFSETS_TOPIC] = options.offsets_partitions
    if TRANSACTION_TOPIC in counts:
        counts[TRANSACTION_TOPIC] = options.transaction_partitions
    counts.pop(METADATA_TOPIC, None)
    return counts


def _begin_later(storage: DiskStorage, staged: dict[Place, list[StagedLog]], ids: dict[str, bytes]) -> None:
    """Create empty logs that begin after offset 0, before the directory is opened."""
    writer = TopicWriter(storage, ImportReport(), ignore_step)
    for (topic, partition), logs in staged.items():
        if logs[0].first_offset > 0:
            writer.write_empty(topic, partition, ids[topic], logs[0].first_offset)
    storage.write_atomic(RECOVERY_POINTS, encode_checkpoint(writer.points))
    storage.write_atomic(LOG_START_OFFSETS, encode_checkpoint(writer.starts))


def _take_over(journal: Journal, log: PartitionLog, staged: StagedLog, keeps_offsets: bool) -> bool:
    """Append a staged file, and remove it; whether that left gaps in the offsets."""
    size = 0
    has_gaps = False
    if staged.size_bytes and not os.path.exists(staged.path):
        raise NotWritten(
            f"{staged.path}: a task wrote it, and it is not there: the path has to be on a file system that the "
            "driver and all executors share"
        )
    for batch in sound_batches(staged.path):
        header = batch.header
        base = log.end_offset
        if keeps_offsets:
            has_gaps |= _fill_gap(journal, log, header.base_offset)
            base = header.base_offset
        last = base + header.last_offset_delta
        data = with_offsets(batch.data, base, LEADER_EPOCH)
        journal.append(log, data, base, last, header.max_timestamp, LEADER_EPOCH)
        size += len(data)
        if journal.pending_bytes > WRITE_BYTES:
            journal.commit()
    if size != staged.size_bytes:
        raise NotWritten(
            f"{staged.path}: {size} bytes of batches where a task wrote {staged.size_bytes}: the file system lost some"
        )
    journal.commit()
    os.remove(staged.path)
    return has_gaps


def _fill_gap(journal: Journal, log: PartitionLog, offset: int) -> bool:
    """Write empty batches from the log's end up to `offset`, as compaction leaves them; whether there were any."""
    end = log.end_offset
    if offset < end:
        raise NotWritten(
            f"{log.name}: offset {offset} after {end - 1}: with keepOffsets rows come in order of topic, "
            'partition and offset, also from task to task (.orderBy("topic", "partition", "offset"))'
        )
    if offset - end > GAP_MAX:
        raise NotWritten(f"{log.name}: {offset - end} offsets are missing before {offset}")
    while log.end_offset < offset:
        base = log.end_offset
        delta = min(offset - base - 1, INT32_MAX)
        none = NO_TIMESTAMP
        data = encode_batch(base, LEADER_EPOCH, 0, delta, none, none, -1, -1, -1, 0, b"")
        journal.append(log, data, base, base + delta, none, LEADER_EPOCH)
    return log.end_offset > end


def _write_metadata(
    directory: LogDirectory,
    journal: Journal,
    registry: TopicRegistry,
    options: WriteOptions,
    topics: dict[str, int],
    ids: dict[str, bytes],
    producer_id_max: int,
    now_ms: int,
) -> None:
    """Topics as a server writes them when they are created; it adds what it needs itself when it starts."""
    out = Outcome()
    for name in sorted(topics):
        configs = dict(_CONFIGS.get(name, ()))
        if name in options.topics:
            configs.update(options.topics[name].configs)
        registry.add_topic_records(out, name, ids[name], topics[name], configs)
    if producer_id_max >= 0:
        out.add(registry.log, None, ProducerIdsRecord(registry.config.node_id, 0, producer_id_max + 1))
    log = directory.create_log(METADATA_TOPIC, 0, METADATA_TOPIC_ID)
    writer = LogWriter(journal, log, LEADER_EPOCH)
    for record in out.records:
        if record.value is not None:
            writer.append(Record(0, now_ms, None, encode_metadata_record(record.value), []))
    writer.flush()
    journal.commit()


_CONFIGS: Final = {
    OFFSETS_TOPIC: INTERNAL_CONFIGS,
    SHARE_STATE_TOPIC: INTERNAL_CONFIGS,
    TRANSACTION_TOPIC: TRANSACTION_CONFIGS,
}


def _new_id() -> str:
    return base64.urlsafe_b64encode(os.urandom(16)).decode("ascii").rstrip("=")


# --- the rename to the target


def put_in_place(folder: str, path: str, overwrite: bool) -> None:
    """The assembled directory becomes `path`, by renaming it. Raises NotWritten, DirectoryLocked and OSError.

    A replaced log stays complete until the new one is in its place; a crash between the two renames leaves it in the
    staging folder as `replaced`.
    """
    check_target(path, overwrite)
    made = os.path.join(folder, LOG)
    above = DiskStorage(os.path.dirname(path))
    if not os.path.isdir(path) or not os.listdir(path):
        os.rename(made, path)
        above.sync_dir("")
        return
    before = DiskStorage(path)
    # Not while a server runs on it.
    before.lock()
    replaced = os.path.join(folder, REPLACED)
    try:
        take_place(made, path, replaced)
        above.sync_dir("")
    finally:
        before.unlock()
