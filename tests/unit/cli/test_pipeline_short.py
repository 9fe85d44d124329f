"""Jobs over short logs run without Spark, and with it whenever something was asked for that it alone has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kcoord.cli.main import main
from kcoord.cli.pipeline import short_run
from tests.unit.cli.rig import stopped


class SparkWanted(BaseException):
    """A job went on to Spark."""


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def enter(_run: object) -> None:
        raise SparkWanted

    monkeypatch.setattr("kcoord.cli.pipeline.run.Run.__enter__", enter)
    monkeypatch.setattr(short_run, "_has_session", lambda: False)
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", *short_run.SETTINGS_VARIABLES):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stopped(tmp_path_factory.mktemp("short") / "data")


def pipeline(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["pipeline", *map(str, words)], catch_exceptions=False)


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize(
    "words",
    [
        ["--conf", "spark.driver.memory=2g"], ["--master", "local[*]"], ["--one-cluster"],
        ["--to", "out", "--format", "delta"], ["--to", "s3://bucket/out"], ["--to", "file:/out"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_only_spark_has(words: list[str], data: Path) -> None:
    with pytest.raises(SparkWanted):
        pipeline("lag", data, *words)


@pytest.mark.usefixtures("no_spark")
def test_settings_of_spark_are_used(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert pipeline("lag", data).exit_code == 0
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").touch()
    with pytest.raises(SparkWanted):
        pipeline("lag", data)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert pipeline("lag", data).exit_code == 0


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("name", short_run.SETTINGS_VARIABLES)
def test_settings_in_variables_are_used(name: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    with pytest.raises(SparkWanted):
        pipeline("lag", data)


def test_a_process_of_spark_submit_uses_its_session(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert short_run._has_session()


@pytest.mark.usefixtures("no_spark")
def test_more_than_fits_in_memory_goes_to_spark(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcoord.spark.short.tables.TABLE_BYTES_MAX", 100)
    with pytest.raises(SparkWanted):
        pipeline("offsets-history", data)


@pytest.mark.usefixtures("no_spark")
def test_more_samples_than_fit_go_to_spark(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcoord.spark.short.lag.SAMPLES_MAX", 3)
    with pytest.raises(SparkWanted):
        pipeline("lag", data, "--every", "0.01")
    many = pipeline("lag", data, "--every", "0.000002")
    assert many.exit_code == 2 and "more than 1000000 samples" in many.stderr


@pytest.mark.usefixtures("no_spark")
def test_long_logs_go_to_spark(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcoord.cli.pipeline.spark_session.SHORT_BYTES_MAX", 10)
    with pytest.raises(SparkWanted):
        pipeline("lag", data)


@pytest.mark.usefixtures("no_spark")
def test_mistakes_are_one_line(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for words, code, text in (
        ((tmp_path / "none",), 2, "does not exist"),
        ((tmp_path,), 2, "no logs in it"),
        ((data, "--option", "nothing=1"), 2, "nothing"),
        ((data, "--to", data), 2, "--overwrite"),
        ((data, "--to", tmp_path / "file", "--overwrite"), 2, "is not a directory"),
    ):
        result = pipeline("offsets-history", *map(str, words))
        assert result.exit_code == code and text in result.stderr, result.output
        assert len(result.stderr.splitlines()) == 1


def test_a_reader_that_stops_reading_ends_it_quietly(data: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-P", "-m", "kcoord.cli.main", "pipeline", "offsets-history", str(data), "-o", "csv"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert (process.wait(60), said, list(tmp_path.iterdir())) == (0, b"", [])


def test_no_java_and_no_jvm(data: Path, tmp_path: Path) -> None:
    """In a process of its own, on a machine without Java."""
    environment: dict[str, Any] = {**os.environ, "PATH": "/nowhere", "JAVA_HOME": "/nowhere", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-P", "-m", "kcoord.cli.main", "pipeline", "offsets-history", str(data)]
    done = subprocess.run(
        [*command, "--to", str(tmp_path / "out")], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert done.stderr.endswith(f"rows in {tmp_path}/out/offsets_history\n"), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
