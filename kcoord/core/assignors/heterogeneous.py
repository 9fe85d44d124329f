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

A `HeterogeneousBalancer` can be kept between computations, like a `HomogeneousBalancer`. Its result is that of a new
one, but when one of 10,000 members joins or leaves, nobody's partitions are counted again. A new one does not look at
single partitions either where it can do without: a topic without owners is dealt in runs (`_Deal`), and topics of the
same size that go to equally many members share the lists of these runs.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.assignors.balancer import Balancer
from kcoord.core.assignors.load_walk import LoadWalk, Subscriber, by_size, is_level, lowest_level
from kcoord.core.assignors.spec import UNKNOWN_TOPIC, Assignment, AssignorError, GroupSpec, TopicDescriber

# If all subscribers of a topic have the same subscriptions, one round balances and a second one finds nothing to do.
# Otherwise each round about halves the imbalance; this many are enough for any real group.
ROUNDS_MAX: Final = 16


@final
class _Audience:
    """The subscribers of topics that have the same subscribers, in the order of their ids."""

    def __init__(self) -> None:
        self.subscribers: list[Subscriber] = []
        # The number of moves after which the subscribers were found to be level.
        self.level_after = -1

    def place(self, member_id: str) -> int:
        """Where a member is, or would be inserted."""
        low = 0
        high = len(self.subscribers)
        while low < high:
            middle = (low + high) // 2
            if self.subscribers[middle].member_id < member_id:
                low = middle + 1
            else:
                high = middle
        return low


@final
class _Topic:
    def __init__(self, topic_id: bytes, partition_count: int) -> None:
        self.topic_id = topic_id
        self.partition_count = partition_count
        self.audience = _Audience()
        # While a balancer is built: whether a member keeps a partition. Empty while no member keeps any.
        self.kept: list[bool] = []
        # The numbers of the subscriptions with this topic.
        self.subscriptions: list[int] = []


@final
class _Subscription:
    def __init__(self, topic_ids: list[bytes]) -> None:
        self.topic_ids = topic_ids
        self.topics: dict[bytes, _Topic] = {}
        self.audiences: list[_Audience] = []


@final
class _Deal:
    """The free partitions of a topic in runs: `takers[i]` receives `runs[i]`."""

    def __init__(self, takers: list[Subscriber], runs: list[list[int]]) -> None:
        self.takers = takers
        self.runs = runs


