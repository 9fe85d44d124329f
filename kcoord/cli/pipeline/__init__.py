"""`kcoord pipeline`: jobs on Spark over whole logs. A job is one small module; run.py has the shared parts."""

from __future__ import annotations

from typing import Final

import click

from kcoord.cli.lazy import LazyGroup

JOBS: Final = {
    "compact": "kcoord.cli.pipeline.compact:compact",
    "lag": "kcoord.cli.pipeline.lag:lag",
    "migrate": "kcoord.cli.pipeline.migrate:migrate",
    "offsets-history": "kcoord.cli.pipeline.offsets_history:offsets_history",
    "rebalances": "kcoord.cli.pipeline.rebalances:rebalances",
    "report": "kcoord.cli.pipeline.report:report",
    "snapshot": "kcoord.cli.pipeline.snapshot:snapshot",
    "verify": "kcoord.cli.pipeline.verify:verify",
}


@click.group(cls=LazyGroup, lazy=JOBS, context_settings={"help_option_names": ["-h", "--help"]})
def pipeline() -> None:
    """Turn whole logs into tables and reports, with Spark.

    PATH is a data directory of kcoord or of a stopped Kafka broker, or a directory of some, on a disk or wherever Arrow
    and fsspec can read (s3://, hdfs://, ...). Needs `pip install kcoord[spark]`; docs/pipeline.md has every column.

    \b
    Exit codes: 0 success; 2 wrong usage, or something is not installed; 4 not
    readable or writable; 7 damaged; 9 reading, writing or the job failed.
    """
