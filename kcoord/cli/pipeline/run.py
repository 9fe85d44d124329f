"""One run of a job: checks before Spark starts, the session, tables to read, and the output of results.

PySpark is imported only after a check that it is installed. Everything that can be checked without Spark is checked
before it starts, which takes seconds.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import click

from kcoord.cli.log.common import emit_json, fail, format_time, note, plural
from kcoord.cli.pipeline.history_ahead import HistoryAhead
from kcoord.cli.pipeline.options import ICEBERG, PARQUET, RunOptions
from kcoord.cli.pipeline.spark_session import (
    SHORT_BYTES_MAX,
    UNKNOWN_SIZE,
    WarmUp,
    check_installed,
    end_session,
    is_short,
    open_session,
    quiet_pyspark,
)
from kcoord.cli.pipeline.trace_file import TraceFile, cause_of
from kcoord.server.failures import EXIT_CONFIG, EXIT_DAMAGED, EXIT_NOT_WRITABLE, EXIT_STORAGE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from kcoord.spark.jobs.completeness import LogHistory

DATE: Final = "date"
BUCKET: Final = "group_bucket"
# The errors of our readers and writers, on executors, too, and their exit codes.
OUR_ERRORS: Final = {
    "BadOption": EXIT_CONFIG,
    "NothingToRead": EXIT_CONFIG,
    "CorruptLog": EXIT_DAMAGED,
    "BadFiles": EXIT_DAMAGED,
    "DataLoss": EXIT_DAMAGED,
    "LogDamaged": EXIT_DAMAGED,
    "FileTooLarge": EXIT_DAMAGED,
    "BadColumns": EXIT_CONFIG,
    "BadRow": EXIT_CONFIG,
    "NotWritten": EXIT_CONFIG,
    "StorageError": EXIT_STORAGE,
    "FileNotFoundError": EXIT_STORAGE,
    "PermissionError": EXIT_NOT_WRITABLE,
    "TooManySamples": EXIT_CONFIG,
    "TableExists": EXIT_CONFIG,
    "OSError": EXIT_STORAGE,
}
# Spark's own errors that users can fix.
USER_CONDITIONS: Final = ("PATH_ALREADY_EXISTS", "TABLE_OR_VIEW_ALREADY_EXISTS", "USER_RAISED_EXCEPTION")
# What py4j raises if the JVM has ended, or never started.
NO_JVM: Final = ("Py4JNetworkError", "ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError")
NO_JVM_STARTED: Final = "JAVA_GATEWAY_EXITED"
NO_MODULE: Final = "ModuleNotFoundError: No module named"
OUT_OF_MEMORY: Final = "java.lang.OutOfMemoryError"
MORE_MEMORY: Final = "more memory is --conf spark.driver.memory=4g"


@dataclass(frozen=True)
class Result:
    """A table that a job made. `time` is its time column; `shown` are the columns for a terminal, with titles."""

    name: str
    frame: DataFrame
    time: str | Column
    shown: dict[str, str]


class Run:
    """Use it as `with Run("lag", options) as run:`. Every error becomes one line, and its traces go to a file.

    `reads_history` says that the job will call `history`, and `one_compiler_bytes` up to which size of all logs it is
    over sooner with the first of the JVM's compilers alone.
    """

    def __init__(
        self, job: str, options: RunOptions, reads_history: bool = False, one_compiler_bytes: int = SHORT_BYTES_MAX
    ) -> None:
        self.job = job
        self.options = options
        self.reads_history = reads_history
        self.one_compiler_bytes = one_compiler_bytes
        self.spark: SparkSession = None  # type: ignore[assignment]
        # All logs are so short, and the master so near, that most of the time is Spark's own start.
        self.is_short = False
        # The logs of `__consumer_offsets` for the chosen groups; `history` fills it.
        self.histories: list[LogHistory] = []
        self._is_ours = False
        self._warm_up: WarmUp | None = None
        self._ahead: HistoryAhead | None = None
        self._trace = TraceFile(job)

    def __enter__(self) -> Self:
        try:
            with friendly(self._trace):
                self._begin()
        except SystemExit:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        try:
            if error is not None:
                with friendly(self._trace):
                    raise error
        finally:
            self._end()

    def _begin(self) -> None:
        check_installed()
        check_output(self.options)
        from kcoord.spark.reader.filesystem import HDFS_SCHEMES

        # A process that has used hdfs-native hangs where PySpark forks it to start the JVM. All other paths are
        # checked before that, because the start takes a while.
        is_of_hdfs = self.options.path.partition("://")[0] in HDFS_SCHEMES
        size_bytes = UNKNOWN_SIZE if is_of_hdfs else check_path(self.options)
        from pyspark.sql import SparkSession

        self._is_ours = SparkSession.getActiveSession() is None
        self.is_short = is_short(self.options.master, size_bytes)
        starts_short = self._is_ours and self.is_short
        if self._is_ours:
            quiet_pyspark()
            if starts_short and self.reads_history:
                self._ahead = HistoryAhead(self.options.path, history_options(self.options))
            # An error here is one of settings.
            with friendly(self._trace, EXIT_CONFIG), self._trace.as_output():
                self.spark = self._session(size_bytes)
        else:
            self.spark = self._session(size_bytes)
        if starts_short:
            self._warm_up = WarmUp(self.spark)
        if is_of_hdfs:
            check_path(self.options)
        _check_format(self.spark, self.options)

    def _session(self, size_bytes: int) -> SparkSession:
        conf = dict(self.options.conf)
        return open_session(self.job, self.options.master, conf, size_bytes, self.one_compiler_bytes)

    def _end(self) -> None:
        """Stop Spark if it was started here, and remove the file of traces unless a failure named it."""
        if self._ahead is not None:
            self._ahead.stop()
        if self._warm_up is not None:
            self._warm_up.wait()
        if self._is_ours and self.spark is not None:
            with suppress(Exception):
                end_session(self.spark)
        self._trace.close()

    def table(
        self, name: str, columns: Sequence[str] = (), of: Mapping[str, Sequence[str | int]] | None = None, **more: str
    ) -> DataFrame:
        """A table of the logs, with the chosen groups and topics, and with the column values in `of`; with `columns` it
        has only these. `more` are options of the reader."""
        from pyspark.sql import functions as F

        from kcoord.spark.planned import read_table

        options = {**self.spread(), **table_options(self.options, name, columns, of, **more)}
        found = read_table(self.spark, self.options.path, options)
        if self.options.groups and "group_id" in found.columns:
            found = found.where(F.col("group_id").isin(*self.options.groups))
        if is_by_topic(self.options, name, more):
            found = found.where(F.col("topic").isin(*self.options.topics))
        if self.options.one_cluster:
            from kcoord.spark.jobs.brokers import one_cluster

            found = one_cluster(found)
        return found

    def spread(self) -> dict[str, str]:
        """The reader's option that gives every core something to read, even if the log is one file."""
        return {"minPartitions": str(self.spark.sparkContext.defaultParallelism)}

    def assignments(self, columns: Sequence[str]) -> DataFrame:
        """These columns of the table `assignments`, in one log if all are one cluster. Replicas repeat rows."""
        from pyspark.sql import functions as F

        from kcoord.spark.planned import read_table

        options = {**self.spread(), **table_options(self.options, "assignments", columns)}
        table = read_table(self.spark, self.options.path, options)
        return table.withColumn("log", F.lit(".")) if self.options.one_cluster else table

    def markers(self) -> DataFrame | None:
        """The markers of transactions in `__consumer_offsets`, as `counting` needs them; None without any."""
        from pyspark.sql import functions as F

        from kcoord.spark.jobs.brokers import one_cluster
        from kcoord.spark.jobs.state import MARKERS
        from kcoord.spark.planned import read_table

        options = {**self.spread(), **marker_options(self.options)}
        found = read_table(self.spark, self.options.path, options, True).where(F.col("record_name").isin(*MARKERS))
        if found.isEmpty():
            return None
        return one_cluster(found) if self.options.one_cluster else found

    def history(self, of_states: bool = False) -> DataFrame:
        """The table `_history` of `__consumer_offsets`; with `of_states` it is about the state at each time.

        Missing history of the requested time is noted on stderr.
        """
        from kcoord.spark.jobs.completeness import OF_RECORDS, OF_STATES

        [found] = self._histories(OF_STATES if of_states else OF_RECORDS)
        return found

    def both_histories(self) -> list[DataFrame]:
        """The table `_history` about all records, and about the state at each time, which `histories` and the note on
        stderr are of."""
        from kcoord.spark.jobs.completeness import OF_RECORDS, OF_STATES

        return self._histories(OF_RECORDS, OF_STATES)

    def _histories(self, *kinds: Sequence[str]) -> list[DataFrame]:
        """One reading of the headers for several tables. `histories` is of the last one."""
        import pyarrow as pa

        from kcoord.cli.pipeline.history_notes import note_history
        from kcoord.spark.jobs.completeness import histories_of, history_table, of_one_cluster
        from kcoord.spark.planned import read_history_table

        table = self._ahead.table() if self._ahead is not None else None
        if table is None:
            table = read_history_table(self.spark, self.options.path, history_options(self.options))
        rows = table if isinstance(table, pa.Table) else table.toArrow()
        found = [histories_of(rows, columns) for columns in kinds]
        if self.options.one_cluster:
            found = [of_one_cluster(one) for one in found]
        self.histories = found[-1]
        note_history(self.histories, self.options)
        return [history_table(self.spark, one) for one in found]

    def finish(self, *results: Result) -> None:
        """Write and show the results."""
        from kcoord.cli.pipeline.progress import watch
        from kcoord.cli.pipeline.shown import rows_of, show

        documents: dict[str, Any] = {}
        for result in results:
            frame = self._between(result)
            document: dict[str, Any] = {}
            if self.options.output:
                with watch(self.spark, f"Writing {result.name}", self.options.is_json):
                    frame = self._write(result, frame, document)
                if not self.options.is_json:
                    note(f"{plural(document['written'], 'row')} in {document['output']}")
            if self.options.shown:
                with watch(self.spark, f"Reading {result.name}", self.options.is_json):
                    rows = frame.orderBy(result.time).limit(self.options.shown + 1).collect()
                is_first = result is results[0]
                document |= show(self.options, result.name, frame.columns, rows_of(rows), result.shown, is_first)
            documents[result.name] = document
        emit_results(self.job, self.options, documents, self.histories)

    def _between(self, result: Result) -> DataFrame:
        from pyspark.sql import functions as F

        frame, time = result.frame, F.unix_millis(result.time)
        if self.options.since_ms >= 0:
            frame = frame.where(time >= self.options.since_ms)
        if self.options.until_ms >= 0:
            frame = frame.where(time <= self.options.until_ms)
        return frame

    def _write(self, result: Result, frame: DataFrame, document: dict[str, Any]) -> DataFrame:
        """By day (UTC) and bucket of groups, so that reading a day or a group opens few files."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        options = self.options
        counted = Observation()
        bucket = F.pmod(F.xxhash64("group_id"), F.lit(options.buckets)).cast("int")
        rows = (
            frame.observe(counted, F.count(F.lit(1)).alias("rows"))
            .withColumn(DATE, F.to_date(result.time))
            .withColumn(BUCKET, bucket)
            .repartition(DATE, BUCKET)
            .sortWithinPartitions(DATE, BUCKET, "group_id", result.time)
        )
        place = place_of(options, result.name)
        document["output"] = place
        if options.format == ICEBERG:
            table = rows.writeTo(place).using(ICEBERG).partitionedBy(F.col(DATE), F.col(BUCKET))
            if options.overwrite:
                table.createOrReplace()
            else:
                table.create()
            found = self.spark.table(place)
        else:
            mode = "overwrite" if options.overwrite else "errorifexists"
            rows.write.format(options.format).mode(mode).partitionBy(DATE, BUCKET).save(place)
            reader = self.spark.read.format(options.format)
            # A table without rows has no file with its schema.
            found = (reader.schema(rows.schema) if options.format == PARQUET else reader).load(place)
        document["written"] = counted.get["rows"]
        return found


def emit_results(job: str, options: RunOptions, documents: dict[str, Any], histories: Sequence[LogHistory]) -> None:
    """Print the JSON of a job, if that is wanted."""
    if not options.is_json:
        return
    document: dict[str, Any] = {"job": job, "tables": documents}
    if histories:
        document["history"] = [history_document(one) for one in histories]
    emit_json(document)


def table_options(
    options: RunOptions,
    name: str,
    columns: Sequence[str] = (),
    of: Mapping[str, Sequence[str | int]] | None = None,
    **more: str,
) -> dict[str, str]:
    """The reader's options for a table of the chosen groups and topics; the other arguments are those of `Run.table`.
    Not for all tables they narrow down to exactly these."""
    wanted = dict(of or {})
    if options.groups and name not in ("messages", "_corrupt"):
        wanted["group_id"] = options.groups
    if is_by_topic(options, name, more):
        wanted["topic"] = options.topics
    found = {"where": where(**wanted), **dict(options.source), **more, "table": name}
    if columns:
        found["columns"] = ",".join(columns)
    return found


def is_by_topic(options: RunOptions, name: str, more: Mapping[str, str]) -> bool:
    """Whether --topic applies to a table that is read with the options `more`. It does not to events of groups."""
    return bool(options.topics) and name in ("offset_commits", "messages") and "subscribe" not in more


def marker_options(options: RunOptions) -> dict[str, str]:
    """The reader's options for the records of producers in `__consumer_offsets`, with their markers."""
    from kcoord.core.outcome import OFFSETS_TOPIC
    from kcoord.spark.jobs.counting import MARKER_COLUMNS

    source = {name: value for name, value in options.source if name.lower() != "isolationlevel"}
    return {
        "where": where(log_topic=(OFFSETS_TOPIC,)), **source, "table": "records",
        "isolationLevel": "read_uncommitted", "columns": ",".join(MARKER_COLUMNS),
    }  # fmt: skip


