"""`kcoord pipeline report` over a real broker's logs: what the page is made of, against what the clients were told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from kcoord.cli.main import main
from kcoord.spark.jobs.report import collect as module
from kcoord.spark.jobs.report.data import Report
from tests.unit.spark.test_report_page import parsed, plots

BROKER = Path(__file__).parents[1] / "data" / "broker"


@pytest.fixture(scope="module")
def answers() -> Any:
    return json.loads((BROKER / "answers.json").read_text())


def test_a_page_about_a_broker_s_logs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Any
) -> None:
    made: list[Report] = []
    collect = module.collect

    def watched(*arguments: Any) -> Report:
        made.append(collect(*arguments))
        return made[-1]

    monkeypatch.setattr(module, "collect", watched)
    output = tmp_path / "groups.html"
    words = ["pipeline", "report", str(BROKER / "logs"), "--output", str(output), "--output-format", "json"]
    settings = ["--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2"]
    result = CliRunner().invoke(main, [*words, *settings], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told == {"job": "report", "output": str(output), "bytes": output.stat().st_size}
    assert [one.name for one in tmp_path.iterdir()] == ["groups.html"]
    [report] = made
    _check(report, answers)
    text = output.read_text()
    said = " ".join(parsed(text).words)
    assert all(one.owner.group_id in said for one in report.lag_peaks)
    assert len([one for one in plots(text) if one.get("class") == "plot"]) == 4


def _check(report: Report, answers: Any) -> None:
    assert (
        report.begin_ms is not None and report.end_ms is not None and report.logs == 1 and report.later == 0
    )
    assert report.begin_ms < report.end_ms <= report.made_ms
    assert (
        0 < len(report.commits) <= 201 and sum(count for _, count in report.commits) == report.commits_total
    )
    assert {*answers["committed"]} and report.groups >= len(answers["committed"])
    bars = {lane.owner.group_id: lane.bars for lane in report.lanes}
    # Seven and five, as tests/spark/test_broker_jobs.py tells one by one.
    assert (sum(bar.count for bar in bars["next"]), sum(bar.count for bar in bars["migrated"])) == (7, 5)
    assert (bars["next"][0].from_epoch, bars["next"][-1].to_epoch) == (0, 9)
    moves = {one.owner.group_id: one for one in report.by_rebalances}
    assert (moves["next"].rebalances, moves["next"].partitions_moved) == (7, 6)
    # Lag at the end, summed over partitions, is what offsets and ends say that the broker told.
    checked = 0
    for peak in report.lag_peaks:
        commits = [one for one in answers["committed"].get(peak.owner.group_id, ()) if one[2] >= 0]
        if not commits or any(topic == "payments" for topic, *_ in commits):
            continue
        behind = 0
        for topic, partition, offset, *_ in commits:
            ends = answers["ends"][f"{topic}-{partition}"]
            if ends["start"] < ends["last_stable"]:
                behind += max(ends["last_stable"] - max(offset, ends["start"]), 0)
        assert peak.records_end == behind and peak.records_peak is not None and peak.records_peak >= behind
        checked += 1
    assert checked >= 1
    for series in (report.lag_records, report.lag_seconds):
        assert 1 <= len(series) <= 6
        for one in series:
            times = [at for at, _ in one.points]
            # A group without an offset has no lag, so lines of deleted ones end earlier.
            assert times == sorted(times) and times[-1] <= report.end_ms and len(times) <= 202
        assert any(one.points[-1][0] == report.end_ms for one in series)
