"""A member of a consumer group without a consumer around it: a loop that polls, and a listener that keeps the books."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import final

from kcoord.client.cluster import GROUP, Cluster, ClusterOptions, parse_bootstrap
from kcoord.client.connection import ConnectionOptions
from kcoord.client.consumer.consumer_group.assignor import ClientAssignor
from kcoord.client.consumer.consumer_group.membership import ConsumerGroupMembership
from kcoord.client.consumer.listener import RebalanceListener
from kcoord.client.consumer.membership import GroupHost
from kcoord.client.consumer.options import ConsumerOptions
from kcoord.client.consumer.subscription import Subscription
from kcoord.client.deadline import Deadline
from kcoord.client.errors import KafkaError, error_for
from kcoord.client.metadata import TopicPartition
from kcoord.protocol import apis, errors
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

WAIT_S = 60.0
# The newest version of OffsetCommit with topics by name.
COMMIT_BY_NAME_MAX = 9

OPTIONS = ConsumerOptions(
    group_id="g",
    group_instance_id=None,
    group_protocol="consumer",
    client_id="member",
    client_rack="",
    auto_offset_reset="earliest",
    is_auto_commit=True,
    auto_commit_interval_s=5.0,
    is_read_committed=False,
    fetch_min_bytes=1,
    fetch_max_bytes=50 << 20,
    fetch_max_wait_s=0.5,
    max_partition_fetch_bytes=1 << 20,
    buffer_bytes_max=64 << 20,
    record_batch_bytes_max=64 << 20,
    max_poll_records=500,
    max_poll_interval_s=300.0,
    session_timeout_s=45.0,
    heartbeat_interval_s=3.0,
    default_api_timeout_s=60.0,
    request_timeout_s=30.0,
    retry_backoff_s=0.02,
    retry_backoff_max_s=0.2,
    check_crcs=True,
    exclude_internal_topics=True,
    group_remote_assignor=None,
)


def options(**changes: object) -> ConsumerOptions:
    return replace(OPTIONS, **changes)  # type: ignore[arg-type]


@final
class Books(RebalanceListener):
    """What the listener was told. Raises AssertionError as soon as that contradicts itself."""

    def __init__(self) -> None:
        self.held: set[TopicPartition] = set()
        self.calls: list[tuple[str, frozenset[TopicPartition]]] = []
        # Called inside each call, with its name.
        self.within: Callable[[str], None] | None = None

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._out("revoked", revoked)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self._out("lost", lost)

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._note("assigned", assigned)
        assert self.held.isdisjoint(assigned), (self.held, assigned)
        self.held |= set(assigned)
        self._inside("assigned")

    def _out(self, name: str, partitions: Collection[TopicPartition]) -> None:
        self._note(name, partitions)
        assert partitions and self.held.issuperset(partitions), (name, self.held, partitions)
        self.held -= set(partitions)
        self._inside(name)

    def _note(self, name: str, partitions: Collection[TopicPartition]) -> None:
        self.calls.append((name, frozenset(partitions)))

    def _inside(self, name: str) -> None:
        if self.within is not None:
            self.within(name)

    def names(self) -> list[str]:
        """The calls that had partitions."""
        return [name for name, partitions in self.calls if partitions]


@final
class GroupMember:
    """Use `group_member`."""

    def __init__(self, cluster: Cluster, chosen: ConsumerOptions, assignors: Sequence[ClientAssignor] = ()) -> None:
        self.cluster = cluster
        self.options = chosen
        self.subscription = Subscription()
        self.books = Books()
        self.host = GroupHost(cluster, chosen, self.subscription, self._commit_consumed, lambda: None)
        self.membership = ConsumerGroupMembership(self.host, assignors)
        self.commits: list[dict[TopicPartition, int]] = []
        self.failures: list[KafkaError] = []
        # A consumer that waits looks at its group this often.
        self.turn_s = 1.0
        self._user: asyncio.Task[None] | None = None

    # --- the user

    def subscribe(self, *topics: str) -> None:
        self.subscription.subscribe_topics(topics, self.books)
        self.cluster.watch(topics)
        self.membership.subscription_changed()

    def subscribe_pattern(self, pattern: str) -> None:
        self.subscription.subscribe_server_pattern(pattern, self.books)
        self.membership.subscription_changed()

    async def poll(self, timeout_s: float = WAIT_S) -> None:
        await self.membership.poll(Deadline(timeout_s, "poll"))

    def start_polling(self) -> None:
        """Poll whenever there is something to do, as a consumer does that waits for records."""
        self._user = asyncio.create_task(self._poll_on())

    async def _poll_on(self) -> None:
        while True:
            self.host.event.clear()
            try:
                await self.poll()
            except KafkaError as error:
                self.failures.append(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.turn_s):
                    await self.host.event.wait()

    async def stop_polling(self) -> None:
        """The user is busy. Raises what went wrong in the loop."""
        user, self._user = self._user, None
        if user is not None:
            user.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await user

    def check(self) -> None:
        if self._user is not None and self._user.done():
            self._user.result()
            raise AssertionError("the user does not poll any more")

    def held(self) -> set[TopicPartition]:
        """What the listener was told; it must agree with the subscription."""
        self.check()
        assert self.subscription.assigned() == self.books.held
        return set(self.books.held)

    async def close(self) -> None:
        try:
            await self.stop_polling()
        finally:
            await self.membership.close(Deadline(WAIT_S, "close"))
            await self.cluster.close()

    # --- offsets

    async def commit(
        self, offset: int, deadline: Deadline, partitions: Collection[TopicPartition] | None = None
    ) -> None:
        """Commit the same offset for partitions, by default all. Raises KafkaError."""
        chosen = sorted(self.subscription.assigned() if partitions is None else partitions)
        await self.cluster.retry_coordinator(
            deadline, GROUP, self.host.group_id, lambda: self._commit_once(chosen, offset)
        )

    async def _commit_once(self, partitions: list[TopicPartition], offset: int) -> None:
        who = self.membership.group_metadata()
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for one in partitions:
            topics.setdefault(one.topic, []).append(OffsetCommitRequestPartition(one.partition, offset))
        request = OffsetCommitRequest(
            who.group_id,
            who.generation_id,
            who.member_id,
            who.group_instance_id,
            topics=[OffsetCommitRequestTopic(name=name, partitions=found) for name, found in topics.items()],
        )
        answer = await self.cluster.ask_coordinator(
            GROUP,
            who.group_id,
            apis.OFFSET_COMMIT,
            request,
            OffsetCommitResponse,
            version_max=COMMIT_BY_NAME_MAX,
        )
        code = next((one.error_code for topic in answer.topics for one in topic.partitions if one.error_code), 0)
        if code == errors.STALE_MEMBER_EPOCH and self.membership.group_metadata() != who:
            raise error_for(errors.COORDINATOR_LOAD_IN_PROGRESS)
        if code in (errors.STALE_MEMBER_EPOCH, errors.UNKNOWN_MEMBER_ID):
            raise self.membership.commit_refused(code)
        if code:
            raise error_for(code)
        self.commits.append(dict.fromkeys(partitions, offset))

    async def _commit_consumed(self, deadline: Deadline) -> None:
        partitions = self.subscription.assigned()
        if self.options.is_auto_commit and partitions and self.membership.is_member():
            with contextlib.suppress(KafkaError):
                await self.commit(0, deadline, partitions)


@asynccontextmanager
async def group_member(
    bootstrap: str, chosen: ConsumerOptions = OPTIONS, assignors: Sequence[ClientAssignor] = ()
) -> AsyncIterator[GroupMember]:
    """A member that leaves at the end. It does not subscribe or poll by itself."""
    connection = ConnectionOptions(client_id=chosen.client_id, request_timeout_s=chosen.request_timeout_s)
    cluster = Cluster(ClusterOptions(parse_bootstrap(bootstrap), connection, retry_backoff_s=chosen.retry_backoff_s))
    await cluster.start()
    member = GroupMember(cluster, chosen, assignors)
    try:
        yield member
    finally:
        await member.close()


async def until(is_so: Callable[[], bool], *members: GroupMember) -> None:
    """Wait for a condition while members poll."""
    async with asyncio.timeout(WAIT_S):
        while not is_so():
            for member in members:
                member.check()
                assert not member.failures, member.failures
            await asyncio.sleep(0.01)
