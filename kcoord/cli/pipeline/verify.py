"""`kcoord pipeline verify`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from kcoord.cli.log.common import EXIT_PROBLEMS, emit_json, plural, say
from kcoord.cli.pipeline.options import RunOptions, pipeline_options
from kcoord.cli.pipeline.run import Run
from kcoord.cli.pipeline.short_run import ShortRun, run_short_for
from kcoord.cli.pipeline.states import (
    UNCOMMITTED,
    present,
    present_short,
    read_logs,
    read_records,
    records_options,
    refuse,
    source_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN = {
    "rule": "RULE", "id": "GROUP OR ID", "log_offset": "OFFSET", "file": "FILE", "message": "WHAT",
}  # fmt: skip
CORRUPT_SHOWN = {"file": "FILE", "position": "BYTE", "log_offset": "OFFSET", "reason": "WHY"}
ORDER = ("log", "log_topic", "log_partition", "log_offset", "rule")
CORRUPT_ORDER = ("log", "log_topic", "log_partition", "position")


@click.command("verify")
@pipeline_options
@click.option(
    "--offsets-partitions", type=click.IntRange(1), default=None, metavar="N",
    help="Partitions of __consumer_offsets: check that each group is in the right one.",
)  # fmt: skip
def verify(options: RunOptions, offsets_partitions: int | None) -> None:
    """Replay the history of every group and transaction in PATH, and check that it is consistent.

    Epochs never go back, a partition has one owner, no offsets are left without their group, and every transaction
    ends once. The exit code is 1 if a rule is violated. `kcoord log verify` also checks the bytes of a data directory.

    \b
    Example:
      kcoord pipeline verify /archive --option onCorrupt=collect --to found
    """
    refuse(options, "since_ms", "until_ms", "topics", "one_cluster")
    collects = {name.lower(): value for name, value in options.source}.get("oncorrupt", "").lower() == "collect"
    told: list[int] = []

    def short(run: ShortRun) -> pa.Table:
        from kcoord.spark.jobs.places import floors_of, segments_of
        from kcoord.spark.jobs.verify import RECORD_COLUMNS
        from kcoord.spark.short.verify import verify

        source = source_of(options)
        batches = run.read_logs(records_options(options, UNCOMMITTED, RECORD_COLUMNS))
        return verify(batches, floors_of(source), offsets_partitions or 0, options.groups, segments_of(source))

    def finish(_run: ShortRun, rows: pa.Table) -> None:
        documents = {"violations": present_short(options, "violations", rows, SHOWN, ORDER)}
        told.append(_tell(options, rows.num_rows, 0, documents))

    if not collects and run_short_for("verify", options, short, finish):
        raise SystemExit(told[0])
    with Run("verify", options) as run:
        from kcoord.history.invariants import NEVER
        from kcoord.spark.jobs import verify as job
        from kcoord.spark.jobs.places import floors_of, with_files

        source = source_of(options)
        floors = floors_of(source)
        documents = {}
        damaged = 0
        if collects:
            corrupt = run.table("_corrupt").where("log_topic in ('__consumer_offsets', '__transaction_state')").cache()
            for row in corrupt.select("log", "log_topic", "log_partition").distinct().collect():
                # Any record may be missing there.
                floors[(row.log, row.log_topic, row.log_partition)] = NEVER
            damaged = corrupt.count()
            documents["corrupt"] = present(run, "corrupt", corrupt, CORRUPT_SHOWN, CORRUPT_ORDER)
        found = None
        if run.is_short:
            read = partial(read_logs, run, UNCOMMITTED, job.RECORD_COLUMNS)
            found = job.verify_short(read, floors, offsets_partitions or 0, options.groups)
        if found is None:
            records = read_records(run, UNCOMMITTED, job.RECORD_COLUMNS)
            found = job.verify(records, floors, offsets_partitions or 0, options.groups)
        rows = with_files(found, source).cache()
        documents["violations"] = present(run, "violations", rows, SHOWN, ORDER, is_first=not documents)
        count = rows.count()
    raise SystemExit(_tell(options, count, damaged, documents))


def _tell(options: RunOptions, count: int, damaged: int, documents: dict[str, Any]) -> int:
    """Say how many there are; returns the exit code."""
    if options.is_json:
        emit_json({"job": "verify", "violations": count, "corrupt": damaged, "tables": documents})
    elif not options.is_csv:
        say(f"{plural(count, 'violation')}" + (f", {plural(damaged, 'damaged place')}" if damaged else ""))
    return EXIT_PROBLEMS if count or damaged else 0
