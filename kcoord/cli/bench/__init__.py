"""`kcoord bench`: measures any cluster that speaks Kafka's protocol."""

from __future__ import annotations

from typing import Final

import click

from kcoord.cli.lazy import LazyGroup

COMMANDS: Final = {
    "clean": ("kcoord.cli.bench.clean:clean", "Remove what a killed benchmark has left."),
    "compare": ("kcoord.cli.bench.compare_command:compare", "Compare two clusters, or two files of results."),
    "run": ("kcoord.cli.bench.run_command:run", "Measure a cluster."),
}


class BenchGroup(LazyGroup):
    """`run` is the command if none is named, so that `kcoord bench -b ADDRESS` measures."""

    default_command = "run"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_help = bool(args) and args[0] in ("-h", "--help")
        if not is_help and not (args and args[0] in self.list_commands(ctx)) and not ctx.resilient_parsing:
            args = [self.default_command, *args]
        return super().parse_args(ctx, args)


@click.group(cls=BenchGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
def bench() -> None:
    """Measure a running kcoord, or any other cluster that speaks Kafka's protocol.

    `kcoord bench` is short for `kcoord bench run`. docs/bench.md explains the workloads and the figures.

    \b
    Exit codes: 0 success; 1 a workload was skipped, or answers had errors; 2 wrong usage;
    3 no response in time, or the cluster refused the request.
    """
