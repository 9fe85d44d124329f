"""Lets clients share a sync: the commit after one waits a moment for the clients that it answered.

A client with one request in flight sends the next one when it has its answer. If the next sync began at once, the
client would find it under way, and wait for the rest of it and then for its own. So the clients would be in two halves,
and each request would take two syncs. Those that come back at once share one sync instead.

Each client that comes back gains about the time of a sync. Each request that waits already loses the time in which the
loop is idle. So the moment ends when half of the possible gain is lost. It also ends when all clients are back, when
none has come for as long as the sync took (PAUSE_NS_MAX at most), after GATHER_NS_MAX, and when the server has more to
do than it can handle in a turn. After a moment that lost more than it gained, the next commits do not wait, up to
SKIPS_MAX of them: these clients do other work before they come back.

A client that already has another request in the next commit is not waited for, nor is a single client.
"""

from __future__ import annotations

from typing import Final, final

# The event loop does not sleep while requests wait, so a pause is short with any disk.
PAUSE_NS_MAX: Final = 1_000_000
GATHER_NS_MAX: Final = 2_000_000
SKIPS_MAX: Final = 15


@final
class Gathering:
    """Whether the next commit waits for more requests. Times are those of a monotonic clock, in nanoseconds."""

    def __init__(self) -> None:
        self.is_open = False
        # The number of the sync before it. The connections that it waits for bear it, all others 0 or an older one.
        self.number = 0
        # When that sync began, how long it took, and the number of reads since then.
        self._sync_began_ns = 0
        self._sync_ns = 0
        self._reads = 0
        # How many connections it waits for, and how many of them have not come yet: now, and at the last look.
        self._expected = 0
        self._missing = 0
        self._was_missing = 0
        # When one of them came last, the time of the last look, and the end in any case.
        self._came_ns = 0
        self._looked_ns = 0
        self._end_ns = 0
        # The idle time of all that waited.
        self._lost_ns = 0
        # How many of the next commits do not wait, and how many it will be after the next vain moment.
        self._skips = 0
        self._next_skips = 1

    def sync_begins(self, now_ns: int) -> None:
        self.number += 1
        self._sync_began_ns = now_ns
        self._reads = 0

    def note_read(self, number: int) -> None:
        """A connection has sent something; `number` is the one that it bears."""
        self._reads += 1
        if number == self.number:
            self._missing -= 1

    def begin(self, expected: int, now_ns: int) -> None:
        """A sync is over: `expected` connections are answered and have no other request in flight. They bear `number`.

        While `is_open` and something is to be written, the caller asks `is_over` once in each turn.
        """
        if expected == 0 or (expected == 1 and self._reads == 0):
            return
        if self._skips > 0:
            self._skips -= 1
            return
        self.is_open = True
        self._sync_ns = now_ns - self._sync_began_ns
        self._expected = self._missing = self._was_missing = expected
        self._came_ns = self._looked_ns = now_ns
        self._end_ns = now_ns + GATHER_NS_MAX
        self._lost_ns = 0

    def is_over(self, now_ns: int) -> bool:
        """Whether not to wait any longer."""
        missing = self._missing
        idle_ns = now_ns - self._looked_ns
        self._looked_ns = now_ns
        if missing <= 0 or now_ns >= self._end_ns:
            return True
        if missing != self._was_missing:
            self._was_missing = missing
            self._came_ns = now_ns
            return False
        self._lost_ns += idle_ns * self._reads
        if 2 * self._lost_ns >= self._expected * self._sync_ns:
            return True
        return now_ns - self._came_ns >= min(self._sync_ns, PAUSE_NS_MAX)

    def close(self) -> None:
        """The commit is written now, whoever is missing."""
        self.is_open = False
        came = self._expected - self._missing
        if came > 0 and came * self._sync_ns >= self._lost_ns:
            self._next_skips = 1
        else:
            self._skips = self._next_skips
            self._next_skips = min(self._next_skips * 2, SKIPS_MAX)
