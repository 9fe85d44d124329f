"""`kcoord pipeline`: jobs over whole logs. A job is one small module; run.py has the shared parts of jobs with Spark,
short_run.py those of jobs over short logs without it."""

from __future__ import annotations

from typing import Final

import click

from kcoord.cli.lazy import LazyGroup

JOBS: Final = {
    "compact": ("kcoord.cli.pipeline.compact:compact", "Write the shortest log with the same state."),
    "lag": ("kcoord.cli.pipeline.lag:lag", "The lag of groups, in records and in seconds."),
    "migrate": ("kcoord.cli.pipeline.migrate:migrate", "Move groups and offsets of several clusters into one."),
    "offsets-history": ("kcoord.cli.pipeline.offsets_history:offsets_history", "Every commit, and what it changed."),
    "prepare": ("kcoord.cli.pipeline.prepare:prepare", "Let Spark start sooner."),
    "rebalances": ("kcoord.cli.pipeline.rebalances:rebalances", "Every rebalance: epochs, duration and cause."),
    "report": ("kcoord.cli.pipeline.report:report", "One HTML page with plots."),
    "snapshot": ("kcoord.cli.pipeline.snapshot:snapshot", "Offsets, groups and members at a point in time."),
    "verify": ("kcoord.cli.pipeline.verify:verify", "Check the history of every group and transaction."),
}


@click.group(cls=LazyGroup, lazy=JOBS, context_settings={"help_option_names": ["-h", "--help"]})
def pipeline() -> None:
    """Turn whole logs into tables and reports, with Spark if they are long.

    PATH is a data directory of kcoord or of a stopped Kafka broker, or a directory that contains several. Arrow and
    fsspec read it, so it may be on a disk or elsewhere (s3://, hdfs://, ...). The jobs need kcoord's extra `spark`.
    docs/pipeline.md describes every column.

    \b
    Exit codes: 0 success; 2 wrong usage, or something is not installed; 4 not
    readable or writable; 7 damaged; 9 reading, writing or the job failed.
    """
