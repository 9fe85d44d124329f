"""`kcoord pipeline` from a log that kcoord wrote to tables on the disk, in the tests' own session."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from kcoord.cli.main import main
from kcoord.cli.pipeline import progress
from tests.harness.spark_settings import SETTINGS
from tests.unit.cli.rig import LogRig, batches_of

# On a busy machine Spark's status tracker may be seconds late.
TRACKER_S = 60.0


def pipeline(job: str, *arguments: str | Path) -> Result:
    # The session is shared: the command's own number of shuffles would stay with it.
    words = ["pipeline", job, *map(str, arguments), "--conf", "spark.sql.shuffle.partitions=2"]
    return CliRunner().invoke(main, [*words, "--master", "local[2]"], catch_exceptions=False)


def documents(job: str, *arguments: str | Path) -> Any:
    result = pipeline(job, *arguments, "--output", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["tables"]


@pytest.fixture(scope="module")
def data(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The history of LogRig, and five messages in orders-0, one each second from second 1 on."""
    path = tmp_path_factory.mktemp("pipeline") / "data"
    rig = LogRig(path)
    rig.create("orders", 2, 0)
    for second in range(1, 6):
        rig.produce("orders", b"value", second)
    rig.join(6)
    rig.commit("workers", 7, orders_0=5, orders_1=0)
    rig.commit("workers", 8, orders_0=2)
    rig.leave(9)
    rig.commit("report", 10, orders_0=4)
    rig.delete_group("report", 11)
    rig.stop()
    return path


def test_offsets_history_is_written_and_shown(data: Path, spark: SparkSession, tmp_path: Path) -> None:
    output = tmp_path / "out"
    found = documents("offsets-history", data, "--group", "workers", "--to", output, "--limit", "9")
    told = found["offsets_history"]
    assert (told["output"], told["written"]) == (f"{output}/offsets_history", 3)
    assert [(row["partition"], row["committed_offset"], row["is_rewind"]) for row in told["rows"]] in (
        [(0, 5, False), (1, 0, False), (0, 2, True)], [(1, 0, False), (0, 5, False), (0, 2, True)]
    )  # fmt: skip
    # By day and bucket, and any reader of Parquet can tell.
    [file] = output.glob("offsets_history/date=2025-10-09/group_bucket=*/*.parquet")
    assert 0 <= int(file.parent.name.partition("=")[2]) < 16
    # Not INT96, which has no statistics.
    times = pq.ParquetFile(file)
    place = times.schema_arrow.get_field_index("valid_from")
    assert str(times.schema.column(place).logical_type).startswith("Timestamp(isAdjustedToUTC=true")
    assert times.metadata.row_group(0).column(place).statistics.has_min_max
    written = spark.read.parquet(f"{output}/offsets_history")
    assert written.where("committed_offset = 2").count() == 1
    again = pipeline("offsets-history", data, "--to", output)
    assert (again.exit_code, again.stdout) == (2, "") and "--overwrite" in again.stderr


def test_lag_of_a_log(data: Path) -> None:
    rows = documents("lag", data, "--last")["lag"]["rows"]
    told = {
        (row["group_id"], row["partition"]): (row["lag_records"], row["lag_seconds"], row["is_left"]) for row in rows
    }
    # The end is at second 11; offset 2 came at second 3. Nobody ever wrote to orders-1.
    assert told == {("workers", 0): (3, 8.0, False), ("workers", 1): (None, None, False)}


