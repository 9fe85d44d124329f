"""Offsets of open transactions, hard state: what TxnOffsetCommit stored and no marker has decided yet.

A producer is known by its id and by the partition of `__consumer_offsets`: its transaction may have offsets in several
of them, and each has a marker of its own. Per partition of a topic any number of transactions may have an offset, and
each has at most one. A tombstone for a partition drops the offsets of all of them (KAFKA-14505): the group or the topic
was deleted, and the end of a transaction must not bring an offset back.
"""

from __future__ import annotations

from typing import final

from kcoord.core.offsets.stored_offset import StoredOffset

# The partition of `__consumer_offsets` and the producer id.
Producer = tuple[int, int]
# Group id, topic, partition.
Place = tuple[str, str, int]


@final
class PendingOffsets:
    def __init__(self) -> None:
        self.by_producer: dict[Producer, dict[Place, StoredOffset]] = {}
        # The index by group, topic and partition: the producers with an offset there.
        self.by_group: dict[str, dict[str, dict[int, dict[Producer, StoredOffset]]]] = {}

    def has(self, group_id: str, topic: str, partition: int) -> bool:
        of_group = self.by_group.get(group_id)
        if of_group is None:
            return False
        of_topic = of_group.get(topic)
        return of_topic is not None and partition in of_topic

    def has_group(self, group_id: str) -> bool:
        return group_id in self.by_group

    def partitions_of(self, group_id: str) -> dict[str, dict[int, dict[Producer, StoredOffset]]]:
        """What is pending of a group, by topic and partition. Do not change it."""
        return self.by_group.get(group_id, {})

    def groups_with(self, topic: str) -> list[str]:
        """The groups that have a pending offset of this topic."""
        groups: list[str] = []
        for group_id, of_group in self.by_group.items():
            if topic in of_group:
                groups.append(group_id)
        return groups

    def put(self, producer: Producer, group_id: str, topic: str, partition: int, stored: StoredOffset) -> None:
        """The transaction of `producer` commits this offset, in place of one that it committed before."""
        of_producer = self.by_producer.get(producer)
        if of_producer is None:
            of_producer = {}
            self.by_producer[producer] = of_producer
        of_producer[(group_id, topic, partition)] = stored
        of_group = self.by_group.get(group_id)
        if of_group is None:
            of_group = {}
            self.by_group[group_id] = of_group
        of_topic = of_group.get(topic)
        if of_topic is None:
            of_topic = {}
            of_group[topic] = of_topic
        producers = of_topic.get(partition)
        if producers is None:
            producers = {}
            of_topic[partition] = producers
        producers[producer] = stored

    def drop(self, group_id: str, topic: str, partition: int) -> None:
        """No transaction has an offset for this partition any more."""
        of_group = self.by_group.get(group_id)
        of_topic = None if of_group is None else of_group.get(topic)
        if of_topic is None or partition not in of_topic:
            return
        for producer in list(of_topic[partition]):
            of_producer = self.by_producer[producer]
            del of_producer[(group_id, topic, partition)]
            if not of_producer:
                del self.by_producer[producer]
            self._unlist(producer, group_id, topic, partition)

    def end(self, producer: Producer) -> dict[Place, StoredOffset]:
        """The transaction ended: remove and return its offsets, in the order of their first commits."""
        ended = self.by_producer.pop(producer, None)
        if ended is None:
            return {}
        for place in ended:
            self._unlist(producer, place[0], place[1], place[2])
        return ended

    def digest_lines(self) -> list[str]:
        """The hard state as text, in an order that does not depend on history."""
        lines: list[str] = []
        for producer in sorted(self.by_producer):
            of_producer = self.by_producer[producer]
            for place in sorted(of_producer):
                s = of_producer[place]
                who = f"{producer[0]} {producer[1]}"
                lines.append(f"pending {who} {place[0]!r} {place[1]!r} {place[2]} {s.digest_text()}")
        return lines

    def _unlist(self, producer: Producer, group_id: str, topic: str, partition: int) -> None:
        of_group = self.by_group[group_id]
        of_topic = of_group[topic]
        producers = of_topic[partition]
        del producers[producer]
        if not producers:
            del of_topic[partition]
            if not of_topic:
                del of_group[topic]
                if not of_group:
                    del self.by_group[group_id]
