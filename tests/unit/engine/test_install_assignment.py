"""ConsumerGroupInstallAssignment for a large group goes in phases, each a turn; only the last one changes anything."""

from __future__ import annotations

import random

import pytest

from kcoord.core.client_assignors.install import Installation
from kcoord.core.outcome import Now
from kcoord.log.storage import MemoryStorage
from kcoord.protocol import apis, errors
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kcoord.protocol.consumer_group_install_assignment import (
    AssignedMember,
    AssignedTopicPartitions,
    ConsumerGroupInstallAssignmentRequest,
    ConsumerGroupInstallAssignmentResponse,
)
from tests.harness.engine import Client, decode_answer, finish_turn, open_engine, read_answers, take_output
from tests.stall.worlds import CLIENT_GROUP, WIDE, World

NOW = Now(1000, 1_700_000_000_000)
SCALE = 0.001
PHASES = 4
API = apis.CONSUMER_GROUP_INSTALL_ASSIGNMENT


def make_world(phase_members: int = 1, storage: MemoryStorage | None = None) -> World:
    """A group of nine members, one of which was asked to compute."""
    world = World(MemoryStorage() if storage is None else storage, NOW, "always", SCALE)
    world.add_topics()
    world.add_client_members()
    world.engine.core.client_assignments.phase_members_max = phase_members
    return world


def install(world: World, *partitions: list[int], names: list[str] | None = None) -> Client:
    """Send an assignment from a connection of its own: to the first members these partitions, to others nothing."""
    members = sorted(set(world.member_ids[CLIENT_GROUP])) if names is None else names
    topic_id = world.topic_ids[WIDE]
    assigned = [
        AssignedMember(name, [AssignedTopicPartitions(topic_id, own)], 0, b"")
        for name, own in zip(members, partitions, strict=False)
    ]
    group = world.engine.core.groups.consumer_groups[CLIENT_GROUP]
    client = Client(world.engine)
    request = ConsumerGroupInstallAssignmentRequest(
        CLIENT_GROUP, world.member_ids[CLIENT_GROUP][0], world.epochs[CLIENT_GROUP], group.epoch, 0, assigned
    )
    client.send(API, 0, request, world.now)
    return client


def step(world: World) -> None:
    """One turn, and its commit."""
    ticket = world.engine.end_turn(world.now)
    if ticket is not None:
        ticket.sync()
        world.engine.commit_done(ticket, world.now)


def answer_of(client: Client) -> ConsumerGroupInstallAssignmentResponse | None:
    answers = read_answers(take_output(client.session))
    if not answers:
        return None
    [(_, rest)] = answers
    response = decode_answer(API, 0, rest)
    assert isinstance(response, ConsumerGroupInstallAssignmentResponse)
    return response


def finished(world: World, client: Client) -> tuple[int, int]:
    """The error code, and how many turns it took."""
    turns = 0
    answer = answer_of(client)
    while answer is None:
        step(world)
        turns += 1
        answer = answer_of(client)
    assert not world.engine.applier.parked
    assert not world.engine.has_more()
    return answer.error_code, turns


def targets(world: World) -> dict[str, list[int]]:
    group = world.engine.core.groups.consumer_groups[CLIENT_GROUP]
    return {name: own for name in sorted(group.members) for own in group.target(name).values()}


def test_an_assignment_in_phases_is_the_one_that_is_installed_at_once() -> None:
    at_once, in_phases = make_world(1000), make_world()
    for world, turns in ((at_once, 1), (in_phases, PHASES)):
        assert finished(world, install(world, [3, 1], [2], [], [0])) == (errors.NONE, turns)
    assert targets(at_once) == targets(in_phases) == {"m00000": [1, 3], "m00001": [2], "m00003": [0]}
    groups = [world.engine.core.groups.consumer_groups[CLIENT_GROUP] for world in (at_once, in_phases)]
    assert groups[0].assignment_epoch == groups[1].assignment_epoch == groups[0].epoch


