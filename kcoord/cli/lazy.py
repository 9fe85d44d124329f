"""Command groups that import a command only when it is used, so that every command starts quickly."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """`lazy` maps a command's name to `module:attribute` and to its line in the help of the group."""

    def __init__(self, *args: Any, lazy: dict[str, tuple[str, str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = self.lazy.get(cmd_name)
        if target is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = target[0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def _help_lines(self, ctx: click.Context, limit: int) -> list[tuple[str, str]]:
        """The names of all commands that are not hidden, with one line about each."""
        found: list[tuple[str, str]] = []
        for name in self.list_commands(ctx):
            if name in self.lazy:
                found.append((name, self.lazy[name][1]))
                continue
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                found.append((name, command.get_short_help_str(limit)))
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, self.list_commands(ctx)), default=0)
        lines = self._help_lines(ctx, limit)
        if lines:
            with formatter.section("Commands"):
                formatter.write_dl(lines)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        lines = self._help_lines(ctx, click.HelpFormatter().width)
        names = [CompletionItem(name, help=text) for name, text in lines if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Refuse an unknown command with the name of a similar one."""
        name = args[0]
        known = self.list_commands(ctx)
        if not ctx.resilient_parsing and name not in known and not name.startswith("-"):
            from kcoord.cli.online.suggestions import suggestion

            ctx.fail(f"No such command {name!r}{suggestion(name, known) or '.'}")
        return super().resolve_command(ctx, args)
