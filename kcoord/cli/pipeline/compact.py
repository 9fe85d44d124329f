"""`kcoord pipeline compact`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from kcoord.cli.log.common import emit_json, note, plural
from kcoord.cli.log.points import Point, parse_table_point
from kcoord.cli.pipeline.options import RunOptions, pipeline_options
from kcoord.cli.pipeline.run import Run, where
from kcoord.cli.pipeline.short_run import ShortRun, run_short_for
from kcoord.cli.pipeline.states import (
    COMMITTED,
    UNCOMMITTED,
    cluster_of,
    one_log,
    read_records,
    records_options,
    refuse,
    refuse_format,
    write_log,
    write_log_short,
)
from kcoord.core.outcome import OFFSETS_TOPIC, TRANSACTION_TOPIC

if TYPE_CHECKING:
    import pyarrow as pa


@click.command("compact")
@pipeline_options
@click.option("--as-of", "point", type=parse_table_point, default="end", metavar="POINT", help="OFFSET, TIME or end.")
@click.option(
    "--offsets-partitions", type=click.IntRange(1), default=None, metavar="N",
    help="Partitions of __consumer_offsets (default: as in PATH).",
)  # fmt: skip
def compact(options: RunOptions, point: Point, offsets_partitions: int | None) -> None:
    """Write the shortest log with the same groups, offsets and transactional ids as PATH to --to.

    It keeps the newest record of every key, and leaves out open transactions. `kcoord log compact` compacts a
    directory of kcoord in place.

    \b
    Example:
      kcoord pipeline compact /archive/broker-1 --to data
    """
    refuse(options, "since_ms", "until_ms", "topics")
    if not options.output:
        raise click.UsageError("--to DIR is required: the directory of the log")
    refuse_format(options)

    def short(run: ShortRun) -> tuple[pa.Table, int, int]:
        from kcoord.spark.jobs.compact import COLUMNS, OPEN_COLUMNS
        from kcoord.spark.jobs.state import RECORD_COLUMNS
        from kcoord.spark.short.state import latest, open_records

        records = run.read(records_options(options, COMMITTED, RECORD_COLUMNS, options.groups))
        rows = latest(records, None, options.groups).select(COLUMNS)
        order = [(name, "ascending") for name in COLUMNS[:3]]
        everything = run.read(records_options(options, UNCOMMITTED, OPEN_COLUMNS), True)
        return rows.sort_by(order), open_records(everything), _partitions(options, offsets_partitions)

    def finish(_run: ShortRun, found: tuple[pa.Table, int, int]) -> None:
        rows, left_out, count = found
        write_log_short(options, rows.column_names, iter(rows.to_batches()), count)
        _emit(options, rows.num_rows, left_out)

    # The state at other points depends on when transactions ended.
    if point.is_end and run_short_for("compact", options, short, finish):
        return
    with Run("compact", options) as run:
        from kcoord.spark.jobs import compact as job
        from kcoord.spark.jobs.state import RECORD_COLUMNS, committed_at, newest_replicas, one_cluster
        from kcoord.spark.planned import read_table

        count = _partitions(options, offsets_partitions)
        time = datetime.fromtimestamp(point.time_ms / 1000, UTC) if point.time_ms >= 0 else None
        before = point.offset if point.offset >= 0 else None
        if point.is_end:
            # A group's records do not show which replica counts.
            known = () if options.one_cluster else options.groups
            counted = read_records(run, COMMITTED, RECORD_COLUMNS, known)
        else:
            counted = committed_at(read_records(run, UNCOMMITTED, RECORD_COLUMNS), time, before)
        rows = job.compact(counted, cluster_of(options), options.groups)
        write_log(run, rows, count)
        left_out = 0
        if point.is_end:
            # Which replica counts depends on all records; else those outside of transactions are not decoded.
            everything = read_records(run, UNCOMMITTED, job.OPEN_COLUMNS, (), None if options.one_cluster else True)
            if options.one_cluster:
                everything = newest_replicas(everything, one_cluster())
            open_now = job.open_transactions(everything)
            left = open_now.selectExpr("coalesce(sum(records), 0) as records").first()
            left_out = 0 if left is None else left.records
        of_coordinators = where(log_topic=(OFFSETS_TOPIC, TRANSACTION_TOPIC))
        table = {**run.spread(), "table": "records", "columns": "log_topic", "where": of_coordinators}
        written = read_table(run.spark, options.output, table).count()
    _emit(options, written, left_out)


def _partitions(options: RunOptions, wanted: int | None) -> int:
    """How many partitions `__consumer_offsets` is to have. Refuses several clusters."""
    found = one_log(options)
    return wanted or found


def _emit(options: RunOptions, written: int, left_out: int) -> None:
    if options.is_json:
        emit_json({"job": "compact", "output": options.output, "records": written, "open": left_out})
        return
    note(plural(written, "record"))
    if left_out:
        note(f"{plural(left_out, 'record')} of open transactions left out")
