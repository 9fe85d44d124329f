"""LeaveGroup for very many members goes in steps, and looks like one from outside."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kcoord.core.groups.leave import MEMBER_ID_BYTES, STEP_MEMBERS_MAX, LeaveGroupStep
from kcoord.core.groups.records import tombstone_bytes
from kcoord.core.outcome import Fact, Now, Request
from kcoord.log.storage import MemoryStorage
from kcoord.protocol import apis, errors
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kcoord.protocol.delete_groups import DeleteGroupsRequest
from kcoord.protocol.heartbeat import HeartbeatRequest
from kcoord.protocol.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from tests.harness.engine import Client, decode_answer, finish_turn, open_engine, read_answers, take_output
from tests.stall.worlds import CLASSIC_GROUP, CONSUMER_GROUP, World

NOW = Now(1000, 1_700_000_000_000)
SCALE = 0.001
MEMBERS = 9
GROUPS = pytest.mark.parametrize("group", [CLASSIC_GROUP, CONSUMER_GROUP])


def make_world(group: str, step_members: int = 2, storage: MemoryStorage | None = None) -> World:
    """A group of nine members, and steps of two."""
    world = World(MemoryStorage() if storage is None else storage, NOW, "always", SCALE)
    world.add_topics()
    if group == CLASSIC_GROUP:
        world.add_classic_members()
    else:
        world.add_consumer_members()
    assert len(world.member_ids[group]) == MEMBERS
    world.engine.core.leaves.step_members_max = step_members
    world.engine.take_facts()
    return world


def leave_request(group: str, names: list[str]) -> LeaveGroupRequest:
    return LeaveGroupRequest(group, "", [MemberIdentity(name, None, "bye") for name in names])


def step(world: World) -> None:
    """One turn, and its commit."""
    ticket = world.engine.end_turn(world.now)
    if ticket is not None:
        ticket.sync()
        world.engine.commit_done(ticket, world.now)


def ask_between(world: World, api_key: int, version: int, message: Any) -> Any:
    """The answer to somebody else's request, before the next step of what goes on."""
    engine = world.engine
    held = list(engine.applier.continuations)
    engine.applier.continuations.clear()
    answer = Client(engine).ask(api_key, version, message, world.now)
    engine.applier.continuations.extend(held)
    return answer


def leave_answer(client: Client) -> LeaveGroupResponse | None:
    answers = read_answers(take_output(client.session))
    if not answers:
        return None
    [(_, rest)] = answers
    response = decode_answer(apis.LEAVE_GROUP, 5, rest)
    assert isinstance(response, LeaveGroupResponse)
    return response


def member_count(world: World, group: str) -> int:
    core = world.engine.core
    consumers = core.groups.consumer_groups.get(group)
    return len(core.groups.groups[group].members) if consumers is None else len(consumers.members)


def beat(world: World, group: str, name: str) -> int:
    if group == CLASSIC_GROUP:
        classic = HeartbeatRequest(group, world.epochs[group], name)
        return int(ask_between(world, apis.HEARTBEAT, 4, classic).error_code)
    request = ConsumerGroupHeartbeatRequest(group, name, world.epochs[group], subscribed_topic_names=None)
    return int(ask_between(world, apis.CONSUMER_GROUP_HEARTBEAT, 1, request).error_code)


def leave_all(world: World, group: str, names: list[str]) -> tuple[LeaveGroupResponse, int]:
    """The answer, and after how many turns it came."""
    client = Client(world.engine)
    client.send(apis.LEAVE_GROUP, 5, leave_request(group, names), world.now)
    turns = 0
    answer = leave_answer(client)
    while answer is None:
        step(world)
        turns += 1
        answer = leave_answer(client)
    return answer, turns


