"""Timers as data: a heap of the timers that the core requested.

Timers are never cancelled: the handler of a timer recognises a stale one. Stale timers are removed now and then,
because clients choose the deadlines, and a stale timer would take memory until its deadline. There may be a hundred
thousand timers, so each new one removes only a few: while that goes on, the timers that were not looked at yet are in a
second heap, whose end becomes shorter.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, final

from kcoord.core.outcome import Timer

WEED_MIN: Final = 1024
# How many timers are looked at for each new one.
WEED_STEP: Final = 8

# Deadline, number, timer.
Entry = tuple[int, int, Timer]


@final
class TimerQueue:
    """Timers in order of their deadline. Those with equal deadlines fire in the order in which they were armed."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        # Timers that may be stale. A list without its last entries is still a heap.
        self._unweeded: list[Entry] = []
        # The number of timers armed so far.
        self.armed = 0
        self._weed_at = WEED_MIN

    def arm(self, timer: Timer) -> None:
        self.armed += 1
        heapq.heappush(self._heap, (timer.deadline_ms, self.armed, timer))

    def wants_weeding(self) -> bool:
        """Whether there are twice as many timers as after the last removal, or a removal is under way."""
        return len(self._unweeded) > 0 or len(self._heap) >= self._weed_at

    def weed(self, still_counts: Callable[[Timer], bool]) -> None:
        """Look at some timers, and remove those that would have no effect."""
        if not self._unweeded:
            self._unweeded = self._heap
            self._heap = []
        for _ in range(min(WEED_STEP, len(self._unweeded))):
            entry = self._unweeded.pop()
            if still_counts(entry[2]):
                heapq.heappush(self._heap, entry)
        if not self._unweeded:
            self._weed_at = max(WEED_MIN, 2 * len(self._heap))

    def _first(self) -> list[Entry]:
        """The heap that has the next timer; an empty one if there is none."""
        if not self._unweeded:
            return self._heap
        if not self._heap or self._unweeded[0][:2] < self._heap[0][:2]:
            return self._unweeded
        return self._heap

    def next_deadline_ms(self) -> int:
        """The earliest deadline on the monotonic clock, or -1 if no timer is armed."""
        heap = self._first()
        return heap[0][0] if heap else -1

    def pop_due(self, mono_ms: int, armed: int) -> Timer | None:
        """The next timer that is due, or None. Only the first `armed` timers that were ever armed count."""
        heap = self._first()
        if not heap or heap[0][0] > mono_ms or heap[0][1] > armed:
            return None
        return heapq.heappop(heap)[2]

    def __len__(self) -> int:
        return len(self._heap) + len(self._unweeded)
