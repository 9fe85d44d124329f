"""DescribeTransactions, ListTransactions, and the expiry of transactional ids."""

from __future__ import annotations

import pytest

from kcoord.core.groups.records import tombstone_bytes
from kcoord.core.transactions.describe import LISTED_COST, PATTERN_COST
from kcoord.core.transactions.expiry import CHECK_INTERVAL_MS
from kcoord.protocol import apis, errors
from kcoord.protocol.describe_transactions import DescribeTransactionsRequest
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.list_transactions import ListTransactionsRequest
from tests.unit.core.transactions.transaction_rig import START_MS, Rig

DAY_MS = 86_400_000
T0, T1 = ("t", 0), ("t", 1)


def listed(
    rig: Rig,
    states: list[str] | None = None,
    producers: list[int] | None = None,
    duration: int = -1,
    pattern: str | None = None,
    version: int = 2,
) -> list[tuple[str, int, str]]:
    body = ListTransactionsRequest(states or [], producers or [], duration, pattern)
    answer = rig.ask(apis.LIST_TRANSACTIONS, version, body)
    assert answer.error_code == errors.NONE
    return sorted((one.transactional_id, one.producer_id, one.transaction_state) for one in answer.transaction_states)


def test_an_answer_has_a_limited_number_of_partitions(rig: Rig) -> None:
    rig.core.transaction_describe.described_partitions_max = 3
    body = DescribeTransactionsRequest(["a-2", "b-2", "a-2", "a-1", "b-2"])
    states = rig.ask(apis.DESCRIBE_TRANSACTIONS, 0, body).transaction_states
    later = errors.COORDINATOR_LOAD_IN_PROGRESS
    assert [one.error_code for one in states] == [0, 0, later, 0, later]
    rig.core.transaction_describe.described_partitions_max = 1
    body = DescribeTransactionsRequest(["a-2", "a-2"])
    states = rig.ask(apis.DESCRIBE_TRANSACTIONS, 0, body).transaction_states
    assert [one.error_code for one in states] == [0, later]


def test_listings_are_charged_for_what_they_examine(rig: Rig) -> None:
    rig.core.take_cost()
    listed(rig)
    assert rig.core.take_cost() == 4 * LISTED_COST
    listed(rig, pattern="a.*")
    assert rig.core.take_cost() == 4 * LISTED_COST + PATTERN_COST
    assert rig.core.take_cost() == 0


@pytest.fixture
def rig() -> Rig:
    """a-1 is empty, a-2 is ongoing, b-1 is committed and b-2 prepares an abort."""
    rig = Rig()
    for name in ("a-1", "a-2", "b-1", "b-2"):
        rig.begin(name)
    rig.add((1, 0), T0, T1, name="a-2")
    rig.add((2, 0), T0, name="b-1")
    rig.add((3, 0), T0, name="b-2")
    rig.end((2, 0), name="b-1")
    rig.settle()
    rig.advance(1000)
    rig.send(apis.END_TXN, 5, EndTxnRequest("b-2", 3, 0, False))
    rig.commit()
    return rig


def test_transactions_are_listed(rig: Rig) -> None:
    a_1, a_2 = ("a-1", 0, "Empty"), ("a-2", 1, "Ongoing")
    b_1, b_2 = ("b-1", 2, "CompleteCommit"), ("b-2", 3, "PrepareAbort")
    assert listed(rig, version=0) == [a_1, a_2, b_1, b_2]
    assert listed(rig, states=["Ongoing", "Empty"]) == [a_1, a_2]
    assert listed(rig, producers=[2, 3, 4]) == [b_1, b_2]
    assert listed(rig, states=["Ongoing"], producers=[2]) == []
    # Without a transaction the time since its start is as long as can be, as on a broker.
    assert listed(rig, duration=1000) == [a_1]
    assert listed(rig, duration=999, version=1) == [a_1, a_2, b_1, b_2]
    assert listed(rig, pattern="a-.") == [a_1, a_2]
    assert listed(rig, pattern="-") == []
    assert listed(rig, pattern="") == [a_1, a_2, b_1, b_2]


