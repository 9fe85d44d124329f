"""What an assignor is given and what it answers: the interface that `docs/assignors.md` documents for plug-ins.

An assignor is a function: subscriptions and the last target of each member in, a target for each member out. It keeps
no state, reads no clock, and draws no random numbers. Whatever it answers is checked before it is used
(`check.checked_assignment`), so a faulty one fails the computation and never the group.

Topics are known by their 16-byte ids here; a name may be deleted and made again, an id may not.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import mypyc_attr

# Topic id -> its partitions in ascending order, never an empty list. Nobody changes one after handing it out: specs,
# targets and results share them.
Assignment = dict[bytes, list[int]]

UNKNOWN_TOPIC: Final = -1


class AssignorError(Exception):
    """No target assignment could be computed; the text says why, for the server's log and the answer."""


@final
class MemberSpec:
    """One member as an assignor sees it.

    `topic_ids`: the topics that it subscribes to and that exist, ascending, none twice. `target`: what the last target
    assignment gave it; it may name topics or partitions that are gone or no longer subscribed to. `instance_id` is set
    for static members, `rack_id` where the client told one.
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
    """A group: its members by member id, and whether all of them subscribe to the same topics."""

    def __init__(self, members: dict[str, MemberSpec], is_homogeneous: bool) -> None:
        self.members = members
        self.is_homogeneous = is_homogeneous
        self._owners: dict[bytes, dict[int, str]] = {}
        self._owners_known = False

    def owner(self, topic_id: bytes, partition: int) -> str | None:
        """The member whose last target has this partition, or None."""
        if not self._owners_known:
            self._owners_known = True
            for member_id, member in self.members.items():
                for owned_id, partitions in member.target.items():
                    owners = self._owners.setdefault(owned_id, {})
                    for owned in partitions:
                        owners.setdefault(owned, member_id)
        topic_owners = self._owners.get(topic_id)
        return None if topic_owners is None else topic_owners.get(partition)


# No abstract base classes below: their compiled subclasses would share one cache of what is an instance of what.


@mypyc_attr(allow_interpreted_subclasses=True)
class TopicDescriber:
    """What is known of topics now; of this base class: nothing."""

    def partition_count(self, topic_id: bytes) -> int:
        """How many partitions it has, numbered from 0; `UNKNOWN_TOPIC` when there is no such topic."""
        return UNKNOWN_TOPIC

    def racks(self, topic_id: bytes, partition: int) -> list[str]:
        """The racks that hold a replica, ascending; none for a partition that does not exist."""
        return []


@mypyc_attr(allow_interpreted_subclasses=True)
class Assignor:
    """Base of all assignors. `name` is what members ask for as their server assignor (`group.remote.assignor`)."""

    def __init__(self, name: str) -> None:
        self.name = name

    def assign(self, group: GroupSpec, topics: TopicDescriber) -> dict[str, Assignment]:
        """A target for every member; one that is missing in the answer gets nothing.

        Must not change anything it was given; may put parts of it (a member's `target`, say) into the answer.
        Raises `AssignorError` where it cannot assign.
        """
        raise AssignorError(f"assignor {self.name!r} does not say how it assigns")
