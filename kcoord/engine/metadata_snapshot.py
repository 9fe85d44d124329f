"""Snapshots of the metadata log: what may stand for it below some offset, so that it need not grow for ever (KIP-630).

A snapshot at offset N has the records that make the registry as it is at N, and, byte for byte, every record that the
registry passes over: whatever it means, it means it still. Loading replays the newest snapshot that is whole, and the
log from N on. The log may then begin at N; it keeps more than that for whoever asks what was once, and so that an
older snapshot is there if the newest is damaged.

The next snapshot is made from the last one and the log since, by a registry of its own: so another process can make
it, which holds up nobody and cannot write what is not in the log. N is a durable end, and the files below it are synced
before the snapshot gets its name, so a log that ends below the newest one has lost something.

A snapshot forgets which topics were deleted. It may be made only when the offsets of those are gone for good, too: when
the commit is durable that goes with what was in hand when it was begun.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.coordinator import Core
from kcoord.core.outcome import INFO, WARNING, Fact, LogId
from kcoord.engine.loader import LogLoader
from kcoord.engine.metadata_writer import SnapshotPlan, WrittenSnapshot
from kcoord.log.directory import LogDirectory, Marks
from kcoord.log.metadata_checkpoint import (
    BadCheckpoint,
    Checkpoint,
    CheckpointName,
    list_checkpoints,
    no_base,
    read_checkpoint_file,
    read_timestamp,
    remove_leftovers,
)
from kcoord.log.partition_log import PartitionLog
from kcoord.log.segment import Segment
from kcoord.log.serde import decode_metadata_record
from kcoord.log.storage import Storage
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError

UNLIMITED: Final = -1
# A stop is worth a snapshot that much earlier than a running server is.
AT_STOP: Final = 8


@final
class KnownSnapshot:
    """A snapshot that may be used. `last_timestamp` is that of the log's last record below its end."""

    def __init__(self, name: CheckpointName, last_timestamp: int, size_bytes: int) -> None:
        self.name = name
        self.last_timestamp = last_timestamp
        self.size_bytes = size_bytes


