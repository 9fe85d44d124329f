"""JoinGroup: member ids, who is let in, which protocol, who leads, and when a rebalance starts and ends."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kcoord.core.classic.join import NEW_MEMBER_JOIN_TIMEOUT_MS
from kcoord.core.groups.classic import (
    COMPLETING_REBALANCE,
    EMPTY,
    GENERATION_MAX,
    PREPARING_REBALANCE,
    STABLE,
)
from kcoord.protocol import errors
from tests.unit.core.classic.classic_rig import Rig

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


# ---- member ids (KIP-394)


@pytest.mark.parametrize("version", range(4, 10))
def test_a_new_dynamic_member_is_given_an_id_first(version: int) -> None:
    rig = Rig()
    response = rig.joined(rig.send_join(version=version, client_id="app"))
    assert response.error_code == errors.MEMBER_ID_REQUIRED
    assert re.fullmatch(f"app-{UUID}", response.member_id)
    assert response.generation_id == -1
    assert list(rig.group().pending_members) == [response.member_id]
    assert rig.group().state == EMPTY


@pytest.mark.parametrize("version", range(4))
def test_old_versions_join_at_once(version: int) -> None:
    rig = Rig()
    request = rig.send_join(version=version)
    (response,) = rig.join_all(request)
    assert response.error_code == errors.NONE
    assert response.member_id == response.leader
    assert response.protocol_name == "range"


def test_version_0_has_one_timeout_for_both() -> None:
    rig = Rig()
    rig.join_all(rig.send_join(version=0, session_ms=12_000, rebalance_ms=-1))
    (member,) = rig.group().members.values()
    assert member.rebalance_timeout_ms == 12_000


def test_a_static_member_joins_at_once_under_an_id_made_of_its_instance() -> None:
    rig = Rig()
    (response,) = rig.join_all(rig.send_join(instance="node-7"))
    assert response.error_code == errors.NONE
    assert re.fullmatch(f"node-7-{UUID}", response.member_id)
    assert response.members[0].group_instance_id == "node-7"


def test_ids_of_two_members_differ() -> None:
    rig = Rig()
    assert rig.new_member_id() != rig.new_member_id()


def test_an_id_that_would_not_fit_into_a_record_is_refused() -> None:
    rig = Rig()
    response = rig.joined(rig.send_join(client_id="x" * 32_740))
    assert response.error_code == errors.INVALID_REQUEST
    assert rig.store.get("g") is None


def test_a_pending_member_that_never_comes_back_is_forgotten() -> None:
    rig = Rig()
    rig.new_member_id(session_ms=10_000)
    rig.sleep(9_999)
    assert rig.group().pending_members
    rig.sleep(1)
    assert not rig.group().pending_members


def test_pending_members_are_bounded() -> None:
    rig = Rig()
    rig.new_member_id()
    rig.group().pending_members.update({f"p-{i}": -1 for i in range(9_999)})
    assert rig.joined(rig.send_join()).error_code == errors.GROUP_MAX_SIZE_REACHED


# ---- refusals


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group": ""}, errors.INVALID_GROUP_ID),
        ({"session_ms": 5_999}, errors.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, errors.INVALID_SESSION_TIMEOUT),
        ({"protocols": []}, errors.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, errors.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "stranger"}, errors.UNKNOWN_MEMBER_ID),
    ],
)
def test_refused_joins(fields: dict[str, Any], error: int) -> None:
    rig = Rig()
    response = rig.joined(rig.send_join(**fields))
    assert response.error_code == error
    assert (response.generation_id, response.leader, response.protocol_name) == (-1, "", None)


def test_another_protocol_type_does_not_fit_into_a_group_with_members() -> None:
    rig = Rig()
    rig.stable_group()
    response = rig.joined(rig.send_join(protocol_type="connect"))
    assert response.error_code == errors.INCONSISTENT_GROUP_PROTOCOL


def test_no_common_protocol_does_not_fit_either() -> None:
    rig = Rig()
    rig.stable_group()
    response = rig.joined(rig.send_join(protocols=[("sticky", b"")]))
    assert response.error_code == errors.INCONSISTENT_GROUP_PROTOCOL


def test_an_emptied_group_may_change_its_protocol_type() -> None:
    rig = Rig()
    (member,) = rig.stable_group()
    rig.leave(member)
    rig.stable_group(protocol_type="connect")
    assert rig.group().protocol_type == "connect"


def test_a_pending_id_with_an_instance_id_is_refused() -> None:
    rig = Rig()
    member = rig.new_member_id()
    assert rig.joined(rig.send_join(member, instance="i")).error_code == errors.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(("version", "name"), [(6, ""), (7, None)])
def test_no_protocol_name_is_empty_in_old_versions_and_null_in_new_ones(version: int, name: str | None) -> None:
    rig = Rig()
    assert rig.joined(rig.send_join("stranger", version=version)).protocol_name == name


def test_a_repeated_protocol_counts_once() -> None:
    rig = Rig()
    twice = [("range", b"first"), ("range", b"second")]
    (response,) = rig.join_all(rig.send_join(version=3, protocols=twice))
    assert response.protocol_name == "range"
    assert response.members[0].metadata == b"first"


# ---- what is written


def test_a_new_group_is_written_empty() -> None:
    rig = Rig()
    rig.new_member_id()
    value = rig.last_value()
    assert value is not None
    assert (value.protocol_type, value.protocol, value.generation, value.leader) == ("", None, 0, None)
    assert value.members == []
    assert value.current_state_timestamp == rig.now().wall_ms


def test_a_refused_first_member_also_leaves_a_group() -> None:
    rig = Rig()
    rig.send_join(protocols=[])
    assert rig.record_count() == 1
    assert rig.describe()[0].group_state == "Empty"


def test_joining_writes_nothing_more() -> None:
    rig = Rig()
    rig.join_all(rig.send_join(rig.new_member_id()))
    assert rig.record_count() == 1


# ---- generations, votes and leaders


def test_the_first_generation_has_a_leader_that_knows_all_members() -> None:
    rig = Rig()
    ids = [rig.new_member_id() for _ in range(3)]
    answers = rig.join_all(*[rig.send_join(m, protocols=[("range", m.encode())]) for m in ids])
    assert {a.generation_id for a in answers} == {1}
    assert {a.leader for a in answers} == {ids[0]}
    assert [(m.member_id, m.metadata) for m in answers[0].members] == [(m, m.encode()) for m in ids]
    assert answers[1].members == answers[2].members == []
    assert rig.group().state == COMPLETING_REBALANCE


def test_the_protocol_most_members_prefer_is_taken() -> None:
    rig = Rig()
    ids = [rig.new_member_id() for _ in range(3)]
    lists = [["a", "b"], ["b", "a"], ["b", "a", "c"]]
    requests = [rig.send_join(m, protocols=[(n, b"") for n in names]) for m, names in zip(ids, lists, strict=True)]
    assert {a.protocol_name for a in rig.join_all(*requests)} == {"b"}


def test_only_protocols_common_to_all_are_voted_for() -> None:
    rig = Rig()
    ids = [rig.new_member_id() for _ in range(3)]
    lists = [["a", "b"], ["a", "b"], ["b"]]
    requests = [rig.send_join(m, protocols=[(n, b"") for n in names]) for m, names in zip(ids, lists, strict=True)]
    assert {a.protocol_name for a in rig.join_all(*requests)} == {"b"}


def test_groups_that_are_not_consumers_elect_leaders_too() -> None:
    rig = Rig()
    for protocol_type in ("connect", "sr"):
        ids = rig.stable_group(2, group=protocol_type, protocol_type=protocol_type)
        assert rig.group(protocol_type).leader_id == ids[0]


def test_the_generation_never_becomes_negative() -> None:
    rig = Rig()
    (member,) = rig.stable_group()
    rig.group().generation_id = GENERATION_MAX
    (answer,) = rig.join_all(rig.send_join(member))
    assert answer.generation_id == 1


# ---- rejoining


def test_a_follower_that_rejoins_a_stable_group_unchanged_learns_the_generation() -> None:
    rig = Rig()
    ids = rig.stable_group(2)
    reply = rig.replies[rig.send_join(ids[1])]
    answer = rig.joined(reply.request_id)
    assert (answer.error_code, answer.generation_id, answer.leader, answer.members) == (0, 1, ids[0], [])
    # It shows a generation whose record may not be on disk yet.
    assert reply.wait_log is rig.logs[0]
    assert reply.wait_offset == rig.group().end_offset == 2
    assert rig.group().state == STABLE


def test_a_follower_with_new_metadata_starts_a_rebalance() -> None:
    rig = Rig()
    ids = rig.stable_group(2)
    assert rig.is_parked(rig.send_join(ids[1], protocols=[("range", b"other")]))
    assert rig.group().state == PREPARING_REBALANCE


def test_a_leader_that_rejoins_starts_a_rebalance() -> None:
    rig = Rig()
    ids = rig.stable_group(2)
    leader = rig.send_join(ids[0])
    assert rig.is_parked(leader)
    assert rig.heartbeat(ids[1], 1) == errors.REBALANCE_IN_PROGRESS
    answers = rig.join_all(leader, rig.send_join(ids[1]))
    assert {a.generation_id for a in answers} == {2}


def test_a_member_that_missed_the_answer_of_its_join_gets_it_again() -> None:
    rig = Rig()
    ids = [rig.new_member_id() for _ in range(2)]
    rig.join_all(*[rig.send_join(m) for m in ids])
    leader, follower = (rig.joined(rig.send_join(m)) for m in ids)
    assert (leader.generation_id, follower.generation_id) == (1, 1)
    assert (len(leader.members), len(follower.members)) == (2, 0)
    assert rig.group().state == COMPLETING_REBALANCE


def test_a_member_that_rejoins_before_the_assignment_starts_a_new_generation() -> None:
    rig = Rig()
    ids = [rig.new_member_id() for _ in range(2)]
    rig.join_all(*[rig.send_join(m) for m in ids])
    waiting = rig.send_sync(ids[1], 1)
    rig.send_join(ids[0], protocols=[("range", b"other")])
    assert rig.synced(waiting).error_code == errors.REBALANCE_IN_PROGRESS
    assert rig.group().state == PREPARING_REBALANCE


def test_a_repeated_join_waits_in_place_of_the_first() -> None:
    rig = Rig()
    ids = rig.stable_group(2)
    first = rig.send_join(ids[0])
    second = rig.send_join(ids[0])
    assert rig.joined(first).error_code == errors.REBALANCE_IN_PROGRESS
    assert rig.is_parked(second)
    assert rig.group().awaiting_join == 1
    rig.send_join(ids[1])
    assert rig.joined(second).generation_id == 2


def test_a_new_member_makes_the_others_rejoin() -> None:
    rig = Rig()
    (old,) = rig.stable_group()
    new = rig.send_join(rig.new_member_id())
    assert rig.is_parked(new)
    assert rig.heartbeat(old, 1) == errors.REBALANCE_IN_PROGRESS
    answers = rig.join_all(new, rig.send_join(old))
    assert {a.generation_id for a in answers} == {2}
    assert {a.leader for a in answers} == {old}


def test_members_that_do_not_rejoin_in_time_are_removed() -> None:
    rig = Rig()
    ids = rig.stable_group(2, rebalance_ms=30_000, session_ms=60_000)
    leader = rig.send_join(ids[1], protocols=[("range", b"other")], rebalance_ms=30_000, session_ms=60_000)
    rig.sleep(29_999)
    assert rig.is_parked(leader)
    rig.sleep(1)
    answer = rig.joined(leader)
    assert (answer.generation_id, answer.leader) == (2, ids[1])
    assert list(rig.group().members) == [ids[1]]
    assert rig.heartbeat(ids[0], 2) == errors.UNKNOWN_MEMBER_ID


def test_reasons_of_clients_are_in_the_facts() -> None:
    rig = Rig()
    (member,) = rig.stable_group()
    rig.send_join(member, reason="x" * 300)
    started = [f for f in rig.facts if f.event == "group_rebalance_started"]
    assert str(started[-1].fields["reason"]).endswith("client reason: " + "x" * 255)


# ---- the initial delay (KIP-134)


def test_without_a_delay_members_of_one_turn_share_the_first_generation() -> None:
    rig = Rig()
    ids = [rig.new_member_id() for _ in range(3)]
    requests = [rig.send_join(m) for m in ids]
    assert all(rig.is_parked(r) for r in requests)
    assert len(rig.join_all(*requests)[0].members) == 3


def test_the_initial_delay_gathers_members_and_is_extended_by_them() -> None:
    rig = Rig(group_initial_rebalance_delay_ms=3_000)
    first = rig.send_join(rig.new_member_id(), rebalance_ms=10_000)
    rig.sleep(2_999)
    second = rig.send_join(rig.new_member_id(), rebalance_ms=10_000)
    rig.sleep(3_000)
    assert rig.is_parked(first)
    rig.sleep(1)
    assert {rig.joined(r).generation_id for r in (first, second)} == {1}


def test_the_initial_delay_is_not_extended_beyond_the_rebalance_timeout() -> None:
    rig = Rig(group_initial_rebalance_delay_ms=3_000)
    first = rig.send_join(rig.new_member_id(), rebalance_ms=7_000)
    for _ in range(6):
        rig.sleep(1_000)
        rig.send_join(rig.new_member_id(), rebalance_ms=7_000)
    assert rig.is_parked(first)
    rig.sleep(1_000)
    assert len(rig.joined(first).members) == 7


def test_one_member_waits_out_the_delay() -> None:
    rig = Rig(group_initial_rebalance_delay_ms=3_000)
    request = rig.send_join(rig.new_member_id())
    rig.sleep(2_999)
    assert rig.is_parked(request)
    rig.sleep(1)
    assert rig.joined(request).generation_id == 1


# ---- the size limit (reliability #28, KAFKA-9844)


def test_28_a_full_group_takes_no_new_member_but_those_it_has() -> None:
    rig = Rig(group_max_size=2)
    ids = rig.stable_group(2)
    assert rig.joined(rig.send_join()).error_code == errors.GROUP_MAX_SIZE_REACHED
    assert rig.joined(rig.send_join(ids[1])).error_code == errors.NONE
    assert rig.group().state == STABLE


def test_28_concurrent_joins_do_not_exceed_the_limit() -> None:
    rig = Rig(group_max_size=2)
    ids = [rig.new_member_id() for _ in range(4)]
    requests = [rig.send_join(m) for m in ids]
    refused = rig.joined(requests[2])
    assert (refused.error_code, refused.member_id) == (errors.GROUP_MAX_SIZE_REACHED, "")
    assert rig.joined(requests[3]).error_code == errors.GROUP_MAX_SIZE_REACHED
    assert len(rig.join_all(requests[0])[0].members) == 2
    assert not rig.group().pending_members


def test_28_the_last_to_rejoin_a_shrunk_group_are_turned_away() -> None:
    rig = Rig()
    ids = rig.stable_group(3)
    again = rig.restart(group_max_size=2)
    assert again.group().state == PREPARING_REBALANCE
    requests = [again.send_join(m) for m in ids]
    assert again.joined(requests[2]).error_code == errors.GROUP_MAX_SIZE_REACHED
    assert again.group().members.keys() == set(ids[:2])
    again.sleep(60_000)
    assert {again.joined(r).generation_id for r in requests[:2]} == {2}


# ---- new members while their first join is parked


def test_a_new_member_may_wait_longer_than_its_session() -> None:
    rig = Rig()
    (old,) = rig.stable_group(session_ms=60_000)
    new = rig.send_join(rig.new_member_id(), session_ms=6_000)
    rig.sleep(50_000)
    assert rig.is_parked(new)
    assert rig.join_all(rig.send_join(old))[0].generation_id == 2


def test_a_new_member_does_not_wait_for_ever() -> None:
    rig = Rig()
    rig.join_all(rig.send_join(instance="i", rebalance_ms=900_000, session_ms=1_800_000))
    new = rig.send_join(rig.new_member_id(), rebalance_ms=900_000)
    rig.sleep(NEW_MEMBER_JOIN_TIMEOUT_MS)
    assert rig.joined(new).error_code == errors.UNKNOWN_MEMBER_ID
    assert len(rig.group().members) == 1


def test_work_per_join_does_not_grow_with_the_group() -> None:
    rig = Rig()
    count = 2_000
    ids = [rig.new_member_id() for _ in range(count)]
    answers = rig.join_all(*[rig.send_join(m) for m in ids])
    assert len(answers[0].members) == count
    assert rig.group().awaiting_join == 0
    # One timer per id, per parked join, per session, and a handful of the group.
    assert rig._armed <= 3 * count + 10
