"""ConsumerGroupPrepareAssignment and ConsumerGroupInstallAssignment v0 (KIP-848; no release has them).

A member that a heartbeat told to compute asks here for all that an assignor needs, and hands in what came out. What
it hands in is looked through as a plug-in's answer is, and stored as a server's assignment would be: everything in
one batch, and only what differs. It is for the group's epoch at that time; a group that has moved on since asks again.

Errors are the proposal's: a member that is not the one that was asked is answered UNKNOWN_MEMBER_ID, and one with
another epoch than its own, or with an assignment for another epoch than the group's, STALE_MEMBER_EPOCH. Both mean
that the next heartbeat tells what to do.
"""

from __future__ import annotations

from typing import final

from kcoord.core.assignors.check import checked_assignment
from kcoord.core.assignors.spec import Assignment, AssignorError, GroupSpec, MemberSpec
from kcoord.core.client_assignors import ClientAssignors
from kcoord.core.client_computation import ClientComputation
from kcoord.core.consumer_group import ConsumerGroup
from kcoord.core.consumer_member import NO_ANSWER, AssignorAnswer, ConsumerMember
from kcoord.core.consumer_records import target_epoch_record, target_record
from kcoord.core.consumer_steps import known_member
from kcoord.core.consumer_topics import GroupTopics
from kcoord.core.group_cause import ASSIGNOR_CHANGED, Cause
from kcoord.core.group_errors import GroupError
from kcoord.core.group_store import GroupStore
from kcoord.core.outcome import INFO, MESSAGE_CHARS_MAX, WARNING, Fact, Now, Outcome, Reply, Request
from kcoord.protocol import errors
from kcoord.protocol.consumer_group_install_assignment import (
    AssignedMember,
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

    def _asked(
        self, group_id: str, member_id: str, member_epoch: int
    ) -> tuple[ConsumerGroup, ConsumerMember, ClientComputation]:
        """The group, and the member if it is the one that is to compute. Raises GroupError."""
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
            raise GroupError(
                errors.UNKNOWN_MEMBER_ID, f"Member {member_id} was not asked to compute an assignment."
            )
        return group, member, computation

    # ---- prepare

    def handle_prepare(
        self, request: Request, body: ConsumerGroupPrepareAssignmentRequest, now: Now
    ) -> Outcome:
        out = Outcome()
        try:
            group, _, computation = self._asked(body.group_id, body.member_id, body.member_epoch)
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
        """Members in order of id, topics in order of name."""
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

    def handle_install(
        self, request: Request, body: ConsumerGroupInstallAssignmentRequest, now: Now
    ) -> Outcome:
        out = Outcome()
        response = ConsumerGroupInstallAssignmentResponse()
        try:
            group, member, computation = self._asked(body.group_id, body.member_id, body.member_epoch)
            if body.group_epoch != group.epoch:
                raise GroupError(
                    errors.STALE_MEMBER_EPOCH,
                    f"Group {body.group_id} is in epoch {group.epoch}, the assignment is for {body.group_epoch}.",
                )
            self._install(group, member, computation, body, now, out)
        except GroupError as error:
            response.error_code = error.code
            response.error_message = error.message[:MESSAGE_CHARS_MAX]
        out.reply(request.request_id, response)
        return out

    def _install(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        computation: ClientComputation,
        body: ConsumerGroupInstallAssignmentRequest,
        now: Now,
        out: Outcome,
    ) -> None:
        """Raises GroupError for an assignment that cannot be; then somebody else is asked."""
        name = computation.assignor
        fields: dict[str, object] = {"group": group.group_id, "epoch": group.epoch, "assignor": name}
        fields["member"] = member.member_id
        try:
            answers = self._answers(group, name, body)
            targets = checked_assignment(self._spec(group), self.topics, _targets(body.members))
        except AssignorError as error:
            computation.pass_over()
            text = f"Invalid assignment for epoch {group.epoch}: {error}"
            fields["error"] = text
            out.facts.append(Fact(WARNING, "consumer_group_client_assignor_failed", fields))
            raise GroupError(errors.INVALID_REQUEST, text) from None
        out.log = group.log
        changed = 0
        for member_id, target in targets.items():
            answer = answers[member_id]
            if group.targets.get(member_id) != target or group.answer(member_id) != answer:
                changed += 1
                out.records.append(target_record(group.group_id, member_id, target, answer))
        record = target_epoch_record(group.group_id, group.epoch, now.wall_ms)
        last = group.builder_assignor
        if last and last != name:
            record.cause = Cause(ASSIGNOR_CHANGED, member.member_id, f"{last} -> {name}")
            fields["cause"] = ASSIGNOR_CHANGED
            fields["last_assignor"] = last
        out.records.append(record)
        group.builder_assignor = name
        group.computation = None
        # A server assignor that comes later begins with these targets.
        group.forget_builder()
        group.changed_members = {}
        if body.error:
            fields["error"] = body.error
        fields["changed"] = changed
        out.facts.append(Fact(INFO, "consumer_group_assignment", fields))

    def _spec(self, group: ConsumerGroup) -> GroupSpec:
        members: dict[str, MemberSpec] = {}
        for member_id in sorted(group.members):
            member = group.members[member_id]
            topic_ids = self.topics.topic_ids(group.topics_of(member))
            members[member_id] = MemberSpec(
                member_id, member.instance_id, member.rack_id, topic_ids, group.target(member_id)
            )
        return GroupSpec(members, False)

    def _answers(
        self, group: ConsumerGroup, assignor: str, body: ConsumerGroupInstallAssignmentRequest
    ) -> dict[str, AssignorAnswer]:
        """What each member is told besides its partitions: the error is for all. Raises AssignorError."""
        answers: dict[str, AssignorAnswer] = {}
        for member_id in group.members:
            answers[member_id] = (body.error, 0, b"") if body.error else NO_ANSWER
        for one in body.members:
            known = group.members.get(one.member_id)
            if known is None:
                # The assignment itself is looked through after this, and says who that is.
                continue
            own = known.client_assignor(assignor)
            if (one.metadata_bytes or one.metadata_version) and (
                own is None or not own.minimum_version <= one.metadata_version <= own.maximum_version
            ):
                raise AssignorError(
                    f"metadata for {one.member_id!r} has version {one.metadata_version}, which it cannot read"
                )
            answers[one.member_id] = (body.error, one.metadata_version, one.metadata_bytes)
        return answers


def _assignor_of(member: ConsumerMember, name: str) -> MemberAssignor:
    own = member.client_assignor(name)
    if own is None:
        return MemberAssignor()
    return MemberAssignor(own.reason, own.metadata_version, own.metadata_bytes)


def _targets(members: list[AssignedMember]) -> dict[str, Assignment]:
    """By member id and topic id. Raises AssignorError for what is there twice."""
    targets: dict[str, Assignment] = {}
    for member in members:
        if member.member_id in targets:
            raise AssignorError(f"there are two assignments for {member.member_id!r}")
        target: Assignment = {}
        for topic in member.topic_partitions:
            if topic.topic_id in target:
                raise AssignorError(f"topic {topic.topic_id.hex()} is there twice for {member.member_id!r}")
            target[topic.topic_id] = topic.partitions
        targets[member.member_id] = target
    return targets
