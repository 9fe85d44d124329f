"""DeleteRecords: moving the start of a partition forward (KIP-107).

A turn changes numbers only. Readers see the new start from that moment on. It becomes durable with the commit that the
answer waits for; one file with the starts of all logs serves all requests of a commit. That readers see it before it is
durable breaks no promise: starts only grow, and after a crash in between the partition begins where it did before, with
all of its records, as if the request had never arrived.

The order is: the start, its durability, the files. Segments below the start keep their files until the start is
durable. Then the server removes them, in the background.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.outcome import INTERNAL_TOPICS
from kcoord.engine.partitions import PartitionTable, ServedTopic, TopicPartition
from kcoord.log.directory import LogDirectory
from kcoord.log.segment import Segment
from kcoord.protocol.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kcoord.protocol.errors import (
    INVALID_TOPIC_EXCEPTION,
    NONE,
    OFFSET_OUT_OF_RANGE,
    POLICY_VIOLATION,
    UNKNOWN_TOPIC_OR_PARTITION,
)

TO_HIGH_WATERMARK: Final = -1
NO_OFFSET: Final = -1


@final
class DeleteRecordsHandler:
    def __init__(self, table: PartitionTable, directory: LogDirectory) -> None:
        self.table = table
        self.directory = directory
        # Partitions whose start moved, by topic id and number. Some of their segments may be removed.
        self.moved: dict[tuple[bytes, int], TopicPartition] = {}

    def handle_delete_records(self, body: DeleteRecordsRequest) -> DeleteRecordsResponse:
        """Offset -1 means the high watermark; an offset below the start changes nothing.

        As on a broker, the last of several offsets for one partition counts, and the answer has each partition once.
        Errors: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION for internal topics, POLICY_VIOLATION if
        cleanup.policy is compact only, OFFSET_OUT_OF_RANGE.
        """
        wanted: dict[str, dict[int, int]] = {}
        for topic in body.topics:
            if topic.partitions:
                offsets = wanted.get(topic.name)
                if offsets is None:
                    offsets = wanted[topic.name] = {}
                for p in topic.partitions:
                    offsets[p.partition_index] = p.offset
        response = DeleteRecordsResponse()
        for name, offsets in wanted.items():
            served = self.table.topic(name)
            result = DeleteRecordsTopicResult(name)
            for index, offset in offsets.items():
                result.partitions.append(self._delete(served, index, offset))
            response.topics.append(result)
        return response

    def _delete(self, served: ServedTopic | None, index: int, offset: int) -> DeleteRecordsPartitionResult:
        if served is None or index < 0 or index >= len(served.partitions):
            return DeleteRecordsPartitionResult(index, NO_OFFSET, UNKNOWN_TOPIC_OR_PARTITION)
        if served.name in INTERNAL_TOPICS:
            return DeleteRecordsPartitionResult(index, NO_OFFSET, INVALID_TOPIC_EXCEPTION)
        if served.settings.is_compacted and not served.settings.is_deleted:
            return DeleteRecordsPartitionResult(index, NO_OFFSET, POLICY_VIOLATION)
        tp = served.partitions[index]
        log = tp.log
        if offset == TO_HIGH_WATERMARK:
            offset = log.durable_end
        if offset < 0 or offset > log.durable_end:
            return DeleteRecordsPartitionResult(index, NO_OFFSET, OFFSET_OUT_OF_RANGE)
        if offset > log.log_start_offset:
            self.directory.move_log_start(log, offset)
            self.moved[(tp.topic_id, index)] = tp
        return DeleteRecordsPartitionResult(index, log.log_start_offset, NONE)

    def take_waste(self, busy: str) -> list[Segment]:
        """Closed segments below durable starts. They are removed from their logs, and the caller removes the files.

        The log named `busy` is skipped for now. Retention takes segments that are not closed yet.
        """
        waste: list[Segment] = []
        for key, tp in list(self.moved.items()):
            if tp.log.name == busy:
                continue
            start = self.directory.durable_start(tp.log)
            if tp.is_dropped or start >= tp.log.log_start_offset:
                del self.moved[key]
            if not tp.is_dropped:
                waste += tp.log.take_segments_below(min(start, tp.log.log_start_offset))
        return waste
