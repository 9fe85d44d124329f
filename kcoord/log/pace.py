"""The pace of long work on files: full speed, or slow enough that it does not disturb a server on the same machine.

A server, its clients and the kernel's disk threads sometimes need both processors of a small machine, each for a
fraction of a millisecond. A process that computes without a pause keeps one of them busy, even at a low priority:
other threads share the other processor or wait for a scheduler tick, and the 99th percentile of the response time
doubles. Short slices of work with longer pauses in between have almost no effect. On a machine that is idle otherwise,
pauses only make the work take longer.
"""

from __future__ import annotations

import os
import time
from typing import Final

from kcoord.log.storage import File

SLICE_S: Final = 0.0002
# The share of the time that work takes beside a busy server; a pause after a sync leaves the disk to the server.
SHARE_MIN: Final = 0.2
REST_S_MAX: Final = 0.5
# How often the machine is looked at.
LOOK_S: Final = 0.25
# All processors together count as free if no more than this part of them is used by others.
OTHERS_MAX: Final = 0.1
# With a whole processor to spare, work may take half of it; with two, all of one.
SPARE_SHARE: Final = 0.5
STAT_FILE: Final = "/proc/stat"
# The limits of a container's processors, in versions 2 and 1 of control groups. A busy server and its cleaner share
# such a limit, while the machine seems to be idle.
QUOTA_FILES: Final = ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us")


class Pace:
    """Full speed. Long work calls `breathe` every few dozen microseconds, and syncs files here."""

    def breathe(self) -> None:
        """A point at which the work may pause."""

    def sync(self, file: File) -> None:
        file.datasync()


class GentlePace(Pace):
    """Works in short slices, beside a busy server for at most `share_min` of the time, and faster as far as processors
    are idle. It looks at the machine every quarter of a second; where it cannot, it never works faster.
    """

    def __init__(self, share_min: float = SHARE_MIN, processors: Processors | None = None) -> None:
        self.share_min = min(max(share_min, SHARE_MIN), 1.0)
        self.share = self.share_min
        self.processors = processors
        self.since = time.monotonic()
        self.looked = self.since

    def breathe(self) -> None:
        now = time.monotonic()
        took = now - self.since
        if took >= SLICE_S:
            self._rest(took)

    def sync(self, file: File) -> None:
        began = time.monotonic()
        file.datasync()
        self._rest(time.monotonic() - began)

    def _rest(self, took: float) -> None:
        now = time.monotonic()
        if self.processors is not None and now - self.looked >= LOOK_S:
            self.share = max(self.share_min, share_for(self.processors.take_free(), self.processors.count))
            self.looked = now
        if self.share < 1.0:
            time.sleep(min(took * (1.0 / self.share - 1.0), REST_S_MAX))
            now = time.monotonic()
        self.since = now


def share_for(free: float, count: int) -> float:
    """The share of one processor to use if others leave `free` of `count` processors; 0.0: no more than beside a busy
    server.
    """
    if free >= 2.0 or free >= count * (1.0 - OTHERS_MAX):
        return 1.0
    return SPARE_SHARE if free >= 1.0 else 0.0


class Processors:
    """What other processes leave of the processors of this machine, by /proc/stat."""

    def __init__(self, stat_file: str = STAT_FILE) -> None:
        self.stat_file = stat_file
        self.count = os.cpu_count() or 1
        self._last = self._read()

    def take_free(self) -> float:
        """How many processors were idle or used by this process, on average since the last call."""
        last, self._last = self._last, self._read()
        total, free = self._last[0] - last[0], self._last[1] - last[1]
        return self.count * free / total if total > 0 else 0.0

    def _read(self) -> tuple[float, float]:
        """The time of all processors, and what of it was idle or ours, in seconds."""
        with open(self.stat_file, "rb") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
        per_second = os.sysconf("SC_CLK_TCK")
        # user, nice, system, idle, waiting for the disk, interrupts, soft interrupts, stolen
        return sum(ticks) / per_second, (ticks[3] + ticks[4]) / per_second + time.process_time()


def find_processors() -> Processors | None:
    """None if it cannot be told what is free: not on Linux, or with a limit for this process and its parent."""
    for name in QUOTA_FILES:
        try:
            with open(name, "rb") as file:
                limit = file.read().split()[0]
        except (OSError, IndexError):
            continue
        if limit not in (b"max", b"-1"):
            return None
    try:
        if len(os.sched_getaffinity(0)) < (os.cpu_count() or 1):
            return None
        return Processors()
    except (OSError, AttributeError, ValueError, IndexError):
        return None
