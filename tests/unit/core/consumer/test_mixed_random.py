"""Clients of both protocols come, go, lose answers and change sides in any order, while the server restarts.

No two of them ever process the same partition, the log says all there is to say, and once nothing happens any more
every partition is with somebody.
"""

from __future__ import annotations

import pytest

from tests.unit.core.consumer.mixed_crowd import Crowd

STEPS = 400


# The last one is a crowd in which an upgrade finds no assignment and members that still own partitions.
@pytest.mark.parametrize("seed", [*range(11), 100])
def test_no_partition_has_two_owners(seed: int) -> None:
    crowd = Crowd(seed)
    for _ in range(STEPS):
        crowd.step()
    crowd.settle()


def test_the_crowd_changes_sides() -> None:
    """Otherwise the test above would say little."""
    kinds: dict[str, int] = {}
    upgrades = downgrades = 0
    for seed in range(62, 66):
        crowd = Crowd(seed)
        for _ in range(STEPS):
            crowd.step()
            upgrades += any("fact INFO classic_group_upgraded" in line for line in crowd.scenario.lines)
            downgrades += any("fact INFO consumer_group_downgraded" in line for line in crowd.scenario.lines)
        for kind, count in crowd.kinds.items():
            kinds[kind] = kinds.get(kind, 0) + count
    assert upgrades >= 2 and downgrades >= 2, (upgrades, downgrades)
    assert min(kinds.get(kind, 0) for kind in ("classic", "mixed", "consumer")) > 20, kinds
