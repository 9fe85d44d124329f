"""What must hold of timers after every event: who has to have one has exactly one armed, and nobody else has any."""

from __future__ import annotations

from collections.abc import Iterable

from kcoord.core.groups.classic import COMPLETING_REBALANCE, PREPARING_REBALANCE, STABLE, ClassicGroup
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.members import STATIC_LEAVE_EPOCH, UNREVOKED_PARTITIONS
from kcoord.core.groups.store import GroupStore
from kcoord.core.groups.timers import NO_TOKEN, NOT_ARMED, MemberTimers
from kcoord.core.outcome import (
    TIMER_CONSUMER_JOIN,
    TIMER_CONSUMER_REBALANCE,
    TIMER_CONSUMER_SYNC,
    TIMER_INITIAL_REBALANCE,
    TIMER_PENDING_MEMBER,
    TIMER_REBALANCE,
    TIMER_SESSION,
    TIMER_SYNC,
    Timer,
)

# Kind, group, member and token of a timer.
Key = tuple[int, str, str, int]


def timer_problems(store: GroupStore, armed: Iterable[Timer]) -> list[str]:
    """What is wrong with the timers of members and groups, if anything. `armed`: all timers that will fire."""
    counts: dict[Key, list[int]] = {}
    for timer in armed:
        key = (timer.kind, timer.group_id, timer.member_id, timer.token)
        counts.setdefault(key, []).append(timer.deadline_ms)
    check = _Check(store, counts)
    for group in store.consumer_groups.values():
        check.consumer_group(group)
    for classic in store.groups.values():
        check.classic_group(classic)
    check.nobody_else()
    return check.problems


class _Check:
    def __init__(self, store: GroupStore, armed: dict[Key, list[int]]) -> None:
        self.store = store
        self.armed = armed
        self.problems: list[str] = []

    def _deadline(self, kind: int, group_id: str, member_id: str, token: int, what: str) -> int | None:
        """When the timer fires; a problem if it is not armed exactly once."""
        deadlines = self.armed.get((kind, group_id, member_id, token), [])
        if len(deadlines) != 1:
            self.problems.append(f"{group_id} {member_id}: {what} is armed {len(deadlines)} times")
            return None
        return deadlines[0]

    def _session(self, group_id: str, member_id: str, timers: MemberTimers | None, may_be_off: bool) -> None:
        if timers is None or timers.armed_ms == NOT_ARMED:
            if not may_be_off:
                self.problems.append(f"{group_id} {member_id}: no session timer")
            return
        deadline_ms = self._deadline(TIMER_SESSION, group_id, member_id, timers.session_token, "the session")
        if deadline_ms is not None and not deadline_ms == timers.armed_ms <= timers.deadline_ms:
            self.problems.append(
                f"{group_id} {member_id}: the session fires at {deadline_ms}, stands at {timers.armed_ms}, "
                f"and ends at {timers.deadline_ms}"
            )

    def consumer_group(self, group: ConsumerGroup) -> None:
        for member_id, member in group.members.items():
            timers = self.store.timers.find(group.group_id, member_id)
            self._session(group.group_id, member_id, timers, False)
            if timers is None:
                continue
            is_away = member.member_epoch == STATIC_LEAVE_EPOCH
            must_revoke = member.classic is None and member.state == UNREVOKED_PARTITIONS and not is_away
            if must_revoke != (timers.rebalance_token != NO_TOKEN):
                self.problems.append(f"{group.group_id} {member_id}: revokes is {must_revoke}, its timer is not")
            if must_revoke and timers.rebalance_epoch != member.member_epoch:
                self.problems.append(f"{group.group_id} {member_id}: the rebalance timer is of another epoch")
            for kind, token, what in (
                (TIMER_CONSUMER_REBALANCE, timers.rebalance_token, "the rebalance"),
                (TIMER_CONSUMER_JOIN, timers.join_token, "the join"),
                (TIMER_CONSUMER_SYNC, timers.sync_token, "the sync"),
            ):
                if token != NO_TOKEN:
                    self._deadline(kind, group.group_id, member_id, token, what)

    def classic_group(self, group: ClassicGroup) -> None:
        group_id = group.group_id
        for member_id, member in group.members.items():
            # One that waits for an answer cannot beat; its session may be over until it is answered.
            waits = not member.is_new and (member.is_awaiting_join() or member.is_awaiting_sync())
            self._session(group_id, member_id, self.store.timers.find(group_id, member_id), waits)
        for member_id, token in group.pending_members.items():
            self._deadline(TIMER_PENDING_MEMBER, group_id, member_id, token, "the pending member")
        if group.state == PREPARING_REBALANCE:
            kinds = (TIMER_REBALANCE, TIMER_INITIAL_REBALANCE)
            if sum((kind, group_id, "", group.join_token) in self.armed for kind in kinds) != 1:
                self.problems.append(f"{group_id}: it rebalances without a timer")
        if group.state in (COMPLETING_REBALANCE, STABLE) and group.pending_sync:
            self._deadline(TIMER_SYNC, group_id, "", group.sync_token, "the sync")

    def nobody_else(self) -> None:
        for group_id in self.store.timers.by_group:
            members: dict[str, object] = {}
            if group_id in self.store.consumer_groups:
                members.update(self.store.consumer_groups[group_id].members)
            if group_id in self.store.groups:
                members.update(self.store.groups[group_id].members)
            for member_id in self.store.timers.member_ids(group_id):
                if member_id not in members:
                    self.problems.append(f"{group_id} {member_id}: timers of a member that is gone")
