"""A data directory: its identity, its logs, and recovery when it is opened.

    .lock                             held while a process has the directory open
    meta.properties                   version, node, cluster and directory id; `kcoord.format` marks a kcoord directory
                                      and gives the format of its records (record_format.py)
    recovery-point-offset-checkpoint  per log: everything below this offset was synced (the durable mark)
    kcoord-commit-bytes               per log: the largest size of one commit, if it is more than 64 KiB
    log-start-offset-checkpoint       per log: the first offset that exists, if it is not that of the first segment
    replication-offset-checkpoint     per log: the high watermark at a clean stop, for a broker that opens a copy
    cleaner-offset-checkpoint         per compacted log: the first offset that was never cleaned
    .kafka_cleanshutdown              written by a clean stop, removed when the directory is opened
    <topic>-<partition>/              the logs
    <topic>-<partition>.<id>-delete/  deleted logs whose files are not yet removed

The formats are Kafka's. A directory without `kcoord.format` is refused, so a broker's disk is not opened by mistake.

`meta.properties`, the recovery points and the log starts carry promises: if one is lost, an acknowledged write could be
lost, or a deleted record could come back. So the process ends if one of them cannot be read or written. The other
files are hints that save work: an unreadable hint counts as missing, and a hint that cannot be written is skipped.
`kcoord-commit-bytes` is a hint for its reader, but it must be durable before the commit that it announces.
"""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from kcoord.log.errors import (
    DirectoryNotWritable,
    ForeignDirectory,
    LogDamaged,
    StorageError,
    UnknownFormat,
    WrongNode,
)
from kcoord.log.log_config import LogConfig
from kcoord.log.metadata_checkpoint import METADATA_LOG, newest_end
from kcoord.log.open_files import OPEN_FILES_MAX, OpenFiles
from kcoord.log.parallel import run_parallel, threads_for
from kcoord.log.partition_files import decode_partition_metadata
from kcoord.log.partition_log import (
    PARTITION_METADATA,
    PartitionLog,
    RecoveryEvent,
)
from kcoord.log.record_format import (
    ENDS_KEY,
    FORMAT,
    FORMAT_1,
    FORMAT_KEY,
    INT64_MAX,
    OFFSETS_TOPIC,
    decode_ends,
    encode_ends,
)
from kcoord.log.storage import LOCK_FILE, DirectorySync, FileSync, Storage, Syncable
from kcoord.wire.causes import caused_by

META_PROPERTIES: Final = "meta.properties"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
DELETE_SUFFIX: Final = "-delete"
NAME_BYTES_MAX: Final = 255
# A meta.properties with none of these is not one of Kafka.
BROKER_KEYS: Final = ("version", "cluster.id", "node.id", "broker.id", "directory.id")
# Names that an otherwise empty directory may contain before it becomes a data directory.
HARMLESS_NAMES: Final = frozenset({LOCK_FILE, META_PROPERTIES + ".tmp", "kcoord.sock", "lost+found"})

# The largest distance from a torn batch to a valid batch after it, within one commit: an atomic batch has at most
# 64 MiB, plus what arrives with it.
COMMIT_BYTES_MAX: Final = 80 << 20
# Before a log writes a larger commit than this, it records the size in the file kcoord-commit-bytes. The smaller the
# range that a crash may tear, the less damage to acknowledged records can be mistaken for a torn write.
COMMIT_BYTES: Final = "kcoord-commit-bytes"
COMMIT_BYTES_MIN: Final = 64 << 10

# The size of a checkpoint file for 250,000 partitions with topic names of the maximum length.
CHECKPOINT_BYTES_MAX: Final = 64 << 20

NOT_ALLOWED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)

LOG_NAME: Final = re.compile(r"(.+)-(\d{1,10})")
DELETED_NAME: Final = re.compile(r"(.+)-(\d{1,10})\.([0-9a-f]{32})-delete")

