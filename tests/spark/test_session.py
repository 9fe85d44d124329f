"""The session: its settings, what its workers run, and that Spark finds the data source by the name of a package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession

import kcoord
from kcoord.spark import session as module
from kcoord.spark.java import find_java
from kcoord.spark.session import session
from tests.harness.spark_settings import SETTINGS
from tests.unit.cli import rig
from tests.unit.spark.log_rig import LogRig, commit

ROOT = str(Path(kcoord.__file__).resolve().parent.parent)


def python(code: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def test_spark_counts(spark: SparkSession) -> None:
    assert spark.range(10).count() == 10


def test_settings_of_the_pipeline(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"


def test_an_active_session_is_taken_and_gets_the_settings(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    assert session("another name") is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_workers_run_this_interpreter_and_this_kcoord(spark: SparkSession) -> None:
    def where(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        import sys

        import kcoord.wire.primitives

        for _ in frames:
            yield pd.DataFrame({"python": [sys.executable], "file": [kcoord.wire.primitives.__file__]})

    from kcoord.wire import primitives

    [row] = spark.range(1, numPartitions=1).mapInPandas(where, "python string, file string").collect()
    assert (row.python, row.file) == (sys.executable, primitives.__file__)


@pytest.mark.parametrize("registered", [True, False])
def test_the_source_is_known_also_where_nothing_was_registered(
    spark: SparkSession, tmp_path: Path, registered: bool
) -> None:
    """A new session has registrations of its own; there Spark finds `pyspark_kcoord`."""
    log = rig.LogRig(tmp_path)
    log.create("orders", 1, 1)
    log.commit("billing", 2, orders_0=5)
    log.stop()
    used = spark if registered else spark.newSession()
    table = used.read.format("kcoord").option("table", "offset_commits").load(str(tmp_path))
    rows = table.where("group_id = 'billing'").select("topic", "partition", "committed_offset").collect()
    assert [tuple(row) for row in rows] == [("orders", 0, 5)]


@pytest.mark.parametrize(
    ("local", "given", "wanted"),
    [(True, "python3", sys.executable), (False, "env/bin/python", None), (False, "", sys.executable)],
)
def test_a_local_master_runs_this_interpreter_and_a_cluster_the_one_that_is_set(
    monkeypatch: pytest.MonkeyPatch, local: bool, given: str, wanted: str | None
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", given)
    assert module._variables(local).get("PYSPARK_PYTHON") == wanted


def test_workers_find_modules_where_this_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/a", ROOT, "/b"]))
    wanted = module._variables(local=True)
    assert wanted["PYTHONPATH"] == os.pathsep.join([ROOT, "/a", "/b"])
    assert wanted.get("PYTHONSAFEPATH") == ("1" if sys.flags.safe_path else None)


def test_who_was_started_by_spark_submit_needs_no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "JAVA_HOME" in module._variables(local=True)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "4711")
    assert "JAVA_HOME" not in module._variables(local=True)


def test_the_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCOORD_TEST_A", "old")
    before = dict(os.environ)
    with (
        pytest.raises(ZeroDivisionError),
        module._environment({"KCOORD_TEST_A": "new", "KCOORD_TEST_B": "new"}),
    ):
        assert os.environ["KCOORD_TEST_A"] == os.environ["KCOORD_TEST_B"] == "new"
        raise ZeroDivisionError
    assert dict(os.environ) == before


def test_the_caller_s_java_options_are_kept() -> None:
    options = module._settings(True, {"spark.driver.extraJavaOptions": "-Xss4m", "spark.ui.enabled": True})
    assert str(options["spark.driver.extraJavaOptions"]).endswith("log4j2.properties -Xss4m")
    assert options["spark.ui.enabled"] is True


NOT_ACTIVATED = """
from pyspark.sql import SparkSession
from kcoord.spark import register
found = SparkSession.builder.master("local[1]")
for name, value in {settings!r}.items():
    found = found.config(name, value)
spark = found.getOrCreate()
register(spark)
print(spark.sparkContext.pythonExec)
print(spark.read.format("kcoord").load({path!r}).select("committed_offset").collect()[0][0])
"""


@pytest.mark.nightly
def test_a_plain_session_in_an_environment_that_is_not_activated(tmp_path: Path) -> None:
    LogRig(tmp_path / "data", "__consumer_offsets").append(commit("g", "t", 0, 7))
    # The only python3 that Spark finds has nothing.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "python3").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "JAVA_HOME": str(find_java().home)}
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment.pop(name, None)
    code = NOT_ACTIVATED.format(settings=SETTINGS, path=str(tmp_path / "data"))
    done = python(code, environment)
    assert (done.stdout, done.returncode) == ("python3\n7\n", 0), done.stderr


def test_the_package_that_spark_looks_into_imports_nothing_heavy() -> None:
    """Spark imports it in every session that meets a Python data source, whosever that is."""
    done = python(
        "import sys, pyspark_kcoord, kcoord.spark\n"
        "print([name for name in ('pyspark', 'pyarrow', 'pandas', 'numpy') if name in sys.modules])"
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_without_pyspark_there_is_no_source_and_no_failure() -> None:
    done = python(
        "import sys\nsys.modules['pyspark'] = sys.modules['kcoord.spark.source'] = None\n"
        "import pyspark_kcoord\nprint(hasattr(pyspark_kcoord, 'DefaultSource'), hasattr(pyspark_kcoord, 'other'))"
    )
    assert (done.stdout, done.returncode) == ("False False\n", 0), done.stderr
    assert "its data source cannot be used" in done.stderr
