"""`kcoord log ls`, and what all log tools have in common."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.rig import METADATA, OFFSETS, LogRig, run, run_json, stopped


def test_a_stopped_directory(tmp_path: Path) -> None:
    found = run_json("ls", stopped(tmp_path))
    assert found["state"] == "clean" and found["is_kcoord"]
    assert found["properties"]["node.id"] == "1"
    logs = {row["log"]: row for row in found["partitions"]}
    # Nothing was written to `orders`, so it has no files.
    assert sorted(logs) == [METADATA, OFFSETS]
    offsets = logs[OFFSETS]
    assert (offsets["start_offset"], offsets["end_offset"], offsets["leader_epoch"]) == (0, 10, 0)
    assert offsets["state"] == "clean" and offsets["damage"] is None
    assert offsets["size_bytes"] == (tmp_path / OFFSETS / "00000000000000000000.log").stat().st_size
    assert offsets["first_timestamp_ms"] == 1_760_000_001_000
    assert offsets["max_timestamp_ms"] == 1_760_000_007_000
    assert [segment["end_offset"] for segment in offsets["segments"]] == [10]


def test_the_table_fits(tmp_path: Path) -> None:
    result = run("ls", stopped(tmp_path), "--segments")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == ["LOG", "START", "END", "SEGMENTS", "SIZE", "EPOCH", "STATE"]
    row = next(line for line in lines if line.startswith(OFFSETS))
    assert row.split()[:4] == [OFFSETS, "0", "10", "1"] and row.endswith("clean")
    assert "    2025-10-09T08:53:21.000Z to 2025-10-09T08:53:27.000Z" in lines
    assert lines[-1] == "2 partitions"


def test_times_are_columns_where_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    lines = run("ls", stopped(tmp_path), "--segments").stdout.splitlines()
    assert lines[1].split()[-2:] == ["OLDEST", "NEWEST"] and max(map(len, lines)) <= 140
    row = next(line for line in lines if line.startswith(OFFSETS))
    assert row.split()[-3:] == ["clean", "2025-10-09T08:53:21.000Z", "2025-10-09T08:53:27.000Z"]
    assert not any(" to " in line for line in lines)


def test_how_logs_were_left(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    rig.history()
    rig.marks()
    assert {row["state"] for row in run_json("ls", tmp_path)["partitions"]} == {"in use"}
    rig.commit("late", 8, orders_0=1)
    rig.kill()
    found = run_json("ls", tmp_path)
    assert found["state"] == "unclean"
    assert {row["state"] for row in found["partitions"]} == {"unclean"}
    segment = tmp_path / OFFSETS / "00000000000000000000.log"
    data = segment.read_bytes()
    segment.write_bytes(data[:-3])
    row = next(row for row in run_json("ls", tmp_path)["partitions"] if row["log"] == OFFSETS)
    assert row["state"] == "torn" and row["end_offset"] == 10
    assert row["damage"]["position"] < len(data) and "left" in row["damage"]["reason"]
    segment.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    row = next(row for row in run_json("ls", tmp_path)["partitions"] if row["log"] == OFFSETS)
    assert row["state"] == "damaged" and row["damage"] == {
        "file": str(segment), "position": 0, "reason": "wrong checksum",
    }  # fmt: skip


def test_one_partition(tmp_path: Path) -> None:
    stopped(tmp_path)
    [row] = run_json("ls", tmp_path / OFFSETS)["partitions"]
    assert row["log"] == OFFSETS and row["end_offset"] == 10


def test_looking_leaves_no_trace(tmp_path: Path) -> None:
    stopped(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    run_json("ls", tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_errors_are_for_people(tmp_path: Path) -> None:
    result = run("ls", tmp_path / "nothing")
    assert result.exit_code == 4
    assert result.stderr.startswith("kcoord: there is no directory ")
    result = run("ls", tmp_path)
    assert result.exit_code == 5 and "not a data directory" in result.stderr
    stopped(tmp_path)
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n7\nx 0 1\n")
    result = run("ls", tmp_path)
    assert result.exit_code == 9 and "recovery-point-offset-checkpoint is damaged" in result.stderr


def test_the_tools_are_not_loaded_with_the_command() -> None:
    code = "import sys, kcoord.cli.main; print([m for m in sys.modules if m.startswith('kcoord.cli.log')])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
