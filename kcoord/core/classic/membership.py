"""Heartbeat, LeaveGroup and timers of classic groups, and their start-up."""

from __future__ import annotations

from typing import final

from kcoord.core.cause import (
    GROUP_TOO_LARGE,
    MEMBER_LEFT,
    PROTOCOL_DOWNGRADED,
    SESSION_TIMEOUT,
    SYNC_TIMEOUT,
    Cause,
)
from kcoord.core.classic.rebalance import ClassicRebalance, answer_join, answer_sync, client_reason
from kcoord.core.config import CoreConfig
from kcoord.core.groups.classic import (
    COMPLETING_REBALANCE,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroup,
    ClassicMember,
)
from kcoord.core.groups.leave import LeaveGroupStep
from kcoord.core.groups.store import GroupStore
from kcoord.core.groups.timers import NOT_ARMED
from kcoord.core.outcome import (
    DEBUG,
    INFO,
    TIMER_INITIAL_REBALANCE,
    TIMER_PENDING_MEMBER,
    TIMER_REBALANCE,
    TIMER_SESSION,
    TIMER_SYNC,
    Fact,
    Now,
    Outcome,
    Request,
    Timer,
)
from kcoord.protocol import errors
from kcoord.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcoord.protocol.leave_group import MemberIdentity


