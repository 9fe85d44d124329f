"""`kcoord log repair`: plans the repairs with which a damaged data directory can be opened, and executes them."""

from __future__ import annotations

import os
from typing import Final

import click

from kcoord.cli.log.common import (
    directory_argument,
    emit_json,
    emit_rows,
    exit_if,
    format_bytes,
    friendly,
    output_option,
    plural,
    progress,
    say,
)
from kcoord.cli.log.dump import choose
from kcoord.cli.log.repair.metadata import plan_snapshots
from kcoord.cli.log.repair.plan import (
    BEGIN_AT,
    CUT,
    LOWER_MARK,
    PUT_ASIDE,
    PUT_BACK,
    REPLACE_CHECKPOINT,
    Repair,
    Repairer,
    plan_checkpoints,
    plan_log,
    plan_lost,
)
from kcoord.core.outcome import METADATA_TOPIC
from kcoord.log.directory import RECOVERY_POINTS
from kcoord.log.errors import ForeignDirectory, missing_directory
from kcoord.log.exchange import settle
from kcoord.log.inspect import Checkpoint, DataDirectory, inspect_directory, read_properties
from kcoord.log.log_config import LogConfig
from kcoord.log.reader import find_partitions
from kcoord.log.storage import DiskStorage


def describe(repair: Repair) -> str:
    if repair.action == CUT:
        text = f"{repair.log}: cut at offset {repair.offset}, byte {repair.position} of {repair.file}"
        text += f": {repair.reason}. {format_bytes(repair.bytes)} are removed"
        if repair.later:
            text += f", {plural(len(repair.later), 'later segment')} included"
        if repair.records:
            text += f"; {plural(repair.records, 'record')} in them can still be read"
        return text
    if repair.action == REPLACE_CHECKPOINT:
        made = "; it will be rebuilt from the logs" if repair.file.endswith(RECOVERY_POINTS) else ""
        return f"{repair.reason}{made}"
    if repair.action == PUT_ASIDE:
        return f"{repair.log}: put a snapshot aside: {repair.reason}. The log has its records elsewhere"
    if repair.action == BEGIN_AT:
        text = f"{repair.log}: begin at offset {repair.offset}, where {repair.file} ends: {repair.reason}. "
        return f"{text}{plural(len(repair.later), 'segment')} ({format_bytes(repair.bytes)}) removed; no topic is lost"
    if repair.action == PUT_BACK:
        text = f"{repair.log}: {repair.reason}. Restore it from a copy or a snapshot: without it the next"
        return f"{text} start would treat every topic as deleted. This cannot be repaired in any other way"
    if repair.action == LOWER_MARK and not repair.offset:
        return f"{repair.log}: start it again, empty: {repair.reason}. Restore it from a copy instead if you can"
    if repair.action == LOWER_MARK:
        return f"{repair.log}: lower the durable mark to {repair.offset}: {repair.reason}"
    return f"{repair.log}: rebuild the indexes of segment {repair.offset}: {repair.reason}"


def plan(directory: DataDirectory, logs: tuple[str, ...]) -> tuple[list[Repair], Checkpoint]:
    """The necessary repairs, and the end offsets of the logs after them. Raises OSError."""
    lost = plan_lost(directory)
    chosen = directory.partitions
    if logs:
        lost = [repair for repair in lost if repair.log in logs or repair.log.rpartition("-")[0] in logs]
        # Lost logs have no directory, so `choose` does not know them.
        names = {files.name for files in directory.partitions} | {files.topic for files in directory.partitions}
        gone = {repair.log for repair in lost} | {repair.log.rpartition("-")[0] for repair in lost}
        there = tuple(name for name in logs if name in names or name not in gone)
        chosen = choose(directory, there) if there else []
    repairs = plan_checkpoints(directory.root) + lost
    ends: Checkpoint = {}
    with progress("Reading", sum(files.size_bytes for files in chosen)) as step:
        for files in chosen:
            found, end = plan_log(directory, files, step)
            if files.topic == METADATA_TOPIC:
                found, end = plan_snapshots(directory, files, found, end)
            repairs += found
            if end:
                ends[(files.topic, files.partition)] = end
    return repairs, ends


def finish_exchanges(storage: DiskStorage) -> None:
    """Complete or undo a compaction that a crash interrupted, as opening a log does. Raises LogDamaged and OSError."""
    interval = LogConfig().index_interval_bytes
    for partition in find_partitions(storage.root):
        settle(storage, os.path.basename(partition.path), interval)


def carry_out(storage: DiskStorage, directory: DataDirectory, repairs: list[Repair], ends: Checkpoint) -> None:
    repairer = Repairer(storage, directory)
    for repair in repairs:
        repairer.carry_out(repair)
    # The marks are written last. A crash before that leaves a log below its mark, which repair finds again; the other
    # order could leave a log that opens without the records that are still to be removed.
    for repair in repairs:
        if repair.action == REPLACE_CHECKPOINT:
            repairer.replace_checkpoint(repair, ends)


# The columns of CSV.
FIELDS: Final = (
    "action", "log", "file", "position", "offset", "bytes", "readable_records", "later_segments", "reason", "kept",
)  # fmt: skip


@click.command()
@directory_argument
@click.argument("logs", metavar="[LOG]...", nargs=-1)
@click.option("--execute", is_flag=True, help="Execute the repairs. Without it they are only shown.")
@output_option
@friendly
def repair(directory: str, logs: tuple[str, ...], execute: bool, output: str) -> None:
    """Show the repairs that DIR, or these LOGs of it, need to be opened; with --execute, execute them.

    A log is truncated before its first unreadable byte. Later segments are removed, too, because records are only valid
    together with those before them. All removed bytes are kept next to the log, in files named *.cut-POSITION, which
    you can inspect and delete. Durable marks are lowered accordingly; damaged indexes and checkpoint files are rebuilt.

    Make a copy of DIR first if you can. A directory that is in use or does not belong to kcoord is refused.

    \b
    Exit codes: 0 no repairs needed, or done; 1 repairs are needed (without
    --execute, or by hand); otherwise those of `kcoord log --help`.

    \b
    Examples:
      kcoord log repair data
      kcoord log repair data __consumer_offsets-0 --execute
    """
    storage = DiskStorage(directory)
    if not storage.is_dir(""):
        raise missing_directory(directory)
    if "kcoord.format" not in read_properties(directory):
        raise ForeignDirectory(f"{directory} is not a kcoord data directory; no other can be repaired")
    storage.lock()
    try:
        if execute:
            finish_exchanges(storage)
        # Our own lock must not count as a running server's.
        found = inspect_directory(directory, [])
        found.in_use = False
        repairs, ends = plan(found, logs)
        if execute:
            carry_out(storage, found, repairs, ends)
    finally:
        storage.unlock()
    if output == "json":
        document = {"directory": directory, "executed": execute, "repairs": [item.plain() for item in repairs]}
        emit_json(document)
    elif output == "csv":
        emit_rows(FIELDS, [item.plain() for item in repairs])
    else:
        for item in repairs:
            say(describe(item), 4, 0)
            for kept in item.kept:
                say(f"kept in {kept}", 6, 4)
        if not repairs:
            click.echo("nothing to repair")
        elif execute:
            done = sum(item.action != PUT_BACK for item in repairs)
            click.echo(f"{plural(done, 'repair')} done")
        else:
            click.echo(f"{plural(len(repairs), 'repair')} to do: --execute does it")
    exit_if(any(not execute or item.action == PUT_BACK for item in repairs))
