"""Shared code of the log tools: exit codes, error messages, times, sizes, tables, JSON and progress."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, Final, Self, TypeVar, final

import click

from kcoord.cli.output import (
    emit_json,
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

# The helpers for output that the log tools import from here.
__all__ = [
    "emit_json",
    "format_bytes",
    "format_time",
    "json_line",
    "plural",
    "printable",
    "say",
    "table",
    "width",
    "wrapped",
]

EXIT_PROBLEMS: Final = 1
# How many times a progress bar is drawn at most.
DRAWN_MAX: Final = 400

F = TypeVar("F", bound=Callable[..., Any])


def directory_argument(command: F) -> F:
    return click.argument("directory", metavar="DIR", type=click.Path())(command)


def output_option(command: F) -> F:
    choice = click.Choice(["table", "json"])
    return click.option("--output", "-o", type=choice, default="table", show_default=True)(command)


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
            # The reader of our output has closed the pipe. Python would write to it again at exit, and report that.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        except FileNotFoundError as error:
            fail(f"{error.filename} disappeared while it was read: the log may have changed. Try again", EXIT_STORAGE)
        except (LogError, OSError) as error:
            failure = classify(error)
            fail(failure.message, failure.code)

    return run  # type: ignore[return-value]


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


# --- progress


@final
class Bar:
    """A progress bar on stderr if that is a terminal and the output is not JSON; otherwise nothing.

    Use it as a context manager; `begin` shows the bar and `step` advances it.
    """

    is_drawn: ClassVar[bool] = False

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._bar: Any = None
        self._left = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if self._bar is not None and error is None and self._left > 0:
            # The part that did not have to be read.
            self._bar.update(self._left)
        self._stack.close()
        Bar.is_drawn = False

    def begin(self, label: str, total: int) -> None:
        context = click.get_current_context(silent=True)
        is_for_people = context is None or context.params.get("output") != "json"
        if not sys.stderr.isatty() or not is_for_people or total <= 0:
            return
        # Drawing the bar takes longer than most steps.
        least = max(total // DRAWN_MAX, 1)
        bar = click.progressbar(length=total, label=label, file=sys.stderr, update_min_steps=least)
        self._bar = self._stack.enter_context(bar)
        self._left = total
        Bar.is_drawn = True

    def step(self, count: int) -> None:
        if self._bar is not None and self._left > 0:
            count = min(count, self._left)
            self._left -= count
            self._bar.update(count)


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar with a known total; yields a function that advances it."""
    with Bar() as bar:
        bar.begin(label, total)
        yield bar.step
