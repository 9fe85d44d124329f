"""The timeline of groups, derived from their records: when and why an epoch changed, and when a rebalance ended.

From the records of one coordinator log in order of offsets, live or from files, it derives the same events each time.
It reads records of types 2 (classic groups), 3, 5, 6 and 8 (consumer groups), and keeps a few numbers per member. The
work per record does not depend on the size of the group, except for a classic group's record, which contains all
members.

A consumer group rebalances from the first new epoch until it has an assignment for it and every member has reached its
target. If epochs are missing, because compaction removed their records, the start is unknown. A classic group's record
is written at the end of a rebalance. The record's cause has the time when that began, so in a broker's log, which has
no causes, it is unknown.

In an atomic batch the tombstones of a member precede the epoch that its leaving starts, and a new member's first
assignment follows its epoch. So tombstones take effect only with the next epoch: then `members` and `partitions` are
the numbers before the change.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.cause import NO_TIME, Cause
from kcoord.core.groups.embedded_protocol import decode_assignment
from kcoord.core.groups.members import STABLE, STATIC_LEAVE_EPOCH
from kcoord.protocol.records.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
)
from kcoord.protocol.records.consumer_group_member_metadata import ConsumerGroupMemberMetadataKey
from kcoord.protocol.records.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from kcoord.protocol.records.consumer_group_target_assignment_metadata import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError

EPOCH_CHANGED: Final = "epoch_changed"
ASSIGNOR: Final = "assignor_changed"
REBALANCE_FINISHED: Final = "rebalance_finished"

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
# The number of partitions of members whose assignment cannot be decoded.
UNKNOWN: Final = -1
NO_EPOCH: Final = -1
# The first epoch of a consumer group that is written to the log.
FIRST_EPOCH: Final = 2
CONSUMER_PROTOCOL: Final = "consumer"


@final
class GroupEvent:
    """`members` and `partitions` are the numbers before an epoch, or after a rebalance; UNKNOWN if not known.

    `started_ms` is the start of the rebalance, for REBALANCE_FINISHED; NO_TIME if unknown. Times are Unix times.
    """

    def __init__(
        self,
        event: str,
        group: str,
        protocol: str,
        epoch: int,
        time_ms: int,
        cause: Cause | None,
        members: int,
        partitions: int,
        started_ms: int,
        offset: int,
    ) -> None:
        self.event = event
        self.group = group
        self.protocol = protocol
        self.epoch = epoch
        self.time_ms = time_ms
        self.cause = cause
        self.members = members
        self.partitions = partitions
        self.started_ms = started_ms
        self.offset = offset


@final
class _Member:
    def __init__(self) -> None:
        self.is_counted = False
        # The epoch in which the member reached its target; NO_EPOCH while it has not.
        self.settled_epoch = NO_EPOCH
        self.partitions = 0


@final
class _Group:
    """The state of a group, as far as its records show it."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.epoch = NO_EPOCH
        self.assignment_epoch = NO_EPOCH
        # Whether a rebalance is in progress, and when it started; NO_TIME if unknown.
        self.is_rebalancing = False
        self.began_ms = NO_TIME
        # Whether the log has the group's state before it changed to this protocol.
        self.is_known = False
        # For consumer groups: members that count, members that reached their target per epoch, and members with
        # tombstones.
        self.members: dict[str, _Member] = {}
        self.settled: dict[int, int] = {}
        self.leaving: dict[str, bool] = {}
        self.count = 0
        self.partitions = 0


