"""Arguments of `kcoord bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from kcoord.cli.bench import common
from kcoord.cli.bench.measure import PREPARE, Results
from kcoord.cli.bench.options import GROUPS, NEWCOMERS, SETS, STEADY, Options, default_processes
from kcoord.cli.main import main


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", *arguments], catch_exceptions=False)


def test_sets_of_workloads() -> None:
    assert common.workloads_of(()) == [*STEADY, *GROUPS, *NEWCOMERS]
    assert common.workloads_of(("groups",)) == [*GROUPS]
    assert common.workloads_of(("newcomers", "commit-1")) == ["commit-1", *NEWCOMERS]
    assert common.workloads_of(("fetch", "heartbeat", "fetch")) == ["heartbeat", "fetch"]
    assert common.workloads_of(("flap-classic", "steady")) == [*STEADY, "flap-classic"]
    assert set(SETS["all"]) == {*PREPARE, *GROUPS}
    with pytest.raises(click.UsageError, match="unknown workload 'fetsh'.*did you mean 'fetch'"):
        common.workloads_of(("fetsh",))


def test_processes_leave_cores_for_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, processes in ((1, 1), (2, 1), (4, 2), (64, 4)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert default_processes() == processes


def test_bench_without_a_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def measure(clusters: list[str], names: list[str], options: Options) -> tuple[Results, int]:
        asked.append((clusters, names, options))
        return Results([[] for _ in clusters]), 0

    monkeypatch.setattr("kcoord.cli.bench.run_command.run_measuring", measure)
    monkeypatch.setattr("kcoord.cli.bench.compare_command.run_measuring", measure)
    given = ["--connections", "3", "--in-flight", "5", "--processes", "2", "--replication-factor", "3"]
    assert bench("-b", "a:1", "heartbeat", *given).exit_code == 0
    assert bench("run", "-b", "a:1", "heartbeat", *given).exit_code == 0
    assert bench("compare", "a:1", "b:2", "heartbeat", *given).exit_code == 0
    options = Options(connections=3, in_flight=5, processes=2, replication_factor=3)
    assert asked == [(["a:1"], ["heartbeat"], options)] * 2 + [(["a:1", "b:2"], ["heartbeat"], options)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nothing"], "unknown workload 'nothing'"),
        (["--connections", "0"], "--connections"),
        (["--seconds", "0"], "--seconds"),
        (["compare", "a:1"], "Missing argument 'B'"),
        (["compare", "a:1", "x.json"], "x.json is a file"),
        (["compare", "x.json", "y.json", "fetch"], "for clusters only"),
    ],
    ids=" ".join,
)
def test_wrong_usage(arguments: list[str], text: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2
    assert text in result.stderr


def test_too_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (100, 1000))
    result = bench("join-classic", "--members", "1000")
    assert result.exit_code == 1
    assert "2100 open files are needed, and the limit is 1000" in result.stderr


def test_files_are_compared(tmp_path: Path) -> None:
    for name, rate in (("a", 200.0), ("b", 100.0)):
        rounds = [{"per_second": rate, "p50_ms": 1.0, "p99_ms": 2.0}]
        measured: list[dict[str, Any]] = [{"workload": "fetch", "skipped": None, "errors": {}, "rounds": rounds}]
        text = json.dumps({"format": "kcoord-bench", "version": 1, "workloads": measured})
        (tmp_path / f"{name}.json").write_text(text)
    result = bench("compare", f"{tmp_path}/a.json", f"{tmp_path}/b.json")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split() == ["fetch", "req/s", "200", "100", "2.00", "2.00", "2.00"]
    rows: list[dict[str, Any]] = json.loads(
        bench("compare", f"{tmp_path}/a.json", f"{tmp_path}/b.json", "-o", "json").stdout
    )
    assert rows[0]["ratio"] == 2
    (tmp_path / "b.json").write_text("{}")
    result = bench("compare", f"{tmp_path}/a.json", f"{tmp_path}/b.json")
    assert result.exit_code == 2
    assert "is no file of `kcoord bench --save`" in result.stderr
    assert bench("compare", f"{tmp_path}/a.json", f"{tmp_path}/c.json").exit_code == 1
