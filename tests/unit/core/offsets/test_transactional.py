"""TxnOffsetCommit: what it checks and in which order, what each version is told, and what it stores."""

from __future__ import annotations

import pytest

from kcoord.core.groups.classic import COMPLETING_REBALANCE, STABLE, ClassicGroup, ClassicMember
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.members import ConsumerMember
from kcoord.core.offsets.transactional import TransactionalCommits, TxnOffsetCommitStep, error_of_version
from kcoord.core.outcome import OFFSETS_TOPIC, TRANSACTION_TOPIC, LogId, Now, Outcome
from kcoord.protocol import apis, errors
from kcoord.protocol.records.consumer_group_member_metadata import ClassicMemberMetadata
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue
from kcoord.protocol.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from kcoord.wire.primitives import ZERO_UUID
from tests.unit.core.offsets.test_offsets import ID_T, WALL_MS, OffsetsRig

STATE_LOG = LogId(TRANSACTION_TOPIC, 0)
PRODUCER_ID = 9
EPOCH = 2
VERSION_1 = 4
VERSION_2 = 5
Answers = list[tuple[str, int, int]]


class CommitRig(OffsetsRig):
    """A transaction coordinator that answers as it is told, and remembers what it was asked."""

    def __init__(self, partitions: int = 1) -> None:
        super().__init__(partitions)
        self.error = errors.NONE
        self.is_added = False
        self.asked: list[tuple[object, ...]] = []
        self.handler = TransactionalCommits(self.offsets, self.check_commit, self.add_implicitly)

    def check_commit(
        self, transactional_id: str, producer_id: int, epoch: int, topic: str, partition: int, connection_id: int
    ) -> int:
        self.asked.append((transactional_id, producer_id, epoch, topic, partition, connection_id))
        return self.error

    def add_implicitly(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: list[tuple[str, int]], now: Now
    ) -> tuple[Outcome, int]:
        self.asked.append((transactional_id, producer_id, epoch, partitions))
        outcome = Outcome()
        if self.error == errors.NONE and not self.is_added:
            self.is_added = True
            outcome.add(STATE_LOG, TransactionLogKey(transactional_id), TransactionLogValue())
        return outcome, self.error

    def txn_commit(self, body: TxnOffsetCommitRequest, version: int = VERSION_1) -> tuple[Answers, Outcome]:
        """The answer, and the outcome that has it."""
        request = self.request(apis.TXN_OFFSET_COMMIT, version, body)
        outcome = self.handler.handle_txn_offset_commit(request, body, self.now)
        if outcome.follow_ups:
            assert not outcome.replies and outcome.log is STATE_LOG and outcome.producer is None
            step = outcome.follow_ups[0]
            assert isinstance(step, TxnOffsetCommitStep)
            outcome = self.handler.handle_step(step, self.now)
        assert not outcome.records or outcome.log is self.log_of(body.group_id)
        response = outcome.replies[0].response
        assert isinstance(response, TxnOffsetCommitResponse)
        return [(t.name, p.partition_index, p.error_code) for t in response.topics for p in t.partitions], outcome

    def error_of(
        self, generation: int = -1, member: str = "", instance: str | None = None, version: int = VERSION_1
    ) -> int:
        answers, outcome = self.txn_commit(commit(topic("t", 0), of=(generation, member, instance)), version)
        assert bool(outcome.records) == (answers[0][2] == errors.NONE)
        return answers[0][2]


def topic(name: str, *partitions: int, metadata: str | None = "m") -> TxnOffsetCommitRequestTopic:
    asked = [TxnOffsetCommitRequestPartition(index, 10 + index, 3, metadata) for index in partitions]
    return TxnOffsetCommitRequestTopic(name, asked)


def commit(
    *topics: TxnOffsetCommitRequestTopic, group: str = "g", of: tuple[int, str, str | None] = (-1, "", None)
) -> TxnOffsetCommitRequest:
    return TxnOffsetCommitRequest("txn", group, PRODUCER_ID, EPOCH, *of, list(topics))


