"""`kcoord bench` against servers of the fixture: every workload, a comparison, and what is removed afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kcoord.cli.bench.lanes import lane_plan
from kcoord.cli.bench.options import GROUPS, NEWCOMERS, PREFIX, STEADY
from kcoord.cli.main import main
from kcoord.protocol import apis
from kcoord.protocol.offset_commit import OffsetCommitRequest
from kcoord.testing.fixture import KcoordServer
from tests.e2e.process import clean_environment, foreground_command

WAIT_S = 60.0
QUICK = [
    "--seconds", "0.15", "--warm-up", "0.05", "--rounds", "2", "--connections", "3", "--in-flight", "2",
    "--members", "3", "--heartbeat", "0.02", "--record-bytes", "10", "--batch-records", "2", "--fetch-bytes", "2000",
    "--timeout", "30",
]  # fmt: skip


def bench(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["bench", *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def measured(at: str, *arguments: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bench("-b", at, *QUICK, *arguments, "-o", "json", code=code).stdout)
    return found


def left_over(server: KcoordServer) -> list[str]:
    return [row["name"] for row in json.loads(bench("clean", "-b", server.bootstrap, "-o", "json").stdout)]


def test_steady_workloads(kcoord: KcoordServer) -> None:
    found = measured(kcoord.bootstrap, "steady")
    assert [row["workload"] for row in found["workloads"]] == [*STEADY]
    for row in found["workloads"]:
        assert row["skipped"] is None
        assert row["errors"] == {}
        assert len(row["rounds"]) == 2
        # On a busy machine nobody may answer during one of the short rounds.
        assert any(one["answered"] > 0 and one["per_second"] > 0 for one in row["rounds"])
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["p999_ms"]
        assert row["versions"]
    assert left_over(kcoord) == []


def test_the_server_sees_what_is_measured(kcoord: KcoordServer) -> None:
    """Every request commits new offsets of all partitions, with several in flight, over two processes."""
    # The fixture remembers 20,000 requests, which a fast machine sends within the test; held up, they stay below that.
    with kcoord.delay("OffsetCommit", seconds=0.002):
        measured(kcoord.bootstrap, "commit-5", "--processes", "2")
    by_group: dict[str, list[int]] = {}
    for one in kcoord.requests("OffsetCommit"):
        assert isinstance(one.body, OffsetCommitRequest)
        (topic,) = one.body.topics
        (offset,) = {part.committed_offset for part in topic.partitions}
        assert len(topic.partitions) == 5
        by_group.setdefault(one.body.group_id, []).append(offset)
    assert len(by_group) == 3
    for offsets_of_group in by_group.values():
        assert offsets_of_group == [*range(1, len(offsets_of_group) + 1)]


@pytest.mark.kcoord(settings={"group.consumer.assignment.interval.ms": 0})
def test_group_workloads(kcoord: KcoordServer) -> None:
    found = measured(kcoord.bootstrap, "groups")
    assert [row["workload"] for row in found["workloads"]] == [*GROUPS]
    steps = {"join": 1, "restart": 3, "flap": 10}
    for row in found["workloads"]:
        assert (row["skipped"], row["errors"]) == (None, {})
        for one in row["rounds"]:
            assert len(one["steps"]) == steps[row["workload"].partition("-")[0]]
            assert all(0 < step <= one["seconds"] for step in one["steps"])
    assert left_over(kcoord) == []


def test_newcomers(kcoord: KcoordServer) -> None:
    """They do what a consumer does at its start, each with connections of its own."""
    # Held up, they stay below what the fixture remembers.
    with kcoord.delay("OffsetCommit", seconds=0.005):
        found = measured(kcoord.bootstrap, "newcomers", "--seconds", "0.5")
    assert [row["workload"] for row in found["workloads"]] == [*NEWCOMERS]
    for row in found["workloads"]:
        assert (row["skipped"], row["errors"]) == (None, {})
        assert row["newcomers"] == sum(one["newcomers"] for one in row["rounds"]) >= 2
        assert 0 < row["in_p50_ms"] <= row["in_p99_ms"] <= row["in_max_ms"]
        # The load goes on beside them.
        assert row["per_second"] > 0
    by_connection: dict[int, list[str]] = {}
    for one in kcoord.requests():
        by_connection.setdefault(one.connection, []).append(one.api)
    for joins in (["JoinGroup", "JoinGroup", "SyncGroup"], ["ConsumerGroupHeartbeat", "ConsumerGroupHeartbeat"]):
        whole = ["ApiVersions", *joins, "OffsetFetch", "OffsetCommit"]
        assert sum(steps == whole for steps in by_connection.values()) >= 4
    assert left_over(kcoord) == []


def test_a_newcomer_that_is_not_let_in_is_an_error(kcoord: KcoordServer) -> None:
    kcoord.fail("OffsetFetch", error="GROUP_AUTHORIZATION_FAILED", skip=1, times=2)
    (row,) = measured(kcoord.bootstrap, "newcomer-classic", "--seconds", "0.5", code=1)["workloads"]
    assert row["errors"] == {"GROUP_AUTHORIZATION_FAILED": 2} and row["newcomers"] > 0
    kcoord.fail("OffsetFetch", error="GROUP_AUTHORIZATION_FAILED", times=1)
    (row,) = measured(kcoord.bootstrap, "newcomer-classic", code=1)["workloads"]
    assert "GROUP_AUTHORIZATION_FAILED" in row["skipped"]
    assert left_over(kcoord) == []


@pytest.mark.kcoord(settings={"group.consumer.assignment.interval.ms": 0})
@pytest.mark.parametrize("processes", [2, 4])
def test_a_group_in_several_processes(kcoord: KcoordServer, processes: int) -> None:
    """Of four processes, one has no member."""
    names = ["restart-classic", "restart-consumer", "flap-classic", "flap-consumer"]
    found = measured(kcoord.bootstrap, *names, "--processes", str(processes), "--rounds", "1")
    for row in found["workloads"]:
        assert (row["skipped"], row["errors"]) == (None, {})
        assert row["generator_cores"] > 0
    assert left_over(kcoord) == []


@pytest.mark.kcoord(settings={"group.consumer.assignment.interval.ms": 0})
@pytest.mark.parametrize(
    ("protocol", "api", "skip"),
    [("classic", "Heartbeat", 4), ("classic", "SyncGroup", 10), ("consumer", "ConsumerGroupHeartbeat", 20)],
)
def test_members_come_back(kcoord: KcoordServer, protocol: str, api: str, skip: int) -> None:
    """After a lost connection, and from a broker that does not coordinate the group any more."""
    kcoord.cut(api, skip=skip, times=1)
    kcoord.fail(api, error="NOT_COORDINATOR", skip=skip + 4, times=1)
    (row,) = measured(kcoord.bootstrap, f"restart-{protocol}", "--rounds", "4", code=1)["workloads"]
    assert row["skipped"] is None
    assert row["errors"] == {"CONNECTION_LOST": 1, "NOT_COORDINATOR": 1}
    assert [len(one["steps"]) for one in row["rounds"]] == [3] * 4
    assert left_over(kcoord) == []


def test_a_table_fits_a_terminal(kcoord: KcoordServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = ("heartbeat", "join-classic", "newcomer-consumer")
    lines = bench("-b", kcoord.bootstrap, *names, *QUICK).stdout.splitlines()
    assert lines[0].split()[:3] == ["WORKLOAD", "LOAD", "REQ/S"]
    assert lines[1].split()[:2] == ["heartbeat", "3x2"]
    assert lines[4].split()[:2] == ["join-classic", "3"]
    assert lines[6].split()[:3] == ["WORKLOAD", "LOAD", "REQ/S"]
    assert lines[7].split()[:2] == ["newcomer-consumer", "3x2"]
    assert all(len(line) <= 80 for line in lines)


def test_errors_are_counted_by_name(kcoord: KcoordServer) -> None:
    kcoord.fail("Heartbeat", error="NOT_COORDINATOR", skip=20, times=7)
    found = measured(kcoord.bootstrap, "heartbeat", "--warm-up", "0", code=1)
    (row,) = found["workloads"]
    assert row["errors"] == {"NOT_COORDINATOR": 7}
    assert row["per_second"] > 0
    kcoord.cut("Heartbeat", skip=20, times=1)
    found = measured(kcoord.bootstrap, "heartbeat", "--warm-up", "0", code=1)
    assert [*found["workloads"][0]["errors"]] == ["CONNECTION_LOST"]
    assert left_over(kcoord) == []


def test_a_missing_api_is_a_reason(kcoord: KcoordServer) -> None:
    kcoord.offer("3.6")
    found = measured(kcoord.bootstrap, "consumer-heartbeat", "heartbeat", "join-consumer", code=1)
    heartbeat, consumer_heartbeat, join = found["workloads"]
    assert heartbeat["skipped"] is None
    assert "does not have ConsumerGroupHeartbeat in a version" in consumer_heartbeat["skipped"]
    assert "does not have ConsumerGroupHeartbeat in a version" in join["skipped"]
    assert left_over(kcoord) == []
    text = bench("-b", kcoord.bootstrap, "consumer-heartbeat", *QUICK, code=1).stdout
    assert "  skipped: " in text


def test_old_versions(kcoord: KcoordServer) -> None:
    kcoord.offer("2.4")
    names = [name for name in STEADY if name != "consumer-heartbeat"]
    found = measured(kcoord.bootstrap, *names, "join-classic", "--rounds", "1")
    assert found["workloads"][0]["versions"] == {"OffsetCommit": 8}
    assert "AddPartitionsToTxn" in found["workloads"][-2]["versions"]


def test_leaders_and_coordinators_on_several_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    ports: dict[int, set[int]] = {}

    def plan(host: str, port: int, api_key: int, *rest: Any) -> dict[str, Any]:
        ports.setdefault(api_key, set()).add(port)
        return lane_plan(host, port, api_key, *rest)

    monkeypatch.setattr("kcoord.cli.bench.steady.lane_plan", plan)
    with KcoordServer(brokers=3) as server:
        names = ["commit-1", "produce", "transactions", "join-classic"]
        found = measured(server.bootstrap, *names, "--connections", "8", "--rounds", "1")
        assert all((row["skipped"], row["errors"]) == (None, {}) for row in found["workloads"])
    # Wherever a lane has the wrong broker, answers have NOT_COORDINATOR or NOT_LEADER_OR_FOLLOWER.
    assert len(ports[apis.OFFSET_COMMIT]) > 1
    assert len(ports[apis.PRODUCE]) > 1


def test_compare(kcoord: KcoordServer, tmp_path: Path) -> None:
    with KcoordServer() as other:
        results = str(tmp_path / "x")
        names = ["heartbeat", "join-classic", "--save", results]
        arguments = ["compare", kcoord.bootstrap, other.bootstrap, *names, *QUICK, "-o", "json"]
        rows = json.loads(bench(*arguments).stdout)
        assert [(row["workload"], row["figure"]) for row in rows] == [
            ("heartbeat", "req/s"), ("heartbeat", "p50 ms"), ("heartbeat", "p99 ms"),
            ("join-classic", "seconds"), ("join-classic", "step p50 s"),
        ]  # fmt: skip
        assert all(row["ratio_min"] <= row["ratio"] <= row["ratio_max"] for row in rows)
        assert left_over(other) == []
    again = json.loads(bench("compare", f"{results}.a.json", f"{results}.b.json", "-o", "json").stdout)
    assert [row["figure"] for row in again] == [row["figure"] for row in rows]
    # Both columns are what --save wrote.
    assert [(row["a"], row["b"]) for row in again] == [(row["a"], row["b"]) for row in rows]


@pytest.mark.parametrize(
    ("sent", "code", "last", "api"),
    [(signal.SIGINT, 130, "restart-classic", "LeaveGroup"), (signal.SIGTERM, 143, "commit-100", "OffsetCommit")],
    ids=["SIGINT", "SIGTERM"],
)
def test_an_interrupted_run_removes_what_it_created(
    kcoord: KcoordServer, sent: signal.Signals, code: int, last: str, api: str
) -> None:
    """In the middle of a restart, which lasts long with rare heartbeats, and in the middle of a round."""
    first = ["commit-1", "--seconds", "0.2"] if last == "restart-classic" else ["--seconds", "60"]
    options = ["--heartbeat", "60", "--members", "2", "--warm-up", "0", "--rounds", "1"]
    command = foreground_command("bench", "-b", kcoord.bootstrap, last, *first, *options)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environment()) as process:
        deadline = time.monotonic() + WAIT_S
        # One for each of 16 connections belongs to the preparation.
        enough = 1 if last == "restart-classic" else 50
        while sum(last in str(one.body) for one in kcoord.requests(api)) < enough:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert left_over(kcoord)
        os.kill(process.pid, sent)
        # Long before the end of the round.
        text, _ = process.communicate(timeout=WAIT_S / 3)
    assert process.returncode == code
    assert left_over(kcoord) == []
    # What was complete is printed.
    assert ("commit-1 " in text) == (last == "restart-classic")
    assert last not in text


def test_clean_removes_what_a_killed_run_has_left(kcoord: KcoordServer) -> None:
    kcoord.create_topic(f"{PREFIX}1-produce")
    kcoord.create_topic("orders")
    for group in (f"{PREFIX}1-group", "billing"):
        kcoord.commit(group, {("orders", 0): 1})
    assert left_over(kcoord) == [f"{PREFIX}1-group", f"{PREFIX}1-produce"]
    text = bench("clean", "-b", kcoord.bootstrap, "--execute").stdout
    assert [line.split()[-1] for line in text.splitlines()[1:]] == ["removed", "removed"]
    assert left_over(kcoord) == []
    assert [*kcoord.topics()] == ["orders"]
    assert kcoord.committed("billing") == {("orders", 0): 1}


def test_no_cluster() -> None:
    result = bench("-b", "127.0.0.1:1", "heartbeat", "--timeout", "0.3", code=3)
    assert "127.0.0.1:1: Connection refused" in result.stderr
