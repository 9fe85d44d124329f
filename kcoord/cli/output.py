"""Values and tables as the commands print them. Quick to import."""

from __future__ import annotations

import os
import sys
from typing import Any, Final, NamedTuple

import click

WIDTH_MIN: Final = 40
WIDTH_DEFAULT: Final = 80
WIDTH_PIPED: Final = 100_000
# The last time of the year 9999; later times are printed as numbers.
TIME_MS_MAX: Final = 253402300799999

# --- values


def format_time(wall_ms: int) -> str:
    """UTC in ISO 8601 with milliseconds; empty for -1 (no time)."""
    if wall_ms < 0:
        return ""
    if wall_ms > TIME_MS_MAX:
        return f"{wall_ms} ms"
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(wall_ms // 1000, UTC).replace(tzinfo=None)
    return f"{moment.isoformat()}.{wall_ms % 1000:03d}Z"


def format_bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{count} B"


def format_duration(ms: int) -> str:
    """In one unit, so that durations can be compared at a glance."""
    return f"{ms / 1000:.3f} s"


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def width() -> int:
    """The width for tables and text: the terminal's or that of COLUMNS. Lines to a pipe or file are not cut."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return WIDTH_PIPED
    import shutil

    return max(shutil.get_terminal_size((WIDTH_DEFAULT, 24)).columns, WIDTH_MIN)


def emit_json(document: Any) -> None:
    import json

    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def json_line(document: Any) -> str:
    import json

    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def printable(text: str) -> str:
    """`text` without control characters of a terminal."""
    return "".join(ch if ch.isprintable() else repr(ch)[1:-1] for ch in text)


def wrapped(text: str, indent: int = 0, first_indent: int | None = None) -> list[str]:
    """`text` in lines that fit the terminal; long words are split."""
    import textwrap

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
    import textwrap

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


def fits(head: list[str], rows: list[list[str]]) -> bool:
    """Whether the lines of this table are no wider than the terminal. A pipe or a file takes any width."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return sum(widths) + 2 * (len(head) - 1) <= width()


class Column(NamedTuple):
    """A column of `emit`: the key of its values in rows and in JSON and CSV, its head in the table."""

    key: str
    head: str
    is_number: bool = False


def emit(columns: list[Column], rows: list[dict[str, Any]], output: str) -> None:
    """Print rows as a table, as CSV with a header line, or as a JSON array of objects."""
    if output == "json":
        emit_json(rows)
    elif output == "csv":
        lines = [[_plain(row[one.key]) for one in columns] for row in rows]
        click.echo(csv_text([[one.key for one in columns], *lines]), nl=False)
    else:
        cells = [[_cell(row[one.key]) for one in columns] for row in rows]
        right = "".join("r" if one.is_number else "l" for one in columns)
        click.echo("\n".join(table([one.head for one in columns], cells, right)))


def emit_rows(fields: tuple[str, ...] | list[str], rows: list[dict[str, Any]]) -> None:
    """Print rows as CSV with these fields."""
    emit([Column(name, "") for name in fields], rows, "csv")


def csv_text(rows: list[list[Any]]) -> str:
    """Lines of CSV; None is an empty field."""
    import csv
    import io

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def csv_line(values: list[Any]) -> str:
    """One line of CSV, with cells as `emit` prints them."""
    return csv_text([[_plain(value) for value in values]])


def _plain(value: Any) -> Any:
    """A value for a cell: true and false, lists of words with spaces, and other lists and objects as JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, (dict, list)) for one in value)):
        return json_line(value)
    return " ".join(map(str, value)) if isinstance(value, list) else value


def _cell(value: Any) -> str:
    text = _plain(value)
    return "-" if text is None or text == "" else str(text)
