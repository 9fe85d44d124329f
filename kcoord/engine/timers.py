"""Timers as data: a heap of the timers that the core requested.

Timers are never cancelled: the handler of a timer recognises a stale one. Stale timers are removed now and then,
because clients choose the deadlines, and a stale timer would take memory until its deadline.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, final

from kcoord.core.outcome import Timer

WEED_MIN: Final = 1024


@final
class TimerQueue:
    """Timers in order of their deadline. Those with equal deadlines fire in the order in which they were armed."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        # The number of timers armed so far.
        self.armed = 0
        self._weed_at = WEED_MIN

    def arm(self, timer: Timer) -> None:
        self.armed += 1
        heapq.heappush(self._heap, (timer.deadline_ms, self.armed, timer))

    def wants_weeding(self) -> bool:
        """Whether there are twice as many timers as after the last removal."""
        return len(self._heap) >= self._weed_at

    def weed(self, still_counts: Callable[[Timer], bool]) -> None:
        """Remove the timers that would have no effect."""
        self._heap = [entry for entry in self._heap if still_counts(entry[2])]
        heapq.heapify(self._heap)
        self._weed_at = max(WEED_MIN, 2 * len(self._heap))

    def next_deadline_ms(self) -> int:
        """The earliest deadline on the monotonic clock, or -1 if no timer is armed."""
        return self._heap[0][0] if self._heap else -1

    def pop_due(self, mono_ms: int, armed: int) -> Timer | None:
        """The next timer that is due, or None. Only the first `armed` timers that were ever armed count."""
        if not self._heap or self._heap[0][0] > mono_ms or self._heap[0][1] > armed:
            return None
        return heapq.heappop(self._heap)[2]

    def __len__(self) -> int:
        return len(self._heap)
