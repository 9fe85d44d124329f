"""The cleaner's process: it answers, and ends with the server that started it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kcoord.log.clean_worker import CleanRequest, run_worker
from kcoord.log.cleaner import CleanConfig
from kcoord.wire.record_batch import BatchBuilder

NOW_MS = 1_800_000_000_000
SEGMENT = f"{0:020d}.log"
DEADLINE_S = 30.0


def request(root: Path, batches: int) -> CleanRequest:
    """Cleaning of one segment with 100 keys, written again and again."""
    (root / "t-0").mkdir()
    with (root / "t-0" / SEGMENT).open("wb") as file:
        for number in range(batches):
            builder = BatchBuilder()
            for key in range(100):
                builder.append(NOW_MS, b"key %d" % key, b"value")
            file.write(builder.build(number * 100, 0))
    return CleanRequest(str(root), "t-0", [0], 0, CleanConfig(), NOW_MS, None)


def test_it_cleans(tmp_path: Path) -> None:
    result = run_worker(request(tmp_path, 50), lambda process: None)
    assert (result.records_before, result.records_after) == (5000, 100)
    assert (tmp_path / "t-0" / f"{SEGMENT}.cleaned").exists()


def test_it_ends_with_who_started_it(tmp_path: Path) -> None:
    # Some seconds of work.
    asked = request(tmp_path, 4000)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "kcoord.log.clean_worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(asked.encode() + b"\n")
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 1
        assert process.stdout.read() == b""
