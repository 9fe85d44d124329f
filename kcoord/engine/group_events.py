"""`__group_events`: the events of groups, as a topic that any client can read.

It is a projection of `__consumer_offsets`. Records that are replayed live wait here until they are durable; then their
events go to the journal, with a later commit. The order matters: an event must never describe a record that a crash can
still take back. No answer waits for events.

Each batch has a mark in a header of its last record: how far each coordinator log is projected. At start-up the logs
are replayed through the same timeline, and events from the marks on, which a crash prevented, are written: without gaps
and without repeats. If there is no mark (the topic is new or was deleted), all events that the logs still have are
written, unless they are older than the topic's retention.
"""

from __future__ import annotations

import json
from typing import Final, final

from kcoord.core.cause import NO_TIME, Cause
from kcoord.core.outcome import OFFSETS_TOPIC
from kcoord.engine.batch_walk import BatchWalk
from kcoord.history.timeline import REBALANCE_FINISHED, UNKNOWN, GroupEvent, GroupTimeline
from kcoord.log.partition_log import INT64_MAX, PartitionLog
from kcoord.wire.compression import DecompressionError
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import BatchBuilder, BatchHeader, Headers, decode_records

MARKS_HEADER: Final = "kcoord.projected"
# A batch is closed when it exceeds this size. The events of one record are never split over two batches.
BATCH_BYTES_TARGET: Final = 512 * 1024
# How many bytes at the end of the log are read for the last batch: more than any batch has.
END_BYTES: Final = 1024 * 1024
DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
# Records that may wait to be projected while the disk is full. Beyond this the rest is left to the next start.
WAITING_MAX: Final = 200_000
# Made once, since json.dumps makes a new one for each event.
_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


@final
class _Pending:
    """A record of a coordinator log that belongs to commit `seq`."""

    def __init__(
        self,
        seq: int,
        partition: int,
        offset: int,
        time_ms: int,
        key: Message | None,
        value: Message | None,
        cause: Cause | None,
    ) -> None:
        self.seq = seq
        self.partition = partition
        self.offset = offset
        self.time_ms = time_ms
        self.key = key
        self.value = value
        self.cause = cause


@final
class EventBatch:
    """A batch with `count` records to append."""

    def __init__(self, builder: BatchBuilder) -> None:
        self.builder = builder
        self.count = int(builder.count)
        self.max_timestamp = int(builder.max_timestamp)


