"""The tools on a broker's directory after a crash in the middle of compaction, and on logs that lost their ends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kcoord.cli.main import main
from kcoord.core.hashing import coordinator_partition
from kcoord.log.segment import segment_name
from tests.data.known import BROKER, LOGS, answers, lines_of

PARTITION = "__consumer_offsets-0"
CRASHES = BROKER / "crashes"
CHANGE = "all closed segments are compacted into one"
STATES = [one for one in lines_of(CRASHES / "states.jsonl.gz") if one["change"] == CHANGE]


def kcoord(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["log", *map(str, arguments)])


def lay_out(state: dict[str, Any], root: Path, *names: str) -> Path:
    """The broker's directory with one partition as it was in that state. `names` are the other directories in it."""
    root.mkdir()
    for path in LOGS.iterdir():
        if path.is_file() or path.name in names:
            (shutil.copytree if path.is_dir() else shutil.copy)(path, root / path.name)
    (root / ".kafka_cleanshutdown").unlink()
    (root / PARTITION).mkdir()
    for name, content in state["files"].items():
        shutil.copy(CRASHES / "files" / content, root / PARTITION / name)
    return root


def with_names(*endings: str) -> dict[str, Any]:
    """The first state that has files with all of these endings."""
    return next(one for one in STATES if all(any(name.endswith(e) for name in one["files"]) for e in endings))


EXCHANGING = with_names(".txnindex.swap", "132.log")
LATE = with_names(".txnindex.swap", "415.txnindex.deleted")
UNDONE = with_names(".log.swap", ".txnindex.cleaned")
BEFORE = STATES[0]
AFTER = STATES[-1]


@pytest.mark.parametrize(("state", "like"), [(EXCHANGING, AFTER), (LATE, AFTER), (UNDONE, BEFORE)])
def test_every_tool_shows_what_the_broker_has_after_its_start(
    state: dict[str, Any], like: dict[str, Any], tmp_path: Path
) -> None:
    found = lay_out(state, tmp_path / "found")
    whole = lay_out(like, tmp_path / "whole")
    for command in (["dump"], ["state"], ["diff"], ["timeline", "--group", "busy-1", "--source", "log"]):
        arguments = ["--from", "0", "--to", "end", "--partition", "0", "--inexact"] if command == ["diff"] else []
        shown = [kcoord(command[0], root, *command[1:], *arguments, "-o", "json") for root in (found, whole)]
        assert shown[0].exit_code == shown[1].exit_code, shown[0].stderr
        assert shown[0].stdout == shown[1].stdout
    rows = [json.loads(kcoord("ls", root, "-o", "json").stdout)["partitions"][0] for root in (found, whole)]
    assert rows[0]["segments"] == rows[1]["segments"] and rows[0]["end_offset"] == 590
    assert [row["is_interrupted"] for row in rows] == [like is AFTER, False]
    # The directory of the partition by itself.
    assert kcoord("dump", found / PARTITION).stdout == kcoord("dump", whole / PARTITION).stdout


def test_an_import_takes_what_the_broker_has_after_its_start(tmp_path: Path) -> None:
    reports = []
    for name, state in (("found", EXCHANGING), ("whole", AFTER)):
        root = lay_out(state, tmp_path / name, "__cluster_metadata-0", "__consumer_offsets-1", "__consumer_offsets-2")
        for mark in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            (root / mark).unlink()
        result = kcoord("import", root, "--data", tmp_path / f"{name}-ours")
        assert result.exit_code == 0, result.stderr
        reports.append(kcoord("state", tmp_path / f"{name}-ours", "-o", "json").stdout)
    shown = [json.loads(report) for report in reports]
    assert shown[0]["groups"] == shown[1]["groups"] and len(shown[0]["groups"]) > 5


def test_verify_names_the_files_and_what_becomes_of_them(tmp_path: Path) -> None:
    result = kcoord("verify", lay_out(EXCHANGING, tmp_path / "a"))
    assert "no problems found" not in result.stdout
    assert f"{segment_name(0)}.log.swap" in result.stdout and "[interrupted]" in result.stdout
    problems = json.loads(kcoord("verify", tmp_path / "a", "-o", "json").stdout)["problems"]
    texts = [one["message"] for one in problems if one["check"] == "interrupted"]
    assert [text.partition(": ")[2].partition(";")[0] for text in texts] == [
        "replaced by .swap files",
        "new segments of a compaction",
    ]
    late = json.loads(kcoord("verify", lay_out(LATE, tmp_path / "c"), "-o", "json").stdout)["problems"]
    assert any("of removed or replaced segments" in one["message"] for one in late)
    undone = json.loads(kcoord("verify", lay_out(UNDONE, tmp_path / "b"), "-o", "json").stdout)["problems"]
    assert [one["severity"] for one in undone if one["check"] == "interrupted"] == ["warning", "warning"]


@pytest.mark.parametrize("command", [["dump"], ["state"], ["ls"], ["verify"], ["timeline", "--group", "busy-1"]])
def test_files_that_no_crash_leaves_end_every_tool(command: list[str], tmp_path: Path) -> None:
    root = lay_out(EXCHANGING, tmp_path / "a")
    swap = root / PARTITION / f"{segment_name(0)}.log.swap"
    swap.write_bytes(swap.read_bytes()[:-1])
    result = kcoord(command[0], root, *command[1:])
    assert result.exit_code == 7 and f"{segment_name(0)}.log.swap" in result.stderr


# --- durable marks


def cut(root: Path, how: str) -> Path:
    """The last segment of the partition without its last batch, or empty, or the directory gone."""
    path = root / PARTITION / f"{segment_name(565)}.log"
    if how == "gone":
        shutil.rmtree(root / PARTITION)
    elif how == "empty":
        path.write_bytes(b"")
    else:
        data = path.read_bytes()
        path.write_bytes(data[: last_batch_at(data)])
    return root


def group_of(partition: int) -> str:
    """A group in a partition of the broker's three."""
    names: list[str] = list(answers()["groups"])
    return next(name for name in names if coordinator_partition(name, 3) == partition)


def last_batch_at(data: bytes) -> int:
    position = before = 0
    while position < len(data):
        before = position
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return before


@pytest.mark.parametrize("how", ["batch", "empty", "gone"])
def test_a_log_that_ends_before_its_mark_is_damaged_for_every_tool(how: str, tmp_path: Path) -> None:
    others = [path.name for path in LOGS.iterdir() if path.is_dir() and path.name != PARTITION]
    root = cut(lay_out(BEFORE, tmp_path / "a", *others), how)
    group = group_of(0)
    ours = str(tmp_path / "b")
    for command in (
        ["dump"], ["state"], ["timeline", "--source", "log", "--group", group], ["import", "--data", ours]
    ):  # fmt: skip
        result = kcoord(command[0], root, *command[1:])
        assert result.exit_code == 7, (command, result.stdout[-300:], result.stderr)
        assert PARTITION in result.stderr and ("synced" in result.stderr), result.stderr
    assert kcoord("verify", root).exit_code == 1
    listed = kcoord("ls", root)
    assert listed.exit_code == 0
    assert f"{PARTITION}: its directory is missing" in listed.stderr if how == "gone" else "damaged" in listed.stdout
    # What is asked for is there.
    if how != "gone":
        assert kcoord("dump", root, PARTITION, "--offset", "0..500").exit_code == 0
        assert kcoord("dump", root / PARTITION).exit_code == 7
    assert kcoord("state", root, "--partition", "1").exit_code == 0
