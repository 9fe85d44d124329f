"""Heartbeats, sessions, leaving, members that vanish at any moment, start-up, and commits of members."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord.core.groups.classic import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, STABLE
from kcoord.protocol import errors
from kcoord.wire.primitives import BytesWriter, write_i16_be, write_i32_be, write_string
from tests.unit.core.classic.classic_rig import Rig


def subscription(*topics: str) -> bytes:
    w = BytesWriter()
    write_i16_be(w, 1)
    write_i32_be(w, len(topics))
    for topic in topics:
        write_string(w, topic)
    write_i32_be(w, -1)
    return w.getvalue() + b"\0\0\0\0"


# ---- heartbeats and sessions


def test_heartbeats_keep_a_member_in_and_silence_takes_it_out() -> None:
    rig = Rig()
    (member,) = rig.stable_group(session_ms=10_000)
    for _ in range(5):
        rig.sleep(9_999)
        assert rig.heartbeat(member, 1) == errors.NONE
    rig.sleep(9_999)
    assert rig.group().state == STABLE
    rig.sleep(1)
    assert rig.group().state == EMPTY
    assert rig.heartbeat(member, 1) == errors.UNKNOWN_MEMBER_ID


def test_heartbeats_arm_no_timers() -> None:
    rig = Rig()
    (member,) = rig.stable_group(session_ms=10_000)
    armed = rig._armed
    for _ in range(1_000):
        rig.heartbeat(member, 1)
    assert rig._armed == armed


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group": ""}, errors.INVALID_GROUP_ID),
        ({"group": "nobody"}, errors.UNKNOWN_MEMBER_ID),
        ({"member_id": ""}, errors.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger"}, errors.UNKNOWN_MEMBER_ID),
        ({"generation": 0}, errors.ILLEGAL_GENERATION),
        ({"generation": -1}, errors.ILLEGAL_GENERATION),
        ({}, errors.NONE),
    ],
)
def test_heartbeat_errors(fields: dict[str, Any], error: int) -> None:
    rig = Rig()
    (member,) = rig.stable_group()
    asked: dict[str, Any] = {"member_id": member, "generation": 1} | fields
    assert rig.heartbeat(**asked) == error


def test_members_may_beat_before_they_have_an_assignment() -> None:
    rig = Rig()
    member = rig.new_member_id()
    rig.join_all(rig.send_join(member))
    assert rig.group().state == COMPLETING_REBALANCE
    assert rig.heartbeat(member, 1) == errors.NONE


def test_members_that_wait_for_us_do_not_expire() -> None:
    rig = Rig()
    ids = rig.stable_group(2, session_ms=10_000, rebalance_ms=60_000)
    waiting = rig.send_join(ids[0], session_ms=10_000)
    for _ in range(5):
        rig.sleep(9_000)
        assert rig.heartbeat(ids[1], 1) == errors.REBALANCE_IN_PROGRESS
    assert rig.is_parked(waiting)
    rig.send_join(ids[1], session_ms=10_000)
    assert rig.joined(waiting).generation_id == 2
    # Its session begins anew with the answer.
    rig.sleep(9_999)
    assert ids[0] in rig.group().members
    rig.sleep(1)
    assert ids[0] not in rig.group().members


def test_a_shorter_session_counts_from_the_rejoin() -> None:
    rig = Rig()
    (member,) = rig.stable_group(session_ms=60_000)
    rig.join_all(rig.send_join(member, session_ms=6_000))
    rig.send_sync(member, 2, {member: b""})
    rig.sleep(6_000)
    assert rig.group().state == EMPTY


def test_an_expired_member_makes_the_others_rebalance() -> None:
    rig = Rig()
    ids = rig.stable_group(2, session_ms=10_000)
    rig.sleep(5_000)
    rig.heartbeat(ids[1], 1)
    rig.sleep(5_000)
    assert rig.group().state == PREPARING_REBALANCE
    assert rig.heartbeat(ids[1], 1) == errors.REBALANCE_IN_PROGRESS
    answer = rig.joined(rig.send_join(ids[1]))
    assert (answer.generation_id, answer.leader) == (2, ids[1])


# ---- 10: whoever a rebalance waits for may vanish (KAFKA-9752, KAFKA-7909)


def test_10_a_pending_member_that_times_out_does_not_hold_up_the_rebalance() -> None:
    rig = Rig()
    (member,) = rig.stable_group(session_ms=60_000)
    rig.new_member_id(session_ms=10_000)
    waiting = rig.send_join(member, session_ms=60_000)
    assert rig.is_parked(waiting)
    rig.sleep(10_000)
    assert rig.joined(waiting).generation_id == 2


def test_10_a_pending_member_that_leaves_does_not_hold_up_the_rebalance() -> None:
    rig = Rig()
    (member,) = rig.stable_group()
    pending = rig.new_member_id()
    waiting = rig.send_join(member)
    assert rig.leave(pending).members[0].error_code == errors.NONE
    assert rig.joined(waiting).generation_id == 2


def test_10_a_member_that_times_out_does_not_hold_up_the_rebalance() -> None:
    rig = Rig()
    ids = rig.stable_group(2, session_ms=10_000)
    waiting = rig.send_join(ids[0])
    rig.sleep(10_000)
    assert rig.joined(waiting).generation_id == 2
    assert list(rig.group().members) == [ids[0]]


def test_10_a_member_that_leaves_does_not_hold_up_the_rebalance() -> None:
    rig = Rig()
    ids = rig.stable_group(2)
    waiting = rig.send_join(ids[0])
    rig.leave(ids[1])
    assert rig.joined(waiting).generation_id == 2


def test_10_a_parked_member_that_leaves_gets_an_error() -> None:
    rig = Rig()
    ids = rig.stable_group(2)
    waiting = rig.send_join(ids[0])
    rig.leave(ids[0])
    answer = rig.joined(waiting)
    assert (answer.error_code, answer.member_id) == (errors.UNKNOWN_MEMBER_ID, "")
    assert rig.group().awaiting_join == 0


def test_10_a_member_that_leaves_while_it_waits_for_its_assignment_gets_an_error() -> None:
    rig = Rig()
    ids = [rig.new_member_id() for _ in range(2)]
    rig.join_all(*[rig.send_join(m) for m in ids])
    waiting = rig.send_sync(ids[1], 1)
    rig.leave(ids[1])
    assert rig.synced(waiting).error_code == errors.UNKNOWN_MEMBER_ID
    assert rig.group().state == PREPARING_REBALANCE


def test_10_the_first_member_that_leaves_during_the_initial_delay_leaves_an_empty_group() -> None:
    rig = Rig(group_initial_rebalance_delay_ms=3_000)
    member = rig.new_member_id()
    rig.send_join(member)
    rig.leave(member)
    rig.sleep(3_000)
    assert rig.group().state == EMPTY
    again = rig.send_join(rig.new_member_id())
    rig.sleep(3_000)
    assert rig.joined(again).generation_id == 2


def test_10_all_pending_members_may_vanish_during_the_initial_delay() -> None:
    rig = Rig(group_initial_rebalance_delay_ms=20_000)
    waiting = rig.send_join(rig.new_member_id())
    rig.new_member_id(session_ms=6_000)
    rig.sleep(6_000)
    assert rig.joined(waiting).error_code == errors.NONE


# ---- leaving


def test_the_last_member_leaves_an_empty_group_in_the_log() -> None:
    rig = Rig()
    (member,) = rig.stable_group()
    assert rig.leave(member).members[0].error_code == errors.NONE
    value = rig.last_value()
    assert value is not None
    assert (value.protocol_type, value.protocol, value.leader) == ("consumer", None, None)
    assert (value.generation, value.members) == (2, [])
    assert value.current_state_timestamp == rig.now().wall_ms
    assert rig.restart().group().state == EMPTY


def test_several_members_leave_with_one_request() -> None:
    rig = Rig()
    ids = rig.stable_group(3)
    answer = rig.leave(ids[0], "stranger", ids[0], ids[2])
    codes = [m.error_code for m in answer.members]
    assert codes == [0, errors.UNKNOWN_MEMBER_ID, errors.UNKNOWN_MEMBER_ID, 0]
    assert answer.error_code == errors.NONE
    assert list(rig.group().members) == [ids[1]]
    assert rig.group().leader_id == ids[1]


def test_of_the_members_that_are_left_the_oldest_leads_however_many_have_left() -> None:
    rig = Rig()
    ids = rig.stable_group(100)
    for number, member in enumerate(ids[:-1], 1):
        assert rig.leave(member).error_code == errors.NONE
        assert rig.group().leader_id == ids[number]
        assert list(rig.group().members) == ids[number:]


def test_an_admin_removes_static_members_by_instance() -> None:
    rig = Rig()
    answer = rig.join_all(rig.send_join(instance="a"))[0]
    rig.sync_all([answer.member_id], answer.leader, 1)
    left = rig.leave(("", "nobody"), ("", "a"), ("", None))
    assert [m.error_code for m in left.members] == [errors.UNKNOWN_MEMBER_ID, 0, errors.UNKNOWN_MEMBER_ID]
    assert [m.group_instance_id for m in left.members] == ["nobody", "a", None]
    assert rig.group().state == EMPTY


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_versions_take_one_member(version: int) -> None:
    rig = Rig()
    (member,) = rig.stable_group()
    assert rig.leave("stranger", version=version).error_code == errors.UNKNOWN_MEMBER_ID
    answer = rig.leave(member, version=version)
    assert (answer.error_code, answer.members) == (errors.NONE, [])
    assert rig.leave("x", group="nobody", version=version).error_code == errors.UNKNOWN_MEMBER_ID


def test_leaving_an_unknown_group_fails_per_member_and_an_empty_id_at_the_top() -> None:
    rig = Rig()
    answer = rig.leave("m", group="nobody")
    assert (answer.error_code, answer.members[0].error_code) == (errors.NONE, errors.UNKNOWN_MEMBER_ID)
    assert rig.leave("m", group="").error_code == errors.INVALID_GROUP_ID


def test_reasons_for_leaving_are_in_the_facts() -> None:
    rig = Rig()
    (member,) = rig.stable_group()
    rig.leave(member)
    assert [f.fields["reason"] for f in rig.facts if f.event == "group_member_left"] == ["bye"]


# ---- timers of the past


def test_timers_of_a_deleted_group_do_not_touch_its_successor() -> None:
    rig = Rig()
    (old,) = rig.stable_group(session_ms=10_000)
    rig.leave(old)
    rig.delete("g")
    rig.sleep(5_000)
    (new,) = rig.stable_group(session_ms=10_000)
    # The same id again, which only a log or a test can bring about.
    group = rig.group()
    group.members[old] = group.members.pop(new)
    rig.sleep(5_000)
    assert old in rig.group().members


# ---- start-up


def test_members_get_a_whole_session_after_a_restart() -> None:
    rig = Rig()
    ids = rig.stable_group(2, session_ms=10_000)
    rig.sleep(8_000)
    again = rig.restart()
    again.sleep(9_999)
    assert again.heartbeat(ids[0], 1) == errors.NONE
    again.sleep(1)
    assert list(again.group().members) == [ids[0]]
    assert again.group().state == PREPARING_REBALANCE


def test_a_rebalance_that_a_crash_interrupts_falls_back_to_the_last_generation() -> None:
    rig = Rig()
    (old,) = rig.stable_group()
    rig.send_join(rig.new_member_id())
    assert rig.group().state == PREPARING_REBALANCE
    again = rig.restart()
    assert (again.group().state, list(again.group().members)) == (STABLE, [old])
    assert again.heartbeat(old, 1) == errors.NONE


def test_a_second_core_fed_by_replay_knows_the_same() -> None:
    rig = Rig()
    ids = rig.stable_group(2)
    rig.leave(ids[0])
    rig.new_member_id("other")
    assert rig.restart().store.hard_state() == rig.store.hard_state() != []


def test_a_leader_that_is_no_member_is_replaced_at_start_up() -> None:
    rig = Rig()
    (member,) = rig.stable_group()
    value = rig.last_value()
    assert value is not None
    value.leader = "gone"
    again = rig.restart()
    assert again.group().leader_id == member
    assert again.joined(again.send_join(member)).generation_id == 2


def test_records_of_version_0_have_no_rebalance_timeout() -> None:
    rig = Rig()
    rig.stable_group(session_ms=11_000)
    value = rig.last_value()
    assert value is not None
    value.members[0].rebalance_timeout = -1
    (member,) = rig.restart().group().members.values()
    assert member.rebalance_timeout_ms == 11_000


# ---- what the offset store asks


def test_commits_of_members_are_checked_against_the_group() -> None:
    rig = Rig()
    (member,) = rig.stable_group()
    check = rig.group().validate_offset_commit
    assert check(member, None, 1) == errors.NONE
    assert check(member, None, 0) == errors.ILLEGAL_GENERATION
    assert check("stranger", None, 1) == errors.UNKNOWN_MEMBER_ID
    assert check("", None, -1) == errors.UNKNOWN_MEMBER_ID
    assert check(member, "i", 1) == errors.UNKNOWN_MEMBER_ID
    rig.join_all(rig.send_join(member))
    assert check(member, None, 2) == errors.REBALANCE_IN_PROGRESS
    rig.leave(member)
    assert check("", None, -1) == errors.NONE
    assert check(member, None, 1) == errors.UNKNOWN_MEMBER_ID


def test_a_commit_is_a_sign_of_life() -> None:
    rig = Rig()
    (member,) = rig.stable_group(session_ms=10_000)
    rig.sleep(9_000)
    rig.store.touch_member(rig.group(), member, rig.now_ms)
    rig.sleep(9_999)
    assert rig.group().state == STABLE
    rig.sleep(1)
    assert rig.group().state == EMPTY


def test_5_subscriptions_protect_offsets() -> None:
    """KAFKA-13636: nothing may expire while the subscriptions are in doubt."""
    rig = Rig()
    (member,) = rig.stable_group(protocols=[("range", subscription("orders", "bills"))])
    group = rig.group()
    assert group.is_subscribed_to("orders")
    assert not group.is_subscribed_to("else")
    assert group.offset_expiry_base_ms(5) == 5
    rig.send_join(rig.new_member_id())
    assert group.state == PREPARING_REBALANCE
    assert group.offset_expiry_base_ms(5) == -1
    again = rig.restart().group()
    assert again.subscribed_topics() == {"orders": True, "bills": True}
    rig.leave(member)
    assert group.offset_expiry_base_ms(5) == -1


def test_5_unreadable_subscriptions_protect_everything() -> None:
    for metadata in (b"", b"\0", b"\0\1\x7f\xff\xff\xff", b"\xff\xff\0\0\0\0"):
        rig = Rig()
        rig.stable_group(protocols=[("range", metadata)])
        assert rig.group().subscribed_topics() is None
        assert rig.group().is_subscribed_to("anything")
        assert rig.group().offset_expiry_base_ms(5) == -1


def test_5_expiry_of_empty_groups_counts_from_when_they_became_empty() -> None:
    rig = Rig()
    assert rig.store.get_or_create("simple").offset_expiry_base_ms(5) == 5
    (member,) = rig.stable_group()
    rig.leave(member)
    assert rig.group().offset_expiry_base_ms(5) == rig.now().wall_ms
    assert not rig.group().is_subscribed_to("orders")


def test_offsets_of_groups_that_are_not_consumers_may_be_deleted_when_empty_only() -> None:
    rig = Rig()
    (member,) = rig.stable_group(protocol_type="connect")
    assert rig.group().validate_offset_delete() == errors.NON_EMPTY_GROUP
    assert not rig.group().is_subscribed_to("anything")
    rig.leave(member)
    assert rig.group().validate_offset_delete() == errors.NONE
