"""Adding partitions, whether writes are part of a transaction, and requests that come late."""

from __future__ import annotations

import pytest

from kcoord.core.transactions.partitions import produce_error
from kcoord.protocol import apis, errors
from kcoord.protocol.add_offsets_to_txn import AddOffsetsToTxnRequest
from kcoord.protocol.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kcoord.protocol.end_txn import EndTxnRequest
from tests.unit.core.transactions.transaction_rig import Rig

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)
T0, T1, T2 = ("t", 0), ("t", 1), ("t", 2)


def codes(results: list[object]) -> list[tuple[str, list[tuple[int, int]]]]:
    return [
        (topic.name, [(one.partition_index, one.partition_error_code) for one in topic.results_by_partition])  # type: ignore[attr-defined]
        for topic in results
    ]


def test_all_partitions_or_none() -> None:
    rig = Rig()
    producer = rig.begin()
    topics = [
        AddPartitionsToTxnTopic("t", [0, 3, -1]),
        AddPartitionsToTxnTopic("missing", [0]),
        AddPartitionsToTxnTopic("__consumer_offsets", [0]),
    ]
    answer = rig.ask(apis.ADD_PARTITIONS_TO_TXN, 3, AddPartitionsToTxnRequest([], "x", *producer, topics))
    unknown = errors.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(answer.results_by_topic_v3_and_below) == [
        ("t", [(0, errors.OPERATION_NOT_ATTEMPTED), (3, unknown), (-1, unknown)]),
        ("missing", [(0, unknown)]),
        ("__consumer_offsets", [(0, errors.TOPIC_AUTHORIZATION_FAILED)]),
    ]
    assert rig.states() == [EMPTY]
    topics = [AddPartitionsToTxnTopic("t", [0, 2])]
    answer = rig.ask(apis.ADD_PARTITIONS_TO_TXN, 0, AddPartitionsToTxnRequest([], "x", *producer, topics))
    assert codes(answer.results_by_topic_v3_and_below) == [("t", [(0, 0), (2, 0)])]
    assert rig.txn().partition_list() == [T0, T2]


def test_a_partition_that_is_there_is_not_stored_again() -> None:
    rig = Rig()
    producer = rig.begin()
    rig.settle()
    body = AddPartitionsToTxnRequest([], "x", *producer, [AddPartitionsToTxnTopic("t", [0])])
    first = rig.send(apis.ADD_PARTITIONS_TO_TXN, 3, body)
    second = rig.send(apis.ADD_PARTITIONS_TO_TXN, 3, body)
    assert rig.states() == [EMPTY, ONGOING]
    # The second answer says that the first record is durable, too.
    assert not {first, second} & set(rig.answers)
    rig.commit()
    assert {first, second} <= set(rig.answers)


@pytest.mark.parametrize("partitions", [1, 3])
def test_requests_of_brokers_are_about_several_transactions(partitions: int) -> None:
    rig = Rig(transaction_topic_num_partitions=partitions)
    topics = [AddPartitionsToTxnTopic("t", [0, 1])]
    producers = {name: rig.begin(name) for name in ("a", "b", "c", "d")}
    rig.add(producers["c"], T0, name="c")
    asked = [AddPartitionsToTxnTransaction(name, *producers[name], False, topics) for name in ("a", "b")]
    asked.append(AddPartitionsToTxnTransaction("c", *producers["c"], True, topics))
    asked.append(AddPartitionsToTxnTransaction("a", *producers["a"], False, [AddPartitionsToTxnTopic("t", [2])]))
    asked.append(AddPartitionsToTxnTransaction("d", 99, 0, False, topics))
    asked.append(AddPartitionsToTxnTransaction("d", *producers["d"], False, [AddPartitionsToTxnTopic("u", [2])]))
    answer = rig.ask(apis.ADD_PARTITIONS_TO_TXN, 5, AddPartitionsToTxnRequest(asked))
    mapping = errors.INVALID_PRODUCER_ID_MAPPING
    assert [(one.transactional_id, codes(one.topic_results)) for one in answer.results_by_transaction] == [
        ("a", [("t", [(0, 0), (1, 0)])]),
        ("b", [("t", [(0, 0), (1, 0)])]),
        ("c", [("t", [(0, 0), (1, errors.TRANSACTION_ABORTABLE)])]),
        ("a", [("t", [(2, 0)])]),
        ("d", [("t", [(0, mapping), (1, mapping)])]),
        ("d", [("u", [(2, errors.UNKNOWN_TOPIC_OR_PARTITION)])]),
    ]
    assert rig.txn("a").partition_list() == [T0, T1, T2]
    assert rig.txn("a").client_version == 2
    rig.check_replay()


