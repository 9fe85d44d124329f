"""The record that ends a transaction waits for the next commit, unless somebody waits for it.

The engine holds it back only if its caller says so, as the pump does.
"""

from __future__ import annotations

from typing import Any

import pytest

from kcoord.core.transactions.state import COMPLETE_COMMIT, PREPARE_COMMIT
from kcoord.log.journal import CommitTicket
from kcoord.protocol import apis, errors
from kcoord.protocol.add_offsets_to_txn import AddOffsetsToTxnRequest
from kcoord.protocol.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kcoord.protocol.describe_transactions import DescribeTransactionsRequest
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.metadata import MetadataRequest
from kcoord.testing.state.disk import ForgetfulStorage
from tests.harness.engine import Client, decode_answer, read_answers, take_output
from tests.unit.engine.test_transaction_limits import produce
from tests.unit.engine.test_txn_offset_commit import NOW, VERSION_1, VERSION_2, Producer, Rig


class HoldingRig(Rig):
    """Ends its turns as the pump does, and counts commits."""

    commits = 0

    def turns(self, may_hold: bool = True) -> int:
        """End turns until nothing is left to do now. Returns the number of commits."""
        before = self.commits
        ticket: CommitTicket | None = self.engine.end_turn(NOW, may_hold)
        while ticket is not None or self.engine.has_more():
            if ticket is not None:
                self.commits += 1
                ticket.sync()
                self.engine.commit_done(ticket, NOW)
            ticket = self.engine.end_turn(NOW, may_hold)
        return self.commits - before

    def call(self, api_key: int, version: int, body: Any) -> Any:
        sent = self.client.send(api_key, version, body, NOW)
        self.turns()
        answers = read_answers(take_output(self.client.session))
        assert [answer[0] for answer in answers] == [sent]
        return decode_answer(api_key, version, answers[0][1])

    def transact(self) -> None:
        """A transaction with one record and one offset."""
        producer = self.producers[0]
        who = producer.transactional_id, producer.producer_id, producer.epoch
        is_version_1 = self.version < VERSION_2
        if is_version_1:
            topics = [AddPartitionsToTxnTopic("t", [0])]
            self.call(apis.ADD_PARTITIONS_TO_TXN, 3, AddPartitionsToTxnRequest([], *who, topics))
        sequence = producer.written if is_version_1 else 0
        written = self.call(apis.PRODUCE, 9 if is_version_1 else 12, produce(producer, 0, sequence))
        assert written.responses[0].partition_responses[0].error_code == errors.NONE
        producer.written += 1
        if is_version_1:
            self.call(apis.ADD_OFFSETS_TO_TXN, 3, AddOffsetsToTxnRequest(*who, "g"))
        committed = self.call(apis.TXN_OFFSET_COMMIT, self.version, self.body(producer.written))
        assert committed.topics[0].partitions[0].error_code == errors.NONE
        ended = self.call(apis.END_TXN, 4 if is_version_1 else 5, EndTxnRequest(*who, True))
        assert ended.error_code == errors.NONE
        if not is_version_1:
            producer.epoch = ended.producer_epoch

    def status(self) -> int:
        return self.engine.core.transactions.by_id["p0"].status


@pytest.mark.parametrize(("version", "commits"), [(VERSION_1, 6), (VERSION_2, 4)])
def test_a_transaction_takes_one_commit_for_each_of_its_steps(version: int, commits: int) -> None:
    """One for each request but EndTxn, which has two: the decision and the markers."""
    rig = HoldingRig(version=version)
    rig.transact()
    before = rig.commits
    rig.transact()
    rig.transact()
    assert rig.commits - before == 2 * commits
    assert rig.status() == COMPLETE_COMMIT and rig.engine.has_unwritten()


def test_what_is_held_is_written_when_the_caller_does_not_wait() -> None:
    rig = HoldingRig(version=VERSION_2)
    rig.transact()
    assert rig.turns() == 0
    assert rig.turns(may_hold=False) == 1
    assert not rig.engine.has_unwritten()
    rig.restart()
    assert rig.status() == COMPLETE_COMMIT


