"""Static members (KIP-345): replacement, fencing, and coming back without a rebalance."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord.core.groups.classic import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, STABLE
from kcoord.protocol import errors
from tests.unit.core.classic.classic_rig import Rig

LONG: dict[str, Any] = {"session_ms": 60_000, "rebalance_ms": 30_000}


def static_group(rig: Rig, *instances: str) -> list[str]:
    """A Stable group of static members; the first leads."""
    answers = rig.join_all(*[rig.send_join(instance=i, **LONG) for i in instances])
    ids = [a.member_id for a in answers]
    rig.sync_all(ids, answers[0].leader, answers[0].generation_id)
    assert rig.group().state == STABLE
    return ids


def test_a_returning_follower_gets_a_new_id_and_no_rebalance() -> None:
    rig = Rig()
    ids = static_group(rig, "a", "b")
    before = rig.record_count()
    answer = rig.joined(rig.send_join(instance="b", **LONG))
    assert answer.error_code == errors.NONE
    assert answer.member_id not in ids
    assert (answer.generation_id, answer.leader, answer.skip_assignment) == (1, ids[0], False)
    assert answer.members == []
    assert rig.group().state == STABLE
    assert rig.record_count() == before + 1
    assert rig.synced(rig.send_sync(answer.member_id, 1, instance="b")).assignment == b"1"


def test_a_returning_leader_of_version_9_keeps_leading_and_skips_the_assignment() -> None:
    rig = Rig()
    ids = static_group(rig, "a", "b")
    answer = rig.joined(rig.send_join(instance="a", version=9, **LONG))
    assert answer.leader == answer.member_id != ids[0]
    assert answer.skip_assignment
    assert {m.member_id for m in answer.members} == {answer.member_id, ids[1]}


@pytest.mark.parametrize("version", [5, 8])
def test_a_returning_leader_of_older_versions_receives_its_former_id(version: int) -> None:
    rig = Rig()
    ids = static_group(rig, "a", "b")
    answer = rig.joined(rig.send_join(instance="a", version=version, **LONG))
    assert answer.leader == ids[0] != answer.member_id
    assert answer.members == []
    assert rig.group().leader_id == answer.member_id


def test_22_a_replaced_member_is_in_the_log() -> None:
    """KAFKA-10284, KAFKA-8500: after a restart the new id is valid and the old one is fenced."""
    rig = Rig()
    ids = static_group(rig, "a", "b")
    new = rig.joined(rig.send_join(instance="b", **LONG)).member_id
    again = rig.restart()
    assert again.group().state == STABLE
    assert again.heartbeat(new, 1, instance="b") == errors.NONE
    assert again.heartbeat(ids[1], 1, instance="b") == errors.FENCED_INSTANCE_ID
    assert again.synced(again.send_sync(new, 1, instance="b")).assignment == b"1"


def test_22_a_replaced_leader_is_the_leader_in_the_log() -> None:
    rig = Rig()
    static_group(rig, "a")
    new = rig.joined(rig.send_join(instance="a", **LONG)).member_id
    value = rig.last_value()
    assert value is not None
    assert value.leader == new
    assert [(m.member_id, m.group_instance_id) for m in value.members] == [(new, "a")]


def test_22_removing_the_old_id_does_not_unmap_the_instance() -> None:
    """KAFKA-20747: a late timer of the old id must not touch its successor."""
    rig = Rig()
    ids = static_group(rig, "a", "b")
    new = rig.joined(rig.send_join(instance="b", **LONG)).member_id
    for _ in range(3):
        rig.sleep(30_000)
        for member, instance in ((ids[0], "a"), (new, "b")):
            assert rig.heartbeat(member, 1, instance=instance) == errors.NONE
    assert rig.group().static_members == {"a": ids[0], "b": new}


def test_a_replaced_id_is_fenced_everywhere() -> None:
    rig = Rig()
    ids = static_group(rig, "a", "b")
    rig.send_join(instance="b", **LONG)
    old = ids[1]
    assert rig.heartbeat(old, 1, instance="b") == errors.FENCED_INSTANCE_ID
    assert rig.joined(rig.send_join(old, instance="b")).error_code == errors.FENCED_INSTANCE_ID
    assert rig.synced(rig.send_sync(old, 1, instance="b")).error_code == errors.FENCED_INSTANCE_ID
    assert rig.leave((old, "b")).members[0].error_code == errors.FENCED_INSTANCE_ID
    assert rig.group().validate_offset_commit(old, "b", 1) == errors.FENCED_INSTANCE_ID
    assert rig.heartbeat(old, 1) == errors.UNKNOWN_MEMBER_ID


def test_what_is_parked_under_the_old_id_is_fenced_at_once() -> None:
    rig = Rig()
    ids = static_group(rig, "a", "b")
    rig.send_join(ids[0], instance="a", **LONG)
    rig.send_join(instance="c", **LONG)
    parked = rig.send_join(ids[1], instance="b", protocols=[("range", b"other")], **LONG)
    # Everybody is there by now, and the old `b` waits for its assignment when another one shows up.
    assert rig.joined(parked).generation_id == 2
    waiting = rig.send_sync(ids[1], 2, instance="b")
    twin = rig.send_join(instance="b", **LONG)
    assert rig.synced(waiting).error_code == errors.FENCED_INSTANCE_ID
    assert rig.is_parked(twin)
    assert rig.group().state == PREPARING_REBALANCE


def test_a_twin_during_the_join_phase_takes_the_place_of_the_first() -> None:
    rig = Rig()
    ids = static_group(rig, "a", "b")
    rig.send_join(instance="c", **LONG)
    first = rig.send_join(ids[1], instance="b", **LONG)
    twin = rig.send_join(instance="b", **LONG)
    fenced = rig.joined(first)
    assert (fenced.error_code, fenced.member_id) == (errors.FENCED_INSTANCE_ID, ids[1])
    rig.send_join(ids[0], instance="a", **LONG)
    assert rig.joined(twin).generation_id == 2


def test_a_return_before_the_assignment_starts_a_rebalance() -> None:
    """The leader may be assigning to the old id."""
    rig = Rig()
    answers = rig.join_all(*[rig.send_join(instance=i, **LONG) for i in ("a", "b")])
    waiting = rig.send_sync(answers[1].member_id, 1, instance="b")
    assert rig.group().state == COMPLETING_REBALANCE
    twin = rig.send_join(instance="a", **LONG)
    assert rig.synced(waiting).error_code == errors.REBALANCE_IN_PROGRESS
    assert rig.is_parked(twin)
    rig.send_join(answers[1].member_id, instance="b", **LONG)
    assert rig.joined(twin).generation_id == 2
    assert rig.joined(twin).leader == rig.joined(twin).member_id


def test_a_return_with_a_protocol_that_changes_the_choice_starts_a_rebalance() -> None:
    rig = Rig()
    both = [("range", b""), ("sticky", b"")]
    answer = rig.join_all(rig.send_join(instance="a", protocols=both, **LONG))[0]
    rig.sync_all([answer.member_id], answer.leader, 1)
    other_way = rig.send_join(instance="a", protocols=both[::-1], **LONG)
    assert rig.joined(other_way).generation_id == 2
    assert rig.joined(other_way).protocol_name == "sticky"


def test_a_return_with_new_metadata_alone_does_not_rebalance() -> None:
    rig = Rig()
    static_group(rig, "a", "b")
    answer = rig.joined(rig.send_join(instance="b", protocols=[("range", b"new")], **LONG))
    assert (answer.error_code, answer.generation_id) == (errors.NONE, 1)
    value = rig.last_value()
    assert value is not None
    assert {m.subscription for m in value.members} == {b"meta", b"new"}


def test_static_members_stay_through_a_rebalance_they_sleep_through() -> None:
    rig = Rig()
    ids = static_group(rig, "a", "b")
    leader = rig.send_join(ids[0], instance="a", **LONG)
    rig.sleep(30_000)
    answer = rig.joined(leader)
    assert answer.generation_id == 2
    assert {m.member_id for m in answer.members} == set(ids)
    assert rig.heartbeat(ids[1], 2, instance="b") == errors.NONE


def test_a_sleeping_static_leader_hands_over() -> None:
    rig = Rig()
    ids = static_group(rig, "a", "b")
    other = rig.send_join(ids[1], instance="b", protocols=[("range", b"other")], **LONG)
    rig.sleep(30_000)
    assert rig.joined(other).leader == ids[1]
    assert len(rig.joined(other).members) == 2


def test_a_group_of_silent_static_members_waits_until_their_sessions_end() -> None:
    rig = Rig()
    ids = static_group(rig, "a", "b")
    rig.send_join(instance="c", session_ms=6_000, rebalance_ms=30_000)
    rig.group().members[next(iter(set(rig.group().members) - set(ids)))].is_new = False
    third = rig.group().static_members["c"]
    rig.leave((third, "c"))
    rig.sleep(30_000)
    assert rig.group().state == PREPARING_REBALANCE
    rig.sleep(30_000)
    assert rig.group().state == EMPTY
    assert rig.group().members == {}


def test_an_expired_static_member_leaves_its_instance_free() -> None:
    rig = Rig()
    static_group(rig, "a")
    rig.sleep(60_000)
    assert rig.group().state == EMPTY
    assert rig.group().static_members == {}
    assert rig.join_all(rig.send_join(instance="a", **LONG))[0].error_code == errors.NONE


def test_unknown_instance_ids_are_unknown_members() -> None:
    rig = Rig()
    (member,) = rig.stable_group()
    assert rig.heartbeat(member, 1, instance="nobody") == errors.UNKNOWN_MEMBER_ID
    assert rig.joined(rig.send_join(member, instance="nobody")).error_code == errors.UNKNOWN_MEMBER_ID


def test_a_return_whose_record_would_be_too_large_is_taken_back() -> None:
    rig = Rig()
    ids = static_group(rig, "a", "b")
    rig.config.coordinator_batch_bytes_max = 2_000
    answer = rig.joined(rig.send_join(instance="b", protocols=[("range", b"x" * 2_000)], **LONG))
    assert (answer.error_code, answer.member_id) == (errors.UNKNOWN_SERVER_ERROR, "")
    assert set(rig.group().members) == set(ids)
    assert rig.group().static_members == {"a": ids[0], "b": ids[1]}
    assert rig.group().members[ids[1]].metadata("range") == b"meta"
    assert rig.heartbeat(ids[1], 1, instance="b") == errors.NONE


def test_a_member_replaced_before_it_synced_does_not_leave_a_debt() -> None:
    rig = Rig()
    answers = rig.join_all(*[rig.send_join(instance=i, **LONG) for i in ("a", "b")])
    leader, other = answers[0].member_id, answers[1].member_id
    rig.send_sync(leader, 1, {leader: b"0", other: b"1"}, instance="a")
    assert rig.group().state == STABLE
    new = rig.joined(rig.send_join(instance="b", **LONG)).member_id
    assert rig.synced(rig.send_sync(new, 1, instance="b")).assignment == b"1"
    rig.sleep(30_000)
    assert rig.group().state == STABLE


def test_silent_static_members_without_a_rebalance_timeout_do_not_make_the_group_spin() -> None:
    rig = Rig()
    answer = rig.join_all(rig.send_join(instance="a", rebalance_ms=1, session_ms=60_000))[0]
    rig.sync_all([answer.member_id], answer.leader, 1)
    rig.send_join(instance="b", rebalance_ms=1, session_ms=60_000)
    rig.leave(("", "b"))
    armed = rig._armed
    rig.sleep(30_000)
    assert rig._armed - armed <= 31
