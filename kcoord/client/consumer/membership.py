"""Where a consumer and its group meet.

A `Membership` is the consumer's part in a group: one implementation speaks the classic protocol, one that of KIP-848.
It heartbeats in tasks of its own, but touches the assignment and calls listeners only inside `poll`, `unsubscribe` and
`close`, which the consumer calls in the user's task. So a listener never runs beside the user's code.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol, final

from kcoord.client.cluster import Cluster
from kcoord.client.consumer.options import ConsumerOptions, log
from kcoord.client.consumer.subscription import Subscription
from kcoord.client.deadline import Deadline
from kcoord.client.errors import KafkaError
from kcoord.client.metadata import GroupMetadata, TopicPartition


class Membership(Protocol):
    """Made with a `GroupHost` at the first subscription, and used for the whole life of the consumer."""

    def subscription_changed(self) -> None:
        """`host.subscription` has other topics, another pattern, or is a group subscription for the first time.

        The assignment stays until the next rebalance (KIP-70).
        """

    async def poll(self, deadline: Deadline) -> None:
        """The user polls: adopt what the tasks have prepared (revoke, lose, assign), and note the time of the poll.

        Returns as soon as nothing is left to do at this moment; the tasks call `host.wake` when there is something
        again. It may return at the deadline in the middle of a rebalance: the next poll continues. Raises errors that
        the user has to know, such as InvalidGroupId, FencedInstanceId or AuthorizationFailed, at each poll until
        `unsubscribe`, and exceptions of listeners once.
        """

    async def unsubscribe(self, deadline: Deadline) -> None:
        """Commit what was consumed if auto commit is on, have all partitions revoked (or lost), leave the group.

        `host.subscription` still has its partitions; the consumer clears it afterwards.
        """

    async def close(self, deadline: Deadline) -> None:
        """As `unsubscribe`, but static members stay in the group. Ends all tasks, even at the deadline."""

    def group_metadata(self) -> GroupMetadata:
        """The member id, and the generation or member epoch, as they are now."""

    def is_member(self) -> bool:
        """Whether the member has an assignment that is in force, so that it may commit offsets."""

    def commit_refused(self, code: int) -> KafkaError:
        """OffsetCommit (or a heartbeat) was refused: rejoin if that is due. Returns the error for the user."""

    async def enforce_rebalance(self) -> None:
        """Have the group rebalance at the next poll (KIP-568). A consumer group of KIP-848 ignores it, as in Kafka."""


Committer = Callable[[Deadline], Awaitable[None]]


@final
class GroupHost:
    """What a membership may use of its consumer."""

    def __init__(
        self,
        cluster: Cluster,
        options: ConsumerOptions,
        subscription: Subscription,
        commit_consumed: Committer,
        changed: Callable[[], None],
        event: asyncio.Event | None = None,
    ) -> None:
        self.cluster = cluster
        self.options = options
        self.subscription = subscription
        # Commits the positions of the assignment if auto commit is on; errors are logged, not raised. A coordinator
        # that cannot be reached, or answers with errors that pass, is asked again until the deadline.
        self.commit_consumed = commit_consumed
        # Set when the user's task should call `Membership.poll` again.
        self.event = asyncio.Event() if event is None else event
        self._changed = changed

    @property
    def group_id(self) -> str:
        return self.options.group_id or ""

    def wake(self) -> None:
        """End the wait of a `poll` that is under way, so that it calls `Membership.poll` again."""
        self.event.set()

    # --- changes of the assignment, in the user's task

    async def prepare_to_revoke(self, partitions: Collection[TopicPartition], deadline: Deadline) -> None:
        """Stop reading the partitions, and commit what was consumed if auto commit is on."""
        for partition in partitions:
            state = self.subscription.partitions.get(partition)
            if state is not None:
                state.is_revoking = True
        if partitions:
            await self.commit_consumed(deadline)

    async def revoke(self, partitions: Collection[TopicPartition], *, is_told_if_empty: bool = False) -> None:
        """Call the listener, then give up the partitions, even if the listener raises.

        Eager groups tell the listener also when there are none.
        """
        try:
            await self._tell("on_partitions_revoked", partitions, is_told_if_empty=is_told_if_empty)
        finally:
            self._give_up(partitions)

    async def lose(self, partitions: Collection[TopicPartition]) -> None:
        """As `revoke`, for partitions that belong to others already."""
        try:
            await self._tell("on_partitions_lost", partitions)
        finally:
            self._give_up(partitions)

    async def assign(self, whole: Collection[TopicPartition], *, is_told_if_empty: bool = True) -> None:
        """Take over an assignment: partitions that are not in `whole` were revoked before.

        The listener hears of the new ones; classic groups tell it also when there are none.
        """
        old = self.subscription.assigned()
        new = sorted(set(whole) - old)
        self.subscription.replace(sorted(whole))
        self._changed()
        if new or is_told_if_empty:
            await self._tell("on_partitions_assigned", new, is_told_if_empty=True)

    def _give_up(self, partitions: Collection[TopicPartition]) -> None:
        self.subscription.remove(partitions)
        self._changed()

    async def _tell(
        self, method: str, partitions: Collection[TopicPartition], *, is_told_if_empty: bool = False
    ) -> None:
        listener = self.subscription.listener
        if listener is None or not (partitions or is_told_if_empty):
            return
        result = getattr(listener, method)(frozenset(partitions))
        if inspect.isawaitable(result):
            await result


async def end_tasks(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end. Their failures are logged."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        except Exception as error:
            log.warning("%s: %r", task.get_name(), error)
