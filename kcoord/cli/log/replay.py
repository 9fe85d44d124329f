"""The coordinator as it was at a point of its log: the core's own `replay`, fed up to there and no further."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, final

import click

from kcoord.cli.compiled import is_compiled
from kcoord.cli.log.common import fail, format_bytes, format_time, note, plural
from kcoord.cli.log.points import Point
from kcoord.cli.log.state_start import LookedAtStorage, start_for
from kcoord.cli.log.typed_groups import TypedGroups
from kcoord.core.config import CoreConfig
from kcoord.core.coordinator import Core
from kcoord.core.hashing import coordinator_partition
from kcoord.core.outcome import METADATA_TOPIC, OFFSETS_TOPIC, LogId
from kcoord.engine.batch_walk import BatchWalk
from kcoord.engine.loader import LogLoader
from kcoord.log.errors import LogDamaged
from kcoord.log.inspect import DataDirectory, PartitionFiles, lost_end
from kcoord.log.lost_logs import lost_logs
from kcoord.log.metadata_checkpoint import Base, find_base, no_base
from kcoord.log.partition_log import INT64_MAX
from kcoord.log.reader import DamagedBytes, StoredBatch
from kcoord.log.serde import decode_metadata_record, decode_record
from kcoord.log.state_file import StateFile
from kcoord.log.typed_records import DECOMPRESSED_BYTES_MAX
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.server.failures import EXIT_CONFIG
from kcoord.wire.compression import DecompressionError
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import BatchHeader, Record

EXIT_NOT_HELD: Final = 1
# Stands for the topic's id in directories whose metadata is elsewhere, such as a broker's.
STAND_IN_ID: Final = bytes(15) + b"\x01"

COMMIT_MARKER: Final = 1
# A log from this size on is said to take its time.
LONG_BYTES: Final = 32 << 20

Step = Callable[[int], None]


@final
class LogEnd:
    """How far one log was replayed: up to, not including, `offset`; `timestamp` is the last record's, or -1."""

    def __init__(self, files: PartitionFiles, start: int) -> None:
        self.files = files
        self.offset = start
        self.timestamp = -1
        # Whether compaction left gaps below `offset`, and whether the log goes on behind it.
        self.has_gaps = False
        self.is_cut = False

    def plain(self) -> dict[str, Any]:
        return {
            "log": self.files.name,
            "offset": self.offset,
            "timestamp": format_time(self.timestamp) or None,
            "timestamp_ms": self.timestamp,
        }


@final
class PastState:
    """A core at a point, and where in each log that is."""

    def __init__(self, point: Point) -> None:
        self.point = point
        self.core = Core(CoreConfig())
        self.ends: list[LogEnd] = []
        # Offsets of open transactions by log and producer id: a marker decides whether they count.
        self.pending: dict[tuple[str, int], list[tuple[int, Message, Message | None]]] = {}
        # Groups of the newer protocols, of every kind.
        self.typed = TypedGroups()

    def end_transaction(self, log_id: LogId, producer_id: int, marker: Record) -> None:
        """Take over what a transaction wrote, or forget it (KIP-98)."""
        pending = self.pending.pop((repr(log_id), producer_id), [])
        if marker.key is None or int.from_bytes(marker.key[2:4], "big") != COMMIT_MARKER:
            return
        for offset, key, value in pending:
            self.core.replay(log_id, offset, key, value)
            self.typed.replay(key, value)


def coordinator_logs(directory: DataDirectory, group: str, partition: int) -> list[PartitionFiles]:
    """The logs of `__consumer_offsets` that matter: of a group, of a partition, or all.

    Raises LogDamaged where one of them is gone, and OSError.
    """
    logs = directory.of_topic(OFFSETS_TOPIC)
    lost = [log for log in lost_logs(directory) if log.topic == OFFSETS_TOPIC]
    if not logs:
        fail(f"there is no {OFFSETS_TOPIC} in {directory.root}", EXIT_CONFIG)
    if partition >= 0:
        logs = [files for files in logs if files.partition == partition]
        if not logs and partition not in [log.partition for log in lost]:
            fail(f"there is no {OFFSETS_TOPIC}-{partition} in {directory.root}", EXIT_CONFIG)
    elif group:
        # The number of partitions is fixed when the topic is made.
        count = max([files.partition for files in logs] + [log.partition for log in lost]) + 1
        partition = coordinator_partition(group, count)
        logs = [files for files in logs if files.partition == partition] or logs
    for log in lost:
        if partition in (-1, log.partition):
            raise log.as_damage(directory.root)
    return logs


