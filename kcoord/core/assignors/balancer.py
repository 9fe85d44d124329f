"""What a `TargetBuilder` keeps between computations: the members and their partitions, ready for the next change."""

from __future__ import annotations

from kcoord.core.assignors.spec import Assignment


class Balancer:
    """Base of the two balancers. This class has no members and no subscriptions; like `Assignor` it is no abstract base
    class.
    """

    def has(self, member_id: str) -> bool:
        return False

    def uses(self, topic_ids: dict[bytes, bool]) -> bool:
        """Whether a member subscribes to one of these topics. The time is that of walking the shorter of two lists."""
        return False

    def assignment(self, member_id: str) -> Assignment:
        """The member's partitions after the last `balance`."""
        raise KeyError(member_id)

    def assignments(self) -> dict[str, Assignment]:
        """A copy: all members with their partitions after the last `balance`, in the order in which they were added."""
        return {}

    def add_new(self, member_id: str, topic_ids: list[bytes]) -> None:
        """Add a member without partitions. `balance` returns it even if it gets none."""
        raise KeyError(tuple(topic_ids))

    def remove(self, member_id: str) -> None:
        """Remove a member; its partitions become free. Only after the first `balance`."""
        raise KeyError(member_id)

    def rename(self, old_id: str, new_id: str) -> None:
        """`new_id` replaces `old_id` and keeps its partitions. Only after the first `balance`."""
        raise KeyError(old_id)

    def balance(self) -> list[str]:
        """Assign every partition. Returns the ids of members whose assignment changed since the last `balance`, sorted.

        The first result may lack members: then the caller compares all.
        """
        return []
