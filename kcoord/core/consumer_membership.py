"""Members that leave or are put out of a consumer group, their timers, and what happens to them at start-up."""

from __future__ import annotations

from typing import final

from kcoord.core.config import CoreConfig
from kcoord.core.consumer_group import NO_TOKEN, NOT_ARMED, ConsumerGroup
from kcoord.core.consumer_member import (
    STATIC_LEAVE_EPOCH,
    UNREVOKED_PARTITIONS,
    ConsumerMember,
    PartitionEpochs,
)
from kcoord.core.consumer_migration import ConsumerMigration
from kcoord.core.consumer_records import current_record, regex_tombstone, removed_member
from kcoord.core.consumer_targets import ConsumerTargets
from kcoord.core.group_cause import (
    JOIN_TIMEOUT,
    REBALANCE_TIMEOUT,
    SESSION_TIMEOUT,
    SYNC_TIMEOUT,
    Cause,
)
from kcoord.core.group_store import GroupStore
from kcoord.core.outcome import (
    INFO,
    TIMER_CONSUMER_JOIN,
    TIMER_CONSUMER_REBALANCE,
    TIMER_CONSUMER_SESSION,
    TIMER_CONSUMER_SYNC,
    WARNING,
    Fact,
    Now,
    Outcome,
    Timer,
)
from kcoord.core.topics import TopicRegistry