@final
class GroupTimeline:
    """Takes records with `replay` and returns events with `take`."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._events: list[GroupEvent] = []
        # A group whose last record is a tombstone. It is removed, unless its next record converts it to the other
        # protocol.
        self._gone = ""

    def take(self) -> list[GroupEvent]:
        """The events since the last call."""
        events = self._events
        self._events = []
        return events

    def replay(
        self, offset: int, time_ms: int, key: Message | None, value: Message | None, cause: Cause | None
    ) -> None:
        """A record of type 2 to 8; others change nothing. `time_ms` is the record's timestamp."""
        if isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
            if isinstance(value, ConsumerGroupCurrentMemberAssignmentValue):
                group = self._consumer(key.group_id)
                self._settle(group)
                _current(group, key.member_id, value)
                self._maybe_finish(key.group_id, group, time_ms, offset)
            else:
                self._leave(key.group_id, key.member_id)
        elif isinstance(key, ConsumerGroupMetadataKey):
            if isinstance(value, ConsumerGroupMetadataValue):
                self._epoch(key.group_id, value.epoch, offset, time_ms, cause)
            else:
                self._tombstone(key.group_id)
        elif isinstance(key, ConsumerGroupTargetAssignmentMetadataKey):
            if isinstance(value, ConsumerGroupTargetAssignmentMetadataValue):
                self._assigned(key.group_id, value.assignment_epoch, offset, time_ms, cause)
        elif isinstance(key, ConsumerGroupMemberMetadataKey):
            if value is None:
                self._leave(key.group_id, key.member_id)
            else:
                group = self._consumer(key.group_id)
                group.leaving.pop(key.member_id, None)
                if key.member_id not in group.members:
                    group.members[key.member_id] = _Member()
        elif isinstance(key, GroupMetadataKey):
            if isinstance(value, GroupMetadataValue):
                self._classic(key.group, value, offset, time_ms, cause)
            else:
                self._tombstone(key.group)

    # ---- groups that are created and removed

    def _tombstone(self, group_id: str) -> None:
        self._forget_gone(group_id)
        if group_id in self._groups:
            self._gone = group_id

    def _forget_gone(self, group_id: str) -> None:
        if self._gone and self._gone != group_id:
            self._groups.pop(self._gone, None)
            self._gone = ""

    def _consumer(self, group_id: str) -> _Group:
        """The group as a consumer group. A classic group keeps its counts as those before its first epoch."""
        self._forget_gone(group_id)
        group = self._groups.get(group_id)
        if group is None or self._gone == group_id or group.protocol != CONSUMER:
            group = self._begin(group_id, CONSUMER, group)
        return group

    def _begin(self, group_id: str, protocol: str, before: _Group | None) -> _Group:
        group = _Group(protocol)
        if before is not None:
            group.count = before.count
            group.partitions = before.partitions
            group.is_known = True
        self._gone = ""
        self._groups[group_id] = group
        return group

    def _leave(self, group_id: str, member_id: str) -> None:
        group = self._groups.get(group_id)
        if group is not None and member_id in group.members:
            group.leaving[member_id] = True

    # ---- consumer groups

    def _settle(self, group: _Group) -> None:
        """Remove the members that had tombstones."""
        if not group.leaving:
            return
        for member_id in group.leaving:
            member = group.members.pop(member_id, None)
            if member is not None:
                _uncount(group, member)
        group.leaving = {}

    def _epoch(self, group_id: str, epoch: int, offset: int, time_ms: int, cause: Cause | None) -> None:
        group = self._consumer(group_id)
        if epoch == group.epoch:
            return
        is_first = group.epoch == NO_EPOCH
        is_lost = is_first and not group.is_known and epoch > FIRST_EPOCH
        if not is_first and epoch > group.epoch + 1:
            is_lost = True
        group.epoch = epoch
        if is_first and is_lost:
            # The log has no earlier records any more.
            group.count = UNKNOWN
            group.partitions = UNKNOWN
        self._add(EPOCH_CHANGED, group_id, group, time_ms, cause, NO_TIME, offset)
        if is_first:
            # The counts of the classic group. Members of the consumer group are counted as their assignments follow.
            group.count = 0
            group.partitions = 0
            for member in group.members.values():
                if member.is_counted:
                    # If compaction removed the epochs between, their records are older than the one of this epoch.
                    group.count += 1
                    group.partitions += member.partitions
        self._settle(group)
        if not group.is_rebalancing:
            group.is_rebalancing = True
            group.began_ms = NO_TIME if is_lost else time_ms
        self._maybe_finish(group_id, group, time_ms, offset)

    def _assigned(self, group_id: str, epoch: int, offset: int, time_ms: int, cause: Cause | None) -> None:
        group = self._consumer(group_id)
        self._settle(group)
        group.assignment_epoch = epoch
        if cause is not None:
            self._add(ASSIGNOR, group_id, group, time_ms, cause, NO_TIME, offset)
        self._maybe_finish(group_id, group, time_ms, offset)

    def _maybe_finish(self, group_id: str, group: _Group, time_ms: int, offset: int) -> None:
        if not group.is_rebalancing:
            return
        size = len(group.members)
        if size:
            if group.assignment_epoch != group.epoch:
                return
            if group.settled.get(group.epoch, 0) + group.settled.get(STATIC_LEAVE_EPOCH, 0) < size:
                return
        began_ms = group.began_ms
        group.is_rebalancing = False
        self._add(REBALANCE_FINISHED, group_id, group, time_ms, None, began_ms, offset)

    # ---- classic groups

    def _classic(
        self, group_id: str, value: GroupMetadataValue, offset: int, time_ms: int, cause: Cause | None
    ) -> None:
        self._forget_gone(group_id)
        group = self._groups.get(group_id)
        if group is None or self._gone == group_id or group.protocol != CLASSIC:
            group = self._begin(group_id, CLASSIC, group)
            if value.generation == 0 and not value.members:
                # A group that only has offsets, or that no member has joined yet.
                group.epoch = 0
                return
            if not group.is_known:
                group.count = UNKNOWN
                group.partitions = UNKNOWN
        if value.generation != group.epoch:
            group.epoch = value.generation
            changed_ms = time_ms
            if cause is not None and 0 <= cause.since_ms < time_ms:
                changed_ms = cause.since_ms
            began_ms = NO_TIME if cause is None else changed_ms
            self._add(EPOCH_CHANGED, group_id, group, changed_ms, cause, NO_TIME, offset)
            group.count = len(value.members)
            group.partitions = _classic_partitions(value)
            self._add(REBALANCE_FINISHED, group_id, group, time_ms, None, began_ms, offset)
        else:
            group.count = len(value.members)
            group.partitions = _classic_partitions(value)

    # ----

    def _add(
        self,
        event: str,
        group_id: str,
        group: _Group,
        time_ms: int,
        cause: Cause | None,
        started_ms: int,
        offset: int,
    ) -> None:
        self._events.append(
            GroupEvent(
                event,
                group_id,
                group.protocol,
                group.epoch,
                time_ms,
                cause,
                group.count,
                group.partitions,
                started_ms,
                offset,
            )
        )


