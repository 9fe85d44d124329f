"""Rebuilds the state of the coordinator at a point of its log, with the core's own `replay`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, final

import click

from kcoord.cli.compiled import is_compiled
from kcoord.cli.log.common import fail, format_bytes, format_time, note, plural
from kcoord.cli.log.past.state_start import LookedAtStorage, start_for
from kcoord.cli.log.past.typed_groups import TypedGroups
from kcoord.cli.log.points import Point
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
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import BatchHeader

EXIT_NOT_HELD: Final = 1
# A placeholder for the topic id in directories without metadata, such as those of a broker without a controller.
STAND_IN_ID: Final = bytes(15) + b"\x01"

# For a log of at least this size, a remark announces that reading takes a while.
LONG_BYTES: Final = 32 << 20

Step = Callable[[int], None]


@final
class LogEnd:
    """The exclusive end `offset` of the replay of one log; `timestamp` is that of the last record, or -1."""

    def __init__(self, files: PartitionFiles, start: int) -> None:
        self.files = files
        self.offset = start
        self.timestamp = -1
        # Whether compaction left gaps below `offset`, and whether the log continues after it.
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
    """A core at a point, with the matching end of each log."""

    def __init__(self) -> None:
        self.core = Core(CoreConfig())
        self.ends: list[LogEnd] = []
        # Groups of the newer protocols, of every kind.
        self.typed = TypedGroups()


def coordinator_logs(directory: DataDirectory, group: str, partition: int) -> list[PartitionFiles]:
    """The logs of `__consumer_offsets` of a group, of a partition, or all of them.

    Raises LogDamaged if one of them is missing, and OSError.
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
        # The number of partitions is fixed when the topic is created.
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
    """The state at a point. Raises LogDamaged and OSError; exits if the point does not exist."""
    if point.offset >= 0 and len(logs) > 1:
        raise click.BadParameter(
            f"an offset refers to a single log, and there are {len(logs)}: "
            f"pass --group, --partition or a time instead of {point.text}"
        )
    past = PastState()
    metadata = directory.find(METADATA_TOPIC, 0)
    if metadata is not None:
        past.ends.append(_replay_metadata(directory, metadata, past, point.time_ms, inexact, step))
    _stand_in(directory, past.core)
    for files in logs:
        end = _replay_log(directory, files, past, point, step)
        past.ends.append(end)
        if point.offset > end.offset and _goes_on(directory, files, point.offset):
            # Compaction removed the records before the point.
            end.offset = point.offset
            end.has_gaps = True
        if point.offset > end.offset:
            fail(f"{files.name} ends at offset {end.offset}, before {point.offset}", EXIT_CONFIG)
        _check_held(directory, end, past, point, inexact)
    return past


def is_long(directory: DataDirectory, files: PartitionFiles, point: Point) -> bool:
    """Whether a large log must be read from its beginning. Raises OSError."""
    return files.size_bytes >= LONG_BYTES and start_for(directory, files, point).found is None


def _stand_in(directory: DataDirectory, core: Core) -> None:
    """Create `__consumer_offsets` in the core if the metadata log does not have it: replay needs its partitions."""
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
    """Replay the metadata log, from the newest snapshot before the point. Raises LogDamaged and OSError."""
    run = _Run(directory, files, past, Point("", -1, time_ms), step)
    start = directory.start_of(files)
    base = find_base(LookedAtStorage(os.path.dirname(files.path)), files.name, start, time_ms)
    if base.is_missing:
        newer = [name for name in base.names if name.end_offset >= start]
        if time_ms < 0 or len(base.damaged) == len(newer):
            raise no_base(files.path, start, base.names, base.damaged[0][1] if base.damaged else "")
        text = f"{files.name} begins at offset {start}, after that point: the topics of that time are unknown"
        if not inexact:
            fail(f"{text}. --inexact shows what is left", EXIT_NOT_HELD)
        note(text)
    run.load_values(base)
    run.read(base.offset)
    return run.end


def _replay_log(directory: DataDirectory, files: PartitionFiles, past: PastState, point: Point, step: Step) -> LogEnd:
    """Replay a log of `__consumer_offsets`, from its state checkpoint if that lies before the point."""
    run = _Run(directory, files, past, point, step)
    start = start_for(directory, files, point)
    found = start.found
    if found is not None:
        run.load_checkpoint(found, start.timestamp)
    elif files.size_bytes >= LONG_BYTES:
        how = "" if is_compiled() else "; without native code this takes several times as long"
        note(f"{files.name}: reading all of its {format_bytes(files.size_bytes)}, because {start.reason}{how}")
    run.read(0 if found is None else found.end_offset)
    return run.end