Checkpoint = dict[tuple[str, int], int]
# Called while a directory is opened or closed: the phase ("opening", "syncing", "closing"), logs done, logs in total.
Progress = Callable[[str, int, int], None]


class DirectoryMeta:
    """The contents of meta.properties."""

    def __init__(
        self,
        node_id: int,
        cluster_id: str,
        directory_id: str,
        record_format: int = FORMAT,
        format_1_ends: Checkpoint | None = None,
    ) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.directory_id = directory_id
        self.record_format = record_format
        # By log: below this offset records have format 1 (record_format.py).
        self.format_1_ends: Checkpoint = format_1_ends or {}


class Marks:
    """The recovery points, or the start offsets, of all logs at one moment. Older marks never overwrite newer ones."""

    def __init__(self, version: int, points: Checkpoint) -> None:
        self.version = version
        self.points = points


class StartsWrite:
    """The start offsets of all logs at the moment of a commit's write; the commit makes them durable."""

    def __init__(self, directory: LogDirectory, starts: Marks) -> None:
        self.directory = directory
        self.starts = starts

    def datasync(self) -> None:
        self.directory.write_start_offsets(self.starts)


class DeletedLog:
    """A deleted log whose directory still exists. `topic` may be truncated if the name was too long."""

    def __init__(self, path: str, topic: str, partition: int, topic_id: bytes) -> None:
        self.path = path
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id


