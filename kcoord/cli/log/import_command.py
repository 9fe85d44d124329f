"""`kcoord log import`: imports the data directory of a stopped broker."""

from __future__ import annotations

import base64
import os
import time

import click

from kcoord.cli.log.common import Bar, emit_counts, emit_json, friendly, output_option, wrapped
from kcoord.core.hashing import coordinator_partition
from kcoord.core.topics.registry import topic_id_from
from kcoord.log.import_report import ImportReport
from kcoord.log.importer import ImportPlan, run_import


def _new_topic_id() -> bytes:
    return topic_id_from(os.urandom(16), 0)


@click.command(name="import")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False))
@click.option("--data", "-d", default="data", show_default=True, metavar="DIR", help="The new data directory.")
@click.option("--topics", is_flag=True, help="Import the records of topics, too. By default topics begin empty, at "
              "their end offset.")  # fmt: skip
@click.option("--node-id", default=1, show_default=True, type=click.IntRange(0), help="`node.id` of the new server.")
@click.option("--offsets-partitions", default=1, show_default=True, type=click.IntRange(1, 10000),
              help="Partitions of `__consumer_offsets`, fixed from then on.")  # fmt: skip
@click.option("--transaction-partitions", default=1, show_default=True, type=click.IntRange(1, 10000),
              help="Partitions of `__transaction_state`, fixed from then on.")  # fmt: skip
@output_option
@friendly
def import_command(
    sources: tuple[str, ...],
    data: str,
    topics: bool,
    node_id: int,
    offsets_partitions: int,
    transaction_partitions: int,
    output: str,
) -> None:
    """Import the data directory of a stopped Kafka broker into a new kcoord data directory.

    Pass all directories of one broker (log.dirs), or those of all brokers of a cluster. They are only read. Groups,
    offsets, generations and topic ids are kept. docs/migration.md describes how everything else is handled, and the
    summary counts it.
    """
    plan = ImportPlan(
        sources=list(sources),
        target=data,
        with_records=topics,
        partition_of=coordinator_partition,
        directory_id=base64.urlsafe_b64encode(os.urandom(16)).decode("ascii").rstrip("="),
        new_topic_id=_new_topic_id,
        wall_ms=time.time_ns() // 1_000_000,
        node_id=node_id,
        offsets_partitions=offsets_partitions,
        transaction_partitions=transaction_partitions,
    )
    with Bar() as bar:
        report = run_import(plan, bar)
    if output == "json":
        emit_json(report.as_dict())
        return
    if output == "csv":
        emit_counts(counters(report))
        return
    for line in as_lines(report, data):
        click.echo(line)


def counters(report: ImportReport) -> list[tuple[str, dict[str, int]]]:
    """What happened to what, by the number of times."""
    return [("taken", report.taken), ("kept as it is", report.kept), ("left out", report.left_out)]


def as_lines(report: ImportReport, data: str) -> list[str]:
    """The summary as text."""
    lines = []
    for title, counter in counters(report):
        if counter:
            lines.append(f"{title}:")
            lines += [f"  {count:>12,}  {name}" for name, count in sorted(counter.items())]
    for text in report.notes:
        lines += wrapped("note: " + text, 6, 0)
    lines.append(f"start it with: kcoord serve --data {data}")
    return lines
