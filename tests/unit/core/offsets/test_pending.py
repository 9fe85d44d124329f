"""Pending offsets: who sees them, what ends them, and what the end of a transaction makes of them."""

from __future__ import annotations

from kcoord.core.offsets.state import OffsetState
from kcoord.core.outcome import TopicsDeleted
from kcoord.protocol import errors
from kcoord.protocol.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kcoord.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kcoord.protocol.records.legacy_offset_commit import LegacyOffsetCommitKey, LegacyOffsetCommitValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from tests.unit.core.offsets.test_offsets import DAY_MS, ID_T, OffsetsRig, asked, standalone


def committed(rig: OffsetsRig, partition: int = 0, group: str = "g", stable: bool = False) -> int:
    """The offset that a client fetches; the negative error code if there is one."""
    body = OffsetFetchRequest(group, [OffsetFetchRequestTopic("t", [partition])], None, stable)
    found = rig.fetch(7, body)[0].topics[0].partitions[0]
    return -found.error_code if found.error_code else found.committed_offset


def is_clean(state: OffsetState) -> bool:
    return not state.pending.by_group and not state.pending.by_producer


def test_a_commit_marker_makes_pending_offsets_committed() -> None:
    rig = OffsetsRig()
    record = rig.pend("g", "t", 0, 77)
    assert committed(rig) == -1
    assert committed(rig, stable=True) == -errors.UNSTABLE_OFFSET_COMMIT
    rig.end(True)
    assert committed(rig) == committed(rig, stable=True) == 77
    stored = rig.offsets.get("g", "t", 0)
    assert stored is not None and stored.record_offset == record and stored.leader_epoch == 3
    assert rig.offsets.count == 1 and rig.offsets.groups_by_topic == {"t": {"g": True}}
    assert is_clean(rig.offsets)


def test_an_abort_marker_drops_them() -> None:
    rig = OffsetsRig()
    rig.commit(8, standalone(asked("t", 0)))
    rig.pend("g", "t", 0, 77)
    rig.end(False)
    assert committed(rig, stable=True) == 10
    assert is_clean(rig.offsets)


def test_a_marker_without_pending_offsets_changes_nothing() -> None:
    rig = OffsetsRig()
    rig.pend("g", "t", 0, 77, producer_id=1)
    rig.end(True, producer_id=2)
    rig.end(False, producer_id=1, log_partition=0)
    rig.end(True, producer_id=1)
    assert committed(rig, stable=True) == -1


def test_a_newer_commit_is_not_overwritten() -> None:
    rig = OffsetsRig()
    rig.pend("g", "t", 0, 77)
    rig.commit(8, standalone(asked("t", 0)))
    rig.end(True)
    assert committed(rig) == 10


def test_of_two_transactions_the_newer_record_counts_and_not_the_newer_marker() -> None:
    rig = OffsetsRig()
    rig.pend("g", "t", 0, 71, producer_id=1)
    rig.pend("g", "t", 0, 72, producer_id=2)
    rig.end(True, producer_id=2)
    assert committed(rig, stable=True) == -errors.UNSTABLE_OFFSET_COMMIT
    rig.end(True, producer_id=1)
    assert committed(rig, stable=True) == 72


def test_the_last_commit_of_a_transaction_for_a_partition_counts() -> None:
    rig = OffsetsRig()
    rig.pend("g", "t", 0, 71)
    rig.pend("g", "t", 0, 72)
    rig.end(True)
    assert committed(rig, stable=True) == 72
    assert is_clean(rig.offsets)


def test_a_transaction_has_a_marker_in_each_log() -> None:
    rig = OffsetsRig(partitions=4)
    groups = {rig.log_of(f"g{n}").partition: f"g{n}" for n in range(40)}
    first, second = groups[0], groups[1]
    rig.pend(first, "t", 0, 71)
    rig.pend(second, "t", 0, 72)
    rig.end(True, log_partition=0)
    assert committed(rig, group=first, stable=True) == 71
    assert committed(rig, group=second, stable=True) == -errors.UNSTABLE_OFFSET_COMMIT
    rig.end(True, log_partition=1)
    assert committed(rig, group=second, stable=True) == 72


