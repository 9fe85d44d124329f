"""All groups of this coordinator by id, classic and consumer, and the replay of GroupMetadata records."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from kcoord.core.groups.classic import DEAD, PREPARING_REBALANCE, STABLE, ClassicGroup
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.timers import TimerTable
from kcoord.core.outcome import LogId, MadeGroup, Reply
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from kcoord.wire.message import Message


@final
class EndedGroup:
    """The consumer group whose tombstones were replayed last: they end at `end_offset`; `size` and `was_behind` are
    from before.
    """

    def __init__(self, group_id: str, end_offset: int, size: int, was_behind: bool) -> None:
        self.group_id = group_id
        self.end_offset = end_offset
        self.size = size
        self.was_behind = was_behind


@final
class GroupStore:
    def __init__(self, log_of: Callable[[str], LogId]) -> None:
        self.log_of = log_of
        self.groups: dict[str, ClassicGroup] = {}
        # Groups of the consumer protocol (KIP-848). A group id is in at most one of the two dicts.
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        # The last replayed record of any group. Commit numbers are one sequence over all logs, so an answer that waits
        # for this record waits for all records before it.
        self.last_log: LogId | None = None
        self.last_end_offset = 0
        # Soft state: the timers of all members.
        self.timers = TimerTable()

    def get(self, group_id: str) -> ClassicGroup | None:
        return self.groups.get(group_id)

    def is_known(self, group_id: str) -> bool:
        """Whether a group of this id exists, of either protocol."""
        return group_id in self.groups or group_id in self.consumer_groups

    def get_or_create(self, group_id: str, wall_ms: int = -1) -> ClassicGroup:
        """The group. A new one is Empty and has no protocol type; a group that only has offsets stays so."""
        group = self.groups.get(group_id)
        if group is None:
            group = ClassicGroup(group_id, self.log_of(group_id), wall_ms)
            self.groups[group_id] = group
        return group

    def remove(self, group_id: str) -> None:
        """Remove a group. A timer of it that fires later finds no group, or a new one with other tokens."""
        group = self.groups.pop(group_id, None)
        if group is not None:
            group.transition_to(DEAD, group.current_state_timestamp_ms)
        self.timers.touch_group(group_id)

    def remove_consumer_group(self, group_id: str) -> None:
        """Remove a consumer group."""
        if self.consumer_groups.pop(group_id, None) is not None:
            self.timers.touch_group(group_id)

    def touch(self, group_id: str, end_offset: int) -> None:
        """A record that concerns the group was replayed, if the group exists; `end_offset` is the offset after it."""
        group = self.groups.get(group_id)
        if group is not None:
            self.touch_classic(group, end_offset)
            return
        consumer_group = self.consumer_groups.get(group_id)
        if consumer_group is not None:
            consumer_group.end_offset = end_offset
            self.last_log = consumer_group.log
        else:
            # The log follows from the hash of the group id.
            self.last_log = self.log_of(group_id)
        self.last_end_offset = end_offset

    def touch_classic(self, group: ClassicGroup, end_offset: int) -> None:
        """The same, for a group that needs no lookup."""
        group.end_offset = end_offset
        self.last_log = group.log
        self.last_end_offset = end_offset

    def touch_transactions(self, group_id: str, end_offset: int) -> None:
        """A record of a transaction or a marker was replayed that concerns offsets of the group."""
        group = self.groups.get(group_id)
        consumer_group = self.consumer_groups.get(group_id)
        if group is not None:
            group.transactions_end = end_offset
            self.last_log = group.log
        elif consumer_group is not None:
            consumer_group.transactions_end = end_offset
            self.last_log = consumer_group.log
        else:
            self.last_log = self.log_of(group_id)
        self.last_end_offset = end_offset

    def raise_end(self, group_id: str, end_offset: int) -> None:
        """An earlier record, which ends at `end_offset`, changes the group only now."""
        group = self.groups.get(group_id)
        consumer_group = self.consumer_groups.get(group_id)
        if group is not None:
            group.end_offset = max(group.end_offset, end_offset)
        elif consumer_group is not None:
            consumer_group.end_offset = max(consumer_group.end_offset, end_offset)

    def touch_member(self, group: ClassicGroup, member_id: str, mono_ms: int) -> None:
        """A commit counts like a heartbeat while members work or are about to rejoin."""
        if group.state != STABLE and group.state != PREPARING_REBALANCE:
            return
        member = group.members.get(member_id)
        if member is not None:
            self.timers.extend_session(group.group_id, member_id, member.session_timeout_ms, mono_ms)

    def replay_group_metadata(
        self,
        key: GroupMetadataKey,
        value: GroupMetadataValue | None,
        offset: int,
        made: MadeGroup | None = None,
        ended: EndedGroup | None = None,
    ) -> None:
        """Replay one record of a classic group. Handlers have changed the soft state already, so it stays as it is.

        `made` is that of the record's outcome, and `ended` the consumer group whose tombstones were replayed last.
        """
        if value is None:
            group = self.groups.get(key.group)
            if group is not None:
                self.last_log = group.log
                self.last_end_offset = offset + 1
            self.remove(key.group)
            return
        if isinstance(made, ClassicGroup) and made.group_id == key.group and key.group not in self.groups:
            self.groups[key.group] = made
            for member_id in made.members:
                self.timers.touch(key.group, member_id)
        # The consumer group was normally removed before, unless its tombstones were lost.
        self.remove_consumer_group(key.group)
        group = self.get_or_create(key.group)
        group.value = value
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
        """One line per group that has a record, sorted by id. Equal for equal logs."""
        lines: list[str] = []
        for group_id in sorted(self.groups):
            group = self.groups[group_id]
            if group.value is not None:
                lines.append(f"group {group_id!r} {group.end_offset} {group.value!r}")
        return lines
