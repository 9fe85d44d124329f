"""Named snapshots of a whole data directory, in `snapshots/<name>` inside it, and restoring one.

A snapshot contains every log up to its durable end at one moment between two commits: everything that was acknowledged,
and nothing else. Closed segments never change, so they are hard-linked if the file system supports it. The last segment
is copied up to the durable end. `begin_snapshot` determines the contents and takes microseconds per file; `finish`
copies and may run in a thread. `snapshot.json` exists from the start, and the folder is renamed to its final name once
it is complete.

After a restore clients see offsets and epochs for a second time. So every partition gets a leader epoch above its
current one and that of the snapshot, and new producer ids start above all that were assigned. Old clients notice the
change, and no new record can be mistaken for an old one.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from typing import Any, Final, final

from kcoord.log.cluster_image import ClusterImage, read_cluster_image
from kcoord.log.directory import (
    LOG_START_OFFSETS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    Checkpoint,
    LogDirectory,
    encode_checkpoint,
    encode_meta,
    open_directory,
)
from kcoord.log.errors import InvalidName, LogDamaged, LogError, StorageError, missing_directory
from kcoord.log.import_logs import LogWriter
from kcoord.log.inspect import inspect_directory, read_properties
from kcoord.log.journal import SYNC_OS, Journal
from kcoord.log.metadata_checkpoint import METADATA_LOG, CheckpointName, list_checkpoints
from kcoord.log.partition_files import encode_partition_metadata
from kcoord.log.partition_log import (
    EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    PartitionLog,
)
from kcoord.log.reader import DamagedBytes, read_batches
from kcoord.log.segment import Segment, segment_name
from kcoord.log.serde import encode_metadata_record
from kcoord.log.steps import Step, Steps, copy_file, copy_open_file, ignore_step
from kcoord.log.storage import LOCK_FILE, DiskStorage
from kcoord.protocol.records.producer_ids_record import ProducerIdsRecord
from kcoord.wire.message import Message
from kcoord.wire.record_batch import Record

SNAPSHOTS: Final = "snapshots"
PARTIAL_SUFFIX: Final = ".partial"
DESCRIPTION: Final = "snapshot.json"
RESTORING: Final = ".restoring"
REPLACED: Final = "replaced-"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
# A restore skips as many producer ids as a block has by default.
PRODUCER_IDS_SKIPPED: Final = 1000
METADATA_TOPIC: Final = "__cluster_metadata"
# The errors of link() on a file system that supports no (more) hard links.
NO_LINKS: Final = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)
# The names that a restore does not replace.
STAYING: Final = frozenset((SNAPSHOTS, RESTORING, LOCK_FILE, "kcoord.sock"))


def check_name(name: str) -> None:
    """Raises StorageError for an invalid name of a snapshot."""
    if not NAME.fullmatch(name) or name.endswith(PARTIAL_SUFFIX):
        raise InvalidName(
            f"{name!r} is not a valid snapshot name: use up to 100 letters, digits, dots, dashes and underscores"
        )


@final
class Snapshot:
    """A snapshot that is being created. Ends with `finish` or `abandon`."""

    def __init__(self, directory: LogDirectory, root: str, name: str, wall_ms: int) -> None:
        self.name = name
        self.path = f"{SNAPSHOTS}/{name}"
        self.partial = self.path + PARTIAL_SUFFIX
        self.storage = DiskStorage(root)
        self.root = root
        self.meta = directory.meta
        self.wall_ms = wall_ms
        self.ends: Checkpoint = {}
        self.starts: Checkpoint = {}
        self.links = 0
        # Open files, each with the path of its copy, the number of bytes to copy and the end offset.
        self._copies: list[tuple[int, str, int, int]] = []
        self._small: list[tuple[str, bytes]] = []

    def take(self, log: PartitionLog) -> None:
        """Determine which part of `log` belongs to the snapshot. Raises OSError."""
        key = (log.topic, log.partition)
        end = log.durable_end
        folder = f"{self.partial}/{log.name}"
        self.storage.make_dir(folder)
        self.ends[key] = end
        if log.log_start_offset:
            self.starts[key] = min(log.log_start_offset, end)
        self._small.append((f"{folder}/{PARTITION_METADATA}", encode_partition_metadata(log.topic_id)))
        epochs = f"{log.name}/{EPOCH_CHECKPOINT}"
        if self.storage.exists(epochs):
            self._small.append((f"{folder}/{EPOCH_CHECKPOINT}", self.storage.read_bytes(epochs)))
        if log.name == METADATA_LOG:
            for name in list_checkpoints(self.storage, log.name):
                if name.end_offset <= end:
                    self._take_checkpoint(folder, name)
        segments = list(log.segments)
        for i, segment in enumerate(segments):
            # A segment followed by durable records is closed, even after a power cut.
            closed = i + 1 < len(segments) and segments[i + 1].base_offset < end
            if (segment.base_offset <= end or not i) and self.storage.exists(segment.log_path):
                self._take_segment(folder, segment, closed, end)

    def _take_checkpoint(self, folder: str, name: CheckpointName) -> None:
        """Link a snapshot of the metadata log. An older one may be removed in the meantime."""
        try:
            os.link(os.path.join(self.root, name.path_in(METADATA_LOG)), os.path.join(self.root, folder, name.file))
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            self._small.append((f"{folder}/{name.file}", self.storage.read_bytes(name.path_in(METADATA_LOG))))

    def _take_segment(self, folder: str, segment: Segment, closed: bool, end: int) -> None:
        source = os.path.join(self.root, segment.log_path)
        target = os.path.join(self.root, folder, segment_name(segment.base_offset) + ".log")
        if closed:
            try:
                os.link(source, target)
                self.links += 1
                return
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        self._copies.append((fd, target, segment.size, end))

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "created_ms": self.wall_ms,
            "cluster_id": self.meta.cluster_id,
            "node_id": self.meta.node_id,
            "ends": {f"{topic}-{partition}": end for (topic, partition), end in sorted(self.ends.items())},
        }

    def finish(self, steps: Steps) -> None:
        """Copy, sync, and give the snapshot its name. Raises LogDamaged and OSError."""
        storage = self.storage
        # Each copy is read again to find the end offset.
        steps.begin("Copying", 2 * sum(size for _fd, _target, size, _end in self._copies))
        while self._copies:
            fd, target, size, end = self._copies.pop()
            try:
                copy_open_file(fd, target, size, steps.step)
            finally:
                os.close(fd)
            _cut(target, end, steps.step)
        # Each of these takes one or two syncs, so progress is reported after each.
        for path, data in self._small:
            storage.write_atomic(path, data)
            steps.step(0)
        for topic, partition in self.ends:
            storage.sync_dir(f"{self.partial}/{topic}-{partition}")
            steps.step(0)
        storage.write_atomic(f"{self.partial}/{RECOVERY_POINTS}", encode_checkpoint(self.ends))
        storage.write_atomic(f"{self.partial}/{LOG_START_OFFSETS}", encode_checkpoint(self.starts))
        storage.write_atomic(f"{self.partial}/{META_PROPERTIES}", encode_meta(self.meta))
        description = json.dumps(self.describe(), indent=2) + "\n"
        storage.write_atomic(f"{self.partial}/{DESCRIPTION}", description.encode())
        storage.rename(self.partial, self.path)
        storage.sync_dir(SNAPSHOTS)
        storage.sync_dir("")

    def abandon(self) -> None:
        """Remove everything after an error."""
        while self._copies:
            os.close(self._copies.pop()[0])
        shutil.rmtree(os.path.join(self.root, self.partial), ignore_errors=True)


def begin_snapshot(directory: LogDirectory, root: str, name: str, wall_ms: int) -> Snapshot:
    """Begin a snapshot of the open data directory at `root`: determine its contents.

    Nothing may change the directory's logs during the call. Raises StorageError and OSError.
    """
    check_name(name)
    snapshot = Snapshot(directory, root, name, wall_ms)
    if os.path.exists(os.path.join(root, snapshot.path)):
        raise InvalidName(f"the snapshot {name} already exists")
    # Remove an incomplete snapshot of the same name that a crash left.
    shutil.rmtree(os.path.join(root, snapshot.partial), ignore_errors=True)
    try:
        for log in directory:
            snapshot.take(log)
    except BaseException:
        snapshot.abandon()
        raise
    return snapshot


def _cut(path: str, end: int, step: Step) -> None:
    """Truncate a copied segment at offset `end`. Everything before it must be valid."""
    for item in read_batches(path):
        if isinstance(item, DamagedBytes):
            if item.next_offset < end:
                raise LogDamaged(path, item.next_offset, item.position, item.reason)
        elif item.header.base_offset < end:
            step(item.header.size)
            continue
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, item.position)
            os.fsync(fd)
        finally:
            os.close(fd)
        return


def list_snapshots(root: str) -> list[dict[str, Any]]:
    """The descriptions of all snapshots in the data directory `root`, oldest first.

    Raises OSError and DirectoryMissing.
    """
    if not os.path.isdir(root):
        raise missing_directory(root)
    folder = os.path.join(root, SNAPSHOTS)
    if not os.path.isdir(folder):
        return []
    found = []
    for name in os.listdir(folder):
        try:
            found.append(read_description(root, name))
        except StorageError:
            continue
    return sorted(found, key=lambda snapshot: (snapshot["created_ms"], snapshot["name"]))


def read_description(root: str, name: str) -> dict[str, Any]:
    """The description of a snapshot. Raises StorageError if it does not exist."""
    check_name(name)
    path = os.path.join(root, SNAPSHOTS, name, DESCRIPTION)
    try:
        with open(path, encoding="utf-8") as file:
            description: dict[str, Any] = json.load(file)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise InvalidName(f"snapshot {name} does not exist in {root}") from None
    return description


# --- restoring


def restore_snapshot(root: str, name: str, wall_ms: int, steps: Steps) -> str:
    """Restore snapshot `name`. Returns the folder to which the previous contents were moved.

    Raises DirectoryLocked, StorageError, LogDamaged and OSError. Nothing changes until everything is prepared. If the
    process dies while it moves folders, the directory has no meta.properties, so no server opens it; call again.
    """
    description = read_description(root, name)
    storage = DiskStorage(root)
    storage.lock()
    try:
        current = _current_image(root)
        shutil.rmtree(os.path.join(root, RESTORING), ignore_errors=True)
        _copy_tree(os.path.join(root, SNAPSHOTS, name), os.path.join(root, RESTORING), steps)
        _renew(os.path.join(root, RESTORING), int(description["node_id"]), current, wall_ms)
        return _exchange(storage, root, wall_ms)
    finally:
        storage.unlock()


def _current_image(root: str) -> ClusterImage:
    """The newest leader epochs and producer ids that clients may have seen.

    Includes contents that an interrupted restore has moved aside. Skips unreadable metadata: it may be the reason
    for the restore.
    """
    folder = os.path.join(root, SNAPSHOTS)
    newest = ClusterImage()
    for path in [root, *(os.path.join(folder, name) for name in os.listdir(folder) if name.startswith(REPLACED))]:
        try:
            image = read_cluster_image(path) or ClusterImage()
        except (LogError, OSError):
            continue
        newest.next_producer_id = max(newest.next_producer_id, image.next_producer_id)
        for topic_id, topic in image.topics.items():
            known = newest.topics.setdefault(topic_id, topic)
            for partition, epoch in topic.leader_epochs.items():
                known.leader_epochs[partition] = max(epoch, known.leader_epochs.get(partition, 0))
    return newest


def _copy_tree(source: str, target: str, steps: Steps) -> None:
    """Copy a snapshot: all but the last segment of each log are hard-linked if possible."""
    os.makedirs(target)
    sizes = [segment.size_bytes for files in inspect_directory(source).partitions for segment in files.segments]
    steps.begin("Copying", sum(sizes))
    for entry in sorted(os.listdir(source)):
        path = os.path.join(source, entry)
        if entry == DESCRIPTION:
            continue
        if not os.path.isdir(path):
            shutil.copyfile(path, os.path.join(target, entry))
            continue
        folder = os.path.join(target, entry)
        os.makedirs(folder)
        names = sorted(os.listdir(path))
        logs = [name for name in names if name.endswith(".log")]
        for name in names:
            one, other = os.path.join(path, name), os.path.join(folder, name)
            step = steps.step if name in logs else ignore_step
            if name in logs[:-1] and _linked(one, other):
                step(os.path.getsize(one))
            else:
                copy_file(one, other, step)
        DiskStorage(folder).sync_dir("")


def _linked(source: str, target: str) -> bool:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in NO_LINKS:
            return False
        raise
    return True


def _renew(root: str, node_id: int, current: ClusterImage, wall_ms: int) -> None:
    """Raise leader epochs and skip producer ids in the copy."""
    image = read_cluster_image(root)
    if image is None:
        raise StorageError("the snapshot has no metadata log")
    properties = read_properties(root)
    directory = open_directory(DiskStorage(root), node_id, properties.get("cluster.id", ""), "")
    try:
        log = directory.get(METADATA_TOPIC, 0)
        if log is None:
            raise StorageError("the snapshot has no metadata log")
        writer = LogWriter(Journal(directory, SYNC_OS), log, 0)
        for record in _renewals(image, current, node_id):
            writer.append(Record(0, wall_ms, None, encode_metadata_record(record), []))
        writer.flush()
    except BaseException:
        directory.close(False)
        raise
    directory.close(True)


def _renewals(image: ClusterImage, current: ClusterImage, node_id: int) -> list[Message]:
    records: list[Message] = []
    for topic in image.topics.values():
        now = current.topics.get(topic.topic_id)
        for partition, epoch in sorted(topic.leader_epochs.items()):
            newest = max(epoch, now.leader_epochs.get(partition, 0) if now is not None else 0)
            records.append(topic.partition_record(partition, node_id, newest + 1))
    next_id = max(image.next_producer_id, current.next_producer_id) + PRODUCER_IDS_SKIPPED
    records.append(ProducerIdsRecord(node_id, 0, next_id))
    return records


def _exchange(storage: DiskStorage, root: str, wall_ms: int) -> str:
    aside = f"{SNAPSHOTS}/{REPLACED}{wall_ms}"
    storage.make_dir(aside)
    # meta.properties is moved away first and in last: a directory without it counts as incomplete.
    names = [name for name in storage.list_dir("") if name not in STAYING and name != META_PROPERTIES]
    if storage.exists(META_PROPERTIES):
        storage.rename(META_PROPERTIES, f"{aside}/{META_PROPERTIES}")
        storage.sync_dir("")
    for name in names:
        storage.rename(name, f"{aside}/{name}")
    for name in storage.list_dir(RESTORING):
        if name not in (META_PROPERTIES, LOCK_FILE):
            storage.rename(f"{RESTORING}/{name}", name)
    storage.sync_dir("")
    storage.rename(f"{RESTORING}/{META_PROPERTIES}", META_PROPERTIES)
    storage.remove_tree(RESTORING)
    storage.sync_dir("")
    return os.path.join(root, aside)
