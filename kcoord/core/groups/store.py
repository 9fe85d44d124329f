"""All groups of this coordinator, by id: what the records of type GroupMetadata say, and the live groups on top."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from kcoord.core.config import CoreConfig
from kcoord.core.groups.classic import DEAD, PREPARING_REBALANCE, STABLE, ClassicGroup
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.timers import TimerTable
from kcoord.core.outcome import LogId, Reply
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from kcoord.wire.message import Message


@final
class EndedGroup:
    """The consumer group whose tombstones were replayed last, up to `end_offset`, and what it was before them."""

    def __init__(self, group_id: str, end_offset: int, size: int, was_behind: bool) -> None:
        self.group_id = group_id
        self.end_offset = end_offset
        self.size = size
        self.was_behind = was_behind


@final
class GroupStore:
    def __init__(self, config: CoreConfig, log_of: Callable[[str], LogId]) -> None:
        self.config = config
        self.log_of = log_of
        self.groups: dict[str, ClassicGroup] = {}
        # Groups of the new protocol (KIP-848). A group id is in one of the two.
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        # Groups that a handler made and whose records are about to be replayed: replay goes on with these very objects.
        self.making: dict[str, ConsumerGroup] = {}
        self.making_classic: dict[str, ClassicGroup] = {}
        self.ended: EndedGroup | None = None
        # The last replayed record of any group. Commits are one sequence over all logs, so an answer that waits for
        # this one waits for all records before it.
        self.last_log: LogId | None = None
        self.last_end_offset = 0
        # Soft: the timers of all members.
        self.timers = TimerTable()

    def get(self, group_id: str) -> ClassicGroup | None:
        return self.groups.get(group_id)

    def is_known(self, group_id: str) -> bool:
        """Whether there is a group of this id, of either kind."""
        return group_id in self.groups or group_id in self.consumer_groups

    def get_or_create(self, group_id: str, wall_ms: int = -1) -> ClassicGroup:
        """The group; a new one is Empty and of no protocol type, which is what a group of offsets alone stays."""
        group = self.groups.get(group_id)
        if group is None:
            group = ClassicGroup(group_id, self.log_of(group_id), wall_ms)
            self.groups[group_id] = group
        return group

    def remove(self, group_id: str) -> None:
        """Forget a group. Timers of it that still fire find nothing, or a successor with other tokens."""
        group = self.groups.pop(group_id, None)
        if group is not None:
            group.state = DEAD
        self.timers.touch_group(group_id)

    def remove_consumer_group(self, group_id: str) -> None:
        """Forget a group of the new protocol."""
        if self.consumer_groups.pop(group_id, None) is not None:
            self.timers.touch_group(group_id)

    def touch(self, group_id: str, end_offset: int) -> None:
        """A record that concerns the group, if there is one, was replayed; `end_offset` is where it ends."""
        group = self.groups.get(group_id)
        consumer_group = self.consumer_groups.get(group_id)
        if group is not None:
            group.end_offset = end_offset
            self.last_log = group.log
        elif consumer_group is not None:
            consumer_group.end_offset = end_offset
            self.last_log = consumer_group.log
        else:
            # Which log it is takes a hash of the group id.
            self.last_log = self.log_of(group_id)
        self.last_end_offset = end_offset

    def next_token(self) -> int:
        """A token for a timer, unique over all groups."""
        return self.timers.next_token()

    def touch_member(self, group: ClassicGroup, member_id: str, mono_ms: int) -> None:
        """A commit counts as a sign of life in the states where members work or are about to rejoin."""
        if group.state != STABLE and group.state != PREPARING_REBALANCE:
            return
        member = group.members.get(member_id)
        if member is not None:
            self.timers.extend_session(group.group_id, member_id, member.session_timeout_ms, mono_ms)

    def replay_group_metadata(
        self, key: GroupMetadataKey, value: GroupMetadataValue | None, offset: int
    ) -> None:
        """Take over one record of the log. Live handlers have changed the soft part already; it is not touched."""
        if value is None:
            group = self.groups.get(key.group)
            if group is not None:
                self.last_log = group.log
                self.last_end_offset = offset + 1
            self.remove(key.group)
            return
        made = self.making_classic.pop(key.group, None)
        if made is not None and key.group not in self.groups:
            self.groups[key.group] = made
            for member_id in made.members:
                self.timers.touch(key.group, member_id)
        # Usually it is gone already; a log may have lost its tombstones.
        self.remove_consumer_group(key.group)
        group = self.get_or_create(key.group)
        group.value = value
        ended = self.ended
        group.is_converted_unbalanced = (
            ended is not None
            and ended.end_offset == offset
            and ended.group_id == key.group
            and (ended.was_behind or len(value.members) < ended.size)
        )
        group.end_offset = offset + 1
        self.last_log = group.log
        self.last_end_offset = offset + 1

    def reply_after_all(self, request_id: int, response: Message) -> Reply:
        """An answer that may show any group: it waits until all replayed records of groups are durable."""
        return Reply(request_id, response, self.last_log, self.last_end_offset)

    def hard_state(self) -> list[str]:
        """One line per group with a record, in order of group id: equal for equal logs."""
        lines: list[str] = []
        for group_id in sorted(self.groups):
            group = self.groups[group_id]
            if group.value is not None:
                lines.append(f"group {group_id!r} {group.end_offset} {group.value!r}")
        return lines