class LogDirectory:
    """An open data directory; see the module docstring. Use open_directory to get one."""

    def __init__(
        self,
        storage: Storage,
        meta: DirectoryMeta,
        config: LogConfig,
        commit_bytes_max: int | None,
        open_files_max: int = OPEN_FILES_MAX,
        progress: Progress | None = None,
    ) -> None:
        self.storage = storage
        self.files = OpenFiles(storage, open_files_max)
        self.progress = progress
        self.meta = meta
        self.config = config
        self.commit_bytes_max = commit_bytes_max
        self.was_clean = False
        self.events: list[RecoveryEvent] = []
        self.deleted: list[DeletedLog] = []
        self._deleted_by_id: dict[tuple[bytes, int], DeletedLog] = {}
        # What the next commit must sync besides log files: directories and small files of new logs.
        self.pending_syncs: list[Syncable] = []
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._written_points: Checkpoint = {}
        self._written_starts: Checkpoint = {}
        # The durable marks of logs without a directory, until start-up knows from the metadata log which should exist.
        self._missing: Checkpoint = {}
        self._marks_lock = threading.Lock()
        self._marks_taken = 0
        self._marks_written = 0
        self._starts_lock = threading.Lock()
        self._starts_taken = 0
        self._starts_done = 0
        # The contents of the file, and whether the next commit must rewrite it.
        self._durable_starts: Checkpoint = {}
        self.starts_moved = False
        # The starts of deleted logs: a crash may take a deletion back. A new log of the same name ends that.
        self._deleted_starts: Checkpoint = {}
        # The offsets up to which logs are cleaned, as the file has them.
        self._cleaned_lock = threading.Lock()
        self._cleaned_taken = 0
        self._cleaned_done = 0
        self._cleaned: Checkpoint = {}
        # The largest commit of each log that exceeds the default; None if there is no such file.
        self._commit_bytes: Checkpoint | None = None
        # Hints that a clean close could not write: the file's name and the reason.
        self.unwritten: list[tuple[str, str]] = []
        # What a clean close leaves to the next start, which must then begin as after a crash.
        self.has_unfinished_work = False
        self._closed = False

    # --- logs

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        return self._logs.get((topic, partition))

    def __iter__(self) -> Iterator[PartitionLog]:
        return iter(self._logs.values())

    def __len__(self) -> int:
        return len(self._logs)

    def create_log(
        self,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig | None = None,
        with_files: bool = True,
    ) -> PartitionLog:
        """Create an empty log. It is durable after the next commit. Raises OSError.

        A log without files uses no disk: the first write creates the files and makes them durable. Until then only the
        metadata log records that the partition exists.

        If a deleted log with the same topic id still exists, it is restored instead: the renamed directory survived a
        crash, but the record of the deletion did not. Raises LogDamaged if, at start-up, a log with durable records
        has no directory.
        """
        key = (topic, partition)
        if key in self._logs:
            raise ValueError(f"log {topic}-{partition} exists")
        deleted = self._deleted_by_id.get((topic_id, partition))
        if deleted is not None and any(topic_id):
            return self.restore(deleted, topic)
        point = self._missing.get(key, 0)
        if point:
            raise LogDamaged(f"{topic}-{partition}", 0, 0, f"its directory is missing, {point} offsets were synced")
        self._forget_marks(key)
        log = PartitionLog(self.storage, topic, partition, topic_id, config or self.config, self.files)
        log.begin()
        if with_files:
            log.create_files()
            self._sync_new(log)
        self._logs[key] = log
        return log

    def _forget_marks(self, key: tuple[str, int]) -> None:
        """If a log of this name existed before, its marks must not apply to the new log: rewrite the checkpoints
        without them. The version in `Marks` keeps an older write, still in progress in a thread, from undoing this.
        """
        self._deleted_starts.pop(key, None)
        if key in self._written_points or self._marks_taken != self._marks_written:
            self.write_recovery_points()
        # The starts that were taken last may be those without the old log, and not be written yet.
        if key in self._written_starts or key in self._durable_starts:
            self._write_start_offsets()
        if key in self._cleaned or self._cleaned_taken != self._cleaned_done:
            known = dict(self._cleaned)
            known.pop(key, None)
            self.write_cleaned_ends(self.take_cleaned_ends(known))

    def check_identity(self, log: PartitionLog) -> None:
        """Refuse a log that has durable records but no topic id. Raises LogDamaged.

        The file with the topic id is synced before the first record counts as durable, so a crash never loses it.
        """
        if not any(log.topic_id) and self._written_points.get((log.topic, log.partition), 0):
            raise LogDamaged(f"{log.name}/{PARTITION_METADATA}", log.log_start_offset, 0, "the topic id is missing")

    def forget_missing(self) -> None:
        """Start-up is done: a log created from now on is a new one, and old marks do not apply to it."""
        self._missing = {}

    def _sync_new(self, log: PartitionLog) -> None:
        if not self.pending_syncs:
            # One sync of the root serves all logs that this commit creates.
            self.pending_syncs.append(DirectorySync(self.storage, ""))
        self.pending_syncs.append(FileSync(log.folder, PARTITION_METADATA))
        self.pending_syncs.append(log.folder)

    def take_pending_syncs(self) -> list[Syncable]:
        syncs = self.pending_syncs
        self.pending_syncs = []
        if self.starts_moved:
            self.starts_moved = False
            syncs.append(StartsWrite(self, self.take_starts()))
        return syncs

    def delete_log(self, topic: str, partition: int, close: bool = True) -> DeletedLog | None:
        """Mark a log as deleted by renaming its directory. `purge` removes the files, `restore` undoes the deletion.

        Returns None if nothing was ever written, so that there is no directory. With `close` false the caller closes
        the log's files later, because a sync may still use them.
        """
        log = self._logs.pop((topic, partition))
        if log.log_start_offset:
            self._deleted_starts[(topic, partition)] = log.log_start_offset
        if close:
            log.close(save=False)
        if not log.has_files:
            return None
        suffix = f"-{partition}.{log.topic_id.hex()}{DELETE_SUFFIX}"
        path = log.topic[: NAME_BYTES_MAX - len(suffix)] + suffix
        if self.storage.exists(path):
            # Logs whose topic id a crash lost share the same name; the last one replaces the others.
            for other in [other for other in self.deleted if other.path == path]:
                self.forget_deleted(other)
            self.storage.remove_tree(path)
        log.folder.move(path)
        self.pending_syncs.append(DirectorySync(self.storage, ""))
        deleted = DeletedLog(path, topic, partition, log.topic_id)
        self._note_deleted(deleted)
        return deleted

    def _note_deleted(self, deleted: DeletedLog) -> None:
        self.deleted.append(deleted)
        self._deleted_by_id[(deleted.topic_id, deleted.partition)] = deleted

    def forget_deleted(self, deleted: DeletedLog) -> bool:
        """Stop tracking a deleted log because the caller removes its files. Returns whether they exist."""
        if deleted not in self.deleted:
            return False
        self.deleted.remove(deleted)
        self._deleted_starts.pop((deleted.topic, deleted.partition), None)
        key = (deleted.topic_id, deleted.partition)
        if self._deleted_by_id.get(key) is deleted:
            del self._deleted_by_id[key]
        return True

    def purge(self, deleted: DeletedLog) -> None:
        """Remove a deleted log's files. The deletion must be durable: otherwise a crash would lose an existing log."""
        if self.forget_deleted(deleted):
            self.storage.remove_tree(deleted.path)

    def restore(self, deleted: DeletedLog, topic: str) -> PartitionLog:
        """Restore a deleted log whose deletion did not become durable before a crash."""
        name = f"{topic}-{deleted.partition}"
        self.storage.rename(deleted.path, name)
        self.storage.sync_dir("")
        self.forget_deleted(deleted)
        key = (topic, deleted.partition)
        point, start = self._written_points.get(key, 0), self._durable_starts.get(key, 0)
        log = self._open_log(topic, deleted.partition, point, start, False, False)
        log.settle_tail()
        if log.topic_id != deleted.topic_id:
            # Created and deleted in the same commit: the name reached the disk, the contents did not.
            log.topic_id = deleted.topic_id
            log.write_metadata()
            self._sync_new(log)
        return log

    def move_log_start(self, log: PartitionLog, offset: int) -> None:
        """Move the log's start to `offset`. It is durable after the next commit, as are all earlier moves."""
        if offset > log.durable_end:
            raise ValueError(f"log start {offset} above the durable end of {log!r}")
        log.log_start_offset = offset
        self.starts_moved = True

    def durable_start(self, log: PartitionLog) -> int:
        """A lower bound of the log start after a crash."""
        return self._durable_starts.get((log.topic, log.partition), 0)

    # --- checkpoints

    def recovery_points(self) -> Checkpoint:
        return {key: log.synced_end for key, log in self._logs.items() if log.synced_end}

    def take_marks(self) -> Marks:
        """A copy of the recovery points, which a thread can write with write_recovery_points."""
        self._marks_taken += 1
        return Marks(self._marks_taken, self.recovery_points())

    def write_recovery_points(self, marks: Marks | None = None) -> None:
        """Write the recovery points durably. May run in any thread if `marks` are passed. Raises OSError."""
        if marks is None:
            marks = self.take_marks()
        with self._marks_lock:
            if marks.version < self._marks_written:
                return
            self._marks_written = marks.version
            if marks.points != self._written_points:
                self.storage.write_atomic(RECOVERY_POINTS, encode_checkpoint(marks.points))
                self._written_points = marks.points

    def take_starts(self) -> Marks:
        """A copy of the log starts, which a thread can write with write_start_offsets."""
        starts = {key: log.log_start_offset for key, log in self._logs.items() if log.log_start_offset}
        for key, start in self._deleted_starts.items():
            starts.setdefault(key, start)
        # From now on, creating a new log with one of these names must remove the old entry from the file.
        self._written_starts = starts
        self._starts_taken += 1
        return Marks(self._starts_taken, starts)

    def write_start_offsets(self, starts: Marks) -> None:
        """Write the log starts durably. May run in any thread. Raises OSError."""
        with self._starts_lock:
            if starts.version > self._starts_done:
                self.storage.write_atomic(LOG_START_OFFSETS, encode_checkpoint(starts.points))
                self._starts_done = starts.version
                self._durable_starts = starts.points

    def _write_start_offsets(self) -> None:
        self.write_start_offsets(self.take_starts())

    def take_cleaned_ends(self, ends: Checkpoint) -> Marks:
        """The offsets up to which logs are cleaned, which a thread can write with write_cleaned_ends."""
        self._cleaned_taken += 1
        return Marks(self._cleaned_taken, ends)

    def write_cleaned_ends(self, ends: Marks) -> None:
        """Write the cleaner's checkpoint, unless a later one is written. May run in any thread. Raises OSError."""
        with self._cleaned_lock:
            if ends.version > self._cleaned_done:
                self.storage.write_atomic(CLEANER_OFFSETS, encode_checkpoint(ends.points))
                self._cleaned_done = ends.version
                self._cleaned = ends.points

    # --- the bytes that a power cut may tear

    def allow_commits(self, logs: Iterable[PartitionLog]) -> None:
        """Durably record how many bytes of these logs a crash may tear. Must run before they are written.

        Recovery treats an invalid batch farther than that from the last valid one as damage, not as a torn write. So
        the bound must be on disk before the first byte that it covers. Raises OSError.
        """
        known = self._commit_bytes
        if known is None:
            return
        grown = False
        for log in logs:
            size = log.unwritten_bytes
            bound = known.get((log.topic, log.partition), COMMIT_BYTES_MIN)
            if size > bound:
                while bound < size:
                    bound *= 4
                known[(log.topic, log.partition)] = bound
                grown = True
        if grown:
            self.storage.write_atomic(COMMIT_BYTES, encode_checkpoint(known))

    def _torn_bytes_max(self, topic: str, partition: int) -> int | None:
        if self.commit_bytes_max is None or self._commit_bytes is None:
            return self.commit_bytes_max
        return min(self.commit_bytes_max, self._commit_bytes.get((topic, partition), COMMIT_BYTES_MIN))

    def _read_commit_bytes(self) -> None:
        if self.storage.exists(COMMIT_BYTES):
            known, reason = read_hint(self.storage, COMMIT_BYTES)
            # The hint only narrows the range that recovery accepts as torn, so an unreadable file is ignored.
            self._commit_bytes = None if reason else known

    def _begin_commit_bytes(self) -> None:
        """All recovered bytes are synced now, so the bounds start again, except for logs that were not opened."""
        before = self._commit_bytes
        if self.storage.is_dir(COMMIT_BYTES):
            # The next start cannot read the hint and applies only the general bound.
            self._commit_bytes = None
            return
        if self.commit_bytes_max is None:
            # This process does not sync its writes, so there is no bound.
            self._commit_bytes = None
            if self.storage.exists(COMMIT_BYTES):
                self.storage.remove(COMMIT_BYTES)
                self.storage.sync_dir("")
            return
        self._commit_bytes = {}
        for deleted in self.deleted:
            key = (deleted.topic, deleted.partition)
            bound = COMMIT_BYTES_MAX if before is None else before.get(key, COMMIT_BYTES_MIN)
            if bound > COMMIT_BYTES_MIN:
                self._commit_bytes[key] = bound
        if self._commit_bytes != before:
            self.storage.write_atomic(COMMIT_BYTES, encode_checkpoint(self._commit_bytes))

    # --- opening and closing

    def _settle_format(self) -> None:
        """From here on records are written in the newest format; store the end of those in format 1.

        If a power cut truncated a log, new records reuse offsets that had records in the old format.
        """
        meta = self.meta
        ends: Checkpoint = {}
        for key, log in self._logs.items():
            if log.topic == OFFSETS_TOPIC:
                known = INT64_MAX if meta.record_format == FORMAT_1 else meta.format_1_ends.get(key, 0)
                log.format_1_end = min(known, log.end_offset)
                if log.format_1_end:
                    ends[key] = log.format_1_end
        if (meta.record_format, meta.format_1_ends) != (FORMAT, ends):
            meta.record_format, meta.format_1_ends = FORMAT, ends
            self.storage.write_atomic(META_PROPERTIES, encode_meta(meta))

    def _load(self, verify: bool) -> None:
        storage = self.storage
        self.was_clean = storage.exists(CLEAN_SHUTDOWN) and not storage.is_dir(CLEAN_SHUTDOWN)
        self._written_points = read_checkpoint(storage, RECOVERY_POINTS)
        self._written_starts = read_checkpoint(storage, LOG_START_OFFSETS)
        self._durable_starts = self._written_starts
        # An unreadable file counts as missing; the cleaner reports it.
        self._cleaned, _reason = read_hint(storage, CLEANER_OFFSETS)
        self._read_commit_bytes()
        names = storage.list_dir("")
        for number, name in enumerate(names):
            if self.progress is not None:
                self.progress("opening", number, len(names))
            if not storage.is_dir(name):
                continue
            match = DELETED_NAME.fullmatch(name)
            if match is not None:
                topic_id = bytes.fromhex(match.group(3))
                self._note_deleted(DeletedLog(name, match.group(1), int(match.group(2)), topic_id))
                continue
            match = LOG_NAME.fullmatch(name)
            if match is not None:
                key = (match.group(1), int(match.group(2)))
                point = self._written_points.get(key, 0)
                start = self._written_starts.get(key, 0)
                if name == METADATA_LOG:
                    # A snapshot is written only after the log up to its end offset was synced.
                    point = max(point, newest_end(storage, name))
                self._open_log(key[0], key[1], point, start, self.was_clean, verify)
        for deleted in self.deleted:
            key = (deleted.topic, deleted.partition)
            if key not in self._logs and key in self._durable_starts:
                self._deleted_starts[key] = self._durable_starts[key]
        self._settle_tails()
        self._settle_starts()
        self._missing = {key: point for key, point in self._written_points.items() if key not in self._logs}
        if self.was_clean:
            storage.remove(CLEAN_SHUTDOWN)
            if storage.exists(HIGH_WATERMARKS) and not storage.is_dir(HIGH_WATERMARKS):
                storage.remove(HIGH_WATERMARKS)
            storage.sync_dir("")

    def _settle_starts(self) -> None:
        """After a power cut a log may end below its start, and then begins at its end. The file must not keep a start
        that would apply to the records that the log gets next.

        A metadata log that ends below its start has lost what its snapshots do not have: it is refused, unchanged.
        """
        starts = self._durable_starts
        lowered = [log.name for key, log in self._logs.items() if log.log_start_offset < starts.get(key, 0)]
        if lowered and METADATA_LOG not in lowered:
            self._write_start_offsets()

    def _settle_tails(self) -> None:
        """Sync the bytes found above the marks, of many logs in parallel, and the root once for all of them."""
        unsettled = [log for log in self._logs.values() if log.unsettled]
        if not unsettled:
            return
        self._run([log.settle_tail for log in unsettled], "syncing")
        self.storage.sync_dir("")

    def _run(self, work: list[Callable[[], None]], what: str) -> None:
        progress = self.progress
        note = None if progress is None else partial(_note, progress, what, len(work))
        run_parallel(work, threads_for(self.storage), note)

    def _open_log(self, topic: str, partition: int, point: int, start: int, clean: bool, verify: bool) -> PartitionLog:
        path = f"{topic}-{partition}/{PARTITION_METADATA}"
        data = self.storage.read_bytes(path) if self.storage.exists(path) else b""
        log = PartitionLog(self.storage, topic, partition, decode_partition_metadata(data), self.config, self.files)
        self.events += log.recover(point, start, clean, self._torn_bytes_max(topic, partition), verify)
        self._logs[(topic, partition)] = log
        return log

    def close(self, clean: bool) -> None:
        """Close all files and release the lock. With `clean` everything is written, synced and marked as clean."""
        if self._closed:
            return
        self._closed = True
        try:
            if clean:
                self.allow_commits(self._logs.values())
                self.files.retire()
                self._run([partial(log.close, True) for log in self._logs.values()], "closing")
                for sync in self.take_pending_syncs():
                    sync.datasync()
                self.storage.sync_dir("")
                self.write_recovery_points()
                self._write_start_offsets()
                watermarks = {key: log.durable_end for key, log in self._logs.items()}
                self._write_hint(HIGH_WATERMARKS, encode_checkpoint(watermarks))
                # Kafka reads the broker epoch from this file; -1 means none.
                if not self.has_unfinished_work:
                    self._write_hint(CLEAN_SHUTDOWN, b'{"version":0,"brokerEpoch":-1}')
        finally:
            # Also after a failure: the next start determines what the files contain.
            for log in self._logs.values():
                log.close(save=False)
            self.storage.unlock()

    def _write_hint(self, path: str, data: bytes) -> None:
        try:
            self.storage.write_atomic(path, data)
        except OSError as error:
            self.unwritten.append((path, str(error)))


