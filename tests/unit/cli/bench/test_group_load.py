"""Members on sockets: connections that are lost or refused, coordinators that move, and answers that do not come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kcoord.cli.bench.group_load import GroupLoad, group_plan
from kcoord.protocol import apis, errors
from kcoord.protocol.consumer_group_heartbeat import (
    AssignedTopicPartitions,
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupResponse
from kcoord.protocol.leave_group import LeaveGroupResponse
from kcoord.wire.message import Message
from tests.unit.cli.bench.test_members import PLAN, TOPIC_ID
from tests.unit.client.brokers import Brokers, two_brokers

HEARTBEAT = apis.CONSUMER_GROUP_HEARTBEAT
DEADLINE_S = 20.0
Answer = Callable[[int, ConsumerGroupHeartbeatRequest], Message | None]


def alone(_node: int, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
    """The answer to the one member of a group: all partitions in epoch 1."""
    if request.member_epoch == 0:
        news = Assignment([AssignedTopicPartitions(TOPIC_ID, [0, 1, 2, 3])])
        return ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=1, assignment=news)
    return ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)


def load_of(brokers: Brokers, protocol: str = "consumer", members: int = 1, timeout_s: float = DEADLINE_S) -> GroupLoad:
    address = "127.0.0.1", brokers.ports[1]
    found = group_plan(f"{address[0]}:{address[1]}", *address, protocol, PLAN, members, 0.01, timeout_s)
    return GroupLoad([found])


@asynccontextmanager
async def in_group(answer: Answer = alone) -> AsyncIterator[tuple[Brokers, GroupLoad, list[Answer]]]:
    """A member that has joined. What is put into the list answers next, each for one request."""
    special: list[Answer] = []

    def handle(node: int, _version: int, request: Message) -> Message | None:
        assert isinstance(request, ConsumerGroupHeartbeatRequest)
        return (special.pop(0) if special else answer)(node, request)

    async with two_brokers() as brokers, asyncio.timeout(DEADLINE_S):
        brokers.handlers[HEARTBEAT] = handle
        load = load_of(brokers)
        await load.open()
        await load.join()
        while not (await load.look(0.05))["settled"]:
            continue
        yield brokers, load, special
        await load.close()


async def errors_after(load: GroupLoad, wanted: dict[str, int]) -> None:
    while load.crowd.errors != wanted:
        await asyncio.sleep(0.01)


async def beats(load: GroupLoad, count: int = 3) -> None:
    """Wait for so many further heartbeats."""
    enough = load.crowd.heartbeats.total + count
    while load.crowd.heartbeats.total < enough:
        await asyncio.sleep(0.01)


def refusal(code: int) -> Answer:
    return lambda _node, _request: ConsumerGroupHeartbeatResponse(error_code=code)


async def test_what_a_group_looks_like() -> None:
    async with in_group() as (_, load, _special):
        found = await load.look(0.01)
        assert (found["members"], found["epoch"], found["least"], found["most"]) == (1, 1, 4, 4)
        assert found["owned"] == "01" * 4
        # Nothing is new: it waits.
        began = time.perf_counter()
        assert (await load.look(0.05))["settled"]
        assert time.perf_counter() - began >= 0.04


async def test_a_look_ends_with_the_change_it_waits_for() -> None:
    async with in_group() as (_, load, special):
        look = asyncio.ensure_future(load.look(DEADLINE_S))
        special.append(lambda _node, one: ConsumerGroupHeartbeatResponse(member_id=one.member_id, member_epoch=2))
        assert (await look)["epoch"] == 2


async def test_a_member_follows_its_coordinator() -> None:
    async with in_group() as (brokers, load, special):
        brokers.coordinators["g"] = 2
        special.append(refusal(errors.NOT_COORDINATOR))
        await errors_after(load, {"NOT_COORDINATOR": 1})
        await beats(load)
        assert load.address[1] == brokers.ports[2]
        # It has not joined again.
        assert load.crowd.epochs == {1: 1} and brokers.seen[-1][0] == 2


async def test_a_member_comes_back_after_lost_connections() -> None:
    async with in_group() as (brokers, load, _special):
        brokers.hangs_up_at.add(HEARTBEAT)
        while load.crowd.errors.get("CONNECTION_LOST", 0) < 2:
            await asyncio.sleep(0.01)
        brokers.hangs_up_at.clear()
        await beats(load)
        assert load.crowd.epochs == {1: 1}


async def test_a_late_answer_ends_the_connection() -> None:
    async with in_group() as (_, load, special):
        special.append(lambda _node, _request: None)
        while special:
            await asyncio.sleep(0.01)
        (seat,) = load.seats
        seat.check(time.perf_counter_ns())
        assert load.crowd.errors == {}
        seat.check(time.perf_counter_ns() + int((DEADLINE_S + 1) * 1e9))
        assert load.crowd.errors == {"NO_ANSWER": 1}
        await beats(load)


async def test_a_goodbye_is_repeated_until_it_is_heard() -> None:
    def left(_node: int, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        said.append(request.member_epoch)
        return alone(_node, request)

    said: list[int] = []
    async with in_group(left) as (brokers, load, special):
        (seat,) = load.seats
        while seat.member.in_flight:
            await asyncio.sleep(0)
        seat._cancel_timer()
        brokers.coordinators["g"] = 2
        special += [refusal(errors.COORDINATOR_LOAD_IN_PROGRESS), refusal(errors.NOT_COORDINATOR)]
        await seat.leave()
        assert said[-1] == -1 and seat.member.is_gone
        assert load.crowd.errors == {"COORDINATOR_LOAD_IN_PROGRESS": 1, "NOT_COORDINATOR": 1}
        assert brokers.seen[-1][0] == 2
        assert load.crowd.members == 0


async def test_a_goodbye_that_was_heard_is_not_repeated() -> None:
    def answer(node: int, request: ConsumerGroupHeartbeatRequest) -> Message | None:
        said.append(request.member_epoch)
        is_first = request.member_epoch == -1 and said.count(-1) == 1
        return (refusal(errors.COORDINATOR_LOAD_IN_PROGRESS) if is_first else alone)(node, request)

    said: list[int] = []
    async with in_group(answer) as (_, load, _special):
        (seat,) = load.seats
        before = seat.member.next_id
        await seat.leave()
        assert said.count(-1) == 2
        assert load.crowd.errors == {"COORDINATOR_LOAD_IN_PROGRESS": 1}
        # Both on one connection, and nothing else.
        assert seat.member.next_id == before + 2


async def test_who_waits_for_others_leaves_on_another_connection() -> None:
    async with two_brokers() as brokers, asyncio.timeout(DEADLINE_S):
        left: list[Message] = []

        def join(_node: int, _version: int, request: Message) -> Message | None:
            assert isinstance(request, JoinGroupRequest)
            if not request.member_id:
                return JoinGroupResponse(error_code=errors.MEMBER_ID_REQUIRED, member_id="m")
            return None

        def leave(_node: int, _version: int, request: Message) -> Message:
            left.append(request)
            return LeaveGroupResponse()

        brokers.handlers |= {apis.JOIN_GROUP: join, apis.LEAVE_GROUP: leave}
        load = load_of(brokers, "classic")
        await load.open()
        await load.join()
        while brokers.count(apis.JOIN_GROUP) < 2:
            await asyncio.sleep(0.01)
        assert load.seats[0].member.is_parked
        assert await load.look(0.01) == {"settled": False}
        await load.close()
        assert len(left) == 1
        assert load.crowd.errors == {}


async def test_a_broker_that_says_nothing_is_no_coordinator() -> None:
    async with two_brokers() as brokers, asyncio.timeout(DEADLINE_S):
        load = load_of(brokers, members=3, timeout_s=0.2)
        server = await asyncio.start_server(lambda *_: asyncio.sleep(DEADLINE_S), "127.0.0.1", 0)
        load.address = "127.0.0.1", server.sockets[0].getsockname()[1]
        with pytest.raises(TimeoutError, match="took more than 0.2 s"):
            await load.open()
        await load.close()
        server.close()


async def test_members_that_are_connected_are_closed_if_others_cannot_connect() -> None:
    async with two_brokers() as brokers, asyncio.timeout(DEADLINE_S):
        load = load_of(brokers, members=3)
        connect = load._new_seat
        made: list[Any] = []
        calls: list[int] = []

        async def new_seat() -> Any:
            calls.append(1)
            if len(calls) == 3:
                while len(load.seats) < 2:
                    await asyncio.sleep(0.01)
                raise ConnectionRefusedError("no more")
            made.append(await connect())
            return made[-1]

        load._new_seat = new_seat  # type: ignore[method-assign]
        with pytest.raises(ConnectionRefusedError):
            await load.open()
        await load.close()
        assert len(made) == 2 and all(one.transport is None for one in made)