@final
class HeterogeneousBalancer(Balancer):
    """The members and partitions of a group with several subscriptions."""

    def __init__(self, group: GroupSpec, topics: TopicDescriber) -> None:
        """Raises `AssignorError` for a topic that does not exist."""
        self._topics: dict[bytes, _Topic] = {}
        self._subscriptions: dict[tuple[bytes, ...], _Subscription] = {}
        self._members: dict[str, Subscriber] = {}
        self._subscription_of: dict[str, _Subscription] = {}
        # Partitions freed since the last `balance`.
        self._free: dict[bytes, list[int]] = {}
        # Whether `balance` has not assigned all partitions yet.
        self._is_new = True
        # Members whose assignment changed since the last `balance`, and new ones.
        self._touched: list[Subscriber] = []
        self._moves = 0
        # Members with the same subscription usually share the list.
        by_identity: dict[int, _Subscription] = {}
        for member_id in sorted(group.members):
            spec = group.members[member_id]
            subscription = by_identity.get(id(spec.topic_ids))
            if subscription is None:
                subscription = self._subscription(spec.topic_ids, topics)
                by_identity[id(spec.topic_ids)] = subscription
            member = Subscriber(member_id, spec.target)
            self._members[member_id] = member
            self._subscription_of[member_id] = subscription
            if spec.target:
                self._keep(member, subscription)
        self._make_audiences()

    def has(self, member_id: str) -> bool:
        return member_id in self._members

    def assignment(self, member_id: str) -> Assignment:
        return self._members[member_id].assignment

    def add_new(self, member_id: str, topic_ids: list[bytes]) -> None:
        """Raises KeyError if no other member has or had the same subscription."""
        subscription = self._subscriptions[tuple(topic_ids)]
        member = Subscriber(member_id, {})
        self._insert(member, subscription)
        self._touch(member)

    def remove(self, member_id: str) -> None:
        member = self._take_out(member_id)
        if member.is_touched:
            self._touched = [touched for touched in self._touched if touched is not member]
        for topic_id, partitions in member.assignment.items():
            free = self._free.get(topic_id)
            self._free[topic_id] = partitions if free is None else free + partitions

    def rename(self, old_id: str, new_id: str) -> None:
        subscription = self._subscription_of[old_id]
        member = self._take_out(old_id)
        member.member_id = new_id
        self._insert(member, subscription)

    def balance(self) -> list[str]:
        self._moves += 1
        order = self._topics_by_load()
        self._apply(self._deal_free(order))
        self._even_out(order)
        changed = sorted([member.member_id for member in self._touched])
        for member in self._touched:
            member.settle()
        self._touched = []
        return changed

    # ---- members and subscriptions

    def _subscription(self, topic_ids: list[bytes], topics: TopicDescriber) -> _Subscription:
        key = tuple(topic_ids)
        subscription = self._subscriptions.get(key)
        if subscription is not None:
            return subscription
        subscription = _Subscription(topic_ids)
        for topic_id in topic_ids:
            topic = self._topics.get(topic_id)
            if topic is None:
                partition_count = topics.partition_count(topic_id)
                if partition_count == UNKNOWN_TOPIC:
                    raise AssignorError(f"topic {topic_id.hex()} is subscribed to but does not exist")
                topic = _Topic(topic_id, partition_count)
                self._topics[topic_id] = topic
            topic.subscriptions.append(len(self._subscriptions))
            subscription.topics[topic_id] = topic
        self._subscriptions[key] = subscription
        return subscription

    def _keep(self, member: Subscriber, subscription: _Subscription) -> None:
        """A member keeps the partitions of its target that exist, are subscribed to and have no owner yet."""
        kept: Assignment = {}
        is_changed = False
        for topic_id, partitions in member.assignment.items():
            topic = subscription.topics.get(topic_id)
            own: list[int] = []
            if topic is not None:
                taken = topic.kept
                if not taken:
                    taken = [False] * topic.partition_count
                    topic.kept = taken
                count = topic.partition_count
                for partition in partitions:
                    if 0 <= partition < count and not taken[partition]:
                        taken[partition] = True
                        own.append(partition)
            if own:
                kept[topic_id] = own
                member.size += len(own)
            if len(own) < len(partitions):
                is_changed = True
        if is_changed:
            self._touch(member)
            member.assignment = kept

    def _make_audiences(self) -> None:
        audiences: dict[tuple[int, ...], _Audience] = {}
        for topic in self._topics.values():
            key = tuple(topic.subscriptions)
            audience = audiences.get(key)
            if audience is None:
                audience = topic.audience
                audiences[key] = audience
            topic.audience = audience
        for subscription in self._subscriptions.values():
            # A dict, because each counts once.
            found: dict[tuple[int, ...], _Audience] = {}
            for topic in subscription.topics.values():
                found[tuple(topic.subscriptions)] = topic.audience
            subscription.audiences = list(found.values())
        for member_id, member in self._members.items():
            for audience in self._subscription_of[member_id].audiences:
                audience.subscribers.append(member)

    def _insert(self, member: Subscriber, subscription: _Subscription) -> None:
        self._members[member.member_id] = member
        self._subscription_of[member.member_id] = subscription
        for audience in subscription.audiences:
            audience.subscribers.insert(audience.place(member.member_id), member)

    def _take_out(self, member_id: str) -> Subscriber:
        for audience in self._subscription_of.pop(member_id).audiences:
            audience.subscribers.pop(audience.place(member_id))
        return self._members.pop(member_id)

    def _touch(self, member: Subscriber) -> None:
        """The member's assignment changes: its dict is a copy from now on, the lists in it are not."""
        if not member.is_touched:
            member.is_touched = True
            member.began_empty = not member.assignment
            member.assignment = member.assignment.copy()
            self._touched.append(member)

    def _topics_by_load(self) -> list[_Topic]:
        """Most partitions per subscriber first, then fewest subscribers, then by id in Kafka's order."""
        keyed: list[tuple[float, int, int, int, bytes]] = []
        for topic_id, topic in self._topics.items():
            count = len(topic.audience.subscribers)
            load = topic.partition_count / count
            high = int.from_bytes(topic_id[:8], "big", signed=True)
            low = int.from_bytes(topic_id[8:], "big", signed=True)
            keyed.append((-load, count, high, low, topic_id))
        keyed.sort()
        return [self._topics[topic_id] for _, _, _, _, topic_id in keyed]

    # ---- free partitions

    def _deal_free(self, order: list[_Topic]) -> dict[bytes, _Deal]:
        """Assign every partition without an owner to the subscriber of its topic with the fewest partitions.

        Only the sizes of the members change. Returns the deals by topic id.
        """
        deals: dict[bytes, _Deal] = {}
        # By number of partitions and of members: the runs of a topic without owners.
        shared: dict[tuple[int, int], list[list[int]]] = {}
        for topic in order:
            if self._is_new and not topic.kept:
                deals[topic.topic_id] = _deal_whole(topic, shared)
                continue
            free: list[int] | None = None
            if self._is_new:
                if False in topic.kept:
                    free = [p for p in range(topic.partition_count) if not topic.kept[p]]
                topic.kept = []
            elif topic.topic_id in self._free:
                free = sorted(self._free[topic.topic_id])
            if free:
                deals[topic.topic_id] = _deal(topic.audience.subscribers, free)
        self._free = {}
        self._is_new = False
        return deals

    def _apply(self, deals: dict[bytes, _Deal]) -> None:
        """Add what was dealt to the assignments, in the order of topic ids."""
        for topic_id in sorted(deals):
            deal = deals[topic_id]
            for i in range(len(deal.runs)):
                member = deal.takers[i]
                if not member.is_touched:
                    self._touch(member)
                if member.began_empty:
                    member.assignment[topic_id] = deal.runs[i]
                    continue
                have = member.assignment.get(topic_id)
                member.assignment[topic_id] = deal.runs[i] if have is None else sorted(have + deal.runs[i])
                member.is_unsorted = member.is_unsorted or have is None

    # ---- moves

    def _even_out(self, order: list[_Topic]) -> None:
        """Visit the topics in turn until each was visited since the last move."""
        shared = [topic for topic in order if len(topic.audience.subscribers) > 1]
        # Topics visited since the last move, including the one that moved.
        settled = 0
        for _ in range(ROUNDS_MAX):
            for topic in shared:
                settled = 1 if self._even_out_topic(topic) else settled + 1
                if settled >= len(shared):
                    return

    def _even_out_topic(self, topic: _Topic) -> bool:
        """Move partitions of one topic from its largest subscribers to its smallest. Returns whether any moved."""
        audience = topic.audience
        if audience.level_after == self._moves:
            return False
        if is_level(audience.subscribers):
            audience.level_after = self._moves
            return False
        walk = LoadWalk(audience.subscribers)
        topic_id = topic.topic_id
        # What each member may give: the partitions that it had before the first move of this visit.
        held: dict[str, list[int]] = {}
        moved = False
        while True:
            giver = walk.next_highest()
            while giver is not None and not _held(held, giver, topic_id):
                walk.pass_over_highest()
                giver = walk.next_highest()
            if giver is None:
                return moved
            partition = _held(held, giver, topic_id).pop()
            taker = walk.next_lowest()
            if walk.is_level():
                return moved
            _held(held, taker, topic_id)
            self._touch(giver)
            self._touch(taker)
            giver.take_away(topic_id, partition)
            taker.give(topic_id, partition)
            self._moves += 1
            moved = True


