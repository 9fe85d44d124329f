"""A log before and after compaction: no job may count what is left as if it were all, and say nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from kcoord.cli.main import main
from kcoord.spark.jobs.completeness import LogHistory, history_table
from kcoord.spark.jobs.report import collect as module
from kcoord.spark.jobs.report.data import Gone, Report
from tests.spark.tables import at, commit, frame, seconds_of
from tests.unit.cli.rig import START_MS, LogRig
from tests.unit.cli.rig import run as log_tool
from tests.unit.cli.test_log_compact import roll
from tests.unit.spark.jobs.test_report_page import charts, greys, parsed

# When the first record is that compaction left with all that came after it, and the first one that it did not see: from
# there on all states are known.
COMPLETE_S = 24
STATES_S = 26


@pytest.fixture(scope="module")
def data(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A group that committed once at second 1, and `workers`: a commit each second, three generations of one member."""
    path = tmp_path_factory.mktemp("history") / "data"
    rig = LogRig(path)
    rig.create("orders", 2, 0)
    for second in range(1, 6):
        rig.produce("orders", b"value", second)
    rig.commit("early", 1, orders_0=1)
    rig.join(2)
    for second in range(3, 10):
        rig.commit("workers", second, orders_0=second % 5)
    rig.leave(10)
    rig.join(11)
    for second in range(12, 25):
        rig.commit("workers", second, orders_0=second % 5)
    roll(rig, "__consumer_offsets", 25)
    rig.leave(26)
    rig.join(27)
    for second in range(28, 31):
        rig.commit("workers", second, orders_0=second % 5)
    rig.stop()
    return path


def pipeline(job: str, *words: str | Path) -> Any:
    settings = ["--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2", "--output", "json"]
    result = CliRunner().invoke(main, ["pipeline", job, *map(str, words), *settings], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), result.stderr


