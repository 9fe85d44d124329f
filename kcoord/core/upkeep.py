"""Soft state of groups after an outcome was applied or refused.

Applied: all records of the outcome are replayed. `settle` then compares the timers of the members that these records
concern with the groups. It must run after the last record of the batch and before the next event.

Refused: the records exceed what a batch may hold, so none of them is replayed, but the handler has changed soft state
as if they were. `refused` builds the soft state of their groups again from hard state, as after a restart. That is
always allowed, because losing soft state breaks no promise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from kcoord.core.classic.membership import ClassicMembership
from kcoord.core.consumer.membership import ConsumerMembership
from kcoord.core.groups.computation import NO_EPOCH
from kcoord.core.groups.consumer import ConsumerGroup, Rebalance
from kcoord.core.groups.invariants import check_counts
from kcoord.core.groups.store import GroupStore
from kcoord.core.outcome import INFO, Fact, Now, Outcome
from kcoord.protocol.records.group_metadata import GroupMetadataKey
from kcoord.wire.message import Message


@final
class GroupUpkeep:
    """`has_offsets(group_id)` returns whether a group has committed offsets."""

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
        """The records of `out` were replayed: give members the timers they must have, and remove those of all others.

        Handlers arm most timers themselves. A member that still has none gets a full session from now on. Raises
        InvariantBroken if one of their groups contradicts itself.
        """
        timers = self.store.timers
        if not timers.touched:
            return
        touched = timers.touched
        timers.touched = {}
        for group_id, member_ids in touched.items():
            group = self.store.consumer_groups.get(group_id)
            check_counts(group_id, group, self.store.groups.get(group_id))
            self._keep(group_id, list(member_ids), now, out)
            if group is not None and group.rebalance is not None and group.is_settled():
                report_rebalance(group, group.rebalance, now, out)

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
        """None of the records of `refused` was stored. Timers and answers that this causes go into `out`."""
        group_ids: dict[str, bool] = {}
        for record in refused.records:
            if record.key is not None:
                group_id = _group_of(record.key)
                if group_id:
                    group_ids[group_id] = True
        for group_id in group_ids:
            group = self.store.consumer_groups.get(group_id)
            classic = self.store.groups.get(group_id)
            if classic is not None:
                self.classic.start_over(classic, now, out)
                if classic.value is None and not self.has_offsets(group_id):
                    # Only one of the refused records would have made the group exist.
                    self.store.remove(group_id)
            if group is not None:
                self._start_over(group, refused, now, out)
            elif classic is None:
                for member_id in self.store.timers.member_ids(group_id):
                    self.store.timers.forget(group_id, member_id)

    def _start_over(self, group: ConsumerGroup, refused: Outcome, now: Now, out: Outcome) -> None:
        """The handler's computation is lost: the next heartbeat checks everything again."""
        group.forget_builder()
        group.rebalance = None
        group.request_refresh()
        if group.computation is not None:
            group.computation.epoch = NO_EPOCH
        if refused.jobs:
            group.regex_job_running = False
        member_ids = dict.fromkeys(group.members, True)
        for member_id in self.store.timers.member_ids(group.group_id):
            member_ids[member_id] = True
        self._keep(group.group_id, list(member_ids), now, out)


def report_rebalance(group: ConsumerGroup, rebalance: Rebalance, now: Now, out: Outcome) -> None:
    """The line of a rebalance that is over. Its details are in `__group_events`."""
    group.rebalance = None
    if group.epoch < rebalance.epoch:
        return  # the records of its epoch were discarded
    fields: dict[str, object] = {
        "group": group.group_id,
        "epoch": group.epoch,
        "members": len(group.members),
        "cause": rebalance.cause,
        "duration_ms": now.mono_ms - rebalance.began_ms,
    }
    out.facts.append(Fact(INFO, "group_rebalanced", fields))


def _group_of(key: Message) -> str:
    """The group of a group's record; empty for a record of offsets, which has no soft state."""
    if isinstance(key, GroupMetadataKey):
        return key.group
    group_id = getattr(key, "group_id", "")
    return group_id if isinstance(group_id, str) else ""