@final
class _Run:
    """The replay of one log up to a point."""

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
        # Batches entirely before the point are loaded as the server loads them.
        self.loader = LogLoader(past.core, self.log_id)
        self.loader.format_1_end = directory.format_1_end(files)
        self.loader.others = []

    def load(self, data: bytes, header: BatchHeader, file: str, position: int) -> None:
        """Replay a batch that lies entirely before the point, from the current end on. Raises LogDamaged."""
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
        """Replay the records from an offset up to the point. Raises LogDamaged and OSError."""
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
            # No valid batch follows and nothing synced is lost: a torn write.
            if damage is not None and end.offset >= directory.mark_of(files):
                bad = plural(damage.size_bytes, "byte")
                note(f"{files.name}: left out {bad} at the end that cannot be read")
                damage = None
            lost = lost_end(files, next_offset, self.upto)
            if lost is not None and damage is None:
                raise lost
        if damage is not None and not end.is_cut:
            raise LogDamaged(damage.file, damage.next_offset, damage.position, damage.reason)
        if self.point.offset >= 0 and end.offset < self.point.offset <= next_offset:
            end.offset = self.point.offset

    def _take(self, batch: StoredBatch) -> bool:
        """Replay the records of a batch before the point. Returns whether all of them were."""
        header = batch.header
        time_ms = self.point.time_ms
        if header.last_offset < self.upto and not 0 <= time_ms < header.max_timestamp:
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
        """A batch that the point may lie within. A control batch, which has one record, lies before it or after it."""
        header, end, past, log_id = batch.header, self.end, self.past, self.log_id
        start = end.offset
        for record in batch.records(DECOMPRESSED_BYTES_MAX):
            if record.offset >= self.upto or 0 <= self.point.time_ms < record.timestamp:
                return False
            if record.offset < start or header.is_control:
                continue
            end.offset = record.offset + 1
            end.timestamp = record.timestamp
            if log_id.topic == METADATA_TOPIC:
                if record.value is not None:
                    past.core.replay(log_id, record.offset, None, decode_metadata_record(record.value))
            elif record.key is not None:
                key, value = decode_record(record.key, record.value)
                past.core.replay(log_id, record.offset, key, value, record.timestamp, None, int(header.producer_id))
                past.typed.replay(key, value)
        end.offset = max(end.offset, int(header.last_offset) + 1)
        return True


def _check_held(directory: DataDirectory, end: LogEnd, past: PastState, point: Point, inexact: bool) -> None:
    """Check that the log still holds the state at the point: compaction removes records that were replaced later."""
    files = end.files
    if point.offset >= 0 and point.offset < directory.start_of(files):
        fail(f"{files.name} begins at offset {directory.start_of(files)}, after {point.offset}", EXIT_NOT_HELD)
    if not end.has_gaps or point.is_end:
        return
    # Without a cleaner checkpoint, any segment but the last may have been cleaned.
    floor = directory.cleaned.get((files.topic, files.partition), files.segments[-1].base_offset)
    if end.offset >= floor and not _has_pending_below(past, files, floor):
        return
    text = f"{files.name} was compacted below offset {floor}{_time_at(directory, files, floor)}: "
    text += f"the state at {end.offset} lacks records that were replaced later"
    if not inexact:
        fail(f"{text}. --inexact shows what is left", EXIT_NOT_HELD)
    note(text)


def _has_pending_below(past: PastState, files: PartitionFiles, floor: int) -> bool:
    """Whether a transaction that is open at the point has an offset in the compacted part.

    If it was committed later, compaction has removed the offset that counted until then.
    """
    return any(
        stored.record_offset < floor
        for (partition, _), of_producer in past.core.offsets.pending.by_producer.items()
        if partition == files.partition
        for stored in of_producer.values()
    )


def _time_at(directory: DataDirectory, files: PartitionFiles, offset: int) -> str:
    for item in directory.batches(files, offset):
        if isinstance(item, StoredBatch):
            return f" ({format_time(int(item.header.base_timestamp))})"
    return ""
