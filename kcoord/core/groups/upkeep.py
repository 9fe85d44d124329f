"""Soft state of groups after an outcome was applied or refused.

After the records of an outcome are replayed, the timers of the members that they are about are held against what
exists. When an outcome is refused because its records are more than a batch may hold, none of them is replayed, but its
handler has changed soft state as if they were. Then the group's soft state is made anew from its hard state, as after a
restart. That is always allowed, because losing soft state at any moment is harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from kcoord.core.classic.membership import ClassicMembership
from kcoord.core.client_assignors.computation import NO_EPOCH
from kcoord.core.consumer.membership import ConsumerMembership
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.store import GroupStore
from kcoord.core.outcome import Now, Outcome
from kcoord.protocol.records.group_metadata import GroupMetadataKey
from kcoord.wire.message import Message


@final
class GroupUpkeep:
    """`has_offsets(group_id)` says whether a group has committed offsets."""

    def __init__(
        self,
        store: GroupStore,
        classic: ClassicMembership,
        consumers: ConsumerMembership,
        has_offsets: Callable[[str], bool],
    ) -> None:
        self.store = store
        self.classic = classic
        self.consumers = consumers
        self.has_offsets = has_offsets

    def settle(self, now: Now, out: Outcome) -> None:
        """The records of `out` were replayed: members have the timers they must have, and nobody else has any.

        Handlers arm timers themselves. What is missing all the same gets a whole session from now on.
        """
        timers = self.store.timers
        if not timers.touched:
            return
        touched = timers.touched
        timers.touched = {}
        for group_id, member_ids in touched.items():
            self._keep(group_id, list(member_ids), now, out)

    def _keep(self, group_id: str, member_ids: list[str], now: Now, out: Outcome) -> None:
        group = self.store.consumer_groups.get(group_id)
        classic = self.store.groups.get(group_id)
        for member_id in member_ids:
            member = None if group is None else group.members.get(member_id)
            classic_member = None if classic is None else classic.members.get(member_id)
            if group is not None and member is not None:
                self.consumers.keep_timers(group, member, now, out)
            elif classic is not None and classic_member is not None:
                self.classic.keep_timers(classic, classic_member, now, out)
            else:
                self.store.timers.forget(group_id, member_id)

    def refused(self, refused: Outcome, now: Now, out: Outcome) -> None:
        """None of the records of `refused` was stored. What is to be armed and answered now goes into `out`."""
        group_ids: dict[str, bool] = {}
        for record in refused.records:
            if record.key is not None:
                group_id = _group_of(record.key)
                if group_id:
                    group_ids[group_id] = True
        for group_id in group_ids:
            self.store.making.pop(group_id, None)
            self.store.making_classic.pop(group_id, None)
            group = self.store.consumer_groups.get(group_id)
            classic = self.store.groups.get(group_id)
            if classic is not None:
                self.classic.start_over(classic, now, out)
                if classic.value is None and not self.has_offsets(group_id):
                    # The record that would have made it is one of those.
                    self.store.remove(group_id)
            if group is not None:
                self._start_over(group, refused, now, out)
            elif classic is None:
                for member_id in self.store.timers.member_ids(group_id):
                    self.store.timers.forget(group_id, member_id)

    def _start_over(self, group: ConsumerGroup, refused: Outcome, now: Now, out: Outcome) -> None:
        """What the handler computed is nowhere: the next heartbeat looks at everything again."""
        group.forget_builder()
        group.request_refresh()
        if group.computation is not None:
            group.computation.epoch = NO_EPOCH
        if refused.jobs:
            group.regex_job_running = False
        member_ids = dict.fromkeys(group.members, True)
        for member_id in self.store.timers.member_ids(group.group_id):
            member_ids[member_id] = True
        self._keep(group.group_id, list(member_ids), now, out)


def _group_of(key: Message) -> str:
    """The group that a record of groups is about; empty for a record of offsets, which change no soft state."""
    if isinstance(key, GroupMetadataKey):
        return key.group
    group_id = getattr(key, "group_id", "")
    return group_id if isinstance(group_id, str) else ""
