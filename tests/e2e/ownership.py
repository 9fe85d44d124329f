"""Who had which partition when: what consumers of any library note in their callbacks, and what must hold of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

# No end yet.
OPEN = float("inf")


@dataclass
class Interval:
    """One member's time with one partition, in seconds of the monotonic clock, which processes of a machine share."""

    member: str
    partition: int
    begin: float
    end: float = OPEN
    # Offset -> value of what it processed.
    processed: dict[int, str] = field(default_factory=dict)


class Ownership:
    """The notes of all members. A member calls from its own thread only."""

    def __init__(self) -> None:
        self.intervals: list[Interval] = []
        self._open: dict[tuple[str, int], Interval] = {}
        self._lock = threading.Lock()

    def assigned(self, member: str, partitions: Iterable[int], at: float | None = None) -> None:
        begin = time.monotonic() if at is None else at
        with self._lock:
            for partition in partitions:
                if (member, partition) not in self._open:
                    interval = Interval(member, partition, begin)
                    self.intervals.append(interval)
                    self._open[member, partition] = interval

    def given_up(self, member: str, partitions: Iterable[int], at: float | None = None) -> None:
        """Revoked or lost: at the end of the callback, when nothing of it is processed any more."""
        end = time.monotonic() if at is None else at
        with self._lock:
            for partition in list(partitions):
                interval = self._open.pop((member, partition), None)
                if interval is not None:
                    interval.end = end

    def owned(self, member: str) -> list[int]:
        with self._lock:
            return sorted(partition for who, partition in self._open if who == member)

    def process(self, member: str, partition: int, offset: int, value: str) -> bool:
        """Whether the member still has the partition; if it has not, the message is for another."""
        with self._lock:
            interval = self._open.get((member, partition))
            if interval is None:
                return False
            interval.processed[offset] = value
            return True

    def values(self) -> set[str]:
        with self._lock:
            return {value for interval in self.intervals for value in interval.processed.values()}

    def overlaps(self) -> list[str]:
        """Two members with one partition at a time, each in words; there must be none."""
        found: list[str] = []
        with self._lock:
            ordered = sorted(self.intervals, key=lambda one: (one.partition, one.begin))
        for i, one in enumerate(ordered):
            for other in ordered[i + 1 :]:
                if other.partition != one.partition or other.begin >= one.end:
                    break
                found.append(
                    f"partition {one.partition}: {one.member} [{one.begin:.3f}, {one.end:.3f}], "
                    f"{other.member} [{other.begin:.3f}, {other.end:.3f}]"
                )
        return found
