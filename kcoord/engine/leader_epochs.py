"""OffsetForLeaderEpoch: where a leader epoch ended, so that a consumer can tell whether its position still exists.

The only broker leads in one epoch from the first record on, which ends where the log does. Logs that came from
elsewhere have older ones.
Only the durable end is told: what lies beyond may be gone after a crash (KIP-320).
"""

from __future__ import annotations

from typing import final

from kcoord.core.outcome import Now, Request
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
class LeaderEpochsRoom:
    def __init__(self, table: PartitionTable) -> None:
        self.table = table

    def handle_offset_for_leader_epoch(
        self, request: Request, body: OffsetForLeaderEpochRequest, now: Now
    ) -> OffsetForLeaderEpochResponse:
        """Epoch and end offset are -1 for an epoch that never was here."""
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
