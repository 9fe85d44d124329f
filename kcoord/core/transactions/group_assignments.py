"""The partitions that producers have for a consumer group, hard state of `__transaction_state` (draft of KIP-447).

A producer that names its consumer's assignment with InitProducerId owns these partitions of the group, until another
producer takes them over, or until its transactional id begins anew or expires. claims.py fences the earlier owners of a
partition before it stores an assignment, so a partition has one owner. There may be two after a crash: if owners have
different logs, a power cut can lose the records that fenced the first one and keep the assignment of the second one,
whose answer was not sent. Its client tries again, which fences the first one.
"""

from __future__ import annotations

from typing import final

from kcoord.protocol.records.transaction_group_assignment import (
    TransactionGroupAssignmentKey,
    TransactionGroupAssignmentValue,
)


@final
class GroupAssignments:
    """Only `replay` changes it."""

    def __init__(self) -> None:
        self.by_id: dict[str, TransactionGroupAssignmentValue] = {}
        # The transactional ids by group, topic and partition.
        self._owners: dict[str, dict[tuple[str, int], dict[str, bool]]] = {}

    def owners(self, group_id: str, topic: str, partition: int) -> list[str]:
        of_group = self._owners.get(group_id)
        found = None if of_group is None else of_group.get((topic, partition))
        return [] if found is None else list(found)

    def permits_group(self, transactional_id: str, group_id: str) -> bool:
        """Whether a transaction may have offsets of the group. Without an assignment it may have those of any."""
        assignment = self.by_id.get(transactional_id)
        return assignment is None or assignment.group_id == group_id

    def permits(self, transactional_id: str, group_id: str, topic: str, partition: int) -> bool:
        """Whether a transaction may have an offset of the partition: its assignment, if there is one, must have it."""
        if transactional_id not in self.by_id:
            return True
        of_group = self._owners.get(group_id)
        found = None if of_group is None else of_group.get((topic, partition))
        return found is not None and transactional_id in found

    def replay(self, key: TransactionGroupAssignmentKey, value: TransactionGroupAssignmentValue | None) -> None:
        """Apply one record."""
        transactional_id = key.transactional_id
        self._remove(transactional_id)
        if value is None:
            return
        self.by_id[transactional_id] = value
        of_group = self._owners.setdefault(value.group_id, {})
        for topic in value.topics:
            for partition in topic.partitions:
                of_group.setdefault((topic.name, partition), {})[transactional_id] = True

    def _remove(self, transactional_id: str) -> None:
        value = self.by_id.pop(transactional_id, None)
        if value is None:
            return
        of_group = self._owners.get(value.group_id)
        if of_group is None:
            # Nobody has a partition of the group, as this one had none.
            return
        for topic in value.topics:
            for partition in topic.partitions:
                found = of_group.get((topic.name, partition))
                # A request may name a partition twice.
                if found is not None and found.pop(transactional_id, False) and not found:
                    del of_group[(topic.name, partition)]
        if not of_group:
            del self._owners[value.group_id]

    def digest_lines(self) -> list[str]:
        """The hard state as text, in a fixed order."""
        lines: list[str] = []
        for transactional_id in sorted(self.by_id):
            one = self.by_id[transactional_id]
            owned = sorted((topic.name, partition) for topic in one.topics for partition in topic.partitions)
            member = f"{one.member_id!r} {one.group_instance_id!r}"
            lines.append(f"assignment {transactional_id!r} {one.group_id!r} {one.generation_id} {member} {owned}")
        return lines
