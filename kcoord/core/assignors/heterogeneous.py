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
one, but when one of 10,000 members joins, leaves or changes its subscription, nobody's partitions are counted again. A
new one does not look at single partitions either where it can do without: a topic without owners is dealt in runs
(`_Deal`), and topics of the same size that go to equally many members share the lists of these runs.

There may be as many subscriptions as members, and hundreds of topics in each. So the work for one pair of a member and
a topic counts. Topics that have the same subscribers share an `_Audience`, which is split when a new subscription has
some of the topics and not all. And when totals differ, a topic is visited only as long as one of its owners has two
partitions more than some subscriber, which is known without a walk over all subscribers.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.assignors.balancer import Balancer
from kcoord.core.assignors.load_walk import LoadWalk, Subscriber, by_size, lowest_level, spread
from kcoord.core.assignors.spec import UNKNOWN_TOPIC, Assignment, AssignorError, GroupSpec, TopicDescriber

# If all subscribers of a topic have the same subscriptions, one round balances and a second one finds nothing to do.
# Otherwise each round about halves the imbalance; this many are enough for any real group.
ROUNDS_MAX: Final = 16
# So many audiences cost less than building a balancer anew.
WORN_AUDIENCES_MIN: Final = 16


@final
class _Audience:
    """Topics that have the same subscriptions, and their subscribers in the order of their ids."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.subscribers: list[Subscriber] = []
        self.topics: dict[bytes, _Topic] = {}
        # The fewest partitions of a subscriber, and how many more another one has, after this number of moves.
        self.lowest = 0
        self.spread = 0
        self.spread_after = -1

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
    def __init__(self, topic_id: bytes, partition_count: int, audience: _Audience) -> None:
        self.topic_id = topic_id
        self.partition_count = partition_count
        self.audience = audience
        # While a balancer is built: whether a member keeps a partition. Empty while no member keeps any.
        self.kept: list[bool] = []
        # The id as two numbers: Kafka's order of ids.
        self.high = int.from_bytes(topic_id[:8], "big", signed=True)
        self.low = int.from_bytes(topic_id[8:], "big", signed=True)


@final
class _Subscription:
    """What some members subscribe to: all topics of some audiences, by their numbers."""

    def __init__(self, topic_ids: list[bytes]) -> None:
        self.topic_ids = topic_ids
        self.audiences: dict[int, _Audience] = {}
        self.member_count = 0

    def has(self, topic: _Topic) -> bool:
        return topic.audience.number in self.audiences


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
        self._describer = topics
        self._topics: dict[bytes, _Topic] = {}
        self._subscriptions: dict[tuple[bytes, ...], _Subscription] = {}
        self._members: dict[str, Subscriber] = {}
        self._subscription_of: dict[str, _Subscription] = {}
        # The number of the last audience.
        self._last_number = 0
        # Partitions freed since the last `balance`.
        self._free: dict[bytes, list[int]] = {}
        # Whether `balance` has not assigned all partitions yet.
        self._is_new = True
        # Members whose assignment changed since the last `balance`, and new ones.
        self._touched: list[Subscriber] = []
        self._moves = 0
        # While topics are evened out: how many subscribers may be looked at before the owners are collected, and these
        # owners by topic.
        self._walk_budget = 0
        self._owners: dict[bytes, list[Subscriber]] = {}
        # An audience that was split stays so, even if its topics have the same subscribers again.
        self._audience_count = 0
        self._build_subscriptions(group)
        for member_id, subscription in self._subscription_of.items():
            target = group.members[member_id].target
            member = Subscriber(member_id, target)
            self._members[member_id] = member
            if target:
                self._keep(member, subscription)
            for audience in subscription.audiences.values():
                audience.subscribers.append(member)
        self._built_audience_count = self._audience_count

    @property
    def is_worn(self) -> bool:
        """Whether so many audiences were split that a new balancer may be faster than this one."""
        return self._audience_count > 2 * self._built_audience_count + WORN_AUDIENCES_MIN

    def has(self, member_id: str) -> bool:
        return member_id in self._members

    def uses(self, topic_ids: dict[bytes, bool]) -> bool:
        return _uses_any(topic_ids, self._topics)

    def assignment(self, member_id: str) -> Assignment:
        return self._members[member_id].assignment

    def assignments(self) -> dict[str, Assignment]:
        return {member_id: member.assignment for member_id, member in self._members.items()}

    def add_new(self, member_id: str, topic_ids: list[bytes]) -> None:
        """Raises `AssignorError` for a topic that does not exist."""
        member = Subscriber(member_id, {})
        subscription = self._subscription(topic_ids)
        self._members[member_id] = member
        self._subscription_of[member_id] = subscription
        subscription.member_count += 1
        for audience in subscription.audiences.values():
            audience.subscribers.insert(audience.place(member_id), member)
        self._touch(member)

    def change(self, member_id: str, topic_ids: list[bytes]) -> None:
        """The member subscribes to other topics now, and keeps what it has of them. Raises `AssignorError` for a topic
        that does not exist. Only after the first `balance`.
        """
        old = self._subscription_of[member_id]
        new = self._subscription(topic_ids)
        if new is old:
            return
        member = self._members[member_id]
        lost = [topic_id for topic_id in member.assignment if not new.has(self._topics[topic_id])]
        if lost:
            self._touch(member)
            for topic_id in lost:
                partitions = member.assignment.pop(topic_id)
                member.size -= len(partitions)
                self._release(topic_id, partitions)
        self._subscription_of[member_id] = new
        new.member_count += 1
        for number, audience in new.audiences.items():
            if number not in old.audiences:
                audience.subscribers.insert(audience.place(member_id), member)
        for number, audience in old.audiences.items():
            if number not in new.audiences:
                audience.subscribers.pop(audience.place(member_id))
        self._leave(old)

    def remove(self, member_id: str) -> None:
        member = self._members.pop(member_id)
        if member.is_touched:
            self._touched = [touched for touched in self._touched if touched is not member]
        for topic_id, partitions in member.assignment.items():
            self._release(topic_id, partitions)
        subscription = self._subscription_of.pop(member_id)
        for audience in subscription.audiences.values():
            audience.subscribers.pop(audience.place(member_id))
        self._leave(subscription)

    def rename(self, old_id: str, new_id: str) -> None:
        member = self._members.pop(old_id)
        subscription = self._subscription_of.pop(old_id)
        for audience in subscription.audiences.values():
            audience.subscribers.pop(audience.place(old_id))
            audience.subscribers.insert(audience.place(new_id), member)
        member.member_id = new_id
        self._members[new_id] = member
        self._subscription_of[new_id] = subscription

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

    def _build_subscriptions(self, group: GroupSpec) -> None:
        """Create the subscriptions, topics and audiences of all members. There may be many pairs of a subscription and
        a topic, so little is done for each.
        """
        # Members with the same subscription usually share the list.
        by_identity: dict[int, _Subscription] = {}
        subscriptions: list[_Subscription] = []
        for member_id in sorted(group.members):
            topic_ids = group.members[member_id].topic_ids
            subscription = by_identity.get(id(topic_ids))
            if subscription is None:
                key = tuple(topic_ids)
                subscription = self._subscriptions.get(key)
                if subscription is None:
                    subscription = _Subscription(topic_ids)
                    self._subscriptions[key] = subscription
                    subscriptions.append(subscription)
                by_identity[id(topic_ids)] = subscription
            subscription.member_count += 1
            self._subscription_of[member_id] = subscription
        # The subscriptions with a topic, by their numbers.
        numbers: dict[bytes, list[int]] = {}
        for number, subscription in enumerate(subscriptions):
            for topic_id in subscription.topic_ids:
                if topic_id in numbers:
                    numbers[topic_id].append(number)
                else:
                    numbers[topic_id] = [number]
        audiences: dict[tuple[int, ...], _Audience] = {}
        for topic_id, of_topic in numbers.items():
            found = tuple(of_topic)
            audience = audiences.get(found)
            if audience is None:
                audience = self._new_audience()
                audiences[found] = audience
                for number in of_topic:
                    subscriptions[number].audiences[audience.number] = audience
            self._add_topic(topic_id, self._partition_count(topic_id), audience)

    def _subscription(self, topic_ids: list[bytes]) -> _Subscription:
        """The subscription to exactly these topics, which may be new. Then every audience of which it has some topics,
        but not all, is split. The time is proportional to the number of the topics, apart from the splits.
        """
        key = tuple(topic_ids)
        known = self._subscriptions.get(key)
        if known is not None:
            return known
        counts: dict[bytes, int] = {}
        # The known topics by the number of their audience.
        parts: dict[int, list[_Topic]] = {}
        for topic_id in topic_ids:
            topic = self._topics.get(topic_id)
            if topic is None:
                counts[topic_id] = self._partition_count(topic_id)
                continue
            part = parts.get(topic.audience.number)
            if part is None:
                parts[topic.audience.number] = [topic]
            else:
                part.append(topic)
        subscription = _Subscription(topic_ids)
        for part in parts.values():
            audience = part[0].audience
            if len(part) < len(audience.topics):
                audience = self._split(audience, part)
            subscription.audiences[audience.number] = audience
        if counts:
            audience = self._new_audience()
            subscription.audiences[audience.number] = audience
            for topic_id, partition_count in counts.items():
                self._add_topic(topic_id, partition_count, audience)
                self._free[topic_id] = list(range(partition_count))
        self._subscriptions[key] = subscription
        return subscription

    def _add_topic(self, topic_id: bytes, partition_count: int, audience: _Audience) -> None:
        topic = _Topic(topic_id, partition_count, audience)
        self._topics[topic_id] = topic
        audience.topics[topic_id] = topic

    def _partition_count(self, topic_id: bytes) -> int:
        partition_count = self._describer.partition_count(topic_id)
        if partition_count == UNKNOWN_TOPIC:
            raise AssignorError(f"topic {topic_id.hex()} is subscribed to but does not exist")
        return partition_count

    def _new_audience(self) -> _Audience:
        self._audience_count += 1
        self._last_number += 1
        return _Audience(self._last_number)

    def _split(self, audience: _Audience, topics: list[_Topic]) -> _Audience:
        """Move some topics of an audience to a new one with the same subscribers."""
        other = self._new_audience()
        other.subscribers = audience.subscribers.copy()
        for topic in topics:
            del audience.topics[topic.topic_id]
            other.topics[topic.topic_id] = topic
            topic.audience = other
        for subscription in self._subscriptions.values():
            if audience.number in subscription.audiences:
                subscription.audiences[other.number] = other
        return other

    def _leave(self, subscription: _Subscription) -> None:
        """A member gave up the subscription. After the last one, topics that nobody subscribes to are forgotten."""
        subscription.member_count -= 1
        if subscription.member_count > 0:
            return
        del self._subscriptions[tuple(subscription.topic_ids)]
        for audience in subscription.audiences.values():
            if not audience.subscribers:
                self._audience_count -= 1
                for topic_id in audience.topics:
                    del self._topics[topic_id]
                    self._free.pop(topic_id, None)

    def _release(self, topic_id: bytes, partitions: list[int]) -> None:
        free = self._free.get(topic_id)
        self._free[topic_id] = partitions if free is None else free + partitions

    def _keep(self, member: Subscriber, subscription: _Subscription) -> None:
        """A member keeps the partitions of its target that exist, are subscribed to and have no owner yet."""
        kept: Assignment = {}
        is_changed = False
        for topic_id, partitions in member.assignment.items():
            topic = self._topics.get(topic_id)
            own: list[int] = []
            if topic is not None and subscription.has(topic):
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
            keyed.append((-topic.partition_count / count, count, topic.high, topic.low, topic_id))
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
        members = list(self._members.values())
        if spread(members)[1] <= 1:
            return
        self._owners = {}
        self._walk_budget = 0
        for member in members:
            self._walk_budget += len(member.assignment)
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
        if audience.spread_after != self._moves:
            audience.lowest, audience.spread = spread(audience.subscribers)
            audience.spread_after = self._moves
        if audience.spread <= 1 or (self._walk_budget <= 0 and not self._can_move(topic)):
            return False
        self._walk_budget -= len(audience.subscribers)
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
            if self._owners:
                self._owners.setdefault(topic_id, []).append(taker)
            self._moves += 1
            moved = True

    def _can_move(self, topic: _Topic) -> bool:
        """Whether an owner of the topic has at least two partitions more than some subscriber.

        A walk finds the same, but looks at all subscribers for it. Topics often have many of these and few owners.
        """
        if not self._owners:
            for member in self._members.values():
                for topic_id in member.assignment:
                    owners = self._owners.get(topic_id)
                    if owners is None:
                        self._owners[topic_id] = [member]
                    else:
                        owners.append(member)
        enough = topic.audience.lowest + 2
        for owner in self._owners.get(topic.topic_id, []):
            # Former owners are in the list too.
            if owner.size >= enough and owner.assignment.get(topic.topic_id):
                return True
        return False


def _uses_any(topic_ids: dict[bytes, bool], topics: dict[bytes, _Topic]) -> bool:
    """Whether some id is in both."""
    if len(topic_ids) > len(topics):
        for topic_id in topics:
            if topic_id in topic_ids:
                return True
        return False
    for topic_id in topic_ids:
        if topic_id in topics:
            return True
    return False


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