def test_unknown_states_and_patterns(rig: Rig) -> None:
    body = ListTransactionsRequest(["Dead", "Running"], [])
    answer = rig.ask(apis.LIST_TRANSACTIONS, 2, body)
    assert (answer.error_code, answer.unknown_state_filters, answer.transaction_states) == (0, ["Running"], [])
    answer = rig.ask(apis.LIST_TRANSACTIONS, 2, ListTransactionsRequest([], [], -1, "(a"))
    assert (answer.error_code, answer.transaction_states) == (errors.INVALID_REGULAR_EXPRESSION, [])


def test_transactions_are_described(rig: Rig) -> None:
    answer = rig.ask(apis.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(["a-2", "b-2", "b-1", "c", ""]))
    shown = [
        (
            one.error_code,
            one.transactional_id,
            one.transaction_state,
            one.producer_id,
            one.producer_epoch,
            one.transaction_timeout_ms,
            one.transaction_start_time_ms,
            [(topic.topic, topic.partitions) for topic in one.topics],
        )
        for one in answer.transaction_states
    ]
    assert shown == [
        (0, "a-2", "Ongoing", 1, 0, 60000, START_MS, [("t", [0, 1])]),
        (0, "b-2", "PrepareAbort", 3, 1, 60000, START_MS, [("t", [0])]),
        (0, "b-1", "CompleteCommit", 2, 0, 60000, START_MS, []),
        (errors.TRANSACTIONAL_ID_NOT_FOUND, "c", "", 0, 0, 0, 0, []),
        (errors.INVALID_REQUEST, "", "", 0, 0, 0, 0, []),
    ]


def test_a_description_shows_what_is_durable() -> None:
    rig = Rig()
    producer = rig.begin()
    rig.settle()
    rig.write(producer, T0)
    described = rig.send(apis.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(["x"]))
    as_listed = rig.send(apis.LIST_TRANSACTIONS, 2, ListTransactionsRequest([], []))
    assert not {described, as_listed} & set(rig.answers)
    rig.commit()
    assert {described, as_listed} <= set(rig.answers)


def test_there_is_no_coordinator_before_the_topic() -> None:
    rig = Rig(find=False)
    assert listed(rig) == []
    answer = rig.ask(apis.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(["x"]))
    assert answer.transaction_states[0].error_code == errors.NOT_COORDINATOR


def test_unused_ids_expire_in_steps_that_fit_into_a_batch() -> None:
    rig = Rig(transactional_id_expiration_ms=DAY_MS)
    for number in range(7):
        rig.begin(f"{'x' * 500}-{number}", timeout_ms=900_000)
    # Two ids, each with the tombstone of its group assignment.
    rig.core.transaction_expiry.config.coordinator_batch_bytes_max = 4 * tombstone_bytes("x" * 502, "")
    rig.advance(2 * DAY_MS)
    rig.settle()
    assert not rig.core.transactions.by_id
    assert [fact.fields["count"] for fact in rig.facts] == [2, 2, 2, 1]


@pytest.mark.parametrize("partitions", [1, 3])
def test_unused_ids_expire(partitions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcoord.core.transactions.expiry.STEP_IDS_MAX", 4)
    rig = Rig(transactional_id_expiration_ms=DAY_MS, transaction_topic_num_partitions=partitions)
    for number in range(10):
        rig.begin(f"unused-{number}", timeout_ms=900_000)
    open_one = rig.begin("open", timeout_ms=900_000)
    rig.core.transactions.by_id["open"].timeout_ms = 10 * DAY_MS
    rig.add(open_one, T0, name="open")
    rig.advance(DAY_MS - CHECK_INTERVAL_MS)
    rig.begin("unused-3")
    rig.advance(2 * CHECK_INTERVAL_MS)
    rig.settle()
    assert sorted(rig.core.transactions.by_id) == ["open", "unused-3"]
    assert {fact.event for fact in rig.facts} == {"transactional_ids_expired"}
    assert sum(int(str(fact.fields["count"])) for fact in rig.facts) == 9
    rig.check_replay()
    # Its producer starts over with a new id, and cannot write before.
    assert rig.add((1, 0), T0, name="unused-1") == errors.INVALID_PRODUCER_ID_MAPPING
    assert rig.begin("unused-1") == (11, 0)
