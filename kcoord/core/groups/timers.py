"""The timers of members: one table for groups of both protocols, by group id and member id.

Timers are soft state, but replay replaces the objects that hold hard state: a static member that returns is removed and
added again within one batch, and a group that changes its protocol is a new object. So timers are kept in this table
and not in those objects. Three rules hold:

- Replay never removes a timer. It only notes the members whose records it replayed (`touch`).
- After the whole batch, `GroupUpkeep.settle` compares the noted members with the groups: a member that is in a group
has a session timer, any other has no timers. Doing so earlier would drop the timers of a static member between its
tombstone and its new record.
- Timers are never cancelled. A timer that fires counts only if its token is still in this table or in its group.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.outcome import (
    TIMER_CONSUMER_JOIN,
    TIMER_CONSUMER_REBALANCE,
    TIMER_SESSION,
    Now,
    Outcome,
    Timer,
)

NO_TOKEN: Final = 0
NOT_ARMED: Final = -1


@final
class MemberTimers:
    """The timers of one member."""

    def __init__(self) -> None:
        # The session ends at `deadline_ms`. The armed timer fires at `armed_ms`, which is never later.
        self.deadline_ms = 0
        self.armed_ms = NOT_ARMED
        self.session_token = NO_TOKEN
        # The deadline for revoking partitions, for a member of a consumer group. It only counts in `rebalance_epoch`.
        self.rebalance_token = NO_TOKEN
        self.rebalance_epoch = 0
        # The deadlines for JoinGroup and SyncGroup, for a classic member of a consumer group.
        self.join_token = NO_TOKEN
        self.sync_token = NO_TOKEN


@final
class TimerTable:
    def __init__(self) -> None:
        self.by_group: dict[str, dict[str, MemberTimers]] = {}
        self._last_token = 0
        # False while logs are loaded: no member has timers then.
        self.is_live = False
        # Members whose records were replayed since the last `settle`: group id -> member ids.
        self.touched: dict[str, dict[str, bool]] = {}

    def arm(self, kind: int, group_id: str, member_id: str, deadline_ms: int, out: Outcome) -> int:
        """Arm a timer of a member, or of the whole group (member id ""), and return its token.

        The caller keeps the token; the timer counts while the caller has this one. Tokens are unique over all groups,
        so a timer of a deleted group cannot fire for a new group of the same id.
        """
        self._last_token += 1
        out.timers.append(Timer(kind, group_id, member_id, self._last_token, deadline_ms))
        return self._last_token

    def find(self, group_id: str, member_id: str) -> MemberTimers | None:
        of_group = self.by_group.get(group_id)
        return None if of_group is None else of_group.get(member_id)

    def of_member(self, group_id: str, member_id: str) -> MemberTimers:
        of_group = self.by_group.get(group_id)
        if of_group is None:
            of_group = {}
            self.by_group[group_id] = of_group
        timers = of_group.get(member_id)
        if timers is None:
            timers = MemberTimers()
            of_group[member_id] = timers
        return timers

    def member_ids(self, group_id: str) -> list[str]:
        """Members of the group that have or had timers."""
        of_group = self.by_group.get(group_id)
        return [] if of_group is None else list(of_group)

    def forget(self, group_id: str, member_id: str) -> None:
        """The member was removed: none of its timers applies any longer."""
        of_group = self.by_group.get(group_id)
        if of_group is not None:
            of_group.pop(member_id, None)
            if not of_group:
                del self.by_group[group_id]

    def forget_phases(self, group_id: str) -> None:
        """The group changes its protocol: of all timers only sessions stay valid."""
        of_group = self.by_group.get(group_id)
        if of_group is not None:
            for timers in of_group.values():
                timers.rebalance_token = NO_TOKEN
                timers.join_token = NO_TOKEN
                timers.sync_token = NO_TOKEN

    # ---- noted by replay

    def touch(self, group_id: str, member_id: str) -> None:
        """A record was replayed that creates, changes or removes the member."""
        if self.is_live:
            self.touched.setdefault(group_id, {})[member_id] = True

    def touch_group(self, group_id: str) -> None:
        """A record was replayed that creates or removes the whole group."""
        if self.is_live:
            of_group = self.touched.setdefault(group_id, {})
            for member_id in self.member_ids(group_id):
                of_group[member_id] = True

    # ---- sessions

    def start_session(self, group_id: str, member_id: str, timeout_ms: int, now: Now, out: Outcome) -> None:
        """Start or extend a session. An armed timer that fires earlier stays: it re-arms itself when it fires."""
        timers = self.of_member(group_id, member_id)
        deadline_ms = now.mono_ms + timeout_ms
        timers.deadline_ms = deadline_ms
        if timers.armed_ms == NOT_ARMED or timers.armed_ms > deadline_ms:
            timers.armed_ms = deadline_ms
            timers.session_token = self.arm(TIMER_SESSION, group_id, member_id, deadline_ms, out)

    def extend_session(self, group_id: str, member_id: str, timeout_ms: int, now_mono_ms: int) -> bool:
        """Extend the session of a member whose session timer is armed and fires early enough; whether it does."""
        timers = self.find(group_id, member_id)
        if timers is None:
            return False
        deadline_ms = now_mono_ms + timeout_ms
        if timers.armed_ms == NOT_ARMED or timers.armed_ms > deadline_ms:
            return False
        timers.deadline_ms = deadline_ms
        return True

    def is_session_over(self, timer: Timer, now: Now, out: Outcome) -> bool:
        """The session timer of a member fired: whether the member sent nothing since the session was last extended."""
        timers = self.of_member(timer.group_id, timer.member_id)
        if now.mono_ms < timers.deadline_ms:
            # The session was extended: arm the timer again, with the same token.
            timers.armed_ms = timers.deadline_ms
            out.timers.append(Timer(timer.kind, timer.group_id, timer.member_id, timer.token, timers.deadline_ms))
            return False
        timers.armed_ms = NOT_ARMED
        timers.session_token = NO_TOKEN
        return True

    def is_current(self, timer: Timer) -> bool:
        """Whether the token of a member's timer is the one that was armed last."""
        timers = self.find(timer.group_id, timer.member_id)
        if timers is None:
            return False
        kind = timer.kind
        if kind == TIMER_SESSION:
            return timers.session_token == timer.token
        if kind == TIMER_CONSUMER_REBALANCE:
            return timers.rebalance_token == timer.token
        if kind == TIMER_CONSUMER_JOIN:
            return timers.join_token == timer.token
        return timers.sync_token == timer.token
