"""What `kcoord consume --group` commits, by positions and the range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest

from kcoord.cli.consume import BEGINNING, Group, Range
from kcoord.client.consumer.consumer import Consumer
from kcoord.client.consumer.records import ConsumerRecord
from kcoord.client.partition import TopicPartition

A = TopicPartition("a", 0)


class Positions:
    """A consumer that has positions and notes what is committed."""

    def __init__(self) -> None:
        self.positions: dict[TopicPartition, int] = {}
        self.committed: list[dict[TopicPartition, int]] = []

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self.positions)

    async def position(self, partition: TopicPartition) -> int:
        return self.positions[partition]

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.committed.append(dict(offsets))


def record(offset: int) -> ConsumerRecord:
    return ConsumerRecord(A.topic, A.partition, offset, 0, 0, None, b"v", [], 0)


@pytest.fixture
def consumer() -> Positions:
    return Positions()


@pytest.fixture
def within() -> Range:
    return Range(BEGINNING, -1, -1, None, False)


@pytest.fixture
def group(consumer: Positions, within: Range) -> Group:
    return Group(cast(Consumer, consumer), within)


async def test_a_partition_that_comes_back_beyond_its_end_is_not_committed(
    consumer: Positions, within: Range, group: Group
) -> None:
    """Another member has read on in the meantime."""
    consumer.positions, within.ends = {A: 5}, {A: 30}
    await group.on_partitions_assigned([A])
    consumer.positions[A] = 20
    await group.on_partitions_revoked([A])
    assert consumer.committed == [{A: 20}]
    consumer.positions[A] = 50
    await group.on_partitions_assigned([A])
    await group.on_partitions_revoked([A])
    assert consumer.committed == [{A: 20}]


async def test_a_lost_partition_is_forgotten(consumer: Positions, within: Range, group: Group) -> None:
    consumer.positions, within.ends = {A: 5}, {A: 30}
    await group.on_partitions_assigned([A])
    group.on_partitions_lost([A])
    await group.commit()
    assert consumer.committed == []


async def test_records_that_are_not_written_are_not_committed(consumer: Positions, group: Group) -> None:
    """As after Ctrl-C while the ends are looked up, or with a closed pipe."""
    consumer.positions = {A: 5}
    await group.on_partitions_assigned([A])
    consumer.positions[A] = 8
    group.note_unwritten([record(6), record(7)])
    await group.commit()
    group.note_written()
    await group.commit()
    assert consumer.committed == [{A: 6}, {A: 8}]


async def test_a_position_that_was_reset_is_committed(consumer: Positions, within: Range, group: Group) -> None:
    """The topic was created again, and the group's offset is outside of the new log."""
    consumer.positions, within.ends = {A: 50}, {A: 10}
    await group.on_partitions_assigned([A])
    consumer.positions[A] = 10
    group.note_unwritten([record(offset) for offset in range(10)])
    group.note_written()
    await group.commit()
    assert consumer.committed == [{A: 10}]
