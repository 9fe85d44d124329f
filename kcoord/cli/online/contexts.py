"""Named clusters in `~/.config/kcoord/config.toml`.

current = "local"

[contexts.local]
bootstrap = "127.0.0.1:9092"

A file and not an environment variable: the server takes every variable that begins with KCOORD_ for a setting.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
KEYS: Final = ("bootstrap",)


class ContextProblem(Exception):
    """The file or the context cannot be used; the message says why."""


def config_path() -> str:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "kcoord", "config.toml")


def state_directory() -> Path:
    """Where undo files are kept."""
    from pathlib import Path

    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "kcoord"


def bootstrap_of(context: str | None) -> str:
    """The address of a context, or of the current one with None; the default if there is no file.

    Raises ContextProblem.
    """
    path = config_path()
    if context is None and not os.path.exists(path):
        return DEFAULT_BOOTSTRAP
    document = _read(path)
    contexts = document.get("contexts", {})
    name = context if context is not None else document.get("current")
    if name is None:
        return DEFAULT_BOOTSTRAP
    found = contexts.get(name) if isinstance(contexts, dict) else None
    if not isinstance(found, dict):
        from kcoord.cli.online.suggestions import suggestion

        raise ContextProblem(f"{path} has no context {name!r}{suggestion(str(name), contexts)}")
    for key in found:
        if key not in KEYS:
            raise ContextProblem(f"{path}: context {name!r}: unknown key {key!r}")
    bootstrap = found.get("bootstrap", DEFAULT_BOOTSTRAP)
    if not isinstance(bootstrap, str):
        raise ContextProblem(f"{path}: context {name!r}: bootstrap is not a string")
    return bootstrap


def _read(path: str) -> dict[str, Any]:
    import tomllib

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ContextProblem(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ContextProblem(f"{path}: {error}") from None
