"""The consumer that users see.

It works in the user's task where the order matters: the assignment changes and listeners are called only inside `poll`,
iteration, `unsubscribe` and `stop`. Tasks of its own fetch ahead, heartbeat, and look for positions.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, final, overload

from kcoord.client.admin.group_offsets import list_offsets_of_groups
from kcoord.client.admin.results import CommittedOffset, ListedOffset
from kcoord.client.admin.spread import only
from kcoord.client.admin.topics import list_offsets
from kcoord.client.cluster import Cluster, ClusterOptions, parse_bootstrap
from kcoord.client.connection import ConnectionOptions
from kcoord.client.consumer.deserialization import Deserializer, deserialize
from kcoord.client.consumer.joining import Assignors
from kcoord.client.consumer.listener import RebalanceListener
from kcoord.client.consumer.options import (
    CONSUMER,
    EARLIEST,
    ISOLATION_LEVELS,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ConsumerOptions,
    check_options,
    parse_auto_commit,
    warn_of_empty_group_id,
)
from kcoord.client.consumer.parts import Parts
from kcoord.client.consumer.positions import EARLIEST_TIME, LATEST_TIME
from kcoord.client.consumer.records import ConsumerRecord
from kcoord.client.consumer.subscription import Mode, PartitionState, Subscription
from kcoord.client.deadline import BACKOFF_MAX_S, BACKOFF_S, Deadline
from kcoord.client.errors import IllegalState, InvalidConfiguration, KafkaError, error_for
from kcoord.client.metadata import GroupMetadata, TopicPartition
from kcoord.protocol import errors

# The longest wait between two looks at the group.
WAIT_MAX_S: Final = 1.0
INT64_MAX: Final = 2**63 - 1
NO_GROUP_DETAIL: Final = "subscribe, commit and committed need a group_id that is not empty (KIP-289)"

Offset = int | CommittedOffset


@dataclass(frozen=True, slots=True)
class SubscriptionPattern:
    """A regular expression in RE2's syntax that the coordinator matches (KIP-848, Kafka 4.0)."""

    pattern: str


