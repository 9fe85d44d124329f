"""The invariants of a group after each batch of its records, with any log: the cheap ones, which are always checked.

These checks take the same time for a group of any size, and only for groups whose members were in the batch:
a heartbeat or a commit changes no member and costs nothing. If a check fails, a bug has broken the group, and its
records are already in the open commit. So the error ends the process before any answer to the batch is released, and
the next start rebuilds the group from the log.

Slower checks (every index against every member, ownership of partitions, epochs) run after each event in tests,
scenarios and the explorer: tests/harness/core_invariants.py.
"""

from __future__ import annotations

from typing import final

from kcoord.core.groups.classic import ClassicGroup
from kcoord.core.groups.consumer import ConsumerGroup


@final
class InvariantBroken(Exception):
    """The state of a group contradicts itself."""

    def __init__(self, group_id: str, problem: str) -> None:
        super().__init__(f"group {group_id}: {problem}")
        self.group_id = group_id
        self.problem = problem


def check_counts(group_id: str, consumer: ConsumerGroup | None, classic: ClassicGroup | None) -> None:
    """Raises InvariantBroken. A group id names at most one group; None where there is none of the kind."""
    if consumer is not None and classic is not None:
        raise InvariantBroken(group_id, "it is a classic group and a consumer group at once")
    if consumer is not None:
        size = len(consumer.members)
        if len(consumer.static_members) > size:
            raise InvariantBroken(group_id, f"{len(consumer.static_members)} static members of {size}")
        if not 0 <= consumer.classic_members <= size:
            raise InvariantBroken(group_id, f"{consumer.classic_members} members of the classic protocol of {size}")
        if not 0 <= consumer.client_assignor_members <= size:
            raise InvariantBroken(group_id, f"{consumer.client_assignor_members} members with assignors of {size}")
    elif classic is not None:
        size = len(classic.members)
        if len(classic.static_members) > size:
            raise InvariantBroken(group_id, f"{len(classic.static_members)} static members of {size}")
        if not 0 <= classic.awaiting_join <= size:
            raise InvariantBroken(group_id, f"{classic.awaiting_join} members wait for a join of {size}")
