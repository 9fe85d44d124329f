"""`kcoord pipeline migrate`."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from kcoord.cli.log.common import emit_json, fail, note, plural
from kcoord.cli.pipeline.options import RunOptions, pipeline_options
from kcoord.cli.pipeline.progress import watch
from kcoord.cli.pipeline.run import Run
from kcoord.cli.pipeline.states import COMMITTED, cluster_of, present, read_records, refuse, write_log
from kcoord.server.failures import EXIT_CONFIG

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
@click.option("--dry-run", is_flag=True, help="Only show what would become of which group.")
@click.option(
    "--offsets-partitions", type=click.IntRange(1), default=1, show_default=True, metavar="N",
    help="How many partitions __consumer_offsets is to have.",
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
        raise click.UsageError("--to and --csv are two ways; give one of them")
    if csv_file == STDOUT and (options.is_json or options.is_csv):
        raise click.UsageError("--csv - and --output json both want standard output")
    is_dry = dry_run or not (options.output or csv_file)
    from kcoord.spark.jobs.migration_rules import BadRules, load_rules, parse_rules

    try:
        rules = load_rules(rules_file) if rules_file else parse_rules({})
    except (BadRules, OSError) as error:
        fail(str(error), EXIT_CONFIG)
        raise
    document: dict[str, Any] = {"job": "migrate", "dry_run": is_dry}
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
                document["offsets"] = _write_csv(job, migration, csv_file)
            if csv_file != STDOUT and not options.is_json:
                note(f"{plural(document['offsets'], 'offset')} written to {csv_file}")
        elif not is_dry:
            write_log(run, job.rows(migration), offsets_partitions)
            document["output"] = options.output
    if options.is_json:
        emit_json(document)


def _write_csv(job: Any, migration: Any, path: str) -> int:
    """Write the whole file or none. Raises OSError."""
    offsets = job.committed(migration)
    if path == STDOUT:
        return int(job.write_csv(offsets, sys.stdout))
    part = f"{path}.part"
    try:
        with open(part, "w", encoding="utf-8", newline="") as file:
            count = int(job.write_csv(offsets, file))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise
    return count
