"""Options that mean the same in all commands. docs/commands.md has the convention, a test walks over all commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from click.parser import _OptionParser

OUTPUTS: Final = ("table", "json", "csv")

F = TypeVar("F", bound=Callable[..., Any])


class AliasedOption(click.Option):
    """An option with names that still work and that the help does not show."""

    def __init__(self, *args: Any, aliases: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.aliases = aliases

    def add_to_parser(self, parser: _OptionParser, ctx: click.Context) -> None:
        shown = self.opts
        self.opts = [*shown, *self.aliases]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = shown


def output_option(command: F) -> F:
    """-o, as the argument `output`."""
    text = "How results are printed."
    return click.option("--output", "-o", type=click.Choice(OUTPUTS), default="table", show_default=True, help=text)(
        command
    )


def limit_option(text: str) -> Callable[[F], F]:
    """-n, as the argument `limit`: None for no limit."""
    return click.option("--limit", "-n", type=click.IntRange(min=0), metavar="N", help=text)


def partition_option(text: str) -> Callable[[F], F]:
    """-p, as the argument `partition`: -1 for none."""
    kind = click.IntRange(min=0)
    return click.option("--partition", "-p", type=kind, metavar="N", help=text, callback=_or_minus_1)


def _or_minus_1(_context: click.Context, _parameter: click.Parameter, value: int | None) -> int:
    return -1 if value is None else value
