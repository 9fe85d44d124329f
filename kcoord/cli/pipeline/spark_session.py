"""The Spark session of the pipeline's jobs: what is installed, and settings that suit the size of the logs."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, final

from kcoord.cli.log.common import fail
from kcoord.server.failures import EXIT_CONFIG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kcoord.spark.java import Java

NEEDED: Final = ("pyspark", "pyarrow", "pandas", "jinja2")
# Spark's default of 200 is for clusters; each partition costs the start of a task.
SHUFFLES_PER_CORE: Final = 4
# Below this size of all logs most of the time is Spark's own start: its second compiler would still be busy when the
# job is over, and one task per core sorts what there is. Without that compiler the JVM reserves less for compiled code
# than Spark generates.
SHORT_BYTES_MAX: Final = 256 << 20
SHORT_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# Jobs that sort a row for every commit need that compiler from a smaller size on.
SECOND_COMPILER: Final = "-XX:TieredStopAtLevel=4"
FIRST_COLLECTOR: Final = "-XX:+UseSerialGC"
COLLECTOR: Final = re.compile(r"-XX:[+-]Use\w*GC\b")
# Where a JVM takes options from, besides its command line.
JVM_VARIABLES: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
# Spark's default for both of its settings.
BROADCAST_BYTES_MAX: Final = 10 << 20
# Of logs on HDFS, which are not listed before Spark has started.
UNKNOWN_SIZE: Final = 1 << 62
# A job that is over sooner than the processes have started waits for them at most this long.
WARM_UP_DEADLINE_S: Final = 30.0
JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"
# PySpark logs errors with these, and raises them as well.
PYSPARK_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def check_installed() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        fail(
            f"the pipeline needs {', '.join(missing)}: install kcoord with its extra 'spark' (docs/pipeline.md)",
            EXIT_CONFIG,
        )


def open_session(
    job: str, master: str, conf: Mapping[str, str], size_bytes: int, one_compiler_bytes: int = SHORT_BYTES_MAX
) -> SparkSession:
    """A session for logs of `size_bytes` in all, or UNKNOWN_SIZE. `conf` are the user's settings. For logs of more than
    `one_compiler_bytes` the job needs the JVM's second compiler. Raises JavaNotFoundError.
    """
    from kcoord.spark.session import bare_session

    settings: dict[str, str | int | bool] = {}
    java: Java | None = None
    for_short = is_short(master, size_bytes)
    if is_local(master):
        settings["spark.sql.shuffle.partitions"] = cores_of(master) * (1 if for_short else SHUFFLES_PER_CORE)
    if for_short:
        settings[JVM_OPTIONS], java = _with_archive(conf)
        if size_bytes > one_compiler_bytes:
            # After the other choice, which the archive is named by: the JVM takes the last one.
            settings[JVM_OPTIONS] = f"{settings[JVM_OPTIONS]} {SECOND_COMPILER}"
    else:
        # Spark takes what functions in Python return for small. How large it is turns out while the query runs.
        settings["spark.sql.autoBroadcastJoinThreshold"] = -1
        settings["spark.sql.adaptive.autoBroadcastJoinThreshold"] = BROADCAST_BYTES_MAX
    given = dict(conf)
    if JVM_OPTIONS in settings and JVM_OPTIONS in given:
        # The JVM takes the last one of two.
        given[JVM_OPTIONS] = f"{settings[JVM_OPTIONS]} {given[JVM_OPTIONS]}"
    return bare_session(f"kcoord pipeline {job}", master, java, **{**settings, **given})


def end_session(spark: SparkSession) -> None:
    """Stop a session of this process. Otherwise running tasks would log long errors about the end of the process."""
    context = spark.sparkContext
    # Its thread notices only once a second that it is to end; nobody has to wait for that.
    counters: Any = getattr(context, "_accumulatorServer", None)
    if counters is not None:
        context._accumulatorServer = None  # type: ignore[assignment]
        threading.Thread(target=counters.shutdown, name="kcoord-end", daemon=True).start()
    spark.stop()


def short_options(conf: Mapping[str, str]) -> str:
    """The options of a JVM for a short log, with the collector that starts first, unless another one is chosen: a JVM
    refuses two.
    """
    is_chosen = any(COLLECTOR.search(one) for one in _given_options(conf))
    return SHORT_JVM if is_chosen else f"{SHORT_JVM} {FIRST_COLLECTOR}"


def _with_archive(conf: Mapping[str, str]) -> tuple[str, Java | None]:
    """The same with the archive of Spark's classes, if `kcoord pipeline prepare` has made one, and the Java that it is
    for.
    """
    from pyspark.sql import SparkSession

    from kcoord.spark import class_archive
    from kcoord.spark.java import find_java
    from kcoord.spark.session import has_jvm

    options = short_options(conf)
    is_chosen = any(word in one for word in class_archive.CHOSEN for one in _given_options(conf))
    if has_jvm() or SparkSession.getActiveSession() is not None or is_chosen or not class_archive.archives():
        return options, None
    java = find_java()
    return f"{options} {class_archive.archive_options(java, options)}".rstrip(), java


def _given_options(conf: Mapping[str, str]) -> list[str]:
    """What the user has chosen for the JVM."""
    return [conf.get(JVM_OPTIONS, ""), *(os.environ.get(name, "") for name in JVM_VARIABLES)]


def is_local(master: str) -> bool:
    return master.startswith("local")


def is_short(master: str, size_bytes: int) -> bool:
    """Whether most of the time of a job will be Spark's own start."""
    return is_local(master) and size_bytes <= SHORT_BYTES_MAX


def cores_of(master: str) -> int:
    """Of a local master: `local` has one, `local[4]` and `local[4,2]` have four, `local[*]` has all."""
    found = re.match(r"local(?:\[(\d+))?", master)
    if master == "local" or found is None:
        return 1
    return int(found[1]) if found[1] else os.cpu_count() or 1


def quiet_pyspark() -> None:
    from pyspark.logger import PySparkLogger

    for name in PYSPARK_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


@final
class WarmUp:
    """Lets Spark start its processes of Python, which takes them seconds, while the driver plans the job."""

    def __init__(self, spark: SparkSession) -> None:
        # Not in the thread: two threads would import the module.
        from kcoord.spark.planned import warm_workers

        self._warm_workers = warm_workers
        self._spark = spark
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="kcoord-warm-up", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # The job itself meets the same error, and reports it.
        with suppress(Exception):
            if not self._is_over:
                self._warm_workers(self._spark)

    def wait(self) -> None:
        """Before the session ends, which would make Spark log errors about it."""
        self._is_over = True
        self._thread.join(WARM_UP_DEADLINE_S)
