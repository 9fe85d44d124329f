"""Transactions in partitions: what Produce appends, how markers end them, and what committed readers see."""

from __future__ import annotations

import pytest

from kcoord.core.config import CoreConfig
from kcoord.engine.markers import MarkerWriter, marker_batch, open_transactions
from kcoord.protocol.errors import (
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    NONE,
    NOT_ENOUGH_REPLICAS,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    TRANSACTION_COORDINATOR_FENCED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kcoord.protocol.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.wire.record_batch import LOG_APPEND_TIME, check_crc, decode_records, parse_header
from tests.harness.batches import BASE_TIME_MS, batch
from tests.harness.present import present
from tests.harness.transactions import OpenGate, marker, transactional
from tests.unit.engine.plane import Plane, offsets, values

COMMITTED = 1


class Transactions(Plane):
    """A plane whose gate is open, with a writer of markers."""

    def __init__(self, config: CoreConfig | None = None) -> None:
        super().__init__(config)
        self.gate = OpenGate()
        self.produce_handler.gate = self.gate
        self.markers = MarkerWriter(self.table, self.journal)
        self.sequences: dict[int, int] = {}

    def write(self, producer_id: int, *texts: bytes, epoch: int = 0, topic: str = "t", partition: int = 0) -> int:
        """Append a transactional batch without a commit; its base offset."""
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + len(texts)
        records = transactional(list(texts), producer_id, sequence, epoch)
        answer = self.produce(topic, records, partition, transactional_id=f"id-{producer_id}")
        assert answer.error_code == NONE, answer
        return answer.base_offset

    def end(self, producer_id: int, is_commit: bool, epoch: int = 0, topic: str = "t", partition: int = 0) -> int:
        """Append a marker without a commit; its offset."""
        one = marker(producer_id, is_commit, epoch, topic, partition)
        assert self.markers.check(one) == NONE
        return self.markers.append_marker(self.partition(topic, partition), one, self.now)

    @property
    def stable(self) -> int:
        return self.partition("t").last_stable_offset

    def list_offset(self, timestamp: int, isolation_level: int, version: int = 7) -> int:
        topics = [ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=timestamp)])]
        body = ListOffsetsRequest(-1, isolation_level, topics)
        response = self.offsets_handler.handle_list_offsets(self.request(2, version, body), body, self.now)
        partition = present(response).topics[0].partitions[0]
        assert partition.error_code == NONE
        return partition.offset


@pytest.fixture
def plane() -> Transactions:
    plane = Transactions()
    plane.create("t", 2)
    return plane


def test_the_last_stable_offset_is_where_the_oldest_open_transaction_begins(plane: Transactions) -> None:
    plane.put("t", batch([b"plain"]))
    assert plane.stable == 1
    plane.write(7, b"a")
    plane.write(8, b"b")
    plane.put("t", batch([b"plain"]))
    assert plane.stable == 1
    plane.end(7, True)
    plane.commit()
    assert plane.stable == 2
    plane.end(8, False)
    plane.commit()
    assert plane.stable == plane.partition("t").log.end_offset == 6


def test_a_marker_counts_once_it_is_durable(plane: Transactions) -> None:
    plane.write(7, b"a")
    plane.commit()
    plane.end(7, True)
    assert plane.stable == 0
    plane.write(8, b"b")
    plane.commit()
    assert plane.stable == 2
    assert open_transactions(plane.partition("t")) == [(8, 0, 2)]


def test_transactions_that_end_in_another_order_than_they_began(plane: Transactions) -> None:
    for producer_id in (5, 6, 7):
        plane.write(producer_id, b"x")
    plane.commit()
    plane.end(6, True)
    plane.commit()
    assert plane.stable == 0
    plane.end(7, True)
    plane.end(5, False)
    assert plane.stable == 0
    plane.commit()
    assert plane.stable == 6


