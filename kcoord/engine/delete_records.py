"""DeleteRecords: moving a partition's start forward (KIP-107)."""

from __future__ import annotations

from typing import Final, final

from kcoord.core.outcome import INTERNAL_TOPICS, Now, Request
from kcoord.engine.partitions import PartitionTable
from kcoord.log.directory import LogDirectory
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
class DeleteRecordsRoom:
    def __init__(self, table: PartitionTable, directory: LogDirectory) -> None:
        self.table = table
        self.directory = directory

    def handle_delete_records(
        self, request: Request, body: DeleteRecordsRequest, now: Now
    ) -> DeleteRecordsResponse:
        """Offset -1 stands for the high watermark; an offset below the start changes nothing.

        Errors: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION for internal topics, POLICY_VIOLATION where
        cleanup.policy is compact alone, OFFSET_OUT_OF_RANGE.
        """
        response = DeleteRecordsResponse()
        for topic in body.topics:
            result = DeleteRecordsTopicResult(topic.name)
            for p in topic.partitions:
                result.partitions.append(self._delete(topic.name, p.partition_index, p.offset))
            response.topics.append(result)
        return response

    def _delete(self, topic: str, index: int, offset: int) -> DeleteRecordsPartitionResult:
        served = self.table.topic(topic)
        tp = self.table.find(topic, index)
        if served is None or tp is None:
            return DeleteRecordsPartitionResult(index, NO_OFFSET, UNKNOWN_TOPIC_OR_PARTITION)
        if topic in INTERNAL_TOPICS:
            return DeleteRecordsPartitionResult(index, NO_OFFSET, INVALID_TOPIC_EXCEPTION)
        if served.settings.is_compacted and not served.settings.is_deleted:
            return DeleteRecordsPartitionResult(index, NO_OFFSET, POLICY_VIOLATION)
        log = tp.log
        if offset == TO_HIGH_WATERMARK:
            offset = log.durable_end
        if offset < 0 or offset > log.durable_end:
            return DeleteRecordsPartitionResult(index, NO_OFFSET, OFFSET_OUT_OF_RANGE)
        if offset > log.log_start_offset:
            self.directory.advance_log_start(log, offset)
        return DeleteRecordsPartitionResult(index, log.log_start_offset, NONE)
