"""Which history the logs no longer hold: why, since when, and how to keep it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kcoord.spark.jobs.report.data import HISTORIES_MAX, Report
from kcoord.spark.jobs.report.pieces import NAME, TIME, Table, plural, table
from kcoord.spark.jobs.report.text import count, duration, when

# A year, for the example.
LAG_MS_EXAMPLE: Final = 31_536_000_000


@dataclass(frozen=True)
class Missing:
    """For templates/sections.html. `latest_ms`: from then on all history is complete; None if that is not known.

    `left` are commits of the time before. `has_rebalances`: all rebalances are there.
    """

    latest_ms: int | None
    length: str
    has_rebalances: bool
    left: str
    logs: Table
    lag_ms_example: int = LAG_MS_EXAMPLE


def missing(report: Report) -> Missing | None:
    """None if all of the report's time is complete."""
    if not report.gone:
        return None
    times = [one for one in (report.complete_ms, report.rebalances_complete_ms) if one is not None]
    latest = max(times, default=None)
    length = "" if latest is None else duration(max((report.end_ms or 0) - latest, 0) / 1000)
    has_rebalances = report.rebalances_complete_ms is None and report.complete_ms is not None
    are = "is" if report.commits_left == 1 else "are"
    left = f"{plural(report.commits_left, 'commit')} {are}" if report.commits_left else ""
    return Missing(latest, length, has_rebalances, left, _logs(report))


def _logs(report: Report) -> Table:
    has_logs = len({one.log for one in report.gone}) > 1
    rows = [
        (f"{one.log}: {one.name}" if has_logs else one.name, when(one.from_ms), count(one.offset))
        for one in report.gone[:HISTORIES_MAX]
    ]
    caption = f"Logs that lack history: {len(report.gone)}. Up to {HISTORIES_MAX}, those that begin last first"
    return table(caption, ("Log", "Complete from", "From offset"), rows, (NAME, TIME))
