"""`kcoord log`: the tools that inspect and repair a data directory."""

from __future__ import annotations

from typing import Final

import click

from kcoord.cli.lazy import LazyGroup

COMMANDS: Final = {
    "compact": ("kcoord.cli.log.compact.command:compact_command", "Keep only the newest record of every key."),
    "diff": ("kcoord.cli.log.past.diff:diff", "Print what changed between two points of a log."),
    "dump": ("kcoord.cli.log.dump:dump", "Print decoded records."),
    "export": ("kcoord.cli.log.export_command:export_command", "Write the directory for a Kafka broker."),
    "import": ("kcoord.cli.log.import_command:import_command", "Read the directory of a Kafka broker."),
    "ls": ("kcoord.cli.log.ls:ls", "List partitions with offsets, sizes and times."),
    "repair": ("kcoord.cli.log.repair.command:repair", "Show and make repairs."),
    "restore": ("kcoord.cli.log.snapshot_commands:restore", "Restore a snapshot."),
    "snapshot": ("kcoord.cli.log.snapshot_commands:snapshot", "Create and list snapshots of a directory."),
    "state": ("kcoord.cli.log.past.state:state", "Print groups, offsets and topics at a point of the log."),
    "timeline": ("kcoord.cli.log.past.timeline:timeline", "Print the epochs of a group, and their causes."),
    "verify": ("kcoord.cli.log.verify.command:verify", "Check everything."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
def log() -> None:
    """Inspect and repair a data directory.

    Commands that only read take no lock. They work on the directory of a running server, up to its durable mark, and of
    a stopped Kafka broker. Commands that write refuse a directory that is in use.

    \b
    Exit codes: 0 success; 1 problems found; 2 wrong usage; 4 not readable or
    writable; 5 not a kcoord directory; 6 in use; 7 damaged; 8 disk full;
    9 reading or writing failed.
    """
