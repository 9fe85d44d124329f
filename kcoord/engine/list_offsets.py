"""ListOffsets: where a partition starts and ends, and which offset belongs to a time.

Only what lies below the high watermark (or the last stable offset) is told; a time beyond it has no offset yet.
Nothing is tiered here, so the local start is the start and nothing is in remote storage (KIP-405).

A time is looked up in the files. A request for many times waits with its connection, and each turn looks up as many as
its budget has room for.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from kcoord.core.outcome import Now, Reply, Request
from kcoord.engine.budget import TURN_COST_MAX, TurnBudget
from kcoord.engine.partitions import PartitionTable, TopicPartition
from kcoord.log.errors import LogDamaged
from kcoord.protocol.errors import (
    INVALID_REQUEST,
    KAFKA_STORAGE_ERROR,
    NONE,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_VERSION,
)
from kcoord.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

# Times with a meaning, and the request version from which each is understood.
LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_VERSION_OF: Final[dict[int, int]] = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
LEADER_EPOCH_FROM: Final = 4
# What looking up a time counts for, in bytes of a request: reading an index and some kilobytes of a file.
LOOKUP_COST: Final = 4096
# Times that a request may ask for without having to wait: no more than a turn has room for.
LOOKUPS_AT_ONCE: Final = TURN_COST_MAX // LOOKUP_COST
NO_TIMESTAMP: Final = -1


def is_supported(timestamp: int, version: int) -> bool:
    """Whether a request of this version may ask for `timestamp`."""
    if timestamp >= 0:
        return True
    first = _VERSION_OF.get(timestamp)
    return first is not None and version >= first


def repeated_partitions(body: ListOffsetsRequest) -> dict[str, dict[int, bool]]:
    """The partitions that the request names more than once, by topic and in the order in which they repeat."""
    seen: dict[str, dict[int, bool]] = {}
    repeated: dict[str, dict[int, bool]] = {}
    for topic in body.topics:
        of_topic = seen.get(topic.name)
        if of_topic is None:
            of_topic = {}
            seen[topic.name] = of_topic
        for p in topic.partitions:
            if p.partition_index in of_topic:
                repeated.setdefault(topic.name, {})[p.partition_index] = True
            of_topic[p.partition_index] = True
    return repeated


def needs_files(timestamp: int) -> bool:
    """Whether the time has to be looked up in the partition's files."""
    return timestamp >= 0 or timestamp == MAX_TIMESTAMP


@final
class Lookup:
    """One partition of a request that waits, and the answer that its offset belongs to."""

    def __init__(self, topic: ListOffsetsTopicResponse, partition: ListOffsetsPartition) -> None:
        self.topic = topic
        self.partition = partition


@final
class ListOffsetsWork:
    """A request from its arrival to its answer. What stands before `position` is looked up."""

    def __init__(self, request: Request) -> None:
        self.request_id = request.request_id
        self.connection_id = request.connection_id
        self.version = request.version
        self.response = ListOffsetsResponse()
        self.lookups: list[Lookup] = []
        self.position = 0
        # How many of the lookups need the files.
        self.times = 0


