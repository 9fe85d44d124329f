"""How fast long work on files goes on: at full speed, or so that a server beside it does not feel it.

A server, its clients and the disk's own threads need both processors of a small machine now and then, for a fraction
of a millisecond each. A process that computes without a pause keeps one of them busy, however low its priority: who
wakes up meanwhile shares the other one or waits for a tick of the scheduler, and the slowest hundredth of all answers
becomes twice as slow. Work in slices shorter than that, with longer pauses, is hardly felt.
"""

from __future__ import annotations

import time
from typing import Final

from kcoord.log.storage import File

SLICE_S: Final = 0.0002
# A pause is so many times as long as the slice before it.
REST_FACTOR: Final = 4.0
# After a sync the disk belongs to the others for so many times as long as it took.
SYNC_REST_FACTOR: Final = 4.0
REST_S_MAX: Final = 0.5


class Pace:
    """Full speed. Long work calls `breathe` every few dozen microseconds, and syncs files here."""

    def breathe(self) -> None:
        """A place where a pause does no harm."""

    def sync(self, file: File) -> None:
        file.datasync()


class GentlePace(Pace):
    """A fifth of the time at most, in short slices."""

    def __init__(self) -> None:
        self.since = time.monotonic()

    def breathe(self) -> None:
        took = time.monotonic() - self.since
        if took >= SLICE_S:
            self._rest(took * REST_FACTOR)

    def sync(self, file: File) -> None:
        began = time.monotonic()
        file.datasync()
        self._rest((time.monotonic() - began) * SYNC_REST_FACTOR)

    def _rest(self, seconds: float) -> None:
        time.sleep(min(seconds, REST_S_MAX))
        self.since = time.monotonic()
