"""From what a member has to what it is to have, so that no partition is ever with two members (KIP-848).

A member first gives up what is not in its target (UNREVOKED_PARTITIONS, in its old epoch); once it no longer reports
those partitions it moves to the target's epoch and is given what is free; as long as some of its target is still with
others it waits for that (UNRELEASED_PARTITIONS), and when it has all of it, it is STABLE.
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
)
from kcoord.protocol import errors

# What a member says it has: topic id -> partitions. None where a request does not say.
Owned = dict[bytes, list[int]]


@final
class Reconciliation:
    """One member's step towards its target. `subscribed`: ids of the topics it subscribes to now, as keys."""

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
        # What the target's assignor says to this member; it is told with the target's epoch.
        self.answer = answer

    def next(self) -> ConsumerMember:
        """The member after this step: the same object where it cannot move."""
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
            # A state that a later release wrote: it begins anew, with nothing.
            raise GroupError(
                errors.FENCED_MEMBER_EPOCH,
                "The consumer group member is in an unknown state. "
                "The member must abandon all its partitions and rejoin.",
            )
        return self._towards_target(self.target_epoch)

    def _owns_any(self, partitions: PartitionEpochs) -> bool:
        """Whether the member still reports one of them; one that reports nothing may have all."""
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
        """Only what it no longer subscribes to is taken away; what it is given waits for the next target."""
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
        # Otherwise it gave them up already.
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
                    # What it is giving up itself nobody else can have.
                    own_revoking is None or partition not in own_revoking
                ):
                    waits = True
                else:
                    free.append(partition)
            if free:
                given[topic_id] = free
        updated = member.copy()
        updated.assigned = kept
        if revoking and self._owns_any(revoking):
            updated.state = UNREVOKED_PARTITIONS
            updated.advance_to(member_epoch)
            updated.revoking = revoking
            return updated
        for topic_id, free in given.items():
            of_topic = dict(kept.get(topic_id, {}))
            for partition in free:
                of_topic[partition] = self.target_epoch
            # In order, as brokers write and tell them.
            kept[topic_id] = dict(sorted(of_topic.items()))
        updated.state = UNRELEASED_PARTITIONS if waits else STABLE
        updated.advance_to(self.target_epoch)
        updated.revoking = {}
        updated.answer = self.answer
        return updated
