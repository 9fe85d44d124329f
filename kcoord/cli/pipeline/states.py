"""What the jobs about states share: records of whole logs, tables without a time column, and limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from kcoord.cli.log.common import fail, note
from kcoord.cli.pipeline.options import ICEBERG, PARQUET, RunOptions
from kcoord.cli.pipeline.progress import watch
from kcoord.cli.pipeline.run import Run, place_of, where
from kcoord.cli.pipeline.shown import plain, rows_of, show
from kcoord.core.outcome import OFFSETS_TOPIC, TRANSACTION_TOPIC
from kcoord.server.failures import EXIT_CONFIG

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from kcoord.spark.planned import BatchFunction

UNCOMMITTED: Final = "read_uncommitted"
COMMITTED: Final = "read_committed"
# Options that all jobs have, and what they are called.
GIVEN: Final = {"since_ms": "--since", "until_ms": "--until", "topics": "--topic", "groups": "--group"}


def refuse(options: RunOptions, *names: str) -> None:
    """Refuse options that a job does not use. Raises UsageError."""
    for name in names:
        value = getattr(options, name)
        if value not in (-1, (), False, ""):
            shown = GIVEN.get(name, "--" + name.replace("_", "-"))
            raise click.UsageError(f"this job does not support {shown}")


def source_of(options: RunOptions) -> dict[str, str]:
    """The reader's options, with the path."""
    return {**dict(options.source), "path": options.path}


def read_records(
    run: Run, isolation: str, columns: Sequence[str], groups: Sequence[str] = (), has_producer: bool | None = None
) -> DataFrame:
    """These columns of the records of all groups, or of some; with `has_producer` only those of producers with an id,
    or the others.

    With markers if uncommitted records are read; else at least the records of the state.
    """
    from kcoord.spark.planned import read_table

    options = _records_options(run, isolation, columns, groups)
    return read_table(run.spark, run.options.path, options, has_producer)


def read_logs(
    run: Run, isolation: str, columns: Sequence[str], function: BatchFunction, schema: str
) -> DataFrame | None:
    """What `function` makes of the same records of all groups, a log at a time; None if there is too much to plan."""
    from kcoord.spark.planned import read_whole_logs

    options = _records_options(run, isolation, columns, ())
    return read_whole_logs(run.spark, run.options.path, options, function, schema)


def _records_options(run: Run, isolation: str, columns: Sequence[str], groups: Sequence[str]) -> dict[str, str]:
    return {**run.spread(), **records_options(run.options, isolation, columns, groups)}


def records_options(
    options: RunOptions, isolation: str, columns: Sequence[str], groups: Sequence[str] = ()
) -> dict[str, str]:
    """The reader's options for what `read_records` reads."""
    wanted: dict[str, Sequence[str]] = {"log_topic": (OFFSETS_TOPIC, TRANSACTION_TOPIC)}
    if groups:
        wanted["group_id"] = groups
    return {
        "where": where(**wanted), **dict(options.source),
        "isolationLevel": isolation, "newest": str(isolation == COMMITTED), "table": "records",
        "columns": ",".join(columns),
    }  # fmt: skip


def cluster_of(options: RunOptions) -> Column | None:
    """For `latest` in `kcoord.spark.jobs.state`."""
    from kcoord.spark.jobs.state import one_cluster

    return one_cluster() if options.one_cluster else None


def of_groups(rows: DataFrame, options: RunOptions) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.where(F.col("group_id").isin(*options.groups)) if options.groups else rows


def one_log(options: RunOptions) -> int:
    """The number of partitions of __consumer_offsets. Refuses several data directories, unless they are one cluster.

    Raises BadOption and OSError.
    """
    from kcoord.spark.jobs.places import partitions_of

    found = partitions_of(source_of(options))
    logs = sorted({one.log for one in found})
    if len(logs) > 1 and not options.one_cluster:
        named = ", ".join(logs[:5]) + (", ..." if len(logs) > 5 else "")
        fail(
            f"{options.path} has {len(logs)} data directories ({named}), whose groups must not be mixed: name one, "
            "give --one-cluster if they are brokers of one cluster, or use `kcoord pipeline migrate`",
            EXIT_CONFIG,
        )
    return max((one.partition for one in found if one.topic == "__consumer_offsets"), default=0) + 1


