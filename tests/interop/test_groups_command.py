"""`kcoord groups` and `kafka-consumer-groups` on one cluster of Kafka's: the same offsets, lags, members and resets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kcoord.cli.main import main
from kcoord.client.admin.admin import Admin
from kcoord.client.partition import TopicPartition
from tests.client.groups import FIRST_MS, classic_member, consumer_member, make_topic, produce
from tests.harness.real_broker import RealBroker
from tests.interop import tools


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A broker with `orders` (10 and 4 records, the first two deleted) and the groups `billing` and `other`."""
    with RealBroker() as broker:

        async def prepare() -> None:
            async with Admin(broker.bootstrap) as admin:
                one, two, three = await make_topic(admin, "orders", 3)
                produce(broker.bootstrap, "orders", {0: 10, 1: 4})
                await admin.delete_records({one: 2})
                await admin.alter_group_offsets("billing", {one: 5, two: 4})
                await admin.alter_group_offsets("other", {three: 0})

        asyncio.run(prepare())
        yield broker.bootstrap


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def ours(bootstrap: str, *arguments: str) -> Result:
    result = CliRunner().invoke(main, ["groups", *arguments, "--bootstrap", bootstrap], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def our_rows(bootstrap: str, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ours(bootstrap, *arguments, "-o", "json").stdout)
    return found


def theirs(bootstrap: str, *arguments: str) -> tools.Result:
    done = tools.run(tools.GROUPS, "--bootstrap-server", bootstrap, *arguments)
    assert done.code == 0, done
    return done


def same_offsets(bootstrap: str, group: str) -> None:
    """Each row of Kafka's tool is one of ours."""

    def text(value: object) -> str:
        return "-" if value is None else str(value)

    kafkas = {
        (row["TOPIC"], row["PARTITION"]): (
            row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"], row["CONSUMER-ID"], row["HOST"], row["CLIENT-ID"],
        )
        for row in theirs(bootstrap, "--describe", "--group", group, "--offsets").table()
    }  # fmt: skip
    own = {
        (row["topic"], str(row["partition"])): tuple(
            text(row[key]) for key in ("offset", "end_offset", "lag", "member", "host", "client_id")
        )
        for row in our_rows(bootstrap, "describe", group)
    }
    assert own and own == kafkas


def test_an_empty_group(bootstrap: str) -> None:
    same_offsets(bootstrap, "billing")
    tool = theirs(bootstrap, "--describe", "--group", "billing")
    assert "Consumer group 'billing' has no active members." in tool.err
    assert "group 'billing' has no active members" in ours(bootstrap, "describe", "billing").stderr


async def test_groups_with_members(bootstrap: str) -> None:
    async with classic_member(bootstrap, "live", "orders", "reader"):
        await asyncio.to_thread(same_offsets, bootstrap, "live")
    async with consumer_member(bootstrap, "next", "orders", "reader"):
        await asyncio.to_thread(same_offsets, bootstrap, "next")
        (state,) = await asyncio.to_thread(our_rows, bootstrap, "describe", "next", "--state")
        tool = await asyncio.to_thread(theirs, bootstrap, "--describe", "--group", "next", "--state")
        line = tool.lines[1].split()
        assert line[0] == "next" and line[-2:] == [state["state"], str(state["members"])]
        assert state["assignor"] in line and state["coordinator"] in line


def test_the_list(bootstrap: str) -> None:
    own = {row["group"]: row["state"] for row in our_rows(bootstrap, "list")}
    assert own == {row["GROUP"]: row["STATE"] for row in theirs(bootstrap, "--list", "--state").table()}


@pytest.mark.parametrize(
    "target",
    [
        ["--to-earliest"],
        ["--to-latest"],
        ["--to-current"],
        ["--to-offset", "3"],
        ["--to-offset", "1"],
        ["--shift-by", "-2"],
        ["--shift-by", "3"],
        ["--to-datetime", "2023-11-14T22:13:26.000"],
        ["--by-duration", "P1D"],
    ],
    ids="".join,
)
def test_plans(bootstrap: str, target: list[str]) -> None:
    """FIRST_MS + 6 s is 22:13:26."""
    assert FIRST_MS == 1_700_000_000_000
    tool = theirs(bootstrap, "--reset-offsets", "--group", "billing", "--all-topics", *target, "--export", "--dry-run")
    plan = ours(bootstrap, "reset", "billing", "--all-topics", *target, "--export", "--dry-run").stdout
    assert sorted(plan.splitlines()) == sorted(
        line.replace('"', "") for line in tool.lines if line.startswith(('"', "o"))
    )
    assert len(plan.splitlines()) == 2


def test_files_go_both_ways(bootstrap: str, home: Path) -> None:
    """Kafka's tool executes our plan, and we undo what it did."""
    before = our_rows(bootstrap, "describe", "billing", "--no-time")
    undo, plan = home / "undo.csv", home / "plan.csv"
    undo.write_text(ours(bootstrap, "reset", "billing", "--all-topics", "--to-current", "--export").stdout)
    plan.write_text(ours(bootstrap, "reset", "billing", "--all-topics", "--to-earliest", "--export").stdout)
    theirs(bootstrap, "--reset-offsets", "--group", "billing", "--from-file", str(plan), "--execute")
    found = our_rows(bootstrap, "describe", "billing", "--no-time")
    assert [row["offset"] for row in found] == [row["start_offset"] for row in found] == [2, 0]
    ours(bootstrap, "reset", "billing", "--from-file", str(undo), "--execute")
    assert our_rows(bootstrap, "describe", "billing", "--no-time") == before


def test_a_file_with_several_groups(bootstrap: str, home: Path) -> None:
    arguments = ["billing", "other", "--topic", "orders:0", "--to-earliest", "--export"]
    plan = ours(bootstrap, "reset", *arguments).stdout
    (home / "plan.csv").write_text(plan)
    both = ["--group", "billing", "--group", "other"]
    rows = theirs(bootstrap, "--reset-offsets", *both, "--from-file", str(home / "plan.csv"), "--dry-run").table()
    found = sorted((row["GROUP"], row["TOPIC"], row["PARTITION"], row["NEW-OFFSET"]) for row in rows)
    assert found == [("billing", "orders", "0", "2"), ("other", "orders", "0", "2")]


def test_records_that_are_gone_are_no_lag(bootstrap: str) -> None:
    """The one intended difference: the log begins at 2, and Kafka's tool counts from 0."""

    async def prepare() -> None:
        async with Admin(bootstrap) as admin:
            await admin.alter_group_offsets("behind", {TopicPartition("orders", 0): 0})

    asyncio.run(prepare())
    (row,) = theirs(bootstrap, "--describe", "--group", "behind", "--offsets").table()
    (own,) = our_rows(bootstrap, "describe", "behind")
    assert (row["LAG"], own["lag"]) == ("10", 8)


def test_deletions(bootstrap: str) -> None:
    async def prepare() -> None:
        async with Admin(bootstrap) as admin:
            one, two = TopicPartition("orders", 0), TopicPartition("orders", 1)
            await admin.alter_group_offsets("short-lived", {one: 1, two: 2})

    asyncio.run(prepare())
    ours(bootstrap, "delete-offsets", "short-lived", "--topic", "orders:1", "--execute")
    rows = theirs(bootstrap, "--describe", "--group", "short-lived", "--offsets").table()
    assert [(row["PARTITION"], row["CURRENT-OFFSET"]) for row in rows] == [("0", "1")]
    ours(bootstrap, "delete", "short-lived", "--execute")
    assert "short-lived" not in theirs(bootstrap, "--list").lines


async def test_the_timeline_of_a_broker_has_no_causes(bootstrap: str) -> None:
    async with classic_member(bootstrap, "seen", "orders", "reader"):
        pass
    result = await asyncio.to_thread(ours, bootstrap, "timeline", "seen", "-o", "json")
    document = json.loads(result.stdout)
    assert document["source"].startswith("__consumer_offsets-")
    first, *_, last = document["epochs"]
    assert (first["members_after"], last["members_after"], first["cause"]) == (1, 0, None)
    assert "have no cause" in (await asyncio.to_thread(ours, bootstrap, "timeline", "seen")).stderr