def _note(progress: Progress, what: str, of: int, done: int) -> None:
    progress(what, done, of)


def open_directory(
    storage: Storage,
    node_id: int,
    new_cluster_id: str,
    new_directory_id: str,
    config: LogConfig | None = None,
    commit_bytes_max: int | None = COMMIT_BYTES_MAX,
    verify: bool = False,
    open_files_max: int = OPEN_FILES_MAX,
    progress: Progress | None = None,
) -> LogDirectory:
    """Lock and open a data directory, or create one with new ids, and recover its logs.

    `commit_bytes_max` bounds the bytes that a power cut can
    tear; None under `log.sync = os`. `open_files_max` bounds the open segment files. Raises DirectoryLocked,
    DirectoryNotWritable, ForeignDirectory, WrongNode, UnknownFormat and LogDamaged. A directory that does not belong
    to kcoord is not changed.
    """
    # Check before locking: the lock file would already change a directory that is not ours.
    refuse_foreign(storage)
    storage.lock()
    try:
        meta = _read_or_make_meta(storage, node_id, new_cluster_id, new_directory_id)
        directory = LogDirectory(storage, meta, config or LogConfig(), commit_bytes_max, open_files_max, progress)
        directory._load(verify)
        directory._settle_format()
        directory._begin_commit_bytes()
    except BaseException as error:
        storage.unlock()
        if isinstance(error, OSError) and error.errno in NOT_ALLOWED:
            reason = f"the data directory cannot be used: {error}"
            raise caused_by(DirectoryNotWritable(reason), error) from error
        raise
    return directory


