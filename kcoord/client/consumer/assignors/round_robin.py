"""The `roundrobin` assignor: all partitions in order, to one member after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

from kcoord.client.consumer.assignors.base import (
    Assignments,
    MemberSubscription,
    PartitionAssignor,
    TopicInfo,
    sort_key,
)
from kcoord.client.metadata import TopicPartition
from kcoord.wire.java_strings import java_order


@final
class RoundRobinAssignor(PartitionAssignor):
    """Members that do not subscribe to a partition's topic are passed over."""

    name: ClassVar[str] = "roundrobin"

    def assign(self, topics: Mapping[str, TopicInfo], members: Mapping[str, MemberSubscription]) -> Assignments:
        found: Assignments = {member_id: [] for member_id in members}
        row = sorted(members.values(), key=sort_key)
        wanted = {topic for member in row for topic in member.topics}
        at = 0
        for topic in sorted(wanted & set(topics), key=java_order):
            for partition in range(topics[topic].partition_count):
                while topic not in row[at].topics:
                    at = (at + 1) % len(row)
                found[row[at].member_id].append(TopicPartition(topic, partition))
                at = (at + 1) % len(row)
        return found
