"""The timers of members: one table for groups of both protocols, by group id and member id.

Timers are soft state, and replay replaces the objects of hard state: a static member that comes back is removed and put
again within one batch, a group that changes its protocol is built anew. So timers stand in this table and not on those
objects. Replay never deletes from it; it only notes whose records changed (`touch`), and once the whole batch is
replayed, `GroupUpkeep.settle` holds the table against what exists: a member that is in a group has a session timer, one
that is not has no timers.

There is no cancelling. A timer counts while its token stands here.
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
        # The session ends at `deadline_ms`; the armed timer fires at `armed_ms`, which is never later.
        self.deadline_ms = 0
        self.armed_ms = NOT_ARMED
        self.session_token = NO_TOKEN
        # A member of a consumer group must have given up its partitions by then; it counts in `rebalance_epoch` alone.
        self.rebalance_token = NO_TOKEN
        self.rebalance_epoch = 0
        # A member of a consumer group that speaks the classic protocol must have joined again, or asked for its
        # assignment, by then.
        self.join_token = NO_TOKEN
        self.sync_token = NO_TOKEN


@final
class TimerTable:
    def __init__(self) -> None:
        self.by_group: dict[str, dict[str, MemberTimers]] = {}
        self._last_token = 0
        # While logs are loaded nothing has timers yet.
        self.is_live = False
        # Member ids by group id whose records were replayed since the last settling.
        self.touched: dict[str, dict[str, bool]] = {}

    def next_token(self) -> int:
        """Tokens are unique over all groups, so that a timer of a deleted group cannot hit its successor."""
        self._last_token += 1
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
        """Members of the group that have timers, or had some."""
        of_group = self.by_group.get(group_id)
        return [] if of_group is None else list(of_group)

    def group_ids(self) -> list[str]:
        return list(self.by_group)

    def forget(self, group_id: str, member_id: str) -> None:
        """The member is gone: none of its timers counts any more."""
        of_group = self.by_group.get(group_id)
        if of_group is not None:
            of_group.pop(member_id, None)
            if not of_group:
                del self.by_group[group_id]

    def forget_phases(self, group_id: str) -> None:
        """Only sessions outlive a change of the group's protocol."""
        of_group = self.by_group.get(group_id)
        if of_group is not None:
            for timers in of_group.values():
                timers.rebalance_token = NO_TOKEN
                timers.join_token = NO_TOKEN
                timers.sync_token = NO_TOKEN

    # ---- what replay says

    def touch(self, group_id: str, member_id: str) -> None:
        """A record that makes, changes or removes the member was replayed."""
        if self.is_live:
            self.touched.setdefault(group_id, {})[member_id] = True

    def touch_group(self, group_id: str) -> None:
        """A record that makes or removes the whole group was replayed."""
        if self.is_live:
            of_group = self.touched.setdefault(group_id, {})
            for member_id in self.member_ids(group_id):
                of_group[member_id] = True

    # ---- sessions

    def start_session(self, group_id: str, member_id: str, timeout_ms: int, now: Now, out: Outcome) -> None:
        """The member has until then. A timer that fires earlier stays and re-arms itself."""
        timers = self.of_member(group_id, member_id)
        deadline_ms = now.mono_ms + timeout_ms
        timers.deadline_ms = deadline_ms
        if timers.armed_ms == NOT_ARMED or timers.armed_ms > deadline_ms:
            timers.session_token = self.next_token()
            timers.armed_ms = deadline_ms
            out.timers.append(Timer(TIMER_SESSION, group_id, member_id, timers.session_token, deadline_ms))

    def extend_session(self, group_id: str, member_id: str, timeout_ms: int, now_mono_ms: int) -> None:
        """A sign of life from a member whose session timer is armed and need not be armed earlier."""
        timers = self.find(group_id, member_id)
        if timers is not None:
            deadline_ms = now_mono_ms + timeout_ms
            if timers.armed_ms != NOT_ARMED and timers.armed_ms <= deadline_ms:
                timers.deadline_ms = deadline_ms

    def is_session_over(self, timer: Timer, now: Now, out: Outcome) -> bool:
        """A session timer that counts has fired: whether nothing was heard of the member since it was armed."""
        timers = self.of_member(timer.group_id, timer.member_id)
        if now.mono_ms < timers.deadline_ms:
            # There were heartbeats: the timer goes on under its token.
            timers.armed_ms = timers.deadline_ms
            out.timers.append(
                Timer(timer.kind, timer.group_id, timer.member_id, timer.token, timers.deadline_ms)
            )
            return False
        timers.armed_ms = NOT_ARMED
        timers.session_token = NO_TOKEN
        return True

    def is_current(self, timer: Timer) -> bool:
        """Whether the token of a member's timer is still the one that was armed last."""
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

    def clear(self) -> None:
        """Forget everything (test control)."""
        self.by_group.clear()
        self.touched.clear()
