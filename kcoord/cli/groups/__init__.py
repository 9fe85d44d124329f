"""`kcoord groups`: the groups of a running server or of a Kafka cluster."""

from __future__ import annotations

from typing import Final

import click

from kcoord.cli.lazy import LazyGroup

COMMANDS: Final = {
    "copy": ("kcoord.cli.groups.reset:copy", "Copy the committed offsets of a group to another one."),
    "delete": ("kcoord.cli.groups.delete:delete", "Delete groups without members."),
    "delete-offsets": ("kcoord.cli.groups.delete:delete_offsets", "Delete committed offsets."),
    "describe": ("kcoord.cli.groups.describe:describe", "Print committed offsets, lag and owners of partitions."),
    "list": ("kcoord.cli.groups.describe:list_command", "List groups with their type and state."),
    "members": ("kcoord.cli.groups.describe:members", "Print members with their partitions."),
    "remove-members": ("kcoord.cli.groups.delete:remove_members", "Remove members from a group."),
    "timeline": ("kcoord.cli.groups.timeline:timeline", "Print the epochs of a group, and their causes."),
    "reset": ("kcoord.cli.groups.reset:reset", "Set committed offsets."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
def groups() -> None:
    """List, describe, reset and delete groups, with their members, offsets and lag.

    The commands talk to a running kcoord or to any Kafka cluster from version 2.1 on. Commands that change something
    only print the changes; --execute makes them.

    \b
    Exit codes: 0 success; 1 something does not exist, or part of the work was
    refused; 2 wrong usage; 3 no response in time, or the cluster refused the
    request.
    """
