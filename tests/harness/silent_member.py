"""A member of a group falls silent, and hours later its session ends; with a virtual clock this takes no time.

The other member lives on: it sends heartbeats in between, and gets the partitions of the silent one.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from kcoord.testing.fixture import KcoordServer
from tests.harness.retries import CLASSIC, SETTINGS, ConsumerDriver, Raised

HOUR_S: Final = 3600.0
SESSION_HOURS: Final = 6
SESSION_MS: Final = SESSION_HOURS * 3_600_000
# The time moves in so many steps, and the live member sends a heartbeat after each.
STEPS: Final = 6
DAY_MS: Final = 86_400_000
SERVER: Final = {
    **SETTINGS,
    # Time that a test moves is idle time to the server.
    "connections.max.idle.ms": 2 * DAY_MS,
    "group.max.session.timeout.ms": DAY_MS,
    "group.consumer.max.session.timeout.ms": DAY_MS,
    "group.consumer.session.timeout.ms": SESSION_MS,
}
LIVE: Final = "live"
SILENT: Final = "silent"


async def check(
    server: KcoordServer, group: str, protocol: str, live: ConsumerDriver, silent: ConsumerDriver, hours: float
) -> float:
    """Milliseconds of real time that the silent member's session took, and the rebalance after it.

    The consumers read a topic with the group's name, have the client ids LIVE and SILENT and a session timeout of `hours`.
    """
    await asyncio.to_thread(server.create_topic, group, 4)
    await live.start()
    await silent.start()
    polls = [asyncio.create_task(_poll(one)) for one in (live, silent)]
    await server.wait_stable_async(group, members=2)
    heartbeat = "Heartbeat" if protocol == CLASSIC else "ConsumerGroupHeartbeat"

    async def next_heartbeat(client_id: str) -> None:
        count = len(server.requests(heartbeat, client_id=client_id))
        await asyncio.to_thread(server.wait_request, heartbeat, count=count + 1, client_id=client_id)

    # A classic group is stable once its leader has sent SyncGroup. Who has not sent it yet would miss its time for that.
    for client_id in (LIVE, SILENT):
        await next_heartbeat(client_id)
    with await asyncio.to_thread(lambda: server.hold(client_id=SILENT)):
        began = time.monotonic()
        for _ in range(STEPS - 1):
            await server.advance_async(hours * HOUR_S / STEPS)
            await next_heartbeat(LIVE)
        assert server.state(group) == "Stable"
        await server.advance_async(hours * HOUR_S / STEPS)
        await server.wait_stable_async(group, members=1)
        took_ms = (time.monotonic() - began) * 1000
        refused = [one for one in server.requests(client_id=LIVE) if one.errors]
        lost = any("UNKNOWN_MEMBER_ID" in one.errors for one in refused)
        assert not lost, f"the live member has lost its session as well: {refused}"
    # It learns that its session has ended, and joins again.
    await server.wait_stable_async(group, members=2)
    for task in polls:
        task.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    await live.close()
    await silent.close()
    return took_ms


async def _poll(consumer: ConsumerDriver) -> None:
    while True:
        try:
            await consumer.poll(0.1)
        except Raised:
            # The silent one loses its partitions.
            await asyncio.sleep(0.05)
