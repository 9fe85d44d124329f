"""Input and result of an assignor: the interface that `docs/assignors.md` documents for plug-ins.

An assignor is a function from the subscriptions and last targets of all members to a new target for each. It keeps no
state, reads no clock, and draws no random numbers. Its result is checked before use (`check.checked_assignment`), so a
faulty assignor fails the computation and never the group.

Topics are identified by their 16-byte ids: a name may be deleted and created again, an id may not.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import mypyc_attr

# Topic id -> its partitions in ascending order, never an empty list. Specs, targets and results share these lists, so
# no code changes one after passing it on.
Assignment = dict[bytes, list[int]]

UNKNOWN_TOPIC: Final = -1


class AssignorError(Exception):
    """No target assignment could be computed. The message has the reason, for the server's log and the client."""


@final
class MemberSpec:
    """One member as an assignor sees it.

    `topic_ids`: the existing topics that it subscribes to, ascending, without duplicates. `target`: its last target
    assignment, which may contain topics or partitions that were deleted or are no longer subscribed to. `instance_id`
    is set for static members, `rack_id` if the client sent one.
    """

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        rack_id: str | None,
        topic_ids: list[bytes],
        target: Assignment,
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.rack_id = rack_id
        self.topic_ids = topic_ids
        self.target = target


@final
class GroupSpec:
    """A group: its members by id, and whether all of them subscribe to the same topics."""

    def __init__(self, members: dict[str, MemberSpec], is_homogeneous: bool) -> None:
        self.members = members
        self.is_homogeneous = is_homogeneous
        self._owners: dict[bytes, dict[int, str]] = {}
        self._owners_known = False

    def owner(self, topic_id: bytes, partition: int) -> str | None:
        """The member whose last target contains this partition, or None."""
        if not self._owners_known:
            self._owners_known = True
            for member_id, member in self.members.items():
                for owned_id, partitions in member.target.items():
                    owners = self._owners.setdefault(owned_id, {})
                    for owned in partitions:
                        owners.setdefault(owned, member_id)
        topic_owners = self._owners.get(topic_id)
        return None if topic_owners is None else topic_owners.get(partition)


# The classes below are no abstract base classes: compiled subclasses of one ABC would share one instance cache.


@mypyc_attr(allow_interpreted_subclasses=True)
class TopicDescriber:
    """The current metadata of topics. This base class knows none."""

    def partition_count(self, topic_id: bytes) -> int:
        """The number of partitions, numbered from 0; `UNKNOWN_TOPIC` if the topic does not exist."""
        return UNKNOWN_TOPIC

    def racks(self, topic_id: bytes, partition: int) -> list[str]:
        """The racks that have a replica, ascending; none for a partition that does not exist."""
        return []


@mypyc_attr(allow_interpreted_subclasses=True)
class Assignor:
    """Base of all assignors. Members select one by `name` (`group.remote.assignor`)."""

    def __init__(self, name: str) -> None:
        self.name = name

    def assign(self, group: GroupSpec, topics: TopicDescriber) -> dict[str, Assignment]:
        """A target for every member; a member that is missing in the result gets nothing.

        Must not change its arguments, but may use parts of them (for example a member's `target`) in the result. Raises
        `AssignorError` if it cannot assign.
        """
        raise AssignorError(f"assignor {self.name!r} does not implement assign()")
