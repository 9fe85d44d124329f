"""Group epochs and target assignments: when a group needs a new one, who computes it, and its records."""

from __future__ import annotations

from typing import Final, final

from kcoord.core.assignors.spec import Assignment, Assignor, AssignorError
from kcoord.core.assignors.target_builder import TargetBuilder
from kcoord.core.cause import ASSIGNOR_CHANGED, Cause
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.errors import GroupError
from kcoord.core.groups.members import ConsumerMember
from kcoord.core.groups.records import (
    epoch_record,
    partition_metadata_tombstone,
    target_epoch_record,
    target_record,
)
from kcoord.core.outcome import DEBUG, WARNING, CoordinatorRecord, Fact, Now, Outcome
from kcoord.core.topics.group_topics import GroupTopics
from kcoord.protocol import errors

EPOCH_MAX: Final = 2147483647


@final
class ConsumerTargets:
    """`assignors` by name, in order of preference. The first is the default."""

    def __init__(self, topics: GroupTopics, assignors: dict[str, Assignor]) -> None:
        self.topics = topics
        self.assignors = assignors
        self.default_assignor = next(iter(assignors))

    def bump_epoch(
        self,
        group: ConsumerGroup,
        metadata_hash: int,
        cause: Cause,
        now: Now,
        out: Outcome,
    ) -> int:
        """Add the record of the group's next epoch with its cause. Returns the epoch."""
        epoch = group.epoch + 1
        if epoch > EPOCH_MAX:
            raise GroupError(errors.UNKNOWN_SERVER_ERROR, "The epochs of this group are used up.")
        record = epoch_record(group.group_id, epoch, metadata_hash)
        record.cause = cause
        self._add(group, record, out)
        if group.has_partition_metadata_record:
            self._add(group, partition_metadata_tombstone(group.group_id), out)
        fields: dict[str, object] = {"group": group.group_id, "epoch": epoch, "cause": cause.kind}
        if cause.member_id:
            fields["member"] = cause.member_id
        if cause.detail:
            fields["detail"] = cause.detail
        out.facts.append(Fact(DEBUG, "consumer_group_epoch", fields))
        group.note_rebalance(epoch, cause.kind, now.mono_ms)
        return epoch

    def may_compute(self, group: ConsumerGroup, interval_ms: int, now: Now) -> bool:
        """Whether the last assignment is old enough for a new one. The first one is computed at once.

        A time in the future means that the clock was set back, which must not block the group.
        """
        last_ms = group.assignment_timestamp_ms
        return last_ms == 0 or interval_ms == 0 or now.wall_ms >= last_ms + interval_ms or now.wall_ms < last_ms

    def compute(
        self,
        group: ConsumerGroup,
        epoch: int,
        member: ConsumerMember | None,
        updated: ConsumerMember,
        now: Now,
        out: Outcome,
    ) -> Assignment:
        """Compute a target assignment for `epoch`, with `updated` replacing `member` (None for a new one).

        Adds the records of changed targets, and returns the target of `updated`. Raises GroupError.
        """
        name = group.preferred_assignor(member, updated)
        assignor = self.assignors.get(name) if name is not None else None
        if assignor is None:
            assignor = self.assignors[self.default_assignor]
        builder = self._builder(group, assignor)
        # The group has no builder until the computation succeeds: otherwise its state would be ahead of the log.
        group.builder = None
        replaced_id = self._replaced_id(group, updated)
        own = group.targets.get(updated.member_id)
        if replaced_id is not None:
            self._replace(group, builder, replaced_id, updated.member_id)
        builder.set_member(
            updated.member_id,
            updated.instance_id,
            updated.rack_id,
            self.topics.topic_ids(group.topics_of(updated)),
        )
        try:
            changed = builder.compute()
        except AssignorError as error:
            text = f"Failed to compute a new target assignment for epoch {epoch}: {error}"
            out.facts.append(Fact(WARNING, "consumer_group_assignor_failed", {"group": group.group_id, "error": text}))
            raise GroupError(errors.UNKNOWN_SERVER_ERROR, text) from None
        finally:
            inherited: Assignment | None = None
            if replaced_id is not None:
                inherited = group.targets.pop(updated.member_id, None)
                if own is not None:
                    group.targets[updated.member_id] = own
        target = group.target(updated.member_id) if inherited is None else inherited
        listed: dict[str, bool] = {}
        for member_id, assignment in changed:
            listed[member_id] = True
            if member_id == updated.member_id:
                target = assignment
            self._add(group, target_record(group.group_id, member_id, assignment), out)
        # Of the two ids one is removed. The record of the other is in this batch anyway.
        written = listed if replaced_id is None else {**listed, replaced_id: True, updated.member_id: True}
        self._take_back_answers(group, written, out)
        if inherited is not None and updated.member_id not in listed:
            self._add(group, target_record(group.group_id, updated.member_id, inherited), out)
        record = target_epoch_record(group.group_id, epoch, now.wall_ms)
        fields: dict[str, object] = {"group": group.group_id, "epoch": epoch, "assignor": assignor.name}
        last = group.builder_assignor
        if last and last != assignor.name:
            # The assignor did not start this epoch, but it may be the reason why assignments change.
            record.cause = Cause(ASSIGNOR_CHANGED, updated.member_id, f"{last} -> {assignor.name}")
            fields["cause"] = ASSIGNOR_CHANGED
            fields["last_assignor"] = last
        group.builder_assignor = assignor.name
        self._add(group, record, out)
        fields["changed"] = len(changed)
        out.facts.append(Fact(DEBUG, "consumer_group_assignment", fields))
        group.builder = builder
        return target

    def _replace(self, group: ConsumerGroup, builder: TargetBuilder, replaced_id: str, member_id: str) -> None:
        """A member replaces a static one and inherits its target.

        The target dict has it only during the computation. The records that move it are in the same batch.
        """
        if member_id in group.members:
            # The member leaves its own former membership.
            builder.remove_member(member_id)
        builder.replace_static_member(replaced_id, member_id)
        group.targets[member_id] = group.target(replaced_id)

    def _take_back_answers(self, group: ConsumerGroup, listed: dict[str, bool], out: Outcome) -> None:
        """A server assignor returns nothing besides targets: clear the answers of the last client-side assignor."""
        for member_id in group.answers:
            if member_id in group.members and member_id not in listed:
                self._add(group, target_record(group.group_id, member_id, group.target(member_id)), out)

    def _builder(self, group: ConsumerGroup, assignor: Assignor) -> TargetBuilder:
        """The group's builder, updated with every member that changed since its last computation."""
        builder = group.builder
        if builder is None:
            builder = TargetBuilder(assignor, self.topics, group.targets)
            for member in group.members.values():
                self._set_member(builder, group, member)
        else:
            if builder.assignor is not assignor:
                builder.set_assignor(assignor)
            for member_id in group.changed_members:
                known = group.members.get(member_id)
                if known is None or member_id not in group.targets:
                    # A known one left and has returned under the same id. It starts without partitions.
                    builder.remove_member(member_id)
                if known is not None:
                    self._set_member(builder, group, known)
        group.changed_members = {}
        return builder

    def _set_member(self, builder: TargetBuilder, group: ConsumerGroup, member: ConsumerMember) -> None:
        topic_ids = self.topics.topic_ids(group.topics_of(member))
        builder.set_member(member.member_id, member.instance_id, member.rack_id, topic_ids)

    def _replaced_id(self, group: ConsumerGroup, updated: ConsumerMember) -> str | None:
        """The previous member id of a static member that returns under another one."""
        if updated.instance_id is None:
            return None
        member_id = group.static_members.get(updated.instance_id)
        return None if member_id == updated.member_id else member_id

    def _add(self, group: ConsumerGroup, record: CoordinatorRecord, out: Outcome) -> None:
        out.log = group.log
        out.records.append(record)