def classic_group(rig: CommitRig) -> ClassicGroup:
    """A stable group of generation 5 with the members `m` and, for instance `i`, `s`."""
    group = rig.groups.get_or_create("g")
    group.state = STABLE
    group.generation_id = 5
    for member_id, instance in (("m", None), ("s", "i")):
        group.members[member_id] = ClassicMember(member_id, instance, "c", "h", 1000, 1000, "consumer", [], b"")
    group.static_members["i"] = "s"
    return group


def consumer_group(rig: CommitRig) -> ConsumerMember:
    """Member `m` in epoch 5 has partition 0 since epoch 4, and revokes partition 1, which it has since epoch 2."""
    group = ConsumerGroup("g", rig.log_of("g"))
    rig.groups.consumer_groups["g"] = group
    member = ConsumerMember("m")
    member.member_epoch = 5
    member.assigned = {ID_T: {0: 4}}
    member.revoking = {ID_T: {1: 2}}
    group.members["m"] = member
    return member


# --- what is stored --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(VERSION_2 + 1))
def test_offsets_become_records_of_the_transaction(version: int) -> None:
    rig = CommitRig()
    answers, outcome = rig.txn_commit(commit(topic("t", 0, 2), topic("u", 0)), version)
    assert answers == [("t", 0, 0), ("t", 2, 0), ("u", 0, 0)]
    assert outcome.producer is not None
    assert (outcome.producer.producer_id, outcome.producer.producer_epoch) == (PRODUCER_ID, EPOCH)
    assert [(record.key, record.value) for record in outcome.records] == [
        (OffsetCommitKey("g", name, index), OffsetCommitValue(10 + index, 3, "m", WALL_MS, -1, ZERO_UUID))
        for name, index in (("t", 0), ("t", 2), ("u", 0))
    ]
    assert [fact.event for fact in outcome.facts] == ["simple_group_created"]


def test_null_metadata_and_negative_epochs_are_stored_as_none() -> None:
    rig = CommitRig()
    body = commit(topic("t", 0, metadata=None))
    body.topics[0].partitions[0].committed_leader_epoch = -7
    _, outcome = rig.txn_commit(body)
    assert outcome.records[0].value == OffsetCommitValue(10, -1, "", WALL_MS)


def test_metadata_is_checked_per_partition() -> None:
    rig = CommitRig()
    body = commit(topic("t", 0, 1))
    body.topics[0].partitions[0].committed_metadata = "m" * 5000
    answers, outcome = rig.txn_commit(body)
    assert answers == [("t", 0, errors.OFFSET_METADATA_TOO_LARGE), ("t", 1, 0)]
    assert [record.key for record in outcome.records] == [OffsetCommitKey("g", "t", 1)]
    body = commit(topic("t", 0, metadata="m" * 5000))
    answers, outcome = rig.txn_commit(body, VERSION_2)
    assert answers == [("t", 0, errors.OFFSET_METADATA_TOO_LARGE)]
    assert not outcome.records and outcome.producer is None


# --- topics ----------------------------------------------------------------------------------------------------


def test_unknown_topics_come_first_and_take_up_their_topics_other_partitions() -> None:
    rig = CommitRig()
    unknown = errors.UNKNOWN_TOPIC_OR_PARTITION
    answers, outcome = rig.txn_commit(commit(topic("u", 0), topic("t", 0, 3, -1), topic("x", 1), topic("x", 2)))
    assert answers == [
        ("t", 3, unknown),
        ("t", -1, unknown),
        ("t", 0, 0),
        ("x", 1, unknown),
        ("x", 2, unknown),
        ("u", 0, 0),
    ]
    assert len(outcome.records) == 2


def test_a_repeated_topic_is_answered_as_often() -> None:
    rig = CommitRig()
    assert rig.txn_commit(commit(topic("t", 0), topic("t", 1)))[0] == [("t", 0, 0), ("t", 1, 0)]


def test_nothing_that_exists_asks_nobody() -> None:
    rig = CommitRig()
    rig.error = errors.PRODUCER_FENCED
    assert rig.txn_commit(commit())[0] == []
    answers, _ = rig.txn_commit(commit(topic("x", 0), group=""), VERSION_2)
    assert answers == [("x", 0, errors.UNKNOWN_TOPIC_OR_PARTITION)]
    response = rig.txn_commit(commit(topic("x")))[1].replies[0].response
    assert isinstance(response, TxnOffsetCommitResponse) and response.topics[0].name == "x"
    assert not rig.asked


