"""Transaction bugs of Kafka's coordinators, each as a test of this one. The names are those of Kafka's tickets.

Others are tested where their subject is: KAFKA-17754 in test_delays.py, KAFKA-14055, KAFKA-8351 and KAFKA-9144 with the
cleaner, KAFKA-19163 and KAFKA-16371 with the offsets, KAFKA-15784 by `make io-faults`.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from kcoord.core.refusals import error_response
from kcoord.core.transactions.state import (
    CLIENT_EPOCH_MAX,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    PREPARE_COMMIT,
)
from kcoord.protocol import apis, errors
from kcoord.protocol.add_offsets_to_txn import AddOffsetsToTxnRequest
from kcoord.protocol.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.protocol.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.unit.core.transactions.transaction_rig import Rig

T0, T1 = ("t", 0), ("t", 1)
TIMEOUT_MS = 60_000


def again(rig: Rig, commits: list[list[Any]]) -> Rig:
    """A start with what some commits have stored."""
    fresh = Rig.__new__(Rig)
    fresh.config, fresh.mono_ms, fresh.wall_ms, fresh.last_request = rig.config, 5, rig.wall_ms, 10_000
    fresh.open(commits)
    return fresh


@pytest.mark.parametrize("order", list(itertools.permutations(("init", "commit", "timeout", "step", "step"))))
def test_kafka_16352_every_order_of_what_ends_a_transaction(order: tuple[str, ...]) -> None:
    """KAFKA-16352, KAFKA-10080, KAFKA-9777: a transaction stayed in PrepareCommit or PrepareAbort for ever."""
    rig = Rig()
    producer = rig.begin(timeout_ms=TIMEOUT_MS)
    rig.add(producer, T0, T1)
    for what in order:
        if what == "init":
            rig.send(apis.INIT_PRODUCER_ID, 5, InitProducerIdRequest("x", TIMEOUT_MS))
        elif what == "commit":
            rig.send(apis.END_TXN, 3, EndTxnRequest("x", *producer, True))
        elif what == "timeout":
            rig.advance(TIMEOUT_MS + 1)
        else:
            rig.commit()
    rig.settle()
    assert rig.txn().status in (COMPLETE_COMMIT, COMPLETE_ABORT, EMPTY)
    assert len({is_commit for *_, is_commit in rig.markers()}) == 1
    assert sorted({(topic, partition) for topic, partition, *_ in rig.markers()}) == [T0, T1]
    # The next producer is served.
    following = rig.begin()
    assert rig.add(following, T0) == errors.NONE
    assert rig.end(following)[0] == errors.NONE


@pytest.mark.parametrize("version", [3, 5])
@pytest.mark.parametrize("is_commit", [True, False])
def test_kafka_19999_a_restart_after_each_commit_goes_on_with_the_markers(version: int, is_commit: bool) -> None:
    """KAFKA-19999: markers that were repeated after a restart were refused for their epoch, again and again."""
    rig = Rig()
    producer = rig.begin()
    rig.write(producer, T0, T1) if version == 5 else rig.add(producer, T0, T1)
    rig.commit()
    began = len(rig.commits)
    rig.end(producer, is_commit, version=version)
    rig.settle()
    ended = rig.markers()
    for count in range(began, len(rig.commits) + 1):
        fresh = again(rig, rig.commits[:count])
        fresh.settle()
        if fresh.txn().status in (COMPLETE_COMMIT, COMPLETE_ABORT):
            assert set(fresh.markers()) == set(ended)
        following = fresh.begin()
        assert fresh.add(following, T0) == errors.NONE
        assert fresh.end(following)[0] == errors.NONE


def test_kafka_18464_an_empty_abort_right_after_a_commit() -> None:
    """KAFKA-18464: in version 2 it fenced its own producer. A retry of either gets the same answer again."""
    rig = Rig()
    producer = rig.begin()
    rig.write(producer, T0)
    error, *committed = rig.end(producer, True, version=5)
    assert (error, committed) == (errors.NONE, [producer[0], 1])
    assert rig.end(producer, True, version=5) == (errors.NONE, producer[0], 1)
    rig.settle()
    assert rig.end((producer[0], 1), False, version=5) == (errors.NONE, producer[0], 2)
    assert rig.end((producer[0], 1), False, version=5) == (errors.NONE, producer[0], 2)
    assert rig.write((producer[0], 2), T0) == errors.NONE
    assert rig.end((producer[0], 2), True, version=5)[0] == errors.NONE


def test_kafka_6119_a_zombie_writes_nothing_after_its_transaction_timed_out() -> None:
    rig = Rig()
    producer = rig.begin(timeout_ms=1000)
    rig.add(producer, T0)
    rig.advance(1001)
    rig.settle()
    check = rig.core.transactions.check_write
    assert check("x", *producer, *T0) == errors.PRODUCER_FENCED
    assert rig.add(producer, T1) == errors.PRODUCER_FENCED or rig.add(producer, T1) == errors.INVALID_PRODUCER_EPOCH
    assert rig.write(producer, T0) == errors.PRODUCER_FENCED
    assert rig.end(producer, True)[0] in (errors.PRODUCER_FENCED, errors.INVALID_PRODUCER_EPOCH)
    assert [is_commit for *_, is_commit in rig.markers()] == [False]


@pytest.mark.parametrize("version", [0, 1, 3, 5])
@pytest.mark.parametrize("ahead", [-1, 1, 2])
def test_kafka_9600_an_end_needs_exactly_the_epoch_of_its_transaction(version: int, ahead: int) -> None:
    rig = Rig()
    rig.begin()
    producer_id, epoch = rig.begin()
    assert rig.write((producer_id, epoch), T0) == errors.NONE
    fenced = (errors.PRODUCER_FENCED, errors.INVALID_PRODUCER_EPOCH)
    assert rig.end((producer_id, epoch + ahead), True, version=version)[0] in fenced
    assert rig.markers() == []


def test_kafka_9666_epochs_run_out_without_a_gap() -> None:
    """KAFKA-9666, KAFKA-19367, KAFKA-18660, KAFKA-20090: epochs overflowed, or the producer was fenced at the end."""
    rig = Rig()
    producer = rig.begin()
    txn = rig.txn()
    txn.producer_epoch = CLIENT_EPOCH_MAX - 2
    seen = [(producer[0], CLIENT_EPOCH_MAX - 2)]
    for _ in range(5):
        assert rig.write(seen[-1], T0) == errors.NONE
        error, *following = rig.end(seen[-1], True, version=5)
        assert error == errors.NONE
        seen.append((following[0], following[1]))
        rig.settle()
    assert [epoch for _, epoch in seen] == [CLIENT_EPOCH_MAX - 2, CLIENT_EPOCH_MAX - 1, CLIENT_EPOCH_MAX, 0, 1, 2]
    assert len({number for number, _ in seen}) == 2
    assert all(is_commit for *_, is_commit in rig.markers())


def test_kafka_20031_no_producer_id_is_given_twice_across_crashes() -> None:
    rng = random.Random(5)
    rig = Rig(producer_id_block_size=3)
    given: list[int] = []
    for number in range(40):
        error, producer_id, _ = rig.init(f"id-{number}")
        assert error == errors.NONE
        given.append(producer_id)
        if rng.random() < 0.3:
            # What was answered is durable; what came after may be lost.
            rig = again(rig, rig.commits)
    assert len(set(given)) == len(given)


def test_kafka_9980_a_decision_is_never_taken_back() -> None:
    """After PrepareCommit neither a timeout nor a new producer turns the commit into an abort."""
    rig = Rig()
    producer = rig.begin(timeout_ms=1000)
    rig.add(producer, T0)
    rig.send(apis.END_TXN, 3, EndTxnRequest("x", *producer, True))
    assert rig.txn().status == PREPARE_COMMIT
    rig.advance(5000)
    assert rig.init()[0] in (errors.NONE, errors.CONCURRENT_TRANSACTIONS)
    rig.settle()
    assert [is_commit for *_, is_commit in rig.markers()] == [True]


def producer_requests() -> list[tuple[int, Any]]:
    data = [TopicProduceData("t", partition_data=[PartitionProduceData(0, b"")])]
    offsets = [TxnOffsetCommitRequestTopic("t", [TxnOffsetCommitRequestPartition(0, 1)])]
    return [
        (apis.PRODUCE, ProduceRequest("x", -1, 1000, data)),
        (apis.INIT_PRODUCER_ID, InitProducerIdRequest("x", 1000)),
        (apis.ADD_PARTITIONS_TO_TXN, AddPartitionsToTxnRequest([], "x", 1, 1, [AddPartitionsToTxnTopic("t", [0])])),
        (apis.ADD_OFFSETS_TO_TXN, AddOffsetsToTxnRequest("x", 1, 1, "g")),
        (apis.TXN_OFFSET_COMMIT, TxnOffsetCommitRequest("x", "g", 1, 1, topics=offsets)),
        (apis.END_TXN, EndTxnRequest("x", 1, 1, True)),
    ]


def codes_in(message: Any) -> list[int]:
    """Every error code of an answer."""
    found: list[int] = []
    for name in message.FIELDS:
        value = getattr(message, name)
        if name.endswith("error_code"):
            found.append(value)
        for item in value if isinstance(value, list) else []:
            found += codes_in(item)
    return found


@pytest.mark.parametrize("code", [errors.UNKNOWN_SERVER_ERROR, errors.KAFKA_STORAGE_ERROR, errors.INVALID_REQUEST])
def test_kafka_14034_no_producer_gets_an_unknown_server_error(code: int) -> None:
    """Java's producer takes it for a write that did not happen, and so does its next sequence number."""
    for api_key, body in producer_requests():
        api = apis.APIS[api_key]
        for version in range(max(api.min_version, 3 if api_key == apis.PRODUCE else 0), api.max_version + 1):
            answer = error_response(api_key, version, body, code)
            found = codes_in(answer)
            assert any(found), (api.name, version)
            assert errors.UNKNOWN_SERVER_ERROR not in found, (api.name, version)