@GROUPS
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5, 6, 7, 8], [8, 3, 3, -1, 2, 8, 0, 1, -1, 3, 5]])
def test_members_that_leave_in_steps_are_answered_as_in_one(group: str, order: list[int]) -> None:
    at_once, in_steps = make_world(group, STEP_MEMBERS_MAX), make_world(group)
    answers: list[list[tuple[int, int]]] = []
    for world in (at_once, in_steps):
        members = world.member_ids[group]
        response, turns = leave_all(world, group, ["nobody" if i < 0 else members[i] for i in order])
        assert turns == (1 if world is at_once else (len(order) + 1) // 2)
        assert response.error_code == errors.NONE
        assert [m.member_id for m in response.members] == ["nobody" if i < 0 else members[i] for i in order]
        answers.append([(i, m.error_code) for i, m in zip(order, response.members, strict=True)])
        assert member_count(world, group) == MEMBERS - len({i for i in order if i >= 0})
        assert not world.engine.applier.parked
        assert not world.engine.has_more()
    assert answers[0] == answers[1]


def left_facts(facts: list[Fact]) -> list[object]:
    return [fact.fields["member"] for fact in facts if fact.event == "group_member_left"]


@GROUPS
def test_a_member_that_is_named_often_is_logged_once(group: str) -> None:
    world = make_world(group)
    members = world.member_ids[group]
    leave_all(world, group, [members[1]] * 5 + [members[2]])
    assert left_facts(world.engine.take_facts()) == [members[1], members[2]]


def test_the_one_that_has_been_there_longest_leads_after_many_left() -> None:
    world = make_world(CLASSIC_GROUP, STEP_MEMBERS_MAX)
    members = world.member_ids[CLASSIC_GROUP]
    group = world.engine.core.groups.groups[CLASSIC_GROUP]
    leave_all(world, CLASSIC_GROUP, [world.leader_id, *(name for name in members[:5] if name != world.leader_id)])
    assert group.leader_id == next(iter(group.members))


@GROUPS
def test_others_are_served_between_two_steps_and_the_connection_waits(group: str) -> None:
    world = make_world(group)
    members = world.member_ids[group]
    client = Client(world.engine)
    client.send(apis.LEAVE_GROUP, 5, leave_request(group, members[:6]), world.now)
    client.send(apis.LEAVE_GROUP, 5, leave_request(group, ["nobody"]), world.now)
    step(world)
    assert member_count(world, group) == MEMBERS - 2
    assert beat(world, group, members[0]) == errors.UNKNOWN_MEMBER_ID
    assert beat(world, group, members[4]) in (errors.NONE, errors.REBALANCE_IN_PROGRESS)
    assert leave_answer(client) is None
    step(world)
    assert member_count(world, group) == MEMBERS - 4
    assert beat(world, group, members[4]) in (errors.NONE, errors.REBALANCE_IN_PROGRESS)
    step(world)
    assert member_count(world, group) == MEMBERS - 6
    assert beat(world, group, members[4]) == errors.UNKNOWN_MEMBER_ID
    assert beat(world, group, members[8]) in (errors.NONE, errors.REBALANCE_IN_PROGRESS)
    finish_turn(world.engine, world.now)
    answers = read_answers(take_output(client.session))
    assert [number for number, _ in answers] == [1, 2], "in the order of the requests"


@GROUPS
def test_members_leave_although_the_connection_of_the_request_is_closed(group: str) -> None:
    world = make_world(group)
    client = Client(world.engine)
    client.send(apis.LEAVE_GROUP, 5, leave_request(group, world.member_ids[group]), world.now)
    step(world)
    world.engine.close_session(client.session, world.now)
    finish_turn(world.engine, world.now)
    assert member_count(world, group) == 0
    assert not world.engine.applier.parked
    assert not world.engine.has_more()


@GROUPS
def test_after_a_restart_between_two_steps_the_other_members_can_leave(group: str) -> None:
    storage = MemoryStorage()
    world = make_world(group, storage=storage)
    members = world.member_ids[group]
    client = Client(world.engine)
    client.send(apis.LEAVE_GROUP, 5, leave_request(group, members), world.now)
    step(world)
    step(world)
    assert member_count(world, group) == MEMBERS - 4
    digest = world.engine.core.digest()

    storage.unlock()
    world.engine = open_engine(storage, world.now, random.Random(8), "always")
    assert world.engine.core.digest() == digest
    # A classic group writes its record when the rebalance is over, so its members are all there again.
    left = 4 if group == CONSUMER_GROUP else 0
    assert member_count(world, group) == MEMBERS - left
    response, _ = leave_all(world, group, members)
    codes = [errors.UNKNOWN_MEMBER_ID] * left + [errors.NONE] * (MEMBERS - left)
    assert [member.error_code for member in response.members] == codes
    assert member_count(world, group) == 0


@GROUPS
def test_a_group_that_is_deleted_between_two_steps_has_no_members_left_to_remove(group: str) -> None:
    world = make_world(group)
    members = world.member_ids[group]
    client = Client(world.engine)
    client.send(apis.LEAVE_GROUP, 5, leave_request(group, members), world.now)
    step(world)
    world.engine.core.leaves.step_members_max = STEP_MEMBERS_MAX
    ask_between(world, apis.LEAVE_GROUP, 5, leave_request(group, members))
    deleted = ask_between(world, apis.DELETE_GROUPS, 2, DeleteGroupsRequest([group]))
    assert [result.error_code for result in deleted.results] == [errors.NONE]
    step(world)
    answer = leave_answer(client)
    assert answer is not None
    codes = [errors.NONE] * 2 + [errors.UNKNOWN_MEMBER_ID] * (MEMBERS - 2)
    assert [member.error_code for member in answer.members] == codes


def test_one_turn_takes_one_step_of_full_size() -> None:
    world = make_world(CONSUMER_GROUP, STEP_MEMBERS_MAX)
    name = world.member_ids[CONSUMER_GROUP][0]
    names = [name] * (STEP_MEMBERS_MAX + 1)
    clients = [Client(world.engine) for _ in range(3)]
    for client in clients:
        client.send(apis.LEAVE_GROUP, 5, leave_request(CONSUMER_GROUP, names), world.now)
    # The first turn went to reading them.
    steps: list[list[int]] = []
    while world.engine.has_more():
        steps.append([one.position for one in world.engine.applier.continuations if isinstance(one, LeaveGroupStep)])
        step(world)
    done = STEP_MEMBERS_MAX
    assert steps == [[0, 0, 0], [0, 0, done], [0, done, done], [done, done, done]]
    assert all(leave_answer(client) is not None for client in clients)


def test_a_step_has_as_many_members_as_fit_into_a_batch() -> None:
    names = ["a", "b" * 100, "c", "d"]
    body = LeaveGroupRequest(CONSUMER_GROUP, "", [MemberIdentity(name, None, "bye") for name in names])
    part = LeaveGroupStep(Request(1, 1, apis.LEAVE_GROUP, 5, "c", "/127.0.0.1", body), body)
    sizes = [3 * (tombstone_bytes(CONSUMER_GROUP, name) + MEMBER_ID_BYTES) for name in names]
    assert part.members_within(1000, sum(sizes)) == 4
    assert part.members_within(1000, sum(sizes[:3])) == 3
    assert part.members_within(1000, sizes[0] + sizes[1] - 1) == 1
    assert part.members_within(1000, 1) == 1
    assert part.members_within(2, sum(sizes)) == 2


def test_members_leave_in_steps_that_fit_into_a_batch() -> None:
    world = make_world(CONSUMER_GROUP, step_members=1000)
    world.engine.core.leaves.batch_bytes_max = 1
    client = Client(world.engine)
    client.send(apis.LEAVE_GROUP, 5, leave_request(CONSUMER_GROUP, world.member_ids[CONSUMER_GROUP]), world.now)
    steps = 0
    while world.engine.applier.continuations:
        step(world)
        steps += 1
    assert steps == MEMBERS - 1
