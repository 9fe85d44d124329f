"""`kcoord bench compare`."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from kcoord.cli.bench.common import measuring_options, options_of, run_measuring, workloads_of
from kcoord.cli.bench.compare import compare as compared
from kcoord.cli.bench.report import COMPARED, document, has_problems
from kcoord.cli.bench.results import Document, NoResults, load
from kcoord.cli.bench.results import save as save_results
from kcoord.cli.online.run import EXIT_PROBLEMS, friendly
from kcoord.cli.options import output_option
from kcoord.cli.output import emit


@click.command(short_help="Compare two clusters, or two files of results.")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.argument("workloads", metavar="[WORKLOAD]...", nargs=-1)
@measuring_options
@output_option
@friendly
def compare(
    first: str, second: str, workloads: tuple[str, ...], save: str, output: str, **given: Any
) -> None:  # fmt: skip
    """Compare two clusters, or two files that `kcoord bench --save` has written.

    A and B are addresses (HOST:PORT) or files. The rounds of two clusters alternate, so that other load on the machine
    affects both. A ratio is A divided by B: its median, minimum and maximum over the rounds, or over all pairs of
    rounds for files. --save writes the results of A and B to FILE.a.json and FILE.b.json.

    \b
    Examples:
      kcoord bench compare localhost:9092 localhost:9192 steady --rounds 5
      kcoord bench compare before.json after.json
    """
    files = [one for one in (first, second) if is_file(one)]
    if len(files) == 1:
        raise click.UsageError(f"{files[0]} is a file, so the other one has to be a file, too")
    code = 0
    left_over: list[str] = []
    if files:
        if workloads or save:
            raise click.UsageError("workloads and --save are for clusters only")
        try:
            found = [load(first), load(second)]
        except NoResults as error:
            raise click.UsageError(str(error)) from None
    else:
        options = options_of(given)
        names = workloads_of(workloads)
        results, code = run_measuring([first, second], names, options)
        left_over = results.left_over
        pairs = zip((first, second), results.workloads, strict=True)
        found = [document(address, options, rows, is_complete=not code) for address, rows in pairs]
        if save:
            save_results(f"{save}.a.json", found[0])
            save_results(f"{save}.b.json", found[1])
    print_comparison(found[0], found[1], not files, output)
    sys.exit(code or (EXIT_PROBLEMS if left_over or any(has_problems(one) for one in found) else 0))


def is_file(text: str) -> bool:
    """Whether an argument is a file and no address."""
    return text.endswith(".json") or os.path.isfile(text)


def print_comparison(first: Document, second: Document, paired: bool, output: str) -> None:
    rows = compared(first, second, paired)
    columns = COMPARED
    if output == "table" and not any(row["note"] for row in rows):
        columns = [one for one in COMPARED if one.key != "note"]
    shown: list[dict[str, Any]] = rows if output != "table" else [{**row, **_texts(row)} for row in rows]
    emit(columns, shown, output)


def _texts(row: dict[str, Any]) -> dict[str, str | None]:
    """Numbers with the same digits in each row."""
    digits = 0 if row["figure"] == "req/s" else 3
    found: dict[str, str | None] = {key: None if row[key] is None else f"{row[key]:.{digits}f}" for key in ("a", "b")}
    for key in ("ratio", "ratio_min", "ratio_max"):
        found[key] = None if row[key] is None else f"{row[key]:.2f}"
    return found
