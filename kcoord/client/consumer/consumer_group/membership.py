"""The consumer's membership in a consumer group (KIP-848): what the user's calls do, and what goes on beside them.

The coordinator computes the assignment and moves each member to it alone: there is no barrier, and a member goes on
reading what it keeps. Three tasks work beside the user: one sends heartbeats, one looks up topics that are known by
their ids only, and one commits before partitions are revoked. They change what the member *should* have. What it *has*
changes in `poll`, `unsubscribe` and `close`, where the listener is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import final

from kcoord.client.consumer.consumer_group.assignor import ClientAssignor
from kcoord.client.consumer.consumer_group.computing import Computing
from kcoord.client.consumer.consumer_group.heartbeats import Heartbeats
from kcoord.client.consumer.consumer_group.member import Fixed, Member, Owned, Plan, Wanted
from kcoord.client.consumer.consumer_group.state import BEATING, MemberState
from kcoord.client.consumer.consumer_group.topic_ids import TopicIds
from kcoord.client.consumer.membership import GroupHost, end_tasks
from kcoord.client.consumer.subscription import Mode
from kcoord.client.deadline import Deadline
from kcoord.client.errors import KafkaError, error_for
from kcoord.client.metadata import GroupMetadata, TopicPartition
from kcoord.protocol import errors
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse

_REJOINING = (MemberState.FENCED, MemberState.STALE)


@final
class ConsumerGroupMembership:
    """A `Membership` that speaks the consumer group protocol."""

    def __init__(self, host: GroupHost, assignors: Sequence[ClientAssignor] = ()) -> None:
        options = host.options
        self._host = host
        rack = options.client_rack or None
        timeout_ms = int(options.max_poll_interval_s * 1000)
        self._member = Member(
            Fixed(host.group_id, options.group_instance_id, rack, timeout_ms, options.group_remote_assignor)
        )
        self._wanted = Wanted()
        self._heartbeats = Heartbeats(host, self._member, lambda: self._wanted, self._before_beat, self._after_beat)
        self._computing = Computing(host, self._member, assignors, self._heartbeats.kick, self._report)
        self._topic_ids = TopicIds(host, lambda: self._member.target or ())
        self._task: asyncio.Task[None] | None = None
        # The commit before a revocation, and the partitions that it covers.
        self._commit: asyncio.Task[None] | None = None
        self._committed: frozenset[TopicPartition] = frozenset()
        # The number of answers when a commit was refused for its epoch, and that epoch.
        self._refused = (-1, -1)

    # --- Membership

    def subscription_changed(self) -> None:
        subscription = self._host.subscription
        if subscription.mode is Mode.SERVER_PATTERN:
            wanted = Wanted(frozenset(), subscription.server_pattern or "", self._wanted.assignors)
        else:
            wanted = Wanted(subscription.topics, "", self._wanted.assignors)
        if wanted != self._wanted:
            self._wanted = wanted
            if self._member.state in BEATING:
                self._heartbeats.kick()
        self._host.wake()

    async def poll(self, deadline: Deadline) -> None:
        self._heartbeats.note_poll()
        self._check()
        if self._member.state is MemberState.UNSUBSCRIBED:
            self._join()
        while True:
            state = self._member.state
            if state is MemberState.FATAL:
                await self._lose()
                raise self._failure()
            if state in _REJOINING:
                await self._lose()
                if self._member.state in _REJOINING:
                    self._join()
            elif state is not MemberState.RECONCILING or not await self._reconcile(deadline):
                break
        if self._member.state is not MemberState.RECONCILING:
            self._computing.tell()
        self._heartbeats.note_poll()
        problem, self._heartbeats.problem = self._heartbeats.problem, None
        if problem is not None:
            raise problem

    async def unsubscribe(self, deadline: Deadline) -> None:
        await self._leave(deadline)

    async def close(self, deadline: Deadline) -> None:
        await self._leave(deadline)

    def group_metadata(self) -> GroupMetadata:
        options = self._host.options
        if not self._member.is_in_group:
            return GroupMetadata(self._host.group_id, group_instance_id=options.group_instance_id)
        return GroupMetadata(self._host.group_id, self._member.epoch, self._member.member_id, options.group_instance_id)

    def is_member(self) -> bool:
        return self._member.is_in_group

    def commit_refused(self, code: int) -> KafkaError:
        """A heartbeat follows at once: its answer has the new epoch, or says that the member is fenced."""
        member = self._member
        last, self._refused = self._refused, (self._heartbeats.answers, member.epoch)
        if member.state in BEATING and code != errors.REBALANCE_IN_PROGRESS:
            self._heartbeats.kick()
        subject = f"group {self._host.group_id}"
        if code == errors.STALE_MEMBER_EPOCH and member.is_in_group:
            is_hopeless = last[1] == member.epoch and last[0] != self._heartbeats.answers
            if not is_hopeless:
                return error_for(errors.COORDINATOR_LOAD_IN_PROGRESS, subject, "the member epoch is about to change")
        return error_for(code, subject)

    async def enforce_rebalance(self) -> None:
        return None

    # --- tasks

    def _join(self) -> None:
        self._member.join()
        if self._task is None:
            self._task = asyncio.create_task(self._heartbeats.run(), name="kcoord heartbeats")
            self._task.add_done_callback(lambda _: self._host.wake())
        self._heartbeats.kick()

    def _check(self) -> None:
        """Raise what has ended the task of heartbeats: a fault of this client."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    def _failure(self) -> KafkaError:
        failure = self._heartbeats.failure
        return failure if failure is not None else error_for(errors.UNKNOWN_SERVER_ERROR, "the consumer group")

    async def _before_beat(self) -> None:
        await self._computing.check_support()
        self._wanted = replace(self._wanted, assignors=self._computing.offers())

    def _after_beat(self, answer: ConsumerGroupHeartbeatResponse | None) -> None:
        self._topic_ids.search()
        if answer is not None:
            self._computing.answered(answer.should_compute_assignment)
        if self._member.assignor_answer is not None:
            self._host.wake()

    def _report(self, error: KafkaError) -> None:
        self._heartbeats.problem = error
        self._host.wake()

    # --- reconciliation

    def _plan(self) -> Plan:
        target = self._member.target or ()
        return self._member.plan(self._topic_ids.names(target))

    async def _reconcile(self, deadline: Deadline) -> bool:
        """One step to the target. Returns whether there may be another one now."""
        plan = self._plan()
        if plan.unresolved:
            self._topic_ids.search()
        self._keep([partition for partition in plan.whole if partition not in plan.revoked])
        if plan.revoked:
            if not await self._commit_before(plan.revoked, deadline):
                return False
            plan = self._plan()
            if self._member.state is MemberState.RECONCILING and self._committed.issuperset(plan.revoked):
                await self._revoke(plan.revoked)
            return True
        if plan.added and self._member.awaits_answer:
            return False
        if plan.added or self._member.has_new_target:
            try:
                await self._assign(plan)
            finally:
                self._member.acknowledge()
                self._heartbeats.kick()
            return True
        return False

    async def _commit_before(self, revoked: Collection[TopicPartition], deadline: Deadline) -> bool:
        """Commit what was consumed, over several polls if need be. Returns whether that is done."""
        if self._commit is not None and self._commit.done() and not self._committed.issuperset(revoked):
            self._commit = None
        if self._commit is None:
            self._committed = frozenset(revoked)
            limit = Deadline(self._host.options.max_poll_interval_s, "the commit before a revocation")
            self._commit = asyncio.create_task(self._host.prepare_to_revoke(revoked, limit), name="kcoord last commit")
            self._commit.add_done_callback(lambda _: self._host.wake())
        if not self._commit.done():
            await asyncio.wait([self._commit], timeout=deadline.left_s())
        if not self._commit.done():
            return False
        if not self._commit.cancelled():
            self._commit.result()
        return True

    def _keep(self, partitions: Collection[TopicPartition]) -> None:
        """Go on reading partitions that were about to be revoked, and are not any more."""
        for partition in partitions:
            state = self._host.subscription.partitions.get(partition)
            if state is not None and state.is_revoking and partition in self._member.owned:
                state.is_revoking = False

    async def _revoke(self, partitions: Collection[TopicPartition]) -> None:
        self._commit = None
        self._committed = frozenset()
        try:
            await self._host.revoke(partitions)
        finally:
            self._member.give_up(partitions)
            self._heartbeats.kick()

    async def _assign(self, plan: Plan) -> None:
        subscription = self._host.subscription
        if subscription.mode is Mode.SERVER_PATTERN:
            subscription.topics = frozenset(partition.topic for partition in plan.whole)
        try:
            await self._host.assign(plan.whole)
        finally:
            self._member.own(self._adopted(plan.whole))

    def _adopted(self, whole: Owned) -> Owned:
        """What the user has really got: a listener that calls `unsubscribe` has got nothing."""
        assigned = self._host.subscription.assigned()
        return {partition: topic_id for partition, topic_id in whole.items() if partition in assigned}

    async def _lose(self) -> None:
        """Everything belongs to others already."""
        await self._end_commit()
        await self._computing.close()
        partitions = sorted(self._host.subscription.assigned())
        try:
            await self._host.lose(partitions)
        finally:
            self._member.own({})

    async def _end_commit(self) -> None:
        commit, self._commit = self._commit, None
        self._committed = frozenset()
        if commit is not None:
            await end_tasks([commit])

    # --- the end

    async def _leave(self, deadline: Deadline) -> None:
        member = self._member
        try:
            if member.state in BEATING:
                member.enter(MemberState.PREPARE_LEAVING)
                await self._release(deadline)
            else:
                await self._lose()
        finally:
            await self._end_tasks()
            request = member.leave() if member.state in BEATING else None
            member.own({})
            if member.state is not MemberState.UNSUBSCRIBED:
                member.end(is_stale=False)
            self._heartbeats.failure = self._heartbeats.problem = None
            if request is not None:
                limit_s = min(deadline.left_s(), self._host.options.request_timeout_s)
                await self._heartbeats.leave(request, limit_s)

    async def _release(self, deadline: Deadline) -> None:
        """Give up all partitions while heartbeats go on."""
        await self._end_commit()
        partitions = sorted(self._host.subscription.assigned())
        if self._member.is_in_group:
            await self._host.prepare_to_revoke(partitions, deadline)
        if self._member.is_in_group:
            await self._host.revoke(partitions)
        else:
            await self._host.lose(partitions)

    async def _end_tasks(self) -> None:
        task, self._task = self._task, None
        await self._end_commit()
        await self._topic_ids.close()
        await self._computing.close()
        if task is not None:
            await end_tasks([task])
