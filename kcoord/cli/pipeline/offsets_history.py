"""`kcoord pipeline offsets-history`."""

from __future__ import annotations

import click

from kcoord.cli.log.points import parse_table_time
from kcoord.cli.pipeline.options import RunOptions, pipeline_options
from kcoord.cli.pipeline.run import Result, Run
from kcoord.cli.pipeline.short_run import ShortResult, ShortRun, run_short

SHOWN = {
    "group_id": "GROUP", "topic": "TOPIC", "partition": "P", "valid_from": "FROM", "committed_offset": "OFFSET",
    "offset_gap": "GAP", "rate": "RATE/S", "is_rewind": "REWIND", "reset_reason": "RESET",
}  # fmt: skip
# Above this size the JVM's second compiler pays: commits are sorted twice, and written with all their columns.
ONE_COMPILER_BYTES = 128 << 20


@click.command("offsets-history")
@pipeline_options
@click.option("--at", type=parse_table_time, default=-1, metavar="TIME", help="Only which offsets groups had at TIME.")
@click.option("--log-starts", is_flag=True, help="Read messages, too: a rewind to a log's start is a reset.")
def offsets_history(options: RunOptions, at: int, log_starts: bool) -> None:
    """Every commit in PATH: what it changed since the one before, its rate, rewinds and resets, and until when it was
    valid.

    \b
    Example:
      kcoord pipeline offsets-history data --group billing --at 2026-01-31T12:00
    """

    def short(run: ShortRun) -> list[ShortResult]:
        from kcoord.spark.jobs import lag
        from kcoord.spark.short import offsets_history as job

        messages = run.table("messages", lag.MESSAGE_COLUMNS) if log_starts else None
        history = job.offsets_history(run.commits(), messages, run.history(of_states=True))
        if at >= 0:
            history = job.offset_of(history, at * 1000)
        return [ShortResult("offsets_history", history, "valid_from", SHOWN)]

    if run_short("offsets-history", options, short):
        return
    with Run("offsets-history", options, reads_history=True, one_compiler_bytes=ONE_COMPILER_BYTES) as run:
        from pyspark.sql import functions as F

        from kcoord.spark.jobs import lag
        from kcoord.spark.jobs import offsets_history as job

        starts = lag.log_starts(run.table("messages", lag.MESSAGE_COLUMNS)) if log_starts else None
        history = job.offsets_history(run.table("offset_commits"), starts, run.history(of_states=True), run.markers())
        if at >= 0:
            history = job.offset_of(history, F.timestamp_millis(F.lit(at)))
        run.finish(Result("offsets_history", history, "valid_from", SHOWN))
