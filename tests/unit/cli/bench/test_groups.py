"""When a group counts as stable."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kcoord.cli.bench.groups import Group, GroupWorkload
from kcoord.cli.bench.members import NO_EPOCH, ClassicMember
from kcoord.cli.bench.options import Options
from kcoord.client.consumer.classic.embedded import decode_assignment
from kcoord.client.errors import BrokerError
from kcoord.client.metadata import PartitionMetadata, TopicMetadata
from kcoord.protocol import errors

TOPIC = TopicMetadata("t", partitions={number: PartitionMetadata(1, 0) for number in range(4)})
TARGET = cast(Any, SimpleNamespace(group=lambda name: f"kcoord-bench-{name}"))


def group(*members: tuple[int, list[int]]) -> Group:
    """A group of members with an epoch and partitions."""
    made = Group(TARGET, Options(), "classic", "g", TOPIC)
    for epoch, owned in members:
        member = ClassicMember(TARGET, made.group_id, TOPIC, 0.1)
        member.epoch = epoch
        member.owned = owned
        made.members.append(member)
    return made


@pytest.mark.parametrize(
    ("members", "after", "is_stable"),
    [
        ([(3, [0, 1]), (3, [2, 3])], NO_EPOCH, True),
        ([(3, [0, 1]), (3, [2, 3])], 2, True),
        ([(3, [0, 1]), (3, [2, 3])], 3, False),
        ([(3, [0, 1]), (2, [2, 3])], NO_EPOCH, False),
        ([(NO_EPOCH, []), (NO_EPOCH, [])], NO_EPOCH, False),
        ([(3, [0, 1]), (3, [3])], NO_EPOCH, False),
        ([(3, [0, 1]), (3, [1, 2, 3])], NO_EPOCH, False),
        ([(3, [0, 1, 2]), (3, [3])], NO_EPOCH, False),
        ([(3, [0, 3]), (3, [1]), (3, [2])], NO_EPOCH, True),
    ],
    ids=["stable", "later", "the epoch before", "two epochs", "joining", "no owner", "two owners", "unequal", "by one"],
)
def test_a_stable_group(members: list[tuple[int, list[int]]], after: int, is_stable: bool) -> None:
    assert group(*members).is_stable(after) is is_stable


def test_what_members_saw_is_counted_once() -> None:
    made = group((1, []), (1, []))
    for number, member in enumerate(made.members, 1):
        member.heartbeats.add(1000)
        member.errors = {"NOT_COORDINATOR": number}
    heartbeats, found = made.take_counts()
    assert (heartbeats.total, found) == (2, {"NOT_COORDINATOR": 3})
    heartbeats, found = made.take_counts()
    assert (heartbeats.total, found) == (0, {})


def test_a_rebalance_is_no_error() -> None:
    (member,) = group((1, [])).members
    assert isinstance(member, ClassicMember)
    member.member_id = "m"
    assert member._must_join_again(errors.REBALANCE_IN_PROGRESS)
    assert not member._must_join_again(errors.NONE)
    with pytest.raises(BrokerError):
        member._must_join_again(errors.UNKNOWN_MEMBER_ID)
    assert member.member_id == ""


def test_only_the_leader_assigns() -> None:
    """Each of thousands of members would make a list of thousands of partitions."""
    follower = ClassicMember(TARGET, "g", cast(Any, None), 0.1)
    assert follower._assign([]) == []
    leader = ClassicMember(TARGET, "g", TOPIC, 0.1)
    shares = {share.member_id: decode_assignment(bytes(share.assignment)) for share in leader._assign(["a", "b", "c"])}
    assert {name: [one.partition for one in found] for name, found in shares.items()} == {
        "a": [0, 3],
        "b": [1],
        "c": [2],
    }


@pytest.mark.parametrize(("restarts", "expected"), [(0, [0, 1, 2]), (2, [0, 1]), (9, [0, 1, 2])])
async def test_so_many_members_restart(monkeypatch: pytest.MonkeyPatch, restarts: int, expected: list[int]) -> None:
    restarted: list[int] = []

    async def restart_one(_group: Group, at: int) -> float:
        restarted.append(at)
        return 0.5

    monkeypatch.setattr(Group, "restart_one", restart_one)
    workload = GroupWorkload(TARGET, Options(restarts=restarts), "restart", "classic")
    workload.group = group((1, []), (1, []), (1, []))
    found = await workload.round()
    assert restarted == expected and found.steps == [0.5] * len(expected)
