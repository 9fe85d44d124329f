"""InitProducerId, AddPartitionsToTxn and EndTxn, in both versions of the protocol."""

from __future__ import annotations

import pytest

from kcoord.core.outcome import TRANSACTION_TOPIC
from kcoord.protocol import apis, errors
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.find_coordinator import FindCoordinatorRequest
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.records.transaction_log import PartitionsSchema, TransactionLogValue
from tests.unit.core.transactions.transaction_rig import START_MS, Rig

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)
T0, T1 = ("t", 0), ("t", 1)


def test_the_first_search_creates_the_topic() -> None:
    rig = Rig(find=False, transaction_topic_num_partitions=3)
    assert rig.init()[0] == errors.NOT_COORDINATOR
    assert rig.add((0, 0), T0) == errors.NOT_COORDINATOR
    assert rig.end((0, 0))[0] == errors.NOT_COORDINATOR
    answer = rig.ask(apis.FIND_COORDINATOR, 2, FindCoordinatorRequest("x", 1))
    assert (answer.error_code, answer.node_id, answer.port) == (errors.NONE, 1, 9092)
    topic = rig.core.topics.get(TRANSACTION_TOPIC)
    assert topic is not None
    assert topic.partition_count == 3
    assert rig.core.topics.config_value(topic, "cleanup.policy") == "compact"
    assert rig.init() == (errors.NONE, 0, 0)
    # The second search creates nothing.
    before = rig.core.topics.end_offset
    rig.ask(apis.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=1, coordinator_keys=["x", "y"]))
    assert rig.core.topics.end_offset == before
    rig.check_replay()


def test_the_records_of_version_1() -> None:
    rig = Rig()
    producer = rig.begin()
    assert rig.last() == TransactionLogValue(0, 0, -1, 0, -1, 60000, EMPTY, None, START_MS, -1, 0)
    rig.advance(10)
    assert rig.add(producer, T1) == errors.NONE
    rig.advance(10)
    assert rig.add_offsets(producer) == errors.NONE
    partitions = [PartitionsSchema("t", [1]), PartitionsSchema("__consumer_offsets", [0])]
    start = START_MS + 10
    assert rig.last() == TransactionLogValue(0, 0, -1, 0, -1, 60000, ONGOING, partitions, start + 10, start, 0)
    rig.advance(10)
    assert rig.end(producer, True) == (errors.NONE, -1, -1)
    assert rig.states() == [EMPTY, ONGOING, ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT]
    prepared, complete = [record.value for record in rig.records()[-2:]]
    assert prepared == TransactionLogValue(0, 0, -1, 0, -1, 60000, PREPARE_COMMIT, partitions, start + 20, start, 0)
    assert complete == TransactionLogValue(0, 0, -1, 0, -1, 60000, COMPLETE_COMMIT, [], start + 20, start, 0)
    assert rig.markers() == [("t", 1, 0, 0, True), ("__consumer_offsets", 0, 0, 0, True)]
    rig.check_replay()


def test_the_records_of_version_2() -> None:
    rig = Rig()
    producer = rig.begin()
    assert rig.write(producer, T0, T1) == errors.NONE
    assert rig.write(producer, T0) == errors.NONE
    partitions = [PartitionsSchema("t", [0, 1])]
    assert rig.last() == TransactionLogValue(0, 0, -1, 0, -1, 60000, ONGOING, partitions, START_MS, START_MS, 2)
    assert rig.end(producer, False, version=5) == (errors.NONE, 0, 1)
    prepared, complete = [record.value for record in rig.records()[-2:]]
    assert prepared == TransactionLogValue(0, 0, -1, 1, -1, 60000, PREPARE_ABORT, partitions, START_MS, START_MS, 2)
    assert complete == TransactionLogValue(0, 0, -1, 1, -1, 60000, COMPLETE_ABORT, [], START_MS, START_MS, 2)
    cause = rig.records()[-2].cause
    assert cause is not None
    assert (cause.kind, cause.detail) == ("client_aborted", "client id app, host 10.0.0.1")
    assert rig.markers() == [("t", 0, 0, 1, False), ("t", 1, 0, 1, False)]
    rig.check_replay()


def test_the_steps_of_an_end_wait_for_each_other() -> None:
    rig = Rig()
    producer = rig.begin()
    rig.add(producer, T0)
    number = rig.send(apis.END_TXN, 3, EndTxnRequest("x", *producer, True))
    assert rig.states()[-1] == PREPARE_COMMIT
    assert rig.markers() == []
    for request in range(2):
        assert rig.add(producer, T1) == errors.CONCURRENT_TRANSACTIONS
        assert rig.init()[0] == errors.CONCURRENT_TRANSACTIONS
        assert rig.end(producer)[0] == errors.CONCURRENT_TRANSACTIONS
        assert rig.write(producer, T0) == errors.CONCURRENT_TRANSACTIONS
        assert rig.core.transactions.check_write("x", *producer, *T0) == errors.CONCURRENT_TRANSACTIONS
        assert number not in rig.answers
        if request == 0:
            rig.commit()
            assert len(rig.markers()) == 1
    rig.commit()
    # The answer does not wait for the record that completes the end.
    assert number in rig.answers
    assert rig.states()[-1] == COMPLETE_COMMIT
    assert rig.commits[-1]
    assert rig.add(producer, T1) == errors.NONE


