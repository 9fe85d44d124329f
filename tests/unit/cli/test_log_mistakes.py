"""Mistakes on the command line get a message, an exit code and a suggestion, not an empty table."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.process import clean_environment, kcoord_command
from tests.unit.cli.rig import run, stopped


@pytest.mark.parametrize("command", ["ls", "dump", "verify", "state", "repair"])
def test_a_directory_that_is_not_there(tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path / "nosuch")
    assert result.exit_code == 4
    assert result.stderr.strip() == f"kcoord: there is no directory {tmp_path / 'nosuch'}"


def test_snapshots_of_a_directory_that_is_not_there(tmp_path: Path) -> None:
    result = run("snapshot", "--list", "--data", tmp_path / "nosuch")
    assert result.exit_code == 4
    assert "there is no directory" in result.stderr


def test_names_of_snapshots(tmp_path: Path) -> None:
    root = stopped(tmp_path)
    assert run("snapshot", "a b", "--data", root).exit_code == 2
    assert run("restore", "nosuch", "--data", root).exit_code == 2
    assert run("snapshot", "one", "--data", root).exit_code == 0
    taken = run("snapshot", "one", "--data", root)
    assert taken.exit_code == 2
    assert "already exists" in taken.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--type", "ofset_commit"], "did you mean offset_commit?"),
        (["--offset", "9..2"], "ends before it begins"),
        (["--limit", "-3"], "not in the range"),
        (["--until", "1969-12-31"], "'1969-12-31' is before 1970"),
        (["--since", f"@{1 << 63}"], "is later than any time of a record"),
        (["-g", "nosuch"], "has no record of a group or transactional id nosuch"),
    ],
)
def test_what_dump_refuses(tmp_path: Path, options: list[str], message: str) -> None:
    result = run("dump", stopped(tmp_path), *options)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize("kind", ["offset_commit", "group_metadata", "topic_record", "commit_marker", "unknown_77"])
def test_types_that_are_known(tmp_path: Path, kind: str) -> None:
    assert run("dump", stopped(tmp_path), "--type", kind).exit_code == 0


def test_a_known_group_without_records_in_the_range(tmp_path: Path) -> None:
    root = stopped(tmp_path)
    result = run("dump", root, "-g", "report", "--until", "2001-01-01")
    assert (result.exit_code, result.stdout) == (0, "0 records\n")


def test_a_reader_that_closes_the_pipe(tmp_path: Path) -> None:
    root = stopped(tmp_path)
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        kcoord_command("log", "dump", str(root)),
        stdout=write_end, stderr=subprocess.PIPE, timeout=60, check=False, env=clean_environment(),
    )  # fmt: skip
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


def test_lines_to_a_pipe_are_whole(tmp_path: Path) -> None:
    command = kcoord_command("log", "dump", str(stopped(tmp_path)))
    environment = {name: text for name, text in clean_environment().items() if name != "COLUMNS"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    lines = [line for line in done.stdout.splitlines() if "group_metadata" in line]
    assert max(map(len, lines)) > 80
