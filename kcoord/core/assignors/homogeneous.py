"""Uniform assignment for groups whose members all subscribe to the same topics.

Two rules, the first with priority: the numbers of partitions of any two members differ by at most one, and no partition
moves unless it has to. With P partitions and N members each member gets the quota P // N, and P % N members get one
extra. Extras go first to members that are above the quota already, so that as little as possible is taken away; then to
members that change anyway, so that as few targets as possible are written. A member that has to give partitions gives
its last ones, as with Kafka. So an extra goes, where one is found, to a member for which it would be the last: when the
group grows again, that member gives back the extra and keeps what it had.

A `HomogeneousBalancer` can be kept between computations. It files members by their number of partitions, and `balance`
visits only members whose number is off: when one of 10,000 members joins or leaves, the cost is what moves and not a
walk through the group. A full computation is the same code with every member's number off.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.assignors.balancer import Balancer
from kcoord.core.assignors.spec import UNKNOWN_TOPIC, Assignment, AssignorError, TopicDescriber

# How many members `balance` looks at, to find those for whom an extra is the last of their partitions.
LOOKS_MAX: Final = 64


@final
class HomogeneousBalancer(Balancer):
    """The members and partitions of one subscription. Add members, remove them, `balance`."""

    def __init__(
        self, topic_ids: list[bytes], topics: TopicDescriber, member_ids: list[str], targets: dict[str, Assignment]
    ) -> None:
        """The members with their targets, in this order; those without one have nothing. `topic_ids` are ascending.

        Raises `AssignorError` for a topic that does not exist.
        """
        self.topic_ids = topic_ids
        self._partition_total = 0
        # Whether a partition belongs to a member that was added with a target, by topic id and partition. Only used
        # until the first `balance`, which assigns all others.
        self._owned: dict[bytes, list[bool]] = {}
        self._any_owned = False
        for topic_id in topic_ids:
            partition_count = topics.partition_count(topic_id)
            if partition_count == UNKNOWN_TOPIC:
                raise AssignorError(f"topic {topic_id.hex()} is subscribed to but does not exist")
            self._partition_total += partition_count
            self._owned[topic_id] = [False] * partition_count
        # Partitions freed since the last `balance`, and whether a list may be out of order.
        self._free: dict[bytes, list[int]] = {}
        self._is_free_mixed = False
        self._assignments: dict[str, Assignment] = {}
        # That of all members that were added without partitions, until they get some.
        self._nothing: Assignment = {}
        # Members by their number of partitions. A dict, because sets are unordered.
        self._by_size: dict[int, dict[str, bool]] = {}
        # How many more members `_taker` may look at.
        self._looks_left = 0
        # Whether `_touched` is kept, from the end of the first `balance` on.
        self._is_balanced = False
        # Members that were added, or whose assignment changed, since the last `balance`.
        self._touched: dict[str, bool] = {}
        for member_id in member_ids:
            self._add(member_id, targets.get(member_id))

    def _add(self, member_id: str, target: Assignment | None) -> None:
        """The member keeps those partitions of `target` that exist, are subscribed to and have no other owner."""
        if not target:
            self._assignments[member_id] = self._nothing
            self._file(member_id, 0)
            return
        kept: Assignment = {}
        size = 0
        asked = 0
        for topic_id, partitions in target.items():
            asked += len(partitions)
            owned = self._owned.get(topic_id)
            if owned is None:
                continue
            own: list[int] = []
            partition_count = len(owned)
            for partition in partitions:
                if 0 <= partition < partition_count and not owned[partition]:
                    owned[partition] = True
                    own.append(partition)
            if own:
                self._any_owned = True
                kept[topic_id] = own
                size += len(own)
        self._assignments[member_id] = kept if size < asked else target
        self._file(member_id, size)

    def add_new(self, member_id: str, topic_ids: list[bytes]) -> None:
        self._assignments[member_id] = self._nothing
        self._file(member_id, 0)
        self._touched[member_id] = True

    def remove(self, member_id: str) -> None:
        assignment = self._assignments.pop(member_id)
        self._unfile(member_id, _size(assignment))
        self._touched.pop(member_id, None)
        for topic_id, partitions in assignment.items():
            self._release(topic_id, partitions)

    def rename(self, old_id: str, new_id: str) -> None:
        assignment = self._assignments.pop(old_id)
        self._assignments[new_id] = assignment
        size = _size(assignment)
        self._unfile(old_id, size)
        self._file(new_id, size)
        if self._touched.pop(old_id, False):
            self._touched[new_id] = True

    def has(self, member_id: str) -> bool:
        return member_id in self._assignments

    def uses(self, topic_ids: dict[bytes, bool]) -> bool:
        for topic_id in self.topic_ids:
            if topic_id in topic_ids:
                return True
        return False

    def assignment(self, member_id: str) -> Assignment:
        return self._assignments[member_id]

    def assignments(self) -> dict[str, Assignment]:
        return self._assignments.copy()

    def balance(self) -> list[str]:
        for topic_id, owned in self._owned.items():
            if not self._any_owned and owned:
                self._free[topic_id] = list(range(len(owned)))
            elif False in owned:
                self._free[topic_id] = [p for p in range(len(owned)) if not owned[p]]
        self._owned = {}
        if self._assignments:
            quota = self._partition_total // len(self._assignments)
            extras = self._partition_total % len(self._assignments)
            self._take_excess(quota, extras)
            self._fill(quota, extras)
        self._is_balanced = True
        changed = sorted(self._touched)
        self._touched = {}
        return changed

    def _file(self, member_id: str, size: int) -> None:
        same = self._by_size.get(size)
        if same is None:
            self._by_size[size] = {member_id: True}
        else:
            same[member_id] = True

    def _file_all(self, member_ids: list[str], size: int) -> None:
        if member_ids:
            self._by_size.setdefault(size, {}).update(dict.fromkeys(member_ids, True))

    def _unfile(self, member_id: str, size: int) -> None:
        same = self._by_size[size]
        del same[member_id]
        if not same:
            del self._by_size[size]

    def _release(self, topic_id: bytes, partitions: list[int]) -> None:
        free = self._free.get(topic_id)
        if free is None:
            self._free[topic_id] = partitions.copy()
        else:
            free.extend(partitions)
            self._is_free_mixed = True

    def _take_excess(self, quota: int, extras: int) -> None:
        """No member keeps more than one above the quota, and at most `extras` members keep that many."""
        excessive = sorted([size for size in self._by_size if size > quota], reverse=True)
        above = 0
        for size in excessive:
            above += len(self._by_size[size])
        # How many members may not keep one extra. Members that lose partitions anyway come first.
        to_quota = above - extras
        for size in excessive:
            if size == quota + 1 and to_quota <= 0:
                break
            same = self._by_size.pop(size)
            while same and (size > quota + 1 or to_quota > 0):
                member_id, _ = same.popitem()
                keep = quota if to_quota > 0 else quota + 1
                to_quota -= 1
                self._take(member_id, size - keep)
                self._file(member_id, keep)
            if same:
                self._by_size[size] = same

    def _take(self, member_id: str, count: int) -> None:
        """Free `count` partitions of a member, the last ones of its last topics."""
        old = self._assignments[member_id]
        left = count
        taken: dict[bytes, int] = {}
        for topic_id in reversed(list(old)):
            if left == 0:
                break
            from_topic = min(left, len(old[topic_id]))
            taken[topic_id] = from_topic
            left -= from_topic
        kept: Assignment = {}
        for topic_id, partitions in old.items():
            keep = len(partitions) - taken.get(topic_id, 0)
            if keep == len(partitions):
                kept[topic_id] = partitions
                continue
            if keep > 0:
                kept[topic_id] = partitions[:keep]
            self._release(topic_id, partitions[keep:])
        self._assignments[member_id] = kept
        if self._is_balanced:
            self._touched[member_id] = True

    def _fill(self, quota: int, extras: int) -> None:
        """Free partitions go to members below the quota; extras go to these first and then to others."""
        if self._is_free_mixed:
            for partitions in self._free.values():
                partitions.sort()
            self._is_free_mixed = False
        pool = _Pool([(topic_id, self._free[topic_id]) for topic_id in sorted(self._free)])
        above = self._by_size.get(quota + 1)
        extras_left = extras - (0 if above is None else len(above))
        for size in sorted([size for size in self._by_size if size < quota]):
            member_ids = list(self._by_size.pop(size))
            with_extra = min(extras_left, len(member_ids))
            extras_left -= with_extra
            for i, member_id in enumerate(member_ids):
                old = self._assignments[member_id] if size else self._nothing
                self._give(member_id, old, quota - size + (1 if i < with_extra else 0), pool)
            self._file_all(member_ids[:with_extra], quota + 1)
            self._file_all(member_ids[with_extra:], quota)
        self._looks_left = LOOKS_MAX
        while extras_left > 0:
            extras_left -= 1
            member_id = self._taker(quota, pool)
            self._unfile(member_id, quota)
            self._give(member_id, self._assignments[member_id], 1, pool)
            self._file(member_id, quota + 1)
        self._free = {}

    def _taker(self, size: int, pool: _Pool) -> str:
        """One of the members with so many partitions, for the next one of the pool."""
        topic_id, partition = pool.next_one()
        newest = ""
        for member_id in reversed(self._by_size[size]):
            if not newest:
                newest = member_id
            if self._looks_left == 0:
                break
            self._looks_left -= 1
            if _is_last(self._assignments[member_id], topic_id, partition):
                return member_id
        return newest

    def _give(self, member_id: str, old: Assignment, count: int, pool: _Pool) -> None:
        """The member gets the next `count` partitions of the pool, besides those that it has (`old`)."""
        assignment = old.copy() if old else {}
        while count > 0:
            topic_id, partitions = pool.draw(count)
            count -= len(partitions)
            have = assignment.get(topic_id)
            assignment[topic_id] = partitions if have is None else sorted(have + partitions)
        if old and len(assignment) > len(old):
            assignment = {topic_id: assignment[topic_id] for topic_id in sorted(assignment)}
        self._assignments[member_id] = assignment
        if self._is_balanced:
            self._touched[member_id] = True


def _size(assignment: Assignment) -> int:
    size = 0
    for partitions in assignment.values():
        size += len(partitions)
    return size


def _is_last(assignment: Assignment, topic_id: bytes, partition: int) -> bool:
    """Whether a member with this assignment would give the partition first."""
    for last in reversed(assignment):
        return last < topic_id or (last == topic_id and assignment[last][-1] < partition)
    return True


@final
class _Pool:
    """Free partitions, drawn in order of topic and partition."""

    def __init__(self, free: list[tuple[bytes, list[int]]]) -> None:
        self._free = free
        self._topic = 0
        self._position = 0

    def next_one(self) -> tuple[bytes, int]:
        """The topic and number of the partition that is drawn next. At least one must be left."""
        topic_id, partitions = self._free[self._topic]
        return topic_id, partitions[self._position]

    def draw(self, count_max: int) -> tuple[bytes, list[int]]:
        """Between 1 and `count_max` partitions of one topic. At least one must be left."""
        topic_id, partitions = self._free[self._topic]
        drawn = partitions[self._position : self._position + count_max]
        self._position += len(drawn)
        if self._position == len(partitions):
            self._topic += 1
            self._position = 0
        return topic_id, drawn
