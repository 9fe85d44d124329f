"""A Spark session for the pipeline, on any machine that has the extra installed."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

import kcoord
from kcoord.spark import register
from kcoord.spark.java import Java, find_java

LOGGING = Path(__file__).with_name("log4j2.properties")

# Settings that differ from Spark's defaults; the caller's settings override them.
DEFAULTS: dict[str, str] = {
    # The readers take filters on group, topic, time and record type (off by default in Spark 4.3).
    "spark.sql.python.filterPushdown.enabled": "true",
    # Timestamps of a log are UTC, and mean the same on every machine.
    "spark.sql.session.timeZone": "UTC",
    # Parquet's own type, with statistics that filters use. Spark's default is INT96, of old Hive and Impala, which has
    # none and takes a third more time and space.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Before each row that goes to Python, Spark measures the batch so far. If a column has lists, as the headers of
    # records are, the time for that grows with the rows of the batch: with Spark's 10,000, most of a job.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# With a local master, no other machine connects to the driver, so it listens on the loopback address.
LOCAL_DEFAULTS: dict[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def session(app_name: str, master: str | None = None, **conf: str | int | bool) -> SparkSession:
    """The active session with these settings, or a new one; `format("kcoord")` is known to it.

    `master` as in Spark (`local[4]`, `yarn`, ...); the default is that of spark-submit or Spark's files, else local[*].
    `conf` are Spark's settings: `**{"spark.driver.memory": "2g"}`. A running JVM keeps its memory and Java.

    Workers of a local master use this interpreter and this kcoord. On a cluster kcoord must be installed, and
    PYSPARK_PYTHON names its interpreter, if that has another path there.

    Raises JavaNotFoundError.
    """
    spark = bare_session(app_name, master, None, **conf)
    register(spark)
    return spark


def bare_session(
    app_name: str, master: str | None = None, java: Java | None = None, **conf: str | int | bool
) -> SparkSession:
    """The same, without `register`: that makes Spark look for all data sources in Python, which starts two processes of
    Python, one after the other. `kcoord.spark.planned` reads without it. Without `java`, it is looked for. Raises
    JavaNotFoundError.
    """
    local = master is not None and master.startswith("local")
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in _settings(local, conf).items():
        builder = builder.config(name, value)
    if SparkSession.getActiveSession() is not None:
        spark = builder.getOrCreate()
    else:
        with _environment(_variables(local, java)):
            spark = builder.getOrCreate()
    return spark


def _settings(local: bool, conf: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
    settings: dict[str, str | int | bool] = {**DEFAULTS, **(LOCAL_DEFAULTS if local else {}), **conf}
    # Only options on the JVM's command line silence its first lines. The caller's options come later and override them.
    given = conf.get("spark.driver.extraJavaOptions", "")
    settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={LOGGING.as_uri()} {given}".strip()
    return settings


def has_jvm() -> bool:
    """Whether this process has a JVM already, because spark-submit has started it."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _variables(local: bool, java: Java | None = None) -> dict[str, str]:
    """The environment for Spark, its JVM and its workers."""
    wanted: dict[str, str] = {}
    if not has_jvm():
        wanted["JAVA_HOME"] = str((java or find_java()).home)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        # A plain `python3`, as some images set it, may be another Python: one that lacks kcoord.
        if local or not os.environ.get(name):
            wanted[name] = sys.executable
    root = str(Path(kcoord.__file__).resolve().parent.parent)
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry not in ("", root)]
        wanted["PYTHONPATH"] = os.pathsep.join([root, *path])
    # Spark starts workers with `python -m`, which imports from the working directory first; this interpreter does not.
    if sys.flags.safe_path:
        wanted["PYTHONSAFEPATH"] = "1"
    return wanted


@contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    """Spark reads all of it while a session starts; the JVM and its workers keep it. Ours stays as it was."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