def history_options(options: RunOptions) -> dict[str, str]:
    """The reader's options for the table `_history`. Those that choose partitions or offsets do not apply."""
    from kcoord.core.outcome import OFFSETS_TOPIC
    from kcoord.spark.reader.options import STORAGE_PREFIX
    from kcoord.spark.tables.history import HistoryTable

    storage = {
        name: value
        for name, value in options.source
        if name.lower().startswith(STORAGE_PREFIX) or name.lower() == "filesystem"
    }
    return {**storage, "table": HistoryTable.NAME, "subscribe": OFFSETS_TOPIC}


def history_document(one: LogHistory) -> dict[str, Any]:
    return {
        "log": one.log,
        "log_topic": one.topic,
        "log_partition": one.partition,
        "complete_from_offset": one.complete_from_offset,
        "history_complete_from": None if one.from_ms is None else format_time(one.from_ms),
    }


def where(**columns: Sequence[str | int]) -> str:
    """The reader's option `where`."""
    return json.dumps({name: list(values) for name, values in columns.items()})


def place_of(options: RunOptions, name: str) -> str:
    if options.format == ICEBERG:
        return f"{options.output}.{name}"
    return f"{options.output.rstrip('/')}/{name}"


# --- before work begins


def check_output(options: RunOptions) -> None:
    if not options.output or options.format == ICEBERG or "://" in options.output or options.overwrite:
        return
    if os.path.isdir(options.output) and os.listdir(options.output):
        fail(f"{options.output} exists and is not empty; --overwrite replaces tables in it", EXIT_CONFIG)


