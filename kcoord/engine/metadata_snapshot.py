"""Snapshots of the metadata log: they replace its beginning, so that it need not grow for ever (KIP-630).

A snapshot at offset N has the records that build the registry as it is at N, and, byte for byte, every record that the
registry ignores, so that its meaning is kept. Loading replays the newest valid snapshot, and the log from N on. The log
may then begin at N. It keeps more than that for tools that show earlier states, and so that an earlier snapshot can be
used if the newest one is damaged.

The next snapshot is made from the last one and the log since then, with a separate registry. So another process can
make it, which blocks nothing and cannot write what is not in the log. N is a durable end, and the files below it are
synced before the snapshot gets its name. So a log that ends below the newest snapshot has lost records.

A snapshot does not contain deleted topics. So it must not be made before the committed offsets of these topics are
deleted durably: it waits for the commit with the last work that was pending when the snapshot was planned.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.coordinator import Core
from kcoord.core.outcome import INFO, WARNING, Fact
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
# At a stop a snapshot is made when the log has grown this much less than it must while the server runs.
AT_STOP: Final = 8


@final
class KnownSnapshot:
    """A valid snapshot. `last_timestamp` is that of the log's last record below the snapshot's end."""

    def __init__(self, name: CheckpointName, last_timestamp: int, size_bytes: int) -> None:
        self.name = name
        self.last_timestamp = last_timestamp
        self.size_bytes = size_bytes


@final
class MetadataState:
    """The metadata log and its snapshots: loads them, and decides what to write and what to remove."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        # The end offset of the newest valid snapshot.
        self.end_offset = 0
        # Valid snapshots, oldest first, and invalid ones.
        self.known: list[KnownSnapshot] = []
        self.damaged: list[CheckpointName] = []
        # The size of the log below that end, or at the last attempt.
        self.bytes_below = 0

    # --- loading

    def load(self, core: Core) -> list[Fact]:
        """Replay the newest valid snapshot and the log after it. Returns facts to log. Raises
        LogDamaged and OSError.
        """
        log = self.log
        remove_leftovers(log.storage, log.name)
        facts: list[Fact] = []
        names = list_checkpoints(log.storage, log.name)
        reason = ""
        for name in reversed(names):
            if name.end_offset < log.log_start_offset:
                # There are no records between this snapshot and the log: a crash prevented its removal.
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
                self._replay(core, name, found)
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
        LogLoader(core, core.metadata_log).load_log(log, self.end_offset)
        return facts

    def _know(self, name: CheckpointName, timestamp: int) -> None:
        size = self.log.storage.size_of(name.path_in(self.log.name))
        self.known.append(KnownSnapshot(name, timestamp, size))

    def _replay(self, core: Core, name: CheckpointName, found: Checkpoint) -> None:
        for record in decode_all(name.path_in(self.log.name), found.values):
            core.replay(core.metadata_log, name.end_offset - 1, None, record)

    # --- writing

    def grown_bytes(self) -> int:
        """How much the log has grown since the last snapshot, or since the last attempt."""
        return self.log.size_bytes - self.bytes_below

    @property
    def has_news(self) -> bool:
        """Whether there are records after the newest snapshot."""
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
        """The log keeps its length. The next attempt follows when it has grown as much again."""
        self.bytes_below = self.log.size_bytes
        fields: dict[str, object] = {"log": self.log.name, "reason": reason}
        return Fact(WARNING, "metadata_snapshot_not_written", fields)

    # --- removing old records

    def new_start(self, now_ms: int, retention_ms: int, retention_bytes: int) -> int:
        """The offset at which the log may begin: the newest snapshot that is `retention_ms` old, or a newer one if log
        and snapshots exceed `retention_bytes`. Never after the newest one. UNLIMITED means no limit.
        """
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
        """Whether there are records below the log's start, or invalid snapshots."""
        start = self.log.log_start_offset
        if self.known and (self.damaged or self.known[0].name.end_offset < start):
            return True
        segments = self.log.segments
        return len(segments) > 1 and segments[1].base_offset <= start

    def take_waste(self) -> tuple[list[Segment], list[str]]:
        """Remove from the log what is below its start, which is durable. Returns segments and paths of snapshots, whose
        files have to be removed in this order. Invalid snapshots are removed once there is a valid one.
        """
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
    """Make the logs' starts durable, in case the metadata log's moved. May run in any thread. Raises OSError.

    The directory is synced first: the snapshot may only have been in the page cache of a killed process, without a
    durable name. A start that refers to it must not become durable before it.
    """
    directory.storage.sync_dir(log_name)
    directory.write_start_offsets(starts)


def remove_waste(storage: Storage, log_name: str, segments: list[Segment], paths: list[str]) -> None:
    """Remove the files that `MetadataState.take_waste` returned. Raises OSError."""
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
