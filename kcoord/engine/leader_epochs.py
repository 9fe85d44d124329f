"""OffsetForLeaderEpoch: the end of a leader epoch, so that a consumer can check whether its position still exists.

The only broker leads in one epoch from the first record on, which ends at the end of the log. Logs from other servers
have earlier epochs. Only the durable end is returned: records after it may be lost in a crash (KIP-320).
"""

from __future__ import annotations

from typing import final

from kcoord.engine.partitions import PartitionTable, epoch_end
from kcoord.protocol.errors import NONE, UNKNOWN_TOPIC_OR_PARTITION
from kcoord.protocol.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


@final
class LeaderEpochsHandler:
    def __init__(self, table: PartitionTable) -> None:
        self.table = table

    def handle_offset_for_leader_epoch(self, body: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        """Epoch and end offset are -1 for an epoch that never existed here."""
        response = OffsetForLeaderEpochResponse()
        for topic in body.topics:
            result = OffsetForLeaderTopicResult(topic.topic)
            for p in topic.partitions:
                result.partitions.append(self._look_up(topic.topic, p))
            response.topics.append(result)
        return response

    def _look_up(self, topic: str, p: OffsetForLeaderPartition) -> EpochEndOffset:
        tp = self.table.find(topic, p.partition)
        if tp is None:
            return EpochEndOffset(UNKNOWN_TOPIC_OR_PARTITION, p.partition)
        error = tp.check_leader_epoch(p.current_leader_epoch)
        if error != NONE:
            return EpochEndOffset(error, p.partition)
        end = epoch_end(tp, p.leader_epoch)
        if end.offset < 0:
            return EpochEndOffset(NONE, p.partition)
        return EpochEndOffset(NONE, p.partition, end.epoch, min(end.offset, tp.log.durable_end))
