"""CSV of the log tools: a header line, then one line for each row of the table."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.unit.cli.rig import run, run_json, stopped


def rows(command: str, *arguments: str | Path, code: int = 0) -> list[dict[str, str]]:
    result = run(command, *arguments, "-o", "csv")
    assert result.exit_code == code, result.output
    return list(csv.DictReader(io.StringIO(result.stdout)))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return stopped(tmp_path / "data")


def test_ls(data: Path) -> None:
    found = run_json("ls", data)["partitions"]
    lines = rows("ls", data)
    assert [(row["log"], row["end_offset"], row["state"]) for row in lines] == [
        (one["log"], str(one["end_offset"]), one["state"]) for one in found
    ]
    assert [int(row["segments"]) for row in lines] == [len(one["segments"]) for one in found]


def test_dump(data: Path) -> None:
    result = run("dump", data, "-o", "json")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    lines = rows("dump", data)
    assert [(row["log"], row["offset"], row["type"]) for row in lines] == [
        (one["log"], str(one["offset"]), one["type"]) for one in found
    ]
    assert [row["tombstone"] for row in lines] == [str(one["tombstone"]).lower() for one in found]
    assert [json.loads(row["key"]) for row in lines if row["key"]] == [one["key"] for one in found if one["key"]]
    assert rows("dump", data, "-n", "0") == []


def test_state_and_diff(data: Path) -> None:
    groups = run_json("state", data)["groups"]
    offsets = [(one["group"], offset["topic"], str(offset["offset"])) for one in groups for offset in one["offsets"]]
    assert [(row["group"], row["topic"], row["offset"]) for row in rows("state", data)] == offsets != []
    changes = rows("diff", data, "0", "end")
    assert {row["what"] for row in changes} >= {"group", "offset"}
    moved = [(row["group"], row["to"]) for row in changes if row["what"] == "offset"]
    assert moved == [(group, offset) for group, _, offset in offsets]


def test_timeline_verify_and_repair(data: Path) -> None:
    epochs = run_json("timeline", data, "-g", "workers")["epochs"]
    assert [row["epoch"] for row in rows("timeline", data, "-g", "workers")] == [str(one["epoch"]) for one in epochs]
    assert rows("verify", data) == []
    assert rows("repair", data) == []
    assert run("verify", data, "-o", "csv").stdout == "severity,check,log,file,position,offset,message\n"
    log = data / "__consumer_offsets-0" / f"{0:020}.log"
    damaged = bytearray(log.read_bytes())
    damaged[-1] ^= 1
    log.write_bytes(damaged)
    (problem, *_) = rows("verify", data, code=1)
    assert problem["severity"] == "error" and problem["log"] == "__consumer_offsets-0"
    assert rows("repair", data, code=1)[0]["action"] == "cut"


def test_snapshots_compaction_and_export(data: Path, tmp_path: Path) -> None:
    assert [row["name"] for row in rows("snapshot", "one", "--data", data)] == ["one"]
    (listed,) = rows("snapshot", "--list", "--data", data)
    assert listed["name"] == "one" and int(listed["offsets"]) > 0
    assert rows("restore", "one", "--data", data)[0]["restored"] == "one"
    assert {row["log"] for row in rows("compact", data)} >= {"__consumer_offsets-0"}
    counts = rows("export", tmp_path / "exported", "--data", data)
    assert {row["result"] for row in counts} >= {"written"} and all(int(row["count"]) > 0 for row in counts)