def test_rebalances_of_a_log(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = pipeline("rebalances", data)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "rebalances: 2 rows" and lines[1].split()[:3] == ["GROUP", "STARTED", "EPOCH"]
    assert [line.split()[:6] for line in lines[2:4]] == [
        ["workers", "2025-10-09T08:53:26.000Z", "1", "0", "0", "1"],
        ["workers", "2025-10-09T08:53:29.000Z", "2", "0", "1", "0"],
    ]
    assert lines[4:] == ["rebalance_ranking: nothing"] and max(map(len, lines)) <= 80


def test_formats_that_this_spark_has_not(data: Path, tmp_path: Path) -> None:
    for name in ("delta", "iceberg"):
        result = pipeline("lag", data, "--to", tmp_path / "out", "--format", name)
        assert result.exit_code == 2 and f"this Spark cannot write {name}" in result.stderr
        assert not (tmp_path / "out").exists()


def test_damage_is_one_line(data: Path, tmp_path: Path) -> None:
    segment = data / "__consumer_offsets-0" / f"{0:020d}.log"
    broken = tmp_path / "broken" / "__consumer_offsets-0"
    broken.mkdir(parents=True)
    # The first commit, of two partitions, behind the records of the group.
    position = sum(map(len, batches_of(segment)[:2]))
    damaged = bytearray(segment.read_bytes())
    damaged[position + 80] ^= 1
    (broken / segment.name).write_bytes(damaged)
    result = pipeline("offsets-history", broken.parent)
    assert result.exit_code == 7 and len(result.stderr.splitlines()) == 1, result.stderr
    assert f"{segment.name} at byte {position}" in result.stderr and "onCorrupt=collect" in result.stderr
    trace = Path(result.stderr.split()[-1])
    assert "JVM stacktrace" in trace.read_text()
    trace.unlink()
    collected = documents("offsets-history", broken.parent, "--option", "onCorrupt=collect")
    assert len(collected["offsets_history"]["rows"]) == 3


def alone(*words: str | Path, temporary: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with a JVM of its own, in an environment that is not activated."""
    environment = {**os.environ, "TMPDIR": str(temporary), "PATH": "/usr/bin:/bin"}
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV"):
        environment.pop(name, None)
    found = [f"--conf={name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-P", "-m", "kcoord.cli.main", "pipeline", *map(str, words), "--master=local[1]", *found]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)


@pytest.mark.nightly
def test_nothing_of_the_jvm_is_on_the_terminal(data: Path, tmp_path: Path) -> None:
    """Neither what it warns of when it starts, nor traces."""
    settings = {name: str(value) for name, value in SETTINGS.items()}
    done = alone("offsets-history", data, "--group", "workers", temporary=tmp_path, **settings)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.startswith("offsets_history: 3 rows\n")
    assert not list(tmp_path.glob("kcoord-pipeline-*"))


def test_a_jvm_that_does_not_start_is_one_line(data: Path, tmp_path: Path) -> None:
    done = alone("lag", data, temporary=tmp_path, **{"spark.driver.memory": "1k"})
    assert done.returncode == 2 and done.stderr.startswith("kcoord: Spark did not start: Too small "), done.stderr
    [trace] = tmp_path.glob("kcoord-pipeline-lag-*")
    assert len(done.stderr.splitlines()) == 1 and done.stderr.endswith(f"{trace}\n")
    assert "JAVA_GATEWAY_EXITED" in trace.read_text()


def test_progress_comes_from_spark_s_tasks(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress.watch(spark, "Counting", False):
        spark.range(0, 1000, numPartitions=3).selectExpr("id % 7 as k").groupBy("k").count().collect()
    stages = progress.Stages(spark.sparkContext.statusTracker(), "kcoord Counting")
    # The tracker follows Spark's events: what is over may be known as over a little later.
    ends_at = time.monotonic() + TRACKER_S
    while stages.tasks < 4 or stages.tasks_done < stages.tasks:
        assert time.monotonic() < ends_at, stages.text()
        time.sleep(0.05)
        stages.look()
    shown = capsys.readouterr().err
    assert "Counting" in shown and "100%" in shown
    # Three tasks at least that read, and one that counts; all are done.
    assert stages.stages_done == stages.stages >= 2
    with progress.watch(spark, "Quiet", True):
        pass
    assert capsys.readouterr().err == ""


def test_times_are_of_the_log(data: Path) -> None:
    rows = documents("offsets-history", data, "--at", "2025-10-09T08:53:30")["offsets_history"]["rows"]
    assert sorted((row["group_id"], row["partition"], row["committed_offset"]) for row in rows) == [
        ("report", 0, 4), ("workers", 0, 2), ("workers", 1, 0)
    ]  # fmt: skip


def test_csv_has_a_table_after_the_other(data: Path) -> None:
    result = pipeline("rebalances", data, "-g", "workers", "-o", "csv", "-n", "1")
    assert result.exit_code == 0, result.output
    first, second = result.stdout.split("\n\n")
    (row,) = csv.DictReader(io.StringIO(first))
    assert (row["group_id"], row["cause"]) == ("workers", "member_joined")
    assert second.splitlines()[0].startswith("finding,rank,")
