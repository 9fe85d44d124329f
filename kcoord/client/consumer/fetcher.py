"""Fetches records ahead of the user, with bounded memory.

One task for each leader has at most one Fetch under way. It asks for the partitions that may be read and have fewer
than `CHUNKS_MAX` answers waiting. What has come waits in one queue, in the order of its arrival, and is decoded batch
by batch when the user takes it.

**Memory.** Each request reserves what its answer may hold. Requests wait while answers and reservations together exceed
`buffer_bytes_max`; only a single batch that is larger than asked for comes on top, one for each leader.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Collection
from typing import Final, NamedTuple, final

from kcoord.client.cluster import Cluster
from kcoord.client.connection import VERSION_LIMIT, Connection
from kcoord.client.consumer.membership import end_tasks
from kcoord.client.consumer.options import LATEST, NONE, ConsumerOptions
from kcoord.client.consumer.records import Chunk, ConsumerRecord
from kcoord.client.consumer.subscription import PartitionState, Subscription
from kcoord.client.deadline import Backoff
from kcoord.client.errors import IllegalState, KafkaError, error_for, may_retry
from kcoord.client.metadata import NO_ID, NO_NODE, Node, TopicPartition
from kcoord.protocol import apis, errors
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData

# Answers that may wait for a partition before it is left out of requests.
CHUNKS_MAX: Final = 2
# While partitions are left out, a request waits for records of the others no longer than this.
LEFT_OUT_WAIT_S: Final = 0.05
# A request asks for this much at the least; otherwise it waits until the user has taken records.
ROOM_MIN: Final = 16 * 1024
# A task without work looks again after this time.
TURN_S: Final = 1.0
# After so many turns without a partition of its broker, a task ends.
IDLE_TURNS_MAX: Final = 3
CONSUMER: Final = -1
NO_SESSION: Final = -1
# Fetch names topics by their ids from this version on.
TOPIC_IDS_FROM: Final = 13


class _Asked(NamedTuple):
    state: PartitionState
    round: int
    offset: int


class _Queued(NamedTuple):
    state: PartitionState
    round: int
    chunk: Chunk


class _Failed(NamedTuple):
    state: PartitionState
    round: int
    error: KafkaError


@final
class Fetcher:
    """`take` hands out records. `arrived` is set when there may be more, or an error."""

    def __init__(
        self, cluster: Cluster, options: ConsumerOptions, subscription: Subscription, arrived: asyncio.Event
    ) -> None:
        self.cluster = cluster
        self.options = options
        self.subscription = subscription
        self.arrived = arrived
        # Bytes of the answers that wait.
        self.buffered_bytes = 0
        self._queue: deque[_Queued] = deque()
        # Errors that the user must know, by partition.
        self._errors: dict[TopicPartition, _Failed] = {}
        # Where each partition is fetched next, if it differs from its position.
        self._tails: dict[TopicPartition, tuple[PartitionState, int, int]] = {}
        self._counts: Counter[TopicPartition] = Counter()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._wakes: dict[int, asyncio.Event] = {}
        self._reserved: dict[int, int] = {}
        self._not_before: dict[TopicPartition, float] = {}
        self._loop = asyncio.get_running_loop()

    # --- life

    async def close(self) -> None:
        await end_tasks(list(self._tasks.values()))
        self._tasks.clear()
        self._queue.clear()
        self.buffered_bytes = 0

    def wake(self) -> None:
        """Partitions, positions or leaders have changed: there may be something to fetch."""
        self._drop_stale()
        nodes = {self._node(partition, state) for partition, state in self.subscription.partitions.items()}
        for node in nodes - {NO_NODE}:
            task = self._tasks.get(node)
            if task is None:
                self._wakes[node] = asyncio.Event()
                self._tasks[node] = asyncio.create_task(self._run(node), name=f"kcoord fetch from {node}")
        for event in self._wakes.values():
            event.set()
        if NO_NODE in nodes:
            self.cluster.want_refresh()

    # --- the user's side

    def take(self, count: int, only: Collection[TopicPartition] = ()) -> list[ConsumerRecord]:
        """Up to `count` records, of some partitions if they are named. Raises the error of a partition, once.

        The positions of their partitions move on.
        """
        self._raise_error()
        taken: list[ConsumerRecord] = []
        aside: list[_Queued] = []
        try:
            self._take(count, only, taken, aside)
        finally:
            self._queue.extendleft(reversed(aside))
        return taken

    def _take(
        self, count: int, only: Collection[TopicPartition], taken: list[ConsumerRecord], aside: list[_Queued]
    ) -> None:
        while self._queue and len(taken) < count:
            one = self._queue[0]
            if not self._is_current(one):
                self._discard(self._queue.popleft())
            elif one.state.is_paused or one.state.is_revoking or (only and self._name(one) not in only):
                aside.append(self._queue.popleft())
            else:
                try:
                    taken += one.chunk.take(count - len(taken))
                except KafkaError:
                    if taken:
                        break
                    # It is fetched again from where it failed, unless the user seeks.
                    self._discard(self._queue.popleft())
                    self._tails.pop(self._name(one), None)
                    one.state.round += 1
                    raise
                self._moved(one)
                if one.chunk.is_done:
                    self._discard(self._queue.popleft())

    def take_one(self) -> ConsumerRecord | None:
        """The next record if that takes no decoding; otherwise use `take`."""
        if not self._queue or self._errors:
            return None
        state, round_number, chunk = self._queue[0]
        if state.round != round_number or state.is_paused or state.is_revoking:
            return None
        record = chunk.take_one()
        if record is not None:
            # The epoch stays the same: `take` has handed out the first record of this batch.
            state.position = chunk.next_offset
        return record

    def _moved(self, one: _Queued) -> None:
        one.state.position = one.chunk.next_offset
        if one.chunk.leader_epoch >= 0:
            one.state.fetched_epoch = one.chunk.leader_epoch

    def _raise_error(self) -> None:
        for partition in list(self._errors):
            failed = self._errors.pop(partition)
            if self._still_failed(partition, failed):
                # The next poll tries again.
                self.wake()
                raise failed.error

    def _still_failed(self, partition: TopicPartition, failed: _Failed) -> bool:
        """Whether an error is still of interest: not after a seek, nor after the partition was lost and came back."""
        state = self.subscription.partitions.get(partition)
        return state is failed.state and state.round == failed.round

    def _note_error(self, partition: TopicPartition, state: PartitionState, error: KafkaError) -> None:
        self._errors[partition] = _Failed(state, state.round, error)
        self.arrived.set()

    # --- the queue

    def _name(self, one: _Queued) -> TopicPartition:
        return TopicPartition(one.chunk.topic, one.chunk.partition)

    def _is_current(self, one: _Queued) -> bool:
        return one.state.round == one.round and self.subscription.partitions.get(self._name(one)) is one.state

    def _discard(self, one: _Queued) -> None:
        self.buffered_bytes -= one.chunk.size
        self._counts[self._name(one)] -= 1
        for event in self._wakes.values():
            event.set()

    def _drop_stale(self) -> None:
        stale = [one for one in self._queue if not self._is_current(one)]
        if stale:
            self._queue = deque(one for one in self._queue if self._is_current(one))
            for one in stale:
                self._discard(one)
        for partition in [one for one in self._tails if one not in self.subscription.partitions]:
            del self._tails[partition]
        for partition in [one for one in self._not_before if one not in self.subscription.partitions]:
            del self._not_before[partition]
        for partition in [one for one, failed in self._errors.items() if not self._still_failed(one, failed)]:
            del self._errors[partition]

    # --- requests

    async def _run(self, node: int) -> None:
        """Fetch from one broker as long as there is something to fetch from it."""
        try:
            await self._fetch_from(node)
        except Exception as error:
            # A bug must not leave the user waiting.
            self._fail(node, IllegalState(f"the consumer has failed: {error!r}"))
            raise
        finally:
            if self._tasks.get(node) is asyncio.current_task():
                del self._tasks[node]
                del self._wakes[node]

    async def _fetch_from(self, node: int) -> None:
        wake = self._wakes[node]
        backoff = Backoff(self.options.retry_backoff_s, self.options.retry_backoff_max_s)
        idle_turns = 0
        while idle_turns < IDLE_TURNS_MAX:
            wake.clear()
            try:
                connection = await self.cluster.connection(node)
                request, asked, version = self._request(node, connection)
                if not asked:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._pause_s()):
                            await wake.wait()
                    # Whoever wakes the task relies on another turn.
                    idle_turns = idle_turns + 1 if not wake.is_set() and self._has_none(node) else 0
                    continue
                idle_turns = 0
                answer = await connection.ask(apis.FETCH, version, request, FetchResponse)
                backoff.reset()
                self._answered(version, asked, answer)
            except KafkaError as error:
                if not may_retry(error):
                    self._fail(node, error)
                self.cluster.want_refresh()
                await asyncio.sleep(backoff.next_s())
                if self.cluster.is_closed or node not in self.cluster.metadata.nodes:
                    break
            finally:
                self._reserved.pop(node, None)

    def _has_none(self, node: int) -> bool:
        return all(self._node(name, state) != node for name, state in self.subscription.partitions.items())

    def _pause_s(self) -> float:
        now_s = self._loop.time()
        return min([TURN_S, *(max(until - now_s, 0.001) for until in self._not_before.values())])

    def _node(self, partition: TopicPartition, state: PartitionState) -> int:
        """The broker to fetch from: the leader, or a follower that it has named (KIP-392)."""
        if state.preferred_replica != NO_NODE:
            if state.preferred_until_s > self._loop.time() and state.preferred_replica in self.cluster.metadata.nodes:
                return state.preferred_replica
            state.preferred_replica = NO_NODE
        leader = self.cluster.metadata.leader(partition)
        return leader if leader in self.cluster.metadata.nodes else NO_NODE

    def _request(
        self, node: int, connection: Connection
    ) -> tuple[FetchRequest, dict[tuple[str, int], tuple[TopicPartition, _Asked]], int]:
        """What to ask a broker for now; nothing if no partition can be read, or there is no room."""
        asked: dict[tuple[str, int], tuple[TopicPartition, _Asked]] = {}
        now_s = self._loop.time()
        is_left_out = False
        topics: dict[str, FetchTopic] = {}
        knows_ids = True
        metadata = self.cluster.metadata
        for partition, state in self.subscription.partitions.items():
            if not state.is_fetchable or self._node(partition, state) != node or partition in self._errors:
                continue
            if self._not_before.get(partition, 0.0) > now_s:
                is_left_out = True
                continue
            self._not_before.pop(partition, None)
            if self._counts[partition] >= CHUNKS_MAX:
                is_left_out = True
                continue
            known = metadata.topics.get(partition.topic)
            topic_id = NO_ID if known is None else known.topic_id
            knows_ids &= topic_id != NO_ID
            offset = self._fetch_offset(partition, state)
            topic = topics.get(partition.topic)
            if topic is None:
                topic = topics[partition.topic] = FetchTopic(partition.topic, topic_id)
            topic.partitions.append(
                FetchPartition(
                    partition.partition,
                    metadata.leader_epoch(partition),
                    offset,
                    partition_max_bytes=self.options.max_partition_fetch_bytes,
                )
            )
            asked[partition] = (partition, _Asked(state, state.round, offset))
        request = FetchRequest(
            replica_id=CONSUMER,
            max_wait_ms=int((LEFT_OUT_WAIT_S if is_left_out else self.options.fetch_max_wait_s) * 1000),
            min_bytes=self.options.fetch_min_bytes,
            isolation_level=int(self.options.is_read_committed),
        )
        version = connection.version(apis.FETCH, 0, VERSION_LIMIT if knows_ids else TOPIC_IDS_FROM - 1)
        request.max_bytes = self._reserve(node, len(asked))
        if request.max_bytes == 0:
            asked = {}
        # Without a session: each request names its partitions.
        request.session_epoch = NO_SESSION
        request.topics = list(topics.values())
        if version >= TOPIC_IDS_FROM:
            asked = {(str(topics[name].topic_id.hex()), number): value for (name, number), value in asked.items()}
        request.rack_id = self.options.client_rack
        return request, asked, version

    def _reserve(self, node: int, partitions: int) -> int:
        """Reserve memory for an answer. Returns its bytes, 0 if there is too little room."""
        options = self.options
        wanted = min(
            options.fetch_max_bytes,
            partitions * options.max_partition_fetch_bytes,
            max(options.buffer_bytes_max // max(len(self._tasks), 1), ROOM_MIN),
        )
        room = options.buffer_bytes_max - self.buffered_bytes - sum(self._reserved.values())
        if wanted > room:
            wanted = room if room >= ROOM_MIN or not (self._queue or self._reserved) else 0
        self._reserved[node] = wanted
        return wanted

    def _fetch_offset(self, partition: TopicPartition, state: PartitionState) -> int:
        tail = self._tails.get(partition)
        if tail is not None and tail[0] is state and tail[1] == state.round and self._counts[partition] > 0:
            return tail[2]
        return state.position

    # --- answers

    def _answered(
        self, version: int, asked: dict[tuple[str, int], tuple[TopicPartition, _Asked]], answer: FetchResponse
    ) -> None:
        nodes = [Node(one.node_id, one.host, one.port, one.rack) for one in answer.node_endpoints]
        if answer.error_code:
            raise error_for(answer.error_code, "Fetch")
        for topic in answer.responses:
            name = topic.topic_id.hex() if version >= TOPIC_IDS_FROM else topic.topic
            for one in topic.partitions:
                found = asked.get((name, one.partition_index))
                if found is None:
                    continue
                partition, question = found
                state = question.state
                if self.subscription.partitions.get(partition) is not state or state.round != question.round:
                    continue
                if one.error_code:
                    self._refused(partition, question, one, nodes)
                else:
                    self._accepted(partition, question, one)

    def _accepted(self, partition: TopicPartition, question: _Asked, one: PartitionData) -> None:
        state = question.state
        state.high_watermark = one.high_watermark
        state.last_stable_offset = one.last_stable_offset
        if one.log_start_offset >= 0:
            state.log_start_offset = one.log_start_offset
        if one.preferred_read_replica != NO_NODE:
            state.preferred_replica = one.preferred_read_replica
            state.preferred_until_s = self._loop.time() + self.cluster.options.metadata_max_age_s
            self._not_before.pop(partition, None)
            self.wake()
        data = bytes(one.records or b"")
        if not data:
            return
        aborted = None
        if self.options.is_read_committed:
            aborted = sorted(
                ((each.producer_id, each.first_offset) for each in one.aborted_transactions or []), key=lambda x: x[1]
            )
        chunk = Chunk(
            partition.topic,
            partition.partition,
            question.offset,
            data,
            aborted,
            self.options.record_batch_bytes_max,
            self.options.check_crcs,
        )
        self._queue.append(_Queued(state, question.round, chunk))
        self._counts[partition] += 1
        self._tails[partition] = (state, question.round, chunk.end_offset)
        self.buffered_bytes += chunk.size
        self.arrived.set()

    def _refused(self, partition: TopicPartition, question: _Asked, one: PartitionData, nodes: list[Node]) -> None:
        code = one.error_code
        state = question.state
        if code == errors.OFFSET_OUT_OF_RANGE:
            self._out_of_range(partition, question)
            return
        if code in FATAL:
            self._note_error(partition, state, error_for(code, f"partition {partition}"))
            return
        if state.preferred_replica != NO_NODE:
            state.preferred_replica = NO_NODE
            self.wake()
        if one.current_leader.leader_id >= 0:
            self.cluster.note_leader(partition, one.current_leader.leader_id, one.current_leader.leader_epoch, nodes)
        elif code != errors.OFFSET_NOT_AVAILABLE:
            self.cluster.want_refresh()
        self._not_before[partition] = self._loop.time() + self.options.retry_backoff_s

    def _out_of_range(self, partition: TopicPartition, question: _Asked) -> None:
        state = question.state
        if state.preferred_replica != NO_NODE:
            # The follower may be behind: the leader decides.
            state.preferred_replica = NO_NODE
            self.wake()
        elif question.offset != state.position:
            # Fetched ahead; what waits comes first.
            self._not_before[partition] = self._loop.time() + self.options.retry_backoff_s
        elif self.options.auto_offset_reset == NONE:
            detail = f"offset {question.offset}; auto_offset_reset is none"
            self._note_error(partition, state, error_for(errors.OFFSET_OUT_OF_RANGE, f"partition {partition}", detail))
        else:
            state.seek_by(self.options.auto_offset_reset or LATEST)
        self.arrived.set()

    def _fail(self, node: int, error: KafkaError) -> None:
        """An error of the whole request, such as a version that the broker does not have."""
        for partition, state in self.subscription.partitions.items():
            if self._node(partition, state) == node:
                self._note_error(partition, state, error)
        self.arrived.set()


# Codes that are not tried again.
FATAL: Final = frozenset(
    {
        errors.TOPIC_AUTHORIZATION_FAILED,
        errors.CORRUPT_MESSAGE,
        errors.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