def test_a_retry_of_an_end_waits_for_what_it_shows() -> None:
    rig = Rig()
    producer = rig.begin()
    rig.add(producer, T0)
    rig.end(producer)
    number = rig.send(apis.END_TXN, 3, EndTxnRequest("x", *producer, True))
    assert number not in rig.answers
    rig.commit()
    assert number in rig.answers


def test_many_markers_come_in_steps() -> None:
    rig = Rig({"t": 1201})
    producer = rig.begin()
    rig.write(producer, *[("t", partition) for partition in range(1201)])
    rig.send(apis.END_TXN, 5, EndTxnRequest("x", *producer, True))
    counts = []
    while rig.txn().is_ending:
        rig.commit()
        counts.append(len(rig.markers()))
    assert counts == [500, 1000, 1201, 1201]
    assert {marker[1] for marker in rig.markers()} == set(range(1201))


@pytest.mark.parametrize(("version", "error"), [(1, errors.INVALID_PRODUCER_EPOCH), (2, errors.PRODUCER_FENCED)])
def test_requests_of_others_are_refused_by_version(version: int, error: int) -> None:
    rig = Rig()
    producer_id, epoch = rig.begin()
    assert rig.add((producer_id, epoch + 1), T0, version=version) == error
    assert rig.add_offsets((producer_id, epoch + 1), version=version) == error
    assert rig.end((producer_id, epoch + 1), version=version)[0] == error
    assert rig.add((producer_id + 1, epoch), T0, version=version) == errors.INVALID_PRODUCER_ID_MAPPING
    assert rig.add((producer_id, epoch), T0, name="y", version=version) == errors.INVALID_PRODUCER_ID_MAPPING
    assert rig.end((producer_id + 1, epoch), version=version)[0] == errors.INVALID_PRODUCER_ID_MAPPING
    assert rig.end((producer_id, epoch), name="y", version=version)[0] == errors.INVALID_PRODUCER_ID_MAPPING
    assert rig.add((producer_id, epoch), T0, name="", version=version) == errors.INVALID_REQUEST
    assert rig.end((producer_id, epoch), name="", version=version)[0] == errors.INVALID_REQUEST
    assert rig.states() == [EMPTY]


def test_what_version_1_answers_outside_of_a_transaction() -> None:
    rig = Rig()
    producer = rig.begin()
    assert rig.end(producer, True)[0] == errors.INVALID_TXN_STATE
    assert rig.end(producer, False)[0] == errors.INVALID_TXN_STATE
    for commit in (True, False):
        rig.add(producer, T0)
        assert rig.end(producer, commit)[0] == errors.NONE
        assert rig.end(producer, commit)[0] == errors.NONE
        assert rig.end(producer, not commit)[0] == errors.INVALID_TXN_STATE


def test_what_version_2_answers_outside_of_a_transaction() -> None:
    rig = Rig()
    producer_id, _ = rig.begin()
    assert rig.end((producer_id, 0), True, version=5)[0] == errors.INVALID_TXN_STATE
    # An abort without partitions is a transaction of its own.
    rig.advance(5)
    assert rig.end((producer_id, 0), False, version=5) == (errors.NONE, 0, 1)
    assert rig.states() == [EMPTY, PREPARE_ABORT, COMPLETE_ABORT]
    assert rig.last().transaction_start_timestamp_ms == START_MS + 5
    assert rig.markers() == []
    # A retry, and another result than that of the first request.
    assert rig.end((producer_id, 0), False, version=5) == (errors.NONE, 0, 1)
    assert rig.end((producer_id, 0), True, version=5)[0] == errors.INVALID_TXN_STATE
    # With the new epoch it is the next one.
    assert rig.end((producer_id, 1), True, version=5)[0] == errors.INVALID_TXN_STATE
    assert rig.end((producer_id, 1), False, version=5) == (errors.NONE, 0, 2)
    rig.write((producer_id, 2), T0)
    assert rig.end((producer_id, 2), True, version=5) == (errors.NONE, 0, 3)
    assert rig.end((producer_id, 2), True, version=5) == (errors.NONE, 0, 3)
    assert rig.end((producer_id, 2), False, version=5)[0] == errors.INVALID_TXN_STATE
    assert rig.end((producer_id, 3), False, version=5) == (errors.NONE, 0, 4)
    assert rig.end((producer_id, 2), False, version=5)[0] == errors.PRODUCER_FENCED
    rig.check_replay()


