"""Newcomers: every half second a new client that opens a connection, commits, reads it back and leaves.

    python -m tests.strangers.newcomers PORT SEED

They begin at their times, however long earlier ones take. A third commits without being a member, a third as a classic
member, a third as a member of a consumer group. Each has a group of its own, and commits the offset that is its number
plus one. On standard output a line of JSON for each (`Newcomer`).
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
import uuid
from typing import Any, Final, NamedTuple

from kcoord.protocol.errors import MEMBER_ID_REQUIRED, NONE
from tests.strangers import requests
from tests.strangers.child import report, until_end
from tests.strangers.connection import Connection

TOPIC: Final = "polite"
EVERY_S: Final = 0.5
# After this a newcomer gives up.
DEADLINE_S: Final = 20.0


class Newcomer(NamedTuple):
    """How one fared. `error` is empty if it got in."""

    number: int
    began: float
    seconds: float
    step: str
    error: str
    # Whether its commit was acknowledged.
    committed: bool
    # The step that took longest, and its seconds.
    slowest_step: str = ""
    slowest_s: float = 0.0


def group_of(number: int) -> str:
    return f"newcomer-{number}"


class Refused(Exception):
    """An answer with an error code."""


class Visit:
    """One newcomer's way."""

    def __init__(self, port: int, number: int, rng: random.Random) -> None:
        self.number = number
        self.group = group_of(number)
        self.rng = rng
        self.step = "connect"
        self.is_committed = False
        self.slowest = ("", 0.0)
        self.connection = Connection(port)

    async def ask(self, step: str, request: requests.Request) -> Any:
        self.step = step
        began = time.monotonic()
        try:
            return await self.connection.ask(*request)
        finally:
            self.slowest = max(self.slowest, (step, time.monotonic() - began), key=lambda one: one[1])

    async def run(self) -> None:
        await self.connection.open()
        expect("ApiVersions", (await self.ask("ApiVersions", requests.api_versions())).error_code)
        expect("Metadata", (await self.ask("Metadata", requests.metadata(TOPIC))).topics[0].error_code)
        found = await self.ask("FindCoordinator", requests.find_coordinator(self.group))
        expect("FindCoordinator", found.coordinators[0].error_code)
        kind = self.number % 3
        if kind == 0:
            await self.commit("", -1)
        elif kind == 1:
            await self.as_classic_member()
        else:
            await self.as_consumer_member()

    async def commit(self, member_id: str, epoch: int) -> None:
        offset = self.number + 1
        made = await self.ask("OffsetCommit", requests.commit(self.group, TOPIC, offset, member_id, epoch))
        expect("OffsetCommit", made.topics[0].partitions[0].error_code)
        self.is_committed = True
        found = (await self.ask("OffsetFetch", requests.committed(self.group, TOPIC))).topics[0].partitions[0]
        expect("OffsetFetch", found.error_code)
        if found.committed_offset != offset:
            raise Refused(f"it committed {offset} and read {found.committed_offset}")

    async def as_classic_member(self) -> None:
        made = await self.ask("JoinGroup", requests.join(self.group, TOPIC))
        if made.error_code == MEMBER_ID_REQUIRED:
            made = await self.ask("JoinGroup", requests.join(self.group, TOPIC, made.member_id))
        expect("JoinGroup", made.error_code)
        sync = requests.sync(self.group, made.generation_id, made.member_id, TOPIC)
        expect("SyncGroup", (await self.ask("SyncGroup", sync)).error_code)
        await self.commit(made.member_id, made.generation_id)
        expect("LeaveGroup", (await self.ask("LeaveGroup", requests.leave(self.group, made.member_id))).error_code)

    async def as_consumer_member(self) -> None:
        member = str(uuid.UUID(bytes=self.rng.randbytes(16)))
        made = await self.ask("ConsumerGroupHeartbeat", requests.heartbeat(self.group, member, 0, TOPIC))
        expect("ConsumerGroupHeartbeat", made.error_code)
        member = made.member_id or member
        await self.commit(member, made.member_epoch)
        left = await self.ask("ConsumerGroupHeartbeat", requests.heartbeat(self.group, member, -1, TOPIC))
        expect("ConsumerGroupHeartbeat", left.error_code)


def expect(api: str, error_code: int) -> None:
    if error_code != NONE:
        raise Refused(f"{api} has error {error_code}")


async def visit(port: int, number: int, rng: random.Random) -> Newcomer:
    began = time.monotonic()
    one = Visit(port, number, rng)
    error = ""
    try:
        async with asyncio.timeout(DEADLINE_S):
            await one.run()
    except TimeoutError:
        error = f"it did not get in within {DEADLINE_S:.0f} s"
    except (OSError, Refused) as failure:
        error = f"{type(failure).__name__}: {failure}"
    finally:
        one.connection.close()
    seconds = time.monotonic() - began
    return Newcomer(number, began, seconds, one.step, error, one.is_committed, *one.slowest)


async def run(port: int, seed: int) -> None:
    rng = random.Random(seed)
    began = time.monotonic()
    number = 0
    tasks: set[asyncio.Task[None]] = set()

    async def one(number: int) -> None:
        report("newcomer", *await visit(port, number, rng))

    over = until_end()
    while not over.done():
        task = asyncio.create_task(one(number))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        number += 1
        await asyncio.wait([over], timeout=max(began + number * EVERY_S - time.monotonic(), 0))
    if tasks:
        await asyncio.wait(tasks)


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]), int(sys.argv[2])))
