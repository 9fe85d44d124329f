"""SyncGroup, Heartbeat and LeaveGroup of classic members in a consumer group."""

from __future__ import annotations

from typing import final

from kcoord.core.cause import MEMBER_LEFT, Cause
from kcoord.core.classic.rebalance import client_reason
from kcoord.core.classic.sync import check_request
from kcoord.core.consumer.membership import ConsumerMembership
from kcoord.core.consumer.steps import ConsumerSteps, check_instance, discarded
from kcoord.core.groups.consumer import ConsumerGroup, known_member
from kcoord.core.groups.embedded_protocol import encode_assignment, version_of
from kcoord.core.groups.errors import GroupError
from kcoord.core.groups.leave import LeaveGroupStep
from kcoord.core.groups.members import (
    UNRELEASED_PARTITIONS,
    UNREVOKED_PARTITIONS,
    ConsumerMember,
)
from kcoord.core.groups.store import GroupStore
from kcoord.core.outcome import DEBUG, Fact, Now, Outcome, Reply, Request
from kcoord.core.topics.group_topics import GroupTopics
from kcoord.protocol import errors
from kcoord.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcoord.protocol.leave_group import MemberIdentity
from kcoord.protocol.records.consumer_group_member_metadata import ClassicMemberMetadata
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupResponse
from kcoord.wire.primitives import DecodeError


