"""The small benchmarks still run, and measure what they say: with few of everything, whatever the clock says."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import cleaning, in_process, primitives


def test_the_cleaner_keeps_one_record_of_each_key(tmp_path: Path) -> None:
    seconds, result = cleaning.measure(tmp_path, 1_000_000)
    assert seconds > 0 and result.records_before >= cleaning.COMMIT_BATCHES * cleaning.BATCH_RECORDS
    assert result.records_after == cleaning.GROUPS * cleaning.PARTITIONS


def test_requests_are_answered_in_one_turn_or_in_many() -> None:
    prepare = in_process.frames()["Heartbeat"]
    assert in_process.measure(prepare, 1, 32) > 0
    assert in_process.measure(prepare, 1, 32, 1) > 0


@pytest.mark.parametrize("send", [primitives.by_sendfile, primitives.by_reading])
def test_both_ways_send_whole_answers(tmp_path: Path, send: primitives.Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primitives, "ANSWERS", 3)
    sender, client = primitives.answers(tmp_path, send)
    assert sender > 0 and client > 0


def test_both_ways_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primitives, "SYNCS", 3)
    for sync, name in ((primitives.sync_here, "here"), (primitives.sync_in_thread, "thread")):
        assert sync(tmp_path)[1] > 0
        assert (tmp_path / name).stat().st_size == 3 * primitives.RECORD_BYTES
