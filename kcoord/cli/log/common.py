"""Shared code of the log tools: exit codes, error messages, times, sizes, tables, JSON and progress."""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Self, TypeVar, final

import click

from kcoord.log.errors import LogError
from kcoord.log.inspect import DataDirectory, inspect_directory
from kcoord.server.failures import EXIT_STORAGE, classify

EXIT_PROBLEMS: Final = 1
WIDTH_MIN: Final = 40
WIDTH_DEFAULT: Final = 80
WIDTH_PIPED: Final = 100_000
# How many times a progress bar is drawn at most.
DRAWN_MAX: Final = 400
# The last time of the year 9999; later times are printed as numbers.
TIME_MS_MAX: Final = 253402300799999

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


# --- values


def format_time(wall_ms: int) -> str:
    """UTC in ISO 8601 with milliseconds; empty for -1 (no time)."""
    if wall_ms < 0:
        return ""
    if wall_ms > TIME_MS_MAX:
        return f"{wall_ms} ms"
    moment = datetime.fromtimestamp(wall_ms // 1000, UTC).replace(tzinfo=None)
    return f"{moment.isoformat()}.{wall_ms % 1000:03d}Z"


def format_bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{count} B"


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


# --- output


def width() -> int:
    """The width for tables and text: the terminal's or that of COLUMNS. Lines to a pipe or file are not cut."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return WIDTH_PIPED
    return max(shutil.get_terminal_size((WIDTH_DEFAULT, 24)).columns, WIDTH_MIN)


def emit_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def json_line(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def printable(text: str) -> str:
    """`text` without control characters of a terminal."""
    return "".join(ch if ch.isprintable() else repr(ch)[1:-1] for ch in text)


def wrapped(text: str, indent: int = 0, first_indent: int | None = None) -> list[str]:
    """`text` in lines that fit the terminal; long words are split."""
    first = indent if first_indent is None else first_indent
    return textwrap.wrap(
        printable(text), width(), initial_indent=" " * first, subsequent_indent=" " * indent, break_on_hyphens=False
    ) or [" " * first]


def say(text: str, indent: int = 0, first_indent: int | None = None) -> None:
    """Print `text` in lines that fit the terminal."""
    click.echo("\n".join(wrapped(text, indent, first_indent)))


def table(head: list[str], rows: list[list[str]], right: str = "", details: list[list[str]] | None = None) -> list[str]:
    """The lines of a table. The first column wraps if the table is too wide; `right` has an `r` per right-aligned one.

    `details` are lines that follow each row.
    """
    cells = [[printable(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    others = sum(widths[1:]) + 2 * (len(head) - 1)
    widths[0] = min(widths[0], max(width() - others, 12))
    lines: list[str] = []
    for number, row in enumerate(cells):
        parts = textwrap.wrap(row[0], widths[0], break_on_hyphens=False) or [""]
        columns = [parts[0].ljust(widths[0])]
        for i in range(1, len(head)):
            is_right = i < len(right) and right[i] == "r"
            columns.append(row[i].rjust(widths[i]) if is_right else row[i].ljust(widths[i]))
        lines.append("  ".join(columns).rstrip())
        lines += ["  " + part for part in parts[1:]]
        if details is not None and number:
            lines += details[number - 1]
    return lines


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
