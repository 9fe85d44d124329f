"""ConsumerGroupInstallAssignment: check and store an assignment that a member computed, in phases.

For a large group each turn runs one phase, so that other requests are served in between; the member's connection waits.
Only the last phase changes anything, with one batch. Before each phase it is checked again that the member is the one
that was asked and that the group is still in that epoch.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.assignors.check import checked_assignment
from kcoord.core.assignors.spec import Assignment, AssignorError, GroupSpec, MemberSpec
from kcoord.core.cause import ASSIGNOR_CHANGED, Cause
from kcoord.core.groups.computation import ClientComputation
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.errors import GroupError
from kcoord.core.groups.members import NO_ANSWER, AssignorAnswer, ConsumerMember
from kcoord.core.groups.records import target_epoch_record, target_record
from kcoord.core.outcome import DEBUG, INFO, WARNING, Continuation, CoordinatorRecord, Fact, Now, Outcome
from kcoord.core.topics.group_topics import GroupTopics
from kcoord.protocol import errors
from kcoord.protocol.consumer_group_install_assignment import (
    AssignedMember,
    ConsumerGroupInstallAssignmentRequest,
)

# For more members than this a turn runs one phase, at one to three µs per member.
PHASE_MEMBERS_MAX: Final = 1000
# The cost of a phase per member, in bytes of the turn's budget.
PHASE_MEMBER_COST: Final = 30

READ: Final = 0
CHECK: Final = 1
COMPARE: Final = 2
STORE: Final = 3
DONE: Final = 4


@final
class Installation(Continuation):
    """An assignment that is being installed, and the results of its phases so far."""

    def __init__(self, request_id: int, body: ConsumerGroupInstallAssignmentRequest) -> None:
        super().__init__(request_id)
        self.body = body
        self.phase = READ
        self.answers: dict[str, AssignorAnswer] = {}
        self.spec = GroupSpec({}, False)
        self.targets: dict[str, Assignment] = {}
        self.records: list[CoordinatorRecord] = []

    def is_done(self) -> bool:
        return self.phase == DONE

    def advance(
        self,
        topics: GroupTopics,
        group: ConsumerGroup,
        member: ConsumerMember,
        computation: ClientComputation,
        now: Now,
        out: Outcome,
    ) -> None:
        """Run the next phase. Raises GroupError for an invalid assignment; then another member is asked."""
        try:
            if self.phase == READ:
                self.answers = _answers(group, computation.assignor, self.body)
                self.targets = _targets(self.body.members)
                self.spec = _spec(group, topics)
            elif self.phase == CHECK:
                self.targets = checked_assignment(self.spec, topics, self.targets)
            elif self.phase == COMPARE:
                self._compare(group)
            else:
                self._store(group, member, computation, now, out)
        except AssignorError as error:
            computation.pass_over()
            text = f"Invalid assignment for epoch {group.epoch}: {error}"
            fields = _fields(group, member, computation)
            fields["error"] = text
            out.facts.append(Fact(WARNING, "consumer_group_client_assignor_failed", fields))
            raise GroupError(errors.INVALID_REQUEST, text) from None
        self.phase += 1

    def _compare(self, group: ConsumerGroup) -> None:
        """Keep only the records that differ from the current targets."""
        for member_id, target in self.targets.items():
            answer = self.answers[member_id]
            if group.targets.get(member_id) != target or group.answer(member_id) != answer:
                self.records.append(target_record(group.group_id, member_id, target, answer))

    def _store(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        computation: ClientComputation,
        now: Now,
        out: Outcome,
    ) -> None:
        self._check_members(group)
        name = computation.assignor
        fields = _fields(group, member, computation)
        record = target_epoch_record(group.group_id, group.epoch, now.wall_ms)
        last = group.builder_assignor
        if last and last != name:
            record.cause = Cause(ASSIGNOR_CHANGED, member.member_id, f"{last} -> {name}")
            fields["cause"] = ASSIGNOR_CHANGED
            fields["last_assignor"] = last
        # The targets precede their epoch, in one batch: no epoch is ever in the log without all of its targets.
        out.log = group.log
        out.records.extend(self.records)
        out.records.append(record)
        group.builder_assignor = name
        group.computation = None
        # The next server assignor starts from these targets.
        group.forget_builder()
        group.changed_members = {}
        if self.body.error:
            fields["error"] = self.body.error
        fields["changed"] = len(self.records)
        out.facts.append(Fact(INFO if self.body.error else DEBUG, "consumer_group_assignment", fields))

    def _check_members(self, group: ConsumerGroup) -> None:
        """A static member may return under another id without a new epoch. Raises GroupError."""
        is_same = len(group.members) == len(self.targets)
        for member_id in group.members:
            is_same = is_same and member_id in self.targets
        if not is_same:
            raise GroupError(
                errors.STALE_MEMBER_EPOCH,
                f"The members of group {group.group_id} changed while the assignment was checked.",
            )


def _fields(group: ConsumerGroup, member: ConsumerMember, computation: ClientComputation) -> dict[str, object]:
    fields: dict[str, object] = {"group": group.group_id, "epoch": group.epoch}
    fields["assignor"] = computation.assignor
    fields["member"] = member.member_id
    return fields


def _spec(group: ConsumerGroup, topics: GroupTopics) -> GroupSpec:
    members: dict[str, MemberSpec] = {}
    for member_id in sorted(group.members):
        member = group.members[member_id]
        topic_ids = topics.topic_ids(group.topics_of(member))
        members[member_id] = MemberSpec(
            member_id, member.instance_id, member.rack_id, topic_ids, group.target(member_id)
        )
    return GroupSpec(members, False)


def _answers(
    group: ConsumerGroup, assignor: str, body: ConsumerGroupInstallAssignmentRequest
) -> dict[str, AssignorAnswer]:
    """The answer for each member besides its partitions. The error is the same for all. Raises AssignorError."""
    nothing: AssignorAnswer = (body.error, 0, b"") if body.error else NO_ANSWER
    answers: dict[str, AssignorAnswer] = dict.fromkeys(group.members, nothing)
    for one in body.members:
        if not one.metadata_bytes and not one.metadata_version:
            continue
        known = group.members.get(one.member_id)
        if known is None:
            # The check of the assignment follows, and reports unknown members.
            continue
        own = known.client_assignor(assignor)
        if own is None or not own.minimum_version <= one.metadata_version <= own.maximum_version:
            raise AssignorError(
                f"metadata for {one.member_id!r} has version {one.metadata_version}, which it cannot read"
            )
        answers[one.member_id] = (body.error, one.metadata_version, one.metadata_bytes)
    return answers


def _targets(members: list[AssignedMember]) -> dict[str, Assignment]:
    """The targets by member id and topic id. Raises AssignorError for duplicates."""
    targets: dict[str, Assignment] = {}
    for member in members:
        if member.member_id in targets:
            raise AssignorError(f"there are two assignments for {member.member_id!r}")
        target: Assignment = {}
        for topic in member.topic_partitions:
            if topic.topic_id in target:
                raise AssignorError(f"topic {topic.topic_id.hex()} occurs twice for {member.member_id!r}")
            target[topic.topic_id] = topic.partitions
        targets[member.member_id] = target
    return targets
