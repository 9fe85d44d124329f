"""Requests that take more than a turn: others get theirs in between, and the answer comes once, at the end."""

from __future__ import annotations

import pytest

from kcoord.core.admin.groups import DELETED_IN_TURN_MAX
from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.log.storage import MemoryStorage
from kcoord.protocol import apis, errors
from kcoord.protocol.delete_groups import DeleteGroupsRequest
from kcoord.protocol.heartbeat import HeartbeatRequest
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kcoord.protocol.list_groups import ListGroupsRequest
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.harness.engine import Client, decode_answer, finish_turn, open_engine, read_answers, take_output
from tests.unit.engine.test_engine_limits import create

NOW = Now(1000, 1_700_000_000_000)
GROUPS = DELETED_IN_TURN_MAX + DELETED_IN_TURN_MAX // 2
VERSION = 2


def commit(client: Client, group: str, partitions: int = 1) -> None:
    asked = [OffsetCommitRequestPartition(n, 7, -1, "") for n in range(partitions)]
    request = OffsetCommitRequest(group, topics=[OffsetCommitRequestTopic("t", partitions=asked)])
    answer = client.ask(apis.OFFSET_COMMIT, 8, request, NOW)
    assert {partition.error_code for partition in answer.topics[0].partitions} == {0}


def names(engine: Engine) -> list[str]:
    listed = Client(engine).ask(apis.LIST_GROUPS, 4, ListGroupsRequest(), NOW).groups
    return sorted(group.group_id for group in listed)


def turn(engine: Engine) -> None:
    """One turn, and its commit."""
    ticket = engine.end_turn(NOW)
    if ticket is not None:
        ticket.sync()
        engine.commit_done(ticket, NOW)


def answered(client: Client) -> list[int]:
    return [correlation_id for correlation_id, _ in read_answers(take_output(client.session))]


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def groups() -> list[str]:
    return [f"group-{number:05}" for number in range(GROUPS)]


@pytest.fixture
def engine(storage: MemoryStorage, groups: list[str]) -> Engine:
    engine = open_engine(storage, NOW)
    client = Client(engine)
    create(client, "t")
    for group in groups:
        commit(client, group)
    return engine


def test_others_are_answered_between_the_turns_of_a_long_deletion(engine: Engine, groups: list[str]) -> None:
    client, other = Client(engine), Client(engine)
    sent = client.send(apis.DELETE_GROUPS, VERSION, DeleteGroupsRequest(groups), NOW)
    turn(engine)
    assert answered(client) == [] and engine.has_more()
    beat = other.send(apis.HEARTBEAT, 4, HeartbeatRequest("g", 1, "m"), NOW)
    turn(engine)
    assert answered(other) == [beat]
    finish_turn(engine, NOW)
    ((correlation_id, rest),) = read_answers(take_output(client.session))
    assert correlation_id == sent
    results = decode_answer(apis.DELETE_GROUPS, VERSION, rest).results
    assert [(result.group_id, result.error_code) for result in results] == [(group, 0) for group in groups]
    assert names(engine) == []


def test_a_later_request_of_the_connection_waits_for_the_answer(engine: Engine, groups: list[str]) -> None:
    client = Client(engine)
    sent = [client.send(apis.DELETE_GROUPS, VERSION, DeleteGroupsRequest(groups), NOW)]
    sent.append(client.send(apis.LIST_GROUPS, 4, ListGroupsRequest(), NOW))
    finish_turn(engine, NOW)
    answers = read_answers(take_output(client.session))
    assert [correlation_id for correlation_id, _ in answers] == sent
    assert decode_answer(apis.LIST_GROUPS, 4, answers[1][1]).groups == []


def test_a_deletion_continues_without_its_client(engine: Engine, groups: list[str]) -> None:
    client = Client(engine)
    client.send(apis.DELETE_GROUPS, VERSION, DeleteGroupsRequest(groups), NOW)
    engine.close_session(client.session, NOW)
    finish_turn(engine, NOW)
    assert not engine.has_more()
    assert names(engine) == []


def test_a_stop_between_the_turns_leaves_whole_groups(
    engine: Engine, storage: MemoryStorage, groups: list[str]
) -> None:
    Client(engine).send(apis.DELETE_GROUPS, VERSION, DeleteGroupsRequest(groups), NOW)
    turn(engine)
    engine.stop()
    again = open_engine(storage, NOW)
    left = names(again)
    assert 0 < len(left) < GROUPS and left == groups[-len(left) :]
    assert all(again.core.offsets.has_offsets(group) for group in left)


def test_a_group_that_gets_a_member_between_the_turns_stays(engine: Engine, groups: list[str]) -> None:
    client, member = Client(engine), Client(engine)
    sent = client.send(apis.DELETE_GROUPS, VERSION, DeleteGroupsRequest(groups), NOW)
    protocols = [JoinGroupRequestProtocol("range", b"")]
    last = groups[-1]
    member.send(apis.JOIN_GROUP, 3, JoinGroupRequest(last, 10_000, 10_000, "", None, "consumer", protocols), NOW)
    finish_turn(engine, NOW)
    ((correlation_id, rest),) = read_answers(take_output(client.session))
    assert correlation_id == sent
    results = decode_answer(apis.DELETE_GROUPS, VERSION, rest).results
    assert results[-1].error_code == errors.NON_EMPTY_GROUP
    assert {result.error_code for result in results[:-1]} == {0}
    assert names(engine) == [last]


def test_a_fault_in_a_later_turn_costs_the_connection(engine: Engine, groups: list[str]) -> None:
    engine.outbox.strict = False
    client, other = Client(engine), Client(engine)
    client.send(apis.DELETE_GROUPS, VERSION, DeleteGroupsRequest(groups), NOW)
    live = engine.core.groups.groups
    whole = live[groups[-1]]
    live[groups[-1]] = 7  # type: ignore[assignment]
    turn(engine)
    while engine.has_more():
        turn(engine)
    live[groups[-1]] = whole
    finish_turn(engine, NOW)
    assert "internal error" in client.session.close_reason
    beat = other.send(apis.HEARTBEAT, 4, HeartbeatRequest("g", 1, "m"), NOW)
    turn(engine)
    assert answered(other) == [beat]