def refuse_foreign(storage: Storage) -> None:
    """Raise ForeignDirectory or UnknownFormat unless the directory is kcoord's or empty. Changes nothing."""
    if not storage.exists(META_PROPERTIES):
        try:
            others = [name for name in storage.list_dir("") if name not in HARMLESS_NAMES]
        except OSError:
            return  # it does not exist yet, or taking the lock will report the problem
        if others:
            raise ForeignDirectory(
                f"the data directory has no {META_PROPERTIES} but is not empty ({others[0]} …); "
                "use an empty or new directory, or import another log with 'kcoord log import'"
            )
        return
    properties = parse_properties(storage.read_bytes(META_PROPERTIES))
    if not any(name in properties for name in BROKER_KEYS):
        raise ForeignDirectory(
            f"{META_PROPERTIES} of the data directory is neither kcoord's nor a Kafka broker's: it is damaged, or of "
            "another program"
        )
    if FORMAT_KEY not in properties:
        raise ForeignDirectory(
            "the data directory belongs to a Kafka broker (no kcoord.format in its meta.properties); "
            "import it into a new directory with 'kcoord log import'"
        )
    if properties[FORMAT_KEY] not in (str(FORMAT_1), str(FORMAT)):
        raise UnknownFormat(
            f"the data directory has format {properties[FORMAT_KEY]}, this version of kcoord supports up to {FORMAT}"
        )


