"""`kcoord pipeline snapshot`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from kcoord.cli.log.common import emit_json
from kcoord.cli.log.points import Point, parse_table_point
from kcoord.cli.pipeline.options import RunOptions, pipeline_options
from kcoord.cli.pipeline.run import Run
from kcoord.cli.pipeline.short_run import ShortRun, run_short_for
from kcoord.cli.pipeline.states import (
    COMMITTED,
    UNCOMMITTED,
    cluster_of,
    of_groups,
    present,
    present_short,
    read_records,
    records_options,
    refuse,
)

if TYPE_CHECKING:
    import pyarrow as pa

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


# Each table's name, columns for a terminal, and order.
SHOWN = (
    ("offsets", OFFSETS_SHOWN, ("log", "group_id", "topic", "partition")),
    ("groups", GROUPS_SHOWN, ("log", "group_id", "record_name")),
    ("members", MEMBERS_SHOWN, ("log", "group_id", "member_id")),
)


@click.command("snapshot")
@pipeline_options
@click.option("--as-of", "point", type=parse_table_point, default="end", metavar="POINT", help="OFFSET, TIME or end.")
def snapshot(options: RunOptions, point: Point) -> None:
    """Offsets, groups and members in PATH as they were at a point: three tables.

    Transactions that were open at that point count as not committed. Compaction may have removed records from before
    the point: `kcoord log state` then refuses, and this job shows what is left.

    \b
    Example:
      kcoord pipeline snapshot /archive --as-of 2026-01-31T12:00 --to noon
    """
    refuse(options, "since_ms", "until_ms")

    def short(run: ShortRun) -> tuple[pa.Table, pa.Table, pa.Table]:
        from kcoord.spark.jobs.snapshot import OffsetsDecoder
        from kcoord.spark.jobs.state import RECORD_COLUMNS
        from kcoord.spark.short.state import decoded, latest
        from kcoord.spark.short.tables import only
        from kcoord.spark.tables.group_metadata import GroupMetadataTable
        from kcoord.spark.tables.members import MembersTable

        state = latest(run.read(records_options(options, COMMITTED, RECORD_COLUMNS)))
        if options.groups:
            state = only(state, "group_id", options.groups)
        offsets, groups, members = (decoded(state, one) for one in (OffsetsDecoder, GroupMetadataTable, MembersTable))
        return only(offsets, "topic", options.topics) if options.topics else offsets, groups, members

    def finish(_run: ShortRun, tables: tuple[pa.Table, ...]) -> None:
        documents: dict[str, Any] = {}
        for (name, titles, order), rows in zip(SHOWN, tables, strict=True):
            documents[name] = present_short(options, name, rows, titles, order, is_first=not documents)
        _emit(options, point, documents)

    # The state at other points depends on when transactions ended.
    if point.is_end and run_short_for("snapshot", options, short, finish):
        return
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
        for (name, titles, order), rows in zip(SHOWN, (offsets, groups, members), strict=True):
            documents[name] = present(run, name, rows, titles, order, is_first=not documents)
    _emit(options, point, documents)


def _emit(options: RunOptions, point: Point, documents: dict[str, Any]) -> None:
    if options.is_json:
        emit_json({"job": "snapshot", "as_of": point.text, "tables": documents})