def test_writes_are_checked() -> None:
    rig = Rig()
    producer = rig.begin()
    check = rig.core.transactions.check_write
    assert check("x", *producer, *T0) == errors.TRANSACTION_ABORTABLE
    rig.add(producer, T0)
    assert check("x", *producer, *T0) == errors.NONE
    assert check("x", *producer, *T1) == errors.TRANSACTION_ABORTABLE
    assert check("x", producer[0], producer[1] + 1, *T0) == errors.PRODUCER_FENCED
    assert check("x", producer[0] + 1, producer[1], *T0) == errors.INVALID_PRODUCER_ID_MAPPING
    assert check("y", *producer, *T0) == errors.INVALID_PRODUCER_ID_MAPPING
    assert check(None, *producer, *T0) == errors.INVALID_REQUEST
    rig.end(producer)
    assert check("x", *producer, *T0) == errors.TRANSACTION_ABORTABLE


def test_writes_of_version_2_add_their_partitions() -> None:
    rig = Rig()
    producer = rig.begin(timeout_ms=5000)
    assert rig.write(producer, T0) == errors.NONE
    assert rig.write((producer[0], 1), T1) == errors.PRODUCER_FENCED
    assert rig.write(producer, T1, name="y") == errors.INVALID_PRODUCER_ID_MAPPING
    assert rig.core.transactions.check_write("x", *producer, *T0) == errors.NONE
    rig.advance(5001)
    assert rig.states()[-1] == PREPARE_ABORT


