"""A clock that runs with the machine's, and that a test can move forward.

Sessions, rebalances, the retention of offsets and records, timeouts of transactions and timestamps follow it. Clients
do not: one that sends a heartbeat every three seconds does so while the time of its group moves by an hour, and is
expired, as if all clients had been silent.

Time moves from one timer to the next. Before each, the server handles what has arrived and finishes its commits and
jobs, so that an event never sees the effects of a later one.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, final

from kcoord.core.outcome import Now
from kcoord.server.pump import read_clocks
from kcoord.server.server import Server

# Turns of the loop in which nothing arrives, after which the server counts as quiet.
QUIET_TURNS: Final = 3
# What is under way must end in this time (of the machine).
QUIET_S_MAX: Final = 30.0
# More timers than that in one move are a mistake of ours.
TIMERS_MAX: Final = 1_000_000


@final
class VirtualClock:
    """The machine's clock, and what a test has added to it."""

    def __init__(self) -> None:
        self.added_ms = 0

    def __call__(self) -> Now:
        now = read_clocks()
        return Now(now.mono_ms + self.added_ms, now.wall_ms + self.added_ms)

    def move_to(self, mono_ms: int) -> None:
        """Move to this time, unless it has passed."""
        self.added_ms += max(mono_ms - self().mono_ms, 0)


async def settle(server: Server) -> None:
    """Wait until the server has handled everything that has arrived. Raises TimeoutError."""
    end_s = time.monotonic() + QUIET_S_MAX
    pump = server.pump
    quiet = 0
    while quiet < QUIET_TURNS:
        await asyncio.sleep(0)
        is_busy = pump.in_flight is not None or pump.engine.has_unwritten() or pump.engine.has_more() or pump.has_jobs()
        quiet = 0 if is_busy else quiet + 1
        if is_busy:
            pump.schedule_turn()
            await asyncio.sleep(0.0005)
            if time.monotonic() > end_s:
                raise TimeoutError("the server was still busy")


async def advance(server: Server, clock: VirtualClock, ms: int) -> None:
    """Move the time, with everything that happens meanwhile."""
    target_ms = clock().mono_ms + ms
    for _ in range(TIMERS_MAX):
        await settle(server)
        if not await fire_next(server, clock, target_ms):
            break
    else:
        raise RuntimeError(f"more than {TIMERS_MAX} timers")
    clock.move_to(target_ms)
    server.pump.fire_timers()
    await settle(server)
    assembly = server.assembly
    if assembly is not None:
        await server.background().maintenance.apply_retention(assembly)
        await settle(server)


async def fire_next(server: Server, clock: VirtualClock, limit_ms: int) -> bool:
    """Move the time to the next timer, unless it is after the limit, and fire it. Returns whether it did."""
    deadline_ms = server.pump.engine.next_deadline_ms()
    if deadline_ms < 0 or deadline_ms > limit_ms:
        return False
    clock.move_to(deadline_ms)
    server.pump.fire_timers()
    await settle(server)
    return True
