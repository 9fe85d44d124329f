"""SyncGroup: handing in and getting assignments, what is written, and members that never sync."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord.core.groups.classic import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, STABLE
from kcoord.protocol import errors
from tests.unit.core.classic.classic_rig import Rig


def joined_group(rig: Rig, members: int, **fields: Any) -> list[str]:
    """A group in CompletingRebalance; the first member leads."""
    ids = [rig.new_member_id(**fields) for _ in range(members)]
    rig.join_all(*[rig.send_join(m, **fields) for m in ids])
    assert rig.group().state == COMPLETING_REBALANCE
    return ids


def test_followers_wait_for_the_leader_and_all_get_their_part() -> None:
    rig = Rig()
    ids = joined_group(rig, 3)
    waiting = [rig.send_sync(m, 1) for m in ids[1:]]
    assert all(rig.is_parked(r) for r in waiting)
    leader = rig.send_sync(ids[0], 1, {m: m.encode() for m in ids})
    for request, member in zip([leader, *waiting], ids, strict=True):
        answer = rig.synced(request)
        assert (answer.error_code, answer.assignment) == (errors.NONE, member.encode())
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    assert rig.group().state == STABLE


def test_a_follower_that_comes_late_waits_for_the_record_only() -> None:
    rig = Rig()
    ids = joined_group(rig, 2)
    rig.send_sync(ids[0], 1, {m: m.encode() for m in ids})
    reply = rig.replies[rig.send_sync(ids[1], 1)]
    assert rig.synced(reply.request_id).assignment == ids[1].encode()
    assert (reply.wait_log, reply.wait_offset) == (rig.logs[0], rig.record_count())


def test_the_record_holds_all_that_a_restart_needs() -> None:
    rig = Rig()
    ids = joined_group(rig, 2)
    rig.send_sync(ids[0], 1, {m: m.encode() for m in ids})
    value = rig.last_value()
    assert value is not None
    assert (value.protocol_type, value.protocol, value.generation, value.leader) == (
        "consumer",
        "range",
        1,
        ids[0],
    )
    member = value.members[1]
    assert (member.member_id, member.client_id, member.client_host) == (ids[1], "client", "/127.0.0.1")
    assert (member.session_timeout, member.rebalance_timeout) == (10_000, 60_000)
    assert (member.subscription, member.assignment) == (b"meta", ids[1].encode())
    again = rig.restart()
    assert again.group().state == STABLE
    assert again.synced(again.send_sync(ids[1], 1)).assignment == ids[1].encode()


def test_members_without_an_assignment_get_an_empty_one_and_strangers_none() -> None:
    rig = Rig()
    ids = joined_group(rig, 2)
    rig.send_sync(ids[0], 1, {ids[0]: b"all", "stranger": b"nothing"})
    assert rig.synced(rig.send_sync(ids[1], 1)).assignment == b""
    value = rig.last_value()
    assert value is not None
    assert [m.assignment for m in value.members] == [b"all", b""]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group": ""}, errors.INVALID_GROUP_ID),
        ({"group": "nobody"}, errors.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger"}, errors.UNKNOWN_MEMBER_ID),
        ({"generation": 0}, errors.ILLEGAL_GENERATION),
        ({"generation": 2}, errors.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, errors.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, errors.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": None}, errors.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": None}, errors.INCONSISTENT_GROUP_PROTOCOL),
        ({"version": 4, "protocol_type": None, "protocol_name": None}, errors.NONE),
    ],
)
def test_refused_syncs(fields: dict[str, Any], error: int) -> None:
    rig = Rig()
    (member,) = rig.stable_group()
    asked: dict[str, Any] = {"member_id": member, "generation": 1} | fields
    answer = rig.synced(rig.send_sync(**asked))
    assert answer.error_code == error
    if error:
        assert (answer.protocol_type, answer.protocol_name, answer.assignment) == (None, None, b"")


def test_a_sync_of_an_empty_group_is_from_an_unknown_member() -> None:
    rig = Rig()
    (member,) = rig.stable_group()
    rig.leave(member)
    assert rig.synced(rig.send_sync(member, 1)).error_code == errors.UNKNOWN_MEMBER_ID


def test_a_sync_during_a_rebalance_sends_the_member_back_to_join() -> None:
    rig = Rig()
    ids = rig.stable_group(2)
    rig.send_join(ids[0])
    assert rig.synced(rig.send_sync(ids[1], 1)).error_code == errors.REBALANCE_IN_PROGRESS


def test_a_repeated_sync_waits_in_place_of_the_first() -> None:
    rig = Rig()
    ids = joined_group(rig, 2)
    first = rig.send_sync(ids[1], 1)
    second = rig.send_sync(ids[1], 1)
    assert rig.synced(first).error_code == errors.REBALANCE_IN_PROGRESS
    rig.send_sync(ids[0], 1, {ids[1]: b"part"})
    assert rig.synced(second).assignment == b"part"


def test_9_members_that_never_sync_are_removed() -> None:
    """KAFKA-12890: heartbeats alone must not keep a group in CompletingRebalance."""
    rig = Rig()
    ids = joined_group(rig, 2, rebalance_ms=30_000)
    waiting = rig.send_sync(ids[1], 1)
    for _ in range(6):
        rig.sleep(4_999)
        assert rig.heartbeat(ids[0], 1) == errors.NONE
    assert rig.group().state == COMPLETING_REBALANCE
    rig.sleep(6)
    assert rig.synced(waiting).error_code == errors.REBALANCE_IN_PROGRESS
    assert list(rig.group().members) == [ids[1]]
    assert rig.group().leader_id == ids[1]
    assert rig.joined(rig.send_join(ids[1])).generation_id == 2


def test_9_a_group_without_a_sync_becomes_empty() -> None:
    rig = Rig()
    joined_group(rig, 2, rebalance_ms=30_000, session_ms=60_000)
    rig.sleep(30_000)
    assert rig.group().state == EMPTY
    value = rig.last_value()
    assert value is not None
    assert (value.generation, value.members) == (2, [])


def test_9_a_follower_that_never_syncs_goes_from_a_stable_group_too() -> None:
    rig = Rig()
    ids = joined_group(rig, 2, rebalance_ms=30_000, session_ms=60_000)
    rig.send_sync(ids[0], 1, dict.fromkeys(ids, b""))
    assert rig.group().state == STABLE
    rig.sleep(30_000)
    assert rig.group().state == PREPARING_REBALANCE
    assert list(rig.group().members) == [ids[0]]


def test_9_the_timer_of_an_earlier_generation_has_no_effect() -> None:
    rig = Rig()
    ids = joined_group(rig, 1, rebalance_ms=30_000, session_ms=60_000)
    rig.sleep(20_000)
    rig.join_all(rig.send_join(ids[0], protocols=[("range", b"2")], rebalance_ms=30_000, session_ms=60_000))
    rig.sleep(29_999)
    assert rig.group().generation_id == 2
    assert list(rig.group().members) == ids
    rig.sleep(1)
    assert rig.group().members == {}


def test_an_assignment_that_is_too_large_fails_the_generation_as_a_broker_does() -> None:
    rig = Rig(coordinator_batch_bytes_max=10_000)
    ids = joined_group(rig, 2)
    before = rig.record_count()
    waiting = rig.send_sync(ids[1], 1)
    leader = rig.send_sync(ids[0], 1, dict.fromkeys(ids, b"x" * 5000))
    for request in (leader, waiting):
        answer = rig.synced(request)
        assert (answer.error_code, answer.assignment) == (errors.UNKNOWN_SERVER_ERROR, b"")
    assert rig.group().state == PREPARING_REBALANCE
    assert rig.record_count() == before
    assert all(not m.assignment for m in rig.group().members.values())
    # The group goes on once its members ask for less.
    answers = rig.join_all(*[rig.send_join(m) for m in ids])
    rig.sync_all(ids, answers[0].leader, 2)
    assert rig.group().state == STABLE
