"""SyncGroup: the leader sends the assignment, and every member gets its part."""

from __future__ import annotations

from typing import final

from kcoord.core.cause import ASSIGNMENT_TOO_LARGE, Cause
from kcoord.core.classic.rebalance import ClassicRebalance, answer_sync, rebalanced
from kcoord.core.config import CoreConfig
from kcoord.core.groups.classic import (
    COMPLETING_REBALANCE,
    NO_REQUEST,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroup,
    ClassicMember,
    value_bytes_max,
)
from kcoord.core.groups.store import GroupStore
from kcoord.core.outcome import LIMIT, WARNING, Fact, Now, Outcome, Reply, Request
from kcoord.protocol import errors
from kcoord.protocol.records.group_metadata import GroupMetadataKey
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupResponse


@final
class ClassicSync:
    def __init__(self, config: CoreConfig, store: GroupStore, rebalance: ClassicRebalance) -> None:
        self.config = config
        self.store = store
        self.rebalance = rebalance

    def handle_sync_group(self, request: Request, body: SyncGroupRequest, now: Now) -> Outcome:
        out = Outcome()
        error = check_request(request, body)
        if error != errors.NONE:
            self._reply_error(request, error, out)
            return out
        group = self.store.get(body.group_id)
        if group is None or group.is_empty():
            self._reply_error(request, errors.UNKNOWN_MEMBER_ID, out)
            return out
        error = self._validate(group, body)
        member = group.members.get(body.member_id)
        if error != errors.NONE or member is None:
            self._reply_error(request, error, out)
        elif group.state == PREPARING_REBALANCE:
            self._reply_error(request, errors.REBALANCE_IN_PROGRESS, out)
        elif group.state == COMPLETING_REBALANCE:
            # An older parked request of this member is answered with an error.
            answer_sync(member, errors.REBALANCE_IN_PROGRESS, out)
            member.sync_request_id = request.request_id
            self.rebalance.sync_received(group, member.member_id)
            if group.is_leader(member.member_id):
                self._take_assignment(group, body, now, out)
        elif group.state == STABLE:
            self.rebalance.sync_received(group, member.member_id)
            response = self._assignment_of(group, member)
            out.replies.append(Reply(request.request_id, response, group.log, group.end_offset))
        return out

    def _reply_error(self, request: Request, error_code: int, out: Outcome) -> None:
        out.reply(request.request_id, SyncGroupResponse(error_code=error_code, assignment=b""))

    def _validate(self, group: ClassicGroup, body: SyncGroupRequest) -> int:
        error = group.validate_member(body.member_id, body.group_instance_id)
        if error != errors.NONE:
            return error
        if body.generation_id != group.generation_id:
            return errors.ILLEGAL_GENERATION
        if body.protocol_type is not None and body.protocol_type != group.protocol_type:
            return errors.INCONSISTENT_GROUP_PROTOCOL
        if body.protocol_name is not None and body.protocol_name != group.protocol_name:
            return errors.INCONSISTENT_GROUP_PROTOCOL
        return errors.NONE

    def _assignment_of(self, group: ClassicGroup, member: ClassicMember) -> SyncGroupResponse:
        return SyncGroupResponse(
            error_code=errors.NONE,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            assignment=member.assignment,
        )

    def _take_assignment(self, group: ClassicGroup, body: SyncGroupRequest, now: Now, out: Outcome) -> None:
        """Store the generation with its assignment. Parked SyncGroups are answered once the record is durable."""
        assignments: dict[str, bytes] = {}
        for entry in body.assignments:
            assignments[entry.member_id] = entry.assignment
        without = 0
        for member in group.members.values():
            assignment = assignments.get(member.member_id)
            if assignment is None:
                without += 1
                assignment = b""
            member.assignment = assignment
        value = group.metadata_value()
        if value_bytes_max(group.group_id, value) > self.config.coordinator_batch_bytes_max:
            out.facts.append(Fact(WARNING, "group_record_too_large", {"group": group.group_id}, LIMIT))
            # A broker answers the same for a record beyond its batch limit.
            self.rebalance.fail_sync(group, errors.UNKNOWN_SERVER_ERROR, now, out)
            reason = "the assignment is too large to store"
            cause = Cause(ASSIGNMENT_TOO_LARGE, body.member_id, reason)
            self.rebalance.prepare_or_complete(group, reason, now, out, cause)
            return
        # The replies below wait for this record: no member may use an assignment that a crash can take back.
        taken = group.take_cause()
        out.add(group.log, GroupMetadataKey(group.group_id), value, taken)
        group.held = {}
        for member in group.members.values():
            if member.sync_request_id != NO_REQUEST:
                out.reply(member.sync_request_id, self._assignment_of(group, member))
                member.sync_request_id = NO_REQUEST
                # If the session timer fired while the member was parked, it was ignored, and there is no timer now.
                self.store.timers.start_session(group.group_id, member.member_id, member.session_timeout_ms, now, out)
        group.transition_to(STABLE, now.wall_ms)
        fact = rebalanced(group, taken, now)
        if without:
            fact.fields["without_assignment"] = without
        out.facts.append(fact)


def check_request(request: Request, body: SyncGroupRequest) -> int:
    """Check the fields on their own. Returns an error code."""
    if request.version >= 5 and (body.protocol_type is None or body.protocol_name is None):
        return errors.INCONSISTENT_GROUP_PROTOCOL
    return errors.INVALID_GROUP_ID if body.group_id == "" else errors.NONE
