"""Records in the order of their log have the violations that they have when they are sorted by key."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord.core.outcome import OFFSETS_TOPIC, TRANSACTION_TOPIC
from kcoord.history.invariants import NEVER
from kcoord.protocol.records.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from kcoord.protocol.records.consumer_group_member_metadata import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from kcoord.protocol.records.consumer_group_metadata import ConsumerGroupMetadataKey, ConsumerGroupMetadataValue
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue
from kcoord.spark.jobs.history_walk import Place
from kcoord.spark.jobs.verify import LOG_COLUMNS, RECORD_COLUMNS, WALKED, _with_ids, check_histories, check_logs
from kcoord.wire.message import Message
from tests.unit.spark.records_rig import COMMIT, HandLog

TOPIC_ID = bytes(range(16))
GROUPS = st.sampled_from(["a", "b", "c"])
MEMBERS = st.sampled_from(["m", "n"])
EPOCHS = st.integers(1, 4)

Pair = tuple[Message, Message | None]


def assigned(group: str, member: str, epoch: int, partition: int) -> Pair:
    value = ConsumerGroupCurrentMemberAssignmentValue(epoch, epoch, 0, [TopicPartitions(TOPIC_ID, [partition])], [])
    return ConsumerGroupCurrentMemberAssignmentKey(group, member), value


def group_epoch(group: str, epoch: int) -> Pair:
    return ConsumerGroupMetadataKey(group), ConsumerGroupMetadataValue(epoch)


def member_record(group: str, member: str) -> Pair:
    return ConsumerGroupMemberMetadataKey(group, member), ConsumerGroupMemberMetadataValue()


def generation(group: str, number: int) -> Pair:
    return GroupMetadataKey(group), GroupMetadataValue("consumer", number, None, None, 0, [])


def committed(group: str, offset: int) -> Pair:
    return OffsetCommitKey(group, "orders", 0), OffsetCommitValue(offset)


def gone(pair: Pair) -> Pair:
    return pair[0], None


OF_GROUPS = st.one_of(
    st.builds(assigned, GROUPS, MEMBERS, EPOCHS, st.integers(0, 1)),
    st.builds(group_epoch, GROUPS, EPOCHS),
    st.builds(member_record, GROUPS, MEMBERS),
    st.builds(generation, GROUPS, EPOCHS),
    st.builds(committed, GROUPS, st.integers(0, 9)),
)


def status(name: str, producer: int, number: int) -> Pair:
    return TransactionLogKey(name), TransactionLogValue(producer, transaction_status=number)


OF_IDS = st.builds(status, GROUPS, st.integers(1, 2), st.integers(0, 7))
STEPS = st.tuples(st.sampled_from(["record", "record", "tombstone", "marker", "hole"]), st.integers(0, 1))


def log_of(topic: str, steps: list[tuple[tuple[str, int], Pair]]) -> pa.RecordBatch | None:
    log = HandLog("east", topic, 3)
    second = 0.0
    for (kind, pause), pair in steps:
        second += pause
        if kind == "hole":
            log.skip(2)
        elif kind == "marker":
            log.end(second, 9, COMMIT)
        else:
            log.put(second, *(gone(pair) if kind == "tombstone" else pair))
    has_records = any(kind != "hole" for (kind, _), _ in steps)
    return log.batch().select(RECORD_COLUMNS) if has_records else None


def sorted_by_key(batches: list[pa.RecordBatch], ids: list[str]) -> pa.RecordBatch:
    rows = pa.Table.from_batches([_with_ids(batch, pa.array(ids, pa.string())) for batch in batches])
    order = [(name, "ascending") for name in (*LOG_COLUMNS, "id", "log_offset")]
    [batch] = rows.sort_by(order).combine_chunks().to_batches()
    return batch.select(WALKED)


def violations(batches: Any) -> list[str]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(map(str, rows))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(STEPS, OF_GROUPS), max_size=25),
    st.lists(st.tuples(STEPS, OF_IDS), max_size=10),
    st.sampled_from([None, 0, 4, NEVER]),
    st.sampled_from([[], ["a"]]),
)
def test_both_orders_have_the_same_violations(
    of_groups: list[tuple[tuple[str, int], Pair]],
    of_ids: list[tuple[tuple[str, int], Pair]],
    floor: int | None,
    ids: list[str],
) -> None:
    found = [log_of(OFFSETS_TOPIC, of_groups), log_of(TRANSACTION_TOPIC, of_ids)]
    batches = [batch for batch in found if batch is not None]
    places: list[Place] = [("east", OFFSETS_TOPIC, 3), ("east", TRANSACTION_TOPIC, 3)]
    floors = {} if floor is None else dict.fromkeys(places, floor)
    in_order = violations(check_logs(iter(batches), floors, 4, ids))
    if batches:
        rows = sorted_by_key(batches, ids)
        assert in_order == violations(check_histories(iter([rows]), floors, 4))
    else:
        assert in_order == []


def test_a_log_goes_on_in_the_next_batch() -> None:
    log = HandLog("east")
    for number in (3, 2, 1):
        log.put(number, *generation("a", number))
        log.put(number, *generation("b", number))
    batch = log.batch().select(RECORD_COLUMNS)
    pieces = [batch.slice(begin, 2) for begin in range(0, 6, 2)]
    found = [row for one in check_logs(iter(pieces), {}, 0, []) for row in one.to_pylist()]
    assert [(row["id"], row["log_offset"]) for row in found if row["rule"] == "generation"] == [
        ("a", 2), ("b", 3), ("a", 4), ("b", 5),
    ]  # fmt: skip
    assert [row["counted"] for row in found if row["rule"] is None] == [6]
