"""The `range` assignor: of each topic, every subscriber gets one run of neighbouring partitions.

Where racks of members and of replicas are known, and differ between partitions, partitions go first to members in a
rack of one of their replicas (KIP-881). Topics with equally many partitions and the same subscribers are then cut alike
if that is possible, so that equal partition numbers stay together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, final

from kcoord.client.consumer.assignors.base import (
    Assignments,
    MemberSubscription,
    PartitionAssignor,
    TopicInfo,
    sort_key,
)
from kcoord.client.metadata import TopicPartition


@final
class RangeAssignor(PartitionAssignor):
    """Kafka's `range` of the classic protocol."""

    name: ClassVar[str] = "range"

    def assign(self, topics: Mapping[str, TopicInfo], members: Mapping[str, MemberSubscription]) -> Assignments:
        found: Assignments = {member_id: [] for member_id in members}
        row = sorted(members.values(), key=sort_key)
        states = [
            _Topic(topic, [member for member in row if topic.name in member.topics], found)
            for topic in topics.values()
            if topic.partition_count
        ]
        uses_racks = any(state.uses_racks for state in states)
        if uses_racks:
            _assign_by_rack(states)
        for state in states:
            state.assign_ranges(lambda member, partition: True)
        if uses_racks:
            for partitions in found.values():
                partitions.sort()
        return found


@final
class _Topic:
    """One topic while it is handed out."""

    def __init__(self, topic: TopicInfo, subscribers: list[MemberSubscription], found: Assignments) -> None:
        self.topic = topic
        self.subscribers = {member.member_id: member.rack or None for member in subscribers}
        self.left = list(range(topic.partition_count))
        self.counts = dict.fromkeys(self.subscribers, 0)
        self.share, self.extra = divmod(topic.partition_count, len(subscribers)) if subscribers else (0, 0)
        self.found = found
        racks = {rack for rack in self.subscribers.values() if rack is not None}
        everywhere = frozenset().union(*topic.racks)
        self.uses_racks = not racks.isdisjoint(everywhere) and any(some != everywhere for some in topic.racks)

    def matches(self, member: str, partition: int) -> bool:
        """Whether a replica is in the rack of the member, or the member has none."""
        rack = self.subscribers[member]
        return rack is None or (partition < len(self.topic.racks) and rack in self.topic.racks[partition])

    def room(self, member: str) -> int:
        """How many partitions the member may still get."""
        return max(self.share + (1 if self.extra > 0 else 0) - self.counts[member], 0)

    def give(self, member: str, partitions: list[int]) -> None:
        self.found[member] += [TopicPartition(self.topic.name, one) for one in partitions]
        self.counts[member] += len(partitions)
        if self.counts[member] > self.share:
            self.extra -= 1
        given = set(partitions)
        self.left = [one for one in self.left if one not in given]

    def assign_ranges(self, may_have: Callable[[str, int], bool]) -> None:
        for member in self.subscribers:
            partitions = [one for one in self.left if may_have(member, one)][: self.room(member)]
            if partitions:
                self.give(member, partitions)


def _assign_by_rack(states: list[_Topic]) -> None:
    alike: dict[tuple[tuple[tuple[str, str | None], ...], int], list[_Topic]] = {}
    for state in states:
        # As in Kafka, a topic whose subscribers have no racks counts as one without partitions here.
        has_racks = any(rack is not None for rack in state.subscribers.values())
        size = state.topic.partition_count if has_racks else 0
        alike.setdefault((tuple(state.subscribers.items()), size), []).append(state)
    for (subscribers, count), group in alike.items():
        if len(group) > 1:
            _assign_together([name for name, _ in subscribers], count, group)
        elif group[0].uses_racks:
            group[0].assign_ranges(group[0].matches)


def _assign_together(members: list[str], count: int, states: list[_Topic]) -> None:
    """Give equal partition numbers of all these topics to the same member, where racks allow it."""
    for partition in range(count):
        for member in members:
            if all(state.matches(member, partition) and state.room(member) > 0 for state in states):
                for state in states:
                    state.give(member, [partition])
                if not any(state.room(member) > 0 for state in states):
                    members.remove(member)
                break
        if not members:
            break
