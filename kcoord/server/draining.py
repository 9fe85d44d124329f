"""The end of a server's connections: the requests that were read are answered, then everything is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kcoord.server.pump import Pump

POLL_S: Final = 0.005
# Turns of the loop in which the sockets take what is buffered.
LAST_TURNS: Final = 3


async def drain(pump: Pump, is_too_late: Callable[[], bool]) -> bool:
    """Stop reading, answer the requests that were read, and wait for it. Returns whether it was in time."""
    pump.is_draining = True
    # The results of jobs are not needed: after the next start they are computed again, as after a crash. Checks of
    # producers' records continue, because producers wait for a response.
    pump.jobs.stop()
    for connection in list(pump.connections.values()):
        connection.is_draining = True
        connection.update_reading()
    pump.schedule_turn()
    is_done = False
    while not pump.has_failed:
        is_done = pump.is_quiet()
        if is_done or is_too_late():
            break
        await asyncio.sleep(POLL_S)
    pump.checks.stop()
    return is_done


async def disconnect_all(pump: Pump) -> None:
    """Close every connection; its buffered output is still sent if that is possible at once."""
    for connection in list(pump.connections.values()):
        connection.close("the server stops")
    for _ in range(LAST_TURNS):
        await asyncio.sleep(0)
    for connection in list(pump.connections.values()):
        connection.abort()
