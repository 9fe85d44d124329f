"""Reconciliation: from a member's current assignment to its target (KIP-848).

No partition ever has two owners, because a member takes these steps in this order:

1. It revokes what is not in its target, and stays in its old epoch (UNREVOKED_PARTITIONS).
2. Once its heartbeat no longer reports those partitions, they are free for others. It moves to the epoch of the target
and gets those partitions of its target that are free.
3. While some of its target is still owned by other members it waits for them (UNRELEASED_PARTITIONS). When it owns all
of its target it is STABLE.

A partition becomes free only by a record in which its owner no longer has it. Revoking and assigning in one step would
give it to a second owner before the first one knows.
"""

from __future__ import annotations

from typing import final

from kcoord.core.assignors.spec import Assignment
from kcoord.core.groups.consumer import NO_OWNER, ConsumerGroup
from kcoord.core.groups.errors import GroupError
from kcoord.core.groups.members import (
    NO_ANSWER,
    STABLE,
    UNKNOWN_STATE,
    UNRELEASED_PARTITIONS,
    UNREVOKED_PARTITIONS,
    AssignorAnswer,
    ConsumerMember,
    PartitionEpochs,
    check_transition,
)
from kcoord.protocol import errors

# The partitions that a member reports: topic id -> partitions. None if the request has no such field.
Owned = dict[bytes, list[int]]


@final
class Reconciliation:
    """One step of a member towards its target. `subscribed` has the ids of its subscribed topics as keys."""

    def __init__(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        target_epoch: int,
        target: Assignment,
        subscribed: dict[bytes, bool],
        subscription_changed: bool,
        owned: Owned | None,
        answer: AssignorAnswer = NO_ANSWER,
    ) -> None:
        self.group = group
        self.member = member
        self.target_epoch = target_epoch
        self.target = target
        self.subscribed = subscribed
        self.subscription_changed = subscription_changed
        self.owned = owned
        # The client-side assignor's answer for this member, which it gets together with the target's epoch.
        self.answer = answer

    def next(self) -> ConsumerMember:
        """The member after this step; the same object if it cannot move."""
        member = self.member
        state = member.state
        if state == STABLE:
            if member.member_epoch != self.target_epoch:
                return self._towards_target(member.member_epoch)
            return self._without_unsubscribed() if self.subscription_changed else member
        if state == UNREVOKED_PARTITIONS:
            if self._owns_any(member.revoking):
                return self._without_unsubscribed() if self.subscription_changed else member
            return self._towards_target(member.member_epoch)
        if state == UNRELEASED_PARTITIONS:
            return self._towards_target(member.member_epoch)
        if state == UNKNOWN_STATE and (self.owned is None or self.owned):
            # A later release wrote this state. The member has to rejoin without partitions.
            raise GroupError(
                errors.FENCED_MEMBER_EPOCH,
                "The consumer group member is in an unknown state. "
                "The member must abandon all its partitions and rejoin.",
            )
        return self._towards_target(self.target_epoch)

    def _owns_any(self, partitions: PartitionEpochs) -> bool:
        """Whether the member still reports one of these partitions. One that reports nothing may own all of them."""
        if self.owned is None:
            return True
        for topic_id, owned in self.owned.items():
            of_topic = partitions.get(topic_id)
            if of_topic is not None:
                for partition in owned:
                    if partition in of_topic:
                        return True
        return False

    def _without_unsubscribed(self) -> ConsumerMember:
        """Revoke only unsubscribed topics. New partitions come with the next target."""
        member = self.member
        kept: PartitionEpochs = {}
        revoking: PartitionEpochs = dict(member.revoking)
        for topic_id, of_topic in member.assigned.items():
            if topic_id in self.subscribed:
                kept[topic_id] = of_topic
            elif topic_id in revoking:
                revoking[topic_id] = {**revoking[topic_id], **of_topic}
            else:
                revoking[topic_id] = of_topic
        if len(kept) == len(member.assigned):
            return member
        updated = member.copy()
        updated.advance_to(member.member_epoch)
        updated.assigned = kept
        if revoking and self._owns_any(revoking):
            updated.state = UNREVOKED_PARTITIONS
            updated.revoking = revoking
        # Otherwise the member has revoked them already.
        check_transition(self.group.group_id, member, updated)
        return updated

    def _towards_target(self, member_epoch: int) -> ConsumerMember:
        member = self.member
        kept: PartitionEpochs = {}
        revoking: PartitionEpochs = {}
        given: Assignment = {}
        waits = False
        for topic_id, of_topic in member.assigned.items():
            target = self.target.get(topic_id) if topic_id in self.subscribed else None
            wanted = {} if target is None else dict.fromkeys(target, True)
            keep = {p: epoch for p, epoch in of_topic.items() if p in wanted}
            if keep:
                kept[topic_id] = keep
            if len(keep) != len(of_topic):
                revoking[topic_id] = {p: epoch for p, epoch in of_topic.items() if p not in wanted}
        for topic_id, partitions in self.target.items():
            if topic_id not in self.subscribed:
                continue
            kept_of_topic = kept.get(topic_id)
            own_revoking = member.revoking.get(topic_id)
            free: list[int] = []
            for partition in partitions:
                if kept_of_topic is not None and partition in kept_of_topic:
                    continue
                if self.group.partition_epoch(topic_id, partition) != NO_OWNER and (
                    # Partitions that this member is still revoking have no other owner.
                    own_revoking is None or partition not in own_revoking
                ):
                    waits = True
                else:
                    free.append(partition)
            if free:
                given[topic_id] = free
        updated = member.copy()
        updated.assigned = kept
        # Revoke first and assign nothing: the member stays in its epoch until it no longer reports these partitions.
        if revoking and self._owns_any(revoking):
            updated.state = UNREVOKED_PARTITIONS
            updated.advance_to(member_epoch)
            updated.revoking = revoking
            check_transition(self.group.group_id, member, updated)
            return updated
        for topic_id, free in given.items():
            of_topic = dict(kept.get(topic_id, {}))
            for partition in free:
                of_topic[partition] = self.target_epoch
            # In the order in which brokers write and send them.
            kept[topic_id] = dict(sorted(of_topic.items()))
        updated.state = UNRELEASED_PARTITIONS if waits else STABLE
        updated.advance_to(self.target_epoch)
        updated.revoking = {}
        updated.answer = self.answer
        check_transition(self.group.group_id, member, updated)
        return updated