def test_a_new_producer_fences_the_old_one() -> None:
    rig = Rig()
    producer = rig.begin()
    rig.add(producer, T0)
    assert rig.init() == (errors.CONCURRENT_TRANSACTIONS, -1, -1)
    record = rig.records()[-1]
    assert record.cause is not None
    assert (record.cause.kind, record.cause.detail) == ("producer_replaced", "by client id app, host 10.0.0.1")
    assert (rig.last().transaction_status, rig.last().producer_epoch) == (PREPARE_ABORT, 1)
    assert rig.last().client_transaction_version == 2
    rig.settle()
    assert rig.markers() == [("t", 0, 0, 1, False)]
    assert rig.init() == (errors.NONE, 0, 2)
    assert rig.add(producer, T0) == errors.PRODUCER_FENCED
    assert rig.end(producer)[0] == errors.PRODUCER_FENCED
    assert rig.core.transactions.check_write("x", *producer, *T0) == errors.PRODUCER_FENCED
    rig.check_replay()


def test_a_timeout_aborts() -> None:
    rig = Rig()
    producer = rig.begin(timeout_ms=5000)
    rig.add(producer, T0)
    rig.advance(3000)
    # A later partition does not start it again.
    rig.add(producer, T1)
    rig.advance(2000)
    assert rig.states()[-1] == ONGOING
    rig.advance(1)
    cause = rig.records()[-1].cause
    assert cause is not None
    assert (cause.kind, cause.detail) == ("transaction_timeout", "not ended within 5000 ms")
    rig.settle()
    assert rig.states()[-1] == COMPLETE_ABORT
    assert rig.end(producer)[0] == errors.PRODUCER_FENCED
    assert rig.add(producer, T0) == errors.PRODUCER_FENCED
    assert [fact.event for fact in rig.facts] == ["transaction_timed_out"]
    # The same producer may go on with a new epoch, and nobody else was given one.
    assert rig.init(producer=producer) == (errors.NONE, 0, 1)


def test_timers_of_transactions_that_are_over_do_nothing() -> None:
    rig = Rig()
    producer = rig.begin(timeout_ms=5000)
    rig.add(producer, T0)
    rig.end(producer)
    rig.settle()
    rig.advance(4000)
    rig.add(producer, T0)
    timers = [timer for _, _, timer in rig.timers if timer.kind == 13]
    assert [rig.core.still_counts(timer) for timer in timers] == [False, True]
    rig.advance(4000)
    assert rig.states()[-1] == ONGOING
    rig.advance(1001)
    assert rig.states()[-1] == PREPARE_ABORT


def test_open_transactions_time_out_after_a_restart() -> None:
    rig = Rig()
    producer = rig.begin(timeout_ms=5000)
    rig.add(producer, T0)
    rig.advance(4000)
    rig.open()
    rig.advance(1000)
    assert rig.states()[-1] == ONGOING
    rig.advance(1)
    assert rig.states()[-1] == PREPARE_ABORT


def test_a_clock_that_went_back_does_not_prolong_a_transaction() -> None:
    rig = Rig()
    producer = rig.begin(timeout_ms=5000)
    rig.add(producer, T0)
    rig.wall_ms -= 3_600_000
    rig.open()
    rig.advance(5001)
    assert rig.states()[-1] == PREPARE_ABORT


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (InitProducerIdRequest("x", 1000, 5, -1), errors.INVALID_REQUEST),
        (InitProducerIdRequest("x", 1000, -1, 5), errors.INVALID_REQUEST),
        (InitProducerIdRequest("", 1000), errors.INVALID_REQUEST),
        (InitProducerIdRequest("x", 0), errors.INVALID_TRANSACTION_TIMEOUT),
        (InitProducerIdRequest("x", 900001), errors.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_producers_that_cannot_be_initialized(body: InitProducerIdRequest, error: int) -> None:
    rig = Rig()
    answer = rig.ask(apis.INIT_PRODUCER_ID, 5, body)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (error, -1, -1)


def test_ids_of_transactions_wait_for_their_reservation() -> None:
    rig = Rig(producer_id_block_size=2)
    first = rig.send(apis.INIT_PRODUCER_ID, 5, InitProducerIdRequest("a", 1000))
    second = rig.send(apis.INIT_PRODUCER_ID, 5, InitProducerIdRequest("b", 1000))
    third = rig.send(apis.INIT_PRODUCER_ID, 5, InitProducerIdRequest("c", 1000))
    assert rig.records("a") == []
    rig.commit()
    assert [len(rig.records(name)) for name in "abc"] == [1, 1, 0]
    rig.commit()
    rig.commit()
    assert [rig.answers[number].producer_id for number in (first, second, third)] == [0, 1, 2]  # type: ignore[union-attr]
    rig.open()
    assert rig.begin("d")[0] == 4
    rig.check_replay()
