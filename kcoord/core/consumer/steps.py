"""The common part of a consumer heartbeat and a classic member's JoinGroup, once the member is known.

Three steps, in this order, whose records are one batch:

1. `change_member`: the member with the fields of the request, and the group's epoch if that changes.
2. `assign`: a target assignment, if the epoch is newer than that of the last one.
3. `reconcile`: one step of the member towards its target.

The order of the records is Kafka's: the member, the group's epoch, the target assignment, the current assignment. Each
step works with the result of the one before, which is not in the group yet: nothing is replayed until all succeeded.
"""

from __future__ import annotations

import base64
from typing import Final, final

from kcoord.core.assignors.spec import Assignment
from kcoord.core.cause import (
    CLIENT_ASSIGNORS_CHANGED,
    MEMBER_JOINED,
    MEMBER_REJOINED,
    STATIC_MEMBER_REPLACED,
    SUBSCRIPTION_CHANGED,
    TOPICS_CHANGED,
    Cause,
)
from kcoord.core.client_assignors.offers import ClientAssignors, answer_for, assignors_text
from kcoord.core.consumer.membership import ConsumerMembership
from kcoord.core.consumer.reconcile import Owned, Reconciliation
from kcoord.core.consumer.regex import CHANGED_AND_RESOLVED, UNCHANGED, ConsumerRegexes
from kcoord.core.consumer.targets import ConsumerTargets
from kcoord.core.groups.computation import NO_EPOCH
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.errors import GroupError
from kcoord.core.groups.members import UNREVOKED_PARTITIONS, ConsumerMember
from kcoord.core.groups.records import current_record, member_record
from kcoord.core.outcome import WARNING, Now, Outcome
from kcoord.protocol import errors
from kcoord.protocol.records.consumer_group_metadata import ConsumerGroupMetadataKey

# Like a broker, check the topics of a group when they change, and otherwise rarely.
REFRESH_INTERVAL_MS: Final = 2147483647


@final
class ConsumerSteps:
    def __init__(self, targets: ConsumerTargets, regexes: ConsumerRegexes, membership: ConsumerMembership) -> None:
        self.targets = targets
        self.regexes = regexes
        self.membership = membership
        self.client_assignors = ClientAssignors()

    def change_member(
        self,
        group: ConsumerGroup,
        before: ConsumerMember | None,
        member: ConsumerMember,
        updated: ConsumerMember,
        joins: bool,
        reason: str,
        now: Now,
        out: Outcome,
    ) -> tuple[int, bool]:
        """Update the member. Returns the group's epoch, and whether the member's subscription changed.

        `before` is the member that this one replaces (None for a new one), `member` the member as it was before the
        request (a static one already under its new id), and `updated` the member with the fields of the request.
        `reason` is the client's own. Raises GroupError.
        """
        names_changed = False
        if updated is not member or before is None:
            out.log = group.log
            out.records.append(member_record(group.group_id, updated))
            names_changed = updated.topic_names != member.topic_names
        regex_status = UNCHANGED
        if group.regex_counts or updated.regex() is not None:
            regex_status = self.regexes.update(group, before, updated, now, out)
        epoch = group.epoch
        # An expression that is not resolved yet changes the epoch when its resolution is done.
        subscription_changed = names_changed or regex_status == CHANGED_AND_RESOLVED
        bump = subscription_changed or group.is_unbalanced or updated.client_assignors != member.client_assignors
        group.is_unbalanced = False
        replaced = [] if before is None else [before]
        abandoned = abandoned_membership(group, before, updated)
        if abandoned is not None:
            # The partitions of the abandoned membership have to be assigned, although no subscription may have changed.
            bump = True
            replaced.append(abandoned)
            # The builder still counts the abandoned membership.
            group.forget_builder()
            self.regexes.release(group, replaced, updated, out)
        if bump or now.mono_ms >= group.refresh_deadline_ms:
            topics = group.subscribed_topics_after(replaced, updated)
            metadata_hash = self.targets.topics.metadata_hash(topics)
            if bump or metadata_hash != group.metadata_hash:
                cause = self._cause(group, before, updated, bump, joins, reason)
                if cause.kind == SUBSCRIPTION_CHANGED and before is not None and not subscription_changed:
                    detail = f"{assignors_text(before)} -> {assignors_text(updated)}"
                    cause = Cause(CLIENT_ASSIGNORS_CHANGED, updated.member_id, detail)
                epoch = self.targets.bump_epoch(group, metadata_hash, cause, now, out)
            group.topic_changes = []
            group.refresh_deadline_ms = now.mono_ms + REFRESH_INTERVAL_MS
        return epoch, names_changed or regex_status != UNCHANGED

    def _cause(
        self,
        group: ConsumerGroup,
        before: ConsumerMember | None,
        updated: ConsumerMember,
        bump: bool,
        joins: bool,
        reason: str,
    ) -> Cause:
        member_id = updated.member_id
        of_client = f"; client reason: {reason}" if reason else ""
        if before is None:
            return Cause(MEMBER_JOINED, member_id, subscription_of(updated) + of_client)
        if not bump:
            # Changes from before the server started are not known.
            detail = "; ".join(group.topic_changes) or "topics of the subscription were created, deleted or extended"
            return Cause(TOPICS_CHANGED, "", detail)
        detail = f"{subscription_of(before)} -> {subscription_of(updated)}{of_client}"
        if before.member_id != member_id:
            return Cause(STATIC_MEMBER_REPLACED, member_id, f"replaces {before.member_id}; {detail}")
        return Cause(MEMBER_REJOINED if joins else SUBSCRIPTION_CHANGED, member_id, detail)

    def assign(
        self,
        group: ConsumerGroup,
        before: ConsumerMember | None,
        member: ConsumerMember,
        updated: ConsumerMember,
        epoch: int,
        interval_ms: int,
        now: Now,
        out: Outcome,
    ) -> tuple[int, Assignment]:
        """The epoch of the current target assignment, and the member's part of it. Raises GroupError."""
        if (
            group.assignment_epoch < epoch
            and self.targets.may_compute(group, interval_ms, now)
            and not self.client_assignors.ask(group, before, updated, epoch, now, out)
        ):
            return epoch, self.targets.compute(group, epoch, before, updated, now, out)
        return group.assignment_epoch, self.inherited(group, before, member)

    def inherited(self, group: ConsumerGroup, before: ConsumerMember | None, member: ConsumerMember) -> Assignment:
        """The member's part of the last target assignment, or that of the member it replaces."""
        if before is not None and before is not member:
            return group.target(before.member_id)
        return group.target(member.member_id)

    def reconcile(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        target_epoch: int,
        target: Assignment,
        subscription_changed: bool,
        owned: Owned | None,
        now: Now,
        out: Outcome,
    ) -> ConsumerMember:
        """Move the member one step towards its target, and add its record."""
        if not subscription_changed and member.is_reconciled_to(target_epoch):
            return member
        subscribed = dict.fromkeys(self.targets.topics.topic_ids(group.topics_of(member)), True)
        try:
            updated = Reconciliation(
                group,
                member,
                target_epoch,
                target,
                subscribed,
                subscription_changed,
                owned,
                answer_for(group, member, target_epoch),
            ).next()
        except GroupError:
            # The builder may include an assignment whose records are discarded now.
            group.forget_builder()
            raise
        if updated is member or updated.has_same_assignment(member):
            return member
        out.log = group.log
        out.records.append(current_record(group.group_id, updated))
        if updated.classic is None:
            if updated.state == UNREVOKED_PARTITIONS:
                self.membership.schedule_rebalance(group, updated, now, out)
            else:
                self.membership.cancel_rebalance(group, updated.member_id)
        return updated