def check_path(options: RunOptions) -> int:
    """The size of all logs in bytes. Raises BadOption, NothingToRead and OSError."""
    from kcoord.spark.reader.discovery import NothingToRead, discover
    from kcoord.spark.reader.options import parse_options

    parsed = parse_options({**dict(options.source), "path": options.path})
    try:
        filesystem, root = parsed.storage.open()
    except ValueError as error:
        fail(str(error), EXIT_CONFIG)
    try:
        found = discover(filesystem, root)
    except NotADirectoryError:
        fail(f"{options.path} is not a directory", EXIT_CONFIG)
    except FileNotFoundError:
        fail(f"{options.path} does not exist", EXIT_CONFIG)
    if not found:
        raise NothingToRead(
            f"{options.path}: no logs in it or below (directories such as __consumer_offsets-0 with .log files)"
        )
    return sum(segment.size for one in found for segment in one.segments)


def _check_format(spark: SparkSession, options: RunOptions) -> None:
    if not options.output or options.format == PARQUET:
        return
    if not _has_format(spark, options.format):
        fail(
            f"this Spark cannot write {options.format}. "
            "Add it with --conf spark.jars.packages=... and the settings that its documentation asks for, "
            f"or write --format {PARQUET}",
            EXIT_CONFIG,
        )


