"""A job over short logs without Spark, whose start would take longer than everything else."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from kcoord.cli.bar import Bar
from kcoord.cli.log.common import end_output, note, plural
from kcoord.cli.pipeline.options import PARQUET, RunOptions
from kcoord.cli.pipeline.run import (
    BUCKET,
    DATE,
    check_output,
    check_path,
    emit_results,
    friendly,
    history_options,
    is_by_topic,
    marker_options,
    place_of,
    table_options,
)
from kcoord.cli.pipeline.shown import plain, show
from kcoord.cli.pipeline.spark_session import check_installed, is_short
from kcoord.cli.pipeline.trace_file import TraceFile

if TYPE_CHECKING:
    import pyarrow as pa

    from kcoord.spark.jobs.completeness import LogHistory

T = TypeVar("T")
# Where Spark's own settings may be, which are to be used then.
SETTINGS_FILE: Final = "spark-defaults.conf"
# Options for Spark, and where Hadoop's settings are, such as the filesystem that a path without a scheme means.
SETTINGS_VARIABLES: Final = ("PYSPARK_SUBMIT_ARGS", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
# A place that is not simply a path, such as file:/data.
URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@final
@dataclass(frozen=True)
class ShortResult:
    """A table that a job made. `time` is the name of its time column, or an array with the time of each row in
    microseconds; `titles` are the columns for a terminal."""

    name: str
    table: pa.Table
    time: str | Any
    titles: dict[str, str]

    def times(self) -> Any:
        """The time of each row, MISSING for null."""
        from kcoord.spark.short.runs import integers

        return integers(self.table.column(self.time)) if isinstance(self.time, str) else self.time


@final
class ShortRun:
    """What a job reads. `histories` are the logs of `__consumer_offsets`, if the job has asked for them."""

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.now_us = time.time_ns() // 1000
        self.histories: list[LogHistory] = []

    @property
    def until_us(self) -> int | None:
        return self.options.until_ms * 1000 if self.options.until_ms >= 0 else None

    def table(
        self, name: str, columns: Sequence[str] = (), of: Mapping[str, Sequence[str | int]] | None = None, **more: str
    ) -> pa.Table:
        """As `Run.table` does."""
        from kcoord.spark.short.tables import only

        options = self.options
        found = self.read(table_options(options, name, columns, of, **more))
        if options.groups and "group_id" in found.column_names:
            found = only(found, "group_id", options.groups)
        if is_by_topic(options, name, more):
            found = only(found, "topic", options.topics)
        return found

    def commits(self, columns: Sequence[str] = ()) -> pa.Table:
        """The table `offset_commits`, in which commits of transactions count from their markers on."""
        from kcoord.spark.short.counting import counting

        commits = self.table("offset_commits", columns)
        if commits.column("producer_id").null_count == commits.num_rows:
            return commits
        return counting(commits, self.read(marker_options(self.options), True))

    def _bar(self) -> Bar:
        return Bar(not self.options.is_json and not self.options.is_csv)

    def read(self, wanted: Mapping[str, str], has_producer: bool | None = None) -> pa.Table:
        """What the reader reads with these options."""
        from kcoord.spark.short.tables import read_table

        with self._bar() as bar:
            return read_table(self.options.path, wanted, partial(bar.begin, "Reading"), bar.step, has_producer)

    def read_logs(self, wanted: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        """The same, of one log after the other, as it is read."""
        from kcoord.spark.short.tables import read_logs

        with self._bar() as bar:
            yield from read_logs(self.options.path, wanted, partial(bar.begin, "Reading"), bar.step)

    def history(self, of_states: bool = False) -> list[LogHistory]:
        """The rows of the table `_history`, with `of_states` about the state at each time. `histories` has
        them from now on."""
        from kcoord.spark.jobs.completeness import OF_RECORDS, OF_STATES

        [found] = self._histories(OF_STATES if of_states else OF_RECORDS)
        return found

    def both_histories(self) -> list[list[LogHistory]]:
        """The same about all records, and about the state at each time, which `histories` are of."""
        from kcoord.spark.jobs.completeness import OF_RECORDS, OF_STATES

        return self._histories(OF_RECORDS, OF_STATES)

    def _histories(self, *kinds: Sequence[str]) -> list[list[LogHistory]]:
        from kcoord.spark.jobs.completeness import histories_of
        from kcoord.spark.planned import read_history_here
        from kcoord.spark.short.bounds import NotShort

        table = read_history_here(self.options.path, history_options(self.options))
        if table is None:
            raise NotShort("the headers of the logs")
        found = [histories_of(table, columns) for columns in kinds]
        self.histories = found[-1]
        return found


def run_short(job: str, options: RunOptions, make: Callable[[ShortRun], Sequence[ShortResult]]) -> bool:
    """Run a job in this process, and write and print its tables. False as `run_short_for`."""

    def finish(run: ShortRun, results: Sequence[ShortResult]) -> None:
        documents = {result.name: _present(options, result, result is results[0]) for result in results}
        emit_results(job, options, documents, run.histories)

    return run_short_for(job, options, make, finish)


def run_short_for(
    job: str, options: RunOptions, make: Callable[[ShortRun], T], finish: Callable[[ShortRun, T], None]
) -> bool:
    """Make the result of a job in this process, if the logs are short and nothing that was asked for needs Spark, and
    finish with it. False if not: then nothing was written or printed.
    """
    if needs_spark(options):
        return False
    check_installed()
    check_output(options)
    trace = TraceFile(job)
    try:
        with friendly(trace):
            try:
                return _run(options, make, finish)
            except BrokenPipeError:
                end_output()
            except ConnectionError as error:
                # Of the storage: there is no JVM whose end it could mean.
                raise OSError(str(error)) from error
    finally:
        trace.close()


def needs_spark(options: RunOptions) -> bool:
    """Whether the command line or the environment asks for what only Spark has, whatever the size of the logs."""
    return (
        options.is_spark_wanted
        or options.one_cluster
        or (bool(options.output) and (options.format != PARQUET or URL.match(options.output) is not None))
        or _has_session()
        or _has_settings()
    )


def _has_session() -> bool:
    """Whether this process was started by spark-submit, or has a session already."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return True
    if "pyspark.sql" not in sys.modules:
        return False
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def _has_settings() -> bool:
    """Whether there are settings for Spark or Hadoop outside of the command line."""
    if any(os.environ.get(name) for name in SETTINGS_VARIABLES):
        return True
    home = os.environ.get("SPARK_HOME", "")
    if not home:
        # The package is the home of its Spark.
        spec = importlib.util.find_spec("pyspark")
        home = os.path.dirname(spec.origin or "") if spec is not None else ""
    folder = os.environ.get("SPARK_CONF_DIR", "") or os.path.join(home, "conf")
    return os.path.exists(os.path.join(folder, SETTINGS_FILE))


