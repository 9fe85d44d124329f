"""`kcoord transactions`: list, describe and abort the transactions of a running server or of a Kafka cluster."""

from __future__ import annotations

from typing import Final

import click

from kcoord.cli.lazy import LazyGroup

COMMANDS: Final = {
    "abort": ("kcoord.cli.transactions.abort:abort", "Abort a hanging transaction in one partition."),
    "describe": ("kcoord.cli.transactions.describe:describe", "Print the state of a transactional id."),
    "list": ("kcoord.cli.transactions.list_command:list_command", "List transactional ids, or hanging transactions."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
def transactions() -> None:
    """List, describe and abort transactions.

    The commands talk to a running kcoord or to any Kafka cluster from version 3.0 on.

    \b
    Exit codes: 0 success; 1 hanging transactions found; 2 wrong usage;
    3 no response in time, or the cluster refused the request.
    """
