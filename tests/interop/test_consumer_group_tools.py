"""Kafka's tools on consumer groups (KIP-848) and on classic ones beside them.

What they must print was taken from a real broker, as in test_tools.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from tests.interop import tools
from tests.interop.conftest import Target
from tests.interop.test_tools import consume, create, fill, offsets, reset

NEW = ("--command-property", "group.protocol=consumer")
RUNNING = ("--command-property", "auto.commit.interval.ms=200")


@pytest.fixture(scope="module")
def at(quick_target: Target) -> list[str]:
    return ["--bootstrap-server", quick_target.bootstrap]


def is_stable(members: str, result: tools.Result) -> bool:
    return result.lines[-1].split()[-2:] == ["Stable", members]


@pytest.fixture(scope="module")
def both(at: list[str]) -> Iterator[str]:
    """A stem: STEM-new is a consumer group of two members, STEM-old a classic one, both at work and at the end."""
    stem = "tools-both"
    create(at, stem, 4)
    fill(at, stem, 8)
    with ExitStack() as stack:
        for name, protocol in (("new", NEW), ("new", NEW), ("old", ())):
            options = ["--topic", stem, "--group", f"{stem}-{name}", "--from-beginning", *RUNNING, *protocol]
            stack.enter_context(tools.running(tools.CONSOLE_CONSUMER, *at, *options))
        for name, members in (("new", "2"), ("old", "1")):
            tools.until(
                "a stable group",
                partial(tools.run, tools.GROUPS, *at, "--describe", "--group", f"{stem}-{name}", "--state"),
                partial(is_stable, members),
            )
            tools.until(
                "commits",
                partial(tools.run, tools.GROUPS, *at, "--describe", "--group", f"{stem}-{name}"),
                lambda result: [row["LAG"] for row in result.table()] == ["0"] * 4,
            )
        yield stem


def test_listings(at: list[str], both: str) -> None:
    listed = tools.run(tools.GROUPS, *at, "--list", "--state", "--type").table()
    assert {row["GROUP"]: (row["TYPE"], row["STATE"]) for row in listed if row["GROUP"].startswith(both)} == {
        f"{both}-new": ("Consumer", "Stable"), f"{both}-old": ("Classic", "Stable"),
    }  # fmt: skip
    assert [row["GROUP"] for row in tools.run(tools.GROUPS, *at, "--list", "--type", "consumer").table()] == [
        f"{both}-new"
    ]
    rows = {row["GROUP"]: row for row in tools.run(tools.GROUP_LISTING, *at, "--list").table()}
    assert rows[f"{both}-new"] == {"GROUP": f"{both}-new", "TYPE": "Consumer", "PROTOCOL": "consumer"}
    assert rows[f"{both}-old"] == {"GROUP": f"{both}-old", "TYPE": "Classic", "PROTOCOL": "consumer"}
    only = tools.run(tools.GROUP_LISTING, *at, "--list", "--group-type", "consumer").table()
    assert [row["GROUP"] for row in only] == [f"{both}-new"]


def test_descriptions(at: list[str], both: str) -> None:
    def described(name: str, *what: str) -> list[dict[str, str]]:
        return tools.run(tools.GROUPS, *at, "--describe", "--group", f"{both}-{name}", *what).table()

    for name, members in (("new", 2), ("old", 1)):
        rows = described(name, "--offsets")
        assert sorted((row["PARTITION"], row["LAG"], row["CLIENT-ID"]) for row in rows) == [
            (str(number), "0", "console-consumer") for number in range(4)
        ]
        assert len({row["CONSUMER-ID"] for row in rows}) == members
    rows = described("new", "--members", "--verbose")
    assert [(row["#PARTITIONS"], row["HOST"], row["CLIENT-ID"]) for row in rows] == [
        ("2", "/127.0.0.1", "console-consumer")
    ] * 2
    assert sorted(row["CURRENT-ASSIGNMENT"] for row in rows) == [f"{both}:0,1", f"{both}:2,3"]
    assert [row["TARGET-ASSIGNMENT"] for row in rows] == [row["CURRENT-ASSIGNMENT"] for row in rows]
    (epoch,) = {row["CURRENT-EPOCH"] for row in rows} | {row["TARGET-EPOCH"] for row in rows}
    state = tools.run(tools.GROUPS, *at, "--describe", "--group", f"{both}-new", "--state", "--verbose")
    assert state.lines[1].split()[-5:] == ["uniform", "Stable", epoch, epoch, "2"], state
    (row,) = described("old", "--members", "--verbose")
    assert (row["CURRENT-EPOCH"], row["CURRENT-ASSIGNMENT"]) == ("-", f"{both}:0,1,2,3")
    # Both kinds at once.
    groups = ["--group", f"{both}-new", "--group", f"{both}-old"]
    lines = tools.run(tools.GROUPS, *at, "--describe", *groups, "--state").lines
    assert [line.split()[-3:] for line in lines[1::2]] == [["uniform", "Stable", "2"], ["range", "Stable", "1"]], lines


def test_refusals(at: list[str], both: str) -> None:
    for group in (["--group", f"{both}-new"], ["--group", f"{both}-old"]):
        refused = tools.run(tools.GROUPS, *at, "--reset-offsets", *group, "--all-topics", "--to-earliest", "--execute")
        assert f"Assignments can only be reset if the group '{group[1]}' is inactive" in refused.out, refused
    refused = tools.run(tools.GROUPS, *at, "--delete", "--group", f"{both}-new", "--group", f"{both}-old")
    assert refused.out.count("GroupNotEmptyException") == 2, refused
    refused = tools.run(tools.GROUPS, *at, "--delete-offsets", "--group", f"{both}-new", "--topic", both)
    assert "GroupSubscribedToTopicException" in refused.out, refused


def test_an_empty_group(at: list[str]) -> None:
    name = "tools-empty-consumer"
    create(at, name)
    fill(at, name, 10)
    arguments = ["--topic", name, "--group", name, "--from-beginning", "--max-messages", "10", "--timeout-ms", "20000"]
    assert len(tools.run(tools.CONSOLE_CONSUMER, *at, *arguments, *NEW).lines) == 10
    assert offsets(at, name) == {f"{name}-0": ["10", "10", "0"]}
    state = tools.run(tools.GROUPS, *at, "--describe", "--group", name, "--state").lines[1].split()
    assert state[-3:] == ["uniform", "Empty", "0"], state
    topic = ["--topic", name]
    assert reset(at, name, *topic, "--to-earliest", "--dry-run") == {f"{name}-0": "0"}
    assert reset(at, name, *topic, "--shift-by", "-4", "--execute") == {f"{name}-0": "6"}
    assert offsets(at, name) == {f"{name}-0": ["6", "10", "4"]}
    # A member of the other kind goes on from there: an empty group takes the type of whoever comes.
    assert consume(at, name, name, 4).lines == [f"line {i}" for i in range(6, 10)]
    types = {row["GROUP"]: row["TYPE"] for row in tools.run(tools.GROUPS, *at, "--list", "--type").table()}
    assert types[name] == "Classic"
    done = tools.run(tools.GROUPS, *at, "--delete", "--group", name)
    assert f"('{name}') was successful" in done.out, done
