"""Members that leave or are removed, the timers of members, and the start-up of consumer groups."""

from __future__ import annotations

from typing import final

from kcoord.core.cause import (
    JOIN_TIMEOUT,
    REBALANCE_TIMEOUT,
    SESSION_TIMEOUT,
    SYNC_TIMEOUT,
    Cause,
)
from kcoord.core.consumer.migration import ConsumerMigration
from kcoord.core.consumer.targets import ConsumerTargets
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.members import (
    STATIC_LEAVE_EPOCH,
    UNREVOKED_PARTITIONS,
    ConsumerMember,
    PartitionEpochs,
)
from kcoord.core.groups.records import current_record, regex_tombstone, removed_member
from kcoord.core.groups.store import GroupStore
from kcoord.core.groups.timers import NO_TOKEN, NOT_ARMED
from kcoord.core.outcome import (
    INFO,
    TIMER_CONSUMER_JOIN,
    TIMER_CONSUMER_REBALANCE,
    TIMER_CONSUMER_SYNC,
    TIMER_SESSION,
    Fact,
    Now,
    Outcome,
    Timer,
)
from kcoord.core.topics.registry import TopicRegistry


@final
class ConsumerMembership:
    def __init__(
        self,
        store: GroupStore,
        topics: TopicRegistry,
        targets: ConsumerTargets,
        migration: ConsumerMigration,
    ) -> None:
        self.store = store
        self.topics = topics
        self.targets = targets
        self.migration = migration

    # ---- leaving

    def leave_temporarily(self, group: ConsumerGroup, member: ConsumerMember, out: Outcome) -> None:
        """A static member leaves temporarily: it keeps its partitions until its session expires."""
        left = member.copy()
        left.member_epoch = STATIC_LEAVE_EPOCH
        left.revoking = {}
        # Assignment epoch 0, so that offset commits of the returning member are valid in any epoch (KIP-1251).
        kept: PartitionEpochs = {}
        for topic_id, of_topic in member.assigned.items():
            kept[topic_id] = dict.fromkeys(of_topic, 0)
        left.assigned = kept
        out.log = group.log
        out.records.append(current_record(group.group_id, left))

    def remove(self, group: ConsumerGroup, members: list[ConsumerMember], cause: Cause, now: Now, out: Outcome) -> None:
        """Remove members for good: their partitions become free, and the group gets a new epoch."""
        if not members:
            return
        if self.migration.downgrade_without(group, members, now, out):
            return
        out.log = group.log
        counts: dict[str, int] = {}
        for member in members:
            out.records.extend(removed_member(group.group_id, member.member_id))
            regex = member.regex()
            if regex is not None:
                counts[regex] = counts.get(regex, 0) + 1
        for regex, count in counts.items():
            if group.regex_counts.get(regex, 0) == count:
                out.records.append(regex_tombstone(group.group_id, regex))
        metadata_hash = self.targets.topics.metadata_hash(group.subscribed_topics_after(members, None))
        self.targets.bump_epoch(group, metadata_hash, cause, now, out)

    # ---- timers

    def session_timeout_ms(self, group: ConsumerGroup, member: ConsumerMember) -> int:
        """Members of the classic protocol choose it; for the others the group's config decides."""
        if member.classic is not None:
            return member.classic.session_timeout_ms
        return self.topics.group_config(group.group_id).session_timeout_ms

    def schedule_rebalance(self, group: ConsumerGroup, member: ConsumerMember, now: Now, out: Outcome) -> None:
        """Arm the deadline for revoking the partitions that are no longer in the member's target."""
        timers = self.store.timers.of_member(group.group_id, member.member_id)
        timers.rebalance_epoch = member.member_epoch
        timers.rebalance_token = self._arm(TIMER_CONSUMER_REBALANCE, group, member, now, out)

    def cancel_rebalance(self, group: ConsumerGroup, member_id: str) -> None:
        timers = self.store.timers.find(group.group_id, member_id)
        if timers is not None:
            timers.rebalance_token = NO_TOKEN

    def expect_join(self, group: ConsumerGroup, member: ConsumerMember, now: Now, out: Outcome) -> None:
        """A classic member was answered REBALANCE_IN_PROGRESS: arm its deadline to rejoin, unless
        it is armed already.
        """
        timers = self.store.timers.of_member(group.group_id, member.member_id)
        if timers.join_token == NO_TOKEN:
            timers.join_token = self._arm(TIMER_CONSUMER_JOIN, group, member, now, out)

    def expect_sync(self, group: ConsumerGroup, member: ConsumerMember, now: Now, out: Outcome) -> None:
        """A classic member has joined: arm its deadline for SyncGroup."""
        timers = self.store.timers.of_member(group.group_id, member.member_id)
        timers.join_token = NO_TOKEN
        timers.sync_token = self._arm(TIMER_CONSUMER_SYNC, group, member, now, out)

    def _arm(self, kind: int, group: ConsumerGroup, member: ConsumerMember, now: Now, out: Outcome) -> int:
        """Arm a timer with the member's rebalance timeout, and return its token."""
        deadline_ms = now.mono_ms + member.rebalance_timeout_ms
        return self.store.timers.arm(kind, group.group_id, member.member_id, deadline_ms, out)

    def sync_received(self, group: ConsumerGroup, member_id: str) -> None:
        timers = self.store.timers.find(group.group_id, member_id)
        if timers is not None:
            timers.sync_token = NO_TOKEN

    def handle_timer(self, timer: Timer, now: Now) -> Outcome:
        """A timer fired. It counts only if its token is the one that was armed last."""
        out = Outcome()
        group = self.store.consumer_groups.get(timer.group_id)
        if group is None or not self.store.timers.is_current(timer):
            return out
        member = group.members.get(timer.member_id)
        if member is None:
            return out
        timers = self.store.timers.of_member(group.group_id, member.member_id)
        kind = timer.kind
        if kind == TIMER_SESSION:
            if self.store.timers.is_session_over(timer, now, out):
                self._expire(group, member, SESSION_TIMEOUT, "the member session expired", now, out)
        elif kind == TIMER_CONSUMER_REBALANCE:
            timers.rebalance_token = NO_TOKEN
            if member.member_epoch == timers.rebalance_epoch:
                detail = f"the member did not leave epoch {member.member_epoch} within {member.rebalance_timeout_ms} ms"
                self._expire(group, member, REBALANCE_TIMEOUT, detail, now, out)
        elif kind == TIMER_CONSUMER_JOIN:
            timers.join_token = NO_TOKEN
            detail = "the classic member did not rejoin within the rebalance timeout"
            self._expire(group, member, JOIN_TIMEOUT, detail, now, out)
        elif kind == TIMER_CONSUMER_SYNC:
            timers.sync_token = NO_TOKEN
            detail = "the classic member did not send SyncGroup within the rebalance timeout"
            self._expire(group, member, SYNC_TIMEOUT, detail, now, out)
        return out

    def keep_timers(self, group: ConsumerGroup, member: ConsumerMember, now: Now, out: Outcome) -> None:
        """Arm the timers that the member must have, and disarm those it must not have."""
        timers = self.store.timers.of_member(group.group_id, member.member_id)
        if timers.armed_ms == NOT_ARMED:
            timeout_ms = self.session_timeout_ms(group, member)
            self.store.timers.start_session(group.group_id, member.member_id, timeout_ms, now, out)
        is_away = member.member_epoch == STATIC_LEAVE_EPOCH
        if member.classic is not None or member.state != UNREVOKED_PARTITIONS or is_away:
            timers.rebalance_token = NO_TOKEN
        elif timers.rebalance_token == NO_TOKEN or timers.rebalance_epoch != member.member_epoch:
            self.schedule_rebalance(group, member, now, out)
        if member.classic is None:
            # A classic member became one of the consumer protocol under the same id.
            timers.join_token = NO_TOKEN
            timers.sync_token = NO_TOKEN

    def _expire(
        self, group: ConsumerGroup, member: ConsumerMember, kind: str, detail: str, now: Now, out: Outcome
    ) -> None:
        out.facts.append(
            Fact(
                INFO,
                "consumer_group_member_fenced",
                {
                    "group": group.group_id,
                    "member": member.member_id,
                    "client": member.client_id,
                    "host": member.client_host,
                    "timer": kind,
                },
            )
        )
        self.remove(group, [member], Cause(kind, member.member_id, detail), now, out)

    # ---- start-up

    def loaded(self, now: Now, out: Outcome) -> None:
        """The log was replayed: every member gets a full session, and revoking members a full rebalance timeout."""
        members = 0
        for group in self.store.consumer_groups.values():
            members += len(group.members)
            for member in group.members.values():
                self.keep_timers(group, member, now, out)
        if self.store.consumer_groups:
            fields: dict[str, object] = {"groups": len(self.store.consumer_groups), "members": members}
            out.facts.append(Fact(INFO, "consumer_groups_loaded", fields))
