"""Command groups that import a command only when it is used, so that `kcoord serve` starts quickly."""

from __future__ import annotations

import importlib
from typing import Any

import click


class LazyGroup(click.Group):
    """`lazy` maps a command's name to `module:attribute`."""

    def __init__(self, *args: Any, lazy: dict[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = self.lazy.get(cmd_name)
        if target is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Refuse an unknown command with the name of a similar one."""
        name = args[0]
        known = self.list_commands(ctx)
        if not ctx.resilient_parsing and name not in known and not name.startswith("-"):
            from kcoord.cli.online.suggestions import suggestion

            ctx.fail(f"No such command {name!r}{suggestion(name, known)}.")
        return super().resolve_command(ctx, args)
