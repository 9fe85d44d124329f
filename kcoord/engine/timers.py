"""Timers as data: a heap of what the core asked for. Nothing is cancelled; stale timers are recognised by the core."""

from __future__ import annotations

import heapq
from typing import final

from kcoord.core.outcome import Timer


@final
class TimerQueue:
    """Timers in order of their deadline; equal deadlines fire in the order they were armed."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._armed = 0

    def arm(self, timer: Timer) -> None:
        self._armed += 1
        heapq.heappush(self._heap, (timer.deadline_ms, self._armed, timer))

    def next_deadline_ms(self) -> int:
        """The earliest deadline on the monotonic clock, or -1 when no timer is armed."""
        return self._heap[0][0] if self._heap else -1

    def pop_due(self, mono_ms: int) -> Timer | None:
        """The next timer whose deadline has come, or None."""
        if not self._heap or self._heap[0][0] > mono_ms:
            return None
        return heapq.heappop(self._heap)[2]

    def __len__(self) -> int:
        return len(self._heap)
