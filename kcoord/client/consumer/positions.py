"""Finds where to read partitions that have no position, and checks positions after a change of leader (KIP-320).

A partition starts at the group's committed offset. Without one, and without a group (KIP-289), `auto_offset_reset`
decides. A committed offset with a leader epoch is checked at once. One task does this for all partitions; it ends when
all have positions, and at errors, which the next `poll` raises. The poll after that tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, final

from kcoord.client.admin.group_offsets import list_offsets_of_groups
from kcoord.client.admin.results import CommittedOffset
from kcoord.client.admin.spread import Spread, only
from kcoord.client.admin.topics import list_offsets
from kcoord.client.cluster import MOVED
from kcoord.client.connection import Connection
from kcoord.client.consumer.membership import end_tasks
from kcoord.client.consumer.options import EARLIEST, NONE, ConsumerOptions
from kcoord.client.consumer.subscription import PartitionState, Subscription
from kcoord.client.deadline import Backoff, Deadline
from kcoord.client.errors import IllegalState, KafkaError, NoCommittedOffset, RequestTimedOut, error_for, may_retry
from kcoord.client.metadata import NO_EPOCH, TopicPartition
from kcoord.protocol import apis, errors
from kcoord.protocol.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

# Kafka's special timestamps of ListOffsets.
EARLIEST_TIME: Final = -2
LATEST_TIME: Final = -1
CONSUMER: Final = -1
# An end offset that the broker does not know.
UNDEFINED: Final = -1

Partitions = dict[TopicPartition, PartitionState]


class _EpochEnd(NamedTuple):
    """Where a leader's log ends an epoch, and what the partition's epochs were when it was asked."""

    asked: tuple[int, int]
    epoch: int
    end: int


@final
class Positions:
    """`found` is called after each step; `error` is for the next `poll`."""

    def __init__(
        self, spread: Spread, options: ConsumerOptions, subscription: Subscription, found: Callable[[], None]
    ) -> None:
        self.error: KafkaError | None = None
        self._spread = spread
        self._options = options
        self._subscription = subscription
        self._found = found
        self._task: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Start looking for positions if partitions need that."""
        for name, state in self._subscription.partitions.items():
            if state.has_position and state.leader_epoch == NO_EPOCH:
                # The user's own position. Without its epoch, nothing would be compared after the next election.
                self._note_epoch(name, state)
        if self._task is not None and not self._task.done():
            return
        for state in self._subscription.partitions.values():
            if self._is_wanted(state):
                self._task = asyncio.create_task(self._run(), name="kcoord positions")
                return

    def seek(self, name: TopicPartition, state: PartitionState, offset: int, epoch: int) -> None:
        """Continue at an offset that was committed with the epoch of the record before it.

        The log may have been cut off below it since, so the leader is asked first, as in Kafka.
        """
        state.seek(offset, epoch)
        self._note_epoch(name, state)
        state.must_validate = NO_EPOCH not in _epochs(state)

    def leaders_changed(self) -> None:
        """Have positions checked that were found under an older leader epoch."""
        metadata = self._spread.cluster.metadata
        for partition, state in self._subscription.partitions.items():
            epoch = metadata.leader_epoch(partition)
            if epoch > state.leader_epoch:
                state.must_validate = state.leader_epoch != NO_EPOCH and state.fetched_epoch != NO_EPOCH
                state.leader_epoch = epoch

    async def close(self) -> None:
        if self._task is not None:
            await end_tasks([self._task])

    def raise_error(self) -> None:
        """Raise the error of the last search, once."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    # --- the task

    def _is_wanted(self, state: PartitionState) -> bool:
        return (not state.has_position or state.must_validate) and not state.is_revoking

    async def _run(self) -> None:
        backoff = Backoff(self._options.retry_backoff_s, self._options.retry_backoff_max_s)
        try:
            while True:
                partitions = {
                    name: state for name, state in self._subscription.partitions.items() if self._is_wanted(state)
                }
                if not partitions:
                    return
                error = await self._step(partitions)
                self._found()
                if error is not None:
                    if not may_retry(error) and not isinstance(error, RequestTimedOut):
                        self.error = error
                        return
                    await asyncio.sleep(backoff.next_s())
        except Exception as error:
            self.error = error if isinstance(error, KafkaError) else IllegalState(f"the consumer has failed: {error!r}")
            if not isinstance(error, KafkaError):
                raise
        finally:
            self._found()

    async def _step(self, partitions: Partitions) -> KafkaError | None:
        """One attempt for each. Returns an error that is to be told or tried again."""
        problems: list[KafkaError] = []
        rounds = {name: state.round for name, state in partitions.items()}
        unknown = {name: state for name, state in partitions.items() if not state.has_position and state.reset is None}
        if unknown:
            problems += await self._from_committed(unknown, rounds)
        resets = {name: state for name, state in partitions.items() if not state.has_position and state.reset}
        if resets:
            problems += await self._reset(resets, {name: state.round for name, state in resets.items()})
        checked = {name: state for name, state in partitions.items() if state.must_validate}
        if checked:
            problems += await self._validate(checked, {name: state.round for name, state in checked.items()})
        final = [error for error in problems if not may_retry(error)]
        return next(iter(final or problems), None)

    def _is_same(self, name: TopicPartition, state: PartitionState, round_number: int) -> bool:
        return self._subscription.partitions.get(name) is state and state.round == round_number

    async def _from_committed(self, partitions: Partitions, rounds: dict[TopicPartition, int]) -> list[KafkaError]:
        offsets: dict[TopicPartition, CommittedOffset | KafkaError] = {}
        group = self._options.group_id
        if group:
            deadline = self._deadline(f"the committed offsets of group {group}")
            try:
                answer = await list_offsets_of_groups(self._spread, deadline, {group: list(partitions)}, True)
                offsets = only(answer, group)
            except KafkaError as error:
                return [error]
        problems: list[KafkaError] = []
        for name, state in partitions.items():
            if not self._is_same(name, state, rounds[name]):
                continue
            found = offsets.get(name)
            if isinstance(found, KafkaError):
                problems.append(found)
            elif found is not None:
                self.seek(name, state, found.offset, found.leader_epoch)
            elif self._options.auto_offset_reset == NONE:
                where = f"group {group}" if group else "a consumer without a group"
                problems.append(NoCommittedOffset(f"partition {name}: {where} has no offset, and no reset policy"))
            else:
                state.seek_by(self._options.auto_offset_reset)
        return problems

    async def _reset(self, partitions: Partitions, rounds: dict[TopicPartition, int]) -> list[KafkaError]:
        times = {name: EARLIEST_TIME if state.reset == EARLIEST else LATEST_TIME for name, state in partitions.items()}
        deadline = self._deadline("offsets of partitions")
        found = await list_offsets(self._spread, deadline, times, self._options.is_read_committed)
        problems: list[KafkaError] = []
        for name, state in partitions.items():
            if not self._is_same(name, state, rounds[name]):
                continue
            one = found[name]
            if isinstance(one, KafkaError):
                problems.append(one)
            else:
                state.seek(one.offset, one.leader_epoch)
                self._note_epoch(name, state)
        return problems

    def _note_epoch(self, name: TopicPartition, state: PartitionState) -> None:
        state.leader_epoch = self._spread.cluster.metadata.leader_epoch(name)

    def _deadline(self, what: str) -> Deadline:
        return Deadline(self._options.request_timeout_s, what)

    # --- KIP-320

    async def _validate(self, partitions: Partitions, rounds: dict[TopicPartition, int]) -> list[KafkaError]:
        """Compare the epoch of the last record with the leader's log: it may have been cut off there.

        Meanwhile the leader may change again, and the user may take records that were fetched before. An answer for
        other epochs than the present ones says nothing about the position, which stays to be validated (as in Kafka).
        """

        async def ask(
            connection: Connection, part: list[TopicPartition]
        ) -> dict[TopicPartition, _EpochEnd | KafkaError]:
            return await self._ask_epochs(connection, {name: partitions[name] for name in part})

        found = await self._spread.over_leaders(self._deadline("the epochs of partitions"), partitions, ask)
        problems: list[KafkaError] = []
        for name, state in partitions.items():
            if not self._is_same(name, state, rounds[name]):
                continue
            one = found[name]
            if isinstance(one, KafkaError):
                problems.append(one)
                continue
            if one.asked != _epochs(state):
                continue
            state.must_validate = False
            if one.end == UNDEFINED or one.epoch == NO_EPOCH:
                # The leader knows nothing of the epoch any more.
                self._truncated(name, state, None, problems)
            elif one.end < state.position:
                self._truncated(name, state, (one.end, one.epoch), problems)
        return problems

    def _truncated(
        self, name: TopicPartition, state: PartitionState, end: tuple[int, int] | None, problems: list[KafkaError]
    ) -> None:
        if self._options.auto_offset_reset == NONE:
            # Each poll says so until the user seeks: records would be left out in silence otherwise.
            state.must_validate = True
            detail = f"the log was truncated below {state.position}"
            problems.append(error_for(errors.OFFSET_OUT_OF_RANGE, f"partition {name}", detail))
        elif end is None:
            state.seek_by(self._options.auto_offset_reset)
        else:
            state.seek(*end)

    async def _ask_epochs(
        self, connection: Connection, part: Partitions
    ) -> dict[TopicPartition, _EpochEnd | KafkaError]:
        topics: dict[str, OffsetForLeaderTopic] = {}
        cluster = self._spread.cluster
        asked = {name: _epochs(state) for name, state in part.items()}
        for name, state in part.items():
            topic = topics.setdefault(name.topic, OffsetForLeaderTopic(name.topic))
            topic.partitions.append(
                OffsetForLeaderPartition(name.partition, cluster.metadata.leader_epoch(name), state.fetched_epoch)
            )
        version = connection.version(apis.OFFSET_FOR_LEADER_EPOCH)
        request = OffsetForLeaderEpochRequest(CONSUMER, list(topics.values()))
        answer = await connection.ask(apis.OFFSET_FOR_LEADER_EPOCH, version, request, OffsetForLeaderEpochResponse)
        found: dict[TopicPartition, _EpochEnd | KafkaError] = {}
        for answered in answer.topics:
            for one in answered.partitions:
                name = TopicPartition(answered.topic, one.partition)
                if one.error_code:
                    found[name] = error_for(one.error_code, f"partition {name}")
                elif name in asked:
                    found[name] = _EpochEnd(asked[name], one.leader_epoch, one.end_offset)
                if one.error_code in MOVED:
                    # The next attempt needs the new leader epoch, and no Fetch of the partition finds out meanwhile.
                    cluster.want_refresh()
        return found


def _epochs(state: PartitionState) -> tuple[int, int]:
    """What a validation depends on."""
    return state.leader_epoch, state.fetched_epoch