def test_an_answer_that_shows_what_is_held_is_not_held() -> None:
    rig = HoldingRig(version=VERSION_2)
    rig.transact()
    before = rig.commits
    answer = rig.call(apis.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(["p0"]))
    assert answer.transaction_states[0].transaction_state == "CompleteCommit"
    assert rig.commits == before + 1
    rig.transact()
    assert rig.engine.has_unwritten(), "the next one is held again"


def test_a_crash_may_lose_what_is_held() -> None:
    storage = ForgetfulStorage()
    rig = HoldingRig(storage, version=VERSION_2)
    rig.transact()
    assert rig.status() == COMPLETE_COMMIT
    rig.storage = storage.crash()
    rig.open()
    assert rig.status() == COMPLETE_COMMIT, "the start wrote the markers again, and the record"
    assert rig.fetch() == 1
    rig.transact()
    assert rig.fetch() == 2


def test_the_record_comes_after_durable_markers() -> None:
    rig = HoldingRig(version=VERSION_2)
    rig.transact()
    producer = rig.producers[0]
    rig.call(apis.PRODUCE, 12, produce(producer, 0, 0))
    rig.client.send(apis.END_TXN, 5, EndTxnRequest("p0", producer.producer_id, producer.epoch, True), NOW)
    statuses = []
    ticket = rig.engine.end_turn(NOW, True)
    while ticket is not None:
        statuses.append(rig.status())
        ticket.sync()
        rig.engine.commit_done(ticket, NOW)
        ticket = rig.engine.end_turn(NOW, True)
    assert statuses == [PREPARE_COMMIT, PREPARE_COMMIT], "the decision, and then the markers"
    assert rig.status() == COMPLETE_COMMIT


def test_held_records_go_with_those_of_others() -> None:
    rig = HoldingRig(version=VERSION_2)
    rig.transact()
    other: Producer = rig.producers[1]
    rig.call(apis.PRODUCE, 12, produce(other, 1, 0))
    assert not rig.engine.has_unwritten()


def test_nothing_is_written_while_the_caller_waits_for_others() -> None:
    rig = HoldingRig(version=VERSION_2)
    rig.client.send(apis.TXN_OFFSET_COMMIT, VERSION_2, rig.body(1), NOW)
    assert rig.engine.end_turn(NOW, may_write=False) is None
    assert rig.engine.has_unwritten() and not take_output(rig.client.session)
    assert rig.turns() == 1
    assert not rig.engine.has_unwritten() and take_output(rig.client.session)


def test_answers_without_records_do_not_wait_for_others() -> None:
    rig = HoldingRig(version=VERSION_2)
    rig.client.send(apis.TXN_OFFSET_COMMIT, VERSION_2, rig.body(1), NOW)
    other = Client(rig.engine)
    other.send(apis.METADATA, 12, MetadataRequest([]), NOW)
    assert rig.engine.end_turn(NOW, may_write=False) is None
    assert take_output(other.session) and not take_output(rig.client.session)


def test_a_commit_that_has_a_next_step_says_so() -> None:
    """EndTxn: the markers follow its decision."""
    rig = HoldingRig(version=VERSION_2)
    producer = rig.producers[0]
    rig.call(apis.TXN_OFFSET_COMMIT, VERSION_2, rig.body(1))
    body = EndTxnRequest(producer.transactional_id, producer.producer_id, producer.epoch, True)
    rig.client.send(apis.END_TXN, 5, body, NOW)
    is_continued: list[bool] = []
    for _ in range(2):
        ticket = rig.engine.end_turn(NOW, may_hold=True)
        assert ticket is not None
        ticket.sync()
        is_continued.append(rig.engine.commit_done(ticket, NOW))
    assert is_continued == [True, True], "the markers, and then the record that ends it"
    assert rig.turns() == 0