def _current(group: _Group, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue) -> None:
    member = group.members.get(member_id)
    if member is None:
        member = _Member()
        group.members[member_id] = member
    else:
        _uncount(group, member)
    partitions = 0
    for topic in value.assigned_partitions:
        partitions += len(topic.partitions)
    for topic in value.partitions_pending_revocation:
        partitions += len(topic.partitions)
    member.partitions = partitions
    member.is_counted = True
    group.count += 1
    group.partitions += partitions
    if value.state == STABLE or value.member_epoch == STATIC_LEAVE_EPOCH:
        # A static member that has left temporarily does not block the rebalance.
        epoch = value.member_epoch
        member.settled_epoch = epoch
        group.settled[epoch] = group.settled.get(epoch, 0) + 1


def _uncount(group: _Group, member: _Member) -> None:
    if member.is_counted:
        group.count -= 1
        group.partitions -= member.partitions
        member.is_counted = False
    epoch = member.settled_epoch
    if epoch != NO_EPOCH:
        left = group.settled[epoch] - 1
        if left:
            group.settled[epoch] = left
        else:
            del group.settled[epoch]
        member.settled_epoch = NO_EPOCH


def _classic_partitions(value: GroupMetadataValue) -> int:
    """The number of partitions that the leader assigned to consumers; UNKNOWN if it cannot be decoded."""
    if value.protocol_type != CONSUMER_PROTOCOL:
        return UNKNOWN if value.members else 0
    partitions = 0
    try:
        for member in value.members:
            if member.assignment:
                for topic in decode_assignment(member.assignment).assigned_partitions:
                    partitions += len(topic.partitions)
    except DecodeError:
        return UNKNOWN
    return partitions