@pytest.mark.parametrize(
    ("error", "version", "answered"),
    [
        (errors.NONE, 3, errors.NONE),
        (errors.PRODUCER_FENCED, 12, errors.INVALID_PRODUCER_EPOCH),
        (errors.TRANSACTION_ABORTABLE, 10, errors.INVALID_TXN_STATE),
        (errors.TRANSACTION_ABORTABLE, 11, errors.TRANSACTION_ABORTABLE),
        (errors.CONCURRENT_TRANSACTIONS, 11, errors.NOT_ENOUGH_REPLICAS),
        (errors.CONCURRENT_TRANSACTIONS, 12, errors.CONCURRENT_TRANSACTIONS),
        (errors.NOT_COORDINATOR, 12, errors.NOT_ENOUGH_REPLICAS),
        (errors.INVALID_PRODUCER_ID_MAPPING, 3, errors.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_errors_of_writes_by_version(error: int, version: int, answered: int) -> None:
    assert produce_error(error, version) == answered


def test_what_is_open_in_a_partition_belongs_to_a_transaction_or_not() -> None:
    rig = Rig()
    producer_id, epoch = rig.begin()
    covers = rig.core.transactions.covers
    assert not covers(producer_id, *T0)
    rig.write((producer_id, epoch), T0)
    assert covers(producer_id, *T0, epoch)
    assert not covers(producer_id, *T0, epoch + 1)
    assert not covers(producer_id, *T1)
    assert not covers(producer_id + 1, *T0)
    rig.send(apis.END_TXN, 5, EndTxnRequest("x", producer_id, epoch, True))
    assert covers(producer_id, *T0, epoch)
    # A write of the next transaction, which a crash left without its record.
    assert not covers(producer_id, *T0, epoch + 1)
    rig.settle()
    assert not covers(producer_id, *T0, epoch)


def test_an_overtaken_end_cannot_end_the_next_transaction() -> None:
    rig = Rig()
    producer = rig.begin()
    assert rig.add(producer, T0, connection=3) == errors.NONE
    # The client sends EndTxn on connection 3, loses that, and tries again on connection 5.
    assert rig.end(producer, connection=5)[0] == errors.NONE
    assert rig.add(producer, T1, connection=5) == errors.NONE
    assert rig.end(producer, connection=3)[0] == errors.INVALID_TXN_STATE
    assert rig.end(producer, False, connection=3)[0] == errors.INVALID_TXN_STATE
    assert rig.add(producer, T2, connection=3) == errors.INVALID_TXN_STATE
    assert (rig.states()[-1], rig.txn().partition_list()) == (ONGOING, [T1])
    assert [fact.event for fact in rig.facts] == ["overtaken_request_refused"] * 3
    # A client that merely reconnects is served.
    assert rig.add(producer, T2, connection=8) == errors.NONE
    assert rig.end(producer, connection=9)[0] == errors.NONE


def test_an_overtaken_request_cannot_begin_a_transaction() -> None:
    rig = Rig()
    producer = rig.begin()
    rig.add(producer, T0, connection=5)
    rig.end(producer, connection=5)
    assert rig.add(producer, T0, connection=3) == errors.INVALID_TXN_STATE
    body = AddOffsetsToTxnRequest("x", *producer, "g")
    assert rig.ask(apis.ADD_OFFSETS_TO_TXN, 3, body, 3).error_code == errors.INVALID_TXN_STATE
    assert rig.states()[-1] == COMPLETE_COMMIT


def test_requests_of_others_say_nothing_about_the_order() -> None:
    rig = Rig()
    producer_id, epoch = rig.begin()
    rig.begin()
    rig.add((producer_id, epoch), T0, connection=100)
    rig.end((producer_id, epoch), connection=100)
    assert rig.add((producer_id, epoch + 1), T0, connection=7) == errors.NONE
    assert rig.end((producer_id, epoch + 1), connection=7)[0] == errors.NONE


def test_a_new_producer_may_come_on_an_older_connection() -> None:
    rig = Rig()
    producer_id, epoch = rig.begin()
    rig.add((producer_id, epoch), T0, connection=100)
    rig.end((producer_id, epoch), connection=100)
    rig.settle()
    rig.begin()
    assert rig.add((producer_id, epoch + 1), T0, connection=7) == errors.NONE


def test_version_2_needs_no_such_rule() -> None:
    rig = Rig()
    producer_id, epoch = rig.begin()
    rig.write((producer_id, epoch), T0)
    assert rig.end((producer_id, epoch), version=5, connection=9) == (errors.NONE, producer_id, 1)
    rig.write((producer_id, 1), T0)
    assert rig.end((producer_id, 1), version=5, connection=3) == (errors.NONE, producer_id, 2)


def test_commits_of_offsets_have_connections_of_their_own() -> None:
    rig = Rig()
    producer = rig.begin()
    offsets = ("__consumer_offsets", 0)
    check = rig.core.transactions.check_offsets_write
    rig.add(producer, T0, connection=50)
    assert check("x", *producer, *offsets, 4) == errors.TRANSACTION_ABORTABLE
    body = AddOffsetsToTxnRequest("x", *producer, "g")
    assert rig.ask(apis.ADD_OFFSETS_TO_TXN, 3, body, 50).error_code == errors.NONE
    assert check("x", *producer, *offsets, 4) == errors.NONE
    assert check("x", *producer, *offsets, 6) == errors.NONE
    assert check("x", *producer, *offsets, 4) == errors.INVALID_TXN_STATE
    assert rig.end(producer, connection=50)[0] == errors.NONE


def test_refusals_are_errors_that_producers_handle() -> None:
    from kcoord.core.refusals import error_response

    full = errors.KAFKA_STORAGE_ERROR
    add = AddPartitionsToTxnRequest([], "x", 1, 1, [AddPartitionsToTxnTopic("t", [4])])
    answer = error_response(apis.ADD_PARTITIONS_TO_TXN, 3, add, full)
    retry = errors.COORDINATOR_NOT_AVAILABLE
    assert codes(answer.results_by_topic_v3_and_below) == [("t", [(4, retry)])]  # type: ignore[attr-defined]
    assert error_response(apis.ADD_PARTITIONS_TO_TXN, 5, add, full).error_code == retry  # type: ignore[attr-defined]
    end = EndTxnRequest("x", 1, 1, True)
    assert error_response(apis.END_TXN, 3, end, full).error_code == retry  # type: ignore[attr-defined]
    unknown = errors.UNKNOWN_SERVER_ERROR
    assert error_response(apis.END_TXN, 3, end, unknown).error_code == errors.INVALID_TXN_STATE  # type: ignore[attr-defined]
    offsets = AddOffsetsToTxnRequest("x", 1, 1, "g")
    assert error_response(apis.ADD_OFFSETS_TO_TXN, 3, offsets, full).error_code == retry  # type: ignore[attr-defined]
