"""`kcoord log` over a log whose newest segment ends in preallocated zeros, as a killed server leaves it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcoord.cli.log.past.state_start import start_for
from kcoord.cli.log.points import parse_point
from kcoord.log.cluster_image import sound_batches
from kcoord.log.directory import open_directory
from kcoord.log.inspect import inspect_directory
from kcoord.log.reader import StoredBatch, read_batches
from kcoord.log.storage import DiskStorage
from tests.harness.engine import CLUSTER_ID
from tests.unit.cli.rig import OFFSETS, LogRig, run, run_json
from tests.unit.cli.test_log_state_start import SEGMENT, past, write_checkpoint

ZEROS = bytes(5000)
END = 11


def written(path: Path, is_killed: bool) -> Path:
    """The segment of a log with zeros behind its end, and a checkpoint below it."""
    rig = LogRig(path)
    rig.history()
    assert write_checkpoint(rig) == END - 1
    rig.commit("late", 8, orders_0=1)
    rig.marks()
    segment = path / OFFSETS / SEGMENT
    if is_killed:
        rig.kill()
    else:
        rig.stop()
    segment.write_bytes(segment.read_bytes() + ZEROS)
    return segment


def test_nothing_is_wrong_with_it(tmp_path: Path) -> None:
    written(tmp_path, is_killed=True)
    checked = run("verify", tmp_path, "-o", "json")
    (warning,) = json.loads(checked.stdout)["problems"]
    assert checked.exit_code == 0 and (warning["severity"], warning["check"]) == ("warning", "torn end")
    assert warning["message"].startswith("5000 zeros behind the end: preallocated, or")
    row = next(row for row in run_json("ls", tmp_path)["partitions"] if row["topic"] == "__consumer_offsets")
    assert (row["state"], row["end_offset"]) == ("unclean", END)
    repaired = run("repair", tmp_path, "-o", "json")
    assert repaired.exit_code == 0 and json.loads(repaired.stdout)["repairs"] == []
    dumped = run("dump", tmp_path)
    assert dumped.exit_code == 0 and "zeros" not in dumped.output and "cannot be read" not in dumped.output


def test_nothing_is_wrong_with_its_directory_alone(tmp_path: Path) -> None:
    segment = written(tmp_path, is_killed=True)
    row = run_json("ls", segment.parent)["partitions"][0]
    assert (row["state"], row["end_offset"]) == ("unclean", END)
    dumped = run("dump", segment.parent)
    assert dumped.exit_code == 0 and "cannot be read" not in dumped.output


def test_its_checkpoint_is_used(tmp_path: Path) -> None:
    segment = written(tmp_path, is_killed=True)
    directory = inspect_directory(str(tmp_path))
    files = directory.find("__consumer_offsets", 0)
    assert files is not None
    found = start_for(directory, files, parse_point(str(END)))
    assert found.found is not None, found.reason
    with_zeros = past(tmp_path, parse_point(str(END))).core.digest()
    segment.write_bytes(segment.read_bytes()[: -len(ZEROS)])
    assert past(tmp_path, parse_point(str(END))).core.digest() == with_zeros


def test_the_zeros_are_damage_where_they_cannot_be(tmp_path: Path) -> None:
    """After a clean stop, and below the durable mark."""
    segment = written(tmp_path, is_killed=False)
    checked = json.loads(run("verify", tmp_path, "-o", "json").stdout)
    assert [(one["check"], one["log"]) for one in checked["problems"]] == [("checksum", OFFSETS)]
    (tmp_path / ".kafka_cleanshutdown").unlink()
    assert json.loads(run("verify", tmp_path, "-o", "json").stdout)["errors"] == 0
    at = [item.position for item in read_batches(str(segment)) if isinstance(item, StoredBatch)][-1]
    data = segment.read_bytes()
    segment.write_bytes(data[:at] + bytes(len(data) - at))
    checked = json.loads(run("verify", tmp_path, "-o", "json").stdout)
    assert "checksum" in [one["check"] for one in checked["problems"] if one["severity"] == "error"]


@pytest.mark.parametrize("kept", [0, 1, 40])
def test_a_write_over_zeros_that_lost_its_beginning_is_a_torn_one(tmp_path: Path, kept: int) -> None:
    segment = written(tmp_path, is_killed=True)
    data = segment.read_bytes()[: -len(ZEROS)]
    # The first sector of the next write did not get to the disk.
    segment.write_bytes(data + bytes(100 - kept) + b"x" * 60 + ZEROS)
    torn: list[int] = []
    batches = list(sound_batches(str(tmp_path / OFFSETS), 0, torn))
    assert batches[-1].header.last_offset == END - 1 and torn == [160 - kept + len(ZEROS)]
    directory = open_directory(DiskStorage(str(tmp_path)), 1, CLUSTER_ID, CLUSTER_ID)
    log = directory.get("__consumer_offsets", 0)
    assert log is not None and log.end_offset == END
    directory.close(False)
