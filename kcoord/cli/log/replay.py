"""The coordinator as it was at a point of its log: the core's own `replay`, fed up to there and no further."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

import click

from kcoord.cli.log.common import fail, format_time, note, plural
from kcoord.cli.log.points import Point
from kcoord.cli.log.records import DECOMPRESSED_BYTES_MAX, member_plain, uuid_text
from kcoord.core.config import CoreConfig
from kcoord.core.coordinator import Core
from kcoord.core.hashing import coordinator_partition
from kcoord.core.outcome import METADATA_TOPIC, OFFSETS_TOPIC, LogId
from kcoord.log.errors import LogDamaged
from kcoord.log.inspect import DataDirectory, PartitionFiles
from kcoord.log.partition_log import INT64_MAX
from kcoord.log.reader import DamagedBytes, StoredBatch
from kcoord.log.serde import decode_metadata_record, decode_record
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.server.failures import EXIT_CONFIG
from kcoord.wire.compression import DecompressionError
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import Record

EXIT_NOT_HELD: Final = 1
# Stands for the topic's id in directories whose metadata is elsewhere, such as a broker's.
STAND_IN_ID: Final = bytes(15) + b"\x01"

COMMIT_MARKER: Final = 1
# The keys of what says that a group of another kind exists: ConsumerGroupMetadataKey and its like.
OTHER_GROUP_KEY: Final = "GroupMetadataKey"

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
        # Groups of kinds that the core does not run: their id and kind.
        self.others: dict[str, str] = {}

    def end_transaction(self, log_id: LogId, producer_id: int, marker: Record) -> None:
        """Take over what a transaction wrote, or forget it (KIP-98)."""
        pending = self.pending.pop((repr(log_id), producer_id), [])
        if marker.key is None or int.from_bytes(marker.key[2:4], "big") != COMMIT_MARKER:
            return
        for offset, key, value in pending:
            self.core.replay(log_id, offset, key, value)

    def note_other(self, key: Message, value: Message | None) -> None:
        name = type(key).__name__
        if name.endswith(OTHER_GROUP_KEY) and name != OTHER_GROUP_KEY:
            group_id: str = getattr(key, "group_id", "")
            if value is None:
                self.others.pop(group_id, None)
            else:
                self.others[group_id] = name.removesuffix(OTHER_GROUP_KEY).lower()


def coordinator_logs(directory: DataDirectory, group: str, partition: int) -> list[PartitionFiles]:
    """The logs of `__consumer_offsets` that matter: of a group, of a partition, or all."""
    logs = directory.of_topic(OFFSETS_TOPIC)
    if not logs:
        fail(f"there is no {OFFSETS_TOPIC} in {directory.root}", EXIT_CONFIG)
    if partition >= 0:
        logs = [files for files in logs if files.partition == partition]
        if not logs:
            fail(f"there is no {OFFSETS_TOPIC}-{partition} in {directory.root}", EXIT_CONFIG)
    elif group:
        # The number of partitions is fixed when the topic is made.
        count = max(files.partition for files in logs) + 1
        home = coordinator_partition(group, count)
        logs = [files for files in logs if files.partition == home] or logs
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
        past.ends.append(_replay_log(directory, metadata, past, Point("", -1, point.time_ms), step))
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


def _stand_in(directory: DataDirectory, core: Core) -> None:
    """The core has to know how many partitions there are, where the metadata log does not say it (yet)."""
    if core.topics.partition_count(OFFSETS_TOPIC) > 0:
        return
    highest = max(files.partition for files in directory.of_topic(OFFSETS_TOPIC))
    core.replay(core.metadata_log, 0, None, TopicRecord(OFFSETS_TOPIC, STAND_IN_ID))
    core.replay(core.metadata_log, 0, None, PartitionRecord(highest, STAND_IN_ID))


def _goes_on(directory: DataDirectory, files: PartitionFiles, offset: int) -> bool:
    return any(isinstance(item, StoredBatch) for item in directory.batches(files, offset))


def _replay_log(
    directory: DataDirectory, files: PartitionFiles, past: PastState, point: Point, step: Step
) -> LogEnd:
    log_id = LogId(files.topic, files.partition)
    end = LogEnd(files, directory.start_of(files))
    upto = point.offset if point.offset >= 0 else INT64_MAX
    damage: DamagedBytes | None = None
    next_offset = files.start_offset
    for item in directory.batches(files, 0, upto):
        if isinstance(item, DamagedBytes):
            damage = damage or item
            continue
        step(item.header.size)
        if damage is not None:
            break
        header = item.header
        if header.base_offset != next_offset or header.count != header.last_offset_delta + 1:
            end.has_gaps = True
        next_offset = header.last_offset + 1
        if not _replay_batch(past, log_id, item, point, upto, end):
            end.is_cut = True
            break
    else:
        # Nothing valid behind it, nothing synced lost: a write that was cut short.
        if damage is not None and end.offset >= directory.mark_of(files):
            note(f"{files.name}: {plural(damage.size_bytes, 'byte')} at the end cannot be read and are left out")
            damage = None
    if damage is not None and not end.is_cut:
        raise LogDamaged(damage.file, damage.next_offset, damage.position, damage.reason)
    if 0 <= point.offset and end.offset < point.offset <= next_offset:
        end.offset = point.offset
    return end


def _replay_batch(
    past: PastState, log_id: LogId, batch: StoredBatch, point: Point, upto: int, end: LogEnd
) -> bool:
    """Replay what a batch has before the point; whether all of it was before."""
    header = batch.header
    is_metadata = log_id.topic == METADATA_TOPIC
    core = past.core
    start = end.offset
    try:
        for record in batch.records(DECOMPRESSED_BYTES_MAX):
            if record.offset >= upto or 0 <= point.time_ms < record.timestamp:
                return False
            if record.offset < start:
                continue
            end.offset = record.offset + 1
            end.timestamp = record.timestamp
            if header.is_control:
                past.end_transaction(log_id, int(header.producer_id), record)
                continue
            if is_metadata:
                if record.value is not None:
                    core.replay(log_id, record.offset, None, decode_metadata_record(record.value))
            elif record.key is not None:
                key, value = decode_record(record.key, record.value)
                if header.is_transactional:
                    pending = past.pending.setdefault((repr(log_id), int(header.producer_id)), [])
                    pending.append((record.offset, key, value))
                    continue
                core.replay(log_id, record.offset, key, value)
                past.note_other(key, value)
    except (DecodeError, DecompressionError) as error:
        raise LogDamaged(batch.file, end.offset, batch.position, str(error)) from None
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


# --- the state as plain data


def group_plain(core: Core, group_id: str) -> dict[str, Any]:
    """One group: what its record says, and its offsets. Phases of a rebalance are not in any log."""
    group = core.groups.get(group_id)
    value = None if group is None else group.value
    members = [] if value is None else [member_plain(value.protocol_type, member) for member in value.members]
    stamp = -1 if value is None else value.current_state_timestamp
    return {
        "group": group_id,
        "state": "Stable" if members else "Empty",
        "protocol_type": "" if value is None else value.protocol_type,
        "protocol": None if value is None else value.protocol,
        "generation": -1 if value is None else value.generation,
        "leader": None if value is None else value.leader,
        "state_timestamp": format_time(stamp) or None,
        "state_timestamp_ms": stamp,
        "members": members,
        "offsets": offsets_plain(core, group_id),
    }


def offsets_plain(core: Core, group_id: str) -> list[dict[str, Any]]:
    of_group = core.offsets.state.by_group.get(group_id, {})
    rows: list[dict[str, Any]] = []
    for topic in sorted(of_group):
        for partition in sorted(of_group[topic]):
            stored = of_group[topic][partition]
            rows.append(
                {
                    "topic": topic,
                    "partition": partition,
                    "offset": stored.committed_offset,
                    "leader_epoch": stored.leader_epoch,
                    "metadata": stored.metadata,
                    "commit_timestamp": format_time(stored.commit_timestamp_ms) or None,
                    "commit_timestamp_ms": stored.commit_timestamp_ms,
                    "expire_timestamp_ms": stored.expire_timestamp_ms,
                    "record_offset": stored.record_offset,
                }
            )
    return rows


def group_ids(core: Core, groups: tuple[str, ...]) -> list[str]:
    """The groups that exist, of those wanted or of all."""
    known = set(core.groups.groups) | set(core.offsets.state.by_group)
    # A deleted simple group leaves an object without record and offsets.
    live = [g for g in known if _is_live(core, g)]
    return sorted(g for g in live if not groups or g in groups)


def _is_live(core: Core, group_id: str) -> bool:
    group = core.groups.get(group_id)
    return (group is not None and group.value is not None) or group_id in core.offsets.state.by_group


def topics_plain(core: Core) -> list[dict[str, Any]]:
    topics = []
    for name in core.topics.sorted_names():
        topic = core.topics.topics[name]
        if topic.topic_id != STAND_IN_ID:
            topics.append(
                {"topic": name, "topic_id": uuid_text(topic.topic_id), "partitions": topic.partition_count}
            )
    return topics


def ends_text(past: PastState) -> str:
    """`__consumer_offsets-0 below offset 7 (2025-…)`, for people."""
    parts = []
    for end in past.ends:
        if end.files.topic == OFFSETS_TOPIC:
            when = f" ({format_time(end.timestamp)})" if end.timestamp >= 0 else ""
            parts.append(f"{end.files.name} below offset {end.offset}{when}")
    return ", ".join(parts)
