"""What the engine gets from the server when both are put together."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from kcoord.engine.volume import IN_MEMORY, UNKNOWN_BYTES
from kcoord.server.assembly import ProgressLog, open_assembly
from kcoord.server.logs import ServerLog
from kcoord.server.settings.load import load


def test_the_engine_knows_the_volume_of_the_data_directory(tmp_path: Path) -> None:
    assembly = open_assembly(load(assignments=[f"log.dirs={tmp_path}/a/../data"]))
    try:
        volume = assembly.engine.data_plane.volume
        assert volume.path == str(tmp_path / "data")
        assert volume.total_bytes == shutil.disk_usage(tmp_path).total
        assert 0 < volume.usable_bytes <= volume.total_bytes
        volume.usable_bytes = 0
        assembly.measure_volume()
        assert volume.usable_bytes > 0
    finally:
        assembly.abandon()


def test_logs_in_memory_have_no_volume() -> None:
    assembly = open_assembly(load(profile="test"))
    volume = assembly.engine.data_plane.volume
    assert (volume.path, volume.total_bytes, volume.usable_bytes) == (IN_MEMORY, UNKNOWN_BYTES, UNKNOWN_BYTES)


@pytest.mark.parametrize(("every_ms", "expected"), [(5000, [5, 10]), (2000, [2, 4, 6, 8, 10]), (0, [])])
def test_progress_is_reported_as_often_as_configured(
    monkeypatch: pytest.MonkeyPatch, every_ms: int, expected: list[int]
) -> None:
    seconds = iter(range(100, 200))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    log = ServerLog(None)
    progress = ProgressLog(log, every_ms)
    for done in range(11):
        progress("opening", done, 11)
    assert [line["done"] for line in log.recent] == expected
    assert {line["event"] for line in log.recent} <= {"logs_opening"}
