"""Timers as data: a heap of what the core asked for.

Nothing is cancelled: who handles a timer recognises a stale one. Those are weeded out now and then, since clients
choose how far away deadlines are, and a stale timer would take memory until then.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, final

from kcoord.core.outcome import Timer

WEED_MIN: Final = 1024


@final
class TimerQueue:
    """Timers in order of their deadline; equal deadlines fire in the order they were armed."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        # How many were armed so far.
        self.armed = 0
        self._weed_at = WEED_MIN

    def arm(self, timer: Timer) -> None:
        self.armed += 1
        heapq.heappush(self._heap, (timer.deadline_ms, self.armed, timer))

    def wants_weeding(self) -> bool:
        """Whether there are twice as many as the last weeding left."""
        return len(self._heap) >= self._weed_at

    def weed(self, still_counts: Callable[[Timer], bool]) -> None:
        """Drop the timers that would do nothing."""
        self._heap = [entry for entry in self._heap if still_counts(entry[2])]
        heapq.heapify(self._heap)
        self._weed_at = max(WEED_MIN, 2 * len(self._heap))

    def next_deadline_ms(self) -> int:
        """The earliest deadline on the monotonic clock, or -1 when no timer is armed."""
        return self._heap[0][0] if self._heap else -1

    def pop_due(self, mono_ms: int, armed: int) -> Timer | None:
        """The next timer whose deadline has come, or None. Only the first `armed` ones that were armed count."""
        if not self._heap or self._heap[0][0] > mono_ms or self._heap[0][1] > armed:
            return None
        return heapq.heappop(self._heap)[2]

    def __len__(self) -> int:
        return len(self._heap)