def discarded(group: ConsumerGroup | None, out: Outcome) -> Outcome:
    """The outcome of a request that failed: only its warnings remain.

    Work that the request would have done for the group (None for one that did not exist yet) has to be done again.
    """
    left = Outcome()
    for fact in out.facts:
        if fact.level == WARNING:
            left.facts.append(fact)
    if group is not None:
        if has_epoch(out):
            group.request_refresh()
        if out.records and group.computation is not None:
            group.computation.epoch = NO_EPOCH
        if out.jobs:
            group.regex_job_running = False
    return left


def has_epoch(out: Outcome) -> bool:
    """Whether the outcome has an epoch of a group. Only then did it check the topics of the group, with a result."""
    for record in out.records:
        if isinstance(record.key, ConsumerGroupMetadataKey):
            return True
    return False


def predecessor_of(group: ConsumerGroup, member: ConsumerMember) -> ConsumerMember | None:
    """The member that this one replaces in the group; None for a new one.

    A member that takes over an instance id replaces its owner, even if it was a separate member before.
    """
    if member.instance_id is not None:
        static = group.static_member(member.instance_id)
        if static is not None:
            return static
    return group.members.get(member.member_id)


def abandoned_membership(
    group: ConsumerGroup, before: ConsumerMember | None, updated: ConsumerMember
) -> ConsumerMember | None:
    """The former membership of a member that now replaces another one, for example a static member."""
    if before is None or before.member_id == updated.member_id:
        return None
    return group.members.get(updated.member_id)


def check_instance(static: ConsumerMember | None, instance_id: str, member_id: str) -> ConsumerMember:
    """The static member, if the instance id is known and belongs to this member. Raises GroupError."""
    if static is None:
        raise GroupError(errors.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if static.member_id != member_id:
        raise GroupError(
            errors.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {static.member_id}.",
        )
    return static


def check_size(group: ConsumerGroup, member_id: str, size_max: int) -> None:
    """Check the group's size limit for this member. Raises GroupError."""
    if len(group.members) >= size_max and member_id not in group.members:
        raise GroupError(
            errors.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {size_max} members.",
        )


def subscription_of(member: ConsumerMember) -> str:
    """The subscription as a text for people."""
    names = ", ".join(member.topic_names[:10])
    if len(member.topic_names) > 10:
        names += f" and {len(member.topic_names) - 10} more"
    regex = member.regex()
    if regex is None:
        return f"[{names}]"
    return f"[{names}] and /{regex[:200]}/" if names else f"/{regex[:200]}/"


def new_member_id(entropy: bytes) -> str:
    """A member id as Kafka writes its UUIDs: 16 random bytes in URL-safe base64."""
    return base64.urlsafe_b64encode(entropy).decode("ascii").rstrip("=")
