"""Shared code of the log tools: exit codes, error messages, and the directory."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

import click

from kcoord.cli.bar import Bar, progress
from kcoord.cli.options import output_option
from kcoord.cli.output import (
    Column,
    emit,
    emit_json,
    emit_rows,
    fits,
    format_bytes,
    format_time,
    json_line,
    plural,
    printable,
    say,
    table,
    width,
    wrapped,
)
from kcoord.log.errors import LogError
from kcoord.log.inspect import DataDirectory, inspect_directory
from kcoord.server.failures import EXIT_STORAGE, classify

# The helpers for output and progress that the log tools import from here.
__all__ = [
    "Bar",
    "Column",
    "emit",
    "emit_counts",
    "emit_json",
    "emit_rows",
    "fits",
    "format_bytes",
    "format_time",
    "json_line",
    "output_option",
    "plural",
    "printable",
    "progress",
    "say",
    "table",
    "width",
    "wrapped",
]

EXIT_PROBLEMS: Final = 1

F = TypeVar("F", bound=Callable[..., Any])


def directory_argument(command: F) -> F:
    return click.argument("directory", metavar="DIR", type=click.Path())(command)


def unsynced_option(command: F) -> F:
    text = "Also read records that a running server has not synced yet."
    return click.option("--unsynced", is_flag=True, help=text)(command)


def look_at(root: str, unsynced: bool) -> DataDirectory:
    """Open a directory for reading records. Raises LogError and OSError."""
    found = inspect_directory(root)
    found.unsynced = unsynced
    if found.in_use and not unsynced:
        note("a server is running: reading up to the durable mark (--unsynced reads to the end)")
    return found


def friendly(command: F) -> F:
    """Report errors of the log and of the file system as one line on stderr and an exit code."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except BrokenPipeError:
            end_output()
        except FileNotFoundError as error:
            fail(f"{error.filename} disappeared while it was read: the log may have changed. Try again", EXIT_STORAGE)
        except (LogError, OSError) as error:
            failure = classify(error)
            fail(failure.message, failure.code)

    return run  # type: ignore[return-value]


def end_output() -> NoReturn:
    """End the process because the reader of its output has closed the pipe. Python would write to it again at exit, and
    report that."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def emit_counts(counters: list[tuple[str, dict[str, int]]]) -> None:
    """Print what happened to how many of what, as CSV."""
    rows = [
        {"result": result, "what": what, "count": count}
        for result, counter in counters
        for what, count in sorted(counter.items())
    ]
    emit_rows(("result", "what", "count"), rows)


def fail(message: str, code: int) -> None:
    click.echo(f"kcoord: {message}", err=True)
    sys.exit(code)


def exit_if(has_problems: bool) -> None:
    """Exit with code 1 if there are problems, which were reported before."""
    if has_problems:
        click.get_current_context().exit(EXIT_PROBLEMS)


def note(message: str) -> None:
    """Print a remark on stderr."""
    if Bar.is_drawn:
        # Overwrite the progress bar, which is drawn again below.
        click.echo("\r\x1b[K", err=True, nl=False)
    click.echo(f"kcoord: {message}", err=True)
