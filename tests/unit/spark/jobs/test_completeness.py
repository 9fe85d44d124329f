"""Histories of replicas put together, and what is noted about those that begin late. Without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord.cli.pipeline.history_notes import incomplete, note_history
from kcoord.cli.pipeline.options import RunOptions
from kcoord.core.hashing import coordinator_partition
from kcoord.spark.jobs.completeness import LogHistory, of_one_cluster

MS = 1_760_000_000_000


def history(log: str, end: int, offset: int, from_ms: int | None = None, partition: int = 0) -> LogHistory:
    return LogHistory(log, "__consumer_offsets", partition, end, offset, from_ms)


def asked(since_ms: int = -1, *groups: str) -> RunOptions:
    given: dict[str, Any] = dict.fromkeys(RunOptions.__dataclass_fields__, "")
    return RunOptions(**{**given, "since_ms": since_ms, "groups": groups})


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ([history("a", 100, 80, 8), history("b", 100, 50, 5)], (100, 50, 5)),
        ([history("a", 100, 80, 8), history("b", 100, 0)], (100, 0, None)),
        # One that stayed back has what the others lost, up to where they begin.
        ([history("a", 100, 80, 8), history("b", 80, 0)], (100, 0, None)),
        ([history("a", 100, 80, 8), history("b", 79, 0)], (100, 80, 8)),
        ([history("a", 100, 80, 8), history("b", 90, 60, 6), history("c", 59, 0)], (100, 60, 6)),
        ([history("a", 100, 80, 8), history("b", 90, 60, 6), history("c", 60, 10, 1)], (100, 10, 1)),
    ],
)
def test_replicas_complete_each_other(replicas: list[LogHistory], expected: tuple[int, int, int | None]) -> None:
    for order in (replicas, replicas[::-1]):
        [one] = of_one_cluster(order)
        assert (one.log, one.end_offset, one.complete_from_offset, one.from_ms) == (".", *expected)


def test_partitions_are_for_themselves() -> None:
    found = of_one_cluster([history("a", 10, 5, 5), history("b", 9, 0, None, 1)])
    assert [(one.partition, one.complete_from_offset) for one in found] == [(0, 5), (1, 0)]


def test_only_what_was_asked_for_is_missing() -> None:
    late, early, whole = history(".", 10, 5, MS + 9), history(".", 10, 5, MS, 1), history(".", 10, 0, None, 2)
    unknown = history(".", 10, 10, None, 3)
    assert incomplete([early, whole, unknown, late], asked()) == [late, early, unknown]
    assert incomplete([early, late], asked(MS + 1)) == [late]
    # Of the very millisecond something may be gone.
    assert incomplete([early, late], asked(MS)) == [late, early]
    group = next(name for name in ("a", "b", "c") if coordinator_partition(name, 2) == 1)
    assert incomplete([late, early], asked(-1, group)) == [early]
    # Where partitions are not there, the number of all of them is not known.
    assert incomplete([late, history(".", 10, 5, MS, 4)], asked(-1, group)) == [late, history(".", 10, 5, MS, 4)]


def test_a_note_names_logs_and_counts_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    note_history([history(".", 10, 0)], asked())
    assert capsys.readouterr().err == ""
    note_history([history("east", 10, 5, MS), history("west", 10, 0)], asked())
    [line] = capsys.readouterr().err.splitlines()
    assert "complete only in east: __consumer_offsets-0 from offset 5 (2025-10-09T08:53:20.000Z) on." in line
    assert "docs/pipeline.md" in line
    note_history([history(".", 10, 5, MS + number, number) for number in range(5)], asked())
    [line] = capsys.readouterr().err.splitlines()
    assert "__consumer_offsets-4" in line and "__consumer_offsets-1" not in line and "and 2 more" in line
