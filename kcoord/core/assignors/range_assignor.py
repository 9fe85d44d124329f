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
            everybody: list[Assignment] = [{} for _ in row]
            for i in range(len(row)):
                result[row[i].member_id] = everybody[i]
            for topic_id in row[0].topic_ids:
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
    static: list[tuple[bytes, MemberSpec]] = []
    dynamic: list[tuple[bytes, MemberSpec]] = []
    for member in group.members.values():
        if member.instance_id is None:
            dynamic.append((_order_key(member.member_id), member))
        else:
            static.append((_order_key(member.instance_id), member))
    static.sort(key=_first)
    dynamic.sort(key=_first)
    return [member for _, member in static] + [member for _, member in dynamic]


def _first(keyed: tuple[bytes, MemberSpec]) -> bytes:
    return keyed[0]


def _order_key(text: str) -> bytes:
    """A sort key with Java's order of strings, by UTF-16 code unit."""
    return text.encode("utf-16-be", "surrogatepass")


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
    start = 0
    for i in range(min(partition_count, taker_count)):
        end = start + partition_count // taker_count + (1 if i < partition_count % taker_count else 0)
        runs.append(list(range(start, end)))
        start = end
    return runs
