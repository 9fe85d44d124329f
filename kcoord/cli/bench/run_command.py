"""`kcoord bench run`."""

from __future__ import annotations

import sys
from typing import Any

import click

from kcoord.cli.bench.common import measuring_options, options_of, run_measuring, workloads_of
from kcoord.cli.bench.report import document, has_problems, print_results
from kcoord.cli.bench.results import save as save_results
from kcoord.cli.online.run import EXIT_PROBLEMS, bootstrap_options, friendly
from kcoord.cli.options import output_option


@click.command(short_help="Measure a cluster.")
@bootstrap_options
@click.argument("workloads", metavar="[WORKLOAD]...", nargs=-1)
@measuring_options
@output_option
@friendly
def run(bootstrap: str, workloads: tuple[str, ...], save: str, output: str, **given: Any) -> None:
    """Measure a cluster: all workloads, or those that are named.

    Steady workloads are `commit-1`, `commit-5`, `commit-100`, `offset-fetch`, `heartbeat`, `consumer-heartbeat`,
    `produce`, `fetch` and `transactions`: requests per second and their latencies, from sending a request to its
    answer. Group workloads are `join`, `restart` and `flap`, each with `-classic` and `-consumer`: seconds until the
    group is stable. `newcomer-classic` and `newcomer-consumer` measure how long clients need that come while others
    work. `steady`, `groups`, `newcomers` and `all` stand for several.

    Topics and groups are created with the prefix kcoord-bench-, and removed at the end, also after Ctrl-C.

    \b
    Examples:
      kcoord bench -b broker:9092 commit-5 heartbeat --connections 64
      kcoord bench -b broker:9092 steady --in-flight 32 --save before.json
      kcoord bench -b broker:9092 groups --members 500
    """
    names = workloads_of(workloads)
    options = options_of(given)
    results, code = run_measuring([bootstrap], names, options)
    found = document(bootstrap, options, results.workloads[0], is_complete=not code)
    if found["workloads"] or not code:
        print_results(found, output)
        if save:
            save_results(save, found)
    sys.exit(code or (EXIT_PROBLEMS if has_problems(found) or results.left_over else 0))
