"""The rebalances of one group, from its records and from what `__group_events` has about it.

The timeline of `kcoord.history` derives from records when an epoch changed, why, and when a rebalance was over. The
topic has exactly the same events for a log that was not compacted. For a compacted log it still has all events, and the
records have fewer. So the topic decides from its first event of a group to its last one; before and after that the
records do.

Records and events come in the order of their offsets, at the same offset the record first. This does not use Spark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from kcoord.core.cause import NO_TIME, PROTOCOL_DOWNGRADED, PROTOCOL_UPGRADED, Cause
from kcoord.history.timeline import (
    CONSUMER,
    EPOCH_CHANGED,
    NO_EPOCH,
    REBALANCE_FINISHED,
    UNKNOWN,
    GroupEvent,
    GroupTimeline,
)
from kcoord.spark.jobs.group_members import Changes, GroupMembers, Member
from kcoord.wire.message import Message

# Where a cause is from.
EVENTS: Final = "events"
RECORD: Final = "record"
DERIVED: Final = "derived"
# Epochs of one rebalance that are listed; one that never ends may have any number.
CAUSES_MAX: Final = 1000
INT32_MAX: Final = 0x7FFFFFFF


@dataclass
class Event:
    """An event, from a record or from the topic. None is unknown."""

    event: str
    protocol: str
    epoch: int
    time_ms: int
    started_ms: int | None
    cause: Cause | None
    cause_source: str | None
    members: int | None
    partitions: int | None
    offset: int
    changes: Changes | None = None


@dataclass
class Rebalance:
    """From the first new epoch until all members have their target assignment. Times are Unix times in ms.

    `started_ms` is None if it is over and no record has the time when it began.
    """

    protocol: str
    from_epoch: int | None
    to_epoch: int
    started_ms: int | None
    first_offset: int
    last_offset: int
    members_before: int | None
    partitions_before: int | None
    epochs: int = 0
    finished_ms: int | None = None
    members_after: int | None = None
    partitions_after: int | None = None
    changes: Changes | None = None
    # (epoch, time, cause, where from), the first ones
    causes: list[tuple[int, int, Cause | None, str | None]] = field(default_factory=list)


class RebalanceStory:
    """One group. Feed it with `record` and `event`, take complete rebalances with `take`, and end with `finish`."""

    def __init__(self) -> None:
        self._timeline = GroupTimeline()
        self._members = GroupMembers()
        self._row: Rebalance | None = None
        self._done: list[Rebalance] = []
        # Of the events from records: the last epoch, and whether everything that led to it was in the log.
        self._epoch = NO_EPOCH
        self._protocol = ""
        self._is_complete = True
        # Events from records since the last event of the topic. They count if the topic has no later one.
        self._waiting: list[Event] = []
        self._topic_offset = -1

    def record(self, offset: int, time_ms: int, key: Message, value: Message | None, cause: Cause | None) -> None:
        self._members.replay(key, value)
        self._timeline.replay(offset, time_ms, key, value, cause)
        for event in self._timeline.take():
            new = self._from_record(event)
            if self._topic_offset >= 0:
                self._waiting.append(new)
            else:
                self._apply(new)

    def event(self, document: dict[str, Any]) -> None:
        """A value of `__group_events`. An unknown event is skipped."""
        new = _from_topic(document)
        if new is None:
            return
        waiting: list[Event] = []
        for one in self._waiting:
            if (one.event, one.epoch) == (new.event, new.epoch):
                new.changes = one.changes
            elif one.offset >= new.offset:
                waiting.append(one)
        self._waiting = waiting
        self._topic_offset = max(self._topic_offset, new.offset)
        self._apply(new)

    def take(self) -> list[Rebalance]:
        """Rebalances that are complete, in the order of their time."""
        done, self._done = self._done, []
        return done

    def finish(self) -> list[Rebalance]:
        """The rest; a rebalance that was not over has no `finished_ms`."""
        for one in self._waiting:
            if one.offset > self._topic_offset:
                self._apply(one)
        self._waiting = []
        row, self._row = self._row, None
        if row is not None:
            if row.finished_ms is None and self._is_complete and self._epoch == row.to_epoch:
                row.changes = self._members.take()
            self._done.append(row)
        return self.take()

    # ----

    def _from_record(self, event: GroupEvent) -> Event:
        cause, source = event.cause, RECORD
        changes: Changes | None = None
        if event.event == EPOCH_CHANGED:
            # Compaction removed epochs: members that are new here may have joined long ago.
            is_next = event.epoch == self._epoch + 1 or self._protocol != event.protocol
            is_gap = self._epoch != NO_EPOCH and event.protocol == CONSUMER and not is_next
            if is_gap or (self._epoch == NO_EPOCH and event.members == UNKNOWN):
                self._is_complete = False
            self._epoch = event.epoch
            derived = self._members.take_cause()
            if self._protocol not in ("", event.protocol):
                derived = Cause(PROTOCOL_UPGRADED if event.protocol == CONSUMER else PROTOCOL_DOWNGRADED)
            self._protocol = event.protocol
            if cause is None and self._is_complete:
                cause, source = derived, DERIVED
        elif event.event == REBALANCE_FINISHED:
            changes = self._members.take()
            if not self._is_complete:
                changes = None
            self._is_complete = True
        return Event(
            event.event,
            event.protocol,
            event.epoch,
            event.time_ms,
            None if event.started_ms == NO_TIME else event.started_ms,
            cause,
            None if cause is None else source,
            None if event.members == UNKNOWN else event.members,
            None if event.partitions == UNKNOWN else event.partitions,
            event.offset,
            changes,
        )

    def _apply(self, new: Event) -> None:
        if new.event == EPOCH_CHANGED:
            self._change_epoch(new)
        elif new.event == REBALANCE_FINISHED:
            self._end(new)

    def _change_epoch(self, new: Event) -> None:
        row = self._row
        if row is not None and (row.protocol, row.to_epoch) == (new.protocol, new.epoch):
            # The topic has the event of a record that was applied before.
            if row.causes and new.cause is not None:
                row.causes[-1] = (new.epoch, new.time_ms, new.cause, new.cause_source)
            if row.epochs == 1:
                row.members_before = _or(new.members, row.members_before)
                row.partitions_before = _or(new.partitions, row.partitions_before)
            return
        if row is None or row.finished_ms is not None:
            row = self._begin(new, new.time_ms)
            row.members_before, row.partitions_before = new.members, new.partitions
        row.protocol = new.protocol
        row.to_epoch = new.epoch
        row.last_offset = new.offset
        row.epochs += 1
        if len(row.causes) < CAUSES_MAX:
            row.causes.append((new.epoch, new.time_ms, new.cause, new.cause_source))

    def _end(self, new: Event) -> None:
        row = self._row
        if row is None or (row.protocol, row.to_epoch) != (new.protocol, new.epoch):
            # Its beginning is no longer in the log.
            row = self._begin(new, new.time_ms)
            row.from_epoch = None
        row.started_ms = new.started_ms
        row.finished_ms = new.time_ms
        row.last_offset = new.offset
        row.members_after = _or(new.members, row.members_after)
        row.partitions_after = _or(new.partitions, row.partitions_after)
        if new.changes is not None:
            row.changes = new.changes

    def _begin(self, new: Event, started_ms: int) -> Rebalance:
        before = self._row
        from_epoch: int | None = None
        if before is not None:
            self._done.append(before)
            from_epoch = before.to_epoch
        elif new.event == EPOCH_CHANGED and new.members is not None:
            # A new group.
            from_epoch = 0
        self._row = Rebalance(
            new.protocol, from_epoch, new.epoch, started_ms, new.offset, new.offset, None, None
        )  # fmt: skip
        return self._row


def _or(value: int | None, other: int | None) -> int | None:
    return other if value is None else value


def _from_topic(document: dict[str, Any]) -> Event | None:
    event, protocol = document.get("event"), document.get("protocol")
    epoch, time_ms, offset = document.get("epoch"), document.get("time_ms"), document.get("offset")
    if not (isinstance(event, str) and isinstance(protocol, str) and isinstance(epoch, int)):
        return None
    if not (isinstance(time_ms, int) and isinstance(offset, int) and 0 <= epoch <= INT32_MAX):
        return None
    kind = document.get("cause")
    started_ms = document.get("started_ms")
    cause: Cause | None = None
    if isinstance(kind, str):
        cause = Cause(kind, _text(document.get("member")), _text(document.get("detail")))
    return Event(
        event,
        protocol,
        epoch,
        time_ms,
        started_ms if isinstance(started_ms, int) else None,
        cause,
        None if cause is None else EVENTS,
        _number(document.get("members")),
        _number(document.get("partitions")),
        offset,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= INT32_MAX else None


def member_document(member: Member) -> dict[str, str | None]:
    """A member as its column has it."""
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id or None,
        "client_id": member.client_id,
        "client_host": member.client_host,
    }
