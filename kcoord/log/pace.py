"""The pace of long work on files: full speed, or slow enough that it does not disturb a server on the same machine.

A server, its clients and the kernel's disk threads sometimes need both processors of a small machine, each for a
fraction of a millisecond. A process that computes without a pause keeps one of them busy, even at a low priority:
other threads share the other processor or wait for a scheduler tick, and the 99th percentile of the response time
doubles. Short slices of work with longer pauses in between have almost no effect.
"""

from __future__ import annotations

import time
from typing import Final

from kcoord.log.storage import File

SLICE_S: Final = 0.0002
# The length of a pause, as a multiple of the slice before it.
REST_FACTOR: Final = 4.0
# The length of a pause after a sync, as a multiple of the time of the sync. It leaves the disk to the server.
SYNC_REST_FACTOR: Final = 4.0
REST_S_MAX: Final = 0.5


class Pace:
    """Full speed. Long work calls `breathe` every few dozen microseconds, and syncs files here."""

    def breathe(self) -> None:
        """A point at which the work may pause."""

    def sync(self, file: File) -> None:
        file.datasync()


class GentlePace(Pace):
    """Works in short slices for at most a fifth of the time."""

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
