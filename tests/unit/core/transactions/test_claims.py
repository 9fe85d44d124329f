"""InitProducerId with a group assignment (draft of KIP-447): who is fenced, when, and what a restart knows."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kcoord.core.groups.classic import STABLE, ClassicMember
from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.members import ConsumerMember
from kcoord.core.outcome import OFFSETS_TOPIC, Request
from kcoord.core.transactions import claims
from kcoord.core.transactions.expiry import CHECK_INTERVAL_MS
from kcoord.core.transactions.state import CLIENT_EPOCH_MAX, EMPTY, ONGOING
from kcoord.protocol import apis
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.errors import (
    CONCURRENT_TRANSACTIONS,
    GROUP_AUTHORIZATION_FAILED,
    ILLEGAL_GENERATION,
    INVALID_GROUP_ID,
    INVALID_REQUEST,
    NONE,
    PRODUCER_FENCED,
    STALE_MEMBER_EPOCH,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kcoord.protocol.init_producer_id import AssignedTopic, GroupAssignment, InitProducerIdRequest
from kcoord.protocol.records.transaction_group_assignment import TransactionGroupAssignmentKey
from kcoord.protocol.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.unit.core.transactions.test_crash import crashes
from tests.unit.core.transactions.transaction_rig import Item, Rig

Producer = tuple[int, int]


class ClaimRig(Rig):
    """Members `a`, `b` and `c` of the classic group `g`, whose generation a test sets. A restart keeps the group."""

    generation = 1

    def open(self, commits: list[list[Item]] | None = None) -> None:
        super().open(commits)
        if self.core.offsets_logs():
            self.place_group()

    def place_group(self) -> None:
        group = self.core.groups.get_or_create("g")
        group.state = STABLE
        group.generation_id = self.generation
        for member_id in "abc":
            group.members[member_id] = ClassicMember(member_id, None, "c", "h", 1000, 1000, "consumer", [], b"")

    def rebalance(self) -> None:
        self.generation += 1
        self.place_group()

    def try_claim(self, name: str, *partitions: int, generation: int = 0, **given: Any) -> tuple[int, int, int]:
        """One InitProducerId of the producer of member `name`; its error, id and epoch."""
        return self.init(
            name, assignment=claim_of(name, *partitions, generation=generation or self.generation), **given
        )

    def claim(self, name: str, *partitions: int) -> Producer:
        """A client that tries again until its producer has the partitions."""
        for _ in range(4):
            error, producer_id, epoch = self.try_claim(name, *partitions)
            if error != CONCURRENT_TRANSACTIONS:
                assert error == NONE
                return producer_id, epoch
            self.settle()
        raise AssertionError("the partitions cannot be claimed")

    def assigned(self) -> dict[str, list[int]]:
        """The partitions of `t` by transactional id."""
        by_id = self.core.transactions.assignments.by_id
        return {name: sorted(p for topic in one.topics for p in topic.partitions) for name, one in by_id.items()}

    def can_write(self, name: str, producer: Producer) -> bool:
        """Whether the producer could begin or continue a transaction; nothing is changed."""
        partitions = [("t", 0)]
        error = self.core.transaction_partitions.handle_implicit_add(name, *producer, partitions, self.now())[1]
        return error == NONE

    def commit_offset(self, name: str, producer: Producer, partition: int, group: str = "g", version: int = 3) -> int:
        """The error of a TxnOffsetCommit of this member."""
        partitions = [TxnOffsetCommitRequestPartition(partition, 5)]
        topics = [TxnOffsetCommitRequestTopic("t", partitions)]
        body = TxnOffsetCommitRequest(name, group, *producer, self.generation, name, None, topics)
        request = Request(0, 1, apis.TXN_OFFSET_COMMIT, version, "app", "10.0.0.1", body)
        out = self.core.transactional_commits.handle_txn_offset_commit(request, body, self.now())
        response: Any = out.replies[0].response
        error: int = response.topics[0].partitions[0].error_code
        return error

    def check_replay(self) -> None:
        """A core that only replays the records has the same state of transactions."""
        lines = self.core.transactions.digest_lines()
        fresh = self.after(self.commits)
        assert fresh.core.transactions.digest_lines() == lines

    def after(self, commits: list[list[Item]]) -> ClaimRig:
        """A server that starts with these commits."""
        fresh = ClaimRig.__new__(ClaimRig)
        fresh.config, fresh.generation = self.config, self.generation
        fresh.mono_ms, fresh.wall_ms, fresh.last_request = self.mono_ms, self.wall_ms, self.last_request
        fresh.open(commits)
        return fresh


def claim_of(member: str, *partitions: int, generation: int = 1, group: str = "g", topic: str = "t") -> GroupAssignment:
    return GroupAssignment(group, generation, member, None, [AssignedTopic(topic, list(partitions))])


# --- who is fenced ---------------------------------------------------------------------------------------------


def test_an_assignment_is_stored_with_the_epoch() -> None:
    rig = ClaimRig()
    assert rig.try_claim("a", 0, 1) == (NONE, 0, 0)
    assert rig.assigned() == {"a": [0, 1]}
    rig.check_replay()
    # In one batch.
    records = [item for commit in rig.commits for item in commit if isinstance(item, tuple)]
    assert [type(record.key).__name__ for _, record in records[-2:]] == [
        "TransactionLogKey", "TransactionGroupAssignmentKey",
    ]  # fmt: skip


def test_a_producer_without_an_assignment_stores_none() -> None:
    rig = ClaimRig()
    rig.begin()
    assert rig.assigned() == {}
    assert [type(record.key).__name__ for record in rig.records()] == ["TransactionLogKey"]


def test_a_new_owner_aborts_the_transaction_of_the_old_one() -> None:
    rig = ClaimRig()
    old = rig.claim("a", 0, 1)
    assert rig.write(old, ("t", 0), name="a") == NONE
    rig.rebalance()
    assert rig.try_claim("b", 1)[0] == CONCURRENT_TRANSACTIONS
    rig.settle()
    # The transaction is over: its markers are written before the new owner gets its epoch.
    assert rig.markers() == [("t", 0, old[0], old[1] + 1, False)]
    cause = rig.records("a")[-2].cause
    assert cause is not None and cause.kind == "partitions_reassigned"
    assert (cause.member_id, cause.detail) == ("b", "of group g, in generation 2, to b")
    new = rig.claim("b", 1)
    assert rig.assigned() == {"b": [1]}
    assert not rig.can_write("a", old) and rig.can_write("b", new)
    assert rig.end(old, True, "a")[0] == PRODUCER_FENCED
    rig.check_replay()


def test_an_old_owner_without_a_transaction_cannot_begin_another_one() -> None:
    rig = ClaimRig()
    old = rig.claim("a", 0)
    rig.rebalance()
    assert rig.try_claim("b", 0)[0] == CONCURRENT_TRANSACTIONS
    assert rig.try_claim("b", 0)[0] == NONE
    assert not rig.can_write("a", old)
    assert rig.init("a", producer=old)[0] == PRODUCER_FENCED
    assert rig.last("a").transaction_status == EMPTY
    assert [fact.event for fact in rig.facts] == ["partitions_reassigned"]


def test_owners_of_other_partitions_go_on() -> None:
    rig = ClaimRig()
    first, second = rig.claim("a", 0), rig.claim("b", 1)
    assert rig.write(first, ("t", 0), name="a") == NONE
    rig.rebalance()
    rig.claim("c", 1)
    assert rig.can_write("a", first) and not rig.can_write("b", second)
    assert rig.end(first, True, "a")[0] == NONE
    assert rig.assigned() == {"a": [0], "c": [1]}


def test_several_owners_are_fenced_at_once() -> None:
    rig = ClaimRig()
    first, second = rig.claim("a", 0), rig.claim("b", 1)
    rig.write(second, ("t", 1), name="b")
    rig.rebalance()
    assert rig.try_claim("c", 0, 1)[0] == CONCURRENT_TRANSACTIONS
    assert not rig.can_write("a", first) and not rig.can_write("b", second)
    rig.settle()
    rig.claim("c", 0, 1)
    assert rig.assigned() == {"c": [0, 1]}


def test_many_owners_take_several_tries() -> None:
    count = 3 * claims.OWNERS_MAX
    rig = ClaimRig({"t": count})
    producers = []
    for partition in range(count):
        name = f"producer-{partition}"
        error, producer_id, epoch = rig.init(name, assignment=claim_of("a", partition))
        assert error == NONE
        producers.append((name, (producer_id, epoch)))
    rig.rebalance()
    for fenced in (100, 200, 300):
        assert rig.try_claim("b", *range(count))[0] == CONCURRENT_TRANSACTIONS
        assert sum(not rig.can_write(*producer) for producer in producers) == fenced
    assert rig.try_claim("b", *range(count))[0] == NONE


def test_owners_of_large_transactions_take_several_tries() -> None:
    rig = ClaimRig({"t": claims.PARTITIONS_MAX})
    first, second = rig.claim("a", 0), rig.claim("b", 1)
    rig.write(first, *(("t", partition) for partition in range(claims.PARTITIONS_MAX)), name="a")
    rig.write(second, ("t", 2), name="b")
    rig.rebalance()
    assert rig.try_claim("c", 0, 1)[0] == CONCURRENT_TRANSACTIONS
    assert not rig.can_write("a", first) and rig.can_write("b", second)
    rig.settle()
    rig.claim("c", 0, 1)


def test_the_same_partitions_of_another_group_have_another_owner() -> None:
    rig = ClaimRig()
    first = rig.claim("a", 0)
    group = rig.core.groups.get_or_create("h")
    group.state, group.generation_id = STABLE, 1
    group.members["b"] = ClassicMember("b", None, "c", "h", 1000, 1000, "consumer", [], b"")
    assert rig.init("b", assignment=claim_of("b", 0, group="h"))[0] == NONE
    assert rig.can_write("a", first)


def test_an_end_that_is_decided_is_not_disturbed() -> None:
    rig = ClaimRig()
    old = rig.claim("a", 0)
    rig.write(old, ("t", 0), name="a")
    rig.commit()
    number = rig.send(apis.END_TXN, 3, EndTxnRequest("a", *old, True))
    rig.rebalance()
    rig.send(apis.INIT_PRODUCER_ID, 5, InitProducerIdRequest("b", 60000, -1, -1, claim_of("b", 0, generation=2)))
    rig.settle()
    assert getattr(rig.answers[number], "error_code", None) == NONE
    assert rig.markers() == [("t", 0, *old, True)]
    rig.claim("b", 0)
    assert not rig.can_write("a", old)


def test_a_producer_that_begins_anew_gives_its_partitions_up() -> None:
    rig = ClaimRig()
    rig.claim("a", 0, 1)
    rig.rebalance()
    present = rig.claim("a", 0)
    assert rig.try_claim("b", 1)[0] == NONE
    assert rig.can_write("a", present)
    assert rig.init("a")[0] == NONE
    assert rig.assigned() == {"b": [1]}
    rig.check_replay()


def test_a_client_that_lost_the_answer_repeats_its_request() -> None:
    rig = ClaimRig()
    first = rig.claim("a", 0)
    assert rig.try_claim("a", 0, producer=first) == (NONE, first[0], first[1] + 1)
    assert rig.try_claim("a", 0, producer=first) == (NONE, first[0], first[1] + 1)
    assert rig.assigned() == {"a": [0]}


def test_an_owner_at_its_last_epoch_gets_a_new_producer_id() -> None:
    rig = ClaimRig(producer_id_block_size=1)
    old = rig.claim("a", 0)
    for is_open in (False, True):
        rig.txn("a").producer_epoch = CLIENT_EPOCH_MAX
        if is_open:
            assert rig.write((old[0], CLIENT_EPOCH_MAX), ("t", 0), name="a") == NONE
        rig.rebalance()
        rig.claim("b", 0)
        assert rig.txn("a").producer_id != old[0]
        rig.rebalance()
        old = rig.claim("a", 0)


# --- what the group says ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("assignment", "error"),
    [
        (claim_of("a", 0, generation=2), ILLEGAL_GENERATION),
        (claim_of("a", 0, generation=4), ILLEGAL_GENERATION),
        (claim_of("x", 0, generation=3), UNKNOWN_MEMBER_ID),
        (claim_of("a", 0, generation=3, group="unknown"), ILLEGAL_GENERATION),
        (claim_of("a", 0, generation=3, group=""), INVALID_GROUP_ID),
        (claim_of("", 0, generation=3), INVALID_REQUEST),
        (claim_of("a", 0, generation=-1), INVALID_REQUEST),
        (claim_of("a", 3, generation=3), UNKNOWN_TOPIC_OR_PARTITION),
        (claim_of("a", -1, generation=3), UNKNOWN_TOPIC_OR_PARTITION),
        (claim_of("a", 0, generation=3, topic="none"), UNKNOWN_TOPIC_OR_PARTITION),
        (claim_of("a", *[0, 1] * 3, generation=3), INVALID_REQUEST),
    ],
)
def test_a_refused_claim_changes_nothing(assignment: GroupAssignment, error: int) -> None:
    rig = ClaimRig()
    rig.generation = 3
    rig.place_group()
    owner = rig.claim("b", 0)
    own = rig.claim("a", 1)
    assert rig.write(own, ("t", 0), name="a") == NONE
    rig.config.request_partitions_max = 5
    lines = rig.core.transactions.digest_lines()
    assert rig.init("a", assignment=assignment) == (error, -1, -1)
    assert rig.core.transactions.digest_lines() == lines
    assert rig.can_write("b", owner) and rig.can_write("a", own)


def test_an_assignment_belongs_to_a_transactional_id() -> None:
    rig = ClaimRig()
    assert rig.init(None, assignment=claim_of("a", 0))[0] == INVALID_REQUEST
    assert rig.init("", assignment=claim_of("a", 0))[0] == INVALID_REQUEST


@pytest.mark.parametrize(
    ("member", "epoch", "partitions", "error"),
    [
        ("m", 5, (0,), NONE),
        # Partition 0 since epoch 4; partition 1 since epoch 2, and the member revokes it.
        ("m", 4, (0,), NONE),
        ("m", 3, (0,), STALE_MEMBER_EPOCH),
        ("m", 5, (0, 1), NONE),
        ("m", 5, (2,), STALE_MEMBER_EPOCH),
        ("m", 6, (0,), STALE_MEMBER_EPOCH),
        ("x", 5, (0,), UNKNOWN_MEMBER_ID),
        ("x", 0, (), UNKNOWN_MEMBER_ID),
    ],
)
def test_a_consumer_group_knows_the_partitions(
    member: str, epoch: int, partitions: tuple[int, ...], error: int
) -> None:
    rig = ClaimRig()
    topic = rig.core.topics.get("t")
    assert topic is not None
    group = ConsumerGroup("new", rig.core.log_of("new"))
    rig.core.groups.consumer_groups["new"] = group
    found = ConsumerMember("m")
    found.member_epoch = 5
    found.assigned = {topic.topic_id: {0: 4}}
    found.revoking = {topic.topic_id: {1: 2}}
    group.members["m"] = found
    assert rig.init("x", assignment=claim_of(member, *partitions, generation=epoch, group="new"))[0] == error


# --- what the assignment permits -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 5])
def test_offsets_must_be_within_the_assignment(version: int) -> None:
    rig = ClaimRig()
    producer = rig.claim("a", 0)
    assert rig.add_offsets(producer, "g", "a") == NONE
    assert rig.commit_offset("a", producer, 0, version=version) == NONE
    assert rig.commit_offset("a", producer, 1, version=version) == GROUP_AUTHORIZATION_FAILED
    assert rig.commit_offset("a", producer, 0, "other", version) == GROUP_AUTHORIZATION_FAILED


def test_another_group_is_refused_before_its_partition_is_added() -> None:
    rig = ClaimRig()
    producer = rig.claim("a", 0)
    assert rig.add_offsets(producer, "other", "a") == GROUP_AUTHORIZATION_FAILED
    assert not rig.txn("a").has(OFFSETS_TOPIC, 0)
    plain = rig.begin("plain")
    assert rig.add_offsets(plain, "other", "plain") == NONE


# --- restarts, expiry ------------------------------------------------------------------------------------------


def test_a_restart_knows_the_owners() -> None:
    rig = ClaimRig()
    old = rig.claim("a", 0)
    rig.write(old, ("t", 0), name="a")
    rig.settle()
    rig.open()
    assert rig.assigned() == {"a": [0]}
    rig.rebalance()
    rig.claim("b", 0)
    rig.open()
    assert rig.assigned() == {"b": [0]}
    assert not rig.can_write("a", old)


def test_an_assignment_expires_with_its_transactional_id() -> None:
    rig = ClaimRig(transactional_id_expiration_ms=1000)
    rig.claim("a", 0)
    rig.advance(CHECK_INTERVAL_MS + 1)
    assert rig.core.transactions.by_id == {}
    assert rig.assigned() == {}
    assert [fact.fields for fact in rig.facts] == [{"count": 1}]
    rig.check_replay()


def test_an_assignment_without_its_transactional_id_is_removed() -> None:
    rig = ClaimRig()
    log = rig.core.transactions.log_of("a")
    key = TransactionGroupAssignmentKey("lost")
    rig.claim("a", 0)
    value = rig.core.transactions.assignments.by_id["a"]
    rig.core.replay(log, 100, key, value)
    assert rig.try_claim("a", 0)[0] == CONCURRENT_TRANSACTIONS
    assert rig.try_claim("a", 0)[0] == NONE
    assert rig.assigned() == {"a": [0]}


# --- in any order ----------------------------------------------------------------------------------------------


class Members:
    """Members whose partitions move at random, and their producers. Each knows the assignment of some generation."""

    def __init__(self, rig: ClaimRig, rng: random.Random) -> None:
        self.rig = rig
        self.rng = rng
        self.current: dict[str, list[int]] = {}
        # Generation and partitions that a member knows, and all its producers with the partitions that they had.
        self.known: dict[str, tuple[int, list[int]]] = {}
        self.producers: dict[str, tuple[Producer, list[int]]] = {}
        self.rebalance()

    def rebalance(self) -> None:
        self.rig.rebalance()
        self.current = {name: [] for name in "abc"}
        for partition in range(3):
            self.current[self.rng.choice("abc")].append(partition)

    def step(self) -> None:
        name = self.rng.choice("abc")
        what = self.rng.choice(("rebalance", "learn", "learn", "claim", "claim", "claim", "write", "write", "end"))
        if what == "rebalance":
            self.rebalance()
        elif what == "learn":
            self.known[name] = (self.rig.generation, self.current[name])
        elif what == "claim" and name in self.known:
            self.claim(name)
        elif name in self.producers:
            producer = self.producers[name][0]
            if what == "write":
                self.rig.write(producer, ("t", self.rng.randrange(3)), name=name)
            elif what == "end":
                self.rig.end(producer, self.rng.random() < 0.5, name, version=3)
        if self.rng.random() < 0.3:
            self.rig.settle()

    def claim(self, name: str) -> None:
        generation, partitions = self.known[name]
        error, producer_id, epoch = self.rig.try_claim(name, *partitions, generation=generation)
        if generation != self.rig.generation:
            assert error in (ILLEGAL_GENERATION, CONCURRENT_TRANSACTIONS)
        elif error == NONE:
            self.check_fenced(name, partitions)
            self.producers[name] = ((producer_id, epoch), partitions)
        else:
            assert error == CONCURRENT_TRANSACTIONS

    def check_fenced(self, name: str, partitions: list[int]) -> None:
        """Nobody else has one of the partitions, or a transaction from the time when it had."""
        transactions = self.rig.core.transactions
        for partition in partitions:
            assert transactions.assignments.owners("g", "t", partition) == [name]
        for other, (producer, earlier) in self.producers.items():
            if other != name and set(earlier) & set(partitions):
                assert not self.rig.can_write(other, producer)
                txn = transactions.by_id[other]
                is_its_own = txn.producer_id == producer[0] and txn.producer_epoch <= producer[1] + 1
                assert not (is_its_own and (txn.is_ending or txn.status == ONGOING)), other


@pytest.mark.parametrize("seed", range(30))
def test_no_two_producers_work_on_a_partition(seed: int) -> None:
    rng = random.Random(seed)
    members = Members(ClaimRig(), rng)
    for _ in range(100):
        members.step()
    members.rig.settle()
    members.rig.check_replay()
    # Each gets its partitions in the end, whatever a crash left.
    for commits in rng.sample(list(crashes(members.rig, rng)), 12):
        again = members.rig.after(commits)
        again.check_replay()
        if not again.core.transactions.logs():
            continue
        for name, partitions in members.current.items():
            again.claim(name, *partitions)
        assert again.assigned() == {name: sorted(partitions) for name, partitions in members.current.items()}
        for partition in range(3):
            assert len(again.core.transactions.assignments.owners("g", "t", partition)) == 1
        again.settle()
        again.check_replay()
