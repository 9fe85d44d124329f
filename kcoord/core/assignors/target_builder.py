"""From one target assignment of a group to the next.

A `TargetBuilder` is soft state of a group: it knows the members' subscriptions, is told what changes, and computes
which targets differ. The targets themselves are hard state, a dict that the group owns and that only replay writes;
it is read here. What `compute` answers is expected to be in it when `compute` is called again; when it is not (the
records could not be stored), everything is computed anew from what is there.
"""

from __future__ import annotations

from typing import final

from kcoord.core.assignors.spec import Assignment, Assignor, GroupSpec, MemberSpec, TopicDescriber


@final
class TargetBuilder:
    """Computes a group's target assignment; see the module's text for who owns what."""

    def __init__(self, assignor: Assignor, topics: TopicDescriber, targets: dict[str, Assignment]) -> None:
        self._assignor = assignor
        self._topics = topics
        self._targets = targets
        self._members: dict[str, MemberSpec] = {}

    @property
    def assignor(self) -> Assignor:
        return self._assignor

    def set_assignor(self, assignor: Assignor) -> None:
        """The next computation is done by `assignor`."""
        self._assignor = assignor

    def set_member(
        self, member_id: str, instance_id: str | None, rack_id: str | None, topic_ids: list[bytes]
    ) -> None:
        """A member joined, or its subscription (or rack, or instance) changed.

        `topic_ids`: subscribed and existing topics, ascending, none twice. Call it again for every member whose
        topics were created or deleted.
        """
        self._members[member_id] = MemberSpec(member_id, instance_id, rack_id, topic_ids, {})

    def remove_member(self, member_id: str) -> None:
        """A member left for good. Unknown ones are passed over."""
        self._members.pop(member_id, None)

    def replace_static_member(self, old_id: str, new_id: str) -> None:
        """A static member came back under a new member id, which inherits subscription and target of the old one.

        The caller stores the old target under the new id in the targets, and removes the old one. A `set_member` of
        the new id may follow when it subscribes to something else.
        """
        member = self._members.pop(old_id)
        self._members[new_id] = MemberSpec(new_id, member.instance_id, member.rack_id, member.topic_ids, {})

    def topics_changed(self) -> None:
        """The number of partitions (or the racks) of some topic changed."""

    def compute(self) -> list[tuple[str, Assignment]]:
        """Members whose target differs from `targets`, with the new one, in a fixed order.

        A member that is not in `targets` is listed even when it gets nothing. Members that left are not listed. Raises
        `AssignorError`; the builder can go on being used.
        """
        specs: dict[str, MemberSpec] = {}
        first: list[bytes] | None = None
        is_homogeneous = True
        for member_id in sorted(self._members):
            member = self._members[member_id]
            if first is None:
                first = member.topic_ids
            elif member.topic_ids != first:
                is_homogeneous = False
            target = self._targets.get(member_id)
            specs[member_id] = MemberSpec(
                member_id,
                member.instance_id,
                member.rack_id,
                member.topic_ids,
                {} if target is None else target,
            )
        result = self._assignor.assign(GroupSpec(specs, is_homogeneous), self._topics)
        changed: list[tuple[str, Assignment]] = []
        for member_id in specs:
            assignment = result.get(member_id, {})
            if self._targets.get(member_id) != assignment:
                changed.append((member_id, assignment))
        return changed
