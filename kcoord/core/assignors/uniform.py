"""The `uniform` assignor: all members get the same number of partitions, and keep what they can keep."""

from __future__ import annotations

from typing import Final, final

from kcoord.core.assignors.balancer import Balancer
from kcoord.core.assignors.heterogeneous import HeterogeneousBalancer
from kcoord.core.assignors.homogeneous import HomogeneousBalancer
from kcoord.core.assignors.spec import Assignment, Assignor, GroupSpec, TopicDescriber

UNIFORM: Final = "uniform"


@final
class UniformAssignor(Assignor):
    """Kafka's default. Like Kafka's since 4.0 it ignores racks.

    If all members subscribe to the same topics, sizes differ by at most one and no partition moves unless it has to.
    Otherwise each topic is balanced between its subscribers in turn; see `heterogeneous`.
    """

    def __init__(self) -> None:
        super().__init__(UNIFORM)

    def assign(self, group: GroupSpec, topics: TopicDescriber) -> dict[str, Assignment]:
        if not group.members:
            return {}
        balancer = _balancer_of(group, topics)
        balancer.balance()
        return balancer.assignments()


def _balancer_of(group: GroupSpec, topics: TopicDescriber) -> Balancer:
    """The balancer of a group with members, before its first `balance`. Raises `AssignorError` for an unknown topic."""
    if not group.is_homogeneous:
        return HeterogeneousBalancer(group, topics)
    member_ids = sorted(group.members)
    targets = {member_id: member.target for member_id, member in group.members.items()}
    return HomogeneousBalancer(group.members[member_ids[0]].topic_ids, topics, member_ids, targets)
