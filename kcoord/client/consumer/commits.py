"""Commits offsets: those that the user names, and those that were consumed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, final

from kcoord.client.admin.group_offsets import OFFSET_COMMIT_MAX
from kcoord.client.admin.results import CommittedOffset
from kcoord.client.cluster import GROUP, Cluster
from kcoord.client.consumer.membership import Membership, end_tasks
from kcoord.client.consumer.options import ConsumerOptions, log
from kcoord.client.consumer.subscription import Subscription
from kcoord.client.deadline import Deadline
from kcoord.client.errors import KafkaError, error_for
from kcoord.client.metadata import GroupMetadata, TopicPartition
from kcoord.client.partition import by_topic
from kcoord.protocol import apis, errors
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

Offsets = Mapping[TopicPartition, CommittedOffset]

# Codes that say that the member is not what it was; its membership decides what follows.
MEMBER_CODES: Final = frozenset(
    {
        errors.UNKNOWN_MEMBER_ID,
        errors.ILLEGAL_GENERATION,
        errors.FENCED_INSTANCE_ID,
        errors.REBALANCE_IN_PROGRESS,
        errors.STALE_MEMBER_EPOCH,
        errors.FENCED_MEMBER_EPOCH,
    }
)


@final
class Commits:
    """`membership` is None as long as the user assigns the partitions."""

    def __init__(self, cluster: Cluster, options: ConsumerOptions, subscription: Subscription) -> None:
        self.membership: Membership | None = None
        self._cluster = cluster
        self._options = options
        self._subscription = subscription
        self._loop = asyncio.get_running_loop()
        self._due_s = self._loop.time() + options.auto_commit_interval_s
        self._task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._task is not None:
            await end_tasks([self._task])

    def consumed(self) -> dict[TopicPartition, CommittedOffset]:
        """What the user has got from each partition: the offset of the next record."""
        return {
            partition: CommittedOffset(state.position, "", state.fetched_epoch)
            for partition, state in self._subscription.consumed().items()
        }

    # --- auto commit

    def tick(self) -> None:
        """Called by each poll, when all records of the one before are processed: commit if it is time."""
        if not self._options.is_auto_commit or self._loop.time() < self._due_s:
            return
        self.commit_soon()

    def next_s(self) -> float:
        """Seconds until `tick` has something to do."""
        return max(self._due_s - self._loop.time(), 0.001) if self._options.is_auto_commit else 60.0

    def commit_soon(self) -> None:
        """Commit what was consumed in a task, unless one is under way. Nothing happens without auto commit."""
        if not self._options.is_auto_commit or (self._task is not None and not self._task.done()):
            return
        self._due_s = self._loop.time() + self._options.auto_commit_interval_s
        offsets = self.consumed()
        if offsets and self._may_commit():
            self._task = asyncio.create_task(self._commit_in_task(offsets), name="kcoord auto commit")

    async def _commit_in_task(self, offsets: Offsets) -> None:
        try:
            await self._commit_once(offsets)
        except KafkaError as error:
            # The next one commits the same, or more.
            self._due_s = min(self._due_s, self._loop.time() + self._options.retry_backoff_s)
            log.warning("auto commit of group %s: %s", self._options.group_id, error)

    async def commit_consumed(self, deadline: Deadline) -> None:
        """Before partitions are given up: commit what was consumed, if auto commit is on. Errors are logged."""
        if not self._options.is_auto_commit:
            return
        if self._task is not None:
            # It must not write older offsets after the newer ones.
            await asyncio.wait([self._task], timeout=deadline.left_s())
        offsets = self.consumed()
        if not offsets or not self._may_commit():
            return
        try:
            await self.commit(offsets, deadline)
        except KafkaError as error:
            log.warning("auto commit of group %s: %s", self._options.group_id, error)

    def _may_commit(self) -> bool:
        return self.membership is None or self.membership.is_member()

    # --- commits

    async def commit(self, offsets: Offsets, deadline: Deadline) -> None:
        """Commit, again after errors that pass. Raises KafkaError."""
        group = self._options.group_id or ""
        await self._cluster.retry_coordinator(deadline, GROUP, group, lambda: self._commit_once(offsets))

    async def _commit_once(self, offsets: Offsets) -> None:
        if not offsets:
            return
        membership = self.membership
        group = self._options.group_id or ""
        who = GroupMetadata(group) if membership is None else membership.group_metadata()
        if membership is not None and not membership.is_member():
            # As in Kafka: a member that is joining cannot commit; its next poll goes on with the rebalance.
            raise membership.commit_refused(errors.REBALANCE_IN_PROGRESS)
        topics = [
            OffsetCommitRequestTopic(
                name=name,
                partitions=[_partition(number, offsets[TopicPartition(name, number)]) for number in numbers],
            )
            for name, numbers in by_topic(offsets).items()
        ]
        request = OffsetCommitRequest(group, who.generation_id, who.member_id, who.group_instance_id, -1, topics)
        answer = await self._cluster.ask_coordinator(
            GROUP, group, apis.OFFSET_COMMIT, request, OffsetCommitResponse, version_max=OFFSET_COMMIT_MAX
        )
        for topic in answer.topics:
            for one in topic.partitions:
                if one.error_code:
                    raise self._refused(one.error_code, TopicPartition(topic.name, one.partition_index), who)

    def _refused(self, code: int, partition: TopicPartition, who: GroupMetadata) -> KafkaError:
        if code not in MEMBER_CODES or self.membership is None:
            return error_for(code, f"group {who.group_id}, partition {partition}")
        if code == errors.STALE_MEMBER_EPOCH and self.membership.group_metadata() != who:
            # The member has got a newer epoch meanwhile: with that one the commit is good.
            return error_for(errors.COORDINATOR_LOAD_IN_PROGRESS, f"group {who.group_id}", "the member epoch changed")
        return self.membership.commit_refused(code)


def _partition(number: int, one: CommittedOffset) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(number, one.offset, one.leader_epoch, one.metadata)
