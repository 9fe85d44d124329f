"""How the slices of a table are shared among Spark's tasks, and what a job's session is started with."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from kcoord.cli.pipeline import run
from kcoord.cli.pipeline.options import RunOptions
from kcoord.spark.planned import SLICE_COST_BYTES, in_shares
from kcoord.spark.reader.slices import SegmentFile, Slice
from kcoord.spark.reader.tasks import Task

LARGE = 1 << 40
OPTIONS = RunOptions("data", "local[2]", (), (), (), (), -1, -1, False, "", "parquet", 16, False, 20, False)


def tasks(*sizes: int) -> list[Task]:
    return [
        Task(Slice(".", "t", number, SegmentFile(f"t-{number}", 0, size), 0, size, 0))
        for number, size in enumerate(sizes)
    ]


def shared(sizes: list[int], count: int, bytes_max: int = LARGE) -> list[list[int]]:
    return [[task.part.end for task in share] for share in in_shares(tasks(*sizes), count, bytes_max)]


def test_nothing_has_no_shares() -> None:
    assert shared([], 4) == []


def test_shares_keep_the_order_and_leave_nothing_out() -> None:
    given = tasks(*range(0, 50_000_000, 1_000_000))
    assert [task for share in in_shares(given, 4, LARGE) for task in share] == given


def test_slices_of_one_size_are_shared_evenly() -> None:
    assert [len(share) for share in shared([1_000_000] * 16, 4)] == [4, 4, 4, 4]


def test_a_large_slice_is_alone() -> None:
    sizes = [20_000_000, 100_000_000, 10, 10]
    assert shared(sizes, 2) == [[20_000_000], [100_000_000], [10, 10]]


def test_files_without_content_count_too() -> None:
    assert [len(share) for share in shared([0] * 100, 4)] == [25, 25, 25, 25]


def test_no_share_is_much_larger_than_asked_for() -> None:
    size = 10 * SLICE_COST_BYTES
    shares = shared([size - SLICE_COST_BYTES] * 40, 1, 4 * size)
    assert [len(share) for share in shares] == [4] * 10


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[3]", 3), ("local[4,2]", 4), ("local[*]", os.cpu_count())]
)
def test_cores_of_a_master(master: str, cores: int) -> None:
    assert run._cores(master) == cores


def settings(monkeypatch: pytest.MonkeyPatch, size_bytes: int, **changed: Any) -> dict[str, Any]:
    """What a session of these options is asked for."""
    found: dict[str, Any] = {}
    for name in run.JVM_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("kcoord.spark.session.bare_session", lambda name, master, **given: found.update(given))
    run._session("lag", replace(OPTIONS, **changed), size_bytes)
    return found


def test_a_short_log_is_read_without_the_second_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(monkeypatch, 1000)
    assert found == {
        "spark.sql.shuffle.partitions": 2,
        run.JVM_OPTIONS: f"{run.SHORT_JVM} -XX:+UseSerialGC",
    }


@pytest.mark.parametrize("size_bytes", [run.SHORT_BYTES_MAX + 1, run.UNKNOWN_SIZE])
def test_a_long_log_is_read_with_sparks_own_settings(monkeypatch: pytest.MonkeyPatch, size_bytes: int) -> None:
    found = settings(monkeypatch, size_bytes)
    assert run.JVM_OPTIONS not in found
    assert found["spark.sql.shuffle.partitions"] == 2 * run.SHUFFLES_PER_CORE


def test_a_cluster_keeps_its_own_number_of_shuffle_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(monkeypatch, 1000, master="yarn")
    assert not {run.JVM_OPTIONS, "spark.sql.shuffle.partitions"} & set(found)


def test_a_users_options_of_the_jvm_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(monkeypatch, 1000, conf=((run.JVM_OPTIONS, "-XX:TieredStopAtLevel=4"),))
    assert found[run.JVM_OPTIONS] == f"{run.SHORT_JVM} -XX:+UseSerialGC -XX:TieredStopAtLevel=4"


def test_a_chosen_collector_has_no_other_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(monkeypatch, 1000, conf=((run.JVM_OPTIONS, "-XX:+UseG1GC"),))
    assert found[run.JVM_OPTIONS] == f"{run.SHORT_JVM} -XX:+UseG1GC"
