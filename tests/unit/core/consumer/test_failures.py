"""Requests to groups of the new protocol that fail half-way: they leave nothing behind, and later ones go through."""

from __future__ import annotations

from kcoord.core.assignors.range_assignor import RangeAssignor
from kcoord.core.assignors.spec import (
    Assignment,
    Assignor,
    AssignorError,
    GroupSpec,
    TopicDescriber,
)
from kcoord.core.coordinator import Core
from tests.scenarios.runner import Scenario


class Moody(Assignor):
    """Fails when told to."""

    def __init__(self) -> None:
        super().__init__("moody")
        self.fails = False
        self.range = RangeAssignor()

    def assign(self, group: GroupSpec, topics: TopicDescriber) -> dict[str, Assignment]:
        if self.fails:
            raise AssignorError("not in the mood")
        return self.range.assign(group, topics)


def story(policy: str = "bidirectional") -> tuple[Scenario, Moody]:
    scenario = Scenario()
    scenario.run(f"config group_consumer_assignment_interval_ms=0 group_consumer_migration_policy={policy}")
    assignor = Moody()
    scenario._core = Core(scenario.config, {"moody": assignor})
    scenario._load(scenario._core)
    scenario.run("topic t partitions=2")
    scenario.run("beat client=a topics=t")
    return scenario, assignor


def failures(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(("record", "DIGEST"))]


def test_a_failing_assignor_is_reported_and_changes_nothing() -> None:
    scenario, assignor = story()
    assignor.fails = True
    lines = scenario.run("beat client=b topics=t")
    assert not failures(lines)
    assert "error_code=UNKNOWN_SERVER_ERROR" in lines[0] and "not in the mood" in lines[0]
    assert any(line.startswith("fact WARNING consumer_group_assignor_failed") for line in lines)
    assert list(scenario.core.groups.consumer_groups["g"].members) == ["a"]
    assignor.fails = False
    assert "member_epoch=3" in " ".join(scenario.run("beat client=b topics=t"))


def test_new_partitions_are_not_forgotten() -> None:
    scenario, assignor = story()
    assignor.fails = True
    scenario.run("grow t partitions=3")
    assert not failures(scenario.run("beat client=a"))
    assignor.fails = False
    assert "partitions=[0, 1, 2]" in " ".join(scenario.run("beat client=a"))


def test_expressions_are_resolved_after_a_failure() -> None:
    scenario, assignor = story()
    assignor.fails = True
    lines = scenario.run("beat client=b topics=t regex=u.*")
    assert not failures(lines) and not scenario.jobs
    assignor.fails = False
    scenario.run("beat client=b topics=t regex=u.*")
    assert list(scenario.jobs) == ["resolve-regex:g"]


def test_a_classic_join_that_fails() -> None:
    scenario, assignor = story()
    assignor.fails = True
    lines = scenario.run("join client=k version=3 topics=t")
    assert not failures(lines)
    assert "reply k: JoinGroup error_code=UNKNOWN_SERVER_ERROR" in lines
    assert any(line.startswith("fact WARNING consumer_group_assignor_failed") for line in lines)
    assert list(scenario.core.groups.consumer_groups["g"].members) == ["a"]
    assignor.fails = False
    assert "generation_id=3" in " ".join(scenario.run("join client=k version=3 topics=t"))


def test_an_upgrade_that_fails() -> None:
    scenario, assignor = story()
    scenario.run("join client=p group=h version=3 topics=t")
    scenario.run("sync client=p group=h assign=p:t/0+t/1")
    assignor.fails = True
    lines = scenario.run("beat client=b group=h topics=t")
    assert not failures(lines)
    assert scenario.run("heartbeat client=p group=h") == ["reply p: Heartbeat"]
    assignor.fails = False
    scenario.run("beat client=b group=h topics=t")
    assert "REBALANCE_IN_PROGRESS" in scenario.run("heartbeat client=p group=h")[0]


def test_classic_members_alone_work_on_with_what_they_have() -> None:
    scenario, assignor = story("upgrade")
    scenario.run("join client=k version=3 topics=t")
    for command in (
        "beat client=a",
        "beat client=a owned=all",
        "join client=k version=3 topics=t",
        "sync client=k",
    ):
        scenario.run(command)
    scenario.run("beat client=a epoch=-1")
    assignor.fails = True
    lines = scenario.run("heartbeat client=k")
    assert not failures(lines)
    assert "reply k: Heartbeat" in lines
    assert [line.split()[2] for line in lines if line.startswith("fact")] == ["consumer_group_assignor_failed"]
    assignor.fails = False
    assert "REBALANCE_IN_PROGRESS" in " ".join(scenario.run("heartbeat client=k"))