def _read_or_make_meta(storage: Storage, node_id: int, new_cluster_id: str, new_directory_id: str) -> DirectoryMeta:
    if not storage.exists(META_PROPERTIES):
        meta = DirectoryMeta(node_id, new_cluster_id, new_directory_id)
        storage.write_atomic(META_PROPERTIES, encode_meta(meta))
        return meta
    properties = parse_properties(storage.read_bytes(META_PROPERTIES))
    try:
        ends = decode_ends(properties.get(ENDS_KEY, ""))
        meta = DirectoryMeta(
            int(properties["node.id"]),
            properties["cluster.id"],
            properties.get("directory.id", ""),
            int(properties[FORMAT_KEY]),
            {(OFFSETS_TOPIC, partition): end for partition, end in ends.items()},
        )
    except (KeyError, ValueError):
        raise StorageError(f"{META_PROPERTIES} of the data directory is damaged") from None
    if meta.node_id != node_id:
        raise WrongNode(f"the data directory belongs to node {meta.node_id}, this is node {node_id}")
    return meta


def encode_meta(meta: DirectoryMeta) -> bytes:
    lines = [
        "version=1",
        f"cluster.id={meta.cluster_id}",
        f"node.id={meta.node_id}",
        f"directory.id={meta.directory_id}",
        f"{FORMAT_KEY}={meta.record_format}",
    ]
    if meta.format_1_ends:
        ends = {partition: end for (_topic, partition), end in meta.format_1_ends.items()}
        lines.append(f"{ENDS_KEY}={encode_ends(ends)}")
    return ("\n".join(lines) + "\n").encode()


