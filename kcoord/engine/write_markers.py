"""WriteTxnMarkers: markers from outside, such as those of `kafka-transactions abort` for a hanging transaction.

The coordinator's own markers come with its outcomes (see apply.py) and need no check. Those of others may be late or
wrong, so the partition's state of the producer decides whether they are appended.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import mypyc_attr

from kcoord.core.outcome import TRANSACTION_TOPIC, Marker, Now, Request
from kcoord.engine.markers import MarkerWriter
from kcoord.protocol.errors import NONE, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, TOPIC_AUTHORIZATION_FAILED
from kcoord.protocol.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

# The markers that one request may append, at some 40 µs each.
MARKERS_MAX: Final = 2000


@mypyc_attr(allow_interpreted_subclasses=True)
class MarkerLog:
    """Appends markers; the applier is one."""

    def append_marker(self, marker: Marker, now: Now) -> None:
        raise TypeError(f"{type(self).__name__} does not implement append_marker()")


@final
class WriteMarkersHandler:
    """The handler of WriteTxnMarkers. The engine sets `log` before the first request."""

    def __init__(self, markers: MarkerWriter) -> None:
        self.markers = markers
        self.log: MarkerLog | None = None
        self.markers_max = MARKERS_MAX
        # How many markers the request may still append.
        self.left = 0

    def handle_write_txn_markers(
        self, request: Request, body: WriteTxnMarkersRequest, now: Now
    ) -> WriteTxnMarkersResponse:
        """Append each marker whose partition accepts it.

        Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION, INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED,
        TOPIC_AUTHORIZATION_FAILED for the log of the coordinator, and REQUEST_TIMED_OUT after many markers, so that
        coordinators send the rest again.
        """
        self.left = self.markers_max
        response = WriteTxnMarkersResponse()
        for asked in body.markers:
            result = WritableTxnMarkerResult(asked.producer_id)
            for topic in asked.topics:
                results = [
                    WritableTxnMarkerPartitionResult(index, self._write(asked, topic.name, index, now))
                    for index in topic.partition_indexes
                ]
                result.topics.append(WritableTxnMarkerTopicResult(topic.name, results))
            response.markers.append(result)
        return response

    def _write(self, asked: WritableTxnMarker, topic: str, partition: int, now: Now) -> int:
        log = self.log
        if log is None:
            return NOT_LEADER_OR_FOLLOWER
        if topic == TRANSACTION_TOPIC:
            # It has no transactions, and all that it gets goes through its CoordinatorLog.
            return TOPIC_AUTHORIZATION_FAILED
        if self.left <= 0:
            return REQUEST_TIMED_OUT
        marker = Marker(
            topic,
            partition,
            asked.producer_id,
            asked.producer_epoch,
            asked.transaction_result,
            asked.coordinator_epoch,
            asked.transaction_version,
        )
        error: int = self.markers.check(marker)
        if error == NONE:
            self.left -= 1
            log.append_marker(marker, now)
        return error
