"""What the members of one group see of it, added up: a look at thousands of them costs as much as at one.

Compiled where kcoord is.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.client.load.histogram import Histogram

# The epoch of a member that joins for the first time, or anew after an error.
NO_EPOCH: Final = -1


@final
class Crowd:
    """The members of a group in one process, for a topic with the partitions from 0 on."""

    def __init__(self, partitions: int) -> None:
        self.members = 0
        # How many members are in each generation or epoch, and how many have so many partitions.
        self.epochs: dict[int, int] = {}
        self.shares: dict[int, int] = {}
        # How many members have each partition, and how many owners there are too many.
        self.owners: list[int] = [0] * partitions
        self.doubles = 0
        # When the last member got its epoch or partitions, in nanoseconds.
        self.since_ns = 0
        # How often any of this has changed.
        self.changes = 0
        self.heartbeats = Histogram()
        self.errors: dict[str, int] = {}

    def enter(self, epoch: int, owned: list[int]) -> None:
        """A member with these partitions is there."""
        self.members += 1
        self.changes += 1
        self._count(epoch, owned, 1)

    def leave(self, epoch: int, owned: list[int]) -> None:
        """A member with these partitions is there no more."""
        self.members -= 1
        self.changes += 1
        self._count(epoch, owned, -1)

    def move(self, epoch: int, owned: list[int], new_epoch: int, new_owned: list[int], now_ns: int) -> None:
        """A member has another epoch or other partitions."""
        self._count(epoch, owned, -1)
        self._count(new_epoch, new_owned, 1)
        self.changes += 1
        self.since_ns = now_ns

    def _count(self, epoch: int, owned: list[int], step: int) -> None:
        _add(self.epochs, epoch, step)
        _add(self.shares, len(owned), step)
        owners = self.owners
        for number in owned:
            before = owners[number]
            owners[number] = before + step
            if (before if step > 0 else before - 1) > 0:
                self.doubles += step

    def has_settled(self) -> bool:
        """Whether all members are in one epoch, and no two have the same partition."""
        return len(self.epochs) <= 1 and NO_EPOCH not in self.epochs and not self.doubles

    def owned(self) -> bytes:
        """A byte for each partition: 1 if a member has it."""
        return bytes([1 if count else 0 for count in self.owners])

    def note(self, error: str) -> None:
        self.errors[error] = self.errors.get(error, 0) + 1

    def reset(self) -> None:
        """Forget latencies and errors."""
        self.heartbeats = Histogram()
        self.errors = {}


def _add(counts: dict[int, int], key: int, step: int) -> None:
    count = counts.get(key, 0) + step
    if count:
        counts[key] = count
    else:
        del counts[key]
