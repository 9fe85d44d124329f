"""The options of every job, as one object. Imports nothing heavy, so that `--help` is quick."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from kcoord.cli.log.points import parse_table_time
from kcoord.cli.online.suggestions import suggestion
from kcoord.cli.options import OUTPUTS, AliasedOption

PARQUET: Final = "parquet"
DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
FORMATS: Final = (PARQUET, DELTA, ICEBERG)
SHOWN_DEFAULT: Final = 20
BUCKETS_DEFAULT: Final = 16

# Fields of RunOptions that are not options of the command line.
DERIVED: Final = ("is_json", "is_csv", "shown", "output", "is_spark_wanted")

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class RunOptions:
    """The options of a run. Times are Unix times in ms, -1 for none; `output` is the directory to write to.
    `is_spark_wanted` is whether the command line names a master or settings of Spark."""

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
    is_csv: bool = False
    is_spark_wanted: bool = False


class Output(click.Choice[str]):
    """A format; see `destination` for other values."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)


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
    click.option(
        "--master", "-m", default="local[*]", show_default=True, metavar="URL",
        help="Spark's master, as for spark-submit. With it, or --conf, Spark reads short logs, too.",
    ),
    click.option(
        "--conf", "-c", multiple=True, callback=parse_pair, metavar="NAME=VALUE",
        help="A Spark setting, such as spark.driver.memory=4g; repeatable.",
    ),
    click.option(
        "--option", "source", multiple=True, callback=parse_pair, metavar="NAME=VALUE",
        help="An option of the reader, such as onCorrupt=collect; repeatable.",
    ),
    click.option("--group", "-g", "groups", multiple=True, metavar="ID", help="Only this group; repeatable."),
    click.option("--topic", "-t", "topics", multiple=True, metavar="NAME", help="Only this topic; repeatable."),
    click.option(
        "--since", "since_ms", type=parse_table_time, default=-1, metavar="TIME", help="Only rows since TIME.",
    ),
    click.option(
        "--until", "until_ms", type=parse_table_time, default=-1, metavar="TIME", help="Only rows until TIME.",
    ),
    click.option(
        "--one-cluster", is_flag=True,
        help="The data directories below PATH are brokers of one cluster: replicas count once.",
    ),
    click.option("--to", "target", default="", metavar="DIR", help="Write each table to its own directory in DIR."),
    click.option(
        "--format", type=click.Choice(FORMATS), default=PARQUET, show_default=True,
        help="The table format. Spark must have Delta or Iceberg. For Iceberg, DIR is CATALOG.DATABASE.",
    ),
    click.option(
        "--buckets", type=click.IntRange(1), default=BUCKETS_DEFAULT, show_default=True,
        help="Number of buckets, by group, in each table.",
    ),
    click.option("--overwrite", is_flag=True, help="Replace existing tables."),
    click.option(
        "--limit", "-n", "shown", cls=AliasedOption, aliases=("--show",), type=click.IntRange(0), metavar="N",
        help=f"Print N rows of each table ({SHOWN_DEFAULT} without --to).",
    ),
    click.option(
        "--output", "-o", "output", cls=AliasedOption, aliases=("--output-format",), type=Output(OUTPUTS),
        default=("table",), show_default="table", multiple=True, help="How results are printed.",
    ),
]  # fmt: skip


def destination(target: str, outputs: tuple[str, ...]) -> tuple[str, str]:
    """The directory to write to, and how results are printed.

    --output was the name of --to; a value that is no format is still taken for a directory.
    """
    printed_as = "table"
    for value in outputs:
        if value in OUTPUTS:
            printed_as = value
        elif target:
            raise click.UsageError(f"--output {value!r} is not one of {', '.join(OUTPUTS)}")
        elif near := suggestion(value, OUTPUTS):
            raise click.UsageError(f"--output {value!r} is not one of {', '.join(OUTPUTS)}{near}")
        else:
            click.echo("kcoord: --output DIR is now --to DIR", err=True)
            target = value
    return target, printed_as


def pipeline_options(command: F) -> F:
    """A command with the options of all jobs, which it takes as `options`, a RunOptions."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        names = [name for name in RunOptions.__dataclass_fields__ if name not in DERIVED]
        given = {name: kwargs.pop(name) for name in names}
        target, printed_as = destination(kwargs.pop("target"), kwargs.pop("output"))
        shown = kwargs.pop("shown")
        if shown is None:
            shown = 0 if target else SHOWN_DEFAULT
        master = click.get_current_context().get_parameter_source("master")
        options = RunOptions(
            **given,
            output=target,
            shown=shown,
            is_json=printed_as == "json",
            is_csv=printed_as == "csv",
            is_spark_wanted=bool(given["conf"]) or master is not ParameterSource.DEFAULT,
        )
        return command(*args, options=options, **kwargs)

    decorated: Any = run
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]
