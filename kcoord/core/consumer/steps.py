"""What a heartbeat and a classic member's JoinGroup have in common, once it is known which member speaks.

A request about a member is three steps, all of them records of one batch: the member as it is now, and the group's
epoch with it (`change_member`); a target assignment where the epoch is ahead of the last one (`assign`); and the
member's own way to that (`reconcile`).
"""

from __future__ import annotations

import base64
from typing import Final, final

from kcoord.core.assignors.spec import Assignment
from kcoord.core.client_assignors.computation import NO_EPOCH
from kcoord.core.client_assignors.offers import ClientAssignors, answer_for, assignors_text
from kcoord.core.consumer.membership import ConsumerMembership
from kcoord.core.consumer.reconcile import Owned, Reconciliation
from kcoord.core.consumer.regex import CHANGED_AND_RESOLVED, UNCHANGED, ConsumerRegexes
from kcoord.core.consumer.targets import ConsumerTargets
from kcoord.core.groups.cause import (
    CLIENT_ASSIGNORS_CHANGED,
    MEMBER_JOINED,
    MEMBER_REJOINED,
    STATIC_MEMBER_REPLACED,
    SUBSCRIPTION_CHANGED,
    TOPICS_CHANGED,
    Cause,
)
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.errors import GroupError
from kcoord.core.groups.members import UNREVOKED_PARTITIONS, ConsumerMember
from kcoord.core.groups.records import current_record, member_record
from kcoord.core.outcome import WARNING, Now, Outcome
from kcoord.protocol import errors

# A broker looks at the topics of a group when they change, and otherwise hardly ever.
REFRESH_INTERVAL_MS: Final = 2147483647


@final
class ConsumerSteps:
    def __init__(
        self, targets: ConsumerTargets, regexes: ConsumerRegexes, membership: ConsumerMembership
    ) -> None:
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
        """Say what is new of the member. Answers the group's epoch, and whether the member's subscription changed.

        `before` stands in the group where this one will (None for nobody), `member` is what it was when the request
        came, a static one under its new id already, and `updated` what it is with the request. `reason` is what a
        client says of itself. Raises GroupError.
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
        # Of an expression that is not resolved yet the group hears when it is.
        subscription_changed = names_changed or regex_status == CHANGED_AND_RESOLVED
        bump = (
            subscription_changed
            or group.is_unbalanced
            or updated.client_assignors != member.client_assignors
        )
        group.is_unbalanced = False
        replaced = [] if before is None else [before]
        given_up = given_up_membership(group, before, updated)
        if given_up is not None:
            # What was meant for it has to go to somebody, though no subscription may have changed.
            bump = True
            replaced.append(given_up)
            # It knows the member by what was meant for it.
            group.forget_builder()
            self.regexes.give_up(group, replaced, updated, out)
        if bump or now.mono_ms >= group.refresh_deadline_ms:
            topics = group.subscribed_topics_after(replaced, updated)
            metadata_hash = self.targets.topics.metadata_hash(topics)
            if bump or metadata_hash != group.metadata_hash:
                cause = self._cause(group, before, updated, bump, joins, reason)
                if cause.kind == SUBSCRIPTION_CHANGED and before is not None and not subscription_changed:
                    detail = f"{assignors_text(before)} -> {assignors_text(updated)}"
                    cause = Cause(CLIENT_ASSIGNORS_CHANGED, updated.member_id, detail)
                epoch = self.targets.bump_epoch(group, metadata_hash, cause, out)
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
            # What happened while the server was down, or before, is not known any more.
            detail = "; ".join(group.topic_changes) or "topics of the subscription were created, deleted or grew"
            return Cause(TOPICS_CHANGED, "", detail)
        detail = f"{subscription_of(before)} -> {subscription_of(updated)}{of_client}"
        if before.member_id != member_id:
            return Cause(STATIC_MEMBER_REPLACED, member_id, f"in the place of {before.member_id}; {detail}")
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
        """The epoch of the target assignment in force and the member's part of it. Raises GroupError."""
        if (
            group.assignment_epoch < epoch
            and self.targets.may_compute(group, interval_ms, now)
            and not self.client_assignors.ask(group, before, updated, epoch, now, out)
        ):
            return epoch, self.targets.compute(group, epoch, before, updated, now, out)
        return group.assignment_epoch, self.inherited(group, before, member)

    def inherited(
        self, group: ConsumerGroup, before: ConsumerMember | None, member: ConsumerMember
    ) -> Assignment:
        """The member's part of the last target assignment, or that of the one whose place it takes."""
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
        """Move the member a step towards its target, and say so with a record."""
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
            # The builder may know of an assignment whose records are dropped now.
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


def dropped(group: ConsumerGroup | None, out: Outcome) -> Outcome:
    """What is left of an outcome whose request failed: warnings.

    What it would have changed in the group (None for one that was still to be made) is to be tried again.
    """
    left = Outcome()
    for fact in out.facts:
        if fact.level == WARNING:
            left.facts.append(fact)
    if group is not None:
        if out.records:
            group.request_refresh()
            if group.computation is not None:
                group.computation.epoch = NO_EPOCH
        if out.jobs:
            group.regex_job_running = False
    return left


def known_before(group: ConsumerGroup, member: ConsumerMember) -> ConsumerMember | None:
    """The member of the group in whose place this one stands or will stand; None for a new one.

    A member that takes over the instance id of another one stands in that one's place, also if it was a member before.
    """
    if member.instance_id is not None:
        static = group.static_member(member.instance_id)
        if static is not None:
            return static
    return group.members.get(member.member_id)


def given_up_membership(
    group: ConsumerGroup, before: ConsumerMember | None, updated: ConsumerMember
) -> ConsumerMember | None:
    """What a member was that takes the place of another one, of a static member: it gives up all of that."""
    if before is None or before.member_id == updated.member_id:
        return None
    return group.members.get(updated.member_id)


def unknown_member(group: ConsumerGroup, member_id: str) -> GroupError:
    return GroupError(
        errors.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}."
    )


def known_member(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    """The member, if there is one. Raises GroupError."""
    member = group.members.get(member_id)
    if member is None:
        raise unknown_member(group, member_id)
    return member


def check_instance(static: ConsumerMember | None, instance_id: str, member_id: str) -> ConsumerMember:
    """The static member, if the instance id is known and this member's. Raises GroupError."""
    if static is None:
        raise GroupError(errors.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if static.member_id != member_id:
        raise GroupError(
            errors.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {static.member_id}.",
        )
    return static


def check_size(group: ConsumerGroup, member_id: str, size_max: int) -> None:
    """Whether there is room for this member. Raises GroupError."""
    if len(group.members) >= size_max and member_id not in group.members:
        raise GroupError(
            errors.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {size_max} members.",
        )


def subscription_of(member: ConsumerMember) -> str:
    """For people."""
    names = ", ".join(member.topic_names[:10])
    if len(member.topic_names) > 10:
        names += f" and {len(member.topic_names) - 10} more"
    regex = member.regex()
    if regex is None:
        return f"[{names}]"
    return f"[{names}] and /{regex[:200]}/" if names else f"/{regex[:200]}/"


def new_member_id(entropy: bytes) -> str:
    """An id as Kafka writes its UUIDs: 16 random bytes in URL-safe base64."""
    return base64.urlsafe_b64encode(entropy).decode("ascii").rstrip("=")