def parse_properties(data: bytes) -> dict[str, str]:
    """Parse the bytes of meta.properties."""
    properties: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").split("\n"):
        name, equals, value = line.partition("=")
        if equals and not name.startswith("#"):
            properties[name.strip()] = value.strip()
    return properties


def encode_checkpoint(entries: Checkpoint) -> bytes:
    """Kafka's checkpoint file: version, number of entries, then `topic partition offset` lines."""
    lines = ["0", str(len(entries))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(entries.items())]
    return ("\n".join(lines) + "\n").encode()


def read_checkpoint(storage: Storage, path: str) -> Checkpoint:
    """The entries of a checkpoint file; none if there is no file. Raises StorageError and OSError."""
    if not storage.exists(path):
        return {}
    if storage.is_dir(path):
        raise StorageError(f"{path} of the data directory is a directory, not a file")
    size = storage.size_of(path)
    if size > CHECKPOINT_BYTES_MAX:
        raise StorageError(f"{path} of the data directory is damaged: {size} bytes")
    entries: Checkpoint = {}
    lines = storage.read_bytes(path).decode("utf-8", "replace").split("\n")
    # The file is written atomically, so an invalid one is damage and not the result of a crash.
    try:
        if lines[0].strip() != "0":
            raise ValueError(lines[0])
        for line in lines[2 : 2 + int(lines[1])]:
            topic, partition, offset = line.split()
            entries[(topic, int(partition))] = int(offset)
        if len(entries) != int(lines[1]):
            raise ValueError("entry count")
    except (ValueError, IndexError) as error:
        raise StorageError(f"{path} of the data directory is damaged: {error}") from None
    return entries


def read_hint(storage: Storage, path: str) -> tuple[Checkpoint, str]:
    """The entries of a checkpoint file that is only a hint, and the reason if it cannot be read."""
    try:
        return read_checkpoint(storage, path), ""
    except (StorageError, OSError) as error:
        return {}, str(error)