def _run(options: RunOptions, make: Callable[[ShortRun], T], finish: Callable[[ShortRun, T], None]) -> bool:
    from kcoord.cli.pipeline.history_notes import note_history
    from kcoord.spark.reader.filesystem import HDFS_SCHEMES
    from kcoord.spark.short.bounds import NotShort

    # A process that has used hdfs-native could not start Spark any more.
    if options.path.partition("://")[0] in HDFS_SCHEMES or not is_short(options.master, check_path(options)):
        return False
    run = ShortRun(options)
    try:
        result = make(run)
    except NotShort:
        return False
    note_history(run.histories, options)
    finish(run, result)
    return True


def _present(options: RunOptions, result: ShortResult, is_first: bool) -> dict[str, Any]:
    """Write and print a table; returns the document for JSON."""
    from kcoord.spark.short.runs import in_order

    table, times = between(result.table, result.times(), options.since_ms, options.until_ms)
    document: dict[str, Any] = {}
    if options.output:
        from kcoord.spark.short.parquet import check_place, with_places, write_table

        place = place_of(options, result.name)
        check_place(place, options.overwrite, options.path)
        table = with_places(table, times, options.buckets, DATE, BUCKET)
        write_table(table, times, place, DATE, BUCKET, options.overwrite)
        document |= {"output": place, "written": table.num_rows}
        if not options.is_json:
            note(f"{plural(table.num_rows, 'row')} in {place}")
    if options.shown:
        rows = table.take(in_order(times)[: options.shown + 1]).to_pylist()
        documents = [plain(row) for row in rows]
        document |= show(options, result.name, table.column_names, documents, result.titles, is_first)
    return document


def between(table: pa.Table, times: Any, since_ms: int, until_ms: int) -> tuple[pa.Table, Any]:
    """The rows of these times, and their times; -1 is no limit. Rows without a time have none."""
    if since_ms < 0 and until_ms < 0:
        return table, times
    from kcoord.spark.short.runs import MISSING

    keep = times != MISSING
    if since_ms >= 0:
        keep &= times // 1000 >= since_ms
    if until_ms >= 0:
        keep &= times // 1000 <= until_ms
    return table.filter(keep).combine_chunks(), times[keep]
