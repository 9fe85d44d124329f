"""Producer epochs: producers that go on after an error (KIP-360), and epochs that run out."""

from __future__ import annotations

import pytest

from kcoord.core.outcome import CoordinatorRecord
from kcoord.protocol import apis, errors
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue
from tests.unit.core.transactions.transaction_rig import START_MS, Rig

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)
T0 = ("t", 0)


def rig_at(epoch: int, status: int = EMPTY) -> Rig:
    """A coordinator whose producer 0 has this epoch."""
    rig = Rig()
    rig.begin()
    value = TransactionLogValue(0, 0, -1, epoch, -1, 60000, status, None if status == EMPTY else [], START_MS, -1, 0)
    log = rig.txn().log
    rig.commits[-1].append((log, CoordinatorRecord(TransactionLogKey("x"), value)))
    rig.open()
    assert rig.txn().producer_epoch == epoch
    return rig


def test_each_call_increments_the_epoch() -> None:
    rig = Rig()
    assert [rig.init()[2] for _ in range(3)] == [0, 1, 2]
    rig.check_replay()


def test_a_producer_goes_on_with_the_next_epoch() -> None:
    rig = Rig()
    rig.begin()
    assert rig.init(producer=(0, 0)) == (errors.NONE, 0, 1)
    # The answer was lost: the same request again.
    assert rig.init(producer=(0, 0)) == (errors.NONE, 0, 1)
    assert rig.init(producer=(0, 1)) == (errors.NONE, 0, 2)
    assert rig.init(producer=(0, 0))[0] == errors.PRODUCER_FENCED


def test_a_producer_is_fenced_by_a_new_one() -> None:
    rig = Rig()
    rig.begin()
    rig.begin()
    assert rig.init(producer=(0, 0))[0] == errors.PRODUCER_FENCED
    assert rig.init(producer=(0, 0), version=3)[0] == errors.INVALID_PRODUCER_EPOCH
    assert rig.init(producer=(7, 1))[0] == errors.PRODUCER_FENCED
    # A retry after a restart looks the same.
    assert rig.init(producer=(0, 1)) == (errors.NONE, 0, 2)
    rig.open()
    assert rig.init(producer=(0, 1))[0] == errors.PRODUCER_FENCED
    assert rig.init(producer=(0, 2)) == (errors.NONE, 0, 3)


def test_a_producer_of_an_expired_id_gets_a_new_one() -> None:
    rig = Rig()
    assert rig.init(producer=(5, 9)) == (errors.NONE, 0, 0)


def test_the_epoch_before_an_end_of_version_2_may_go_on() -> None:
    rig = Rig()
    rig.begin()
    rig.write((0, 0), T0)
    assert rig.end((0, 0), version=5) == (errors.NONE, 0, 1)
    assert rig.init(producer=(0, 0)) == (errors.NONE, 0, 1)
    # A new producer in between fences it, and a restart does not forget that.
    rig.begin()
    rig.open()
    assert rig.init(producer=(0, 0))[0] == errors.PRODUCER_FENCED


def test_exhausted_epochs_lead_to_a_new_producer_id() -> None:
    rig = rig_at(32765)
    assert rig.init() == (errors.NONE, 0, 32766)
    error, producer_id, epoch = rig.init()
    assert (error, epoch) == (errors.NONE, 0)
    assert producer_id != 0
    assert rig.last().previous_producer_id == 0
    rig.check_replay()


def test_a_retry_after_the_last_epoch() -> None:
    rig = rig_at(32766)
    error, producer_id, epoch = rig.init(producer=(0, 32766))
    assert (error, epoch) == (errors.NONE, 0)
    assert producer_id > 0
    assert rig.init(producer=(0, 32766)) == (errors.NONE, producer_id, 0)
    assert rig.init(producer=(0, 32765))[0] == errors.PRODUCER_FENCED


def test_another_epoch_than_the_last_one_is_fenced() -> None:
    # A broker fails here with UNKNOWN_SERVER_ERROR.
    rig = rig_at(32766)
    assert rig.init(producer=(0, 32764))[0] == errors.PRODUCER_FENCED


def test_the_last_epoch_ends_with_a_new_producer_id() -> None:
    rig = rig_at(32766)
    assert rig.write((0, 32766), T0) == errors.NONE
    number = rig.send(apis.END_TXN, 5, EndTxnRequest("x", 0, 32766, True))
    # The end waits until a new id is reserved.
    assert rig.states()[-1] == ONGOING
    rig.commit()
    assert rig.last().transaction_status == PREPARE_COMMIT
    assert (rig.last().producer_id, rig.last().producer_epoch) == (0, 32767)
    new_id = rig.last().next_producer_id
    assert new_id > 0
    rig.settle()
    assert rig.markers() == [("t", 0, 0, 32767, True)]
    answer = rig.answers[number]
    assert (answer.producer_id, answer.producer_epoch) == (new_id, 0)  # type: ignore[union-attr]
    last = rig.last()
    assert (last.producer_id, last.previous_producer_id, last.next_producer_id) == (new_id, 0, -1)
    assert rig.end((0, 32766), version=5) == (errors.NONE, new_id, 0)
    assert rig.end((0, 32766), False, version=5)[0] == errors.INVALID_TXN_STATE
    assert rig.init(producer=(0, 32766)) == (errors.NONE, new_id, 0)
    rig.check_replay()


@pytest.mark.parametrize("by_timeout", [False, True])
def test_the_last_epoch_can_be_fenced(by_timeout: bool) -> None:
    rig = rig_at(32766)
    rig.add((0, 32766), T0)
    if by_timeout:
        rig.advance(60001)
    else:
        number = rig.send(apis.INIT_PRODUCER_ID, 5, InitProducerIdRequest("x", 60000))
    assert rig.states()[-1] == ONGOING
    rig.settle()
    assert rig.states()[-2:] == [PREPARE_ABORT, COMPLETE_ABORT]
    assert rig.markers() == [("t", 0, 0, 32767, False)]
    if not by_timeout:
        assert rig.answers[number].error_code == errors.CONCURRENT_TRANSACTIONS  # type: ignore[union-attr]
    assert rig.init()[2] == 1
    assert rig.add((0, 32766), T0) == errors.INVALID_PRODUCER_ID_MAPPING


def test_a_log_with_the_highest_epoch_is_served() -> None:
    rig = rig_at(32767, COMPLETE_ABORT)
    error, producer_id, epoch = rig.init()
    assert (error, epoch) == (errors.NONE, 0)
    assert producer_id > 0


def test_producer_ids_of_an_imported_log_are_not_given_out_again() -> None:
    rig = Rig()
    rig.begin()
    value = TransactionLogValue(5000, 5000, 6000, 1, -1, 60000, PREPARE_COMMIT, [], START_MS, START_MS, 2)
    rig.commits[-1].append((rig.txn().log, CoordinatorRecord(TransactionLogKey("y"), value)))
    rig.open()
    assert rig.begin("z") == (6001, 0)
