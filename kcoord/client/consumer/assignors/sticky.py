"""The assignors `sticky` and `cooperative-sticky`: balanced, and as many partitions as possible stay where they are.

*Balanced* means that no member could give a partition to another one, directly or through others, so that their loads
come closer. Among balanced assignments, those are preferred that move few partitions, after racks have been respected
(KIP-881). The result is not always that of Kafka's assignors. Other members need not know: only the leader assigns.

`cooperative-sticky` leaves a partition out that has to move, until its owner has given it up (KIP-429).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Mapping
from typing import ClassVar, Final, final

from kcoord.client.consumer.assignors.base import (
    NO_GENERATION,
    Assignments,
    MemberSubscription,
    PartitionAssignor,
    TopicInfo,
    sort_key,
)
from kcoord.client.consumer.assignors.racks import Racks
from kcoord.client.metadata import GroupMetadata, TopicPartition
from kcoord.client.partition import by_topic
from kcoord.wire.java_strings import java_order
from kcoord.wire.primitives import BytesWriter, DecodeError, Reader, write_i32_be, write_string

# The least bytes of a topic and of a partition in the user data of `sticky`.
TOPIC_BYTES: Final = 6
PARTITION_BYTES: Final = 4

Claims = Mapping[str, tuple[int, Collection[TopicPartition]]]


class _Sticky(PartitionAssignor):
    """What both have in common."""

    def __init__(self) -> None:
        self.partitions: tuple[TopicPartition, ...] = ()
        self.generation = NO_GENERATION

    def on_assignment(self, partitions: Collection[TopicPartition], group: GroupMetadata) -> None:
        self.partitions = tuple(partitions)
        self.generation = group.generation_id


@final
class StickyAssignor(_Sticky):
    """Kafka's `sticky`: members tell the leader in their user data what they had."""

    name: ClassVar[str] = "sticky"

    def user_data(self, topics: Collection[str]) -> bytes | None:
        if self.generation == NO_GENERATION:
            return None
        writer = BytesWriter()
        found = by_topic(self.partitions)
        write_i32_be(writer, len(found))
        for topic, numbers in found.items():
            write_string(writer, topic)
            write_i32_be(writer, len(numbers))
            for number in numbers:
                write_i32_be(writer, number)
        write_i32_be(writer, self.generation)
        return writer.getvalue()

    def assign(self, topics: Mapping[str, TopicInfo], members: Mapping[str, MemberSubscription]) -> Assignments:
        claims = {member_id: _claim(member.user_data) for member_id, member in members.items()}
        return Balance(topics, members, claims).assignments


@final
class CooperativeStickyAssignor(_Sticky):
    """Kafka's `cooperative-sticky`."""

    name: ClassVar[str] = "cooperative-sticky"
    is_cooperative: ClassVar[bool] = True

    def user_data(self, topics: Collection[str]) -> bytes | None:
        return self.generation.to_bytes(4, "big", signed=True)

    def assign(self, topics: Mapping[str, TopicInfo], members: Mapping[str, MemberSubscription]) -> Assignments:
        claims = {member_id: (_generation(member), member.owned) for member_id, member in members.items()}
        balance = Balance(topics, members, claims)
        owners: dict[TopicPartition, set[str]] = {}
        for member_id, (_, claimed) in claims.items():
            for partition in claimed:
                owners.setdefault(partition, set()).add(member_id)
        for member_id, partitions in balance.assignments.items():
            balance.assignments[member_id] = [
                partition
                for partition in partitions
                if partition not in balance.contested and owners.get(partition, {member_id}) >= {member_id}
            ]
        return balance.assignments


def _generation(member: MemberSubscription) -> int:
    """The generation in which the member got its partitions; old clients have it in their user data."""
    if member.generation != NO_GENERATION or member.user_data is None or len(member.user_data) < PARTITION_BYTES:
        return member.generation
    return int.from_bytes(member.user_data[:4], "big", signed=True)


def _claim(data: bytes | None) -> tuple[int, list[TopicPartition]]:
    """The user data of `sticky`: the partitions that a member had; nothing if it cannot be read, as in Kafka."""
    if not data:
        return NO_GENERATION, []
    found: list[TopicPartition] = []
    try:
        reader = Reader(data)
        for _ in range(reader.array_len(TOPIC_BYTES)):
            topic = reader.string()
            found += [TopicPartition(topic, reader.int32()) for _ in range(reader.array_len(PARTITION_BYTES))]
        # The first version has no generation.
        generation = reader.int32() if reader.pos < reader.end else NO_GENERATION
    except DecodeError:
        return NO_GENERATION, []
    return generation, found


