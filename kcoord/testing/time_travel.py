"""Time that a test moves; see kcoord.testing.double.clock for what it means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from kcoord.testing.double.clock import VirtualClock, advance, fire_next
from kcoord.testing.waiting import WaitTimeout, refuse_on_event_loop
from kcoord.testing.waits import GroupWaits

# How long a move may take on the machine.
MOVE_S_MAX: Final = 120.0
DAY_S: Final = 86_400.0


class ClockTools(GroupWaits):
    """The part of the fixture that moves the time. Its methods raise RuntimeError unless the clock is virtual.

    The time also runs with the machine's clock, so that clients work as usual.
    """

    @property
    def now_ms(self) -> int:
        """The server's time, in milliseconds since 1970."""
        return self._thread.call(lambda server: server.now().wall_ms)

    def advance(self, seconds: float) -> None:
        """Move the time. Timers that are due on the way fire in order, each at its time."""
        refuse_on_event_loop()
        clock = self._virtual()
        self._thread.run(lambda server: advance(server, clock, round(seconds * 1000)), MOVE_S_MAX)

    def run_until(self, is_met: Callable[[], bool], seconds: float = DAY_S) -> float:
        """Move the time from timer to timer until `is_met()`. Returns by how many seconds it moved.

        `is_met` is called on this thread. Raises WaitTimeout after `seconds` (of the server's time).
        """
        refuse_on_event_loop()
        clock = self._virtual()
        began_ms = clock.added_ms
        limit_ms = clock().mono_ms + round(seconds * 1000)
        while not is_met():
            if not self._thread.run(partial(fire_next, clock=clock, limit_ms=limit_ms), MOVE_S_MAX):
                self.advance((limit_ms - clock().mono_ms) / 1000)
                if is_met():
                    break
                raise WaitTimeout(f"{seconds:g} s passed without the condition\n{self._passed()}")
        return (clock.added_ms - began_ms) / 1000

    async def advance_async(self, seconds: float) -> None:
        """Like advance, for a test on an event loop."""
        await asyncio.to_thread(self.advance, seconds)

    async def run_until_async(self, is_met: Callable[[], bool], seconds: float = DAY_S) -> float:
        """Like run_until; `is_met` is called on another thread."""
        return await asyncio.to_thread(self.run_until, is_met, seconds)

    def _virtual(self) -> VirtualClock:
        if self._clock is None:
            raise RuntimeError('the server has the machine\'s clock; create it with clock="virtual"')
        return self._clock
