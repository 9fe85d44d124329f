"""`kcoord pipeline lag`."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from kcoord.cli.pipeline.options import RunOptions, pipeline_options
from kcoord.cli.pipeline.run import Result, Run
from kcoord.cli.pipeline.short_run import ShortResult, ShortRun, run_short

SHOWN = {
    "group_id": "GROUP", "topic": "TOPIC", "partition": "P", "at": "AT", "lag_records": "LAG", "lag_seconds": "LAG_S",
    "committed_offset": "OFFSET", "end_offset": "END", "log_start": "START", "is_left": "LEFT",
}  # fmt: skip
# Above this size the JVM's second compiler pays: commits and messages are sorted five times.
ONE_COMPILER_BYTES = 64 << 20
SHORTEST_S = 0.000001


@click.command("lag")
@pipeline_options
@click.option(
    "--every", type=click.FloatRange(0), default=0.0, metavar="SECONDS",
    help="Measure every SECONDS instead of at each commit.",
)  # fmt: skip
@click.option("--last", is_flag=True, help="Only lag at the end, or at --until.")
@click.option("--assigned", is_flag=True, help="Leave out topics that a group with members has left.")
def lag(options: RunOptions, every: float, last: bool, assigned: bool) -> None:
    """The lag of groups in PATH, in records and in seconds, at each commit and at the end of the log.

    It includes stopped groups. Records that retention has deleted are no lag, and a partition without a committed
    offset has none.

    \b
    Example:
      kcoord pipeline lag data --every 60 --to lag
    """
    if 0 < every < SHORTEST_S:
        raise click.BadParameter(f"{every:g} is less than a microsecond", param_hint="--every")
    every_s = 0 if last else every

    def short(run: ShortRun) -> list[ShortResult]:
        import pyarrow.compute as pc

        from kcoord.spark.jobs import lag as columns
        from kcoord.spark.short import lag as job

        rows = job.lag(
            run.commits(columns.COMMIT_COLUMNS),
            run.table("messages", columns.MESSAGE_COLUMNS),
            run.table("assignments", columns.ASSIGNMENT_COLUMNS),
            run.now_us,
            every_s,
            run.until_us,
            run.history(of_states=True),
        )
        if last:
            rows = rows.filter(rows.column("is_last"))
        if assigned:
            rows = rows.filter(pc.invert(pc.fill_null(rows.column("is_left"), False)))
        return [ShortResult("lag", rows.combine_chunks(), "at", SHOWN)]

    if run_short("lag", options, short):
        return
    with Run("lag", options, reads_history=True, one_compiler_bytes=ONE_COMPILER_BYTES) as run:
        from kcoord.spark.jobs import lag as job

        until = None
        if options.until_ms >= 0:
            until = datetime.fromtimestamp(options.until_ms / 1000, UTC)
        rows = job.lag(
            run.table("offset_commits", job.COMMIT_COLUMNS),
            run.table("messages", job.MESSAGE_COLUMNS),
            run.assignments(job.ASSIGNMENT_COLUMNS),
            every_s,
            until,
            history=run.history(of_states=True),
            markers=run.markers(),
        )
        if last:
            rows = rows.where("is_last")
        if assigned:
            rows = rows.where("not coalesce(is_left, false)")
        run.finish(Result("lag", rows, "at", SHOWN))