def test_a_marker_is_the_batch_that_a_broker_writes(plane: Transactions) -> None:
    """The bytes are those of MemoryRecords.withEndTransactionMarker of Kafka 4.3.1 for the same arguments."""
    data = marker_batch(marker(7, True, 3, coordinator_epoch=9), 12, 4, 1000)
    assert data.hex() == (
        "000000000000000c00000042000000040207b547e000300000000000000000000003e800000000000003e8"
        "00000000000000070003ffffffff000000012000000008000000010c00000000000900"
    )
    header = parse_header(data)
    assert check_crc(data, 0, header)
    assert (header.base_offset, header.leader_epoch, header.attributes, header.count) == (12, 4, 0x30, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    (record,) = decode_records(data, 0, header, 1 << 10)
    assert (record.key, record.value) == (bytes.fromhex("00000001"), bytes.fromhex("000000000009"))
    assert (record.timestamp, record.headers) == (1000, [])
    aborted = marker_batch(marker(7, False), 0, 0, 1000)
    (record,) = decode_records(aborted, 0, parse_header(aborted), 1 << 10)
    assert record.key == bytes(4)


def test_a_topic_with_log_append_time_stamps_markers() -> None:
    plane = Transactions()
    plane.create("t", message_timestamp_type="LogAppendTime")
    plane.end(7, True)
    plane.commit()
    header = parse_header(present(plane.fetch("t", 0).records))
    assert (header.timestamp_type, header.max_timestamp) == (LOG_APPEND_TIME, plane.now.wall_ms)


def test_a_committed_fetch_ends_at_the_last_stable_offset(plane: Transactions) -> None:
    plane.put("t", batch([b"plain"]))
    plane.write(7, b"a", b"b")
    plane.put("t", batch([b"later"]))
    data = plane.fetch("t", 0, isolation_level=COMMITTED)
    assert (data.high_watermark, data.last_stable_offset, data.aborted_transactions) == (4, 1, [])
    assert values(data.records) == [b"plain"]
    beyond = plane.fetch("t", 2, isolation_level=COMMITTED)
    assert (beyond.error_code, beyond.records, beyond.aborted_transactions) == (NONE, b"", [])
    dirty = plane.fetch("t", 0)
    assert (dirty.last_stable_offset, dirty.aborted_transactions) == (1, None)
    assert values(dirty.records) == [b"plain", b"a", b"b", b"later"]


def test_a_committed_fetch_names_the_aborted_transactions(plane: Transactions) -> None:
    plane.write(7, b"a")
    plane.write(8, b"b")
    plane.end(7, False)
    plane.write(7, b"c")
    plane.end(8, True)
    plane.end(7, False)
    plane.commit()
    data = plane.fetch("t", 0, isolation_level=COMMITTED)
    assert offsets(data.records) == list(range(6))
    assert [(one.producer_id, one.first_offset) for one in present(data.aborted_transactions)] == [(7, 0), (7, 3)]
    data = plane.fetch("t", 3, isolation_level=COMMITTED)
    assert [(one.producer_id, one.first_offset) for one in present(data.aborted_transactions)] == [(7, 3)]
    assert plane.fetch("t", 6, isolation_level=COMMITTED).aborted_transactions == []


def test_a_committed_fetch_waits_for_the_marker(plane: Transactions) -> None:
    plane.write(7, b"a")
    plane.commit()
    body = plane.fetch_body(("t", 0, 0), isolation_level=COMMITTED, max_wait_ms=1000, min_bytes=1)
    request_id, response = plane.send_fetch(body)
    assert response is None
    plane.put("t", batch([b"plain"]))
    assert not plane.replies
    plane.end(7, True)
    assert not plane.replies
    plane.commit()
    data = present(plane.replies[request_id]).responses[0].partitions[0]  # type: ignore[attr-defined]
    assert offsets(data.records) == [0, 1, 2]


def test_bytes_beyond_the_last_stable_offset_do_not_count(plane: Transactions) -> None:
    size = len(batch([b"plain"]))
    plane.put("t", batch([b"plain"]))
    plane.write(7, b"a")
    plane.commit()
    minimum = 2 * size + 1
    body = plane.fetch_body(("t", 0, 0), isolation_level=COMMITTED, max_wait_ms=1000, min_bytes=minimum)
    request_id, response = plane.send_fetch(body)
    assert response is None
    plane.put("t", batch([b"plain"]))
    assert not plane.replies
    plane.end(7, False)
    plane.commit()
    data = present(plane.replies[request_id]).responses[0].partitions[0]  # type: ignore[attr-defined]
    assert offsets(data.records) == [0, 1, 2, 3]
    assert [(one.producer_id, one.first_offset) for one in data.aborted_transactions] == [(7, 1)]


def test_offsets_are_listed_by_isolation_level(plane: Transactions) -> None:
    plane.put("t", batch([b"plain"], base_time_ms=BASE_TIME_MS - 5000))
    plane.write(7, b"a")
    plane.commit()
    assert [plane.list_offset(-1, level) for level in (0, COMMITTED)] == [2, 1]
    assert [plane.list_offset(-2, level) for level in (0, COMMITTED)] == [0, 0]
    assert [plane.list_offset(-3, level) for level in (0, COMMITTED)] == [1, -1]
    assert [plane.list_offset(BASE_TIME_MS - 1, level) for level in (0, COMMITTED)] == [1, -1]
    plane.end(7, True)
    plane.commit()
    assert [plane.list_offset(-1, level) for level in (0, COMMITTED)] == [3, 3]
    assert plane.list_offset(BASE_TIME_MS - 1, COMMITTED) == 1


def test_deleted_records_move_the_last_stable_offset_to_the_start(plane: Transactions) -> None:
    plane.write(7, b"a", b"b", b"c")
    plane.commit()
    tp = plane.partition("t")
    plane.directory.move_log_start(tp.log, 2)
    assert tp.last_stable_offset == 2
    plane.directory.move_log_start(tp.log, 3)
    assert tp.last_stable_offset == 3
    plane.end(7, True)
    plane.commit()
    assert tp.last_stable_offset == 4


# --- Produce


def test_the_gate_is_asked_with_all_that_names_the_transaction(plane: Transactions) -> None:
    plane.produce("t", transactional([b"a"], 7, epoch=2), 1, version=11, transactional_id="id")
    assert plane.gate.asked == [("id", 7, 2, "t", 1, 11)] * 2
    plane.produce("t", batch([b"plain"]), transactional_id="id")
    assert len(plane.gate.asked) == 2


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (INVALID_TXN_STATE, "Partition was not added to the transaction"),
        (NOT_ENOUGH_REPLICAS, "Unable to verify the partition has been added to the transaction"),
        (INVALID_PRODUCER_EPOCH, None),
    ],
)
def test_a_closed_gate_refuses_the_batch(plane: Transactions, error: int, message: str | None) -> None:
    plane.gate.close(7, error=error)
    answer = plane.produce("t", transactional([b"a"], 7), transactional_id="id")
    assert (answer.error_code, answer.base_offset, answer.error_message) == (error, -1, message)
    assert plane.partition("t").log.end_offset == 0
    assert plane.produce("t", transactional([b"a"], 7), 1, transactional_id="id").error_code == NONE


