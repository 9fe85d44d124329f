"""Uniform assignment for groups whose members subscribe to different topics.

Members keep what they may keep. Free partitions are assigned topic by topic, topics with the most partitions per
subscriber first, always to a subscriber with the fewest partitions. Then the topics are visited again and again: while
a topic has two subscribers whose totals differ by more than one, and the larger one owns a partition of it, one
partition moves. That ends after a whole round without a move, or after `ROUNDS_MAX`.

The result is balanced within each topic as far as single moves can achieve. Where subscriptions overlap like links of a
chain (A and B share one topic, B and C another), the ends of the chain may still differ by more than one: a better
balance needs several moves that only help together. Kafka stops at the same point, so both have the same balance, and a
partition moves here when it moves there. In a tie, the member whose id sorts first receives, and the one whose id sorts
last gives.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.assignors.spec import UNKNOWN_TOPIC, Assignment, AssignorError, GroupSpec, TopicDescriber

# If all subscribers of a topic have the same subscriptions, one round balances and a second one finds nothing to do.
# Otherwise each round about halves the imbalance; this many are enough for any real group.
ROUNDS_MAX: Final = 16

_NOBODY: Final = -1


def assign_heterogeneous(group: GroupSpec, topics: TopicDescriber) -> dict[str, Assignment]:
    """The targets of all members. Raises `AssignorError` for a topic that does not exist."""
    plan = _Plan(group, topics)
    plan.keep_owned()
    order = plan.topics_by_load()
    plan.deal_free(order)
    plan.even_out(order)
    return plan.assignments()


@final
class _Plan:
    """The owners of partitions during the computation. Members are numbers, in the order of their ids."""

    def __init__(self, group: GroupSpec, topics: TopicDescriber) -> None:
        self._group = group
        self._member_ids = sorted(group.members)
        # The number of partitions of each member.
        self._sizes = [0] * len(self._member_ids)
        self._subscribers: dict[bytes, list[int]] = {}
        # Topic id -> owner by partition.
        self._owners: dict[bytes, list[int]] = {}
        # By member: whether its assignment differs from its last target.
        self._changed = [False] * len(self._member_ids)
        for member in range(len(self._member_ids)):
            for topic_id in group.members[self._member_ids[member]].topic_ids:
                subscribers = self._subscribers.get(topic_id)
                if subscribers is not None:
                    subscribers.append(member)
                    continue
                partition_count = topics.partition_count(topic_id)
                if partition_count == UNKNOWN_TOPIC:
                    raise AssignorError(f"topic {topic_id.hex()} is subscribed to but does not exist")
                self._subscribers[topic_id] = [member]
                self._owners[topic_id] = [_NOBODY] * partition_count

    def keep_owned(self) -> None:
        """Members keep the partitions of their targets that exist, are subscribed to and have no owner yet."""
        # Members with the same subscription usually share the list.
        subscriptions: dict[int, dict[bytes, bool]] = {}
        for member in range(len(self._member_ids)):
            spec = self._group.members[self._member_ids[member]]
            subscribed = subscriptions.get(id(spec.topic_ids))
            if subscribed is None:
                subscribed = dict.fromkeys(spec.topic_ids, True)
                subscriptions[id(spec.topic_ids)] = subscribed
            for topic_id, partitions in spec.target.items():
                kept = 0
                if topic_id in subscribed:
                    owners = self._owners[topic_id]
                    for partition in partitions:
                        if 0 <= partition < len(owners) and owners[partition] == _NOBODY:
                            owners[partition] = member
                            kept += 1
                self._sizes[member] += kept
                if kept < len(partitions):
                    self._changed[member] = True

    def topics_by_load(self) -> list[bytes]:
        """Most partitions per subscriber first, then fewest subscribers, then by id in Kafka's order."""
        keyed: list[tuple[float, int, int, int, bytes]] = []
        for topic_id, subscribers in self._subscribers.items():
            load = len(self._owners[topic_id]) / len(subscribers)
            high = int.from_bytes(topic_id[:8], "big", signed=True)
            low = int.from_bytes(topic_id[8:], "big", signed=True)
            keyed.append((-load, len(subscribers), high, low, topic_id))
        keyed.sort()
        return [topic_id for _, _, _, _, topic_id in keyed]

    def deal_free(self, order: list[bytes]) -> None:
        """Assign every partition without an owner to the subscriber of its topic with the fewest partitions."""
        for topic_id in order:
            owners = self._owners[topic_id]
            if _NOBODY not in owners:
                continue
            walk = _LoadWalk(self._subscribers[topic_id], self._sizes)
            for partition in range(len(owners)):
                if owners[partition] == _NOBODY:
                    self._give(owners, partition, walk.next_lowest())

    def even_out(self, order: list[bytes]) -> None:
        """Visit the topics in turn until each was visited since the last move."""
        shared = [topic_id for topic_id in order if len(self._subscribers[topic_id]) > 1]
        # Topics visited since the last move, including the one that moved.
        settled = 0
        for _ in range(ROUNDS_MAX):
            for topic_id in shared:
                settled = 1 if self._even_out_topic(topic_id) else settled + 1
                if settled >= len(shared):
                    return

    def _even_out_topic(self, topic_id: bytes) -> bool:
        """Move partitions of one topic from its largest subscribers to its smallest. Returns whether any moved."""
        subscribers = self._subscribers[topic_id]
        loads = [self._sizes[member] for member in subscribers]
        if max(loads) - min(loads) <= 1:
            return False
        walk = _LoadWalk(subscribers, self._sizes)
        owners = self._owners[topic_id]
        # The partitions that each member may give, the last one first. Partitions it receives meanwhile are not among
        # them.
        held: dict[int, list[int]] = {}
        for partition in range(len(owners)):
            held.setdefault(owners[partition], []).append(partition)
        moved = False
        while True:
            giver = walk.next_highest()
            while giver != _NOBODY and not held.get(giver):
                walk.pass_over_highest()
                giver = walk.next_highest()
            if giver == _NOBODY:
                return moved
            partition = held[giver].pop()
            taker = walk.next_lowest()
            if walk.is_level():
                return moved
            self._sizes[giver] -= 1
            self._changed[giver] = True
            self._give(owners, partition, taker)
            moved = True

    def _give(self, owners: list[int], partition: int, member: int) -> None:
        owners[partition] = member
        self._sizes[member] += 1
        self._changed[member] = True

    def assignments(self) -> dict[str, Assignment]:
        """Targets by member id. A member without changes keeps the same object."""
        result: dict[str, Assignment] = {}
        by_member: list[Assignment] = []
        for member in range(len(self._member_ids)):
            member_id = self._member_ids[member]
            assignment: Assignment = {} if self._changed[member] else self._group.members[member_id].target
            by_member.append(assignment)
            result[member_id] = assignment
        for topic_id in sorted(self._owners):
            owners = self._owners[topic_id]
            for partition in range(len(owners)):
                member = owners[partition]
                if self._changed[member]:
                    own = by_member[member].get(topic_id)
                    if own is None:
                        by_member[member][topic_id] = [partition]
                    else:
                        own.append(partition)
        return result