def replay_until(
    directory: DataDirectory, logs: list[PartitionFiles], point: Point, inexact: bool, step: Step
) -> PastState:
    """The state at a point. Raises LogDamaged and OSError; ends the process where the point makes no sense."""
    if point.offset >= 0 and len(logs) > 1:
        raise click.BadParameter(
            f"an offset is one of a single log and there are {len(logs)}: "
            f"give --group, --partition or a time instead of {point.text}"
        )
    past = PastState(point)
    metadata = directory.find(METADATA_TOPIC, 0)
    if metadata is not None:
        past.ends.append(_replay_metadata(directory, metadata, past, point.time_ms, inexact, step))
    _stand_in(directory, past.core)
    for files in logs:
        end = _replay_log(directory, files, past, point, step)
        past.ends.append(end)
        if point.offset > end.offset and _goes_on(directory, files, point.offset):
            # Compaction removed what stood before the point.
            end.offset = point.offset
            end.has_gaps = True
        if point.offset > end.offset:
            fail(f"{files.name} ends at offset {end.offset}, before {point.offset}", EXIT_CONFIG)
        _check_held(directory, end, point, inexact)
    return past


def is_long(directory: DataDirectory, files: PartitionFiles, point: Point) -> bool:
    """Whether a large log has to be read from its beginning. Raises OSError."""
    return files.size_bytes >= LONG_BYTES and start_for(directory, files, point).found is None


def _stand_in(directory: DataDirectory, core: Core) -> None:
    """The core has to know how many partitions there are, where the metadata log does not say it (yet)."""
    if core.topics.partition_count(OFFSETS_TOPIC) > 0:
        return
    highest = max(files.partition for files in directory.of_topic(OFFSETS_TOPIC))
    core.replay(core.metadata_log, 0, None, TopicRecord(OFFSETS_TOPIC, STAND_IN_ID))
    core.replay(core.metadata_log, 0, None, PartitionRecord(highest, STAND_IN_ID))


def _goes_on(directory: DataDirectory, files: PartitionFiles, offset: int) -> bool:
    return any(isinstance(item, StoredBatch) for item in directory.batches(files, offset))


def _replay_metadata(
    directory: DataDirectory, files: PartitionFiles, past: PastState, time_ms: int, inexact: bool, step: Step
) -> LogEnd:
    """The metadata log, from the newest snapshot on that lies before the point. Raises LogDamaged and OSError."""
    run = _Run(directory, files, past, Point("", -1, time_ms), step)
    start = directory.start_of(files)
    base = find_base(LookedAtStorage(os.path.dirname(files.path)), files.name, start, time_ms)
    if base.is_missing:
        newer = [name for name in base.names if name.end_offset >= start]
        if time_ms < 0 or len(base.damaged) == len(newer):
            raise no_base(files.path, start, base.names, base.damaged[0][1] if base.damaged else "")
        text = f"{files.name} begins at offset {start}, later than that: which topics there were is gone"
        if not inexact:
            fail(f"{text}. --inexact shows what is left", EXIT_NOT_HELD)
        note(text)
    run.load_values(base)
    run.read(base.offset)
    return run.end


def _replay_log(
    directory: DataDirectory, files: PartitionFiles, past: PastState, point: Point, step: Step
) -> LogEnd:
    """A log of `__consumer_offsets`, from its state checkpoint on where that lies before the point."""
    run = _Run(directory, files, past, point, step)
    start = start_for(directory, files, point)
    found = start.found
    if found is not None:
        run.load_checkpoint(found, start.timestamp)
    elif files.size_bytes >= LONG_BYTES:
        how = "" if is_compiled() else "; this is not native code, which takes several times as long"
        note(f"{files.name}: all of its {format_bytes(files.size_bytes)} are read, since {start.reason}{how}")
    run.read(0 if found is None else found.end_offset)
    return run.end


