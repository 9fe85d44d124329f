"""The join phase of classic groups: how a rebalance starts, which members it waits for, and how it ends.

    Empty                first member joins                      -> PreparingRebalance
    PreparingRebalance   all joined, or time is up               -> CompletingRebalance
    PreparingRebalance   no member is left                       -> Empty
    CompletingRebalance  the leader sends the assignment         -> Stable
    CompletingRebalance  a member joins anew, leaves or fails    -> PreparingRebalance
    Stable               a member joins anew, leaves or fails    -> PreparingRebalance

All of this is soft state. Only a group that becomes Empty writes its record here; a group that becomes Stable writes it
in `sync.py`.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.cause import JOIN_TIMEOUT, NO_TIME, REBALANCED, Cause
from kcoord.core.config import CoreConfig
from kcoord.core.groups.classic import (
    COMPLETING_REBALANCE,
    EMPTY,
    NO_REQUEST,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroup,
    ClassicMember,
)
from kcoord.core.groups.store import GroupStore
from kcoord.core.groups.timers import NO_TOKEN
from kcoord.core.outcome import (
    DEBUG,
    INFO,
    TIMER_INITIAL_REBALANCE,
    TIMER_REBALANCE,
    TIMER_SYNC,
    Fact,
    Now,
    Outcome,
    Reply,
)
from kcoord.protocol import errors
from kcoord.protocol.join_group import JoinGroupResponse, JoinGroupResponseMember
from kcoord.protocol.records.group_metadata import GroupMetadataKey
from kcoord.protocol.sync_group import SyncGroupResponse

# Reasons come from clients (KIP-800) and go into the server's log.
REASON_CHARS_MAX: Final = 255

# The shortest delay before a join phase without joined members is checked again. Clients may choose a rebalance timeout
# of 0, and that must not make a group loop.
RETRY_MS_MIN: Final = 1000


def client_reason(reason: str | None) -> str:
    return reason[:REASON_CHARS_MAX] if reason else "not provided"


def join_error(version: int, member_id: str, error_code: int) -> JoinGroupResponse:
    """A JoinGroup response with an error and no data of the group."""
    return JoinGroupResponse(
        error_code=error_code,
        generation_id=-1,
        protocol_type=None,
        protocol_name=None if version >= 7 else "",
        leader="",
        skip_assignment=False,
        member_id=member_id,
        members=[],
    )


def join_success(
    group: ClassicGroup,
    version: int,
    member_id: str,
    leader_id: str | None,
    members: list[JoinGroupResponseMember],
    skip_assignment: bool,
) -> JoinGroupResponse:
    protocol_name = group.protocol_name
    if version < 7 and protocol_name is None:
        protocol_name = ""
    elif version >= 7 and protocol_name == "":
        protocol_name = None
    return JoinGroupResponse(
        error_code=errors.NONE,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=protocol_name,
        leader=leader_id if leader_id is not None else "",
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=members,
    )


def members_for_leader(group: ClassicGroup) -> list[JoinGroupResponseMember]:
    members: list[JoinGroupResponseMember] = []
    for member in group.members.values():
        members.append(
            JoinGroupResponseMember(member.member_id, member.group_instance_id, member.metadata(group.protocol_name))
        )
    return members


def answer_join(group: ClassicGroup, member: ClassicMember, error_code: int, out: Outcome, member_id: str) -> None:
    """Answer the parked JoinGroup with an error, if there is one."""
    version = member.join_version
    request_id = group.unpark_join(member)
    if request_id != NO_REQUEST:
        out.reply(request_id, join_error(version, member_id, error_code))


def answer_sync(member: ClassicMember, error_code: int, out: Outcome) -> None:
    """Answer the parked SyncGroup with an error, if there is one."""
    request_id = member.sync_request_id
    if request_id != NO_REQUEST:
        member.sync_request_id = NO_REQUEST
        out.reply(request_id, SyncGroupResponse(error_code=error_code, assignment=b""))


def rebalanced(group: ClassicGroup, cause: Cause | None, now: Now) -> Fact:
    """The line of a rebalance that ends with this generation. Its details are in `__group_events`."""
    fields: dict[str, object] = {
        "group": group.group_id,
        "generation": group.generation_id,
        "members": len(group.members),
    }
    if cause is not None:
        fields["cause"] = cause.kind
        if cause.since_ms != NO_TIME:
            duration_ms = now.wall_ms - cause.since_ms
            fields["duration_ms"] = duration_ms if duration_ms > 0 else 0
    return Fact(INFO, "group_rebalanced", fields)


@final
class ClassicRebalance:
    def __init__(self, config: CoreConfig, store: GroupStore) -> None:
        self.config = config
        self.store = store

    # ---- the join phase

    def prepare_or_complete(
        self, group: ClassicGroup, reason: str, now: Now, out: Outcome, cause: Cause | None = None
    ) -> None:
        """Something changed: start a rebalance, or complete the running one if it waited for this."""
        if group.can_rebalance():
            self.prepare_rebalance(group, reason, now, out, cause)
        else:
            if cause is not None:
                group.note_cause(cause)
            self.maybe_complete_join(group, now, out)

    def prepare_rebalance(
        self, group: ClassicGroup, reason: str, now: Now, out: Outcome, cause: Cause | None = None
    ) -> None:
        """Start a rebalance. `reason` goes into the server's log, `cause` into the record of the new generation."""
        if cause is None:
            cause = Cause(REBALANCED, "", reason)
        if group.cause is None:
            cause.since_ms = now.wall_ms
        group.note_cause(cause)
        if group.state == COMPLETING_REBALANCE:
            # This generation will have no assignment: answer the parked SyncGroups before the state changes.
            self.fail_sync(group, errors.REBALANCE_IN_PROGRESS, now, out)
        # The sync timer of the generation that ends must not remove members of the next one.
        self.cancel_sync_timer(group)
        is_initial = group.state == EMPTY
        group.transition_to(PREPARING_REBALANCE, now.wall_ms)
        out.facts.append(
            Fact(
                DEBUG,
                "group_rebalance_started",
                {
                    "group": group.group_id,
                    "generation": group.generation_id,
                    "members": len(group.members),
                    "reason": reason,
                    "cause": cause.kind,
                },
            )
        )
        if is_initial:
            delay_ms = self.config.group_initial_rebalance_delay_ms
            remaining_ms = group.rebalance_timeout_ms() - delay_ms
            self._arm_initial(group, delay_ms, remaining_ms if remaining_ms > 0 else 0, now, out)
        elif group.has_all_members_joined():
            self.complete_join(group, now, out)
        else:
            self._arm_rebalance(group, 0, now, out)

    def maybe_complete_join(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        """End the join phase if all members have joined. A new group always waits for its initial delay."""
        if group.state == PREPARING_REBALANCE and group.previous_state != EMPTY and group.has_all_members_joined():
            self.complete_join(group, now, out)

    def complete_join(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        """End the join phase with the members that joined. Static members stay even without rejoining (KIP-345)."""
        group.join_token = NO_TOKEN
        # Absent members leave first: leader, protocol and generation follow from the members that stay.
        self._remove_absent_dynamic_members(group, out)
        if group.members and not self._elect_joined_leader(group, out):
            # Only static members that did not rejoin are left: wait until they do, or until their sessions expire.
            self._arm_rebalance(group, RETRY_MS_MIN, now, out)
            return
        group.next_generation(now.wall_ms)
        if group.state == EMPTY:
            cause = group.take_cause()
            out.facts.append(rebalanced(group, cause, now))
            out.add(group.log, GroupMetadataKey(group.group_id), group.metadata_value(), cause)
            return
        out.facts.append(
            Fact(
                DEBUG,
                "group_generation",
                {
                    "group": group.group_id,
                    "generation": group.generation_id,
                    "members": len(group.members),
                    "protocol": group.protocol_name,
                    "leader": group.leader_id,
                },
            )
        )
        # The answers have the members, the protocol and the leader of the generation. None of these may change now.
        self._answer_joins(group, now, out)
        # A member that never sends SyncGroup would block the whole group (KAFKA-12890).
        deadline_ms = now.mono_ms + group.rebalance_timeout_ms()
        group.sync_token = self.store.timers.arm(TIMER_SYNC, group.group_id, "", deadline_ms, out)

    def _answer_joins(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        for member in group.members.values():
            version = member.join_version
            request_id = group.unpark_join(member)
            if request_id != NO_REQUEST:
                members: list[JoinGroupResponseMember] = []
                if group.is_leader(member.member_id):
                    members = members_for_leader(group)
                out.replies.append(
                    Reply(
                        request_id,
                        join_success(group, version, member.member_id, group.leader_id, members, False),
                    )
                )
            self.store.timers.start_session(group.group_id, member.member_id, member.session_timeout_ms, now, out)
            member.is_new = False
            group.pending_sync[member.member_id] = True

    def _remove_absent_dynamic_members(self, group: ClassicGroup, out: Outcome) -> None:
        if group.awaiting_join == len(group.members):
            return
        timeout_ms = group.rebalance_timeout_ms()
        absent: list[ClassicMember] = []
        for member in group.members.values():
            if not member.is_awaiting_join() and member.group_instance_id is None:
                absent.append(member)
        for member in absent:
            self.remove_member(group, member, out, False)
        if absent:
            group.elect_leader()
            detail = f"{len(absent)} members did not rejoin within {timeout_ms} ms"
            group.note_cause(Cause(JOIN_TIMEOUT, absent[0].member_id, detail))
            out.facts.append(
                Fact(
                    INFO,
                    "group_members_did_not_rejoin",
                    {"group": group.group_id, "count": len(absent), "first": absent[0].member_id},
                )
            )

    def _elect_joined_leader(self, group: ClassicGroup, out: Outcome) -> bool:
        """Make sure that the leader is a member that joined; False if none did."""
        leader_id = group.leader_id
        leader = group.members.get(leader_id) if leader_id is not None else None
        if leader is not None and leader.is_awaiting_join():
            return True
        for member in group.members.values():
            if member.is_awaiting_join():
                group.leader_id = member.member_id
                out.facts.append(
                    Fact(
                        DEBUG,
                        "group_leader_replaced",
                        {"group": group.group_id, "old": leader_id, "new": member.member_id},
                    )
                )
                return True
        return False

    # ---- timers of the join phase

    def _arm_rebalance(self, group: ClassicGroup, delay_ms_min: int, now: Now, out: Outcome) -> None:
        delay_ms = group.rebalance_timeout_ms()
        if delay_ms < delay_ms_min:
            delay_ms = delay_ms_min
        group.join_token = self.store.timers.arm(TIMER_REBALANCE, group.group_id, "", now.mono_ms + delay_ms, out)

    def _arm_initial(self, group: ClassicGroup, delay_ms: int, remaining_ms: int, now: Now, out: Outcome) -> None:
        group.initial_delay_ms = delay_ms
        group.initial_remaining_ms = remaining_ms
        deadline_ms = now.mono_ms + delay_ms
        group.join_token = self.store.timers.arm(TIMER_INITIAL_REBALANCE, group.group_id, "", deadline_ms, out)

    def initial_delay_over(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        """Extend the delay while new members join, up to the rebalance timeout (KIP-134)."""
        if group.new_member_added and group.initial_remaining_ms != 0:
            group.new_member_added = False
            remaining_ms = group.initial_remaining_ms
            delay_ms = self.config.group_initial_rebalance_delay_ms
            if delay_ms > remaining_ms:
                delay_ms = remaining_ms
            left_ms = remaining_ms - group.initial_delay_ms
            self._arm_initial(group, delay_ms, left_ms if left_ms > 0 else 0, now, out)
        else:
            self.complete_join(group, now, out)

    # ---- the sync phase

    def cancel_sync_timer(self, group: ClassicGroup) -> None:
        group.pending_sync = {}
        group.sync_token = NO_TOKEN

    def sync_received(self, group: ClassicGroup, member_id: str) -> None:
        group.pending_sync.pop(member_id, None)
        if not group.pending_sync:
            group.sync_token = NO_TOKEN

    def fail_sync(self, group: ClassicGroup, error_code: int, now: Now, out: Outcome) -> None:
        """Discard the assignments of the generation and answer all parked SyncGroups with an error."""
        for member in group.members.values():
            member.assignment = b""
            if member.is_awaiting_sync():
                self.store.timers.start_session(group.group_id, member.member_id, member.session_timeout_ms, now, out)
            answer_sync(member, error_code, out)

    # ---- removing members

    def remove_member(
        self, group: ClassicGroup, member: ClassicMember, out: Outcome, elects_leader: bool = True
    ) -> None:
        """Remove a member. Requests parked under its id are answered with UNKNOWN_MEMBER_ID, so its client joins anew.

        A caller that removes many members elects the leader afterwards.
        """
        answer_join(group, member, errors.UNKNOWN_MEMBER_ID, out, "")
        answer_sync(member, errors.UNKNOWN_MEMBER_ID, out)
        group.remove_member(member.member_id, elects_leader)
        self.store.timers.forget(group.group_id, member.member_id)

    def remove_failed_member(
        self, group: ClassicGroup, member: ClassicMember, reason: str, cause: Cause, now: Now, out: Outcome
    ) -> None:
        self.remove_member(group, member, out)
        if group.state == STABLE or group.state == COMPLETING_REBALANCE:
            self.prepare_or_complete(group, reason, now, out, cause)
        else:
            group.note_cause(cause)
            self.complete_join_if_all_there(group, now, out)

    def remove_pending_member(self, group: ClassicGroup, member_id: str, now: Now, out: Outcome) -> None:
        group.remove_member(member_id)
        self.complete_join_if_all_there(group, now, out)

    def complete_join_if_all_there(self, group: ClassicGroup, now: Now, out: Outcome) -> None:
        """The rebalance must not wait for a member that has left (KAFKA-9752)."""
        if group.state == PREPARING_REBALANCE and group.has_all_members_joined():
            self.complete_join(group, now, out)