@final
class ListOffsetsRoom:
    def __init__(self, table: PartitionTable, budget: TurnBudget | None = None) -> None:
        self.table = table
        self.budget = TurnBudget() if budget is None else budget
        # Requests that wait for later turns, first come first served.
        self.waiting: deque[ListOffsetsWork] = deque()

    def handle_list_offsets(
        self, request: Request, body: ListOffsetsRequest, now: Now
    ) -> ListOffsetsResponse | None:
        """One answer per partition, or None: it comes with answer_next.

        A partition that is named twice gets INVALID_REQUEST, once.
        """
        work = self._plan(request, body)
        if work.times > LOOKUPS_AT_ONCE:
            self.waiting.append(work)
            return None
        for lookup in work.lookups:
            self._look_up(work, lookup)
        return work.response

    def has_due(self) -> bool:
        """Whether a request goes on with this or a later turn."""
        return len(self.waiting) > 0

    def answer_next(self) -> Reply | None:
        """Go on with the first request as far as the turn goes, by one lookup at least; the answer once it is done."""
        work = self.waiting[0]
        while work.position < len(work.lookups):
            self._look_up(work, work.lookups[work.position])
            work.position += 1
            if self.budget.is_spent:
                break
        if work.position < len(work.lookups):
            return None
        self.waiting.popleft()
        return Reply(work.request_id, work.response)

    def on_disconnect(self, connection_id: int) -> None:
        """Nobody waits any more for what the connection asked."""
        if self.waiting:
            self.waiting = deque(work for work in self.waiting if work.connection_id != connection_id)

    def _plan(self, request: Request, body: ListOffsetsRequest) -> ListOffsetsWork:
        """What is known before any partition is looked at."""
        work = ListOffsetsWork(request)
        repeated = repeated_partitions(body)
        answers: dict[str, ListOffsetsTopicResponse] = {}
        for topic in body.topics:
            twice = repeated.get(topic.name)
            answer = answers.get(topic.name)
            if answer is None:
                answer = ListOffsetsTopicResponse(topic.name)
                answers[topic.name] = answer
                work.response.topics.append(answer)
                if twice is not None:
                    for index in twice:
                        answer.partitions.append(ListOffsetsPartitionResponse(index, INVALID_REQUEST))
            for p in topic.partitions:
                if twice is None or p.partition_index not in twice:
                    work.lookups.append(Lookup(answer, p))
                    if needs_files(p.timestamp):
                        work.times += 1
        return work

    def _look_up(self, work: ListOffsetsWork, lookup: Lookup) -> None:
        p = lookup.partition
        if needs_files(p.timestamp):
            self.budget.spent += LOOKUP_COST
        lookup.topic.partitions.append(self._list_partition(work.version, lookup.topic.name, p))

    def _list_partition(
        self, version: int, topic: str, p: ListOffsetsPartition
    ) -> ListOffsetsPartitionResponse:
        if not is_supported(p.timestamp, version):
            return ListOffsetsPartitionResponse(p.partition_index, UNSUPPORTED_VERSION)
        tp = self.table.find(topic, p.partition_index)
        if tp is None:
            return ListOffsetsPartitionResponse(p.partition_index, UNKNOWN_TOPIC_OR_PARTITION)
        error = tp.check_leader_epoch(p.current_leader_epoch)
        if error != NONE:
            return ListOffsetsPartitionResponse(p.partition_index, error)
        try:
            answer = look_up(tp, p.timestamp)
        except LogDamaged as damage:
            self.table.note_damage(tp, damage)
            return ListOffsetsPartitionResponse(p.partition_index, KAFKA_STORAGE_ERROR)
        except OSError:
            return ListOffsetsPartitionResponse(p.partition_index, KAFKA_STORAGE_ERROR)
        if version < LEADER_EPOCH_FROM:
            answer.leader_epoch = -1
        return answer


def look_up(tp: TopicPartition, timestamp: int) -> ListOffsetsPartitionResponse:
    """What `timestamp` (or one of the special times) means in the partition; offset -1 for nothing."""
    log = tp.log
    index = tp.partition
    end = log.durable_end
    if timestamp == LATEST:
        return ListOffsetsPartitionResponse(index, NONE, NO_TIMESTAMP, end, tp.leader_epoch)
    if timestamp == EARLIEST or timestamp == EARLIEST_LOCAL:
        return ListOffsetsPartitionResponse(index, NONE, NO_TIMESTAMP, log.log_start_offset, tp.leader_epoch)
    if timestamp < MAX_TIMESTAMP:
        return ListOffsetsPartitionResponse(index, NONE)
    found = log.max_timestamp() if timestamp == MAX_TIMESTAMP else log.find_by_timestamp(timestamp, end)
    if found is None or found[1] >= end:
        return ListOffsetsPartitionResponse(index, NONE)
    return ListOffsetsPartitionResponse(index, NONE, found[0], found[1], found[2])
