"""Rows for a terminal, within its width, or as plain data for JSON."""

from __future__ import annotations

import base64
import re
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from kcoord.cli.log.common import emit_rows, format_time, json_line, note, plural, printable, say, width

if TYPE_CHECKING:
    from kcoord.cli.pipeline.options import RunOptions

# The shortest length that long texts are cut to.
CELL_MIN: Final = 8
TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\S+Z")
GAP: Final = 2
ELLIPSIS: Final = "…"


def rows_of(rows: list[Any]) -> list[Any]:
    return [plain(row.asDict(recursive=True)) for row in rows]


def show(
    options: RunOptions, name: str, columns: list[str], documents: list[Any], titles: dict[str, str], is_first: bool
) -> dict[str, Any]:
    """Print a table. `documents` are its first rows as `rows_of` makes them, with one that is too many if there are
    more. Rows for JSON are returned instead.
    """
    wanted = documents[: options.shown]
    if options.is_json:
        return {"rows": wanted}
    if options.is_csv:
        print_csv(columns, wanted, is_first)
    else:
        print_rows(name, wanted, titles, len(documents) > len(wanted))
    return {}


def plain(value: Any) -> Any:
    """A value for JSON. Spark returns local times without a zone; they become UTC again."""
    if isinstance(value, datetime):
        return format_time(round(value.astimezone(UTC).timestamp() * 1000))
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def print_rows(name: str, documents: list[Any], titles: dict[str, str], has_more: bool) -> None:
    """`documents` are rows as `rows_of` makes them; `titles` has the columns to print, the most important first."""
    count = plural(len(documents), "row") if documents else "nothing"
    say(f"{name}: {count}" + (", and more" if has_more else ""))
    if not documents:
        return
    values = [[document[column] for column in titles] for document in documents]
    lines, left_out = fitted([*titles.values()], values, width())
    click.echo("\n".join(lines))
    if left_out:
        names = ", ".join([*titles][-left_out:])
        note(f"too wide for this terminal: {names} left out; -o json has everything")


def print_csv(columns: list[str], documents: list[Any], is_first: bool) -> None:
    """All columns; tables after the first one follow an empty line."""
    if not is_first:
        click.echo()
    emit_rows(columns, documents)


def is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".") if abs(value) < 1e15 else f"{value:g}"
    if isinstance(value, int | str):
        return printable(str(value))
    return printable(json_line(value))


def fitted(titles: list[str], values: list[list[Any]], space: int) -> tuple[list[str], int]:
    """Lines of a table that is at most `space` wide, and how many of the last columns do not fit.

    Texts are shortened where that helps, the longest first; numbers and times never are.
    """
    count = len(titles)
    is_right = [all(is_number(row[i]) for row in values) for i in range(count)]
    cells = [titles, *([cell(value) for value in row] for row in values)]
    widths = [max(len(row[i]) for row in cells) for i in range(count)]
    least = [
        widths[i] if is_right[i] or any(TIME.fullmatch(row[i]) for row in cells) else min(widths[i], CELL_MIN)
        for i in range(count)
    ]
    while count > 1 and sum(least[:count]) + GAP * (count - 1) > space:
        count -= 1
    while sum(widths[:count]) + GAP * (count - 1) > space:
        longest = max(range(count), key=lambda i: widths[i] - least[i])
        if widths[longest] == least[longest]:
            break
        # The longest ones are shortened together.
        widths[longest] -= 1
    lines = []
    for row in cells:
        parts = [_short(row[i], widths[i]) for i in range(count)]
        parts = [part.rjust(widths[i]) if is_right[i] else part.ljust(widths[i]) for i, part in enumerate(parts)]
        lines.append((" " * GAP).join(parts).rstrip())
    return lines, len(titles) - count


def _short(text: str, space: int) -> str:
    return text if len(text) <= space else text[: space - 1] + ELLIPSIS