@final
class _Run:
    """One log, replayed up to a point."""

    def __init__(
        self, directory: DataDirectory, files: PartitionFiles, past: PastState, point: Point, step: Step
    ) -> None:
        self.directory = directory
        self.files = files
        self.past = past
        self.point = point
        self.step = step
        self.log_id = LogId(files.topic, files.partition)
        self.end = LogEnd(files, directory.start_of(files))
        self.upto = point.offset if point.offset >= 0 else INT64_MAX
        # Batches that lie before the point as a whole go the way of the server's own loading.
        self.loader = LogLoader(past.core, self.log_id)
        self.loader.format_1_end = directory.format_1_end(files)
        self.loader.others = []

    def load(self, data: bytes, header: BatchHeader, file: str, position: int) -> None:
        """Replay a batch whose records all count, from the end so far on. Raises LogDamaged."""
        try:
            self.loader.load_batch(data, header, self.end.offset)
        except (DecodeError, DecompressionError) as error:
            raise LogDamaged(file, self.end.offset, position, str(error)) from None
        others = self.loader.others
        if others:
            for key, value in others:
                self.past.typed.replay(key, value)
            others.clear()

    def load_values(self, base: Base) -> None:
        """Replay a snapshot of the metadata log. Raises LogDamaged."""
        if base.name is None:
            return
        try:
            for value in base.values:
                self.past.core.replay(self.log_id, base.offset - 1, None, decode_metadata_record(value))
        except DecodeError as error:
            raise LogDamaged(base.name.path_in(self.files.path), base.offset, 0, str(error)) from None
        self.end.offset = base.offset
        self.end.timestamp = base.last_timestamp

    def load_checkpoint(self, found: StateFile, timestamp: int) -> None:
        """Raises LogDamaged and OSError."""
        walk = BatchWalk(LookedAtStorage(self.files.path), found.extent)
        try:
            while (header := walk.advance()) is not None:
                self.load(walk.buf, header, found.extent.path, walk.start + header.pos)
        finally:
            walk.close()
        self.end.offset = found.end_offset
        self.end.timestamp = timestamp

    def read(self, from_offset: int) -> None:
        """Replay what lies from an offset on, up to the point. Raises LogDamaged and OSError."""
        end, directory, files = self.end, self.directory, self.files
        damage: DamagedBytes | None = None
        next_offset = max(files.start_offset, from_offset)
        for item in directory.batches(files, from_offset, self.upto):
            if isinstance(item, DamagedBytes):
                if item.next_offset >= from_offset:
                    damage = damage or item
                continue
            self.step(item.header.size)
            if damage is not None:
                break
            header = item.header
            if header.base_offset > next_offset or header.count != header.last_offset_delta + 1:
                end.has_gaps = True
            next_offset = header.last_offset + 1
            if not self._take(item):
                end.is_cut = True
                break
        else:
            # Nothing valid behind it, nothing synced lost: a write that was cut short.
            if damage is not None and end.offset >= directory.mark_of(files):
                bad = plural(damage.size_bytes, "byte")
                note(f"{files.name}: {bad} at the end cannot be read and are left out")
                damage = None
            lost = lost_end(files, next_offset, self.upto)
            if lost is not None and damage is None:
                raise lost
        if damage is not None and not end.is_cut:
            raise LogDamaged(damage.file, damage.next_offset, damage.position, damage.reason)
        if 0 <= self.point.offset and end.offset < self.point.offset <= next_offset:
            end.offset = self.point.offset

    def _take(self, batch: StoredBatch) -> bool:
        """Replay what a batch has before the point; whether all of it was before."""
        header = batch.header
        time_ms = self.point.time_ms
        if (
            not header.is_control
            and not header.is_transactional
            and header.last_offset < self.upto
            and not 0 <= time_ms < header.max_timestamp
        ):
            self.load(batch.data, header, batch.file, batch.position)
            self.end.offset = max(self.end.offset, int(header.last_offset) + 1)
            if header.count > 0:
                self.end.timestamp = int(header.max_timestamp)
            return True
        try:
            return self._take_records(batch)
        except (DecodeError, DecompressionError) as error:
            raise LogDamaged(batch.file, self.end.offset, batch.position, str(error)) from None

    def _take_records(self, batch: StoredBatch) -> bool:
        header, end, past, log_id = batch.header, self.end, self.past, self.log_id
        start = end.offset
        for record in batch.records(DECOMPRESSED_BYTES_MAX):
            if record.offset >= self.upto or 0 <= self.point.time_ms < record.timestamp:
                return False
            if record.offset < start:
                continue
            end.offset = record.offset + 1
            end.timestamp = record.timestamp
            if header.is_control:
                past.end_transaction(log_id, int(header.producer_id), record)
                continue
            if log_id.topic == METADATA_TOPIC:
                if record.value is not None:
                    past.core.replay(log_id, record.offset, None, decode_metadata_record(record.value))
            elif record.key is not None:
                key, value = decode_record(record.key, record.value)
                if header.is_transactional:
                    pending = past.pending.setdefault((repr(log_id), int(header.producer_id)), [])
                    pending.append((record.offset, key, value))
                    continue
                past.core.replay(log_id, record.offset, key, value)
                past.typed.replay(key, value)
        end.offset = max(end.offset, int(header.last_offset) + 1)
        return True


def _check_held(directory: DataDirectory, end: LogEnd, point: Point, inexact: bool) -> None:
    """Whether the log still holds the state at the point: compaction drops what was overwritten later."""
    files = end.files
    if point.offset >= 0 and point.offset < directory.start_of(files):
        fail(f"{files.name} begins at offset {directory.start_of(files)}, after {point.offset}", EXIT_NOT_HELD)
    if not end.has_gaps or point.is_end:
        return
    # Without the cleaner's own word, any segment but the last may have been cleaned.
    floor = directory.cleaned.get((files.topic, files.partition), files.segments[-1].base_offset)
    if end.offset >= floor:
        return
    text = f"{files.name} was compacted below offset {floor}{_time_at(directory, files, floor)}: "
    text += f"at {end.offset} what later records replaced is gone"
    if not inexact:
        fail(f"{text}. --inexact shows what is left", EXIT_NOT_HELD)
    note(text)


def _time_at(directory: DataDirectory, files: PartitionFiles, offset: int) -> str:
    for item in directory.batches(files, offset):
        if isinstance(item, StoredBatch):
            return f" ({format_time(int(item.header.base_timestamp))})"
    return ""
