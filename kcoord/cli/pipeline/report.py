"""`kcoord pipeline report`."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import click

from kcoord.cli.log.common import emit_json, fail, note
from kcoord.cli.pipeline.options import BUCKETS_DEFAULT, PARQUET, SHOWN_DEFAULT, RunOptions, pipeline_options
from kcoord.cli.pipeline.progress import watch
from kcoord.cli.pipeline.run import Run
from kcoord.cli.pipeline.short_run import ShortRun, run_short_for
from kcoord.core.outcome import GROUP_EVENTS_TOPIC, OFFSETS_TOPIC
from kcoord.server.failures import EXIT_CONFIG

# Above this size the JVM's second compiler pays: lag is measured some hundred times for each partition of each group.
ONE_COMPILER_BYTES = 8 << 20


@click.command("report")
@pipeline_options
def report(options: RunOptions) -> None:
    """One HTML page about PATH, with plots: commits, lag, rebalances, who causes them, rewinds and resets.

    --to names its file. The page needs no network, so it can be sent by mail. Plots are grey where compaction removed
    history.

    \b
    Example:
      kcoord pipeline report data --since 2025-10-01 --to groups.html
    """
    _check(options)

    def short(run: ShortRun) -> str:
        from kcoord.spark.jobs import lag, rebalances
        from kcoord.spark.jobs.report.page import page
        from kcoord.spark.short import rebalances as job
        from kcoord.spark.short.report import collect

        of_rebalances = {"record_type": rebalances.RECORD_TYPES}
        of_records, of_states = run.both_histories()
        found = job.rebalances(
            run.table("records", rebalances.RECORD_COLUMNS, of_rebalances, subscribe=OFFSETS_TOPIC),
            run.table("messages", rebalances.MESSAGE_COLUMNS, subscribe=GROUP_EVENTS_TOPIC),
            of_records,
        )
        report = collect(
            run.commits(lag.COMMIT_COLUMNS),
            run.table("messages", lag.MESSAGE_COLUMNS),
            [row for row in found if not options.groups or row["group_id"] in options.groups],
            options.path,
            run.now_us // 1000,
            options.since_ms if options.since_ms >= 0 else None,
            options.until_ms if options.until_ms >= 0 else None,
            of_states,
        )
        return page(report)

    if run_short_for("report", options, short, lambda _run, text: _finish(options, text)):
        return
    with Run("report", options, reads_history=True, one_compiler_bytes=ONE_COMPILER_BYTES) as run:
        from kcoord.spark.jobs import lag, rebalances
        from kcoord.spark.jobs.report.collect import collect
        from kcoord.spark.jobs.report.page import page

        of_rebalances = {"record_type": rebalances.RECORD_TYPES}
        with watch(run.spark, "Reading", options.is_json):
            of_records, of_states = run.both_histories()
            moves = rebalances.rebalances(
                run.table("records", rebalances.RECORD_COLUMNS, of_rebalances, subscribe=OFFSETS_TOPIC),
                run.table("messages", rebalances.MESSAGE_COLUMNS, subscribe=GROUP_EVENTS_TOPIC),
                of_records,
            )
            found = collect(
                run.table("offset_commits", lag.COMMIT_COLUMNS),
                run.table("messages", lag.MESSAGE_COLUMNS),
                moves,
                options.path,
                datetime.now(UTC),
                _time(options.since_ms),
                _time(options.until_ms),
                options.groups,
                of_states,
                run.markers(),
            )
        _finish(options, page(found))


def _finish(options: RunOptions, text: str) -> None:
    size = _write(options, text)
    if options.is_json:
        emit_json({"job": "report", "output": options.output, "bytes": size})
    else:
        note(f"the page is in {options.output}")


def _check(options: RunOptions) -> None:
    """Before Spark starts."""
    if not options.output:
        raise click.UsageError("--to FILE is required: the file of the page")
    if options.format != PARQUET or options.buckets != BUCKETS_DEFAULT or options.shown not in (0, SHOWN_DEFAULT):
        raise click.UsageError("a page has no --format, --buckets or --limit")
    if "://" in options.output:
        fail(f"{options.output}: --to must be a local file", EXIT_CONFIG)
    if os.path.isdir(options.output):
        fail(
            f"{options.output} is a directory; --to must be a file, groups.html for instance",
            EXIT_CONFIG,
        )
    if os.path.exists(options.output) and not options.overwrite:
        fail(f"{options.output} exists; --overwrite replaces it", EXIT_CONFIG)
    folder = os.path.dirname(options.output) or "."
    if not os.path.isdir(folder):
        fail(f"{folder} does not exist", EXIT_CONFIG)


def _write(options: RunOptions, text: str) -> int:
    """Write the whole file or none. Raises OSError."""
    data = text.encode()
    staged = f"{options.output}.part"
    with open(staged, "wb") as file:
        file.write(data)
    os.replace(staged, options.output)
    return len(data)


def _time(at_ms: int) -> datetime | None:
    return datetime.fromtimestamp(at_ms / 1000, UTC) if at_ms >= 0 else None