@pytest.mark.parametrize(
    ("partitions", "names", "turns"),
    [([[1], [1]], None, 2), ([[99]], None, 2), ([[1], [2]], ["m00001", "m00001"], 1), ([[1]], ["nobody"], 2)],
)
def test_an_assignment_that_cannot_be_is_refused_with_the_same_words(
    partitions: list[list[int]], names: list[str] | None, turns: int
) -> None:
    texts: list[str | None] = []
    for phase_members, expected in ((1000, 1), (1, turns)):
        world = make_world(phase_members)
        client = install(world, *partitions, names=names)
        for _ in range(expected):
            step(world)
        answer = answer_of(client)
        assert answer is not None
        assert answer.error_code == errors.INVALID_REQUEST
        texts.append(answer.error_message)
        assert targets(world) == {}
        computation = world.engine.core.groups.consumer_groups[CLIENT_GROUP].computation
        assert computation is not None
        assert computation.member_id == "", "somebody else is to compute"
    assert texts[0] == texts[1]


def leave(world: World, name: str) -> None:
    request = ConsumerGroupHeartbeatRequest(CLIENT_GROUP, name, -1, subscribed_topic_names=None)
    engine = world.engine
    held = list(engine.applier.continuations)
    engine.applier.continuations.clear()
    answer = Client(engine).ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, request, world.now)
    assert answer.error_code == errors.NONE
    engine.applier.continuations.extend(held)


@pytest.mark.parametrize("done", range(PHASES))
def test_a_group_that_changes_between_two_phases_gets_nothing_of_the_assignment(done: int) -> None:
    world = make_world()
    client = install(world, [3], [2])
    for _ in range(done):
        step(world)
    assert targets(world) == {}, "nothing shows before the last phase"
    other = next(n for n in world.member_ids[CLIENT_GROUP] if n != world.member_ids[CLIENT_GROUP][0])
    leave(world, other)
    assert finished(world, client) == (errors.STALE_MEMBER_EPOCH, 1)
    assert targets(world) == {}


def test_a_static_member_that_comes_back_between_two_phases_makes_the_assignment_stale() -> None:
    world = make_world()
    client = install(world, [3], [2])
    step(world)
    step(world)
    step(world)
    group = world.engine.core.groups.consumer_groups[CLIENT_GROUP]
    installation = world.engine.applier.continuations[0]
    assert isinstance(installation, Installation)
    # The epoch is the same, and one of the members has another id.
    installation.targets["m99999"] = installation.targets.pop("m00005")
    assert len(installation.targets) == len(group.members)
    assert finished(world, client) == (errors.STALE_MEMBER_EPOCH, 1)
    assert targets(world) == {}


def test_the_assignment_is_installed_though_its_connection_is_gone() -> None:
    world = make_world()
    client = install(world, [3], [2])
    step(world)
    world.engine.close_session(client.session, world.now)
    finish_turn(world.engine, world.now)
    assert targets(world) == {"m00000": [3], "m00001": [2]}


def test_after_a_restart_between_two_phases_nothing_is_installed() -> None:
    storage = MemoryStorage()
    world = make_world(storage=storage)
    install(world, [3], [2])
    for _ in range(PHASES - 1):
        step(world)
    digest = world.engine.core.digest()
    storage.unlock()
    world.engine = open_engine(storage, world.now, random.Random(8), "always")
    assert world.engine.core.digest() == digest
    assert targets(world) == {}
    group = world.engine.core.groups.consumer_groups[CLIENT_GROUP]
    assert group.assignment_epoch < group.epoch, "the next heartbeat asks a member again"


@pytest.mark.parametrize("per_member", [4, 5])
def test_an_assignment_for_the_largest_group_fits_a_request(per_member: int) -> None:
    """A topic and four partitions for each of 10,000 members are as many elements as there may be."""
    world = make_world()
    config = world.engine.config
    config.request_elements_max = 15_000
    topics = [AssignedTopicPartitions(bytes(16), list(range(per_member)))]
    members = [AssignedMember(f"m{index}", topics, 0, b"") for index in range(config.group_consumer_max_size)]
    client = Client(world.engine)
    request = ConsumerGroupInstallAssignmentRequest(CLIENT_GROUP, "m", 1, 1, 0, members)
    client.send(API, 0, request, world.now)
    finish_turn(world.engine, world.now)
    if per_member == 4:
        answer = answer_of(client)
        assert answer is not None
        assert answer.error_code == errors.UNKNOWN_MEMBER_ID
    else:
        assert "elements" in client.session.close_reason
