"""`kcoord pipeline report` over a real broker's logs: what the page is made of, against what the clients were told."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from kcoord.cli.main import main
from kcoord.cli.pipeline import short_run
from kcoord.log.control_records import end_transaction_batch
from kcoord.spark.jobs.rebalances import rebalances
from kcoord.spark.jobs.report import collect as module
from kcoord.spark.jobs.report.data import Report
from kcoord.spark.jobs.report.page import page
from kcoord.spark.short import report as short_module
from tests.spark.tables import at, commit, frame, message
from tests.spark.test_rebalances import generation
from tests.spark.test_short import WITH_SPARK, no_spark, run
from tests.unit.spark import log_rig
from tests.unit.spark.jobs.test_report_page import parsed, plots
from tests.unit.spark.log_rig import LogRig

BROKER = Path(__file__).parents[1] / "data" / "broker"


@pytest.fixture(scope="module")
def answers() -> Any:
    return json.loads((BROKER / "answers.json").read_text())


def test_a_page_about_a_broker_s_logs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Any
) -> None:
    made: list[Report] = []
    collect: Any = module.collect

    def watched(*arguments: Any) -> Report:
        made.append(collect(*arguments))
        return made[-1]

    monkeypatch.setattr(module, "collect", watched)
    output = tmp_path / "groups.html"
    words = ["pipeline", "report", str(BROKER / "logs"), "--to", str(output), "--output", "json"]
    settings = ["--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2"]
    result = CliRunner().invoke(main, [*words, *settings], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told == {"job": "report", "output": str(output), "bytes": output.stat().st_size}
    assert [one.name for one in tmp_path.iterdir()] == ["groups.html"]
    [report] = made
    _check(report, answers)
    text = output.read_text()
    content = " ".join(parsed(text).words)
    assert all(one.owner.group_id in content for one in report.listing)
    assert len([one for one in plots(text) if one.get("class") == "plot"]) == 4

    # And without Spark.
    collect = short_module.collect
    monkeypatch.setattr(short_module, "collect", watched)
    monkeypatch.setattr(short_run, "_has_session", lambda: False)
    result = CliRunner().invoke(main, [*words, "--overwrite"], catch_exceptions=False)
    assert result.exit_code == 0 and len(made) == 2, result.output
    assert replace(made[1], made_ms=report.made_ms) == report
    assert output.stat().st_size == json.loads(result.stdout)["bytes"]


def log_with_transactions(path: Path, seed: int) -> set[str]:
    """A minute of commits of two groups, inside of transactions and outside. Returns what ended how, and what did not.

    A producer has one transaction at a time, in which it commits for either group, once or more often.
    """
    rng = random.Random(seed)
    for partition in (0, 1):
        topic = LogRig(path, "t", partition)
        for number in range(100):
            topic.append((None, b"value"), at_ms=log_rig.NOW + number * 400)
    offsets = LogRig(path, "__consumer_offsets")
    is_open: dict[int, bool] = {}
    found: set[str] = set()
    for second in range(1, 61):
        at_ms = log_rig.NOW + second * 1000
        producer = rng.choice([-1, 1, 2, 3])
        if is_open.get(producer) and rng.random() < 0.4:
            is_open[producer] = False
            is_commit = rng.random() < 0.7
            offsets.write(end_transaction_batch(producer, 0, is_commit, 0, offsets.next_offset, 0, at_ms))
            offsets.next_offset += 1
            found.add("committed" if is_commit else "aborted")
            continue
        commit = log_rig.commit(rng.choice("gh"), "t", rng.randrange(2), rng.randrange(100), at_ms=at_ms)
        if producer < 0:
            offsets.append(commit, at_ms=at_ms)
            found.add("outside while one is open" if any(is_open.values()) else "outside")
        else:
            offsets.append(commit, at_ms=at_ms, producer_id=producer, producer_epoch=0, transactional=True)
            is_open[producer] = True
    return found | ({"open"} if any(is_open.values()) else set())


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_transactions_count_as_in_the_other_jobs(
    spark: SparkSession, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lag is that of `lag`, and commits and rewinds are those of `offsets-history`, with Spark and without."""
    path = tmp_path / "data"
    kinds = log_with_transactions(path, seed)
    assert kinds >= {"committed", "aborted", "open", "outside while one is open"}
    made: list[Report] = []

    def watch(watched: Any) -> None:
        collect = watched.collect

        def collected(*arguments: Any) -> Report:
            made.append(collect(*arguments))
            return made[-1]

        monkeypatch.setattr(watched, "collect", collected)

    watch(module)
    run("report", path, "--to", tmp_path / "spark.html", *WITH_SPARK)
    watch(short_module)
    monkeypatch.setattr(short_run, "_has_session", lambda: False)
    monkeypatch.setattr("kcoord.cli.pipeline.run.Run.__enter__", no_spark)
    run("report", path, "--to", tmp_path / "short.html")
    whole, short = made
    assert replace(short, made_ms=whole.made_ms) == whole

    rows = run("offsets-history", path, "-n", "999")["tables"]["offsets_history"]["rows"]
    assert short.commits_total == len(rows) and short.rewinds_total == sum(row["is_rewind"] for row in rows) > 3
    expected: dict[tuple[str, int], int] = {}
    for row in run("lag", path, "--every", str(short.bucket_ms / 1000), "-n", "999")["tables"]["lag"]["rows"]:
        place = row["group_id"], round(datetime.fromisoformat(row["at"]).timestamp() * 1000)
        expected[place] = expected.get(place, 0) + row["lag_records"]
    points = {(line.owner.group_id, when): value for line in short.lag_records for when, value in line.points}
    assert points == expected and len(set(points.values())) > 10


