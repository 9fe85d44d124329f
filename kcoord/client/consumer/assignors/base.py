"""What an assignor of the classic protocol is: a function that one member, the leader, runs for the whole group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from kcoord.client.metadata import GroupMetadata, TopicPartition
from kcoord.wire.java_strings import java_order

NO_GENERATION: Final = -1
Assignments = dict[str, list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What a member told the leader when it joined.

    `owned` are the partitions that it has, with the `generation` in which it got them (NO_GENERATION from old clients).
    """

    member_id: str
    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    user_data: bytes | None = None
    instance_id: str | None = None
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic for an assignor. `racks` has the racks of the replicas of each partition, empty if they are unknown."""

    name: str
    partition_count: int
    racks: tuple[frozenset[str], ...] = field(default=())


class PartitionAssignor(ABC):
    """Derive from it for an assignor of your own; all members need one of the same name.

    With `is_cooperative`, members keep their partitions during a rebalance (KIP-429). Then `assign` must not give a
    partition that one member owns to another one: it leaves it out, and the next rebalance assigns it.
    """

    name: ClassVar[str]
    is_cooperative: ClassVar[bool] = False

    @abstractmethod
    def assign(self, topics: Mapping[str, TopicInfo], members: Mapping[str, MemberSubscription]) -> Assignments:
        """The partitions of each member. `topics` are all that exist of those that members subscribe to."""

    def user_data(self, topics: Collection[str]) -> bytes | None:
        """What this member tells the leader beside its topics, when it joins."""
        return None

    def on_assignment(self, partitions: Collection[TopicPartition], group: GroupMetadata) -> None:  # noqa: B027
        """This member has got an assignment, from whichever leader."""


def sort_key(member: MemberSubscription) -> tuple[bool, bytes]:
    """Kafka's order of members: static ones first, by instance id; strings in the order of UTF-16, as in Java."""
    name = member.member_id if member.instance_id is None else member.instance_id
    return member.instance_id is None, java_order(name)