def _has_format(spark: SparkSession, name: str) -> bool:
    java: Any = spark
    try:
        sources = java._jvm.org.apache.spark.sql.execution.datasources.DataSource
        sources.lookupDataSource(name, java._jsparkSession.sessionState().conf())
    except Exception:
        # Spark has several messages for it.
        return False
    return True


# --- errors


@contextmanager
def friendly(trace: TraceFile, code: int = EXIT_STORAGE) -> Iterator[None]:
    """Every error becomes one line on stderr and an exit code: `code`, if the error has none of its own.

    Traces of errors from Spark, and of unexpected errors, are in a file, which the line names.
    """
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:
        message, own_code, is_clear = explained(error, trace, code)
        if not is_clear:
            with suppress(OSError):
                message = f"{message.rstrip('.')}. The traces are in {trace.add(error)}"
        fail(" ".join(message.split()), own_code)


def explained(error: Exception, trace: TraceFile, code: int) -> tuple[str, int, bool]:
    """Message, exit code, and whether the message is complete, without a trace."""
    name = type(error).__name__
    if name in NO_JVM:
        return f"Spark's JVM ended: {trace.reason() or 'it wrote no reason'}; {MORE_MEMORY}", EXIT_STORAGE, False
    if name == "JavaNotFoundError":
        return str(error), EXIT_CONFIG, True
    if name in OUR_ERRORS:
        return str(error), OUR_ERRORS[name], True
    if isinstance(error, OSError):
        return str(error), EXIT_STORAGE, True
    text = str(error)
    if NO_JVM_STARTED in text:
        return f"Spark did not start: {trace.reason() or 'its JVM wrote no reason'}", EXIT_CONFIG, False
    if NO_MODULE in text:
        message = f"Spark's workers lack kcoord, or one of its dependencies ({cause_of(error)}): docs/spark-cluster.md"
        return message, EXIT_CONFIG, False
    known = what_it_says(error)
    if known is not None:
        return *known, False
    if OUT_OF_MEMORY in text:
        return f"Spark's JVM had not enough memory; {MORE_MEMORY}", EXIT_STORAGE, False
    return cause_of(error), code, False


def what_it_says(error: BaseException) -> tuple[str, int] | None:
    """Message and exit code of an error from Spark, if a user can fix it."""
    text = str(error)
    names = "|".join(OUR_ERRORS)
    found = re.findall(rf"^(?:[\w.]*\.)?({names}): (.+)$", text, re.MULTILINE)
    if found:
        name, message = found[-1]
        return message.strip(), OUR_ERRORS[name]
    condition = getattr(error, "getCondition", lambda: None)()
    for known in USER_CONDITIONS:
        if condition == known or f"[{known}]" in text:
            line = next((line for line in text.splitlines() if f"[{known}]" in line), text.splitlines()[0])
            return line.split("] ", 1)[-1].strip(), EXIT_CONFIG
    return None
