"""Racks for the sticky assignors (KIP-881): members read from replicas of their own rack where loads allow it.

Balance comes before racks, and racks before stickiness, as in Kafka. Racks count only if members and replicas have some
in common, and not every partition has replicas in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, final

from kcoord.client.consumer.assignors.base import Assignments, MemberSubscription, TopicInfo
from kcoord.client.metadata import TopicPartition

# How many partitions are compared, so that a large group does not keep its leader from heartbeats.
COMPARISONS_MAX: Final = 500_000
# An exchange after which both members read from their racks, which neither did before.
GAIN_MAX: Final = 2
NOWHERE: Final = frozenset({""})


@final
class Racks:
    """Who reads what from its own rack."""

    def __init__(self, topics: Mapping[str, TopicInfo], members: Mapping[str, MemberSubscription]) -> None:
        self.topics = topics
        self.members = members
        self.of_members = {member_id: member.rack for member_id, member in members.items() if member.rack}
        known = set(self.of_members.values())
        everywhere = frozenset().union(*(racks for topic in topics.values() for racks in topic.racks))
        self.are_used = not known.isdisjoint(everywhere) and any(
            racks != everywhere for topic in topics.values() for racks in topic.racks
        )
        self._left = COMPARISONS_MAX

    def of_member(self, member_id: str) -> str:
        """Empty if it has none, or racks do not count."""
        return self.of_members.get(member_id, "") if self.are_used else ""

    def of_partition(self, partition: TopicPartition) -> frozenset[str]:
        """The racks of the members that are near: those of its replicas, and the empty one."""
        racks = self.topics[partition.topic].racks
        return NOWHERE | racks[partition.partition] if partition.partition < len(racks) else NOWHERE

    def match(self, member_id: str, partition: TopicPartition) -> bool:
        """Whether a replica is in the rack of the member, or the member has none."""
        return self.of_member(member_id) in self.of_partition(partition)

    def improve(self, assignments: Assignments, subscribers: Mapping[str, Sequence[str]]) -> None:
        """Hand partitions to members in their racks. The loads remain the same, if not of the same members."""
        is_better = self.are_used
        while is_better:
            is_better = False
            for member_id in assignments:
                for partition in [one for one in assignments[member_id] if not self.match(member_id, one)]:
                    if self._left > 0 and self._place(member_id, partition, assignments, subscribers[partition.topic]):
                        is_better = True

    def _place(
        self, giver: str, partition: TopicPartition, assignments: Assignments, subscribers: Sequence[str]
    ) -> bool:
        """Move one partition to a member in one of its racks that has one less, or exchange it for another one."""
        takers = [taker for taker in subscribers if taker in self.of_members and self.match(taker, partition)]
        self._left -= len(subscribers)
        best: tuple[int, str, TopicPartition] | None = None
        for taker in takers:
            if len(assignments[taker]) == len(assignments[giver]) - 1:
                assignments[giver].remove(partition)
                assignments[taker].append(partition)
                return True
            for other in assignments[taker]:
                self._left -= 1
                if other.topic in self.members[giver].topics:
                    gain = 1 - self.match(taker, other) + self.match(giver, other)
                    if gain > (best[0] if best is not None else 0):
                        best = (gain, taker, other)
            if best is not None and best[0] == GAIN_MAX:
                break
        if best is None:
            return False
        _, taker, other = best
        assignments[giver].remove(partition)
        assignments[taker].remove(other)
        assignments[giver].append(other)
        assignments[taker].append(partition)
        return True