@final
class Balance:
    """Calculates `assignments`. `contested` are partitions that several members claim in the same generation."""

    def __init__(
        self, topics: Mapping[str, TopicInfo], members: Mapping[str, MemberSubscription], claims: Claims
    ) -> None:
        self.contested: set[TopicPartition] = set()
        self.order = [member.member_id for member in sorted(members.values(), key=sort_key)]
        self.rank = {member_id: number for number, member_id in enumerate(self.order)}
        self.topics = {member_id: members[member_id].topics & set(topics) for member_id in self.order}
        self.subscribers = {
            topic: [member_id for member_id in self.order if topic in self.topics[member_id]] for topic in topics
        }
        self.assignments: Assignments = {member_id: [] for member_id in self.order}
        self.racks = Racks(topics, members)
        self._keep(topics, claims)
        is_uniform = len({frozenset(some) for some in self.topics.values()}) <= 1
        if is_uniform:
            self._trim(sum(info.partition_count for name, info in topics.items() if self.subscribers[name]))
        taken = {partition for partitions in self.assignments.values() for partition in partitions}
        names = sorted(topics, key=lambda name: (len(self.subscribers[name]), java_order(name)))
        left = [
            partition
            for name in names
            if self.subscribers[name]
            for partition in (TopicPartition(name, number) for number in range(topics[name].partition_count))
            if partition not in taken
        ]
        if is_uniform:
            self._fill_uniform(left)
        else:
            for partition in left:
                self.assignments[self._emptiest(partition)].append(partition)
            self._even_out()
        self.racks.improve(self.assignments, self.subscribers)

    def _load(self, member_id: str) -> tuple[int, int]:
        return len(self.assignments[member_id]), self.rank[member_id]

    def _keep(self, topics: Mapping[str, TopicInfo], claims: Claims) -> None:
        """Have members keep what they claim. The newest generation decides; nobody keeps what two claim in one."""
        best: dict[TopicPartition, tuple[int, str]] = {}
        for member_id in self.order:
            generation, partitions = claims[member_id]
            for partition in partitions:
                info = topics.get(partition.topic)
                if info is None or not 0 <= partition.partition < info.partition_count:
                    continue
                other = best.get(partition)
                if other is not None and other[0] == generation and other[1] != member_id:
                    self.contested.add(partition)
                elif other is None or generation > other[0]:
                    best[partition] = (generation, member_id)
                    self.contested.discard(partition)
        for partition, (_, member_id) in best.items():
            if partition not in self.contested and partition.topic in self.topics[member_id]:
                self.assignments[member_id].append(partition)
        for partitions in self.assignments.values():
            partitions.sort(key=lambda one: (one.partition, java_order(one.topic)))

    def _trim(self, total: int) -> None:
        """All members subscribe to the same topics: nobody keeps more than the share."""
        share, extra = divmod(total, len(self.order)) if self.order else (0, 0)
        for member_id in self.order:
            partitions = self.assignments[member_id]
            if len(partitions) > share and extra > 0:
                extra -= 1
                del partitions[share + 1 :]
            else:
                del partitions[share:]

    def _fill_uniform(self, left: list[TopicPartition]) -> None:
        """Each partition goes to the emptiest member, in one of its racks if there are several."""
        heaps: dict[str, list[tuple[int, int]]] = {}
        for member_id in self.order:
            heapq.heappush(heaps.setdefault(self.racks.of_member(member_id), []), self._load(member_id))
        for partition in left:
            near = self.racks.of_partition(partition)
            _, _, rank, rack = min((heap[0][0], rack not in near, heap[0][1], rack) for rack, heap in heaps.items())
            heapq.heapreplace(heaps[rack], (heaps[rack][0][0] + 1, rank))
            self.assignments[self.order[rank]].append(partition)

    def _emptiest(self, partition: TopicPartition) -> str:
        """The same among those who subscribe to the topic."""
        near = self.racks.of_partition(partition)
        return min(
            self.subscribers[partition.topic],
            key=lambda one: (len(self.assignments[one]), self.racks.of_member(one) not in near, self.rank[one]),
        )

    def _even_out(self) -> None:
        """Move partitions along chains of members, as long as the loads at both ends come closer.

        The fullest member begins. If it has no chain, everybody it reaches has at most one less, and reaches nobody
        else: their loads are final, and chains of others, which would end among them, do not touch them.
        """
        waiting = set(self.order)
        while waiting:
            fullest = max(waiting, key=self._load)
            came: dict[str, tuple[str, TopicPartition] | None] = {fullest: None}
            end = self._search(fullest, came)
            if end is None:
                waiting -= came.keys()
                continue
            for giver, partition, taker in self._way(came, end):
                self.assignments[giver].remove(partition)
                self.assignments[taker].append(partition)

    def _search(self, start: str, came: dict[str, tuple[str, TopicPartition] | None]) -> str | None:
        """The nearest member to which a chain leads from `start` and that has two less; `came` has the steps."""
        limit = len(self.assignments[start]) - 2
        row = deque([start])
        seen: set[str] = set()
        while row:
            giver = row.popleft()
            # What came last has moved already: it goes on first.
            for partition in reversed(self.assignments[giver]):
                if partition.topic in seen:
                    continue
                seen.add(partition.topic)
                for taker in self.subscribers[partition.topic]:
                    if taker in came:
                        continue
                    came[taker] = (giver, partition)
                    if len(self.assignments[taker]) <= limit:
                        return taker
                    row.append(taker)
        return None

    def _way(
        self, came: Mapping[str, tuple[str, TopicPartition] | None], end: str
    ) -> list[tuple[str, TopicPartition, str]]:
        chain: list[tuple[str, TopicPartition, str]] = []
        step = came[end]
        while step is not None:
            chain.append((step[0], step[1], end))
            end = step[0]
            step = came[end]
        return chain