def test_a_tombstone_ends_what_is_pending() -> None:
    rig = OffsetsRig()
    rig.pend("g", "t", 0, 71, producer_id=1)
    rig.pend("g", "t", 0, 72, producer_id=2)
    rig.pend("g", "t", 1, 73, producer_id=2)
    topics = [OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(0)])]
    response, outcome = rig.delete(OffsetDeleteRequest("g", topics))
    assert response.error_code == 0 and len(outcome.records) == 1
    rig.end(True, producer_id=1)
    rig.end(True, producer_id=2)
    assert committed(rig, 0, stable=True) == -1
    assert committed(rig, 1, stable=True) == 73
    assert is_clean(rig.offsets)


def test_pending_offsets_go_with_their_topic() -> None:
    rig = OffsetsRig()
    rig.commit(8, standalone(asked("t", 0)))
    rig.pend("g", "t", 0, 70)
    rig.pend("g", "t", 1, 71)
    rig.pend("h", "t", 2, 72)
    rig.pend("h", "u", 0, 73)
    outcome = rig.apply(rig.deletes.handle_topics_deleted(TopicsDeleted({ID_T: "t"}), rig.now))
    keys = [record.key for record in outcome.records]
    assert sorted(keys, key=repr) == [
        OffsetCommitKey("g", "t", 0),
        OffsetCommitKey("g", "t", 1),
        OffsetCommitKey("h", "t", 2),
    ]
    rig.end(True)
    assert rig.offsets.get("h", "u", 0) is not None and rig.offsets.count == 1


def test_pending_offsets_make_a_simple_group() -> None:
    rig = OffsetsRig()
    rig.pend("g", "t", 0)
    assert rig.groups.is_known("g") and rig.offsets.has_offsets("g")
    rig.advance(8 * DAY_MS)
    assert not rig.expire()[0].records
    rig.end(False)
    assert [type(record.key).__name__ for record in rig.expire()[0].records] == ["GroupMetadataKey"]


def test_an_answer_waits_for_records_of_transactions_and_for_markers() -> None:
    rig = OffsetsRig()
    rig.commit(8, standalone(asked("t", 0)))
    body = OffsetFetchRequest("g", None)
    assert rig.fetch(7, body)[1].replies[0].wait_offset == 1
    rig.pend("g", "t", 1)
    assert rig.fetch(7, body)[1].replies[0].wait_offset == 2
    rig.end(True)
    assert rig.fetch(7, body)[1].replies[0].wait_offset == 3
    group = rig.groups.get("g")
    assert group is not None and group.end_offset == 2
    assert (rig.groups.last_log, rig.groups.last_end_offset) == (rig.log_ids[0], 3)


def test_old_records_can_be_pending() -> None:
    rig = OffsetsRig()
    key = LegacyOffsetCommitKey("g", "t", 0)
    rig.offsets.replay_legacy_offset_commit(key, LegacyOffsetCommitValue(5, "m", 1), 0, 0, 9)
    assert committed(rig, stable=True) == -errors.UNSTABLE_OFFSET_COMMIT
    rig.offsets.replay_transactional(0, 9, OffsetCommitKey("g", "t", 0), None, 1)
    assert is_clean(rig.offsets)


def test_the_digest_knows_pending_offsets_in_any_order() -> None:
    def state(places: list[tuple[str, int]]) -> list[str]:
        rig = OffsetsRig()
        for group, partition in places:
            value = OffsetCommitValue(partition, 1, "m", 5)
            rig.offsets.replay_transactional(0, 3, OffsetCommitKey(group, "t", partition), value, partition)
        return rig.offsets.digest_lines()

    lines = state([("a", 1), ("b", 0), ("a", 2)])
    assert len(lines) == 3
    assert lines == state([("a", 2), ("b", 0), ("a", 1)])
    assert lines != state([("a", 2), ("b", 0)])