@pytest.mark.nightly
def test_what_lies_outside_of_the_time_asked_for(spark: SparkSession) -> None:
    name = "<script>alert('\u202e')</script>"
    commits = frame(
        spark,
        "offset_commits",
        [
            commit(0, 10, 1, group=name),
            commit(1, 20, 5, group=name),
            commit(2, 30, 4, group=name),
            # From the future, and of somebody who was not asked for.
            commit(3, 10_000, 9, group=name),
            commit(4, 40, 6, group=name),
            commit(5, 25, 7, group="other"),
        ],
    )
    messages = frame(spark, "messages", [message(number, number * 4) for number in range(20)])
    records = frame(spark, "records", [generation(6, 28, 1, name, a1=(0,)), generation(7, 200, 2, name, a1=(0,))])
    moves = rebalances(records)

    def report(since: float | None, until: float | None, groups: Sequence[str] = (name,)) -> Report:
        times = [None if one is None else at(one) for one in (since, until)]
        return module.collect(commits, messages, moves, "data", at(100), times[0], times[1], groups)

    def seconds(ms: int | None) -> float:
        return ((ms or 0) - at(0).timestamp() * 1000) / 1000

    # The last message is of second 76.
    whole = report(None, None)
    assert (seconds(whole.begin_ms), seconds(whole.end_ms), whole.bucket_ms) == (10, 76, 1000)
    assert (whole.logs, whole.groups, whole.partitions) == (1, 1, 1)
    assert (whole.commits_total, whole.later, whole.rebalances_total, whole.rewinds_total) == (4, 1, 1, 1)
    assert [(seconds(at_ms), count) for at_ms, count in whole.commits] == [(10, 1), (20, 1), (30, 1), (40, 1)]
    [line] = whole.lag_records
    lag = {seconds(at_ms): value for at_ms, value in line.points}
    # Messages 0 to 2 are there at second 10, one of them read; 6 of 20 at the end.
    assert (lag[10], lag[29], lag[30], lag[40], lag[76], len(lag)) == (2, 3, 4, 5, 14, 67)
    # It did nothing in the last tenth of the time.
    assert whole.lag_peaks == () and [one.is_stopped for one in whole.listing] == [True]
    [peak] = whole.stopped
    # Message 6 is of second 24.
    assert (peak.records_peak, peak.records_end, peak.seconds_end) == (14, 14, 52.0)
    # What it was a tenth of the time before, and what there is to say of why.
    assert seconds(whole.trend_ms) == 69 and peak.records_before == lag[69] == 12
    assert (seconds(peak.last_commit_ms), peak.rebalances, peak.is_rebalancing) == (40, 1, False)
    assert peak.cause == whole.by_rebalances[0].cause
    [jump] = whole.jumps
    assert (jump.rewinds, jump.resets, jump.farthest, seconds(jump.last_ms)) == (1, 0, -1, 30)
    parsed(page(whole))
    # Nothing was committed then, but there was lag.
    late = report(50, 60)
    assert (seconds(late.begin_ms), seconds(late.end_ms), late.commits_total, late.rewinds_total) == (
        50,
        60,
        0,
        0,
    )
    assert [len(one.points) for one in late.lag_records] == [11] and late.stopped[0].records_end == 10
    assert late.stopped[0].last_commit_ms is None and late.stopped[0].rebalances == 0
    assert late.lanes == () and parsed(page(late))
    assert report(200, None) == report(None, None, ("nobody",)) == Report("data", whole.made_ms)


