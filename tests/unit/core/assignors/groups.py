"""Groups for tests of assignors: topics by small numbers, members by name, and what a new assignment cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kcoord.core.assignors.spec import Assignment, Assignor, GroupSpec, MemberSpec, TopicDescriber
from kcoord.core.assignors.target_builder import TargetBuilder


def topic(number: int) -> bytes:
    """A topic id that sorts by its number."""
    return number.to_bytes(16, "big")


def assignment(partitions: Mapping[int, Iterable[int]]) -> Assignment:
    return {topic(number): list(partitions[number]) for number in sorted(partitions)}


class Topics(TopicDescriber):
    """Topics by number, each with its count of partitions."""

    def __init__(self, counts: Mapping[int, int]) -> None:
        self.counts = {topic(number): count for number, count in counts.items()}

    def partition_count(self, topic_id: bytes) -> int:
        return self.counts.get(topic_id, -1)

    def racks(self, topic_id: bytes, partition: int) -> list[str]:
        return []


def member(
    member_id: str,
    topics: Iterable[int],
    target: Mapping[int, Iterable[int]] | None = None,
    instance_id: str | None = None,
) -> MemberSpec:
    return MemberSpec(member_id, instance_id, None, [topic(n) for n in sorted(topics)], assignment(target or {}))


def group(*members: MemberSpec) -> GroupSpec:
    subscriptions = {tuple(m.topic_ids) for m in members}
    return GroupSpec({m.member_id: m for m in members}, len(subscriptions) <= 1)


def sizes(assignments: Mapping[str, Assignment]) -> dict[str, int]:
    return {m: sum(len(partitions) for partitions in a.values()) for m, a in assignments.items()}


def owners(assignments: Mapping[str, Assignment]) -> dict[tuple[bytes, int], str]:
    """Who has which partition; fails when two members have the same, or a list is not in order."""
    found: dict[tuple[bytes, int], str] = {}
    for member_id, own in assignments.items():
        assert list(own) == sorted(own)
        for topic_id, partitions in own.items():
            assert partitions and partitions == sorted(set(partitions))
            for partition in partitions:
                assert (topic_id, partition) not in found, f"{partition} has two owners"
                found[topic_id, partition] = member_id
    return found


def moved(before: Mapping[str, Assignment], after: Mapping[str, Assignment]) -> int:
    """How many partitions were taken from a member that is still there."""
    then, now = owners(before), owners(after)
    return sum(1 for key, owner in then.items() if key in now and now[key] != owner and owner in after)


def needed(sizes_before: Iterable[int], partition_total: int) -> int:
    """The fewest partitions that members with these sizes must give up so that sizes differ by at most one."""
    held = sorted(sizes_before, reverse=True)
    quota, extras = divmod(partition_total, len(held))
    return sum(max(0, size - quota - (1 if i < extras else 0)) for i, size in enumerate(held))


class Group:
    """A group around a `TargetBuilder` as the coordinator has it: answers are stored in `targets`."""

    def __init__(self, assignor: Assignor, topics: Topics, targets: dict[str, Assignment] | None = None) -> None:
        self.assignor = assignor
        self.topics = topics
        self.targets: dict[str, Assignment] = {} if targets is None else targets
        self.builder = TargetBuilder(assignor, topics, self.targets)
        self.members: dict[str, list[bytes]] = {}
        self.instances: dict[str, str | None] = {}

    def join(self, member_id: str, topics: Iterable[int], instance_id: str | None = None) -> None:
        self.instances[member_id] = instance_id
        self.set_member(member_id, [topic(n) for n in sorted(topics)])

    def set_member(self, member_id: str, topic_ids: list[bytes]) -> None:
        self.members[member_id] = topic_ids
        self.builder.set_member(member_id, self.instances[member_id], None, topic_ids)

    def leave(self, member_id: str) -> None:
        del self.members[member_id]
        self.targets.pop(member_id, None)
        self.builder.remove_member(member_id)

    def replace(self, old_id: str, new_id: str) -> None:
        self.members[new_id] = self.members.pop(old_id)
        self.instances[new_id] = self.instances[old_id]
        if old_id in self.targets:
            self.targets[new_id] = self.targets.pop(old_id)
        self.builder.replace_static_member(old_id, new_id)

    def grow(self, number: int, count: int) -> None:
        self.topics.counts[topic(number)] = count
        self.topics_changed()

    def topics_changed(self) -> None:
        """Start again with a new builder, as the coordinator does when topics change."""
        self.builder = TargetBuilder(self.assignor, self.topics, self.targets)
        for member_id, topic_ids in self.members.items():
            self.builder.set_member(member_id, self.instances[member_id], None, topic_ids)

    def compute(self, stored: bool = True) -> dict[str, Assignment]:
        """Members whose target changed. The copies are what a replay would have decoded."""
        answer = self.builder.compute()
        assert [m for m, _ in answer] == sorted(m for m, _ in answer)
        changed = {m: {t: list(p) for t, p in a.items()} for m, a in answer}
        assert all(self.targets.get(m) != a for m, a in changed.items())
        if stored:
            self.targets.update(changed)
        return changed