@final
class ConsumerMembership:
    def __init__(
        self,
        config: CoreConfig,
        store: GroupStore,
        topics: TopicRegistry,
        targets: ConsumerTargets,
        migration: ConsumerMigration,
    ) -> None:
        self.config = config
        self.store = store
        self.topics = topics
        self.targets = targets
        self.migration = migration

    # ---- leaving

    def leave_for_a_while(self, group: ConsumerGroup, member: ConsumerMember, out: Outcome) -> None:
        """A static member stops and will be back: it keeps what it has until its session ends."""
        left = member.copy()
        left.member_epoch = STATIC_LEAVE_EPOCH
        left.revoking = {}
        # Whoever comes back under the instance id was given them before all else (KIP-1251).
        kept: PartitionEpochs = {}
        for topic_id, of_topic in member.assigned.items():
            kept[topic_id] = dict.fromkeys(of_topic, 0)
        left.assigned = kept
        out.log = group.log
        out.records.append(current_record(group.group_id, left))

    def remove(
        self, group: ConsumerGroup, members: list[ConsumerMember], cause: Cause, now: Now, out: Outcome
    ) -> None:
        """Members go for good: their partitions are free, and the group needs another assignment."""
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
        self.targets.bump_epoch(group, metadata_hash, cause, out)

    # ---- timers

    def session_timeout_ms(self, group: ConsumerGroup, member: ConsumerMember) -> int:
        """A member of the classic protocol said its own; for the others the group's config decides."""
        if member.classic is not None:
            return member.classic.session_timeout_ms
        return self.topics.group_config(group.group_id).session_timeout_ms

    def schedule_session(
        self, group: ConsumerGroup, member_id: str, timeout_ms: int, now: Now, out: Outcome
    ) -> None:
        """The member has until then. A timer that fires earlier stays and re-arms itself."""
        live = group.live_member(member_id)
        deadline_ms = now.mono_ms + timeout_ms
        live.deadline_ms = deadline_ms
        if live.armed_ms == NOT_ARMED or live.armed_ms > deadline_ms:
            live.session_token = self.store.next_token()
            live.armed_ms = deadline_ms
            out.timers.append(
                Timer(TIMER_CONSUMER_SESSION, group.group_id, member_id, live.session_token, deadline_ms)
            )

    def schedule_rebalance(
        self, group: ConsumerGroup, member: ConsumerMember, now: Now, out: Outcome
    ) -> None:
        """The member has until then to give up what it was asked for."""
        live = group.live_member(member.member_id)
        live.rebalance_token = self.store.next_token()
        live.rebalance_epoch = member.member_epoch
        deadline_ms = now.mono_ms + member.rebalance_timeout_ms
        out.timers.append(
            Timer(
                TIMER_CONSUMER_REBALANCE, group.group_id, member.member_id, live.rebalance_token, deadline_ms
            )
        )

    def cancel_rebalance(self, group: ConsumerGroup, member_id: str) -> None:
        live = group.live.get(member_id)
        if live is not None:
            live.rebalance_token = NO_TOKEN

    def expect_join(self, group: ConsumerGroup, member: ConsumerMember, now: Now, out: Outcome) -> None:
        """A classic member was told to join again: it has until then, counted from the first time it was told."""
        live = group.live_member(member.member_id)
        if live.join_token == NO_TOKEN:
            live.join_token = self.store.next_token()
            deadline_ms = now.mono_ms + member.rebalance_timeout_ms
            out.timers.append(
                Timer(TIMER_CONSUMER_JOIN, group.group_id, member.member_id, live.join_token, deadline_ms)
            )

    def expect_sync(self, group: ConsumerGroup, member: ConsumerMember, now: Now, out: Outcome) -> None:
        """A classic member has joined: it has to ask for its assignment in time."""
        live = group.live_member(member.member_id)
        live.join_token = NO_TOKEN
        live.sync_token = self.store.next_token()
        deadline_ms = now.mono_ms + member.rebalance_timeout_ms
        out.timers.append(
            Timer(TIMER_CONSUMER_SYNC, group.group_id, member.member_id, live.sync_token, deadline_ms)
        )

    def sync_received(self, group: ConsumerGroup, member_id: str) -> None:
        live = group.live.get(member_id)
        if live is not None:
            live.sync_token = NO_TOKEN

    def still_counts(self, timer: Timer) -> bool:
        """Whether its token is still the one that was armed last."""
        group = self.store.consumer_groups.get(timer.group_id)
        if group is None:
            return False
        live = group.live.get(timer.member_id)
        if live is None:
            return False
        kind = timer.kind
        if kind == TIMER_CONSUMER_SESSION:
            return live.session_token == timer.token
        if kind == TIMER_CONSUMER_REBALANCE:
            return live.rebalance_token == timer.token
        if kind == TIMER_CONSUMER_JOIN:
            return live.join_token == timer.token
        return live.sync_token == timer.token

    def handle_timer(self, timer: Timer, now: Now) -> Outcome:
        """A timer fired. It counts only if its token is still the one that was armed last."""
        out = Outcome()
        group = self.store.consumer_groups.get(timer.group_id)
        if group is None or not self.still_counts(timer):
            return out
        member = group.members.get(timer.member_id)
        if member is None:
            return out
        live = group.live_member(member.member_id)
        kind = timer.kind
        if kind == TIMER_CONSUMER_SESSION:
            if now.mono_ms < live.deadline_ms:
                # There were heartbeats since it was armed.
                live.armed_ms = live.deadline_ms
                out.timers.append(
                    Timer(
                        TIMER_CONSUMER_SESSION,
                        timer.group_id,
                        timer.member_id,
                        timer.token,
                        live.deadline_ms,
                    )
                )
                return out
            live.armed_ms = NOT_ARMED
            self._expire(group, member, SESSION_TIMEOUT, "the member session expired", now, out)
        elif kind == TIMER_CONSUMER_REBALANCE:
            if member.member_epoch == live.rebalance_epoch:
                detail = (
                    f"it did not leave epoch {member.member_epoch} within {member.rebalance_timeout_ms} ms"
                )
                self._expire(group, member, REBALANCE_TIMEOUT, detail, now, out)
        elif member.classic is None:
            # It speaks the new protocol by now, under the same id.
            pass
        elif kind == TIMER_CONSUMER_JOIN:
            detail = "the classic member did not join again within the rebalance timeout"
            self._expire(group, member, JOIN_TIMEOUT, detail, now, out)
        elif kind == TIMER_CONSUMER_SYNC:
            detail = "the classic member did not ask for its assignment within the rebalance timeout"
            self._expire(group, member, SYNC_TIMEOUT, detail, now, out)
        return out

    def _expire(
        self, group: ConsumerGroup, member: ConsumerMember, kind: str, detail: str, now: Now, out: Outcome
    ) -> None:
        out.facts.append(
            Fact(
                WARNING,
                "consumer_group_member_fenced",
                {
                    "group": group.group_id,
                    "member": member.member_id,
                    "client": member.client_id,
                    "host": member.client_host,
                    "timer": kind,
                    "detail": detail,
                },
            )
        )
        self.remove(group, [member], Cause(kind, member.member_id, detail), now, out)

    # ---- start-up

    def loaded(self, now: Now, out: Outcome) -> None:
        """The log was replayed: every member gets a whole session, and those that give up partitions their time."""
        members = 0
        for group in self.store.consumer_groups.values():
            members += len(group.members)
            for member in group.members.values():
                timeout_ms = self.session_timeout_ms(group, member)
                self.schedule_session(group, member.member_id, timeout_ms, now, out)
                if member.state == UNREVOKED_PARTITIONS and member.classic is None:
                    self.schedule_rebalance(group, member, now, out)
        if self.store.consumer_groups:
            fields: dict[str, object] = {"groups": len(self.store.consumer_groups), "members": members}
            out.facts.append(Fact(INFO, "consumer_groups_loaded", fields))
