"""The options of every job, as one object. Imports nothing heavy, so that `--help` is quick."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from kcoord.cli.log.points import parse_time

PARQUET: Final = "parquet"
DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
FORMATS: Final = (PARQUET, DELTA, ICEBERG)
SHOWN_DEFAULT: Final = 20
BUCKETS_DEFAULT: Final = 16

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class RunOptions:
    """The options of a run. Times are Unix times in ms, -1 for none; `output` is "" for none."""

    path: str
    master: str
    conf: tuple[tuple[str, str], ...]
    source: tuple[tuple[str, str], ...]
    groups: tuple[str, ...]
    topics: tuple[str, ...]
    since_ms: int
    until_ms: int
    one_cluster: bool
    output: str
    format: str
    buckets: int
    overwrite: bool
    shown: int
    is_json: bool


def parse_pair(_context: object, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        pairs.append((name, value))
    return tuple(pairs)


_OPTIONS: Final[list[Any]] = [
    click.argument("path"),
    click.option("--master", "-m", default="local[*]", show_default=True, metavar="URL", help="As for spark-submit."),
    click.option(
        "--conf", "-c", multiple=True, callback=parse_pair, metavar="NAME=VALUE",
        help="A setting of Spark, such as spark.driver.memory=4g; repeatable.",
    ),
    click.option(
        "--option", "source", multiple=True, callback=parse_pair, metavar="NAME=VALUE",
        help="An option of the reader, such as onCorrupt=collect; repeatable.",
    ),
    click.option("--group", "-g", "groups", multiple=True, metavar="ID", help="Of this group; repeatable."),
    click.option("--topic", "-t", "topics", multiple=True, metavar="NAME", help="Of this topic; repeatable."),
    click.option("--since", "since_ms", type=parse_time, default=-1, metavar="TIME", help="Rows not older than TIME."),
    click.option("--until", "until_ms", type=parse_time, default=-1, metavar="TIME", help="Rows not newer than TIME."),
    click.option(
        "--one-cluster", is_flag=True,
        help="The data directories below PATH are brokers of one cluster: replicas count once.",
    ),
    click.option(
        "--output", default="", metavar="DIR", help="Write there, each table to a directory of its own name."
    ),
    click.option(
        "--format", type=click.Choice(FORMATS), default=PARQUET, show_default=True,
        help="What is written. Delta and Iceberg if Spark has them; for Iceberg DIR is CATALOG.DATABASE.",
    ),
    click.option(
        "--buckets", type=click.IntRange(1), default=BUCKETS_DEFAULT, show_default=True,
        help="Groups are written to so many.",
    ),
    click.option("--overwrite", is_flag=True, help="Replace tables that are there."),
    click.option(
        "--show", "shown", type=click.IntRange(0), default=None, metavar="N",
        help=f"Print N rows of each table ({SHOWN_DEFAULT} without --output).",
    ),
    click.option("--output-format", type=click.Choice(["table", "json"]), default="table", show_default=True),
]  # fmt: skip


def pipeline_options(command: F) -> F:
    """A command with the options of all jobs, which it takes as `options`, a RunOptions."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        names = [name for name in RunOptions.__dataclass_fields__ if name not in ("is_json", "shown")]
        given = {name: kwargs.pop(name) for name in names}
        shown = kwargs.pop("shown")
        if shown is None:
            shown = 0 if given["output"] else SHOWN_DEFAULT
        is_json = kwargs.pop("output_format") == "json"
        return command(*args, options=RunOptions(**given, shown=shown, is_json=is_json), **kwargs)

    decorated: Any = run
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]