def _check(report: Report, answers: Any) -> None:
    assert report.begin_ms is not None and report.end_ms is not None and report.logs == 1 and report.later == 0
    assert report.begin_ms < report.end_ms <= report.made_ms
    assert 0 < len(report.commits) <= 201 and sum(count for _, count in report.commits) == report.commits_total
    assert {*answers["committed"]} and report.groups >= len(answers["committed"])
    bars = {lane.owner.group_id: lane.bars for lane in report.lanes}
    # Seven and five, as tests/spark/test_broker_jobs.py tells one by one.
    assert (sum(bar.count for bar in bars["next"]), sum(bar.count for bar in bars["migrated"])) == (7, 5)
    assert (bars["next"][0].from_epoch, bars["next"][-1].to_epoch) == (0, 9)
    moves = {one.owner.group_id: one for one in report.by_rebalances}
    assert (moves["next"].rebalances, moves["next"].partitions_moved) == (7, 6)
    # Lag at the end, summed over partitions, is what offsets and ends say that the broker told.
    checked = 0
    for peak in (one.lag for one in report.listing if one.lag.records_end is not None):
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
    assert checked >= 10
    # All of these groups committed last before the last tenth of the time.
    assert report.lag_peaks == () and 1 <= len(report.stopped) <= 10
    assert all(peak.records_end and peak.last_commit_ms is not None for peak in report.stopped)
    _check_listing(report)
    for series in (report.lag_records, report.lag_seconds):
        assert 1 <= len(series) <= 6
        for one in series:
            times = [at for at, _ in one.points]
            # A group without an offset has no lag, so lines of deleted ones end earlier.
            assert times == sorted(times) and times[-1] <= report.end_ms and len(times) <= 202
        assert any(one.points[-1][0] == report.end_ms for one in series)


def _check_listing(report: Report) -> None:
    """All groups, those at work first. Of those that stopped the ones with lag come first, the last to stop first."""
    assert report.listing_total == len(report.listing) == report.groups
    kinds = [one.is_stopped for one in report.listing]
    assert kinds == sorted(kinds) and sum(kinds) >= 10
    stopped = [one.lag for one in report.listing if one.is_stopped]
    has_lag = [bool(one.records_end) for one in stopped]
    assert has_lag == sorted(has_lag, reverse=True) and [*report.stopped] == stopped[: min(sum(has_lag), 10)]
    assert report.trend_ms is not None
    assert all((one.last_commit_ms or 0) < report.trend_ms for one in stopped)
    assert sum(one.commits for one in report.listing) == report.commits_total
    assert sum(one.lag.rebalances for one in report.listing) == report.rebalances_total
    # Nothing of these logs was compacted.
    assert (report.complete_ms, report.rebalances_complete_ms, report.gone, report.commits_left) == (None, None, (), 0)
    # A broker's log has no beginning of a classic group's rebalance.
    classic = [bar for lane in report.lanes for bar in lane.bars if lane.owner.group_id == "classic"]
    assert not any(bar.is_timed for bar in classic)
    assert all(bar.is_timed for lane in report.lanes for bar in lane.bars if lane.owner.group_id == "next")