def test_a_group_has_an_id() -> None:
    rig = CommitRig()
    rig.error = errors.PRODUCER_FENCED
    assert rig.txn_commit(commit(topic("t", 0), group=""))[0] == [("t", 0, errors.INVALID_GROUP_ID)]
    assert not rig.asked


# --- the transaction -------------------------------------------------------------------------------------------


def test_the_transaction_must_have_the_partition_of_the_group() -> None:
    rig = CommitRig(partitions=8)
    rig.txn_commit(commit(topic("t", 0), group="workers"))
    partition = rig.log_of("workers").partition
    assert rig.asked == [("txn", PRODUCER_ID, EPOCH, OFFSETS_TOPIC, partition, 1)]
    rig.txn_commit(commit(topic("t", 0), group="workers"), VERSION_2)
    assert rig.asked[1:] == [("txn", PRODUCER_ID, EPOCH, [(OFFSETS_TOPIC, partition)])]


def test_without_a_transaction_coordinator_no_transactional_id_is_known() -> None:
    rig = CommitRig()
    rig.handler = TransactionalCommits(rig.offsets)
    for version in (VERSION_1, VERSION_2):
        answers, outcome = rig.txn_commit(commit(topic("t", 0)), version)
        assert answers == [("t", 0, errors.INVALID_PRODUCER_ID_MAPPING)] and not outcome.records


def test_the_transaction_is_checked_before_the_group() -> None:
    rig = CommitRig()
    rig.error = errors.INVALID_PRODUCER_ID_MAPPING
    for version in (VERSION_1, VERSION_2):
        assert rig.error_of(5, "m", None, version) == errors.INVALID_PRODUCER_ID_MAPPING


def test_a_partition_that_is_in_the_transaction_takes_one_step() -> None:
    rig = CommitRig()
    body = commit(topic("t", 0))
    first = rig.handler.handle_txn_offset_commit(rig.request(28, VERSION_2, body), body, rig.now)
    second = rig.handler.handle_txn_offset_commit(rig.request(28, VERSION_2, body), body, rig.now)
    assert first.follow_ups and not first.replies
    assert not second.follow_ups and second.replies and second.producer is not None


def test_a_refused_group_leaves_the_partition_in_the_transaction() -> None:
    rig = CommitRig()
    assert rig.error_of(5, "m", None, VERSION_2) == errors.ILLEGAL_GENERATION
    assert rig.is_added


@pytest.mark.parametrize(
    ("error", "version", "answer"),
    [
        (errors.PRODUCER_FENCED, 0, errors.INVALID_PRODUCER_EPOCH),
        (errors.PRODUCER_FENCED, 5, errors.INVALID_PRODUCER_EPOCH),
        (errors.TRANSACTION_ABORTABLE, 3, errors.INVALID_TXN_STATE),
        (errors.TRANSACTION_ABORTABLE, 4, errors.TRANSACTION_ABORTABLE),
        (errors.CONCURRENT_TRANSACTIONS, 0, errors.CONCURRENT_TRANSACTIONS),
        (errors.COORDINATOR_LOAD_IN_PROGRESS, 1, errors.COORDINATOR_NOT_AVAILABLE),
        (errors.COORDINATOR_LOAD_IN_PROGRESS, 2, errors.COORDINATOR_LOAD_IN_PROGRESS),
        (errors.NOT_ENOUGH_REPLICAS, 5, errors.COORDINATOR_NOT_AVAILABLE),
        (errors.KAFKA_STORAGE_ERROR, 5, errors.NOT_COORDINATOR),
        (errors.INVALID_TXN_STATE, 5, errors.INVALID_TXN_STATE),
    ],
)
def test_errors_by_version(error: int, version: int, answer: int) -> None:
    assert error_of_version(error, version) == answer
    rig = CommitRig()
    rig.error = error
    assert rig.error_of(version=version) == answer


# --- the group (KIP-447) ---------------------------------------------------------------------------------------


def test_an_unknown_group_has_no_generation() -> None:
    rig = CommitRig()
    assert rig.error_of(-1, "anyone") == errors.NONE
    for version in (3, VERSION_1, VERSION_2):
        assert rig.error_of(0, "m", None, version) == errors.ILLEGAL_GENERATION