@pytest.mark.nightly
def test_what_compaction_took_is_never_passed_over(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report, its page and the other jobs, before and after."""
    made: list[Report] = []
    collect = module.collect

    def watched(*arguments: Any) -> Report:
        made.append(collect(*arguments))
        return made[-1]

    monkeypatch.setattr(module, "collect", watched)
    _, stderr = pipeline("report", data, "--to", tmp_path / "before.html")
    [before] = made
    assert (before.commits_total, before.rebalances_total, before.complete_ms) == (24, 5, None)
    assert "complete" not in stderr and 'id="missing"' not in (tmp_path / "before.html").read_text()

    assert log_tool("compact", data, "--history", "0").exit_code == 0
    _, stderr = pipeline("report", data, "--to", tmp_path / "after.html")
    after = made[1]
    _check_report(before, after)
    _check_page((tmp_path / "after.html").read_text())
    assert "compaction removed history, which is complete only in __consumer_offsets-0 from offset" in stderr
    _check_jobs(data)


def _check_report(before: Report, after: Report) -> None:
    rebalances_ms, complete_ms = START_MS + COMPLETE_S * 1000, START_MS + STATES_S * 1000
    assert (before.begin_ms, before.end_ms) == (after.begin_ms, after.end_ms)
    # The last commit of each group before, and all after it.
    assert (after.commits_total, after.rebalances_total, after.commits_left) == (5, 3, 2)
    assert (after.complete_ms, after.rebalances_complete_ms) == (complete_ms, rebalances_ms)
    [gone] = after.gone
    assert gone == Gone(".", "__consumer_offsets-0", gone.offset, complete_ms) and gone.offset > 0
    # Compaction leaves late commits only: a plot of these would be a peak that never was.
    seconds = {(one - START_MS) // 1000: commits for one, commits in after.commits}
    assert seconds == {28: 1, 29: 1, 30: 1}
    assert all(dict(before.commits)[one] == commits for one, commits in after.commits)
    # What lag was then is not known. At the end it is what it was before compaction.
    for ours, theirs in ((after.lag_records, before.lag_records), (after.lag_seconds, before.lag_seconds)):
        known = {one.owner: dict(one.points) for one in theirs}
        for one in ours:
            assert one.points[0][0] == complete_ms and one.points[-1][0] == after.end_ms
            assert all(known[one.owner][when] == value for when, value in one.points)
    ends = [
        {one.owner.group_id: (one.lag.records_end, one.lag.seconds_end) for one in report.listing}
        for report in (before, after)
    ]
    assert ends[0] == ends[1] and {*ends[0]} == {"workers", "early"}
    # That of `early` was its peak, and still is; that of `workers` was before.
    assert {one.owner.group_id: one.complete_ms for one in after.listing} == dict.fromkeys(ends[1], complete_ms)
    [lane] = after.lanes
    assert lane.owner.group_id == "workers" and lane.complete_ms == rebalances_ms


def _check_page(text: str) -> None:
    content = " ".join(" ".join(parsed(text).words).split())
    assert "History is complete from 2025-10-09 08:53:46 on" in content and "≥ 5" in content and "≥ 3" in content
    assert all(len(greys(chart)) >= 1 for chart in charts(text).values())


def _check_jobs(data: Path) -> None:
    iso = "2025-10-09T08:53:46.000Z"
    document, stderr = pipeline("offsets-history", data, "--limit", "99")
    rows = document["tables"]["offsets_history"]["rows"]
    assert {row["history_complete_from"] for row in rows} == {iso} and len(rows) == 5
    [whole] = document["history"]
    assert whole["history_complete_from"] == iso and whole["complete_from_offset"] > 0
    assert "complete only in" in stderr
    # Of time that is complete nothing is missing.
    document, stderr = pipeline("offsets-history", data, "--limit", "99", "--since", "2025-10-09T08:53:47")
    assert len(document["tables"]["offsets_history"]["rows"]) == 3 and "complete" not in stderr
    document, _ = pipeline("rebalances", data)
    assert [row["history_complete_from"] for row in document["tables"]["rebalances"]["rows"]] == [
        "2025-10-09T08:53:44.000Z"
    ] * 3
    document, _ = pipeline("lag", data, "--last")
    assert {row["history_complete_from"] for row in document["tables"]["lag"]["rows"]} == {iso}


def test_states_are_complete_only_from_the_cleaner_s_mark_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the commit of second 1 the log has no gap from second 2 on, but the state of second 2 lacks it."""
    path = tmp_path / "data"
    rig = LogRig(path)
    rig.create("orders", 2, 0)
    rig.commit("g", 1, orders_0=1)
    rig.commit("g", 2, orders_1=1)
    rig.commit("g", 3, orders_0=3)
    roll(rig, "__consumer_offsets", 4)
    rig.commit("g", 5, orders_0=5)
    rig.stop()
    assert log_tool("compact", path, "--history", "0").exit_code == 0
    refused = log_tool("state", path, "--as-of", f"@{START_MS + 2000}")
    assert refused.exit_code != 0 and "lacks records" in refused.stderr
    words = ("offsets-history", path, "--at", f"@{START_MS + 2000}")
    found = [pipeline(*words), pipeline("lag", path)]
    monkeypatch.setattr("kcoord.cli.pipeline.short_run._has_session", lambda: False)
    for job, *more in (words, ("lag", path)):
        result = CliRunner().invoke(main, ["pipeline", str(job), *map(str, more), "-o", "json"], catch_exceptions=False)
        found.append((json.loads(result.stdout), result.stderr))
    complete = "2025-10-09T08:53:25.000Z"
    for document, stderr in found:
        [rows] = [table["rows"] for table in document["tables"].values()]
        assert rows and {row["history_complete_from"] for row in rows} == {complete}
        assert document["history"][0]["history_complete_from"] == complete
        assert f"({complete})" in stderr
    # Of rebalances only records are asked.
    document, _ = pipeline("rebalances", path)
    assert document["history"][0]["history_complete_from"] < complete


def test_times_between_possibly_removed_commits_are_unknown(spark: SparkSession) -> None:
    from kcoord.spark.jobs.offsets_history import offsets_history

    commits = frame(spark, "offset_commits", [
        commit(3, 0, 10), commit(7, 10, 20), commit(9, 20, 40), commit(9, 20, 40, log_partition=1),
    ])  # fmt: skip
    complete_ms = round(at(20).timestamp() * 1000)
    history = history_table(spark, [
        LogHistory(".", "__consumer_offsets", 0, 10, 9, complete_ms),
        LogHistory(".", "__consumer_offsets", 1, 10, 0, None),
        # Of another topic, with the same number.
        LogHistory(".", "__transaction_state", 0, 10, 5, complete_ms + 1),
    ])  # fmt: skip
    rows = offsets_history(commits, None, history).orderBy("log_partition", "log_offset").collect()
    told = [
        (row.log_offset, row.offset_gap, row.seconds_since_previous, row.rate, seconds_of(row.history_complete_from))
        for row in rows
    ]
    assert told == [
        (3, None, None, None, 20),
        # What came between offsets 3 and 7 nobody knows.
        (7, 10, None, None, 20),
        # The one before is the last that compaction saw of this key: it is the one before.
        (9, 20, 10.0, 2.0, 20),
        (9, None, None, None, None),
    ]
