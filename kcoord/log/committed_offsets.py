"""The committed offsets in one log of `__consumer_offsets`, for tools that need nothing else of the coordinator.

The rules are those of the core (core/offsets/state.py). An offset from a transaction is held until the transaction's
marker. A commit marker makes it the committed offset, unless a record with a higher offset in the log committed the
partition meanwhile. An abort marker drops it, and so does a tombstone of its key. Without a marker it does not count.
"""

from __future__ import annotations

from typing import final

# group, topic, partition
Place = tuple[str, str, int]
# The offset of the record in the log, and the offset that it commits.
Commit = tuple[int, int]


@final
class CommittedOffsets:
    """Receives the records and markers of one log in order. `by_place` is what is committed after them."""

    def __init__(self) -> None:
        self.by_place: dict[Place, Commit] = {}
        # What open transactions commit, by producer id: a producer has one transaction at a time.
        self.held: dict[int, dict[Place, Commit]] = {}
        # The producers of all held offsets, so that a tombstone finds them without a search.
        self.producers: dict[Place, set[int]] = {}

    def commit(self, place: Place, commit: Commit, producer_id: int) -> None:
        """A record with a value. As on a broker, any batch with a producer id is part of a transaction."""
        if producer_id < 0:
            self.by_place[place] = commit
            return
        self.held.setdefault(producer_id, {})[place] = commit
        self.producers.setdefault(place, set()).add(producer_id)

    def remove(self, place: Place) -> None:
        """A tombstone. It takes effect at once, also in a transaction, and on the offsets of all transactions."""
        self.by_place.pop(place, None)
        for producer_id in self.producers.pop(place, ()):
            of_producer = self.held[producer_id]
            del of_producer[place]
            if not of_producer:
                del self.held[producer_id]

    def end_transaction(self, producer_id: int, is_commit: bool) -> None:
        """The marker of a transaction."""
        for place, commit in self.held.pop(producer_id, {}).items():
            producers = self.producers[place]
            producers.remove(producer_id)
            if not producers:
                del self.producers[place]
            newest = self.by_place.get(place)
            if is_commit and (newest is None or newest[0] < commit[0]):
                self.by_place[place] = commit
