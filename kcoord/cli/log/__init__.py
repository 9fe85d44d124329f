"""`kcoord log`: the tools that inspect and repair a data directory."""

from __future__ import annotations

from typing import Final

import click

from kcoord.cli.lazy import LazyGroup

COMMANDS: Final = {
    "compact": "kcoord.cli.log.compact.command:compact_command",
    "diff": "kcoord.cli.log.past.diff:diff",
    "dump": "kcoord.cli.log.dump:dump",
    "export": "kcoord.cli.log.export_command:export_command",
    "import": "kcoord.cli.log.import_command:import_command",
    "ls": "kcoord.cli.log.ls:ls",
    "repair": "kcoord.cli.log.repair.command:repair",
    "restore": "kcoord.cli.log.snapshot_commands:restore",
    "snapshot": "kcoord.cli.log.snapshot_commands:snapshot",
    "state": "kcoord.cli.log.past.state:state",
    "timeline": "kcoord.cli.log.past.timeline:timeline",
    "verify": "kcoord.cli.log.verify.command:verify",
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
