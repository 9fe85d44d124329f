"""`kcoord groups` against a server, with members of both group protocols."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kcoord.cli.main import main
from kcoord.client.admin.admin import Admin
from kcoord.client.partition import TopicPartition
from kcoord.testing.fixture import KcoordServer
from tests.client.groups import classic_member, consumer_member, make_topic, produce
from tests.e2e.process import clean_environment, kcoord_command

AGE_S = 100


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The config file and the undo files of this test."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def bootstrap(kcoord: KcoordServer) -> str:
    """Topic `orders` with 10 and 4 records, the first 100 s old, and the group `billing` at 3 and 4."""

    async def prepare() -> None:
        async with Admin(kcoord.bootstrap) as admin:
            one, two = await make_topic(admin, "orders", 2)
            produce(kcoord.bootstrap, "orders", {0: 10, 1: 4}, time.time_ns() // 1_000_000 - 1000 * AGE_S)
            await admin.alter_group_offsets("billing", {one: 3, two: 4})

    asyncio.run(prepare())
    return kcoord.bootstrap


def run(bootstrap: str, command: str, *arguments: str, code: int = 0) -> Result:
    whole = ["groups", command, "--bootstrap", bootstrap, *arguments]
    result = CliRunner().invoke(main, whole, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def rows(bootstrap: str, command: str, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(bootstrap, command, *arguments, "-o", "json").stdout)
    return found


def committed(bootstrap: str, group: str = "billing") -> dict[int, int]:
    return {row["partition"]: row["offset"] for row in rows(bootstrap, "describe", group, "--no-time")}


# --- list and describe


def test_an_empty_group_is_described_with_a_warning(bootstrap: str) -> None:
    """KIP-88: the offsets on standard output, the warning on standard error."""
    result = run(bootstrap, "describe", "billing")
    assert result.stderr == "kcoord: group 'billing' has no active members (state Empty)\n"
    head, *lines = result.stdout.splitlines()
    assert head.split()[:6] == ["GROUP", "TOPIC", "PARTITION", "OFFSET", "START", "END"]
    assert [line.split()[:7] for line in lines] == [
        ["billing", "orders", "0", "3", "0", "10", "7"],
        ["billing", "orders", "1", "4", "0", "4", "0"],
    ]


def test_lag_in_seconds_is_the_age_of_the_first_unread_record(bootstrap: str) -> None:
    behind, reading = rows(bootstrap, "describe", "billing")
    assert AGE_S - 3 <= behind["lag_seconds"] < AGE_S - 3 + 60
    assert (reading["lag"], reading["lag_seconds"]) == (0, 0)


def test_lag_begins_at_the_start_of_the_log(bootstrap: str) -> None:
    async def shorten() -> None:
        async with Admin(bootstrap) as admin:
            await admin.delete_records({TopicPartition("orders", 0): 8})

    asyncio.run(shorten())
    behind = rows(bootstrap, "describe", "billing")[0]
    assert (behind["offset"], behind["start_offset"], behind["lag"]) == (3, 8, 2)
    assert AGE_S - 8 <= behind["lag_seconds"] < AGE_S - 8 + 60
    (summary,) = rows(bootstrap, "describe", "billing", "--state")
    assert (summary["lag"], summary["members"], summary["state"]) == (2, 0, "Empty")


async def test_members_and_left_topics(bootstrap: str) -> None:
    """A topic that the group has left keeps its offsets and its lag; --assigned leaves it out."""
    async with Admin(bootstrap) as admin:
        await make_topic(admin, "payments")
    async with classic_member(bootstrap, "billing", "payments", "reader"):
        found = await asyncio.to_thread(rows, bootstrap, "describe", "billing")
        assert [(row["topic"], row["offset"], row["client_id"]) for row in found] == [
            ("orders", 3, None), ("orders", 4, None), ("payments", None, "reader"),
        ]  # fmt: skip
        assert found[2]["lag"] is None and found[2]["end_offset"] == 0
        owned = await asyncio.to_thread(rows, bootstrap, "describe", "billing", "--assigned")
        assert [row["topic"] for row in owned] == ["payments"]
        (member,) = await asyncio.to_thread(rows, bootstrap, "members", "billing")
        assert (member["client_id"], member["assignment"]) == ("reader", ["payments-0"])
        refused = await asyncio.to_thread(run, bootstrap, "reset", "billing", "--all-topics", "--to-latest", code=1)
        assert "has active members (state Stable)" in refused.stderr
        removed = await asyncio.to_thread(
            run, bootstrap, "remove-members", "billing", "--all-members", "--execute", "-o", "csv"
        )
        assert removed.stdout.splitlines()[1].endswith(",reader,removed")


async def test_a_consumer_group(bootstrap: str) -> None:
    async with consumer_member(bootstrap, "next", "orders", "reader"):
        (group,) = await asyncio.to_thread(rows, bootstrap, "list", "--type", "consumer")
        assert (group["group"], group["type"]) == ("next", "consumer")
        (member,) = await asyncio.to_thread(rows, bootstrap, "members", "next")
        assert member["partitions"] == 2 and member["epoch"] >= 1
        (summary,) = await asyncio.to_thread(rows, bootstrap, "describe", "next", "--state")
        assert (summary["members"], summary["partitions"]) == (1, 2) and summary["epoch"] >= member["epoch"]


def test_list(bootstrap: str) -> None:
    assert rows(bootstrap, "list") == [{"group": "billing", "type": "classic", "state": "Empty", "protocol_type": ""}]
    assert rows(bootstrap, "list", "--state", "Stable") == []
    assert run(bootstrap, "list", "-o", "csv").stdout == "group,type,state,protocol_type\nbilling,classic,Empty,\n"
    twice = run(bootstrap, "list", "--watch", "0.01", "--times", "2")
    assert twice.stdout.count("billing") == 2


def test_an_unknown_group_does_not_hide_the_others(bootstrap: str) -> None:
    result = run(bootstrap, "describe", "bilings", "billing", code=1)
    assert "kcoord: group 'bilings' does not exist; did you mean 'billing'?" in result.stderr
    assert result.stdout.count("orders") == 2


# --- reset


@pytest.mark.parametrize(
    ("target", "new"),
    [
        (["--to-earliest"], [0, 0]),
        (["--to-latest"], [10, 4]),
        (["--to-current"], [3, 4]),
        (["--to-offset", "6"], [6, 4]),
        (["--shift-by", "-2"], [1, 2]),
        (["--to-datetime", "95s"], [5, 4]),
        (["--by-duration", "PT1M35S"], [5, 4]),
    ],
)
def test_dry_runs(bootstrap: str, target: list[str], new: list[int]) -> None:
    """Times are told from now on, so a slow run may find a later record."""
    result = run(bootstrap, "reset", "billing", "--all-topics", *target, "-o", "json")
    found = [row["new_offset"] for row in json.loads(result.stdout)]
    if target[0] in ("--to-datetime", "--by-duration"):
        assert found[0] >= new[0] and found[1] == 4
    else:
        assert found == new
    assert "dry run: 2 offsets would be set" in result.stderr
    assert committed(bootstrap) == {0: 3, 1: 4}


def test_an_executed_reset_can_be_undone(bootstrap: str, home: Path) -> None:
    result = run(bootstrap, "reset", "billing", "--topic", "orders:1", "--to-earliest", "--execute")
    assert committed(bootstrap) == {0: 3, 1: 0}
    (undo,) = (home / "state" / "kcoord" / "undo").iterdir()
    assert f"undo with: kcoord groups reset --from-file {undo} --execute" in result.stderr
    run(bootstrap, "reset", "--from-file", str(undo), "--execute")
    assert committed(bootstrap) == {0: 3, 1: 4}


def test_undo_removes_offsets_that_were_not_there(bootstrap: str, home: Path) -> None:
    undo = str(home / "undo.csv")
    made = run(bootstrap, "reset", "fresh", "--topic", "orders:0", "--to-latest", "--execute", "--undo-file", undo)
    assert "group 'fresh' does not exist; the reset creates it" in made.stderr
    assert committed(bootstrap, "fresh") == {0: 10}
    run(bootstrap, "reset", "billing", "--topic", "orders:0", "--to-latest", "--execute", "--undo-file", undo)
    (home / "undo.csv").write_text("billing,orders,0,-1\n")
    run(bootstrap, "reset", "--from-file", undo, "--execute")
    assert committed(bootstrap) == {1: 4}


def test_an_error_of_one_group_hides_nothing_of_the_others(kcoord: KcoordServer, bootstrap: str, home: Path) -> None:
    """The undo file is named, the other groups are reset, and the table says what was not."""
    for name in ("audit", "twin"):
        run(bootstrap, "copy", "billing", name, "--execute")
    kcoord.fail("OffsetCommit", error="GROUP_AUTHORIZATION_FAILED", group="audit", times=None)
    undo = str(home / "undo.csv")
    groups = ("billing", "audit", "twin")
    arguments = ("--all-topics", "--to-earliest", "--execute", "--undo-file", undo, "-o", "json")
    result = run(bootstrap, "reset", *groups, *arguments, code=3)
    notes = {(row["group"], row["partition"]): row["note"] for row in json.loads(result.stdout)}
    assert {key for key, note in notes.items() if note == "refused"} == {("audit", 0), ("audit", 1)}
    assert not any(note for (group, _), note in notes.items() if group != "audit")
    assert f"undo with: kcoord groups reset --from-file {undo} --execute" in result.stderr
    assert [committed(bootstrap, name) for name in groups] == [{0: 0, 1: 0}, {0: 3, 1: 4}, {0: 0, 1: 0}]


def test_a_timeout_while_offsets_are_set_hides_nothing(kcoord: KcoordServer, bootstrap: str, home: Path) -> None:
    for name in ("audit", "twin"):
        run(bootstrap, "copy", "billing", name, "--execute")
    kcoord.fail("OffsetCommit", error="COORDINATOR_LOAD_IN_PROGRESS", group="audit", times=None)
    undo = str(home / "undo.csv")
    arguments = ("--topic", "orders:0", "--to-earliest", "--execute", "--undo-file", undo, "-o", "json")
    result = run(bootstrap, "reset", "billing", "audit", "twin", *arguments, "--timeout", "3", code=3)
    assert f"undo with: kcoord groups reset --from-file {undo} --execute" in result.stderr
    billing, audit, _twin = json.loads(result.stdout)
    assert billing["note"] == "" and audit["note"].startswith("not confirmed")
    assert (committed(bootstrap)[0], committed(bootstrap, "audit")[0]) == (0, 3)


def test_files_of_excel_begin_with_a_byte_order_mark(bootstrap: str, home: Path) -> None:
    (home / "plan.csv").write_bytes(b"\xef\xbb\xbfbilling,orders,0,7\r\n")
    run(bootstrap, "reset", "--from-file", str(home / "plan.csv"), "--execute")
    assert committed(bootstrap) == {0: 7, 1: 4}
    assert [row["group"] for row in rows(bootstrap, "list")] == ["billing"]
    (home / "plan.csv").write_bytes(b"billing,orders,0,\xff\n")
    wrong = run(bootstrap, "reset", "--from-file", str(home / "plan.csv"), code=2)
    assert "the file is not UTF-8" in wrong.stderr


@pytest.mark.parametrize("duration", ["30000d", "99999999999999999d", "P1000000D"])
def test_a_duration_that_begins_before_1970_means_the_first_record(bootstrap: str, duration: str) -> None:
    found = json.loads(
        run(bootstrap, "reset", "billing", "--all-topics", "--by-duration", duration, "-o", "json").stdout
    )
    assert [row["new_offset"] for row in found] == [0, 0]


def test_export_and_copy(bootstrap: str, home: Path) -> None:
    plan = run(bootstrap, "reset", "billing", "--all-topics", "--shift-by", "-1", "--export").stdout
    assert plan == "orders,0,2\norders,1,3\n"
    (home / "plan.csv").write_text(plan)
    run(bootstrap, "reset", "billing", "--from-file", str(home / "plan.csv"), "--execute")
    assert committed(bootstrap) == {0: 2, 1: 3}
    run(bootstrap, "copy", "billing", "twin", "--topic", "orders:0", "--execute")
    assert committed(bootstrap, "twin") == {0: 2}
    both = run(bootstrap, "reset", "--all-groups", "--topic", "orders:0", "--to-latest", "--export").stdout
    assert list(csv.reader(io.StringIO(both))) == [["billing", "orders", "0", "10"], ["twin", "orders", "0", "10"]]
    run(bootstrap, "reset", "twin", "--topic", "orders", "--to-group", "billing", "--execute")
    assert committed(bootstrap, "twin") == {0: 2, 1: 3}


def test_delete(bootstrap: str) -> None:
    dry = run(bootstrap, "delete-offsets", "billing", "--topic", "orders:0")
    assert "dry run: 1 offset would be removed" in dry.stderr and committed(bootstrap) == {0: 3, 1: 4}
    run(bootstrap, "delete-offsets", "billing", "--topic", "orders:0", "--execute")
    assert committed(bootstrap) == {1: 4}
    run(bootstrap, "delete", "billing")
    assert len(rows(bootstrap, "list")) == 1
    run(bootstrap, "delete", "billing", "--execute")
    assert rows(bootstrap, "list") == []


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["describe"], 2, "give GROUPS or --all-groups"),
        (["describe", "billing", "--topic", "orders:x"], 2, "give TOPIC or TOPIC:PARTITION"),
        (["reset", "billing", "--all-topics"], 2, "give one of --to-earliest"),
        (["reset", "billing", "--to-latest"], 2, "give --topic or --all-topics"),
        (["reset", "billing", "--all-topics", "--to-latest", "--to-earliest"], 2, "give one of --to-earliest"),
        (["reset", "billing", "--topic", "order", "--to-latest"], 1, "did you mean 'orders'?"),
        (["reset", "billing", "--topic", "orders:7", "--to-latest"], 1, "has no partition 7, only 0 to 1"),
        (["reset", "biling", "--all-topics", "--to-latest"], 1, "did you mean 'billing'?"),
        (["reset", "billing", "--all-topics", "--by-duration", "soon"], 2, "is not a duration"),
        (["reset", "billing", "--from-file", "no-such-file"], 2, "does not exist"),
        (["delete", "billin"], 1, "did you mean 'billing'?"),
        (["copy", "bill", "other"], 1, "group 'bill' does not exist"),
        (["copy", "billing", "billing", "--execute"], 2, "the same group 'billing'"),
        (["reset", "billing", "--all-topics", "--to-group", "billing"], 2, "name another one"),
        (["reset", "billing", "--all-topics", "--by-duration", "9" * 5000 + "d"], 2, "at most 19 digits"),
        (["reset", "billing", "--topic", "orders:" + "9" * 5000, "--to-latest"], 2, "give TOPIC or TOPIC:PARTITION"),
        (["describe", "b" * 40_000], 2, "string of 40000 bytes"),
        (["describe", "b\udcff"], 2, "it is not UTF-8"),
        (["delete", "b\udcff", "--execute"], 2, "it is not UTF-8"),
        (["copy", "billing", "b\udcff", "--execute"], 2, "it is not UTF-8"),
        (["list", "--watch", "1e18"], 2, "give at most 86400 seconds"),
        (["list", "--watch", "nan"], 2, "give at most 86400 seconds"),
        (["descibe"], 2, "did you mean 'describe'?"),
        (["describe", "billing", "--context", "prod"], 2, "not both"),
    ],
)
def test_mistakes_are_one_line(bootstrap: str, arguments: list[str], code: int, text: str) -> None:
    result = run(bootstrap, *arguments, code=code) if arguments[0] != "descibe" else _bare(arguments)
    assert result.exit_code == code and text in result.stderr, result.output
    assert "Traceback" not in result.output


def _bare(arguments: list[str]) -> Result:
    return CliRunner().invoke(main, ["groups", *arguments])


# --- where the cluster is, and pipes


def test_contexts(bootstrap: str, home: Path) -> None:
    path = home / "config" / "kcoord" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(
        f'current = "here"\n[contexts.here]\nbootstrap = "{bootstrap}"\n[contexts.gone]\nbootstrap="127.0.0.1:1"\n'
    )
    for arguments in ([], ["--context", "here"]):
        result = CliRunner().invoke(main, ["groups", "list", *arguments])
        assert result.exit_code == 0 and "billing" in result.stdout, result.output
    wrong = CliRunner().invoke(main, ["groups", "list", "--context", "her"])
    assert wrong.exit_code == 2 and "has no context 'her'; did you mean 'here'?" in wrong.stderr
    gone = CliRunner().invoke(main, ["groups", "list", "--context", "gone", "--timeout", "0.5"])
    assert gone.exit_code == 3 and gone.stderr.startswith("kcoord: "), gone.output


def test_piped_output_has_its_whole_width(bootstrap: str) -> None:
    async def prepare() -> None:
        async with Admin(bootstrap) as admin:
            await admin.alter_group_offsets("g" * 200, {TopicPartition("orders", 0): 1})

    asyncio.run(prepare())
    environment = {**clean_environment(), "COLUMNS": ""}
    command = kcoord_command("groups", "list", "--bootstrap", bootstrap)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0 and "g" * 200 in done.stdout and "\x1b" not in done.stdout + done.stderr
