"""The open transactions of one partition (KIP-98).

A transaction opens in a partition with its first batch there, and ends with its marker. A consumer with isolation
level READ_COMMITTED reads up to the last stable offset: the first offset of the oldest transaction that has not ended,
or whose marker is not durable yet. The second condition matters because a crash may take such a marker away again.

Transactions open in the order of their offsets, so the oldest open one is the first in the table. Ended ones wait in
the order of their markers, which is also the order in which the markers become durable.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

NO_OFFSET: Final = -1


@final
class EndedTransaction:
    """A transaction of this partition that a marker at `last_offset` ended.

    Everything below `stable_offset` was decided then, in the partition's log.
    """

    def __init__(self, producer_id: int, first_offset: int, last_offset: int, stable_offset: int) -> None:
        self.producer_id = producer_id
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.stable_offset = stable_offset


@final
class OpenTransactions:
    """The open transactions of a partition: first offsets by producer id, ascending."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        # The first offset of the oldest open transaction.
        self.first_open = NO_OFFSET
        # Ended transactions whose marker may not be durable yet: (offset of the marker, first offset).
        self._ending: deque[tuple[int, int]] = deque()
        self._first_ending = NO_OFFSET

    def restore(self, firsts: list[tuple[int, int]]) -> None:
        """Start from (first offset, producer id) of a snapshot. Every marker in the log is durable."""
        self.open = {producer_id: first for first, producer_id in sorted(firsts)}
        self._ending.clear()
        self._first_ending = NO_OFFSET
        self._find_first()

    def begin(self, producer_id: int, first_offset: int) -> None:
        """The producer has no open transaction, and `first_offset` is after all others."""
        self.open[producer_id] = first_offset
        if self.first_open < 0:
            self.first_open = first_offset

    def end(self, producer_id: int, marker_offset: int, is_durable: bool) -> EndedTransaction | None:
        """A marker ends the producer's transaction; None if it has none here."""
        first = self.open.pop(producer_id, NO_OFFSET)
        if first < 0:
            return None
        if first == self.first_open:
            self._find_first()
        if not is_durable:
            self._ending.append((marker_offset, first))
            if self._first_ending < 0 or first < self._first_ending:
                self._first_ending = first
        stable = self.first_open if self.first_open >= 0 else marker_offset + 1
        return EndedTransaction(producer_id, first, marker_offset, stable)

    def unstable_offset(self, durable_end: int) -> int:
        """The first offset whose transaction has no durable end, if everything below `durable_end` is durable.

        -1 if there is none.
        """
        if self._first_ending >= 0:
            self._settle(durable_end)
        if self._first_ending >= 0 and (self.first_open < 0 or self._first_ending < self.first_open):
            return self._first_ending
        return self.first_open

    def _settle(self, durable_end: int) -> None:
        ending = self._ending
        is_first_gone = False
        while ending and ending[0][0] < durable_end:
            is_first_gone = is_first_gone or ending[0][1] == self._first_ending
            ending.popleft()
        if is_first_gone:
            first = NO_OFFSET
            for _marker, offset in ending:
                if first < 0 or offset < first:
                    first = offset
            self._first_ending = first

    def _find_first(self) -> None:
        self.first_open = NO_OFFSET
        for first in self.open.values():
            self.first_open = first
            break