@final
class Consumer:
    """Reads records from any Kafka cluster. Use it as an async context manager, or call `start` and `stop`.

    With topics, it subscribes to them. One task at a time may use it. Every failure is a KafkaError.
    """

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str | Iterable[str],
        group_id: str | None = None,
        group_protocol: str = CONSUMER,
        group_instance_id: str | None = None,
        client_id: str = "kcoord",
        client_rack: str = "",
        auto_offset_reset: str = LATEST,
        enable_auto_commit: bool | None = None,
        auto_commit_interval_ms: float = 5_000,
        isolation_level: str = READ_UNCOMMITTED,
        fetch_min_bytes: int = 1,
        fetch_max_bytes: int = 52_428_800,
        fetch_max_wait_ms: float = 500,
        max_partition_fetch_bytes: int = 1_048_576,
        buffer_bytes_max: int = 67_108_864,
        record_batch_bytes_max: int = 134_217_728,
        max_poll_records: int = 500,
        max_poll_interval_ms: float = 300_000,
        session_timeout_ms: float = 45_000,
        heartbeat_interval_ms: float = 3_000,
        partition_assignment_strategy: Sequence[object] | None = None,
        group_remote_assignor: str | None = None,
        group_local_assignors: Sequence[object] = (),
        default_api_timeout_ms: float = 60_000,
        request_timeout_ms: float = 30_000,
        retry_backoff_ms: float = BACKOFF_S * 1000,
        retry_backoff_max_ms: float = BACKOFF_MAX_S * 1000,
        metadata_max_age_ms: float = 300_000,
        check_crcs: bool = True,
        exclude_internal_topics: bool = True,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        if isolation_level not in ISOLATION_LEVELS:
            raise InvalidConfiguration(
                f"isolation_level: {isolation_level!r} is not one of {', '.join(ISOLATION_LEVELS)}"
            )
        self._options = ConsumerOptions(
            group_id=group_id,
            group_instance_id=group_instance_id,
            group_protocol=group_protocol,
            client_id=client_id,
            client_rack=client_rack,
            auto_offset_reset=auto_offset_reset,
            is_auto_commit=parse_auto_commit(enable_auto_commit, group_id),
            auto_commit_interval_s=auto_commit_interval_ms / 1000,
            is_read_committed=isolation_level == READ_COMMITTED,
            fetch_min_bytes=fetch_min_bytes,
            fetch_max_bytes=fetch_max_bytes,
            fetch_max_wait_s=fetch_max_wait_ms / 1000,
            max_partition_fetch_bytes=max_partition_fetch_bytes,
            buffer_bytes_max=buffer_bytes_max,
            record_batch_bytes_max=record_batch_bytes_max,
            max_poll_records=max_poll_records,
            max_poll_interval_s=max_poll_interval_ms / 1000,
            session_timeout_s=session_timeout_ms / 1000,
            heartbeat_interval_s=heartbeat_interval_ms / 1000,
            default_api_timeout_s=default_api_timeout_ms / 1000,
            request_timeout_s=request_timeout_ms / 1000,
            retry_backoff_s=retry_backoff_ms / 1000,
            retry_backoff_max_s=retry_backoff_max_ms / 1000,
            check_crcs=check_crcs,
            exclude_internal_topics=exclude_internal_topics,
            group_remote_assignor=group_remote_assignor,
        )
        check_options(self._options)
        warn_of_empty_group_id(group_id)
        self._cluster_options = ClusterOptions(
            parse_bootstrap(bootstrap_servers),
            ConnectionOptions(client_id, request_timeout_ms / 1000, ssl_context),
            metadata_max_age_ms / 1000,
            retry_backoff_ms / 1000,
            retry_backoff_max_ms / 1000,
        )
        self._assignors = Assignors(
            None if partition_assignment_strategy is None else tuple(partition_assignment_strategy),
            tuple(group_local_assignors),
        )
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._subscription = Subscription()
        self._parts: Parts | None = None
        # `stop` was called; and it is over. In between, listeners may commit.
        self._is_closed = False
        self._is_ended = False
        self._is_busy = False
        if topics:
            self.subscribe(topics)

    # --- life

    async def start(self) -> None:
        """Connect. Raises RequestTimedOut if no broker can be reached within default_api_timeout_ms."""
        if self._is_closed or self._parts is not None:
            raise IllegalState("a consumer can be started once")
        cluster = Cluster(self._cluster_options)
        try:
            await cluster.start(self._options.default_api_timeout_s)
        except BaseException:
            self._is_closed = True
            await cluster.close()
            raise
        self._parts = Parts(cluster, self._options, self._subscription, self._assignors)
        self._apply_subscription()

    async def stop(self, timeout: float | None = None) -> None:
        """Commit what was consumed if auto commit is on, leave the group, and close. Listeners are called.

        Takes `timeout` seconds at the most (default_api_timeout_ms): what is not done then is left undone.
        """
        if self._is_closed:
            return
        self._is_closed = True
        parts = self._parts
        if parts is None:
            return
        deadline = self._deadline("closing the consumer", timeout)
        try:
            if parts.membership is not None and self._subscription.is_group:
                await parts.membership.close(deadline)
            elif self._subscription.mode is Mode.ASSIGNED:
                await parts.commits.commit_consumed(deadline)
        finally:
            self._is_ended = True
            await parts.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    # --- what to read

    def subscribe(
        self,
        topics: Collection[str] = (),
        pattern: str | re.Pattern[str] | SubscriptionPattern | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Have the group assign partitions of these topics, or of all topics whose whole name matches the pattern.

        The assignment stays as it is until the next rebalance has revoked it (KIP-70). Raises InvalidGroupId without a
        group id (KIP-289).
        """
        self._check_open()
        if not self._options.has_group:
            raise error_for(errors.INVALID_GROUP_ID, f"group_id {self._options.group_id!r}", NO_GROUP_DETAIL)
        if isinstance(topics, str) or not all(isinstance(topic, str) and topic for topic in topics):
            raise InvalidConfiguration("topics: a collection of names is needed")
        if bool(topics) == (pattern is not None):
            raise InvalidConfiguration("subscribe: topics or a pattern are needed; unsubscribe() ends a subscription")
        if isinstance(pattern, SubscriptionPattern):
            if self._options.group_protocol != CONSUMER:
                raise InvalidConfiguration("a SubscriptionPattern needs group_protocol='consumer'")
            self._subscription.subscribe_server_pattern(pattern.pattern, listener)
        elif pattern is not None:
            self._subscription.subscribe_pattern(re.compile(pattern), listener)
        else:
            self._subscription.subscribe_topics(topics, listener)
        self._apply_subscription()

    async def unsubscribe(self, timeout: float | None = None) -> None:
        """End the subscription or assignment, and leave the group.

        What was consumed is committed first if auto commit is on (KIP-70), and listeners are called.
        """
        parts = self._running()
        deadline = self._deadline("unsubscribe", timeout)
        with self._alone():
            try:
                if parts.membership is not None and self._subscription.is_group:
                    await parts.membership.unsubscribe(deadline)
                elif self._subscription.mode is Mode.ASSIGNED:
                    await parts.commits.commit_consumed(deadline)
            finally:
                self._subscription.unsubscribe()
                parts.cluster.watch_only(())
                parts.changed()

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read these partitions, without a group's assignment. Those that stay keep their position.

        Without partitions it is as `unsubscribe`, but nothing is waited for.
        """
        self._check_open()
        wanted = [TopicPartition(*partition) for partition in partitions]
        if self._parts is not None and self._subscription.mode is Mode.ASSIGNED:
            self._parts.commits.commit_soon()
        self._subscription.assign(wanted)
        if not wanted:
            self._subscription.unsubscribe()
        self._apply_subscription()

    def _apply_subscription(self) -> None:
        parts = self._parts
        if parts is None:
            return
        subscription = self._subscription
        if subscription.mode is Mode.PATTERN:
            parts.cluster.watch_only(None)
            parts.must_refresh = True
        else:
            parts.cluster.watch_only(subscription.topics)
        if subscription.is_group:
            parts.join().subscription_changed()
        parts.changed()

    def _match(self, parts: Parts) -> bool:
        topics = parts.cluster.metadata.topics.values()
        return self._subscription.match(
            topic.name for topic in topics if not (topic.is_internal and self._options.exclude_internal_topics)
        )

    def subscription(self) -> frozenset[str]:
        """The topics of the subscription; with a pattern those that it matches now."""
        return self._subscription.topics if self._subscription.is_group else frozenset()

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._subscription.partitions)

    # --- records

    async def poll(self, timeout: float = 0.0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Up to `max_records` records (max_poll_records), as soon as there are some; none after `timeout` seconds.

        Serves the group: takes part in rebalances, calls listeners and commits (auto commit). It takes longer than
        `timeout` only while partitions are given up: listeners, and their offsets, are waited for. A call that was
        cancelled has taken no records.
        """
        return await self._poll(timeout, max_records, ())

    async def _poll(
        self, timeout: float, max_records: int | None, only: Collection[TopicPartition]
    ) -> list[ConsumerRecord]:
        count = self._options.max_poll_records if max_records is None else max_records
        if count < 1:
            raise InvalidConfiguration(f"max_records: {count} is less than 1")
        parts = self._running()
        with self._alone():
            return await self._take(parts, timeout, count, only)

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """`poll`, with the records by partition; of these partitions only, if there are any."""
        for partition in partitions:
            self._state(partition)
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        for record in await self._poll(timeout_ms / 1000, max_records, frozenset(partitions)):
            found.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        return found

    async def getone(self) -> ConsumerRecord:
        """The next record. Waits as long as there is none."""
        parts = self._parts
        if parts is not None and not self._is_busy and not self._is_closed and parts.is_calm():
            record = parts.fetcher.take_one()
            if record is not None:
                if self._key_deserializer is None and self._value_deserializer is None:
                    return record
                return self._deserialized(parts, [record])[0]
        while True:
            found = await self.poll(WAIT_MAX_S, 1)
            if found:
                return found[0]

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """The next record. Iteration ends when the consumer is stopped."""
        try:
            return await self.getone()
        except IllegalState:
            if self._is_closed:
                raise StopAsyncIteration from None
            raise

    async def _take(
        self, parts: Parts, timeout_s: float, count: int, only: Collection[TopicPartition]
    ) -> list[ConsumerRecord]:
        """Serve the group until there are records, or the time is over."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while True:
            parts.event.clear()
            await self._serve(parts)
            # A listener may have closed the consumer.
            self._check_open()
            records = parts.fetcher.take(count, only)
            if records:
                return self._deserialized(parts, records)
            left_s = end_s - loop.time()
            if left_s <= 0:
                return []
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, parts.commits.next_s(), WAIT_MAX_S)):
                    await parts.event.wait()

    async def _serve(self, parts: Parts) -> None:
        """What every poll does before records are taken."""
        parts.served_s = asyncio.get_running_loop().time()
        parts.commits.tick()
        if parts.must_refresh:
            # A pattern is matched with all topics before the group hears of it.
            await parts.cluster.refresh(Deadline(self._options.request_timeout_s, "the topics of the cluster"))
            parts.must_refresh = False
            parts.is_metadata_new = True
        if parts.is_metadata_new:
            parts.is_metadata_new = False
            if self._match(parts) and parts.membership is not None:
                parts.membership.subscription_changed()
        if parts.membership is not None and self._subscription.is_group:
            await parts.membership.poll(self._deadline("the group", None))
        elif self._subscription.mode is Mode.NONE:
            raise IllegalState("the consumer is not subscribed to topics, and has no partitions assigned")
        parts.positions.raise_error()
        parts.positions.check()

    def _deserialized(self, parts: Parts, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        if self._key_deserializer is None and self._value_deserializer is None:
            return records
        for number, record in enumerate(records):
            try:
                record.key = deserialize(self._key_deserializer, record.key, "key", record)
                record.value = deserialize(self._value_deserializer, record.value, "value", record)
            except KafkaError:
                parts.put_back(records[number:])
                if number == 0:
                    raise
                return records[:number]
        return records

    # --- positions

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read a partition from this offset on."""
        if not 0 <= offset <= INT64_MAX:
            raise InvalidConfiguration(f"seek: offset {offset}")
        self._state(partition).seek(offset)
        self._running().moved()

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read these partitions, or all, from their first record on. The offsets are looked up later."""
        self._seek_by(EARLIEST, partitions)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Read these partitions, or all, from their end on (with read_committed, their last stable offset)."""
        self._seek_by(LATEST, partitions)

    async def seek_to_committed(self, *partitions: TopicPartition) -> dict[TopicPartition, CommittedOffset | None]:
        """Read these partitions, or all, from the group's committed offsets on.

        Those without one begin where `auto_offset_reset` says, as for a new member: if they stayed, what was read
        before the first commit would be skipped after an aborted transaction.
        """
        found = await self.committed(list(partitions or self._subscription.partitions))
        parts = self._running()
        for partition, committed in found.items():
            if committed is None:
                self._state(partition).forget_position()
            else:
                parts.positions.seek(partition, self._state(partition), committed.offset, committed.leader_epoch)
        parts.moved()
        return found

    def _seek_by(self, strategy: str, partitions: tuple[TopicPartition, ...]) -> None:
        for state in [self._state(partition) for partition in partitions or self._subscription.partitions]:
            state.seek_by(strategy)
        self._running().moved()

    async def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """The offset of the next record. Waits until it is known."""
        parts = self._running()
        state = self._state(partition)
        deadline = self._deadline(f"the position of {partition}", timeout)
        while not state.has_position:
            state = self._state(partition)
            parts.positions.raise_error()
            parts.positions.check()
            deadline.check()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(deadline.left_s(), WAIT_MAX_S)):
                    await parts.found.wait()
            parts.found.clear()
        return state.position

    def pause(self, *partitions: TopicPartition) -> None:
        """Fetch and return nothing of these partitions until `resume`. They stay assigned."""
        for state in [self._state(partition) for partition in partitions]:
            state.is_paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        for state in [self._state(partition) for partition in partitions]:
            state.is_paused = False
        self._running().moved()

    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(name for name, state in self._subscription.partitions.items() if state.is_paused)

    def highwater(self, partition: TopicPartition) -> int | None:
        """The high watermark that the last answer named: the offset after the last record."""
        found = self._state(partition).high_watermark
        return None if found < 0 else found

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        """The last stable offset that the last answer named: read_committed reads up to it."""
        found = self._state(partition).last_stable_offset
        return None if found < 0 else found

    def lag(self, partition: TopicPartition) -> int | None:
        """Records between the position and the end that the last answer named, without a request."""
        state = self._state(partition)
        end = state.last_stable_offset if self._options.is_read_committed else state.high_watermark
        return None if end < 0 or not state.has_position else max(end - state.position, 0)

    # --- offsets

    async def commit(
        self, offsets: Mapping[TopicPartition, Offset] | None = None, timeout: float | None = None
    ) -> None:
        """Commit these offsets of next records, or the positions of all partitions, for the group.

        Raises RebalanceInProgress, UnknownMember, IllegalGeneration or StaleMemberEpoch if the group has gone on
        without this member: its partitions may belong to others.
        """
        parts = self._running()
        self._check_group()
        if offsets is None:
            wanted: dict[TopicPartition, CommittedOffset] = parts.commits.consumed()
        else:
            wanted = {TopicPartition(*name): _committed(one) for name, one in offsets.items()}
        await parts.commits.commit(wanted, self._deadline("commit", timeout))

    @overload
    async def committed(self, partitions: TopicPartition, timeout: float | None = None) -> CommittedOffset | None: ...

    @overload
    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]: ...

    async def committed(
        self, partitions: TopicPartition | Collection[TopicPartition], timeout: float | None = None
    ) -> CommittedOffset | dict[TopicPartition, CommittedOffset | None] | None:
        """The group's committed offset of a partition, or of several; None without one."""
        parts = self._running()
        group = self._check_group()
        wanted = (
            [partitions] if isinstance(partitions, TopicPartition) else [TopicPartition(*one) for one in partitions]
        )
        deadline = self._deadline(f"the committed offsets of group {group}", timeout)
        answer = only(await list_offsets_of_groups(parts.spread, deadline, {group: wanted}, True), group)
        found: dict[TopicPartition, CommittedOffset | None] = {}
        for partition in wanted:
            one = answer.get(partition)
            if isinstance(one, KafkaError):
                raise one
            found[partition] = one
        return found[wanted[0]] if isinstance(partitions, TopicPartition) else found

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offsets of the first records."""
        return await self._ends(partitions, EARLIEST_TIME, timeout)

    async def end_offsets(
        self, partitions: Collection[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offsets after the last records; with read_committed, the last stable offsets."""
        return await self._ends(partitions, LATEST_TIME, timeout)

    async def _ends(
        self, partitions: Collection[TopicPartition], time: int, timeout: float | None
    ) -> dict[TopicPartition, int]:
        found = await self._list_offsets({TopicPartition(*one): time for one in partitions}, timeout)
        return {partition: one.offset for partition, one in found.items()}

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, ListedOffset | None]:
        """The first record at or after a time in ms, for each partition; None if there is none."""
        for partition, time in timestamps.items():
            if time < 0:
                raise InvalidConfiguration(f"offsets_for_times: {partition}: {time} is less than 0")
        found = await self._list_offsets({TopicPartition(*key): time for key, time in timestamps.items()}, timeout)
        return {partition: one if one.offset >= 0 else None for partition, one in found.items()}

    async def _list_offsets(
        self, times: Mapping[TopicPartition, int], timeout: float | None
    ) -> dict[TopicPartition, ListedOffset]:
        parts = self._running()
        answer = await list_offsets(
            parts.spread, self._deadline("offsets of partitions", timeout), times, self._options.is_read_committed
        )
        return {partition: only(answer, partition) for partition in answer}

    # --- the group

    def group_metadata(self) -> GroupMetadata:
        """Who this consumer is in its group, for `Producer.send_offsets_to_transaction` (KIP-447)."""
        group = self._check_group()
        parts = self._parts
        if parts is None or parts.membership is None:
            return GroupMetadata(group, group_instance_id=self._options.group_instance_id)
        return parts.membership.group_metadata()

    def generation(self) -> int:
        """The generation of the group, or the member epoch with KIP-848; -1 without a member (KIP-447)."""
        return self.group_metadata().generation_id

    async def enforce_rebalance(self) -> None:
        """Have a classic group rebalance at the next poll (KIP-568)."""
        membership = self._running().membership
        if membership is None or not self._subscription.is_group:
            raise IllegalState("enforce_rebalance needs a subscription")
        await membership.enforce_rebalance()

    # --- topics

    async def topics(self, timeout: float | None = None) -> frozenset[str]:
        """The names of all topics but internal ones."""
        parts = self._running()
        found = await parts.cluster.retry(self._deadline("topics", timeout), lambda: parts.spread.topics(None))
        return frozenset(name for name, topic in found.items() if not topic.is_internal)

    async def partitions_for_topic(self, topic: str, timeout: float | None = None) -> frozenset[int]:
        """The partitions of a topic, none if it does not exist."""
        parts = self._running()
        found = await parts.cluster.retry(self._deadline(topic, timeout), lambda: parts.spread.topics([topic]))
        described = found.get(topic)
        return frozenset() if described is None else frozenset(one.partition_index for one in described.partitions)

    # --- parts

    def _deadline(self, what: str, timeout_s: float | None) -> Deadline:
        return Deadline(self._options.default_api_timeout_s if timeout_s is None else timeout_s, what)

    def _check_open(self) -> None:
        if self._is_closed:
            raise IllegalState("the consumer is closed")

    def _running(self) -> Parts:
        if self._parts is None or self._is_ended:
            self._check_open()
            raise IllegalState("the consumer is not started")
        return self._parts

    def _check_group(self) -> str:
        if not self._options.group_id:
            raise error_for(errors.INVALID_GROUP_ID, f"group_id {self._options.group_id!r}", NO_GROUP_DETAIL)
        return self._options.group_id

    def _state(self, partition: TopicPartition) -> PartitionState:
        return self._subscription.state(partition)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self._check_open()
        if self._is_busy:
            raise IllegalState("another task is in a call of this consumer; one task at a time may use it")
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False


def _committed(given: Offset) -> CommittedOffset:
    found = CommittedOffset(given) if isinstance(given, int) else given
    if found.offset < 0:
        raise InvalidConfiguration(f"commit: offset {found.offset}")
    return found
