"""The cleaner's process: it answers, and ends with the server that started it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kcoord.log.clean_worker import NICENESS_MAX, CleanFailed, CleanRequest, decode_result, encode_result, niceness_for
from kcoord.log.cleaner import CleanConfig, CleanedGroup, CleanResult
from kcoord.log.errors import LogDamaged
from kcoord.server.maintenance.child import ChildRun, Leash, run_child
from kcoord.wire.record_batch import BatchBuilder

NOW_MS = 1_800_000_000_000
SEGMENT = f"{0:020d}.log"
DEADLINE_S = 30.0
MODULE = "kcoord.log.clean_worker"


def request(root: Path, batches: int) -> CleanRequest:
    """Cleaning of one segment with 100 keys, written again and again."""
    (root / "t-0").mkdir()
    with (root / "t-0" / SEGMENT).open("wb") as file:
        for number in range(batches):
            builder = BatchBuilder()
            for key in range(100):
                builder.append(NOW_MS, b"key %d" % key, b"value")
            file.write(builder.build(number * 100, 0))
    return CleanRequest(str(root), "t-0", [0], 0, CleanConfig(), NOW_MS, None, 1.0)


def run(asked: CleanRequest) -> ChildRun:
    return run_child(MODULE, asked.encode(), Leash(), 2 * DEADLINE_S)


def test_it_cleans(tmp_path: Path) -> None:
    result = decode_result(run(request(tmp_path, 50)).answers[0])
    assert (result.records_before, result.records_after) == (5000, 100)
    assert (tmp_path / "t-0" / f"{SEGMENT}.cleaned").exists()


def test_it_reports_damage_and_what_else_is_in_its_way(tmp_path: Path) -> None:
    asked = request(tmp_path, 2)
    path = tmp_path / "t-0" / SEGMENT
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogDamaged, match="wrong checksum"):
        decode_result(run(asked).answers[0])
    path.unlink()
    with pytest.raises(CleanFailed, match="FileNotFoundError"):
        decode_result(run(asked).answers[0])
    # A segment that was removed meanwhile stays removed.
    assert not path.exists()


def test_it_ends_with_who_started_it(tmp_path: Path) -> None:
    # Some seconds of work.
    asked = request(tmp_path, 4000)
    process = subprocess.Popen([sys.executable, "-P", "-m", MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(asked.encode()).encode() + b"\n")
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 1
        assert b"answer" not in process.stdout.read()


def some_answer() -> dict[str, Any]:
    result = CleanResult(7)
    result.groups = [CleanedGroup(0, [0, 3])]
    return encode_result(result)


def test_an_answer_goes_there_and_back() -> None:
    result = decode_result(some_answer())
    assert result.end == 7 and [group.old_bases for group in result.groups] == [[0, 3]]


@pytest.mark.parametrize(
    "change",
    [
        {"end": None},
        {"end": "x"},
        {"records_before": []},
        {"groups": 3},
        {"groups": [{}]},
        {"groups": [{"base": 0, "old_bases": 1}]},
        {"groups": [None]},
        {"damaged": "yes"},
        {"damaged": "yes", "file": "f", "offset": "x", "position": 0},
    ],
)
def test_an_answer_that_is_none(change: dict[str, Any]) -> None:
    with pytest.raises(CleanFailed, match="is invalid"):
        decode_result({**some_answer(), **change})
    with pytest.raises(CleanFailed, match="disk full"):
        decode_result({"error": "disk full"})


def test_the_priority_rises_with_what_waits() -> None:
    found = [niceness_for(share) for share in (0.0, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0)]
    assert found[:2] == [NICENESS_MAX] * 2 and found[-2:] == [0, 0]
    assert found == sorted(found, reverse=True) and 8 <= found[3] <= 11