@final
class MixedMembers:
    """The requests for the groups in `store.consumer_groups`."""

    def __init__(
        self, store: GroupStore, topics: GroupTopics, membership: ConsumerMembership, steps: ConsumerSteps
    ) -> None:
        self.store = store
        self.topics = topics
        self.membership = membership
        self.steps = steps

    # ---- SyncGroup

    def handle_sync_group(self, request: Request, body: SyncGroupRequest, now: Now) -> Outcome:
        out = Outcome()
        group = self.store.consumer_groups[body.group_id]
        error = check_request(request, body)
        try:
            if error != errors.NONE:
                raise GroupError(error, "")
            response = self._sync(group, body, now, out)
        except GroupError as failure:
            response = SyncGroupResponse(error_code=failure.code, assignment=b"")
        out.replies.append(Reply(request.request_id, response, group.log, group.end_offset))
        return out

    def _sync(self, group: ConsumerGroup, body: SyncGroupRequest, now: Now, out: Outcome) -> SyncGroupResponse:
        """Handle one SyncGroup. Raises GroupError."""
        member = self._member(group, body.member_id, body.group_instance_id)
        classic = self._check_generation(member, body.generation_id)
        protocol = classic.supported_protocols[0]
        if body.protocol_type is not None and body.protocol_type != "consumer":
            raise GroupError(errors.INCONSISTENT_GROUP_PROTOCOL, "the protocol type is not that of the group")
        if body.protocol_name is not None and body.protocol_name != protocol.name:
            raise GroupError(
                errors.INCONSISTENT_GROUP_PROTOCOL, "the protocol is not the one in the answer to JoinGroup"
            )
        # A member that has to revoke partitions gets the assignment that it may keep, and so learns which these are.
        if group.assignment_epoch > member.member_epoch and member.state != UNREVOKED_PARTITIONS:
            self.membership.expect_join(group, member, now, out)
            raise GroupError(errors.REBALANCE_IN_PROGRESS, "the member has to rejoin")
        self.membership.sync_received(group, member.member_id)
        self.store.timers.start_session(group.group_id, member.member_id, classic.session_timeout_ms, now, out)
        assigned = {topic_id: list(of_topic) for topic_id, of_topic in member.assigned.items()}
        try:
            version = version_of(protocol.metadata)
        except DecodeError:
            # JoinGroup decoded this subscription before storing it, so no server wrote this record.
            version = 0
        return SyncGroupResponse(
            error_code=errors.NONE,
            protocol_type=body.protocol_type,
            protocol_name=body.protocol_name,
            assignment=encode_assignment(self.topics.assignment_message(assigned), version),
        )

    # ---- Heartbeat

    def handle_heartbeat(self, request: Request, body: HeartbeatRequest, now: Now) -> Outcome:
        out = Outcome()
        group = self.store.consumer_groups[body.group_id]
        try:
            error = self._heartbeat(group, body, now, out)
        except GroupError as failure:
            error = failure.code
        response = HeartbeatResponse(error_code=error)
        if out.records:
            out.reply(request.request_id, response)
        else:
            out.replies.append(Reply(request.request_id, response, group.log, group.end_offset))
        return out

    def _heartbeat(self, group: ConsumerGroup, body: HeartbeatRequest, now: Now, out: Outcome) -> int:
        """NONE or REBALANCE_IN_PROGRESS. Raises GroupError."""
        member = self._member(group, body.member_id, body.group_instance_id)
        classic = self._check_generation(member, body.generation_id)
        self.store.timers.start_session(group.group_id, member.member_id, classic.session_timeout_ms, now, out)
        assignment_epoch = group.assignment_epoch
        if group.classic_members == len(group.members):
            assignment_epoch = self._refresh(group, member, now, out)
        state = member.state
        if (
            member.member_epoch < assignment_epoch
            or state == UNREVOKED_PARTITIONS
            or (state == UNRELEASED_PARTITIONS and not group.is_waiting_for_release(member))
        ):
            # For a new target, for partitions to revoke and for partitions that became free, the member has to rejoin.
            self.membership.expect_join(group, member, now, out)
            return errors.REBALANCE_IN_PROGRESS
        return errors.NONE

    def _refresh(self, group: ConsumerGroup, member: ConsumerMember, now: Now, out: Outcome) -> int:
        """Do for a group of classic members only what heartbeats of the consumer protocol would do.

        Otherwise the partitions of a removed member, and new partitions of subscribed topics, would stay unassigned
        until a member joins, if the group may not be converted back. Returns the epoch of the target assignment.
        """
        steps = self.steps
        config = self.membership.topics.group_config(group.group_id)
        prepared = Outcome()
        try:
            epoch = steps.change_member(group, member, member, member, False, "", now, prepared)[0]
            epoch = steps.assign(group, member, member, member, epoch, config.assignment_interval_ms, now, prepared)[0]
        except GroupError:
            # No new target. The member keeps its partitions.
            out.facts.extend(discarded(group, prepared).facts)
            return group.assignment_epoch
        out.log = prepared.log
        out.records.extend(prepared.records)
        out.facts.extend(prepared.facts)
        return epoch

    def _member(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
        """The member of this id. Raises GroupError."""
        if instance_id is None:
            return known_member(group, member_id)
        return check_instance(group.static_member(instance_id), instance_id, member_id)

    def _check_generation(self, member: ConsumerMember, generation_id: int) -> ClassicMemberMetadata:
        """The member's data from JoinGroup, if the request names its generation. Raises GroupError."""
        classic = member.classic
        if classic is None:
            raise GroupError(errors.UNKNOWN_MEMBER_ID, f"Member {member.member_id} does not use the classic protocol.")
        if generation_id != member.member_epoch:
            raise GroupError(errors.ILLEGAL_GENERATION, f"Member {member.member_id} is at epoch {member.member_epoch}.")
        return classic

    # ---- LeaveGroup

    def leave(self, step: LeaveGroupStep, share: list[MemberIdentity], now: Now, out: Outcome) -> None:
        """Remove members of both protocols. Admin clients name static members by instance id alone."""
        group = self.store.consumer_groups[step.group_id]
        members: list[ConsumerMember] = []
        for identity in share:
            error = errors.NONE
            if not self._has_left(step, identity):
                try:
                    member = self._leaving(group, identity)
                    step.left[member.member_id] = True
                    if member.instance_id is not None:
                        step.left_instances[member.instance_id] = member.member_id
                    members.append(member)
                    self._report_left(group, member, identity, out)
                except GroupError as failure:
                    error = failure.code
            step.add(identity, error)
        if members:
            detail = f"client reason: {client_reason(share[0].reason)}"
            if len(members) > 1:
                detail = f"{len(members)} members; {detail}"
            self.membership.remove(group, members, Cause(MEMBER_LEFT, members[0].member_id, detail), now, out)

    def _has_left(self, step: LeaveGroupStep, identity: MemberIdentity) -> bool:
        """Whether the request named this member before. The answer is then the same."""
        instance_id = identity.group_instance_id
        if instance_id is None:
            return identity.member_id in step.left
        member_id = step.left_instances.get(instance_id)
        return member_id is not None and identity.member_id in ("", member_id)

    def _leaving(self, group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
        """The member to remove. Raises GroupError."""
        instance_id = identity.group_instance_id
        if instance_id is None:
            return known_member(group, identity.member_id)
        static = group.static_member(instance_id)
        if static is not None and identity.member_id == "":
            return static
        return check_instance(static, instance_id, identity.member_id)

    def _report_left(
        self, group: ConsumerGroup, member: ConsumerMember, identity: MemberIdentity, out: Outcome
    ) -> None:
        out.facts.append(
            Fact(
                DEBUG,
                "group_member_left",
                {
                    "group": group.group_id,
                    "member": member.member_id,
                    "instance": member.instance_id,
                    "reason": client_reason(identity.reason),
                },
            )
        )
