"""The common options of `kcoord log state` and `kcoord log diff`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kcoord.cli.compiled import begin_again, faster_tree
from kcoord.cli.log.common import friendly, look_at, output_option, unsynced_option
from kcoord.cli.log.past.replay import coordinator_logs, is_long
from kcoord.cli.log.points import Point
from kcoord.cli.options import partition_option
from kcoord.log.inspect import DataDirectory, PartitionFiles

F = TypeVar("F", bound=Callable[..., Any])


def past_options(command: F) -> F:
    """Add `directory`, `groups`, `partition`, `inexact`, `unsynced` and `output` to a command's own options."""
    command = output_option(friendly(command))
    command = unsynced_option(command)
    text = "Show the state even if compaction has removed part of the history."
    command = click.option("--inexact", is_flag=True, help=text)(command)
    text = "Only groups in this partition of the log."
    command = partition_option(text)(command)
    text = "Only this group; repeatable."
    return click.option("--group", "-g", "groups", multiple=True, metavar="ID", help=text)(command)


def open_past(
    directory: str, unsynced: bool, groups: tuple[str, ...], partition: int, points: list[Point]
) -> tuple[DataDirectory, list[PartitionFiles]]:
    """The data directory and the selected logs of the coordinator. Raises LogError and OSError."""
    found = look_at(directory, unsynced)
    logs = coordinator_logs(found, groups[0] if len(groups) == 1 else "", partition)
    tree = faster_tree()
    if tree and any(is_long(found, files, point) for files in logs for point in points):
        begin_again(tree)
    return found, logs
