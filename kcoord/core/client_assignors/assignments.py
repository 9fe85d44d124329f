"""ConsumerGroupPrepareAssignment and ConsumerGroupInstallAssignment v0 (KIP-848; no release has them).

A member whose heartbeat answer asked it to compute fetches the input of its assignor here, and sends the result. The
result is checked like that of a server-side plug-in, and stored like a server's assignment: one batch with only the
changes. It is for the group's epoch at the time of the fetch; if the group has a newer epoch by then, the member is
asked again.

Errors are those of the KIP: UNKNOWN_MEMBER_ID for a member that was not asked, and STALE_MEMBER_EPOCH for a member in
another epoch or an assignment for another epoch. After either, the member's next heartbeat decides.
"""

from __future__ import annotations

from typing import final

from kcoord.core.client_assignors.install import PHASE_MEMBER_COST, PHASE_MEMBERS_MAX, Installation
from kcoord.core.client_assignors.offers import ClientAssignors
from kcoord.core.groups.computation import ClientComputation
from kcoord.core.groups.consumer import ConsumerGroup, known_member
from kcoord.core.groups.errors import GroupError
from kcoord.core.groups.members import ConsumerMember
from kcoord.core.groups.store import GroupStore
from kcoord.core.outcome import MESSAGE_CHARS_MAX, Now, Outcome, Reply, Request
from kcoord.core.topics.group_topics import GroupTopics
from kcoord.protocol import errors
from kcoord.protocol.consumer_group_install_assignment import (
    ConsumerGroupInstallAssignmentRequest,
    ConsumerGroupInstallAssignmentResponse,
)
from kcoord.protocol.consumer_group_prepare_assignment import (
    AssignableMember,
    AssignableTopic,
    ConsumerGroupPrepareAssignmentRequest,
    ConsumerGroupPrepareAssignmentResponse,
    MemberAssignor,
    TargetTopicPartitions,
)


@final
class ClientAssignments:
    def __init__(self, store: GroupStore, topics: GroupTopics, client_assignors: ClientAssignors) -> None:
        self.store = store
        self.topics = topics
        self.client_assignors = client_assignors
        self.phase_members_max = PHASE_MEMBERS_MAX
        # The cost of phases since the engine last asked, in bytes of the turn's budget.
        self.cost = 0

    def _computing_member(
        self, group_id: str, member_id: str, member_epoch: int
    ) -> tuple[ConsumerGroup, ConsumerMember, ClientComputation]:
        """The group, and the member if it was asked to compute. Raises GroupError."""
        if not group_id.strip():
            raise GroupError(errors.INVALID_REQUEST, "GroupId can't be empty.")
        if not member_id.strip():
            raise GroupError(errors.INVALID_REQUEST, "MemberId can't be empty.")
        if member_epoch < 0:
            raise GroupError(errors.INVALID_REQUEST, "MemberEpoch is invalid.")
        group = self.store.consumer_groups.get(group_id)
        if group is None:
            raise GroupError(errors.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        member = known_member(group, member_id)
        if member_epoch != member.member_epoch:
            raise GroupError(
                errors.STALE_MEMBER_EPOCH,
                f"Member {member_id} is in epoch {member.member_epoch}, not in {member_epoch}.",
            )
        computation = self.client_assignors.refresh(group)
        if computation is None or computation.member_id != member_id:
            raise GroupError(errors.UNKNOWN_MEMBER_ID, f"Member {member_id} was not asked to compute an assignment.")
        return group, member, computation

    # ---- prepare

    def handle_prepare(self, request: Request, body: ConsumerGroupPrepareAssignmentRequest) -> Outcome:
        out = Outcome()
        try:
            group, _, computation = self._computing_member(body.group_id, body.member_id, body.member_epoch)
        except GroupError as error:
            refused = ConsumerGroupPrepareAssignmentResponse(
                error_code=error.code, error_message=error.message[:MESSAGE_CHARS_MAX]
            )
            out.reply(request.request_id, refused)
            return out
        computation.prepared_epoch = group.epoch
        response = self._state(group, computation.assignor)
        out.replies.append(Reply(request.request_id, response, group.log, group.end_offset))
        return out

    def _state(self, group: ConsumerGroup, assignor: str) -> ConsumerGroupPrepareAssignmentResponse:
        """Members sorted by id, topics by name."""
        response = ConsumerGroupPrepareAssignmentResponse(group_epoch=group.epoch, assignor_name=assignor)
        for member_id in sorted(group.members):
            member = group.members[member_id]
            response.members.append(
                AssignableMember(
                    member_id,
                    member.member_epoch,
                    member.instance_id,
                    member.rack_id,
                    self.topics.topic_ids(group.topics_of(member)),
                    _assignor_of(member, assignor),
                    [TargetTopicPartitions(t, ps) for t, ps in group.target(member_id).items()],
                )
            )
        for name in sorted(group.subscribed_topics()):
            topic = self.topics.registry.get(name)
            if topic is not None:
                response.topics.append(AssignableTopic(topic.topic_id, name, topic.partition_count))
        return response

    # ---- install

    def handle_install(self, request: Request, body: ConsumerGroupInstallAssignmentRequest, now: Now) -> Outcome:
        group = self.store.consumer_groups.get(body.group_id)
        size = max(len(body.members), 0 if group is None else len(group.members))
        installation = Installation(request.request_id, body)
        if size > self.phase_members_max:
            # Reading so large a request is enough for this turn.
            out = Outcome()
            out.continuations.append(installation)
            return out
        return self.handle_installation(installation, now)

    def handle_installation(self, installation: Installation, now: Now) -> Outcome:
        """Run the next phase, or all of them for a small group."""
        out = Outcome()
        body = installation.body
        response = ConsumerGroupInstallAssignmentResponse()
        try:
            while not installation.is_done():
                group, member, computation = self._computing_member(body.group_id, body.member_id, body.member_epoch)
                if body.group_epoch != group.epoch:
                    raise GroupError(
                        errors.STALE_MEMBER_EPOCH,
                        f"Group {body.group_id} is in epoch {group.epoch}, the assignment is for {body.group_epoch}.",
                    )
                size = max(len(body.members), len(group.members))
                installation.advance(self.topics, group, member, computation, now, out)
                self.cost += PHASE_MEMBER_COST * size
                if size > self.phase_members_max and not installation.is_done():
                    out.continuations.append(installation)
                    return out
        except GroupError as error:
            response.error_code = error.code
            response.error_message = error.message[:MESSAGE_CHARS_MAX]
        out.reply(installation.request_id, response)
        return out


def _assignor_of(member: ConsumerMember, name: str) -> MemberAssignor:
    own = member.client_assignor(name)
    if own is None:
        return MemberAssignor()
    return MemberAssignor(own.reason, own.metadata_version, own.metadata_bytes)
