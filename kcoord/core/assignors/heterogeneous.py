"""Uniform assignment for groups whose members subscribe to different topics.

Members keep what they may keep. What is free is dealt out topic by topic, those with the most partitions per subscriber
first, always to a subscriber with the fewest partitions. Then the topics are gone through again and again: while a
topic has two subscribers whose numbers differ by more than one, and the larger owns a partition of it, one moves. That
ends when a whole round moved nothing, or after `ROUNDS_MAX`.

The result is even within each topic as far as single moves can make it so. Where subscriptions overlap like links of a
chain (A and B share one topic, B and C another), the ends of the chain may still differ by more than one: a better
balance would take moves that help only together with others. Kafka stops at the same point, which is why both have the
same balance, and a partition moves here when it moves there. Ties go to the member whose id sorts first when partitions
are given, and last when they are taken.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.assignors.spec import UNKNOWN_TOPIC, Assignment, AssignorError, GroupSpec, TopicDescriber

# Where all subscribers of a topic have the same subscriptions, one round balances and a second one notices. Otherwise a
# round about halves the imbalance; so many are enough for any group that exists.
ROUNDS_MAX: Final = 16

_NOBODY: Final = -1


def assign_heterogeneous(group: GroupSpec, topics: TopicDescriber) -> dict[str, Assignment]:
    """Targets of all members. Raises `AssignorError` for a topic that does not exist."""
    plan = _Plan(group, topics)
    plan.keep_owned()
    order = plan.topics_by_load()
    plan.deal_free(order)
    plan.even_out(order)
    return plan.assignments()


@final
class _Plan:
    """Who owns what while it is being decided. Members are numbers, in order of their ids."""

    def __init__(self, group: GroupSpec, topics: TopicDescriber) -> None:
        self._group = group
        self._member_ids = sorted(group.members)
        # How many partitions each member has.
        self._sizes = [0] * len(self._member_ids)
        self._subscribers: dict[bytes, list[int]] = {}
        # Topic id -> owner by partition.
        self._owners: dict[bytes, list[int]] = {}
        # By member: whether it has something else than its last target.
        self._changed = [False] * len(self._member_ids)
        for member in range(len(self._member_ids)):
            for topic_id in group.members[self._member_ids[member]].topic_ids:
                subscribers = self._subscribers.get(topic_id)
                if subscribers is not None:
                    subscribers.append(member)
                    continue
                partition_count = topics.partition_count(topic_id)
                if partition_count == UNKNOWN_TOPIC:
                    raise AssignorError(f"topic {topic_id.hex()} is subscribed to and does not exist")
                self._subscribers[topic_id] = [member]
                self._owners[topic_id] = [_NOBODY] * partition_count

    def keep_owned(self) -> None:
        """Members keep of their targets what they subscribe to, what exists, and what nobody before them has."""
        # Members with the same subscription mostly share the list.
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
        """Most partitions per subscriber first, then fewest subscribers, then by id as Kafka compares ids."""
        keyed: list[tuple[float, int, int, int, bytes]] = []
        for topic_id, subscribers in self._subscribers.items():
            load = len(self._owners[topic_id]) / len(subscribers)
            high = int.from_bytes(topic_id[:8], "big", signed=True)
            low = int.from_bytes(topic_id[8:], "big", signed=True)
            keyed.append((-load, len(subscribers), high, low, topic_id))
        keyed.sort()
        return [topic_id for _, _, _, _, topic_id in keyed]

    def deal_free(self, order: list[bytes]) -> None:
        """Every partition that nobody has goes to a subscriber of its topic with the fewest partitions."""
        for topic_id in order:
            owners = self._owners[topic_id]
            if _NOBODY not in owners:
                continue
            walk = _LoadWalk(self._subscribers[topic_id], self._sizes)
            for partition in range(len(owners)):
                if owners[partition] == _NOBODY:
                    self._give(owners, partition, walk.next_lowest())

    def even_out(self, order: list[bytes]) -> None:
        """Goes round the topics until every one has been looked at since the last move."""
        shared = [topic_id for topic_id in order if len(self._subscribers[topic_id]) > 1]
        # Topics that were looked at since the last move, the one that moved included.
        settled = 0
        for _ in range(ROUNDS_MAX):
            for topic_id in shared:
                settled = 1 if self._even_out_topic(topic_id) else settled + 1
                if settled >= len(shared):
                    return

    def _even_out_topic(self, topic_id: bytes) -> bool:
        """Moves partitions of one topic from its largest subscribers to its smallest; whether any moved."""
        subscribers = self._subscribers[topic_id]
        loads = [self._sizes[member] for member in subscribers]
        if max(loads) - min(loads) <= 1:
            return False
        walk = _LoadWalk(subscribers, self._sizes)
        owners = self._owners[topic_id]
        # What each member may give up, the last one first. What it is given meanwhile is not given up again.
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
        """Targets by member id; members for whom nothing changed keep the very same one."""
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
    """The subscribers of a topic in order of their load, visited from both ends.

    From below, `next_lowest` says who gets the next partition: all on the lowest level in turn, and when each has got
    one, they stand a level higher, beside those who were there already. From above, `next_highest` says who gives the
    next one, likewise downwards. Both take it that a partition changes hands with every visit. Sizes are read as they
    are at that moment, and written by the caller.
    """

    def __init__(self, members: list[int], sizes: list[int]) -> None:
        # Members come in ascending order, which a sort leaves as it is among equals.
        self._row = sorted(members, key=sizes.__getitem__)
        self._sizes = sizes
        # The lowest: row[:low_end], on the level low_level before this turn.
        self._low_end = 0
        self._low_level = sizes[self._row[0]] - 1
        self._low_next = 0
        # The highest: row[high_start:high_end]. Those behind it have nothing to give.
        self._high_start = len(members)
        self._high_end = len(members)
        self._high_level = sizes[self._row[-1]] + 1
        self._high_next = len(members) - 1

    def is_level(self) -> bool:
        """Whether the levels that are visited from both ends have met: a move would gain nothing."""
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
        """-1 when nobody is left."""
        if self._high_next < self._high_start:
            if self._high_end <= self._high_start and self._high_start > 0:
                # Nobody on this level has anything to give: on to the next one that is there.
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
        """Whoever `next_highest` just named has nothing to give and is not visited again."""
        last = self._high_end - 1
        here = self._high_next + 1
        self._row[here], self._row[last] = self._row[last], self._row[here]
        self._high_end = last
