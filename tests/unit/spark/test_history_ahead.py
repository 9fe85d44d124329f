"""The history of short logs is read while Spark starts, and not before PySpark has forked the JVM."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import SparkContext

from kcoord.cli.pipeline.history_ahead import HistoryAhead
from kcoord.spark import planned
from tests.unit.cli import rig

OPTIONS = {"table": "_history", "subscribe": "__consumer_offsets"}


@pytest.fixture
def logs(tmp_path: Path) -> str:
    log = rig.LogRig(tmp_path)
    log.create("orders", 1, 1)
    log.commit("billing", 2, orders_0=7)
    log.stop()
    return str(tmp_path)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set once the history is read. There is no JVM yet."""
    found = threading.Event()
    read = planned.read_history_here

    def seen(path: str, options: dict[str, str]) -> pa.Table | None:
        found.set()
        return read(path, options)

    monkeypatch.setattr(planned, "read_history_here", seen)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    return found


def test_it_is_read_as_soon_as_there_is_a_jvm(
    logs: str, reads: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = HistoryAhead(logs, OPTIONS)
    assert not reads.wait(0.1)
    monkeypatch.setattr(SparkContext, "_gateway", object())
    assert reads.wait(30)
    found = ahead.table()
    assert found is not None
    assert found.num_rows == 1


def test_whoever_wants_it_does_not_wait_for_a_jvm(logs: str, reads: threading.Event) -> None:
    found = HistoryAhead(logs, OPTIONS).table()
    assert found is not None
    assert found.num_rows == 1


def test_a_run_that_ends_before_reads_nothing(logs: str, reads: threading.Event) -> None:
    ahead = HistoryAhead(logs, OPTIONS)
    ahead.stop()
    assert ahead.table() is None
    assert not reads.is_set()


def test_whoever_wants_it_meets_the_error_of_reading_it_again(tmp_path: Path, reads: threading.Event) -> None:
    assert HistoryAhead(str(tmp_path / "missing"), OPTIONS).table() is None
    assert reads.is_set()


def test_long_logs_are_left_to_spark(logs: str, reads: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "DRIVER_BYTES_MAX", -1)
    assert HistoryAhead(logs, OPTIONS).table() is None
