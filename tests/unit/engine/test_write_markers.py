"""WriteTxnMarkers: markers that come from outside."""

from __future__ import annotations

import pytest

from kcoord.core.outcome import OFFSETS_TOPIC, TRANSACTION_TOPIC
from kcoord.engine.write_markers import MARKERS_MAX
from kcoord.protocol import apis
from kcoord.protocol.errors import (
    INVALID_PRODUCER_EPOCH,
    NONE,
    REQUEST_TIMED_OUT,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_SERVER_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kcoord.protocol.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from tests.unit.engine.test_transaction_recovery import NOW, Rig


def write(rig: Rig, producer_id: int, partitions: list[int], epoch: int = 0, topic: str = "t") -> list[int]:
    """The error codes for markers that abort."""
    marker = WritableTxnMarker(producer_id, epoch, False, [WritableTxnMarkerTopic(topic, partitions)], 0, 0)
    answer = rig.client.ask(apis.WRITE_TXN_MARKERS, 1, WriteTxnMarkersRequest([marker]), NOW)
    (result,) = answer.markers
    assert result.producer_id == producer_id and result.topics[0].name == topic
    return [one.error_code for one in result.topics[0].partitions]


def test_a_marker_ends_a_transaction() -> None:
    rig = Rig()
    rig.write(1)
    assert write(rig, 1, [0, 1]) == [NONE, UNKNOWN_TOPIC_OR_PARTITION]
    rig.ended[rig.current.pop(1)] = False
    del rig.firsts[1]
    rig.check()


def test_an_old_epoch_ends_nothing() -> None:
    rig = Rig()
    rig.write(1)
    rig.end(1, True, bumps=True)
    rig.write(1)
    assert write(rig, 1, [0]) == [INVALID_PRODUCER_EPOCH]
    rig.check()


@pytest.mark.parametrize("topic", ["t", OFFSETS_TOPIC])
@pytest.mark.parametrize(
    ("producer_id", "epoch", "code"),
    [
        (9, -1, UNKNOWN_SERVER_ERROR),
        (9, -2, INVALID_PRODUCER_EPOCH),
        (9, -32768, INVALID_PRODUCER_EPOCH),
        (-1, 0, UNKNOWN_SERVER_ERROR),
        (-1, -1, UNKNOWN_SERVER_ERROR),
        (-7, 0, NONE),
    ],
)
def test_markers_that_no_producer_has(topic: str, producer_id: int, epoch: int, code: int) -> None:
    """The codes are those of a broker (4.3.1). Nothing else happens to the connection."""
    assert write(Rig(), producer_id, [0, 0], epoch, topic) == [code] * 2


def test_the_coordinators_log_gets_no_markers() -> None:
    rig = Rig()
    rig.write(1)
    assert write(rig, 1, [0], topic=TRANSACTION_TOPIC) == [TOPIC_AUTHORIZATION_FAILED]
    rig.end(1, True)
    rig.restart(False)
    rig.check()


def test_one_request_appends_a_limited_number_of_markers() -> None:
    rig = Rig()
    rig.engine.data_plane.write_markers.markers_max = 2
    end = rig.tp.log.end_offset
    assert write(rig, 1, [0, 7, 0, 0, 7]) == [
        NONE, UNKNOWN_TOPIC_OR_PARTITION, NONE, REQUEST_TIMED_OUT, REQUEST_TIMED_OUT,
    ]  # fmt: skip
    assert rig.tp.log.end_offset == end + 2
    assert write(rig, 1, [0]) == [NONE]
    assert MARKERS_MAX > 1000
