"""Members as `heterogeneous` sees them, and the order in which they receive and give partitions."""

from __future__ import annotations

from typing import final

from kcoord.core.assignors.spec import Assignment


@final
class Subscriber:
    """A member, the number of its partitions, and its assignment, which is the caller's until the member is touched.

    A touched member has a dict of its own. The lists in it are still shared, except those in `_own`.
    """

    def __init__(self, member_id: str, assignment: Assignment) -> None:
        self.member_id = member_id
        self.assignment = assignment
        self.size = 0
        self.is_touched = False
        # Whether it had no partitions when it was touched.
        self.began_empty = False
        # Whether topics were added that may not be in order.
        self.is_unsorted = False
        self._own: dict[bytes, bool] | None = None

    def partitions(self, topic_id: bytes) -> list[int]:
        """A copy of the partitions of a topic, ascending."""
        partitions = self.assignment.get(topic_id)
        if partitions is None:
            return []
        if self._own is not None and topic_id in self._own:
            partitions.sort()
        return partitions.copy()

    def give(self, topic_id: bytes, partition: int) -> None:
        """The member receives a partition."""
        self._own_list(topic_id).append(partition)
        self.size += 1

    def take_away(self, topic_id: bytes, partition: int) -> None:
        own = self._own_list(topic_id)
        if own[-1] == partition:
            own.pop()
        else:
            own.remove(partition)
        self.size -= 1

    def settle(self) -> None:
        """Put the assignment in order. It is shared from now on."""
        if self._own is not None:
            for topic_id in self._own:
                own = self.assignment[topic_id]
                if own:
                    own.sort()
                else:
                    del self.assignment[topic_id]
        if self.is_unsorted:
            self.assignment = {topic_id: self.assignment[topic_id] for topic_id in sorted(self.assignment)}
        self._own = None
        self.is_touched = False
        self.began_empty = False
        self.is_unsorted = False

    def _own_list(self, topic_id: bytes) -> list[int]:
        if self._own is None:
            self._own = {}
        if topic_id in self._own:
            return self.assignment[topic_id]
        self._own[topic_id] = True
        shared = self.assignment.get(topic_id)
        if shared is None:
            self.is_unsorted = True
        own = [] if shared is None else shared.copy()
        self.assignment[topic_id] = own
        return own


def lowest_level(subscribers: list[Subscriber]) -> tuple[list[Subscriber], int]:
    """The members with the fewest partitions, and how many more the next ones have; -1 if there are no others."""
    lowest = subscribers[0].size
    following = -1
    for member in subscribers:
        size = member.size
        if size < lowest:
            following = lowest
            lowest = size
        elif size > lowest and (following < 0 or size < following):
            following = size
    if following < 0:
        return subscribers, -1
    return [member for member in subscribers if member.size == lowest], following - lowest


def by_size(subscribers: list[Subscriber]) -> dict[int, list[Subscriber]]:
    """The members by their number of partitions, in the same order."""
    levels: dict[int, list[Subscriber]] = {}
    for member in subscribers:
        same = levels.get(member.size)
        if same is None:
            levels[member.size] = [member]
        else:
            same.append(member)
    return levels


def spread(subscribers: list[Subscriber]) -> tuple[int, int]:
    """The fewest partitions that one of these members has, and how many more another one has."""
    lowest = subscribers[0].size
    highest = lowest
    for member in subscribers:
        size = member.size
        if size < lowest:
            lowest = size
        elif size > highest:
            highest = size
    return lowest, highest - lowest


@final
class LoadWalk:
    """The subscribers of a topic sorted by load, visited from both ends.

    From below, `next_lowest` returns the member that receives the next partition: all members on the lowest level in
    turn; after each has received one, they are a level higher, together with those that were there before. From above,
    `next_highest` returns the member that gives the next one, downwards in the same way. Both assume that a partition
    moves with every visit. Sizes are read at that moment, and the caller updates them.
    """

    def __init__(self, subscribers: list[Subscriber]) -> None:
        """`subscribers` are in the order of their ids, and at least one."""
        levels = by_size(subscribers)
        self._row: list[Subscriber] = []
        for size in sorted(levels):
            self._row.extend(levels[size])
        # The lowest: row[:low_end], which were on the level low_level before this turn.
        self._low_end = 0
        self._low_level = self._row[0].size - 1
        self._low_next = 0
        # The highest: row[high_start:high_end]. Those after it have nothing to give.
        self._high_start = len(self._row)
        self._high_end = len(self._row)
        self._high_level = self._row[-1].size + 1
        self._high_next = len(self._row) - 1

    def is_level(self) -> bool:
        """Whether the levels visited from both ends have met: a move would gain nothing."""
        return self._high_level - self._low_level <= 1

    def next_lowest(self) -> Subscriber:
        if self._low_next >= self._low_end:
            self._low_level += 1
            while self._low_end < len(self._row) and self._row[self._low_end].size == self._low_level:
                self._low_end += 1
            self._low_next = 0
        member = self._row[self._low_next]
        self._low_next += 1
        return member

    def next_highest(self) -> Subscriber | None:
        """The member that gives next; None if none is left."""
        if self._high_next < self._high_start:
            if self._high_end <= self._high_start and self._high_start > 0:
                # No member on this level has a partition to give: continue with the next level that has members.
                self._high_level = self._row[self._high_start - 1].size
            else:
                self._high_level -= 1
            while self._high_start > 0 and self._row[self._high_start - 1].size == self._high_level:
                self._high_start -= 1
            self._high_next = self._high_end - 1
        if self._high_next < 0:
            return None
        member = self._row[self._high_next]
        self._high_next -= 1
        return member

    def pass_over_highest(self) -> None:
        """The member that `next_highest` returned last has nothing to give and is not visited again."""
        last = self._high_end - 1
        here = self._high_next + 1
        self._row[here], self._row[last] = self._row[last], self._row[here]
        self._high_end = last