@pytest.mark.parametrize(
    ("generation", "member", "instance", "error"),
    [
        (5, "m", None, errors.NONE),
        (5, "s", "i", errors.NONE),
        (4, "m", None, errors.ILLEGAL_GENERATION),
        (6, "m", None, errors.ILLEGAL_GENERATION),
        (-1, "m", None, errors.ILLEGAL_GENERATION),
        (5, "gone", None, errors.UNKNOWN_MEMBER_ID),
        (5, "", None, errors.UNKNOWN_MEMBER_ID),
        (5, "m", "other", errors.UNKNOWN_MEMBER_ID),
        (4, "m", "i", errors.FENCED_INSTANCE_ID),
        (-1, "", "i", errors.FENCED_INSTANCE_ID),
        # Clients before KIP-447 name no member.
        (-1, "", None, errors.NONE),
    ],
)
def test_members_of_classic_groups(generation: int, member: str, instance: str | None, error: int) -> None:
    rig = CommitRig()
    group = classic_group(rig)
    for state in (STABLE, COMPLETING_REBALANCE):
        group.state = state
        assert rig.error_of(generation, member, instance) == error


def test_an_empty_classic_group_takes_any_standalone_commit() -> None:
    rig = CommitRig()
    rig.groups.get_or_create("g").generation_id = 5
    assert rig.error_of(-1, "anyone") == errors.NONE
    assert rig.error_of(5, "m") == errors.UNKNOWN_MEMBER_ID


def test_a_commit_does_not_extend_the_session() -> None:
    rig = CommitRig()
    classic_group(rig)
    rig.error_of(5, "m")
    assert not rig.groups.timers.member_ids("g")


@pytest.mark.parametrize(
    ("epoch", "member", "instance", "partition", "error"),
    [
        (5, "m", None, 2, errors.NONE),
        (5, "m", "any", 2, errors.NONE),
        (6, "m", None, 0, errors.ILLEGAL_GENERATION),
        (4, "m", None, 0, errors.NONE),
        (3, "m", None, 0, errors.ILLEGAL_GENERATION),
        (2, "m", None, 1, errors.NONE),
        (1, "m", None, 1, errors.ILLEGAL_GENERATION),
        (4, "m", None, 2, errors.ILLEGAL_GENERATION),
        (-1, "m", None, 0, errors.ILLEGAL_GENERATION),
        (5, "gone", None, 0, errors.UNKNOWN_MEMBER_ID),
        (5, "", None, 0, errors.UNKNOWN_MEMBER_ID),
        (-1, "", None, 0, errors.NONE),
        (-1, "", "i", 0, errors.UNKNOWN_MEMBER_ID),
        (-2, "", None, 0, errors.UNKNOWN_MEMBER_ID),
    ],
)
def test_members_of_consumer_groups(epoch: int, member: str, instance: str | None, partition: int, error: int) -> None:
    rig = CommitRig()
    of_group = consumer_group(rig)
    for classic in (None, ClassicMemberMetadata()):
        of_group.classic = classic
        for version in (3, VERSION_2):
            answers, _ = rig.txn_commit(commit(topic("t", partition), of=(epoch, member, instance)), version)
            assert answers == [("t", partition, error)]


def test_one_partition_of_a_stale_member_refuses_all() -> None:
    rig = CommitRig()
    consumer_group(rig)
    answers, outcome = rig.txn_commit(commit(topic("t", 0, 2), of=(4, "m", None)))
    assert [code for _, _, code in answers] == [errors.ILLEGAL_GENERATION] * 2 and not outcome.records
    body = commit(topic("t", 0, 2), of=(4, "m", None))
    body.topics[0].partitions[1].committed_metadata = "m" * 5000
    answers, _ = rig.txn_commit(body)
    assert answers == [("t", 0, 0), ("t", 2, errors.OFFSET_METADATA_TOO_LARGE)]


def test_an_empty_consumer_group_takes_any_standalone_commit() -> None:
    rig = CommitRig()
    rig.groups.consumer_groups["g"] = ConsumerGroup("g", rig.log_of("g"))
    assert rig.error_of(-1, "anyone") == errors.NONE
    assert rig.error_of(0, "anyone") == errors.UNKNOWN_MEMBER_ID
