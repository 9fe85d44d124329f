"""`kcoord log snapshot` and `kcoord log restore`."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from kcoord.cli.log.common import Bar, emit_json, emit_rows, fail, format_time, friendly, output_option, plural, table
from kcoord.log.directory import open_directory
from kcoord.log.exporter import open_own_directory
from kcoord.log.inspect import is_locked
from kcoord.log.snapshot import begin_snapshot, check_name, list_snapshots, restore_snapshot
from kcoord.log.storage import DiskStorage
from kcoord.server.control_client import ControlError, ask_server

DATA = click.option("--data", "-d", default="data", show_default=True, metavar="DIR", help="The data directory.")


FIELDS: Final = ("name", "created_ms", "logs", "offsets")


def _row(made: dict[str, Any]) -> dict[str, Any]:
    return {**made, "logs": len(made["ends"]), "offsets": sum(made["ends"].values())}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@click.command()
@click.argument("name", required=False)
@click.option("--list", "-l", "listing", is_flag=True, help="List the existing snapshots.")
@DATA
@output_option
@friendly
def snapshot(name: str | None, listing: bool, data: str, output: str) -> None:
    """Create a named snapshot of the whole data directory, in snapshots/NAME inside it.

    Works with a running server, too: the snapshot has everything that was durable at one moment, between two commits.
    Closed segments are shared with the original if the file system supports hard links.
    """
    if listing == (name is not None):
        raise click.UsageError("pass a NAME or --list")
    if name is None:
        _list(data, output)
        return
    check_name(name)
    made = _snapshot_of_running(data, name) if is_locked(data) else _snapshot_of_stopped(data, name)
    if output == "json":
        emit_json(made)
    elif output == "csv":
        emit_rows(FIELDS, [_row(made)])
    else:
        click.echo(f"snapshot {made['name']}: {plural(len(made['ends']), 'log')}, {sum(made['ends'].values())} offsets")


def _snapshot_of_running(data: str, name: str) -> dict[str, Any]:
    try:
        with Bar() as bar:
            return ask_server(data, {"command": "snapshot", "name": name}, bar)
    except ControlError as error:
        fail(str(error), error.code)
        raise


def _snapshot_of_stopped(data: str, name: str) -> dict[str, Any]:
    source = open_own_directory(data)
    node_id = int(source.properties["node.id"])
    directory = open_directory(DiskStorage(data), node_id, "", "")
    try:
        one = begin_snapshot(directory, data, name, _now_ms())
        try:
            with Bar() as bar:
                one.finish(bar)
        except BaseException:
            one.abandon()
            raise
    finally:
        directory.close(directory.was_clean)
    return one.describe()


def _list(data: str, output: str) -> None:
    found = list_snapshots(data)
    if output == "json":
        emit_json(found)
        return
    if output == "csv":
        emit_rows(FIELDS, [_row(one) for one in found])
        return
    rows = [[s["name"], format_time(s["created_ms"]), str(len(s["ends"])), str(sum(s["ends"].values()))] for s in found]
    for line in table(["NAME", "MADE", "LOGS", "OFFSETS"], rows, "  rr"):
        click.echo(line)


@click.command()
@click.argument("name")
@DATA
@output_option
@friendly
def restore(name: str, data: str, output: str) -> None:
    """Restore a snapshot. The server must be stopped.

    The current contents of the directory are moved to snapshots/replaced-TIME. Leader epochs are raised and producer
    ids are not reused, so clients notice the restore.
    """
    with Bar() as bar:
        aside = restore_snapshot(data, name, _now_ms(), bar)
    if output == "json":
        emit_json({"restored": name, "replaced": aside})
    elif output == "csv":
        emit_rows(("restored", "replaced"), [{"restored": name, "replaced": aside}])
    else:
        click.echo(f"{data} is restored from snapshot {name}; the previous contents are in {aside}")
