"""`kcoord pipeline snapshot`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from kcoord.cli.log.common import emit_json
from kcoord.cli.log.points import Point, parse_point
from kcoord.cli.pipeline.options import RunOptions, pipeline_options
from kcoord.cli.pipeline.run import Run
from kcoord.cli.pipeline.states import (
    COMMITTED,
    UNCOMMITTED,
    cluster_of,
    of_groups,
    present,
    read_records,
    refuse,
)

OFFSETS_SHOWN = {
    "group_id": "GROUP", "topic": "TOPIC", "partition": "P", "committed_offset": "OFFSET",
    "commit_timestamp": "COMMITTED", "log": "LOG",
}  # fmt: skip
GROUPS_SHOWN = {
    "group_id": "GROUP", "kind": "KIND", "epoch": "EPOCH", "assignment_epoch": "ASSIGNMENT", "member_count": "MEMBERS",
    "protocol": "PROTOCOL", "log": "LOG",
}  # fmt: skip
MEMBERS_SHOWN = {
    "group_id": "GROUP", "member_id": "MEMBER", "instance_id": "INSTANCE", "client_id": "CLIENT", "client_host": "HOST",
    "log": "LOG",
}  # fmt: skip


@click.command("snapshot")
@pipeline_options
@click.option("--as-of", "point", type=parse_point, default="end", metavar="POINT", help="OFFSET, TIME or end.")
def snapshot(options: RunOptions, point: Point) -> None:
    """Offsets, groups and members in PATH as they were at a point: three tables.

    Transactions that were open then count as not committed. In the compacted part of a log, records that later ones
    replaced are gone; `kcoord log state` refuses that, this job shows what is left.

    \b
    Example:
      kcoord pipeline snapshot /archive --as-of 2026-01-31T12:00 --to noon
    """
    refuse(options, "since_ms", "until_ms")
    with Run("snapshot", options) as run:
        from pyspark.sql import functions as F

        from kcoord.spark.jobs import snapshot as job
        from kcoord.spark.jobs.state import RECORD_COLUMNS

        time = datetime.fromtimestamp(point.time_ms / 1000, UTC) if point.time_ms >= 0 else None
        before = point.offset if point.offset >= 0 else None
        records = read_records(run, COMMITTED if point.is_end else UNCOMMITTED, RECORD_COLUMNS)
        found = job.snapshot(records, time, before, cluster_of(options))
        found.records.cache()
        offsets = of_groups(found.offsets, options)
        if options.topics:
            offsets = offsets.where(F.col("topic").isin(*options.topics))
        groups, members = of_groups(found.groups, options), of_groups(found.members, options)
        documents: dict[str, Any] = {}
        for name, rows, titles, order in (
            ("offsets", offsets, OFFSETS_SHOWN, ("log", "group_id", "topic", "partition")),
            ("groups", groups, GROUPS_SHOWN, ("log", "group_id", "record_name")),
            ("members", members, MEMBERS_SHOWN, ("log", "group_id", "member_id")),
        ):
            documents[name] = present(run, name, rows, titles, order, is_first=not documents)
    if options.is_json:
        emit_json({"job": "snapshot", "as_of": point.text, "tables": documents})
