"""A member of a classic group, as Kafka's AbstractCoordinator and ConsumerCoordinator behave.

**In the user's task**, `poll` prepares for a rebalance (commits, revokes), starts a task that joins, and adopts what it
has brought. **In tasks**, the member joins and heartbeats, whatever the user does meanwhile. If the user does not poll
for `max_poll_interval_ms`, the member leaves.

**Eager or cooperative** (KIP-429). If all assignors are cooperative, partitions are kept during a rebalance: the new
assignment tells which of them to revoke, after which the member joins once more. Otherwise all are revoked before it
joins.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from enum import Enum
from typing import Final, final

from kcoord.client.cluster import COORDINATOR_LANE, GROUP
from kcoord.client.consumer.assignors.base import PartitionAssignor
from kcoord.client.consumer.classic.embedded import decode_assignment
from kcoord.client.consumer.classic.joining import Generation, Joined, Joiner, Led
from kcoord.client.consumer.membership import GroupHost, end_tasks
from kcoord.client.consumer.options import log
from kcoord.client.deadline import Backoff, Deadline
from kcoord.client.errors import BrokerError, IllegalState, InvalidConfiguration, KafkaError, error_for, may_retry
from kcoord.client.metadata import GroupMetadata, TopicPartition
from kcoord.protocol import apis, errors
from kcoord.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcoord.protocol.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

HEARTBEAT_STATIC_FROM: Final = 3
LEAVE_MEMBERS_FROM: Final = 3
LEAVE_REASON_FROM: Final = 5
# How often the heartbeat task looks whether it is needed.
IDLE_S: Final = 0.05


class State(Enum):
    """As MemberState of Kafka's client."""

    UNJOINED = "unjoined"
    PREPARING = "preparing rebalance"
    COMPLETING = "completing rebalance"
    STABLE = "stable"


# After these a member joins again; after the first group as a new one. Nobody is told.
NEW_MEMBER: Final = frozenset({errors.UNKNOWN_MEMBER_ID})
SAME_MEMBER: Final = frozenset({errors.ILLEGAL_GENERATION})
# Nothing helps but another configuration, so every poll says so.
FENCED: Final = frozenset({errors.FENCED_INSTANCE_ID})