@final
class MetadataState:
    """The metadata log and its snapshots: loads them, and says what may be written and what may go."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        # Where the newest snapshot that can be used ends.
        self.end_offset = 0
        # Those that can be used, oldest first, and those that cannot.
        self.known: list[KnownSnapshot] = []
        self.damaged: list[CheckpointName] = []
        # How much of the log's size lies below that end, or was there at the last try.
        self.bytes_below = 0

    # --- loading

    def load(self, core: Core, log_id: LogId) -> list[Fact]:
        """Replay the newest whole snapshot and the log after it; what to tell. Raises LogDamaged and OSError."""
        log = self.log
        remove_leftovers(log.storage, log.name)
        facts: list[Fact] = []
        names = list_checkpoints(log.storage, log.name)
        reason = ""
        for name in reversed(names):
            if name.end_offset < log.log_start_offset:
                # Nothing leads from there to the log. A crash came before it was removed.
                self.damaged.append(name)
                continue
            if self.known:
                timestamp = read_timestamp(log.storage, log.name, name)
                self._know(name, timestamp)
                continue
            try:
                if name.end_offset > log.end_offset:
                    raise BadCheckpoint(f"{name.path_in(log.name)}: the log ends at {log.end_offset}")
                found = read_checkpoint_file(log.storage, log.name, name)
                self._replay(core, log_id, name, found)
                self._know(name, found.last_timestamp)
                self.end_offset = name.end_offset
            except BadCheckpoint as error:
                reason = reason or str(error)
                self.damaged.append(name)
                fields: dict[str, object] = {"file": name.path_in(log.name), "reason": str(error)}
                facts.append(Fact(WARNING, "metadata_snapshot_damaged", fields))
        self.known.reverse()
        if not self.known and log.log_start_offset > 0:
            raise no_base(log.name, log.log_start_offset, names, reason)
        extents = log.extents(self.end_offset, log.end_offset)
        self.bytes_below = log.size_bytes
        for extent in extents:
            self.bytes_below -= extent.end - extent.start
        LogLoader(core, log_id).load_log(log, self.end_offset)
        return facts

    def _know(self, name: CheckpointName, timestamp: int) -> None:
        size = self.log.storage.size_of(name.path_in(self.log.name))
        self.known.append(KnownSnapshot(name, timestamp, size))

    def _replay(self, core: Core, log_id: LogId, name: CheckpointName, found: Checkpoint) -> None:
        for record in decode_all(name.path_in(self.log.name), found.values):
            core.replay(log_id, name.end_offset - 1, None, record)

    # --- writing

    def grown_bytes(self) -> int:
        """How much the log has grown since the last snapshot, or since the last try."""
        return self.log.size_bytes - self.bytes_below

    @property
    def has_news(self) -> bool:
        """Whether there are records behind the newest snapshot."""
        return self.log.end_offset > self.end_offset

    def plan(self, end_offset: int, node_id: int, syncs: list[str]) -> SnapshotPlan:
        """A snapshot at `end_offset`, which is durable and the end of a batch. Raises LogDamaged."""
        log = self.log
        if end_offset > log.durable_end:
            raise ValueError(f"a snapshot at {end_offset} of {log!r}, durable up to {log.durable_end}")
        base = self.known[-1].name.file if self.known else ""
        extents = log.extents(self.end_offset, end_offset)
        return SnapshotPlan(log.name, node_id, base, self.end_offset, end_offset, extents, syncs)

    def written(self, plan: SnapshotPlan, result: WrittenSnapshot) -> Fact:
        name = CheckpointName(result.end_offset, result.epoch)
        self.damaged = [other for other in self.damaged if other.file != name.file]
        self.known.append(KnownSnapshot(name, result.last_timestamp, result.size_bytes))
        self.end_offset = plan.end_offset
        self.bytes_below = 0
        for segment in self.log.segments:
            if segment.base_offset < plan.end_offset:
                self.bytes_below += segment.end_position
        fields: dict[str, object] = {
            "file": name.path_in(plan.log_name),
            "records": result.records,
            "kept_as_they_are": result.kept,
            "bytes": result.size_bytes,
        }
        return Fact(INFO, "metadata_snapshot_written", fields)

    def failed(self, reason: str) -> Fact:
        """The log stays as long as it is. The next try comes when it has grown as much again."""
        self.bytes_below = self.log.size_bytes
        fields: dict[str, object] = {"log": self.log.name, "reason": reason}
        return Fact(WARNING, "metadata_snapshot_not_written", fields)

    # --- shortening

    def new_start(self, now_ms: int, retention_ms: int, retention_bytes: int) -> int:
        """Where the log may begin: at the newest snapshot that is `retention_ms` old, or at a newer one where log and
        snapshots take more than `retention_bytes`. Never behind the newest one; UNLIMITED stands for no bound."""
        start = self.log.log_start_offset
        for snapshot in self.known:
            if snapshot.name.end_offset <= start:
                continue
            is_old = retention_ms != UNLIMITED and now_ms - snapshot.last_timestamp > retention_ms
            is_large = retention_bytes != UNLIMITED and self._bytes_from(start) > retention_bytes
            if not is_old and not is_large:
                break
            start = snapshot.name.end_offset
        return start

    def _bytes_from(self, start: int) -> int:
        segments = self.log.segments
        size = 0
        for i in range(len(segments)):
            if i + 1 == len(segments) or segments[i + 1].base_offset > start:
                size += segments[i].end_position
        for snapshot in self.known:
            if snapshot.name.end_offset >= start:
                size += snapshot.size_bytes
        return size

    def has_waste(self) -> bool:
        """Whether there is something below the log's start, or a snapshot that cannot be used."""
        start = self.log.log_start_offset
        if self.known and (self.damaged or self.known[0].name.end_offset < start):
            return True
        segments = self.log.segments
        return len(segments) > 1 and segments[1].base_offset <= start

    def take_waste(self) -> tuple[list[Segment], list[str]]:
        """Forget what is below the log's start, which is durable: segments, and paths of snapshots, to be removed in
        this order. Snapshots that cannot be used go once there is one that can."""
        log = self.log
        start = log.log_start_offset
        before = log.size_bytes
        segments = log.take_segments_below(start)
        self.bytes_below -= before - log.size_bytes
        gone = [known.name for known in self.known if known.name.end_offset < start]
        self.known = [known for known in self.known if known.name.end_offset >= start]
        if self.known:
            gone.extend(self.damaged)
            self.damaged = []
        return segments, [name.path_in(log.name) for name in gone]


def save_start(directory: LogDirectory, starts: Marks, log_name: str) -> None:
    """Make the logs' starts durable, of which the metadata log's may have moved. May run in any thread. Raises OSError.

    The snapshot that it moved to may have been found in the page cache of a process that was killed before it had
    synced the name.
    """
    directory.storage.sync_dir(log_name)
    directory.write_start_offsets(starts)


def remove_waste(storage: Storage, log_name: str, segments: list[Segment], paths: list[str]) -> None:
    """Remove what `MetadataState.take_waste` gave. Raises OSError."""
    for segment in segments:
        segment.remove()
    for path in paths:
        storage.remove(path)
    storage.sync_dir(log_name)


def decode_all(path: str, values: list[bytes]) -> list[Message]:
    """The records of a snapshot. Raises BadCheckpoint."""
    records: list[Message] = []
    try:
        for value in values:
            records.append(decode_metadata_record(value))
    except DecodeError as error:
        raise BadCheckpoint(f"{path}: record {len(records) + 1}: {error}") from None
    return records
