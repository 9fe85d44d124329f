"""The `range` assignor: of each topic, every member gets one run of neighbouring partitions.

Members are sorted: static ones first, by instance id, then the others by member id. Each topic is cut into as many runs
as it has subscribers; if that does not divide evenly, the first runs are longer by one. So topics with equally many
partitions and the same subscribers are cut alike, and equal partition numbers go to the same member (co-partitioning).
The order depends on ids alone, so a static member that returns under another member id keeps its place. Nothing else is
sticky, and racks are ignored; both as in Kafka since 4.0.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.assignors.spec import (
    UNKNOWN_TOPIC,
    Assignment,
    Assignor,
    AssignorError,
    GroupSpec,
    MemberSpec,
    TopicDescriber,
)
from kcoord.wire.java_strings import java_order

RANGE: Final = "range"


@final
class RangeAssignor(Assignor):
    """Kafka's `range` of the consumer group protocol."""

    def __init__(self) -> None:
        super().__init__(RANGE)

    def assign(self, group: GroupSpec, topics: TopicDescriber) -> dict[str, Assignment]:
        result: dict[str, Assignment] = {}
        # Topic id -> assignments of its subscribers, in sorted order.
        takers: dict[bytes, list[Assignment]] = {}
        row = _row(group)
        if group.is_homogeneous and row:
            topic_ids = row[0].topic_ids
            if _are_alike(topic_ids, topics):
                return _cut_alike(row, topic_ids, topics.partition_count(topic_ids[0]))
            everybody: list[Assignment] = [{} for _ in row]
            for i in range(len(row)):
                result[row[i].member_id] = everybody[i]
            for topic_id in topic_ids:
                takers[topic_id] = everybody
        else:
            for member in row:
                assignment: Assignment = {}
                result[member.member_id] = assignment
                for topic_id in member.topic_ids:
                    topic_takers = takers.get(topic_id)
                    if topic_takers is None:
                        takers[topic_id] = [assignment]
                    else:
                        topic_takers.append(assignment)
        _hand_out(takers, topics)
        return result


def _row(group: GroupSpec) -> list[MemberSpec]:
    static: list[tuple[str, MemberSpec]] = []
    dynamic: list[tuple[str, MemberSpec]] = []
    for member in group.members.values():
        if member.instance_id is None:
            dynamic.append((member.member_id, member))
        else:
            static.append((member.instance_id, member))
    return _in_order(static) + _in_order(dynamic)


def _in_order(members: list[tuple[str, MemberSpec]]) -> list[MemberSpec]:
    """The members by id, in Java's order of strings, by UTF-16 code unit. For ASCII it is Python's order."""
    for text, _ in members:
        if not text.isascii():
            members.sort(key=_code_units)
            break
    else:
        members.sort(key=_text)
    return [member for _, member in members]


def _text(keyed: tuple[str, MemberSpec]) -> str:
    return keyed[0]


def _code_units(keyed: tuple[str, MemberSpec]) -> bytes:
    return java_order(keyed[0])


def _are_alike(topic_ids: list[bytes], topics: TopicDescriber) -> bool:
    """Whether there are topics, and all of them have as many partitions."""
    if not topic_ids:
        return False
    partition_count = topics.partition_count(topic_ids[0])
    for topic_id in topic_ids:
        if topics.partition_count(topic_id) != partition_count:
            return False
    return partition_count != UNKNOWN_TOPIC


def _cut_alike(row: list[MemberSpec], topic_ids: list[bytes], partition_count: int) -> dict[str, Assignment]:
    """The same as `_hand_out`, for topics of one size with the same subscribers: a member has equal runs of all."""
    result: dict[str, Assignment] = {}
    runs = _runs(partition_count, len(row))
    # Python makes a dict with the keys of another one at its final size.
    topics: Assignment = {topic_id: [] for topic_id in topic_ids}
    for i in range(len(row)):
        result[row[i].member_id] = dict.fromkeys(topics, runs[i]) if i < len(runs) else {}
    return result


def _hand_out(takers: dict[bytes, list[Assignment]], topics: TopicDescriber) -> None:
    # Topics of equal size with equally many subscribers share these lists, which must not be changed.
    runs_by_shape: dict[tuple[int, int], list[list[int]]] = {}
    for topic_id in sorted(takers):
        partition_count = topics.partition_count(topic_id)
        if partition_count == UNKNOWN_TOPIC:
            raise AssignorError(f"topic {topic_id.hex()} is subscribed to but does not exist")
        topic_takers = takers[topic_id]
        shape = (partition_count, len(topic_takers))
        runs = runs_by_shape.get(shape)
        if runs is None:
            runs = _runs(partition_count, len(topic_takers))
            runs_by_shape[shape] = runs
        for i in range(len(runs)):
            topic_takers[i][topic_id] = runs[i]


def _runs(partition_count: int, taker_count: int) -> list[list[int]]:
    """The runs of a topic, without empty ones at the end."""
    runs: list[list[int]] = []
    partitions = list(range(partition_count))
    quota = partition_count // taker_count
    longer = partition_count % taker_count
    start = 0
    for i in range(min(partition_count, taker_count)):
        end = start + quota + (1 if i < longer else 0)
        runs.append(partitions[start:end])
        start = end
    return runs
