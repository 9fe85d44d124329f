"""The options with which a command reads the server's settings."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from kcoord.server.settings.load import Config

EXIT_CONFIG: Final = 2

F = TypeVar("F", bound=Callable[..., Any])


def settings_options(command: F) -> F:
    """`--config` and `--set`, as `config_file` and `assignments`."""
    text = "A setting; repeatable."
    command = click.option("--set", "-s", "assignments", multiple=True, metavar="NAME=VALUE", help=text)(command)
    text = "Settings: TOML or .properties."
    return click.option("--config", "-c", "config_file", default="", metavar="FILE", help=text)(command)


def load_settings(**sources: Any) -> Config:
    """Load the configuration from the sources of `kcoord.server.settings.load.load`; exits if it is invalid."""
    from kcoord.server.settings.load import ConfigError, load

    try:
        return load(**sources)
    except ConfigError as error:
        click.echo(f"kcoord: {error}", err=True)
        sys.exit(EXIT_CONFIG)