@final
class GroupEvents:
    """Takes records of the coordinator logs and returns batches for the topic."""

    def __init__(self) -> None:
        # By partition of `__consumer_offsets`.
        self._timelines: dict[int, GroupTimeline] = {}
        # The offset up to which each log is projected: the events of all records below it are written.
        self.marks: dict[int, int] = {}
        # The topic had marks, and they were removed with all of its events.
        self.has_lost_marks = False
        # Events before this time are not written at start-up: the topic would not retain them.
        self.oldest_ms = 0
        self._waiting: list[_Pending] = []
        self._events: list[tuple[int, GroupEvent]] = []
        self.has_overflowed = False
        self.durable_seq = 0
        # Events on their way to the disk: their commit, and the marks of all coordinator logs with them.
        self._unsynced: list[tuple[int, dict[int, int]]] = []
        # The marks of the last durable events.
        self._safe_ends: dict[int, int] = {}

    # ---- start-up

    def read_marks(self, log: PartitionLog) -> None:
        """Read the marks from the topic's log. Raises LogDamaged and OSError."""
        start = log.offset_before(log.end_offset, END_BYTES)
        buf = b""
        last: BatchHeader | None = None
        for extent in log.extents(start, log.end_offset):
            walk = BatchWalk(log.storage, extent)
            try:
                while True:
                    header = walk.advance()
                    if header is None:
                        break
                    last = header
                    buf = walk.buf
            finally:
                walk.close()
        if last is not None:
            self._read_marks_of(buf, last)
        elif log.end_offset > 0:
            # All events were removed, and the marks with them. What happened before is not written again.
            self.has_lost_marks = True

    def _read_marks_of(self, buf: bytes, header: BatchHeader) -> None:
        try:
            records = decode_records(buf, header.pos, header, DECOMPRESSED_BYTES_MAX)
        except (DecodeError, DecompressionError):
            return
        if not records:
            return
        for name, value in records[-1].headers:
            if name == MARKS_HEADER and value is not None:
                for partition, offset in decode_marks(value).items():
                    self.marks[partition] = max(self.marks.get(partition, 0), offset)

    def begin(self, partition: int, end_offset: int) -> None:
        """A coordinator log that ends at `end_offset` is replayed next."""
        mark = self.marks.get(partition, 0)
        if mark > end_offset or self.has_lost_marks:
            # The log was restored to an earlier state: its next records at these offsets are new. Without marks all of
            # its records count as projected.
            self.marks[partition] = end_offset

    def loaded(
        self,
        partition: int,
        offset: int,
        time_ms: int,
        key: Message | None,
        value: Message | None,
        cause: Cause | None,
    ) -> None:
        """A record that is in the log already was replayed."""
        timeline = self._timeline(partition)
        timeline.replay(offset, time_ms, key, value, cause)
        mark = self.marks.get(partition, 0)
        for event in timeline.take():
            if event.offset >= mark and event.time_ms >= self.oldest_ms:
                self._events.append((partition, event))

    # ---- live

    def note(
        self,
        seq: int,
        partition: int,
        offset: int,
        time_ms: int,
        key: Message | None,
        value: Message | None,
        cause: Cause | None,
    ) -> None:
        """A record was replayed that belongs to commit `seq`."""
        if len(self._waiting) >= WAITING_MAX:
            self.has_overflowed = True
            return
        self._waiting.append(_Pending(seq, partition, offset, time_ms, key, value, cause))

    def committed(self, durable_seq: int) -> bool:
        """Commits up to this one are durable. Returns whether there may be events to write."""
        self.durable_seq = durable_seq
        if self._events:
            return True
        return bool(self._waiting) and self._waiting[0].seq <= durable_seq

    def projected_end(self, partition: int) -> int:
        """The offset of a coordinator log up to which all events are durable; INT64_MAX if nothing is pending.

        A state checkpoint must not end after it, because it drops the records that the events would come from.
        """
        self._forget_synced()
        is_behind = bool(self._unsynced or self._events)
        if not is_behind and self._waiting:
            is_behind = self._waiting[0].seq <= self.durable_seq
        return self._safe_ends.get(partition, 0) if is_behind else INT64_MAX

    def _forget_synced(self) -> None:
        while self._unsynced and self._unsynced[0][0] <= self.durable_seq:
            self._safe_ends = self._unsynced.pop(0)[1]

    def take_batches(self, open_seq: int, durable_ends: dict[int, int]) -> list[EventBatch]:
        """The events of durable records as batches in order, which become part of commit `open_seq`.

        `durable_ends` are the durable ends of the coordinator logs.
        """
        waiting = self._waiting
        count = 0
        for pending in waiting:
            if pending.seq > self.durable_seq:
                break
            count += 1
            timeline = self._timeline(pending.partition)
            timeline.replay(pending.offset, pending.time_ms, pending.key, pending.value, pending.cause)
            for event in timeline.take():
                self._events.append((pending.partition, event))
        if count:
            del waiting[:count]
        events = self._events
        self._events = []
        if events:
            self._forget_synced()
            self._unsynced.append((open_seq, durable_ends))
        return self._batches(events)

    def _batches(self, events: list[tuple[int, GroupEvent]]) -> list[EventBatch]:
        batches: list[EventBatch] = []
        builder = BatchBuilder()
        last = len(events) - 1
        for i, (partition, event) in enumerate(events):
            self.marks[partition] = event.offset + 1
            key = event_key(event)
            value = encode_event(event, partition)
            is_end = i == last
            if not is_end and builder.size_bytes() > BATCH_BYTES_TARGET:
                next_partition, following = events[i + 1]
                is_end = next_partition != partition or following.offset != event.offset
            headers: Headers | None = None
            if is_end:
                headers = [(MARKS_HEADER, encode_marks(self.marks))]
            builder.append(event.time_ms, key, value, headers)
            if is_end:
                batches.append(EventBatch(builder))
                builder = BatchBuilder()
        return batches

    def _timeline(self, partition: int) -> GroupTimeline:
        timeline = self._timelines.get(partition)
        if timeline is None:
            timeline = GroupTimeline()
            self._timelines[partition] = timeline
        return timeline


def event_key(event: GroupEvent) -> bytes:
    """`group|epoch|offset`, with the offset of the record in the coordinator log."""
    return f"{event.group}|{event.epoch}|{event.offset}".encode("utf-8", "replace")


def event_document(event: GroupEvent, partition: int) -> dict[str, object]:
    """An event as it is stored in the topic, see docs/group-events.md."""
    document: dict[str, object] = {
        "version": 1,
        "event": event.event,
        "group": event.group,
        "protocol": event.protocol,
        "epoch": event.epoch,
        "time_ms": event.time_ms,
    }
    if event.started_ms != NO_TIME:
        document["started_ms"] = event.started_ms
        document["duration_ms"] = max(event.time_ms - event.started_ms, 0)
    cause = event.cause
    if cause is not None:
        document["cause"] = cause.kind
        document["member"] = cause.member_id or None
        document["detail"] = cause.detail or None
    elif event.event != REBALANCE_FINISHED:
        # A broker wrote the record, or a kcoord without causes.
        document["cause"] = None
        document["member"] = None
        document["detail"] = None
    document["members"] = None if event.members == UNKNOWN else event.members
    document["partitions"] = None if event.partitions == UNKNOWN else event.partitions
    document["log"] = f"{OFFSETS_TOPIC}-{partition}"
    document["offset"] = event.offset
    return document


def encode_event(event: GroupEvent, partition: int) -> bytes:
    text = _JSON.encode(event_document(event, partition))
    return text.encode("utf-8", "replace")


def encode_marks(marks: dict[int, int]) -> bytes:
    by_name: dict[str, int] = {str(partition): marks[partition] for partition in sorted(marks)}
    return json.dumps(by_name, separators=(",", ":")).encode("ascii")


def decode_marks(data: bytes) -> dict[int, int]:
    """The next offsets by partition of `__consumer_offsets`; empty if the mark cannot be decoded."""
    marks: dict[int, int] = {}
    try:
        document = json.loads(data.decode("utf-8"))
    except ValueError:
        return marks
    if isinstance(document, dict):
        for name, offset in document.items():
            if isinstance(name, str) and name.isdigit() and isinstance(offset, int):
                marks[int(name)] = offset
    return marks
