"""`kcoord pipeline migrate`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

import click

from kcoord.cli.log.common import emit_json, fail, note, plural
from kcoord.cli.pipeline.options import RunOptions, pipeline_options
from kcoord.cli.pipeline.progress import watch
from kcoord.cli.pipeline.run import Run
from kcoord.cli.pipeline.short_run import ShortRun, run_short_for
from kcoord.cli.pipeline.states import (
    COMMITTED,
    cluster_of,
    present,
    present_short,
    read_records,
    records_options,
    refuse,
    refuse_format,
    write_log,
    write_log_short,
)
from kcoord.server.failures import EXIT_CONFIG

if TYPE_CHECKING:
    from kcoord.spark.jobs.migration_rules import Rules

SHOWN = {
    "action": "ACTION", "cluster": "CLUSTER", "group_id": "GROUP", "new_group": "NEW NAME", "offsets": "OFFSETS",
    "offsets_dropped": "DROPPED", "reason": "REASON", "kind": "KIND", "last_commit": "LAST COMMIT",
}  # fmt: skip
COUNTS_SHOWN = {
    "action": "ACTION", "groups": "GROUPS", "offsets": "OFFSETS", "offsets_renamed": "RENAMED",
    "offsets_dropped": "DROPPED",
}  # fmt: skip
STDOUT = "-"


@click.command("migrate")
@pipeline_options
@click.option("--rules", "rules_file", default="", metavar="FILE", help="Rules for names and conflicts (TOML, JSON).")
@click.option("--csv", "csv_file", default="", metavar="FILE",
              help="Write offsets for kafka-consumer-groups --reset-offsets --from-file (- is stdout).")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show what would happen to each group.")
@click.option(
    "--offsets-partitions", type=click.IntRange(1), default=1, show_default=True, metavar="N",
    help="Partitions of __consumer_offsets.",
)  # fmt: skip
def migrate(options: RunOptions, rules_file: str, csv_file: str, dry_run: bool, offsets_partitions: int) -> None:
    """Migrate offsets and groups of all clusters below PATH to one log at --to, or to CSV.

    Each data directory is a cluster of its own, unless rules or --one-cluster combine some. Names change by rules
    (docs/pipeline.md). Two groups with one name are a conflict, and nothing is written while there is one.

    \b
    Examples:
      kcoord pipeline migrate /clusters --rules rules.toml
      kcoord pipeline migrate /clusters --rules rules.toml --to data
      kcoord pipeline migrate /clusters/east --csv - > offsets.csv
    """
    refuse(options, "since_ms", "until_ms", "topics")
    if options.output and csv_file:
        raise click.UsageError("give --to or --csv, not both")
    if csv_file == STDOUT and (options.is_json or options.is_csv):
        raise click.UsageError("--csv - and --output json both write to standard output")
    refuse_format(options)
    is_dry = dry_run or not (options.output or csv_file)
    rules = _rules(rules_file)
    document: dict[str, Any] = {"job": "migrate", "dry_run": is_dry}

    def short(run: ShortRun) -> tuple[list[Any], list[Any]]:
        from kcoord.spark.jobs.migrate import RECORD_COLUMNS
        from kcoord.spark.short import migrate as job

        known = () if rules.clusters else options.groups
        details = job.details(
            run.read(records_options(options, COMMITTED, RECORD_COLUMNS, known)), rules, options.groups
        )
        return details, job.plan_of(details, rules)

    def finish(_run: ShortRun, found: tuple[list[Any], list[Any]]) -> None:
        _finish_short(options, *found, document, csv_file, offsets_partitions)

    if run_short_for("migrate", options, short, finish):
        return
    with Run("migrate", options) as run:
        from kcoord.spark.jobs import migrate as job

        # With several replicas, a group may be gone from the one that counts.
        known = () if options.one_cluster or rules.clusters else options.groups
        records = read_records(run, COMMITTED, job.RECORD_COLUMNS, known)
        found = job.migrate(records, rules, cluster_of(options), options.groups)
        # The details are small compared to the logs, and used several times.
        details = found.details.cache()
        plan = job.of_details(details, rules).plan.cache()
        migration = job.Migration(details, plan)
        if is_dry or options.shown:
            tables = {
                "plan": present(run, "plan", plan, SHOWN, ("new_group", "cluster", "group_id"), False),
                "counts": present(run, "counts", job.counts(plan), COUNTS_SHOWN, ("action",), False, False),
            }
            document["tables"] = tables
        try:
            job.refuse_conflicts(plan)
        except job.Conflicts as error:
            fail(f"nothing is written while there are conflicts: {error}", EXIT_CONFIG)
        if not is_dry and csv_file:
            with watch(run.spark, "Writing offsets", options.is_json or csv_file == STDOUT):
                document["offsets"] = _write_csv(lambda to: job.write_csv(job.committed(migration), to), csv_file)
            _note_csv(options, document, csv_file)
        elif not is_dry:
            write_log(run, job.rows(migration), offsets_partitions)
            document["output"] = options.output
    if options.is_json:
        emit_json(document)


def _rules(file: str) -> Rules:
    """Those of the file, or none if it is empty."""
    from kcoord.spark.jobs.migration_rules import BadRules, load_rules, parse_rules

    try:
        return load_rules(file) if file else parse_rules({})
    except (BadRules, OSError) as error:
        fail(str(error), EXIT_CONFIG)
        raise


def _finish_short(
    options: RunOptions, details: list[Any], plan: list[Any], document: dict[str, Any], csv_file: str, partitions: int
) -> None:
    """Print, and write, what was found without Spark."""
    import pyarrow as pa

    from kcoord.spark.jobs.migrate import ROWS, Conflicts, write_lines
    from kcoord.spark.short import migrate as job

    if document["dry_run"] or options.shown:
        rows, counts = pa.Table.from_pylist(plan, job.PLAN), pa.Table.from_pylist(job.counts(plan), job.COUNTS)
        document["tables"] = {
            "plan": present_short(options, "plan", rows, SHOWN, (), False),
            "counts": present_short(options, "counts", counts, COUNTS_SHOWN, (), False, False),
        }
    try:
        job.refuse_conflicts(plan)
    except Conflicts as error:
        fail(f"nothing is written while there are conflicts: {error}", EXIT_CONFIG)
    taken = job.taken(details, plan)
    if not document["dry_run"] and csv_file:
        document["offsets"] = _write_csv(lambda to: write_lines(job.committed(taken), to), csv_file)
        _note_csv(options, document, csv_file)
    elif not document["dry_run"]:
        write_log_short(options, ROWS.names, job.records_of(taken), partitions)
        document["output"] = options.output
    if options.is_json:
        emit_json(document)


def _note_csv(options: RunOptions, document: dict[str, Any], csv_file: str) -> None:
    if csv_file != STDOUT and not options.is_json:
        note(f"{plural(document['offsets'], 'offset')} written to {csv_file}")


def _write_csv(write: Callable[[TextIO], int], path: str) -> int:
    """Write the whole file or none. `write` returns how many lines it wrote. Raises OSError."""
    if path == STDOUT:
        return write(sys.stdout)
    part = f"{path}.part"
    try:
        with open(part, "w", encoding="utf-8", newline="") as file:
            count = write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise
    return count
