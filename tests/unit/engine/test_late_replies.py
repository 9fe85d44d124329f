"""An event that answers very many requests answers the last ones in later turns, and others do not wait for them."""

from __future__ import annotations

from typing import Any

from kcoord.core.outcome import Now
from kcoord.protocol import apis, errors
from kcoord.protocol.heartbeat import HeartbeatRequest
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.harness.engine import Client, decode_answer, finish_turn, open_memory_engine, read_answers, take_output

NOW = Now(1000, 1_700_000_000_000)
MEMBERS = 7
AT_ONCE = 2
JOIN, SYNC, BEAT = (apis.JOIN_GROUP, 2), (apis.SYNC_GROUP, 2), (apis.HEARTBEAT, 2)


def answers(client: Client, api: tuple[int, int]) -> list[Any]:
    return [decode_answer(*api, rest) for _, rest in read_answers(take_output(client.session))]


class Members:
    """A group whose members have all sent JoinGroup, and an engine that answers few at once."""

    def __init__(self) -> None:
        self.engine = open_memory_engine(NOW)
        self.engine.applier.replies_max = AT_ONCE
        self.clients = [Client(self.engine) for _ in range(MEMBERS)]
        protocols = [JoinGroupRequestProtocol("range", b"")]
        for client in self.clients:
            client.send(*JOIN, JoinGroupRequest("g", 30_000, 30_000, "", None, "consumer", protocols), NOW)
        finish_turn(self.engine, NOW)
        # Members that joined during the initial delay have extended it; the next timer ends the join phase.
        self.engine.fire_timers(NOW)

    def end_turn(self) -> None:
        self.engine.end_turn(NOW)

    def answered(self, api: tuple[int, int]) -> list[list[Any]]:
        return [answers(client, api) for client in self.clients]


def test_all_are_answered_in_turns() -> None:
    members = Members()
    members.engine.fire_timers(NOW)
    found: list[list[Any]] = [[] for _ in members.clients]
    counts: list[int] = []
    while members.engine.has_more() or not counts:
        members.end_turn()
        for own, news in zip(found, members.answered(JOIN), strict=True):
            own += news
        counts.append(sum(len(own) for own in found))
    # The turn of the event itself answers twice: as part of the event, and at its end.
    assert counts == [2 * AT_ONCE, 3 * AT_ONCE, MEMBERS]
    assert [len(own) for own in found] == [1] * MEMBERS
    joined = [own[0] for own in found]
    assert {(one.error_code, one.generation_id, one.leader) for one in joined} == {(0, 1, joined[0].member_id)}
    assert [len(one.members) for one in joined] == [MEMBERS] + [0] * (MEMBERS - 1)

    # The leader's SyncGroup comes last and has the answers of all, its own among the late ones or not.
    given = [SyncGroupRequestAssignment(one.member_id, one.member_id.encode()) for one in joined]
    for client, one in list(zip(members.clients, joined, strict=True))[::-1]:
        shares = given if one is joined[0] else []
        client.send(*SYNC, SyncGroupRequest("g", 1, one.member_id, None, None, None, shares), NOW)
    finish_turn(members.engine, NOW)
    for own, one in zip(members.answered(SYNC), joined, strict=True):
        assert [bytes(answer.assignment) for answer in own] == [one.member_id.encode()]


def test_the_request_that_caused_the_answers_may_be_answered_late() -> None:
    """The last member to rejoin ends the join phase, and its own answer is the last one."""
    members = Members()
    members.engine.fire_timers(NOW)
    finish_turn(members.engine, NOW)
    joined = [own[0] for own in members.answered(JOIN)]
    protocols = [JoinGroupRequestProtocol("range", b"other")]
    for client, one in zip(members.clients, joined, strict=True):
        request = JoinGroupRequest("g", 30_000, 30_000, one.member_id, None, "consumer", protocols)
        client.send(*JOIN, request, NOW)
    assert len(members.engine.applier.late_replies) == MEMBERS - AT_ONCE
    finish_turn(members.engine, NOW)
    assert [[one.generation_id for one in own] for own in members.answered(JOIN)] == [[2]] * MEMBERS
    assert not members.engine.applier.parked


def test_others_do_not_wait_and_who_is_gone_gets_nothing() -> None:
    members = Members()
    other = Client(members.engine)
    members.engine.fire_timers(NOW)
    members.engine.close_session(members.clients[-1].session, NOW)
    other.send(*BEAT, HeartbeatRequest("g", 1, "nobody"), NOW)
    members.end_turn()
    assert members.engine.has_more()
    assert [one.error_code for one in answers(other, BEAT)] == [errors.UNKNOWN_MEMBER_ID]
    finish_turn(members.engine, NOW)
    assert [len(own) for own in members.answered(JOIN)] == [1] * (MEMBERS - 1) + [0]