@final
class ClassicMembership:
    def __init__(self, config: CoreConfig, store: GroupStore, rebalance: ClassicRebalance) -> None:
        self.config = config
        self.store = store
        self.rebalance = rebalance

    # ---- Heartbeat

    def handle_heartbeat(self, request: Request, body: HeartbeatRequest, now: Now) -> Outcome:
        out = Outcome()
        out.reply(request.request_id, HeartbeatResponse(error_code=self._heartbeat(body, now, out)))
        return out

    def _heartbeat(self, body: HeartbeatRequest, now: Now, out: Outcome) -> int:
        if body.group_id == "":
            return errors.INVALID_GROUP_ID
        group = self.store.groups.get(body.group_id)
        if group is None:
            return errors.UNKNOWN_MEMBER_ID
        error = group.validate_member(body.member_id, body.group_instance_id)
        if error != errors.NONE:
            return error
        if body.generation_id != group.generation_id:
            return errors.ILLEGAL_GENERATION
        member = group.members[body.member_id]
        self.store.timers.start_session(group.group_id, member.member_id, member.session_timeout_ms, now, out)
        # Members of the current generation may send heartbeats before they have their assignment.
        return errors.REBALANCE_IN_PROGRESS if group.state == PREPARING_REBALANCE else errors.NONE

    # ---- LeaveGroup

    def leave(self, step: LeaveGroupStep, share: list[MemberIdentity], now: Now, out: Outcome) -> None:
        """Remove those of these members that are in the group."""
        group = self.store.get(step.group_id)
        gone = 0
        for identity in share:
            error = errors.UNKNOWN_MEMBER_ID
            if group is not None:
                error = self._leave(group, identity, out)
            if error == errors.NONE:
                gone += 1
            step.add(identity, error)
        if group is None or gone == 0:
            return
        group.elect_leader()
        if group.state == STABLE or group.state == COMPLETING_REBALANCE:
            reason = f"{gone} members left; client reason: {client_reason(share[0].reason)}"
            self.rebalance.prepare_or_complete(group, reason, now, out, _cause_of_leaving(share, gone))
        elif group.state == PREPARING_REBALANCE:
            if step.is_first or group.cause is None:
                group.note_cause(_cause_of_leaving(share, gone))
            self.rebalance.maybe_complete_join(group, now, out)

    def _leave(self, group: ClassicGroup, identity: MemberIdentity, out: Outcome) -> int:
        """Remove one member. Admin clients name static members by instance id alone (KIP-345).

        The caller elects the leader once all have left.
        """
        member_id = identity.member_id
        instance_id = identity.group_instance_id
        if member_id == "":
            existing = group.static_members.get(instance_id) if instance_id is not None else None
            if existing is None:
                return errors.UNKNOWN_MEMBER_ID
            member_id = existing
        elif member_id in group.pending_members:
            group.remove_member(member_id)
            return errors.NONE
        else:
            error = group.validate_member(member_id, instance_id)
            if error != errors.NONE:
                return error
        member = group.members[member_id]
        out.facts.append(
            Fact(
                DEBUG,
                "group_member_left",
                {
                    "group": group.group_id,
                    "member": member_id,
                    "instance": member.group_instance_id,
                    "reason": client_reason(identity.reason),
                },
            )
        )
        self.rebalance.remove_member(group, member, out, False)
        return errors.NONE

    # ---- timers

    def handle_timer(self, timer: Timer, now: Now) -> Outcome:
        """A timer fired. It counts only if its token is the one that was armed last."""
        out = Outcome()
        group = self.store.get(timer.group_id)
        if group is None:
            return out
        kind = timer.kind
        if kind == TIMER_SESSION:
            if self.store.timers.is_current(timer):
                self._session_timer(group, timer, now, out)
        elif kind == TIMER_PENDING_MEMBER:
            if group.pending_members.get(timer.member_id, 0) == timer.token:
                fields: dict[str, object] = {"group": group.group_id, "member": timer.member_id}
                out.facts.append(Fact(DEBUG, "group_pending_member_expired", fields))
                self.rebalance.remove_pending_member(group, timer.member_id, now, out)
        elif kind == TIMER_REBALANCE:
            if group.join_token == timer.token:
                self.rebalance.complete_join(group, now, out)
        elif kind == TIMER_INITIAL_REBALANCE:
            if group.join_token == timer.token:
                self.rebalance.initial_delay_over(group, now, out)
        elif kind == TIMER_SYNC:
            if group.sync_token == timer.token:
                self._sync_timer(group, now, out)
        return out

    def still_counts(self, timer: Timer) -> bool:
        """Whether the token of a group's timer is the one that was armed last."""
        group = self.store.get(timer.group_id)
        if group is None:
            return False
        kind = timer.kind
        if kind == TIMER_PENDING_MEMBER:
            return group.pending_members.get(timer.member_id, 0) == timer.token
        if kind == TIMER_SYNC:
            return group.sync_token == timer.token
        return group.join_token == timer.token

    def _session_timer(self, group: ClassicGroup, timer: Timer, now: Now, out: Outcome) -> None:
        member = group.members.get(timer.member_id)
        if member is None or not self.store.timers.is_session_over(timer, now, out):
            return
        if not member.is_new and (member.is_awaiting_join() or member.is_awaiting_sync()):
            # The member waits for an answer, so it cannot send heartbeats. The answer starts a new session.
            return
        out.facts.append(
            Fact(
                INFO,
                "group_member_expired",
                {
                    "group": group.group_id,
                    "member": member.member_id,
                    "client": member.client_id,
                    "host": member.client_host,
                    "session_timeout_ms": member.session_timeout_ms,
                },
            )
        )
        reason = f"session of member {member.member_id} expired"
        detail = f"no heartbeat within {member.session_timeout_ms} ms"
        cause = Cause(SESSION_TIMEOUT, member.member_id, detail)
        self.rebalance.remove_failed_member(group, member, reason, cause, now, out)

    def _sync_timer(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        """Remove members that joined and never sent SyncGroup, so that the others can continue (KAFKA-12890)."""
        if group.state != COMPLETING_REBALANCE and group.state != STABLE:
            return
        silent = list(group.pending_sync)
        if not silent:
            return
        for member_id in silent:
            member = group.members.get(member_id)
            if member is not None:
                self.rebalance.remove_member(group, member, out, False)
        group.elect_leader()
        out.facts.append(
            Fact(
                INFO,
                "group_members_did_not_sync",
                {"group": group.group_id, "count": len(silent), "first": silent[0]},
            )
        )
        reason = f"{len(silent)} members did not sync in time"
        cause = Cause(SYNC_TIMEOUT, silent[0], reason)
        self.rebalance.prepare_rebalance(group, reason, now, out, cause)

    # ---- start-up

    def loaded(self, now: Now, out: Outcome) -> None:
        """The log was replayed: build the live groups. Every member gets a full session."""
        members = 0
        for group in self.store.groups.values():
            self._revive(group, now, out)
            members += len(group.members)
        if self.store.groups:
            out.facts.append(Fact(INFO, "groups_loaded", {"groups": len(self.store.groups), "members": members}))

    def _revive(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        """Build the live group from its hard state."""
        group.build_live()
        for member in group.members.values():
            self.store.timers.start_session(group.group_id, member.member_id, member.session_timeout_ms, now, out)
        if len(group.members) > self.config.group_max_size:
            # group.max.size was lowered. A rebalance lets the members commit first; then the last ones to rejoin are
            # refused.
            reason = "the group is larger than allowed"
            self.rebalance.prepare_rebalance(group, reason, now, out, Cause(GROUP_TOO_LARGE, "", reason))
        elif group.members and group.is_converted_unbalanced:
            # The rebalance that the conversion started is not in the log, and neither is the member whose leaving
            # caused it.
            reason = "the group was downgraded shortly before a restart"
            cause = Cause(PROTOCOL_DOWNGRADED, "", reason)
            self.rebalance.prepare_rebalance(group, reason, now, out, cause)

    def start_over(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        """Records of the group were refused: build the live group again from hard state, as after a restart.

        Parked requests are answered with a retriable error. Soft state may be lost at any moment, so this breaks no
        promise.
        """
        self._unload(group, errors.COORDINATOR_NOT_AVAILABLE, out)
        if group.value is not None:
            self._revive(group, now, out)

    def keep_timers(self, group: ClassicGroup, member: ClassicMember, now: Now, out: Outcome) -> None:
        """Give the member a session, unless it waits for an answer that starts one."""
        timers = self.store.timers.of_member(group.group_id, member.member_id)
        waits = not member.is_new and (member.is_awaiting_join() or member.is_awaiting_sync())
        if timers.armed_ms == NOT_ARMED and not waits:
            self.store.timers.start_session(group.group_id, member.member_id, member.session_timeout_ms, now, out)

    def _unload(self, group: ClassicGroup, error_code: int, out: Outcome) -> None:
        for member in group.members.values():
            answer_join(group, member, error_code, out, member.member_id)
            answer_sync(member, error_code, out)
        group.clear_live()
        for member_id in self.store.timers.member_ids(group.group_id):
            self.store.timers.forget(group.group_id, member_id)


def _cause_of_leaving(leaving: list[MemberIdentity], gone: int) -> Cause:
    first = leaving[0]
    member_id = first.member_id or first.group_instance_id or ""
    reason = client_reason(first.reason)
    others = f"{gone} members; " if gone > 1 else ""
    return Cause(MEMBER_LEFT, member_id, f"{others}client reason: {reason}")