@final
class ClassicMembership:
    """Implements `Membership`."""

    def __init__(self, host: GroupHost, assignors: Sequence[PartitionAssignor]) -> None:
        if not assignors:
            raise InvalidConfiguration("partition_assignment_strategy: is empty")
        if len({assignor.name for assignor in assignors}) < len(assignors):
            raise InvalidConfiguration("partition_assignment_strategy: two assignors have the same name")
        self._host = host
        self._options = host.options
        self._is_cooperative = all(assignor.is_cooperative for assignor in assignors)
        self._joiner = Joiner(host, assignors, self._is_cooperative)
        self._generation = Generation()
        self._state = State.UNJOINED
        self._is_rejoin_needed = True
        self._reason = "the consumer has subscribed"
        self._must_prepare = True
        # The topics of the subscription with which it joined last, and what it has seen as the leader.
        self._joined_topics: frozenset[str] | None = None
        self._led: Led | None = None
        # The task that joins; its result is the assignment in bytes, or None if it has to begin again.
        self._joining: asyncio.Task[bytes | None] | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._error: KafkaError | None = None
        self._is_fenced = False
        self._loop = asyncio.get_running_loop()
        self._polled_s = self._loop.time()
        self._wake_heartbeats = asyncio.Event()

    # --- Membership

    def subscription_changed(self) -> None:
        self._polled_s = self._loop.time()
        if self._joined_topics is not None and self._joined_topics != self._host.subscription.topics:
            self._request_rejoin("the subscription has changed")
        self._host.wake()

    async def poll(self, deadline: Deadline) -> None:
        self._polled_s = self._loop.time()
        self._raise_error()
        if self._heartbeats is None:
            self._heartbeats = asyncio.create_task(self._heartbeat(), name="kcoord heartbeats")
        while True:
            if self._joining is not None:
                if not self._joining.done():
                    return
                await self._adopt()
                self._raise_error()
                continue
            self._look_for_changes()
            if not self._is_rejoin_needed:
                return
            if self._must_prepare:
                self._must_prepare = False
                await self._prepare(deadline)
            self._start_joining()

    async def unsubscribe(self, deadline: Deadline) -> None:
        await self._leave("the consumer unsubscribed from all topics", deadline)

    async def close(self, deadline: Deadline) -> None:
        try:
            await self._leave("the consumer is being closed", deadline)
        finally:
            tasks = [] if self._heartbeats is None else [self._heartbeats]
            self._heartbeats = None
            await end_tasks(tasks)

    def group_metadata(self) -> GroupMetadata:
        return GroupMetadata(
            self._host.group_id,
            self._generation.generation_id,
            self._generation.member_id,
            self._options.group_instance_id,
        )

    def is_member(self) -> bool:
        return self._state is State.STABLE and self._generation.is_joined

    def commit_refused(self, code: int) -> KafkaError:
        group = f"group {self._host.group_id}"
        if not self.is_member() and code == errors.REBALANCE_IN_PROGRESS and self._state is State.UNJOINED:
            # It was evicted, or has not joined: what it had may belong to others.
            return error_for(errors.UNKNOWN_MEMBER_ID, group, "the consumer is not a member now")
        if code == errors.REBALANCE_IN_PROGRESS:
            self._request_rejoin("offset commit failed since the group is rebalancing")
        elif self.is_member() and code in NEW_MEMBER | SAME_MEMBER:
            self._reset(f"{errors.ERROR_NAMES[code]} from OffsetCommit", keeps_id=code in SAME_MEMBER)
        return error_for(code, group)

    async def enforce_rebalance(self) -> None:
        self._request_rejoin("rebalance enforced by user")

    # --- the user's side

    def _raise_error(self) -> None:
        error = self._error
        if error is not None:
            if not self._is_fenced:
                self._error = None
            raise error

    def _look_for_changes(self) -> None:
        """Join again if the subscription or, as the leader, the topics are others than at the last time."""
        led = self._led
        if self._is_rejoin_needed or not self._generation.is_joined:
            return
        if self._joined_topics != self._host.subscription.topics:
            self._request_rejoin("the subscription has changed")
        elif led is not None and self._joiner.see(led.topics) != led.seen:
            self._request_rejoin("cached metadata has changed")

    async def _prepare(self, deadline: Deadline) -> None:
        """Before it joins: give up what is lost, or in an eager group everything."""
        owned = self._host.subscription.assigned()
        if not self._generation.is_joined:
            if owned:
                await self._host.lose(owned)
        elif not self._is_cooperative:
            await self._host.prepare_to_revoke(owned, deadline)
            await self._host.revoke(owned, is_told_if_empty=True)
        else:
            await self._host.commit_consumed(deadline)
            # Partitions of topics that are not subscribed to any more are given up now.
            gone = {one for one in owned if not self._is_subscribed(one.topic)}
            if gone:
                await self._host.prepare_to_revoke(gone, deadline)
                await self._host.revoke(gone)

    def _is_subscribed(self, topic: str) -> bool:
        return topic in self._host.subscription.topics

    async def _adopt(self) -> None:
        """Take over what the joining task has brought."""
        task, self._joining = self._joining, None
        assert task is not None
        try:
            data = task.result()
        except KafkaError:
            self._reset_joining()
            raise
        except Exception as error:
            self._reset_joining()
            raise IllegalState(f"the consumer has failed: {error!r}") from error
        if data is None:
            return
        if self._state is not State.STABLE:
            # A heartbeat has ended the generation before the user polled.
            self._request_rejoin("the generation ended before its assignment was adopted")
            self._must_prepare = True
            return
        self._must_prepare = True
        await self._take_over(decode_assignment(data) if data else [])

    def _reset_joining(self) -> None:
        if self._state in (State.PREPARING, State.COMPLETING):
            self._state = State.UNJOINED
        self._is_rejoin_needed = True

    async def _take_over(self, assigned: Collection[TopicPartition]) -> None:
        if not all(self._is_subscribed(partition.topic) for partition in assigned):
            self._request_rejoin("the assignment does not match the current subscription")
            return
        owned = self._host.subscription.assigned()
        problem: Exception | None = None
        revoked = owned - set(assigned)
        if self._is_cooperative and revoked:
            # Joined once more, the group can give them to others.
            self._request_rejoin("need to revoke partitions and re-join")
            try:
                await self._host.revoke(revoked)
            except Exception as error:
                problem = error
        self._joiner.assignor(self._generation.protocol_name).on_assignment(assigned, self.group_metadata())
        await self._host.assign(assigned)
        if problem is not None:
            raise problem

    # --- joining, in a task

    def _start_joining(self) -> None:
        self._state = State.PREPARING
        self._joined_topics = self._host.subscription.topics
        self._joining = asyncio.create_task(
            self._join(self._joined_topics, sorted(self._host.subscription.assigned())), name="kcoord join"
        )
        self._joining.add_done_callback(lambda _: self._host.wake())

    async def _join(self, topics: frozenset[str], owned: list[TopicPartition]) -> bytes | None:
        """Join until there is an assignment. Returns None if the user's task has to prepare again first."""
        backoff = Backoff(self._options.retry_backoff_s, self._options.retry_backoff_max_s)
        while True:
            try:
                return await self._join_once(topics, owned)
            except KafkaError as error:
                self._state = State.PREPARING
                code = error.code if isinstance(error, BrokerError) else None
                if code in NEW_MEMBER | SAME_MEMBER:
                    self._reset(str(error), keeps_id=code in SAME_MEMBER)
                    return None
                if code == errors.REBALANCE_IN_PROGRESS:
                    self._reason = f"rebalance failed due to {error}"
                    continue
                if code in FENCED:
                    self._is_fenced = True
                    self._error = error
                if not may_retry(error):
                    raise
                if code in (errors.NOT_COORDINATOR, errors.COORDINATOR_NOT_AVAILABLE):
                    self._host.cluster.forget_coordinator(GROUP, self._host.group_id)
                log.info("group %s: %s; joining again", self._host.group_id, error)
                await asyncio.sleep(backoff.next_s())

    async def _join_once(self, topics: frozenset[str], owned: list[TopicPartition]) -> bytes:
        joined = await self._joiner.join(self._generation, topics, owned, self._reason)
        self._generation = joined.generation
        self._state = State.COMPLETING
        self._is_rejoin_needed = False
        self._wake_heartbeats.set()
        data = await self._synced(joined)
        if self._state is not State.COMPLETING:
            # A heartbeat has reset the generation meanwhile.
            raise error_for(errors.ILLEGAL_GENERATION, f"group {self._host.group_id}")
        self._state = State.STABLE
        self._reason = ""
        log.info("group %s: %s", self._host.group_id, self._generation)
        return data

    async def _synced(self, joined: Joined) -> bytes:
        self._led = None
        if not joined.is_leader:
            return await self._joiner.sync(joined, {})
        assignments, led = await self._joiner.lead(joined)
        data = await self._joiner.sync(joined, assignments)
        self._led = led
        return data

    def _request_rejoin(self, reason: str) -> None:
        self._is_rejoin_needed = True
        self._reason = reason
        log.info("group %s: joining again: %s", self._host.group_id, reason)
        self._host.wake()

    def _reset(self, reason: str, *, keeps_id: bool) -> None:
        """The generation is over: partitions are lost, and the member joins again."""
        self._forget(keeps_id=keeps_id)
        self._request_rejoin(reason)

    def _forget(self, *, keeps_id: bool) -> None:
        self._state = State.UNJOINED
        self._generation = Generation(member_id=self._generation.member_id if keeps_id else "")
        self._led = None
        self._must_prepare = True

    # --- heartbeats, in a task

    async def _heartbeat(self) -> None:
        backoff = Backoff(self._options.retry_backoff_s, self._options.retry_backoff_max_s)
        pause_s = self._options.heartbeat_interval_s
        while True:
            self._wake_heartbeats.clear()
            limit_s = min(pause_s, max(self._options.max_poll_interval_s / 4, IDLE_S))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._wake_heartbeats.wait()
            pause_s = self._options.heartbeat_interval_s
            if self._state not in (State.COMPLETING, State.STABLE) or not self._generation.is_joined:
                continue
            if self._loop.time() - self._polled_s > self._options.max_poll_interval_s:
                await self._stop_for_a_slow_user()
                continue
            try:
                await self._heartbeat_once()
                backoff.reset()
            except KafkaError as error:
                log.info("group %s: heartbeat: %s", self._host.group_id, error)
                pause_s = min(backoff.next_s(), self._options.heartbeat_interval_s)
            except Exception as error:
                self._error = IllegalState(f"the consumer has failed: {error!r}")
                self._host.wake()
                raise

    async def _heartbeat_once(self) -> None:
        who = self._generation
        static = self._options.group_instance_id
        request = HeartbeatRequest(self._host.group_id, who.generation_id, who.member_id, static)
        answer = await self._host.cluster.ask_coordinator(
            GROUP,
            self._host.group_id,
            apis.HEARTBEAT,
            request,
            HeartbeatResponse,
            version_min=0 if static is None else HEARTBEAT_STATIC_FROM,
            timeout_s=min(self._options.request_timeout_s, self._options.session_timeout_s),
        )
        code = answer.error_code
        if code == errors.NONE or who != self._generation:
            return
        group = f"group {self._host.group_id}"
        if code == errors.REBALANCE_IN_PROGRESS:
            if self._state is State.STABLE and not self._is_rejoin_needed:
                self._request_rejoin("group is already rebalancing")
        elif code in NEW_MEMBER | SAME_MEMBER:
            self._reset(f"{errors.ERROR_NAMES[code]} from Heartbeat", keeps_id=code in SAME_MEMBER)
        elif code in (errors.NOT_COORDINATOR, errors.COORDINATOR_NOT_AVAILABLE):
            self._host.cluster.forget_coordinator(GROUP, self._host.group_id)
            raise error_for(code, group)
        elif code in FENCED or code == errors.GROUP_AUTHORIZATION_FAILED:
            self._reset(f"{errors.ERROR_NAMES[code]} from Heartbeat", keeps_id=False)
            self._error = error_for(code, group)
            self._is_fenced = code in FENCED
            self._host.wake()
        else:
            raise error_for(code, group)

    async def _stop_for_a_slow_user(self) -> None:
        log.warning(
            "group %s: no poll for more than max_poll_interval_ms (%g s); the consumer leaves the group. Raise "
            "max_poll_interval_ms, or lower max_poll_records.",
            self._host.group_id,
            self._options.max_poll_interval_s,
        )
        who = self._generation
        self._reset("consumer poll timeout has expired", keeps_id=False)
        await self._send_leave(who, "consumer poll timeout has expired.", self._options.request_timeout_s)

    # --- leaving

    async def _leave(self, reason: str, deadline: Deadline) -> None:
        who, was_stable = self._generation, self.is_member()
        owned = self._host.subscription.assigned()
        joining, self._joining = self._joining, None
        try:
            if owned and was_stable:
                await self._host.prepare_to_revoke(owned, deadline)
                await self._host.revoke(owned)
            elif owned:
                await self._host.lose(owned)
        finally:
            # A task that joins may have got another id meanwhile.
            if self._generation.member_id or joining is not None:
                who = self._generation if self._generation.member_id else Generation(member_id=self._joiner.member_id)
            if joining is not None:
                joining.cancel()
                with contextlib.suppress(asyncio.CancelledError, KafkaError, Exception):
                    await joining
                # The next request must not wait for the answer to this one.
                self._joiner.hang_up()
            self._forget(keeps_id=False)
            self._is_rejoin_needed = True
            self._reason = "the consumer has subscribed"
            self._joined_topics = None
            self._error = None
            self._is_fenced = False
            await self._send_leave(who, reason, deadline.left_s())

    async def _send_leave(self, who: Generation, reason: str, timeout_s: float) -> None:
        """Tell the coordinator, one attempt. A static member stays until its session ends, as in Kafka."""
        if not who.member_id or self._options.group_instance_id is not None or timeout_s <= 0:
            return

        def request(version: int) -> LeaveGroupRequest:
            if version < LEAVE_MEMBERS_FROM:
                return LeaveGroupRequest(self._host.group_id, who.member_id)
            one = MemberIdentity(who.member_id, None, reason if version >= LEAVE_REASON_FROM else None)
            return LeaveGroupRequest(self._host.group_id, "", [one])

        try:
            async with asyncio.timeout(timeout_s):
                await self._host.cluster.ask_coordinator(
                    GROUP,
                    self._host.group_id,
                    apis.LEAVE_GROUP,
                    request,
                    LeaveGroupResponse,
                    lane=COORDINATOR_LANE,
                )
        except (KafkaError, TimeoutError) as error:
            log.info("group %s: leaving: %s", self._host.group_id, error)