def _held(held: dict[str, list[int]], member: Subscriber, topic_id: bytes) -> list[int]:
    """The partitions of the topic that the member had when it was first asked for, the last one to be given first."""
    partitions = held.get(member.member_id)
    if partitions is None:
        partitions = member.partitions(topic_id)
        held[member.member_id] = partitions
    return partitions


def _deal_whole(topic: _Topic, shared: dict[tuple[int, int], list[list[int]]]) -> _Deal:
    """Deal all partitions of a topic. `shared` are lists for topics of the same size, which nobody changes."""
    takers, level_gap = lowest_level(topic.audience.subscribers)
    count = topic.partition_count
    if 0 <= level_gap * len(takers) < count:
        return _deal_levels(topic.audience.subscribers, list(range(count)))
    shape = (count, len(takers))
    runs = shared.get(shape)
    if runs is None:
        runs = [list(range(i, count, len(takers))) for i in range(min(count, len(takers)))]
        shared[shape] = runs
    return _dealt(takers, runs)


def _deal(subscribers: list[Subscriber], free: list[int]) -> _Deal:
    takers, level_gap = lowest_level(subscribers)
    if 0 <= level_gap * len(takers) < len(free):
        return _deal_levels(subscribers, free)
    return _dealt(takers, [free[i :: len(takers)] for i in range(min(len(free), len(takers)))])


def _deal_levels(subscribers: list[Subscriber], free: list[int]) -> _Deal:
    """Deal more partitions than the lowest subscribers receive until they are on the next level.

    On each level the members receive in turn. After each has received one, they are a level higher, together with those
    that were there before, who come after them.
    """
    members = by_size(subscribers)
    levels = sorted(members)
    takers: list[Subscriber] = []
    runs: list[list[int]] = []
    start = 0
    for i in range(len(levels)):
        for member in members[levels[i]]:
            takers.append(member)
            runs.append([])
        end = len(free)
        if i + 1 < len(levels):
            end = min(end, start + (levels[i + 1] - levels[i]) * len(takers))
        for taker in range(min(end - start, len(takers))):
            runs[taker] += free[start + taker : end : len(takers)]
        start = end
        if start == len(free):
            break
    return _dealt(takers, [run for run in runs if run])


def _dealt(takers: list[Subscriber], runs: list[list[int]]) -> _Deal:
    for i in range(len(runs)):
        takers[i].size += len(runs[i])
    return _Deal(takers, runs)
