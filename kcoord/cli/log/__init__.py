"""`kcoord log`: the tools that look into a data directory and put it right."""

from __future__ import annotations

from typing import Final

import click

from kcoord.cli.lazy import LazyGroup

COMMANDS: Final = {
    "compact": "kcoord.cli.log.compact_command:compact_command",
    "diff": "kcoord.cli.log.diff:diff",
    "dump": "kcoord.cli.log.dump:dump",
    "export": "kcoord.cli.log.export_command:export_command",
    "import": "kcoord.cli.log.import_command:import_command",
    "ls": "kcoord.cli.log.ls:ls",
    "repair": "kcoord.cli.log.repair:repair",
    "restore": "kcoord.cli.log.snapshot_commands:restore",
    "snapshot": "kcoord.cli.log.snapshot_commands:snapshot",
    "state": "kcoord.cli.log.state:state",
    "timeline": "kcoord.cli.log.timeline:timeline",
    "verify": "kcoord.cli.log.verify:verify",
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
def log() -> None:
    """Look into a data directory, and put it right.

    Tools that only look take no lock and work on a running server's directory, up to its durable mark, and on a
    stopped Kafka broker's. Tools that write refuse a directory in use.

    \b
    Exit codes: 0 fine; 1 problems found; 2 wrong usage; 4 not readable or
    writable; 5 not kcoord's; 6 in use; 7 damaged; 8 disk full; 9 reading or
    writing failed.
    """