def present(
    run: Run,
    name: str,
    rows: DataFrame,
    titles: dict[str, str],
    order: tuple[str, ...],
    is_written: bool = True,
    is_first: bool = True,
) -> dict[str, Any]:
    """Write and print a table; returns the document for JSON. Spark runs here."""
    options = run.options
    document: dict[str, Any] = {}
    if options.output and is_written:
        place = place_of(options, name)
        document["output"] = place
        with watch(run.spark, f"Writing {name}", options.is_json):
            _write(run, rows, place)
        if not options.is_json:
            note(f"{name} in {place}")
    if options.shown:
        with watch(run.spark, f"Reading {name}", options.is_json):
            found = rows.orderBy(*order).limit(options.shown + 1).collect()
        document |= show(options, name, rows.columns, rows_of(found), titles, is_first)
    return document


def present_short(
    options: RunOptions,
    name: str,
    rows: pa.Table,
    titles: dict[str, str],
    order: tuple[str, ...],
    is_written: bool = True,
    is_first: bool = True,
) -> dict[str, Any]:
    """The same for a table that was made without Spark."""
    from kcoord.spark.short.parquet import check_place, write_one_file

    document: dict[str, Any] = {}
    rows = rows.sort_by([(column, "ascending") for column in order]) if order else rows
    if options.output and is_written:
        place = place_of(options, name)
        check_place(place, options.overwrite, options.path)
        document["output"] = place
        write_one_file(rows, place, options.overwrite)
        if not options.is_json:
            note(f"{name} in {place}")
    if options.shown:
        found = [plain(row) for row in rows.slice(0, options.shown + 1).to_pylist()]
        document |= show(options, name, rows.column_names, found, titles, is_first)
    return document


def _write(run: Run, rows: DataFrame, place: str) -> None:
    options = run.options
    if options.format == ICEBERG:
        table = rows.writeTo(place).using(ICEBERG)
        if options.overwrite:
            table.createOrReplace()
        else:
            table.create()
        return
    mode = "overwrite" if options.overwrite else "errorifexists"
    rows.write.format(options.format).mode(mode).save(place)


def write_log(run: Run, rows: DataFrame, offsets_partitions: int) -> None:
    """A new log directory at --to."""
    from kcoord.spark import register

    options = run.options
    register(run.spark)
    mode = "overwrite" if options.overwrite else "append"
    writer = rows.write.format("kcoord").option("offsetsPartitions", offsets_partitions)
    with watch(run.spark, "Writing the log", options.is_json):
        writer.mode(mode).save(options.output)
    if not options.is_json:
        note(f"the log is in {options.output}: kcoord serve --data {options.output}")


def refuse_format(options: RunOptions) -> None:
    """Of jobs that write a log. Raises UsageError."""
    if options.format != PARQUET:
        raise click.UsageError("--format is for tables; a log is written as a log")


def write_log_short(
    options: RunOptions, columns: Sequence[str], batches: Iterator[pa.RecordBatch], offsets_partitions: int
) -> None:
    """A new log directory at --to, without Spark. Raises as the writer does."""
    from kcoord.spark.writer.options import parse_write_options
    from kcoord.spark.writer.sink import KcoordWriter

    wanted = {"path": options.output, "offsetsPartitions": str(offsets_partitions)}
    writer = KcoordWriter(columns, options.overwrite, parse_write_options(wanted))
    try:
        written = writer.write(batches)
    except BaseException:
        writer.abort([])
        raise
    writer.commit([written])
    if not options.is_json:
        note(f"the log is in {options.output}: kcoord serve --data {options.output}")