def test_the_gate_is_asked_again_when_the_batch_is_appended(plane: Transactions) -> None:
    """The transaction may have ended while the batch was checked."""

    class Closing(OpenGate):
        def check_write(
            self, transactional_id: str | None, producer_id: int, producer_epoch: int, topic: str, partition: int,
            version: int,
        ) -> int:  # fmt: skip
            found = super().check_write(transactional_id, producer_id, producer_epoch, topic, partition, version)
            self.close(producer_id)
            return found

    plane.produce_handler.gate = Closing()
    answer = plane.produce("t", transactional([b"a"], 7), transactional_id="id")
    assert (answer.error_code, plane.partition("t").log.end_offset) == (INVALID_TXN_STATE, 0)


def test_a_partition_refuses_an_older_epoch_without_asking_the_gate(plane: Transactions) -> None:
    """A later epoch may have come without a transaction; a broker looks at it before it asks the coordinator."""
    plain = batch([b"a"], producer_id=7, producer_epoch=1, base_sequence=0)
    assert plane.produce("t", plain).error_code == NONE
    plane.gate.close(7)
    answer = plane.produce("t", transactional([b"a"], 7), transactional_id="id")
    assert (answer.error_code, answer.log_start_offset) == (INVALID_PRODUCER_EPOCH, -1)
    assert plane.gate.asked == []


def test_a_batch_needs_a_transactional_id(plane: Transactions) -> None:
    answer = plane.produce("t", transactional([b"a"], 7))
    assert answer.error_code == TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_request_comes_from_one_producer(plane: Transactions) -> None:
    data = [
        PartitionProduceData(0, transactional([b"a"], 7)),
        PartitionProduceData(1, transactional([b"a"], 7, epoch=1)),
    ]
    body = ProduceRequest("id", -1, 5000, [TopicProduceData("t", partition_data=data)])
    response = present(plane.produce_handler.handle_produce(plane.request(0, 9, body), body, plane.now))
    answers = response.responses[0].partition_responses
    assert [one.error_code for one in answers] == [INVALID_PRODUCER_ID_MAPPING] * 2
    assert answers[0].error_message == "Transactional records contained more than one producer ID"


