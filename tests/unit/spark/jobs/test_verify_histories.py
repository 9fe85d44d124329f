"""Histories of groups and transactional ids held against the rules, record by record: without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kcoord.core.outcome import OFFSETS_TOPIC, TRANSACTION_TOPIC, LogId
from kcoord.history.invariants import NEVER
from kcoord.log.import_logs import id_in_key
from kcoord.log.serde import encode_record
from kcoord.protocol.records.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from kcoord.protocol.records.consumer_group_member_metadata import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from kcoord.protocol.records.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.transaction_group_assignment import (
    TransactionGroupAssignmentKey,
    TransactionGroupAssignmentValue,
)
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue
from kcoord.spark.jobs.histories import (
    ABOVE_FLOOR,
    ALWAYS,
    AT_END,
    AT_FLOOR,
    UNKNOWN_FLOOR,
    WHOLE,
    Found,
    GroupHistory,
    TransactionHistory,
    new_core,
)
from kcoord.spark.jobs.transaction_rules import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
)
from kcoord.spark.jobs.verify import check_histories
from kcoord.wire.message import Message
from tests.unit.core.consumer.mixed_crowd import Crowd

G = "billing"
TOPIC_ID = bytes(range(16))


def epoch(number: int | None) -> tuple[Message, Message | None]:
    return ConsumerGroupMetadataKey(G), None if number is None else ConsumerGroupMetadataValue(number)


def member(name: str) -> tuple[Message, Message | None]:
    return ConsumerGroupMemberMetadataKey(G, name), ConsumerGroupMemberMetadataValue()


def current(name: str, number: int, *partitions: int) -> tuple[Message, Message | None]:
    assigned = [TopicPartitions(TOPIC_ID, list(partitions))] if partitions else []
    value = ConsumerGroupCurrentMemberAssignmentValue(number, number, 0, assigned, [])
    return ConsumerGroupCurrentMemberAssignmentKey(G, name), value


def commit(topic: str, offset: int | None) -> tuple[Message, Message | None]:
    return OffsetCommitKey(G, topic, 0), None if offset is None else OffsetCommitValue(offset)


def classic(generation: int | None) -> tuple[Message, Message | None]:
    value = None if generation is None else GroupMetadataValue("consumer", generation, None, None, 0, [])
    return GroupMetadataKey(G), value


def run(*records: tuple[int, int, tuple[Message, Message | None]], floor: int = UNKNOWN_FLOOR) -> list[Found]:
    """Records as (offset, timestamp, key and value)."""
    history = GroupHistory(G, new_core(), floor)
    found: list[Found] = []
    for offset, timestamp, (key, value) in records:
        found += history.record(offset, timestamp, *encode_record(key, value), False)
    return found + history.finish()


def rules(found: list[Found]) -> list[tuple[int, str, str]]:
    return [(one.offset, one.rule, one.holds) for one in found]


def test_a_right_history_has_nothing() -> None:
    found = run(
        (0, 1, epoch(1)), (1, 1, member("a")), (2, 1, current("a", 1, 0, 1)), (5, 2, epoch(2)), (6, 2, member("b")),
        (7, 3, current("a", 2, 0)), (9, 4, current("b", 2, 1)), (10, 5, commit("orders", 3)),
    )  # fmt: skip
    assert found == []


def test_epochs_do_not_go_back() -> None:
    found = run((0, 1, member("a")), (1, 1, epoch(7)), (3, 2, epoch(6)))
    assert rules(found) == [(3, "group epoch", WHOLE)]
    assert rules(run((4, 1, classic(7)), (9, 2, classic(3)))) == [(9, "generation", ALWAYS)]


STEP = ((0, 1, epoch(1)), (1, 1, member("a")), (2, 1, member("b")), (3, 1, current("a", 1, 0)))


def test_what_is_written_at_once_is_looked_at_when_it_is_complete() -> None:
    """b gets what a gives up behind it: side by side with one timestamp that is one step, else it is two owners."""
    step = [*STEP, (5, 2, current("b", 1, 0)), (6, 2, current("a", 1))]
    assert run(*step) == []
    later = [*STEP, (5, 2, current("b", 1, 0)), (6, 3, current("a", 1))]
    assert rules(run(*later)) == [(5, "ownership", WHOLE)]
    elsewhere = [*STEP, (5, 2, current("b", 1, 0)), (7, 2, current("a", 1))]
    assert rules(run(*elsewhere)) == [(5, "ownership", WHOLE)]


def test_states_are_looked_at_again_at_the_floor_and_at_the_end() -> None:
    twice = [*STEP, (5, 2, current("b", 1, 0))]
    assert rules(run(*twice)) == [(5, "ownership", WHOLE), (5, "ownership", AT_END)]
    found = run(*twice, (20, 3, epoch(2)), floor=10)
    assert rules(found) == [(5, "ownership", WHOLE), (5, "ownership", AT_FLOOR), (20, "ownership", AT_END)]
    found = run(*twice, floor=10)
    assert rules(found)[1] == (5, "ownership", AT_FLOOR)
    found = run(*STEP, (15, 2, current("b", 1, 0)), (16, 3, current("b", 1)), floor=10)
    assert rules(found) == [(15, "ownership", ABOVE_FLOOR)]
    # Nothing is known of states where the beginning is missing.
    assert rules(run(*twice, floor=NEVER)) == [(5, "ownership", WHOLE)]


def test_a_group_takes_its_offsets_with_it() -> None:
    begin = ((0, 1, classic(1)), (2, 2, commit("a", 5)), (3, 2, commit("b", 6)))
    assert run(*begin, (7, 3, commit("a", None)), (8, 3, commit("b", None)), (9, 3, classic(None))) == []
    found = run(*begin, (7, 3, commit("a", None)), (8, 3, classic(None)))
    assert [(one.offset, one.rule) for one in found] == [(8, "offsets")]
    assert "its offset of b-0" in found[0].message
    # It becomes one of the new protocol at once.
    assert run(*begin, (7, 3, classic(None)), (8, 3, epoch(1))) == []
    # Committed without a group, later.
    assert run(*begin, (7, 3, commit("a", None)), (8, 3, commit("b", None)), (9, 3, classic(None)),
               (11, 4, commit("a", 9))) == []  # fmt: skip


def test_a_consumer_group_may_go_for_a_classic_member_and_leave_its_offsets() -> None:
    begin = ((0, 1, epoch(1)), (2, 2, commit("a", 5)), (3, 2, commit("b", 6)))
    assert run(*begin, (7, 3, epoch(None))) == []
    found = run(*begin, (7, 3, commit("a", None)), (8, 3, epoch(None)))
    assert [(one.offset, one.rule) for one in found] == [(8, "offsets")]


def test_offsets_of_transactions_may_be_there_or_not() -> None:
    history = GroupHistory(G, new_core())
    found = history.record(0, 1, *encode_record(*classic(1)), False)
    found += history.record(1, 2, *encode_record(*commit("a", 5)), True)
    found += history.record(5, 3, *encode_record(*classic(None)), False)
    assert found + history.finish() == []


def test_records_that_cannot_be_decoded_are_reported() -> None:
    key, value = encode_record(*classic(1))
    history = GroupHistory(G, new_core())
    assert value is not None
    found = history.record(4, 1, key, value[:-3], False)
    assert rules(found) == [(4, "record", ALWAYS)]
    assert history.record(5, 1, b"\x03\x00xyz", b"", False) == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_members_of_both_protocols_come_and_go(seed: int) -> None:
    """What the server wrote, group by group, has nothing; without one of its records in five it has."""
    crowd = Crowd(seed)
    stored: list[tuple[int, bytes, bytes | None]] = []
    for step in range(250):
        crowd.step()
        log = crowd.scenario.logs.get(repr(LogId(OFFSETS_TOPIC, 0)), [])
        stored += [(step, key or b"", value) for key, value in log[len(stored) :]]
    assert len(stored) > 50

    def replay(left_out: int) -> list[Found]:
        histories: dict[str, GroupHistory] = {}
        core = new_core()
        found: list[Found] = []
        for offset, (step, key, value) in enumerate(stored):
            group = id_in_key(key)
            if offset % 5 != left_out:
                history = histories.setdefault(group, GroupHistory(group, core))
                found += history.record(offset, step, key, value, False)
        for history in histories.values():
            found += history.finish()
        return found

    assert replay(-1) == []
    assert all(replay(left_out) for left_out in range(5))


# --- transactions


def transaction(*records: tuple[int, int, int] | None, floor: int = UNKNOWN_FLOOR) -> list[tuple[int, str, str]]:
    """Records as (status, producer id, epoch) at offsets from 0; None is a tombstone."""
    history = TransactionHistory("pay", floor)
    found: list[Found] = []
    for offset, one in enumerate(records):
        value = None
        if one is not None:
            status, producer_id, producer_epoch = one
            value = TransactionLogValue(producer_id, producer_epoch=producer_epoch, transaction_status=status)
        found += history.record(offset, offset, *encode_record(TransactionLogKey("pay"), value), False)
    return rules(found + history.finish())


@pytest.mark.parametrize(
    ("statuses", "wrong_at"),
    [
        (
            [
                EMPTY,
                ONGOING,
                ONGOING,
                PREPARE_COMMIT,
                COMPLETE_COMMIT,
                ONGOING,
                PREPARE_ABORT,
                COMPLETE_ABORT,
            ],
            [],
        ),
        ([EMPTY, PREPARE_ABORT, COMPLETE_ABORT, EMPTY, ONGOING], []),
        ([EMPTY, ONGOING, PREPARE_COMMIT, COMPLETE_ABORT], [3]),
        ([EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT], [3]),
        ([EMPTY, ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT, COMPLETE_COMMIT], [4]),
        ([EMPTY, ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT, PREPARE_COMMIT, COMPLETE_COMMIT], [4]),
        ([EMPTY, ONGOING, PREPARE_COMMIT, ONGOING], [3]),
        ([EMPTY, ONGOING, EMPTY], [2]),
    ],
)
def test_every_transaction_ends_once(statuses: list[int], wrong_at: list[int]) -> None:
    found = transaction(*((status, 9, 0) for status in statuses))
    assert found == [(offset, "transaction", WHOLE) for offset in wrong_at]


def test_group_assignments_are_no_states_of_a_transaction() -> None:
    history = TransactionHistory("pay")
    pairs: list[tuple[Message, Message | None]] = [
        (TransactionLogKey("pay"), TransactionLogValue(9, transaction_status=EMPTY)),
        (TransactionGroupAssignmentKey("pay"), TransactionGroupAssignmentValue("g", 1, "m")),
        (TransactionLogKey("pay"), TransactionLogValue(9, transaction_status=ONGOING)),
        (TransactionGroupAssignmentKey("pay"), None),
        (TransactionLogKey("pay"), TransactionLogValue(9, transaction_status=PREPARE_ABORT)),
    ]
    for offset, (key, value) in enumerate(pairs):
        assert history.record(offset, offset, *encode_record(key, value), False) == []


def test_transactions_in_a_compacted_log() -> None:
    assert transaction((COMPLETE_COMMIT, 9, 0)) == [(0, "transaction", WHOLE)]
    found = transaction((ONGOING, 9, 0), (COMPLETE_COMMIT, 9, 0), (COMPLETE_COMMIT, 9, 0), floor=2)
    assert found == [(0, "transaction", WHOLE), (1, "transaction", WHOLE), (2, "transaction", ABOVE_FLOOR)]


def test_producers_of_transactions() -> None:
    begin: list[Any] = [(EMPTY, 9, 3), (ONGOING, 9, 3)]
    assert transaction(*begin, (PREPARE_ABORT, 9, 2)) == [(2, "producer epoch", ALWAYS)]
    assert transaction(*begin, (PREPARE_COMMIT, 9, 3), (COMPLETE_COMMIT, 8, 3)) == [(3, "transaction", WHOLE)]
    assert transaction(*begin, None) == [(2, "transaction", WHOLE)]
    assert transaction((EMPTY, 9, 3), None, (EMPTY, 4, 0)) == []
    assert transaction((17, 9, 3)) == [(0, "transaction", ALWAYS)]


# --- what a task does


def test_a_task_walks_from_history_to_history() -> None:
    first, second = classic(5), classic(4)
    rows: list[tuple[Any, ...]] = [
        ("east", OFFSETS_TOPIC, 0, 3, 1, None, b"", b"", True),
        ("east", OFFSETS_TOPIC, 0, 1, 1, G, *encode_record(*first), False),
        ("east", OFFSETS_TOPIC, 0, 7, 2, G, *encode_record(*second), False),
        ("west", OFFSETS_TOPIC, 0, 0, 1, G, *encode_record(*second), False),
        ("west", TRANSACTION_TOPIC, 2, 4, 1, "pay",
         *encode_record(TransactionLogKey("pay"), TransactionLogValue(1, transaction_status=COMPLETE_COMMIT)), False),
    ]  # fmt: skip
    names = [
        "log",
        "log_topic",
        "log_partition",
        "log_offset",
        "timestamp_ms",
        "id",
        "key",
        "value",
        "in_transaction",
    ]
    columns = [pa.array(list(column)) for column in zip(*rows, strict=True)]
    floors = {("east", OFFSETS_TOPIC, 0): 3}
    [batch] = check_histories(iter([pa.RecordBatch.from_arrays(columns, names)]), floors, 50)
    found = batch.to_pylist()
    violations = [(row["kind"], row["id"], row["log"], row["log_offset"], row["rule"]) for row in found if row["rule"]]
    assert violations == [
        ("group", G, "east", 1, "placement"),
        ("group", G, "east", 7, "generation"),
        ("group", G, "west", 0, "placement"),
        ("transaction", "pay", "west", 4, "transaction"),
    ]
    seen = [
        (row["log"], row["counted"], row["lowest"], row["highest"], row["floor"], row["above_floor"])
        for row in found
        if not row["rule"]
    ]
    assert seen == [
        ("east", 3, 1, 7, 3, 2),
        ("west", 1, 0, 0, UNKNOWN_FLOOR, 0),
        ("west", 1, 4, 4, UNKNOWN_FLOOR, 0),
    ]
