"""Shared code of `kcoord transactions`: options, errors and durations."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from kcoord.cli.log.points import UNITS_MS
from kcoord.cli.online.run import EXIT_CLUSTER, complain
from kcoord.cli.online.run import friendly as online_friendly
from kcoord.cli.transactions.cluster import ClusterError
from kcoord.wire.primitives import EncodeError

DURATION: Final = re.compile(r"(\d+)(ms|s|m|h|d)?")

F = TypeVar("F", bound=Callable[..., Any])


def friendly(command: F) -> F:
    """Report errors of the cluster as one line on stderr and an exit code."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except ClusterError as error:
            complain(str(error))
            sys.exit(EXIT_CLUSTER)
        except (ValueError, OverflowError, EncodeError) as error:
            raise click.UsageError(str(error)) from None

    return online_friendly(run)  # type: ignore[return-value]


def parse_duration(text: str | int) -> int:
    """Milliseconds. Raises BadParameter. A number (a default) is returned unchanged."""
    if isinstance(text, int):
        return text
    match = DURATION.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not a duration, such as 500ms, 30s, 15m or 2h")
    return int(match.group(1)) * UNITS_MS[match.group(2) or "ms"]


def duration_text(ms: int) -> str:
    """A duration for people, empty for a negative one."""
    if ms < 0:
        return ""
    if ms < 10_000:
        return f"{ms} ms"
    if ms < 600_000:
        return f"{ms / 1000:.0f} s"
    return f"{ms / 60_000:.0f} min" if ms < 36_000_000 else f"{ms / 3_600_000:.0f} h"