def test_a_producer_with_an_open_transaction_writes_nothing_else(plane: Transactions) -> None:
    plane.write(7, b"a")
    plain = batch([b"b"], producer_id=7, producer_epoch=0, base_sequence=1)
    assert plane.produce("t", plain).error_code == INVALID_TXN_STATE
    plane.end(7, True)
    assert plane.produce("t", plain).error_code == NONE


def test_a_repeated_batch_is_answered_with_its_first_offset(plane: Transactions) -> None:
    assert plane.write(7, b"a") == 0
    plane.sequences[7] = 0
    assert plane.write(7, b"a") == 0
    assert plane.partition("t").log.end_offset == 1


def test_a_producer_that_bumps_epochs_begins_with_sequence_0(plane: Transactions) -> None:
    late = transactional([b"b"], 7, sequence=1)
    assert plane.produce("t", late, version=12, transactional_id="id").error_code == OUT_OF_ORDER_SEQUENCE_NUMBER
    first = transactional([b"a"], 7)
    assert plane.produce("t", first, version=12, transactional_id="id").error_code == NONE
    assert plane.produce("t", late, version=12, transactional_id="id").error_code == NONE
    # A client of version 1 may go on with its sequences where the partition has forgotten the producer.
    assert plane.produce("t", late, 1, version=11, transactional_id="id").error_code == NONE


# --- markers


def test_a_marker_with_the_next_epoch_restarts_the_sequences(plane: Transactions) -> None:
    plane.write(7, b"a", b"b")
    plane.markers.append_marker(plane.partition("t"), marker(7, True, 1, version=2), plane.now)
    old = transactional([b"c"], 7, sequence=2, epoch=0)
    assert plane.produce("t", old, version=12, transactional_id="id").error_code == INVALID_PRODUCER_EPOCH
    gap = transactional([b"c"], 7, sequence=2, epoch=1)
    assert plane.produce("t", gap, version=12, transactional_id="id").error_code == OUT_OF_ORDER_SEQUENCE_NUMBER
    new = transactional([b"c"], 7, sequence=0, epoch=1)
    assert plane.produce("t", new, version=12, transactional_id="id").error_code == NONE


def test_a_marker_of_version_2_has_a_new_epoch_or_is_a_repetition(plane: Transactions) -> None:
    plane.write(7, b"a", epoch=4)
    assert plane.markers.check(marker(7, True, 3, version=1)) == INVALID_PRODUCER_EPOCH
    assert plane.markers.check(marker(7, True, 4, version=1)) == NONE
    assert plane.markers.check(marker(7, True, 4, version=2)) == INVALID_PRODUCER_EPOCH
    repeated = marker(7, True, 5, version=2)
    assert plane.markers.write(repeated, plane.now) == NONE
    assert plane.markers.write(repeated, plane.now) == NONE
    assert plane.markers.write(marker(7, True, 4, version=2), plane.now) == INVALID_PRODUCER_EPOCH
    assert plane.partition("t").log.end_offset == 3


def test_the_last_epoch_has_no_next_one(plane: Transactions) -> None:
    plane.write(7, b"a", epoch=32767)
    assert plane.markers.check(marker(7, False, 32767, version=2)) == NONE


def test_a_marker_of_an_older_coordinator_is_fenced(plane: Transactions) -> None:
    plane.write(7, b"a")
    assert plane.markers.write(marker(7, True, coordinator_epoch=3), plane.now) == NONE
    assert plane.markers.check(marker(7, True, coordinator_epoch=2)) == TRANSACTION_COORDINATOR_FENCED
    assert plane.markers.check(marker(7, True, coordinator_epoch=3)) == NONE


def test_a_marker_of_a_missing_partition(plane: Transactions) -> None:
    assert plane.markers.write(marker(7, True, topic="gone"), plane.now) == UNKNOWN_TOPIC_OR_PARTITION
    assert plane.markers.write(marker(7, True, partition=2), plane.now) == UNKNOWN_TOPIC_OR_PARTITION


def test_a_marker_without_a_transaction_changes_nothing_for_readers(plane: Transactions) -> None:
    plane.end(9, False)
    plane.commit()
    data = plane.fetch("t", 0, isolation_level=COMMITTED)
    assert (offsets(data.records), data.aborted_transactions, data.last_stable_offset) == ([0], [], 1)
