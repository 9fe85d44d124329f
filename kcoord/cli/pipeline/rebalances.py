"""`kcoord pipeline rebalances`."""

from __future__ import annotations

import click

from kcoord.cli.pipeline.options import RunOptions, pipeline_options
from kcoord.cli.pipeline.run import Result, Run
from kcoord.cli.pipeline.short_run import ShortResult, ShortRun, run_short
from kcoord.core.outcome import GROUP_EVENTS_TOPIC, OFFSETS_TOPIC

SHOWN = {
    "group_id": "GROUP", "started": "STARTED", "to_epoch": "EPOCH", "duration_ms": "MS", "members_before": "WAS",
    "members_after": "IS", "partitions_moved": "MOVED", "cause": "CAUSE", "cause_member": "MEMBER",
}  # fmt: skip
RANKED = {
    "finding": "FINDING", "rank": "RANK", "group_id": "GROUP", "member": "MEMBER", "first": "FIRST",
    "rebalances": "COUNT", "returns": "RETURNS", "duration_ms": "MS", "cause": "CAUSE",
}  # fmt: skip


@click.command("rebalances")
@pipeline_options
@click.option(
    "--storm-gap",
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Rebalances closer together than this are one storm.",
)
@click.option("--storm-size", default=3, show_default=True, metavar="N", help="How many rebalances make a storm.")
@click.option(
    "--flaps", default=2, show_default=True, metavar="N", help="A member that comes back this often is flapping."
)
def rebalances(options: RunOptions, storm_gap: float, storm_size: int, flaps: int) -> None:
    """Every rebalance in PATH: its epochs, duration and cause, members that joined and left, and how many partitions
    moved. A second table ranks storms of rebalances and members that come and go.

    \b
    Example:
      kcoord pipeline rebalances data --group billing -n 50
    """

    def short(run: ShortRun) -> list[ShortResult]:
        from kcoord.spark.jobs.rebalances import MESSAGE_COLUMNS, RECORD_COLUMNS, RECORD_TYPES
        from kcoord.spark.short import rebalances as job
        from kcoord.spark.short.runs import micros

        records = run.table("records", RECORD_COLUMNS, {"record_type": RECORD_TYPES}, subscribe=OFFSETS_TOPIC)
        events = run.table("messages", MESSAGE_COLUMNS, subscribe=GROUP_EVENTS_TOPIC)
        found = job.rebalances(records, events, run.history())
        if options.groups:
            found = [row for row in found if row["group_id"] in options.groups]
        ranked = job.ranking(found, storm_gap, storm_size, flaps)
        return [
            ShortResult("rebalances", job.table_of(found, job.SCHEMA), micros(map(job.begun, found)), SHOWN),
            ShortResult("rebalance_ranking", job.table_of(ranked, job.RANKING), "first", RANKED),
        ]

    if run_short("rebalances", options, short):
        return
    with Run("rebalances", options, reads_history=True) as run:
        from pyspark.sql import functions as F

        from kcoord.spark.jobs import rebalances as job

        records = run.table("records", job.RECORD_COLUMNS, {"record_type": job.RECORD_TYPES}, subscribe=OFFSETS_TOPIC)
        events = run.table("messages", job.MESSAGE_COLUMNS, subscribe=GROUP_EVENTS_TOPIC)
        found = job.rebalances(records, events, run.history())
        if options.groups:
            found = found.where(F.col("group_id").isin(*options.groups))
        found = found.persist()
        ranked = job.ranking(found, storm_gap, storm_size, flaps)
        run.finish(
            Result("rebalances", found, job.begun(), SHOWN), Result("rebalance_ranking", ranked, "first", RANKED)
        )
