"""ListOffsets: where a partition starts and ends, and which offset belongs to a time.

Only what lies below the high watermark (or the last stable offset) is told; a time beyond it has no offset yet.
Nothing is tiered here, so the local start is the start and nothing is in remote storage (KIP-405).
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.outcome import Now, Request
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
NO_TIMESTAMP: Final = -1


def is_supported(timestamp: int, version: int) -> bool:
    """Whether a request of this version may ask for `timestamp`."""
    if timestamp >= 0:
        return True
    first = _VERSION_OF.get(timestamp)
    return first is not None and version >= first


def repeated_partitions(body: ListOffsetsRequest) -> dict[str, list[int]]:
    """The partitions that the request names more than once, by topic."""
    seen: dict[tuple[str, int], bool] = {}
    repeated: dict[str, list[int]] = {}
    for topic in body.topics:
        for p in topic.partitions:
            key = (topic.name, p.partition_index)
            if key in seen:
                repeated.setdefault(topic.name, []).append(p.partition_index)
            seen[key] = True
    return repeated


@final
class ListOffsetsRoom:
    def __init__(self, table: PartitionTable) -> None:
        self.table = table

    def handle_list_offsets(
        self, request: Request, body: ListOffsetsRequest, now: Now
    ) -> ListOffsetsResponse:
        """One answer per partition. One that is named twice gets INVALID_REQUEST, once."""
        version = request.version
        repeated = repeated_partitions(body)
        response = ListOffsetsResponse()
        answers: dict[str, ListOffsetsTopicResponse] = {}
        for topic in body.topics:
            answer = answers.get(topic.name)
            if answer is None:
                answer = ListOffsetsTopicResponse(topic.name)
                answers[topic.name] = answer
                response.topics.append(answer)
                for index in repeated.get(topic.name, []):
                    if not has_partition(answer, index):
                        answer.partitions.append(ListOffsetsPartitionResponse(index, INVALID_REQUEST))
            twice = repeated.get(topic.name, [])
            for p in topic.partitions:
                if p.partition_index not in twice:
                    answer.partitions.append(self._list_partition(version, topic.name, p))
        return response

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
        if version < LEADER_EPOCH_FROM:
            answer.leader_epoch = -1
        return answer


def has_partition(answer: ListOffsetsTopicResponse, index: int) -> bool:
    for partition in answer.partitions:
        if partition.partition_index == index:
            return True
    return False


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