@final
class _LoadWalk:
    """The subscribers of a topic sorted by load, visited from both ends.

    From below, `next_lowest` returns the member that receives the next partition: all members on the lowest level in
    turn; after each has received one, they are a level higher, together with those that were there before. From above,
    `next_highest` returns the member that gives the next one, downwards in the same way. Both assume that a partition
    moves with every visit. Sizes are read at that moment, and the caller updates them.
    """

    def __init__(self, members: list[int], sizes: list[int]) -> None:
        # Members come in ascending order, and the sort is stable.
        self._row = sorted(members, key=sizes.__getitem__)
        self._sizes = sizes
        # The lowest: row[:low_end], which were on the level low_level before this turn.
        self._low_end = 0
        self._low_level = sizes[self._row[0]] - 1
        self._low_next = 0
        # The highest: row[high_start:high_end]. Those after it have nothing to give.
        self._high_start = len(members)
        self._high_end = len(members)
        self._high_level = sizes[self._row[-1]] + 1
        self._high_next = len(members) - 1

    def is_level(self) -> bool:
        """Whether the levels visited from both ends have met: a move would gain nothing."""
        return self._high_level - self._low_level <= 1

    def next_lowest(self) -> int:
        if self._low_next >= self._low_end:
            self._low_level += 1
            while self._low_end < len(self._row) and self._sizes[self._row[self._low_end]] == self._low_level:
                self._low_end += 1
            self._low_next = 0
        member = self._row[self._low_next]
        self._low_next += 1
        return member

    def next_highest(self) -> int:
        """The member that gives next; -1 if none is left."""
        if self._high_next < self._high_start:
            if self._high_end <= self._high_start and self._high_start > 0:
                # No member on this level has a partition to give: continue with the next level that has members.
                self._high_level = self._sizes[self._row[self._high_start - 1]]
            else:
                self._high_level -= 1
            while self._high_start > 0 and self._sizes[self._row[self._high_start - 1]] == self._high_level:
                self._high_start -= 1
            self._high_next = self._high_end - 1
        if self._high_next < 0:
            return _NOBODY
        member = self._row[self._high_next]
        self._high_next -= 1
        return member

    def pass_over_highest(self) -> None:
        """The member that `next_highest` returned last has nothing to give and is not visited again."""
        last = self._high_end - 1
        here = self._high_next + 1
        self._row[here], self._row[last] = self._row[last], self._row[here]
        self._high_end = last
