"""When a group counts as stable, and what is told to the processes with its members."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kcoord.cli.bench.groups import Group, GroupWorkload, NotStable, is_stable
from kcoord.cli.bench.options import Options
from kcoord.client.load.crowd import NO_EPOCH
from kcoord.client.metadata import PartitionMetadata, TopicMetadata

PARTITIONS = 4
TOPIC = TopicMetadata("t", partitions={number: PartitionMetadata(1, 0) for number in range(PARTITIONS)})
TARGET = cast(Any, SimpleNamespace(group=lambda name: f"kcoord-bench-{name}"))
UNSETTLED = {"settled": False}
NOBODY = {"settled": True, "members": 0, "epoch": -1, "least": 0, "most": 0, "owned": "00" * PARTITIONS, "since_ns": 0}


def look(epoch: int, *shares: list[int]) -> dict[str, Any]:
    """What a process says whose members have these partitions."""
    owned = {number for share in shares for number in share}
    sizes = [len(share) for share in shares]
    return {
        "settled": True, "members": len(shares), "epoch": epoch, "least": min(sizes), "most": max(sizes),
        "owned": "".join("01" if number in owned else "00" for number in range(PARTITIONS)), "since_ns": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("looks", "members", "after", "expected"),
    [
        ([look(3, [0, 1], [2, 3])], 2, NO_EPOCH, True),
        ([look(3, [0, 1]), look(3, [2, 3])], 2, NO_EPOCH, True),
        ([look(3, [0, 1]), look(3, [2, 3])], 2, 2, True),
        ([look(3, [0, 1]), look(3, [2, 3])], 2, 3, False),
        ([look(3, [0, 1]), UNSETTLED], 2, NO_EPOCH, False),
        ([look(3, [0, 1]), look(2, [2, 3])], 2, NO_EPOCH, False),
        ([look(3, [0, 1], [2, 3])], 3, NO_EPOCH, False),
        ([look(3, [0, 1]), look(3, [3])], 2, NO_EPOCH, False),
        ([look(3, [0, 1]), look(3, [1, 2, 3])], 2, NO_EPOCH, False),
        ([look(3, [0, 1, 2]), look(3, [3])], 2, NO_EPOCH, False),
        ([look(3, [0, 3], [1]), look(3, [2])], 3, NO_EPOCH, True),
        ([look(3, [0, 1, 2, 3]), NOBODY], 1, NO_EPOCH, True),
        ([NOBODY, NOBODY], 1, NO_EPOCH, False),
    ],
    ids=[
        "stable", "two processes", "later", "the epoch before", "joining", "two epochs", "one is missing", "no owner",
        "two owners", "unequal", "by one", "a process without members", "nobody",
    ],
)  # fmt: skip
def test_a_stable_group(looks: list[dict[str, Any]], members: int, after: int, expected: bool) -> None:
    assert is_stable(looks, members, PARTITIONS, after) is expected


class FakeWorkers:
    """Two processes that answer each step, and remember what they were told."""

    def __init__(self, *looks: list[dict[str, Any]]) -> None:
        self.count = 2
        self.told: list[Any] = []
        self.looks = [*looks]

    async def step(self, load: str, step: str, *arguments: Any) -> list[dict[str, Any]]:
        self.told.append(step)
        if step == "look":
            return self.looks.pop(0)
        if step == "counts":
            return [{"latencies": [[7, 2]], "errors": {"NOT_COORDINATOR": 1}, "cpu_s": 0.0}] * 2
        return [{"began_ns": 2_000}, {"began_ns": 1_000}]

    async def step_of(
        self, number: int, load: str, step: str, *arguments: Any, limit_s: float = 0
    ) -> dict[str, Any]:  # fmt: skip
        self.told.append((number, step, *arguments))
        return {"began_ns": 3_000, "epoch": 3}


def group(workers: FakeWorkers, members: int = 2) -> Group:
    return Group(TARGET, Options(members=members), cast(Any, workers), "classic", "g", TOPIC)


def stable(epoch: int, since_ns: int, *shares: list[int]) -> list[dict[str, Any]]:
    return [{**look(epoch, share), "since_ns": since_ns + number} for number, share in enumerate(shares)]


async def test_a_join_lasts_from_the_first_process_to_the_last() -> None:
    workers = FakeWorkers([UNSETTLED, UNSETTLED], stable(1, 9_000, [0, 1], [2, 3]))
    assert await group(workers).join() == (1_000, 9_001)
    assert workers.told == ["join", "look", "look"]


async def test_a_restart_is_over_in_a_later_epoch() -> None:
    halves = [0, 1], [2, 3]
    workers = FakeWorkers(stable(3, 4_000, *halves), stable(4, 5_000, *halves))
    assert await group(workers).restart_one(1) == (3_000, 5_001)
    assert workers.told == [(1, "restart", 0), "look", "look"]


async def test_who_flaps_is_the_last_member() -> None:
    without, back = [look(4, [0, 1, 2, 3]), NOBODY], stable(5, 6_000, [0, 1], [2, 3])
    workers = FakeWorkers(without, back)
    await group(workers).flap_one()
    assert workers.told == [(1, "depart"), "look", (1, "return"), "look"]


async def test_what_the_processes_count_is_added_up() -> None:
    heartbeats, found, _ = await group(FakeWorkers()).counts()
    assert (heartbeats.total, found) == (4, {"NOT_COORDINATOR": 2})


@pytest.mark.parametrize(("restarts", "expected"), [(0, [0, 1, 2]), (2, [0, 1]), (9, [0, 1, 2])])
async def test_so_many_members_restart(monkeypatch: pytest.MonkeyPatch, restarts: int, expected: list[int]) -> None:
    restarted: list[int] = []

    async def restart_one(_group: Group, at: int) -> tuple[int, int]:
        restarted.append(at)
        return at * 1_000_000_000, at * 1_000_000_000 + 500_000_000

    monkeypatch.setattr(Group, "restart_one", restart_one)
    workers = FakeWorkers(stable(1, 9_000, [0, 1], [2], [3]))
    workload = GroupWorkload(TARGET, Options(restarts=restarts, members=3), cast(Any, workers), "restart", "classic")
    workload.group = group(workers, 3)
    found = await workload.round()
    assert restarted == expected and found.steps == [0.5] * len(expected)
    assert found.seconds == len(expected) / 2
    # Those before the first restart, and those since.
    assert found.errors == {"NOT_COORDINATOR": 4}
    # The group is gone before the next round, perhaps of another cluster.
    assert workers.told[:2] == ["join", "look"] and workload.group is None


async def test_a_group_that_does_not_become_stable_says_why() -> None:
    made = group(FakeWorkers([UNSETTLED, UNSETTLED]))
    made.options = Options(timeout_s=0)
    with pytest.raises(NotStable, match="was not stable within 0 s, NOT_COORDINATOR 2$"):
        await made.join()
