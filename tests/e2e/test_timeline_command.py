"""`kcoord groups timeline`: what a group did, read from a running server."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kcoord.cli.main import main
from kcoord.client.admin import records
from kcoord.client.admin.admin import Admin
from kcoord.testing.fixture import KcoordServer
from tests.client.groups import classic_member, consumer_member, make_topic
from tests.e2e.process import ServerProcess


async def two_groups(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await make_topic(admin, "orders", 2)
    async with classic_member(bootstrap, "billing", "orders", "reader"):
        pass
    async with consumer_member(bootstrap, "next", "orders", "reader"):
        pass


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A server with group events, on which a member of each protocol has joined and left a group."""
    with ServerProcess(None) as server:
        asyncio.run(two_groups(server.bootstrap))
        yield server.bootstrap


def run(bootstrap: str, *arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["groups", "timeline", "-b", bootstrap, *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def document(bootstrap: str, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(bootstrap, *arguments, "-o", "json").stdout)
    return found


@pytest.mark.parametrize(("group", "protocol"), [("billing", "classic"), ("next", "consumer")])
def test_the_topic_and_the_log_tell_the_same(bootstrap: str, group: str, protocol: str) -> None:
    events = document(bootstrap, group)
    log = document(bootstrap, group, "--source", "log")
    assert (events["source"], log["source"]) == ("__group_events-0", "__consumer_offsets-0")
    assert events["epochs"] == log["epochs"]
    first, *_, last = events["epochs"]
    assert (first["protocol"], first["cause"], last["cause"]) == (protocol, "member_joined", "member_left")
    assert (first["members_before"], first["members_after"], first["partitions_after"]) == (0, 1, 2)
    assert first["duration_ms"] >= 0


def test_every_batch_is_read_however_small_the_answers(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = document(bootstrap, "next", "--source", "log")
    monkeypatch.setattr(records, "FETCH_BYTES", 1)
    assert document(bootstrap, "next", "--source", "log") == whole
    assert document(bootstrap, "next")["epochs"] == whole["epochs"]


def test_tables_and_ranges(bootstrap: str) -> None:
    epochs = document(bootstrap, "next")["epochs"]
    assert document(bootstrap, "next", "-n", "1")["epochs"] == epochs[-1:]
    assert document(bootstrap, "next", "--until", "@1")["epochs"] == []
    assert document(bootstrap, "next", "--since", f"@{epochs[-1]['time_ms']}")["epochs"][-1] == epochs[-1]
    rows = list(csv.DictReader(io.StringIO(run(bootstrap, "next", "-o", "csv").stdout)))
    assert [row["epoch"] for row in rows] == [str(row["epoch"]) for row in epochs]
    assert {row["group"] for row in rows} == {"next"}
    text = run(bootstrap, "next", "--watch", "0.01", "--times", "2").stdout
    assert text.count(f"next: {len(epochs)} epochs, from __group_events-0") == 2


def test_mistakes(bootstrap: str) -> None:
    assert run(bootstrap, "nxt", code=1).stderr == "kcoord: group 'nxt' does not exist; did you mean 'next'?\n"
    assert "-1 is not in the range" in run(bootstrap, "next", "-n", "-1", code=2).stderr


async def test_a_server_without_events(kcoord: KcoordServer) -> None:
    await two_groups(kcoord.bootstrap)
    assert (await asyncio.to_thread(document, kcoord.bootstrap, "billing"))["source"].startswith("__consumer_offsets-")
    refused = await asyncio.to_thread(run, kcoord.bootstrap, "billing", "--source", "events", code=1)
    assert refused.stderr.startswith("kcoord: the cluster has no topic __group_events; ")
