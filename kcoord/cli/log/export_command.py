"""`kcoord log export`: a directory for a Kafka broker, or offsets as CSV."""

from __future__ import annotations

import base64
import csv
import io
import os
import time

import click

from kcoord.cli.log.common import Bar, emit_counts, emit_json, fail, friendly, output_option, say
from kcoord.log.exporter import Export, committed_offsets, open_own_directory
from kcoord.log.storage import DiskStorage
from kcoord.server.failures import EXIT_CONFIG

STDOUT = "-"


@click.command(name="export")
@click.argument("target", metavar="TARGET", type=click.Path())
@click.option("--data", "-d", default="data", show_default=True, metavar="DIR", help="The kcoord data directory.")
@click.option("--csv", "as_csv", is_flag=True, help="Write committed offsets to the file TARGET instead (- is stdout), "
              "for kafka-consumer-groups --reset-offsets --from-file.")  # fmt: skip
@click.option("--group", "-g", "groups", multiple=True, metavar="GROUP", help="Only that group's offsets; repeatable.")
@output_option
@friendly
def export_command(target: str, data: str, as_csv: bool, groups: tuple[str, ...], output: str) -> None:
    """Export a data directory for a Kafka 4.3 broker.

    The directory needs no formatting. Start the broker with the same node.id, process.roles=broker,controller and
    log.dirs set to the directory; docs/migration.md lists the settings. The server must be stopped, except for --csv.
    """
    if as_csv:
        _write_csv(target, data, set(groups))
        return
    if groups:
        raise click.UsageError("--group requires --csv")
    with Bar() as bar:
        export = Export(
            open_own_directory(data),
            target,
            base64.urlsafe_b64encode(os.urandom(16)).decode("ascii").rstrip("="),
            time.time_ns() // 1_000_000,
            bar,
        )
        export.run()
    if output == "json":
        emit_json({"written": dict(sorted(export.counts.items())), "left_out": dict(sorted(export.left_out.items()))})
        return
    if output == "csv":
        emit_counts([("written", export.counts), ("left out", export.left_out)])
        return
    click.echo("written:")
    for name, count in sorted(export.counts.items()):
        click.echo(f"  {count:>12,}  {name}")
    if export.left_out:
        click.echo("left out:")
        for name, count in sorted(export.left_out.items()):
            click.echo(f"  {count:>12,}  {name}")
    advice = f"start a Kafka 4.3 broker with node.id={export.node_id} and log.dirs={target}; do not format it"
    say(advice)


def _write_csv(target: str, data: str, groups: set[str]) -> None:
    """Lines of group, topic, partition and offset."""
    with Bar() as bar:
        rows = committed_offsets(open_own_directory(data, running_too=True), groups, bar)
    if groups and not rows:
        fail(f"{data} has no committed offsets of {', '.join(sorted(groups))}", EXIT_CONFIG)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    if target == STDOUT:
        click.echo(text.getvalue(), nl=False)
        return
    folder, name = os.path.split(os.path.abspath(target))
    DiskStorage(folder).write_atomic(name, text.getvalue().encode())
    click.echo(f"{len(rows)} offsets written to {target}", err=True)
